//! What a scenario is given, and how it is run.
//!
//! A machine may stall at any moment, for ten seconds and more: the tests, the API server, its
//! controllers, ostrakon. So a scenario that shares the control plane asks how soon something is done
//! only in the sense of [`SOON`], takes times from what the API stored or wrote down, and where it has
//! to do something before a moment, does it [`before`] that. If the machine was too slow for it,
//! nothing was shown, and it is played again with more time. How soon things are done is asked by
//! scenarios that run alone.

use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, Error, Result, bail};
use jiff::{SignedDuration, Timestamp};
use libtest_mimic::{Arguments, Failed, Trial};
use ostrakon::clock::system_time;
use parking_lot::Mutex;
use tokio::runtime::Handle;
use tokio::sync::RwLock;
use tokio::time::{Instant, timeout};

use crate::harness::ostrakon::Launch;
use crate::harness::{Arena, Bed, Ostrakon, User};
use crate::scenarios::drains;

/// How long something that is to happen at once may take. It does not tell quick from slow: it ends
/// the wait for what never comes.
pub(crate) const SOON: Duration = Duration::from_secs(60);

/// The longest that a scenario may take unless it says otherwise.
const LIMIT: Duration = Duration::from_secs(480);

/// The longest that is spent on removing what a scenario leaves behind.
const CLEANING: Duration = Duration::from_secs(120);

/// How often a scenario is played if the machine is too slow for it.
const TRIES: u32 = 5;

/// The machine was too slow for what a scenario is about, so nothing was shown. It is told by the
/// test's own clock and what the test itself did, or in such a way that a fault of ostrakon's would
/// come to it each time: the last try fails.
#[derive(Debug, thiserror::Error)]
#[error("the machine was too slow {0}")]
pub(crate) struct TooSlow(String);

impl TooSlow {
    /// `to` do what?
    pub(crate) fn error(what: &str) -> Error {
        Self(what.to_owned()).into()
    }
}

/// Does what must have been done before `moment`. Whatever came of it later says that the machine
/// was too slow `to` do it, and nothing else.
pub(crate) async fn before<T>(
    moment: Timestamp,
    what: &str,
    done: impl Future<Output = Result<T>>,
) -> Result<T> {
    let left = moment.duration_since(system_time()).max(SignedDuration::ZERO);
    let outcome = timeout(left.try_into()?, done).await;
    match outcome {
        Ok(outcome) if system_time() < moment => outcome,
        Ok(Err(error)) => Err(TooSlow::error(&format!("{what}: {error:#}"))),
        _ => Err(TooSlow::error(what)),
    }
}

/// A scenario's view of the world.
pub(crate) struct Ctx {
    house: Arc<House>,
    name: String,
    arenas: Mutex<Vec<Arena>>,
    /// By how much its countdowns are longer than they need to be.
    stretch: i64,
}

impl Ctx {
    /// The control plane, shared unless the scenario runs alone.
    pub(crate) fn bed(&self) -> &Bed {
        &self.house.bed
    }

    /// So many seconds, or more where the machine was too slow before: for countdowns in which the
    /// scenario has something to do.
    pub(crate) fn seconds(&self, seconds: i64) -> i64 {
        seconds * self.stretch
    }

    /// A new namespace, in which nodes are created too. All of it is removed at the end.
    pub(crate) async fn arena(&self) -> Result<Arena> {
        let arena = self.bed().arena(&self.name).await?;
        self.arenas.lock().push(arena.clone());
        Ok(arena)
    }

    /// The one ostrakon that all scenarios share which do not run alone; started by the first. It
    /// has drain policies, each for nodes that are labelled with its name.
    ///
    /// A scenario that runs alone starts its own, as it likes: no other is running then.
    #[allow(dead_code, reason = "for scenarios; the smoke trials do without")]
    pub(crate) async fn ostrakon(&self) -> Result<Arc<Ostrakon>> {
        self.house.ostrakon().await
    }

