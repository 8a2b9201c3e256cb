//! A start beside an API server that is not there yet: the program waits for it, lives meanwhile, and
//! ends when it is told to.

#![allow(clippy::unwrap_used, reason = "helpers of tests")]

#[path = "harness/http.rs"]
#[allow(unreachable_pub, reason = "the harness compiles this too")]
mod http;
#[path = "harness/wait.rs"]
#[allow(unreachable_pub, reason = "the harness compiles this too")]
mod wait;

use std::net::{Ipv4Addr, SocketAddr};
use std::process::{ExitStatus, Stdio};
use std::time::Duration;

use anyhow::{Context as _, Result, bail, ensure};
use k8s_openapi::api::coordination::v1::Lease;
use kube::Api;
use ostrakon::clock::Clock;
use ostrakon::sim::embedded::{Embedded, Options};
use rustix::process::{Pid, Signal, kill_process};
use tempfile::TempDir;
use tokio::net::{TcpListener, TcpSocket};
use tokio::process::{Child, Command};
use tokio::time::{sleep, timeout};

/// Nothing here takes that long, however busy the machine is.
const PATIENCE: Duration = Duration::from_secs(60);
const WAITING: &str = "waiting for: API server, list of nodes, list of pods\n";

/// A port of loopback that nobody else is given: it is bound, and open to whoever binds it by name.
struct Reserved {
    address: SocketAddr,
    _socket: TcpSocket,
}

fn reserve() -> Reserved {
    let socket = TcpSocket::new_v4().unwrap();
    socket.set_reuseaddr(true).unwrap();
    socket.bind((Ipv4Addr::LOCALHOST, 0).into()).unwrap();
    Reserved { address: socket.local_addr().unwrap(), _socket: socket }
}

/// `ostrakon run` against an API server there.
struct Ostrakon {
    folder: TempDir,
    process: Child,
    listens: SocketAddr,
}

impl Ostrakon {
    fn start(api_server: SocketAddr, listens: SocketAddr, args: &[&str]) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let config = folder.path().join("kubeconfig");
        let text = format!(
            "{{apiVersion: v1, kind: Config, current-context: c, \
             contexts: [{{name: c, context: {{cluster: c, user: u}}}}], \
             clusters: [{{name: c, cluster: {{server: 'http://{api_server}'}}}}], \
             users: [{{name: u, user: {{}}}}]}}"
        );
        std::fs::write(&config, text).unwrap();
        let log = std::fs::File::create(folder.path().join("log")).unwrap();
        let process = Command::new(env!("CARGO_BIN_EXE_ostrakon"))
            .arg("run")
            .arg(format!("--kubeconfig={}", config.display()))
            .arg(format!("--listen={listens}"))
            .args(args)
            .env_clear()
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(log)
            .kill_on_drop(true)
            .spawn()
            .unwrap();
        Self { folder, process, listens }
    }

    /// All that it has logged.
    fn log(&self) -> String {
        std::fs::read_to_string(self.folder.path().join("log")).unwrap()
    }

    async fn get(&self, path: &str) -> Result<(u16, String)> {
        http::get(&format!("http://{}{path}", self.listens)).await
    }

    /// Waits until `/readyz` says this.
    async fn is_said_to_be(&mut self, code: u16, body: &str) -> Result<()> {
        wait::until(&format!("/readyz to say {code} {body}"), PATIENCE, async || {
            if let Some(status) = self.process.try_wait()? {
                return Ok(Some(Err(status)));
            }
            let answer = self.get("/readyz").await?;
            ensure!(answer == (code, body.to_owned()), "it says {answer:?}");
            Ok(Some(Ok(())))
        })
        .await
        .with_context(|| self.log())?
        .or_else(|status| bail!("it ended with {status}: {}", self.log()))
    }

    fn terminate(&self) {
        self.signal(Signal::TERM);
    }

    fn signal(&self, signal: Signal) {
        let pid = self.process.id().and_then(|id| Pid::from_raw(id.try_into().unwrap()));
        kill_process(pid.unwrap(), signal).unwrap();
    }

    async fn ended(&mut self) -> ExitStatus {
        timeout(PATIENCE, self.process.wait()).await.unwrap().unwrap()
    }
}

