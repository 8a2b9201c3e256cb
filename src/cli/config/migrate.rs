//! A configuration file that does what draino does, with a comment wherever it does not.

use std::fmt::Write as _;
use std::time::Duration;

use super::draino::Given;
use crate::config::protection;
use crate::drain::{
    ConditionRule, DURATION_REMEDY, LabelExpr, format_conditions, format_duration, parse_duration,
};
use crate::model::ConditionStatus;

/// The file for what was given to draino. The error says all that is wrong with it.
pub(super) fn file(given: &Given) -> Result<String, String> {
    let mut wrong = Vec::new();
    let text = written(given, &mut wrong);
    if wrong.is_empty() { Ok(text) } else { Err(wrong.join("; also ")) }
}

fn written(given: &Given, wrong: &mut Vec<String>) -> String {
    for (name, remedy) in [
        ("help", "leave it out"),
        ("version", "leave it out"),
        ("dry-run", "leave it out: a file cannot say it, and `ostrakon run` would drain"),
    ] {
        if given.is_on(name) {
            wrong.push(format!("--{name} makes no policy; {remedy}"));
        }
    }
    let rules = conditions(given, wrong);
    let expression = expression(given, wrong);
    let grace = duration(given, "max-grace-period", wrong);
    let headroom = duration(given, "eviction-headroom", wrong);
    let buffer = duration(given, "drain-buffer", wrong);
    if grace < Duration::from_secs(1) {
        wrong.push("--max-grace-period is less than a second; give more".to_owned());
    }
    for text in given.many("protected-pod-annotation") {
        if let Err(error) = protection(text) {
            wrong.push(format!("--protected-pod-annotation: {error}"));
        }
    }
    let mut file = Writer::default();
    file.say(0, &format!("What draino does for {}, and where ostrakon differs.", list(&rules)));
    elsewhere(given, &mut file);
    file.line(0, "drainPolicies:");
    file.line(1, "- name: draino");
    file.blank();
    file.say(
        2,
        "The same conditions. Unlike draino, ostrakon acts when a minimum age passes though nobody \
         writes to the node. It uncordons once a condition was good for clearAfter (draino: for \
         its minimum age), asks that of all recorded conditions (draino: of one), and does it too \
         where the type of a condition has vanished.",
    );
    let dead = |it: &ConditionRule| &*it.kind == "Ready" && it.status == ConditionStatus::Unknown;
    if rules.iter().any(dead) {
        file.say(
            2,
            "A node whose Ready is Unknown is cordoned and not drained: no pod ends there. Taint \
             eviction removes its pods.",
        );
    }
    file.line(2, "conditions:");
    for rule in &rules {
        file.line(3, &format!("- {}", quoted(&rule.to_string())));
    }
    nodes(&expression, &mut file);
    pods(given, &mut file);
    pace(buffer, &mut file);
    drain(given, grace, headroom, &mut file);
    file.text
}

/// Flags that are no part of a policy.
fn elsewhere(given: &Given, file: &mut Writer) {
    for (name, remedy) in [
        ("debug", "run with --log-level=debug"),
        ("listen", "run with --listen=ADDR:PORT"),
        ("kubeconfig", "run with --kubeconfig=FILE"),
        ("master", "name the server in the kubeconfig"),
        ("namespace", "there is no lock of draino's any more"),
        ("leader-election-lease-duration", "there is no lock of draino's any more"),
        ("leader-election-renew-deadline", "there is no lock of draino's any more"),
        ("leader-election-retry-period", "there is no lock of draino's any more"),
        ("leader-election-token-name", "there is no lock of draino's any more"),
    ] {
        if given.has(name) {
            file.say(0, &format!("Not a part of this file: --{name}; {remedy}."));
        }
    }
}

fn nodes(expression: &LabelExpr, file: &mut Writer) {
    file.blank();
    file.say(
        2,
        "The same nodes. A node that is selected no more is uncordoned when its conditions are \
         over, where draino forgets it.",
    );
    file.line(2, &format!("nodeLabelExpression: {}", quoted(&expression.to_string())));
}

fn pods(given: &Given, file: &mut Writer) {
    file.blank();
    file.say(
        2,
        "The same pods. Beside safe-to-evict=false the other annotations of cluster-autoscaler are \
         honoured too.",
    );
    file.line(2, "pods:");
    for (key, name) in [
        ("evictDaemonSet", "evict-daemonset-pods"),
        ("evictStatefulSet", "evict-statefulset-pods"),
        ("evictEmptyDir", "evict-emptydir-pods"),
        ("evictUnreplicated", "evict-unreplicated-pods"),
    ] {
        file.line(3, &format!("{key}: {}", given.is_on(name)));
    }
    let protections = given.many("protected-pod-annotation");
    if protections.is_empty() {
        file.line(3, "protectedAnnotations: []");
    } else {
        file.line(3, "protectedAnnotations:");
    }
    for text in protections {
        file.line(4, &format!("- {}", quoted(text)));
    }
}

