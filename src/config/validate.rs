//! Turns the parsed tree of a file into settings, and reports everything that is wrong with it.

use std::collections::BTreeSet;
use std::sync::Arc;

use jiff::civil::{Time, Weekday};
use jiff::tz::TimeZone;

use super::decode::{At, Fields, Reader};
use super::problem::Problem;
use super::settings::{Orphans, Settings};
use super::yaml::{Node, Value, cut};
use crate::drain::{
    AtDeadline, Cap, CapScope, ConditionRule, GroupKind, LabelExpr, Limit, Limits, NodeSelector,
    PodRules, Policy, PriorityGroup, Protection, Retry, STATUS_TAINTS, SyntaxError, Undrainable,
    Window, is_label_key, is_label_value,
};
use crate::model::ConditionStatus;

const CONDITION_FORM: &str = "write Type, Type=Status,Duration, or a mapping with type, status, \
                              minAge, clearAfter and staleAfter";
const LABEL_KEY_FORM: &str = "write letters, digits, - _ and ., with an optional DNS prefix, such \
                              as topology.kubernetes.io/zone";

const DAYS: [(&str, Weekday); 7] = [
    ("Mon", Weekday::Monday),
    ("Tue", Weekday::Tuesday),
    ("Wed", Weekday::Wednesday),
    ("Thu", Weekday::Thursday),
    ("Fri", Weekday::Friday),
    ("Sat", Weekday::Saturday),
    ("Sun", Weekday::Sunday),
];

/// A policy as read, with the places of its parts in the file.
pub(super) struct Draft {
    pub(super) policy: Policy,
    /// Its index in the file.
    pub(super) index: usize,
    /// The index in the file of each condition: unreadable ones are left out.
    pub(super) conditions: Vec<usize>,
}

/// The settings of the file, as far as they can be read, and its drain policies.
pub(super) fn settings(root: &Node, problems: &mut Vec<Problem>) -> (Settings, Vec<Draft>) {
    let mut reader = Reader { policy: String::new(), base: String::new(), problems };
    let whole = At { node: root, key: String::new() };
    let remedy = "write apiVersion, kind and the settings; docs/config.md lists all keys";
    let Some(mut file) = reader.fields(&whole, remedy) else {
        return (Settings::default(), Vec::new());
    };
    reader.header(&mut file, root);
    let mut settings = Settings {
        taint_rules: reader.taint_rules(file.get("taintEviction")),
        limits: reader.limits(file.get("limits")),
        breaker: reader.breaker(file.get("breaker")),
        orphans: reader.choice(file.get("orphans"), &ORPHANS).unwrap_or_default(),
        ..Settings::default()
    };
    if let Some(label) = file.get("zoneLabel").and_then(|at| reader.label_key(&at)) {
        settings.zone_label = label.into();
    }
    let policies = file.get("drainPolicies");
    reader.finish(&file);
    let drafts = policies.map_or_else(Vec::new, |list| reader.policies(&list));
    (settings, drafts)
}

/// Whether this is a valid name of a policy.
fn is_name(text: &str) -> bool {
    let plain = |c: char| c.is_ascii_alphanumeric() || "-_.".contains(c);
    (1..=63).contains(&text.len()) && text.chars().all(plain)
}

