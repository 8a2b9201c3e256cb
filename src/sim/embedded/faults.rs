//! Fault injection between a client and the API server, by rules and a seed.
//!
//! Rules can be added and removed while requests are in flight. The same seed, rules and order of requests
//! give the same faults.

use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};

use super::operation::{Operation, Verb};
use super::resource::Resource;
use crate::signal::{Follower, Signal};

/// What goes wrong.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Fault {
    /// The request is carried out later. Adds up with other faults.
    Latency(Duration),
    /// The request is refused, and not carried out.
    Refuse {
        /// Status code.
        code: u16,
        /// `Retry-After`, in seconds.
        retry_after: Option<u32>,
    },
    /// An admission webhook denies the request, which is not carried out.
    Deny {
        /// The webhook's name.
        webhook: String,
        /// Status code: the webhook's choice.
        code: u16,
    },
    /// The request is not carried out and never answered; the connection stays open.
    Hang,
    /// The request is not carried out and the connection breaks.
    Cut,
    /// The request is carried out and the connection breaks instead of an answer.
    LoseAnswer,
    /// The request is carried out, but the annotations that it sets are taken off, as by a mutating
    /// webhook. For patches by merge.
    StripAnnotations,
}

/// Which requests meet which fault. The default matches every request, always.
#[derive(Clone, Debug)]
pub struct Rule {
    /// Only requests that do this.
    pub verb: Option<Verb>,
    /// Only requests about this resource.
    pub resource: Option<Resource>,
    /// Only requests about this subresource; the empty text is the object itself.
    pub subresource: Option<String>,
    /// Only requests in this namespace.
    pub namespace: Option<String>,
    /// Only requests about the object of this name.
    pub name: Option<String>,
    /// Only requests of a client whose `User-Agent` begins with this.
    pub agent: Option<String>,
    /// The chance that a request that matches is met, between 0 and 1.
    pub probability: f64,
    /// How many requests are met before the rule is used up; `None` for any number.
    pub count: Option<u32>,
    /// What happens to them.
    pub fault: Fault,
}

impl Rule {
    /// `fault` for every request.
    pub fn always(fault: Fault) -> Self {
        Self {
            verb: None,
            resource: None,
            subresource: None,
            namespace: None,
            name: None,
            agent: None,
            probability: 1.0,
            count: None,
            fault,
        }
    }

    /// Only for requests that do this.
    pub fn on(mut self, verb: Verb) -> Self {
        self.verb = Some(verb);
        self
    }

    /// Only for requests about this resource.
    pub fn of(mut self, resource: Resource) -> Self {
        self.resource = Some(resource);
        self
    }

    /// Only for requests about this subresource; the empty text is the object itself.
    pub fn at(mut self, subresource: &str) -> Self {
        self.subresource = Some(subresource.to_owned());
        self
    }

    /// Only for requests about the object of this name.
    pub fn named(mut self, name: &str) -> Self {
        self.name = Some(name.to_owned());
        self
    }

    /// Only for requests of a client whose `User-Agent` begins with this.
    pub fn by(mut self, agent: &str) -> Self {
        self.agent = Some(agent.to_owned());
        self
    }

    /// Only for so many requests.
    pub fn times(mut self, count: u32) -> Self {
        self.count = Some(count);
        self
    }

    /// Only with this chance, between 0 and 1.
    pub fn with_probability(mut self, probability: f64) -> Self {
        self.probability = probability;
        self
    }

    fn matches(&self, operation: &Operation) -> bool {
        let text = |wanted: &Option<String>, is: &str| wanted.as_deref().is_none_or(|w| w == is);
        self.verb.is_none_or(|verb| verb == operation.verb)
            && (self.resource.is_none() || self.resource == operation.resource)
            && text(&self.subresource, &operation.subresource)
            && text(&self.namespace, &operation.namespace)
            && text(&self.name, &operation.name)
            && self.agent.as_deref().is_none_or(|agent| operation.agent.starts_with(agent))
    }
}

/// Names a rule that was added.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RuleId(u64);

