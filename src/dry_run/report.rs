//! What a dry run has found: a summary for people, a document for programs.

use std::collections::BTreeMap;
use std::fmt::{self, Write as _};
use std::io::{self, Write};
use std::path::Path;

use jiff::Timestamp;
use serde_json::{Value, json};

use super::drain_stories::Story;
use super::shadow::{Finding, Kind, Shadow};
use crate::drain::format_duration;
use crate::model::NodeName;

/// What a dry run has found.
#[derive(Clone, Debug)]
pub(crate) struct Report {
    began: Timestamp,
    ended: Timestamp,
    counts: Vec<(Kind, u64)>,
    differences: Vec<Finding>,
    omitted: u64,
    drains: Vec<(NodeName, Story)>,
}

impl Report {
    pub(crate) fn new(
        (began, ended): (Timestamp, Timestamp),
        shadow: &Shadow,
        drains: Vec<(NodeName, Story)>,
    ) -> Self {
        let counts = Kind::ALL.map(|kind| (kind, shadow.count(kind))).to_vec();
        let (differences, omitted) = shadow.differences();
        Self { began, ended, counts, differences: differences.to_vec(), omitted, drains }
    }

    /// The report as JSON. Times are UTC.
    pub(crate) fn json(&self) -> Value {
        let counts: serde_json::Map<_, _> =
            self.counts.iter().map(|(kind, n)| (kind.label().to_owned(), json!(n))).collect();
        let difference = |finding: &Finding| {
            let Finding { kind, pod, verdict, ostrakon, other, by, reason } = finding;
            json!({
                "kind": kind.label(),
                "namespace": &*pod.namespace, "name": &*pod.name, "uid": pod.uid.to_string(),
                "node": pod.node.as_str(),
                "verdict": verdict,
                "ostrakonWouldEvictAt": ostrakon, "deletedAt": other, "deletedBy": by,
                "secondsLater": finding.seconds(),
                "cause": reason.as_ref().map(|reason| reason.code),
                "reason": reason.as_ref().map(|reason| &reason.text),
            })
        };
        let drain = |(node, story): &(NodeName, Story)| json!({"node": node.as_str(), "steps": story.steps, "omittedSteps": story.omitted});
        json!({
            "kind": "OstrakonDryRunReport",
            "version": env!("CARGO_PKG_VERSION"),
            "began": self.began, "ended": self.ended,
            "pods": counts,
            "differences": self.differences.iter().map(difference).collect::<Vec<_>>(),
            "omittedDifferences": self.omitted,
            "drains": self.drains.iter().map(drain).collect::<Vec<_>>(),
        })
    }

    /// Writes it to a file, as a whole or not at all.
    pub(crate) fn write_to(&self, path: &Path) -> io::Result<()> {
        write_whole(path, format!("{:#}\n", self.json()).as_bytes())
    }

    /// Causes of the differences of a kind, with their numbers, the most frequent first.
    fn causes(&self, kind: Kind) -> String {
        let mut causes: BTreeMap<&str, u64> = BTreeMap::new();
        for finding in self.differences.iter().filter(|finding| finding.kind == kind) {
            let code = finding.reason.as_ref().map_or("unknown", |reason| reason.code);
            *causes.entry(code).or_default() += 1;
        }
        let mut causes: Vec<_> = causes.into_iter().collect();
        causes.sort_by_key(|(_, count)| std::cmp::Reverse(*count));
        let named: Vec<_> = causes.iter().map(|(code, count)| format!("{count} {code}")).collect();
        named.join(", ")
    }

    /// By how many seconds the findings of a kind differ, from and to.
    fn span(&self, kind: Kind) -> Option<String> {
        let of_kind = self.differences.iter().filter(|finding| finding.kind == kind);
        let seconds: Vec<f64> =
            of_kind.filter_map(|finding| Some(finding.seconds()?.abs())).collect();
        let least = seconds.iter().copied().reduce(f64::min)?;
        let most = seconds.iter().copied().reduce(f64::max)?;
        Some(format!("{least:.0} to {most:.0} s"))
    }
}

/// The summary for people.
impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { began, ended, .. } = self;
        let took = std::time::Duration::try_from(ended.duration_since(*began)).unwrap_or_default();
        let took = format_duration(std::time::Duration::from_secs(took.as_secs()));
        writeln!(f, "Dry run of {took}, ended at {ended:.0}. Nothing was written.\n")?;
        writeln!(f, "{:<50} {:>7}  why", "PODS DUE FOR TAINTS", "pods")?;
        for (kind, count) in &self.counts {
            let (what, mut why) = (what(*kind), self.causes(*kind));
            if let Some(span) = self.span(*kind).filter(|_| kind.differs()) {
                write!(why, "{}{span}", if why.is_empty() { "" } else { "; " })?;
            }
            writeln!(f, "{}", format!("{what:<50} {count:>7}  {why}").trim_end())?;
        }
        if self.omitted > 0 {
            writeln!(f, "{} differences are not listed in the report.", self.omitted)?;
        }
        if !self.drains.is_empty() {
            writeln!(f, "\nNODES THAT WOULD BE CORDONED OR DRAINED")?;
        }
        for (node, story) in &self.drains {
            for step in &story.steps {
                let (at, name) = (step.at, node.as_str());
                writeln!(f, "{at:.0}  {name:<24} {:<22} {}", step.reason, step.message)?;
            }
        }
        Ok(())
    }
}

