//! Records that somebody takes off or changes as soon as they are written.
//!
//! A kubelet, a webhook or a tool that knows no annotation of ours would otherwise be answered once a
//! second for ever. So the pause after each write that did not last is longer than the one before.

use std::sync::Arc;
use std::time::Duration;

use ahash::AHashMap;
use tokio::time::Instant;

use crate::backoff::Backoff;
use crate::model::{NodeName, Uid};

/// The pause after a write that was undone. It does not matter much how long it is: the record counts
/// only if the process dies before the next write.
const BACKOFF: Backoff = Backoff { first: Duration::from_secs(1), most: Duration::from_secs(300) };
/// The pause is at its longest by then.
const MOST: u32 = 10;
/// One write that was undone is forgotten for each of these that a later one has lasted.
const FORGOTTEN: Duration = Duration::from_secs(60);

/// What was written to nodes last.
#[derive(Debug, Default)]
pub(super) struct Undone {
    nodes: AHashMap<NodeName, Last>,
    /// When what has lasted was forgotten last.
    swept: Option<Instant>,
}

/// The last write to a node.
#[derive(Debug)]
struct Last {
    uid: Uid,
    text: Option<Arc<str>>,
    /// From when on its lasting counts.
    until: Instant,
    /// Writes that did not last.
    undone: u32,
}

impl Undone {
    /// Takes in that `text` was written where `found` was. Returns how long the next write has to wait,
    /// and how many have not lasted.
    pub(super) fn written(
        &mut self,
        (name, uid): (&NodeName, Uid),
        found: Option<&str>,
        text: Option<&str>,
        now: Instant,
    ) -> (Duration, u32) {
        let last = self.nodes.get(name).filter(|last| last.uid == uid);
        let undone = last.map_or(0, |last| {
            let is_undone = last.text.as_deref() != found;
            (last.remembered(now) + u32::from(is_undone)).min(MOST)
        });
        let pause = match undone {
            0 => Duration::ZERO,
            undone => BACKOFF.pause(undone, uid.0),
        };
        let last = Last { uid, text: text.map(Arc::from), until: now + pause, undone };
        self.nodes.insert(name.clone(), last);
        self.sweep(now);
        (pause, undone)
    }

    /// Forgets from time to time what has lasted for so long that it bounds nothing any more.
    fn sweep(&mut self, now: Instant) {
        if self.swept.is_some_and(|swept| now < swept + FORGOTTEN) {
            return;
        }
        self.swept = Some(now);
        self.nodes.retain(|_, last| now < last.until + FORGOTTEN || last.remembered(now) > 0);
    }
}

impl Last {
    /// The writes that did not last, but for what this one has made up for.
    fn remembered(&self, now: Instant) -> u32 {
        let lasted = now.saturating_duration_since(self.until).as_secs() / FORGOTTEN.as_secs();
        self.undone.saturating_sub(u32::try_from(lasted).unwrap_or(u32::MAX))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    fn name() -> NodeName {
        "n1".into()
    }

    /// The pauses between writes, each of which is undone `after` it may be written again.
    fn pauses(undone: &mut Undone, now: &mut Instant, after: Duration, count: usize) -> Vec<u64> {
        let pauses = (0..count).map(|_| {
            let (pause, _) = undone.written((&name(), Uid(1)), None, Some("a"), *now);
            *now += pause.max(SECOND) + after;
            pause.as_secs()
        });
        pauses.collect()
    }

    #[test]
    fn who_undoes_each_write_is_answered_less_and_less_often() {
        for after in [Duration::ZERO, 3 * SECOND] {
            let (mut undone, mut now) = (Undone::default(), Instant::now());
            let pauses = pauses(&mut undone, &mut now, after, 40);
            assert_eq!(pauses[0], 0, "nothing was undone yet");
            assert!(pauses[1..10].windows(2).all(|pair| pair[0] <= pair[1]), "{pauses:?}");
            assert!(pauses[12..].iter().all(|pause| (150..=300).contains(pause)), "{pauses:?}");
        }
    }

    #[test]
    fn what_changes_of_its_own_waits_for_nothing() {
        let (mut undone, now) = (Undone::default(), Instant::now());
        let mut found = None;
        for text in ["a", "b", "c", "d"] {
            let written = undone.written((&name(), Uid(1)), found, Some(text), now);
            assert_eq!(written, (Duration::ZERO, 0));
            found = Some(text);
        }
        let removed = undone.written((&name(), Uid(1)), found, None, now);
        assert_eq!(removed, (Duration::ZERO, 0));
    }

    #[test]
    fn one_that_lasts_makes_up_for_others_and_another_node_begins_anew() {
        let (mut undone, mut now) = (Undone::default(), Instant::now());
        pauses(&mut undone, &mut now, Duration::ZERO, 8);
        let another = undone.written((&name(), Uid(2)), None, Some("a"), now);
        assert_eq!(another, (Duration::ZERO, 0));
        pauses(&mut undone, &mut now, Duration::ZERO, 8);
        now += 900 * SECOND;
        let lasted = undone.written((&name(), Uid(1)), Some("a"), Some("b"), now);
        assert_eq!(lasted, (Duration::ZERO, 0));
    }

    #[test]
    fn a_node_is_forgotten_once_its_record_has_lasted() {
        let (mut undone, mut now) = (Undone::default(), Instant::now());
        pauses(&mut undone, &mut now, Duration::ZERO, 8);
        let another: NodeName = "n2".into();
        let mut write = |now| {
            undone.written((&another, Uid(2)), None, Some("a"), now);
            undone.nodes.contains_key(&name())
        };
        assert!(write(now + 100 * SECOND), "it is undone still");
        assert!(!write(now + 1800 * SECOND));
    }
}
