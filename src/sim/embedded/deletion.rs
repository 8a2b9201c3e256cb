//! What a DELETE does to an object.
//!
//! A running pod gets its grace period. Its deletion timestamp is the end of that period, not the time of
//! the request. All other objects are removed at once, unless they have finalizers.

use jiff::{SignedDuration, Timestamp};
use serde_json::Value;

use super::error::ApiError;
use super::object::{is_finished, is_terminating, list, meta, moment, number, set, text, time};
use super::resource::Resource;

/// Options of a DELETE, and of an eviction.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DeleteOptions {
    /// Seconds that the pod is given; its own when absent.
    pub grace_period_seconds: Option<i64>,
    /// UID that the object must have.
    pub uid: Option<String>,
    /// resourceVersion that the object must have.
    pub resource_version: Option<String>,
    /// Whether everything is checked and nothing is done.
    pub dry_run: bool,
}

impl DeleteOptions {
    /// Reads an object of kind `DeleteOptions`; null gives the default.
    pub fn from_value(options: &Value) -> Self {
        let precondition = |field| {
            let value = text(options, &["preconditions", field]);
            (!value.is_empty()).then(|| value.to_owned())
        };
        Self {
            grace_period_seconds: number(options, &["gracePeriodSeconds"]),
            uid: precondition("uid"),
            resource_version: precondition("resourceVersion"),
            dry_run: !list(options, &["dryRun"]).is_empty(),
        }
    }

    /// Options that delete at once, and only the object with this UID.
    pub fn at_once(uid: &str) -> Self {
        Self { grace_period_seconds: Some(0), uid: Some(uid.to_owned()), ..Self::default() }
    }

    /// Refuses if the object is not the one that was meant.
    pub(super) fn check(&self, resource: Resource, object: &Value) -> Result<(), ApiError> {
        let name = meta(object, "name");
        let uid = meta(object, "uid");
        if let Some(wanted) = self.uid.as_deref().filter(|wanted| *wanted != uid) {
            let cause = format!(
                "the UID in the precondition ({wanted}) does not match the UID in record ({uid}). \
                 The object might have been deleted and then recreated"
            );
            return Err(ApiError::precondition(resource, name, &cause));
        }
        let version = meta(object, "resourceVersion");
        if let Some(wanted) = self.resource_version.as_deref().filter(|w| *w != version) {
            let cause = format!(
                "the ResourceVersion in the precondition ({wanted}) does not match the \
                 ResourceVersion in record ({version}). The object might have been modified"
            );
            return Err(ApiError::precondition(resource, name, &cause));
        }
        Ok(())
    }
}

/// What becomes of the object.
#[derive(Debug, PartialEq)]
pub(super) enum Deletion {
    /// It stays as it is: it is going already, and not sooner for this request.
    Unchanged,
    /// It is stored like this and waits, for the kubelet or for finalizers.
    Waits(Value),
    /// It is removed. If there is a last state, that is stored first and seen by watchers.
    Gone(Option<Value>),
}

/// What a DELETE at `now` does to the object. The preconditions have been checked.
pub(super) fn delete(
    resource: Resource,
    object: &Value,
    options: &DeleteOptions,
    now: Timestamp,
) -> Deletion {
    let held = !list(object, &["metadata", "finalizers"]).is_empty();
    let settle = |last: Value, grace: i64| match (grace, held) {
        (0, false) => Deletion::Gone(Some(last)),
        _ => Deletion::Waits(last),
    };
    if resource != Resource::Pods {
        return match (held, is_terminating(object)) {
            (false, _) => Deletion::Gone(None),
            (true, true) => Deletion::Unchanged,
            (true, false) => Deletion::Waits(marked(object, now, 0)),
        };
    }
    let asked = options.grace_period_seconds.map(|s| if s < 0 { 1 } else { s });
    if is_terminating(object) {
        let Some(running) = number(object, &["metadata", "deletionGracePeriodSeconds"]) else {
            return settle(object.clone(), 0);
        };
        let Some(mut grace) = asked.filter(|asked| *asked < running) else {
            return Deletion::Unchanged;
        };
        let end = moment(object, &["metadata", "deletionTimestamp"]).unwrap_or(now);
        let mut end = later(end, grace - running);
        if end < now {
            end = now;
            grace = grace.min(1);
        }
        let mut last = object.clone();
        set(&mut last, &["metadata", "deletionTimestamp"], time(end));
        set(&mut last, &["metadata", "deletionGracePeriodSeconds"], grace);
        return settle(last, grace);
    }
    let own = number(object, &["spec", "terminationGracePeriodSeconds"]);
    let mut grace = asked.or(own).map_or(0, |s| if s < 0 { 1 } else { s });
    if text(object, &["spec", "nodeName"]).is_empty() || is_finished(object) {
        grace = 0;
    }
    settle(marked(object, now, grace), grace)
}

/// Whether an update of a terminating object leaves nothing that it waits for.
pub(super) fn is_over(object: &Value) -> bool {
    is_terminating(object)
        && list(object, &["metadata", "finalizers"]).is_empty()
        && number(object, &["metadata", "deletionGracePeriodSeconds"]).unwrap_or(0) == 0
}