fn what(kind: Kind) -> &'static str {
    match kind {
        Kind::Same => "evicted by both, within 3 s",
        Kind::Later => "evicted later than ostrakon would have",
        Kind::Earlier => "evicted earlier than ostrakon would have",
        Kind::OnlyOstrakon => "not evicted; ostrakon would have",
        Kind::OnlyOther => "evicted; ostrakon would not have",
        Kind::DeletedByOthers => "due, then deleted for another reason",
        Kind::Undecided => "due only shortly before the end",
    }
}

/// Whether a report could be written there: an error now is better than one after a day.
pub(crate) fn check_writable(path: &Path) -> io::Result<()> {
    if path.is_dir() {
        return Err(io::Error::other("it is a directory"));
    }
    let beside = beside(path)?;
    std::fs::File::create(&beside)?;
    std::fs::remove_file(&beside)
}

/// A file in the same folder, so that it can be renamed.
fn beside(path: &Path) -> io::Result<std::path::PathBuf> {
    let name = path.file_name().ok_or_else(|| io::Error::other("it names no file"))?;
    let mut beside = name.to_owned();
    beside.push(format!(".{}.tmp", std::process::id()));
    Ok(path.with_file_name(beside))
}

fn write_whole(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let beside = beside(path)?;
    let written = std::fs::File::create(&beside).and_then(|mut file| {
        file.write_all(bytes)?;
        file.sync_all()?;
        std::fs::rename(&beside, path)
    });
    if written.is_err() {
        let _ = std::fs::remove_file(&beside);
    }
    written
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::dry_run::shadow::Deleted;
    use crate::dry_run::{DrainStories, Shadow};
    use crate::model::build::{at, pod};
    use crate::model::{Kept, PodClass, Verdict};

    fn report() -> Report {
        let mut shadow = Shadow::default();
        let pod = Arc::new(pod("a").that_is(PodClass::Finished));
        let keep = Verdict::Keep(Kept::Finished);
        let (requested, by) = (at(5), Some("kube-controller-manager".into()));
        let deleted = Deleted { requested, marked: Some(requested), by };
        shadow.deleted(&pod, &keep, deleted, at(5));
        shadow.end(at(60), |_| keep.clone());
        let drains = DrainStories::default();
        drains.note(&"n1".into(), at(7), "CordonSucceeded", "Cordoned node");
        Report::new((at(0), at(60)), &shadow, drains.all())
    }

    #[test]
    fn the_summary_names_numbers_causes_and_drains() {
        let text = report().to_string();
        assert!(
            text.starts_with(
                "Dry run of 1m0s, ended at 2026-01-01T12:01:00Z. Nothing was written."
            ),
            "{text}"
        );
        let line = |words: &str| text.lines().find(|line| line.contains(words)).unwrap().to_owned();
        assert!(line("ostrakon would not have").ends_with("1  1 finished_pod"), "{text}");
        assert!(line("evicted by both").ends_with(" 0"), "{text}");
        assert!(line("n1").contains("CordonSucceeded        Cordoned node"), "{text}");
    }

    #[test]
    fn the_document_has_each_difference_with_its_cause() {
        let json = report().json();
        assert_eq!((&json["pods"]["only_other"], &json["pods"]["same"]), (&json!(1), &json!(0)));
        let difference = &json["differences"][0];
        assert_eq!(difference["name"], "a");
        assert_eq!(difference["cause"], "finished_pod");
        assert_eq!(difference["deletedBy"], "kube-controller-manager");
        assert_eq!(difference["deletedAt"], "2026-01-01T12:00:05Z");
        assert_eq!(difference["ostrakonWouldEvictAt"], Value::Null);
        assert_eq!(json["drains"][0]["steps"][0]["reason"], "CordonSucceeded");
    }

    #[test]
    fn a_report_is_written_as_a_whole_and_a_path_that_cannot_be_written_is_known_before() {
        let folder = std::env::temp_dir().join(format!("ostrakon-report-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        let path = folder.join("report.json");
        std::fs::write(&path, "old").unwrap();
        check_writable(&path).unwrap();
        assert_eq!(std::fs::read_to_string(&path).unwrap(), "old", "nothing is lost by the check");
        report().write_to(&path).unwrap();
        let read: Value = serde_json::from_slice(&std::fs::read(&path).unwrap()).unwrap();
        assert_eq!(read["kind"], "OstrakonDryRunReport");
        assert_eq!(std::fs::read_dir(&folder).unwrap().count(), 1, "nothing is left beside it");
        check_writable(&folder).unwrap_err();
        check_writable(&folder.join("none/report.json")).unwrap_err();
        std::fs::remove_dir_all(folder).unwrap();
    }
}
