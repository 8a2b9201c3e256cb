//! Kubernetes' own end-to-end cases for NoExecute taints: `cargo test --test upstream`.
//!
//! kube-controller-manager runs with `--controllers=*,-taint-eviction-controller`, so that whatever
//! evicts is ostrakon. All cases must pass with it. Without it, the one that evicts at once must
//! fail, or the suite would pass whatever ostrakon does.
//!
//! The suite is one process and runs its cases one after the other, five minutes in all; each is
//! reported as soon as it has ended. Where it cannot be built, all are reported as ignored.

#[path = "../harness/mod.rs"]
mod harness;
mod stand;
mod suite;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use harness::{Ostrakon, StartError, binaries};
use libtest_mimic::{Arguments, Failed, Trial};
use parking_lot::Mutex;
use tokio::runtime::Runtime;
use tokio::time::Instant;

use crate::stand::Stand;
use crate::suite::{CASES, Ended, Ending};

/// What is left of the run besides its cases.
const NO_OTHERS: &str = "with_ostrakon::these_are_all_cases_and_the_evictions_are_ostrakons";

/// The case that must fail without anybody who evicts.
const TELLING: &str = CASES[0];

/// Says how a trial ended, once.
type Verdict = Result<(), String>;

fn with_ostrakon(case: &str) -> String {
    format!("with_ostrakon::{}", slug(case))
}

fn without_ostrakon(case: &str) -> String {
    format!("without_ostrakon::{}_fails", slug(case))
}

fn slug(case: &str) -> String {
    case.replace('\'', "").replace(' ', "_")
}

/// The names of all trials, by the half of the run that they belong to.
fn names() -> [Vec<String>; 2] {
    let with = CASES.into_iter().map(with_ostrakon).chain([NO_OTHERS.to_owned()]);
    [with.collect(), vec![without_ostrakon(TELLING)]]
}

#[allow(clippy::print_stderr, reason = "this is where a test run says why it did not run")]
fn main() -> ExitCode {
    let mut args = Arguments::from_args();
    let names = names();
    let all = names.concat();
    // Each waits for its case.
    args.test_threads.get_or_insert(all.len());
    let wanted = |names: &[String]| {
        names.iter().any(|name| !args.is_filtered_out(&Trial::test(name, || Ok(()))))
    };
    let halves = Halves { with: wanted(&names[0]), without: wanted(&names[1]) };
    if args.list || !(halves.with || halves.without) {
        let trials = all.into_iter().map(|name| Trial::test(name, || Ok(())));
        return libtest_mimic::run(&args, trials.collect()).exit_code();
    }

    let runtime = match Runtime::new() {
        Ok(runtime) => runtime,
        Err(error) => {
            eprintln!("upstream: no runtime: {error}");
            return ExitCode::FAILURE;
        }
    };
    let (program, stand) = match runtime.block_on(prepare()) {
        Ok(prepared) => prepared,
        Err(StartError::Unavailable(reason)) => {
            eprintln!("upstream: everything is ignored, there is no control plane: {reason}");
            let ignored = |name| Trial::test(name, || Ok(())).with_ignored_flag(true);
            return libtest_mimic::run(&args, all.into_iter().map(ignored).collect()).exit_code();
        }
        Err(StartError::Failed(error)) => {
            eprintln!("upstream: the control plane did not start: {error:#}");
            return ExitCode::FAILURE;
        }
    };
    let (verdicts, trials) = trials(all);
    let (conclusion, ended) = std::thread::scope(|scope| {
        let run = scope.spawn(|| runtime.block_on(run(stand, &program, halves, &verdicts)));
        (libtest_mimic::run(&args, trials), run.join())
    });
    match ended {
        Ok(Ok(())) => conclusion.exit_code(),
        Ok(Err(error)) => {
            eprintln!("upstream: did not end well: {error:#}");
            ExitCode::FAILURE
        }
        Err(panic) => std::panic::resume_unwind(panic),
    }
}

/// Which halves of the run are asked for.
#[derive(Clone, Copy)]
struct Halves {
    with: bool,
    without: bool,
}

#[allow(clippy::print_stderr, reason = "says how long it takes")]
async fn prepare() -> Result<(PathBuf, Stand), StartError> {
    let program = binaries::e2e_node().await?;
    let begin = Instant::now();
    let stand = Stand::set_up().await?;
    eprintln!("upstream: the control plane and its nodes are up after {:.1?}", begin.elapsed());
    Ok((program, stand))
}

