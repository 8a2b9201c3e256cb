//! `ostrakon pause` and `ostrakon resume`.

use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, anyhow};
use clap::Args;
use jiff::Timestamp;
use kube::config::Kubeconfig;
use prometheus::Registry;

use super::run::namespace;
use super::{Usage, duration, print};
use crate::clock::system_time;
use crate::cluster::{Api, Lease, Metrics, RequestError, connect};
use crate::evict::BreakerHold;
use crate::leader::LEASE;
use crate::model::{Pause, Resumption, later};

/// How long a response may take.
const WITHIN: Duration = Duration::from_secs(15);
/// A leader renews its lease each second. One that has not done so for this long may be dead.
const RENEWED: Duration = Duration::from_secs(10);

/// Hold all evictions, cordons and starts of drains
///
/// Writes an annotation of the lease by which the replicas elect their leader. The leader sees
/// it within a second, and a pause survives restarts and failover. Cancelling, uncordoning,
/// ending drains and reporting go on. Pods that come due meanwhile are evicted when the pause
/// ends, unless their taint is gone by then: remove wrong taints first, then resume. Needs the
/// rights get and patch on the lease. The same without this program:
///
///   kubectl annotate lease -n kube-system ostrakon --overwrite ostrakon.dev/pause="wrong taint"
#[derive(Debug, Args)]
#[command(verbatim_doc_comment)]
#[allow(clippy::doc_markdown, reason = "it is the help, too")]
pub(super) struct PauseArguments {
    /// Why, for everyone who wonders why nothing is evicted
    #[arg(long, value_name = "TEXT")]
    reason: String,

    /// End the pause by itself after this time, by the clock of the leader [default: it has no end]
    #[arg(long = "for", value_name = "DURATION", value_parser = duration)]
    lasts: Option<Duration>,

    #[command(flatten)]
    target: Target,
}

/// End a pause, or reset the breaker
///
/// What came due during the pause is evicted at the pace of the limits, unless its taint is gone. Needs the rights
/// get and patch on the lease. The same without this program:
///
///   kubectl annotate lease -n kube-system ostrakon ostrakon.dev/pause-
///
/// With --breaker, what the breaker holds goes on at the pace of the limits, and what has come
/// due until now does not count for it again. A pause stays. The same without this program:
///
///   kubectl annotate lease -n kube-system ostrakon --overwrite ostrakon.dev/breaker-reset="why"
#[derive(Debug, Args)]
#[command(verbatim_doc_comment)]
#[allow(clippy::doc_markdown, reason = "it is the help, too")]
pub(super) struct ResumeArguments {
    /// Why, for the log and the event; required with --breaker
    #[arg(long, value_name = "TEXT", required_if_eq("breaker", "true"))]
    reason: Option<String>,

    /// Reset the breaker, and end no pause
    #[arg(long)]
    breaker: bool,

    #[command(flatten)]
    target: Target,
}

/// Which lease of which cluster.
#[derive(Debug, Args)]
struct Target {
    /// Kubeconfig file [default: KUBECONFIG, then ~/.kube/config, then the pod's service account]
    #[arg(long, value_name = "FILE")]
    kubeconfig: Option<PathBuf>,

    /// Kubeconfig context [default: the current context]
    #[arg(long, value_name = "NAME")]
    context: Option<String>,

    /// Namespace of the lease, as for `ostrakon run`
    #[arg(long, value_name = "NAME", default_value = "kube-system", value_parser = namespace)]
    leader_elect_namespace: String,
}

/// Pauses.
pub(super) fn pause(arguments: &PauseArguments) -> anyhow::Result<()> {
    if arguments.reason.trim().is_empty() {
        return Err(Usage("--reason is empty; write why evictions are paused".to_owned()).into());
    }
    if arguments.lasts.is_some_and(|lasts| lasts.is_zero()) {
        return Err(Usage("--for=0s would end at once; write a time such as 30m".to_owned()).into());
    }
    arguments.target.run(async |lease| {
        let now = lease.now().await;
        let pause = Pause {
            reason: arguments.reason.clone(),
            by: lease.who().await,
            since: Some(now),
            until: arguments.lasts.map(|lasts| later(now, lasts)),
        };
        let stored = lease.annotate(Pause::ANNOTATION, Some(&pause.format())).await?;
        // As it will be shown.
        let shown = Pause::parse(&pause.format()).unwrap_or(pause);
        Ok(paused_text(&shown, &stored, now))
    })
}

