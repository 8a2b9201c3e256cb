//! Takes the lease, renews it, and gives it back.

use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::api::coordination::v1::{Lease, LeaseSpec};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::MicroTime;
use tokio::time::{Instant, sleep, sleep_until, timeout};
use tokio_util::sync::CancellationToken;
use tracing::{info, warn};

use super::{Claim, Metrics, Sight, Step, Times, decide};
use crate::clock::Clock;
use crate::cluster::{Api, RequestError, Sent, WriteGate};

/// Name of the lease.
pub const LEASE: &str = "ostrakon";
/// Most that one request for the lease may take: two of them fit before the renew deadline.
const REQUEST: Duration = Duration::from_secs(5);
/// For how long it is tried to give the lease back. Who stands by takes it anyway, later.
const RELEASE: Duration = Duration::from_secs(2);

/// One that wants to lead.
pub struct Candidate {
    /// The way to the API server.
    pub api: Api,
    /// Namespace of the lease.
    pub namespace: String,
    /// Who it is; see [`identity`](super::identity).
    pub identity: String,
    /// The times.
    pub times: Times,
    /// Lets writes pass while it leads.
    pub gate: WriteGate,
    /// Says whether it leads.
    pub metrics: Metrics,
    /// For the stamps in the lease, which people read.
    pub clock: Clock,
}

/// The lease is lost. The process must end: what it has begun cannot be taken back, and another
/// leads by now or soon.
#[derive(Debug, thiserror::Error)]
pub enum Lost {
    /// Another holds it.
    #[error("lost the lease {namespace}/{LEASE} to {holder}, so this process must be restarted")]
    Taken {
        /// Namespace of the lease.
        namespace: String,
        /// Who holds it.
        holder: String,
    },
    /// It could not be renewed in time.
    #[error(
        "could not renew the lease {namespace}/{LEASE} within {within:?} ({cause}), so this \
         process must be restarted; check the API server and the rights to leases"
    )]
    NotRenewed {
        /// Namespace of the lease.
        namespace: String,
        /// The renew deadline.
        within: Duration,
        /// What the last try came to.
        cause: String,
    },
}

/// Stands by until the lease is free, takes it, cancels `leads`, and renews it until `stop`; then
/// gives it back.
///
/// # Errors
/// The lease was lost; the gate is shut.
pub async fn run(
    candidate: Candidate,
    leads: CancellationToken,
    stop: CancellationToken,
) -> Result<(), Lost> {
    let campaign = candidate.campaign();
    let Some(held) = stop.run_until_cancelled(campaign).await else { return Ok(()) };
    info!(namespace = candidate.namespace, identity = candidate.identity, "this process leads");
    candidate.metrics.set(true);
    leads.cancel();
    let outcome = candidate.lead(held, &stop).await;
    candidate.gate.close();
    candidate.metrics.set(false);
    match outcome {
        Ok(held) => candidate.release(held.lease).await,
        Err(lost) => return Err(lost),
    }
    Ok(())
}

/// The lease as we stored it.
struct Held {
    lease: Lease,
    /// When the request was sent that stored it.
    sent: Sent,
}

impl Candidate {
    /// Waits until the lease is ours.
    async fn campaign(&self) -> Held {
        let mut sight: Option<Sight> = None;
        // Why we do not lead, as it was last said.
        let mut said = String::new();
        loop {
            let (is_trouble, why) = match self.read().await {
                Ok(lease) => {
                    let now = Instant::now();
                    sight = lease.as_ref().map(|l| Sight::updated(sight.take(), claim_of(l), now));
                    match (decide(sight.as_ref(), &self.identity, now), &sight) {
                        (Step::Wait, Some(sight)) => (false, sight.claim.holder.clone()),
                        _ => match self.claim(lease).await {
                            Ok(held) => return held,
                            // Another was faster, and the next look tells who.
                            Err(RequestError::Status(answer)) if answer.code == 409 => {
                                (false, said.clone())
                            }
                            Err(error) => (true, error.to_string()),
                        },
                    }
                }
                Err(error) => (true, error.to_string()),
            };
            if said != why {
                let (namespace, identity) = (&self.namespace, &self.identity);
                if is_trouble {
                    warn!(
                        namespace,
                        lease = LEASE,
                        error = why,
                        "cannot get at the lease; this \
                        process stands by and goes on trying"
                    );
                } else {
                    info!(leader = why, namespace, identity, "this process stands by");
                }
                said = why;
            }
            sleep(self.look()).await;
        }
    }

    /// Pause between two looks at the lease: a little longer for some candidates than for others,
    /// so that they do not keep in step.
    fn look(&self) -> Duration {
        let spread =
            self.identity.bytes().fold(0u32, |sum, byte| (sum * 31 + u32::from(byte)) % 20);
        self.times.look * (100 + spread) / 100
    }

