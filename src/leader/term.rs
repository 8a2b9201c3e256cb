//! Terms of leadership, which the election passes to the controller.

use tokio_util::sync::CancellationToken;

/// One term: from when the lease was won until it is lost. Clones are the same term.
///
/// The election and the work keep step by it: the election does not try to win the lease again
/// before the work of this term has ended.
#[derive(Clone, Debug, Default)]
pub struct Term {
    lost: CancellationToken,
    ended: CancellationToken,
}

impl Term {
    /// Completes when the lease is lost. The controller awaits this and then stops its work.
    pub async fn lost(&self) {
        self.lost.cancelled().await;
    }

    /// Says that the work of this term has ended: nothing of it is in flight or remembered.
    pub fn end(&self) {
        self.ended.cancel();
    }

    /// Completes when the work of this term has ended.
    pub(super) async fn ended(&self) {
        self.ended.cancelled().await;
    }

    pub(super) fn lose(&self) {
        self.lost.cancel();
    }

    pub(super) fn is_ended(&self) -> bool {
        self.ended.is_cancelled()
    }
}