/// The faults in force. Clones share them.
#[derive(Clone)]
pub struct Faults {
    shared: Arc<Shared>,
}

struct Shared {
    rules: Mutex<Rules>,
    gate: Signal<Gate>,
}

struct Rules {
    rng: StdRng,
    next: u64,
    in_force: Vec<(RuleId, Rule)>,
}

/// What open watches obey.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Gate {
    down: bool,
    held: [bool; Resource::COUNT],
    cuts: [u64; Resource::COUNT],
}

impl Gate {
    /// Whether events of the resource are held back.
    pub(super) fn holds(&self, resource: Resource) -> bool {
        self.held[resource as usize]
    }

    /// How often the watches of the resource were cut so far.
    pub(super) fn cuts(&self, resource: Resource) -> u64 {
        self.cuts[resource as usize]
    }
}

/// What happens to one request.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Fate {
    pub(super) delay: Duration,
    pub(super) then: Option<Fault>,
}

impl Faults {
    /// No faults, yet.
    pub(super) fn new(seed: u64) -> Self {
        let rules = Rules {
            // A stream of its own: whether a fault strikes must not change the UIDs.
            rng: StdRng::seed_from_u64(seed ^ 0x6661_756c_7473),
            next: 0,
            in_force: Vec::new(),
        };
        Self { shared: Arc::new(Shared { rules: Mutex::new(rules), gate: Signal::default() }) }
    }

    /// Puts a rule in force. Of several rules that strike, all delays count and the earliest rule
    /// of the others.
    pub fn add(&self, rule: Rule) -> RuleId {
        let mut rules = self.shared.rules.lock();
        let id = RuleId(rules.next);
        rules.next += 1;
        rules.in_force.push((id, rule));
        id
    }

    /// Takes a rule out of force; nothing happens if it is used up.
    pub fn remove(&self, id: RuleId) {
        self.shared.rules.lock().in_force.retain(|(its, _)| *its != id);
    }

    /// Ends all faults: rules, held watches and an outage.
    pub fn clear(&self) {
        self.shared.rules.lock().in_force.clear();
        self.shared.gate.change(|gate| {
            gate.down = false;
            gate.held = Default::default();
        });
    }

    /// Breaks all open watches of the resource.
    pub fn cut_watches(&self, resource: Resource) {
        self.shared.gate.change(|gate| gate.cuts[resource as usize] += 1);
    }

    /// Holds back the events of all watches of the resource, open and new ones, or lets them go.
    /// Held events are not lost unless the history forgets them meanwhile.
    pub fn hold_watches(&self, resource: Resource, held: bool) {
        self.shared.gate.change(|gate| gate.held[resource as usize] = held);
    }

    /// Takes the API server down, or up again: while it is down, every request is cut, and going
    /// down breaks all open watches. Nothing stored is lost.
    pub fn set_down(&self, down: bool) {
        self.shared.gate.change(|gate| {
            if down && !gate.down {
                for cuts in &mut gate.cuts {
                    *cuts += 1;
                }
            }
            gate.down = down;
        });
    }

    pub(super) fn gate(&self) -> Follower<Gate> {
        self.shared.gate.follow()
    }

