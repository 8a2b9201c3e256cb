//! The controller is killed in each phase, and the next one continues from the node's record.

use ostrakon::config::{Orphans, Settings};
use ostrakon::drain::{AtDeadline, Retry, Undrainable};

use super::*;

impl Stage {
    /// The controller dies, nobody works for a while, and another one starts.
    async fn restart_after(&mut self, down: u64) {
        self.kill();
        seconds(down).await;
        self.start();
    }

    /// The controller dies, and another one starts a second later with the settings of a file.
    async fn restart_with(&mut self, settings: Settings) {
        self.kill();
        seconds(1).await;
        self.wire = Arc::default();
        let clock = self.clock.clone();
        self.process = Some(Process::of_file(&self.cluster, clock, settings, &self.wire));
    }
}

#[tokio::test(start_paused = true)]
async fn a_plan_outlives_the_controller_and_its_time_stays() {
    let mut stage = stage(notice(60));
    stage.bad_node("n1");
    stage.pod("a", "n1");
    seconds(20).await;
    let planned = stage.record("n1").unwrap();
    stage.restart_after(10).await;
    seconds(25).await;
    assert_eq!((stage.record("n1"), stage.gone().len()), (Some(planned.clone()), 0));
    seconds(20).await;
    let drained = stage.record("n1").unwrap();
    assert_eq!((drained.phase, drained.scheduled), (DrainPhase::Drained, planned.scheduled));
    assert_eq!((drained.session, stage.gone().len()), (planned.session, 1));
    assert_eq!(stage.cordons("n1"), 1);
}

#[tokio::test(start_paused = true)]
async fn a_plan_that_fell_due_meanwhile_is_carried_out_once() {
    let mut stage = stage(notice(60));
    stage.bad_node("n1");
    stage.pod("a", "n1");
    seconds(20).await;
    stage.restart_after(3600).await;
    seconds(20).await;
    assert_eq!((stage.gone().len(), stage.phase("n1")), (1, Some(DrainPhase::Drained)));
    assert_eq!(stage.times("n1", DrainPhase::Draining), 1);
}

#[tokio::test(start_paused = true)]
async fn a_plan_whose_reason_went_meanwhile_is_cancelled() {
    let mut stage = stage(notice(60));
    stage.bad_node("n1");
    stage.pod("a", "n1");
    seconds(20).await;
    stage.kill();
    stage.report("n1", "Bad", "False");
    seconds(120).await;
    stage.start();
    minutes(10).await;
    assert!(stage.gone().is_empty() && !stage.is_cordoned("n1"));
}

#[tokio::test(start_paused = true)]
async fn one_that_died_between_two_writes_leaves_nothing_half_done() {
    let mut stage = stage(notice(60));
    stage.refuse(Verb::Patch, Resource::Nodes, "status", 500, None);
    stage.bad_node("n1");
    stage.pod("a", "n1");
    seconds(20).await;
    assert!(stage.is_cordoned("n1") && stage.mark("n1").is_none());
    stage.cluster.faults().clear();
    stage.restart_after(5).await;
    seconds(5).await;
    assert_eq!(stage.mark("n1").unwrap().0, "True");
    seconds(60).await;
    assert_eq!((stage.cordons("n1"), stage.phase("n1")), (1, Some(DrainPhase::Drained)));
}

#[tokio::test(start_paused = true)]
async fn a_drain_under_way_goes_on_with_its_session_and_its_deadline() {
    let mut stage = stage(|policy| policy.deadline = Some(Duration::from_secs(600)));
    stage.bad_node("n1");
    stage.pod("a", "n1");
    stage.pod("b", "n1");
    stage.budget(1);
    seconds(60).await;
    let before = stage.record("n1").unwrap();
    assert_eq!((before.phase, stage.gone().len()), (DrainPhase::Draining, 1));
    assert!(before.why.is_some(), "it says who is held, also after the restart");
    stage.restart_after(60).await;
    seconds(60).await;
    assert_eq!((stage.record("n1"), stage.gone().len()), (Some(before.clone()), 1));
    stage.let_go(1);
    minutes(2).await;
    let after = stage.record("n1").unwrap();
    assert_eq!((after.phase, stage.gone().len()), (DrainPhase::Drained, 2));
    assert_eq!((after.session, after.started), (before.session, before.started));
    assert_eq!(stage.times("n1", DrainPhase::Draining), 1);
}

#[tokio::test(start_paused = true)]
async fn a_drained_node_is_not_drained_again() {
    let mut stage = stage(|_| {});
    stage.bad_node("n1");
    stage.pod("a", "n1");
    seconds(20).await;
    assert_eq!(stage.phase("n1"), Some(DrainPhase::Drained));
    stage.pod("b", "n1");
    for _ in 0..3 {
        stage.restart_after(10).await;
        minutes(20).await;
    }
    assert_eq!((stage.gone(), stage.has_pod("b")), (vec!["a".to_owned()], true));
    assert_eq!((stage.times("n1", DrainPhase::Draining), stage.told("Drained node")), (1, 0));
}

#[tokio::test(start_paused = true)]
async fn a_failed_drain_keeps_its_count_and_its_next_time() {
    let mut stage = stage(|policy| {
        policy.deadline = Some(Duration::from_secs(25));
        policy.at_deadline = AtDeadline::GiveUp;
        let pause = Duration::from_secs(600);
        policy.retry = Retry { first: pause, most: pause, attempts: 2 };
    });
    stage.bad_node("n1");
    stage.pod("a", "n1");
    stage.budget(0);
    seconds(30).await;
    let failed = stage.record("n1").unwrap();
    assert_eq!((failed.phase, failed.failures), (DrainPhase::Failed, 1));
    stage.restart_after(10).await;
    seconds(30).await;
    assert_eq!(stage.record("n1"), Some(failed));
    minutes(15).await;
    let failed = stage.record("n1").unwrap();
    assert_eq!((failed.failures, failed.next), (2, None));
    stage.restart_after(10).await;
    minutes(60).await;
    assert_eq!(stage.times("n1", DrainPhase::Draining), 2, "no more tries by a restart");
}

