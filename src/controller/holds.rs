//! The holds of a controller: what may keep due evictions from being handed out.

use std::sync::Arc;

use tokio::sync::Notify;

use crate::evict::{Hold, Holds, PauseHold, Pauses};

/// All holds, in the order in which they are consulted: what stops harm before what limits it, so that
/// nothing is reserved in a limit for evictions that are stopped. Each notifies `changed` when its answer
/// changes before the time that it gave.
pub(super) fn holds(pauses: &Arc<Pauses>, changed: &Arc<Notify>) -> Holds {
    let holds: Vec<Box<dyn Hold>> = vec![Box::new(PauseHold(Arc::clone(pauses)))];
    Holds::new(holds, Arc::clone(changed))
}