fn marked(object: &Value, now: Timestamp, grace: i64) -> Value {
    let mut object = object.clone();
    set(&mut object, &["metadata", "deletionTimestamp"], time(later(now, grace)));
    set(&mut object, &["metadata", "deletionGracePeriodSeconds"], grace);
    if let Some(generation) = number(&object, &["metadata", "generation"]).filter(|g| *g > 0) {
        set(&mut object, &["metadata", "generation"], generation + 1);
    }
    object
}

fn later(moment: Timestamp, seconds: i64) -> Timestamp {
    let later = moment.saturating_add(SignedDuration::from_secs(seconds));
    later.unwrap_or(Timestamp::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn noon() -> Timestamp {
        "2026-01-01T12:00:00Z".parse().unwrap()
    }

    fn running() -> Value {
        json!({
            "metadata": {"name": "a", "uid": "u", "generation": 1},
            "spec": {"nodeName": "n1", "terminationGracePeriodSeconds": 30},
            "status": {"phase": "Running"},
        })
    }

    fn graced(seconds: Option<i64>) -> DeleteOptions {
        DeleteOptions { grace_period_seconds: seconds, ..DeleteOptions::default() }
    }

    /// Deletion timestamp, grace and generation after a DELETE.
    fn waits(object: &Value, seconds: Option<i64>, now: Timestamp) -> Value {
        match delete(Resource::Pods, object, &graced(seconds), now) {
            Deletion::Waits(object) => object,
            other => panic!("{other:?}"),
        }
    }

    fn marks(object: &Value) -> (&str, i64) {
        let grace = number(object, &["metadata", "deletionGracePeriodSeconds"]);
        (meta(object, "deletionTimestamp"), grace.unwrap())
    }

    #[test]
    fn a_running_pod_is_given_its_own_time_unless_the_request_says_otherwise() {
        let object = waits(&running(), None, noon());
        assert_eq!(marks(&object), ("2026-01-01T12:00:30Z", 30));
        assert_eq!(object["metadata"]["generation"], 2);
        let object = waits(&running(), Some(5), noon());
        assert_eq!(marks(&object), ("2026-01-01T12:00:05Z", 5));
        let object = waits(&running(), Some(-3), noon());
        assert_eq!(marks(&object), ("2026-01-01T12:00:01Z", 1));
    }

    #[test]
    fn a_pod_that_runs_nowhere_or_has_ended_goes_at_once() {
        for (path, value) in [(["spec", "nodeName"], ""), (["status", "phase"], "Failed")] {
            let mut pod = running();
            set(&mut pod, &path, value);
            let Deletion::Gone(Some(last)) =
                delete(Resource::Pods, &pod, &graced(Some(60)), noon())
            else {
                panic!("it waits");
            };
            assert_eq!(marks(&last), ("2026-01-01T12:00:00Z", 0));
        }
    }

    #[test]
    fn a_second_delete_can_only_shorten() {
        let first = waits(&running(), None, noon());
        let later = "2026-01-01T12:00:10Z".parse().unwrap();
        for same in [None, Some(30), Some(60)] {
            let deletion = delete(Resource::Pods, &first, &graced(same), later);
            assert_eq!(deletion, Deletion::Unchanged);
        }
        let second = waits(&first, Some(20), later);
        assert_eq!(marks(&second), ("2026-01-01T12:00:20Z", 20));
        assert_eq!(second["metadata"]["generation"], 2);
        let third = waits(&first, Some(5), later);
        assert_eq!(marks(&third), ("2026-01-01T12:00:10Z", 1));
    }

    #[test]
    fn grace_zero_removes_after_a_last_state_unless_a_finalizer_holds_it() {
        let first = waits(&running(), None, noon());
        let later = "2026-01-01T12:00:10Z".parse().unwrap();
        let Deletion::Gone(Some(last)) = delete(Resource::Pods, &first, &graced(Some(0)), later)
        else {
            panic!("it waits");
        };
        assert_eq!(marks(&last), ("2026-01-01T12:00:10Z", 0));
        let mut held = first;
        set(&mut held, &["metadata", "finalizers"], json!(["x"]));
        let last = waits(&held, Some(0), later);
        assert!(!is_over(&last));
        let mut freed = last;
        set(&mut freed, &["metadata", "finalizers"], json!([]));
        assert!(is_over(&freed));
    }

    #[test]
    fn a_node_goes_at_once_unless_a_finalizer_holds_it() {
        let mut node = json!({"metadata": {"name": "n1"}});
        let gone = delete(Resource::Nodes, &node, &graced(Some(30)), noon());
        assert_eq!(gone, Deletion::Gone(None));
        set(&mut node, &["metadata", "finalizers"], json!(["x"]));
        assert!(matches!(
            delete(Resource::Nodes, &node, &graced(None), noon()),
            Deletion::Waits(_)
        ));
    }

    #[test]
    fn another_uid_or_version_is_a_conflict() {
        let options = DeleteOptions::from_value(&json!({"preconditions": {"uid": "v"}}));
        let error = options.check(Resource::Pods, &running()).unwrap_err();
        assert_eq!((error.code, error.reason), (409, "Conflict"));
        assert!(error.message.contains("precondition (v)"), "{error}");
        let options = DeleteOptions::at_once("u");
        assert_eq!(options.check(Resource::Pods, &running()), Ok(()));
        let options =
            DeleteOptions::from_value(&json!({"preconditions": {"resourceVersion": "3"}}));
        assert_eq!(options.check(Resource::Pods, &running()).unwrap_err().code, 409);
    }
}
