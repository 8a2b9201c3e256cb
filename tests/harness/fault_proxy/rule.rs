//! Rules of the proxy: which fault for which requests.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use hyper::body::Bytes;
use ostrakon::cluster::wire;
use parking_lot::Mutex;
use rand::Rng as _;
use rand::rngs::StdRng;
use serde_json::{Value, json};

use super::super::request::{RequestInfo, Verb};

/// Which requests. Nothing said means all of them.
#[derive(Clone, Debug, Default)]
pub struct Match {
    verbs: Vec<Verb>,
    is_list: Option<bool>,
    resource: Option<String>,
    subresource: Option<String>,
    namespace: Option<String>,
    name: Option<String>,
}

impl Match {
    /// All requests.
    pub fn all() -> Self {
        Self::default()
    }

    /// Requests with one of these verbs.
    pub fn verbs(verbs: impl Into<Vec<Verb>>) -> Self {
        Self { verbs: verbs.into(), ..Self::default() }
    }

    /// Requests that change something.
    pub fn writes() -> Self {
        Self::verbs(Verb::WRITES)
    }

    /// Requests for all objects, in pages or as the beginning of a watch.
    pub fn lists() -> Self {
        Self { is_list: Some(true), ..Self::default() }
    }

    /// Watches that go on from a version.
    pub fn resumed() -> Self {
        Self { is_list: Some(false), ..Self::verbs([Verb::Watch]) }
    }

    /// Watches of `resource`, those that begin with a list too.
    pub fn watch(resource: &str) -> Self {
        Self::verbs([Verb::Watch]).resource(resource)
    }

    /// `pods` for the object itself, `pods/status` for a subresource.
    pub fn resource(mut self, resource: &str) -> Self {
        let (resource, subresource) = resource.split_once('/').unwrap_or((resource, ""));
        self.resource = Some(resource.to_owned());
        self.subresource = Some(subresource.to_owned());
        self
    }

    pub fn namespace(mut self, namespace: &str) -> Self {
        self.namespace = Some(namespace.to_owned());
        self
    }

    pub fn name(mut self, name: &str) -> Self {
        self.name = Some(name.to_owned());
        self
    }

    pub fn matches(&self, request: &RequestInfo) -> bool {
        let fits = |wanted: &Option<String>, found: &String| {
            wanted.as_ref().is_none_or(|wanted| wanted == found)
        };
        (self.verbs.is_empty() || self.verbs.contains(&request.verb))
            && self.is_list.is_none_or(|wanted| wanted == request.is_list())
            && fits(&self.resource, &request.resource)
            && fits(&self.subresource, &request.subresource)
            && fits(&self.namespace, &request.namespace)
            && fits(&self.name, &request.name)
    }

    /// Does `fault` to these requests, always.
    pub fn then(self, fault: Fault) -> Rule {
        Rule { requests: self, chance: 1.0, at_most: None, fault, hits: Arc::default() }
    }
}

/// An answer that the API server never gave, in its own form.
#[derive(Clone, Debug)]
pub struct Answer {
    code: u16,
    message: String,
    retry_after: Option<u32>,
    cause: Option<String>,
}

impl Answer {
    /// A refusal with this HTTP status.
    pub fn new(code: u16) -> Self {
        Self {
            code,
            message: format!("{} (made up by the fault proxy)", reason(code)),
            retry_after: None,
            cause: None,
        }
    }

    /// 429 as a disruption budget says it: with the cause that tells it from overload.
    pub fn disruption_budget() -> Self {
        Self { cause: Some("DisruptionBudget".to_owned()), ..Self::new(429) }
    }

    /// Adds the header `Retry-After` and its twin in the body.
    pub fn retry_after(mut self, seconds: u32) -> Self {
        self.retry_after = Some(seconds);
        self
    }

    pub fn message(mut self, message: &str) -> Self {
        message.clone_into(&mut self.message);
        self
    }

    pub(super) fn code(&self) -> u16 {
        self.code
    }

    pub(super) fn retry_after_seconds(&self) -> Option<u32> {
        self.retry_after
    }

    /// The `Status` object.
    pub(super) fn status(&self) -> Value {
        let mut details = json!({});
        if let Some(seconds) = self.retry_after {
            details["retryAfterSeconds"] = json!(seconds);
        }
        if let Some(cause) = &self.cause {
            details["causes"] = json!([{ "reason": cause, "message": self.message }]);
        }
        json!({
            "kind": "Status",
            "apiVersion": "v1",
            "metadata": {},
            "status": "Failure",
            "message": self.message,
            "reason": reason(self.code),
            "details": details,
            "code": self.code,
        })
    }

