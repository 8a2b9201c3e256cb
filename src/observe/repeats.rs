//! Suppresses repeated events.

use std::time::Duration;

use ahash::AHashMap;
use parking_lot::Mutex;
use tokio::time::Instant;

use crate::model::Uid;

/// For how long something is not said again. An event stays for an hour; whoever looks at a taint
/// that comes and goes by the second learns nothing from the fiftieth.
const QUIET: Duration = Duration::from_secs(60);

/// What was said, of which object, and when. Holds at most what two minutes brought.
#[derive(Debug)]
pub(super) struct Repeats(Mutex<Said>);

#[derive(Debug)]
struct Said {
    at: AHashMap<(Uid, &'static str), Instant>,
    pruned: Instant,
}

impl Repeats {
    /// Nothing was said yet.
    pub(super) fn new() -> Self {
        Self(Mutex::new(Said { at: AHashMap::new(), pruned: Instant::now() }))
    }

    /// Whether this was not said of that object within the last minute. Counts as saying it.
    pub(super) fn is_news(&self, about: Uid, what: &'static str) -> bool {
        let now = Instant::now();
        let mut said = self.0.lock();
        if now - said.pruned >= QUIET {
            said.at.retain(|_, at| now - *at < QUIET);
            said.pruned = now;
        }
        let last = said.at.entry((about, what));
        let mut news = false;
        let at = last.or_insert_with(|| {
            news = true;
            now
        });
        if now - *at >= QUIET {
            *at = now;
            news = true;
        }
        news
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn the_same_is_news_once_a_minute() {
        let repeats = Repeats::new();
        for _ in 0..3 {
            assert!(repeats.is_news(Uid(1), "cancelled"));
            for _ in 0..59 {
                assert!(!repeats.is_news(Uid(1), "cancelled"));
                tokio::time::advance(Duration::from_secs(1)).await;
            }
            tokio::time::advance(Duration::from_secs(1)).await;
        }
    }

    #[tokio::test(start_paused = true)]
    async fn other_objects_and_other_news_are_not_held_back() {
        let repeats = Repeats::new();
        assert!(repeats.is_news(Uid(1), "cancelled"));
        assert!(repeats.is_news(Uid(2), "cancelled"));
        assert!(repeats.is_news(Uid(1), "forbidden"));
    }

    #[tokio::test(start_paused = true)]
    async fn what_is_old_is_forgotten() {
        let repeats = Repeats::new();
        for n in 0..1000 {
            assert!(repeats.is_news(Uid(n), "cancelled"));
            tokio::time::advance(Duration::from_secs(1)).await;
            assert!(repeats.0.lock().at.len() <= 121);
        }
    }
}
