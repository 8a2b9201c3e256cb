//! Against the embedded API server, which answers as kube-apiserver does.

use std::convert::Infallible;

use http::Response;
use jiff::SignedDuration;
use kube::Client;
use kube::client::Body;
use prometheus::Registry;
use tower::service_fn;

use super::*;
use crate::clock::Clock;
use crate::cluster::Metrics;
use crate::model::build::noon;
use crate::model::{Labels, Uid};
use crate::sim::embedded::{Embedded, Options, Resource};

struct Bench {
    cluster: Embedded,
    api: Api,
}

fn bench() -> Bench {
    let cluster = Embedded::new(Clock::starting_at(noon()), Options::default());
    let metrics = Metrics::register(&Registry::new()).unwrap();
    let api = Api::new(cluster.client(), metrics);
    Bench { cluster, api }
}

impl Bench {
    fn put(&self, resource: Resource, object: Value) {
        self.cluster.store().insert(resource, object).unwrap();
    }

    /// A running, ready pod on `n1` with the label `app`.
    fn pod(&self, name: &str) -> PodRef {
        self.put(
            Resource::Pods,
            json!({
                "metadata": {"name": name, "namespace": "default", "labels": {"app": "web"}},
                "spec": {"nodeName": "n1", "terminationGracePeriodSeconds": 30, "containers": [{}]},
                "status": {
                    "phase": "Running", "conditions": [{"type": "Ready", "status": "True"}],
                },
            }),
        );
        self.stored(name)
    }

    fn stored(&self, name: &str) -> PodRef {
        let pod = self.cluster.store().get(Resource::Pods, "default", name).unwrap();
        PodRef {
            uid: pod["metadata"]["uid"].as_str().unwrap().parse().unwrap(),
            namespace: "default".into(),
            name: name.into(),
            node: "n1".into(),
        }
    }

    fn budget(&self, name: &str, least: i32, status: &Value) {
        self.put(
            Resource::PodDisruptionBudgets,
            json!({
                "metadata": {"name": name, "namespace": "default"},
                "spec": {"minAvailable": least, "selector": {"matchLabels": {"app": "web"}}},
                "status": status,
            }),
        );
    }

    async fn refusal(&self, pod: &PodRef) -> Answer {
        match self.api.evict_pod(pod, None).await {
            Err(RequestError::Status(answer)) => answer,
            other => panic!("{other:?}"),
        }
    }
}

/// A budget's status: as of its newest version, with so many disruptions left.
fn allowing(allowed: i32) -> Value {
    json!({
        "observedGeneration": 1, "disruptionsAllowed": allowed, "currentHealthy": 2,
        "desiredHealthy": 2, "expectedPods": 3,
    })
}

/// An API that gets this answer to everything.
fn answering(code: u16, answer: &'static str) -> Api {
    let service = service_fn(move |_: http::Request<Body>| async move {
        let response =
            Response::builder().status(code).body(Body::from(answer.as_bytes().to_vec()));
        Ok::<_, Infallible>(response.unwrap())
    });
    Api::new(Client::new(service, "default"), Metrics::register(&Registry::new()).unwrap())
}