#[tokio::test(start_paused = true)]
async fn a_node_that_a_person_released_stays_released() {
    let mut stage = stage(notice(60));
    stage.bad_node("n1");
    stage.pod("a", "n1");
    seconds(10).await;
    stage.kill();
    stage.set_unschedulable("n1", false);
    stage.start();
    minutes(10).await;
    assert_eq!(stage.phase("n1"), Some(DrainPhase::Released));
    stage.restart_after(10).await;
    minutes(60).await;
    assert_eq!((stage.cordons("n1"), stage.gone().len()), (1, 0));
}

#[tokio::test(start_paused = true)]
async fn a_cordon_without_a_plan_gets_one_when_that_is_possible() {
    let mut stage = stage(|policy| policy.undrainable = Undrainable::Cordon);
    stage.node("n1");
    stage.lone_pod("lone", "n1");
    stage.report("n1", "Bad", "True");
    seconds(10).await;
    assert_eq!((stage.phase("n1"), stage.is_cordoned("n1")), (Some(DrainPhase::Cordoned), true));
    stage.restart_after(10).await;
    minutes(5).await;
    assert_eq!((stage.phase("n1"), stage.gone().len()), (Some(DrainPhase::Cordoned), 0));
    stage.delete_pod("lone");
    minutes(2).await;
    assert_eq!((stage.phase("n1"), stage.cordons("n1")), (Some(DrainPhase::Drained), 1));
}

#[tokio::test(start_paused = true)]
async fn with_other_conditions_configured_what_is_recorded_decides_the_uncordon() {
    let mut stage = stage(|_| {});
    stage.bad_node("n1");
    seconds(10).await;
    stage.kill();
    stage.policies = vec![policy("p", &["Other"])];
    stage.start();
    minutes(30).await;
    assert!(stage.is_cordoned("n1"), "it is still bad");
    stage.report("n1", "Bad", "False");
    minutes(6).await;
    assert!(!stage.is_cordoned("n1"));
}

/// Settings with only a policy `q` for another condition, or none.
fn without_p(policies: usize, orphans: Orphans) -> Settings {
    let policies = (0..policies).map(|_| policy("q", &["Other"])).collect();
    Settings { policies, orphans, ..Settings::default() }
}

#[tokio::test(start_paused = true)]
async fn a_cordon_whose_policy_is_gone_stays_and_is_reported_each_hour() {
    for policies in [1, 0] {
        let mut stage = stage(|_| {});
        stage.bad_node("n1");
        stage.node("n2");
        minutes(1).await;
        assert_eq!(stage.counted("ostrakon_drain_orphaned_nodes", &[]), 0);
        stage.restart_with(without_p(policies, Orphans::Keep)).await;
        stage.report("n1", "Bad", "False");
        minutes(10).await;
        assert_eq!(stage.counted("ostrakon_drain_orphaned_nodes", &[]), 1);
        assert_eq!(stage.told("Policy p cordoned the node"), 1, "once, and not of n2");
        minutes(60).await;
        assert_eq!(stage.told("Policy p cordoned the node"), 2);
        assert!(stage.is_cordoned("n1"), "nobody knows that it has recovered");
        assert_eq!(stage.requests("PATCH", "nodes"), 0, "nothing is written");
        stage.restart_after(1).await;
        minutes(10).await;
        assert!(!stage.is_cordoned("n1"), "the policy is back");
    }
}

#[tokio::test(start_paused = true)]
async fn a_cordon_whose_policy_is_gone_is_taken_back_if_the_file_says_so() {
    for policies in [1, 0] {
        let mut stage = stage(|_| {});
        stage.bad_node("n1");
        stage.node("n2");
        stage.set_unschedulable("n2", true);
        minutes(1).await;
        stage.restart_with(without_p(policies, Orphans::Uncordon)).await;
        minutes(1).await;
        assert!(!stage.is_cordoned("n1") && stage.is_cordoned("n2"), "only what is ours");
        assert_eq!((stage.record("n1"), stage.uncordons("n1")), (None, 1));
        assert_eq!(stage.told("Policy p cordoned the node"), 1, "and it is said why");
        assert_eq!(stage.told("Uncordoned node"), 1);
        minutes(90).await;
        assert_eq!(stage.told("Policy p cordoned the node"), 1);
        assert_eq!(stage.counted("ostrakon_drain_orphaned_nodes", &[]), 0);
    }
}

#[tokio::test(start_paused = true)]
async fn a_renamed_policy_takes_over_the_cordons_of_nodes_that_are_bad() {
    let mut stage = stage(|policy| policy.drain = false);
    stage.bad_node("n1");
    minutes(1).await;
    let renamed = Policy { drain: false, ..policy("q", &["Bad"]) };
    let orphans = Orphans::Uncordon;
    stage.restart_with(Settings { policies: vec![renamed], orphans, ..Settings::default() }).await;
    minutes(10).await;
    assert_eq!((stage.cordons("n1"), stage.uncordons("n1")), (1, 0));
    assert_eq!(stage.told("Policy p cordoned the node"), 0);
    stage.report("n1", "Bad", "False");
    minutes(10).await;
    assert!(!stage.is_cordoned("n1"), "and gives them back");
}
