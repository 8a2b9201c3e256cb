//! Detects that the API server's store went back in time.
//!
//! When etcd is restored from a backup, versions continue from the backup. A watch that is resumed at the
//! old, higher version succeeds but is silent until the store reaches that version, and never delivers the
//! changes before it. So a version that is lower than a previous one requires a new list at once.
//!
//! Versions are only compared with earlier ones of the same list or object: resources may be in separate
//! stores with separate versions.

use std::sync::Arc;

use ahash::AHashMap;
use parking_lot::Mutex;

use crate::signal::{Follower, Signal};

/// The versions seen so far, and the notification that they went back. Clones share it.
#[derive(Clone, Debug, Default)]
pub(super) struct Rewinds {
    noticed: Signal<u64>,
    answers: Arc<Mutex<Answers>>,
}

/// Versions that were answered.
#[derive(Debug, Default)]
struct Answers {
    /// How many there were so far.
    count: u64,
    /// The latest of each object by a name that tells them apart, and which answer it was.
    latest: AHashMap<String, (u64, u64)>,
}

/// When a request was sent, in answers that had come by then.
#[derive(Clone, Copy, Debug)]
pub(super) struct Asked(u64);

/// So many objects are remembered; then it starts again. A cluster has some thousand nodes.
const MOST: usize = 20_000;

impl Rewinds {
    /// To be called when a request is sent whose answer has a version.
    pub(super) fn asked(&self) -> Asked {
        Asked(self.answers.lock().count)
    }

    /// Takes in the version of an object as the API server has answered with it, asked for the newest.
    /// It is compared with what was answered before it was asked for: answers may overtake each other.
    pub(super) fn see(&self, object: &str, version: &str, asked: Asked) {
        let Ok(version) = version.parse::<u64>() else { return };
        let mut answers = self.answers.lock();
        if answers.latest.len() >= MOST {
            answers.latest.clear();
        }
        answers.count += 1;
        let now = (version, answers.count);
        let before = answers.latest.get(object).copied();
        let is_lower = before.is_some_and(|(before, _)| version < before);
        let is_later = before.is_some_and(|(_, answer)| answer <= asked.0);
        if is_lower && !is_later {
            return; // An older answer that came late.
        }
        answers.latest.insert(object.to_owned(), now);
        drop(answers);
        if is_lower {
            let before = before.map(|(before, _)| before);
            tracing::warn!(object, version, before, "the API server's store went back in time");
            self.notice();
        }
    }

    /// Has everybody list again.
    pub(super) fn notice(&self) {
        self.noticed.change(|count| *count += 1);
    }

    /// Changes when the store went back in time.
    pub(super) fn noticed(&self) -> Follower<u64> {
        self.noticed.follow()
    }
}

/// Whether a version is lower than one that was seen before. What is no number cannot be compared.
pub(super) fn is_lower(version: &str, before: &str) -> bool {
    let numbers = version.parse::<u64>().ok().zip(before.parse::<u64>().ok());
    numbers.is_some_and(|(version, before)| version < before)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_version_that_goes_down_is_noticed_once_and_those_of_others_are_not_compared() {
        let rewinds = Rewinds::default();
        let mut noticed = rewinds.noticed();
        for (object, version) in
            [("a", "7"), ("b", "3"), ("a", "7"), ("a", "9"), ("a", "no number")]
        {
            rewinds.see(object, version, rewinds.asked());
            assert!(!noticed.has_changed(), "{object} {version}");
        }
        rewinds.see("a", "8", rewinds.asked());
        assert!(noticed.has_changed());
        noticed.see();
        rewinds.see("a", "8", rewinds.asked());
        rewinds.see("b", "4", rewinds.asked());
        assert!(!noticed.has_changed(), "it goes on from there");
    }

    #[test]
    fn an_answer_that_comes_late_is_no_way_back() {
        let rewinds = Rewinds::default();
        let noticed = rewinds.noticed();
        let (early, late) = (rewinds.asked(), rewinds.asked());
        rewinds.see("a", "9", late);
        rewinds.see("a", "8", early);
        assert!(!noticed.has_changed());
        rewinds.see("a", "8", rewinds.asked());
        assert!(noticed.has_changed(), "but one that was asked for after it is");
    }

    #[test]
    fn versions_are_compared_as_numbers() {
        assert!(is_lower("1978", "3483") && is_lower("999", "1000"));
        assert!(!is_lower("3483", "3483") && !is_lower("1000", "999"));
        assert!(!is_lower("", "5") && !is_lower("x", "5") && !is_lower("5", "x"));
    }
}
