//! Simulation on the embedded cluster: two unchanged replicas of the controller with their watches,
//! requests and election, in one thread and in virtual time, and an [`observer`] that knows only
//! what the API stored and who asked for it.
//!
//! Each seed makes a random story ([`story`]): taints come and go, with and without `timeAdded`;
//! nodes fall silent, vanish and return; pods are bound, edited, deleted and created again under
//! their names; requests are slow, refused, lost or never answered; watches lag, break and expire;
//! the API server goes down, leases are not renewed, wall clocks step, replicas are stopped and
//! killed. In a third of the stories, the calm ones, nothing goes wrong but that, and a pod goes at
//! its deadline.
//!
//! The observer checks P1 (no wrong eviction), P4 (one writer), P6 (nothing foreign undone) and P7
//! (the wire's words) at each request, P3 (the same deadline, whoever leads) in calm stories after
//! each step, and P2 (no lost eviction) at the end, when the faults are over. P5 says what holds
//! cordons and evictions back; stories of drains belong here, as steps of [`story`], and their
//! promises as methods of the observer.
//!
//! `OSTRAKON_SEED=n cargo test --lib controller::simulation` replays one story; `make soak SEEDS=n`
//! plays that many.

mod observer;
mod replica;
mod story;

use super::flaw::Flaw;
use story::play;

/// Stories in the test command.
const SEEDS: u64 = 1_000;

/// What is wrong with both replicas on purpose.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Broken {
    Nothing,
    /// P1: requests name no UID.
    IgnoresUid,
    /// P1: what was armed once is carried out, whatever is known by now.
    TrustsTimers,
    /// P2: what failed is not tried again.
    ForgetsFailures,
    /// P3: seconds are counted from when the taint is seen, by each process anew.
    CountsFromObservation,
    /// P4: both work.
    DoesNotElect,
    /// P4: leadership is not checked at the moment of writing.
    WritesUngated,
    /// P6: an annotation of somebody else is removed along with a write.
    UndoesForeign,
    /// P7: the condition's reason is another one.
    OtherWords,
}

impl Broken {
    /// The promise that it breaks.
    fn promise(self) -> &'static str {
        match self {
            Self::Nothing => "",
            Self::IgnoresUid | Self::TrustsTimers => "P1",
            Self::ForgetsFailures => "P2",
            Self::CountsFromObservation => "P3",
            Self::DoesNotElect | Self::WritesUngated => "P4",
            Self::UndoesForeign => "P6",
            Self::OtherWords => "P7",
        }
    }

    fn flaw(self) -> Option<Flaw> {
        match self {
            Self::TrustsTimers => Some(Flaw::TrustsTimers),
            Self::ForgetsFailures => Some(Flaw::ForgetsFailures),
            Self::WritesUngated => Some(Flaw::WritesUngated),
            _ => None,
        }
    }
}

fn number(variable: &str) -> Option<u64> {
    std::env::var(variable).ok().map(|text| text.parse().expect("a number"))
}

#[test]
#[allow(clippy::print_stderr, clippy::disallowed_methods, reason = "the progress of a long run")]
fn no_story_breaks_a_promise() {
    let seeds = match number("OSTRAKON_SEED") {
        Some(seed) => seed..seed + 1,
        None => 0..number("OSTRAKON_SOAK").unwrap_or(SEEDS),
    };
    let stories = seeds.end - seeds.start;
    let is_soak = number("OSTRAKON_SOAK").is_some();
    let workers = std::thread::available_parallelism().map_or(1, usize::from);
    let begin = std::time::Instant::now();
    let share = &|worker| {
        let mut sum = Sum::default();
        for (count, seed) in seeds.clone().skip(worker).step_by(workers).enumerate() {
            if is_soak && worker == 0 && count % 100 == 0 {
                eprintln!("story {seed} of {stories} after {:.0?}", begin.elapsed());
            }
            match play(seed, Broken::Nothing) {
                Ok(played) => {
                    sum.evicted += played.evicted;
                    sum.writers += played.writers;
                }
                Err(error) => sum.failures.push(format!("seed {seed}: {error}")),
            }
        }
        sum
    };
    let sum = std::thread::scope(|scope| {
        let shares: Vec<_> =
            (0..workers).map(|worker| scope.spawn(move || share(worker))).collect();
        shares.into_iter().map(|share| share.join().unwrap()).fold(Sum::default(), Sum::with)
    });
    let Sum { evicted, writers, failures } = sum;
    assert!(
        failures.is_empty(),
        "{} of {stories} stories break a promise:\n{}\nreplay one: OSTRAKON_SEED=n cargo test --lib \
         controller::simulation::no_story",
        failures.len(),
        failures[..failures.len().min(8)].join("\n")
    );
    // Seen with --nocapture.
    println!(
        "{stories} stories in {:.0?}: {evicted} evictions, {writers} processes that wrote",
        begin.elapsed()
    );
    let stories = usize::try_from(stories).unwrap();
    assert!(stories == 1 || evicted > stories, "the stories must be about something: {evicted}");
    assert!(stories == 1 || writers > stories, "leaders must change: {writers}");
}

/// What a number of stories came to.
#[derive(Default)]
struct Sum {
    evicted: usize,
    writers: usize,
    failures: Vec<String>,
}

impl Sum {
    fn with(mut self, mut other: Self) -> Self {
        self.evicted += other.evicted;
        self.writers += other.writers;
        self.failures.append(&mut other.failures);
        self
    }
}

#[test]
fn the_same_seed_tells_the_same_story() {
    for seed in 0..10 {
        assert_eq!(play(seed, Broken::Nothing), play(seed, Broken::Nothing), "seed {seed}");
    }
}

#[test]
fn every_broken_controller_is_caught() {
    const ALL: [Broken; 8] = [
        Broken::IgnoresUid,
        Broken::TrustsTimers,
        Broken::ForgetsFailures,
        Broken::CountsFromObservation,
        Broken::DoesNotElect,
        Broken::WritesUngated,
        Broken::UndoesForeign,
        Broken::OtherWords,
    ];
    let catch = |broken: Broken| {
        let caught = (0..150).find_map(|seed| {
            let error = play(seed, broken).err()?;
            error.starts_with(broken.promise()).then_some((seed, error))
        });
        let (seed, error) = caught.unwrap_or_else(|| panic!("{broken:?} was not caught"));
        println!("{broken:?} is caught by seed {seed}: {error}");
    };
    std::thread::scope(|scope| {
        for share in ALL.chunks(ALL.len() / 2) {
            scope.spawn(move || share.iter().copied().for_each(catch));
        }
    });
}
