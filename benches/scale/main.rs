//! How ostrakon grows with the cluster: memory and CPU per pod, and a zone that fails.
//!
//! `make bench-scale` runs the program itself, built for release, against a server in this process that
//! makes nodes and pods while they are asked for, at 5,000, 20,000 and 65,000 nodes by turns. Then a
//! third of the nodes get a taint at the same time, which no pod tolerates. Results go to `OUT`
//! (docs/benchmarks by default) as Markdown and JSON.
//!
//! `SIZES` names other sizes, as `NODES/PODS` with commas between them; `RUNS` how often each is
//! synced (5); `OSTRAKON_BINARY` another ostrakon than the one built here; `ZONE_SECONDS` for how long
//! the evictions of a zone are watched (120).

mod controller;
#[path = "../cluster/median.rs"]
mod median;
mod objects;
mod report;
mod server;
#[path = "../cluster/usage.rs"]
mod usage;

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use tokio::runtime::Runtime;
use tokio::time::{Instant, sleep, timeout};

use crate::controller::Controller;
use crate::objects::Size;
use crate::report::{Report, Round, Sync, Zone};
use crate::server::Server;

const SIZES: &str = "5000/150000,20000/600000,65000/1000000";
/// What the program takes without a cluster to speak of.
const EMPTY: Size = Size { nodes: 1, pods: 1 };
/// Between the last object and the look at the memory: what the list needed is given back by then.
const SETTLED: Duration = Duration::from_secs(2);
/// How often the controller's own counters are read. That goes through all it knows.
const LOOK: Duration = Duration::from_millis(250);
/// Whatever happens, a size is done by then.
const LIMIT: Duration = Duration::from_secs(15 * 60);

struct Options {
    sizes: Vec<Size>,
    runs: u64,
    zone: Duration,
    out: PathBuf,
}

impl Options {
    fn from_environment() -> Result<Self> {
        let text = |name: &str| std::env::var(name).ok().filter(|text| !text.is_empty());
        let size = |text: &str| -> Result<Size> {
            let (nodes, pods) = text.split_once('/').context("it lacks a /")?;
            Ok(Size { nodes: nodes.trim().parse()?, pods: pods.trim().parse()? })
        };
        let sizes = text("SIZES").unwrap_or_else(|| SIZES.to_owned());
        let sizes = sizes.split(',').map(|one| {
            size(one).with_context(|| format!("{one:?} in SIZES is no size; give NODES/PODS"))
        });
        let number = |name: &str, default: u64| match text(name) {
            Some(text) => text
                .parse()
                .ok()
                .filter(|number| *number > 0)
                .with_context(|| format!("{name} is {text:?}; give a number of at least 1")),
            None => Ok(default),
        };
        let docs = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("docs/benchmarks");
        Ok(Self {
            sizes: sizes.collect::<Result<_>>()?,
            runs: number("RUNS", 5)?,
            zone: Duration::from_secs(number("ZONE_SECONDS", 120)?),
            out: text("OUT").map_or(docs, PathBuf::from),
        })
    }
}

#[allow(clippy::print_stderr, reason = "a person waits for this")]
fn say(text: &str) {
    eprintln!("bench-scale: {text}");
}

fn main() -> ExitCode {
    let outcome = Runtime::new()
        .map_err(anyhow::Error::from)
        .and_then(|runtime| runtime.block_on(bench(&Options::from_environment()?)));
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            say(&format!("{error:#}"));
            ExitCode::FAILURE
        }
    }
}

async fn bench(options: &Options) -> Result<()> {
    let mut report = Report::new(options.sizes.iter().map(|size| Round::of(*size)));
    for run in 1..=options.runs {
        say(&format!("start {run} of {}", options.runs));
        report.empty.push(limited(EMPTY, sync(EMPTY)).await?);
        for (round, &size) in report.rounds.iter_mut().zip(&options.sizes) {
            let synced = limited(size, sync(size)).await?;
            say(&format!("{size}: {}", synced.summary()));
            round.syncs.push(synced);
        }
    }
    for (round, &size) in report.rounds.iter_mut().zip(&options.sizes) {
        let zone = limited(size, zone(size, options.zone)).await?;
        say(&format!("{size}: {}", zone.summary()));
        round.zone = Some(zone);
    }
    report.write(&options.out)?;
    say(&format!("written to {}", options.out.display()));
    Ok(())
}

/// Whatever happens, it is done in time or fails.
async fn limited<T>(size: Size, what: impl Future<Output = Result<T>>) -> Result<T> {
    let done = timeout(LIMIT, what).await;
    done.ok().context("this takes too long").flatten().with_context(|| size.to_string())
}

/// From the start of a controller until it knows everything.
async fn sync(size: Size) -> Result<Sync> {
    let server = Server::start(size).await?;
    let start = Instant::now();
    let mut controller = Controller::start(server.port())?;
    controller.synced().await?;
    let (seconds, cpu) = (start.elapsed().as_secs_f64(), controller.cpu()?);
    sleep(SETTLED).await;
    let memory = controller.memory()?;
    controller.stop().await?;
    Ok(Sync { seconds, cpu, memory })
}

/// A zone that fails under a controller that knows everything.
async fn zone(size: Size, limit: Duration) -> Result<Zone> {
    let server = Server::start(size).await?;
    let mut controller = Controller::start(server.port())?;
    controller.synced().await?;
    sleep(SETTLED).await;
    let zone = fail_zone(&server, &controller, limit).await?;
    controller.stop().await?;
    Ok(zone)
}

/// Taints a third of the nodes and watches what comes of it.
async fn fail_zone(server: &Server, controller: &Controller, limit: Duration) -> Result<Zone> {
    ensure!(server.deleted() == 0, "pods were deleted before any node was tainted");
    let (pods, nodes) = (server.objects().pods_in_zone(), server.objects().zone().count());
    let (requests, cpu) = (server.requests(), controller.cpu()?);
    let start = Instant::now();
    server.taint_zone();
    let mut condemned = None;
    while server.deleted() < pods && start.elapsed() < limit {
        sleep(LOOK).await;
        // What is condemned counts down, is carried out, or has been.
        if condemned.is_none() && controller.timers().await? + server.deleted() >= pods {
            condemned = Some(start.elapsed().as_secs_f64());
        }
    }
    let deletions = server.deletions();
    let (after, cpu) = (server.requests(), controller.cpu()? - cpu);
    let since = |at: Option<&Instant>| at.map(|at| (*at - start).as_secs_f64());
    Ok(Zone {
        nodes,
        pods,
        condemned,
        evicted: deletions.len(),
        first: since(deletions.first()),
        last: since(deletions.last()),
        reads: after.get - requests.get,
        writes: after.patch + after.delete + after.post
            - (requests.patch + requests.delete + requests.post),
        cpu,
        memory: controller.memory()?,
    })
}
