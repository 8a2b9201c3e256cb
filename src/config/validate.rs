//! Makes policies of what is written in the file, or says all that is wrong with it.

use std::collections::BTreeSet;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use jiff::civil::{Time, Weekday};
use jiff::tz::TimeZone;

use super::file::{
    AtDeadlineEntry, CapEntry, ConditionEntry, ConditionFields, DayEntry, DurationText, File,
    GroupEntry, PaceEntry, PodsEntry, PolicyEntry, RetryEntry, UndrainableEntry, WindowEntry,
};
use crate::drain::{
    AtDeadline, Cap, CapScope, ConditionRule, DURATION_REMEDY, GroupKind, LabelExpr, Limit,
    NodeSelector, Pace, PodRules, Policy, PriorityGroup, Protection, Retry, STATUS_TAINTS,
    SyntaxError, Undrainable, Window, parse_duration,
};

/// Something that is wrong with the file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Problem {
    /// Name of the policy, or its place.
    pub policy: String,
    /// Which setting of it.
    pub key: String,
    /// What is wrong with it.
    pub cause: String,
    /// What to write instead.
    pub remedy: String,
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}, {}: {}; {}", self.policy, self.key, self.cause, self.remedy)
    }
}

/// All the policies, or all the problems.
pub(super) fn policies(file: File) -> Result<Vec<Policy>, Vec<Problem>> {
    let mut names = BTreeSet::new();
    let mut problems = Vec::new();
    let mut policies = Vec::new();
    for (index, entry) in file.drain_policies.into_iter().enumerate() {
        let named = match entry.name.as_str() {
            "" => format!("drainPolicies[{index}]"),
            name => format!("policy {name:?}"),
        };
        let mut reader = Reader { policy: named, problems: &mut problems };
        if !entry.name.is_empty() && !names.insert(entry.name.clone()) {
            reader.wrong("name", "another policy has this name", "give each its own");
        }
        policies.push(reader.policy(entry));
    }
    if problems.is_empty() { Ok(policies) } else { Err(problems) }
}

/// What a name of a policy may have in it.
fn is_name(text: &str) -> bool {
    let plain = |c: char| c.is_ascii_alphanumeric() || "-_.".contains(c);
    (1..=63).contains(&text.len()) && text.chars().all(plain)
}

/// Reads one policy. What is wrong is put down and read as the default, so that all that is wrong
/// comes to light.
struct Reader<'a> {
    policy: String,
    problems: &'a mut Vec<Problem>,
}

