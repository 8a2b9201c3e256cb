//! What evictions for taints make of a new configuration.

use super::*;

fn tolerating(seconds: u64) -> Value {
    json!([{"key": "k", "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": seconds}])
}

#[tokio::test(start_paused = true)]
async fn a_change_in_the_middle_of_a_countdown_moves_no_deadline() {
    let bed = Bed::new("").await;
    bed.pod("a", tolerating(100));
    bed.pod("b", tolerating(200));
    bed.taint();
    let tainted = bed.elapsed();
    for sections in [rule("Delete"), policies(&[policy("p", "")]), "orphans: Uncordon\n".to_owned()]
    {
        bed.pass(30.0).await;
        bed.apply(&sections).await;
        assert_eq!(bed.metric("ostrakon_timers", &[]), 2.0, "both are armed");
    }
    bed.pass(tainted + 100.0 - bed.elapsed()).await;
    assert!(bed.has_pod("a"), "not before the end of its second");
    bed.pass(300.0).await;
    let deletions: Vec<_> = bed.wire.asked();
    let deletions: Vec<_> = deletions
        .iter()
        .filter(|it| it.asked == Asked::Deleted)
        .map(|it| (it.name.as_str(), it.at - tainted))
        .collect();
    let [("a", first), ("b", second)] = deletions[..] else { panic!("{deletions:?}") };
    assert!((100.0..101.1).contains(&first) && (200.0..201.1).contains(&second), "{deletions:?}");
}

#[tokio::test(start_paused = true)]
async fn a_backlog_that_a_budget_holds_is_kept_and_goes_when_the_budget_allows() {
    let bed = Bed::new(&rule("Evict")).await;
    bed.budget();
    for name in ["a", "b", "c"] {
        bed.pod(name, json!([]));
    }
    bed.taint();
    bed.pass(60.0).await;
    assert_eq!(bed.metric("ostrakon_backlog_pods", &["blocked"]), 3.0);
    let limited = format!("{}limits: {{cluster: {{pods: 100}}}}\n", rule("Evict"));
    bed.apply(&limited).await;
    assert_eq!(bed.metric("ostrakon_backlog_pods", &[]), 3.0, "at once after the change");
    bed.pass(120.0).await;
    assert_eq!(bed.metric("ostrakon_backlog_pods", &["blocked"]), 3.0);
    assert_eq!(bed.told("Marking for deletion Pod"), 3, "each once: nothing began anew");
    assert_eq!(bed.told("Cancelling deletion of Pod"), 0);
    bed.remove_budget();
    bed.pass(61.0).await;
    assert_eq!((bed.pods(), bed.count(Asked::Deleted)), (0, 0));
}

#[tokio::test(start_paused = true)]
async fn a_rule_that_ignored_begins_to_delete_and_one_that_deleted_begins_to_ignore() {
    let bed = Bed::new(&rule("Ignore")).await;
    bed.pod("a", json!([]));
    bed.pod("b", tolerating(600));
    bed.taint();
    bed.pass(300.0).await;
    assert!(bed.wire.asked().is_empty());
    bed.apply(&rule("Delete")).await;
    bed.pass(2.0).await;
    assert!(!bed.has_pod("a") && bed.has_pod("b"), "b tolerates it, from the taint on");
    bed.pass(200.0).await;
    bed.apply(&rule("Ignore")).await;
    assert_eq!(bed.metric("ostrakon_timers", &[]), 0.0);
    bed.pass(600.0).await;
    assert!(bed.has_pod("b"));
    assert_eq!(bed.count(Asked::Deleted), 1);
}

#[tokio::test(start_paused = true)]
async fn limits_that_are_raised_or_removed_let_held_pods_go() {
    let slow = "limits: {cluster: {pods: 1, per: 1h}, ramp: {enabled: false}}\n";
    for raised in ["limits: {cluster: {pods: 100, per: 1s}}\n", "limits: {}\n"] {
        let bed = Bed::new(slow).await;
        for pod in 0..10 {
            bed.pod(&format!("p{pod}"), json!([]));
        }
        bed.taint();
        bed.pass(60.0).await;
        assert_eq!((bed.pods(), bed.metric("ostrakon_held_pods", &["rate_limit"])), (9, 9.0));
        // What does not concern limits lets nothing go.
        bed.apply(&format!("{slow}orphans: Uncordon\n")).await;
        bed.pass(60.0).await;
        assert_eq!(bed.pods(), 9);
        bed.apply(raised).await;
        bed.pass(2.0).await;
        assert_eq!(bed.pods(), 0, "{raised}");
        assert_eq!(bed.metric("ostrakon_held_pods", &[]), 0.0);
    }
}

#[tokio::test(start_paused = true)]
async fn of_rapid_changes_the_last_one_is_in_force() {
    let bed = Bed::new(&rule("Ignore")).await;
    bed.pod("a", json!([]));
    bed.taint();
    let contents: Vec<_> = (0..20)
        .map(|n| {
            let (method, policy) = if n % 2 == 0 {
                ("Evict", policies(&[policy("p", &format!(", headroom: {n}m"))]))
            } else {
                ("Ignore", String::new())
            };
            file(&format!("{}{policy}# {n}\n", rule(method)))
        })
        .collect();
    let offers = contents.iter().map(|content| bed.process.offer(Ok(content)));
    let outcomes = futures::future::join_all(offers).await;
    assert!(outcomes.iter().all(|outcome| *outcome == Offered::Applied), "{outcomes:?}");
    let last = ostrakon::config::content_hash(contents[19].as_bytes());
    assert_eq!(bed.process.config_hash(), last);
    assert_eq!(bed.metric("ostrakon_config_info", &[&last]), 1.0);
    assert_eq!(bed.metric("ostrakon_config_info", &[]), 1.0, "only this one");
    bed.pod("b", json!([]));
    bed.bad();
    bed.pass(600.0).await;
    assert!(bed.has_pod("b") && !bed.is_cordoned(), "the last one ignores, and has no policy");
    assert_eq!(bed.metric("ostrakon_backlog_pods", &[]), 0.0);
}
