//! Pauses: everything harmful is held until someone resumes, or until the pause ends by itself.
//!
//! A pause is an annotation of the lease ([`Pause`]). Whether one is in force is decided from the annotation
//! as it was read last and from the time, at the moment of each question. So the queue of evictions, the gate
//! for writes and the drain reconciler cannot disagree, and nothing has to be switched on or off.

use std::collections::BTreeMap;
use std::sync::Arc;

use jiff::Timestamp;
use parking_lot::Mutex;
use tokio::sync::watch;
use tokio::time::Instant;

use super::{Eviction, Hold, Wait};
use crate::clock::Clock;
use crate::model::{Pause, Resumption};

/// The one line of the hold: a pause is for everything.
const LINE: &str = "all";

/// Whether everything harmful is paused, as far as this process has heard.
#[derive(Debug)]
pub struct Pauses {
    stored: watch::Receiver<Arc<BTreeMap<String, String>>>,
    clock: Clock,
    known: Mutex<Known>,
}

#[derive(Debug, Default)]
struct Known {
    /// The annotations that were read.
    of: Option<Arc<BTreeMap<String, String>>>,
    pause: Option<Arc<Pause>>,
    /// When a pause was last seen in force.
    last: Option<Timestamp>,
}

impl Pauses {
    /// Pauses by the annotations of the lease.
    pub fn new(stored: watch::Receiver<Arc<BTreeMap<String, String>>>, clock: Clock) -> Self {
        Self { stored, clock, known: Mutex::default() }
    }

    /// No pause, for tests of other parts.
    #[cfg(test)]
    pub(crate) fn none(clock: Clock) -> Arc<Self> {
        Arc::new(Self::new(watch::channel(Arc::default()).1, clock))
    }

    /// The pause that is in force now.
    pub fn current(&self) -> Option<Arc<Pause>> {
        let stored = Arc::clone(&self.stored.borrow());
        let now = self.clock.now();
        let mut known = self.known.lock();
        if !known.of.as_ref().is_some_and(|of| Arc::ptr_eq(of, &stored)) {
            let text = stored.get(Pause::ANNOTATION);
            let mut pause = text.and_then(|text| Pause::parse(text));
            if let Some(pause) = &mut pause {
                // One that does not tell since when counts from when it was first seen.
                let before = known.pause.as_ref();
                let before = before.filter(|before| before.reason == pause.reason);
                let first_seen = before.and_then(|before| before.since).unwrap_or(now);
                pause.since = pause.since.or(Some(first_seen));
            }
            (known.of, known.pause) = (Some(stored), pause.map(Arc::new));
        }
        let pause = known.pause.clone().filter(|pause| pause.is_on(now))?;
        known.last = Some(now);
        Some(pause)
    }

    /// Whether a pause is in force now.
    pub fn is_on(&self) -> bool {
        self.current().is_some()
    }

    /// When a pause was last seen in force.
    pub fn last(&self) -> Option<Timestamp> {
        self.known.lock().last
    }

    /// Whether a pause has ended by itself, or would have by now.
    pub fn is_over(&self, pause: &Pause) -> bool {
        !pause.is_on(self.clock.now())
    }

    /// Who ended the last pause, as far as it is stored.
    pub fn resumption(&self) -> Option<Resumption> {
        Resumption::parse(self.stored.borrow().get(Resumption::ANNOTATION)?)
    }

    /// Hears of changes of the lease's annotations.
    pub fn subscribe(&self) -> watch::Receiver<Arc<BTreeMap<String, String>>> {
        self.stored.clone()
    }

    /// Seconds for which the present pause has lasted; zero without one.
    pub fn seconds(&self) -> i64 {
        let since = self.current().and_then(|pause| pause.since);
        since.map_or(0, |since| self.clock.now().duration_since(since).as_secs().max(0))
    }

    fn end_of(&self, pause: &Pause) -> Option<Instant> {
        pause.until.map(|until| self.clock.instant_of(until))
    }
}

/// Holds all evictions during a pause.
#[derive(Debug)]
pub(crate) struct PauseHold(pub(crate) Arc<Pauses>);

impl Hold for PauseHold {
    fn name(&self) -> &'static str {
        "pause"
    }

    fn line(&self, _: &Eviction) -> Option<Arc<str>> {
        self.0.is_on().then(|| Arc::from(LINE))
    }

    fn holds(&self, _: &str, _: Instant, _: Instant) -> Option<Wait> {
        let pause = self.0.current()?;
        Some(self.0.end_of(&pause).map_or(Wait::ForChange, Wait::Until))
    }

    fn why(&self, _: &str) -> String {
        self.0.current().map_or_else(|| "the pause is over".to_owned(), |pause| pause.to_string())
    }

    fn turn(&self, _: &str, _: usize, _: Instant) -> Option<Instant> {
        self.0.end_of(&*self.0.current()?)
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::model::build::noon;

    fn stored(text: &str) -> Arc<BTreeMap<String, String>> {
        Arc::new(BTreeMap::from([(Pause::ANNOTATION.to_owned(), text.to_owned())]))
    }

    #[tokio::test(start_paused = true)]
    async fn a_pause_is_in_force_from_when_it_is_read_until_it_is_removed() {
        let (lease, read) = watch::channel(Arc::default());
        let pauses = Pauses::new(read, Clock::starting_at(noon()));
        assert!(!pauses.is_on() && pauses.last().is_none());
        tokio::time::advance(Duration::from_secs(5)).await;
        lease.send_replace(stored("wrong taint"));
        let pause = pauses.current().unwrap();
        assert_eq!(pause.to_string(), "paused since 2026-01-01T12:00:05Z: wrong taint");
        tokio::time::advance(Duration::from_secs(60)).await;
        // Another annotation changes.
        let mut more = (*stored("wrong taint")).clone();
        more.insert("a".to_owned(), "b".to_owned());
        lease.send_replace(Arc::new(more));
        assert_eq!(pauses.current().unwrap().since, pause.since, "it is the same one");
        assert_eq!(pauses.seconds(), 60);
        lease.send_replace(Arc::default());
        assert!(!pauses.is_on());
        assert_eq!((pauses.last(), pauses.seconds()), (Some(crate::model::build::at(65)), 0));
    }

    #[tokio::test(start_paused = true)]
    async fn a_pause_with_an_end_ends_by_the_clock() {
        let (lease, read) = watch::channel(Arc::default());
        let pauses = Arc::new(Pauses::new(read, Clock::starting_at(noon())));
        lease.send_replace(stored(r#"{"reason":"x","until":"2026-01-01T12:00:30Z"}"#));
        let hold = PauseHold(Arc::clone(&pauses));
        let end = Instant::now() + Duration::from_secs(30);
        let Some(Wait::Until(at)) = hold.holds(LINE, Instant::now(), Instant::now()) else {
            panic!()
        };
        assert!((at - end).is_zero() && hold.turn(LINE, 9, Instant::now()) == Some(at));
        tokio::time::advance(Duration::from_millis(29_999)).await;
        assert!(pauses.is_on());
        tokio::time::advance(Duration::from_millis(1)).await;
        assert!(!pauses.is_on());
        assert_eq!(hold.holds(LINE, Instant::now(), Instant::now()), None);
    }
}
