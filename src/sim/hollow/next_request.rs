//! Decides which request the kubelets send next, and processes responses.

use jiff::Timestamp;
use tracing::debug;

use super::BACKOFF;
use super::calls::CallError;
use super::lease;
use super::lifecycle::{Action, Rules, Site, Step, later};
use super::node::is_outdated;
use super::objects::Phase;
use super::report::{self, Place};
use super::state::{Call, Kubelet, Outcome, Part, Reply, Request, State, Work};
use crate::model::{NodeName, Uid};

/// What a look decided.
enum Decision {
    /// Nothing, until something changes.
    Rest,
    /// Look again at that time.
    Wait(Timestamp),
    /// Send this.
    Send(Call),
}

impl State {
    /// The next request to send, while there is room for one on its way.
    pub(super) fn next_request(&mut self) -> Option<Request> {
        while let Some(work) = self.node_lane.take().or_else(|| self.pod_lane.take()) {
            let now = self.now();
            let held = self.held.get(&work).map(|(_, until)| *until);
            let decision = match held {
                Some(until) if now < until => Decision::Wait(until),
                _ => self.look(&work, now),
            };
            match decision {
                Decision::Rest => self.timers.clear(&work),
                Decision::Wait(until) => {
                    let until = self.options.clock.instant_of(until);
                    self.timers.set(work, until);
                }
                Decision::Send(call) => {
                    self.timers.clear(&work);
                    return Some(self.begin(work, call));
                }
            }
        }
        None
    }

    /// Takes in what came of a request.
    pub(super) fn settle(&mut self, work: Work, node: &NodeName, outcome: Outcome) {
        match outcome {
            Ok(reply) => {
                self.held.remove(&work);
                self.succeed(&work, reply);
            }
            Err(error) => self.fail(&work, &error),
        }
        self.end(work, node);
    }

    fn look(&mut self, work: &Work, now: Timestamp) -> Decision {
        match work {
            Work::Node(name, Part::Lease) => self.look_at_lease(name, now),
            Work::Node(name, Part::Status) => self.look_at_status(name, now),
            Work::Node(name, Part::Mirror(index)) => self.look_at_mirror(name, *index, now),
            Work::Node(name, Part::Shutdown) => self.look_at_shutdown(name, now),
            Work::Node(name, Part::Comeback) => self.look_at_comeback(name, now),
            Work::Pod(uid) => self.look_at_pod(*uid, now),
        }
    }

    fn look_at_lease(&self, name: &NodeName, now: Timestamp) -> Decision {
        let Some((kubelet, uid)) = self.live(name) else {
            return Decision::Rest;
        };
        if now < kubelet.lease_due {
            return Decision::Wait(kubelet.lease_due);
        }
        let interval = self.options.lease_interval;
        Decision::Send(if kubelet.lease_exists {
            let patch = lease::renewal(name.as_str(), uid, interval, now);
            Call::RenewLease(name.clone(), patch)
        } else {
            Call::CreateLease(Box::new(lease::lease(name.as_str(), uid, interval, now)))
        })
    }

    fn look_at_status(&mut self, name: &NodeName, now: Timestamp) -> Decision {
        if self.live(name).is_none() {
            return Decision::Rest;
        }
        let stored = self.nodes.get(name).map(|node| node.status.conditions.as_slice());
        let (Some(kubelet), Some(stored)) = (self.kubelets.get_mut(name), stored) else {
            return Decision::Rest;
        };
        let interval = if is_outdated(stored, &kubelet.conduct) {
            self.options.sync_interval
        } else {
            self.options.status_interval
        };
        if let Some(written) = kubelet.status_written {
            let due = later(written, interval);
            if now < due {
                return Decision::Wait(due);
            }
        }
        // From now on, so that a switch that is set meanwhile is written right after this.
        kubelet.status_written = Some(now);
        let patch = kubelet.node.status_patch(&kubelet.address, &kubelet.conduct, stored, now);
        Decision::Send(Call::PatchNodeStatus(name.clone(), patch))
    }

