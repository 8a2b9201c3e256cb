//! Argument lists, manifests and values as people have published them: what becomes of each.

use super::*;

/// Where draino is told what to do.
enum Told<'a> {
    /// On a command line.
    Arguments(&'a [&'a str]),
    /// In a manifest or in values of Helm.
    File(&'a str),
}

/// What was published, and what is not converted of it: beginnings of the notes, in their order. `None`
/// as policies: nothing can be made of it.
struct Published<'a> {
    whose: &'a str,
    told: Told<'a>,
    lost: &'a [&'a str],
    conditions: Option<&'a [&'a str]>,
}

const DATADOG_CONDITIONS: [&str; 27] = [
    "nodegroup-update",
    "LifetimeExceeded",
    "ec2-host-retirement",
    "containerd-task-blocked",
    "shim-blocked",
    "containerd-issue",
    "containerd-update",
    "hung-task",
    "disk-issue",
    "network-issue",
    "memory-fault",
    "kernel-issue",
    "kernel-update",
    "kubelet-issue",
    "kubelet-update",
    "cilium-issue",
    "cilium-update",
    "compliance-update",
    "performance",
    "application",
    "esr",
    "gameday",
    "nodeless-rotation",
    "maintenance",
    "incident",
    "other",
    "cluster-upgrade",
];

