//! Which nodes are cordoned and uncordoned, also if requests fail.

use ostrakon::drain::{Cap, CapScope, Limit, Undrainable};

use super::*;

#[tokio::test(start_paused = true)]
async fn a_cordon_that_fails_is_followed_by_no_drain_and_tried_until_it_succeeds() {
    let stage = stage(|_| {});
    stage.refuse(Verb::Patch, Resource::Nodes, "", 500, None);
    stage.bad_node("n1");
    stage.pod("a", "n1");
    minutes(5).await;
    assert!(!stage.is_cordoned("n1") && stage.gone().is_empty());
    assert_eq!((stage.record("n1"), stage.mark("n1")), (None, None));
    assert!(stage.told("Cordoning failed: ") >= 1 && stage.told("Cordoned node") == 0);
    assert!(stage.counted("draino_cordoned_nodes_total", &["failed"]) >= 1);
    stage.cluster.faults().clear();
    seconds(40).await;
    assert!(stage.is_cordoned("n1") && stage.told("Cordoned node") == 1);
    assert_eq!(stage.phase("n1"), Some(DrainPhase::Drained));
}

#[tokio::test(start_paused = true)]
async fn a_node_that_cannot_be_read_is_neither_cordoned_nor_forgotten() {
    let stage = stage(|_| {});
    stage.refuse(Verb::Get, Resource::Nodes, "", 503, None);
    stage.bad_node("n1");
    minutes(2).await;
    assert!(!stage.is_cordoned("n1"));
    assert_eq!(stage.requests("patch", "nodes"), 0);
    stage.cluster.faults().clear();
    seconds(40).await;
    assert!(stage.is_cordoned("n1"));
}

#[tokio::test(start_paused = true)]
async fn an_uncordon_that_fails_is_told_of_and_tried_until_it_succeeds() {
    let stage = stage(|_| {});
    stage.bad_node("n1");
    seconds(5).await;
    assert_eq!(stage.phase("n1"), Some(DrainPhase::Drained));
    stage.report("n1", "Bad", "False");
    stage.refuse(Verb::Patch, Resource::Nodes, "", 403, None);
    minutes(7).await;
    assert!(stage.is_cordoned("n1") && stage.told("Uncordoning failed: ") >= 1);
    assert_eq!(stage.told("Uncordoned node"), 0);
    stage.cluster.faults().clear();
    seconds(40).await;
    assert!(!stage.is_cordoned("n1") && stage.told("Uncordoned node") == 1);
}

#[tokio::test(start_paused = true)]
async fn after_a_conflict_the_node_is_read_again_at_once() {
    let stage = stage(notice(60));
    stage.refuse(Verb::Patch, Resource::Nodes, "", 409, Some(3));
    stage.bad_node("n1");
    seconds(1).await;
    assert!(stage.is_cordoned("n1"));
    assert_eq!(stage.requests("patch", "nodes"), 4);
    assert_eq!(stage.told("Cordoning failed"), 0, "nobody has to know");
}

#[tokio::test(start_paused = true)]
async fn by_an_old_view_a_node_is_not_cordoned_twice() {
    let stage = stage(notice(60));
    stage.node("n1");
    seconds(1).await;
    // The view learns that the node is bad, and then nothing any more.
    let late = Rule::always(Fault::Latency(Duration::from_secs(2)));
    let late = stage.cluster.faults().add(late.on(Verb::Patch).of(Resource::Nodes));
    stage.report("n1", "Bad", "True");
    seconds(1).await;
    stage.cluster.faults().hold_watches(Resource::Nodes, true);
    stage.cluster.faults().remove(late);
    seconds(40).await;
    assert!(stage.is_cordoned("n1"));
    let version = stage.stored("n1")["metadata"]["resourceVersion"].clone();
    assert!(stage.requests("get", "nodes") >= 5, "it is looked at again by the old view");
    seconds(10).await;
    assert_eq!(stage.stored("n1")["metadata"]["resourceVersion"], version);
    assert_eq!((stage.cordons("n1"), stage.requests("patch", "nodes")), (1, 1));
    assert_eq!(stage.told("Cordoned node"), 1);
    assert_eq!(stage.counted("draino_cordoned_nodes_total", &[]), 1);
}