    fn look_at_mirror(&self, name: &NodeName, index: usize, now: Timestamp) -> Decision {
        let Some((kubelet, uid)) = self.live(name) else {
            return Decision::Rest;
        };
        let Some(manifest) = kubelet.node.static_pods.get(index) else {
            return Decision::Rest;
        };
        let pods = self.pods_of.get(name).into_iter().flatten();
        let mirror = manifest.mirror_name(name.as_str());
        let is_there = pods.filter_map(|uid| self.pods.get(uid)).any(|tended| {
            let pod = &tended.pod;
            !tended.worker.removed
                && pod.namespace() == manifest.namespace()
                && pod.name() == mirror
        });
        if is_there || kubelet.conduct.shutdown.is_some() || !self.is_synced() {
            return Decision::Rest;
        }
        match kubelet.published.get(&index).map(|at| later(*at, self.options.sync_interval)) {
            Some(due) if now < due => Decision::Wait(due),
            _ => {
                Decision::Send(Call::CreatePod(Box::new(manifest.mirror(name.as_str(), uid, now))))
            }
        }
    }

    fn look_at_shutdown(&mut self, name: &NodeName, now: Timestamp) -> Decision {
        let pods = self.pods_of.get(name).into_iter().flatten();
        let pods = pods.filter_map(|uid| self.pods.get(uid)).map(|tended| &tended.pod);
        let running: Vec<_> = pods
            .filter(|pod| !pod.is_finished() && pod.status.phase != Phase::Pending)
            .map(|pod| pod.spec.priority)
            .collect();
        let kubelet = self.kubelets.get_mut(name).filter(|kubelet| !kubelet.conduct.is_silent());
        let Some(shutdown) = kubelet.and_then(|kubelet| kubelet.conduct.shutdown.as_mut()) else {
            return Decision::Rest;
        };
        let next = shutdown.advance(&running, now);
        self.ask_pods_of(name);
        next.map_or(Decision::Rest, Decision::Wait)
    }

    fn look_at_comeback(&mut self, name: &NodeName, now: Timestamp) -> Decision {
        let Some(kubelet) = self.kubelets.get_mut(name) else {
            return Decision::Rest;
        };
        match kubelet.back_at {
            Some(back_at) if now < back_at => return Decision::Wait(back_at),
            Some(_) => {
                kubelet.back_at = None;
                kubelet.conduct.restarting = false;
                kubelet.status_written = None;
                self.ask_all_of(name);
            }
            None => {}
        }
        Decision::Rest
    }

    fn look_at_pod(&mut self, uid: Uid, now: Timestamp) -> Decision {
        let Some(tended) = self.pods.get_mut(&uid) else {
            return Decision::Rest;
        };
        let Some(kubelet) = self.kubelets.get(tended.pod.spec.node_name.as_str()) else {
            return Decision::Rest;
        };
        let rules =
            Rules { stop_time: self.options.stop_time, sync_interval: self.options.sync_interval };
        let node = self.nodes.get(tended.pod.spec.node_name.as_str());
        let site =
            Site { conduct: &kubelet.conduct, taints: node.map_or(&[], |node| &node.spec.taints) };
        let action = match tended.worker.next_step(&tended.pod, site, rules, now) {
            Step::Rest => return Decision::Rest,
            Step::Wait(until) => return Decision::Wait(until),
            Step::Act(action) => action,
        };
        let pod = Box::new(tended.pod.clone());
        let patch = match action {
            Action::Run { ready } => {
                let addresses = &mut self.addresses;
                let pod_ip = tended.ip.get_or_insert_with(|| next_address(addresses));
                let place = Place { host_ip: &kubelet.address, pod_ip };
                report::running(&pod, ready, place, now)
            }
            Action::Finish(ending) => report::finished(&pod, ending, now),
            Action::Reject(rejection) => report::rejected(&pod, &rejection, now),
            Action::Remove => return Decision::Send(Call::RemovePod(pod)),
        };
        Decision::Send(Call::PatchPodStatus(pod, patch))
    }

