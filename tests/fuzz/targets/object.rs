//! One pod or node.
#![no_main]

#[path = "../checks.rs"]
#[allow(dead_code, reason = "each target has one check")]
mod checks;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| checks::object(bytes));
