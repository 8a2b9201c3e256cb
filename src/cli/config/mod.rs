//! `ostrakon config`.

mod draino;
mod migrate;

use std::fmt::Write as _;
use std::io::{Read as _, Write as _};
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, anyhow};
use clap::{Args, Subcommand};
use jiff::Timestamp;

use super::Usage;
use crate::clock::system_time;
use crate::config::{FileError, lint, read_policies, schema};
use crate::drain::{CapScope, Limit, NodeSelector, Policy, format_duration};

/// Check configuration files, and make one of draino's arguments
#[derive(Debug, Args)]
pub(super) struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Say what a configuration file means, or all that is wrong with it
    ///
    /// Prints a summary and warns of what is seldom meant. Exits with 1 if the file cannot be used.
    Check {
        /// The file; - for standard input
        #[arg(value_name = "FILE")]
        file: PathBuf,
    },
    /// Print the JSON schema of configuration files
    Schema,
    /// Print a configuration file that does what draino does with these arguments
    ///
    /// Comments in it say where the two differ. Example:
    ///
    ///   ostrakon config from-draino -- --drain-buffer=5m Ready=False,10m
    #[command(verbatim_doc_comment)]
    FromDraino {
        /// Draino's arguments
        #[arg(last = true, required = true, value_name = "ARGUMENT")]
        arguments: Vec<String>,
    },
}

/// Does what the subcommand says.
pub(super) fn run(arguments: &Arguments) -> anyhow::Result<()> {
    match &arguments.command {
        Command::Check { file } => say(&check(file)?),
        Command::Schema => say(&format!("{:#}\n", schema())),
        Command::FromDraino { arguments } => {
            let given = draino::parse(arguments).map_err(Usage)?;
            say(&migrate::file(&given).map_err(Usage)?)
        }
    }
}

/// Writes to standard output. Whoever stops reading has read enough.
fn say(text: &str) -> anyhow::Result<()> {
    match std::io::stdout().write_all(text.as_bytes()) {
        Err(error) if error.kind() != std::io::ErrorKind::BrokenPipe => {
            Err(error).context("cannot write to standard output")
        }
        _ => Ok(()),
    }
}

/// What a file means. All that is wrong with it is the error, a line each.
fn check(path: &Path) -> anyhow::Result<String> {
    let name = path.display();
    let text = if path == Path::new("-") {
        let mut text = String::new();
        std::io::stdin().read_to_string(&mut text).map(|_| text)
    } else {
        std::fs::read_to_string(path)
    };
    let text = text.with_context(|| format!("cannot read {name}"))?;
    let policies = read_policies(&text).map_err(|error| match error {
        FileError::Invalid(problems) => {
            let mut lines = format!("{name} has {}", count(problems.len(), "mistake"));
            for problem in problems {
                let _ = write!(lines, "\n  {problem}");
            }
            anyhow!(lines)
        }
        error @ FileError::Shape(_) => anyhow!("{name}: {error}"),
    })?;
    Ok(summary(&name.to_string(), &policies, system_time()))
}

fn summary(name: &str, policies: &[Policy], now: Timestamp) -> String {
    let many = if policies.len() == 1 { "policy" } else { "policies" };
    let mut text = format!("{name} can be used: {} drain {many}\n", policies.len());
    for policy in policies {
        let _ = writeln!(text, "\n{}", policy.name);
        for (key, value) in rows(policy, now) {
            let _ = writeln!(text, "  {key:<11} {value}");
        }
    }
    let warnings = lint(policies);
    if !warnings.is_empty() {
        let _ = writeln!(text);
    }
    for warning in warnings {
        let _ = writeln!(text, "warning: {warning}");
    }
    text
}

/// A policy in a few lines.
fn rows(policy: &Policy, now: Timestamp) -> Vec<(&'static str, String)> {
    let mut rows = Vec::new();
    rows.push(("nodes", nodes(&policy.nodes)));
    for rule in &policy.conditions {
        let over = match rule.clear_after {
            Some(after) => format!("over after {}", format_duration(after)),
            None => "never over by itself".to_owned(),
        };
        let stale =
            rule.stale_after.map(|after| format!(", stale after {}", format_duration(after)));
        rows.push(("bad", format!("{rule}; {over}{}", stale.unwrap_or_default())));
    }
    let caps = policy.pace.caps.iter().map(|cap| {
        let limit = match cap.limit {
            Limit::Count(count) => count.to_string(),
            Limit::Percent(percent) => format!("{percent}%"),
        };
        match &cap.scope {
            CapScope::Cluster => format!("{limit} of all nodes"),
            CapScope::Label(label) => format!("{limit} per {label}"),
        }
    });
    let caps: Vec<_> = caps.collect();
    let caps = if caps.is_empty() { "any number".to_owned() } else { caps.join(", ") };
    rows.push(("out of use", caps));
    if !policy.drain {
        rows.push(("drain", "never, cordon only".to_owned()));
        return rows;
    }
    let notice = format_duration(policy.pace.notice);
    let spacing = format_duration(policy.pace.spacing);
    rows.push(("drain", format!("{notice} after the cordon, {spacing} after another")));
    if !policy.windows.is_empty() {
        let opens = match policy.next_opening(now) {
            Some(opens) if opens > now => format!("opens {opens}"),
            _ => "open now".to_owned(),
        };
        rows.push(("windows", format!("{}, {opens}", count(policy.windows.len(), "window"))));
    }
    let deadline = if let Some(deadline) = policy.deadline {
        format_duration(deadline)
    } else {
        let headroom = format_duration(policy.headroom);
        let most = format_duration(policy.time_for(Duration::MAX));
        format!("longest grace and {headroom}, at most {most}")
    };
    rows.push(("deadline", format!("{deadline}, then {:?}", policy.at_deadline)));
    rows
}

fn nodes(nodes: &NodeSelector) -> String {
    let labels = nodes.labels.iter().map(|(key, value)| format!("{key}={value}"));
    let expression = nodes.expression.to_string();
    let parts: Vec<_> = labels.chain((!expression.is_empty()).then_some(expression)).collect();
    if parts.is_empty() { "all".to_owned() } else { parts.join(", ") }
}

fn count(number: usize, what: &str) -> String {
    format!("{number} {what}{}", if number == 1 { "" } else { "s" })
}

#[cfg(test)]
mod tests;