#[tokio::test]
async fn a_start_waits_for_an_api_server_that_comes_up() -> Result<()> {
    let (api_server, endpoints) = (reserve(), reserve());
    let mut ostrakon = Ostrakon::start(api_server.address, endpoints.address, &[]);
    ostrakon.is_said_to_be(503, WAITING).await?;
    assert_eq!(ostrakon.get("/livez").await?, (200, "ok\n".to_owned()));
    let (code, metrics) = ostrakon.get("/metrics").await?;
    assert_eq!(code, 200, "{metrics}");
    assert!(metrics.contains("ostrakon_build_info"), "they are all there: {metrics}");
    sleep(Duration::from_secs(2)).await;
    ostrakon.is_said_to_be(503, WAITING).await?;
    let log = ostrakon.log();
    for words in [
        "WARN",
        "waiting for the API server",
        &api_server.address.to_string(),
        "refused",
        "wait=\"5m0s\"",
    ] {
        assert!(log.contains(words), "no {words:?} in: {log}");
    }

    let cluster = Embedded::new(Clock::system(), Options::default());
    let _served = cluster.serve(api_server.address).await?;
    ostrakon.is_said_to_be(200, "ok\n").await?;
    let log = ostrakon.log();
    assert_eq!(log.matches("the API server answers").count(), 1, "{log}");
    assert!(!log.contains("ERROR"), "{log}");
    ostrakon.terminate();
    assert_eq!(ostrakon.ended().await.code(), Some(0), "{}", ostrakon.log());
    Ok(())
}

#[tokio::test]
async fn a_signal_ends_the_wait() -> Result<()> {
    let (api_server, endpoints) = (reserve(), reserve());
    let mut ostrakon = Ostrakon::start(api_server.address, endpoints.address, &[]);
    ostrakon.is_said_to_be(503, WAITING).await?;
    ostrakon.terminate();
    assert_eq!(ostrakon.ended().await.code(), Some(0), "{}", ostrakon.log());
    let log = ostrakon.log();
    assert!(log.contains("stopped during startup"), "{log}");
    Ok(())
}

#[tokio::test]
async fn a_hang_up_stops_it_in_order_and_gives_the_lease_back() -> Result<()> {
    let (api_server, endpoints) = (reserve(), reserve());
    let cluster = Embedded::new(Clock::system(), Options::default());
    let _served = cluster.serve(api_server.address).await?;
    let mut ostrakon = Ostrakon::start(api_server.address, endpoints.address, &[]);
    ostrakon.is_said_to_be(200, "ok\n").await?;
    let leases = Api::<Lease>::namespaced(cluster.client(), "kube-system");
    let holder = async || -> Result<Option<String>> {
        let lease = leases.get_opt("ostrakon").await?;
        let holder = lease.and_then(|lease| lease.spec).and_then(|spec| spec.holder_identity);
        Ok(holder.filter(|holder| !holder.is_empty()))
    };
    wait::until("it leads", PATIENCE, async || holder().await).await?;
    ostrakon.signal(Signal::HUP);
    assert_eq!(ostrakon.ended().await.code(), Some(0), "{}", ostrakon.log());
    assert_eq!(holder().await?, None, "nobody waits for a lease to run out: {}", ostrakon.log());
    Ok(())
}

#[tokio::test]
async fn when_the_wait_is_over_the_error_says_how_long_it_was() {
    let (api_server, endpoints) = (reserve(), reserve());
    let args = ["--api-server-wait=1s"];
    let mut ostrakon = Ostrakon::start(api_server.address, endpoints.address, &args);
    assert_eq!(ostrakon.ended().await.code(), Some(1));
    let log = ostrakon.log();
    let last = log.lines().last().unwrap_or_default();
    assert!(last.starts_with("error: cannot reach the API server at http://127.0.0.1:"), "{log}");
    assert!(last.contains(" after waiting ") && last.contains("refused"), "{log}");
}

#[tokio::test]
async fn a_used_port_is_told_of_before_the_wait() {
    let api_server = reserve();
    let used = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
    let mut ostrakon = Ostrakon::start(api_server.address, used.local_addr().unwrap(), &[]);
    assert_eq!(ostrakon.ended().await.code(), Some(1));
    let log = ostrakon.log();
    assert!(log.starts_with("error: cannot listen on") && log.lines().count() == 1, "{log}");
}
