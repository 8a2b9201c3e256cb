//! Parses paths.

use crate::sim::embedded::resource::Resource;

/// A resource as it is seen under a path: events are served under two groups.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct View {
    pub(super) resource: Resource,
    /// Events in the form of `events.k8s.io`.
    pub(super) new_events: bool,
}

/// A path of the API.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Route {
    Health,
    Version,
    /// `/api`.
    CoreVersions,
    /// `/apis`.
    Groups,
    /// `/apis/<group>`.
    Group(String),
    /// `/api/v1` and `/apis/<group>/v1`; the core group is the empty text.
    Resources(String),
    OpenApi,
    /// `selfsubjectaccessreviews`.
    AccessReview,
    /// Objects of a resource, all of them if there is no namespace.
    Collection {
        view: View,
        namespace: Option<String>,
    },
    /// An object or, if there is a subresource, that.
    Object {
        view: View,
        namespace: String,
        name: String,
        subresource: String,
    },
}

pub(super) const EVENTS_GROUP: &str = "events.k8s.io";

impl View {
    fn find(group: &str, plural: &str) -> Option<Self> {
        let new_events = group == EVENTS_GROUP && plural == "events";
        let resource = if new_events { Resource::Events } else { Resource::find(group, plural)? };
        Some(Self { resource, new_events })
    }

    /// `apiVersion` of the objects under this path.
    pub(super) fn api_version(self) -> String {
        if self.new_events { format!("{EVENTS_GROUP}/v1") } else { self.resource.api_version() }
    }
}

impl Route {
    /// The route of a path, if it is one of the API.
    pub(super) fn parse(path: &str) -> Option<Self> {
        let parts: Vec<&str> = path.split('/').filter(|part| !part.is_empty()).collect();
        match parts.as_slice() {
            ["healthz" | "livez" | "readyz", ..] => Some(Self::Health),
            ["version"] => Some(Self::Version),
            ["openapi", ..] => Some(Self::OpenApi),
            ["api"] => Some(Self::CoreVersions),
            ["apis"] => Some(Self::Groups),
            ["apis", group] => Some(Self::Group((*group).to_owned())),
            ["api", "v1", rest @ ..] => Self::in_group("", rest),
            ["apis", group, "v1", rest @ ..] => Self::in_group(group, rest),
            _ => None,
        }
    }

    fn in_group(group: &str, rest: &[&str]) -> Option<Self> {
        let object = |plural, namespace: &str, name: &str, subresource: &str| {
            let view = View::find(group, plural)?;
            let is_placed = view.resource.spec().namespaced != namespace.is_empty();
            is_placed.then(|| Self::Object {
                view,
                namespace: namespace.to_owned(),
                name: name.to_owned(),
                subresource: subresource.to_owned(),
            })
        };
        match rest {
            [] => Some(Self::Resources(group.to_owned())),
            ["selfsubjectaccessreviews"] if group == "authorization.k8s.io" => {
                Some(Self::AccessReview)
            }
            ["namespaces", name] => object("namespaces", "", name, ""),
            ["namespaces", name, sub @ ("status" | "finalize")] => {
                object("namespaces", "", name, sub)
            }
            ["namespaces", namespace, plural] => Some(Self::Collection {
                view: View::find(group, plural).filter(|v| v.resource.spec().namespaced)?,
                namespace: Some((*namespace).to_owned()),
            }),
            ["namespaces", namespace, plural, name] => object(plural, namespace, name, ""),
            ["namespaces", namespace, plural, name, sub] => object(plural, namespace, name, sub),
            [plural] => {
                Some(Self::Collection { view: View::find(group, plural)?, namespace: None })
            }
            [plural, name] => object(plural, "", name, ""),
            [plural, name, sub] => object(plural, "", name, sub),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shown(path: &str) -> String {
        match Route::parse(path) {
            None => "nothing".to_owned(),
            Some(Route::Collection { view, namespace }) => {
                format!("{:?} in {}", view.resource, namespace.as_deref().unwrap_or("all"))
            }
            Some(Route::Object { view, namespace, name, subresource }) => {
                format!("{:?} {namespace}/{name}/{subresource}", view.resource)
            }
            Some(other) => format!("{other:?}"),
        }
    }

    #[test]
    fn paths_are_understood() {
        for (path, wanted) in [
            ("/api/v1/nodes", "Nodes in all"),
            ("/api/v1/nodes/n1", "Nodes /n1/"),
            ("/api/v1/nodes/n1/status", "Nodes /n1/status"),
            ("/api/v1/pods", "Pods in all"),
            ("/api/v1/namespaces/x/pods", "Pods in x"),
            ("/api/v1/namespaces/x/pods/a/eviction", "Pods x/a/eviction"),
            ("/api/v1/namespaces", "Namespaces in all"),
            ("/api/v1/namespaces/x", "Namespaces /x/"),
            ("/api/v1/namespaces/x/status", "Namespaces /x/status"),
            ("/apis/policy/v1/namespaces/x/poddisruptionbudgets/b", "PodDisruptionBudgets x/b/"),
            ("/apis/events.k8s.io/v1/namespaces/x/events", "Events in x"),
            ("/apis/apps", "Group(\"apps\")"),
            ("/apis/apps/v1", "Resources(\"apps\")"),
            ("/readyz", "Health"),
        ] {
            assert_eq!(shown(path), wanted, "{path}");
        }
    }

    #[test]
    fn other_paths_are_not() {
        for path in [
            "/",
            "/api/v2/nodes",
            "/api/v1/secrets",
            "/api/v1/pods/a",
            "/api/v1/namespaces/x/nodes",
            "/api/v1/namespaces/x/nodes/n1",
            "/apis/apps/v1/pods",
            "/apis/apps/v1beta1/deployments",
            "/api/v1/namespaces/x/pods/a/b/c",
        ] {
            assert_eq!(shown(path), "nothing", "{path}");
        }
    }
}
