//! What is wrong with a configuration, or worth a second look.

use std::fmt;

use super::yaml::{Fault, Place};

/// How bad a problem is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Severity {
    /// The configuration cannot be used.
    Error,
    /// It can be used, and is seldom meant so.
    Warning,
}

impl Severity {
    /// As it is written in reports.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Error => "error",
            Self::Warning => "warning",
        }
    }
}

/// Something that is wrong with a configuration, or worth a second look.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Problem {
    /// How bad it is.
    pub severity: Severity,
    /// Where in the file; `None` if it comes from flags.
    pub place: Option<Place>,
    /// Which setting of the file, as `drainPolicies[0].pace.notice`; empty if it is all of it.
    pub path: String,
    /// The policy as a message names it: by its name, or its place. Empty if it is about none.
    pub policy: String,
    /// Which setting of the policy; empty if it is all of it.
    pub key: String,
    /// What is wrong with it.
    pub cause: String,
    /// What to write instead.
    pub remedy: String,
}

impl Problem {
    /// A problem of the whole file.
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

/// The setting, the cause and the remedy; not the place, which goes with the name of the file.
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
