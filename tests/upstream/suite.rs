//! Kubernetes' own end-to-end suite as a child process: what it runs, and what comes of it.

use std::path::Path;
use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use serde::Deserialize;
use tokio::time::Instant;

use crate::harness::process::{Process, Program, log_tail};
use crate::harness::{Bed, User};

/// The cases of `test/e2e/node/taints.go` about NoExecute taints, by their own names.
pub(crate) const CASES: [&str; 7] = [
    "evicts pods from tainted nodes",
    "doesn't evict pod with tolerations from tainted nodes",
    "eventually evict pod with finite tolerations from tainted nodes",
    "removing taint cancels eviction",
    "pods evicted from tainted nodes have pod disruption condition",
    "only evicts pods without tolerations from tainted nodes",
    "evicts pods with minTolerationSeconds",
];

/// The longest that the suite may take; on a quiet machine all cases take five minutes.
const LIMIT: Duration = Duration::from_secs(20 * 60);

/// How often its output is looked at.
const POLL: Duration = Duration::from_millis(200);

/// How a case ended.
#[derive(Clone, Debug)]
pub(crate) enum Ending {
    Passed(Duration),
    /// With what the suite says about it.
    Failed(Duration, String),
}

/// A case that has ended.
#[derive(Clone, Debug)]
pub(crate) struct Ended {
    pub case: String,
    pub ending: Ending,
}

/// Runs the cases that `focus` matches. `passed` hears of each that passes, by name, as soon as it
/// has ended; what is returned is what the suite reports in the end.
pub(crate) async fn run(
    bed: &Bed,
    program: &Path,
    label: &str,
    focus: &str,
    mut passed: impl FnMut(&str),
) -> Result<Vec<Ended>> {
    let report = bed.folder().join(format!("{label}.json"));
    let log = bed.folder().join(format!("{label}.log"));
    let program = Program {
        name: label.to_owned(),
        path: program.to_owned(),
        args: vec![
            format!("--kubeconfig={}", bed.kubeconfig(User::Admin)?.display()),
            "--provider=skeleton".to_owned(),
            format!("--ginkgo.focus={focus}"),
            // A focus that matches nothing would pass otherwise.
            "--ginkgo.fail-on-empty".to_owned(),
            "--ginkgo.v".to_owned(),
            "--ginkgo.no-color".to_owned(),
            format!("--ginkgo.timeout={}s", LIMIT.as_secs()),
            format!("--ginkgo.json-report={}", report.display()),
            // Hollow nodes have no logs to fetch.
            "--dump-logs-on-failure=false".to_owned(),
        ],
        env: Vec::new(),
        log: log.clone(),
    };
    let mut process = bed.start_program(&program)?;
    follow(&mut process, &log, &mut passed).await?;
    let text = std::fs::read_to_string(&report).with_context(|| {
        format!("the suite left no report {}; {}", report.display(), log_tail(&log))
    })?;
    ended(&text)
}

/// Waits for the end of the suite and tells `passed` of its cases meanwhile.
async fn follow(process: &mut Process, log: &Path, passed: &mut impl FnMut(&str)) -> Result<()> {
    let begin = Instant::now();
    let mut output = Output::default();
    loop {
        let has_ended = process.exit_status()?.is_some();
        for case in output.newly_passed(&std::fs::read_to_string(log)?) {
            passed(case);
        }
        if has_ended {
            return Ok(());
        }
        if begin.elapsed() > LIMIT + Duration::from_secs(60) {
            bail!("the suite still runs after {LIMIT:?}; {}", log_tail(log));
        }
        tokio::time::sleep(POLL).await;
    }
}

/// What the suite has printed so far.
#[derive(Debug, Default)]
struct Output {
    /// Bytes of whole lines that were read.
    read: usize,
    current: Option<&'static str>,
}

impl Output {
    /// The cases that have passed since the last call. A case is named when it begins; a bullet at
    /// the beginning of a line says that it has ended, and how unless it passed.
    fn newly_passed(&mut self, text: &str) -> Vec<&'static str> {
        let whole = text.rfind('\n').map_or(0, |position| position + 1);
        let mut passed = Vec::new();
        for line in text.get(self.read..whole).unwrap_or_default().lines() {
            if line.contains("NoExecuteTaintManager") {
                self.current = CASES.into_iter().find(|case| line.contains(case));
            } else if line.starts_with('•') {
                let case = self.current.take();
                passed.extend(case.filter(|_| !line.contains("[FAILED]")));
            }
        }
        self.read = whole;
        passed
    }
}

/// The parts of ginkgo's report that are of interest.
#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Report {
    spec_reports: Vec<SpecReport>,
}

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct SpecReport {
    leaf_node_type: String,
    leaf_node_text: String,
    state: String,
    /// In nanoseconds.
    run_time: u64,
    #[serde(default)]
    failure: Failure,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Failure {
    #[serde(default)]
    message: String,
}

fn ended(report: &str) -> Result<Vec<Ended>> {
    let reports: Vec<Report> = serde_json::from_str(report).context("read the suite's report")?;
    let specs = reports.into_iter().flat_map(|report| report.spec_reports);
    // Of the cases that were not to run it says that they were skipped; the rest are hooks.
    let run = specs.filter(|spec| spec.leaf_node_type == "It" && spec.state != "skipped");
    Ok(run
        .map(|spec| {
            let took = Duration::from_nanos(spec.run_time);
            let ending = if spec.state == "passed" {
                Ending::Passed(took)
            } else {
                Ending::Failed(took, format!("{}: {}", spec.state, spec.failure.message))
            };
            Ended { case: name(&spec.leaf_node_text).to_owned(), ending }
        })
        .collect())
}

/// A case's name without the labels that the suite puts behind it.
fn name(text: &str) -> &str {
    text.split_once(" [").map_or(text, |(name, _)| name)
}
