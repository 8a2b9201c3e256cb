//! `ostrakon demo`: the controller at work, for somebody who has no cluster.
//!
//! - [`cast`], [`sizes`]: who is in the cluster, and how many;
//! - [`stage`]: the cluster in the process and the unchanged controller on it;
//! - [`fault`]: what goes wrong on the way between the two, if that is wanted;
//! - [`story`]: what happens, and whether it came out as it must;
//! - [`ledger`], [`reckon`], [`drain`]: what is seen from outside, and held against the rule;
//! - [`tell`], [`screen`]: what is said, and where it goes;
//! - [`serve`]: the cluster for `kubectl`;
//! - [`ending`]: the end by a signal.

mod cast;
mod drain;
mod ending;
mod fault;
mod ledger;
mod reckon;
mod screen;
mod serve;
mod sizes;
mod stage;
mod story;
mod tell;

use std::io;
use std::net::SocketAddr;
use std::time::Duration;

use anyhow::{Context, anyhow};
use clap::Args;

use self::ending::Ending;
use self::screen::{Form, Screen};
use self::serve::Kubeconfig;
use self::stage::{FREE_PORT, Stage};
use self::story::Story;
use self::tell::{Line, rounded};
use super::Usage;
use crate::clock::Clock;
use crate::config::Compat;
use crate::observe::{LogFormat, LogLevel, start_logs};
use crate::sim::embedded::Rule;

/// Show the controller at work on a cluster in this process, in half a minute
///
/// Starts a cluster of hollow nodes in memory and runs the controller on it, unchanged: nodes are
/// tainted, pods go at once or at their deadlines, a taint comes off in time, a node falls silent,
/// the controller is restarted; a node reports a bad condition, is cordoned, drained within a
/// disruption budget, and used again when it is well. Then it says what became of the pods, by the cluster's own history,
/// and fails if one went that had to stay or one stayed that had to go.
///
/// On a terminal a live table stands below the text; in a pipe there are plain lines, and with
/// --json one object a line (docs/demo.md lists them). Nothing outside of this process is touched.
#[derive(Debug, Args)]
pub(super) struct Arguments {
    /// Number of nodes
    #[arg(long, value_name = "NUMBER", default_value = "200", value_parser = sizes::nodes)]
    nodes: usize,

    /// Number of pods [default: 30 per node]
    #[arg(long, value_name = "NUMBER", value_parser = sizes::pods)]
    pods: Option<usize>,

    /// Keep the cluster after the story and let kubectl at it, at this address of the loopback
    /// interface [default: a free port]
    #[arg(
        long, value_name = "ADDR:PORT", num_args = 0..=1, default_missing_value = "127.0.0.1:0"
    )]
    serve: Option<SocketAddr>,

    /// Leave the story out: the cluster is yours from the start. Needs --serve
    #[arg(long, requires = "serve")]
    no_story: bool,

    /// Rules by which pods are judged: our own, or those of kube-controller-manager. By the latter
    /// countdowns begin anew with the restart, so the demo fails
    #[arg(long, value_enum, default_value_t)]
    compat: Compat,

    /// What befalls the controller's requests from the first taint on, or from the start with
    /// --no-story; may be given many times.
    /// latency=DURATION, refuse=CODE, hang, cut or lose-answer, and after a comma each, if they are
    /// to befall some requests only: chance=PERCENT, times=NUMBER, verb, resource, subresource,
    /// namespace, name. `--fault refuse=503,chance=30%,verb=delete,resource=pods`
    #[arg(long = "fault", value_name = "FAULT", value_parser = fault::parse)]
    faults: Vec<Rule>,

    /// Where the chances of faults come from
    #[arg(long, value_name = "NUMBER", default_value_t = 0)]
    seed: u64,

    /// Write one JSON object a line
    #[arg(long)]
    json: bool,

    /// Level of the controller's logs, on standard error: error, warn, info, debug, trace, or
    /// directives such as `info,ostrakon::evict=debug`
    #[arg(long, value_name = "LEVEL", default_value = "warn")]
    log_level: LogLevel,
}