#[tokio::test]
async fn a_pod_comes_with_all_that_a_drain_asks_for() {
    let bench = bench();
    bench.pod("plain");
    bench.put(
        Resource::Pods,
        json!({
            "metadata": {
                "name": "full", "namespace": "default",
                "labels": {"app": "db", "tier": "1"},
                "annotations": {"kubernetes.io/config.mirror": "x", "a": "b"},
                "ownerReferences": [
                    {"apiVersion": "v1", "kind": "Other", "name": "no", "uid": "u0"},
                    {"apiVersion": "apps/v1", "kind": "StatefulSet", "name": "db", "uid": "u1",
                     "controller": true},
                ],
            },
            "spec": {
                "nodeName": "n1", "priority": 7, "terminationGracePeriodSeconds": 90,
                "containers": [{}],
                "volumes": [
                    {"name": "tmp", "emptyDir": {}},
                    {"name": "host", "hostPath": {"path": "/"}},
                    {"name": "conf", "configMap": {"name": "c"}},
                ],
            },
            "status": {"phase": "Succeeded", "conditions": [{"type": "Ready", "status": "False"}]},
        }),
    );
    bench.put(
        Resource::Pods,
        json!({"metadata": {"name": "other", "namespace": "default"},
               "spec": {"nodeName": "n2", "containers": [{}]}}),
    );
    let pods = bench.api.list_pods_on(&"n1".into()).await.unwrap();
    let [full, plain] = pods.as_slice() else { panic!("{pods:?}") };

    assert_eq!(plain.reference, bench.stored("plain"));
    assert_eq!((plain.phase, plain.ready, plain.mirror), (Phase::Running, true, false));
    assert_eq!((plain.terminating, &plain.controller, plain.priority), (None, &None, 0));
    assert_eq!(plain.grace, Duration::from_secs(30));
    assert!(plain.volumes.is_empty());

    assert_eq!((full.phase, full.ready, full.mirror), (Phase::Finished, false, true));
    assert_eq!(full.labels, [("app", "db"), ("tier", "1")].into_iter().collect::<Labels>());
    assert_eq!(full.annotations.get("a"), Some("b"));
    let owner = full.controller.as_ref().unwrap();
    assert_eq!((&*owner.kind, owner.group(), &*owner.uid), ("StatefulSet", "apps", "u1"));
    assert_eq!((full.priority, full.grace), (7, Duration::from_secs(90)));
    let volumes: Vec<_> = full.volumes.iter().map(|v| (&*v.name, v.kind)).collect();
    let expected = [("tmp", LocalVolumeKind::EmptyDir), ("host", LocalVolumeKind::HostPath)];
    assert_eq!(volumes, expected);
    assert!(bench.api.list_pods_on(&"n3".into()).await.unwrap().is_empty());
}

#[tokio::test]
async fn an_evicted_pod_is_seen_to_be_going_until_its_grace_is_over() {
    let bench = bench();
    let pod = bench.pod("a");
    bench.api.evict_pod(&pod, Some(7)).await.unwrap();
    let pods = bench.api.list_pods_on(&"n1".into()).await.unwrap();
    let expected = noon() + SignedDuration::from_secs(7);
    let going = pods[0].terminating.unwrap();
    assert!(going.duration_since(expected).abs() < SignedDuration::from_secs(2), "{going}");

    let pod = bench.pod("b");
    bench.api.evict_pod(&pod, None).await.unwrap();
    let b = bench.cluster.store().get(Resource::Pods, "default", "b").unwrap();
    assert_eq!(b["metadata"]["deletionGracePeriodSeconds"], 30, "its own");
    let evicted = b["status"]["conditions"].as_array().unwrap();
    assert!(evicted.iter().any(|c| c["reason"] == "EvictionByEvictionAPI"), "{evicted:?}");
}

#[tokio::test]
async fn a_list_that_cannot_be_read_is_an_error_and_no_empty_node() {
    for answer in [
        r#"{"kind":"PodList","items":[{"metadata":{"name":"a","namespace":"b","uid":"x"},"spec":{}}]}"#,
        r#"{"kind":"PodList","items":[{"metadata":{"name":"a"},"spec":{}}]}"#,
        r#"{"kind":"Status","items":[]}"#,
        "{}",
        "<html>sign in</html>",
    ] {
        let error = answering(200, answer).list_pods_on(&"n1".into()).await;
        assert!(matches!(error, Err(RequestError::Body(_))), "{answer}: {error:?}");
    }
    let error = answering(500, "{}").list_pods_on(&"n1".into()).await;
    assert!(matches!(error, Err(RequestError::Status(_))));
}

