//! The `ostrakon` program.

use std::process::ExitCode;

fn main() -> ExitCode {
    ostrakon::cli::main()
}
