//! Leases (coordination.k8s.io/v1), as far as an election needs them.

use std::collections::BTreeMap;
use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::MicroTime;
use serde::Deserialize;
use serde_json::{Map, Value, json};

use super::api::{Api, Call, FIELD_MANAGER, JSON, RequestError, unreadable};
use super::rewind::Asked;

/// A lease.
///
/// Whoever may write leases can have the API server store more than can be read here, such as a time of
/// the year 10000. Nobody must be kept from leading by that: a part that cannot be read is absent, and
/// what an election does not need is not read.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Lease {
    /// Its namespace.
    pub namespace: String,
    /// Its name.
    pub name: String,
    /// The stored version; none if it was not stored yet.
    pub version: Option<String>,
    /// The annotations.
    pub annotations: BTreeMap<String, String>,
    /// Who holds it; empty after a release.
    pub holder: Option<String>,
    /// How many seconds each renewal is valid.
    pub seconds: Option<u64>,
    /// When the holder got it.
    pub acquired: Option<Timestamp>,
    /// When the holder renewed it last.
    pub renewed: Option<Timestamp>,
    /// How often the holder changed.
    pub transitions: Option<u32>,
    /// What else others wrote in its metadata and its spec. It is sent back as it came.
    others: [Map<String, Value>; 2],
}

/// The parts of a stored lease that are looked at or have to be sent back. The rest, `managedFields` for
/// one, is skipped: the API server keeps it.
#[derive(Default, Deserialize)]
#[serde(default)]
struct Stored {
    metadata: Metadata,
    spec: Value,
}

#[derive(Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct Metadata {
    namespace: Value,
    name: Value,
    resource_version: Value,
    uid: Value,
    annotations: Value,
    labels: Value,
    owner_references: Value,
    finalizers: Value,
}

impl Lease {
    fn read(body: &[u8]) -> serde_json::Result<Self> {
        let Stored { metadata, mut spec } = serde_json::from_slice(body)?;
        let text = |value: Value| match value {
            Value::String(text) => Some(text),
            _ => None,
        };
        let mut take = |name| spec.as_object_mut().and_then(|spec| spec.remove(name));
        let mut time = |name| take(name)?.as_str()?.parse().ok();
        let (acquired, renewed) = (time("acquireTime"), time("renewTime"));
        let mut number = |name| take(name)?.as_u64();
        let (seconds, transitions) = (number("leaseDurationSeconds"), number("leaseTransitions"));
        let holder = take("holderIdentity").and_then(text);
        let annotations = match metadata.annotations {
            Value::Object(all) => {
                all.into_iter().filter_map(|(name, value)| Some((name, text(value)?))).collect()
            }
            _ => BTreeMap::new(),
        };
        let mut kept = Map::new();
        for (name, value, is_it) in [
            ("uid", &metadata.uid, metadata.uid.is_string()),
            ("labels", &metadata.labels, metadata.labels.is_object()),
            ("ownerReferences", &metadata.owner_references, metadata.owner_references.is_array()),
            ("finalizers", &metadata.finalizers, metadata.finalizers.is_array()),
        ] {
            if is_it {
                kept.insert(name.to_owned(), value.clone());
            }
        }
        let others = [kept, spec.as_object().cloned().unwrap_or_default()];
        Ok(Self {
            namespace: text(metadata.namespace).unwrap_or_default(),
            name: text(metadata.name).unwrap_or_default(),
            version: text(metadata.resource_version).filter(|version| !version.is_empty()),
            annotations,
            holder,
            seconds,
            acquired,
            renewed,
            transitions: transitions.map(|count| u32::try_from(count).unwrap_or(u32::MAX)),
            others,
        })
    }

    fn written(&self) -> serde_json::Result<Value> {
        let [mut metadata, mut spec] = self.others.clone();
        let text = |text: &Option<String>| text.clone().map(Value::from);
        // Both are 32 bits with a sign in the API.
        let number = |number: u64| Value::from(i32::try_from(number).unwrap_or(i32::MAX));
        let time = |time: Option<Timestamp>| {
            time.map(|time| serde_json::to_value(MicroTime(time))).transpose()
        };
        let annotations = self.annotations.iter();
        let annotations: Map<_, _> =
            annotations.map(|(name, value)| (name.clone(), Value::from(value.as_str()))).collect();
        let parts = [
            ("name", Some(Value::from(self.name.as_str()))),
            ("namespace", Some(Value::from(self.namespace.as_str()))),
            ("resourceVersion", text(&self.version)),
            ("annotations", Some(Value::Object(annotations))),
        ];
        for (name, value) in parts {
            value.and_then(|value| metadata.insert(name.to_owned(), value));
        }
        let parts = [
            ("holderIdentity", text(&self.holder)),
            ("leaseDurationSeconds", self.seconds.map(number)),
            ("leaseTransitions", self.transitions.map(|count| number(count.into()))),
            ("acquireTime", time(self.acquired)?),
            ("renewTime", time(self.renewed)?),
        ];
        for (name, value) in parts {
            value.and_then(|value| spec.insert(name.to_owned(), value));
        }
        Ok(json!({
            "apiVersion": "coordination.k8s.io/v1",
            "kind": "Lease",
            "metadata": metadata,
            "spec": spec,
        }))
    }
}

