//! Connections that die without a sign, and connections that strangers open: the program beside an
//! embedded cluster.

#![allow(clippy::unwrap_used, reason = "helpers of tests")]

#[path = "harness/http.rs"]
#[allow(unreachable_pub, reason = "the harness compiles this too")]
mod http;
#[path = "harness/silent_proxy.rs"]
#[allow(unreachable_pub, reason = "the harness compiles this too")]
mod silent_proxy;
#[path = "harness/wait.rs"]
#[allow(unreachable_pub, reason = "the harness compiles this too")]
mod wait;

use std::net::{Ipv4Addr, SocketAddr};
use std::process::Stdio;
use std::time::Duration;

use anyhow::{Context as _, Result, bail, ensure};
use k8s_openapi::api::core::v1::{Node, Pod};
use kube::Api;
use kube::api::{Patch, PatchParams, PostParams};
use ostrakon::clock::{Clock, system_time};
use ostrakon::sim::embedded::{Embedded, Options, Served};
use serde_json::json;
use silent_proxy::SilentProxy;
use tempfile::TempDir;
use tokio::net::{TcpListener, TcpStream};
use tokio::process::{Child, Command};
use tokio::time::{Instant, sleep};

/// Nothing here takes that long, however busy the machine is.
const PATIENCE: Duration = Duration::from_secs(90);
/// How soon what is due must be requested after a drop that nobody was told of.
const AFTER_A_DROP: Duration = Duration::from_secs(20);
/// For how long connections are in use before the drop.
const IN_USE: Duration = Duration::from_secs(12);

/// `ostrakon run` on an embedded cluster, through a proxy that can fall silent.
struct Stage {
    folder: TempDir,
    process: Child,
    listens: SocketAddr,
    proxy: SilentProxy,
    cluster: Embedded,
    _served: Served,
}

impl Stage {
    async fn set(args: &[&str]) -> Result<Self> {
        let cluster = Embedded::new(Clock::system(), Options::default());
        let served = cluster.serve((Ipv4Addr::LOCALHOST, 0).into()).await?;
        let upstream = served.url().trim_start_matches("http://").parse()?;
        let proxy = SilentProxy::start(upstream).await?;
        let folder = tempfile::tempdir()?;
        let config = folder.path().join("kubeconfig");
        let text = json!({
            "current-context": "c",
            "contexts": [{"name": "c", "context": {"cluster": "c", "user": "u"}}],
            "clusters": [{"name": "c", "cluster": {
                "server": format!("http://{}", proxy.address()),
            }}],
            "users": [{"name": "u", "user": {}}],
        });
        std::fs::write(&config, text.to_string())?;
        let free = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await?.local_addr()?;
        let process = Command::new(env!("CARGO_BIN_EXE_ostrakon"))
            .arg("run")
            .arg(format!("--kubeconfig={}", config.display()))
            .arg(format!("--listen={free}"))
            .args(args)
            .env_clear()
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(std::fs::File::create(folder.path().join("log"))?)
            .kill_on_drop(true)
            .spawn()?;
        let mut stage = Self { folder, process, listens: free, proxy, cluster, _served: served };
        stage.ready().await?;
        Ok(stage)
    }

    fn log(&self) -> String {
        std::fs::read_to_string(self.folder.path().join("log")).unwrap_or_default()
    }

    async fn get(&self, path: &str) -> Result<(u16, String)> {
        http::get(&format!("http://{}{path}", self.listens)).await
    }

    async fn ready(&mut self) -> Result<()> {
        wait::until("it to be ready", PATIENCE, async || {
            if let Some(status) = self.process.try_wait()? {
                return Ok(Some(Err(status)));
            }
            let (code, body) = self.get("/readyz").await?;
            ensure!(code == 200, "{body}");
            Ok(Some(Ok(())))
        })
        .await
        .with_context(|| self.log())?
        .or_else(|status| bail!("it ended with {status}: {}", self.log()))
    }

