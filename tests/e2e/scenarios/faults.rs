//! Requests that fail, hang or are refused: every condemned pod goes in the end, and no other.

use std::collections::BTreeMap;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use jiff::SignedDuration;
use k8s_openapi::api::core::v1::Event;
use k8s_openapi::api::rbac::v1::ClusterRole;
use kube::Api;
use kube::api::{DeleteParams, DynamicObject, ListParams, Patch, PatchParams};
use kube::core::{ApiResource, GroupVersionKind};
use ostrakon::clock::system_time;
use serde_json::json;

use super::outside::{
    backlog_is_empty, due_by, figure, none_was_deleted_twice, none_was_early,
    nothing_was_written_about, ostrakon_behind, until,
};
use crate::ctx::{Ctx, SOON, Scenario, trial};
use crate::harness::cluster::pod;
use crate::harness::{
    Answer, Arena, Bed, Fault, FaultProxy, How, Match, NodeRef, Ostrakon, PodRef, Refusal, User,
    Verb, Witness, manifests, no_execute, wait,
};

pub(super) fn trials() -> Vec<Scenario> {
    vec![
        trial!(all_go_although_most_writes_fail).alone(),
        trial!(all_go_once_writes_are_answered_again).alone(),
        trial!(nobody_is_deleted_twice_for_a_lost_answer).alone(),
        trial!(all_go_although_the_api_server_is_killed).alone(),
        trial!(all_go_although_a_proxy_answers_for_a_while).alone(),
        trial!(all_go_once_a_policy_lets_them).alone().within(Duration::from_secs(300)),
        trial!(all_go_once_the_right_is_back).alone(),
        trial!(a_pod_whose_condition_a_policy_refuses_is_deleted_without_it).real(),
    ]
}

const KEY: &str = "fault";
const NODES: usize = 5;

/// Pods that are to go at once, later and never, and ostrakon behind a proxy. Half of those that go
/// are gone as soon as they are deleted, the others stay and terminate.
pub(super) struct Stage {
    pub arena: Arena,
    pub nodes: Vec<NodeRef>,
    pub condemned: Vec<PodRef>,
    pub counting: Vec<PodRef>,
    pub staying: Vec<PodRef>,
    /// Nobody is to touch it but for a rehearsal.
    pub spare: PodRef,
    pub witness: Witness,
    pub proxy: FaultProxy,
}

impl Stage {
    async fn set(ctx: &Ctx, condemned: usize, counting: usize) -> Result<Self> {
        Self::on(ctx.bed(), ctx.arena().await?, condemned, counting).await
    }

    pub(super) async fn on(
        bed: &Bed,
        arena: Arena,
        condemned: usize,
        counting: usize,
    ) -> Result<Self> {
        let mut nodes = Vec::new();
        for n in 0..NODES {
            nodes.push(arena.node(&format!("n{n}")).await?);
        }
        let grace = |p: usize| if p.is_multiple_of(2) { 0 } else { 30 };
        let on = |p: usize| &nodes[p % NODES];
        let sketches =
            (0..condemned).map(|p| pod(&format!("at-once-{p}")).on(on(p)).grace(grace(p)));
        let condemned = arena.create_all(sketches).await?;
        let sketches = (0..counting).map(|p| {
            let seconds = i64::try_from(5 + p).unwrap_or_default();
            pod(&format!("later-{p}")).on(on(p)).grace(grace(p)).tolerates_for(KEY, seconds)
        });
        let counting = arena.create_all(sketches).await?;
        let sketches = (0..20).map(|p| pod(&format!("stays-{p}")).on(on(p)).tolerates(KEY));
        let staying = arena.create_all(sketches).await?;
        let spare = arena.create(pod("spare").on(on(0)).tolerates(KEY)).await?;
        let witness = arena.witness().await?;
        let proxy = bed.fault_proxy(7).await?;
        Ok(Self { arena, nodes, condemned, counting, staying, spare, witness, proxy })
    }

