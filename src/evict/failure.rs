//! Failed requests, told apart by what to do next.

use std::fmt;
use std::time::Duration;

/// What kind of failure it was: a metric label, and what a person is told once per pod.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum FailureKind {
    /// 401: the credentials were not taken.
    Unauthorized,
    /// 403: RBAC or an admission policy refused.
    Forbidden,
    /// 409 on the pod itself, not on its identity.
    Conflict,
    /// 422 or 400: the request was judged invalid, as a policy may do.
    Invalid,
    /// An admission webhook denied the request, with whatever code, or could not be called. The API
    /// server itself is well.
    Webhook,
    /// 429: the server is overloaded.
    Throttled,
    /// 5xx: the server failed.
    Server,
    /// No answer in time.
    Timeout,
    /// The connection failed.
    Connection,
    /// An answer that fits nothing above.
    Unexpected,
    /// The request was not sent: another process leads, or may.
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

    /// Whether the server has judged the request and said no: the same request is refused again until
    /// somebody changes a rule, a right or a policy.
    pub fn is_definite(self) -> bool {
        matches!(self, Self::Forbidden | Self::Invalid)
    }

    /// The kind of a refusal with this HTTP status code, if no webhook answered.
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

/// A request that did not do what it was to do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Failure {
    /// The pod is gone: 404 from the API server itself.
    Gone,
    /// The server says no in a way that it also uses when the pod is another one by now: 409 for a
    /// deletion, 422 for a patch. Look which.
    Doubtful {
        /// What kind it is if the pod is the same.
        kind: FailureKind,
        /// The server's words.
        message: String,
    },
    /// The pod's disruption budget has nothing left.
    Blocked {
        /// The budget's name, if the server tells it.
        budget: Option<String>,
        /// The server's words.
        message: String,
        /// The least pause that the server asked for.
        after: Option<Duration>,
    },
    /// More than one budget selects the pod, which the API server does not support.
    SeveralBudgets,
    /// Anything else: to be tried again.
    Retry {
        /// What kind.
        kind: FailureKind,
        /// The server's or the connection's words.
        message: String,
        /// The least pause that the server asked for.
        after: Option<Duration>,
    },
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Gone => f.write_str("the pod is gone"),
            Self::SeveralBudgets => f.write_str("more than one disruption budget selects the pod"),
            Self::Doubtful { message, .. }
            | Self::Blocked { message, .. }
            | Self::Retry { message, .. } => f.write_str(message),
        }
    }
}
