//! The timed queue against a model that is too simple to be wrong: a map, searched from end to end.

use std::collections::BTreeMap;
use std::time::Duration;

use futures::FutureExt;
use proptest::prelude::*;
use tokio::task::coop::unconstrained;
use tokio::time::advance;

use super::*;

type Key = u8;
type Value = u8;

/// Time in the model: milliseconds since the beginning.
type Millis = i64;

#[derive(Default)]
struct Model {
    now: Millis,
    keys: BTreeMap<Key, Known>,
    /// Counts armed countdowns, so that of two due at once the older one is known.
    armed: u64,
    /// Counts hand-outs.
    fired: usize,
}

#[derive(Default)]
struct Known {
    pending: Option<Countdown>,
    running: Option<Work>,
    floor: Option<Millis>,
}

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Countdown {
    due: Millis,
    order: u64,
    value: Value,
}

struct Work {
    nth: usize,
    due: Millis,
    value: Value,
    cancelled: bool,
}

/// How a hand-out ended, in the model's time.
#[derive(Clone, Copy, Debug)]
enum End {
    Done,
    Retry { not_before: Millis, value: Value },
}

impl Model {
    fn arm(&mut self, key: Key, due: Millis, value: Value) -> Armed {
        let known = self.keys.entry(key).or_default();
        let due = due.max(known.floor.unwrap_or(due));
        let armed = match known.pending {
            Some(old) if (old.due, old.value) == (due, value) => return Armed::Unchanged,
            Some(_) => Armed::Moved,
            None => Armed::New,
        };
        self.armed += 1;
        let order = self.armed;
        known.pending = Some(Countdown { due, order, value });
        armed
    }

    fn disarm(&mut self, key: Key) -> bool {
        let Some(known) = self.keys.get_mut(&key) else {
            return false;
        };
        known.floor = None;
        if let Some(work) = &mut known.running {
            work.cancelled = true;
        }
        let cancelled = known.pending.take().is_some();
        self.forget_empty();
        cancelled
    }

    /// The key and the countdown that are to be handed out now.
    fn next(&mut self) -> Option<(Key, Countdown)> {
        let now = self.now;
        let idle = self.keys.iter().filter(|(_, known)| known.running.is_none());
        let counting = idle.filter_map(|(key, known)| Some((known.pending?, *key)));
        let (countdown, key) = counting.filter(|(countdown, _)| countdown.due <= now).min()?;
        let nth = self.fired;
        self.fired += 1;
        let work = Work { nth, due: countdown.due, value: countdown.value, cancelled: false };
        let running = Some(work);
        self.keys.insert(key, Known { running, ..Known::default() });
        Some((key, countdown))
    }

    fn complete(&mut self, key: Key, nth: usize, end: End) -> bool {
        let Some(known) = self.keys.get_mut(&key) else {
            return false;
        };
        let Some(work) = known.running.take_if(|work| work.nth == nth) else {
            return false;
        };
        match (end, &mut known.pending) {
            (End::Retry { not_before, .. }, Some(newer)) => {
                known.floor = Some(not_before);
                newer.due = newer.due.max(not_before);
            }
            (End::Retry { not_before, value }, None) if !work.cancelled => {
                known.floor = Some(not_before);
                self.armed += 1;
                known.pending = Some(Countdown { due: not_before, order: self.armed, value });
            }
            (End::Retry { .. } | End::Done, _) => {}
        }
        self.forget_empty();
        true
    }

    fn rearm_all(&mut self, due_of: impl Fn(Value) -> Option<Millis>) -> usize {
        let mut moved = 0;
        for known in self.keys.values_mut() {
            let Some(countdown) = &mut known.pending else {
                continue;
            };
            if let Some(due) = due_of(countdown.value) {
                let due = due.max(known.floor.unwrap_or(due));
                moved += usize::from(due != countdown.due);
                countdown.due = due;
            }
        }
        moved
    }

    fn forget_empty(&mut self) {
        self.keys.retain(|_, known| known.pending.is_some() || known.running.is_some());
    }

    fn get(&self, key: Key) -> Option<(Millis, Value, bool)> {
        let known = self.keys.get(&key)?;
        let running = known.running.as_ref();
        let (due, value) = known
            .pending
            .map(|countdown| (countdown.due, countdown.value))
            .or(running.filter(|work| !work.cancelled).map(|work| (work.due, work.value)))?;
        Some((due, value, running.is_some()))
    }

    fn is_current(&self, key: Key, nth: usize) -> bool {
        let running = self.keys.get(&key).and_then(|known| known.running.as_ref());
        running.is_some_and(|work| work.nth == nth && !work.cancelled)
    }

    fn running(&self) -> usize {
        let known = self.keys.values();
        known.filter(|known| known.running.is_some()).count()
    }
}

/// One thing that happens to a queue. Times are in milliseconds from now.
#[derive(Clone, Debug)]
enum Step {
    Arm(Key, Millis, Value),
    Disarm(Key),
    Advance(u64),
    Next,
    /// Completes one of all the hand-outs there have been: mostly a recent one, or a stale one.
    Complete {
        back: usize,
        end: End,
    },
    /// The clock was set: values come due so many milliseconds times themselves from now, and
    /// value 0 stays.
    Rearm(Millis),
    Clear,
}