    pub(super) async fn taint(&self) -> Result<()> {
        for node in &self.nodes {
            self.arena.taint(node, no_execute(KEY).added_now()).await?;
        }
        Ok(())
    }

    pub(super) fn going(&self) -> impl Iterator<Item = &PodRef> + Clone {
        self.condemned.iter().chain(&self.counting)
    }

    pub(super) fn deleted(&self) -> usize {
        let deleted = |pod: &&PodRef| {
            self.witness.sighting(pod).is_some_and(|sighting| sighting.deleted.is_some())
        };
        self.going().filter(deleted).count()
    }

    /// All that must hold in the end.
    async fn all_went_and_no_other(&self, bed: &Bed, ostrakon: &Ostrakon) -> Result<()> {
        nothing_was_written_about(bed, &self.staying)?;
        none_was_deleted_twice(bed, self.arena.namespace(), User::Ostrakon)?;
        backlog_is_empty(ostrakon).await?;
        self.witness.never_deleted_for(&self.staying, Duration::from_secs(2)).await?;
        let gone = self.going().filter(|pod| {
            self.witness.sighting(pod).is_some_and(|sighting| sighting.disruption.is_some())
        });
        // A pod without grace can go before the watch has shown its condition.
        ensure!(gone.count() >= self.condemned.len() / 2, "pods went without their condition");
        Ok(())
    }
}

/// What happens to most writes.
pub(super) fn most_fail() -> Fault {
    Fault::AnyOf(vec![
        Fault::status(500),
        Fault::status(503),
        Fault::status(429),
        Fault::Answer(Answer::new(429).retry_after(1)),
        Fault::LoseAnswer,
        Fault::Silence(Duration::from_secs(2)),
    ])
}

async fn all_go_although_most_writes_fail(ctx: &Ctx) -> Result<()> {
    let bed = ctx.bed();
    let stage = Stage::set(ctx, 60, 20).await?;
    let ostrakon = ostrakon_behind(bed, &stage.proxy).await?;
    let rule = Match::writes().then(most_fail()).chance(0.85);
    stage.proxy.set_rules(vec![rule.clone()]);
    stage.taint().await?;
    let due = due_by(&stage.arena, KEY).await?;
    ensure!(due.len() == 20, "{} pods count down", due.len());
    stage.witness.never_deleted_for(&stage.staying, Duration::from_secs(30)).await?;
    let meanwhile = stage.deleted();
    stage.proxy.clear();
    let cleared = system_time();
    // The longest pause that has come up within 30 s is 32 s.
    let sightings = stage.witness.deleted_within(stage.going(), Duration::from_secs(60)).await?;
    let last = sightings.iter().filter_map(|one| one.deleted).map(|moment| moment.wall).max();
    let last = last.context("no pods")?.duration_since(cleared);
    let (failed, all) = (rule.hits(), stage.proxy.count(&Match::writes()));
    figure(format!(
        "{meanwhile} of 80 pods went while {failed} of {all} writes failed, the last {last:#} later"
    ));
    ensure!(failed > 100, "only {failed} writes failed");
    none_was_early(bed, &due)?;
    stage.all_went_and_no_other(bed, &ostrakon).await?;
    ostrakon.stop().await?;
    Ok(())
}

