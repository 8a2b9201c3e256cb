//! Static pods, and the mirror pods that represent them in the API.
//!
//! A static pod runs regardless of the API. Deleting the mirror pod stops nothing: the kubelet completes
//! the deletion and creates a new mirror pod with a new UID.

use std::hash::{DefaultHasher, Hash, Hasher};

use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Container, Pod, PodSpec, Toleration};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, OwnerReference};

use super::objects::MIRROR_ANNOTATION;

/// A pod that a node runs on its own account, as if from a manifest on its disk.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct StaticPod {
    namespace: String,
    name: String,
    image: String,
    priority_class: Option<String>,
}

impl StaticPod {
    /// A static pod of that name; its mirror is called `<name>-<node name>`.
    pub fn new(namespace: &str, name: &str) -> Self {
        Self {
            namespace: namespace.to_owned(),
            name: name.to_owned(),
            image: "registry.k8s.io/pause:3.10".to_owned(),
            priority_class: None,
        }
    }

    /// The image of its only container; nothing is ever pulled.
    pub fn image(self, image: &str) -> Self {
        Self { image: image.to_owned(), ..self }
    }

    /// Its priority class, such as `system-node-critical`.
    pub fn priority_class(self, name: &str) -> Self {
        Self { priority_class: Some(name.to_owned()), ..self }
    }

    /// Namespace of its mirror.
    pub(super) fn namespace(&self) -> &str {
        &self.namespace
    }

    /// Name of its mirror on that node.
    pub(super) fn mirror_name(&self, node: &str) -> String {
        format!("{}-{node}", self.name)
    }

    /// Its mirror on that node. `seen`: when the kubelet read the manifest.
    pub(super) fn mirror(&self, node: &str, node_uid: &str, seen: Timestamp) -> Pod {
        let hash = self.hash_on(node);
        let annotations = [
            (MIRROR_ANNOTATION, hash.clone()),
            ("kubernetes.io/config.hash", hash),
            ("kubernetes.io/config.seen", seen.to_string()),
            ("kubernetes.io/config.source", "file".to_owned()),
        ];
        Pod {
            metadata: ObjectMeta {
                name: Some(self.mirror_name(node)),
                namespace: Some(self.namespace.clone()),
                annotations: Some(annotations.map(|(key, value)| (key.to_owned(), value)).into()),
                owner_references: Some(vec![OwnerReference {
                    api_version: "v1".to_owned(),
                    kind: "Node".to_owned(),
                    name: node.to_owned(),
                    uid: node_uid.to_owned(),
                    controller: Some(true),
                    ..OwnerReference::default()
                }]),
                ..ObjectMeta::default()
            },
            spec: Some(PodSpec {
                node_name: Some(node.to_owned()),
                host_network: Some(true),
                priority_class_name: self.priority_class.clone(),
                containers: vec![Container {
                    name: self.name.clone(),
                    image: Some(self.image.clone()),
                    ..Container::default()
                }],
                // No NoExecute taint ever moves a static pod.
                tolerations: Some(vec![Toleration {
                    operator: Some("Exists".to_owned()),
                    effect: Some("NoExecute".to_owned()),
                    ..Toleration::default()
                }]),
                ..PodSpec::default()
            }),
            status: None,
        }
    }

    fn hash_on(&self, node: &str) -> String {
        let half = |salt: u8| {
            let mut hasher = DefaultHasher::new();
            (salt, self, node).hash(&mut hasher);
            hasher.finish()
        };
        format!("{:016x}{:016x}", half(0), half(1))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mirror_pod_carries_the_marks_by_which_others_know_it() {
        let seen = "2026-01-01T12:00:00Z".parse().unwrap();
        let mirror = StaticPod::new("kube-system", "proxy").mirror("n1", "uid-1", seen);
        let annotations = mirror.metadata.annotations.unwrap();
        assert_eq!(annotations[MIRROR_ANNOTATION], annotations["kubernetes.io/config.hash"]);
        assert_eq!(annotations[MIRROR_ANNOTATION].len(), 32);
        assert_eq!(annotations["kubernetes.io/config.source"], "file");
        assert_eq!(annotations["kubernetes.io/config.seen"], "2026-01-01T12:00:00Z");
        assert_eq!(mirror.metadata.name.as_deref(), Some("proxy-n1"));
        let owner = &mirror.metadata.owner_references.unwrap()[0];
        assert_eq!((owner.kind.as_str(), owner.controller), ("Node", Some(true)));
        let spec = mirror.spec.unwrap();
        assert_eq!(spec.node_name.as_deref(), Some("n1"));
        let toleration = &spec.tolerations.unwrap()[0];
        assert_eq!(toleration.key, None);
        assert_eq!(toleration.toleration_seconds, None);
        assert_eq!(toleration.operator.as_deref(), Some("Exists"));
    }

    #[test]
    fn each_node_and_each_manifest_has_its_own_hash() {
        let pod = StaticPod::new("kube-system", "proxy");
        assert_eq!(pod.hash_on("n1"), pod.clone().hash_on("n1"));
        assert_ne!(pod.hash_on("n1"), pod.hash_on("n2"));
        assert_ne!(pod.hash_on("n1"), pod.clone().image("other").hash_on("n1"));
    }
}
