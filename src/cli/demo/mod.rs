//! `ostrakon demo`: shows the controller at work without a cluster.
//!
//! - [`fixtures`], [`sizes`]: the nodes and pods of the cluster;
//! - [`test_bed`]: the cluster in this process, and the unchanged controller running on it;
//! - [`fault`]: injected faults between the two;
//! - [`scenario`]: the script, and the check of its outcome;
//! - [`observations`], [`oracle`], [`drain`]: observe the cluster from outside and check it by the rules;
//! - [`print`], [`screen`]: the output;
//! - [`serve`]: access for `kubectl`;
//! - [`ending`]: handling of signals.

mod drain;
mod ending;
mod fault;
mod fixtures;
mod observations;
mod oracle;
mod print;
mod scenario;
mod screen;
mod serve;
mod sizes;
mod test_bed;

use std::io;
use std::net::SocketAddr;
use std::time::Duration;

use anyhow::{Context, anyhow};
use clap::Args;

use self::ending::Ending;
use self::print::{Line, rounded};
use self::scenario::Scenario;
use self::screen::{Form, Screen};
use self::serve::Kubeconfig;
use self::test_bed::{FREE_PORT, TestBed};
use super::Usage;
use crate::clock::Clock;
use crate::config::Compat;
use crate::observe::{LogFormat, LogLevel, start_logs};
use crate::sim::embedded::Rule;

/// Show the controller at work on an in-memory cluster, in half a minute
///
/// Starts a cluster of simulated nodes in memory and runs the unchanged controller on it. Nodes are
/// tainted; pods are evicted at once or at their deadlines. One taint is removed in time, one node
/// becomes unreachable, and the controller is restarted. Another node reports a bad condition: it is
/// cordoned, drained within a disruption budget, and uncordoned when the condition clears. Finally the
/// demo checks the cluster's history, and fails if a pod was evicted that had to stay, or stayed that
/// had to be evicted.
///
/// On a terminal, a live table is shown below the text. Otherwise the output is plain lines, or with
/// --json one object per line (docs/demo.md lists them). Nothing outside this process is touched.
#[derive(Debug, Args)]
pub(super) struct Arguments {
    /// Number of nodes
    #[arg(long, value_name = "NUMBER", default_value = "200", value_parser = sizes::nodes)]
    nodes: usize,

    /// Number of pods [default: 30 per node]
    #[arg(long, value_name = "NUMBER", value_parser = sizes::pods)]
    pods: Option<usize>,

    /// Keep the cluster running after the scenario and serve it to kubectl on this loopback address
    /// [default: a free port]
    #[arg(
        long, value_name = "ADDR:PORT", num_args = 0..=1, default_missing_value = "127.0.0.1:0"
    )]
    serve: Option<SocketAddr>,

    /// Skip the scenario and only serve the cluster. Requires --serve
    #[arg(long, requires = "serve")]
    no_story: bool,

    /// Taint eviction rules: ostrakon's own, or those of kube-controller-manager. With the latter,
    /// countdowns start again at the restart, so the demo fails
    #[arg(long, value_enum, default_value_t)]
    compat: Compat,

    /// Fault to inject into the controller's requests, from the first taint on (with --no-story, from
    /// the start); repeatable. One of latency=DURATION, refuse=CODE, hang, cut or lose-answer. To limit
    /// it to some requests, append, with commas: chance=PERCENT, times=NUMBER, verb, resource,
    /// subresource, namespace, name. Example: `--fault refuse=503,chance=30%,verb=delete,resource=pods`
    #[arg(long = "fault", value_name = "FAULT", value_parser = fault::parse)]
    faults: Vec<Rule>,

    /// Seed of the random numbers for faults
    #[arg(long, value_name = "NUMBER", default_value_t = 0)]
    seed: u64,

    /// Print one JSON object per line
    #[arg(long)]
    json: bool,

    /// Log level of the controller, which logs to standard error: error, warn, info, debug or trace, or
    /// directives such as `info,ostrakon::evict=debug`
    #[arg(long, value_name = "LEVEL", default_value = "warn")]
    log_level: LogLevel,
}

