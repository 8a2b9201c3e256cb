//! Somebody pauses and resumes, by hand.

use ostrakon::leader::LEASE;
use ostrakon::sim::embedded::{Part, Resource};
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use serde_json::{Value, json};

use super::Story;
use crate::time::at;

const NAMESPACE: &str = "kube-system";
const PAUSE: &str = "ostrakon.dev/pause";

/// Chances of a story's pauses, which are independent of the rest of it.
pub(super) struct Chances {
    random: StdRng,
    /// Steps until the present one is ended; absent without one.
    left: Option<u32>,
}

impl Chances {
    /// One story in four has pauses.
    pub(super) fn new(seed: u64) -> Option<Self> {
        let mut random = StdRng::seed_from_u64(seed ^ 0x7061_7573_6500);
        random.random_bool(0.25).then_some(Self { random, left: None })
    }
}

impl Story {
    /// Pauses or resumes, or does neither.
    pub(super) fn pause_or_resume(&mut self) {
        let now = self.now();
        let Some(Chances { random, left }) = &mut self.pauses else { return };
        let value = match left {
            Some(0) => None,
            Some(steps) => {
                *steps -= 1;
                return;
            }
            None if random.random_bool(0.1) => {
                *left = Some(random.random_range(1..12));
                // Clocks are right in calm stories only.
                #[allow(clippy::cast_possible_truncation)] // Minutes at most.
                let until = at(now as i64 + random.random_range(2..30)).to_string();
                Some(match random.random_range(0..4) {
                    0 if self.calm => json!({"reason": "story", "until": until}).to_string(),
                    1 => "until=2020-01-01T00:00:00Z".to_owned(),
                    2 => json!({"reason": 7, "until": "yesterday"}).to_string(),
                    _ => "wrong taint".to_owned(),
                })
            }
            None => return,
        };
        let is_resumed = value.is_none();
        if self.annotate_lease(value.as_deref())
            && is_resumed
            && let Some(Chances { left, .. }) = &mut self.pauses
        {
            *left = None;
        }
    }

    /// From now on there is to be no pause. If there is no lease now, a process may make it again as it knew
    /// it: whoever resumes looks again.
    pub(super) fn end_pause(&mut self) {
        self.pauses = None;
        self.is_resumed = true;
    }

    /// Ends a pause that is stored though nobody wants it any more.
    pub(super) fn see_to_resumption(&self) {
        let is_paused = || {
            let lease = self.cluster.store().get(Resource::Leases, NAMESPACE, LEASE).ok()?;
            lease.pointer("/metadata/annotations")?.get(PAUSE).cloned()
        };
        if self.is_resumed && is_paused().is_some() {
            self.annotate_lease(None);
        }
    }

    /// Returns whether there was a lease.
    fn annotate_lease(&self, value: Option<&str>) -> bool {
        let changed = |lease: &Value| {
            let mut lease = lease.clone();
            match value {
                Some(value) => lease["metadata"]["annotations"][PAUSE] = json!(value),
                None => {
                    if let Some(all) = lease.pointer_mut("/metadata/annotations") {
                        all.as_object_mut().map(|all| all.remove(PAUSE));
                    }
                }
            }
            Ok(lease)
        };
        // There may be no lease at the moment.
        let store = self.cluster.store();
        store.modify(Resource::Leases, NAMESPACE, LEASE, Part::Whole, false, changed).is_ok()
    }
}