/// Ends a pause.
pub(super) fn resume(arguments: &ResumeArguments) -> anyhow::Result<()> {
    if arguments.breaker {
        return reset_breaker(arguments);
    }
    arguments.target.run(async |lease| {
        let stored = lease.read().await?;
        let now = lease.now().await;
        let paused = stored.annotations.get(Pause::ANNOTATION).and_then(|text| Pause::parse(text));
        let Some(pause) = paused else {
            return Ok(format!("nothing is paused: lease {lease} has no {}\n", Pause::ANNOTATION));
        };
        let resumption =
            Resumption { reason: arguments.reason.clone(), by: lease.who().await, at: now };
        lease.annotate(Resumption::ANNOTATION, Some(&resumption.format())).await?;
        let stored = lease.annotate(Pause::ANNOTATION, None).await?;
        Ok(resumed_text(&pause, &stored, now))
    })
}

/// Resets the breaker.
fn reset_breaker(arguments: &ResumeArguments) -> anyhow::Result<()> {
    let reason = arguments.reason.clone().unwrap_or_default();
    if reason.trim().is_empty() {
        return Err(Usage("--reason is empty; write why the breaker is reset".to_owned()).into());
    }
    arguments.target.run(async |lease| {
        let stored = lease.read().await?;
        let now = lease.now().await;
        if !stored.annotations.contains_key(BreakerHold::ANNOTATION) {
            let annotation = BreakerHold::ANNOTATION;
            return Ok(format!("the breaker has not tripped: lease {lease} has no {annotation}\n"));
        }
        let by = lease.who().await;
        // It has the form of a pause: who, why, since when.
        let reset = Pause { reason, by, since: Some(now), until: None };
        let stored = lease.annotate(BreakerHold::RESET, Some(&reset.format())).await?;
        Ok(format!(
            "the breaker is reset\n{}\nwhat it held is evicted at the pace of the limits; \
             ostrakon_breaker_tripped is 0 then, and the lease has an event EvictionBreakerReset\n",
            leader_text(&stored, now)
        ))
    })
}

fn paused_text(pause: &Pause, lease: &Lease, now: Timestamp) -> String {
    let end = match pause.until {
        Some(_) => "it ends by itself; to end it earlier: ostrakon resume",
        None => "it has no end; to end it: ostrakon resume",
    };
    format!(
        "evictions, cordons and starts of drains are {pause}\n{end}\n{}\n\
         requests that were already on their way may still arrive; what is due is evicted at the end \
         unless its taint is gone, so remove wrong taints first\n\
         to see that it is in force: ostrakon_paused is 1 in the metrics of each replica, and the lease \
         has an event EvictionsPaused\n",
        leader_text(lease, now)
    )
}

fn resumed_text(pause: &Pause, lease: &Lease, now: Timestamp) -> String {
    let over = if pause.is_on(now) { "it was" } else { "it had ended by itself; it was" };
    format!(
        "resumed; {over} {pause}\n{}\nwhat is due is evicted at the pace of the limits; ostrakon_backlog_pods counts it\n",
        leader_text(lease, now)
    )
}

/// Who will act on the annotation. How many replicas have seen it is not stored anywhere.
fn leader_text(lease: &Lease, now: Timestamp) -> String {
    let holder = lease.holder.as_deref().filter(|holder| !holder.is_empty());
    let is_old = |renewed: Timestamp| {
        Duration::try_from(now.duration_since(renewed)).is_ok_and(|ago| ago > RENEWED)
    };
    match (holder, lease.renewed) {
        (None, _) => {
            "no replica leads; the next leader reads it before it writes anything, and a replica \
            that runs with --leader-elect=false within a second"
                .to_owned()
        }
        (Some(holder), Some(renewed)) if is_old(renewed) => format!(
            "the leader {holder} has not renewed its lease since {renewed}; the next leader reads it \
             before it writes anything"
        ),
        (Some(holder), _) => format!("the leader {holder} reads it within a second"),
    }
}

/// The lease, as this user can reach it.
struct TargetLease<'a> {
    api: Api,
    target: &'a Target,
    server: String,
}

impl std::fmt::Display for TargetLease<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}/{LEASE}", self.target.leader_elect_namespace)
    }
}

impl Target {
    /// Does something with the lease, and prints what is true then.
    fn run(
        &self,
        work: impl AsyncFnOnce(TargetLease<'_>) -> anyhow::Result<String>,
    ) -> anyhow::Result<()> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        let text = runtime.context("cannot start")?.block_on(async {
            let cluster = connect(self.kubeconfig.as_deref(), self.context.as_deref())?;
            let api = Api::new(cluster.client, Metrics::register(&Registry::new())?);
            work(TargetLease { api, target: self, server: cluster.server }).await
        })?;
        print(&text)
    }