#[allow(clippy::too_many_lines, reason = "a table")]
fn published() -> Vec<Published<'static>> {
    use Told::{Arguments, File};
    let row = |whose, told, lost, conditions| Published { whose, told, lost, conditions };
    vec![
        row(
            "planetlabs' manifest",
            File(
                "apiVersion: v1\nkind: ServiceAccount\nmetadata:\n  name: draino\n---\n\
                 apiVersion: apps/v1\nkind: Deployment\nmetadata:\n  name: draino\nspec:\n  template:\n    \
                 spec:\n      containers:\n      - command: [/draino, --dry-run, \
                 --node-label=draino-enabled=true, BadCondition, ReallyBadCondition]\n        \
                 image: planetlabs/draino:5e07e93\n        name: draino\n",
            ),
            &["--dry-run"],
            Some(&["BadCondition", "ReallyBadCondition"]),
        ),
        row(
            "planetlabs' chart, values of its own check",
            File(
                "conditions:\n  - KernelDeadlock\n  - ReadonlyFilesystem\n  - FrequentKubeletRestart\n  \
                 - FrequentDockerRestart\n  - FrequentContainerdRestart\n",
            ),
            &[],
            Some(&[
                "KernelDeadlock",
                "ReadonlyFilesystem",
                "FrequentKubeletRestart",
                "FrequentDockerRestart",
                "FrequentContainerdRestart",
            ]),
        ),
        row(
            "planetlabs' chart, default values",
            File(
                "dryRun: false\nextraArgs: {}\nconditions: {}\nreplicaCount: 1\nimage:\n  \
                 repository: planetlabs/draino\n  tag: 2c3d2b4\n",
            ),
            &["Helm values"],
            None,
        ),
        row(
            "dfroberg's chart, default values",
            File(
                "dryRun: true\nextraArgs: {}\nconditions: {}\nimage:\n  repository: dfroberg/draino\n",
            ),
            &["--dry-run", "Helm values"],
            None,
        ),
        row(
            "getamis' chart, with what stands in comments",
            File(
                "image:\n  repository: quay.io/amis/draino\n  tag: v0.2.0\ndryRun: false\nextraArgs:\n  \
                 allow-force-delete: null\n  debug: null\n  evict-statefulset-pods: null\n  \
                 evict-emptydir-pods: null\n  evict-unreplicated-pods: null\n  \
                 ignore-safe-to-evict-annotation: null\n  eviction-headroom: \"10m\"\n  \
                 max-grace-period: \"1m\"\nconditions:\n  - ContainerRuntimeUnhealthy\n  - KernelDeadlock\n  \
                 - FrequentKubeletRestart\n  - FrequentContainerdRestart\n",
            ),
            &["--allow-force-delete of getamis' draino"],
            Some(&[
                "ContainerRuntimeUnhealthy",
                "KernelDeadlock",
                "FrequentKubeletRestart",
                "FrequentContainerdRestart",
            ]),
        ),
        row(
            "getamis' manifest",
            File(
                "apiVersion: apps/v1\nkind: Deployment\nmetadata:\n  name: draino\nspec:\n  template:\n    \
                 spec:\n      containers:\n        - name: draino\n          \
                 image: \"quay.io/amis/draino:v0.1.1\"\n          command:\n            - /draino\n",
            ),
            &["Deployment draino, container draino"],
            None,
        ),
        row(
            "getamis' script",
            Arguments(&[
                "./draino",
                "--kubeconfig",
                "~/.kube/config",
                "--allow-force-delete",
                "--debug",
                "--evict-emptydir-pods",
                "--evict-statefulset-pods",
                "--evict-unreplicated-pods",
                "--eviction-headroom=10m",
                "--ignore-safe-to-evict-annotation",
                "--max-grace-period=1m",
                "ContainerRuntimeUnhealthy",
                "KernelDeadlock",
                "FrequentKubeletRestart",
            ]),
            &["--allow-force-delete of getamis' draino"],
            Some(&["ContainerRuntimeUnhealthy", "KernelDeadlock", "FrequentKubeletRestart"]),
        ),
        row(
            "pfnet's manifest",
            File(
                "kind: Deployment\nmetadata:\n  name: draino\nspec:\n  template:\n    spec:\n      \
                 containers:\n      - command: [/draino, --dry-run, --namespace=$(POD_NAMESPACE), \
                 --node-label=draino-enabled=true, BadCondition, ReallyBadCondition]\n        env:\n        \
                 - name: POD_NAMESPACE\n          valueFrom:\n            fieldRef: {fieldPath: \
                 metadata.namespace}\n        image: ghcr.io/pfnet/draino:latest\n        name: draino\n",
            ),
            &["--dry-run"],
            Some(&["BadCondition", "ReallyBadCondition"]),
        ),
        row(
            "OpenStack Magnum's installer",
            File(
                "kind: Deployment\nmetadata: {name: draino}\nspec:\n  template:\n    spec:\n      \
                 containers:\n      - command: [/draino, --node-label=draino-enabled=true, \
                 --evict-daemonset-pods, --evict-emptydir-pods, NotReady]\n        \
                 image: ${_docker_draino_prefix}draino:${DRAINO_TAG}\n        name: draino\n",
            ),
            &[],
            Some(&["NotReady"]),
        ),
        row(
            "a script for node roles",
            Arguments(&[
                "./draino",
                "--kubeconfig",
                "~/.kube/config-test-dev",
                "--node-label-expr=metadata['labels']['node-role'] in ['default', 'default', \
                 'default-compute', 'default-memory']",
                "--evict-unreplicated-pods",
                "--evict-emptydir-pods",
                "--evict-daemonset-pods",
                "FrequentAwsNodeRestart",
                "KernelDeadlock",
                "ReadonlyFilesystem",
                "OutOfDisk",
            ]),
            &[],
            Some(&["FrequentAwsNodeRestart", "KernelDeadlock", "ReadonlyFilesystem", "OutOfDisk"]),
        ),
        row(
            "the same for another condition",
            Arguments(&[
                "./draino",
                "--kubeconfig",
                "~/.kube/config",
                "--node-label-expr=metadata['labels']['node-role'] in ['default', 'default', \
                 'default-compute', 'default-memory']",
                "--evict-unreplicated-pods",
                "--evict-emptydir-pods",
                "--evict-daemonset-pods",
                "AMIProblem",
                "KernelDeadlock",
                "ReadonlyFilesystem",
                "OutOfDisk",
            ]),
            &[],
            Some(&["AMIProblem", "KernelDeadlock", "ReadonlyFilesystem", "OutOfDisk"]),
        ),
        row(
            "a script with a variable of its shell",
            Arguments(&[
                "./draino",
                "--debug",
                "--kubeconfig",
                "$KUBECONFIG",
                "--node-label-expr=$DAINO_NODE_LABEL_EXPR",
                "--max-grace-period=1m0s",
                "--drain-buffer=5m0s",
                "--eviction-headroom=30s",
                "--evict-unreplicated-pods",
                "--evict-emptydir-pods",
                "--evict-daemonset-pods",
                "FrequentAwsNodeRestart",
                "KernelDeadlock",
                "ReadonlyFilesystem",
                "OutOfDisk",
            ]),
            &["--node-label-expr=$DAINO_NODE_LABEL_EXPR"],
            Some(&["FrequentAwsNodeRestart", "KernelDeadlock", "ReadonlyFilesystem", "OutOfDisk"]),
        ),
        row(
            "DataDog's Makefile of 2021",
            Arguments(&[
                "--kubeconfig=$(KUBECONFIG)",
                "--namespace=cluster-controllers",
                "--debug",
                "--leader-election-token-name=draino-standard",
                "--drain-buffer=3m",
                "--drain-group-labels=nodegroups.datadoghq.com/namespace",
                "--evict-emptydir-pods=true",
                "--eviction-headroom=10s",
                "--max-grace-period=10m0s",
                "--node-label=nodegroups.datadoghq.com/cluster-autoscaler=true",
                "--node-label=nodegroups.datadoghq.com/local-storage=false",
                "--protected-pod-annotation=cluster-autoscaler.kubernetes.io/daemonset-pod=true",
                "--protected-pod-annotation=node-lifecycle.datadoghq.com/do-not-evict-pod=true",
                "--max-simultaneous-cordon=15%",
                "--max-simultaneous-cordon=25",
                "--max-simultaneous-cordon-for-taints=15%,node",
                "--max-simultaneous-cordon-for-taints=15,node",
                "--max-simultaneous-cordon-for-labels=15%,app",
                "--max-simultaneous-cordon-for-labels=15,app",
                "--max-simultaneous-cordon-for-labels=15%,nodegroups.datadoghq.com/name,\
                 nodegroups.datadoghq.com/namespace",
                "--max-simultaneous-cordon-for-labels=15,nodegroups.datadoghq.com/name,\
                 nodegroups.datadoghq.com/namespace",
                "--max-notready-nodes=10%",
                "--max-notready-nodes=50",
                "--max-pending-pods=10%",
                "--max-drain-attempts-before-fail=7",
                "--do-not-evict-pod-controlled-by=StatefulSet",
                "--do-not-evict-pod-controlled-by=DaemonSet",
                "--do-not-evict-pod-controlled-by=ExtendedDaemonSetReplicaSet",
                "--do-not-evict-pod-controlled-by=",
                "--cordon-protected-pod-annotation=node-lifecycle.datadoghq.com/enabled=false",
                "--do-not-cordon-pod-controlled-by=StatefulSet",
                "--do-not-cordon-pod-controlled-by=",
                "--opt-in-pod-annotation=node-lifecycle.datadoghq.com/enabled=true",
                "--config-name=standard",
                "LifetimeExceeded",
                "ec2-host-retirement",
                "kernel-issue",
                "other",
            ]),
            &[
                "--max-simultaneous-cordon-for-taints of DataDog's draino",
                "--max-simultaneous-cordon-for-taints of DataDog's draino",
                "--drain-group-labels of DataDog's draino",
                "--cordon-protected-pod-annotation of DataDog's draino",
                "--do-not-cordon-pod-controlled-by of DataDog's draino",
                "--do-not-cordon-pod-controlled-by of DataDog's draino",
                "--opt-in-pod-annotation of DataDog's draino",
                "--max-notready-nodes of DataDog's draino",
                "--max-notready-nodes of DataDog's draino",
                "--max-pending-pods of DataDog's draino",
                "--max-simultaneous-cordon-for-labels=15%,nodegroups",
                "--max-simultaneous-cordon-for-labels=15,nodegroups",
            ],
            Some(&["LifetimeExceeded", "ec2-host-retirement", "kernel-issue", "other"]),
        ),
        row(
            "DataDog's Makefile of 2022",
            Arguments(&[
                "--kube-client-qps=20",
                "--kube-client-burst=150",
                "--namespace=cluster-controllers",
                "--leader-elect-id=draino-standard",
                "--leader-resource-lock=configmapsleases",
                "--leader-elect-lease=15s",
                "--leader-elect-renew=10s",
                "--leader-elect-namespace=cluster-controllers",
                "--max-notready-nodes=10%",
                "--max-notready-nodes=50",
                "--max-notready-nodes-period=60s",
                "--max-pending-pods=10%",
                "--max-pending-pods-period=60s",
                "--scope-analysis-period=60s",
                "--retry-backoff-delay=23m",
                "--max-drain-attempts-before-fail=7",
                "--drain-buffer=3m",
                "--drain-group-labels=nodegroups.datadoghq.com/namespace",
                "--evict-emptydir-pods=true",
                "--eviction-headroom=10s",
                "--min-eviction-timeout=10m0s",
                "--node-label-expr=(metadata.labels['nodegroups.datadoghq.com/cluster-autoscaler'] \
                 matches 'true' && not (metadata.labels['node-lifecycle.datadoghq.com/enabled'] matches \
                 'false')) || (metadata.labels['node-lifecycle.datadoghq.com/enabled'] matches 'true')",
                "--protected-pod-annotation=cluster-autoscaler.kubernetes.io/daemonset-pod=true",
                "--protected-pod-annotation=node-lifecycle.datadoghq.com/cordon-node-but-do-not-evict-pod=true",
                "--protected-pod-annotation=node-lifecycle.datadoghq.com/enabled=false",
                "--do-not-evict-pod-controlled-by=DaemonSet",
                "--do-not-evict-pod-controlled-by=ExtendedDaemonSetReplicaSet",
                "--cordon-protected-pod-annotation=node-lifecycle.datadoghq.com/enabled=false",
                "--do-not-cordon-pod-controlled-by=",
                "--short-lived-pod-annotation=node-lifecycle.datadoghq.com/short-lived-pod=true",
                "--opt-in-pod-annotation=node-lifecycle.datadoghq.com/enabled=true",
                "--pvc-management-by-default",
                "--config-name=standard",
                "--node-conditions=nodegroup-update",
                "--node-conditions=LifetimeExceeded",
                "--node-conditions=ec2-host-retirement",
                "--node-conditions=containerd-task-blocked",
                "--node-conditions=shim-blocked",
                "--node-conditions=containerd-issue",
                "--node-conditions=containerd-update",
                "--node-conditions=hung-task",
                "--node-conditions=disk-issue={\"priority\":3000,\"expectedResolutionTime\":\"30m\",\
                 \"rateLimitQPS\":0.02,\"forceDrain\":true}",
                "--node-conditions=network-issue",
                "--node-conditions=memory-fault",
                "--node-conditions=kernel-issue",
                "--node-conditions=kernel-update",
                "--node-conditions=kubelet-issue",
                "--node-conditions=kubelet-update",
                "--node-conditions=cilium-issue",
                "--node-conditions=cilium-update",
                "--node-conditions=compliance-update",
                "--node-conditions=performance",
                "--node-conditions=application",
                "--node-conditions=esr",
                "--node-conditions=gameday",
                "--node-conditions=nodeless-rotation",
                "--node-conditions=maintenance",
                "--node-conditions=incident",
                "--node-conditions=other={\"priority\":1000}",
                "--no-legacy-node-handler=true",
                "--node-conditions=cluster-upgrade={\"delay\":\"6h\"}",
                "--kube-cluster-name=chillpenguin",
            ]),
            &[
                "expectedResolutionTime, forceDrain, priority, rateLimitQPS of condition disk-issue",
                "priority of condition other",
                "--drain-group-labels of DataDog's draino",
                "--cordon-protected-pod-annotation of DataDog's draino",
                "--do-not-cordon-pod-controlled-by of DataDog's draino",
                "--opt-in-pod-annotation of DataDog's draino",
                "--short-lived-pod-annotation of DataDog's draino",
                "--max-notready-nodes of DataDog's draino",
                "--max-notready-nodes of DataDog's draino",
                "--max-notready-nodes-period of DataDog's draino",
                "--max-pending-pods of DataDog's draino",
                "--max-pending-pods-period of DataDog's draino",
                "--pvc-management-by-default of DataDog's draino",
            ],
            Some(&DATADOG_CONDITIONS),
        ),
        row(
            "a tutorial whose expression is a key",
            File(
                "kind: Deployment\nmetadata: {name: draino}\nspec:\n  template:\n    spec:\n      \
                 containers:\n        - name: draino\n          image: planetlabs/draino:latest\n          \
                 command:\n            - /draino\n            \
                 - --node-label-expr=node-role.kubernetes.io/worker\n            \
                 - --eviction-headroom=30s\n            - --drain-buffer=10m\n            \
                 - KernelDeadlock                  # drain nodes with this condition\n            \
                 - DiskProblem                     # drain nodes with this condition\n",
            ),
            &["--node-label-expr=node-role.kubernetes.io/worker"],
            Some(&["KernelDeadlock", "DiskProblem"]),
        ),
        row(
            "a tutorial whose conditions have no age",
            Arguments(&[
                "/draino",
                "--node-label-expr=node-role.kubernetes.io/worker",
                "--evict-emptydir-pods",
                "--evict-unreplicated-pods",
                "--drain-buffer=10m",
                "--skip-drain=false",
                "KernelDeadlock=True",
                "ReadonlyFilesystem=True",
                "GPUProblem=True",
            ]),
            &[
                "KernelDeadlock=True",
                "ReadonlyFilesystem=True",
                "GPUProblem=True",
                "--node-label-expr=node-role.kubernetes.io/worker",
            ],
            Some(&["KernelDeadlock", "ReadonlyFilesystem", "GPUProblem"]),
        ),
        row(
            "a tutorial with a flag that no draino has",
            Arguments(&[
                "/draino",
                "--node-label-expr=node-role.kubernetes.io/worker",
                "--evict-condition=KernelDeadlock",
                "--evict-condition=ReadonlyFilesystem",
                "--evict-condition=ContainerRuntimeProblem",
            ]),
            &["--evict-condition", "--evict-condition", "--evict-condition", "the arguments"],
            None,
        ),
        row(
            "a tutorial with a list in one flag",
            File(
                "kind: Deployment\nmetadata: {name: draino}\nspec:\n  template:\n    spec:\n      \
                 containers:\n        - name: draino\n          image: planetlabs/draino:latest\n          \
                 command:\n            - /draino\n            - --dry-run=false\n            \
                 - --node-conditions=KernelDeadlock,ReadonlyFilesystem,DiskPressure\n            \
                 - --eviction-headroom=30s\n            - --drain-buffer=10m\n            \
                 - --skip-drain=false\n            - --max-grace-period=5m0s\n",
            ),
            &["KernelDeadlock,ReadonlyFilesystem,DiskPressure"],
            Some(&["KernelDeadlock", "ReadonlyFilesystem", "DiskPressure"]),
        ),
        row(
            "a lesson on GPUs",
            Arguments(&[
                "draino",
                "--node-label-expr=feature.node.kubernetes.io/pci-10de.present=true",
                "--evict-daemonset-pods=false",
                "GPUXidError",
            ]),
            &["--node-label-expr=feature"],
            Some(&["GPUXidError"]),
        ),
        row(
            "a chart with a command and arguments",
            File(
                "command: /draino\nargs: [\"--debug\", \"--evict-daemonset-pods\", \
                 \"--evict-emptydir-pods\", \"KernelDeadlock\"]\nimage:\n  name: planetlabs/draino\n  \
                 tag: latest\n",
            ),
            &[],
            Some(&["KernelDeadlock"]),
        ),
        row(
            "the expression of the README",
            Arguments(&[
                "/draino",
                "--node-label-expr",
                "(metadata.labels.region == 'us-west-1' && metadata.labels.app == 'nginx') || \
                 (metadata.labels.region == 'us-west-2' && metadata.labels.app == 'nginx')",
                "KernelDeadlock",
            ]),
            &[],
            Some(&["KernelDeadlock"]),
        ),
        row(
            "a question why nothing happens",
            Arguments(&["/draino", "--debug", "Ready=Unknown", "KernelDeadlock"]),
            &["condition \"Ready=Unknown\""],
            Some(&["KernelDeadlock"]),
        ),
    ]
}

