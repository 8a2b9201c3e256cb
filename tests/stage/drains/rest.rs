//! Forecasts do not block a drain: pods that may be evicted are evicted, pods that a budget or a webhook
//! blocks are retried, and pods that the policy protects stay and are named.

use ostrakon::drain::{AtDeadline, Cap, CapScope, Limit, Protection, Undrainable};
use ostrakon::sim::embedded::Resource::{PodDisruptionBudgets, Pods};

use super::*;

/// Annotation by which the policies here leave a pod.
const KEEP: &str = "example.com/keep";
const WEBHOOK: &str = "drain.example.com";

fn protecting(policy: &mut Policy) {
    policy.pods.protections = vec![Protection { key: KEEP.into(), value: None }];
}

/// An hour for each drain.
fn patient(policy: &mut Policy) {
    policy.deadline = Some(Duration::from_secs(3600));
}

impl Stage {
    fn why(&self, name: &str) -> String {
        self.record(name).and_then(|record| record.why).unwrap_or_default().to_string()
    }

    fn protect(&self, name: &str, protected: bool) {
        let changed =
            self.cluster.store().modify(Pods, "default", name, Part::Whole, false, |pod| {
                let mut pod = pod.clone();
                let value = if protected { json!({KEEP: "true"}) } else { json!({}) };
                pod["metadata"]["annotations"] = value;
                Ok(pod)
            });
        changed.unwrap();
    }

    fn evictions(&self) -> u64 {
        self.requests("create", "pods/eviction")
    }

    /// Evictions are denied by a webhook from now on.
    fn deny_evictions(&self, code: u16) {
        let denial = Fault::Deny { webhook: WEBHOOK.to_owned(), code };
        let rule = Rule::always(denial).on(Verb::Create).of(Pods).at("eviction");
        self.cluster.faults().add(rule);
    }
}

/// A change of a pod before it is made.
type Change = fn(&mut Value);

#[tokio::test(start_paused = true)]
async fn of_six_pods_five_go_and_the_protected_one_is_left_and_named() {
    let annotated = |pod: &mut Value| pod["metadata"]["annotations"] = json!({KEEP: "true"});
    let with_files = |pod: &mut Value| {
        pod["spec"]["volumes"] = json!([{"name": "files", "emptyDir": {}}]);
    };
    let cases: [(Change, &str); 2] = [
        (annotated, "its annotation example.com/keep protects it"),
        (with_files, "its emptyDir volume files would be lost"),
    ];
    for (change, why) in cases {
        let stage = stage(protecting);
        stage.node("n1");
        stage.pod_with("kept", "n1", change);
        for name in ["a", "b", "c", "d", "e"] {
            stage.pod(name, "n1");
        }
        stage.report("n1", "Bad", "True");
        seconds(20).await;
        let mut gone = stage.gone();
        gone.sort();
        assert_eq!(gone, ["a", "b", "c", "d", "e"]);
        assert!(stage.has_pod("kept") && stage.is_cordoned("n1"));
        assert_eq!(stage.phase("n1"), Some(DrainPhase::Drained));
        let (status, message) = stage.mark("n1").unwrap();
        assert!(status == "False" && message.contains(" | Completed: "), "{status} {message}");
        let left = format!("1 pod is left: pod default/kept: {why}");
        assert_eq!(stage.why("n1"), left);
        assert_eq!(stage.told(&format!("Drained node; {left}")), 1);
        assert_eq!(stage.told("Cannot evict Pod default/kept"), 1);
        minutes(60).await;
        assert!(stage.has_pod("kept"), "and never evicted later");
        assert_eq!((stage.evictions(), stage.times("n1", DrainPhase::Draining)), (5, 1));
        assert_eq!(stage.told("Drain scheduling failed"), 0, "it did not fail");
    }
}

#[tokio::test(start_paused = true)]
async fn a_budget_holds_its_own_pods_only_and_they_go_within_seconds_of_its_change() {
    let stage = stage(patient);
    stage.node("n1");
    for name in ["a", "b"] {
        stage.pod(name, "n1");
    }
    for name in ["c", "d", "e"] {
        stage.pod_of("free", name, "n1");
    }
    stage.strict_budget("web", "web", json!({"minAvailable": 2}), 2);
    stage.report("n1", "Bad", "True");
    seconds(30).await;
    let mut gone = stage.gone();
    gone.sort();
    assert_eq!(gone, ["c", "d", "e"]);
    assert_eq!(stage.phase("n1"), Some(DrainPhase::Draining));
    let why = stage.why("n1");
    for word in ["2 pods are held", "default/a", "budget web", "needs 2 healthy pods"] {
        assert!(why.contains(word), "{word} is not in {why:?}");
    }
    assert_eq!(stage.told("Drain is waiting; retrying evictions: 2 pods are held"), 1);
    let early = stage.counted("ostrakon_drain_evictions_total", &["blocked"]);
    assert!(early >= 2, "both were asked for: {early}");
    minutes(20).await;
    let late = stage.counted("ostrakon_drain_evictions_total", &["blocked"]);
    assert!((early + 30..early + 90).contains(&late), "again, with growing pauses: {late}");
    // Just after a look, with the longest pause before the next try.
    stage.let_go(2);
    seconds(12).await;
    assert_eq!((stage.gone().len(), stage.phase("n1")), (5, Some(DrainPhase::Drained)));
    assert_eq!((stage.why("n1"), stage.told("Draining failed")), (String::new(), 0));
}

