//! The labels of the metrics that a controller serves, against docs/metrics.md.

use std::collections::BTreeSet;
use std::sync::Arc;

use ostrakon::clock::Clock;
use ostrakon::config::Compat;
use ostrakon::drain::{ConditionRule, Policy};
use ostrakon::sim::embedded::{Embedded, Options};

use crate::noon;
use crate::process::Process;

/// Labels whose values are not a list of ours: names of the API, numbers, versions.
const OPEN: [&str; 6] = ["code", "resource", "shard", "verb", "version", "le"];
/// Served only by a dry run.
const DRY_RUN: &str = "would_evict";
/// Its causes are listed below the table.
const CAUSES: &str = "ostrakon_eviction_failures_total";

/// Words in backticks that may be values of labels, and no names of metrics.
fn words(text: &str) -> BTreeSet<String> {
    let is_value = |word: &&str| {
        !word.starts_with("ostrakon_") && word.chars().all(|c| c.is_ascii_lowercase() || c == '_')
    };
    text.split('`').skip(1).step_by(2).filter(is_value).map(str::to_owned).collect()
}

#[tokio::test(start_paused = true)]
async fn every_label_and_value_is_documented_and_no_other() {
    let page = include_str!("../../docs/metrics.md");
    let (table, causes) = page.split_once("\nCauses: ").unwrap();
    let causes = words(causes);
    let cluster = Embedded::new(Clock::starting_at(noon()), Options::default());
    let policy = Policy::new("p", vec![ConditionRule::parse("Bad").unwrap()]);
    let clock = Clock::starting_at(noon());
    let process = Process::start(&cluster, clock, Compat::None, &[policy], &Arc::default());
    tokio::time::sleep(std::time::Duration::from_secs(1)).await;

    let mut rows = 0;
    for (name, served) in process.labels() {
        let row = table.lines().find_map(|line| line.strip_prefix(&format!("| `{name}` | ")));
        let Some(row) = row else { continue };
        let mut cells = row.split('|').skip(1);
        let (labels, meaning) = (cells.next().unwrap(), cells.next().unwrap());
        let labels: BTreeSet<_> = labels.split('`').skip(1).step_by(2).collect();
        let documented = words(meaning);
        let names: BTreeSet<_> =
            served.keys().map(String::as_str).filter(|name| *name != "le").collect();
        assert_eq!(names, labels, "labels of {name}");
        let values = served.iter().filter(|(label, _)| !OPEN.contains(&label.as_str()));
        let values: BTreeSet<_> = values.flat_map(|(_, values)| values.clone()).collect();
        let known =
            if names.contains("cause") || names.contains("state") { &causes } else { &documented };
        let unknown: Vec<_> =
            values.difference(&documented).filter(|value| !known.contains(*value)).collect();
        assert!(
            unknown.is_empty(),
            "{name} serves {unknown:?}, which docs/metrics.md does not list"
        );
        let is_closed = !labels.iter().all(|label| OPEN.contains(label));
        let absent: Vec<_> =
            documented.difference(&values).filter(|value| is_closed && *value != DRY_RUN).collect();
        assert!(
            absent.is_empty(),
            "docs/metrics.md lists {absent:?} for {name}, which are not served"
        );
        if name == CAUSES {
            assert_eq!(values, causes, "causes");
        }
        rows += 1;
    }
    assert!(rows > 20, "only {rows} metrics were compared");
}
