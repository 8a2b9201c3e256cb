//! The holds of a controller: what may keep due evictions from being handed out.

use std::sync::Arc;

use tokio::sync::Notify;

use super::topology::NodesInView;
use crate::config::Settings;
use crate::evict::{BreakerHold, Hold, Holds, PauseHold, Pauses, RampHold, RateLimits, Topology};
use crate::informer::Facts;
use crate::other_managers::{OtherManagers, RequireExclusive};

/// The holds that are configured.
#[derive(Clone, Debug)]
pub(super) struct Limiters {
    pub(super) rates: Arc<RateLimits>,
    pub(super) ramp: Arc<RampHold>,
    pub(super) breaker: Arc<BreakerHold>,
}

impl Limiters {
    /// Limits as configured. They notify `changed`.
    pub(super) fn new(
        facts: &Arc<Facts>,
        settings: &Settings,
        pauses: &Arc<Pauses>,
        changed: &Arc<Notify>,
    ) -> Self {
        let nodes: Arc<dyn Topology> = Arc::new(NodesInView::new(Arc::clone(facts)));
        let limiters = Self {
            rates: Arc::new(RateLimits::new(Arc::clone(&nodes), Arc::clone(changed))),
            ramp: Arc::new(RampHold::new(Arc::clone(&nodes), Arc::clone(changed))),
            breaker: Arc::new(BreakerHold::new(
                nodes,
                Arc::clone(pauses),
                facts.clock.clone(),
                Arc::clone(changed),
            )),
        };
        limiters.configure(settings);
        limiters
    }

    /// Has these settings count from now on. What was counted stays counted.
    pub(super) fn configure(&self, settings: &Settings) {
        self.rates.configure(&settings.taint_rules, &settings.limits);
        self.ramp.configure(settings.limits.ramp);
        self.breaker.configure(settings.breaker);
    }
}

/// All holds, in the order in which they are consulted: what stops harm before what limits it, so that
/// nothing is reserved in a limit for evictions that are stopped. Each notifies `changed` when its answer
/// changes before the time that it gave.
///
/// `exclusive`: evictions for taints are held while one of these other managers is at work.
///
/// The ramp comes after the rates: a node is admitted when its first pod goes, not when it waits for a token.
pub(super) fn holds(
    pauses: &Arc<Pauses>,
    exclusive: Option<Arc<OtherManagers>>,
    limiters: &Limiters,
    changed: &Arc<Notify>,
) -> Holds {
    let Limiters { rates, ramp, breaker } = limiters.clone();
    let pause = PauseHold(Arc::clone(pauses));
    let mut holds: Vec<Box<dyn Hold>> = vec![Box::new(pause)];
    if let Some(others) = exclusive {
        holds.push(Box::new(RequireExclusive(others)));
    }
    let limits: [Box<dyn Hold>; 3] = [Box::new(breaker), Box::new(rates), Box::new(ramp)];
    holds.extend(limits);
    Holds::new(holds, Arc::clone(changed))
}
