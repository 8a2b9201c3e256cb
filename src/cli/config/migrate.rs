//! Converts draino's settings into a configuration file. Comments give the origin of each setting and
//! say where ostrakon differs.

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::time::Duration;

use super::draino::{Given, Note, Source, Word, parse};
use super::flags::{Fate, Takes, Tree};
use crate::config::{API_VERSION, KIND, protection};
use crate::drain::{
    ConditionRule, DURATION_REMEDY, LabelExpr, SyntaxError, format_conditions, format_duration,
    is_label_key, parse_duration,
};
use crate::model::ConditionStatus;

/// The result of a conversion.
#[derive(Debug, Default)]
pub(super) struct Migration {
    /// The configuration file. Empty if there is nothing to convert.
    pub(super) file: String,
    /// What was not converted.
    pub(super) notes: Vec<Note>,
}

/// Converts each draino into a policy.
pub(super) fn migrate(sources: &[Source], honoured: &[Note], not_honoured: &[Note]) -> Migration {
    let mut names = BTreeSet::new();
    let mut policies = Writer::default();
    let mut head = Writer::default();
    let mut notes = Vec::new();
    for source in sources {
        let given = parse(source);
        let mut policy = Conversion { given: &given, notes: given.notes.clone() };
        let text = policy.written(&unused(&source.name, &mut names), source);
        policies.text.push_str(&text);
        notes.append(&mut policy.notes);
    }
    for note in honoured {
        head.say(0, &format!("{} ({}): {}.", note.what, note.origin, note.why));
    }
    notes.extend(not_honoured.iter().cloned());
    for note in &notes {
        head.say(0, &format!("Not converted: {} ({}): {}.", note.what, note.origin, note.why));
    }
    if policies.text.is_empty() {
        return Migration { file: String::new(), notes };
    }
    let mut file = Writer::default();
    file.say(0, "Converted from draino's settings. Comments give the origin of each setting.");
    file.text.push_str(&head.text);
    file.line(0, &format!("apiVersion: {API_VERSION}"));
    file.line(0, &format!("kind: {KIND}"));
    file.line(0, "drainPolicies:");
    file.text.push_str(&policies.text);
    Migration { file: file.text, notes }
}

/// A unique name for a policy.
fn unused(wanted: &str, names: &mut BTreeSet<String>) -> String {
    let plain = |c: char| if c.is_ascii_alphanumeric() || "-_.".contains(c) { c } else { '-' };
    let wanted: String = wanted.chars().map(plain).take(55).collect();
    let wanted = if wanted.is_empty() { "draino".to_owned() } else { wanted };
    let mut name = wanted.clone();
    let mut number = 1;
    while !names.insert(name.clone()) {
        number += 1;
        name = format!("{wanted}-{number}");
    }
    name
}

/// A kind of controller, and its group unless any group matches.
type Controller = (String, Option<String>);

/// The conversion of one draino.
struct Conversion<'a> {
    given: &'a Given,
    notes: Vec<Note>,
}