#[tokio::test(start_paused = true)]
async fn an_operator_behind_a_webhook_hears_of_the_eviction_and_again_with_a_growing_pause() {
    for code in [429, 500] {
        let stage = stage(patient);
        stage.node("n1");
        stage.pod("a", "n1");
        stage.strict_budget("web", "web", json!({"maxUnavailable": 0}), 1);
        stage.deny_evictions(code);
        stage.report("n1", "Bad", "True");
        seconds(8).await;
        let early = stage.evictions();
        assert!((1..=4).contains(&early), "{code}: {early}");
        minutes(10).await;
        let late = stage.evictions();
        assert!((early + 8..early + 30).contains(&late), "{code}: {late}");
        let failures = "ostrakon_drain_eviction_failures_total";
        assert_eq!(stage.counted(failures, &["webhook"]), late);
        for other in ["throttled", "server_error"] {
            assert_eq!(stage.counted(failures, &[other]), 0, "{code}: {other}");
        }
        assert_eq!(stage.counted("ostrakon_drain_evictions_total", &["blocked"]), 0);
        assert_eq!(stage.told("Cannot evict Pod default/a"), 1);
        // The operator has made room and moves the pod itself.
        stage.delete_pod("a");
        seconds(8).await;
        assert_eq!(stage.phase("n1"), Some(DrainPhase::Drained));
        assert_eq!(stage.told("Draining failed"), 0);
    }
}

#[tokio::test(start_paused = true)]
async fn a_webhooks_refusal_is_named_in_its_own_words() {
    let stage = stage(patient);
    stage.node("n1");
    stage.pod("a", "n1");
    stage.deny_evictions(429);
    stage.report("n1", "Bad", "True");
    seconds(30).await;
    let why = stage.why("n1");
    assert!(why.contains("default/a") && why.contains(WEBHOOK), "{why}");
    assert!(!why.contains("budget"), "{why}");
    assert_eq!(stage.told("Drain is waiting"), 1);
}

#[tokio::test(start_paused = true)]
async fn a_storage_manager_that_drops_its_budget_once_its_users_are_gone_is_not_waited_for_in_vain()
{
    let stage = stage(patient);
    stage.node("n1");
    stage.pod_of("manager", "manager", "n1");
    for name in ["user-a", "user-b"] {
        stage.pod(name, "n1");
    }
    stage.strict_budget("manager", "manager", json!({"minAvailable": 1}), 1);
    stage.report("n1", "Bad", "True");
    for _ in 0..60 {
        seconds(1).await;
        let users = ["user-a", "user-b"].iter().filter(|name| stage.has_pod(name)).count();
        if stage.is_cordoned("n1") && users == 0 {
            break;
        }
    }
    assert!(stage.has_pod("manager") && stage.gone().len() == 2, "{:?}", stage.gone());
    stage.remove_budget("manager");
    seconds(15).await;
    assert_eq!((stage.gone().len(), stage.phase("n1")), (3, Some(DrainPhase::Drained)));
}

#[tokio::test(start_paused = true)]
async fn two_budgets_over_one_pod_are_both_named_and_hold_nobody_else() {
    let stage = stage(patient);
    stage.node("n1");
    stage.pod("a", "n1");
    for name in ["c", "d"] {
        stage.pod_of("free", name, "n1");
    }
    for name in ["first", "second"] {
        stage.strict_budget(name, "web", json!({"minAvailable": 0}), 1);
    }
    stage.report("n1", "Bad", "True");
    seconds(20).await;
    let mut gone = stage.gone();
    gone.sort();
    assert_eq!(gone, ["c", "d"]);
    assert!(stage.why("n1").contains("(first, second)"), "{}", stage.why("n1"));
    assert_eq!(stage.told("Cannot evict Pod default/a"), 1);
    minutes(10).await;
    let asked = stage.counted("ostrakon_drain_evictions_total", &["several_budgets"]);
    assert!((9..=14).contains(&asked), "again, slowly: {asked}");
    stage.remove_budget("second");
    stage.remove_budget("first");
    seconds(12).await;
    assert_eq!((stage.gone().len(), stage.phase("n1")), (3, Some(DrainPhase::Drained)));
}