    /// A node and a pod on it that tolerates `k` for so many seconds.
    async fn pod(&self, node: &str, seconds: Option<i64>) -> Result<()> {
        let create = PostParams::default();
        let object: Node = serde_json::from_value(json!({"metadata": {"name": node}}))?;
        Api::all(self.cluster.client()).create(&create, &object).await?;
        let toleration = json!({
            "key": "k", "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": seconds,
        });
        let pod: Pod = serde_json::from_value(json!({
            "metadata": {"name": node},
            "spec": {
                "nodeName": node,
                "containers": [{"name": "c", "image": "i"}],
                "tolerations": [toleration],
            },
        }))?;
        Api::namespaced(self.cluster.client(), "default").create(&create, &pod).await?;
        Ok(())
    }

    async fn taint(&self, node: &str) -> Result<()> {
        let taint = json!({"key": "k", "effect": "NoExecute", "timeAdded": system_time()});
        let patch = Patch::Merge(json!({"spec": {"taints": [taint]}}));
        let nodes: Api<Node> = Api::all(self.cluster.client());
        nodes.patch(node, &PatchParams::default(), &patch).await?;
        Ok(())
    }

    /// Whether the pod is gone or going.
    async fn is_deleted(&self, pod: &str) -> Result<bool> {
        let pods: Api<Pod> = Api::namespaced(self.cluster.client(), "default");
        let pod = pods.get_opt(pod).await?;
        Ok(pod.is_none_or(|pod| pod.metadata.deletion_timestamp.is_some()))
    }

    async fn is_deleted_within(&self, pod: &str, patience: Duration) -> Result<Duration> {
        let begin = Instant::now();
        wait::until(&format!("{pod} to be deleted"), patience, async || {
            Ok(self.is_deleted(pod).await?.then_some(()))
        })
        .await
        .with_context(|| self.log())?;
        Ok(begin.elapsed())
    }
}

#[tokio::test]
async fn what_comes_due_after_a_silent_drop_goes_within_20_s() -> Result<()> {
    let stage = Stage::set(&["--leader-elect=false"]).await?;
    let due = i64::try_from(IN_USE.as_secs())?;
    for (node, seconds) in [("before", Some(1)), ("after", Some(due)), ("forever", None)] {
        stage.pod(node, seconds).await?;
        stage.taint(node).await?;
    }
    stage.is_deleted_within("before", PATIENCE).await?;
    sleep(IN_USE.saturating_sub(Duration::from_secs(2))).await;
    assert!(!stage.is_deleted("after").await?, "it is not due");
    stage.proxy.fall_silent();
    stage.is_deleted_within("after", AFTER_A_DROP).await?;
    assert!(!stage.is_deleted("forever").await?);
    Ok(())
}

/// The lease is renewed all the time, so a dead connection is noticed by that.
#[tokio::test]
async fn a_taint_that_comes_after_a_silent_drop_is_seen_within_20_s() -> Result<()> {
    let stage = Stage::set(&[]).await?;
    for (node, seconds) in [("victim", Some(0)), ("forever", None)] {
        stage.pod(node, seconds).await?;
    }
    sleep(IN_USE).await;
    stage.proxy.fall_silent();
    for node in ["victim", "forever"] {
        stage.taint(node).await?;
    }
    stage.is_deleted_within("victim", AFTER_A_DROP).await?;
    assert!(!stage.is_deleted("forever").await?);
    Ok(())
}

#[tokio::test]
async fn with_1100_idle_connections_probes_are_answered_and_evictions_go_on() -> Result<()> {
    let stage = Stage::set(&["--leader-elect=false"]).await?;
    for (node, seconds) in [("victim", Some(0)), ("forever", None)] {
        stage.pod(node, seconds).await?;
    }
    let mut idle = Vec::new();
    for number in 0..1_100 {
        idle.push(TcpStream::connect(stage.listens).await?);
        if number % 100 == 99 {
            assert_eq!(stage.get("/livez").await?, (200, "ok\n".to_owned()), "after {number}");
        }
    }
    for node in ["victim", "forever"] {
        stage.taint(node).await?;
    }
    stage.is_deleted_within("victim", PATIENCE).await?;
    assert_eq!(stage.get("/livez").await?.0, 200);
    let (code, metrics) = stage.get("/metrics").await?;
    let open = metrics.lines().find_map(|line| line.strip_prefix("process_open_fds "));
    let open: f64 = open.context("no process_open_fds")?.parse()?;
    assert!(code == 200 && open < 300.0, "{open} files are open");
    assert!(!stage.is_deleted("forever").await?);
    drop(idle);
    Ok(())
}