fn pace(buffer: Duration, file: &mut Writer) {
    file.blank();
    file.say(
        2,
        "The buffer is two settings: notice lies between a node's cordon and its drain, which \
         draino has at 11 s whatever its buffer, and spacing between two drains. The place of a \
         drain that is cancelled is free again. Draino cordons any number of nodes; a cap such as \
         25% is worth having.",
    );
    file.line(2, "pace:");
    file.line(3, "notice: 11s");
    file.line(3, &format!("spacing: {}", format_duration(buffer)));
    file.line(3, "caps: []");
}

fn drain(given: &Given, grace: Duration, headroom: Duration, file: &mut Writer) {
    file.blank();
    file.say(
        2,
        "A pod that asks for less than the maximum keeps its own grace, and so does one that asks \
         for none, which draino gives the maximum. One that asks for more is cut short, as by \
         draino; leave maxGracePeriod out to give each pod its own.",
    );
    file.line(2, &format!("maxGracePeriod: {}", format_duration(grace)));
    file.line(2, &format!("headroom: {}", format_duration(headroom)));
    file.line(2, &format!("deadline: {}", format_duration(grace.saturating_add(headroom))));
    file.blank();
    file.say(
        2,
        "Draino drains though the condition is over or a person has uncordoned the node; ostrakon \
         asks again before each step, and stops.",
    );
    file.line(2, "stopWhenClear: true");
    file.blank();
    file.say(
        2,
        "Draino never tries a failed drain again unless the node is annotated with \
         draino/drain-retry=true. ostrakon tries again after growing pauses; the annotation asks \
         for one more try, not for endless ones. Write attempts: 1 for draino's way.",
    );
    file.line(2, "retry:");
    file.line(3, "first: 10m");
    file.line(3, "most: 2h");
    file.line(3, "attempts: 8");
    file.blank();
    if given.is_on("skip-drain") {
        file.say(2, "As --skip-drain; no drain is claimed, where draino reports one.");
        file.line(2, "drain: false");
    } else {
        file.say(2, "As draino: what must stay is left, and the rest is evicted.");
    }
    file.line(2, "undrainable: DrainRest");
}

fn conditions(given: &Given, wrong: &mut Vec<String>) -> Vec<ConditionRule> {
    if given.conditions.is_empty() {
        wrong.push("there are no conditions; name at least one, such as KernelDeadlock".to_owned());
    }
    let mut rules: Vec<ConditionRule> = Vec::new();
    for text in &given.conditions {
        match ConditionRule::parse(text) {
            // The lower age decides, as with draino.
            Ok(rule) => {
                match rules.iter_mut().find(|it| it.kind == rule.kind && it.status == rule.status) {
                    Some(other) => other.min_age = other.min_age.min(rule.min_age),
                    None => rules.push(rule),
                }
            }
            Err(error) => wrong.push(format!("condition {error}")),
        }
    }
    rules
}

fn expression(given: &Given, wrong: &mut Vec<String>) -> LabelExpr {
    let terms = given.many("node-label");
    let text = given.text("node-label-expr");
    if !terms.is_empty() && !text.is_empty() {
        let cause = "--node-label and --node-label-expr exclude each other";
        wrong.push(format!("{cause}; give one of them"));
    }
    let (name, expression) = match terms {
        [] => ("node-label-expr", LabelExpr::parse(text)),
        terms => ("node-label", LabelExpr::from_terms(terms)),
    };
    expression.unwrap_or_else(|error| {
        wrong.push(format!("--{name}: {error}"));
        LabelExpr::default()
    })
}

fn duration(given: &Given, name: &str, wrong: &mut Vec<String>) -> Duration {
    let text = given.text(name);
    parse_duration(text).unwrap_or_else(|| {
        wrong.push(format!("--{name}: {text:?} is no duration; {DURATION_REMEDY}"));
        Duration::ZERO
    })
}

/// The conditions as draino writes them on a node.
fn list(rules: &[ConditionRule]) -> String {
    format_conditions(rules).replace(';', " or ")
}

/// A text in quotes, as both JSON and YAML have it.
fn quoted(text: &str) -> String {
    let mut quoted = String::new();
    for c in serde_json::Value::from(text).to_string().chars() {
        // YAML has no place for these as they are, JSON leaves them so.
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

/// Lines of YAML, with comments that are wrapped.
#[derive(Default)]
struct Writer {
    text: String,
}

impl Writer {
    /// Length of the longest line of a comment.
    const WIDTH: usize = 100;

    fn line(&mut self, depth: usize, text: &str) {
        let _ = writeln!(self.text, "{:indent$}{text}", "", indent = 2 * depth);
    }

    fn blank(&mut self) {
        self.text.push('\n');
    }

    /// A comment.
    fn say(&mut self, depth: usize, text: &str) {
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
