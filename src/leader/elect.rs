//! Takes, renews and releases the lease.

use std::collections::BTreeMap;
use std::time::Duration;

use jiff::Timestamp;
use tokio::sync::mpsc;
use tokio::time::{Instant, sleep, sleep_until, timeout};
use tokio_util::sync::CancellationToken;
use tracing::{error, info, warn};

use super::annotations::READ_EVERY;
use super::{Annotations, Claim, Identity, Metrics, Sight, Step, Term, Times};
use crate::clock::Clock;
use crate::cluster::{Api, Lease, RequestError, Sent, WriteGate};
use crate::observe::Sign;

/// Name of the lease.
pub const LEASE: &str = "ostrakon";
/// Annotation by which a holder says that it has released the lease. A lease without holder and
/// without it was emptied by someone else.
pub const RELEASED_BY: &str = "ostrakon.dev/released-by";
/// Annotation by which a holder says that it has made the claim. A holder without it was written by
/// another hand.
pub const CLAIMED_BY: &str = "ostrakon.dev/claimed-by";
/// What is logged while the lease is free and this process could not work yet.
const NOT_YET: &str =
    "this process claims it once nodes and pods are synced and its last term has ended";
/// How long a standby waits for an answer when it reads the lease.
const READ: Duration = Duration::from_secs(5);
/// For how long it is tried to give the lease back. Who stands by takes it anyway, later.
const RELEASE: Duration = Duration::from_secs(2);

/// One that wants to lead.
pub struct Candidate {
    /// The way to the API server.
    pub api: Api,
    /// Namespace of the lease.
    pub namespace: String,
    /// Who it is.
    pub identity: Identity,
    /// The times.
    pub times: Times,
    /// Lets writes pass while it leads.
    pub gate: WriteGate,
    /// Where the lease's annotations are published, before the gate opens.
    pub annotations: Annotations,
    /// Says whether it leads.
    pub metrics: Metrics,
    /// For the stamps in the lease, which people read.
    pub clock: Clock,
    /// Cancelled once the nodes are known, and once the pods are. Before that it only watches the
    /// lease: one that leads and cannot decide would keep out others that can.
    pub synced: [CancellationToken; 2],
    /// Whether the lease can be read.
    pub sign: Sign,
}

/// Why the lease was lost.
#[derive(Debug, thiserror::Error)]
pub enum Lost {
    /// Another holds it.
    #[error("it is held by {holder}")]
    Taken {
        /// Who holds it.
        holder: String,
    },
    /// It could not be renewed in time.
    #[error("it was not renewed within {within:?} ({cause})")]
    NotRenewed {
        /// The renew deadline.
        within: Duration,
        /// What the last try came to.
        cause: String,
    },
}

/// Takes part in the election until `stop`; then gives the lease back if it holds it.
///
/// Each time the lease is won, a new term goes to `terms`. When the lease is lost the term is over,
/// nothing may be written, and once the work of the term has ended this process tries to win it again.
pub async fn run(mut candidate: Candidate, terms: mpsc::Sender<Term>, stop: CancellationToken) {
    let mut sight = None;
    let mut last: Option<Term> = None;
    loop {
        let campaign = candidate.campaign(&mut sight, last.as_ref());
        let Some(mut held) = stop.run_until_cancelled(campaign).await else { return };
        if let Some(opens) = held.opens {
            let (namespace, wait) = (&candidate.namespace, opens - Instant::now());
            info!(
                namespace,
                ?wait,
                "created the lease; waiting in case a previous holder is still working"
            );
            match candidate.hold(held, Some(opens), &stop).await {
                Ok(still) if stop.is_cancelled() => return candidate.release(still).await,
                Ok(still) => held = candidate.opened(still),
                Err((lost, known)) => {
                    info!(cause = %lost, "lost the lease before writing anything");
                    sight = Some(known);
                    continue;
                }
            }
        }
        let (namespace, identity) = (&candidate.namespace, candidate.identity.as_str());
        info!(namespace, identity, "became leader");
        candidate.metrics.set(true);
        let term = Term::default();
        // Nobody works any more: the process is about to end, and the lease runs out.
        if terms.send(term.clone()).await.is_err() {
            return candidate.gate.close();
        }
        let outcome = candidate.hold(held, None, &stop).await;
        candidate.metrics.set(false);
        let (lost, known) = match outcome {
            Ok(held) => {
                candidate.gate.close();
                return candidate.release(held).await;
            }
            Err(lost) => lost,
        };
        match &lost {
            // It may be writing by now.
            Lost::Taken { holder } => {
                candidate.gate.revoke();
                if candidate.identity.owns(holder) {
                    error!(
                        holder,
                        "another running process uses this pod's UID, so the UID does not prove \
                        that the holder is dead; set --pod-uid in only one container of a pod"
                    );
                    candidate.identity.forget_pod();
                }
            }
            Lost::NotRenewed { .. } => candidate.gate.close(),
        }
        let (namespace, identity) = (&candidate.namespace, candidate.identity.as_str());
        warn!(namespace, lease = LEASE, identity, cause = %lost,
            "lost the lease; writing nothing until it is won again");
        candidate.metrics.lost(&lost);
        term.lose();
        (sight, last) = (Some(known), Some(term));
    }
}

