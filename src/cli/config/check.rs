//! `ostrakon config check`: a summary of a configuration file, and its problems.

use std::fmt::Write as _;

use jiff::Timestamp;
use serde_json::{Value, json};

use crate::config::{Problem, Reading, Settings, Severity, summary};

/// The report as text: a summary with warnings, or, as the error, everything that is wrong.
pub(super) fn report(
    name: &str,
    reading: &Reading,
    strict: bool,
    now: Timestamp,
) -> Result<String, String> {
    let mut lines = String::new();
    for problem in &reading.problems {
        let _ = writeln!(lines, "{}", line(name, problem, strict));
    }
    if is_usable(reading, strict) {
        let text = summary(name, &reading.settings, now);
        return Ok(if lines.is_empty() { text } else { format!("{text}\n{lines}") });
    }
    let errors = reading.count(Severity::Error);
    let warnings = reading.count(Severity::Warning);
    let counts = match (errors, warnings, strict) {
        (errors, warnings, true) => count(errors + warnings, "error"),
        (errors, 0, false) => count(errors, "error"),
        (errors, warnings, false) => {
            format!("{} and {}", count(errors, "error"), count(warnings, "warning"))
        }
    };
    Err(format!("{name} cannot be used: {counts}\n{}", lines.trim_end()))
}

/// The report as JSON.
pub(super) fn json(name: &str, reading: &Reading, strict: bool, now: Timestamp) -> Value {
    let problems = reading.problems.iter().map(|problem| {
        json!({
            "severity": severity(problem, strict),
            "line": problem.place.map(|place| place.line),
            "column": problem.place.map(|place| place.column),
            "path": problem.path,
            "message": problem.to_string(),
            "cause": problem.cause,
            "remedy": problem.remedy,
        })
    });
    let usable = is_usable(reading, strict);
    let mut report = json!({
        "file": name,
        "usable": usable,
        "problems": problems.collect::<Vec<_>>(),
        "evictions": [],
        "policies": [],
    });
    if usable {
        for (key, value) in summary::json(&reading.settings, now) {
            report[key] = value;
        }
    }
    report
}

/// Whether the file can be used.
pub(super) fn is_usable(reading: &Reading, strict: bool) -> bool {
    if strict { reading.problems.is_empty() } else { reading.count(Severity::Error) == 0 }
}

fn severity(problem: &Problem, strict: bool) -> &'static str {
    if strict { Severity::Error.as_str() } else { problem.severity.as_str() }
}

/// A problem in the format of compilers, so that editors find the place.
fn line(name: &str, problem: &Problem, strict: bool) -> String {
    let severity = severity(problem, strict);
    match problem.place {
        Some(place) => format!("{name}:{place}: {severity}: {problem}"),
        None => format!("{name}: {severity}: {problem}"),
    }
}

fn summary(name: &str, settings: &Settings, now: Timestamp) -> String {
    let policies = &settings.policies;
    let many = if policies.len() == 1 { "policy" } else { "policies" };
    let mut text = format!("{name} can be used: {} drain {many}\n", policies.len());
    let mut section = |title: &str, rows: Vec<(&str, String)>| {
        let _ = writeln!(text, "\n{title}");
        for (key, value) in rows {
            let _ = writeln!(text, "  {key:<9} {value}");
        }
    };
    section("evictions", summary::evictions(settings));
    for policy in policies {
        section(&policy.name, summary::policy(policy, now));
    }
    text
}

pub(super) fn count(number: usize, what: &str) -> String {
    format!("{number} {what}{}", if number == 1 { "" } else { "s" })
}
