use super::*;
use crate::model::build::{drain_pod, owner};

fn rules() -> PodRules {
    PodRules::default()
}

fn protected_by(protections: &[&str]) -> PodRules {
    let parse = |text: &&str| match text.split_once('=') {
        None => Protection { key: (*text).into(), value: None },
        Some((key, value)) => Protection { key: key.into(), value: Some(value.into()) },
    };
    PodRules { protections: protections.iter().map(parse).collect(), ..rules() }
}

fn of(pod: &DrainPod) -> PodDecision {
    decide_pod(pod, &rules(), &Owners::new()).unwrap()
}

fn left(why: Why) -> PodDecision {
    PodDecision::Leave(why, Retention::Permanent)
}

fn agent() -> Owner {
    owner("apps/v1", "DaemonSet", "agent")
}

fn database() -> Owner {
    owner("apps/v1", "StatefulSet", "database")
}

fn knowing(owner: &Owner, existence: Existence) -> Owners {
    [(("default".into(), owner.clone()), existence)].into_iter().collect()
}

#[test]
fn mirror_pods_are_left_whatever_else_they_are() {
    for pod in [drain_pod("a"), drain_pod("a").unowned().finished(), drain_pod("a").going_until(9)]
    {
        let pod = DrainPod { mirror: true, ..pod };
        assert_eq!(of(&pod), PodDecision::Leave(Why::Mirror, Retention::Expected));
    }
    assert_eq!(of(&drain_pod("a")), PodDecision::Evict);
}

#[test]
fn an_empty_dir_holds_a_pod_and_a_host_path_does_not() {
    let host = drain_pod("a").with_volume("logs", LocalVolumeKind::HostPath);
    assert_eq!(of(&host), PodDecision::Evict);
    let both = host.with_volume("scratch", LocalVolumeKind::EmptyDir);
    assert_eq!(of(&both), left(Why::LocalStorage("scratch".into())));
    let evicting = PodRules { evict_local_storage: true, ..rules() };
    assert_eq!(decide_pod(&both, &evicting, &Owners::new()), Ok(PodDecision::Evict));
}

#[test]
fn only_a_pod_without_a_controller_is_unreplicated_and_only_while_it_runs() {
    assert_eq!(of(&drain_pod("a").unowned()), left(Why::Unreplicated));
    assert_eq!(
        of(&drain_pod("a").owned_by(owner("apps/v1", "Deployment", "d"))),
        PodDecision::Evict
    );
    assert_eq!(of(&drain_pod("a").unowned().finished()), PodDecision::Evict);
    let evicting = PodRules { evict_unreplicated: true, ..rules() };
    assert_eq!(
        decide_pod(&drain_pod("a").unowned(), &evicting, &Owners::new()),
        Ok(PodDecision::Evict)
    );
}

#[test]
fn pods_of_a_daemon_set_or_stateful_set_are_left_while_it_exists() {
    for owner in [agent(), database()] {
        let pod = drain_pod("a").owned_by(owner.clone());
        let needed = owners_needed([&pod], &rules());
        assert_eq!(needed, [("default".into(), owner.clone())]);

        let found = decide_pod(&pod, &rules(), &knowing(&owner, Existence::Exists));
        assert_eq!(
            found,
            Ok(PodDecision::Leave(Why::Controller(owner.clone()), Retention::Expected))
        );

        let orphan = decide_pod(&pod, &rules(), &knowing(&owner, Existence::Absent));
        assert_eq!(orphan, Ok(PodDecision::Evict));

        let kaboom = knowing(&owner, Existence::Unknown("kaboom".into()));
        let error = decide_pod(&pod, &rules(), &kaboom).unwrap_err();
        assert_eq!(&*error.error, "kaboom");
        assert!(error.to_string().contains("kaboom") && error.to_string().contains("default/a"));

        let error = decide_pod(&pod, &rules(), &Owners::new()).unwrap_err();
        assert_eq!(error.owner, owner, "an answer that is absent is not an absent owner");
    }
}

