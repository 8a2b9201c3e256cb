//! Waits for a condition, with a timeout.

use std::time::Duration;

use anyhow::{Context, Result, bail};
use tokio::time::{Instant, sleep};

/// How long to wait before asking again.
const PAUSE: Duration = Duration::from_millis(50);

/// Asks again and again until `probe` has a value. When `patience` is over, the error says that
/// `what` did not happen, and why the last try failed if it did.
pub async fn until<T>(
    what: &str,
    patience: Duration,
    mut probe: impl AsyncFnMut() -> Result<Option<T>>,
) -> Result<T> {
    let end = Instant::now() + patience;
    loop {
        let left = end.saturating_duration_since(Instant::now());
        let outcome = tokio::time::timeout(left.max(PAUSE), probe()).await;
        let is_over = Instant::now() >= end;
        match outcome {
            Ok(Ok(Some(value))) => return Ok(value),
            Ok(Ok(None)) | Err(_) if is_over => {
                bail!("waited {patience:?} in vain for: {what}");
            }
            Ok(Err(error)) if is_over => {
                return Err(error)
                    .with_context(|| format!("waited {patience:?} in vain for: {what}"));
            }
            _ => {}
        }
        sleep(PAUSE).await;
    }
}
