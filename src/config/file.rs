//! The shape of the configuration file, published as a JSON schema.
//!
//! `validate` reads the file key by key, so that it can report every error with its place. A test
//! checks that the two agree.

#![allow(dead_code, reason = "only the shape is used")]

use std::collections::BTreeMap;

use schemars::JsonSchema;

/// The configuration file of `ostrakon run --config`.
#[derive(JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
#[schemars(title = "ostrakon configuration")]
pub(super) struct File {
    /// Group and version of the format.
    #[schemars(extend("const" = super::API_VERSION))]
    pub(super) api_version: String,
    /// Says that this is a configuration of ostrakon.
    #[schemars(extend("const" = super::KIND))]
    pub(super) kind: String,
    /// How pods are evicted for NoExecute taints.
    #[serde(default)]
    pub(super) taint_eviction: TaintEvictionEntry,
    /// Limits on evictions. They delay evictions, and drop none.
    #[serde(default)]
    pub(super) limits: LimitsEntry,
    /// When evictions from many nodes at once are taken for a mistake.
    #[serde(default)]
    pub(super) breaker: BreakerEntry,
    /// Label of nodes that names their zone, for `limits.zone` and the breaker. Default:
    /// `topology.kubernetes.io/zone`.
    pub(super) zone_label: Option<String>,
    /// Drain policies. All that select a node are evaluated; a drain uses the settings of the first
    /// whose condition matches. Default: none, so no node is cordoned or drained.
    pub(super) drain_policies: Option<Vec<PolicyEntry>>,
    /// What happens to the cordons of a policy that is no longer in the file. Default: `Keep`.
    pub(super) orphans: Option<OrphansEntry>,
}

/// How pods are evicted for NoExecute taints.
#[derive(Default, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(super) struct TaintEvictionEntry {
    /// The first rule that matches a taint decides. If none does, pods are deleted. Default: none.
    pub(super) rules: Option<Vec<RuleEntry>>,
}

/// How pods are evicted for the taints that the rule matches.
#[derive(JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(super) struct RuleEntry {
    /// Name of the rule, unique in the file: up to 63 letters, digits, `-`, `_` and `.`.
    pub(super) name: String,
    /// Key of the taint; `*` stands for any characters. Default: `*`, every key.
    pub(super) key: Option<String>,
    /// Value of the taint. Default: any.
    pub(super) value: Option<String>,
    /// Effect of the taint. Only NoExecute evicts pods, so it may be left out.
    #[schemars(extend("const" = "NoExecute"))]
    pub(super) effect: Option<String>,
    /// How the pods are evicted.
    pub(super) method: MethodEntry,
    /// How long `EvictThenDelete` respects budgets after the deadline. Required with it.
    pub(super) delete_after: Option<DurationText>,
    /// How many pods are evicted at a time by this rule. Default: no limit.
    pub(super) limit: Option<RateEntry>,
}

/// How pods are evicted for a taint.
#[derive(JsonSchema)]
pub(super) enum MethodEntry {
    /// Pods are deleted when their time is over, as kube-controller-manager does. Disruption budgets are not
    /// asked.
    Delete,
    /// Pods are evicted by the Eviction API. Disruption budgets are respected for as long as it takes.
    Evict,
    /// Disruption budgets are respected until `deleteAfter` after the deadline. Then the pod is deleted.
    EvictThenDelete,
    /// Pods stay, and are reported.
    Ignore,
}

/// A limit on the number of pods over time.
#[derive(JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(super) struct RateEntry {
    /// Pods in each period.
    #[schemars(range(min = 1))]
    pub(super) pods: u32,
    /// The period. Default: 1s.
    pub(super) per: Option<DurationText>,
    /// Pods at once after a quiet time. Default: the same as `pods`.
    #[schemars(range(min = 1))]
    pub(super) burst: Option<u32>,
}

/// Limits on evictions.
#[derive(Default, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(super) struct LimitsEntry {
    /// For all evictions. Default: no limit.
    pub(super) cluster: Option<RateEntry>,
    /// For the evictions from the nodes of each zone. Default: no limit.
    pub(super) zone: Option<RateEntry>,
    /// How many nodes lose their pods for taints at full speed.
    #[serde(default)]
    pub(super) ramp: RampEntry,
}

/// How many nodes lose their pods for taints at full speed. Further ones follow one by one.
#[derive(Default, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(super) struct RampEntry {
    /// Whether there is a ramp. Default: true.
    pub(super) enabled: Option<bool>,
    /// So many nodes at full speed, or `share` of all nodes if that is more. Default: 10.
    #[schemars(range(min = 1))]
    pub(super) nodes: Option<u32>,
    /// So many percent of all nodes, or `nodes` if that is more. Default: 5%.
    #[serde(default)]
    #[schemars(schema_with = "percent_schema")]
    pub(super) share: Option<String>,
    /// The time within which nodes are counted. Default: 10m.
    pub(super) within: Option<DurationText>,
    /// Time from one further node to the next. Default: 1s.
    pub(super) interval: Option<DurationText>,
}

