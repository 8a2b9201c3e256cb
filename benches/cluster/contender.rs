//! Who evicts: ostrakon, or kube-controller-manager with its taint eviction and little else.

use std::path::Path;
use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::time::{Instant, sleep};

use crate::harness::component::Component;
use crate::harness::ostrakon::{Launch, Ostrakon};
use crate::harness::{Bed, How, User};
use crate::usage::{self, Memory};

/// How often is looked whether it is synced.
const LOOK: Duration = Duration::from_millis(10);
/// The longest that a sync may take; the reference needs some 40 s for 150,000 pods.
const SYNC: Duration = Duration::from_secs(600);
/// The rounds taint more nodes at once than the ramp lets go at full speed, and measure the evictor.
const NO_RAMP: &str = "\
apiVersion: config.ostrakon.dev/v1alpha1
kind: OstrakonConfiguration
limits: {ramp: {enabled: false}}
";
/// The reference says this once for the nodes and once for the pods.
const SYNCED: &str = "Caches are synced";

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Contender {
    Ostrakon,
    /// With this many requests per second and this burst allowed.
    Reference {
        qps: u32,
        burst: u32,
    },
}

impl Contender {
    pub(crate) fn name(self) -> String {
        match self {
            Self::Ostrakon => "ostrakon".to_owned(),
            Self::Reference { qps, .. } => format!("reference, QPS {qps}"),
        }
    }

    /// For how long a round may take.
    pub(crate) fn patience(self, pods: usize) -> Duration {
        let per_second = match self {
            Self::Ostrakon => 10,
            // Three requests for a pod, and twice the time for a busy machine.
            Self::Reference { qps, .. } => (u64::from(qps) / 6).clamp(1, 10),
        };
        Duration::from_secs(60 + pods as u64 / per_second)
    }

    /// Starts it and does not wait.
    pub(crate) async fn start(self, bed: &Bed) -> Result<Running> {
        match self {
            Self::Ostrakon => {
                let config =
                    std::env::temp_dir().join(format!("ostrakon-{}.yaml", std::process::id()));
                std::fs::write(&config, NO_RAMP).context("cannot write the configuration")?;
                let launch = Launch::new(bed.kubeconfig(User::Ostrakon)?);
                let launch = launch.arg(&format!("--config={}", config.display()));
                Ok(Running::Ostrakon(launch.arg("--log-level=info").spawn(bed)?))
            }
            Self::Reference { qps, burst } => {
                let flags = [format!("--kube-api-qps={qps}"), format!("--kube-api-burst={burst}")];
                let kubeconfig = bed.kubeconfig(User::Reference)?;
                let component = bed.start_reference_with(&kubeconfig, &flags).await?;
                let pid = component.pid().await.context("the reference has ended")?;
                Ok(Running::Reference(component, pid))
            }
        }
    }
}

/// A contender at work. It ends with its value.
pub(crate) enum Running {
    Ostrakon(Ostrakon),
    Reference(Component, u32),
}

impl Running {
    fn pid(&self) -> u32 {
        match self {
            Self::Ostrakon(ostrakon) => ostrakon.pid(),
            Self::Reference(_, pid) => *pid,
        }
    }

    pub(crate) fn cpu(&self) -> Result<f64> {
        usage::cpu(self.pid())
    }

    pub(crate) fn memory(&self) -> Result<Memory> {
        usage::memory(self.pid())
    }

    /// Waits until it knows all nodes and pods.
    pub(crate) async fn synced(&mut self) -> Result<()> {
        let end = Instant::now() + SYNC;
        while Instant::now() < end {
            let is_synced = match self {
                Self::Ostrakon(ostrakon) => answers_ok(&ostrakon.url("/readyz")).await,
                Self::Reference(component, _) => says_so_twice(&component.log().await),
            };
            if is_synced {
                return Ok(());
            }
            sleep(LOOK).await;
        }
        bail!("not synced after {SYNC:?}")
    }

    pub(crate) async fn stop(self) -> Result<()> {
        match self {
            Self::Ostrakon(ostrakon) => ostrakon.stop().await.map(drop),
            Self::Reference(component, _) => component.stop(How::Graceful).await,
        }
    }
}

fn says_so_twice(log: &Path) -> bool {
    std::fs::read_to_string(log).is_ok_and(|text| text.matches(SYNCED).count() >= 2)
}

/// Asks for a page over a connection of its own, so cheaply that it may be done often.
async fn answers_ok(url: &str) -> bool {
    let ask = async {
        let (host, path) = url.strip_prefix("http://")?.split_once('/')?;
        let mut stream = TcpStream::connect(host).await.ok()?;
        let request = format!("GET /{path} HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n");
        stream.write_all(request.as_bytes()).await.ok()?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer).await.ok()?;
        Some(answer.starts_with("HTTP/1.1 200"))
    };
    ask.await.unwrap_or(false)
}