    /// Removes the arenas. One that ran alone may have left a component down, so all are brought
    /// up first.
    async fn clean_up(&self, was_alone: bool) -> Result<()> {
        if was_alone {
            self.bed().mend().await?;
        }
        let arenas = std::mem::take(&mut *self.arenas.lock());
        for arena in arenas {
            arena.clean_up().await?;
        }
        Ok(())
    }
}

/// The control plane of a run, and what its scenarios share.
pub(crate) struct House {
    bed: Bed,
    ostrakon: tokio::sync::Mutex<Option<Arc<Ostrakon>>>,
    /// Scenarios hold it for reading, one that runs alone for writing.
    turn: RwLock<()>,
}

impl House {
    pub(crate) fn new(bed: Bed) -> Self {
        Self { bed, ostrakon: tokio::sync::Mutex::new(None), turn: RwLock::new(()) }
    }

    pub(crate) fn bed(&self) -> &Bed {
        &self.bed
    }

    async fn ostrakon(&self) -> Result<Arc<Ostrakon>> {
        let mut shared = self.ostrakon.lock().await;
        if let Some(ostrakon) = &*shared {
            return Ok(Arc::clone(ostrakon));
        }
        let config = format!("--config={}", drains::shared_policies(&self.bed)?.display());
        let launch = Launch::new(self.bed.kubeconfig(User::Ostrakon)?).arg(&config);
        let ostrakon = Arc::new(launch.start(&self.bed).await?);
        Ok(Arc::clone(shared.insert(ostrakon)))
    }

    /// Ends the shared ostrakon; fails unless it ends well.
    async fn stop_ostrakon(&self) -> Result<()> {
        let Some(ostrakon) = self.ostrakon.lock().await.take() else {
            return Ok(());
        };
        let ostrakon = Arc::into_inner(ostrakon).context("a scenario still holds ostrakon")?;
        ostrakon.stop().await.context("stop the shared ostrakon")?;
        Ok(())
    }

    /// Ends everything, in order.
    pub(crate) async fn close(self) -> Result<()> {
        let ostrakon = self.stop_ostrakon().await;
        self.bed.stop().await?;
        ostrakon
    }
}

/// What there is to run scenarios on.
pub(crate) enum Floor {
    House(Arc<House>),
    /// The control plane cannot be had on this machine.
    Absent,
    /// Nothing is going to run.
    NotNeeded,
}

type Run = dyn Fn(&Ctx, &Handle, Duration) -> Result<()> + Send + Sync;

/// A named test.
#[derive(Clone)]
pub(crate) struct Scenario {
    name: String,
    alone: bool,
    real: bool,
    on_request: bool,
    limit: Duration,
    run: Arc<Run>,
}

/// Makes a [`Scenario`] of a function of this module, under its own path.
macro_rules! trial {
    ($function:ident) => {
        $crate::ctx::Scenario::new(concat!(module_path!(), "::", stringify!($function)), $function)
    };
}
pub(crate) use trial;

impl Scenario {
    pub(crate) fn new<F>(path: &str, function: F) -> Self
    where
        F: AsyncFn(&Ctx) -> Result<()> + Send + Sync + 'static,
    {
        let path = path.split_once("::").map_or(path, |(_, path)| path);
        Self {
            name: path.to_owned(),
            alone: false,
            real: false,
            on_request: false,
            limit: LIMIT,
            run: Arc::new(move |ctx, handle, limit| {
                handle.block_on(async {
                    match timeout(limit, function(ctx)).await {
                        Ok(outcome) => outcome,
                        Err(_) => bail!("not done after {limit:?}"),
                    }
                })
            }),
        }
    }

    /// Runs while no other scenario does, and after them.
    pub(crate) fn alone(mut self) -> Self {
        self.alone = true;
        self
    }

