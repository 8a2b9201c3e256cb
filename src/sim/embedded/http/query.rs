//! Parses query strings.

use std::borrow::Cow;
use std::collections::HashMap;
use std::time::Duration;

use serde_json::json;

use super::route::View;
use crate::sim::embedded::error::ApiError;
use crate::sim::embedded::listing::{AtVersion, Paging};
use crate::sim::embedded::resource::Resource;
use crate::sim::embedded::selector::Selector;

/// The parameters of a request.
pub(super) struct Query<'a>(HashMap<Cow<'a, str>, Cow<'a, str>>);

/// From where a watch shows changes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum From {
    /// The state as it is now, as if all of it were new, and then every change.
    State {
        /// Whether a bookmark tells where the state ends.
        marked: bool,
    },
    /// Every change from now on.
    Now,
    /// Every change after this version.
    After(u64),
}

impl<'a> Query<'a> {
    pub(super) fn parse(query: Option<&'a str>) -> Self {
        let pairs = form_urlencoded::parse(query.unwrap_or_default().as_bytes());
        Self(pairs.collect())
    }

    pub(super) fn text(&self, name: &str) -> &str {
        self.0.get(name).map_or("", |value| value)
    }

    pub(super) fn flag(&self, name: &str) -> bool {
        matches!(self.text(name), "true" | "1")
    }

    pub(super) fn number(&self, name: &str) -> Result<Option<u64>, ApiError> {
        match self.text(name) {
            "" => Ok(None),
            text => text.parse().map(Some).map_err(|_| {
                ApiError::bad_request(format!("strconv.ParseInt: parsing {text:?}: invalid syntax"))
            }),
        }
    }

    pub(super) fn is_dry_run(&self) -> bool {
        !self.text("dryRun").is_empty()
    }

    pub(super) fn selector(
        &self,
        view: View,
        namespace: Option<&str>,
    ) -> Result<Selector, ApiError> {
        let mut fields = Cow::Borrowed(self.text("fieldSelector"));
        if view.new_events {
            fields = fields
                .replace("regarding.", "involvedObject.")
                .replace("reportingController", "reportingComponent")
                .into();
        }
        Selector::parse(view.resource, namespace, self.text("labelSelector"), &fields)
    }

    pub(super) fn paging(&self) -> Result<Paging, ApiError> {
        let asked = self.number("resourceVersion")?;
        let from = Some(self.text("continue")).filter(|token| !token.is_empty());
        let version = match (asked, self.text("resourceVersionMatch")) {
            (None, "") => AtVersion::Newest,
            (Some(version), "" | "NotOlderThan") => AtVersion::NotOlderThan(version),
            (Some(version @ 1..), "Exact") => AtVersion::Exactly(version),
            (None, _) => {
                let text = "Forbidden: resourceVersionMatch is forbidden unless resourceVersion is \
                            provided";
                return Err(invalid("resourceVersionMatch", text));
            }
            (Some(_), other) => {
                let text = format!("Forbidden: resourceVersionMatch {other:?} is forbidden here");
                return Err(invalid("resourceVersionMatch", &text));
            }
        };
        let limit = self.number("limit")?.unwrap_or(0);
        Ok(Paging {
            limit: usize::try_from(limit).unwrap_or(usize::MAX),
            from: from.map(str::to_owned),
            version,
        })
    }

    /// From where a watch is to start. `streaming` is whether lists may be streamed.
    pub(super) fn from(&self, streaming: bool) -> Result<From, ApiError> {
        let version = self.number("resourceVersion")?.unwrap_or(0);
        let initial = self.text("sendInitialEvents");
        if initial.is_empty() {
            return Ok(match version {
                0 => From::State { marked: self.flag("allowWatchBookmarks") },
                version => From::After(version),
            });
        }
        if !streaming {
            let text = "Forbidden: sendInitialEvents is forbidden for watch unless the WatchList \
                        feature gate is enabled";
            return Err(invalid("sendInitialEvents", text));
        }
        if self.text("resourceVersionMatch") != "NotOlderThan" {
            let text = "Forbidden: sendInitialEvents requires setting resourceVersionMatch to \
                        NotOlderThan";
            return Err(invalid("resourceVersionMatch", text));
        }
        Ok(match (self.flag("sendInitialEvents"), version) {
            (true, _) => From::State { marked: self.flag("allowWatchBookmarks") },
            (false, 0) => From::Now,
            (false, version) => From::After(version),
        })
    }

    pub(super) fn timeout(&self) -> Result<Option<Duration>, ApiError> {
        Ok(self.number("timeoutSeconds")?.filter(|s| *s > 0).map(Duration::from_secs))
    }
}

fn invalid(field: &str, text: &str) -> ApiError {
    let mut error = ApiError::invalid(Resource::Pods, "", field, "FieldValueForbidden", text);
    error.message = format!("ListOptions.meta.k8s.io \"\" is invalid: {field}: {text}");
    error.details["group"] = json!("meta.k8s.io");
    error.details["kind"] = json!("ListOptions");
    error
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_watch_starts_where_it_is_told() {
        let from = |query| Query::parse(Some(query)).from(true).map_err(|e| e.code);
        let plain = From::State { marked: false };
        assert_eq!(from("watch=1"), Ok(plain));
        assert_eq!(from("resourceVersion=0"), Ok(plain));
        assert_eq!(from("allowWatchBookmarks=true"), Ok(From::State { marked: true }));
        assert_eq!(from("resourceVersion=7"), Ok(From::After(7)));
        let streaming = "sendInitialEvents=true&resourceVersionMatch=NotOlderThan\
                         &allowWatchBookmarks=true&resourceVersion=0";
        assert_eq!(from(streaming), Ok(From::State { marked: true }));
        assert_eq!(from("sendInitialEvents=true"), Err(422));
        assert_eq!(from("resourceVersion=x"), Err(400));
        assert_eq!(Query::parse(Some(streaming)).from(false).map_err(|e| e.code), Err(422));
    }

    #[test]
    fn a_list_is_of_the_version_that_is_asked_for() {
        let paging =
            |query| Query::parse(Some(query)).paging().map(|p| p.version).map_err(|e| e.code);
        assert_eq!(paging("limit=5"), Ok(AtVersion::Newest));
        assert_eq!(paging("resourceVersion=0"), Ok(AtVersion::NotOlderThan(0)));
        let exact = "resourceVersion=7&resourceVersionMatch=Exact";
        assert_eq!(paging(exact), Ok(AtVersion::Exactly(7)));
        assert_eq!(paging("resourceVersionMatch=Exact"), Err(422));
        assert_eq!(paging("limit=many"), Err(400));
    }
}
