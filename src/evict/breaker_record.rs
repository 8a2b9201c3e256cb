//! Where the breaker has tripped, as it is stored in an annotation of the lease, so that restart and failover
//! keep it.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::breaker::{Scope, Trip};

/// A longer annotation is not read.
const LONGEST: usize = 64 << 10;
/// So many scopes are stored at most.
const MOST: usize = 200;

/// The annotation's content.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct BreakerRecord {
    pub(super) tripped: BTreeMap<Scope, Trip>,
    /// Identifies the last request to reset that was heard.
    pub(super) heard: Option<String>,
}

#[derive(Default, Serialize, Deserialize)]
#[serde(default)]
struct Stored {
    tripped: Vec<StoredTrip>,
    #[serde(skip_serializing_if = "Option::is_none")]
    heard: Option<String>,
}

#[derive(Serialize, Deserialize)]
struct StoredTrip {
    #[serde(skip_serializing_if = "Option::is_none")]
    zone: Option<String>,
    since: jiff::Timestamp,
    nodes: usize,
    of: usize,
}

impl BreakerRecord {
    /// The annotation.
    pub(super) const ANNOTATION: &str = "ostrakon.dev/breaker";
    /// The annotation by which people reset the breaker: any new text does.
    pub(super) const RESET: &str = "ostrakon.dev/breaker-reset";

    /// Reads the annotation.
    ///
    /// # Errors
    /// It cannot be read.
    pub(super) fn parse(text: &str) -> Result<Self, String> {
        if text.len() > LONGEST {
            return Err(format!("it is longer than {LONGEST} bytes"));
        }
        let stored: Stored = serde_json::from_str(text).map_err(|error| error.to_string())?;
        if stored.tripped.len() > MOST {
            return Err(format!("it names more than {MOST} scopes"));
        }
        let tripped = stored.tripped.into_iter().map(|trip| {
            let scope = trip.zone.map_or(Scope::Cluster, |zone| Scope::Zone(zone.into()));
            (scope, Trip::new(trip.since, trip.nodes, trip.of))
        });
        Ok(Self { tripped: tripped.collect(), heard: stored.heard })
    }

    /// The annotation's text.
    pub(super) fn format(&self) -> String {
        let tripped = self.tripped.iter().take(MOST).map(|(scope, trip)| StoredTrip {
            zone: match scope {
                Scope::Cluster => None,
                Scope::Zone(zone) => Some(zone.to_string()),
            },
            since: trip.since,
            nodes: trip.nodes,
            of: trip.of,
        });
        let stored = Stored { tripped: tripped.collect(), heard: self.heard.clone() };
        serde_json::to_string(&stored).unwrap_or_default()
    }
}

/// Identifies a text of any length.
pub(super) fn digest(text: &str) -> String {
    let fold = |hash: u64, byte: u8| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
    format!("{:016x}", text.bytes().fold(0xcbf2_9ce4_8422_2325, fold))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::build::at;

    #[test]
    fn a_record_is_written_and_read_back() {
        let tripped = [
            (Scope::Cluster, Trip::new(at(0), 19, 60)),
            (Scope::Zone("a".into()), Trip::new(at(5), 7, 20)),
            (Scope::Zone("".into()), Trip::new(at(6), 8, 9)),
        ];
        let record = BreakerRecord { tripped: tripped.into(), heard: Some(digest("fine")) };
        assert_eq!(BreakerRecord::parse(&record.format()), Ok(record));
        assert_eq!(BreakerRecord::parse("{}"), Ok(BreakerRecord::default()));
    }

    #[test]
    fn what_cannot_be_read_is_an_error_and_no_record() {
        let long = format!("{{\"x\":\"{}\"}}", "x".repeat(LONGEST));
        let trip = r#"{"since":"2026-01-01T12:00:00Z","nodes":1,"of":1}"#;
        let many = format!("{{\"tripped\":[{}]}}", vec![trip; MOST + 1].join(","));
        let deep = "[".repeat(10_000);
        for text in ["", "off", "7", r#"{"tripped":[{}]}"#, r#"{"tripped":7}"#, &long, &many, &deep]
        {
            assert!(BreakerRecord::parse(text).is_err(), "{text:.40}");
        }
    }
}
