//! All that a running controller knows and has to do, and how a term of leadership begins and ends.
//!
//! Only [`engine`](super::engine) and [`work`](super::work) see the whole. Everybody else is given the parts
//! that they need.

use std::sync::Arc;

use prometheus::Registry;

use super::Shadowing;
use super::handler::Decider;
use super::holds::Limiters;
use super::ignored_taints::IgnoredTaints;
use super::newest_facts::NewestFacts;
use crate::clock_watch::KeptTime;
use crate::config::Settings;
use crate::drain::{Orphans, Policy};
use crate::drain_reconciler::{DrainMetrics, Drains, Reporter};
use crate::dry_run::DrainStories;
use crate::evict::{Holds, Pauses, Schedule};
use crate::informer::{DeletionListener, Facts, Ingest, NodeListener, PodListener, WorkQueues};
use crate::model::NodeName;
use crate::observe::Recorder;
use crate::other_managers::OtherManagers;
use crate::pipeline::TimedQueue;

/// The parts of a controller that live as long as it does.
pub(super) struct Shared {
    pub facts: Arc<Facts>,
    pub queues: Arc<WorkQueues>,
    pub schedule: Arc<Schedule>,
    /// Nodes whose record may have to be written.
    pub records: Arc<TimedQueue<NodeName, ()>>,
    /// Cordon and drain, where a policy is configured.
    pub drains: Option<Arc<Drains>>,
    /// Other controllers that evict for taints.
    pub others: Arc<OtherManagers>,
    /// Taints that rules ignore.
    pub ignored: Arc<IgnoredTaints>,
    pub recorder: Recorder,
    /// Whether everything harmful is paused.
    pub pauses: Arc<Pauses>,
    /// Limits on evictions, and the breaker; absent where a test brings holds of its own.
    pub limiters: Option<Limiters>,
    /// In a dry run, what drains would have done.
    pub stories: Option<Arc<DrainStories>>,
    /// In a dry run, the comparison with who really goes.
    pub shadowing: Option<Arc<Shadowing>>,
}

impl Shared {
    pub(super) fn new(
        facts: Arc<Facts>,
        recorder: Recorder,
        pauses: Arc<Pauses>,
        holds: Holds,
    ) -> Self {
        let queues = Arc::<WorkQueues>::default();
        let schedule = Schedule::new(facts.clock.clone(), Arc::clone(&queues), holds);
        let stories = facts.unwritten.as_ref().map(|_| Arc::default());
        Self {
            others: Arc::new(OtherManagers::new(facts.clock.clone())),
            facts,
            queues,
            schedule: Arc::new(schedule),
            records: Arc::default(),
            drains: None,
            ignored: Arc::default(),
            recorder,
            pauses,
            limiters: None,
            stories,
            shadowing: None,
        }
    }

    /// With these limits, which are among its holds.
    pub(super) fn limited_by(mut self, limiters: Limiters) -> Self {
        self.limiters = Some(limiters);
        self
    }

    /// In a dry run: compares with who really goes.
    pub(super) fn shadowing(mut self, registry: &Registry) -> prometheus::Result<Self> {
        let (facts, schedule) = (Arc::clone(&self.facts), Arc::clone(&self.schedule));
        if let Some(stories) = self.stories.clone() {
            let shadowing = Shadowing::new(facts, schedule, stories, registry)?;
            self.shadowing = Some(Arc::new(shadowing));
        }
        Ok(self)
    }

    /// With cordon and drain by these policies.
    pub(super) fn draining_by(
        mut self,
        policies: Arc<[Policy]>,
        orphans: Orphans,
        metrics: DrainMetrics,
    ) -> Self {
        let (recorder, stories) = (self.recorder.clone(), self.stories.clone());
        let reporter = Reporter { recorder, metrics, stories };
        self.drains = Some(Arc::new(Drains::new(policies, orphans, reporter)));
        self
    }

    /// Takes in what the watches bring.
    pub(super) fn ingest(&self) -> Ingest {
        let Self { facts, queues, drains, others, .. } = self;
        let (facts, queues) = (Arc::clone(facts), Arc::clone(queues));
        let listener = drains.clone().map(|drains| drains as Arc<dyn NodeListener>);
        let pod_listener: Arc<dyn PodListener> = others.clone();
        let deletions = self.shadowing.clone().map(|it| it as Arc<dyn DeletionListener>);
        Ingest { facts, queues, listener, pod_listener, deletions }
    }

    /// Decides about what is in the work queues.
    pub(super) fn decider(&self) -> Decider {
        let Self { facts, queues, schedule, records, drains, others, ignored, recorder, .. } = self;
        Decider {
            facts: Arc::clone(facts),
            queues: Arc::clone(queues),
            schedule: Arc::clone(schedule),
            records: Arc::clone(records),
            drains: drains.clone(),
            others: Arc::clone(others),
            ignored: Arc::clone(ignored),
            recorder: recorder.clone(),
        }
    }

    /// The evictor's second look.
    pub(super) fn newest_facts(&self) -> NewestFacts {
        NewestFacts { facts: Arc::clone(&self.facts), drains: self.drains.clone() }
    }

    /// What the clock watch keeps right.
    pub(super) fn kept_time(&self) -> KeptTime {
        let Self { facts, queues, schedule, .. } = self;
        KeptTime {
            facts: Arc::clone(facts),
            queues: Arc::clone(queues),
            schedule: Arc::clone(schedule),
        }
    }

    /// Puts other settings in force. What is armed, held or being drained stays. Each node and its pods are
    /// decided about again; no countdown starts again, since a deadline does not depend on when it was
    /// computed.
    pub(super) fn configure(&self, settings: &Settings) {
        self.facts.set_taint_rules(settings.taint_rules.clone().into());
        if let Some(limiters) = &self.limiters {
            limiters.configure(settings);
        }
        if let Some(drains) = &self.drains {
            drains.replace(settings.policies.clone().into(), settings.orphans);
        }
        self.decide_again();
    }

    /// Queues every node, and with them their pods.
    fn decide_again(&self) {
        let mut names = self.facts.view.node_names();
        names.sort_unstable();
        for name in names {
            self.queues.node_changed(name);
        }
    }

    /// Begins to work: all that is known is queued, and from now on what changes.
    pub(super) fn lead(&self) {
        if let Some(drains) = &self.drains {
            drains.lead(self.facts.clock.now());
        }
        if let Some(limiters) = &self.limiters {
            limiters.breaker.lead();
        }
        // A dry run is beside another manager on purpose.
        if !self.recorder.is_dry_run() {
            self.others.lead();
        }
        // Before the view is read: what comes in now is either in it, or queued by who brings it.
        self.queues.lead();
        self.decide_again();
    }

    /// Ends the work: nothing is queued any more. What is under way goes on.
    pub(super) fn stand_by(&self) {
        self.queues.stand_by();
        if let Some(drains) = &self.drains {
            drains.stand_by();
        }
    }

    /// Forgets everything that belongs to the work and not to the view: who leads next starts from
    /// what the API stores, also if that is this process. Nothing may be at work any more.
    pub(super) fn forget_work(&self) {
        self.others.stand_by();
        self.schedule.clear();
        self.records.clear();
        self.ignored.forget();
        if let Some(drains) = &self.drains {
            drains.forget_work();
        }
        self.queues.clear();
        self.facts.adopt_records();
    }
}
