//! The flags of draino (planetlabs') and of the forks of getamis and `DataDog`, and how each is
//! converted.

/// A fork of draino.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Tree {
    /// planetlabs/draino, whose flags the others have too.
    #[default]
    Planetlabs,
    /// getamis/draino.
    Getamis,
    /// DataDog/draino, of 2021 and later.
    DataDog,
}

impl Tree {
    /// Whose it is, for a message.
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Planetlabs => "planetlabs' draino",
            Self::Getamis => "getamis' draino",
            Self::DataDog => "DataDog's draino",
        }
    }
}

/// What follows a flag.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Takes {
    /// Nothing, or `=true` or `=false`; `--no-…` takes it back.
    Nothing,
    /// One value.
    Text,
    /// One value, given any number of times.
    Many,
}

/// How a flag is converted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Fate {
    /// It becomes a setting of the policy.
    Setting,
    /// It is set elsewhere, or no longer needed.
    Elsewhere(&'static str),
    /// It has no counterpart.
    Nothing(&'static str),
}

/// A flag.
#[derive(Debug)]
pub(super) struct Flag {
    pub(super) name: &'static str,
    pub(super) tree: Tree,
    pub(super) takes: Takes,
    pub(super) fate: Fate,
}

const fn flag(tree: Tree, name: &'static str, takes: Takes, fate: Fate) -> Flag {
    Flag { name, tree, takes, fate }
}

use Fate::{Elsewhere, Nothing as NoCounterpart, Setting};
use Takes::{Many, Nothing, Text};
use Tree::{DataDog as D, Getamis as G, Planetlabs as P};

const LOCK: Fate = Elsewhere("ostrakon does not use draino's lock; see --leader-elect");
const LOGS: Fate = Elsewhere("run with --log-level and --log-format");
const CLIENT: Fate = Elsewhere("ostrakon adapts its own request rate to the API server");
const ONLY_DATADOG: Fate = Elsewhere("it only matters inside DataDog");
const CORDON_PODS: Fate = NoCounterpart(
    "there is no setting for pods that prevent a cordon; with undrainable: Report, a node with any \
     pod that must stay is not cordoned",
);
const REPLACEMENT: Fate = NoCounterpart(
    "ostrakon does not request new nodes; lingering reports a drained node that still exists",
);
const CLUSTER_HEALTH: Fate = NoCounterpart(
    "ostrakon does not count these; pace.caps limits the unavailable nodes, whoever cordoned them",
);
const VOLUMES: Fate = NoCounterpart("ostrakon does not delete volumes or claims");
const PREPARATION: Fate = NoCounterpart("a drain does not wait for other systems before it starts");

/// All of them.
pub(super) const FLAGS: &[Flag] = &[
    flag(P, "debug", Nothing, Elsewhere("run with --log-level=debug")),
    flag(P, "listen", Text, Elsewhere("run with --listen=ADDR:PORT")),
    flag(P, "kubeconfig", Text, Elsewhere("run with --kubeconfig=FILE")),
    flag(P, "master", Text, Elsewhere("name the server in the kubeconfig")),
    flag(
        P,
        "dry-run",
        Nothing,
        NoCounterpart(
            "a file has no such setting; instead this policy only cordons, one node at a time: see \
             which nodes it selects, then remove drain: false and set pace.caps",
        ),
    ),
    flag(P, "max-grace-period", Text, Setting),
    flag(P, "eviction-headroom", Text, Setting),
    flag(P, "drain-buffer", Text, Setting),
    flag(P, "node-label", Many, Setting),
    flag(P, "node-label-expr", Text, Setting),
    flag(P, "namespace", Text, LOCK),
    flag(P, "leader-election-lease-duration", Text, LOCK),
    flag(P, "leader-election-renew-deadline", Text, LOCK),
    flag(P, "leader-election-retry-period", Text, LOCK),
    flag(P, "leader-election-token-name", Text, LOCK),
    flag(P, "skip-drain", Nothing, Setting),
    flag(P, "evict-daemonset-pods", Nothing, Setting),
    flag(P, "evict-statefulset-pods", Nothing, Setting),
    flag(P, "evict-emptydir-pods", Nothing, Setting),
    flag(P, "evict-unreplicated-pods", Nothing, Setting),
    flag(P, "protected-pod-annotation", Many, Setting),
    flag(P, "help", Nothing, NoCounterpart("it does not configure anything; leave it out")),
    flag(P, "version", Nothing, NoCounterpart("it does not configure anything; leave it out")),
    flag(
        G,
        "allow-force-delete",
        Nothing,
        NoCounterpart(
            "ostrakon always keeps the grace period; atDeadline: DeleteRest deletes pods that a \
             disruption budget blocks",
        ),
    ),
    flag(G, "ignore-safe-to-evict-annotation", Nothing, Setting),
    flag(G, "aws-region", Text, NoCounterpart("ostrakon does not call cloud APIs")),
    flag(
        G,
        "aws-set-unhealthy-on-drain",
        Nothing,
        NoCounterpart(
            "ostrakon does not replace instances; cluster-autoscaler removes a drained node, and \
             lingering reports one that still exists",
        ),
    ),
    flag(D, "node-conditions", Many, Setting),
    flag(D, "do-not-evict-pod-controlled-by", Many, Setting),
    flag(D, "max-simultaneous-cordon", Many, Setting),
    flag(D, "max-simultaneous-cordon-for-labels", Many, Setting),
    flag(
        D,
        "max-simultaneous-cordon-for-taints",
        Many,
        NoCounterpart("caps group nodes by label, not by taint; use perLabel"),
    ),
    flag(D, "max-drain-attempts-before-fail", Text, Setting),
    flag(D, "retry-backoff-delay", Text, Setting),
    flag(D, "min-eviction-timeout", Text, Setting),
    flag(D, "wait-before-draining", Text, Setting),
    flag(
        D,
        "drain-group-labels",
        Text,
        NoCounterpart(
            "spacing applies to all nodes of a policy; write a policy for each group, or caps with \
             perLabel",
        ),
    ),
    flag(D, "cordon-protected-pod-annotation", Many, CORDON_PODS),
    flag(D, "do-not-cordon-pod-controlled-by", Many, CORDON_PODS),
    flag(D, "cordon-emptydir-pods", Nothing, CORDON_PODS),
    flag(D, "candidate-emptydir-pods", Nothing, CORDON_PODS),
    flag(D, "exclude-sts-on-node-without-storage", Nothing, CORDON_PODS),
    flag(
        D,
        "opt-in-pod-annotation",
        Many,
        NoCounterpart("no annotation overrides a policy that keeps a pod"),
    ),
    flag(
        D,
        "short-lived-pod-annotation",
        Many,
        NoCounterpart(
            "a drain does not wait for pods that it does not evict; as a protectedAnnotation, such a \
             pod would stay",
        ),
    ),
    flag(D, "max-node-replacement-per-hour", Text, REPLACEMENT),
    flag(D, "duration-before-replacement", Text, REPLACEMENT),
    flag(D, "preprovisioning-by-default", Nothing, REPLACEMENT),
    flag(D, "preprovisioning-check-period", Text, REPLACEMENT),
    flag(D, "preprovisioning-timeout", Text, REPLACEMENT),
    flag(D, "max-notready-nodes", Many, CLUSTER_HEALTH),
    flag(D, "max-notready-nodes-period", Text, CLUSTER_HEALTH),
    flag(D, "max-pending-pods", Many, CLUSTER_HEALTH),
    flag(D, "max-pending-pods-period", Text, CLUSTER_HEALTH),
    flag(D, "storage-class-allows-pv-deletion", Many, VOLUMES),
    flag(D, "pvc-management-by-default", Nothing, VOLUMES),
    flag(D, "pre-activity-default-timeout", Text, PREPARATION),
    flag(D, "pod-warmup-delay-extension", Text, PREPARATION),
    flag(
        D,
        "drain-rate-limit-qps",
        Text,
        NoCounterpart("drains are spaced by pace.spacing, not per condition"),
    ),
    flag(
        D,
        "drain-rate-limit-burst",
        Text,
        NoCounterpart("drains are spaced by pace.spacing, not per condition"),
    ),
    flag(D, "drain-sim-rate-limit-ratio", Text, CLIENT),
    flag(D, "kube-client-qps", Text, CLIENT),
    flag(D, "kube-client-burst", Text, CLIENT),
    flag(D, "group-runner-period", Text, CLIENT),
    flag(D, "excluded-pod-per-node-estimation", Text, CLIENT),
    flag(D, "informer-sync-period", Text, CLIENT),
    flag(
        D,
        "informer-namespace",
        Text,
        NoCounterpart("ostrakon watches the pods of all namespaces"),
    ),
    flag(D, "context", Text, Elsewhere("run with --context=NAME")),
    flag(D, "kube-config", Text, Elsewhere("run with --kubeconfig=FILE")),
    flag(D, "kube-address", Text, Elsewhere("name the server in the kubeconfig")),
    flag(D, "service-addr", Text, Elsewhere("run with --listen=ADDR:PORT")),
    flag(D, "service-shutdown-timeout", Text, Elsewhere("shutdown takes at most 20s")),
    flag(D, "service-with-healthcheck", Nothing, Elsewhere("/livez and /readyz are always served")),
    flag(D, "service-with-metrics", Nothing, Elsewhere("/metrics is always served")),
    flag(D, "service-with-profiling", Nothing, Elsewhere("there is no profiling endpoint")),
    flag(D, "leader-elect", Nothing, Elsewhere("run with --leader-elect, which is the default")),
    flag(D, "leader-elect-id", Text, LOCK),
    flag(D, "leader-elect-lease", Text, LOCK),
    flag(D, "leader-elect-namespace", Text, Elsewhere("run with --leader-elect-namespace=NAME")),
    flag(D, "leader-elect-renew", Text, LOCK),
    flag(D, "leader-elect-retry", Text, LOCK),
    flag(D, "leader-resource-lock", Text, LOCK),
    flag(D, "encoding", Text, LOGS),
    flag(D, "klog-verbosity", Text, LOGS),
    flag(D, "log-development", Nothing, LOGS),
    flag(D, "log-events", Nothing, LOGS),
    flag(D, "log-level", Text, LOGS),
    flag(D, "log-stacktrace", Text, LOGS),
    flag(
        D,
        "event-aggregation-period",
        Text,
        Elsewhere("ostrakon aggregates repeated events by itself"),
    ),
    flag(D, "config-name", Text, Elsewhere("it is the name of the policy")),
    flag(D, "drain-buffer-configmap-name", Text, Elsewhere("state is kept on the nodes")),
    flag(D, "no-legacy-node-handler", Nothing, ONLY_DATADOG),
    flag(D, "reset-config-labels", Nothing, ONLY_DATADOG),
    flag(D, "scope-analysis-period", Text, ONLY_DATADOG),
    flag(D, "cloud-provider", Text, ONLY_DATADOG),
    flag(D, "cloud-provider-project", Text, ONLY_DATADOG),
    flag(D, "datacenter", Text, ONLY_DATADOG),
    flag(D, "kube-cluster-name", Text, ONLY_DATADOG),
    flag(D, "tracer-addr", Text, ONLY_DATADOG),
    flag(D, "tracer-service-name", Text, ONLY_DATADOG),
];

/// The flag with this name, without its dashes.
pub(super) fn find(name: &str) -> Option<&'static Flag> {
    FLAGS.iter().find(|flag| flag.name == name)
}

