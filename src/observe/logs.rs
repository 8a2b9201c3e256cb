//! Logs, on standard error.

use std::io::IsTerminal;

use clap::ValueEnum;
use tracing_subscriber::EnvFilter;
use tracing_subscriber::filter::ParseError;

/// Form of the log lines.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum LogFormat {
    /// Lines for people.
    #[default]
    Text,
    /// One JSON object a line, for log stores.
    Json,
}

/// Starts logging to standard error.
///
/// `level` is a level (`info`) or a list of directives (`info,ostrakon::evict=debug`).
///
/// # Errors
/// `level` is neither.
pub fn start_logs(format: LogFormat, level: &str) -> Result<(), ParseError> {
    let filter = EnvFilter::builder().parse(level)?;
    let builder = tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(std::io::stderr)
        .with_ansi(std::io::stderr().is_terminal());
    match format {
        LogFormat::Text => builder.init(),
        LogFormat::Json => builder.json().flatten_event(true).init(),
    }
    Ok(())
}
