//! An API server that refuses everything, as after credentials or permissions were revoked.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use ostrakon::clock::Clock;
use ostrakon::sim::embedded::{Embedded, Fault, Options, Part, Resource, Rule};
use parking_lot::Mutex;
use serde_json::json;
use tokio::time::sleep;
use tracing::subscriber::DefaultGuard;

use crate::noon;
use crate::process::Process;

const REFUSED: [Resource; 3] = [Resource::Nodes, Resource::Pods, Resource::Leases];

/// What is logged.
#[derive(Clone, Default)]
pub(crate) struct Log(Arc<Mutex<Vec<u8>>>);

impl io::Write for Log {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Log {
    /// Logs of this thread go to it while the guard lives.
    pub(crate) fn begin() -> (Self, DefaultGuard) {
        let log = Self::default();
        let writer = log.clone();
        let subscriber =
            tracing_subscriber::fmt().with_ansi(false).with_writer(move || writer.clone()).finish();
        (log, tracing::subscriber::set_default(subscriber))
    }

    /// The lines with these words.
    pub(crate) fn lines(&self, words: &str) -> Vec<String> {
        let text = String::from_utf8_lossy(&self.0.lock()).into_owned();
        text.lines().filter(|line| line.contains(words)).map(str::to_owned).collect()
    }
}

fn place(cluster: &Embedded, pod: &str) {
    let pod = json!({
        "metadata": {"name": pod, "namespace": "default"},
        "spec": {"nodeName": "n1", "terminationGracePeriodSeconds": 0},
        "status": {"phase": "Running"},
    });
    cluster.store().insert(Resource::Pods, pod).unwrap();
}

fn has(cluster: &Embedded, pod: &str) -> bool {
    cluster.store().get(Resource::Pods, "default", pod).is_ok()
}

fn taint(cluster: &Embedded) {
    let tainted = |node: &serde_json::Value| {
        let mut node = node.clone();
        node["spec"]["taints"] = json!([{"key": "k", "effect": "NoExecute"}]);
        Ok(node)
    };
    cluster.store().modify(Resource::Nodes, "", "n1", Part::Whole, false, tainted).unwrap();
}

#[tokio::test(start_paused = true)]
async fn one_that_is_refused_says_why_is_not_ready_after_two_minutes_and_works_again_by_itself() {
    for code in [401, 403] {
        let (log, _logs) = Log::begin();
        let clock = Clock::starting_at(noon());
        let cluster = Embedded::new(clock.clone(), Options::default());
        cluster.store().insert(Resource::Nodes, json!({"metadata": {"name": "n1"}})).unwrap();
        place(&cluster, "a");
        let process = Process::elected(&cluster, clock);
        sleep(Duration::from_secs(10)).await;
        assert_eq!(process.not_ready(), [""; 0], "{code}");

        for resource in REFUSED {
            let refused = Fault::Refuse { code, retry_after: None };
            cluster.faults().add(Rule::always(refused).of(resource));
            cluster.faults().cut_watches(resource);
        }
        sleep(Duration::from_secs(100)).await;
        assert_eq!(process.not_ready(), [""; 0], "{code}: it may pass");
        taint(&cluster);
        sleep(Duration::from_secs(50)).await;
        let reasons = process.not_ready();
        for what in ["watch of nodes", "watch of pods", "readable lease"] {
            let is_it = |reason: &&String| reason.contains(what);
            let reason =
                reasons.iter().find(is_it).unwrap_or_else(|| panic!("{code}: {reasons:?}"));
            assert!(reason.contains(&code.to_string()), "{reason}");
        }
        // Said once, with cause and remedy.
        let said = log.lines("not ready: ");
        assert_eq!(said.len(), 3, "{said:?}");
        let is_whole =
            |line: &String| line.contains(&code.to_string()) && line.contains("credentials");
        assert!(said.iter().all(is_whole), "{said:?}");
        sleep(Duration::from_secs(600)).await;
        assert!(has(&cluster, "a") && !process.not_ready().is_empty(), "{code}");
        assert!(log.lines("not ready: ").len() <= 3 * 7, "and seldom after that");

        cluster.faults().clear();
        sleep(Duration::from_secs(90)).await;
        assert_eq!(process.not_ready(), [""; 0], "{code}");
        assert!(!has(&cluster, "a"), "{code}: it leads again, and knows the taint");
        assert_eq!(log.lines("recovered").len(), 3, "{code}");
        place(&cluster, "b");
        sleep(Duration::from_secs(5)).await;
        assert!(!has(&cluster, "b"), "{code}");
    }
}