/// Reads one policy. An invalid value is reported and replaced by its default, so that one run
/// reports all errors.
impl Reader<'_> {
    fn policies(&mut self, list: &At<'_>) -> Vec<Draft> {
        let Some(items) = self.items(list, "write a list: - name: NAME") else {
            return Vec::new();
        };
        let mut names = BTreeSet::new();
        let mut drafts = Vec::new();
        for (index, item) in items.into_iter().enumerate() {
            let name = item.node.get("name").and_then(Node::text).unwrap_or_default();
            let label = match name {
                "" => item.key.clone(),
                name => format!("policy {:?}", cut(name)),
            };
            let mut reader = Reader { policy: label, base: item.key, problems: self.problems };
            let item = At { node: item.node, key: String::new() };
            let Some(mut fields) = reader.fields(&item, "write a mapping with name and conditions")
            else {
                continue;
            };
            let place = item.node.get("name").map_or(item.node.place, |name| name.place);
            if !name.is_empty() && !names.insert(name.to_owned()) {
                reader.wrong(place, "name", "another policy has this name", "choose another name");
            }
            let (policy, conditions) = reader.policy(&mut fields);
            reader.finish(&fields);
            drafts.push(Draft { policy, index, conditions });
        }
        drafts
    }

    fn policy(&mut self, fields: &mut Fields<'_>) -> (Policy, Vec<usize>) {
        let name = self.name(fields);
        let allow_majority = self.truth(fields.get("allowMajority")).unwrap_or_default();
        let (conditions, indexes) = self.conditions(fields, allow_majority);
        let defaults = Policy::new(name, conditions);
        let nodes = NodeSelector {
            labels: self.labels(fields.get("nodeSelector")),
            expression: self.expression(fields.get("nodeLabelExpression")),
        };
        let (pace, windows) = self.pace(fields.get("pace"));
        let policy = Policy {
            nodes,
            windows,
            pace,
            drain: self.truth(fields.get("drain")).unwrap_or(defaults.drain),
            pods: self.pods(fields.get("pods")),
            max_grace: self.positive(fields.get("maxGracePeriod")),
            headroom: self.duration(fields.get("headroom")).unwrap_or(defaults.headroom),
            deadline: self.positive(fields.get("deadline")),
            at_deadline: self
                .choice(fields.get("atDeadline"), &AT_DEADLINE)
                .unwrap_or(defaults.at_deadline),
            retry: self.retry(fields.get("retry")),
            stop_when_clear: self
                .truth(fields.get("stopWhenClear"))
                .unwrap_or(defaults.stop_when_clear),
            undrainable: self
                .choice(fields.get("undrainable"), &UNDRAINABLE)
                .unwrap_or(defaults.undrainable),
            groups: self.groups(fields.get("groups")).unwrap_or(defaults.groups),
            lingering: self.duration(fields.get("lingering")).unwrap_or(defaults.lingering),
            status_taint: self.status_taint(fields.get("statusTaint")),
            allow_majority,
            name: defaults.name,
            conditions: defaults.conditions,
        };
        (policy, indexes)
    }

    pub(super) fn name(&mut self, fields: &mut Fields<'_>) -> String {
        let remedy = "write 1 to 63 letters, digits, - _ and .";
        let Some(at) = self.required(fields, "name", remedy) else { return String::new() };
        let Some(name) = self.text(&at) else { return String::new() };
        if !is_name(name) {
            self.wrong_at(&at, format!("{:?} is not a valid name", cut(name)), remedy);
        }
        name.to_owned()
    }

    fn conditions(
        &mut self,
        fields: &mut Fields<'_>,
        allow_majority: bool,
    ) -> (Vec<ConditionRule>, Vec<usize>) {
        let remedy = "list at least one, such as KernelDeadlock";
        let (mut rules, mut indexes) = (Vec::<ConditionRule>::new(), Vec::new());
        let Some(at) = self.required(fields, "conditions", remedy) else { return (rules, indexes) };
        let items = self.items(&at, "write a list, such as [KernelDeadlock]").unwrap_or_default();
        if at.node.items().is_empty() && matches!(at.node.value, Value::List(_)) {
            self.wrong_at(&at, "the list is empty, so no node is ever bad", remedy);
        }
        for (index, item) in items.into_iter().enumerate() {
            let rule = match item.node.value {
                Value::Text { .. } => self.text(&item).and_then(|text| {
                    ConditionRule::parse(text).map_err(|error| self.syntax(&item, error)).ok()
                }),
                _ => self.condition(&item),
            };
            let Some(rule) = rule else { continue };
            if rules.iter().any(|other| (&other.kind, other.status) == (&rule.kind, rule.status)) {
                let cause = format!("{}={} is listed twice", rule.kind, rule.status);
                self.wrong_at(&item, cause, "list each type and status once");
            }
            if !allow_majority && &*rule.kind == "Ready" && rule.status == ConditionStatus::True {
                let remedy = "write Ready=False or Ready=Unknown, or set allowMajority: true if \
                              healthy nodes are meant";
                self.wrong_at(&item, "Ready=True makes every healthy node bad", remedy);
            }
            rules.push(rule);
            indexes.push(index);
        }
        (rules, indexes)
    }

    fn condition(&mut self, item: &At<'_>) -> Option<ConditionRule> {
        let mut fields = self.fields(item, CONDITION_FORM)?;
        let kind = self.required(&mut fields, "type", "write the type of a condition");
        let kind = kind.and_then(|at| {
            let text = self.text(&at)?;
            ConditionRule::kind(text).map_err(|error| self.syntax(&at, error)).ok()
        });
        let status = fields.get("status");
        let given = status.is_some();
        let status = status.and_then(|at| {
            let text = self.text(&at)?;
            let status = ConditionStatus::parse(text);
            if status.is_none() {
                let cause = format!("{:?} is not a status", cut(text));
                self.wrong_at(&at, cause, "write True, False or Unknown");
            }
            status
        });
        let min_age = self.duration(fields.get("minAge"));
        let clear_after = fields.get("clearAfter");
        let never = clear_after.as_ref().is_some_and(|at| at.node.text() == Some("never"));
        let clear_after = if never { None } else { self.clear_after(clear_after) };
        let stale_after = self.positive(fields.get("staleAfter"));
        self.finish(&fields);
        let kind = kind?;
        if !given && let Err(error) = ConditionRule::parse(&kind) {
            self.syntax(item, error);
            return None;
        }
        let rule = ConditionRule::new(
            kind,
            if given { status? } else { ConditionStatus::True },
            min_age.unwrap_or_default(),
        );
        let clear_after = if never { None } else { clear_after.or(rule.clear_after) };
        Some(ConditionRule { clear_after, stale_after, ..rule })
    }

    fn clear_after(&mut self, at: Option<At<'_>>) -> Option<std::time::Duration> {
        let text = at.as_ref().and_then(|at| at.node.text());
        if let (Some(at), Some(text)) = (&at, text)
            && text.eq_ignore_ascii_case("never")
        {
            self.wrong_at(at, format!("{text:?} is not a duration"), "write never, or a duration");
            return None;
        }
        self.duration(at)
    }

    fn labels(&mut self, at: Option<At<'_>>) -> Vec<(Arc<str>, Arc<str>)> {
        let Some(at) = at else { return Vec::new() };
        if self.fields(&at, "write KEY: VALUE").is_none() {
            return Vec::new();
        }
        let mut read = Vec::new();
        for entry in at.node.entries() {
            let key = format!("{}[{:?}]", at.key, cut(&entry.key));
            if !is_label_key(&entry.key) {
                let cause = match entry.key.as_str() {
                    "" => "the label key is empty".to_owned(),
                    key => format!("{:?} is not a valid label key", cut(key)),
                };
                self.wrong(entry.place, key.clone(), cause, LABEL_KEY_FORM);
            }
            let value = match &entry.value.value {
                Value::Null => {
                    let remedy = "write a value, or '' for an empty one";
                    self.wrong(entry.place, key, "it has no value", remedy);
                    continue;
                }
                _ => self.text(&At { node: &entry.value, key: key.clone() }),
            };
            let Some(value) = value else { continue };
            if !is_label_value(value) {
                let cause = format!("{:?} is not a valid label value", cut(value));
                let remedy = "write up to 63 letters, digits, - _ and .";
                self.wrong(entry.value.place, key, cause, remedy);
            }
            read.push((Arc::from(entry.key.as_str()), Arc::from(value)));
        }
        read.sort();
        read
    }

    fn expression(&mut self, at: Option<At<'_>>) -> LabelExpr {
        let Some(at) = at else { return LabelExpr::default() };
        let text = self.text(&at).unwrap_or_default();
        LabelExpr::parse(text).unwrap_or_else(|error| {
            self.syntax(&at, error);
            LabelExpr::default()
        })
    }

    fn pods(&mut self, at: Option<At<'_>>) -> PodRules {
        let defaults = PodRules::default();
        let Some(at) = at else { return defaults };
        let Some(mut fields) = self.fields(&at, "write a mapping, such as evictEmptyDir: true")
        else {
            return defaults;
        };
        let mut switch = |name, default| self.truth(fields.get(name)).unwrap_or(default);
        let rules = PodRules {
            evict_daemonset: switch("evictDaemonSet", defaults.evict_daemonset),
            evict_statefulset: switch("evictStatefulSet", defaults.evict_statefulset),
            evict_local_storage: switch("evictEmptyDir", defaults.evict_local_storage),
            evict_unreplicated: switch("evictUnreplicated", defaults.evict_unreplicated),
            honour_safe_to_evict: switch("honourSafeToEvict", defaults.honour_safe_to_evict),
            left_controllers: self.controllers(fields.get("leaveControllers")),
            protections: self.protections(fields.get("protectedAnnotations")),
        };
        self.finish(&fields);
        rules
    }

    fn controllers(&mut self, at: Option<At<'_>>) -> Vec<GroupKind> {
        let items = at.and_then(|at| self.items(&at, "write a list: - kind: KIND"));
        let mut kinds = Vec::new();
        for item in items.unwrap_or_default() {
            let remedy = "write a mapping with kind and, optionally, group";
            let Some(mut fields) = self.fields(&item, remedy) else { continue };
            let group = fields.get("group").and_then(|at| self.text(&at)).map(Arc::from);
            let remedy = "write a kind, such as Rollout";
            let kind = self.required(&mut fields, "kind", remedy);
            let kind = kind.and_then(|at| {
                let kind = self.text(&at)?;
                if kind.is_empty() {
                    self.wrong_at(&at, "it is empty", remedy);
                }
                Some(Arc::from(kind))
            });
            self.finish(&fields);
            kinds.push(GroupKind { group, kind: kind.unwrap_or_default() });
        }
        kinds
    }

    fn protections(&mut self, at: Option<At<'_>>) -> Vec<Protection> {
        let items = at.and_then(|at| self.items(&at, "write a list: - KEY=VALUE"));
        let mut protections = Vec::new();
        for item in items.unwrap_or_default() {
            let Some(text) = self.text(&item) else { continue };
            match protection(text) {
                Ok(protection) => protections.push(protection),
                Err(error) => self.syntax(&item, error),
            }
        }
        protections
    }

    fn pace(&mut self, at: Option<At<'_>>) -> (Limits, Vec<Window>) {
        let defaults = Limits::default();
        let Some(at) = at else { return (defaults, Vec::new()) };
        let Some(mut fields) = self.fields(&at, "write a mapping, such as notice: 1m") else {
            return (defaults, Vec::new());
        };
        let notice = self.duration(fields.get("notice")).unwrap_or(defaults.notice);
        let spacing = self.duration(fields.get("spacing")).unwrap_or(defaults.spacing);
        let caps = fields.get("caps").and_then(|at| self.items(&at, "write a list: - limit: 25%"));
        let caps = caps.and_then(|caps| {
            let read: Vec<_> = caps.iter().filter_map(|cap| self.cap(cap)).collect();
            // If one cannot be read, do not also warn that there are none.
            (read.len() == caps.len()).then_some(read)
        });
        let remedy = "write a list: - from: \"22:00\"";
        let windows = fields.get("windows").and_then(|at| self.items(&at, remedy));
        let windows = windows.unwrap_or_default();
        let windows = windows.iter().filter_map(|window| self.window(window)).collect();
        self.finish(&fields);
        (Limits { notice, spacing, caps: caps.unwrap_or(defaults.caps) }, windows)
    }

    fn cap(&mut self, item: &At<'_>) -> Option<Cap> {
        let remedy = "write a number of at least 1, or 1% to 100%";
        let mut fields = self.fields(item, "write a mapping with limit")?;
        let limit = self.required(&mut fields, "limit", remedy).and_then(|at| {
            let text = self.text(&at)?;
            let limit = match text.strip_suffix('%') {
                Some(percent) => {
                    percent.parse().ok().filter(|it| (1..=100).contains(it)).map(Limit::Percent)
                }
                None => text.parse().ok().filter(|it| *it > 0).map(Limit::Count),
            };
            if limit.is_none() {
                self.wrong_at(&at, format!("{:?} is not a valid limit", cut(text)), remedy);
            }
            limit
        });
        let label = fields.get("perLabel").and_then(|at| self.label_key(&at));
        let label = label.map(|label| CapScope::Label(label.into()));
        self.finish(&fields);
        Some(Cap { scope: label.unwrap_or(CapScope::Cluster), limit: limit? })
    }

    fn label_key<'a>(&mut self, at: &At<'a>) -> Option<&'a str> {
        let label = self.text(at)?;
        if !is_label_key(label) {
            let cause = match label {
                "" => "it is empty".to_owned(),
                label => format!("{:?} is not a valid label key", cut(label)),
            };
            self.wrong_at(at, cause, LABEL_KEY_FORM);
        }
        Some(label)
    }

    fn window(&mut self, item: &At<'_>) -> Option<Window> {
        let mut fields = self.fields(item, "write a mapping with days, from, to and zone")?;
        let from = fields.get("from").map_or(Some(Time::midnight()), |at| self.time(&at));
        let to = fields.get("to").map_or(Some(Time::midnight()), |at| self.time(&at));
        let zone = fields.get("zone").map_or(Some(TimeZone::UTC), |at| {
            let name = self.text(&at)?;
            let zone = TimeZone::get(name).ok();
            if zone.is_none() {
                let cause = format!("{:?} is not a known time zone", cut(name));
                self.wrong_at(&at, cause, "write an IANA name, such as Europe/Berlin");
            }
            zone
        });
        let days = fields.get("days").and_then(|at| {
            let items = self.items(&at, "write a list, such as [Mon, Tue]")?;
            if items.is_empty() {
                let remedy = "list days, or leave it out for all days";
                self.wrong_at(&at, "the list is empty, so the window never opens", remedy);
            }
            Some(items.into_iter().filter_map(|day| self.choice(Some(day), &DAYS)).collect())
        });
        let days = days.unwrap_or_else(|| DAYS.map(|(_, day)| day).to_vec());
        self.finish(&fields);
        Some(Window { days, from: from?, to: to?, zone: zone? })
    }

    fn time(&mut self, at: &At<'_>) -> Option<Time> {
        let text = self.text(at)?;
        let read = || {
            let (hour, minute) = text.split_once(':')?;
            let two = |part: &str| {
                let plain = part.len() == 2 && part.bytes().all(|byte| byte.is_ascii_digit());
                plain.then(|| part.parse().ok()).flatten()
            };
            match (two(hour)?, two(minute)?) {
                (24, 0) => Some(Time::midnight()),
                (hour, minute) => Time::new(hour, minute, 0, 0).ok(),
            }
        };
        let time = read();
        if time.is_none() {
            let cause = format!("{:?} is not a time of day", cut(text));
            self.wrong_at(at, cause, "write \"00:00\" to \"24:00\"");
        }
        time
    }

    fn retry(&mut self, at: Option<At<'_>>) -> Retry {
        let defaults = Retry::default();
        let Some(at) = at else { return defaults };
        let Some(mut fields) = self.fields(&at, "write a mapping, such as attempts: 3") else {
            return defaults;
        };
        let first = self.positive(fields.get("first"));
        let most = self.positive(fields.get("most"));
        let attempts_remedy = "write 1 or more, or set drain: false to disable draining";
        let attempts = fields.get("attempts");
        let attempts_place = attempts.as_ref().map_or(at.node.place, |at| at.node.place);
        let attempts = self.number(attempts, attempts_remedy);
        self.finish(&fields);
        let retry = Retry {
            first: first.unwrap_or(defaults.first),
            // If only a longer first pause is set, it is the longest too.
            most: most.unwrap_or(defaults.most.max(first.unwrap_or_default())),
            attempts: attempts.unwrap_or(defaults.attempts),
        };
        if retry.first > retry.most {
            let place = at.node.get("first").map_or(at.node.place, |first| first.place);
            let cause = "it is longer than retry.most";
            self.wrong(place, "retry.first", cause, "shorten it, or raise retry.most");
        }
        if retry.attempts == 0 {
            let cause = "it is 0, so no drain would start";
            self.wrong(attempts_place, "retry.attempts", cause, attempts_remedy);
        }
        retry
    }

    fn groups(&mut self, at: Option<At<'_>>) -> Option<Vec<PriorityGroup>> {
        let at = at?;
        let items = self.items(&at, "write a list: - share: 100")?;
        let last = items.len().saturating_sub(1);
        let mut before = None;
        let mut sum = Some(0_u32);
        let mut groups = Vec::new();
        for (index, item) in items.iter().enumerate() {
            let Some(mut fields) = self.fields(item, "write a mapping with below and share") else {
                sum = None;
                continue;
            };
            let place = item.node.get("below").map_or(item.node.place, |below| below.place);
            let given = item.node.get("below").is_some();
            let below = self.number(fields.get("below"), "write a whole number");
            let remedy = "write 1 to 100";
            let share = self.required(&mut fields, "share", remedy);
            let share_place = share.as_ref().map_or(item.node.place, |share| share.node.place);
            let share: Option<u8> = self.number(share, remedy);
            self.finish(&fields);
            let key = format!("{}.below", item.key);
            match below {
                None if !given && index < last => {
                    self.wrong(place, key, "it is missing", "only the last group may omit it");
                }
                Some(_) if index == last => {
                    let cause = "the last group has a bound, so some pods are in no group";
                    self.wrong(place, key, cause, "leave it out, or add a group without it");
                }
                Some(below) if before.is_some_and(|before| below <= before) => {
                    let cause = "it is not higher than in the previous group";
                    self.wrong(place, key, cause, "write the groups in ascending order");
                }
                _ => {}
            }
            before = below.or(before);
            if share == Some(0) {
                let cause = "it is 0, which leaves no time for the group's pods";
                self.wrong(share_place, format!("{}.share", item.key), cause, "write 1 or more");
            }
            sum = sum.zip(share).map(|(sum, share)| sum + u32::from(share));
            groups.push(PriorityGroup { below, share: share.unwrap_or(1) });
        }
        if items.is_empty() {
            self.wrong_at(&at, "the list is empty", "list at least one group, or leave it out");
        } else if let Some(sum) = sum.filter(|sum| *sum != 100) {
            let cause = format!("the shares add up to {sum} percent");
            self.wrong_at(&at, cause, "make them add up to 100");
        }
        Some(groups)
    }

    fn status_taint(&mut self, at: Option<At<'_>>) -> Option<Arc<str>> {
        let at = at?;
        let key = self.text(&at)?;
        match key.strip_prefix(STATUS_TAINTS) {
            Some(name) if is_label_key(key) && !name.contains('/') => {}
            Some(name) => {
                let cause = format!("{:?} is not a valid taint name", cut(name));
                let remedy = "write 1 to 63 letters, digits, - _ and . after the prefix";
                self.wrong_at(&at, cause, remedy);
            }
            None => {
                let cause = format!(
                    "{:?} would keep cluster-autoscaler from adding nodes to the node group",
                    cut(key)
                );
                self.wrong_at(&at, cause, format!("begin it with {STATUS_TAINTS}"));
            }
        }
        Some(key.into())
    }
}

const ORPHANS: [(&str, Orphans); 2] = [("Keep", Orphans::Keep), ("Uncordon", Orphans::Uncordon)];

const AT_DEADLINE: [(&str, AtDeadline); 3] = [
    ("GiveUp", AtDeadline::GiveUp),
    ("Uncordon", AtDeadline::Uncordon),
    ("DeleteRest", AtDeadline::DeleteRest),
];

const UNDRAINABLE: [(&str, Undrainable); 3] = [
    ("DrainRest", Undrainable::DrainRest),
    ("Cordon", Undrainable::Cordon),
    ("Report", Undrainable::Report),
];

/// Parses an annotation that protects pods: `KEY` with any value, or `KEY=VALUE`.
pub fn protection(text: &str) -> Result<Protection, SyntaxError> {
    let (key, value) = match text.split_once('=') {
        Some((key, value)) => (key, Some(value)),
        None => (text, None),
    };
    if key.is_empty() {
        return Err(SyntaxError {
            text: text.to_owned(),
            column: 1,
            cause: "the key is missing".to_owned(),
            remedy: "write KEY for any value, or KEY=VALUE".to_owned(),
        });
    }
    Ok(Protection { key: key.into(), value: value.map(Arc::from) })
}