#[tokio::test]
async fn budgets_come_with_what_they_select_and_demand() {
    let bench = bench();
    let namespace = "shop";
    let specs = [
        json!({"maxUnavailable": "25%", "unhealthyPodEvictionPolicy": "AlwaysAllow",
               "selector": {"matchLabels": {"a": "b"}, "matchExpressions": [
                   {"key": "k", "operator": "NotIn", "values": ["x"]},
                   {"key": "l", "operator": "DoesNotExist"}]}}),
        json!({"minAvailable": 2, "selector": {}}),
        json!({"minAvailable": 2}),
        json!({"minAvailable": "x"}),
    ];
    for (number, spec) in specs.iter().enumerate() {
        let name = format!("b{number}");
        let meta = json!({"name": name, "namespace": namespace});
        bench.put(
            Resource::PodDisruptionBudgets,
            json!({"metadata": meta, "spec": spec, "status": allowing(1)}),
        );
    }
    let budgets = bench.api.list_budgets().await.unwrap();
    let of = |key: &str, test| Requirement { key: key.into(), test };
    let all = vec![
        of("a", Test::In(vec!["b".into()])),
        of("k", Test::NotIn(vec!["x".into()])),
        of("l", Test::Absent),
    ];
    assert_eq!(budgets.len(), 4);
    assert_eq!(budgets[0].selector, Selector::All(all));
    assert_eq!(budgets[0].demand, Some(Demand::MaxUnavailable(Amount::Percent(25))));
    assert!(budgets[0].lets_unready_go && !budgets[1].lets_unready_go);
    assert_eq!((&*budgets[0].namespace, &*budgets[0].name), ("shop", "b0"));
    assert_eq!(budgets[1].selector, Selector::All(Vec::new()));
    assert_eq!(budgets[1].demand, Some(Demand::MinAvailable(Amount::Count(2))));
    assert_eq!(budgets[2].selector, Selector::Nothing);
    assert_eq!(budgets[3].demand, None);
    let b = &budgets[0];
    assert_eq!((b.healthy, b.desired, b.expected, b.allowed, b.observed), (2, 2, 3, 1, true));
}

#[tokio::test]
async fn what_a_tenant_has_in_its_budget_hides_no_budget_of_others() {
    // Anybody who may write a budget may say when someone changed it. This is a time of the API, and
    // later than what is a time here.
    let api = answering(
        200,
        r#"{"kind":"PodDisruptionBudgetList","metadata":{},"items":[
            {"metadata":{"name":"odd","namespace":"a-tenant","managedFields":[
                {"manager":"m","operation":"Update","time":"9999-12-31T23:59:59Z"}]},"spec":{}},
            {"metadata":{"name":"web","namespace":"shop"},"spec":{"minAvailable":1,"selector":{}}}]}"#,
    );
    let budgets = api.list_budgets().await.unwrap();
    let names: Vec<_> = budgets.iter().map(|budget| &*budget.name).collect();
    assert_eq!(names, ["odd", "web"]);
}

#[test]
fn a_selector_that_is_longer_than_any_is_not_kept() {
    let values = (0..100_000).map(|number| number.to_string()).collect();
    let long = LabelSelectorRequirement {
        key: "k".to_owned(),
        operator: "In".to_owned(),
        values: Some(values),
    };
    let whole = LabelSelector { match_expressions: Some(vec![long]), match_labels: None };
    assert_eq!(selector(whole), Selector::Nothing);
}

/// An API with so many pods, of a MiB each, on one node; and how many bytes it has sent at most.
fn huge_pods(count: usize) -> Api {
    let service = service_fn(move |request: http::Request<Body>| async move {
        let query = request.uri().query().unwrap_or_default();
        let number = |name: &str| {
            let found = query.split('&').find_map(|part| part.strip_prefix(name));
            found.and_then(|text| text.parse().ok())
        };
        let begin: usize = number("continue=").unwrap_or(0);
        let end = number("limit=").map_or(count, |limit: usize| count.min(begin + limit));
        let pad = "x".repeat(1 << 20);
        let pod = |number| {
            let uid = Uid(number as u128);
            format!(
                r#"{{"metadata":{{"name":"p{number}","namespace":"t","uid":"{uid}"}},
                "spec":{{"containers":[{{"args":["{pad}"]}}]}},"status":{{}}}}"#
            )
        };
        let items: Vec<_> = (begin..end).map(pod).collect();
        let next = if end < count { end.to_string() } else { String::new() };
        let body = format!(
            r#"{{"kind":"PodList","metadata":{{"continue":"{next}"}},"items":[{}]}}"#,
            items.join(",")
        );
        Ok::<_, Infallible>(Response::new(Body::from(body.into_bytes())))
    });
    Api::new(Client::new(service, "default"), Metrics::register(&Registry::new()).unwrap())
}

#[tokio::test]
async fn pods_that_are_too_long_for_one_answer_are_read_in_pages_and_none_is_left_out() {
    let pods = huge_pods(40).list_pods_on(&"n1".into()).await.unwrap();
    let uids: Vec<_> = pods.iter().map(|pod| pod.reference.uid.0).collect();
    assert_eq!(uids, (0..40).collect::<Vec<_>>());
}