#[tokio::test(start_paused = true)]
async fn a_minimum_age_that_passes_in_silence_is_acted_on() {
    let mut stage = Stage::idle(vec![policy("p", &["Bad=True,10m"])]);
    stage.start();
    stage.bad_node("n1");
    minutes(9).await;
    let version = stage.stored("n1")["metadata"]["resourceVersion"].clone();
    assert!(!stage.is_cordoned("n1"));
    seconds(59).await;
    assert_eq!(stage.stored("n1")["metadata"]["resourceVersion"], version, "nobody wrote to it");
    // It went bad some time in a second that was stored without its fraction.
    seconds(3).await;
    assert!(stage.is_cordoned("n1"));
}

#[tokio::test(start_paused = true)]
async fn the_cordon_of_a_person_is_made_use_of_and_never_lifted() {
    let stage = stage(notice(10));
    stage.bad_node("n1");
    stage.set_unschedulable("n1", true);
    stage.pod("a", "n1");
    seconds(20).await;
    assert_eq!(stage.phase("n1"), Some(DrainPhase::Drained));
    assert_eq!(stage.told("Cordoned node"), 0);
    let annotations = &stage.stored("n1")["metadata"]["annotations"];
    assert!(annotations["draino.planet.com/conditions"].is_null(), "{annotations}");
    stage.report("n1", "Bad", "False");
    minutes(30).await;
    assert!(stage.is_cordoned("n1") && stage.record("n1").is_none());
    assert_eq!(stage.told("Uncordon"), 0);
}

#[tokio::test(start_paused = true)]
async fn a_condition_that_clears_before_its_time_leaves_the_pods_of_a_foreign_cordon_alone() {
    let stage = stage(notice(60));
    stage.bad_node("n1");
    stage.set_unschedulable("n1", true);
    stage.pod("a", "n1");
    seconds(30).await;
    stage.report("n1", "Bad", "False");
    minutes(30).await;
    assert!(stage.gone().is_empty() && stage.is_cordoned("n1"));
}

#[tokio::test(start_paused = true)]
async fn what_a_person_uncordons_stays_so_and_is_not_drained() {
    let stage = stage(notice(60));
    stage.bad_node("n1");
    stage.pod("a", "n1");
    seconds(30).await;
    stage.set_unschedulable("n1", false);
    minutes(30).await;
    assert!(!stage.is_cordoned("n1") && stage.gone().is_empty());
    assert_eq!(stage.phase("n1"), Some(DrainPhase::Released));
    assert_eq!((stage.cordons("n1"), stage.told("Draining node")), (1, 0));
    assert_eq!(stage.mark("n1").unwrap().0, "False");
    // Once it was good, the next time counts.
    stage.report("n1", "Bad", "False");
    minutes(6).await;
    stage.report("n1", "Bad", "True");
    minutes(2).await;
    assert_eq!((stage.cordons("n1"), stage.gone().len()), (2, 1));
}

