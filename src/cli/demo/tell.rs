//! What the demo says, to people and to machines.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::time::Duration;

use serde::Serialize;

use super::ledger::Eviction;

/// One thing to say. As JSON each is an object on one line, of which `event` names the kind;
/// `docs/demo.md` lists them.
#[derive(Clone, Debug, Serialize)]
#[serde(tag = "event", rename_all = "snake_case")]
pub(super) enum Line {
    /// The cluster is being made.
    Starting { nodes: usize, pods: usize, faults: usize },
    /// The cluster is there and the controller knows it.
    Ready { took_seconds: f64, server: String },
    /// The story does something.
    Step { seconds: f64, step: &'static str, nodes: Vec<String>, text: String },
    /// The controller is at work again.
    Restarted { seconds: f64, away_seconds: f64 },
    /// A node got a NoExecute taint.
    Tainted {
        seconds: f64,
        node: String,
        taint: String,
        at_once: usize,
        counting: BTreeMap<i64, usize>,
        staying: usize,
    },
    /// A node lost one.
    Untainted { seconds: f64, node: String, taint: String, cancelled: usize },
    /// A pod that had to go was deleted.
    Evicted {
        seconds: f64,
        pod: String,
        uid: String,
        node: String,
        taint: String,
        tolerated_seconds: Option<i64>,
        late_ms: f64,
    },
    /// The sick node takes no pods any more.
    Cordoned {
        seconds: f64,
        node: String,
        #[serde(rename = "after_seconds")]
        after: f64,
    },
    /// All its pods are gone that had to go.
    Drained {
        seconds: f64,
        node: String,
        evicted: usize,
        #[serde(rename = "after_seconds")]
        after: f64,
    },
    /// It takes pods again.
    Uncordoned { seconds: f64, node: String },
    /// A pod was deleted that had to stay.
    Wrong { seconds: f64, text: String },
    /// How things stand; once a second.
    State {
        seconds: f64,
        nodes: Vec<Row>,
        pods: usize,
        overdue: usize,
        evicted: usize,
        cancelled: usize,
    },
    /// What became of it all.
    Summary(Summary),
    /// The cluster stays, and this is how to get at it.
    Serving { server: String, kubeconfig: String, metrics: String },
}

/// A node in a table.
#[derive(Clone, Debug, Serialize)]
pub(super) struct Row {
    pub(super) node: String,
    pub(super) taints: Vec<String>,
    pub(super) pods: usize,
    pub(super) counting: usize,
    pub(super) next_in_seconds: Option<f64>,
    pub(super) going: usize,
}

/// The numbers at the end.
#[derive(Clone, Debug, Serialize)]
pub(super) struct Summary {
    pub(super) seconds: f64,
    pub(super) evicted: usize,
    /// Pods that were evicted from the sick node.
    pub(super) drained: usize,
    /// Pods of the first cast that are still there.
    pub(super) kept: usize,
    pub(super) cancelled: usize,
    pub(super) first_ms: f64,
    pub(super) median_ms: f64,
    pub(super) p99_ms: f64,
    pub(super) ok: bool,
    /// What was not as it must be; empty if all was.
    pub(super) failures: Vec<String>,
}

impl Line {
    /// Evictions as lines for people: those for the same reason in one.
    pub(super) fn evictions(evictions: &[Eviction]) -> Vec<String> {
        let mut groups: BTreeMap<_, Vec<&Eviction>> = BTreeMap::new();
        for eviction in evictions {
            let group = (&eviction.key, eviction.seconds.filter(|seconds| *seconds > 0));
            groups.entry(group).or_default().push(eviction);
        }
        let line = |((key, seconds), group): ((&String, Option<i64>), Vec<&Eviction>)| {
            let lateness = group.iter().map(|eviction| eviction.late);
            let (least, most) = (lateness.clone().min(), lateness.max());
            let (least, most) = (least.unwrap_or_default(), most.unwrap_or_default());
            let (why, after) = match seconds {
                None => (format!("that do not tolerate {}", short(key)), "the taint"),
                Some(seconds) => (format!("whose {seconds} s are over"), "the deadline"),
            };
            let (least, most) = (millis(least), millis(most));
            let range = if least == most { most } else { format!("{least} to {most}") };
            format!("{} {why}: evicted {range} after {after}", pods(group.len()))
        };
        groups.into_iter().map(line).collect()
    }