/// When evictions from many nodes at once are taken for a mistake.
#[derive(Default, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(super) struct BreakerEntry {
    /// What happens then. Default: `Observe`.
    pub(super) mode: Option<BreakerModeEntry>,
    /// The breaker trips when more than so many percent of the nodes of the cluster or of a zone have come to have
    /// due pods within `window`. Default: 30%.
    #[serde(default)]
    #[schemars(schema_with = "percent_schema")]
    pub(super) share: Option<String>,
    /// It does not trip for this many nodes or fewer. Default: 5.
    #[schemars(range(min = 1))]
    pub(super) at_least: Option<u32>,
    /// The time within which nodes are counted. Default: 10m.
    pub(super) window: Option<DurationText>,
    /// It resets after the share has been below half of `share` for so long. Default: 5m.
    pub(super) calm: Option<DurationText>,
    /// While it has tripped, one node after the other goes on, with this time in between. Default: 1m.
    pub(super) trickle: Option<DurationText>,
}

/// What the breaker does when it trips.
#[derive(JsonSchema)]
pub(super) enum BreakerModeEntry {
    /// It reports what it would hold, and holds nothing.
    Observe,
    /// It holds evictions.
    Enforce,
    /// Nothing.
    Off,
}

/// What happens to the cordons of a policy that is no longer in the file.
#[derive(JsonSchema)]
pub(super) enum OrphansEntry {
    /// They stay, and are reported.
    Keep,
    /// They are taken back.
    Uncordon,
}

/// Which nodes are cordoned and drained, for which conditions, and how.
#[derive(JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(super) struct PolicyEntry {
    /// Name of the policy, unique in the file: up to 63 letters, digits, `-`, `_` and `.`.
    pub(super) name: String,
    /// Conditions that make a node bad; one is enough.
    pub(super) conditions: Vec<ConditionEntry>,
    /// Labels, with values, that a node must have. Default: none.
    pub(super) node_selector: Option<BTreeMap<String, String>>,
    /// Expression about the node's labels, as in draino's `--node-label-expr`. Default: empty, which
    /// selects every node.
    pub(super) node_label_expression: Option<String>,
    /// Whether a cordoned node is drained. Default: true.
    pub(super) drain: Option<bool>,
    /// Which pods stay on a node.
    #[serde(default)]
    pub(super) pods: PodsEntry,
    /// When drains start, and how many nodes at a time.
    #[serde(default)]
    pub(super) pace: PaceEntry,
    /// Maximum grace period of a pod; shorter ones are kept. Default: none.
    pub(super) max_grace_period: Option<DurationText>,
    /// Time that a drain may take beyond the longest grace period of the node's pods. Default: 10m.
    pub(super) headroom: Option<DurationText>,
    /// How long a drain may take. Default: the longest grace period of the node's pods plus the
    /// headroom.
    pub(super) deadline: Option<DurationText>,
    /// What happens to a node that is not drained by the deadline. Default: `GiveUp`.
    pub(super) at_deadline: Option<AtDeadlineEntry>,
    /// When a failed drain is retried.
    #[serde(default)]
    pub(super) retry: RetryEntry,
    /// Whether a running drain stops when the conditions clear. Default: true.
    pub(super) stop_when_clear: Option<bool>,
    /// What happens to a bad node with pods that cannot be evicted. Default: `DrainRest`.
    pub(super) undrainable: Option<UndrainableEntry>,
    /// The order in which pods are evicted. Default: pods with a priority below 2000000000 first, in
    /// 80 percent of the time, then all others.
    pub(super) groups: Option<Vec<GroupEntry>>,
    /// A node that still exists this long after its drain is reported. Default: 1h.
    pub(super) lingering: Option<DurationText>,
    /// Key of a `NoSchedule` taint that is added with the cordon, beginning with
    /// `status-taint.cluster-autoscaler.kubernetes.io/`. Default: no taint.
    pub(super) status_taint: Option<String>,
    /// Allow `Ready=True`, which every healthy node has, as a condition. Default: false.
    pub(super) allow_majority: Option<bool>,
}

/// A condition, in draino's short form or as a mapping.
#[derive(JsonSchema)]
#[schemars(untagged)]
pub(super) enum ConditionEntry {
    /// `Type`, short for `Type=True,0s`, or `Type=Status,Duration`.
    Short(String),
    /// A mapping.
    Long(ConditionFields),
}

/// A condition as a mapping.
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
    /// How long the condition must have the status to count as bad. Default: 0s.
    pub(super) min_age: Option<DurationText>,
    /// How long the condition must have another status to count as cleared; `never`: it does not
    /// clear by itself. Default: 5m.
    pub(super) clear_after: Option<String>,
    /// A condition whose heartbeat is older than this is ignored: it neither starts nor clears
    /// anything. Default: never ignored.
    pub(super) stale_after: Option<DurationText>,
}

