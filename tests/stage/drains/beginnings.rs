//! Starts of drains are spaced, and starts that fail do not count.

use super::*;

/// Drains begin ten seconds after the cordon, and ten minutes after one another.
fn spaced() -> Stage {
    stage(|policy| {
        policy.pace.notice = Duration::from_secs(10);
        policy.pace.spacing = Duration::from_secs(600);
    })
}

#[tokio::test(start_paused = true)]
async fn a_beginning_whose_write_fails_is_tried_again_at_once() {
    let refused = |code| Fault::Refuse { code, retry_after: None };
    let all = [refused(409), refused(500), refused(403), Fault::Cut, Fault::LoseAnswer];
    for fault in all {
        let stage = spaced();
        stage.bad_node("n1");
        stage.pod("a", "n1");
        seconds(5).await;
        let rule = Rule::always(fault.clone()).on(Verb::Patch).of(Resource::Nodes).at("");
        stage.cluster.faults().add(rule.times(1));
        seconds(10).await;
        assert_eq!((stage.gone().len(), stage.phase("n1")), (1, Some(DrainPhase::Drained)));
        assert_eq!(stage.times("n1", DrainPhase::Draining), 1, "{fault:?}");
        assert_eq!(stage.cordons("n1"), 1, "{fault:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_node_that_cannot_be_written_to_does_not_keep_others_from_being_drained() {
    let stage = spaced();
    for (name, pod) in [("n1", "a"), ("n2", "b")] {
        stage.bad_node(name);
        stage.pod(pod, name);
        seconds(2).await;
    }
    let refusal = Rule::always(Fault::Refuse { code: 500, retry_after: None });
    stage.cluster.faults().add(refusal.on(Verb::Patch).of(Resource::Nodes).named("n1"));
    minutes(11).await;
    assert_eq!(
        (stage.gone(), stage.phase("n2")),
        (vec!["b".to_owned()], Some(DrainPhase::Drained))
    );
    let begun = stage.record("n2").unwrap().started.unwrap();
    stage.cluster.faults().clear();
    minutes(15).await;
    assert_eq!((stage.gone().len(), stage.phase("n1")), (2, Some(DrainPhase::Drained)));
    let after = stage.record("n1").unwrap().started.unwrap().duration_since(begun);
    assert!(after.as_secs() >= 600, "{after}");
}