    /// What happens to this request. Uses up rules with a count.
    pub(super) fn fate(&self, operation: &Operation) -> Fate {
        if self.shared.gate.get().down {
            return Fate { delay: Duration::ZERO, then: Some(Fault::Cut) };
        }
        let mut fate = Fate::default();
        let mut rules = self.shared.rules.lock();
        let Rules { rng, in_force, .. } = &mut *rules;
        for (_, rule) in in_force.iter_mut() {
            let spent = rule.count == Some(0);
            let second = fate.then.is_some() && !matches!(rule.fault, Fault::Latency(_));
            if spent || second || !rule.matches(operation) {
                continue;
            }
            if rule.probability < 1.0 && !rng.random_bool(rule.probability.clamp(0.0, 1.0)) {
                continue;
            }
            rule.count = rule.count.map(|count| count - 1);
            match &rule.fault {
                Fault::Latency(delay) => fate.delay += *delay,
                fault => fate.then = Some(fault.clone()),
            }
        }
        in_force.retain(|(_, rule)| rule.count != Some(0));
        fate
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn deleting(resource: Resource) -> Operation {
        Operation {
            verb: Verb::Delete,
            resource: Some(resource),
            subresource: String::new(),
            namespace: "default".to_owned(),
            name: "a".to_owned(),
            agent: "kubectl/v1.36".to_owned(),
        }
    }

    fn refuse(code: u16) -> Fault {
        Fault::Refuse { code, retry_after: None }
    }

    #[test]
    fn a_rule_strikes_what_it_names_and_nothing_else() {
        let faults = Faults::new(0);
        let rule = Rule::always(Fault::Cut).on(Verb::Delete).of(Resource::Pods).named("a");
        let id = faults.add(rule);
        assert_eq!(faults.fate(&deleting(Resource::Pods)).then, Some(Fault::Cut));
        assert_eq!(faults.fate(&deleting(Resource::Nodes)), Fate::default());
        let mut eviction = deleting(Resource::Pods);
        eviction.verb = Verb::Create;
        assert_eq!(faults.fate(&eviction), Fate::default());
        faults.add(Rule::always(Fault::Cut).by("ostrakon/"));
        assert_eq!(faults.fate(&eviction), Fate::default());
        eviction.agent = "ostrakon/1".to_owned();
        assert_eq!(faults.fate(&eviction).then, Some(Fault::Cut));
        faults.remove(id);
        assert_eq!(faults.fate(&deleting(Resource::Pods)), Fate::default());
    }

    #[test]
    fn a_counted_rule_is_used_up() {
        let faults = Faults::new(0);
        faults.add(Rule::always(refuse(503)).times(2));
        let struck = || faults.fate(&deleting(Resource::Pods)).then.is_some();
        assert_eq!([struck(), struck(), struck()], [true, true, false]);
    }

    #[test]
    fn delays_add_up_and_the_earliest_of_the_others_counts() {
        let faults = Faults::new(0);
        let second = Duration::from_secs(1);
        for fault in [Fault::Latency(second), refuse(500), Fault::Hang, Fault::Latency(second)] {
            faults.add(Rule::always(fault));
        }
        let fate = faults.fate(&deleting(Resource::Pods));
        assert_eq!((fate.delay, fate.then), (second * 2, Some(refuse(500))));
    }

    #[test]
    fn chance_follows_the_seed() {
        let run = |seed| {
            let faults = Faults::new(seed);
            faults.add(Rule::always(Fault::Cut).with_probability(0.5));
            let mut struck = Vec::new();
            for _ in 0..64 {
                struck.push(faults.fate(&deleting(Resource::Pods)).then.is_some());
            }
            struck
        };
        assert_eq!(run(1), run(1));
        assert_ne!(run(1), run(2));
        let hits = run(1).into_iter().filter(|hit| *hit).count();
        assert!((16..48).contains(&hits), "{hits}");
    }

    #[test]
    fn an_outage_cuts_everything_until_it_is_over() {
        let faults = Faults::new(0);
        let before = faults.gate().see().cuts(Resource::Nodes);
        faults.set_down(true);
        assert_eq!(faults.fate(&deleting(Resource::Pods)).then, Some(Fault::Cut));
        assert_eq!(faults.gate().see().cuts(Resource::Nodes), before + 1);
        faults.set_down(false);
        assert_eq!(faults.fate(&deleting(Resource::Pods)), Fate::default());
    }

    #[test]
    fn clearing_ends_everything() {
        let faults = Faults::new(0);
        faults.add(Rule::always(Fault::Hang));
        faults.hold_watches(Resource::Pods, true);
        faults.set_down(true);
        faults.clear();
        assert_eq!(faults.fate(&deleting(Resource::Pods)), Fate::default());
        assert!(!faults.gate().see().holds(Resource::Pods));
    }
}
