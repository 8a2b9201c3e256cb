//! The one verdict about a pod, for the workers and for the evictor alike.

use std::sync::Arc;

use super::state::Shared;
use crate::config::Compat;
use crate::evict::{DrainJudge, Judge, Judgement, Order};
use crate::model::{Anchors, Kept, Node, Pod, PodRef, Verdict};
use crate::taint::{anchor, decide, upstream};

/// The verdict about `pod` on `node`, by the rules in force. `armed` is the verdict by which it is
/// armed, if it is.
pub(super) fn verdict(
    shared: &Shared,
    pod: &Pod,
    node: Option<&Node>,
    anchors: &Anchors,
    armed: Option<&Verdict>,
) -> Verdict {
    match (node, shared.compat) {
        (None, _) => Verdict::Keep(Kept::NodeGone),
        (Some(node), Compat::None) => decide(pod, node, anchors),
        (Some(node), Compat::Upstream) => upstream::decide(pod, node, shared.clock.now(), armed),
    }
}

/// Decides again for the evictor.
#[derive(Clone)]
pub(super) struct View {
    pub shared: Arc<Shared>,
}

impl Judge for View {
    fn judge(&self, pod: &PodRef, armed: &Verdict) -> Judgement {
        #[cfg(test)]
        if self.shared.flaw == Some(super::flaw::Flaw::TrustsTimers) {
            let known = self.shared.view.pod(&pod.node, pod.uid).map(|facts| facts.pod);
            let pod = known.or_else(|| Some(Arc::new(Pod::named_by(pod))));
            return Judgement { verdict: armed.clone(), pod };
        }
        match self.shared.view.pod(&pod.node, pod.uid) {
            None => Judgement { verdict: Verdict::Keep(Kept::PodGone), pod: None },
            Some(facts) => Judgement {
                verdict: verdict(
                    &self.shared,
                    &facts.pod,
                    facts.node.as_deref(),
                    &facts.anchors,
                    Some(armed),
                ),
                pod: Some(facts.pod),
            },
        }
    }

    fn judge_on(&self, pod: &Pod, armed: &Verdict, node: Option<&Node>) -> Verdict {
        #[cfg(test)]
        if self.shared.flaw == Some(super::flaw::Flaw::TrustsTimers) {
            return armed.clone();
        }
        let now = self.shared.clock.now();
        let known = self.shared.view.node(&pod.node);
        // The anchors as they will be once the view has caught up with this version of the node.
        let anchors = match (node, known) {
            (Some(node), Some(known)) if known.node.as_ref().is_some_and(|n| n.uid == node.uid) => {
                anchor::advance(anchor::Past::Recorded(&known.anchors), node, now)
            }
            (Some(node), _) => anchor::advance(anchor::Past::Unknown, node, now),
            (None, _) => Anchors::default(),
        };
        verdict(&self.shared, pod, node, &anchors, Some(armed))
    }
}

impl DrainJudge for View {
    fn known(&self, pod: &PodRef) -> Option<Arc<Pod>> {
        self.shared.view.pod(&pod.node, pod.uid).map(|facts| facts.pod)
    }

    /// The whole decision once more, by the node as it is stored: it must be in the drain that gave
    /// the order.
    fn still_wanted(&self, _: &PodRef, order: &Order, node: Option<&Node>) -> bool {
        let (Some(drains), Some(node)) = (&self.shared.drains, node) else { return false };
        let now = self.shared.clock.now();
        now < order.deadline && drains.is_draining(node, &order.session, now)
    }
}