    fn succeed(&mut self, work: &Work, reply: Reply) {
        let now = self.now();
        match work {
            Work::Node(name, part) => {
                if let Some(kubelet) = self.kubelets.get_mut(name) {
                    match part {
                        Part::Lease => {
                            let pause = lease::pause(self.options.lease_interval, &mut self.rng);
                            kubelet.lease_exists = true;
                            kubelet.lease_due = later(now, pause);
                        }
                        Part::Mirror(index) => drop(kubelet.published.insert(*index, now)),
                        Part::Status | Part::Shutdown | Part::Comeback => {}
                    }
                }
                if let Reply::Node(node) = reply {
                    self.fold_node(*node);
                }
            }
            Work::Pod(uid) => match reply {
                Reply::Pod(pod) => self.refresh_pod(*uid, *pod),
                Reply::Done | Reply::Node(_) => self.removed(*uid),
            },
        }
    }

    fn fail(&mut self, work: &Work, error: &CallError) {
        match work {
            Work::Node(name, Part::Lease) => {
                if let Some(kubelet) = self.kubelets.get_mut(name) {
                    if error.is_already_exists() {
                        kubelet.lease_exists = true;
                        return;
                    }
                    if kubelet.lease_exists && error.is_not_found() {
                        kubelet.lease_exists = false;
                        return;
                    }
                }
            }
            Work::Node(name, Part::Status) => {
                if let Some(kubelet) = self.kubelets.get_mut(name) {
                    kubelet.status_written = None;
                }
            }
            Work::Pod(uid) if error.is_not_found() => return self.removed(*uid),
            Work::Node(..) | Work::Pod(_) => {}
        }
        let now = self.now();
        let (failures, until) = self.held.entry(work.clone()).or_insert((0, now));
        *failures = failures.saturating_add(1);
        *until = later(now, BACKOFF.pause(*failures, 0));
        debug!(?work, %error, %until, "request failed; retrying");
    }

    /// The pod is gone; the watch will say so too.
    fn removed(&mut self, uid: Uid) {
        if let Some(tended) = self.pods.get_mut(&uid) {
            tended.worker.removed = true;
            let node = NodeName::from(tended.pod.spec.node_name.as_str());
            self.ask_mirrors_of(&node);
        }
    }

    /// The kubelet and the UID of its node, if it is heard of and its node is there.
    fn live(&self, name: &NodeName) -> Option<(&Kubelet, &str)> {
        let kubelet = self.kubelets.get(name)?;
        let node = self.nodes.get(name)?;
        let is_live = !kubelet.conduct.is_silent() && !node.is_going();
        is_live.then_some((kubelet, node.metadata.uid.as_deref().unwrap_or_default()))
    }

    fn begin(&mut self, work: Work, call: Call) -> Request {
        let node = match &work {
            Work::Node(name, _) => name.clone(),
            Work::Pod(uid) => {
                let tended = self.pods.get(uid);
                NodeName::from(tended.map_or("", |tended| tended.pod.spec.node_name.as_str()))
            }
        };
        if let Some(kubelet) = self.kubelets.get_mut(&node) {
            kubelet.on_their_way += 1;
        }
        self.lane(&work).begin(work.clone());
        Request { work, node, call }
    }

    fn end(&mut self, work: Work, node: &NodeName) {
        if let Some(kubelet) = self.kubelets.get_mut(node) {
            kubelet.on_their_way = kubelet.on_their_way.saturating_sub(1);
            kubelet.answer_if_done();
        }
        self.lane(&work).end(work);
    }
}

/// An address for a pod: the next one of 10.0.0.0/8.
fn next_address(given: &mut u32) -> String {
    *given = given.wrapping_add(1);
    let [_, b, c, d] = given.to_be_bytes();
    format!("10.{b}.{c}.{d}")
}