impl Conversion<'_> {
    /// Records a setting that is not converted.
    fn lost(&mut self, what: impl Into<String>, word: &Word, why: impl Into<String>) {
        self.notes.push(Note::new(what, &word.origin, why));
    }

    /// The policy; empty if there is no condition.
    fn written(&mut self, name: &str, source: &Source) -> String {
        let given = self.given;
        let rules = self.conditions();
        for (flag, words) in given.flags() {
            // A flag that is switched off needs no note.
            let on =
                words.iter().filter(|word| flag.takes != Takes::Nothing || word.text != "false");
            if let Fate::Nothing(why) = flag.fate {
                let whose = match flag.tree {
                    Tree::Planetlabs => String::new(),
                    tree => format!(" of {}", tree.name()),
                };
                on.for_each(|word| self.lost(format!("--{}{whose}", flag.name), word, why));
            }
        }
        if rules.is_empty() {
            let why = "there is no condition, so there is no policy; name at least one, such as \
                       KernelDeadlock";
            let what = if source.what.is_empty() { "the arguments" } else { &source.what };
            self.notes.push(Note::new(what, &source.origin, why));
            return String::new();
        }
        let mut file = Writer::default();
        file.line(1, &format!("- name: {}", quoted(name)));
        if !source.what.is_empty() {
            file.say(2, &format!("From {} ({}).", source.what, source.origin));
        }
        let rules_only: Vec<_> = rules.iter().map(|(rule, _)| rule.clone()).collect();
        file.say(
            2,
            &format!(
                "The settings of {} for {}, and where ostrakon differs.",
                given.tree.name(),
                format_conditions(&rules_only).replace(';', " or ")
            ),
        );
        for (flag, words) in given.flags() {
            if let (Fate::Elsewhere(remedy), Some(word)) = (flag.fate, words.last()) {
                file.say(
                    2,
                    &format!("Not set in this file: --{} ({}); {remedy}.", flag.name, word.origin),
                );
            }
        }
        file.blank();
        write_conditions(&rules, &mut file);
        self.nodes(&mut file);
        self.pods(&mut file);
        self.pace(&mut file);
        self.drain(&mut file);
        file.text
    }

    fn conditions(&mut self) -> Vec<(ConditionRule, Word)> {
        let mut rules: Vec<(ConditionRule, Word)> = Vec::new();
        let flagged = self.given.many("node-conditions").iter();
        let words: Vec<Word> = self.given.conditions.iter().chain(flagged).cloned().collect();
        for word in words {
            // Draino reads a list in one flag as a single type, which no node has.
            let parts: Vec<&str> = match word.text.split_once('=') {
                None if word.text.contains(',') => word.text.split(',').map(str::trim).collect(),
                _ => vec![word.text.as_str()],
            };
            if parts.len() > 1 {
                let why = "draino reads it as one condition; here it is read as several";
                self.lost(&word.text, &word, why);
            }
            for part in parts {
                let Some(rule) = self.condition(part, &word) else { continue };
                // The lower age is used, as in draino.
                let same = |(it, _): &&mut (ConditionRule, Word)| {
                    it.kind == rule.kind && it.status == rule.status
                };
                match rules.iter_mut().find(same) {
                    Some((other, _)) => other.min_age = other.min_age.min(rule.min_age),
                    None => rules.push((rule, word.clone())),
                }
            }
        }
        rules
    }

    fn condition(&mut self, text: &str, word: &Word) -> Option<ConditionRule> {
        if let Some((kind, details)) = text.split_once('=')
            && details.trim_start().starts_with('{')
        {
            return self.detailed(kind, details, word);
        }
        if let Some(kind) = text.strip_suffix("=True")
            && kind != "Ready"
            && let Ok(kind) = ConditionRule::kind(kind)
        {
            let why = "it has no minimum age, so draino panics; here it is 0s";
            self.lost(text, word, why);
            return Some(ConditionRule::new(kind, ConditionStatus::True, Duration::ZERO));
        }
        match ConditionRule::parse(text) {
            Ok(rule) => Some(rule),
            Err(error) => {
                self.lost(format!("condition {text:?}"), word, in_short(&error));
                None
            }
        }
    }

    /// `Type={"delay": "6h", …}`, as `DataDog`'s draino has it.
    fn detailed(&mut self, kind: &str, details: &str, word: &Word) -> Option<ConditionRule> {
        let what = format!("condition {:?}", format!("{kind}={details}"));
        let Ok(details) = serde_json::from_str::<serde_json::Map<_, _>>(details) else {
            self.lost(what, word, "what follows = is not JSON; write Type={\"delay\":\"10m\"}");
            return None;
        };
        let text = |key: &str| details.get(key).and_then(serde_json::Value::as_str);
        let status = ConditionStatus::parse(text("conditionStatus").unwrap_or("True"));
        let min_age = parse_duration(text("delay").unwrap_or("0s"));
        let (Ok(kind), Some(status), Some(min_age)) = (ConditionRule::kind(kind), status, min_age)
        else {
            self.lost(what, word, "its type, conditionStatus or delay is invalid");
            return None;
        };
        let rest =
            details.keys().filter(|key| !["conditionStatus", "delay"].contains(&key.as_str()));
        let rest: Vec<_> = rest.map(String::as_str).collect();
        if !rest.is_empty() {
            let why = "conditions have no such settings: the node that has waited longest is drained \
                       first, and pace.spacing applies";
            self.lost(format!("{} of condition {kind}", rest.join(", ")), word, why);
        }
        Some(ConditionRule::new(kind, status, min_age))
    }

    fn nodes(&mut self, file: &mut Writer) {
        let terms = self.given.many("node-label");
        let word = self.given.word("node-label-expr").filter(|word| !word.text.trim().is_empty());
        let (name, origin, expression) = match (terms, word) {
            ([], None) => ("node-label-expr", None, Ok(LabelExpr::default())),
            ([], Some(word)) => ("node-label-expr", Some(word), LabelExpr::parse(&word.text)),
            ([first, ..], other) => {
                if let Some(word) = other {
                    let why = "draino allows only one of --node-label and this; here --node-label is used";
                    self.lost("--node-label-expr", word, why);
                }
                let texts: Vec<_> = terms.iter().map(|word| &word.text).collect();
                ("node-label", Some(first), LabelExpr::from_terms(&texts))
            }
        };
        file.blank();
        file.say(
            2,
            "The same nodes. A node that is no longer selected is uncordoned once its conditions \
             clear; draino forgets it.",
        );
        match (expression, origin) {
            (Ok(expression), origin) => {
                let from = origin.map(|word| format!("--{name}, {}", word.origin));
                let line = format!("nodeLabelExpression: {}", quoted(&expression.to_string()));
                file.setting(2, &line, from.as_deref());
            }
            (Err(error), origin) => {
                let why =
                    format!("{}. Until it is fixed, the policy selects no node", in_short(&error));
                if let Some(word) = origin {
                    self.lost(format!("--{name}={}", word.text), word, why);
                }
                file.say(2, "It could not be converted, so no node is selected.");
                file.line(2, "nodeLabelExpression: \"false\"");
            }
        }
    }

    fn pods(&mut self, file: &mut Writer) {
        file.blank();
        file.say(
            2,
            "The same pods. In addition to safe-to-evict=false, cluster-autoscaler's other annotations \
             are honoured.",
        );
        file.line(2, "pods:");
        let left = self.left_controllers();
        for (key, name, kind) in [
            ("evictDaemonSet", "evict-daemonset-pods", Some("DaemonSet")),
            ("evictStatefulSet", "evict-statefulset-pods", Some("StatefulSet")),
            ("evictEmptyDir", "evict-emptydir-pods", None),
            ("evictUnreplicated", "evict-unreplicated-pods", Some("")),
        ] {
            let flag = self.given.word(name);
            let by_kind = kind.filter(|_| left.is_some() && flag.is_none());
            if let (Some(kind), Some((kinds, word))) = (by_kind, &left) {
                let evict = !kinds.iter().any(|(it, group)| it == kind && group.is_none());
                let from = format!("--do-not-evict-pod-controlled-by, {}", word.origin);
                file.setting(3, &format!("{key}: {evict}"), Some(&from));
            } else {
                let from = flag.map(|word| format!("--{name}, {}", word.origin));
                file.setting(3, &format!("{key}: {}", self.given.is_on(name)), from.as_deref());
            }
        }
        if let Some(word) = self.given.word("ignore-safe-to-evict-annotation") {
            let from = format!("--ignore-safe-to-evict-annotation, {}", word.origin);
            file.setting(3, &format!("honourSafeToEvict: {}", word.text != "true"), Some(&from));
        }
        if let Some((kinds, word)) = &left {
            let own = |(kind, group): &&Controller| {
                group.is_some() || !["", "DaemonSet", "StatefulSet"].contains(&kind.as_str())
            };
            let kinds: Vec<_> = kinds.iter().filter(own).collect();
            if !kinds.is_empty() {
                let from = format!("--do-not-evict-pod-controlled-by, {}", word.origin);
                file.setting(3, "leaveControllers:", Some(&from));
            }
            for (kind, group) in kinds {
                let group = group.as_ref().map(|group| format!(", group: {}", quoted(group)));
                let group = group.unwrap_or_default();
                file.line(4, &format!("- {{kind: {}{group}}}", quoted(kind)));
            }
        }
        let mut protections = Vec::new();
        for word in self.given.many("protected-pod-annotation") {
            match protection(&word.text) {
                Ok(_) => protections.push(word),
                Err(error) => {
                    self.lost("--protected-pod-annotation", word, in_short(&error));
                }
            }
        }
        if protections.is_empty() {
            file.line(3, "protectedAnnotations: []");
        } else {
            file.line(3, "protectedAnnotations:");
        }
        for word in protections {
            let from = format!("--protected-pod-annotation, {}", word.origin);
            file.setting(4, &format!("- {}", quoted(&word.text)), Some(&from));
        }
    }

    /// Kinds of controllers, with their groups, whose pods stay; `None` if not set.
    fn left_controllers(&self) -> Option<(Vec<Controller>, Word)> {
        let words = self.given.many("do-not-evict-pod-controlled-by");
        let first = words.first()?.clone();
        let kinds = words.iter().flat_map(|word| word.text.split(','));
        let kinds = kinds.map(|text| {
            let (kind, group) = match text.trim().split_once('.') {
                Some((kind, group)) => (kind, Some(group)),
                None => (text.trim(), None),
            };
            // kind[[.version].group]: a version is v1, v1beta1 and the like.
            let is_version = |part: &str| {
                part.strip_prefix('v')
                    .is_some_and(|it| it.starts_with(|c: char| c.is_ascii_digit()))
            };
            let group = group.unwrap_or_default().split('.').filter(|part| !is_version(part));
            let group = Some(group.collect::<Vec<_>>().join(".")).filter(|group| !group.is_empty());
            let kind = match kind {
                "DaemonSets" | "StatefulSets" => kind.trim_end_matches('s'),
                kind => kind,
            };
            // These two are of one group only.
            let own =
                ["DaemonSet", "StatefulSet"].contains(&kind) && group.as_deref() == Some("apps");
            (kind.to_owned(), group.filter(|_| !own))
        });
        Some((kinds.collect(), first))
    }

    fn pace(&mut self, file: &mut Writer) {
        file.blank();
        file.say(
            2,
            "Draino's buffer is two settings. notice is the time between a node's cordon and its \
             drain, always 11s in draino. spacing is the time between two drains; a cancelled drain \
             does not count. Draino cordons any number of nodes; consider a cap such as 25%.",
        );
        file.line(2, "pace:");
        let (notice, from) = self.duration("wait-before-draining", "11s");
        file.setting(3, &format!("notice: {}", format_duration(notice)), from.as_deref());
        let (buffer, from) = self.duration("drain-buffer", "10m0s");
        file.setting(3, &format!("spacing: {}", format_duration(buffer)), from.as_deref());
        let mut caps = Vec::new();
        if let Some(word) = self.given.word("dry-run").filter(|word| word.text == "true") {
            caps.push(("- limit: 1".to_owned(), "dry-run", word));
        }
        let limit = |text: &str| {
            let number = text.strip_suffix('%').unwrap_or(text).parse::<u32>().ok();
            number.is_some_and(|it| it > 0 && (it <= 100 || !text.ends_with('%')))
        };
        let mut wrong = Vec::new();
        for word in self.given.many("max-simultaneous-cordon") {
            if limit(&word.text) {
                caps.push((format!("- limit: {}", word.text), "max-simultaneous-cordon", word));
            } else {
                wrong.push((
                    "--max-simultaneous-cordon",
                    word,
                    "it is not a number or a percentage",
                ));
            }
        }
        let name = "max-simultaneous-cordon-for-labels";
        for word in self.given.many(name) {
            match word.text.split(',').collect::<Vec<_>>()[..] {
                [number, key] if limit(number) && is_label_key(key) => {
                    let line = format!("- {{limit: {number}, perLabel: {}}}", quoted(key));
                    caps.push((line, name, word));
                }
                [number, _, _, ..] if limit(number) => {
                    let why = "a cap groups nodes by one label; add a label that combines these";
                    wrong.push(("--max-simultaneous-cordon-for-labels", word, why));
                }
                _ => {
                    let why = "it is not a number or a percentage, followed by a label";
                    wrong.push(("--max-simultaneous-cordon-for-labels", word, why));
                }
            }
        }
        for (what, word, why) in wrong {
            self.lost(format!("{what}={}", word.text), word, why);
        }
        file.line(3, if caps.is_empty() { "caps: []" } else { "caps:" });
        for (line, name, word) in caps {
            file.setting(4, &line, Some(&format!("--{name}, {}", word.origin)));
        }
    }

    fn drain(&mut self, file: &mut Writer) {
        let getamis = self.given.tree == Tree::Getamis;
        let (grace, headroom) = if getamis { ("1m0s", "10m0s") } else { ("8m0s", "30s") };
        let (headroom, headroom_from) = self.duration("eviction-headroom", headroom);
        file.blank();
        if self.given.tree == Tree::DataDog && self.given.word("max-grace-period").is_none() {
            let (least, from) = self.duration("min-eviction-timeout", "8m0s");
            file.say(
                2,
                "Each pod keeps its own grace period. The drain has the longest of them plus the \
                 headroom.",
            );
            let headroom = least.saturating_add(headroom);
            let from = match (from, headroom_from) {
                (Some(least), Some(headroom)) => Some(format!("{least}; {headroom}")),
                (least, headroom) => least.or(headroom),
            };
            file.setting(2, &format!("headroom: {}", format_duration(headroom)), from.as_deref());
        } else {
            let (mut grace, grace_from) = self.duration("max-grace-period", grace);
            if let Some(word) = self.given.word("max-grace-period")
                && grace < Duration::from_secs(1)
            {
                self.lost("--max-grace-period", word, "it is less than 1s; here it is 1s");
                grace = Duration::from_secs(1);
            }
            file.say(
                2,
                "A pod keeps a grace period that is shorter than the maximum or not set; draino gives \
                 the latter the maximum. A longer one is cut short, as in draino. Leave maxGracePeriod \
                 out to keep every pod's own grace period.",
            );
            let line = format!("maxGracePeriod: {}", format_duration(grace));
            file.setting(2, &line, grace_from.as_deref());
            let line = format!("headroom: {}", format_duration(headroom));
            file.setting(2, &line, headroom_from.as_deref());
            let deadline = grace.saturating_add(headroom).max(Duration::from_secs(1));
            let line = format!("deadline: {}", format_duration(deadline));
            file.setting(2, &line, Some("maximum grace period plus headroom"));
        }
        file.blank();
        file.say(
            2,
            "Draino drains even if the condition has cleared or a person has uncordoned the node. \
             ostrakon checks before each step, and stops.",
        );
        file.line(2, "stopWhenClear: true");
        file.blank();
        self.retry(file);
        file.blank();
        if let Some(word) = self.given.word("skip-drain").filter(|word| word.text == "true") {
            file.say(2, "ostrakon reports no drain; draino reports one that did not happen.");
            file.setting(2, "drain: false", Some(&format!("--skip-drain, {}", word.origin)));
        } else if let Some(word) = self.given.word("dry-run").filter(|word| word.text == "true") {
            file.say(2, "A file has no --dry-run: nodes are cordoned, one at a time.");
            file.setting(2, "drain: false", Some(&format!("--dry-run, {}", word.origin)));
        }
        file.say(2, "As in draino: pods that must stay are kept, the others are evicted.");
        file.line(2, "undrainable: DrainRest");
    }

    fn retry(&mut self, file: &mut Writer) {
        let (delay, delay_from) = self.duration("retry-backoff-delay", "10m0s");
        let attempts = self.given.word("max-drain-attempts-before-fail");
        let read = attempts.map(|word| (word.text.parse::<u32>().ok().filter(|it| *it > 0), word));
        if let Some((None, word)) = read {
            self.lost(
                "--max-drain-attempts-before-fail",
                word,
                "it is not a number of at least 1; here it is 8",
            );
        }
        if self.given.tree == Tree::DataDog {
            file.say(2, "The delay doubles up to the maximum; in draino it is constant.");
        } else {
            file.say(
                2,
                "Draino only retries a failed drain if the node is annotated with \
                 draino/drain-retry=true. ostrakon retries with a growing delay; the annotation \
                 requests one more attempt, not endless ones. For draino's behaviour, write \
                 attempts: 1.",
            );
        }
        file.line(2, "retry:");
        let first = delay.max(Duration::from_secs(1));
        file.setting(3, &format!("first: {}", format_duration(first)), delay_from.as_deref());
        file.line(3, &format!("most: {}", format_duration(first.max(Duration::from_secs(7200)))));
        let from = attempts.map(|it| format!("--max-drain-attempts-before-fail, {}", it.origin));
        let attempts = read.and_then(|(attempts, _)| attempts).unwrap_or(8);
        file.setting(3, &format!("attempts: {attempts}"), from.as_deref());
    }

    /// The value of a duration flag, or draino's default, and where it came from.
    fn duration(&mut self, name: &str, default: &str) -> (Duration, Option<String>) {
        let default = parse_duration(default).unwrap_or_default();
        let Some(word) = self.given.word(name) else { return (default, None) };
        if let Some(duration) = parse_duration(&word.text) {
            return (duration, Some(format!("--{name}, {}", word.origin)));
        }
        let why = format!(
            "it is not a duration; {DURATION_REMEDY}. Here it is draino's default, {}",
            format_duration(default)
        );
        self.lost(format!("--{name}={}", word.text), word, why);
        (default, None)
    }
}

