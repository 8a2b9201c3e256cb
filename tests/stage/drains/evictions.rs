//! A drain from its first eviction to a node without pods, with refusals.

use ostrakon::drain::Undrainable;
use ostrakon::sim::embedded::Resource::{DaemonSets, PodDisruptionBudgets, Pods, StatefulSets};

use super::*;

#[tokio::test(start_paused = true)]
async fn a_condition_that_clears_before_the_drain_begins_stops_it() {
    let stage = stage(notice(60));
    stage.bad_node("n1");
    stage.pod("a", "n1");
    seconds(59).await;
    assert_eq!(stage.phase("n1"), Some(DrainPhase::Scheduled));
    stage.report("n1", "Bad", "False");
    minutes(30).await;
    assert!(stage.gone().is_empty());
    assert_eq!((stage.told("Draining node"), stage.told("Drain cancelled")), (0, 1));
    assert_eq!(stage.mark("n1").unwrap().0, "False");
    assert!(!stage.is_cordoned("n1"));
}

#[tokio::test(start_paused = true)]
async fn a_condition_that_clears_or_a_person_who_uncordons_stops_a_drain_under_way() {
    for by_person in [true, false] {
        let stage = stage(|_| {});
        stage.bad_node("n1");
        stage.pod("a", "n1");
        stage.pod("b", "n1");
        stage.budget(1);
        seconds(30).await;
        assert_eq!(stage.gone().len(), 1);
        if by_person {
            stage.set_unschedulable("n1", false);
        } else {
            stage.report("n1", "Bad", "False");
        }
        seconds(1).await;
        stage.let_go(1);
        minutes(30).await;
        assert_eq!(stage.gone().len(), 1, "{by_person}");
        assert!(!stage.is_cordoned("n1") && stage.nothing_is_ordered());
    }
}

#[tokio::test(start_paused = true)]
async fn a_pod_that_its_budget_holds_waits_and_is_named_once() {
    let stage = stage(|policy| policy.deadline = Some(Duration::from_secs(3600)));
    stage.bad_node("n1");
    stage.pod("a", "n1");
    stage.pod_with("free", "n1", |pod| pod["metadata"]["labels"] = json!({}));
    stage.budget(0);
    minutes(10).await;
    assert_eq!(
        (stage.gone(), stage.phase("n1")),
        (vec!["free".to_owned()], Some(DrainPhase::Draining))
    );
    assert_eq!(stage.told("Cannot evict Pod default/a"), 1);
    stage.let_go(1);
    minutes(2).await;
    assert_eq!(stage.gone(), ["free", "a"]);
    assert_eq!(stage.phase("n1"), Some(DrainPhase::Drained));
}

