//! Asks for a new list of a resource, since more is to be read of its objects than was.

use crate::signal::{Follower, Signal};

/// Asks for lists, and tells when they are complete. Clones share it.
#[derive(Clone, Debug, Default)]
pub struct Relist {
    /// How often a list was asked for.
    asked: Signal<u64>,
    /// The latest of them that a complete list has answered.
    done: Signal<u64>,
}

impl Relist {
    /// Asks for a list that begins after this.
    pub fn ask(&self) {
        self.asked.change(|asked| *asked += 1);
    }

    /// Waits until a list is complete that began after the latest [`ask`](Self::ask).
    pub async fn completed(&self) {
        let mut done = self.done.follow();
        let asked = self.asked.get();
        while done.see() < asked {
            done.changed().await;
        }
    }

    /// Follows what is asked for.
    pub(super) fn follow(&self) -> Follower<u64> {
        self.asked.follow()
    }

    /// A list is complete that began when this was the latest that was asked for.
    pub(super) fn complete(&self, asked: u64) {
        self.done.change(|done| *done = asked.max(*done));
    }
}

#[cfg(test)]
mod tests {
    use futures::FutureExt;

    use super::*;

    #[tokio::test]
    async fn only_a_list_that_began_after_it_was_asked_for_answers() {
        let relist = Relist::default();
        assert!(relist.completed().now_or_never().is_some(), "nothing was asked for");
        let mut asked = relist.follow();
        let before = asked.see();
        relist.ask();
        assert!(asked.has_changed());
        relist.complete(before);
        assert!(relist.completed().now_or_never().is_none());
        relist.complete(asked.see());
        assert!(relist.completed().now_or_never().is_some());
    }
}
