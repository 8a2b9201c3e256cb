//! Failed requests, classified by what to do next.

use std::fmt;
use std::time::Duration;

/// The kind of a failure. It is a metric label, and is reported once per pod.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum FailureKind {
    /// 401: the credentials were rejected.
    Unauthorized,
    /// 403: RBAC or an admission policy refused.
    Forbidden,
    /// 409 on the pod itself, not on its identity.
    Conflict,
    /// 422 or 400: the request is invalid. Admission policies also use these codes.
    Invalid,
    /// An admission webhook denied the request, with any code, or could not be called. The API server
    /// itself works.
    Webhook,
    /// 429: the server is overloaded.
    Throttled,
    /// 5xx: the server failed.
    Server,
    /// No response in time.
    Timeout,
    /// The connection failed.
    Connection,
    /// Any other response.
    Unexpected,
    /// The request was not sent: this process does not hold the lease, or cannot be sure.
    NotLeading,
}

impl FailureKind {
    /// All of them, in the order of their labels' declaration.
    pub const ALL: [Self; 11] = [
        Self::Unauthorized,
        Self::Forbidden,
        Self::Conflict,
        Self::Invalid,
        Self::Webhook,
        Self::Throttled,
        Self::Server,
        Self::Timeout,
        Self::Connection,
        Self::Unexpected,
        Self::NotLeading,
    ];

    /// Its name as a metric label.
    pub fn label(self) -> &'static str {
        match self {
            Self::Unauthorized => "unauthorized",
            Self::Forbidden => "forbidden",
            Self::Conflict => "conflict",
            Self::Invalid => "invalid",
            Self::Webhook => "webhook",
            Self::Throttled => "throttled",
            Self::Server => "server_error",
            Self::Timeout => "timeout",
            Self::Connection => "connection",
            Self::Unexpected => "unexpected",
            Self::NotLeading => "not_leading",
        }
    }

    /// Whether the server evaluated the request and refused it. It will refuse the same request until
    /// someone changes a permission or a policy.
    pub fn is_definite(self) -> bool {
        matches!(self, Self::Forbidden | Self::Invalid)
    }

    /// The kind of a refusal with this HTTP status code that did not come from a webhook.
    pub fn of_code(code: u16) -> Self {
        match code {
            401 => Self::Unauthorized,
            403 => Self::Forbidden,
            409 => Self::Conflict,
            400 | 422 => Self::Invalid,
            429 => Self::Throttled,
            500..=599 => Self::Server,
            _ => Self::Unexpected,
        }
    }
}

/// A failed request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Failure {
    /// The pod is gone: 404 from the API server itself.
    Gone,
    /// A refusal that may also mean that another pod has the name by now: 409 for a deletion, 422 for a
    /// patch. The caller reads the pod to find out.
    Doubtful {
        /// The kind, if the pod is the same.
        kind: FailureKind,
        /// The server's message.
        message: String,
    },
    /// The pod's disruption budget allows no disruption now.
    Blocked {
        /// The budget's name, if the server names it.
        budget: Option<String>,
        /// The server's message.
        message: String,
        /// The minimum pause that the server requested.
        after: Option<Duration>,
    },
    /// More than one budget selects the pod, which the API server does not support.
    SeveralBudgets,
    /// Not sent: evictions are paused.
    Paused,
    /// Any other failure, to be retried.
    Retry {
        /// Its kind.
        kind: FailureKind,
        /// The message of the server or the connection.
        message: String,
        /// The minimum pause that the server requested.
        after: Option<Duration>,
    },
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Gone => f.write_str("the pod is gone"),
            Self::Paused => f.write_str("evictions are paused"),
            Self::SeveralBudgets => f.write_str("more than one disruption budget selects the pod"),
            Self::Doubtful { message, .. }
            | Self::Blocked { message, .. }
            | Self::Retry { message, .. } => f.write_str(message),
        }
    }
}
