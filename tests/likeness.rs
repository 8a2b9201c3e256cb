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

use anyhow::{Context as _, Result};
use ostrakon::clock::Clock;
use ostrakon::sim::embedded::{Controllers, Embedded, Options, Resource, Settings};
use serde_json::{Value, json};

use crate::harness::ostrakon::Launch;
use crate::harness::process::write_file;
use crate::harness::{Bed, User};
use crate::likeness::difference::differences;
use crate::likeness::stories::{Story, World, policy};
use crate::likeness::{ANSWERS, EXPIRED, Recording, WATCHES, outcome, script, watches};

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
    let bed = Bed::embedded().await?;
    let config = bed.folder().join("config.yaml");
    // JSON is YAML.
    write_file(&config, &json!({ "apiVersion": "config.ostrakon.dev/v1alpha1", "kind": "OstrakonConfiguration", "drainPolicies": [policy()] }).to_string())?;
    let launch = Launch::new(bed.kubeconfig(User::Ostrakon)?);
    let ostrakon = launch.arg(&format!("--config={}", config.display())).start(&bed).await?;

    let world = World::new(&bed, bed.arena("likeness").await?).await?;
    let outcome = outcome::hold(&world, story, false).await;
    let World { kubelets, .. } = world;
    kubelets.stop().await;
    ostrakon.stop().await.context("end ostrakon")?;
    bed.stop().await?;
    outcome
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
