//! Readiness: what is still awaited.

use std::sync::Arc;

use parking_lot::Mutex;

/// Collects what a process waits for before it is ready. Clones share it.
#[derive(Clone, Debug, Default)]
pub struct Readiness {
    awaited: Arc<Mutex<Vec<&'static str>>>,
}

/// One thing that is awaited, until it is opened.
#[derive(Clone, Debug)]
pub struct Gate {
    name: &'static str,
    readiness: Readiness,
}

impl Readiness {
    /// Waits for one thing more.
    pub fn gate(&self, name: &'static str) -> Gate {
        self.awaited.lock().push(name);
        Gate { name, readiness: self.clone() }
    }

    /// What is still awaited; empty when the process is ready.
    pub fn awaited(&self) -> Vec<&'static str> {
        self.awaited.lock().clone()
    }
}

impl Gate {
    /// Says that it has come. Says so again without effect.
    pub fn open(&self) {
        let mut awaited = self.readiness.awaited.lock();
        let before = awaited.len();
        awaited.retain(|name| *name != self.name);
        if before != awaited.len() && awaited.is_empty() {
            tracing::info!("ready: nodes and pods are known");
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
        assert_eq!(readiness.awaited(), ["nodes", "pods"]);
        pods.open();
        pods.open();
        assert_eq!(readiness.awaited(), ["nodes"]);
        nodes.open();
        assert!(readiness.awaited().is_empty());
    }
}
