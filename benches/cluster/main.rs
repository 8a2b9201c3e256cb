//! ostrakon beside the built-in taint eviction, on one API server and the same data.
//!
//! `make bench-cluster NODES=500 PODS_PER_NODE=30 RUNS=3` starts etcd and a kube-apiserver, writes
//! the nodes and pods straight into etcd, and lets them evict, one after the other, in every run:
//!
//! - ostrakon, as it is installed: the program itself, built for release, with the rights of `deploy/`;
//! - the reference: kube-controller-manager with taint eviction and node lifecycle only, once with
//!   5,000 requests per second allowed and once as it is by default (20);
//! - the bare limit: a client that does nothing but PATCH and DELETE, over 1 to 32 connections.
//!
//! Each is started, timed until it is synced, and then sees 1, 10 and 50 nodes tainted, each set in
//! one transaction of etcd. A [`witness`] that watches etcd tells when pods were marked for deletion.
//! Medians go to `OUT` (docs/benchmarks by default) as Markdown, JSON and a plot.
//!
//! `OSTRAKON_BINARY` names another ostrakon to measure than the one built here; `DEFAULT_RUNS` says in
//! how many runs the reference is measured at its defaults, too (1).
//!
//! Everything is on loopback, every wait has an end, and all processes end with the bench.

mod bare;
mod contender;
mod etcd;
mod fleet;
#[path = "../../tests/harness/mod.rs"]
mod harness;
mod median;
mod objects;
mod plot;
mod report;
mod server;
mod usage;
mod witness;

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use tokio::runtime::Runtime;
use tokio::time::Instant;

use crate::bare::Bare;
use crate::contender::{Contender, Running};
use crate::etcd::Etcd;
use crate::fleet::Fleet;
use crate::harness::{Bed, BedOptions, StartError};
use crate::report::{Report, Round, Run, Sync};
use crate::server::{Server, between};
use crate::witness::Witness;

/// As many requests as the reference could wish for.
const FAST: Contender = Contender::Reference { qps: 5000, burst: 5000 };
/// What kube-controller-manager allows itself by default.
const DEFAULT: Contender = Contender::Reference { qps: 20, burst: 30 };
/// Connections of the bare client.
const CONNECTIONS: [usize; 5] = [1, 4, 8, 16, 32];
/// Whatever happens, the bench is over by then.
const LIMIT: Duration = Duration::from_secs(3 * 60 * 60);

/// What is asked for by environment variables.
#[derive(Clone, Debug)]
struct Options {
    nodes: usize,
    pods_per_node: usize,
    runs: usize,
    /// How many of the runs have the reference at its defaults, which takes five minutes and,
    /// being bound by its own limit, is hardly different from run to run.
    default_runs: usize,
    out: PathBuf,
}

impl Options {
    fn from_environment() -> Result<Self> {
        let number = |name: &str, default: usize| match std::env::var(name) {
            Ok(text) if !text.is_empty() => {
                text.parse().with_context(|| format!("{name} is {text:?}, which is no number"))
            }
            _ => Ok(default),
        };
        let out = std::env::var_os("OUT").filter(|value| !value.is_empty());
        let root = PathBuf::from(env!("CARGO_MANIFEST_DIR"));
        let options = Self {
            nodes: number("NODES", 500)?,
            pods_per_node: number("PODS_PER_NODE", 30)?,
            runs: number("RUNS", 3)?,
            default_runs: number("DEFAULT_RUNS", 1)?,
            out: out.map_or_else(|| root.join("docs/benchmarks"), PathBuf::from),
        };
        ensure!(options.nodes >= 10, "NODES is {}; give 10 or more", options.nodes);
        ensure!(options.pods_per_node > 0 && options.runs > 0, "nothing to measure");
        Ok(options)
    }

    /// How many nodes are tainted at once: 1, 10 and 50, or fewer in a small cluster.
    fn rounds(&self) -> Vec<usize> {
        if self.nodes > 61 { vec![1, 10, 50] } else { vec![1, self.nodes / 10, self.nodes / 2] }
    }
}

#[allow(clippy::print_stderr, reason = "a person waits for this")]
fn say(text: &str) {
    eprintln!("bench-cluster: {text}");
}

fn main() -> ExitCode {
    let outcome = Runtime::new().map_err(anyhow::Error::from).and_then(|runtime| {
        runtime.block_on(async {
            let options = Options::from_environment()?;
            tokio::time::timeout(LIMIT, bench(&options)).await.context("this takes too long")?
        })
    });
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            say(&format!("{error:#}"));
            ExitCode::FAILURE
        }
    }
}

async fn bench(options: &Options) -> Result<()> {
    // The last of two flags counts: no audit log, which would cost ostrakon's requests most; and
    // profiles, as one of the heap collects garbage.
    let options_of_bed = BedOptions::default().apiserver_flag("--audit-log-path=");
    let bed = Bed::start(options_of_bed.apiserver_flag("--profiling=true"));
    let bed = match bed.await {
        Ok(bed) => bed,
        Err(StartError::Unavailable(reason)) => {
            say(&format!("skipped, there is no control plane: {reason}"));
            return Ok(());
        }
        Err(StartError::Failed(error)) => return Err(error),
    };
    let outcome = measure(options, &bed).await;
    if outcome.is_err() {
        bed.keep_folder();
        say(&format!("the logs are in {}", bed.folder().display()));
    }
    let stopped = bed.stop().await;
    let mut report = outcome?;
    stopped?;
    report.write(&options.out)?;
    say(&format!("written to {}", options.out.display()));
    Ok(())
}