#[test]
fn of_what_a_tenant_puts_into_a_pod_no_more_is_kept_than_anybody_needs() {
    let each = |element: &dyn Fn(usize) -> String| {
        let all: Vec<_> = (0..20_000).map(element).collect();
        all.join(",")
    };
    let texts = each(&|n| format!(r#""{n}":"""#));
    let owners = each(&|n| format!(r#"{{"apiVersion":"v1","kind":"K","name":"{n}","uid":"u"}}"#));
    let volumes = each(&|n| format!(r#"{{"name":"{n}","emptyDir":{{}}}}"#));
    let conditions = each(&|n| format!(r#"{{"type":"{n}","status":"True"}}"#));
    let long = "é".repeat(1 << 20);
    let text = format!(
        r#"{{"metadata":{{"name":"a","namespace":"t","uid":"{}","labels":{{{texts}}},
            "annotations":{{"long":"{long}",{texts}}},"ownerReferences":[{owners},
            {{"apiVersion":"v1","kind":"K","name":"{long}","uid":"last","controller":true}}]}},
        "spec":{{"volumes":[{volumes}]}},
        "status":{{"conditions":[{conditions},{{"type":"Ready","status":"True"}}]}}}}"#,
        Uid(7)
    );
    let pod: PodObject = serde_json::from_str(&text).unwrap();
    let pod = pod.facts(&"n1".into()).unwrap();
    assert!(pod.labels.iter().count() <= bounded::MOST);
    assert!(pod.annotations.iter().count() <= bounded::MOST);
    assert!(pod.annotations.get("long").is_some_and(|value| value.len() <= 1 << 10));
    assert_eq!(pod.volumes.len(), bounded::MOST);
    let owner = pod.controller.unwrap();
    assert_eq!((&*owner.uid, owner.name.len()), ("last", 1 << 10));
    assert!(pod.ready, "what is needed is found, wherever it is");
}

#[test]
fn a_selector_that_cannot_be_read_selects_nothing() {
    for (operator, values) in [("Near", vec![]), ("In", vec![]), ("Exists", vec!["x".to_owned()])] {
        let broken = LabelSelectorRequirement {
            key: "k".to_owned(),
            operator: operator.to_owned(),
            values: Some(values),
        };
        let whole = LabelSelector { match_expressions: Some(vec![broken]), match_labels: None };
        assert_eq!(selector(whole), Selector::Nothing, "{operator}");
    }
}

#[tokio::test]
async fn an_owner_exists_if_it_is_the_same_one() {
    let bench = bench();
    for (resource, name) in [(Resource::DaemonSets, "agent"), (Resource::Deployments, "web")] {
        let labels = json!({"app": name});
        bench.put(
            resource,
            json!({
                "metadata": {"name": name, "namespace": "default"},
                "spec": {"selector": {"matchLabels": labels},
                         "template": {"metadata": {"labels": labels}}},
            }),
        );
    }
    let owner = |api_version: &str, kind: &str, name: &str, uid: &str| Owner {
        api_version: api_version.into(),
        kind: kind.into(),
        name: name.into(),
        uid: uid.into(),
    };
    let uid = |resource, name| {
        let object = bench.cluster.store().get(resource, "default", name).unwrap();
        object["metadata"]["uid"].as_str().unwrap().to_owned()
    };
    let agent = uid(Resource::DaemonSets, "agent");
    let web = uid(Resource::Deployments, "web");
    let cases = [
        (owner("apps/v1", "DaemonSet", "agent", &agent), true),
        (owner("apps/v1", "DaemonSet", "agent", "another"), false),
        (owner("apps/v1", "DaemonSet", "gone", &agent), false),
        // Its name in paths is looked up.
        (owner("apps/v1", "Deployment", "web", &web), true),
        (owner("v1", "ReplicationController", "gone", &agent), false),
        // A version that the server does not have makes no other object of it.
        (owner("apps/v9", "DaemonSet", "agent", &agent), true),
        (owner("extensions/v1beta1", "DaemonSet", "gone", &agent), false),
    ];
    for (owner, exists) in cases {
        assert_eq!(bench.api.owner_exists("default", &owner).await, Ok(exists), "{owner:?}");
    }
    assert_eq!(
        bench.api.owner_exists("shop", &owner("apps/v1", "DaemonSet", "agent", &agent)).await,
        Ok(false)
    );
    for unknown in [
        owner("apps/v1", "Rollout", "a", "u"),
        owner("no.such/v1", "Rollout", "a", "u"),
        owner("v1", "Node", "n1", "u"),
    ] {
        let error = bench.api.owner_exists("default", &unknown).await;
        assert!(error.is_err(), "{unknown:?}: {error:?}");
    }
}

#[tokio::test]
async fn a_budget_that_refuses_is_told_from_an_overloaded_server() {
    let bench = bench();
    let pod = bench.pod("a");
    bench.budget("web", 2, &allowing(0));
    let answer = bench.refusal(&pod).await;
    assert_eq!((answer.code, answer.retry_after), (429, None));
    let Some(BudgetRefusal::UsedUp { budget, message }) = answer.by_budget() else {
        panic!("{answer:?}")
    };
    assert_eq!(budget.as_deref(), Some("web"));
    assert!(message.contains("needs 2 healthy pods and has 2 currently"), "{message}");

    let overloaded = answering(
        429,
        r#"{"reason":"TooManyRequests","message":"slow down",
        "details":{"retryAfterSeconds":3}}"#,
    );
    let Err(RequestError::Status(answer)) = overloaded.evict_pod(&pod, None).await else {
        panic!()
    };
    assert_eq!(answer.by_budget(), None);
    assert_eq!(answer.retry_after, Some(Duration::from_secs(3)), "from the body as well");
}

#[tokio::test]
async fn a_budget_whose_newest_version_is_not_counted_yet_says_when_to_come_again() {
    let bench = bench();
    let pod = bench.pod("a");
    bench.budget("web", 2, &json!({"observedGeneration": 0, "disruptionsAllowed": 5}));
    let answer = bench.refusal(&pod).await;
    assert_eq!(answer.retry_after, Some(Duration::from_secs(10)));
    let refusal = answer.by_budget();
    assert!(
        matches!(&refusal, Some(BudgetRefusal::UsedUp { budget: Some(b), .. }) if b == "web"),
        "{refusal:?}"
    );
}

#[tokio::test]
async fn two_budgets_are_told_from_a_server_that_failed_and_can_be_named() {
    let bench = bench();
    let pod = bench.pod("a");
    bench.budget("y", 1, &allowing(1));
    bench.budget("x", 1, &allowing(1));
    let answer = bench.refusal(&pod).await;
    assert_eq!((answer.code, answer.by_budget()), (500, Some(BudgetRefusal::Several)));
    let names = bench.api.budgets_over(&pod).await.unwrap();
    assert_eq!(names, [Arc::from("x"), Arc::from("y")]);
    let gone = PodRef { uid: Uid(1), ..pod.clone() };
    assert!(bench.api.budgets_over(&gone).await.unwrap().is_empty());

    let broken = answering(500, r#"{"reason":"InternalError","message":"etcd"}"#);
    let Err(RequestError::Status(answer)) = broken.evict_pod(&pod, None).await else { panic!() };
    assert_eq!(answer.by_budget(), None);
}

#[tokio::test]
async fn another_pod_of_the_name_is_neither_evicted_nor_deleted() {
    let bench = bench();
    let pod = PodRef { uid: Uid(1), ..bench.pod("a") };
    assert_eq!(bench.refusal(&pod).await.code, 409);
    let error = bench.api.delete_pod_within(&pod, Some(1)).await;
    assert!(matches!(&error, Err(RequestError::Status(a)) if a.code == 409), "{error:?}");
    let absent = PodRef { name: "b".into(), ..pod };
    assert!(bench.refusal(&absent).await.is_not_found());
    assert_eq!(bench.api.list_pods_on(&"n1".into()).await.unwrap()[0].terminating, None);
}

#[tokio::test]
async fn a_deletion_asks_no_budget_and_takes_the_grace_that_it_is_given() {
    let bench = bench();
    let pod = bench.pod("a");
    bench.budget("web", 2, &allowing(0));
    bench.api.delete_pod_within(&pod, Some(7)).await.unwrap();
    let a = bench.cluster.store().get(Resource::Pods, "default", "a").unwrap();
    assert_eq!(a["metadata"]["deletionGracePeriodSeconds"], 7);
}
