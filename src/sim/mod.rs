//! A cluster in the process, on which the unchanged controller runs.
//!
//! It serves the newcomer who has no cluster, the benchmark that needs more nodes than a machine
//! can hold, and the test that needs a fault at an exact moment.

pub mod embedded;