    /// Renews the lease until `stop`, and returns it as it is then.
    async fn lead(&self, mut held: Held, stop: &CancellationToken) -> Result<Held, Lost> {
        let mut cause = "there was no time to".to_owned();
        loop {
            let deadline = held.sent.at + self.times.renew;
            let next = (Instant::now() + self.times.retry).min(deadline);
            if stop.run_until_cancelled(sleep_until(next)).await.is_none() {
                return Ok(held);
            }
            // Also after a time in which this process did not run.
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                let (namespace, within) = (self.namespace.clone(), self.times.renew);
                return Err(Lost::NotRenewed { namespace, within, cause });
            }
            let renewal = timeout(left, self.renew(&held.lease));
            match stop.run_until_cancelled(renewal).await {
                None => return Ok(held),
                Some(Ok(Ok(renewed))) => held = renewed,
                Some(Ok(Err(Refused::Taken(holder)))) => {
                    return Err(Lost::Taken { namespace: self.namespace.clone(), holder });
                }
                Some(Ok(Err(Refused::Failed(error)))) => {
                    warn!(%error, "cannot renew the lease; trying again");
                    cause = error.to_string();
                }
                Some(Err(_)) => "no answer".clone_into(&mut cause),
            }
        }
    }

    /// Renews the lease that we hold. If it was written by another hand or removed, it is claimed
    /// again as long as nobody else holds it.
    async fn renew(&self, lease: &Lease) -> Result<Held, Refused> {
        let error = match self.claim(Some(lease.clone())).await {
            Ok(held) => return Ok(held),
            Err(error) => error,
        };
        if !matches!(error, RequestError::Status(_)) {
            return Err(Refused::Failed(error));
        }
        let stored = self.read().await.map_err(Refused::Failed)?;
        let version = |lease: &Lease| lease.metadata.resource_version.clone();
        if stored.as_ref().map(version) == Some(version(lease)) {
            return Err(Refused::Failed(error));
        }
        let holder = stored.as_ref().map(|lease| claim_of(lease).holder).unwrap_or_default();
        if !holder.is_empty() && holder != self.identity {
            return Err(Refused::Taken(holder));
        }
        self.claim(stored).await.map_err(Refused::Failed)
    }

    async fn read(&self) -> Result<Option<Lease>, RequestError> {
        self.api.lease(&self.namespace, LEASE, REQUEST).await
    }

    /// Stores our claim in place of `stored`, and opens the gate for as long as it holds.
    async fn claim(&self, stored: Option<Lease>) -> Result<Held, RequestError> {
        let lease = self.claimed(stored, self.clock.now());
        let sent = self.gate.sending();
        let lease = self.api.put_lease(&lease, REQUEST).await?;
        self.gate.grant(sent, self.times.renew, self.times.lease);
        Ok(Held { lease, sent })
    }

    /// The lease with our claim on it.
    fn claimed(&self, stored: Option<Lease>, now: Timestamp) -> Lease {
        let mut lease = stored.unwrap_or_default();
        lease.metadata.name = Some(LEASE.to_owned());
        lease.metadata.namespace = Some(self.namespace.clone());
        lease.metadata.managed_fields = None;
        let spec = lease.spec.get_or_insert_default();
        let now = MicroTime(now);
        if spec.holder_identity.as_ref() != Some(&self.identity) {
            let is_first = spec.holder_identity.is_none();
            spec.acquire_time = Some(now.clone());
            spec.lease_transitions =
                Some(spec.lease_transitions.unwrap_or_default() + i32::from(!is_first));
        }
        spec.holder_identity = Some(self.identity.clone());
        spec.lease_duration_seconds = i32::try_from(self.times.lease.as_secs()).ok();
        spec.renew_time = Some(now);
        lease
    }

    /// Gives the lease back, so that another takes it without waiting for its end.
    async fn release(&self, lease: Lease) {
        let given_back = async {
            match self.put_back(lease).await {
                // The last renewal was stored, but its answer not awaited.
                Err(RequestError::Status(_)) => match self.read().await? {
                    Some(lease) if claim_of(&lease).holder == self.identity => {
                        self.put_back(lease).await
                    }
                    _ => Ok(()),
                },
                other => other,
            }
        };
        match timeout(RELEASE, given_back).await.unwrap_or(Err(RequestError::Timeout(RELEASE))) {
            Ok(()) => info!(namespace = self.namespace, "the lease was given back"),
            Err(error) => warn!(%error, "the lease could not be given back; it runs out by itself"),
        }
    }

    async fn put_back(&self, mut lease: Lease) -> Result<(), RequestError> {
        lease.spec = Some(LeaseSpec {
            holder_identity: Some(String::new()),
            lease_duration_seconds: Some(1),
            renew_time: Some(MicroTime(self.clock.now())),
            ..lease.spec.unwrap_or_default()
        });
        self.api.put_lease(&lease, RELEASE).await.map(drop)
    }
}

/// Why a lease was not renewed.
enum Refused {
    Taken(String),
    Failed(RequestError),
}

fn claim_of(lease: &Lease) -> Claim {
    let spec = lease.spec.clone().unwrap_or_default();
    let seconds = spec.lease_duration_seconds.and_then(|seconds| u64::try_from(seconds).ok());
    Claim {
        holder: spec.holder_identity.unwrap_or_default(),
        duration: Duration::from_secs(seconds.unwrap_or_default()),
        version: lease.metadata.resource_version.clone().unwrap_or_default(),
    }
}

#[cfg(test)]
mod tests;