/// Where the run says how each trial ended. A trial that it says nothing about has failed.
struct Verdicts(Mutex<BTreeMap<String, Sender<Verdict>>>);

impl Verdicts {
    fn give(&self, name: &str, verdict: Verdict) {
        if let Some(trial) = self.0.lock().remove(name) {
            // A trial that was filtered out does not listen.
            let _ = trial.send(verdict);
        }
    }
}

fn trials(names: Vec<String>) -> (Verdicts, Vec<Trial>) {
    let mut senders = BTreeMap::new();
    let mut trials = Vec::new();
    for name in names {
        let (sender, receiver): (_, Receiver<Verdict>) = channel();
        senders.insert(name.clone(), sender);
        trials.push(Trial::test(name, move || match receiver.recv() {
            Ok(verdict) => verdict.map_err(Failed::from),
            Err(_) => Err(Failed::from("the run ended before this; see its last words")),
        }));
    }
    (Verdicts(Mutex::new(senders)), trials)
}

#[allow(clippy::print_stderr, reason = "says how long it takes, and where the logs are")]
async fn run(stand: Stand, program: &Path, halves: Halves, verdicts: &Verdicts) -> Result<()> {
    let outcome = async {
        let mut well = true;
        if halves.with {
            well &= with(&stand, program, verdicts).await.context("with ostrakon")?;
        }
        if halves.without {
            well &= without(&stand, program, verdicts).await.context("without ostrakon")?;
        }
        anyhow::Ok(well)
    };
    let outcome = outcome.await;
    // Whoever still waits learns now that nothing will come.
    verdicts.0.lock().clear();
    if !matches!(outcome, Ok(true)) {
        stand.bed.keep_folder();
        eprintln!("upstream: the logs are in {}", stand.bed.folder().display());
    }
    let begin = Instant::now();
    stand.tear_down().await?;
    eprintln!("upstream: all is down after {:.1?}", begin.elapsed());
    outcome.map(drop)
}

/// Says how long a case took.
#[allow(clippy::print_stderr, reason = "figures are for the reader of the run")]
fn figure(half: &str, case: &str, took: Duration) {
    eprintln!("  figure: {half} ostrakon, {case:?} took {:.1} s", took.as_secs_f64());
}

/// Returns whether all went as it should; the verdicts say what did not.
async fn with(stand: &Stand, program: &Path, verdicts: &Verdicts) -> Result<bool> {
    let ostrakon = Ostrakon::start(&stand.bed).await?;
    let begin = Instant::now();
    let passed = |case: &str| verdicts.give(&with_ostrakon(case), Ok(()));
    let (label, focus) = ("e2e-with-ostrakon", "NoExecuteTaintManager");
    let ended = suite::run(&stand.bed, program, label, focus, passed).await?;
    figure("with", "all cases", begin.elapsed());
    let mut well = true;
    for Ended { case, ending } in &ended {
        let verdict = match ending {
            Ending::Passed(took) => {
                figure("with", case, *took);
                Ok(())
            }
            Ending::Failed(took, said) => {
                well = false;
                Err(format!("after {took:.1?}: {said}"))
            }
        };
        verdicts.give(&with_ostrakon(case), verdict);
    }
    let whole = async {
        let mut found: Vec<&str> = ended.iter().map(|ended| ended.case.as_str()).collect();
        let mut expected = CASES.to_vec();
        found.sort_unstable();
        expected.sort_unstable();
        ensure!(found == expected, "the suite has other cases: {found:?}");
        stand.was_ostrakons_work().await
    };
    let whole = whole.await;
    well &= whole.is_ok();
    verdicts.give(NO_OTHERS, whole.map_err(|error| format!("{error:#}")));
    ostrakon.stop().await?;
    Ok(well)
}

/// Returns whether all went as it should; the verdict says what did not.
async fn without(stand: &Stand, program: &Path, verdicts: &Verdicts) -> Result<bool> {
    let focus = format!("NoExecuteTaintManager Single Pod.* {TELLING}");
    let ended = suite::run(&stand.bed, program, "e2e-without-ostrakon", &focus, |_| {}).await?;
    let verdict = match ended.as_slice() {
        [Ended { case, ending: Ending::Failed(took, said) }] if case == TELLING => {
            figure("without", case, *took);
            // Not for another reason, such as a pod that never ran.
            if said.contains("Failed to evict Pod") { Ok(()) } else { Err(said.clone()) }
        }
        other => Err(format!("it was to run and to fail: {other:?}")),
    };
    let well = verdict.is_ok();
    verdicts.give(&without_ostrakon(TELLING), verdict);
    Ok(well)
}