async fn all_go_once_writes_are_answered_again(ctx: &Ctx) -> Result<()> {
    let bed = ctx.bed();
    let stage = Stage::set(ctx, 40, 5).await?;
    let ostrakon = ostrakon_behind(bed, &stage.proxy).await?;
    // Some are carried out, but nobody hears of it.
    let unheard = Match::writes().then(Fault::WithholdAnswer).chance(0.3);
    stage.proxy.set_rules(vec![unheard, Match::writes().then(Fault::Hang)]);
    stage.taint().await?;
    let due = due_by(&stage.arena, KEY).await?;
    stage.witness.never_deleted_for(&stage.staying, Duration::from_secs(33)).await?;
    let timeouts = ostrakon.metrics().await?;
    let timeouts = timeouts.sum("ostrakon_eviction_failures_total", &[("cause", "timeout")]);
    let meanwhile = stage.deleted();
    // The window of 8 once, and then what is left of it.
    ensure!(timeouts.is_some_and(|timeouts| timeouts >= 10.0), "{timeouts:?} timeouts");
    let log = ostrakon.log()?;
    ensure!(log.contains("no answer within 15s"), "no request timed out by its own limit");
    stage.proxy.clear();
    let cleared = system_time();
    // What hangs now has up to 15 s to go, and a pause after that.
    let sightings = stage.witness.deleted_within(stage.going(), Duration::from_secs(30)).await?;
    let last = sightings.iter().filter_map(|one| one.deleted).map(|moment| moment.wall).max();
    let last = last.context("no pods")?.duration_since(cleared);
    figure(format!(
        "{meanwhile} pods went meanwhile, {timeouts:?} timeouts, the last {last:#} later"
    ));
    none_was_early(bed, &due)?;
    stage.all_went_and_no_other(bed, &ostrakon).await?;
    ostrakon.stop().await?;
    Ok(())
}

/// The answers of all first deletions are lost, and the watch shows them later than the next try.
async fn nobody_is_deleted_twice_for_a_lost_answer(ctx: &Ctx) -> Result<()> {
    let bed = ctx.bed();
    let stage = Stage::set(ctx, 20, 5).await?;
    let ostrakon = ostrakon_behind(bed, &stage.proxy).await?;
    let lost = Match::verbs([Verb::Delete]).resource("pods").then(Fault::LoseAnswer).at_most(20);
    let behind = Match::watch("pods").then(Fault::HoldBack(Duration::from_secs(3)));
    stage.proxy.set_rules(vec![lost.clone(), behind]);
    stage.taint().await?;
    stage.witness.deleted_within(stage.going(), Duration::from_secs(20)).await?;
    // Time for what would be sent again.
    tokio::time::sleep(Duration::from_secs(4)).await;
    ensure!(lost.hits() == 20, "{} answers were lost", lost.hits());
    stage.all_went_and_no_other(bed, &ostrakon).await?;
    ostrakon.stop().await?;
    Ok(())
}

/// The API server is killed while 60 pods go and 20 count down, and comes back seconds later.
async fn all_go_although_the_api_server_is_killed(ctx: &Ctx) -> Result<()> {
    let bed = ctx.bed();
    let stage = Stage::set(ctx, 60, 20).await?;
    let ostrakon = Ostrakon::start(bed).await?;
    stage.taint().await?;
    let due = due_by(&stage.arena, KEY).await?;
    stage.witness.deleted_within(&stage.condemned[..5], Duration::from_secs(10)).await?;
    let killed = system_time();
    bed.restart_apiserver(How::Kill).await?;
    let back = system_time();
    // The longest pause that has come up in the time that it was away is as long as that time.
    let away = back.duration_since(killed);
    let last = due.last().context("no pods")?.at.max(back);
    until(last + away + SignedDuration::from_secs(5)).await;
    let sightings = stage.witness.deleted_within(stage.going(), Duration::from_secs(1)).await?;
    let condemned = sightings.iter().take(stage.condemned.len()).filter_map(|one| one.deleted);
    let gone = condemned.map(|moment| moment.wall).max().context("no pods")?;
    figure(format!(
        "away for {away:#}; the last condemned pod went {:#} after the return",
        gone.duration_since(back)
    ));
    none_was_early(bed, &due)?;
    stage.all_went_and_no_other(bed, &ostrakon).await?;
    ostrakon.stop().await?;
    Ok(())
}