/// Which pods stay on a node. Mirror pods always stay.
#[derive(Default, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(super) struct PodsEntry {
    /// Evict pods of a DaemonSet. Default: false.
    pub(super) evict_daemon_set: Option<bool>,
    /// Evict pods of a StatefulSet. Default: false.
    pub(super) evict_stateful_set: Option<bool>,
    /// Evict pods with an emptyDir volume. Default: false.
    pub(super) evict_empty_dir: Option<bool>,
    /// Evict pods without a controller, which nothing recreates. Default: false.
    pub(super) evict_unreplicated: Option<bool>,
    /// Kinds of controllers whose pods stay. Default: none.
    pub(super) leave_controllers: Option<Vec<ControllerEntry>>,
    /// Annotations of pods that stay, as KEY or KEY=VALUE. Default: none.
    pub(super) protected_annotations: Option<Vec<String>>,
    /// Keep pods that cluster-autoscaler's annotations mark as not safe to evict. Default: true.
    pub(super) honour_safe_to_evict: Option<bool>,
}

/// A kind of controller.
#[derive(JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(super) struct ControllerEntry {
    /// API group. Default: any.
    pub(super) group: Option<String>,
    /// Kind, for example Rollout.
    pub(super) kind: String,
}

/// When drains start, and how many nodes at a time.
#[derive(Default, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(super) struct PaceEntry {
    /// Minimum time between a node's cordon and its drain. Default: 10s.
    pub(super) notice: Option<DurationText>,
    /// Minimum time between the starts of two drains of the policy. Default: 10m.
    pub(super) spacing: Option<DurationText>,
    /// Limits on the number of unavailable nodes. Default: 25% of all nodes.
    pub(super) caps: Option<Vec<CapEntry>>,
    /// When drains may start: in any of these windows. Default: always.
    pub(super) windows: Option<Vec<WindowEntry>>,
}

/// A limit on unavailable nodes: cordoned by anyone, draining, or drained.
#[derive(JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(super) struct CapEntry {
    /// A number or a percentage of nodes: 3, or 25%.
    #[schemars(schema_with = "limit_schema")]
    pub(super) limit: String,
    /// Apply the limit to each group of nodes with the same value of this label. Default: to all
    /// nodes.
    pub(super) per_label: Option<String>,
}

/// A recurring time window.
#[derive(JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(super) struct WindowEntry {
    /// The days on which it opens. Default: all.
    pub(super) days: Option<Vec<DayEntry>>,
    /// When it opens, as HH:MM. Default: 00:00.
    pub(super) from: Option<String>,
    /// When it closes, as HH:MM. If not later than `from`, it closes on the next day. Default: 24:00.
    pub(super) to: Option<String>,
    /// IANA time zone, for example Europe/Berlin. Default: UTC.
    pub(super) zone: Option<String>,
}

/// When a failed drain is retried.
#[derive(Default, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(super) struct RetryEntry {
    /// Delay after the first failure; doubles with each further one. Default: 10m.
    pub(super) first: Option<DurationText>,
    /// Maximum delay. Default: 2h.
    pub(super) most: Option<DurationText>,
    /// Maximum number of attempts, including the first. Default: 8.
    pub(super) attempts: Option<u32>,
}

/// Pods that are evicted together.
#[derive(JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(super) struct GroupEntry {
    /// Upper bound of the group: pods with a lower priority that are in no earlier group. Left out in
    /// the last group.
    pub(super) below: Option<i32>,
    /// The group's share of the time until the deadline, in percent.
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

/// What happens to a node that is not drained by the deadline.
#[derive(JsonSchema)]
pub(super) enum AtDeadlineEntry {
    /// It stays cordoned, and the drain is retried later.
    GiveUp,
    /// It is uncordoned, and the drain is retried later.
    Uncordon,
    /// The remaining pods are deleted, even if a disruption budget forbids it.
    DeleteRest,
}

/// What happens to a bad node with pods that cannot be evicted.
#[derive(JsonSchema)]
pub(super) enum UndrainableEntry {
    /// It is cordoned and drained. Protected pods stay and are reported; eviction is attempted for all
    /// others, even if a budget is expected to refuse it.
    DrainRest,
    /// It is cordoned and reported, but not drained.
    Cordon,
    /// It is reported, but not cordoned.
    Report,
}

/// A duration, for example 10m, 1h30m or 90s.
#[derive(JsonSchema)]
pub(super) struct DurationText(
    #[schemars(regex(pattern = r"^(0|([0-9]+(\.[0-9]+)?(h|ms|m|s|us|µs|ns))+)$"))] pub(super) String,
);

/// Unquoted, YAML reads two of the three as booleans.
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

fn percent_schema(_: &mut schemars::SchemaGenerator) -> schemars::Schema {
    schemars::json_schema!({ "type": "string", "pattern": "^([1-9][0-9]?|100)%$" })
}