#[tokio::test(start_paused = true)]
async fn an_eviction_that_fails_is_tried_again_and_fails_no_drain() {
    for code in [500, 429, 403] {
        let stage = stage(|_| {});
        stage.refuse(Verb::Create, Pods, "eviction", code, Some(6));
        stage.bad_node("n1");
        stage.pod("a", "n1");
        stage.pod("b", "n1");
        minutes(5).await;
        assert_eq!(stage.phase("n1"), Some(DrainPhase::Drained), "{code}");
        assert_eq!((stage.gone().len(), stage.told("Draining failed")), (2, 0), "{code}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_pod_that_is_gone_before_its_eviction_is_no_failure() {
    let stage = stage(|_| {});
    let late = Rule::always(Fault::Latency(Duration::from_secs(2)));
    stage.cluster.faults().add(late.on(Verb::Create).of(Pods).at("eviction"));
    stage.bad_node("n1");
    stage.pod("a", "n1");
    seconds(1).await;
    stage.delete_pod("a");
    seconds(20).await;
    assert_eq!(stage.phase("n1"), Some(DrainPhase::Drained));
    assert_eq!(stage.told("Draining failed"), 0);
}

#[tokio::test(start_paused = true)]
async fn a_pod_that_is_going_already_is_awaited_and_not_evicted() {
    let stage = stage(|_| {});
    stage.pod_with("a", "n1", |pod| {
        pod["metadata"]["finalizers"] = json!(["example.com/wait"]);
        pod["metadata"]["deletionTimestamp"] = json!(noon().to_string());
        pod["metadata"]["deletionGracePeriodSeconds"] = json!(30);
    });
    stage.bad_node("n1");
    minutes(2).await;
    assert_eq!(stage.phase("n1"), Some(DrainPhase::Draining));
    assert_eq!(stage.requests("create", "pods/eviction"), 0);
}

#[tokio::test(start_paused = true)]
async fn without_the_list_of_its_pods_no_node_counts_as_drained() {
    let stage = stage(notice(10));
    stage.bad_node("n1");
    stage.pod("a", "n1");
    seconds(5).await;
    stage.refuse(Verb::List, Pods, "", 500, None);
    minutes(5).await;
    assert!(stage.gone().is_empty());
    assert_eq!(stage.times("n1", DrainPhase::Drained), 0);
    stage.cluster.faults().clear();
    minutes(1).await;
    assert_eq!((stage.gone().len(), stage.phase("n1")), (1, Some(DrainPhase::Drained)));
}

#[tokio::test(start_paused = true)]
async fn a_drain_that_stands_still_says_why_on_its_node() {
    // Who goes by forecasts needs the budgets for them.
    let cases = [
        (Pods, Undrainable::DrainRest),
        (Pods, Undrainable::Report),
        (PodDisruptionBudgets, Undrainable::Cordon),
    ];
    for (what, undrainable) in cases {
        let stage = stage(|policy| {
            policy.pace.notice = Duration::from_secs(10);
            policy.undrainable = undrainable;
        });
        stage.bad_node("n1");
        stage.pod("a", "n1");
        seconds(5).await;
        assert_eq!(stage.told("Drain stalled"), 0, "{what:?}");
        stage.refuse(Verb::List, what, "", 500, None);
        seconds(30).await;
        assert_eq!(stage.told("Drain stalled; retrying: 500 "), 1, "{what:?}");
        minutes(59).await;
        let told = stage.told("Drain stalled");
        assert!((4..=8).contains(&told), "with growing pauses: {told} of {what:?}");
        assert_eq!(stage.told("Draining failed"), 0, "it has not even begun");
        stage.cluster.faults().clear();
        minutes(1).await;
        assert_eq!((stage.gone().len(), stage.phase("n1")), (1, Some(DrainPhase::Drained)));
    }
}

#[tokio::test(start_paused = true)]
async fn each_standstill_of_a_drain_under_way_is_told_of_once() {
    let stage = stage(|policy| policy.deadline = Some(Duration::from_secs(3600)));
    stage.bad_node("n1");
    stage.pod("a", "n1");
    stage.budget(0);
    seconds(30).await;
    for standstills in 1..=3 {
        stage.refuse(Verb::List, Pods, "", 500, Some(3));
        minutes(3).await;
        assert_eq!(stage.told("Drain stalled"), standstills);
    }
    assert_eq!((stage.phase("n1"), stage.gone().len()), (Some(DrainPhase::Draining), 0));
}

#[tokio::test(start_paused = true)]
async fn a_node_is_not_cordoned_while_the_owner_of_a_pod_cannot_be_asked_for_if_it_is_to_stay_in_use()
 {
    let stage = stage(|policy| policy.undrainable = Undrainable::Report);
    stage.refuse(Verb::Get, StatefulSets, "", 500, None);
    stage.node("n1");
    stage.pod_with("a", "n1", |pod| {
        pod["metadata"]["ownerReferences"][0]["kind"] = json!("StatefulSet");
    });
    stage.report("n1", "Bad", "True");
    minutes(2).await;
    assert!(!stage.is_cordoned("n1") && stage.gone().is_empty());
    assert!(stage.told("Drain scheduling failed: ") >= 1);
    // It turns out that there is no such owner.
    stage.cluster.faults().clear();
    minutes(3).await;
    assert_eq!((stage.gone().len(), stage.phase("n1")), (1, Some(DrainPhase::Drained)));
}

#[tokio::test(start_paused = true)]
async fn pods_of_a_daemon_set_stay_on_a_drained_node() {
    let stage = stage(|_| {});
    let set = json!({"metadata": {"name": "agent", "namespace": "default"}});
    let set = stage.cluster.store().insert(DaemonSets, set).unwrap();
    stage.node("n1");
    stage.pod("a", "n1");
    stage.pod_with("agent-x", "n1", |pod| {
        let owner = &mut pod["metadata"]["ownerReferences"][0];
        owner["kind"] = json!("DaemonSet");
        owner["name"] = json!("agent");
        owner["uid"] = set["metadata"]["uid"].clone();
    });
    stage.pod_with("mirror", "n1", |pod| {
        pod["metadata"]["annotations"] = json!({"kubernetes.io/config.mirror": "x"});
    });
    stage.report("n1", "Bad", "True");
    seconds(20).await;
    assert_eq!(
        (stage.gone(), stage.phase("n1")),
        (vec!["a".to_owned()], Some(DrainPhase::Drained))
    );
    assert!(stage.has_pod("agent-x") && stage.has_pod("mirror"));
}

#[tokio::test(start_paused = true)]
async fn a_node_with_a_pod_that_would_be_lost_is_told_of_and_others_go_on_if_it_is_to_stay_in_use()
{
    let stage = stage(|policy| policy.undrainable = Undrainable::Report);
    stage.node("n1");
    stage.lone_pod("lone", "n1");
    stage.report("n1", "Bad", "True");
    stage.bad_node("n2");
    stage.pod("a", "n2");
    minutes(5).await;
    assert!(!stage.is_cordoned("n1") && stage.record("n1").is_none());
    assert!(stage.told("Drain scheduling failed: ") >= 1);
    assert!(stage.told("Cannot evict Pod default/lone") >= 1);
    assert_eq!(
        (stage.gone(), stage.phase("n2")),
        (vec!["a".to_owned()], Some(DrainPhase::Drained))
    );
    stage.delete_pod("lone");
    minutes(2).await;
    assert_eq!(stage.phase("n1"), Some(DrainPhase::Drained));
}

#[tokio::test(start_paused = true)]
async fn a_pod_that_comes_to_a_drained_node_is_left_there() {
    let stage = stage(|_| {});
    stage.bad_node("n1");
    seconds(10).await;
    assert_eq!(stage.phase("n1"), Some(DrainPhase::Drained));
    stage.pod("a", "n1");
    minutes(60).await;
    assert!(stage.gone().is_empty());
    assert_eq!(stage.times("n1", DrainPhase::Draining), 1);
}

#[tokio::test(start_paused = true)]
async fn drains_of_one_policy_begin_apart_from_each_other() {
    let stage = stage(|policy| {
        policy.pace.notice = Duration::from_secs(10);
        policy.pace.spacing = Duration::from_secs(60);
    });
    for name in ["n1", "n2", "n3"] {
        stage.bad_node(name);
        stage.pod(&format!("{name}-pod"), name);
    }
    let mut counts = Vec::new();
    for wait in [9, 11, 45, 15, 45, 15] {
        seconds(wait).await;
        counts.push(stage.gone().len());
    }
    assert_eq!(counts, [0, 1, 1, 2, 2, 3], "at 10, 70 and 130 seconds");
}
