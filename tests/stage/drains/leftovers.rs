//! Leftovers of a drain or of draino on a node: annotation, condition, retry request.

use ostrakon::drain::AtDeadline;

use super::*;

impl Stage {
    fn annotation(&self, name: &str, key: &str) -> Option<String> {
        self.stored(name)["metadata"]["annotations"][key].as_str().map(str::to_owned)
    }
}

#[tokio::test(start_paused = true)]
async fn what_draino_left_on_a_node_in_use_makes_no_persons_cordon_its_own() {
    let mut stage = Stage::idle(vec![policy("p", &["Bad"])]);
    stage.node("n1");
    stage.report("n1", "Bad", "False");
    // draino cordons, a person uncordons, and then ostrakon starts.
    stage.annotate("n1", NodeDrainFacts::DRAINO_CONDITIONS_ANNOTATION, "Bad=True,0s");
    minutes(60).await;
    stage.start();
    seconds(5).await;
    assert_eq!(stage.annotation("n1", NodeDrainFacts::DRAINO_CONDITIONS_ANNOTATION), None);
    stage.set_unschedulable("n1", true);
    minutes(60).await;
    assert!(stage.is_cordoned("n1") && stage.record("n1").is_none());
    assert_eq!(stage.told("Uncordon"), 0);
    // One write, and no others.
    assert_eq!(stage.requests("patch", "nodes"), 1);
}

#[tokio::test(start_paused = true)]
async fn of_a_cordon_of_drainos_that_a_person_lifts_nothing_stays() {
    let mut stage = Stage::idle(vec![policy("p", &["Bad"])]);
    stage.node("n1");
    stage.report("n1", "Bad", "False");
    stage.annotate("n1", NodeDrainFacts::DRAINO_CONDITIONS_ANNOTATION, "Bad=True,0s");
    stage.set_unschedulable("n1", true);
    stage.start();
    seconds(5).await;
    assert!(stage.annotation("n1", NodeDrainFacts::DRAINO_CONDITIONS_ANNOTATION).is_some());
    stage.set_unschedulable("n1", false);
    seconds(5).await;
    assert_eq!(stage.annotation("n1", NodeDrainFacts::DRAINO_CONDITIONS_ANNOTATION), None);
    stage.set_unschedulable("n1", true);
    minutes(60).await;
    assert!(stage.is_cordoned("n1"), "and this one is the person's");
}

#[tokio::test(start_paused = true)]
async fn a_planned_drain_leaves_no_condition_when_the_autoscaler_uncordons_a_good_node() {
    let stage = stage(notice(3600));
    stage.bad_node("n1");
    seconds(5).await;
    assert_eq!(stage.mark("n1").unwrap().0, "True");
    stage.scale_down("n1");
    seconds(5).await;
    stage.report("n1", "Bad", "False");
    seconds(5).await;
    stage.refuse(Verb::Patch, Resource::Nodes, "status", 500, None);
    stage.keep("n1");
    minutes(2).await;
    assert_eq!(stage.told("Uncordoned node"), 1);
    assert_eq!(stage.annotation("n1", NodeDrainFacts::DRAINO_CONDITIONS_ANNOTATION), None);
    stage.cluster.faults().clear();
    minutes(1).await;
    let (status, message) = stage.mark("n1").unwrap();
    assert!(status == "False" && message.ends_with(" | Called off"), "{status} {message}");
    assert_eq!(stage.record("n1"), None);
    assert_eq!(stage.told("Uncordoned node"), 1);
    // And whoever cordons it now is a person.
    stage.set_unschedulable("n1", true);
    minutes(60).await;
    assert!(stage.is_cordoned("n1") && stage.uncordons("n1") == 1);
}

#[tokio::test(start_paused = true)]
async fn a_request_for_one_more_try_goes_when_the_node_has_recovered() {
    let stage = stage(|policy| {
        policy.deadline = Some(Duration::from_secs(25));
        policy.at_deadline = AtDeadline::GiveUp;
        policy.retry.attempts = 1;
    });
    stage.bad_node("n1");
    stage.pod("a", "n1");
    stage.budget(0);
    minutes(1).await;
    assert_eq!(stage.phase("n1"), Some(DrainPhase::Failed));
    stage.report("n1", "Bad", "False");
    stage.annotate("n1", NodeDrainFacts::RETRY_ANNOTATION, "true");
    minutes(4).await;
    assert!(
        stage.annotation("n1", NodeDrainFacts::RETRY_ANNOTATION).is_some(),
        "it may be bad again"
    );
    minutes(2).await;
    assert!(!stage.is_cordoned("n1") && stage.record("n1").is_none());
    assert_eq!(stage.annotation("n1", NodeDrainFacts::RETRY_ANNOTATION), None);
}