async fn measure(options: &Options, bed: &Bed) -> Result<Report> {
    let etcd = Etcd::connect(bed.etcd_port()).await?;
    let (nodes, pods) = (options.nodes, options.nodes * options.pods_per_node);
    let fleet = Fleet::new(etcd.clone(), bed.admin()?, nodes, options.pods_per_node);
    let mut stage = Stage { bed, etcd, fleet, server: Server::of(bed).await? };
    let begin = Instant::now();
    stage.fleet.load().await?;
    let load = begin.elapsed().as_secs_f64();
    say(&format!("{nodes} nodes and {pods} pods are loaded after {load:.0} s"));

    let mut report = Report::new(options, load);
    for run in 0..options.runs {
        say(&format!("run {} of {}", run + 1, options.runs));
        stage.server.rest().await?;
        let before = stage.server.cost()?;
        let fetched = bare::fetch(bed).await?;
        report.fetches.push((fetched, stage.server.cost()? - before));

        let mut turns: Vec<_> = [Contender::Ostrakon, FAST].into();
        // Nobody is always the first.
        let first = run % turns.len();
        turns.rotate_left(first);
        turns.extend((run < options.default_runs).then_some(DEFAULT));
        for contender in turns {
            let name = contender.name();
            let mut rounds = options.rounds();
            if contender == DEFAULT {
                // The others would take minutes and tell nothing new.
                rounds.drain(..rounds.len() - 1);
            }
            let outcome = stage.contend(contender, &rounds).await;
            report.add(&name, outcome.with_context(|| name.clone())?);
        }
        for connections in CONNECTIONS {
            let name = format!("bare client, {connections}");
            let nodes = options.rounds().last().copied().unwrap_or_default();
            let outcome = stage.bare(connections, nodes).await;
            report.add(&name, outcome.with_context(|| name.clone())?);
        }
    }
    report.server_memory = stage.server.memory()?;
    Ok(report)
}

/// What everybody is measured on.
struct Stage<'a> {
    bed: &'a Bed,
    etcd: Etcd,
    fleet: Fleet,
    server: Server,
}

impl Stage<'_> {
    /// Starts a contender and taints nodes, as many as each of `rounds` says.
    async fn contend(&mut self, contender: Contender, rounds: &[usize]) -> Result<Run> {
        self.server.rest().await?;
        let before = self.server.cost()?;
        let start = Instant::now();
        let mut running = contender.start(self.bed).await?;
        running.synced().await?;
        let mut run = Run {
            sync: Some(Sync {
                seconds: start.elapsed().as_secs_f64(),
                cpu: running.cpu()?,
                server: self.server.cost()? - before,
                memory: running.memory()?,
            }),
            rounds: Vec::new(),
            peak: 0.0,
        };
        let mut used = 0;
        for count in rounds {
            let nodes: Vec<usize> = (used..used + count).collect();
            used += count;
            let patience = contender.patience(nodes.len() * self.fleet.pods(&nodes[..1]).len());
            let tainted = self.fleet.taint(&nodes);
            let round = self.round(&nodes, patience, Some(&running), tainted).await?;
            say(&format!("{}: {}", contender.name(), round.summary()));
            run.rounds.push(round);
        }
        run.peak = running.memory()?.peak;
        running.stop().await?;
        let nodes: Vec<usize> = (0..used).collect();
        self.fleet.restore(&nodes).await?;
        Ok(run)
    }

    /// Evicts the pods of so many nodes with nothing but requests.
    async fn bare(&mut self, connections: usize, nodes: usize) -> Result<Run> {
        let nodes: Vec<usize> = (0..nodes).collect();
        let bare = Bare::connect(self.bed, connections).await?;
        let pods = self.fleet.pods(&nodes);
        let patience = Contender::Ostrakon.patience(pods.len());
        let round = self.round(&nodes, patience, None, bare.evict(pods)).await?;
        say(&format!("bare client, {connections}: {}", round.summary()));
        self.fleet.restore(&nodes).await?;
        Ok(Run { sync: None, rounds: vec![round], peak: 0.0 })
    }

    /// Does what `begin` says, and waits until all pods of the nodes are marked for deletion and
    /// the API server has nothing to do any more.
    async fn round(
        &self,
        nodes: &[usize],
        patience: Duration,
        running: Option<&Running>,
        begin: impl Future<Output = Result<()>>,
    ) -> Result<Round> {
        let requests = self.server.rest().await?;
        let keys = self.fleet.pods(nodes).into_iter().map(|pod| pod.key());
        let witness = Witness::start(&self.etcd, keys).await?;
        let own = running.map(Running::cpu).transpose()?;
        let before = self.server.cost()?;
        let start = Instant::now();
        let (deletions, ()) = tokio::try_join!(witness.deletions(start, patience), begin)?;
        let requests = between(&requests, &self.server.quiet().await?);
        let cpu = match (running, own) {
            (Some(running), Some(before)) => Some(running.cpu()? - before),
            _ => None,
        };
        let server = self.server.cost()? - before;
        Ok(Round { nodes: nodes.len(), deletions, requests, cpu, server })
    }
}
