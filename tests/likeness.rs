//! The embedded API server answers as a real one does: the same requests, compared with recordings
//! that `make recordings` takes from the control plane of the scenarios, and that the scenarios
//! compare with it on every run.

#![allow(clippy::unwrap_used, reason = "a test")]

#[path = "likeness/script.rs"]
mod script;

use ostrakon::clock::Clock;
use ostrakon::sim::embedded::{Embedded, Options, Resource};
use serde_json::{Value, json};

#[tokio::test]
async fn the_embedded_api_server_answers_as_a_real_one() {
    let cluster = Embedded::new(Clock::system(), Options::default());
    cluster.store().insert(Resource::Nodes, json!({"metadata": {"name": "likeness-n"}})).unwrap();
    let played = script::play(&cluster.client(), "default", "likeness-n").await.unwrap();
    let recorded: Vec<Value> =
        serde_json::from_str(&std::fs::read_to_string(script::recording()).unwrap()).unwrap();
    assert!(recorded.len() > 25, "the recording is not whole: {}", recorded.len());
    let differences = script::differences(&recorded, &played);
    assert!(differences.is_empty(), "\n{}", differences.join("\n"));
}

#[test]
fn a_difference_is_told() {
    let one = [json!({"code": 404})];
    assert_eq!(script::differences(&one, &one), Vec::<String>::new());
    assert_eq!(script::differences(&one, &[json!({"code": 409})]).len(), 1);
    assert_eq!(script::differences(&one, &[]).len(), 1);
}