    /// Needs what the embedded cluster does not have: rights, certificates, policies, processes.
    pub(crate) fn real(mut self) -> Self {
        self.real = true;
        self
    }

    /// Runs only when ignored trials are asked for: it is about another program.
    pub(crate) fn on_request(mut self) -> Self {
        self.on_request = true;
        self
    }

    /// May take so long.
    pub(crate) fn within(mut self, limit: Duration) -> Self {
        self.limit = limit;
        self
    }

    pub(crate) fn is_alone(&self) -> bool {
        self.alone
    }

    pub(crate) fn is_real(&self) -> bool {
        self.real
    }

    pub(crate) fn is_filtered_out(&self, args: &Arguments) -> bool {
        let trial = Trial::test(self.name.clone(), || Ok(()));
        args.is_filtered_out(&trial.with_ignored_flag(self.on_request))
    }

    pub(crate) fn into_trial(self, floor: &Floor, handle: &Handle) -> Trial {
        let (name, on_request) = (self.name.clone(), self.on_request);
        match floor {
            Floor::House(house) => {
                let (house, handle) = (Arc::clone(house), handle.clone());
                Trial::test(name, move || self.run_in(&house, &handle))
                    .with_ignored_flag(on_request)
            }
            Floor::Absent => {
                let run = || Err(Failed::from("there is no control plane to run this on"));
                Trial::test(name, run).with_ignored_flag(true)
            }
            Floor::NotNeeded => Trial::test(name, || Ok(())).with_ignored_flag(on_request),
        }
    }

    fn run_in(&self, house: &Arc<House>, handle: &Handle) -> Result<(), Failed> {
        let mut stretch = 1;
        loop {
            let outcome = self.play(house, handle, stretch);
            match outcome {
                Err(error) if error.is::<TooSlow>() && stretch < 1 << (TRIES - 1) => {
                    say_again(&self.name, &error);
                    stretch *= 2;
                }
                outcome => return outcome.map_err(failed),
            }
        }
    }

    fn play(&self, house: &Arc<House>, handle: &Handle, stretch: i64) -> Result<()> {
        let ctx = Ctx {
            house: Arc::clone(house),
            name: self.name.rsplit("::").next().unwrap_or_default().to_owned(),
            arenas: Mutex::default(),
            stretch,
        };
        let mut shared = None;
        let mut alone = None;
        if self.alone {
            alone = Some(handle.block_on(ctx.house.turn.write()));
            handle.block_on(ctx.house.stop_ostrakon())?;
        } else {
            shared = Some(handle.block_on(ctx.house.turn.read()));
        }
        let begin = Instant::now();
        let outcome = catch_unwind(AssertUnwindSafe(|| (self.run)(&ctx, handle, self.limit)));
        say_time(&self.name, begin.elapsed());
        // What is left over after this is in nobody's way.
        let _ = handle.block_on(async { timeout(CLEANING, ctx.clean_up(self.alone)).await });
        drop((shared, alone));
        outcome.unwrap_or_else(|panic| resume_unwind(panic))
    }
}

/// Says that a scenario is played again. Always: a machine that is too slow for it is to be seen.
#[allow(clippy::print_stderr, reason = "whoever reads the run wants to know")]
fn say_again(name: &str, error: &Error) {
    eprintln!("  once more: {name}: {error:#}");
}

/// Says how long a scenario took, to whoever asks by `OSTRAKON_TIMES=1`.
#[allow(clippy::print_stderr, reason = "figures are for the reader of the run")]
fn say_time(name: &str, took: Duration) {
    if std::env::var_os("OSTRAKON_TIMES").is_some() {
        eprintln!("  figure: {name} took {:.1} s", took.as_secs_f64());
    }
}

/// With all causes, and without a backtrace.
#[allow(clippy::needless_pass_by_value, reason = "for `map_err`")]
fn failed(error: anyhow::Error) -> Failed {
    Failed::from(format!("{error:#}"))
}