fn write_conditions(rules: &[(ConditionRule, Word)], file: &mut Writer) {
    file.say(
        2,
        "The same conditions. Unlike draino, ostrakon acts as soon as a minimum age has passed, even \
         without an update of the node. It uncordons once all recorded conditions (draino: one) have \
         been good for clearAfter (draino: the minimum age), and also if a condition has been removed \
         from the node.",
    );
    let dead = |it: &ConditionRule| &*it.kind == "Ready" && it.status == ConditionStatus::Unknown;
    if rules.iter().any(|(rule, _)| dead(rule)) {
        file.say(
            2,
            "A node whose Ready is Unknown is cordoned but not drained: its kubelet cannot stop pods. \
             Taint eviction removes them.",
        );
    }
    file.line(2, "conditions:");
    for (rule, word) in rules {
        file.setting(3, &format!("- {}", quoted(&rule.to_string())), Some(&word.origin));
    }
    let healthy = |it: &ConditionRule| &*it.kind == "Ready" && it.status == ConditionStatus::True;
    if rules.iter().any(|(rule, _)| healthy(rule)) {
        file.say(2, "Ready=True makes every healthy node bad. A file must say that this is meant.");
        file.line(2, "allowMajority: true");
    }
}

/// A syntax error without the text that it quotes.
fn in_short(error: &SyntaxError) -> String {
    format!("column {}: {}; {}", error.column, error.cause, error.remedy)
}