    /// The name of the user in the kubeconfig.
    fn user(&self) -> Option<String> {
        let file: Option<&Path> = self.kubeconfig.as_deref();
        let config = file.map_or_else(Kubeconfig::read, Kubeconfig::read_from).ok()?;
        let wanted = self.context.as_ref().or(config.current_context.as_ref())?;
        let context = config.contexts.iter().find(|context| context.name == *wanted)?;
        context.context.as_ref()?.user.clone()
    }
}

impl TargetLease<'_> {
    /// The API server's time; this machine's if it does not tell.
    async fn now(&self) -> Timestamp {
        self.api.server_time().await.ok().flatten().unwrap_or_else(system_time)
    }

    /// Who this user is to the API server, or in the kubeconfig.
    async fn who(&self) -> Option<String> {
        let known = self.api.who_am_i().await.ok().flatten();
        known.or_else(|| self.target.user())
    }

    async fn read(&self) -> anyhow::Result<Lease> {
        let lease = self.api.lease(&self.target.leader_elect_namespace, LEASE, WITHIN).await;
        lease.map_err(|error| self.explained(&error, "get"))?.ok_or_else(|| self.missing())
    }

    async fn annotate(&self, annotation: &str, value: Option<&str>) -> anyhow::Result<Lease> {
        let namespace = &self.target.leader_elect_namespace;
        let stored = self.api.annotate_lease(namespace, LEASE, annotation, value, WITHIN).await;
        stored.map_err(|error| self.explained(&error, "patch"))
    }

    fn missing(&self) -> anyhow::Error {
        anyhow!(
            "there is no lease {self} at {}: check that ostrakon is installed in this cluster, and that \
             --leader-elect-namespace is the one that it runs with",
            self.server
        )
    }

    fn explained(&self, error: &RequestError, verb: &str) -> anyhow::Error {
        match error {
            RequestError::Status(answer) if answer.is_not_found() => self.missing(),
            RequestError::Status(answer) if answer.is_missing_right() => anyhow!(
                "missing permission: {verb} leases.coordination.k8s.io {LEASE:?} in namespace {} ({}); the \
                 Role ostrakon-pause in deploy/kustomize/components/pause grants it",
                self.target.leader_elect_namespace,
                answer.message
            ),
            RequestError::Status(answer) if answer.code == 401 => {
                anyhow!("{} rejects the credentials ({error}); check the kubeconfig", self.server)
            }
            _ => anyhow!("cannot {verb} lease {self} at {}: {error}", self.server),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::build::at;

    fn pause() -> Pause {
        Pause {
            reason: "wrong taint".to_owned(),
            by: Some("jane".to_owned()),
            since: Some(at(0)),
            until: None,
        }
    }

    fn lease(holder: &str, renewed: i64) -> Lease {
        let mut lease = Lease::default();
        (lease.holder, lease.renewed) = (Some(holder.to_owned()), Some(at(renewed)));
        lease
    }

    #[test]
    fn what_is_true_after_a_pause_is_printed_with_what_to_look_at() {
        let text = paused_text(&pause(), &lease("ostrakon-0", 0), at(1));
        for words in [
            "are paused by jane since 2026-01-01T12:00:00Z: wrong taint\n",
            "it has no end; to end it: ostrakon resume",
            "the leader ostrakon-0 reads it within a second",
            "ostrakon_paused is 1",
        ] {
            assert!(text.contains(words), "{words}: {text}");
        }
        let ends = Pause { until: Some(at(60)), ..pause() };
        assert!(paused_text(&ends, &lease("", 0), at(1)).contains("it ends by itself"));
    }

    #[test]
    fn a_leader_that_may_be_dead_or_absent_is_told() {
        assert!(leader_text(&lease("a", 0), at(60)).contains("has not renewed its lease since"));
        assert!(leader_text(&lease("", 0), at(0)).contains("no replica leads"));
        assert!(leader_text(&lease("a", 0), at(9)).contains("within a second"));
        let forward = leader_text(&lease("a", 60), at(0));
        assert!(forward.contains("within a second"), "its clock is ahead: {forward}");
    }

    #[test]
    fn a_pause_that_had_ended_is_told_apart() {
        let ended = Pause { until: Some(at(60)), ..pause() };
        assert!(resumed_text(&ended, &lease("a", 60), at(61)).contains("it had ended by itself"));
        assert!(!resumed_text(&pause(), &lease("a", 60), at(61)).contains("by itself"));
    }
}
