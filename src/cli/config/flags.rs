//! The flags of the drainos that people run: planetlabs' and the forks of getamis and
//! `DataDog`, and what becomes of each.

/// A line of descent of draino.
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

/// What becomes of a flag.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Fate {
    /// It becomes a setting of the policy.
    Setting,
    /// It is said elsewhere, or needs not be said any more.
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

const LOCK: Fate = Elsewhere("there is no lock of draino's any more");
const LOGS: Fate = Elsewhere("run with --log-level and --log-format");
const CLIENT: Fate = Elsewhere("ostrakon finds its own pace with the API server");
const ONLY_DATADOG: Fate = Elsewhere("it has a meaning inside DataDog only");
const CORDON_PODS: Fate = NoCounterpart(
    "which pods keep a node from being cordoned cannot be chosen; undrainable: Report leaves a node \
     in use that has any pod which must stay",
);
const REPLACEMENT: Fate = NoCounterpart(
    "ostrakon asks nobody for new nodes; lingering reports a node that is still there",
);
const CLUSTER_HEALTH: Fate = NoCounterpart(
    "ostrakon does not count these; pace.caps bounds the nodes that are out of use, whoever cordoned \
     them",
);
const VOLUMES: Fate = NoCounterpart("ostrakon deletes no volumes and no claims");
const PREPARATION: Fate = NoCounterpart("a drain waits for no activity of others before it begins");

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
            "a file cannot say it; instead this policy only cordons, and one node at a time: with it, \
             see which nodes it takes, then remove drain: false and set pace.caps",
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
    flag(P, "help", Nothing, NoCounterpart("it makes no policy; leave it out")),
    flag(P, "version", Nothing, NoCounterpart("it makes no policy; leave it out")),
    flag(
        G,
        "allow-force-delete",
        Nothing,
        NoCounterpart(
            "ostrakon never deletes a pod without its grace; atDeadline: DeleteRest deletes what only \
             a disruption budget holds back",
        ),
    ),
    flag(G, "ignore-safe-to-evict-annotation", Nothing, Setting),
    flag(G, "aws-region", Text, NoCounterpart("ostrakon knows no cloud")),
    flag(
        G,
        "aws-set-unhealthy-on-drain",
        Nothing,
        NoCounterpart(
            "ostrakon replaces no instances; cluster-autoscaler removes a drained node, and lingering \
             reports one that stays",
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
        NoCounterpart("caps count nodes by labels, not by taints; use perLabel"),
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
            "spacing counts for all nodes of a policy; write a policy for each group, or caps with \
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
        NoCounterpart("no annotation makes a pod go that the policy leaves"),
    ),
    flag(
        D,
        "short-lived-pod-annotation",
        Many,
        NoCounterpart(
            "no pod is waited for without being evicted; as a protectedAnnotation it would be left",
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
        NoCounterpart("ostrakon looks at the pods of all namespaces"),
    ),
    flag(D, "context", Text, Elsewhere("run with --context=NAME")),
    flag(D, "kube-config", Text, Elsewhere("run with --kubeconfig=FILE")),
    flag(D, "kube-address", Text, Elsewhere("name the server in the kubeconfig")),
    flag(D, "service-addr", Text, Elsewhere("run with --listen=ADDR:PORT")),
    flag(D, "service-shutdown-timeout", Text, Elsewhere("a stop takes 20s at the most")),
    flag(D, "service-with-healthcheck", Nothing, Elsewhere("/livez and /readyz are always there")),
    flag(D, "service-with-metrics", Nothing, Elsewhere("/metrics is always there")),
    flag(D, "service-with-profiling", Nothing, Elsewhere("there is no endpoint for profiles")),
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
        Elsewhere("ostrakon counts repeated events by itself"),
    ),
    flag(D, "config-name", Text, Elsewhere("it is the name of the policy")),
    flag(D, "drain-buffer-configmap-name", Text, Elsewhere("state is on the nodes")),
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

/// Annotations and labels of draino on nodes and pods: what reads them now. The first that begins so
/// counts. `Ok`: ostrakon honours it. `Err`: it does not.
const MARKS: &[(&str, Result<&str, &str>)] = &[
    (
        "draino/drain-retry-failed",
        Err("to ask for another try, annotate the node with draino/drain-retry=true"),
    ),
    ("draino/drain-retry", Ok("ostrakon honours it: one more try for each time it is set to true")),
    ("draino/drain-buffer", Err("spacing is a setting of the policy (pace.spacing)")),
    ("draino/retry-max-attempt", Err("it is a setting of the policy (retry.attempts)")),
    ("draino/retry-delay", Err("it is a setting of the policy (retry.first)")),
    ("draino/retry-strategy", Err("pauses always double, up to retry.most")),
    ("draino/drain-group", Err("write a policy for each group, or caps with perLabel")),
    ("draino/delete-pvc-and-pv", Err("ostrakon deletes no volumes and no claims")),
    ("draino/eviction-api-url", Err("pods are evicted by the Eviction API alone")),
    ("draino.planet.com/", Ok("ostrakon reads and writes it as draino does")),
    (
        "node-lifecycle.datadoghq.com/enabled",
        Err("ostrakon does not look at it; say it in nodeLabelExpression for nodes, and in \
         pods.protectedAnnotations for pods"),
    ),
    (
        "node-lifecycle.datadoghq.com/drain-priority",
        Err("who waits longest is drained first, and candidates of cluster-autoscaler before them"),
    ),
    (
        "node-lifecycle.datadoghq.com/allowed-conditions",
        Err("write a policy of its own for such nodes"),
    ),
    (
        "node-lifecycle.datadoghq.com/drain-group",
        Err("write a policy for each group, or caps with perLabel"),
    ),
    (
        "node-lifecycle.datadoghq.com/eviction-api-url",
        Err("pods are evicted by the Eviction API alone"),
    ),
    (
        "node-lifecycle.datadoghq.com/provision-new-node-before-drain",
        Err("ostrakon asks nobody for new nodes"),
    ),
    (
        "node-lifecycle.datadoghq.com/pre-activity-",
        Err("a drain waits for no activity of others before it begins"),
    ),
    ("node-lifecycle.datadoghq.com/", Err("ostrakon does not look at it")),
    ("node-lifecyle.datadoghq.com/", Err("ostrakon does not look at it")),
    ("node.datadoghq.com/replace", Err("ostrakon asks nobody for new nodes")),
    ("draino/", Err("ostrakon does not look at it")),
];

/// What becomes of an annotation or a label of draino; `None` if it is none of its.
pub(super) fn mark(key: &str) -> Option<Result<&'static str, &'static str>> {
    MARKS.iter().find(|(start, _)| key.starts_with(start)).map(|(_, fate)| *fate)
}
