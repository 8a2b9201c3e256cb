//! The evictor's requests, carried by the API client.

use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;

use crate::cluster::{Api, BudgetRefusal, RequestError};
use crate::drain::{BudgetBlocker, budget_blocker};
use crate::drain_reconciler::Drains;
use crate::evict::{Cause, Failure, FailureKind, Notices, Requests};
use crate::model::{Node, NodeName, Pod, PodRef};
use crate::observe::Recorder;

/// Sends an evictor's requests to the API server.
#[derive(Clone)]
pub(super) struct ApiRequests {
    pub api: Api,
    /// Cordon and drain, which need to know more of a node.
    pub drains: Option<Arc<Drains>>,
}

impl Requests for ApiRequests {
    async fn mark(&self, pod: &Pod, now: Timestamp) -> Result<Pod, Failure> {
        self.api.mark_pod(pod, now).await.map_err(failure)
    }

    async fn delete(&self, pod: &PodRef) -> Result<(), Failure> {
        self.api.delete_pod(pod).await.map_err(failure)
    }

    async fn pod(&self, pod: &PodRef) -> Result<Option<Pod>, Failure> {
        let holder = self.api.pod(pod).await.map_err(failure)?;
        Ok(holder.filter(|holder| holder.uid == pod.uid))
    }

    async fn node(&self, name: &NodeName) -> Result<Option<Node>, Failure> {
        let Some(drains) = &self.drains else {
            return self.api.node(name).await.map_err(failure);
        };
        let stored = self.api.stored_node(name, &drains.watched()).await.map_err(failure)?;
        Ok(stored.map(|stored| stored.node))
    }

    async fn evict(&self, pod: &PodRef, grace: Option<i64>) -> Result<(), Failure> {
        self.api.evict_pod(pod, grace).await.map_err(refused)
    }

    async fn delete_within(&self, pod: &PodRef, grace: Option<i64>) -> Result<(), Failure> {
        self.api.delete_pod_within(pod, grace).await.map_err(failure)
    }

    async fn budgets_over(&self, pod: &PodRef) -> Result<Vec<Arc<str>>, Failure> {
        self.api.budgets_over(pod).await.map_err(failure)
    }

    async fn hopeless_budget(&self, pod: &PodRef) -> Result<Option<String>, Failure> {
        let Some((pod, budgets)) = self.api.pod_and_budgets(pod).await.map_err(failure)? else {
            return Ok(None);
        };
        let blocker = budget_blocker(&pod, &budgets);
        Ok(blocker.filter(BudgetBlocker::is_lasting).map(|blocker| blocker.to_string()))
    }
}

/// What a refused eviction means.
fn refused(error: RequestError) -> Failure {
    if let RequestError::Status(answer) = &error {
        match answer.by_budget() {
            Some(BudgetRefusal::Several) => return Failure::SeveralBudgets,
            Some(BudgetRefusal::UsedUp { budget, message }) => {
                return Failure::Blocked { budget, message, after: answer.retry_after };
            }
            None => {}
        }
    }
    failure(error)
}

/// What a failed request means for an eviction.
#[allow(clippy::needless_pass_by_value)] // For use with `map_err`.
pub(super) fn failure(error: RequestError) -> Failure {
    let message = error.to_string();
    let retry = |kind: FailureKind, after: Option<Duration>| Failure::Retry {
        kind,
        message: message.clone(),
        after,
    };
    match &error {
        // Only the API server's own word counts: a proxy's 404 says nothing about the pod.
        RequestError::Status(answer) if answer.is_not_found() => Failure::Gone,
        RequestError::Status(answer) if answer.by_webhook().is_some() => {
            retry(FailureKind::Webhook, answer.retry_after)
        }
        RequestError::Status(answer) if answer.is_too_large() => retry(FailureKind::Invalid, None),
        RequestError::Status(answer) if matches!(answer.code, 409 | 422) => {
            Failure::Doubtful { kind: FailureKind::of_code(answer.code), message }
        }
        RequestError::Status(answer) => {
            retry(FailureKind::of_code(answer.code), answer.retry_after)
        }
        RequestError::Timeout(_) => retry(FailureKind::Timeout, None),
        RequestError::Transport(_) | RequestError::WrongPeer(_) | RequestError::Credentials(_) => {
            retry(FailureKind::Connection, None)
        }
        RequestError::Body(_) | RequestError::TooLarge(_) => retry(FailureKind::Unexpected, None),
        RequestError::NotLeading | RequestError::DryRun => retry(FailureKind::NotLeading, None),
        RequestError::Paused => Failure::Paused,
    }
}