fn step() -> impl Strategy<Value = Step> {
    let key = 0..5_u8;
    let value = 0..3_u8;
    let end = prop_oneof![
        Just(End::Done),
        (-20..400_i64, value.clone())
            .prop_map(|(not_before, value)| End::Retry { not_before, value }),
    ];
    // Few distinct times, so that some fall together; and far ones, on higher levels of the wheel.
    let due = prop_oneof![-50..50_i64, (-2..10_i64).prop_map(|it| it * 64), 0..20_000_i64];
    let pause = prop_oneof![0..3_u64, (0..8_u64).prop_map(|it| it * 64), 0..10_000_u64];
    prop_oneof![
        80 => (key.clone(), due, value).prop_map(|(key, due, value)| Step::Arm(key, due, value)),
        20 => key.prop_map(Step::Disarm),
        40 => pause.prop_map(Step::Advance),
        80 => Just(Step::Next),
        60 => (0..6_usize, end).prop_map(|(back, end)| Step::Complete { back, end }),
        8 => (-100..300_i64).prop_map(Step::Rearm),
        1 => Just(Step::Clear),
    ]
}

/// A queue and its model, side by side.
struct Pair {
    queue: TimedQueue<Key, Value>,
    model: Model,
    /// An hour after which is the beginning, so that there is a past to be due in.
    hour_zero: Instant,
    /// Every hand-out there has been.
    fired: Vec<(Key, Token)>,
}

const HOUR: Duration = Duration::from_hours(1);

impl Pair {
    async fn new() -> Self {
        let hour_zero = Instant::now();
        advance(HOUR).await;
        Self { queue: TimedQueue::new(), model: Model::default(), hour_zero, fired: Vec::new() }
    }

    fn instant(&self, at: Millis) -> Instant {
        let since_zero = i64::try_from(HOUR.as_millis()).unwrap() + at;
        self.hour_zero + Duration::from_millis(u64::try_from(since_zero).unwrap())
    }

    async fn step(&mut self, step: Step) -> Result<(), TestCaseError> {
        let now = self.model.now;
        match step {
            Step::Arm(key, due, value) => {
                let armed = self.queue.arm(key, self.instant(now + due), value);
                prop_assert_eq!(armed, self.model.arm(key, now + due, value));
            }
            Step::Disarm(key) => {
                prop_assert_eq!(self.queue.disarm(&key), self.model.disarm(key));
            }
            Step::Advance(millis) => {
                advance(Duration::from_millis(millis)).await;
                self.model.now += i64::try_from(millis).unwrap();
            }
            Step::Next => {
                self.next()?;
            }
            Step::Complete { back, end } => {
                let Some(nth) = self.fired.len().checked_sub(back + 1) else {
                    return Ok(());
                };
                self.complete(nth, end)?;
            }
            Step::Rearm(millis) => {
                let due_of = |value: Value| (value > 0).then(|| now + millis * i64::from(value));
                let moved =
                    self.queue.rearm_all(|value| due_of(*value).map(|due| self.instant(due)));
                prop_assert_eq!(moved, self.model.rearm_all(due_of));
            }
            Step::Clear => {
                self.queue.clear();
                self.model.keys.clear();
            }
        }
        self.compare()
    }

    /// Takes one from both, if one is due. Returns its number.
    fn next(&mut self) -> Result<Option<usize>, TestCaseError> {
        let fired = unconstrained(self.queue.next()).now_or_never();
        let expected = self.model.next();
        let got = fired.as_ref().map(|it| (it.key, it.due, it.value));
        let expected = expected.map(|(key, it)| (key, self.instant(it.due), it.value));
        prop_assert_eq!(got, expected);
        Ok(fired.map(|fired| {
            self.fired.push((fired.key, fired.token));
            self.fired.len() - 1
        }))
    }

    fn complete(&mut self, nth: usize, end: End) -> Result<(), TestCaseError> {
        let now = self.model.now;
        let (key, token) = self.fired[nth];
        let (outcome, end) = match end {
            End::Done => (Outcome::Done, End::Done),
            End::Retry { not_before, value } => {
                let at = now + not_before;
                let not_before = self.instant(at);
                let outcome = Outcome::Retry { not_before, value, failures: 1 };
                (outcome, End::Retry { not_before: at, value })
            }
        };
        let mattered = self.queue.complete(&key, token, outcome);
        prop_assert_eq!(mattered, self.model.complete(key, nth, end));
        Ok(())
    }

    /// Everything that can be seen from outside is the same.
    fn compare(&self) -> Result<(), TestCaseError> {
        let (queue, model) = (&self.queue, &self.model);
        prop_assert_eq!(queue.len(), model.keys.len());
        prop_assert_eq!(queue.running(), model.running());
        for key in 0..5 {
            let known = queue.get(&key).map(|it| (it.due, it.value, it.running));
            let expected = model.get(key);
            let expected =
                expected.map(|(due, value, running)| (self.instant(due), value, running));
            prop_assert_eq!(known, expected);
        }
        for (nth, (key, token)) in self.fired.iter().enumerate() {
            prop_assert_eq!(queue.is_current(key, *token), model.is_current(*key, nth));
        }
        Ok(())
    }

    /// Finishes everything: nothing that was armed is lost, and nothing comes that was not.
    async fn finish(&mut self) -> Result<(), TestCaseError> {
        for nth in 0..self.fired.len() {
            self.complete(nth, End::Done)?;
        }
        self.step(Step::Advance(100_000)).await?;
        while let Some(nth) = self.next()? {
            self.complete(nth, End::Done)?;
            self.compare()?;
        }
        prop_assert!(self.queue.is_empty());
        self.step(Step::Advance(100_000_000)).await?;
        prop_assert_eq!(self.next()?, None);
        Ok(())
    }
}

proptest! {
    #[test]
    fn it_behaves_like_the_model(steps in prop::collection::vec(step(), 1..150)) {
        let mut runtime = tokio::runtime::Builder::new_current_thread();
        let runtime = runtime.enable_time().start_paused(true).build().unwrap();
        runtime.block_on(async {
            let mut pair = Pair::new().await;
            for step in steps {
                pair.step(step).await?;
            }
            pair.finish().await
        })?;
    }
}