    /// The same as protobuf, without the details.
    pub(super) fn wire_status(&self) -> wire::Status {
        wire::Status {
            message: self.message.clone(),
            reason: reason(self.code).to_owned(),
            code: self.code.into(),
        }
    }

    pub(super) fn body(&self) -> Bytes {
        self.status().to_string().into()
    }
}

/// What the API server calls it.
fn reason(code: u16) -> &'static str {
    match code {
        400 => "BadRequest",
        401 => "Unauthorized",
        403 => "Forbidden",
        404 => "NotFound",
        409 => "Conflict",
        410 => "Expired",
        422 => "Invalid",
        429 => "TooManyRequests",
        500 => "InternalError",
        503 => "ServiceUnavailable",
        504 => "Timeout",
        _ => "Unknown",
    }
}

/// What is done to a request.
#[derive(Clone, Debug)]
pub enum Fault {
    /// Not forwarded; this is the answer.
    Answer(Answer),
    /// Not forwarded; success with this body, as from a proxy that knows nothing of Kubernetes.
    Garbage(&'static str),
    /// Forwarded late.
    Delay(Duration),
    /// Not forwarded, never answered; the connection stays open.
    Hang,
    /// Not forwarded; the connection closes at once.
    Cut,
    /// Not forwarded; the connection closes after this time without a word.
    Silence(Duration),
    /// Forwarded; so many bytes of the answer's body arrive, then the connection closes.
    CutBody(usize),
    /// Forwarded and carried out; instead of the answer the connection closes.
    LoseAnswer,
    /// Forwarded and carried out; the answer never comes and the connection stays open.
    WithholdAnswer,
    /// Each piece of a watch arrives so much later, in order. This one looks at watches that are
    /// open already too: with the rule gone, what was held back arrives at once.
    HoldBack(Duration),
    /// A watch opens, says this in an `ERROR` event and ends. 410 is how the API server says that
    /// the resource version is too old.
    WatchError(Answer),
    /// One of these, by chance.
    AnyOf(Vec<Fault>),
}

impl Fault {
    /// A refusal with this HTTP status.
    pub fn status(code: u16) -> Self {
        Self::Answer(Answer::new(code))
    }

    /// A fault with its alternatives drawn.
    fn settle(&self, random: &Mutex<StdRng>) -> Self {
        match self {
            Self::AnyOf(faults) if !faults.is_empty() => {
                let drawn = random.lock().random_range(0..faults.len());
                faults[drawn].settle(random)
            }
            other => other.clone(),
        }
    }
}

/// A fault for some requests. The first rule that applies decides. Clones count together.
#[derive(Clone, Debug)]
pub struct Rule {
    requests: Match,
    chance: f64,
    at_most: Option<u64>,
    fault: Fault,
    hits: Arc<AtomicU64>,
}

impl Rule {
    /// Only for this share of them, between 0 and 1.
    pub fn chance(mut self, chance: f64) -> Self {
        self.chance = chance;
        self
    }

    /// Only for the first so many.
    pub fn at_most(mut self, times: u64) -> Self {
        self.at_most = Some(times);
        self
    }

    /// How often it was applied; for [`Fault::HoldBack`], how many pieces were held back.
    pub fn hits(&self) -> u64 {
        self.hits.load(Ordering::Relaxed)
    }

    /// What this rule does to `request`, which counts as a hit.
    pub(super) fn apply(&self, request: &RequestInfo, random: &Mutex<StdRng>) -> Option<Fault> {
        if matches!(self.fault, Fault::HoldBack(_)) || !self.requests.matches(request) {
            return None;
        }
        if self.chance < 1.0 && !random.lock().random_bool(self.chance.clamp(0.0, 1.0)) {
            return None;
        }
        self.count().then(|| self.fault.settle(random))
    }

    /// How long this rule holds back the pieces of the watch `request`.
    pub(super) fn hold(&self, request: &RequestInfo) -> Option<Duration> {
        match self.fault {
            Fault::HoldBack(duration) if self.requests.matches(request) => Some(duration),
            _ => None,
        }
    }

    /// Counts a hit, unless there were enough.
    pub(super) fn count(&self) -> bool {
        let most = self.at_most.unwrap_or(u64::MAX);
        let more = |hits| (hits < most).then_some(hits + 1);
        self.hits.fetch_update(Ordering::Relaxed, Ordering::Relaxed, more).is_ok()
    }
}
