//! P4: claims to the lease, and the writes under each claim.
//!
//! The claims of the processes count, not the stored lease: if someone else deletes or edits the lease, no
//! claim ends.

use std::collections::BTreeMap;

use ostrakon::sim::embedded::{Operation, Resource, Verb};
use serde_json::Value;

use super::text;

/// The renew deadline, and a little for stamps.
const RENEW: f64 = 10.01;

/// The last claim of a process, as it was stored.
#[derive(Clone, Debug)]
struct Claim {
    /// When it took the lease.
    since: f64,
    renewed: f64,
    seconds: f64,
    /// When another container of its pod has taken it over. The process is dead since.
    inherited: Option<f64>,
    /// Another has taken the lease since.
    superseded: bool,
}

/// The claims of all processes.
#[derive(Debug, Default)]
pub(super) struct Claims {
    of: BTreeMap<String, Claim>,
}

/// Containers of one pod have names that begin alike.
fn is_same_pod(one: &str, other: &str) -> bool {
    let pod = |name: &str| name.rsplit_once('_').map(|(pod, _)| pod.to_owned());
    pod(one).is_some() && pod(one) == pod(other)
}

impl Claims {
    /// Takes in that `who` has stored the lease like this.
    pub(super) fn stored(&mut self, who: &str, operation: &Operation, body: &Value, now: f64) {
        let writes = matches!(operation.verb, Verb::Create | Verb::Update);
        if operation.resource != Some(Resource::Leases) || !writes {
            return;
        }
        if text(body, "/spec/holderIdentity") != who {
            // It gives it back.
            self.of.remove(who);
            return;
        }
        for (other, claim) in &mut self.of {
            if other != who {
                claim.superseded = true;
                if is_same_pod(who, other) {
                    claim.inherited.get_or_insert(now);
                }
            }
        }
        let known = self.of.get(who).filter(|claim| !claim.superseded);
        let since = known.map_or(now, |claim| claim.since);
        let seconds = body.pointer("/spec/leaseDurationSeconds").and_then(Value::as_f64);
        let seconds = seconds.unwrap_or_default();
        let claim = Claim { since, renewed: now, seconds, inherited: None, superseded: false };
        self.of.insert(who.to_owned(), claim);
    }

    /// A write of `who` was sent and arrives: it has claimed the lease, had renewed it in time when the
    /// write began, and all who had claimed it before could not write any more.
    pub(super) fn wrote(
        &self,
        who: &str,
        sent: f64,
        now: f64,
        pause: Option<(f64, f64)>,
        operation: &Operation,
    ) -> Result<(), String> {
        // What was on its way while nothing ran arrives by as much later.
        let now = match pause {
            Some((from, to)) if sent <= from && now >= to => now - (to - from),
            _ => now,
        };
        let Some(Claim { since, renewed, seconds, inherited, .. }) = self.of.get(who) else {
            return Err(format!("P4: {who} writes ({operation:?}), and has not claimed the lease"));
        };
        if inherited.is_some_and(|at| sent > at) {
            return Err(format!(
                "P4: {who} writes ({operation:?}), and its pod has another container"
            ));
        }
        if sent > renewed + RENEW || now > renewed + seconds {
            return Err(format!(
                "P4: {who} writes ({operation:?}) at {sent:.3}, which arrives at {now:.3}, and has \
                 renewed at {renewed:.3} for {seconds} s"
            ));
        }
        let before = self.of.iter().find(|(other, claim)| {
            let counts = *other != who && claim.since < *since && claim.inherited.is_none();
            counts && sent < claim.renewed + claim.seconds
        });
        before.map_or(Ok(()), |(other, claim)| {
            Err(format!(
                "P4: {who} writes ({operation:?}) at {sent:.3}, and {other} may: it has renewed at {:.3} \
                 for {} s",
                claim.renewed, claim.seconds
            ))
        })
    }
}