/// Runs the demo. Returns when it is over or was stopped by a signal.
pub(super) fn run(arguments: &Arguments) -> anyhow::Result<()> {
    let pods = sizes::fitting(arguments.nodes, arguments.pods, sizes::free_memory());
    let pods = pods.map_err(Usage)?;
    if let Some(address) = arguments.serve.filter(|address| !address.ip().is_loopback()) {
        let text = "the demo has no passwords; give an address of this machine only, such as \
                    127.0.0.1:6443";
        return Err(Usage(format!("cannot serve on {address}: {text}")).into());
    }
    start_logs(LogFormat::Text, &arguments.log_level);
    let ending = Ending::listen()?;
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .thread_name("io")
        .enable_all()
        .build()
        .context("cannot start the I/O threads; check the limits of processes and memory")?;
    let outcome = runtime.block_on(until_over(arguments, pods, &ending));
    // What is still running after a signal is not waited for.
    runtime.shutdown_timeout(Duration::from_millis(100));
    match outcome {
        // Whoever read the output has seen enough.
        Err(error) if is_closed(&error) => Ok(()),
        outcome => outcome,
    }
}

fn is_closed(error: &anyhow::Error) -> bool {
    let cause = error.downcast_ref::<io::Error>();
    cause.is_some_and(|cause| cause.kind() == io::ErrorKind::BrokenPipe)
}

/// Runs the demo to its end, or until the end is asked for.
async fn until_over(arguments: &Arguments, pods: usize, ending: &Ending) -> anyhow::Result<()> {
    let started = Clock::system().now();
    let address = arguments.serve.unwrap_or(FREE_PORT);
    let mut screen = Screen::new(Form::suiting(arguments.json));
    ending.is_live(screen.is_live());
    screen.say(
        None,
        &Line::Starting { nodes: arguments.nodes, pods, faults: arguments.faults.len() },
    )?;
    let mut stage = tokio::select! {
        stage = Stage::set(arguments.nodes, pods, address, arguments.compat, arguments.seed) => stage?,
        () = ending.asked() => return Ok(()),
    };
    let seconds = stage.now().duration_since(started).as_secs_f64();
    let ready = Line::Ready { took_seconds: rounded(seconds), server: stage.url() };
    screen.say(None, &ready)?;
    let mut came_out = true;
    let played = tokio::select! {
        played = play(arguments, &mut stage, &mut screen, ending, &mut came_out) => Some(played),
        () = ending.asked() => None,
    };
    let was_asked = played.is_none();
    let outcome = match played.unwrap_or(Ok(())) {
        Ok(()) if !came_out => Err(anyhow!("the pods are not as they must be, see above")),
        played => played,
    };
    screen.close().or_else(|error| match error.kind() {
        io::ErrorKind::BrokenPipe => Ok(()),
        _ => Err(error),
    })?;
    ending.is_live(false);
    if was_asked {
        // Nothing outside of this process is waiting for anything, so nothing is ended in order. Its
        // parts go with the process: taken apart one by one they would complain of each other.
        std::mem::forget(stage);
        return outcome;
    }
    tokio::select! {
        stopped = stage.stop() => outcome.and(stopped),
        () = ending.asked() => outcome,
    }
}

/// Tells the story and, if that is wanted, goes on after it. `came_out`: whether the story came out
/// as it must, as far as it was told.
async fn play(
    arguments: &Arguments,
    stage: &mut Stage,
    screen: &mut Screen,
    ending: &Ending,
    came_out: &mut bool,
) -> anyhow::Result<()> {
    let kubeconfig = match arguments.serve {
        Some(_) => Some(Kubeconfig::write(&stage.kubeconfig())?),
        None => None,
    };
    if let Some(kubeconfig) = &kubeconfig {
        ending.removes(kubeconfig.path().to_owned());
        screen.say(None, &serving(stage, kubeconfig))?;
        if !arguments.no_story {
            screen.say_text(None, &kubeconfig.at_the_start())?;
        }
    }
    let example = stage.cast.nodes[stage.cast.nodes.len() / 2].clone();
    let metrics = stage.metrics_url();
    stage.befall(&arguments.faults);
    let mut story = Story::begin(stage, screen);
    if !arguments.no_story {
        let summary = story.tell().await?;
        if !summary.ok {
            *came_out = false;
            ending.has_failed();
        }
        story.say(&Line::Summary(summary))?;
    }
    if let Some(kubeconfig) = &kubeconfig {
        story.say_text(&kubeconfig.at_the_end(&example, &metrics))?;
        // Until a signal comes.
        story.go_on().await?;
    }
    Ok(())
}

fn serving(stage: &Stage, kubeconfig: &Kubeconfig) -> Line {
    Line::Serving {
        server: stage.url(),
        kubeconfig: kubeconfig.path().display().to_string(),
        metrics: stage.metrics_url(),
    }
}
