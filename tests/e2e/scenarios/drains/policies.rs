//! The policies that scenarios of cordon and drain run under.
//!
//! All that share a control plane share an ostrakon, hence a file with all policies. Each is for
//! the nodes that are labelled with its name, so no other scenario's nodes are concerned.

use std::path::PathBuf;

use anyhow::Result;
use serde_json::{Value, json};

use crate::harness::Bed;
use crate::likeness::stories;

/// Label by which nodes choose their policy.
pub(super) const POLICY: &str = "ostrakon.test/policy";

/// Condition that is bad at once, under all policies here.
pub(super) const BROKEN: &str = "Broken";

/// Condition that is bad once it has lasted for [`AGE`], under [`QUICK`].
pub(super) const AGING: &str = "Aging";
pub(super) const AGE: i64 = 6;

/// How long a condition must be good until its node is uncordoned, in seconds.
pub(super) const CLEAR_AFTER: i64 = 4;

/// How long a drain may take under the policies that end badly, in seconds.
pub(super) const DEADLINE: i64 = 5;

/// Drains begin a second after the cordon, and each as soon as it may.
pub(super) const QUICK: &str = "quick";
/// Drains begin so late that something else happens before.
pub(super) const CALM: &str = "calm";
/// A kubelet that is not heard of is bad.
pub(super) const DEAD: &str = "dead";
/// No pod is given more than two seconds.
pub(super) const HASTY: &str = "hasty";
/// Nodes are cordoned and no more.
pub(super) const CORDON_ONLY: &str = "cordon-only";
/// A node that is not expected to be drained is cordoned and no more.
pub(super) const STRICT: &str = "strict";
/// Such a node stays in use.
pub(super) const IN_USE: &str = "in-use";
/// Drains are given up soon, and tried twice.
pub(super) const SHORT: &str = "short";
/// Nodes that are not drained in time are uncordoned.
pub(super) const LIFTING: &str = "lifting";
/// What is left at the deadline is deleted.
pub(super) const DELETING: &str = "deleting";

/// What nodes are under where an ostrakon is started for one scenario alone.
pub(super) const CROWD: &str = "crowd";

/// Annotation by which a pod is left.
pub(super) const PROTECTED: &str = "ostrakon.test/keep";

/// One policy, for nodes that are labelled with its name. Without caps: there are others' nodes.
pub(super) fn policy(name: &str) -> Value {
    json!({
        "name": name,
        "nodeSelector": { POLICY: name },
        "conditions": [condition(BROKEN, "True", 0)],
        "pace": { "notice": "1s", "spacing": "0s", "caps": [] },
    })
}

/// The same with these keys set.
pub(super) fn with(mut policy: Value, settings: Value) -> Value {
    if let (Value::Object(policy), Value::Object(settings)) = (&mut policy, settings) {
        policy.extend(settings);
    }
    policy
}

pub(super) fn condition(kind: &str, status: &str, min_age: i64) -> Value {
    json!({
        "type": kind,
        "status": status,
        "minAge": format!("{min_age}s"),
        "clearAfter": format!("{CLEAR_AFTER}s"),
    })
}

/// Writes a file with these policies, and returns its path.
pub(super) fn write(bed: &Bed, name: &str, policies: &[Value]) -> Result<PathBuf> {
    let path = bed.folder().join(format!("{name}.config.yaml"));
    // JSON is YAML. The scenarios that share a cluster taint many nodes at once, which none of them means.
    let file = json!({
        "apiVersion": "config.ostrakon.dev/v1alpha1",
        "kind": "OstrakonConfiguration",
        "limits": {"ramp": {"enabled": false}},
        "drainPolicies": policies,
    });
    std::fs::write(&path, serde_json::to_string_pretty(&file)?)?;
    Ok(path)
}

/// The file for the ostrakon that scenarios share.
pub(crate) fn shared(bed: &Bed) -> Result<PathBuf> {
    let pace = |notice: &str| json!({ "notice": notice, "spacing": "0s", "caps": [] });
    let deadline = format!("{DEADLINE}s");
    let again = |pause: &str| json!({ "first": pause, "most": pause, "attempts": 2 });
    let quick = json!({
        "conditions": [condition(BROKEN, "True", 0), condition(AGING, "True", AGE)],
        "pods": { "protectedAnnotations": [PROTECTED] },
    });
    let policies = [
        with(policy(QUICK), quick),
        with(policy(CALM), json!({ "pace": pace("10s") })),
        with(policy(DEAD), json!({ "conditions": [condition("Ready", "Unknown", 0)] })),
        with(policy(HASTY), json!({ "maxGracePeriod": "2s" })),
        with(policy(CORDON_ONLY), json!({ "drain": false })),
        with(policy(STRICT), json!({ "undrainable": "Cordon" })),
        with(
            policy(IN_USE),
            json!({
                "undrainable": "Report",
                "pods": { "protectedAnnotations": [PROTECTED] },
            }),
        ),
        with(policy(SHORT), json!({ "deadline": deadline, "retry": again("4s") })),
        with(
            policy(LIFTING),
            json!({ "deadline": deadline, "retry": again("6s"), "atDeadline": "Uncordon" }),
        ),
        with(policy(DELETING), json!({ "deadline": deadline, "atDeadline": "DeleteRest" })),
        stories::policy(),
    ];
    write(bed, "shared", &policies)
}
