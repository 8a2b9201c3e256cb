//! The command line: parsing, exit codes, and the last message of a failed command.

mod config;
#[cfg(feature = "demo")]
mod demo;
mod drain;
mod limits;
mod pause;
mod run;
mod signals;

use std::io::Write as _;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::Context as _;
use clap::error::ErrorKind;
use clap::{Parser, Subcommand};
use serde_json::json;

use crate::clock::system_time;
use crate::drain::{DURATION_REMEDY, parse_duration};
use crate::observe::LogFormat;

/// Exit code of a command that failed.
const FAILED: u8 = 1;
/// Exit code for a wrong command line; the same as clap's.
const WRONG_USAGE: u8 = 2;

/// The command line parsed, but cannot be used. The text says what to write instead.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
struct Usage(String);

/// Evicts pods from nodes with NoExecute taints, and cordons and drains nodes with bad conditions.
#[derive(Debug, Parser)]
#[command(name = "ostrakon", version, propagate_version = true, max_term_width = 100)]
#[command(after_help = "Exit codes: 0 done or stopped by a signal, 1 failed, 2 wrong usage.")]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    Run(Box<run::Arguments>),
    Pause(pause::PauseArguments),
    Resume(pause::ResumeArguments),
    #[cfg(feature = "demo")]
    Demo(demo::Arguments),
    Config(config::Arguments),
}

impl Command {
    /// The log format, which the error message of a failed command uses too.
    fn log_format(&self) -> LogFormat {
        match self {
            Self::Run(arguments) => arguments.log_format(),
            Self::Config(_) | Self::Pause(_) | Self::Resume(_) => LogFormat::Text,
            #[cfg(feature = "demo")]
            Self::Demo(_) => LogFormat::Text,
        }
    }
}

/// Parses the command line and runs the command.
pub fn main() -> ExitCode {
    let arguments = match Arguments::try_parse() {
        Ok(arguments) => arguments,
        Err(error) => return print_parse_result(&error),
    };
    let format = arguments.command.log_format();
    let outcome = match arguments.command {
        Command::Run(arguments) => run::run(*arguments),
        Command::Pause(arguments) => pause::pause(&arguments),
        Command::Resume(arguments) => pause::resume(&arguments),
        #[cfg(feature = "demo")]
        Command::Demo(arguments) => demo::run(&arguments),
        Command::Config(arguments) => config::run(&arguments),
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            print_error(&formatted(format, &error));
            ExitCode::from(if error.is::<Usage>() { WRONG_USAGE } else { FAILED })
        }
    }
}

/// Parses a flag's value as a duration.
fn duration(text: &str) -> Result<Duration, &'static str> {
    parse_duration(text).ok_or(DURATION_REMEDY)
}

/// Prints what clap returned instead of arguments: help, the version, or a usage error.
fn print_parse_result(error: &clap::Error) -> ExitCode {
    let is_help = error.kind() == ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand;
    if is_help || !error.use_stderr() {
        // If that fails, there is nowhere left to report it.
        let _ = error.print();
    } else {
        print_error(&in_one_line(&error.render().to_string()));
    }
    if error.use_stderr() { ExitCode::from(WRONG_USAGE) } else { ExitCode::SUCCESS }
}

/// A usage error in one line, as log stores expect it: the cause and the tip, without the usage
/// that `--help` shows.
fn in_one_line(rendered: &str) -> String {
    let mut parts: Vec<String> = Vec::new();
    for paragraph in rendered.split("\n\n") {
        let line = paragraph.split_whitespace().collect::<Vec<_>>().join(" ");
        if line.starts_with("Usage:") || line.starts_with("For more information") {
            continue;
        }
        // One tip per line; everything else is wrapped text.
        if paragraph.trim_start().starts_with("tip:") {
            parts.extend(paragraph.lines().map(|tip| tip.trim().to_owned()));
        } else {
            parts.push(line);
        }
    }
    parts.push("see --help for all options".to_owned());
    parts.join("; ")
}

/// Why the command failed, in one line, in the format of the logs.
fn formatted(format: LogFormat, error: &anyhow::Error) -> String {
    let message = format!("{error:#}");
    match format {
        LogFormat::Text => format!("error: {message}"),
        LogFormat::Json => json!({
            "timestamp": system_time(), "level": "ERROR", "message": message,
            "target": module_path!(),
        })
        .to_string(),
    }
}

/// Writes to standard output. A reader that closes the pipe is no error.
fn print(text: &str) -> anyhow::Result<()> {
    match std::io::stdout().write_all(text.as_bytes()) {
        Err(error) if error.kind() != std::io::ErrorKind::BrokenPipe => {
            Err(error).context("cannot write to standard output")
        }
        _ => Ok(()),
    }
}

/// Prints a line to standard error.
#[allow(clippy::print_stderr)]
fn print_error(line: &str) {
    eprintln!("{line}");
}

#[cfg(test)]
mod tests {
    use super::*;

    fn usage_error(arguments: &[&str]) -> String {
        let all = ["ostrakon"].iter().chain(arguments);
        in_one_line(&Arguments::try_parse_from(all).unwrap_err().render().to_string())
    }

    #[test]
    fn the_command_line_is_well_formed() {
        <Arguments as clap::CommandFactory>::command().debug_assert();
        let _ = Arguments::try_parse_from(["ostrakon", "run"]).unwrap();
    }

    #[test]
    fn a_failure_is_printed_in_the_format_of_the_logs() {
        let error = anyhow::anyhow!("the cause").context("the \"thing\"");
        assert_eq!(formatted(LogFormat::Text, &error), "error: the \"thing\": the cause");
        let line = formatted(LogFormat::Json, &error);
        let entry: serde_json::Value = serde_json::from_str(&line).unwrap();
        assert_eq!(entry["message"], "the \"thing\": the cause");
        assert_eq!(entry["level"], "ERROR");
        assert!(!line.contains('\n'), "{line}");
    }

    #[test]
    fn wrong_usage_is_one_line_with_the_cause_and_the_tip() {
        assert_eq!(
            usage_error(&["run", "--lsten=x"]),
            "error: unexpected argument '--lsten' found; tip: a similar argument exists: \
             '--listen'; see --help for all options"
        );
        assert_eq!(
            usage_error(&["run", "--compat=up"]),
            "error: invalid value 'up' for '--compat <COMPAT>' [possible values: none, upstream]; \
             tip: a similar value exists: 'upstream'; see --help for all options"
        );
    }
}
