//! The evictor's requests, carried by the API client.

use std::time::Duration;

use jiff::Timestamp;

use crate::cluster::{Api, RequestError};
use crate::evict::{Failure, FailureKind, Notices, Requests};
use crate::model::{Node, NodeName, Pod, PodRef, Verdict};
use crate::observe::Recorder;

/// Sends an evictor's requests to the API server.
#[derive(Clone)]
pub(super) struct ApiRequests(pub Api);

impl Requests for ApiRequests {
    async fn mark(&self, pod: &Pod, now: Timestamp) -> Result<Pod, Failure> {
        self.0.mark_pod(pod, now).await.map_err(failure)
    }

    async fn delete(&self, pod: &PodRef) -> Result<(), Failure> {
        self.0.delete_pod(pod).await.map_err(failure)
    }

    async fn pod(&self, pod: &PodRef) -> Result<Option<Pod>, Failure> {
        let holder = self.0.pod(pod).await.map_err(failure)?;
        Ok(holder.filter(|holder| holder.uid == pod.uid))
    }

    async fn node(&self, name: &NodeName) -> Result<Option<Node>, Failure> {
        self.0.node(name).await.map_err(failure)
    }
}

/// What a failed request means for an eviction.
#[allow(clippy::needless_pass_by_value)] // For use with `map_err`.
fn failure(error: RequestError) -> Failure {
    let message = error.to_string();
    let retry = |kind: FailureKind, after: Option<Duration>| Failure::Retry {
        kind,
        message: message.clone(),
        after,
    };
    match &error {
        // Only the API server's own word counts: a proxy's 404 says nothing about the pod.
        RequestError::Status(answer) if answer.is_not_found() => Failure::Gone,
        RequestError::Status(answer) if matches!(answer.code, 409 | 422) => {
            Failure::Doubtful { kind: FailureKind::of_code(answer.code), message }
        }
        RequestError::Status(answer) => {
            retry(FailureKind::of_code(answer.code), answer.retry_after)
        }
        RequestError::Timeout(_) => retry(FailureKind::Timeout, None),
        RequestError::Transport(_) => retry(FailureKind::Connection, None),
        RequestError::Body(_) => retry(FailureKind::Unexpected, None),
        RequestError::NotLeading => retry(FailureKind::NotLeading, None),
    }
}

/// Tells people by Kubernetes events.
#[derive(Clone)]
pub(super) struct ByEvents(pub Recorder);

impl Notices for ByEvents {
    fn evicting(&self, pod: &PodRef, verdict: &Verdict) {
        self.0.evicting(pod, verdict);
    }

    fn failing(&self, pod: &PodRef, verdict: &Verdict, kind: FailureKind, message: &str) {
        self.0.failing(pod, verdict, kind.label(), message);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cluster::Answer;

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