/// The lease as we stored it.
struct Held {
    lease: Lease,
    /// When the request was sent that stored it.
    sent: Sent,
    /// From when on something may be written; absent: now.
    opens: Option<Instant>,
}

impl Candidate {
    /// Waits until the lease is ours.
    async fn campaign(&self, sight: &mut Option<Sight>, last: Option<&Term>) -> Held {
        // Why we do not lead, as it was last said.
        let mut said = String::new();
        loop {
            let read = self.read(READ).await;
            let now = Instant::now();
            let (mut pause, mut is_free) = (self.look(), false);
            let (is_trouble, why) = match read {
                Ok(lease) => {
                    self.sign.good();
                    let sight = self.seen(sight, lease.as_ref().map(claim_of), now);
                    let leader = match sight.holder() {
                        "" => "nobody".to_owned(),
                        holder => holder.to_owned(),
                    };
                    match self.step(sight, now) {
                        Step::Wait(until) => {
                            pause = pause.min(until - now);
                            (false, leader)
                        }
                        Step::Try(_) if !self.is_fit(last) => {
                            is_free = true;
                            (false, NOT_YET.to_owned())
                        }
                        Step::Try(silent) => match self.claim(lease, silent > Duration::ZERO).await
                        {
                            Ok(held) if silent.is_zero() => return held,
                            Ok(held) => {
                                return Held { opens: Some(Instant::now() + silent), ..held };
                            }
                            // Another was faster, and the next look tells who.
                            Err(RequestError::Status(answer)) if answer.is_conflict() => {
                                (false, said.clone())
                            }
                            Err(error) => (true, error.to_string()),
                        },
                    }
                }
                Err(error) => {
                    self.sign.bad(&error);
                    (true, error.to_string())
                }
            };
            if said != why {
                let (namespace, identity) = (&self.namespace, self.identity.as_str());
                if is_trouble {
                    warn!(
                        namespace,
                        lease = LEASE,
                        error = why,
                        "cannot read or write the lease; retrying as a standby"
                    );
                } else if is_free {
                    info!(namespace, identity, "the lease is free; {why}");
                } else {
                    info!(leader = why, namespace, identity, "standing by");
                }
                said = why;
            }
            if is_free {
                // Nothing else is in the way.
                let _ = timeout(pause, self.fit(last)).await;
            } else {
                sleep(pause).await;
            }
        }
    }

