//! Nodes and pods that are recreated under the same name count as new objects.

use super::*;

#[tokio::test(start_paused = true)]
async fn a_healthy_node_created_anew_inherits_no_plan_and_may_go_bad_itself() {
    let stage = stage(notice(60));
    stage.bad_node("n1");
    stage.pod("a", "n1");
    seconds(30).await;
    assert_eq!(stage.phase("n1"), Some(DrainPhase::Scheduled));
    stage.delete_node("n1");
    stage.node("n1");
    minutes(10).await;
    assert!(!stage.is_cordoned("n1") && stage.gone().is_empty());
    assert_eq!((stage.record("n1"), stage.mark("n1")), (None, None));
    stage.report("n1", "Bad", "True");
    minutes(2).await;
    assert_eq!((stage.phase("n1"), stage.gone().len()), (Some(DrainPhase::Drained), 1));
    assert_eq!((stage.cordons("n1"), stage.told("Drained node")), (2, 1));
}

#[tokio::test(start_paused = true)]
async fn a_node_created_anew_without_being_seen_is_not_touched_when_the_drain_is_due() {
    let stage = stage(notice(60));
    stage.bad_node("n1");
    stage.pod("a", "n1");
    seconds(30).await;
    stage.cluster.faults().hold_watches(Resource::Nodes, true);
    stage.delete_node("n1");
    stage.node("n1");
    let version = stage.stored("n1")["metadata"]["resourceVersion"].clone();
    minutes(3).await;
    assert_eq!(stage.stored("n1")["metadata"]["resourceVersion"], version);
    assert!(stage.gone().is_empty());
}

#[tokio::test(start_paused = true)]
async fn a_write_that_is_late_does_not_hit_the_node_that_came_after() {
    for part in ["", "status"] {
        let stage = stage(notice(60));
        let late = Rule::always(Fault::Latency(Duration::from_secs(3)));
        let late = late.on(Verb::Patch).of(Resource::Nodes).at(part);
        stage.cluster.faults().add(late);
        stage.bad_node("n1");
        stage.pod("a", "n1");
        seconds(1).await;
        stage.delete_node("n1");
        stage.node("n1");
        minutes(5).await;
        assert!(!stage.is_cordoned("n1") && stage.gone().is_empty(), "{part}");
        assert_eq!((stage.record("n1"), stage.mark("n1")), (None, None), "{part}");
        assert_eq!(stage.told("Draining node"), 0, "{part}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_node_that_vanishes_during_its_drain_is_drained_with_a_cause_of_its_own() {
    let stage = stage(|_| {});
    stage.bad_node("n1");
    stage.pod("a", "n1");
    stage.budget(0);
    seconds(30).await;
    assert_eq!(stage.phase("n1"), Some(DrainPhase::Draining));
    stage.delete_node("n1");
    minutes(5).await;
    assert_eq!((stage.told("Drained node"), stage.told("Draining failed")), (1, 0));
    assert_eq!(stage.counted("ostrakon_drains_ended_total", &["node_deleted"]), 1);
    stage.let_go(1);
    minutes(5).await;
    assert!(stage.gone().is_empty(), "nobody wants it gone any more");
    assert!(stage.nothing_is_ordered());
}

#[tokio::test(start_paused = true)]
async fn a_pod_created_anew_under_its_name_is_not_followed_to_another_node() {
    for is_seen in [true, false] {
        let stage = stage(|_| {});
        stage.bad_node("n1");
        stage.node("n2");
        stage.pod("a", "n1");
        stage.budget(0);
        // It keeps the drain going: the order for the other pod is not dropped with it.
        stage.pod_with("slow", "n1", |pod| {
            pod["metadata"]["labels"] = json!({});
            pod["metadata"]["finalizers"] = json!(["example.com/wait"]);
        });
        seconds(30).await;
        assert_eq!(stage.gone(), ["slow"]);
        stage.cluster.faults().hold_watches(Resource::Pods, !is_seen);
        stage.delete_pod("a");
        stage.pod("a", "n2");
        let gone = stage.gone();
        stage.let_go(3);
        minutes(5).await;
        assert!(stage.has_pod("a"), "{is_seen}");
        assert_eq!(stage.gone(), gone, "{is_seen}");
        assert_eq!(stage.phase("n1"), Some(DrainPhase::Draining), "{is_seen}");
        assert!(!stage.is_cordoned("n2"));
    }
}
