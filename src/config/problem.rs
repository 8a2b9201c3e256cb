//! Errors and warnings about a configuration.

use std::fmt;

use super::yaml::{Fault, Place};

/// How bad a problem is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Severity {
    /// The configuration cannot be used.
    Error,
    /// It can be used, but is rarely intended.
    Warning,
}

impl Severity {
    /// The word used in reports.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Error => "error",
            Self::Warning => "warning",
        }
    }
}

/// An error or a warning about a configuration.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Problem {
    /// How bad it is.
    pub severity: Severity,
    /// Where in the file; `None` if it comes from flags.
    pub place: Option<Place>,
    /// Path of the setting, such as `drainPolicies[0].pace.notice`; empty for the whole file.
    pub path: String,
    /// The policy as messages name it, by its name or its index; empty outside a policy.
    pub policy: String,
    /// The setting of the policy; empty for the whole policy.
    pub key: String,
    /// What is wrong.
    pub cause: String,
    /// What to write instead.
    pub remedy: String,
}

impl Problem {
    /// A problem with the file as a whole.
    pub(super) fn of_file(severity: Severity, place: Place, cause: &str, remedy: &str) -> Self {
        Self {
            severity,
            place: Some(place),
            path: String::new(),
            policy: String::new(),
            key: String::new(),
            cause: cause.to_owned(),
            remedy: remedy.to_owned(),
        }
    }
}

impl From<Fault> for Problem {
    fn from(fault: Fault) -> Self {
        Self::of_file(Severity::Error, fault.place, &fault.cause, &fault.remedy)
    }
}

/// The setting, the cause and the remedy. The caller adds the file and the place.
impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (self.policy.as_str(), self.key.as_str()) {
            ("", "") => {}
            ("", key) => write!(f, "{key}: ")?,
            (policy, "") => write!(f, "{policy}: ")?,
            (policy, key) => write!(f, "{policy}, {key}: ")?,
        }
        write!(f, "{}; {}", self.cause, self.remedy)
    }
}

/// A problem with its line number in front.
pub fn numbered(problem: &Problem) -> String {
    match problem.place {
        Some(place) => format!("{}: {problem}", place.line),
        None => problem.to_string(),
    }
}

/// Errors in a single line.
pub fn listed(errors: &[Problem]) -> String {
    let errors: Vec<_> = errors.iter().map(|it| format!("line {}", numbered(it))).collect();
    errors.join("; also ")
}
