//! When a pod has to go from a node, by the taints of the node and the rules for them.

use ostrakon::sim::tolerations::{self, Due, Tolerance, Toleration};

use super::{PodState, Taint};

/// What a rule says of a taint.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum How {
    Deleted,
    Evicted,
    /// Evicted, and after so many seconds deleted.
    DeletedAfter(f64),
    Left,
}

/// What is asked of a pod.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fate {
    /// It may be evicted, if its budgets allow it.
    Due,
    /// It may be deleted, whatever its budgets say.
    Deleted,
}

/// Rules by the beginning of a taint's key. Without one, pods are deleted.
#[derive(Clone, Debug, Default)]
pub(crate) struct Rules(pub(crate) Vec<(&'static str, How)>);

impl Rules {
    fn how(&self, key: &str) -> How {
        let rule = self.0.iter().find(|(beginning, _)| key.starts_with(beginning));
        rule.map_or(How::Deleted, |(_, how)| *how)
    }

    /// When this becomes of the pod on a node with these taints; `None`: never.
    pub(super) fn moment(
        &self,
        fate: Fate,
        taints: &[Taint],
        pod: &PodState,
        since: impl Fn(&Taint) -> f64,
    ) -> Option<f64> {
        let tolerations = || pod.tolerations.iter().map(|t| (Toleration::of(&t.stored), t.seconds));
        #[allow(clippy::cast_precision_loss)] // Minutes at most.
        let plus = |from, seconds| from + seconds as f64;
        let of_taint = |taint: &Taint| {
            let (key, value) = (taint.key.as_str(), taint.value.as_str());
            let as_stored = tolerations::Taint { key, value, effect: "NoExecute" };
            let due = Tolerance::of(tolerations(), &as_stored).due(since(taint), pod.bound, plus);
            // What is due at once has been since the taint or the pod was there.
            let (due, counted) = match due {
                Due::Never => return None,
                Due::AtOnce => (f64::MIN, since(taint).max(pod.bound)),
                Due::At(due) => (due, due),
            };
            match (self.how(key), fate) {
                (How::Left, _) | (How::Evicted, Fate::Deleted) => None,
                (How::DeletedAfter(after), Fate::Deleted) => Some(counted + after),
                _ => Some(due),
            }
        };
        taints.iter().filter_map(of_taint).min_by(f64::total_cmp)
    }
}
