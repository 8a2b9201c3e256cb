//! The `ostrakon` program.

fn main() {}