    /// Takes in what was read at `now`.
    fn seen<'a>(
        &self,
        sight: &'a mut Option<Sight>,
        claim: Option<Claim>,
        now: Instant,
    ) -> &'a Sight {
        if let Some(known) = sight {
            known.update(claim, &self.identity, now);
            known
        } else {
            sight.insert(Sight::first(claim, &self.times, now))
        }
    }

    fn step(&self, sight: &Sight, now: Instant) -> Step {
        sight.decide(&self.identity, &self.times, now)
    }

    /// Whether it could work: all nodes and pods are known, and the work of the term before has ended.
    fn is_fit(&self, last: Option<&Term>) -> bool {
        self.synced.iter().all(CancellationToken::is_cancelled) && last.is_none_or(Term::is_ended)
    }

    /// Completes when it could work.
    async fn fit(&self, last: Option<&Term>) {
        for synced in &self.synced {
            synced.cancelled().await;
        }
        if let Some(term) = last {
            term.ended().await;
        }
    }

    /// Pause between two looks at the lease: a little longer for some candidates than for others,
    /// so that they do not keep in step.
    fn look(&self) -> Duration {
        let name = self.identity.as_str().bytes();
        let spread = name.fold(0u32, |sum, byte| (sum * 31 + u32::from(byte)) % 20);
        self.times.look * (100 + spread) / 100
    }

    /// Renews the lease until that moment or `stop`, and returns it as it is then.
    ///
    /// # Errors
    /// It is lost: why, and what is known of it.
    async fn hold(
        &self,
        mut held: Held,
        until: Option<Instant>,
        stop: &CancellationToken,
    ) -> Result<Held, (Lost, Sight)> {
        let mut cause = "there was no time to".to_owned();
        let mut next = held.sent.at + self.times.retry;
        let mut looked = held.sent.at;
        loop {
            let deadline = held.sent.at + self.times.renew;
            let look = looked + READ_EVERY;
            let next_step = next.min(look).min(deadline).min(until.unwrap_or(deadline));
            if stop.run_until_cancelled(sleep_until(next_step)).await.is_none() {
                return Ok(held);
            }
            // Also after a time in which this process did not run.
            let begun = Instant::now();
            let left = deadline.saturating_duration_since(begun);
            let own = || Sight::own(claim_of(&held.lease), &self.times, held.opens, Instant::now());
            if left.is_zero() {
                return Err((Lost::NotRenewed { within: self.times.renew, cause }, own()));
            }
            if until.is_some_and(|until| until <= begun) {
                return Ok(held);
            }
            looked = begun;
            if begun < next {
                // Renewals are rare, and a pause must be seen within a second.
                let read = timeout(next - begun, self.read(READ));
                if stop.run_until_cancelled(read).await.is_none() {
                    return Ok(held);
                }
                continue;
            }
            next = begun + self.times.retry;
            let renewal = timeout(left, self.renew(&held));
            match stop.run_until_cancelled(renewal).await {
                None => return Ok(held),
                Some(Ok(Ok(renewed))) => {
                    self.sign.good();
                    held = renewed;
                }
                Some(Ok(Err(Refused::Taken(claim)))) => {
                    let holder = claim.holder.clone();
                    let mut sight = own();
                    sight.update(Some(claim), &self.identity, Instant::now());
                    return Err((Lost::Taken { holder }, sight));
                }
                Some(Ok(Err(Refused::Failed(error)))) => {
                    warn!(%error, "cannot renew the lease; retrying");
                    cause = error.to_string();
                }
                Some(Err(_)) => "no answer".clone_into(&mut cause),
            }
        }
    }

    /// Renews the lease that we hold. If it was written by another hand or removed, it is claimed
    /// again as long as nobody else holds it: others wait until the claim that they saw has run out,
    /// so it is still ours.
    async fn renew(&self, held: &Held) -> Result<Held, Refused> {
        let Held { lease, opens, .. } = held;
        let claim = async |stored| {
            let held = self.claim(stored, opens.is_some()).await?;
            Ok::<_, RequestError>(Held { opens: *opens, ..held })
        };
        let error = match claim(Some(lease.clone())).await {
            Ok(held) => return Ok(held),
            Err(error) => error,
        };
        if !matches!(error, RequestError::Status(_)) {
            return Err(Refused::Failed(error));
        }
        let stored = self.read(self.times.request()).await.map_err(Refused::Failed)?;
        let version = |lease: &Lease| lease.version.clone();
        if stored.as_ref().map(version) == Some(version(lease)) {
            return Err(Refused::Failed(error));
        }
        if let Some(claim) = stored.as_ref().map(claim_of)
            && !claim.holder.is_empty()
            && claim.holder != self.identity.as_str()
        {
            return Err(Refused::Taken(claim));
        }
        info!(
            namespace = self.namespace,
            lease = LEASE,
            "the lease was changed or deleted by someone else; claiming it again"
        );
        claim(stored).await.map_err(Refused::Failed)
    }

    async fn read(&self, within: Duration) -> Result<Option<Lease>, RequestError> {
        let lease = self.api.lease(&self.namespace, LEASE, within).await?;
        // A lease that was deleted is made again with its annotations: a pause does not end so.
        if lease.is_some() {
            self.annotations.publish(lease.as_ref());
        }
        Ok(lease)
    }

    /// Stores our claim in place of `stored`, and opens the gate for as long as it is valid, unless it
    /// is to be `silent`.
    async fn claim(&self, stored: Option<Lease>, silent: bool) -> Result<Held, RequestError> {
        let mut lease = self.claimed(stored, self.clock.now());
        if silent {
            // Another container of this pod must not take for its own what has to be waited for.
            lease.annotations.remove(CLAIMED_BY);
        }
        let sent = self.gate.sending();
        let lease = self.api.put_lease(&lease, self.times.request()).await?;
        self.annotations.publish(Some(&lease));
        let held = Held { lease, sent, opens: None };
        Ok(if silent { held } else { self.opened(held) })
    }

    /// Opens the gate for as long as our claim is valid.
    fn opened(&self, held: Held) -> Held {
        self.gate.grant(held.sent, self.times.renew, self.times.lease);
        Held { opens: None, ..held }
    }

    /// The lease with our claim on it.
    fn claimed(&self, stored: Option<Lease>, now: Timestamp) -> Lease {
        let mut lease = stored.unwrap_or_else(|| {
            let mut lease = Lease::default();
            lease.annotations = BTreeMap::clone(&self.annotations.subscribe().borrow());
            lease
        });
        LEASE.clone_into(&mut lease.name);
        lease.namespace.clone_from(&self.namespace);
        // It counts for the claim that was released, not for this one.
        lease.annotations.remove(RELEASED_BY);
        let me = self.identity.as_str().to_owned();
        lease.annotations.insert(CLAIMED_BY.to_owned(), me.clone());
        if lease.holder.as_ref() != Some(&me) {
            let is_first = lease.holder.is_none();
            lease.acquired = None;
            let before = lease.transitions.unwrap_or_default();
            lease.transitions = Some(before.saturating_add(u32::from(!is_first)));
        }
        lease.acquired = lease.acquired.or(Some(now));
        lease.holder = Some(me);
        lease.seconds = Some(self.times.stored_seconds());
        lease.renewed = Some(now);
        lease
    }

    /// Gives the lease back, so that another takes it without waiting for its end. Whoever waits itself
    /// for an older claim leaves no mark: others have to wait for that as well.
    async fn release(&self, held: Held) {
        let Held { lease, opens, .. } = held;
        let given_back = async {
            match self.put_back(lease, opens.is_none()).await {
                // The last renewal was stored, but its answer not awaited.
                Err(RequestError::Status(_)) => match self.read(RELEASE).await? {
                    Some(lease) if claim_of(&lease).holder == self.identity.as_str() => {
                        self.put_back(lease, opens.is_none()).await
                    }
                    _ => Ok(()),
                },
                other => other,
            }
        };
        match timeout(RELEASE, given_back).await.unwrap_or(Err(RequestError::Timeout(RELEASE))) {
            Ok(()) => info!(namespace = self.namespace, "released the lease"),
            Err(error) => {
                warn!(%error, "cannot release the lease; it will expire");
            }
        }
    }

    async fn put_back(&self, mut lease: Lease, marked: bool) -> Result<(), RequestError> {
        lease.holder = Some(String::new());
        lease.seconds = Some(1);
        lease.renewed = Some(self.clock.now());
        if marked {
            lease.annotations.insert(RELEASED_BY.to_owned(), self.identity.as_str().to_owned());
        }
        self.api.put_lease(&lease, RELEASE).await.map(drop)
    }
}

/// Why a lease was not renewed.
enum Refused {
    Taken(Claim),
    Failed(RequestError),
}

fn claim_of(lease: &Lease) -> Claim {
    let annotation = |name| lease.annotations.get(name).cloned();
    Claim {
        holder: lease.holder.clone().unwrap_or_default(),
        duration: Duration::from_secs(lease.seconds.unwrap_or_default()),
        version: lease.version.clone().unwrap_or_default(),
        claimed_by: annotation(CLAIMED_BY),
        released_by: annotation(RELEASED_BY),
    }
}

#[cfg(test)]
mod tests;