/// Success that is none: the pods stay in sight, and are deleted when the API server itself is
/// there again.
async fn all_go_although_a_proxy_answers_for_a_while(ctx: &Ctx) -> Result<()> {
    let bed = ctx.bed();
    let stage = Stage::set(ctx, 20, 5).await?;
    let ostrakon = ostrakon_behind(bed, &stage.proxy).await?;
    let page = Fault::Garbage("<html>Please sign in</html>");
    stage.proxy.set_rules(vec![Match::writes().then(page)]);
    stage.taint().await?;
    let due = due_by(&stage.arena, KEY).await?;
    stage.witness.never_deleted_for(stage.going(), Duration::from_secs(12)).await?;
    let backlog = ostrakon.metrics().await?.get("ostrakon_backlog_pods");
    ensure!(backlog == Some(25.0), "{backlog:?} pods are in the backlog");
    let counted = ostrakon.metrics().await?.get("taint_eviction_controller_pod_deletions_total");
    ensure!(counted == Some(0.0), "{counted:?} deletions were believed");
    stage.proxy.clear();
    let cleared = system_time();
    let sightings = stage.witness.deleted_within(stage.going(), Duration::from_secs(40)).await?;
    let last = sightings.iter().filter_map(|one| one.deleted).map(|moment| moment.wall).max();
    figure(format!("the last went {:#} later", last.context("no pods")?.duration_since(cleared)));
    none_was_early(bed, &due)?;
    stage.all_went_and_no_other(bed, &ostrakon).await?;
    ostrakon.stop().await?;
    Ok(())
}

/// Warnings about failed evictions: pod and cause, with their number.
async fn warnings(arena: &Arena) -> Result<BTreeMap<(String, String), usize>> {
    let mut warnings = BTreeMap::new();
    for event in arena.events().list(&ListParams::default()).await? {
        if event.type_.as_deref() == Some("Warning")
            && event.reason.as_deref() == Some("TaintManagerEvictionFailed")
        {
            let uid = event.involved_object.uid.clone().unwrap_or_default();
            *warnings.entry((uid, cause_of(&event))).or_default() += 1;
        }
    }
    Ok(warnings)
}

/// `forbidden` of "… (forbidden: 403 …): trying again …".
fn cause_of(event: &Event) -> String {
    let message = event.message.as_deref().unwrap_or_default();
    let cause = message.split_once('(').and_then(|(_, rest)| rest.split_once(':'));
    cause.map(|(cause, _)| cause.to_owned()).unwrap_or_default()
}

/// Checks that each of `pods` has one warning of this cause, and that there are no others.
async fn one_warning_each<'a>(
    arena: &Arena,
    cause: &str,
    pods: impl Iterator<Item = &'a PodRef> + Clone,
) -> Result<()> {
    wait::until("the warnings", Duration::from_secs(10), async || {
        let found = warnings(arena).await?;
        ensure!(found.len() >= pods.clone().count(), "{} warnings", found.len());
        Ok(Some(()))
    })
    .await?;
    let found = warnings(arena).await?;
    for pod in pods.clone() {
        let number = found.get(&(pod.uid.clone(), cause.to_owned())).copied();
        ensure!(number == Some(1), "{pod} has {number:?} warnings of {cause}");
    }
    ensure!(found.len() == pods.count(), "there are more: {found:?}");
    Ok(())
}

/// A `ValidatingAdmissionPolicy` that keeps `user` from deleting the arena's pods, and its binding.
struct Denial {
    objects: Vec<(Api<DynamicObject>, DynamicObject)>,
}

