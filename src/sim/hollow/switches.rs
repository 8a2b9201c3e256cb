//! How a hollow node behaves, and the switches that change it.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use jiff::Timestamp;

use super::shutdown::{Shutdown, ShutdownPlan};

/// A change of one node's behaviour. It holds until the opposite is set.
#[derive(Clone, Debug)]
pub enum Switch {
    /// The node is dead or cut off: no lease, no status, no work on pods. When it comes back it
    /// goes on with what it had begun.
    Silent(bool),
    /// Its pods take that much longer to stop than the usual stop time.
    SlowStop(Duration),
    /// Its pods do not react to TERM: they run until the end of their grace and are then killed.
    IgnoreTerm(bool),
    /// The kubelet is alive but reports Ready=False.
    NotReady(bool),
    /// Condition `MemoryPressure`.
    MemoryPressure(bool),
    /// Condition `DiskPressure`.
    DiskPressure(bool),
    /// Condition `PIDPressure`.
    PidPressure(bool),
    /// Reports that condition, in the place of one of the same type.
    Condition(HollowCondition),
    /// Takes a condition of that type, set before by [`Switch::Condition`], off the node.
    NoCondition(String),
    /// Pods that arrive while the node has a NoExecute taint that they do not tolerate are rejected.
    /// A real kubelet does so; here it has to be asked for, since it leaves nothing of such a pod to
    /// evict.
    CheckTaints(bool),
    /// Pods that arrive are rejected: Failed at once, with that reason and message.
    Reject(Option<Rejection>),
    /// The machine is about to shut down: Ready=False, arriving pods are rejected and the running
    /// ones killed, group by group. `None` is a shutdown that was called off. The kubelet itself
    /// stays; make it [`Silent`](Switch::Silent) for the end of the machine.
    Shutdown(Option<ShutdownPlan>),
}

/// A node condition of any type.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HollowCondition {
    /// Its type, such as `KernelDeadlock`. One of the kubelet's own four is overruled by it.
    pub kind: String,
    /// `True`, `False` or `Unknown`.
    pub status: String,
    /// Its reason, in one word.
    pub reason: String,
    /// Its message.
    pub message: String,
    /// Its transition time; `None`: when the status changes.
    pub since: Option<Timestamp>,
}

impl HollowCondition {
    /// The condition with that type and status, and with a reason that names this simulation.
    pub fn new(kind: &str, status: &str) -> Self {
        Self {
            kind: kind.to_owned(),
            status: status.to_owned(),
            reason: "HollowNode".to_owned(),
            message: String::new(),
            since: None,
        }
    }

    /// The same, with that reason and message.
    pub fn because(self, reason: &str, message: &str) -> Self {
        Self { reason: reason.to_owned(), message: message.to_owned(), ..self }
    }

    /// The same, as if the status had changed at that time.
    pub fn since(self, since: Timestamp) -> Self {
        Self { since: Some(since), ..self }
    }
}

/// Why a kubelet does not take a pod.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rejection {
    /// Reason of the pod's status, such as `OutOfcpu`.
    pub reason: String,
    /// Message of the pod's status, after the words that a kubelet puts before each.
    pub message: String,
}

impl Rejection {
    /// Rejected with that reason and message.
    pub fn new(reason: &str, message: &str) -> Self {
        Self { reason: reason.to_owned(), message: message.to_owned() }
    }
}

/// All that the switches of one node say.
#[derive(Clone, Debug, Default)]
#[allow(clippy::struct_excessive_bools)] // Each is a switch that a person sets by itself.
pub(super) struct Conduct {
    pub(super) silent: bool,
    /// The kubelet is restarting.
    pub(super) restarting: bool,
    pub(super) slow_stop: Duration,
    pub(super) ignore_term: bool,
    pub(super) not_ready: bool,
    pub(super) check_taints: bool,
    pub(super) memory_pressure: bool,
    pub(super) disk_pressure: bool,
    pub(super) pid_pressure: bool,
    /// By type.
    pub(super) conditions: BTreeMap<String, HollowCondition>,
    /// Types of conditions that were set once and must not be on the node any more.
    pub(super) withdrawn: BTreeSet<String>,
    pub(super) reject: Option<Rejection>,
    pub(super) shutdown: Option<Shutdown>,
}

impl Conduct {
    /// Whether nothing is heard of the node.
    pub(super) fn is_silent(&self) -> bool {
        self.silent || self.restarting
    }

    /// Takes one change in, at that time.
    pub(super) fn apply(&mut self, switch: Switch, now: Timestamp) {
        match switch {
            Switch::Silent(on) => self.silent = on,
            Switch::SlowStop(by) => self.slow_stop = by,
            Switch::IgnoreTerm(on) => self.ignore_term = on,
            Switch::NotReady(on) => self.not_ready = on,
            Switch::MemoryPressure(on) => self.memory_pressure = on,
            Switch::DiskPressure(on) => self.disk_pressure = on,
            Switch::PidPressure(on) => self.pid_pressure = on,
            Switch::Condition(condition) => {
                self.withdrawn.remove(&condition.kind);
                self.conditions.insert(condition.kind.clone(), condition);
            }
            Switch::NoCondition(kind) => {
                self.conditions.remove(&kind);
                self.withdrawn.insert(kind);
            }
            Switch::CheckTaints(on) => self.check_taints = on,
            Switch::Reject(rejection) => self.reject = rejection,
            Switch::Shutdown(plan) => self.shutdown = plan.map(|plan| Shutdown::begin(plan, now)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_condition_is_replaced_by_type_and_withdrawn_when_taken_off() {
        let mut conduct = Conduct::default();
        let now = Timestamp::UNIX_EPOCH;
        conduct.apply(Switch::Condition(HollowCondition::new("Broken", "True")), now);
        conduct.apply(Switch::Condition(HollowCondition::new("Broken", "False")), now);
        assert_eq!(conduct.conditions.len(), 1);
        assert_eq!(conduct.conditions["Broken"].status, "False");
        assert!(conduct.withdrawn.is_empty());

        conduct.apply(Switch::NoCondition("Broken".to_owned()), now);
        assert!(conduct.conditions.is_empty());
        assert!(conduct.withdrawn.contains("Broken"));

        conduct.apply(Switch::Condition(HollowCondition::new("Broken", "True")), now);
        assert!(conduct.withdrawn.is_empty());
    }
}