#[tokio::test(start_paused = true)]
async fn what_the_autoscaler_uncordons_gets_its_cordon_and_its_status_taint_again() {
    let stage = stage(|policy| {
        policy.status_taint = Some("sick".into());
        policy.pace.notice = Duration::from_secs(3600);
    });
    let taints = |stage: &Stage| {
        let node = stage.stored("n1");
        let taints = node["spec"]["taints"].as_array().into_iter().flatten();
        taints.filter_map(|taint| taint["key"].as_str().map(str::to_owned)).collect::<Vec<_>>()
    };
    let ours = || json!({"key": "sick", "effect": "NoSchedule"});
    let removing = json!({"key": ostrakon::model::Autoscaler::REMOVING, "effect": "NoSchedule"});
    for others in [vec![], vec![ours()]] {
        stage.bad_node("n1");
        seconds(5).await;
        assert!(stage.is_cordoned("n1") && taints(&stage).contains(&"sick".to_owned()));
        let theirs = json!([removing.clone(), ours()]);
        stage.change_node("n1", Part::Whole, |node| node["spec"]["taints"] = theirs.clone());
        seconds(5).await;
        // It thinks better of it, and somebody has taken our taint off before, or nobody has.
        stage.change_node("n1", Part::Whole, |node| {
            node["spec"]["taints"] = others.clone().into();
            node["spec"]["unschedulable"] = false.into();
        });
        seconds(5).await;
        assert!(stage.is_cordoned("n1") && taints(&stage).contains(&"sick".to_owned()));
        assert_eq!(taints(&stage).iter().filter(|key| *key == "sick").count(), 1);
        stage.delete_node("n1");
        seconds(5).await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_second_cordon_that_fails_is_told_of_and_tried_until_it_succeeds() {
    let stage = stage(notice(3600));
    stage.bad_node("n1");
    seconds(5).await;
    stage.scale_down("n1");
    seconds(5).await;
    stage.refuse(Verb::Patch, Resource::Nodes, "", 403, None);
    stage.keep("n1");
    seconds(30).await;
    assert!(!stage.is_cordoned("n1"));
    assert_eq!((stage.told("Cordoning failed: "), stage.told("Cordoned node again")), (1, 0));
    assert_eq!(stage.counted("draino_cordoned_nodes_total", &["failed"]), 1);
    minutes(2).await;
    assert!((2..=3).contains(&stage.told("Cordoning failed: ")), "once a minute");
    stage.cluster.faults().clear();
    minutes(1).await;
    assert!(stage.is_cordoned("n1") && stage.phase("n1") == Some(DrainPhase::Scheduled));
    assert_eq!((stage.told("Cordoned node again"), stage.cordons("n1")), (1, 2));
}

#[tokio::test(start_paused = true)]
async fn one_that_waits_for_room_when_the_autoscaler_takes_it_keeps_nobody_waiting() {
    let stage = stage(|policy| {
        policy.pace.caps = vec![Cap { scope: CapScope::Cluster, limit: Limit::Count(1) }];
    });
    stage.bad_node("n1");
    seconds(5).await;
    stage.bad_node("n2");
    seconds(5).await;
    assert!(stage.is_cordoned("n1") && !stage.is_cordoned("n2"));
    stage.scale_down("n1");
    seconds(5).await;
    stage.keep("n1");
    seconds(5).await;
    assert!(stage.is_cordoned("n2") && !stage.is_cordoned("n1"), "now that one waits");
    // What the API server says of it is newer than what is known.
    stage.cluster.faults().hold_watches(Resource::Nodes, true);
    stage.scale_down("n1");
    seconds(5).await;
    stage.cluster.faults().hold_watches(Resource::Nodes, false);
    stage.delete_node("n2");
    stage.bad_node("n3");
    seconds(10).await;
    assert!(stage.is_cordoned("n3") && !stage.is_cordoned("n1"));
}

#[tokio::test(start_paused = true)]
async fn what_vanishes_from_a_node_counts_as_cleared_and_stops_a_plan() {
    let stage = stage(notice(60));
    stage.bad_node("n1");
    stage.pod("a", "n1");
    seconds(30).await;
    stage.silence("n1", "Bad");
    minutes(4).await;
    assert!(stage.is_cordoned("n1") && stage.gone().is_empty());
    minutes(2).await;
    assert!(!stage.is_cordoned("n1") && stage.gone().is_empty());
}

#[tokio::test(start_paused = true)]
async fn with_two_conditions_both_have_to_clear() {
    let mut stage = Stage::idle(vec![policy("p", &["Bad", "Worse"])]);
    stage.start();
    stage.bad_node("n1");
    stage.report("n1", "Worse", "True");
    seconds(5).await;
    stage.report("n1", "Bad", "False");
    minutes(30).await;
    assert!(stage.is_cordoned("n1"));
    stage.report("n1", "Worse", "False");
    minutes(6).await;
    assert!(!stage.is_cordoned("n1"));
}

#[tokio::test(start_paused = true)]
async fn a_node_that_cannot_be_drained_is_uncordoned_as_soon_as_it_is_good() {
    let stage = stage(|policy| {
        policy.undrainable = Undrainable::Cordon;
        policy.conditions[0].clear_after = Some(Duration::from_secs(1));
    });
    stage.node("n1");
    stage.lone_pod("lone", "n1");
    // Long enough for the longest pause between two looks at its pods, and not a multiple of it.
    for bad_for in [400, 407, 415, 423] {
        stage.report("n1", "Bad", "True");
        seconds(bad_for).await;
        assert!(stage.is_cordoned("n1"));
        stage.report("n1", "Bad", "False");
        seconds(3).await;
        assert!(!stage.is_cordoned("n1"), "after {bad_for} s");
    }
    assert!(stage.gone().is_empty());
}

#[tokio::test(start_paused = true)]
async fn a_policy_that_only_cordons_reports_no_drain() {
    let stage = stage(|policy| policy.drain = false);
    stage.bad_node("n1");
    stage.pod("a", "n1");
    minutes(60).await;
    assert!(stage.is_cordoned("n1") && stage.gone().is_empty());
    assert_eq!((stage.told("Draining node"), stage.told("Drained node")), (0, 0));
    assert_eq!(stage.told("Will drain node"), 0);
    assert_eq!(stage.counted("draino_drained_nodes_total", &[]), 0);
    assert_eq!(stage.mark("n1"), None);
}