impl Reader<'_> {
    fn wrong(
        &mut self,
        key: impl Into<String>,
        cause: impl Into<String>,
        remedy: impl Into<String>,
    ) {
        let policy = self.policy.clone();
        let (key, cause, remedy) = (key.into(), cause.into(), remedy.into());
        self.problems.push(Problem { policy, key, cause, remedy });
    }

    fn syntax(&mut self, key: impl Into<String>, error: SyntaxError) {
        let SyntaxError { text, column, cause, remedy } = error;
        self.wrong(key, format!("{text:?}, column {column}: {cause}"), remedy);
    }

    fn policy(&mut self, entry: PolicyEntry) -> Policy {
        if !is_name(&entry.name) {
            let remedy = "write 1 to 63 letters, digits, - _ and .";
            self.wrong("name", format!("{:?} is no name", entry.name), remedy);
        }
        let defaults = Policy::new(entry.name, self.conditions(entry.conditions));
        let nodes = NodeSelector {
            labels: self.labels(entry.node_selector.unwrap_or_default()),
            expression: self.expression(&entry.node_label_expression.unwrap_or_default()),
        };
        let headroom = self.duration("headroom", entry.headroom).unwrap_or(defaults.headroom);
        let lingering = self.duration("lingering", entry.lingering).unwrap_or(defaults.lingering);
        let windows = entry.pace.windows.as_deref().unwrap_or_default();
        let windows = windows.iter().enumerate().filter_map(|(i, it)| self.window(i, it)).collect();
        Policy {
            nodes,
            windows,
            drain: entry.drain.unwrap_or(defaults.drain),
            pods: self.pods(entry.pods),
            pace: self.pace(entry.pace),
            max_grace: self.positive("maxGracePeriod", entry.max_grace_period),
            headroom,
            deadline: self.positive("deadline", entry.deadline),
            at_deadline: match entry.at_deadline {
                None => defaults.at_deadline,
                Some(AtDeadlineEntry::GiveUp) => AtDeadline::GiveUp,
                Some(AtDeadlineEntry::Uncordon) => AtDeadline::Uncordon,
                Some(AtDeadlineEntry::DeleteRest) => AtDeadline::DeleteRest,
            },
            retry: self.retry(entry.retry),
            stop_when_clear: entry.stop_when_clear.unwrap_or(defaults.stop_when_clear),
            undrainable: match entry.undrainable {
                None => defaults.undrainable,
                Some(UndrainableEntry::DrainRest) => Undrainable::DrainRest,
                Some(UndrainableEntry::Report) => Undrainable::Report,
                Some(UndrainableEntry::Cordon) => Undrainable::Cordon,
            },
            groups: entry.groups.map_or(defaults.groups, |groups| self.groups(&groups)),
            lingering,
            status_taint: entry.status_taint.map(|key| self.status_taint(key)),
            name: defaults.name,
            conditions: defaults.conditions,
        }
    }

    fn conditions(&mut self, entries: Vec<ConditionEntry>) -> Vec<ConditionRule> {
        if entries.is_empty() {
            let remedy = "name at least one, such as KernelDeadlock";
            self.wrong("conditions", "there are none, so no node is ever bad", remedy);
        }
        let mut rules: Vec<ConditionRule> = Vec::new();
        for (index, entry) in entries.into_iter().enumerate() {
            let key = format!("conditions[{index}]");
            let rule = match entry {
                ConditionEntry::Short(text) => {
                    ConditionRule::parse(&text).map_err(|error| self.syntax(&key, error)).ok()
                }
                ConditionEntry::Long(fields) => self.condition(&key, fields),
            };
            let Some(rule) = rule else { continue };
            if rules.iter().any(|other| (&other.kind, other.status) == (&rule.kind, rule.status)) {
                let cause = format!("{}={} is there already", rule.kind, rule.status);
                self.wrong(key, cause, "give each type and status once");
            }
            rules.push(rule);
        }
        rules
    }

    fn condition(&mut self, key: &str, fields: ConditionFields) -> Option<ConditionRule> {
        // Draino's form knows what can be wrong with a type and a status, and with Ready alone.
        let text = match (fields.status.as_deref(), fields.kind) {
            (None, kind) if kind == "Ready" => kind,
            (status, kind) => format!("{kind}={},0s", status.unwrap_or("True")),
        };
        let rule = ConditionRule::parse(&text).map_err(|error| self.syntax(key, error)).ok()?;
        let min_age = self.duration(format!("{key}.minAge"), fields.min_age);
        let clear_after = match fields.clear_after {
            None => rule.clear_after,
            Some(text) if text == "never" => None,
            Some(text) => {
                let key = format!("{key}.clearAfter");
                self.duration(key, Some(DurationText(text))).or(rule.clear_after)
            }
        };
        let stale_after = self.positive(format!("{key}.staleAfter"), fields.stale_after);
        Some(ConditionRule {
            min_age: min_age.unwrap_or(rule.min_age),
            clear_after,
            stale_after,
            ..rule
        })
    }

    fn labels(
        &mut self,
        labels: impl IntoIterator<Item = (String, String)>,
    ) -> Vec<(Arc<str>, Arc<str>)> {
        let mut read = Vec::new();
        for (key, value) in labels {
            if key.is_empty() {
                self.wrong("nodeSelector", "the key of a label is empty", "write KEY: VALUE");
            }
            read.push((key.into(), value.into()));
        }
        read
    }

    fn expression(&mut self, text: &str) -> LabelExpr {
        LabelExpr::parse(text).unwrap_or_else(|error| {
            self.syntax("nodeLabelExpression", error);
            LabelExpr::default()
        })
    }

    fn duration(&mut self, key: impl Into<String>, text: Option<DurationText>) -> Option<Duration> {
        let DurationText(text) = text?;
        let duration = parse_duration(&text);
        if duration.is_none() {
            self.wrong(key, format!("{text:?} is no duration"), DURATION_REMEDY);
        }
        duration
    }

    /// A duration that makes no sense if it is none.
    fn positive(&mut self, key: impl Into<String>, text: Option<DurationText>) -> Option<Duration> {
        let key = key.into();
        let duration = self.duration(key.clone(), text)?;
        if duration < Duration::from_secs(1) {
            self.wrong(key, "it is less than a second", "write more, or leave it out");
        }
        Some(duration)
    }

    fn pods(&mut self, entry: PodsEntry) -> PodRules {
        let defaults = PodRules::default();
        let mut left_controllers = Vec::new();
        for (index, controller) in entry.leave_controllers.into_iter().flatten().enumerate() {
            if controller.kind.is_empty() {
                let key = format!("pods.leaveControllers[{index}].kind");
                self.wrong(key, "it is empty", "write a kind, such as Rollout");
            }
            let group = controller.group.map(Arc::from);
            left_controllers.push(GroupKind { group, kind: controller.kind.into() });
        }
        let mut protections = Vec::new();
        for (index, text) in entry.protected_annotations.into_iter().flatten().enumerate() {
            match protection(&text) {
                Ok(protection) => protections.push(protection),
                Err(error) => self.syntax(format!("pods.protectedAnnotations[{index}]"), error),
            }
        }
        PodRules {
            evict_daemonset: entry.evict_daemon_set.unwrap_or(defaults.evict_daemonset),
            evict_statefulset: entry.evict_stateful_set.unwrap_or(defaults.evict_statefulset),
            evict_local_storage: entry.evict_empty_dir.unwrap_or(defaults.evict_local_storage),
            evict_unreplicated: entry.evict_unreplicated.unwrap_or(defaults.evict_unreplicated),
            left_controllers,
            protections,
            honour_safe_to_evict: entry
                .honour_safe_to_evict
                .unwrap_or(defaults.honour_safe_to_evict),
        }
    }

    fn pace(&mut self, entry: PaceEntry) -> Pace {
        let defaults = Pace::default();
        let caps = entry.caps.map(|caps| {
            caps.into_iter().enumerate().filter_map(|(i, cap)| self.cap(i, cap)).collect()
        });
        Pace {
            notice: self.duration("pace.notice", entry.notice).unwrap_or(defaults.notice),
            spacing: self.duration("pace.spacing", entry.spacing).unwrap_or(defaults.spacing),
            caps: caps.unwrap_or(defaults.caps),
        }
    }

    fn cap(&mut self, index: usize, entry: CapEntry) -> Option<Cap> {
        let text = entry.limit.as_str();
        let limit = match text.strip_suffix('%') {
            Some(percent) => {
                percent.parse().ok().filter(|it| (1..=100).contains(it)).map(Limit::Percent)
            }
            None => text.parse().ok().filter(|it| *it > 0).map(Limit::Count),
        };
        if limit.is_none() {
            let remedy = "write a number from 1, or from 1% to 100%";
            let key = format!("pace.caps[{index}].limit");
            self.wrong(key, format!("{text:?} is no limit"), remedy);
        }
        let scope = match entry.per_label {
            None => CapScope::Cluster,
            Some(label) => {
                if label.is_empty() {
                    let key = format!("pace.caps[{index}].perLabel");
                    self.wrong(key, "it is empty", "write the key of a label, or leave it out");
                }
                CapScope::Label(label.into())
            }
        };
        Some(Cap { scope, limit: limit? })
    }

    fn window(&mut self, index: usize, entry: &WindowEntry) -> Option<Window> {
        let key = |name: &str| format!("pace.windows[{index}].{name}");
        let from = self.time(key("from"), entry.from.as_deref().unwrap_or("00:00"));
        let to = self.time(key("to"), entry.to.as_deref().unwrap_or("24:00"));
        let name = entry.zone.as_deref().unwrap_or("UTC");
        let zone = TimeZone::get(name).ok();
        if zone.is_none() {
            let remedy = "write an IANA name, such as Europe/Berlin";
            self.wrong(key("zone"), format!("{name:?} is no known time zone"), remedy);
        }
        let days = match &entry.days {
            None => Weekday::Monday.cycle_forward().take(7).collect(),
            Some(days) => days.iter().copied().map(weekday).collect::<Vec<_>>(),
        };
        if days.is_empty() {
            let remedy = "name days, or leave it out for all";
            self.wrong(key("days"), "there are none, so it never opens", remedy);
        }
        Some(Window { days, from: from?, to: to?, zone: zone? })
    }

    fn time(&mut self, key: String, text: &str) -> Option<Time> {
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
            self.wrong(key, format!("{text:?} is no time of day"), "write 00:00 to 24:00");
        }
        time
    }

    fn retry(&mut self, entry: RetryEntry) -> Retry {
        let defaults = Retry::default();
        let first = self.positive("retry.first", entry.first);
        let most = self.positive("retry.most", entry.most);
        let retry = Retry {
            first: first.unwrap_or(defaults.first),
            // A longer first pause is enough to say that the longest is as long.
            most: most.unwrap_or(defaults.most.max(first.unwrap_or_default())),
            attempts: entry.attempts.unwrap_or(defaults.attempts),
        };
        if retry.first > retry.most {
            self.wrong("retry.first", "it is longer than retry.most", "write the shorter one here");
        }
        if retry.attempts == 0 {
            let remedy = "write 1 or more, or drain: false for no drain at all";
            self.wrong("retry.attempts", "it is 0, so no drain would begin", remedy);
        }
        retry
    }

    fn groups(&mut self, entries: &[GroupEntry]) -> Vec<PriorityGroup> {
        let last = entries.len().saturating_sub(1);
        let mut before = None;
        for (index, entry) in entries.iter().enumerate() {
            let key = format!("groups[{index}].below");
            match entry.below {
                None if index < last => {
                    self.wrong(key, "it is missing", "only the last group has none");
                }
                Some(_) if index == last => {
                    let cause = "the last group has a bound, so other pods are in no group";
                    self.wrong(key, cause, "leave it out there, or add a group without one");
                }
                Some(below) if before.is_some_and(|before| below <= before) => {
                    let cause = "it is not above that of the group before";
                    self.wrong(key, cause, "write the groups in ascending order");
                }
                _ => {}
            }
            before = entry.below.or(before);
            if entry.share == 0 {
                let cause = "it is 0, so that there is no time for its pods";
                self.wrong(format!("groups[{index}].share"), cause, "write 1 or more");
            }
        }
        let sum: u32 = entries.iter().map(|entry| u32::from(entry.share)).sum();
        if entries.is_empty() {
            self.wrong("groups", "there are none", "name at least one, or leave it out");
        } else if sum != 100 {
            let cause = format!("the shares make {sum} percent");
            self.wrong("groups", cause, "let them make 100");
        }
        let group = |it: &GroupEntry| PriorityGroup { below: it.below, share: it.share };
        entries.iter().map(group).collect()
    }

    fn status_taint(&mut self, key: String) -> Arc<str> {
        match key.strip_prefix(STATUS_TAINTS) {
            Some(name) if is_name(name) => {}
            Some(name) => {
                let remedy = "write 1 to 63 letters, digits, - _ and . after the prefix";
                self.wrong("statusTaint", format!("{name:?} is no name of a taint"), remedy);
            }
            None => {
                let cause = format!(
                    "{key:?} would keep cluster-autoscaler from making new nodes of its kind"
                );
                self.wrong("statusTaint", cause, format!("let it begin with {STATUS_TAINTS}"));
            }
        }
        key.into()
    }
}

/// Reads an annotation that protects pods: `KEY` with any value, or `KEY=VALUE`.
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

fn weekday(day: DayEntry) -> Weekday {
    match day {
        DayEntry::Mon => Weekday::Monday,
        DayEntry::Tue => Weekday::Tuesday,
        DayEntry::Wed => Weekday::Wednesday,
        DayEntry::Thu => Weekday::Thursday,
        DayEntry::Fri => Weekday::Friday,
        DayEntry::Sat => Weekday::Saturday,
        DayEntry::Sun => Weekday::Sunday,
    }
}