#[test]
fn everything_that_people_published_is_converted_or_named() {
    for Published { whose, told, lost: expected, conditions } in published() {
        let migration = match told {
            Told::Arguments(arguments) => from_draino(arguments),
            Told::File(text) => {
                let found = source::find("f.yaml", text.as_bytes()).unwrap();
                migrate(&found.sources, &found.honoured, &found.not_honoured)
            }
        };
        let lost = lost(&migration);
        assert_eq!(lost.len(), expected.len(), "{whose}: {lost:#?}");
        for (lost, expected) in lost.iter().zip(expected) {
            assert!(lost.starts_with(expected), "{whose}: {lost} instead of {expected}");
        }
        assert!(migration.notes.iter().all(|note| !note.origin.is_empty() && !note.why.is_empty()));
        let Some(conditions) = conditions else {
            assert_eq!(migration.file, "", "{whose}");
            continue;
        };
        let policy = only(&migration);
        let kinds: Vec<_> = policy.conditions.iter().map(|rule| &*rule.kind).collect();
        assert_eq!(kinds, conditions, "{whose}");
        let reading = read(migration.file.as_bytes());
        let summary = check::report("f", &reading, false, noon()).unwrap();
        let words = format!("bad       {} is True", conditions[0]);
        assert!(summary.contains(&words), "{whose}: {summary}");
    }
}

