//! Faults between the controllers and the API server.

use std::time::Duration;

use jiff::SignedDuration;
use ostrakon::sim::embedded::{Fault, Resource, Rule, Verb};
use rand::Rng;

use super::Story;

impl Story {
    /// Something goes wrong, until everything is mended.
    pub(super) fn go_wrong(&mut self) {
        let faults = self.cluster.faults();
        let resource =
            [Resource::Nodes, Resource::Pods, Resource::Leases][self.random.random_range(0..3)];
        let verbs = [Verb::Get, Verb::Patch, Verb::Delete, Verb::Update, Verb::Watch, Verb::List];
        let verb = verbs[self.random.random_range(0..verbs.len())];
        let code = [429, 500, 503, 504, 403][self.random.random_range(0..5)];
        match self.random.random_range(0..13) {
            0..3 => {
                let delay = Duration::from_millis(self.random.random_range(10..4000));
                faults.add(Rule::always(Fault::Latency(delay)).of(resource).with_probability(0.7));
            }
            3..5 => {
                let retry_after = self.random.random_bool(0.3).then_some(1);
                let rule = Rule::always(Fault::Refuse { code, retry_after });
                faults.add(rule.of(resource).on(verb).with_probability(0.6));
            }
            5 => drop(faults.add(Rule::always(Fault::Hang).of(resource).on(verb).times(3))),
            6 => drop(faults.add(Rule::always(Fault::Cut).of(resource).with_probability(0.5))),
            7 => drop(faults.add(Rule::always(Fault::LoseAnswer).with_probability(0.3))),
            8 => faults.hold_watches(resource, true),
            9 => {
                // Who is behind must list anew, and sees only what came of it.
                self.cluster.store().compact(resource);
                faults.cut_watches(resource);
            }
            10 => faults.set_down(true),
            11 => {
                let rule = Rule::always(Fault::Refuse { code: 503, retry_after: None });
                faults.add(rule.of(Resource::Leases));
            }
            _ => {
                let ahead = SignedDuration::from_secs(self.random.random_range(-7200..7200));
                let replica = self.random.random_range(0..self.replicas.len());
                self.replicas[replica].step_clock(ahead);
            }
        }
    }
}
