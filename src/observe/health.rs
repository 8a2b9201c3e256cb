//! Readiness: what startup still waits for, and what has failed for too long.
//!
//! A replica that cannot watch nodes and pods, or cannot read the lease, could not take over. Readiness
//! reports that, since disruption budgets and rollouts count ready replicas.

use std::collections::BTreeMap;
use std::fmt::Display;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::time::Instant;

/// How long something may fail before the process is not ready, and the interval between log lines. An
/// API server restarts in less time.
const PATIENCE: Duration = Duration::from_secs(120);

/// Collects what a process needs to be ready. Clones share it.
#[derive(Clone, Debug, Default)]
pub struct Readiness {
    state: Arc<Mutex<State>>,
}

#[derive(Debug, Default)]
struct State {
    awaited: Vec<&'static str>,
    signs: Vec<(&'static str, Option<Bad>)>,
    /// Notes for operators that do not affect readiness.
    notes: BTreeMap<&'static str, String>,
}

/// Since when something has failed, and why.
#[derive(Debug)]
struct Bad {
    since: Instant,
    cause: String,
    /// When it was last logged.
    said: Option<Instant>,
}

/// Something that startup waits for, until it is opened.
#[derive(Clone, Debug)]
pub struct Gate {
    name: &'static str,
    readiness: Readiness,
}

/// Something that must keep working.
#[derive(Clone, Debug)]
pub struct Sign {
    index: usize,
    readiness: Readiness,
}

impl Readiness {
    /// Adds a gate: the process is not ready until it is opened.
    pub fn gate(&self, name: &'static str) -> Gate {
        self.state.lock().awaited.push(name);
        Gate { name, readiness: self.clone() }
    }

    /// Adds a sign: it counts as working until [`Sign::bad`].
    pub fn sign(&self, name: &'static str) -> Sign {
        let signs = &mut self.state.lock().signs;
        signs.push((name, None));
        Sign { index: signs.len() - 1, readiness: self.clone() }
    }

    /// Why the process is not ready, one line per reason; empty if it is ready.
    pub fn reasons(&self) -> Vec<String> {
        let state = self.state.lock();
        let awaited = &state.awaited;
        let awaited = (!awaited.is_empty()).then(|| format!("waiting for: {}", awaited.join(", ")));
        let lost = state.signs.iter().filter_map(|(name, bad)| {
            let bad = bad.as_ref().filter(|bad| bad.since.elapsed() >= PATIENCE)?;
            Some(format!("no {name} for {} s: {}", bad.since.elapsed().as_secs(), bad.cause))
        });
        awaited.into_iter().chain(lost).collect()
    }

    /// Sets a note for operators that does not affect readiness; `None` removes it.
    pub fn note(&self, name: &'static str, text: Option<String>) {
        let notes = &mut self.state.lock().notes;
        match text {
            Some(text) => notes.insert(name, text),
            None => notes.remove(name),
        };
    }

    /// The notes, each with its name.
    pub fn notes(&self) -> Vec<String> {
        self.state.lock().notes.iter().map(|(name, text)| format!("{name}: {text}")).collect()
    }
}

impl Gate {
    /// Opens the gate. Opening it again has no effect.
    pub fn open(&self) {
        let awaited = &mut self.readiness.state.lock().awaited;
        let before = awaited.len();
        awaited.retain(|name| *name != self.name);
        if before != awaited.len() && awaited.is_empty() {
            tracing::info!("ready: nodes and pods are synced");
        }
    }
}

impl Sign {
    /// It works.
    pub fn good(&self) {
        if let Some((name, bad)) = self.readiness.state.lock().signs.get_mut(self.index)
            && let Some(Bad { since, said: Some(_), .. }) = bad.take()
        {
            tracing::info!(what = name, lost_for = ?since.elapsed(), "recovered");
        }
    }

    /// It does not work, for this reason. Call it after every failed attempt.
    pub fn bad(&self, cause: &impl Display) {
        let signs = &mut self.readiness.state.lock().signs;
        let Some((name, bad)) = signs.get_mut(self.index) else { return };
        let now = Instant::now();
        let bad = bad.get_or_insert_with(|| Bad { since: now, cause: String::new(), said: None });
        bad.cause = cause.to_string();
        let last = bad.said.unwrap_or(bad.since);
        if now - last >= PATIENCE {
            bad.said = Some(now);
            tracing::error!(what = name, lost_for = ?(now - bad.since), cause = bad.cause,
                "not ready: this process cannot work; retrying; check the API server and the \
                 credentials");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_ready_once_every_gate_is_open() {
        let readiness = Readiness::default();
        let (nodes, pods) = (readiness.gate("nodes"), readiness.gate("pods"));
        assert_eq!(readiness.reasons(), ["waiting for: nodes, pods"]);
        pods.open();
        pods.open();
        assert_eq!(readiness.reasons(), ["waiting for: nodes"]);
        nodes.open();
        assert!(readiness.reasons().is_empty());
    }

    #[tokio::test(start_paused = true)]
    async fn what_is_lost_for_two_minutes_makes_it_unready_with_the_reason_until_it_is_back() {
        let readiness = Readiness::default();
        let (watch, lease) = (readiness.sign("watch of nodes"), readiness.sign("lease"));
        lease.good();
        for _ in 0..12 {
            assert!(readiness.reasons().is_empty(), "an outage that is short changes nothing");
            watch.bad(&"timeout");
            lease.good();
            tokio::time::advance(Duration::from_secs(10)).await;
        }
        watch.bad(&"403 Forbidden");
        assert_eq!(readiness.reasons(), ["no watch of nodes for 120 s: 403 Forbidden"]);
        watch.good();
        assert!(readiness.reasons().is_empty());
        watch.bad(&"timeout");
        assert!(readiness.reasons().is_empty(), "counted anew");
    }

    #[test]
    fn a_note_is_told_until_it_is_taken_back_and_keeps_nothing_from_being_ready() {
        let readiness = Readiness::default();
        readiness.note("clock", Some("4 s behind".to_owned()));
        assert!(readiness.reasons().is_empty());
        readiness.note("clock", Some("5 s behind".to_owned()));
        assert_eq!(readiness.notes(), ["clock: 5 s behind"]);
        readiness.note("clock", None);
        assert!(readiness.notes().is_empty());
    }
}
