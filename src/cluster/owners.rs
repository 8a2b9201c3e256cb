//! Looks up whether the owners of pods exist, with a short-lived cache.
//!
//! The pods of many nodes have the same few owners; draino asked once per pod, one after the other.

use std::sync::Arc;
use std::time::Duration;

use futures::StreamExt;

use super::Api;
use crate::model::{Existence, Owner, Owners};
use crate::shared_reads::SharedReads;

/// For how long an answer is used. What it is used for is asked again before each step of a drain.
const REMEMBERED: Duration = Duration::from_secs(10);
/// Lookups at the same time.
const AT_ONCE: usize = 4;
/// For how long all lookups together are waited for. Owners of a kind that some other server serves may
/// all be without an answer where that one hangs, and the node is not to be held up for each of them.
const TOGETHER: Duration = Duration::from_secs(15);

/// An owner, in its namespace.
type Owned = (Arc<str>, Owner);

/// Answers whether owners exist.
pub struct OwnerLookup {
    api: Api,
    reads: SharedReads<Owned, Existence>,
}

impl OwnerLookup {
    /// A lookup that knows nothing yet.
    pub fn new(api: Api) -> Self {
        Self { api, reads: SharedReads::new(REMEMBERED) }
    }

    /// What is known of these owners, each with its namespace: all of them are in the answer. An
    /// error is not remembered.
    pub async fn existence(&self, needed: &[(Arc<str>, Owner)]) -> Owners {
        let lookups: Vec<_> = needed.iter().map(|owned| self.lookup(owned)).collect();
        let found = futures::stream::iter(lookups)
            .buffer_unordered(AT_ONCE)
            .take_until(tokio::time::sleep(TOGETHER));
        let mut owners: Owners = found.collect().await;
        for owned in needed {
            let unanswered = || Existence::Unknown(format!("no answer within {TOGETHER:?}").into());
            owners.entry(owned.clone()).or_insert_with(unanswered);
        }
        owners
    }

    async fn lookup(&self, owned: &Owned) -> (Owned, Existence) {
        let (namespace, owner) = owned;
        let read = async {
            match self.api.owner_exists(namespace, owner).await {
                Ok(true) => Existence::Exists,
                Ok(false) => Existence::Absent,
                Err(error) => Existence::Unknown(error.to_string().into()),
            }
        };
        let is_error = |answer: &Existence| matches!(answer, Existence::Unknown(_));
        let existence = self.reads.get(owned, |last| !last.answer().is_some_and(is_error), read);
        (owned.clone(), existence.await)
    }
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;
    use std::sync::atomic::{AtomicUsize, Ordering};

    use http::{Request, Response};
    use kube::Client;
    use kube::client::Body;
    use prometheus::Registry;
    use tower::service_fn;

    use tokio::time::Instant;

    use super::*;
    use crate::cluster::Metrics;
    use crate::model::build::owner;

    /// A lookup at a server that knows the `DaemonSet` `agent`, refuses `secret`, and counts.
    fn lookup(asked: &Arc<AtomicUsize>) -> OwnerLookup {
        let asked = Arc::clone(asked);
        let service = service_fn(move |request: Request<Body>| {
            asked.fetch_add(1, Ordering::Relaxed);
            let uid = owner("", "", "agent").uid;
            let (code, body) = match request.uri().path().rsplit('/').next().unwrap() {
                "agent" => (200, format!(r#"{{"kind":"X","metadata":{{"uid":"{uid}"}}}}"#)),
                "secret" => (403, r#"{"reason":"Forbidden","message":"no"}"#.to_owned()),
                _ => (404, r#"{"reason":"NotFound"}"#.to_owned()),
            };
            let response = Response::builder().status(code).body(Body::from(body.into_bytes()));
            async move { Ok::<_, Infallible>(response.unwrap()) }
        });
        let metrics = Metrics::register(&Registry::new()).unwrap();
        OwnerLookup::new(Api::new(Client::new(service, "default"), metrics))
    }

    #[tokio::test(start_paused = true)]
    async fn owners_that_are_served_by_one_that_hangs_hold_nobody_up_for_long() {
        let service = service_fn(|request: Request<Body>| async move {
            if request.uri().path().ends_with("/agent") {
                let uid = owner("", "", "agent").uid;
                let body = format!(r#"{{"kind":"X","metadata":{{"uid":"{uid}"}}}}"#);
                return Ok::<_, Infallible>(Response::new(Body::from(body.into_bytes())));
            }
            std::future::pending().await
        });
        let metrics = Metrics::register(&Registry::new()).unwrap();
        let lookup = OwnerLookup::new(Api::new(Client::new(service, "default"), metrics));
        let names: Vec<_> = (0..40).map(|number| format!("hung-{number}")).collect();
        let mut names: Vec<_> = names.iter().map(String::as_str).collect();
        names.insert(0, "agent");
        let needed = needing(&names);
        let begin = Instant::now();
        let owners = lookup.existence(&needed).await;
        assert!(begin.elapsed() < Duration::from_secs(16), "{:?}", begin.elapsed());
        assert_eq!(owners[&needed[0]], Existence::Exists);
        let unknown = |owned| matches!(owners[owned], Existence::Unknown(_));
        assert!(needed[1..].iter().all(unknown));
    }

    fn needing(names: &[&str]) -> Vec<(Arc<str>, Owner)> {
        let needed = names.iter().map(|name| owner("apps/v1", "DaemonSet", name));
        needed.map(|owner| ("default".into(), owner)).collect()
    }

    #[tokio::test(start_paused = true)]
    async fn who_names_the_uid_of_anothers_owner_changes_nothing_of_what_is_known_of_that() {
        let asked = Arc::default();
        let lookup = lookup(&asked);
        let agent = owner("apps/v1", "DaemonSet", "agent");
        let lie = Owner { name: "gone".into(), ..agent.clone() };
        let [lie, agent] = [("a-tenant".into(), lie), ("kube-system".into(), agent)];
        assert_eq!(lookup.existence(std::slice::from_ref(&lie)).await[&lie], Existence::Absent);
        let owners = lookup.existence(&[lie.clone(), agent.clone()]).await;
        assert_eq!((&owners[&lie], &owners[&agent]), (&Existence::Absent, &Existence::Exists));
    }

    #[tokio::test(start_paused = true)]
    async fn each_owner_is_asked_for_once_in_ten_seconds_and_errors_anew() {
        let asked = Arc::default();
        let lookup = lookup(&asked);
        let needed = needing(&["agent", "gone", "secret"]);
        let owners = lookup.existence(&needed).await;
        assert_eq!(owners[&needed[0]], Existence::Exists);
        assert_eq!(owners[&needed[1]], Existence::Absent);
        let Existence::Unknown(error) = &owners[&needed[2]] else { panic!("{owners:?}") };
        assert!(error.contains("403"), "{error}");
        assert_eq!(asked.load(Ordering::Relaxed), 3);

        assert_eq!(lookup.existence(&needed).await, owners);
        assert_eq!(asked.load(Ordering::Relaxed), 4, "only the error is asked for again");
        tokio::time::advance(REMEMBERED).await;
        assert_eq!(lookup.existence(&needed).await, owners);
        assert_eq!(asked.load(Ordering::Relaxed), 7);
        assert!(lookup.existence(&[]).await.is_empty());
    }
}
