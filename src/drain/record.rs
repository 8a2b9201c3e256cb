//! The state of a node's drain, stored on the node as JSON in the annotation `ostrakon.dev/drain`.
//!
//! The state is on the node, not in the process: after a restart, or with another leader, work continues
//! from there, and people can read it with kubectl. It also records who owns the cordon, so that a cordon
//! of someone else is never removed.

use std::fmt;
use std::sync::Arc;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use crate::model::NodeDrainFacts;

/// The phase of a drain.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum DrainPhase {
    /// Cordoned, with no drain scheduled; `why` has the reason.
    Cordoned,
    /// The drain starts at `scheduled`.
    Scheduled,
    /// Pods are being evicted, until `deadline`.
    Draining,
    /// The drain was completed at `ended`.
    Drained,
    /// The last drain failed at `ended`. The next one starts at `next`, or on request if that is not set.
    Failed,
    /// Someone uncordoned the node while its conditions were bad: it is left alone until they have cleared
    /// or another one becomes bad.
    Released,
}

impl DrainPhase {
    /// All of them.
    pub const ALL: [Self; 6] = [
        Self::Cordoned,
        Self::Scheduled,
        Self::Draining,
        Self::Drained,
        Self::Failed,
        Self::Released,
    ];

    /// Its name, as in the annotation.
    pub fn label(self) -> &'static str {
        match self {
            Self::Cordoned => "cordoned",
            Self::Scheduled => "scheduled",
            Self::Draining => "draining",
            Self::Drained => "drained",
            Self::Failed => "failed",
            Self::Released => "released",
        }
    }
}

impl fmt::Display for DrainPhase {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.label())
    }
}

/// The owner of the cordon.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Cordon {
    /// Ours: the node is uncordoned when the last claim is gone.
    Ours,
    /// The node was cordoned already: the cordon is someone else's.
    Foreign,
    /// There is none at present: the node was uncordoned until the next attempt.
    Lifted,
}

/// A policy that wants the node cordoned.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Claim {
    /// Name of the policy.
    pub policy: Arc<str>,
    /// Its conditions that were bad, each as draino writes them: `Type=Status,Duration`.
    pub conditions: Vec<Arc<str>>,
}

/// The contents of the annotation. Times are whole seconds, UTC.
#[allow(clippy::struct_excessive_bools, reason = "each is a fact of its own")]
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Record {
    /// Identifies this cordon and its drains among all of the node.
    pub session: Arc<str>,
    /// Its phase.
    pub phase: DrainPhase,
    /// The owner of the cordon.
    pub cordon: Cordon,
    /// The policies that want it. The settings of the first one are used.
    pub claims: Vec<Claim>,
    /// When the drain is or was scheduled to start.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub scheduled: Option<Timestamp>,
    /// When the drain started.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub started: Option<Timestamp>,
    /// The deadline of the drain.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub deadline: Option<Timestamp>,
    /// When it ended.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub ended: Option<Timestamp>,
    /// Number of failed drains so far.
    #[serde(skip_serializing_if = "is_zero", default)]
    pub failures: u32,
    /// When the next one starts.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub next: Option<Timestamp>,
    /// The reason for the phase, for people.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub why: Option<Arc<str>>,
    /// Key of the taint that was added with the cordon.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub taint: Option<Arc<str>>,
    /// Since when a condition that the node was cordoned for is missing.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub vanished: Option<Timestamp>,
    /// cluster-autoscaler was removing the node: if it gives up, it uncordons the node, whoever owns the
    /// cordon.
    #[serde(skip_serializing_if = "std::ops::Not::not", default)]
    pub autoscaler: bool,
    /// The deadline has passed, and the remaining pods are deleted despite budgets.
    #[serde(skip_serializing_if = "std::ops::Not::not", default)]
    pub forced: bool,
    /// The last drain failed only because of pods that take longer to terminate than it could wait. The node
    /// does not count under the caps.
    #[serde(skip_serializing_if = "std::ops::Not::not", default)]
    pub overran: bool,
    /// Its time was started again once, because no leader was working.
    #[serde(skip_serializing_if = "std::ops::Not::not", default)]
    pub extended: bool,
    /// It was reported that the node still exists long after its drain.
    #[serde(skip_serializing_if = "std::ops::Not::not", default)]
    pub lingers: bool,
}

#[allow(clippy::trivially_copy_pass_by_ref)] // As serde hands it over.
fn is_zero(number: &u32) -> bool {
    *number == 0
}

/// An annotation that is not a record.
#[derive(Debug, thiserror::Error)]
pub enum ParseRecordError {
    /// It has another format.
    #[error("cannot read annotation ostrakon.dev/drain: {0}")]
    Form(#[from] serde_json::Error),
    /// It is longer than any record.
    #[error("annotation ostrakon.dev/drain is too long ({0} bytes)")]
    TooLong(usize),
}

impl Record {
    /// Maximum length of the annotation, in bytes. Every record fits.
    const LONGEST: usize = 48 * 1024;

