//! Whether a kubelet accepts a pod that was bound to its node.

use serde::Deserialize;

use super::objects::Pod;
use super::shutdown::Shutdown;
use super::switches::{Conduct, Rejection};
use crate::sim::tolerations;

/// A taint of the node.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct Taint {
    key: String,
    value: String,
    effect: String,
}

/// A toleration of the pod.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct Toleration {
    key: String,
    operator: String,
    value: String,
    effect: String,
}

/// Why the pod is not taken; `None` if it is.
pub(super) fn refusal(pod: &Pod, conduct: &Conduct, taints: &[Taint]) -> Option<Rejection> {
    if conduct.shutdown.is_some() {
        return Some(Shutdown::rejection());
    }
    if let Some(rejection) = &conduct.reject {
        return Some(rejection.clone());
    }
    // Of the taints, a kubelet looks at those with NoExecute only, and not for static pods.
    let no_execute = |taint: &&Taint| taint.effect == "NoExecute";
    let is_tolerated = |taint| pod.spec.tolerations.iter().any(|t| t.is_for(taint));
    let checks = conduct.check_taints && !pod.is_mirror();
    let tainted = checks && !taints.iter().filter(no_execute).all(is_tolerated);
    tainted.then(|| {
        let message =
            "Predicate TaintToleration failed: node(s) had taints that the pod didn't tolerate";
        Rejection::new("TaintToleration", message)
    })
}

impl Toleration {
    fn is_for(&self, taint: &Taint) -> bool {
        let Self { key, operator, value, effect } = self;
        let toleration = tolerations::Toleration { key, operator, value, effect };
        let Taint { key, value, effect } = taint;
        toleration.is_for(&tolerations::Taint { key, value, effect })
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::super::switches::Switch;
    use super::super::testing::{at, pod};
    use super::*;

    #[test]
    fn a_kubelet_that_checks_taints_refuses_pods_that_do_not_tolerate_them() {
        let mut conduct = Conduct::default();
        conduct.apply(Switch::CheckTaints(true), at(0));
        #[rustfmt::skip]
        let table = [
            ("NoSchedule", json!([]), false),
            ("NoExecute", json!([]), true),
            ("NoExecute", json!([{"key": "gpu", "value": "a"}]), false),
            ("NoExecute", json!([{"key": "gpu", "operator": "Equal", "value": "b"}]), true),
            ("NoExecute", json!([{"key": "gpu", "operator": "Exists"}]), false),
            ("NoExecute", json!([{"key": "other", "operator": "Exists"}]), true),
            ("NoExecute", json!([{"operator": "Exists"}]), false),
            ("NoExecute", json!([{"operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 5}]), false),
            ("NoExecute", json!([{"operator": "Exists", "effect": "NoSchedule"}]), true),
            ("NoExecute", json!([{"key": "gpu", "operator": "Gt", "value": "a"}]), true),
        ];
        for (effect, tolerations, refused) in table {
            let mut builder = pod("a");
            builder.0["spec"]["tolerations"] = tolerations.clone();
            let taint = json!({"key": "gpu", "value": "a", "effect": effect});
            let taints = [serde_json::from_value(taint).unwrap()];
            let said = |pod: &Pod, conduct: &Conduct| refusal(pod, conduct, &taints).is_some();
            assert_eq!(said(&builder.clone().build(), &conduct), refused, "{tolerations}");
            assert!(!said(&builder.clone().build(), &Conduct::default()), "only if asked to");
            assert!(!said(&builder.mirror().build(), &conduct), "static pods always run");
        }
    }
}
