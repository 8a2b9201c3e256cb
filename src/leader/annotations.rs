//! The annotations of the lease, as they were read last: who paused, and what else is stored there.
//!
//! Whoever takes part in the election reads the lease at least once a second, and publishes them. They are
//! published before the gate opens, so that the first write of a new leader knows them. Without an
//! election, the lease is only read, by [`poll`].

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;
use tokio::time::{Instant, sleep, sleep_until};
use tracing::warn;

use super::LEASE;
use crate::cluster::{Api, Lease, RequestError};

/// How often the lease is read at least.
pub(super) const READ_EVERY: Duration = Duration::from_secs(1);
/// How often it is tried to read a lease that this user may not read.
const FORBIDDEN: Duration = Duration::from_secs(60);
/// How long a response may take.
const READ: Duration = Duration::from_secs(5);

/// The stored annotations. A lease that does not exist has none.
pub type StoredAnnotations = Arc<BTreeMap<String, String>>;

/// Where the annotations of the lease are published. Clones share it.
#[derive(Clone, Debug, Default)]
pub struct Annotations(Arc<watch::Sender<StoredAnnotations>>);

impl Annotations {
    /// The annotations from now on.
    pub fn subscribe(&self) -> watch::Receiver<StoredAnnotations> {
        self.0.subscribe()
    }

    /// Takes in the lease as it is stored now.
    pub fn publish(&self, lease: Option<&Lease>) {
        self.0.send_if_modified(|known| {
            let is_same = match lease {
                Some(lease) => **known == lease.annotations,
                None => known.is_empty(),
            };
            if !is_same {
                *known = Arc::new(lease.map(|lease| lease.annotations.clone()).unwrap_or_default());
            }
            !is_same
        });
    }
}

/// Reads the lease until it is known, for a process that takes part in no election. A user who may not read
/// it gets a warning: such a process sees no pause. Credentials that are rejected (401) are no such answer:
/// nothing could be evicted with them, and once they are replaced, a pause must be known first.
pub async fn first_look(api: &Api, namespace: &str, annotations: &Annotations) {
    loop {
        let begun = Instant::now();
        match api.lease(namespace, LEASE, READ).await {
            Ok(lease) => return annotations.publish(lease.as_ref()),
            Err(error) if is_forbidden(&error) => {
                return warn!(namespace, lease = LEASE, %error,
                    "cannot read the lease, so ostrakon pause has no effect; grant get on it");
            }
            Err(error) => warn!(namespace, lease = LEASE, %error,
                "cannot read the lease, which tells whether evictions are paused; retrying"),
        }
        sleep_until(begun + READ_EVERY).await;
    }
}

/// Reads the lease each second, after the [first look](first_look).
pub async fn poll(api: &Api, namespace: &str, annotations: &Annotations) {
    let (mut pause, mut is_said) = (READ_EVERY, false);
    loop {
        sleep(pause).await;
        pause = READ_EVERY;
        match api.lease(namespace, LEASE, READ).await {
            Ok(lease) => {
                is_said = false;
                annotations.publish(lease.as_ref());
            }
            // Without an answer, what is known stays.
            Err(error) => {
                if is_forbidden(&error) {
                    pause = FORBIDDEN;
                }
                if !std::mem::replace(&mut is_said, true) {
                    warn!(namespace, lease = LEASE, %error, "cannot read the lease: a new pause, or the \
                        end of one, is not seen until it can be read again");
                }
            }
        }
    }
}

fn is_forbidden(error: &RequestError) -> bool {
    matches!(error, RequestError::Status(answer) if answer.code == 403)
}