#[test]
fn what_a_pod_says_of_an_owner_decides_about_no_pod_of_another() {
    let victim = drain_pod("agent-1").in_namespace("kube-system").owned_by(agent());
    // It names the UID of someone else's owner, which is not checked.
    let liar = |named: Owner| {
        let owner = Owner { uid: Arc::clone(&agent().uid), ..named };
        drain_pod("liar").in_namespace("a-tenant").owned_by(owner)
    };
    for liar in [
        liar(owner("apps/v1", "DaemonSet", "no-such")),
        liar(owner("apps/v1", "StatefulSet", "agent")),
        liar(agent()),
    ] {
        let needed = owners_needed([&liar, &victim], &rules());
        assert_eq!(needed.len(), 2, "both are looked up: {needed:?}");
        let answer = |of: &(Arc<str>, Owner)| match &*of.0 {
            "kube-system" => Existence::Exists,
            _ => Existence::Absent,
        };
        let owners: Owners = needed.iter().map(|of| (of.clone(), answer(of))).collect();
        assert_eq!(decide_pod(&liar, &rules(), &owners), Ok(PodDecision::Evict));
        let kept = PodDecision::Leave(Why::Controller(agent()), Retention::Expected);
        assert_eq!(decide_pod(&victim, &rules(), &owners), Ok(kept));
    }
}

#[test]
fn other_owners_are_not_looked_up() {
    let deployed = drain_pod("a").owned_by(owner("apps/v1", "Deployment", "d"));
    assert!(owners_needed([&deployed], &rules()).is_empty());
    assert_eq!(of(&deployed), PodDecision::Evict);
    let foreign = drain_pod("a").owned_by(owner("apps.kruise.io/v1alpha1", "DaemonSet", "agent"));
    assert!(owners_needed([&foreign], &rules()).is_empty(), "only the kind's name is the same");
    assert_eq!(of(&foreign), PodDecision::Evict);
    let evicting = PodRules { evict_daemonset: true, evict_statefulset: true, ..rules() };
    for owner in [agent(), database()] {
        let pod = drain_pod("a").owned_by(owner);
        assert!(owners_needed([&pod], &evicting).is_empty());
        assert_eq!(decide_pod(&pod, &evicting, &Owners::new()), Ok(PodDecision::Evict));
    }
}

#[test]
fn each_owner_is_needed_once_and_none_for_mirror_pods() {
    let pods = [
        drain_pod("a").owned_by(agent()),
        drain_pod("b").owned_by(agent()),
        drain_pod("c").owned_by(database()).in_namespace("shop"),
        DrainPod { mirror: true, ..drain_pod("d").owned_by(owner("apps/v1", "DaemonSet", "x")) },
    ];
    let needed = owners_needed(&pods, &rules());
    assert_eq!(needed, [("default".into(), agent()), ("shop".into(), database())]);
}

#[test]
fn any_kind_can_be_left_by_group_and_kind() {
    let game = owner("apps.kruise.io/v1alpha1", "CloneSet", "game");
    let pod = drain_pod("a").owned_by(game.clone());
    let kind =
        |group: Option<&str>| GroupKind { group: group.map(Arc::from), kind: "CloneSet".into() };
    for (group, is_left) in [(None, true), (Some("apps.kruise.io"), true), (Some("apps"), false)] {
        let rules = PodRules { left_controllers: vec![kind(group)], ..rules() };
        let owners = knowing(&game, Existence::Exists);
        let expected = if is_left {
            PodDecision::Leave(Why::Controller(game.clone()), Retention::Expected)
        } else {
            PodDecision::Evict
        };
        assert_eq!(decide_pod(&pod, &rules, &owners), Ok(expected), "{group:?}");
        assert_eq!(owners_needed([&pod], &rules).len(), usize::from(is_left));
    }
}