impl Denial {
    fn new(arena: &Arena, user: User) -> Result<Self> {
        let name = format!("{}-denial", arena.namespace());
        let group = "admissionregistration.k8s.io";
        let policy = json!({
            "apiVersion": format!("{group}/v1"),
            "kind": "ValidatingAdmissionPolicy",
            "metadata": { "name": name },
            "spec": {
                "failurePolicy": "Fail",
                "matchConstraints": { "resourceRules": [{
                    "apiGroups": [""], "apiVersions": ["v1"],
                    "operations": ["DELETE"], "resources": ["pods"],
                }] },
                "validations": [{
                    "expression": format!("request.userInfo.username != '{}'", user.name()),
                    "message": "not while the test says so",
                }],
            },
        });
        let namespace = json!({ "kubernetes.io/metadata.name": arena.namespace() });
        let binding = json!({
            "apiVersion": format!("{group}/v1"),
            "kind": "ValidatingAdmissionPolicyBinding",
            "metadata": { "name": name },
            "spec": {
                "policyName": name,
                "validationActions": ["Deny"],
                "matchResources": { "namespaceSelector": { "matchLabels": namespace } },
            },
        });
        let mut objects = Vec::new();
        for value in [policy, binding] {
            let object: DynamicObject = serde_json::from_value(value)?;
            let types = object.types.clone().context("an object without kind")?;
            let resource = ApiResource::from_gvk(&GroupVersionKind::try_from(&types)?);
            objects.push((Api::all_with(arena.client(), &resource), object));
        }
        Ok(Self { objects })
    }

    async fn apply(&self) -> Result<()> {
        for (api, object) in &self.objects {
            let name = object.metadata.name.as_deref().unwrap_or_default();
            api.patch(name, &PatchParams::apply("test").force(), &Patch::Apply(object)).await?;
        }
        Ok(())
    }

    async fn lift(&self) -> Result<()> {
        for (api, object) in self.objects.iter().rev() {
            let name = object.metadata.name.as_deref().unwrap_or_default();
            api.delete(name, &DeleteParams::default()).await?;
        }
        Ok(())
    }
}

/// Waits until ostrakon's user may, or may not, delete a pod of the arena.
async fn may_delete(bed: &Bed, arena: &Arena, pod: &PodRef, allowed: bool) -> Result<()> {
    let pods = Api::<k8s_openapi::api::core::v1::Pod>::namespaced(
        bed.client_for(User::Ostrakon)?,
        arena.namespace(),
    );
    let rehearsal = DeleteParams { dry_run: true, ..DeleteParams::default() };
    wait::until("the change of rights to take effect", Duration::from_secs(20), async || {
        let may = pods.delete(&pod.name, &rehearsal).await.is_ok();
        Ok((may == allowed).then_some(()))
    })
    .await
}

async fn all_go_once_a_policy_lets_them(ctx: &Ctx) -> Result<()> {
    let bed = ctx.bed();
    let stage = Stage::set(ctx, 15, 5).await?;
    let ostrakon = ostrakon_behind(bed, &stage.proxy).await?;
    let denial = Denial::new(&stage.arena, User::Ostrakon)?;
    denial.apply().await?;
    let outcome = async {
        may_delete(bed, &stage.arena, &stage.spare, false).await?;
        stage.taint().await?;
        // Nothing is deleted; that the condition is written is no harm.
        tokio::time::sleep(Duration::from_secs(60)).await;
        ensure!(stage.deleted() == 0, "{} pods are deleted", stage.deleted());
        let metrics = ostrakon.metrics().await?;
        let stuck = metrics.sum("ostrakon_backlog_pods", &[("state", "invalid")]);
        ensure!(stuck == Some(20.0), "{stuck:?} pods are in the backlog as refused");
        one_warning_each(&stage.arena, "invalid", stage.going()).await
    };
    let outcome = outcome.await;
    denial.lift().await?;
    outcome?;
    may_delete(bed, &stage.arena, &stage.spare, true).await?;
    let lifted = system_time();
    // The longest pause after a minute of failures is 64 s.
    let sightings = stage.witness.deleted_within(stage.going(), Duration::from_secs(80)).await?;
    let last = sightings.iter().filter_map(|one| one.deleted).map(|moment| moment.wall).max();
    figure(format!("the last went {:#} later", last.context("no pods")?.duration_since(lifted)));
    stage.all_went_and_no_other(bed, &ostrakon).await?;
    one_warning_each(&stage.arena, "invalid", stage.going()).await?;
    ostrakon.stop().await?;
    Ok(())
}