/// Runs the demo until it ends or a signal stops it.
pub(super) fn run(arguments: &Arguments) -> anyhow::Result<()> {
    let pods = sizes::fitting(arguments.nodes, arguments.pods, sizes::free_memory());
    let pods = pods.map_err(Usage)?;
    if let Some(address) = arguments.serve.filter(|address| !address.ip().is_loopback()) {
        let text = "the demo has no authentication; use a loopback address, such as 127.0.0.1:6443";
        return Err(Usage(format!("cannot serve on {address}: {text}")).into());
    }
    start_logs(LogFormat::Text, &arguments.log_level);
    let ending = Ending::listen()?;
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .thread_name("io")
        .enable_all()
        .build()
        .context("cannot start the I/O threads; check the process and memory limits")?;
    let outcome = runtime.block_on(until_over(arguments, pods, &ending));
    // After a signal, do not wait for tasks that are still running.
    runtime.shutdown_timeout(Duration::from_millis(100));
    match outcome {
        // A reader that closes the pipe is no error.
        Err(error) if is_closed(&error) => Ok(()),
        outcome => outcome,
    }
}

fn is_closed(error: &anyhow::Error) -> bool {
    let cause = error.downcast_ref::<io::Error>();
    cause.is_some_and(|cause| cause.kind() == io::ErrorKind::BrokenPipe)
}

/// Runs the demo until it ends or a signal arrives.
async fn until_over(arguments: &Arguments, pods: usize, ending: &Ending) -> anyhow::Result<()> {
    let started = Clock::system().now();
    let address = arguments.serve.unwrap_or(FREE_PORT);
    let mut screen = Screen::new(Form::suiting(arguments.json));
    ending.is_live(screen.is_live());
    screen.say(
        None,
        &Line::Starting { nodes: arguments.nodes, pods, faults: arguments.faults.len() },
    )?;
    let mut bed = tokio::select! {
        bed = TestBed::set(arguments.nodes, pods, address, arguments.compat, arguments.seed) => bed?,
        () = ending.asked() => return Ok(()),
    };
    let seconds = bed.now().duration_since(started).as_secs_f64();
    let ready = Line::Ready { took_seconds: rounded(seconds), server: bed.url() };
    screen.say(None, &ready)?;
    let mut came_out = true;
    let played = tokio::select! {
        played = play(arguments, &mut bed, &mut screen, ending, &mut came_out) => Some(played),
        () = ending.asked() => None,
    };
    let was_asked = played.is_none();
    let outcome = match played.unwrap_or(Ok(())) {
        Ok(()) if !came_out => Err(anyhow!("the check of the outcome failed, see above")),
        played => played,
    };
    screen.close().or_else(|error| match error.kind() {
        io::ErrorKind::BrokenPipe => Ok(()),
        _ => Err(error),
    })?;
    ending.is_live(false);
    if was_asked {
        // No orderly shutdown: nothing outside this process depends on it, and parts that are stopped
        // one by one would log errors about each other.
        std::mem::forget(bed);
        return outcome;
    }
    tokio::select! {
        stopped = bed.stop() => outcome.and(stopped),
        () = ending.asked() => outcome,
    }
}

/// Plays the scenario and, with `--serve`, keeps running after it. `came_out`: whether the outcome is
/// right so far.
async fn play(
    arguments: &Arguments,
    bed: &mut TestBed,
    screen: &mut Screen,
    ending: &Ending,
    came_out: &mut bool,
) -> anyhow::Result<()> {
    let kubeconfig = match arguments.serve {
        Some(_) => Some(Kubeconfig::write(&bed.kubeconfig())?),
        None => None,
    };
    if let Some(kubeconfig) = &kubeconfig {
        ending.removes(kubeconfig.path().to_owned());
        screen.say(None, &serving(bed, kubeconfig))?;
        if !arguments.no_story {
            screen.say_text(None, &kubeconfig.at_the_start())?;
        }
    }
    let example = bed.fixtures.nodes[bed.fixtures.nodes.len() / 2].clone();
    let metrics = bed.metrics_url();
    bed.inject_faults(&arguments.faults);
    let mut scenario = Scenario::begin(bed, screen);
    if !arguments.no_story {
        let summary = scenario.play().await?;
        if !summary.ok {
            *came_out = false;
            ending.has_failed();
        }
        scenario.say(&Line::Summary(summary))?;
    }
    if let Some(kubeconfig) = &kubeconfig {
        scenario.say_text(&kubeconfig.at_the_end(&example, &metrics))?;
        // Until a signal arrives.
        scenario.go_on().await?;
    }
    Ok(())
}

fn serving(bed: &TestBed, kubeconfig: &Kubeconfig) -> Line {
    Line::Serving {
        server: bed.url(),
        kubeconfig: kubeconfig.path().display().to_string(),
        metrics: bed.metrics_url(),
    }
}