#[test]
fn annotations_protect_by_key_or_by_key_and_value() {
    type Case = (&'static [&'static str], &'static [(&'static str, &'static str)], bool);
    let cases: [Case; 11] = [
        (&[], &[("Useless", "")], false),
        (&["Protect"], &[], false),
        (&["Protect="], &[], false),
        (&["Protect", "ProtectTwo=true"], &[("Useless", "")], false),
        (&["Protect", "ProtectTwo=true", "NeedsAValue=true"], &[("NeedsAValue", "")], false),
        (&["Protect"], &[("Protect", "")], true),
        (&["ProtectOne", "ProtectTwo"], &[("ProtectTwo", "")], true),
        (&["Protect=true"], &[("Protect", "true")], true),
        (&["ProtectOne=true", "ProtectTwo=true"], &[("ProtectTwo", "true")], true),
        (&["ProtectOne=true", "ProtectTwo"], &[("ProtectTwo", "")], true),
        (&["ProtectOne", "ProtectTwo=true"], &[("ProtectOne", "true")], true),
    ];
    for (protections, annotations, is_left) in cases {
        let pod = DrainPod { annotations: annotations.iter().copied().collect(), ..drain_pod("a") };
        let decide_pod = decide_pod(&pod, &protected_by(protections), &Owners::new()).unwrap();
        let held =
            matches!(decide_pod, PodDecision::Leave(Why::Protected(_), Retention::Permanent));
        assert_eq!(held, is_left, "{protections:?} {annotations:?}: {decide_pod:?}");
        assert_eq!(decide_pod == PodDecision::Evict, !is_left);
    }
}

#[test]
fn an_empty_value_protects_by_the_empty_value_only() {
    let rules = protected_by(&["Protect="]);
    let with = |value: &str| drain_pod("a").annotated_with([("Protect", value)]);
    assert!(matches!(decide_pod(&with(""), &rules, &Owners::new()), Ok(PodDecision::Leave(..))));
    assert_eq!(decide_pod(&with("x"), &rules, &Owners::new()), Ok(PodDecision::Evict));
}

#[test]
fn the_first_refusal_ends_it_and_an_error_is_kept() {
    let pod = drain_pod("a").owned_by(agent()).annotated_with([("Protect", "")]);
    let found = knowing(&agent(), Existence::Exists);
    let left = decide_pod(&pod, &protected_by(&["Protect"]), &found);
    assert_eq!(left, Ok(PodDecision::Leave(Why::Controller(agent()), Retention::Expected)));
    let orphan =
        decide_pod(&pod, &protected_by(&["Protect"]), &knowing(&agent(), Existence::Absent));
    assert!(matches!(orphan, Ok(PodDecision::Leave(Why::Protected(_), Retention::Permanent))));
    let kaboom = knowing(&agent(), Existence::Unknown("kaboom".into()));
    assert_eq!(
        &*decide_pod(&pod, &protected_by(&["Protect"]), &kaboom).unwrap_err().error,
        "kaboom"
    );
}

#[test]
fn a_daemon_sets_scratch_space_does_not_make_its_node_undrainable() {
    let pod = drain_pod("a").owned_by(agent()).with_volume("tmp", LocalVolumeKind::EmptyDir);
    let decide_pod = decide_pod(&pod, &rules(), &knowing(&agent(), Existence::Exists));
    assert_eq!(decide_pod, Ok(PodDecision::Leave(Why::Controller(agent()), Retention::Expected)));
}

