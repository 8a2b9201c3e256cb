//! Logging to standard error.

use std::io::IsTerminal;
use std::str::FromStr;

use clap::ValueEnum;
use tracing_subscriber::EnvFilter;
use tracing_subscriber::filter::LevelFilter;

/// The client libraries log each failed request and handshake as an error of their own, without
/// saying which it was; whoever made the request says that, and what comes of it. Directives bring
/// them back: `info,kube_client=debug`.
const QUIET: &str = "kube_client=off,rustls_platform_verifier=off";

/// Form of the log lines.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum LogFormat {
    /// Lines for people.
    #[default]
    Text,
    /// One JSON object a line, for log stores.
    Json,
}

/// How much is logged: a level (`info`), or directives by target (`info,ostrakon::evict=debug`).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LogLevel(String);

/// An invalid log level.
#[derive(Debug, thiserror::Error)]
#[error("{0:?} is not a level; write off, error, warn, info, debug or trace, or TARGET=LEVEL")]
pub struct LogLevelError(String);

impl FromStr for LogLevel {
    type Err = LogLevelError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        for directive in text.split(',') {
            // The filter reads a single word as a target and shows only its lines, so a misspelt level
            // would silence everything else.
            let level = directive.rsplit_once('=').map_or(directive, |(target, level)| {
                if target.trim().is_empty() { "" } else { level }
            });
            if level.parse::<LevelFilter>().is_err() || level.is_empty() {
                return Err(LogLevelError(directive.to_owned()));
            }
        }
        match EnvFilter::builder().parse(text) {
            Ok(_) => Ok(Self(text.to_owned())),
            Err(_) => Err(LogLevelError(text.to_owned())),
        }
    }
}

/// Starts logging to standard error. To be called once.
pub fn start_logs(format: LogFormat, level: &LogLevel) {
    let filter = EnvFilter::builder().parse_lossy(format!("{QUIET},{}", level.0));
    let builder = tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(std::io::stderr)
        .with_ansi(std::io::stderr().is_terminal());
    match format {
        LogFormat::Text => builder.init(),
        LogFormat::Json => builder.json().flatten_event(true).init(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn levels_and_directives_are_understood() {
        for text in ["info", "OFF", "info,ostrakon::evict=debug", "kube_client=trace,warn"] {
            assert_eq!(text.parse::<LogLevel>().unwrap(), LogLevel(text.to_owned()));
        }
    }

    #[test]
    fn a_misspelt_level_is_not_taken_for_a_target() {
        for text in ["", "loud", "inof,ostrakon=debug", "ostrakon=loud", "info,=debug", "info,"] {
            let error = text.parse::<LogLevel>().unwrap_err().to_string();
            assert!(error.contains("write off, error, warn, info"), "{error}");
        }
    }
}