/// Tells people by Kubernetes events.
#[derive(Clone)]
pub(super) struct ByEvents(pub Recorder);

impl Notices for ByEvents {
    fn evicting(&self, pod: &PodRef, cause: &Cause) {
        match cause {
            Cause::Taint(verdict) => self.0.evicting(pod, verdict),
            Cause::Drain(drain) => self.0.draining(pod, &drain.policy, drain.delete),
        }
    }

    fn unmarked(&self, pod: &PodRef, cause: &Cause, kind: FailureKind, message: &str) {
        // A drain writes no condition.
        if let Cause::Taint(verdict) = cause {
            self.0.unmarked(pod, verdict, kind.label(), message);
        }
    }

    fn failing(&self, pod: &PodRef, cause: &Cause, kind: FailureKind, message: &str) {
        match cause {
            Cause::Taint(verdict) => self.0.failing(pod, verdict, kind.label(), message),
            Cause::Drain(_) => {
                let message = format!("{}: {message}; retrying", kind.label());
                self.0.drain_blocked(pod, kind.label(), &message);
            }
        }
    }

    fn blocked(&self, pod: &PodRef, cause: &Cause, message: &str) {
        match cause {
            Cause::Taint(verdict) => self.0.taint_blocked(pod, verdict, "budget", message),
            Cause::Drain(_) => self.0.drain_blocked(pod, "budget", message),
        }
    }

