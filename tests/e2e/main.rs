//! Scenarios on a real control plane: `cargo test --test e2e`.
//!
//! One [`Bed`] serves all of them; each has its own namespace and nodes, and they run side by side.
//! A scenario that breaks what the others stand on runs alone, after them. Where the control plane
//! cannot be had, all are reported as ignored.
//!
//! To add one, write `async fn it_does_this(ctx: &Ctx) -> Result<()>` in a module of `scenarios`
//! and name it in the module's `trials()`. If it shares the control plane it must hold on a machine
//! that stalls; [`ctx`] says how.
//!
//! After a failure the folder with all logs is kept, and its path printed. `OSTRAKON_KEEP_BED=1`
//! keeps it always. `OSTRAKON_TIMES=1` prints how long each scenario took. `OSTRAKON_CONTROL_PLANE`
//! names a folder with a `control-plane` program to use instead of building one;
//! `KUBEBUILDER_ASSETS` one with `etcd` and `kube-apiserver`.
//! `OSTRAKON_E2E=shared` runs only those that share the control plane, `=alone` only the others, and
//! `=embedded` those that share it on the embedded cluster in its place, which needs no Go.

#![allow(
    clippy::cast_precision_loss,
    clippy::unused_async,
    reason = "counts of pods are small, and checks have one shape whether they wait or not"
)]

mod ctx;
#[path = "../harness/mod.rs"]
mod harness;
#[path = "../likeness/mod.rs"]
mod likeness;
mod scenarios;
mod smoke;

use std::process::ExitCode;
use std::sync::Arc;

use harness::{Bed, BedOptions, StartError, TaintEviction};
use libtest_mimic::{Arguments, Conclusion};
use tokio::runtime::Runtime;
use tokio::time::Instant;

use crate::ctx::{Floor, House, Scenario};

/// Scenarios mostly wait, so more of them fit on a machine than it has cores.
const AT_ONCE: usize = 8;

#[allow(clippy::print_stderr, reason = "this is where a test run says why it did not run")]
fn main() -> ExitCode {
    let mut args = Arguments::from_args();
    args.test_threads.get_or_insert(AT_ONCE);
    let mut scenarios = [smoke::trials(), scenarios::trials()].concat();
    let which = std::env::var("OSTRAKON_E2E").unwrap_or_default();
    let embedded = which == "embedded";
    match which.as_str() {
        "shared" => scenarios.retain(|scenario| !scenario.is_alone()),
        "alone" => scenarios.retain(Scenario::is_alone),
        "embedded" => scenarios.retain(|one| !one.is_alone() && !one.is_real()),
        // Those that run alone come last, or the others would wait for them.
        _ => scenarios.sort_by_key(Scenario::is_alone),
    }

    let runtime = match Runtime::new() {
        Ok(runtime) => runtime,
        Err(error) => {
            eprintln!("e2e: no runtime: {error}");
            return ExitCode::FAILURE;
        }
    };
    let floor = match lay_floor(&args, &scenarios, embedded, &runtime) {
        Ok(floor) => floor,
        Err(error) => {
            eprintln!("e2e: the control plane did not start: {error:#}");
            return ExitCode::FAILURE;
        }
    };
    let trials =
        scenarios.into_iter().map(|scenario| scenario.into_trial(&floor, runtime.handle()));
    let conclusion = libtest_mimic::run(&args, trials.collect());
    match floor {
        Floor::House(house) => close(house, &conclusion, &runtime),
        Floor::Absent | Floor::NotNeeded => conclusion.exit_code(),
    }
}

#[allow(clippy::print_stderr, reason = "a skip must be seen, and how long it takes")]
fn lay_floor(
    args: &Arguments,
    scenarios: &[Scenario],
    embedded: bool,
    runtime: &Runtime,
) -> anyhow::Result<Floor> {
    if args.list || scenarios.iter().all(|scenario| scenario.is_filtered_out(args)) {
        return Ok(Floor::NotNeeded);
    }
    if embedded {
        let bed = runtime.block_on(Bed::embedded())?;
        return Ok(Floor::House(Arc::new(House::new(bed))));
    }
    let options = BedOptions::default().controller_manager(TaintEviction::Off).scheduler();
    let begin = Instant::now();
    match runtime.block_on(Bed::start(options)) {
        Ok(bed) => {
            eprintln!("e2e: the control plane is up after {:.1?}", begin.elapsed());
            Ok(Floor::House(Arc::new(House::new(bed))))
        }
        Err(StartError::Unavailable(reason)) => {
            eprintln!("e2e: everything is ignored, there is no control plane: {reason}");
            Ok(Floor::Absent)
        }
        Err(StartError::Failed(error)) => Err(error),
    }
}

/// Stops everything; that it stops well is part of the run.
#[allow(clippy::print_stderr, reason = "says where the logs are, and how long it takes")]
fn close(house: Arc<House>, conclusion: &Conclusion, runtime: &Runtime) -> ExitCode {
    if conclusion.has_failed() {
        house.bed().keep_folder();
        eprintln!("e2e: the logs are in {}", house.bed().folder().display());
    }
    let begin = Instant::now();
    let closed = match Arc::into_inner(house) {
        Some(house) => runtime.block_on(house.close()),
        None => Err(anyhow::anyhow!("a scenario still holds the house")),
    };
    match closed {
        Ok(()) => {
            eprintln!("e2e: all is down after {:.1?}", begin.elapsed());
            conclusion.exit_code()
        }
        Err(error) => {
            eprintln!("e2e: did not end well: {error:#}");
            ExitCode::FAILURE
        }
    }
}
