//! What a person types, and what the process answers.

mod demo;
mod run;

use std::process::ExitCode;

use clap::{Parser, Subcommand};

/// Exit code of a command that failed.
const FAILED: u8 = 1;
/// Exit code of a command that was used wrongly, as clap has it too.
const MISUSED: u8 = 2;

/// What was typed makes no sense. The text says what would.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
struct Usage(String);

/// Removes pods from nodes: by NoExecute taints, at their deadlines.
#[derive(Debug, Parser)]
#[command(name = "ostrakon", version, propagate_version = true, max_term_width = 100)]
#[command(after_help = "Exit codes: 0 done or stopped by a signal, 1 failed, 2 wrong usage.")]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    Run(run::Arguments),
    Demo(demo::Arguments),
}

/// Parses the command line and does what it says.
pub fn main() -> ExitCode {
    let outcome = match Arguments::parse().command {
        Command::Run(arguments) => run::run(arguments),
        Command::Demo(arguments) => demo::run(&arguments),
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            complain(&error);
            ExitCode::from(if error.is::<Usage>() { MISUSED } else { FAILED })
        }
    }
}

/// Says in one line why the command failed.
#[allow(clippy::print_stderr)]
fn complain(error: &anyhow::Error) {
    eprintln!("error: {error:#}");
}
