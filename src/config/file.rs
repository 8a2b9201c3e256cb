//! The configuration file as it is written: what is published of it as a JSON schema.
//!
//! `validate` reads it, key by key, so that it can name every mistake with its place; a test holds
//! the two together.

#![allow(dead_code, reason = "only the shape is used")]

use std::collections::BTreeMap;

use schemars::JsonSchema;

/// The configuration file of `ostrakon run --config`.
#[derive(JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
#[schemars(title = "ostrakon configuration")]
pub(super) struct File {
    /// Drain policies. Every one that selects a node judges it; a drain goes by the settings of the
    /// first that finds it bad.
    pub(super) drain_policies: Vec<PolicyEntry>,
}

/// Which nodes are cordoned and drained, by which conditions and how.
#[derive(JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(super) struct PolicyEntry {
    /// Name of the policy, unique in the file: up to 63 letters, digits, `-`, `_` and `.`.
    pub(super) name: String,
    /// What makes a node bad: any of these.
    pub(super) conditions: Vec<ConditionEntry>,
    /// Labels that a node must have, with their values. Default: none.
    pub(super) node_selector: Option<BTreeMap<String, String>>,
    /// What must be true of the node's labels, as in draino's `--node-label-expr`. Default: empty,
    /// which is true of every node.
    pub(super) node_label_expression: Option<String>,
    /// Whether a cordoned node is drained. Default: true.
    pub(super) drain: Option<bool>,
    /// Which pods are left on a node.
    #[serde(default)]
    pub(super) pods: PodsEntry,
    /// When drains begin, and how many nodes at a time.
    #[serde(default)]
    pub(super) pace: PaceEntry,
    /// The longest grace that a pod is given; one with less keeps its own. Default: none.
    pub(super) max_grace_period: Option<DurationText>,
    /// What a drain may take beyond the longest grace of the node's pods. Default: 10m.
    pub(super) headroom: Option<DurationText>,
    /// How long a drain may take. Default: the longest grace of the node's pods, and the headroom.
    pub(super) deadline: Option<DurationText>,
    /// What becomes of a node that is not drained by its deadline. Default: `GiveUp`.
    pub(super) at_deadline: Option<AtDeadlineEntry>,
    /// When a drain that failed is tried again.
    #[serde(default)]
    pub(super) retry: RetryEntry,
    /// Whether a running drain stops when the conditions are over. Default: true.
    pub(super) stop_when_clear: Option<bool>,
    /// What becomes of a bad node with pods that are not expected to go. Default: `DrainRest`.
    pub(super) undrainable: Option<UndrainableEntry>,
    /// In which order pods go. Default: those with a priority below 2000000000 first, in 80 percent
    /// of the time, then all others.
    pub(super) groups: Option<Vec<GroupEntry>>,
    /// A node that is still there so long after its drain is reported. Default: 1h.
    pub(super) lingering: Option<DurationText>,
    /// Key of a `NoSchedule` taint that a node gets with its cordon, beginning with
    /// `status-taint.cluster-autoscaler.kubernetes.io/`. Default: no taint.
    pub(super) status_taint: Option<String>,
}

/// A condition, in draino's form or with all that can be said of it.
#[derive(JsonSchema)]
#[schemars(untagged)]
pub(super) enum ConditionEntry {
    /// `Type`, which stands for `Type=True,0s`, or `Type=Status,Duration`.
    Short(String),
    /// In full.
    Long(ConditionFields),
}

/// A condition in full.
#[derive(JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(super) struct ConditionFields {
    /// Type of the condition.
    #[serde(rename = "type")]
    pub(super) kind: String,
    /// The status that is bad: True, False or Unknown. Default: True.
    #[serde(default)]
    #[schemars(schema_with = "status_schema")]
    pub(super) status: Option<String>,
    /// It is bad once it has had the status for so long. Default: 0s.
    pub(super) min_age: Option<DurationText>,
    /// It is over once it has had another status for so long, or `never` by itself. Default: 5m.
    pub(super) clear_after: Option<String>,
    /// A heartbeat older than this makes it untrustworthy, so that it neither starts nor clears
    /// anything. Default: it is always trusted.
    pub(super) stale_after: Option<DurationText>,
}

/// Which pods are left on a node. Mirror pods always are.
#[derive(Default, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(super) struct PodsEntry {
    /// Evict pods of a DaemonSet. Default: false.
    pub(super) evict_daemon_set: Option<bool>,
    /// Evict pods of a StatefulSet. Default: false.
    pub(super) evict_stateful_set: Option<bool>,
    /// Evict pods with an emptyDir volume. Default: false.
    pub(super) evict_empty_dir: Option<bool>,
    /// Evict pods that no controller creates anew. Default: false.
    pub(super) evict_unreplicated: Option<bool>,
    /// Kinds of controllers whose pods are left. Default: none.
    pub(super) leave_controllers: Option<Vec<ControllerEntry>>,
    /// Annotations by which a pod is left, as KEY or KEY=VALUE. Default: none.
    pub(super) protected_annotations: Option<Vec<String>>,
    /// Leave pods that cluster-autoscaler's annotations tell it to leave. Default: true.
    pub(super) honour_safe_to_evict: Option<bool>,
}

