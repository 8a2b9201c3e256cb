//! The table of resources that this API server serves.

/// A resource. Also its place in the store.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[allow(missing_docs)]
pub enum Resource {
    Namespaces,
    Nodes,
    Pods,
    Events,
    ConfigMaps,
    PersistentVolumes,
    PersistentVolumeClaims,
    ReplicationControllers,
    DaemonSets,
    StatefulSets,
    ReplicaSets,
    Deployments,
    Jobs,
    Leases,
    PodDisruptionBudgets,
}

/// What there is to know about a resource.
// A row of a table, not a state: each column is independent of the others.
#[allow(clippy::struct_excessive_bools)]
#[derive(Debug)]
pub struct Spec {
    /// API group; empty for the core group.
    pub group: &'static str,
    /// Name in paths.
    pub plural: &'static str,
    /// Name for one, as `kubectl` takes it.
    pub singular: &'static str,
    /// `kind` of its objects.
    pub kind: &'static str,
    /// Abbreviations that `kubectl` takes.
    pub short: &'static [&'static str],
    /// Whether its objects live in namespaces.
    pub namespaced: bool,
    /// Whether there is a `/status` subresource, so that the two parts are written separately.
    pub status: bool,
    /// Whether `metadata.generation` counts the changes of the spec.
    pub generation: bool,
    /// Whether a PUT without a resourceVersion overwrites whatever is there.
    pub unconditional: bool,
    /// Whether a PUT creates what is not there.
    pub create_on_update: bool,
}

const CORE: Spec = Spec {
    group: "",
    plural: "",
    singular: "",
    kind: "",
    short: &[],
    namespaced: true,
    status: true,
    generation: false,
    unconditional: true,
    create_on_update: false,
};

const APPS: Spec = Spec { group: "apps", generation: true, ..CORE };

static SPECS: [Spec; Resource::COUNT] = [
    Spec {
        plural: "namespaces",
        singular: "namespace",
        kind: "Namespace",
        short: &["ns"],
        namespaced: false,
        ..CORE
    },
    Spec {
        plural: "nodes",
        singular: "node",
        kind: "Node",
        short: &["no"],
        namespaced: false,
        ..CORE
    },
    Spec { plural: "pods", singular: "pod", kind: "Pod", short: &["po"], generation: true, ..CORE },
    Spec {
        plural: "events",
        singular: "event",
        kind: "Event",
        short: &["ev"],
        status: false,
        create_on_update: true,
        ..CORE
    },
    Spec {
        plural: "configmaps",
        singular: "configmap",
        kind: "ConfigMap",
        short: &["cm"],
        status: false,
        ..CORE
    },
    Spec {
        plural: "persistentvolumes",
        singular: "persistentvolume",
        kind: "PersistentVolume",
        short: &["pv"],
        namespaced: false,
        ..CORE
    },
    Spec {
        plural: "persistentvolumeclaims",
        singular: "persistentvolumeclaim",
        kind: "PersistentVolumeClaim",
        short: &["pvc"],
        ..CORE
    },
    Spec {
        plural: "replicationcontrollers",
        singular: "replicationcontroller",
        kind: "ReplicationController",
        short: &["rc"],
        generation: true,
        ..CORE
    },
    Spec { plural: "daemonsets", singular: "daemonset", kind: "DaemonSet", short: &["ds"], ..APPS },
    Spec {
        plural: "statefulsets",
        singular: "statefulset",
        kind: "StatefulSet",
        short: &["sts"],
        ..APPS
    },
    Spec {
        plural: "replicasets",
        singular: "replicaset",
        kind: "ReplicaSet",
        short: &["rs"],
        ..APPS
    },
    Spec {
        plural: "deployments",
        singular: "deployment",
        kind: "Deployment",
        short: &["deploy"],
        ..APPS
    },
    Spec { group: "batch", plural: "jobs", singular: "job", kind: "Job", generation: true, ..CORE },
    Spec {
        group: "coordination.k8s.io",
        plural: "leases",
        singular: "lease",
        kind: "Lease",
        status: false,
        unconditional: false,
        create_on_update: true,
        ..CORE
    },
    Spec {
        group: "policy",
        plural: "poddisruptionbudgets",
        singular: "poddisruptionbudget",
        kind: "PodDisruptionBudget",
        short: &["pdb"],
        generation: true,
        unconditional: false,
        ..CORE
    },
];

impl Resource {
    pub(super) const COUNT: usize = 15;

    /// All of them, in the order of the table.
    pub const ALL: [Self; Self::COUNT] = [
        Self::Namespaces,
        Self::Nodes,
        Self::Pods,
        Self::Events,
        Self::ConfigMaps,
        Self::PersistentVolumes,
        Self::PersistentVolumeClaims,
        Self::ReplicationControllers,
        Self::DaemonSets,
        Self::StatefulSets,
        Self::ReplicaSets,
        Self::Deployments,
        Self::Jobs,
        Self::Leases,
        Self::PodDisruptionBudgets,
    ];

    /// What there is to know about it.
    pub fn spec(self) -> &'static Spec {
        &SPECS[self as usize]
    }

    /// The resource that is called `plural` in the paths of `group`.
    pub fn find(group: &str, plural: &str) -> Option<Self> {
        let is_it = |resource: &Self| {
            let spec = resource.spec();
            spec.group == group && spec.plural == plural
        };
        Self::ALL.into_iter().find(is_it)
    }

    /// The resource whose objects have this `apiVersion` and `kind`.
    pub fn of_kind(api_version: &str, kind: &str) -> Option<Self> {
        let is_it =
            |resource: &Self| resource.spec().kind == kind && resource.api_version() == api_version;
        Self::ALL.into_iter().find(is_it)
    }

    /// `apiVersion` of its objects. Every resource here is served as v1.
    pub fn api_version(self) -> String {
        match self.spec().group {
            "" => "v1".to_owned(),
            group => format!("{group}/v1"),
        }
    }

    /// Its name in messages: `pods`, `leases.coordination.k8s.io`.
    pub fn qualified(self) -> String {
        let spec = self.spec();
        match spec.group {
            "" => spec.plural.to_owned(),
            group => format!("{}.{group}", spec.plural),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_is_in_the_order_of_the_resources() {
        for resource in Resource::ALL {
            let spec = resource.spec();
            assert_eq!(format!("{resource:?}").to_lowercase(), spec.plural);
            assert_eq!(Resource::find(spec.group, spec.plural), Some(resource));
            assert_eq!(Resource::of_kind(&resource.api_version(), spec.kind), Some(resource));
        }
    }

    #[test]
    fn a_resource_of_another_group_is_not_found() {
        assert_eq!(Resource::find("apps", "pods"), None);
        assert_eq!(Resource::of_kind("v1", "Deployment"), None);
    }
}