#[test]
fn what_a_file_has_besides_is_listed_too() {
    let text = "kind: Node\nmetadata:\n  name: n1\n  annotations:\n    draino/drain-buffer: 5m\n    \
                draino/drain-retry: 'true'\n---\nkind: Deployment\nmetadata: {name: draino}\nspec:\n  \
                template:\n    spec:\n      containers:\n      - name: a\n        args: [A]\n        \
                image: draino\n        env: [{name: DRAINO_DRAIN_BUFFER, value: 1m}]\n---\n\
                kind: Deployment\nmetadata: {name: draino}\nspec:\n  template:\n    spec:\n      \
                containers: [{name: draino, args: [B]}]\n";
    let found = source::find("f.yaml", text.as_bytes()).unwrap();
    let migration = migrate(&found.sources, &found.honoured, &found.not_honoured);
    assert_eq!(lost(&migration), ["draino/drain-buffer=5m of Node n1"]);
    let policies = read_settings(&migration.file).unwrap().policies;
    let names: Vec<_> = policies.iter().map(|policy| &*policy.name).collect();
    assert_eq!(names, ["draino", "draino-2"]);
    assert_eq!(policies[0].pace.spacing, Duration::from_secs(60));
    let file = &migration.file;
    assert!(
        file.contains("spacing: 1m0s # --drain-buffer, DRAINO_DRAIN_BUFFER, f.yaml:17"),
        "{file}"
    );
    assert!(file.contains("# From Deployment draino, container a (f.yaml:14)."), "{file}");
    assert!(
        file.contains("draino/drain-retry=true of Node n1 (f.yaml:6): ostrakon honours it"),
        "{file}"
    );
}