/// A quoted string that is valid in both JSON and YAML.
fn quoted(text: &str) -> String {
    let mut quoted = String::new();
    for c in serde_json::Value::from(text).to_string().chars() {
        // YAML requires an escape for these; JSON does not add one.
        if c.is_control()
            || matches!(c, '\u{2028}' | '\u{2029}' | '\u{feff}' | '\u{fffe}' | '\u{ffff}')
        {
            let _ = write!(quoted, "\\u{:04x}", u32::from(c));
        } else {
            quoted.push(c);
        }
    }
    quoted
}

/// Writes YAML with wrapped comments.
#[derive(Default)]
struct Writer {
    text: String,
}

impl Writer {
    /// Maximum length of a line with a comment.
    const WIDTH: usize = 100;

    fn line(&mut self, depth: usize, text: &str) {
        let _ = writeln!(self.text, "{:indent$}{text}", "", indent = 2 * depth);
    }

    /// A setting, and where it came from; `None` for draino's default.
    fn setting(&mut self, depth: usize, text: &str, origin: Option<&str>) {
        let origin = origin.unwrap_or("draino's default");
        let origin: String = origin.chars().map(|c| if shows(c) { c } else { ' ' }).collect();
        if 2 * depth + text.chars().count() + origin.chars().count() + 3 <= Self::WIDTH {
            self.line(depth, &format!("{text} # {origin}"));
        } else {
            self.say(depth, &format!("{origin}:"));
            self.line(depth, text);
        }
    }

    fn blank(&mut self) {
        self.text.push('\n');
    }

    /// A comment.
    fn say(&mut self, depth: usize, text: &str) {
        let text: String = text.chars().map(|c| if shows(c) { c } else { ' ' }).collect();
        let mut line = String::from("#");
        for word in text.split_whitespace() {
            if line.len() + word.len() + 2 * depth >= Self::WIDTH {
                self.line(depth, &line);
                line.truncate(1);
            }
            line.push(' ');
            line.push_str(word);
        }
        self.line(depth, &line);
    }
}

/// Whether a comment can contain it: it ends no line, and YAML allows it.
fn shows(c: char) -> bool {
    !c.is_control() && !matches!(c, '\u{2028}' | '\u{2029}' | '\u{feff}' | '\u{fffe}' | '\u{ffff}')
}