    /// The line for people; `None` if it is for machines only.
    pub(super) fn text(&self) -> Option<String> {
        Some(match self {
            Self::Starting { nodes, pods, faults } => {
                let faults = match faults {
                    0 => String::new(),
                    1 => " A fault will befall the controller's requests.".to_owned(),
                    n => format!(" {n} faults will befall the controller's requests."),
                };
                format!(
                    "Starting a cluster in this process: {} nodes, {} pods.{faults}",
                    grouped(*nodes),
                    grouped(*pods),
                )
            }
            Self::Ready { took_seconds, server } => format!(
                "Ready in {took_seconds:.1} s. The controller is the real one; it reaches the cluster \
                 at {server}.",
            ),
            Self::Step { text, .. } => text.clone(),
            Self::Tainted { node, taint, at_once, counting, staying, .. } => {
                let outlook = outlook(*at_once, counting, *staying);
                format!("{node} is tainted {}:NoExecute: {outlook}", short(taint))
            }
            Self::Untainted { node, taint, cancelled: 0, .. } => {
                format!("{}:NoExecute is off {node}", short(taint))
            }
            Self::Untainted { node, taint, cancelled, .. } => format!(
                "{}:NoExecute is off {node}: {} cancelled, the pods stay",
                short(taint),
                counted(*cancelled, "countdown")
            ),
            Self::Restarted { away_seconds, .. } => {
                format!("it knows the cluster again after {away_seconds:.1} s")
            }
            Self::Cordoned { node, after, .. } => {
                format!("{node} is cordoned, {} after its report", millis_of(after * 1e3))
            }
            Self::Drained { node, evicted, after, .. } => {
                format!(
                    "{node} is drained: {} evicted, the last one gone after {after:.1} s",
                    pods(*evicted)
                )
            }
            Self::Uncordoned { node, .. } => format!("{node} takes pods again"),
            Self::Wrong { text, .. } => format!("WRONG: {text}"),
            Self::Summary(summary) => summary.text(),
            Self::Serving { .. } | Self::Evicted { .. } | Self::State { .. } => return None,
        })
    }
}

impl Summary {
    fn text(&self) -> String {
        let mut text = format!(
            "\nAs the history of the cluster has it, not the controller:\n\
             \x20 evicted    {:>6}   first {} after it was due, median {}, p99 {}\n\
             \x20 cancelled  {:>6}   countdowns, because the taint went in time\n\
             \x20 drained    {:>6}   pods, off a cordoned node and within the budget\n\
             \x20 kept       {:>6}   pods, each of which had to stay\n",
            grouped(self.evicted),
            millis_of(self.first_ms),
            millis_of(self.median_ms),
            millis_of(self.p99_ms),
            grouped(self.cancelled),
            grouped(self.drained),
            grouped(self.kept),
        );
        if self.ok {
            text.push_str(
                "Exactly the pods went that had to, none before its time. The new shop/db-0 is there.",
            );
        } else {
            text.push_str("NOT as it must be:");
            for failure in &self.failures {
                let _ = write!(text, "\n  {failure}");
            }
        }
        text
    }
}

fn outlook(at_once: usize, counting: &BTreeMap<i64, usize>, staying: usize) -> String {
    let mut parts = Vec::new();
    if at_once > 0 {
        parts.push(format!("{} now", goes(at_once)));
    }
    // As a rule as many go each time.
    let number = counting.values().next().copied().unwrap_or_default();
    if counting.len() > 1 && counting.values().all(|other| *other == number) {
        let seconds: Vec<_> = counting.keys().map(i64::to_string).collect();
        parts.push(format!("{number} each in {} s", seconds.join(", ")));
    } else {
        for (seconds, number) in counting {
            let who = if parts.is_empty() { goes(*number) } else { number.to_string() };
            parts.push(format!("{who} in {seconds} s"));
        }
    }
    if staying > 0 {
        parts.push(format!("{staying} stay"));
    }
    if parts.is_empty() { "it has no pods".to_owned() } else { parts.join(", ") }
}

fn goes(number: usize) -> String {
    format!("{} {}", pods(number), if number == 1 { "goes" } else { "go" })
}

/// A taint's key without the prefix that all of Kubernetes' own have.
pub(super) fn short(key: &str) -> &str {
    key.strip_prefix("node.kubernetes.io/").unwrap_or(key)
}

fn pods(number: usize) -> String {
    counted(number, "pod")
}

fn counted(number: usize, what: &str) -> String {
    let plural = if number == 1 { "" } else { "s" };
    format!("{} {what}{plural}", grouped(number))
}

/// Seconds to the millisecond: finer is noise.
pub(super) fn rounded(seconds: f64) -> f64 {
    // Adding zero takes the sign off a negative one.
    (seconds * 1e3).round() / 1e3 + 0.0
}

/// A number with commas between thousands.
pub(super) fn grouped(number: usize) -> String {
    let digits = number.to_string();
    let mut text = String::new();
    for (place, digit) in digits.chars().enumerate() {
        if place > 0 && (digits.len() - place).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

fn millis(duration: Duration) -> String {
    millis_of(duration.as_secs_f64() * 1000.0)
}

fn millis_of(millis: f64) -> String {
    match millis {
        ..10.0 => format!("{millis:.1} ms"),
        ..1000.0 => format!("{millis:.0} ms"),
        _ => format!("{:.1} s", millis / 1000.0),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_written_for_people() {
        assert_eq!(["0", "999", "6,000", "1,234,567"], [0, 999, 6000, 1_234_567].map(grouped)[..]);
        assert_eq!(millis(Duration::from_micros(2_345)), "2.3 ms");
        assert_eq!(millis(Duration::from_millis(139)), "139 ms");
        assert_eq!(millis(Duration::from_millis(11_156)), "11.2 s");
    }

    #[test]
    fn evictions_for_the_same_reason_are_one_line() {
        let eviction = |seconds, late| Eviction {
            pod: "shop/a".to_owned(),
            uid: "u".to_owned(),
            node: "n1".to_owned(),
            key: "maintenance".to_owned(),
            seconds,
            late: Duration::from_millis(late),
        };
        let lines = Line::evictions(&[
            eviction(None, 30),
            eviction(Some(5), 4),
            eviction(None, 12),
            eviction(Some(0), 20),
        ]);
        assert_eq!(
            lines,
            [
                "3 pods that do not tolerate maintenance: evicted 12 ms to 30 ms after the taint",
                "1 pod whose 5 s are over: evicted 4.0 ms after the deadline",
            ]
        );
    }

    #[test]
    fn what_becomes_of_the_pods_of_a_node_is_told_shortly() {
        let each = BTreeMap::from([(5, 3), (10, 3)]);
        assert_eq!(outlook(12, &each, 6), "12 pods go now, 3 each in 5, 10 s, 6 stay");
        let apart = BTreeMap::from([(8, 1), (300, 16)]);
        assert_eq!(outlook(0, &apart, 0), "1 pod goes in 8 s, 16 in 300 s");
        assert_eq!(outlook(0, &BTreeMap::new(), 0), "it has no pods");
    }

    #[test]
    fn what_failed_is_said() {
        let summary = Summary {
            seconds: 1.0,
            evicted: 1,
            drained: 0,
            kept: 5999,
            cancelled: 0,
            first_ms: 1.0,
            median_ms: 1.0,
            p99_ms: 1.0,
            ok: false,
            failures: vec!["shop/a had to go and is still there".to_owned()],
        };
        let text = Line::Summary(summary.clone()).text().unwrap();
        assert!(text.contains("NOT") && text.contains("shop/a") && text.contains("5,999"));
        let fine = Summary { ok: true, failures: Vec::new(), ..summary };
        assert!(!Line::Summary(fine).text().unwrap().contains("NOT"));
    }
}