#[test]
fn the_autoscalers_annotation_leaves_waits_or_lets_go() {
    let saying = |value: &str| drain_pod("a").annotated_with([(SAFE_TO_EVICT, value)]);
    assert_eq!(of(&saying("false")), left(Why::NotSafeToEvict));
    let until_finished = PodDecision::Leave(Why::RunsToCompletion, Retention::UntilFinished);
    assert_eq!(of(&saying("on-completion")), until_finished);
    assert_eq!(of(&saying("on-completion").finished()), PodDecision::Evict);
    assert_eq!(of(&saying("true")), PodDecision::Evict);
    assert_eq!(of(&saying("perhaps")), PodDecision::Evict);
    let scratch = |pod: DrainPod| pod.with_volume("tmp", LocalVolumeKind::EmptyDir);
    assert_eq!(of(&scratch(saying("true")).unowned()), PodDecision::Evict);
    let deaf = PodRules { honour_safe_to_evict: false, ..rules() };
    assert_eq!(decide_pod(&saying("false"), &deaf, &Owners::new()), Ok(PodDecision::Evict));
    let held = decide_pod(&scratch(saying("true")), &deaf, &Owners::new());
    assert_eq!(held, Ok(left(Why::LocalStorage("tmp".into()))));
}

#[test]
fn the_policys_own_protection_holds_against_safe_to_evict() {
    let pod = drain_pod("a").annotated_with([(SAFE_TO_EVICT, "true"), ("Protect", "")]);
    let decide_pod = decide_pod(&pod, &protected_by(&["Protect"]), &Owners::new());
    assert!(matches!(decide_pod, Ok(PodDecision::Leave(Why::Protected(_), Retention::Permanent))));
}

#[test]
fn volumes_named_as_safe_do_not_count() {
    let pod = drain_pod("a")
        .with_volume("tmp", LocalVolumeKind::EmptyDir)
        .with_volume("cache", LocalVolumeKind::EmptyDir);
    let naming = |names: &str| DrainPod {
        annotations: [(SAFE_VOLUMES, names)].into_iter().collect(),
        ..pod.clone()
    };
    assert_eq!(of(&naming("tmp, cache")), PodDecision::Evict);
    assert_eq!(of(&naming("tmp")), left(Why::LocalStorage("cache".into())));
    assert_eq!(of(&naming("tm")), left(Why::LocalStorage("tmp".into())));
    let deaf = PodRules { honour_safe_to_evict: false, ..rules() };
    assert!(matches!(
        decide_pod(&naming("tmp,cache"), &deaf, &Owners::new()),
        Ok(PodDecision::Leave(..))
    ));
}

#[test]
fn a_pod_that_is_going_is_awaited_unless_a_daemon_set_puts_the_next_in_its_place() {
    let going = drain_pod("a").going_until(30);
    assert_eq!(of(&going), PodDecision::Await);
    assert_eq!(of(&going.clone().unowned()), PodDecision::Await);
    assert_eq!(of(&going.clone().owned_by(database())), PodDecision::Await, "and nobody is asked");
    let daemon = going.owned_by(agent());
    let exists = decide_pod(&daemon, &rules(), &knowing(&agent(), Existence::Exists));
    assert!(matches!(exists, Ok(PodDecision::Leave(Why::Controller(_), Retention::Expected))));
    let absent = decide_pod(&daemon, &rules(), &knowing(&agent(), Existence::Absent));
    assert_eq!(absent, Ok(PodDecision::Await));
}

#[test]
fn a_finished_pod_may_be_held_but_holds_up_nothing() {
    let pod = drain_pod("a").finished().with_volume("tmp", LocalVolumeKind::EmptyDir);
    assert_eq!(of(&pod), PodDecision::Leave(Why::LocalStorage("tmp".into()), Retention::Expected));
    let pod = drain_pod("a").finished().annotated_with([(SAFE_TO_EVICT, "false")]);
    assert_eq!(of(&pod), PodDecision::Leave(Why::NotSafeToEvict, Retention::Expected));
}

#[test]
fn reasons_are_words_that_a_person_understands() {
    let why = Why::Controller(agent());
    let text = "it belongs to DaemonSet agent, a kind whose pods the policy keeps";
    assert_eq!(why.to_string(), text);
    let why = Why::Protected(Protection { key: "k".into(), value: Some("v".into()) });
    assert_eq!(why.to_string(), "its annotation k=v protects it");
}