    /// A new session.
    pub fn new(session: Arc<str>, cordon: Cordon, claims: Vec<Claim>) -> Self {
        Self {
            session,
            phase: DrainPhase::Cordoned,
            cordon,
            claims,
            scheduled: None,
            started: None,
            deadline: None,
            ended: None,
            failures: 0,
            next: None,
            why: None,
            taint: None,
            vanished: None,
            autoscaler: false,
            forced: false,
            overran: false,
            extended: false,
            lingers: false,
        }
    }

    /// Reads an annotation.
    ///
    /// # Errors
    /// It does not have the format of [`format`](Self::format). Unknown fields are ignored, so that a newer
    /// version's record can be read.
    pub fn parse(text: &str) -> Result<Self, ParseRecordError> {
        if text.len() > Self::LONGEST {
            return Err(ParseRecordError::TooLong(text.len()));
        }
        Ok(serde_json::from_str(text)?)
    }

    /// The record of a node as stored, if it is readable. [`believed`](Self::believed) returns the part that
    /// can be trusted.
    pub fn of(drain_facts: &NodeDrainFacts) -> Option<Self> {
        Self::parse(drain_facts.record.as_deref()?).ok()
    }

    /// The text of the annotation.
    pub fn format(&self) -> String {
        // Plain data always has a form in JSON.
        serde_json::to_string(self).unwrap_or_default()
    }

    /// The annotation `draino.planet.com/conditions`: the bad conditions of all claims, each once.
    pub fn draino_conditions(&self) -> String {
        let mut all: Vec<&str> = Vec::new();
        for condition in self.claims.iter().flat_map(|claim| &claim.conditions) {
            if !all.contains(&&**condition) {
                all.push(condition);
            }
        }
        all.join(";")
    }

    /// Name of the policy whose settings are used.
    pub fn policy(&self) -> &str {
        self.claims.first().map_or("", |claim| &claim.policy)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn claim(policy: &str, conditions: &[&str]) -> Claim {
        let conditions = conditions.iter().map(|text| Arc::from(*text)).collect();
        Claim { policy: Arc::from(policy), conditions }
    }

    #[test]
    fn a_record_is_short_and_reads_back() {
        let mut record =
            Record::new(Arc::from("5f"), Cordon::Ours, vec![claim("kernel", &["Bad=True,0s"])]);
        assert_eq!(
            record.format(),
            r#"{"session":"5f","phase":"cordoned","cordon":"ours","claims":[{"policy":"kernel","conditions":["Bad=True,0s"]}]}"#
        );
        assert_eq!(Record::parse(&record.format()).unwrap(), record);
        let at: Timestamp = "2026-01-01T12:00:00Z".parse().unwrap();
        record = Record {
            phase: DrainPhase::Failed,
            scheduled: Some(at),
            started: Some(at),
            deadline: Some(at),
            ended: Some(at),
            failures: 3,
            next: Some(at),
            why: Some(Arc::from("2 pods are left")),
            taint: Some(Arc::from("t")),
            vanished: Some(at),
            autoscaler: true,
            forced: true,
            overran: true,
            extended: true,
            lingers: true,
            ..record
        };
        assert_eq!(Record::parse(&record.format()).unwrap(), record);
        assert!(record.format().contains(r#""next":"2026-01-01T12:00:00Z""#));
    }

    #[test]
    fn what_is_no_record_is_refused_and_what_is_new_is_left_out() {
        for text in ["", "{}", "[]", "null", r#"{"session":"a","phase":"gone"}"#] {
            assert!(Record::parse(text).is_err(), "{text}");
        }
        let newer = r#"{"session":"a","phase":"drained","cordon":"foreign","claims":[],"more":1}"#;
        assert_eq!(Record::parse(newer).unwrap().phase, DrainPhase::Drained);
    }

    #[test]
    fn a_text_that_is_longer_than_any_record_is_not_read() {
        let record = Record::new(Arc::from("5f"), Cordon::Ours, Vec::new());
        let long = format!("{}{}", record.format(), " ".repeat(Record::LONGEST));
        assert!(matches!(Record::parse(&long), Err(ParseRecordError::TooLong(_))));
    }

    #[test]
    fn every_phase_is_written_by_its_label() {
        for phase in DrainPhase::ALL {
            assert_eq!(serde_json::to_string(&phase).unwrap(), format!("\"{phase}\""));
        }
    }

    #[test]
    fn draino_reads_each_condition_once() {
        let claims = vec![claim("a", &["X=True,0s", "Y=False,10m0s"]), claim("b", &["X=True,0s"])];
        let record = Record::new(Arc::from("1"), Cordon::Ours, claims);
        assert_eq!(record.draino_conditions(), "X=True,0s;Y=False,10m0s");
        assert_eq!(record.policy(), "a");
    }
}
