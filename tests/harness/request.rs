//! The attributes of a request (verb, resource, name), as the API server determines them.

use http::Method;
use serde::Deserialize;

/// A verb of the Kubernetes API, as in RBAC rules and audit logs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Verb {
    Get,
    List,
    Watch,
    Create,
    Update,
    Patch,
    Delete,
    DeleteCollection,
    /// Anything else, such as HEAD or a request that is not for a resource.
    #[serde(other)]
    Other,
}

impl Verb {
    /// The verbs that change something.
    pub const WRITES: [Self; 5] =
        [Self::Create, Self::Update, Self::Patch, Self::Delete, Self::DeleteCollection];

    /// The verb as it is written in RBAC rules.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Get => "get",
            Self::List => "list",
            Self::Watch => "watch",
            Self::Create => "create",
            Self::Update => "update",
            Self::Patch => "patch",
            Self::Delete => "delete",
            Self::DeleteCollection => "deletecollection",
            Self::Other => "other",
        }
    }
}

/// The subject of a request, read from its method and URL.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RequestInfo {
    pub verb: Verb,
    /// `pods`, `nodes`, …; empty for a path that is not a resource (`/readyz`).
    pub resource: String,
    /// `status`, `eviction`, …; empty for the object itself.
    pub subresource: String,
    /// Empty for cluster-wide requests.
    pub namespace: String,
    /// Empty for requests on a collection.
    pub name: String,
    pub path: String,
    /// A watch that begins with all objects: a list in all but its verb.
    pub streams_list: bool,
}

impl RequestInfo {
    /// Whether all objects are asked for, in pages or as the beginning of a watch.
    pub fn is_list(&self) -> bool {
        self.verb == Verb::List || self.streams_list
    }

    /// Reads `/api/v1/namespaces/NS/pods/NAME/status?watch=true` and its like.
    pub fn new(method: &Method, uri: &http::Uri) -> Self {
        let mut parts = uri.path().split('/').filter(|part| !part.is_empty());
        let is_resource = match parts.next() {
            Some("api") => parts.next().is_some(),
            Some("apis") => parts.next().is_some() && parts.next().is_some(),
            _ => false,
        };
        let rest: Vec<&str> = if is_resource { parts.collect() } else { Vec::new() };
        let (namespace, rest) = match rest.as_slice() {
            // `namespaces/NS` alone, and its two subresources, are about the namespace itself.
            ["namespaces", _] | ["namespaces", _, "status" | "finalize"] => ("", rest.as_slice()),
            ["namespaces", namespace, rest @ ..] => (*namespace, rest),
            rest => ("", rest),
        };
        let part = |index: usize| rest.get(index).copied().unwrap_or_default().to_owned();
        let (resource, name, subresource) = (part(0), part(1), part(2));
        let verb = verb(method, uri, !resource.is_empty(), !name.is_empty());
        let streams_list = verb == Verb::Watch && has(uri, &["sendInitialEvents=true"]);
        Self {
            verb,
            resource,
            subresource,
            namespace: namespace.to_owned(),
            name,
            path: uri.path().to_owned(),
            streams_list,
        }
    }
}

/// Whether the query has one of these parameters.
fn has(uri: &http::Uri, parameters: &[&str]) -> bool {
    uri.query().is_some_and(|query| query.split('&').any(|pair| parameters.contains(&pair)))
}

fn verb(method: &Method, uri: &http::Uri, is_resource: bool, is_named: bool) -> Verb {
    if !is_resource {
        return Verb::Other;
    }
    let wants_watch = has(uri, &["watch=true", "watch=1", "watch"]);
    match *method {
        Method::GET if wants_watch => Verb::Watch,
        Method::GET if is_named => Verb::Get,
        Method::GET => Verb::List,
        Method::POST => Verb::Create,
        Method::PUT => Verb::Update,
        Method::PATCH => Verb::Patch,
        Method::DELETE if is_named => Verb::Delete,
        Method::DELETE => Verb::DeleteCollection,
        _ => Verb::Other,
    }
}
