//! Contents that cannot be used.

use super::*;
use crate::refused::Log;

const REFUSED: &str = "the new configuration is refused";

#[tokio::test(start_paused = true)]
async fn a_broken_file_is_refused_and_told_once_and_the_rules_before_stay_in_force() {
    let (log, _logs) = Log::begin();
    let bed = Bed::new(&rule("Ignore")).await;
    let hash = bed.process.config_hash();
    assert_eq!(bed.metric("ostrakon_config_last_reload_successful", &[]), 1.0);
    let broken = "taintEviction: {rules: [{name: r, key: k, method: Ignroe}]}\n";
    for _ in 0..3 {
        assert_eq!(bed.offer(broken).await, Offered::Refused);
        bed.pass(100.0).await;
        assert_eq!(bed.metric("ostrakon_config_last_reload_successful", &[]), 0.0);
        assert_eq!(bed.metric("ostrakon_config_info", &[&hash]), 1.0);
    }
    assert_eq!(bed.told("/etc/ostrakon/config.yaml is refused"), 1);
    assert_eq!(bed.told(&format!("the configuration {hash} stays in force")), 1);
    let [line] = &log.lines(REFUSED)[..] else { panic!("{:?}", log.lines(REFUSED)) };
    assert!(line.contains("Ignroe") && line.contains(&hash), "{line}");
    bed.pod("a", json!([]));
    bed.taint();
    bed.pass(60.0).await;
    assert!(bed.has_pod("a"), "the rule before ignores it");

    // Another broken one is told as well; a file that is gone too.
    assert_eq!(bed.offer("drainPolicies: 1\n").await, Offered::Refused);
    assert_eq!(bed.process.offer(Err("No such file or directory")).await, Offered::Refused);
    assert_eq!(bed.process.offer(Err("No such file or directory")).await, Offered::Refused);
    bed.pass(1.0).await;
    assert_eq!((bed.told("is refused"), log.lines(REFUSED).len()), (3, 3));
    // The one in force again: nothing is applied, and all is well.
    let applied = log.lines("new configuration in force").len();
    assert_eq!(bed.offer(&rule("Ignore")).await, Offered::Same);
    assert_eq!(bed.metric("ostrakon_config_last_reload_successful", &[]), 1.0);
    assert_eq!(log.lines("is the one in force again").len(), 1);
    assert_eq!(log.lines("new configuration in force").len(), applied);
}

#[tokio::test(start_paused = true)]
async fn the_same_file_again_is_silent() {
    let (log, _logs) = Log::begin();
    let bed = Bed::new(&policies(&[policy("p", "")])).await;
    let (lines, events) = (log.lines("onfiguration").len(), bed.wire.events().len());
    let lists = bed.metric("ostrakon_watch_lists_total", &["nodes"]);
    for _ in 0..100 {
        assert_eq!(bed.offer(&policies(&[policy("p", "")])).await, Offered::Same);
        bed.pass(5.0).await;
    }
    assert_eq!((log.lines("onfiguration").len(), bed.wire.events().len()), (lines, events));
    assert_eq!(bed.metric("ostrakon_watch_lists_total", &["nodes"]), lists);
}

#[tokio::test(start_paused = true)]
async fn a_permission_that_is_missing_is_named_and_once_granted_the_file_is_taken_by_itself() {
    let bed = Bed::new("").await;
    bed.wire.take_right(Some("poddisruptionbudgets"));
    bed.bad();
    let new = policies(&[policy("p", "")]);
    for _ in 0..13 {
        assert_eq!(bed.offer(&new).await, Offered::Refused);
        bed.pass(5.0).await;
    }
    assert_eq!(bed.told("list poddisruptionbudgets"), 1, "{:?}", bed.wire.events());
    assert!(!bed.is_cordoned());
    // What needs no such right is taken meanwhile.
    bed.apply(&rule("Ignore")).await;
    assert_eq!(bed.offer(&new).await, Offered::Refused);
    bed.wire.take_right(None);
    assert_eq!(bed.offer(&new).await, Offered::Refused, "it is asked each minute");
    bed.pass(61.0).await;
    bed.apply(&new).await;
    bed.pass(5.0).await;
    assert!(bed.is_cordoned());
}

#[tokio::test(start_paused = true)]
async fn a_standby_that_refuses_a_file_tells_of_it_once_it_leads() {
    let other = json!({
        "metadata": {"name": "ostrakon", "namespace": "kube-system"},
        "spec": {
            "holderIdentity": "other", "leaseDurationSeconds": 15, "leaseTransitions": 1,
            "acquireTime": "2026-01-01T12:00:00.000000Z", "renewTime": "2026-01-01T12:00:00.000000Z",
        },
    });
    let bed = Bed::begin(&rule("Ignore"), Some(other));
    bed.pass(5.0).await;
    for _ in 0..2 {
        assert_eq!(bed.offer("drainPolicies: 1\n").await, Offered::Refused);
        bed.pass(1.0).await;
    }
    assert_eq!(bed.metric("ostrakon_leader", &[]), 0.0);
    assert_eq!(bed.told("is refused"), 0, "a standby sends no events");
    bed.pass(60.0).await;
    assert_eq!(bed.metric("ostrakon_leader", &[]), 1.0);
    for _ in 0..3 {
        assert_eq!(bed.offer("drainPolicies: 1\n").await, Offered::Refused);
        bed.pass(5.0).await;
    }
    assert_eq!(bed.told("/etc/ostrakon/config.yaml is refused"), 1, "{:?}", bed.wire.events());
}

#[tokio::test(start_paused = true)]
async fn only_other_policies_have_the_nodes_listed_again() {
    let bed = Bed::new(&rule("Ignore")).await;
    let lists = || bed.metric("ostrakon_watch_lists_total", &["nodes"]);
    let before = lists();
    bed.apply(&rule("Delete")).await;
    bed.pass(10.0).await;
    assert_eq!(lists(), before);
    bed.apply(&(rule("Delete") + &policies(&[policy("p", "")]))).await;
    bed.pass(10.0).await;
    assert!(lists() > before);
}

#[tokio::test(start_paused = true)]
async fn what_needs_a_restart_is_refused_with_that_word() {
    let bed = Bed::new("").await;
    assert_eq!(bed.offer("zoneLabel: rack\norphans: Uncordon\n").await, Offered::Refused);
    bed.pass(1.0).await;
    assert_eq!(bed.told("\"rack\" needs a restart"), 1, "{:?}", bed.wire.events());
}