#[tokio::test(start_paused = true)]
async fn a_drain_that_deletes_the_rest_starts_whatever_its_budgets_and_ends_at_its_deadline() {
    for undrainable in [Undrainable::DrainRest, Undrainable::Cordon, Undrainable::Report] {
        for doubled in [false, true] {
            let stage = stage(|policy| {
                policy.deadline = Some(Duration::from_secs(25));
                policy.at_deadline = AtDeadline::DeleteRest;
                policy.undrainable = undrainable;
            });
            stage.node("n1");
            stage.pod("a", "n1");
            stage.pod_of("free", "b", "n1");
            stage.strict_budget("web", "web", json!({"maxUnavailable": 0}), 1);
            if doubled {
                stage.strict_budget("web-too", "web", json!({"minAvailable": 0}), 1);
            }
            stage.report("n1", "Bad", "True");
            seconds(20).await;
            assert_eq!(stage.gone(), ["b"], "{undrainable:?}: not before the deadline");
            assert_eq!(stage.phase("n1"), Some(DrainPhase::Draining), "{undrainable:?}");
            seconds(20).await;
            assert_eq!(stage.gone(), ["b", "a"], "{undrainable:?} {doubled}");
            assert_eq!(stage.phase("n1"), Some(DrainPhase::Drained));
            assert_eq!(stage.told("Deleting Pod default/a"), 1);
        }
    }
}

#[tokio::test(start_paused = true)]
async fn at_its_deadline_a_drain_says_who_held_it_and_who_is_left() {
    let stage = stage(|policy| {
        protecting(policy);
        policy.deadline = Some(Duration::from_secs(25));
    });
    stage.node("n1");
    stage.pod("a", "n1");
    stage.pod_of("free", "kept", "n1");
    stage.protect("kept", true);
    stage.strict_budget("web", "web", json!({"minAvailable": 1}), 1);
    stage.report("n1", "Bad", "True");
    seconds(35).await;
    assert_eq!(stage.phase("n1"), Some(DrainPhase::Failed));
    let why = stage.why("n1");
    for word in ["default/a", "budget web", "default/kept", "annotation example.com/keep"] {
        assert!(why.contains(word), "{word} is not in {why:?}");
    }
    assert_eq!(stage.told("Draining failed: 1 pod is not gone: default/a"), 1);
    assert!(stage.gone().is_empty() && stage.is_cordoned("n1"));
}

#[tokio::test(start_paused = true)]
async fn neither_pods_nor_budgets_that_cannot_be_listed_hold_a_cordon_back() {
    let stage = stage(notice(10));
    stage.refuse(Verb::List, Pods, "", 500, None);
    stage.refuse(Verb::List, PodDisruptionBudgets, "", 403, None);
    stage.bad_node("n1");
    stage.pod("a", "n1");
    seconds(5).await;
    assert!(stage.is_cordoned("n1") && stage.phase("n1") == Some(DrainPhase::Scheduled));
    minutes(1).await;
    assert!(stage.gone().is_empty(), "who is on the node is not known");
    stage.cluster.faults().clear();
    // Budgets are asked by the API server itself.
    stage.refuse(Verb::List, PodDisruptionBudgets, "", 403, None);
    minutes(1).await;
    assert_eq!((stage.gone().len(), stage.phase("n1")), (1, Some(DrainPhase::Drained)));
    assert_eq!(stage.told("Draining failed"), 0);
}

#[tokio::test(start_paused = true)]
async fn a_pod_whose_owner_cannot_be_asked_for_is_waited_for_and_the_others_go() {
    let stage = stage(patient);
    stage.refuse(Verb::Get, Resource::StatefulSets, "", 500, None);
    stage.node("n1");
    stage.pod_with("a", "n1", |pod| {
        pod["metadata"]["ownerReferences"][0]["kind"] = json!("StatefulSet");
    });
    stage.pod("b", "n1");
    stage.report("n1", "Bad", "True");
    minutes(2).await;
    assert_eq!(
        (stage.gone(), stage.phase("n1")),
        (vec!["b".to_owned()], Some(DrainPhase::Draining))
    );
    assert!(stage.why("n1").contains("StatefulSet web"), "{}", stage.why("n1"));
    stage.cluster.faults().clear();
    minutes(1).await;
    assert_eq!((stage.gone().len(), stage.phase("n1")), (2, Some(DrainPhase::Drained)));
}