/// Draino's annotations and labels on nodes and pods, by prefix; the first match counts. `Ok`: ostrakon
/// honours it. `Err`: it does not, with what to use instead.
const MARKS: &[(&str, Result<&str, &str>)] = &[
    (
        "draino/drain-retry-failed",
        Err("annotate the node with draino/drain-retry=true to request another attempt"),
    ),
    (
        "draino/drain-retry",
        Ok("ostrakon honours it: each time it is set to true, one more attempt"),
    ),
    ("draino/drain-buffer", Err("it is a setting of the policy (pace.spacing)")),
    ("draino/retry-max-attempt", Err("it is a setting of the policy (retry.attempts)")),
    ("draino/retry-delay", Err("it is a setting of the policy (retry.first)")),
    ("draino/retry-strategy", Err("the delay always doubles, up to retry.most")),
    ("draino/drain-group", Err("write a policy for each group, or caps with perLabel")),
    ("draino/delete-pvc-and-pv", Err("ostrakon does not delete volumes or claims")),
    ("draino/eviction-api-url", Err("pods are only evicted with the Eviction API")),
    ("draino.planet.com/", Ok("ostrakon reads and writes it as draino does")),
    (
        "node-lifecycle.datadoghq.com/enabled",
        Err(
            "ostrakon ignores it; use nodeLabelExpression for nodes, and pods.protectedAnnotations \
         for pods",
        ),
    ),
    (
        "node-lifecycle.datadoghq.com/drain-priority",
        Err(
            "cluster-autoscaler's scale-down candidates are drained first, then the node that has \
         waited longest",
        ),
    ),
    (
        "node-lifecycle.datadoghq.com/allowed-conditions",
        Err("write a separate policy for these nodes"),
    ),
    (
        "node-lifecycle.datadoghq.com/drain-group",
        Err("write a policy for each group, or caps with perLabel"),
    ),
    (
        "node-lifecycle.datadoghq.com/eviction-api-url",
        Err("pods are only evicted with the Eviction API"),
    ),
    (
        "node-lifecycle.datadoghq.com/provision-new-node-before-drain",
        Err("ostrakon does not request new nodes"),
    ),
    (
        "node-lifecycle.datadoghq.com/pre-activity-",
        Err("a drain does not wait for other systems before it starts"),
    ),
    ("node-lifecycle.datadoghq.com/", Err("ostrakon ignores it")),
    ("node-lifecyle.datadoghq.com/", Err("ostrakon ignores it")),
    ("node.datadoghq.com/replace", Err("ostrakon does not request new nodes")),
    ("draino/", Err("ostrakon ignores it")),
];

/// How an annotation or a label is converted; `None` if it is not draino's.
pub(super) fn mark(key: &str) -> Option<Result<&'static str, &'static str>> {
    MARKS.iter().find(|(start, _)| key.starts_with(start)).map(|(_, fate)| *fate)
}