    fn several_budgets(&self, pod: &PodRef, cause: &Cause, budgets: &[Arc<str>]) {
        let names = if budgets.is_empty() { "unknown".to_owned() } else { budgets.join(", ") };
        let message = format!(
            "more than one disruption budget selects it ({names}), so Kubernetes never evicts it; keep \
             only one of them"
        );
        match cause {
            Cause::Taint(verdict) => {
                self.0.taint_blocked(pod, verdict, "several budgets", &message);
            }
            Cause::Drain(_) => self.0.drain_blocked(pod, "several budgets", &message),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cluster::{Answer, StatusCause};

    fn refused(code: u16, reason: &str) -> Failure {
        let after = Some(Duration::from_secs(3));
        failure(RequestError::Status(Answer {
            code,
            reason: reason.to_owned(),
            message: String::new(),
            retry_after: after,
            causes: Vec::new(),
        }))
    }

    #[test]
    fn only_the_api_servers_own_404_means_gone() {
        assert_eq!(refused(404, "NotFound"), Failure::Gone);
        assert!(matches!(refused(404, ""), Failure::Retry { .. }));
    }

    #[test]
    fn an_eviction_that_a_budget_refuses_is_no_failure() {
        let answer = |code, message: &str, cause: Option<&str>| Answer {
            code,
            reason: String::new(),
            message: message.to_owned(),
            retry_after: Some(Duration::from_secs(10)),
            causes: cause
                .map(|message| StatusCause {
                    reason: "DisruptionBudget".to_owned(),
                    message: message.to_owned(),
                })
                .into_iter()
                .collect(),
        };
        let words = "The disruption budget web needs 2 healthy pods and has 1 currently";
        let blocked = super::refused(RequestError::Status(answer(429, "no", Some(words))));
        assert_eq!(
            blocked,
            Failure::Blocked {
                budget: Some("web".to_owned()),
                message: words.to_owned(),
                after: Some(Duration::from_secs(10)),
            }
        );
        let several = "This pod has more than one PodDisruptionBudget, which is not supported.";
        let several = super::refused(RequestError::Status(answer(500, several, None)));
        assert_eq!(several, Failure::SeveralBudgets);
        for code in [429, 500, 504] {
            let other = super::refused(RequestError::Status(answer(code, "no", None)));
            assert!(matches!(other, Failure::Retry { .. }), "{code}: {other:?}");
        }
    }

    #[test]
    fn a_webhooks_refusal_is_told_from_the_servers_and_from_a_budgets() {
        let budget = StatusCause {
            reason: "DisruptionBudget".to_owned(),
            message: "The disruption budget web needs 2 healthy pods and has 1 currently"
                .to_owned(),
        };
        let denied =
            "admission webhook \"drain.example.com\" denied the request: the operator moves it";
        let failed = "Internal error occurred: failed calling webhook \"drain.example.com\": failed to \
                      call webhook: Post \"https://drain.example.svc:443\": EOF";
        for message in [denied, failed] {
            // The code and the rest of a denial are the webhook's choice.
            for code in [400, 403, 404, 409, 422, 429, 500, 503] {
                let answer = Answer {
                    code,
                    reason: if code == 404 { "NotFound" } else { "" }.to_owned(),
                    message: message.to_owned(),
                    retry_after: Some(Duration::from_secs(7)),
                    causes: vec![budget.clone()],
                };
                let refused = super::refused(RequestError::Status(answer));
                let Failure::Retry { kind, message: words, after } = &refused else {
                    panic!("{code}: {refused:?}")
                };
                assert_eq!((*kind, *after), (FailureKind::Webhook, Some(Duration::from_secs(7))));
                assert!(words.contains(message), "{words}");
            }
        }
        // Words of a webhook that the server quotes elsewhere make none of its own answers one.
        for message in [
            "pods \"admission webhook\" not found",
            "pods \"a\" is forbidden: admission webhook \"x\" denied the request",
        ] {
            let answer = Answer {
                code: 429,
                reason: String::new(),
                message: message.to_owned(),
                retry_after: None,
                causes: Vec::new(),
            };
            assert_eq!(answer.by_webhook(), None, "{message}");
        }
    }

    #[test]
    fn a_pod_that_is_full_to_the_last_byte_is_no_failure_of_the_server() {
        for (code, message) in [
            (500, "etcdserver: request is too large"),
            (
                500,
                "rpc error: code = ResourceExhausted desc = trying to send message larger than max",
            ),
            (413, "Request entity too large: limit is 3145728"),
        ] {
            let answer = Answer {
                code,
                reason: String::new(),
                message: message.to_owned(),
                retry_after: None,
                causes: Vec::new(),
            };
            let Failure::Retry { kind, .. } = failure(RequestError::Status(answer)) else {
                panic!("{message}")
            };
            // So it is deleted without the condition for which there is no room.
            assert!(kind.is_definite(), "{message}: {kind:?}");
        }
    }

    #[test]
    fn every_other_failure_is_tried_again() {
        for code in [409, 422] {
            assert!(matches!(refused(code, ""), Failure::Doubtful { .. }), "{code}");
        }
        for code in [400, 401, 403, 410, 429, 500, 502, 503, 504] {
            let Failure::Retry { kind, after, .. } = refused(code, "") else {
                panic!("{code} was given up")
            };
            assert_eq!(kind, FailureKind::of_code(code));
            assert_eq!(after, Some(Duration::from_secs(3)));
        }
        let timeout = failure(RequestError::Timeout(Duration::from_secs(15)));
        assert!(matches!(timeout, Failure::Retry { kind: FailureKind::Timeout, .. }));
        let cut = failure(RequestError::Transport("cut".into()));
        assert!(matches!(cut, Failure::Retry { kind: FailureKind::Connection, .. }));
    }
}