impl Api {
    /// The lease as it is stored, or `None` if there is none.
    ///
    /// # Errors
    /// See [`RequestError`].
    pub async fn lease(
        &self,
        namespace: &str,
        name: &str,
        within: Duration,
    ) -> Result<Option<Lease>, RequestError> {
        let path = format!("{}/{name}", folder(namespace));
        let call = Call::get("leases");
        let request = call.request(&path, JSON, None, &Value::Null)?;
        let asked = self.rewinds().asked();
        match self.send(request, within).await {
            Ok((_, body)) => self.seen(&body, name, asked).map(Some),
            Err(RequestError::Status(answer)) if answer.is_not_found() => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Stores a lease and returns it as it is then. One without a resourceVersion is created (409
    /// if there is one); another replaces the version that it names (409 if that is not the
    /// latest). The gate for writes does not hold it up.
    ///
    /// An answer that does not bear out what was stored is an error: whoever believes that it holds the
    /// lease writes.
    ///
    /// # Errors
    /// See [`RequestError`].
    pub async fn put_lease(&self, lease: &Lease, within: Duration) -> Result<Lease, RequestError> {
        let name = &lease.name;
        let folder = folder(&lease.namespace);
        let (call, path) = match lease.version {
            None => (Call::create_lease(), folder),
            Some(_) => (Call::update_lease(), format!("{folder}/{name}")),
        };
        let path = format!("{path}?fieldManager={FIELD_MANAGER}");
        let body = lease.written().map_err(unreadable)?;
        let request = call.request(&path, JSON, Some(JSON), &body)?;
        let asked = self.rewinds().asked();
        let (_, answer) = self.send(request, within).await?;
        let stored = self.seen(&answer, name, asked)?;
        let holder = |lease: &Lease| lease.holder.clone().unwrap_or_default();
        let (sent, answered) = (holder(lease), holder(&stored));
        if sent != answered {
            return Err(unreadable(format!(
                "the lease was stored with the holder {answered:?} instead of {sent:?}; does a webhook \
                 change it?"
            )));
        }
        Ok(stored)
    }

    /// Sets one annotation of the lease, or removes it with `None`, and returns the lease as it is then. What
    /// else is stored, the claim for one, stays as it is. Refused with 404 if there is no lease.
    ///
    /// # Errors
    /// See [`RequestError`].
    pub async fn annotate_lease(
        &self,
        namespace: &str,
        name: &str,
        annotation: &str,
        value: Option<&str>,
        within: Duration,
    ) -> Result<Lease, RequestError> {
        let path = format!("{}/{name}?fieldManager={FIELD_MANAGER}", folder(namespace));
        let body = json!({"metadata": {"annotations": {annotation: value}}});
        let kind = "application/merge-patch+json";
        let request = Call::annotate_lease().request(&path, JSON, Some(kind), &body)?;
        let asked = self.rewinds().asked();
        let (_, answer) = self.send(request, within).await?;
        self.seen(&answer, name, asked)
    }

    /// A lease that was answered. Its version only grows, unless the store goes back in time.
    fn seen(&self, body: &[u8], name: &str, asked: Asked) -> Result<Lease, RequestError> {
        let lease = Lease::read(body).map_err(unreadable)?;
        // Any object of JSON can be read as a lease that says nothing.
        let Some(version) = lease.version.as_deref().filter(|_| lease.name == name) else {
            let begin = String::from_utf8_lossy(&body[..body.len().min(120)]);
            return Err(unreadable(format!("it is no stored lease {name} but {begin:?}")));
        };
        self.rewinds().see(&format!("lease {name}"), version, asked);
        Ok(lease)
    }
}

fn folder(namespace: &str) -> String {
    format!("/apis/coordination.k8s.io/v1/namespaces/{namespace}/leases")
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;

    use http::Response;
    use kube::Client;
    use kube::client::Body;
    use prometheus::Registry;
    use tower::service_fn;

    use super::*;
    use crate::cluster::Metrics;

    const WITHIN: Duration = Duration::from_secs(1);

    /// Access to a server that answers 200 and this to everything.
    fn api(answer: &'static str) -> Api {
        let service = service_fn(move |_: http::Request<Body>| async move {
            Ok::<_, Infallible>(Response::new(Body::from(answer.as_bytes().to_vec())))
        });
        Api::new(Client::new(service, "default"), Metrics::register(&Registry::new()).unwrap())
    }

    async fn claim(answer: &'static str) -> Result<Lease, RequestError> {
        let (name, holder) = ("ostrakon".to_owned(), Some("me".to_owned()));
        let lease = Lease { name, holder, ..Lease::default() };
        api(answer).put_lease(&lease, WITHIN).await
    }

    #[tokio::test]
    async fn only_the_lease_as_it_was_stored_says_that_it_is_held() {
        let answer = r#"{"metadata":{"name":"ostrakon","resourceVersion":"7"},
                         "spec":{"holderIdentity":"me"}}"#;
        assert!(claim(answer).await.is_ok());
        for answer in [
            "{}",
            r#"{"status":"ok"}"#,
            r#"{"kind":"Lease","apiVersion":"coordination.k8s.io/v1","metadata":{}}"#,
            r#"{"metadata":{"name":"ostrakon"},"spec":{"holderIdentity":"me"}}"#,
            r#"{"metadata":{"name":"other","resourceVersion":"7"},"spec":{"holderIdentity":"me"}}"#,
            r#"{"metadata":{"name":"ostrakon","resourceVersion":"7"},"spec":{"holderIdentity":"x"}}"#,
            r#"{"metadata":{"name":"ostrakon","resourceVersion":"7"}}"#,
        ] {
            let outcome = claim(answer).await;
            assert!(matches!(outcome, Err(RequestError::Body(_))), "{answer}: {outcome:?}");
        }
    }

    #[tokio::test]
    async fn a_lease_that_says_nothing_is_no_lease_that_nobody_holds() {
        for answer in ["{}", r#"{"message":"sign in"}"#, r#"{"metadata":{"name":"ostrakon"}}"#] {
            let outcome = api(answer).lease("kube-system", "ostrakon", WITHIN).await;
            assert!(matches!(outcome, Err(RequestError::Body(_))), "{answer}: {outcome:?}");
        }
    }

    /// What is written back once this was read.
    fn rewritten(metadata: &str, spec: &str) -> Value {
        let body = format!(
            r#"{{"metadata":{{"name":"ostrakon","resourceVersion":"7"{metadata}}},"spec":{spec}}}"#
        );
        let lease = Lease::read(body.as_bytes()).unwrap();
        assert_eq!((lease.name.as_str(), lease.version.as_deref()), ("ostrakon", Some("7")));
        lease.written().unwrap()
    }

    #[test]
    fn a_part_of_a_lease_that_cannot_be_read_is_absent_and_is_not_written_back() {
        for time in [r#""9999-12-31T23:59:59.999999Z""#, r#""10000-01-01T00:00:00Z""#, "7", "{}"] {
            for field in ["renewTime", "acquireTime"] {
                let written =
                    rewritten("", &format!(r#"{{"{field}":{time},"holderIdentity":"x"}}"#));
                assert_eq!(written["spec"], json!({"holderIdentity": "x"}), "{field} {time}");
            }
        }
        for number in ["-1", "-9223372036854775809", "1e300", "1.5", r#""15""#, "[]", "true"] {
            for field in ["leaseDurationSeconds", "leaseTransitions"] {
                let written = rewritten("", &format!(r#"{{"{field}":{number}}}"#));
                assert_eq!(written["spec"], json!({}), "{field} {number}");
            }
        }
        let most = rewritten("", r#"{"leaseDurationSeconds":18446744073709551615}"#);
        assert_eq!(most["spec"]["leaseDurationSeconds"], i32::MAX);
        for spec in [r#"{"holderIdentity":7}"#, "null", "[]", "7"] {
            assert_eq!(rewritten("", spec)["spec"], json!({}), "{spec}");
        }
        let odd = r#","annotations":{"a":1,"b":"2"},"labels":[],"uid":3,"finalizers":{}"#;
        let annotations = json!({"b": "2"});
        let metadata = json!({
            "name": "ostrakon", "namespace": "", "resourceVersion": "7", "annotations": annotations,
        });
        assert_eq!(rewritten(odd, "{}")["metadata"], metadata);
    }

    #[test]
    fn what_the_fields_of_managers_say_is_not_read_however_odd() {
        let deep = format!("{}0{}", r#"{"f:a":"#.repeat(500), "}".repeat(500));
        let odd = format!(
            r#","managedFields":[{{"time":"9999-12-31T23:59:59Z","fieldsV1":{deep},"n":1e999}}]"#
        );
        assert_eq!(rewritten(&odd, "{}")["metadata"].get("managedFields"), None);
    }

    #[test]
    fn what_others_wrote_in_a_lease_is_written_back_as_it_came() {
        let stored = json!({
            "apiVersion": "coordination.k8s.io/v1", "kind": "Lease",
            "metadata": {
                "name": "ostrakon", "namespace": "kube-system", "resourceVersion": "7", "uid": "u",
                "annotations": {"a": "b"}, "labels": {"l": ""}, "finalizers": ["example.com/f"],
                "ownerReferences": [{"apiVersion": "v1", "kind": "Node", "name": "n", "uid": "v"}],
            },
            "spec": {
                "holderIdentity": "me", "leaseDurationSeconds": 15, "leaseTransitions": 3,
                "acquireTime": "2026-01-01T12:00:00.000001Z", "renewTime": "2026-01-01T12:00:05.000000Z",
                "strategy": "OldestEmulationVersion", "preferredHolder": "other",
            },
        });
        assert_eq!(Lease::read(stored.to_string().as_bytes()).unwrap().written().unwrap(), stored);
    }
}
