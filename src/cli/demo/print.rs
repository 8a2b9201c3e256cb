//! The demo's output, as text and as JSON.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::time::Duration;

use serde::Serialize;

use super::observations::Eviction;

/// One line of output. As JSON it is an object whose `event` names the kind; `docs/demo.md` lists them.
#[derive(Clone, Debug, Serialize)]
#[serde(tag = "event", rename_all = "snake_case")]
pub(super) enum Line {
    /// The cluster is starting.
    Starting { nodes: usize, pods: usize, faults: usize },
    /// The cluster is running and the controller has synced.
    Ready { took_seconds: f64, server: String },
    /// A step of the scenario.
    Step { seconds: f64, step: &'static str, nodes: Vec<String>, text: String },
    /// The controller has restarted and synced.
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
    /// A NoExecute taint was removed from a node.
    Untainted { seconds: f64, node: String, taint: String, cancelled: usize },
    /// A pod that was due for eviction was deleted.
    Evicted {
        seconds: f64,
        pod: String,
        uid: String,
        node: String,
        taint: String,
        tolerated_seconds: Option<i64>,
        late_ms: f64,
    },
    /// The bad node was cordoned.
    Cordoned {
        seconds: f64,
        node: String,
        #[serde(rename = "after_seconds")]
        after: f64,
    },
    /// All pods that the drain had to evict are gone.
    Drained {
        seconds: f64,
        node: String,
        evicted: usize,
        #[serde(rename = "after_seconds")]
        after: f64,
    },
    /// The node was uncordoned.
    Uncordoned { seconds: f64, node: String },
    /// A pod was deleted that had to stay.
    Wrong { seconds: f64, text: String },
    /// The current state, once a second.
    State {
        seconds: f64,
        nodes: Vec<Row>,
        pods: usize,
        overdue: usize,
        evicted: usize,
        cancelled: usize,
    },
    /// The outcome.
    Summary(Summary),
    /// The cluster is being served.
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
    /// Pods evicted from the drained node.
    pub(super) drained: usize,
    /// Pods that existed at the start and still do.
    pub(super) kept: usize,
    pub(super) cancelled: usize,
    pub(super) first_ms: f64,
    pub(super) median_ms: f64,
    pub(super) p99_ms: f64,
    pub(super) ok: bool,
    /// What failed; empty if nothing did.
    pub(super) failures: Vec<String>,
}

impl Line {
    /// Evictions as text: one line for all with the same reason.
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
                None => (format!("not tolerating {}", short(key)), "the taint"),
                Some(seconds) => {
                    (format!("tolerating {} for {seconds} s", short(key)), "the deadline")
                }
            };
            let (least, most) = (millis(least), millis(most));
            let range = if least == most { most } else { format!("{least} to {most}") };
            format!("{} {why}: evicted {range} after {after}", pods(group.len()))
        };
        groups.into_iter().map(line).collect()
    }

    /// The line as text; `None` if it is part of the JSON output only.
    pub(super) fn text(&self) -> Option<String> {
        Some(match self {
            Self::Starting { nodes, pods, faults } => {
                let faults = match faults {
                    0 => String::new(),
                    1 => " A fault will be injected into its requests.".to_owned(),
                    n => format!(" {n} faults will be injected into its requests."),
                };
                format!(
                    "Starting a cluster in this process: {} nodes, {} pods.{faults}",
                    grouped(*nodes),
                    grouped(*pods),
                )
            }
            Self::Ready { took_seconds, server } => format!(
                "Ready in {took_seconds:.1} s. The unchanged controller is connected to {server}.",
            ),
            Self::Step { text, .. } => text.clone(),
            Self::Tainted { node, taint, at_once, counting, staying, .. } => {
                let outlook = outlook(*at_once, counting, *staying);
                format!("{}:NoExecute added to {node}: {outlook}", short(taint))
            }
            Self::Untainted { node, taint, cancelled: 0, .. } => {
                format!("{}:NoExecute removed from {node}", short(taint))
            }
            Self::Untainted { node, taint, cancelled, .. } => format!(
                "{}:NoExecute removed from {node}: {} cancelled",
                short(taint),
                counted(*cancelled, "countdown")
            ),
            Self::Restarted { away_seconds, .. } => {
                format!("the controller is back after {away_seconds:.1} s")
            }
            Self::Cordoned { node, after, .. } => {
                format!("{node} cordoned {} after the condition was set", millis_of(after * 1e3))
            }
            Self::Drained { node, evicted, after, .. } => {
                format!("{node} drained after {after:.1} s: {} evicted", pods(*evicted))
            }
            Self::Uncordoned { node, .. } => format!("{node} uncordoned"),
            Self::Wrong { text, .. } => format!("WRONG: {text}"),
            Self::Summary(summary) => summary.text(),
            Self::Serving { .. } | Self::Evicted { .. } | Self::State { .. } => return None,
        })
    }
}

impl Summary {
    fn text(&self) -> String {
        let mut text = format!(
            "\nOutcome, from the history of the cluster:\n\
             \x20 evicted    {:>6}   pods by taint; first {} after it was due, median {}, p99 {}\n\
             \x20 cancelled  {:>6}   countdowns, because the taint was removed in time\n\
             \x20 drained    {:>6}   pods from a cordoned node, within the budget\n\
             \x20 kept       {:>6}   pods that had to stay\n",
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
                "OK: exactly the expected pods were evicted, none of them early, and the new \
                 shop/db-0 is running.",
            );
        } else {
            text.push_str("FAILED:");
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
        parts.push(format!("{} due now", pods(at_once)));
    }
    // Usually the same number is due each time.
    let number = counting.values().next().copied().unwrap_or_default();
    if counting.len() > 1 && counting.values().all(|other| *other == number) {
        let seconds: Vec<_> = counting.keys().map(i64::to_string).collect();
        parts.push(format!("{number} each in {} s", seconds.join(", ")));
    } else {
        for (seconds, number) in counting {
            let who = if parts.is_empty() {
                format!("{} due", pods(*number))
            } else {
                number.to_string()
            };
            parts.push(format!("{who} in {seconds} s"));
        }
    }
    if staying > 0 {
        parts.push(format!("{staying} stay"));
    }
    if parts.is_empty() { "it has no pods".to_owned() } else { parts.join(", ") }
}

/// A taint's key without the prefix of Kubernetes' own taints.
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

/// Rounds seconds to the millisecond; anything finer is noise.
pub(super) fn rounded(seconds: f64) -> f64 {
    // Adding zero turns -0 into 0.
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
                "3 pods not tolerating maintenance: evicted 12 ms to 30 ms after the taint",
                "1 pod tolerating maintenance for 5 s: evicted 4.0 ms after the deadline",
            ]
        );
    }

    #[test]
    fn what_becomes_of_the_pods_of_a_node_is_told_shortly() {
        let each = BTreeMap::from([(5, 3), (10, 3)]);
        assert_eq!(outlook(12, &each, 6), "12 pods due now, 3 each in 5, 10 s, 6 stay");
        let apart = BTreeMap::from([(8, 1), (300, 16)]);
        assert_eq!(outlook(0, &apart, 0), "1 pod due in 8 s, 16 in 300 s");
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
            failures: vec!["shop/a is overdue and was not evicted".to_owned()],
        };
        let text = Line::Summary(summary.clone()).text().unwrap();
        assert!(text.contains("FAILED") && text.contains("shop/a") && text.contains("5,999"));
        let fine = Summary { ok: true, failures: Vec::new(), ..summary };
        assert!(!Line::Summary(fine).text().unwrap().contains("FAILED"));
    }
}