/// A kind of controllers.
#[derive(JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(super) struct ControllerEntry {
    /// API group. Default: any.
    pub(super) group: Option<String>,
    /// Kind, for example Rollout.
    pub(super) kind: String,
}

/// When drains begin, and how many nodes at a time.
#[derive(Default, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(super) struct PaceEntry {
    /// At least so long after its cordon a node's drain begins. Default: 10s.
    pub(super) notice: Option<DurationText>,
    /// At least so long after another drain of the policy has begun. Default: 10m.
    pub(super) spacing: Option<DurationText>,
    /// Bounds on the nodes that are out of use. Default: 25% of all nodes.
    pub(super) caps: Option<Vec<CapEntry>>,
    /// When drains may begin: in any of these. Default: always.
    pub(super) windows: Option<Vec<WindowEntry>>,
}

/// A bound on the nodes that are cordoned by anybody, draining, or drained.
#[derive(JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(super) struct CapEntry {
    /// How many, or how many of a hundred: 3, or 25%.
    #[schemars(schema_with = "limit_schema")]
    pub(super) limit: String,
    /// Count among the nodes with the same value of this label. Default: among all nodes.
    pub(super) per_label: Option<String>,
}

/// Hours of the week.
#[derive(JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(super) struct WindowEntry {
    /// The days on which it opens. Default: all.
    pub(super) days: Option<Vec<DayEntry>>,
    /// When it opens, as HH:MM. Default: 00:00.
    pub(super) from: Option<String>,
    /// When it closes, as HH:MM; on the next day unless this is later than `from`. Default: 24:00.
    pub(super) to: Option<String>,
    /// IANA time zone, for example Europe/Berlin. Default: UTC.
    pub(super) zone: Option<String>,
}

/// When a drain that failed is tried again.
#[derive(Default, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(super) struct RetryEntry {
    /// Pause after the first failure; it doubles with each one. Default: 10m.
    pub(super) first: Option<DurationText>,
    /// The longest pause. Default: 2h.
    pub(super) most: Option<DurationText>,
    /// How often a drain is tried at all, the first time included. Default: 8.
    pub(super) attempts: Option<u32>,
}

/// Pods that go together.
#[derive(JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(super) struct GroupEntry {
    /// Pods with a priority below this that are in no group before. Left out in the last group.
    pub(super) below: Option<i32>,
    /// Its share of the time until the deadline, in percent.
    pub(super) share: u8,
}

/// A day of the week.
#[derive(JsonSchema)]
#[allow(missing_docs, reason = "the names say it")]
pub(super) enum DayEntry {
    Mon,
    Tue,
    Wed,
    Thu,
    Fri,
    Sat,
    Sun,
}

/// What becomes of a node that is not drained by its deadline.
#[derive(JsonSchema)]
pub(super) enum AtDeadlineEntry {
    /// It stays cordoned, and its drain is tried again later.
    GiveUp,
    /// It is uncordoned, and tried again later.
    Uncordon,
    /// The pods that are left are deleted, budgets or not.
    DeleteRest,
}

/// What becomes of a bad node with pods that are not expected to go.
#[derive(JsonSchema)]
pub(super) enum UndrainableEntry {
    /// It is cordoned and drained: what the policy protects is left and named, and eviction is tried
    /// for everything else, whatever is expected of budgets.
    DrainRest,
    /// It is cordoned and reported, and not drained.
    Cordon,
    /// It is reported and left in use.
    Report,
}

/// A duration, for example 10m, 1h30m or 90s.
#[derive(JsonSchema)]
pub(super) struct DurationText(
    #[schemars(regex(pattern = r"^(0|([0-9]+(\.[0-9]+)?(h|ms|m|s|us|µs|ns))+)$"))] pub(super) String,
);

/// Unquoted, YAML takes two of the three for truths.
fn status_schema(_: &mut schemars::SchemaGenerator) -> schemars::Schema {
    schemars::json_schema!({ "enum": ["True", "False", "Unknown", true, false, null] })
}

fn limit_schema(_: &mut schemars::SchemaGenerator) -> schemars::Schema {
    schemars::json_schema!({
        "anyOf": [
            { "type": "integer", "minimum": 1 },
            { "type": "string", "pattern": "^([1-9][0-9]*|[1-9][0-9]?%|100%)$" },
        ]
    })
}
