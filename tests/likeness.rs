//! The embedded cluster is like a real one: the same requests, the same watches, and the same stories
//! of the controller, compared with recordings that `make recordings` takes from the control plane of
//! the scenarios, and that the scenarios compare with it on every run.

#![allow(clippy::unwrap_used, reason = "a test")]
#![allow(
    clippy::cast_precision_loss,
    clippy::unused_async,
    reason = "the harness, as in the scenarios"
)]

#[path = "harness/mod.rs"]
mod harness;
#[path = "likeness/mod.rs"]
mod likeness;

use std::sync::Arc;

use anyhow::{Context as _, Result};
use http::{HeaderValue, Method};
use ostrakon::clock::Clock;
use ostrakon::sim::embedded::{Audited, Controllers, Embedded, Options, Resource, Settings};
use parking_lot::Mutex;
use serde_json::{Value, json};

use crate::harness::Arena;
use crate::harness::ostrakon::Launch;
use crate::harness::process::{Leash, write_file};
use crate::harness::request::RequestInfo;
use crate::likeness::difference::differences;
use crate::likeness::stories::{Asked, Story, World, policy};
use crate::likeness::{ANSWERS, EXPIRED, Recording, WATCHES, outcome, script, watches};

/// Header by which requests that are not ostrakon's are told.
const NOT_OSTRAKON: &str = "x-not-ostrakon";

/// Budgets are reckoned, and nothing else happens by itself.
fn cluster() -> (Embedded, Controllers) {
    let cluster = Embedded::new(Clock::system(), Options::default());
    cluster.store().insert(Resource::Nodes, json!({"metadata": {"name": "likeness-n"}})).unwrap();
    let settings = Settings {
        lifecycle: false,
        replicas: false,
        daemons: false,
        scheduler: false,
        ..Settings::default()
    };
    let controllers = Controllers::start(cluster.store(), &settings);
    (cluster, controllers)
}

fn assert_as_recorded(recording: Recording, played: &Value) {
    let differences = differences(&recording.read().unwrap(), played);
    assert!(differences.is_empty(), "\n{}", differences.join("\n"));
}

#[tokio::test]
async fn the_embedded_api_server_answers_as_a_real_one() {
    let (cluster, _controllers) = cluster();
    let played = script::play(&cluster.client(), "default", "likeness-n").await.unwrap();
    let count = played.as_array().unwrap().len();
    assert!(count > 35, "it is not whole: {count}");
    assert_as_recorded(ANSWERS, &played);
}

#[tokio::test]
async fn the_embedded_api_server_frames_watches_as_a_real_one() {
    let (cluster, _controllers) = cluster();
    let played = watches::play(&cluster.client(), "default", "likeness-n").await.unwrap();
    assert_as_recorded(WATCHES, &played);
    cluster.store().compact(Resource::Pods);
    assert_as_recorded(EXPIRED, &watches::expired(&cluster.client(), "default").await.unwrap());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn taints_come_out_as_on_a_real_control_plane() {
    hold(Story::Taints).await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_drain_comes_out_as_on_a_real_control_plane() {
    hold(Story::Drain).await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn budgets_come_out_as_on_a_real_control_plane() {
    hold(Story::Budgets).await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_taint_beside_a_drain_comes_out_as_on_a_real_control_plane() {
    hold(Story::Both).await.unwrap();
}

/// Plays a story on an embedded cluster of its own, with an ostrakon of its own.
async fn hold(story: Story) -> Result<()> {
    let cluster = Embedded::new(Clock::system(), Options::default());
    let controllers = Controllers::start(cluster.store(), &Settings::default());
    let log: Arc<Mutex<Vec<Asked>>> = Arc::default();
    let write_down = Arc::clone(&log);
    cluster.audit(move |audited| {
        if !audited.request.headers().contains_key(NOT_OSTRAKON) {
            write_down.lock().push(asked(audited));
        }
    });
    let client = cluster.client_through(|mut request| {
        request.headers_mut().insert(NOT_OSTRAKON, HeaderValue::from_static("true"));
        Some(request)
    });
    let served = cluster.serve(([127, 0, 0, 1], 0).into()).await?;
    let folder = tempfile::tempdir()?;
    let at = |name: &str| folder.path().join(name);
    write_file(&at("kubeconfig"), &served.kubeconfig())?;
    // JSON is YAML.
    write_file(&at("config.yaml"), &json!({ "drainPolicies": [policy()] }).to_string())?;
    let leash = Leash::new(folder.path())?;
    let launch = Launch::new(at("kubeconfig"));
    let launch = launch.arg(&format!("--config={}", at("config.yaml").display()));
    let mut ostrakon = launch.spawn_in(folder.path(), &leash)?;
    ostrakon.ready().await?;

    let arena = Arena::within(client.clone(), "likeness", None).await?;
    let world = World::new(arena, client, move || Ok(log.lock().clone())).await?;
    let outcome = outcome::hold(&world, story, false).await;
    let World { kubelets, .. } = world;
    kubelets.stop().await;
    ostrakon.stop().await.context("end ostrakon")?;
    served.stop().await;
    controllers.stop().await;
    outcome
}

/// A request as the story's outcome has it.
fn asked(audited: &Audited<'_>) -> Asked {
    let request = audited.request;
    let info = RequestInfo::new(request.method(), request.uri());
    // Protobuf has no bodies here: ostrakon writes JSON.
    let body = match *request.method() {
        Method::GET => Value::Null,
        _ => serde_json::from_slice(request.body()).unwrap_or_default(),
    };
    Asked {
        verb: info.verb,
        resource: info.resource,
        subresource: info.subresource,
        namespace: info.namespace,
        name: info.name,
        uri: request.uri().to_string(),
        code: audited.code,
        body,
    }
}

#[test]
fn a_difference_is_told() {
    let recorded = json!({
        "removed": ["a: at once", "b: later"],
        "nodes": {"n": {"phase": "drained"}},
        "requests": {"delete pods a: 200": 1},
    });
    assert_eq!(differences(&recorded, &recorded), Vec::<String>::new());
    let told = |place: &str, value: Value| {
        let mut played = recorded.clone();
        *played.pointer_mut(place).unwrap() = value;
        differences(&recorded, &played)
    };
    assert_eq!(
        told("/nodes/n/phase", json!("draining")),
        [r#"nodes.n.phase: "draining", recorded "drained""#]
    );
    assert_eq!(
        told("/removed", json!(["b: later"])),
        [r#"removed: missing, recorded "a: at once""#]
    );
    assert_eq!(
        told("/removed", json!(["b: later", "a: late"])),
        [
            r#"removed: missing, recorded "a: at once""#,
            r#"removed: "a: late", which was not recorded"#,
        ]
    );
    assert_eq!(told("/removed", json!(["b: later", "a: at once"])).len(), 1, "another order");
    assert_eq!(told("/removed", json!(["a: at once", "b: later", "b: later"])).len(), 1);
    assert_eq!(told("/requests", json!({})), ["requests.delete pods a: 200: missing, recorded 1"]);
    assert_eq!(told("/nodes", json!({"n": {"phase": "drained"}, "m": {}})).len(), 1);
}