async fn all_go_once_the_right_is_back(ctx: &Ctx) -> Result<()> {
    let bed = ctx.bed();
    let stage = Stage::set(ctx, 15, 5).await?;
    let ostrakon = ostrakon_behind(bed, &stage.proxy).await?;
    let outcome = async {
        let roles: Api<ClusterRole> = Api::all(stage.arena.client());
        let mut role = roles.get("ostrakon").await?;
        for rule in role.rules.iter_mut().flatten() {
            rule.verbs.retain(|verb| verb != "delete");
        }
        roles.replace("ostrakon", &kube::api::PostParams::default(), &role).await?;
        may_delete(bed, &stage.arena, &stage.spare, false).await?;
        stage.taint().await?;
        tokio::time::sleep(Duration::from_secs(28)).await;
        ensure!(stage.deleted() == 0, "{} pods are deleted", stage.deleted());
        let metrics = ostrakon.metrics().await?;
        let stuck = metrics.sum("ostrakon_backlog_pods", &[("state", "forbidden")]);
        ensure!(stuck == Some(20.0), "{stuck:?} pods are in the backlog as forbidden");
        one_warning_each(&stage.arena, "forbidden", stage.going()).await
    };
    let outcome = outcome.await;
    manifests::apply_rights(&stage.arena.client()).await?;
    outcome?;
    may_delete(bed, &stage.arena, &stage.spare, true).await?;
    stage.witness.deleted_within(stage.going(), Duration::from_secs(50)).await?;
    stage.all_went_and_no_other(bed, &ostrakon).await?;
    one_warning_each(&stage.arena, "forbidden", stage.going()).await?;
    let deletes = bed.audit()?.by(User::Ostrakon).verb(Verb::Delete).resource("pods");
    let refused = deletes.namespace(stage.arena.namespace()).code(403).len();
    figure(format!("{refused} refusals"));
    ensure!(refused >= 60, "only {refused} refusals: it does not try");
    ostrakon.stop().await?;
    Ok(())
}

async fn a_pod_whose_condition_a_policy_refuses_is_deleted_without_it(ctx: &Ctx) -> Result<()> {
    let _ostrakon = ctx.ostrakon().await?;
    for reason in ["Invalid", "Forbidden"] {
        let arena = ctx.arena().await?;
        let refusal = Refusal::of_statuses(ctx.bed(), &arena, reason).await?;
        let node = arena.node("n").await?;
        let goes = arena.create(pod("goes").on(&node)).await?;
        let stays = arena.create(pod("stays").on(&node).tolerates(KEY)).await?;
        let witness = arena.witness().await?;
        arena.taint(&node, no_execute(KEY).added_now()).await?;
        let sightings = witness.deleted_within([&goes], SOON).await?;
        ensure!(sightings.iter().all(|one| one.disruption.is_none()), "the policy did nothing");
        witness.only_these_deleted([&goes], SOON, Duration::from_secs(2)).await?;
        nothing_was_written_about(ctx.bed(), [&stays])?;
        none_was_deleted_twice(ctx.bed(), arena.namespace(), User::Ostrakon)?;
        let told = wait::until("the warning", SOON, async || {
            let events = arena.events().list(&ListParams::default()).await?.items;
            let unmarked = |event: &&Event| {
                event.reason.as_deref() == Some("DisruptionConditionRefused")
                    && event.involved_object.uid.as_deref() == Some(&goes.uid)
            };
            Ok(Some(events.iter().filter(unmarked).count()).filter(|told| *told > 0))
        });
        ensure!(told.await? == 1, "{reason}: said more than once");
        refusal.lift().await?;
    }
    Ok(())
}