#[tokio::test(start_paused = true)]
async fn a_drained_node_with_a_pod_that_is_left_counts_under_the_cap_until_it_is_uncordoned() {
    let stage = stage(|policy| {
        policy.pace.caps = vec![Cap { scope: CapScope::Cluster, limit: Limit::Count(1) }];
        policy.conditions[0].clear_after = Some(Duration::from_secs(60));
    });
    stage.node("n1");
    stage.lone_pod("lone", "n1");
    stage.report("n1", "Bad", "True");
    seconds(20).await;
    assert_eq!(stage.phase("n1"), Some(DrainPhase::Drained));
    stage.bad_node("n2");
    minutes(30).await;
    assert!(!stage.is_cordoned("n2"));
    stage.report("n1", "Bad", "False");
    minutes(2).await;
    assert!(!stage.is_cordoned("n1") && stage.is_cordoned("n2"));
    assert!(stage.has_pod("lone") && stage.record("n1").is_none());
}

#[tokio::test(start_paused = true)]
async fn who_remains_is_written_down_no_more_than_once_a_minute() {
    let stage = stage(patient);
    stage.node("n1");
    stage.pod("a", "n1");
    stage.strict_budget("web", "web", json!({"minAvailable": 2}), 2);
    stage.report("n1", "Bad", "True");
    seconds(30).await;
    let before = stage.requests("patch", "nodes");
    for healthy in 0..120 {
        let (budgets, part) = (PodDisruptionBudgets, Part::Status);
        let changed = |budget: &Value| {
            let mut budget = budget.clone();
            budget["status"]["currentHealthy"] = json!(healthy);
            budget["status"]["expectedPods"] = json!(1000);
            Ok(budget)
        };
        stage.cluster.store().modify(budgets, "default", "web", part, false, changed).unwrap();
        seconds(5).await;
    }
    let written = stage.requests("patch", "nodes") - before;
    assert!((3..=11).contains(&written), "{written} in ten minutes");
    assert!(stage.told("Drain is waiting") <= 12 && stage.gone().is_empty());
}

#[tokio::test(start_paused = true)]
async fn a_node_that_is_to_stay_in_use_is_given_back_if_it_cannot_be_drained_after_its_cordon() {
    // Before its drain, and in the middle of it.
    for (protected_after, gone) in [(30, 0), (70, 1)] {
        let stage = stage(|policy| {
            protecting(policy);
            patient(policy);
            policy.undrainable = Undrainable::Report;
            policy.pace.notice = Duration::from_secs(60);
        });
        stage.node("n1");
        stage.pod("a", "n1");
        stage.pod_of("free", "b", "n1");
        // Not hopeless, but used up.
        stage.budget(0);
        stage.report("n1", "Bad", "True");
        seconds(protected_after).await;
        assert!(stage.is_cordoned("n1") && stage.gone().len() == gone);
        stage.protect("a", true);
        minutes(2).await;
        assert!(!stage.is_cordoned("n1") && stage.record("n1").is_none(), "{protected_after}");
        assert_eq!(stage.mark("n1").unwrap().0, "False");
        assert_eq!((stage.uncordons("n1"), stage.told("Uncordoned node")), (1, 1));
        assert!(stage.told("Drain scheduling failed: pod default/a: its annotation") >= 1);
        assert!(stage.nothing_is_ordered());
        minutes(30).await;
        assert_eq!((stage.cordons("n1"), stage.gone().len()), (1, gone), "it stays in use");
        stage.protect("a", false);
        stage.let_go(1);
        minutes(5).await;
        assert_eq!((stage.gone().len(), stage.phase("n1")), (2, Some(DrainPhase::Drained)));
    }
}

#[tokio::test(start_paused = true)]
async fn the_cordon_of_a_person_is_not_given_back() {
    let stage = stage(|policy| policy.undrainable = Undrainable::Report);
    stage.node("n1");
    stage.set_unschedulable("n1", true);
    stage.lone_pod("lone", "n1");
    stage.report("n1", "Bad", "True");
    minutes(30).await;
    assert!(stage.is_cordoned("n1") && stage.uncordons("n1") == 0 && stage.has_pod("lone"));
    assert_eq!(stage.phase("n1"), Some(DrainPhase::Cordoned));
}

#[tokio::test(start_paused = true)]
async fn a_drain_that_waits_goes_on_after_a_restart_with_what_it_has_said() {
    let mut stage = stage(patient);
    stage.node("n1");
    stage.pod("a", "n1");
    stage.strict_budget("web", "web", json!({"minAvailable": 1}), 1);
    stage.report("n1", "Bad", "True");
    seconds(30).await;
    let record = stage.record("n1").unwrap();
    stage.kill();
    stage.start();
    minutes(2).await;
    assert_eq!(stage.record("n1"), Some(record), "same session, same deadline, same words");
    assert!(stage.evictions() >= 2, "the new process asks too");
    stage.let_go(1);
    seconds(12).await;
    assert_eq!((stage.gone().len(), stage.phase("n1")), (1, Some(DrainPhase::Drained)));
}
