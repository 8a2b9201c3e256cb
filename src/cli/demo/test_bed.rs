//! The cluster in this process, the unchanged controller running on it, and an outside observer.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, anyhow, bail};
use jiff::Timestamp;
use kube::Client;
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::sync::mpsc::UnboundedReceiver;
use tokio::time::{sleep, timeout};
use tracing::debug;

use super::drain::Drain;
use super::fixtures::{Fixtures, MAINTENANCE, NAMESAKE, uid};
use super::observations::Observations;
use crate::clock::Clock;
use crate::cluster::{AGENT, Cluster, open};
use crate::config::{Compat, Config};
use crate::controller::{self, Running};
use crate::drain::{ConditionRule, Limits, Policy};
use crate::model::ConditionStatus;
use crate::sim::embedded::{
    ApiError, Change, Controllers, DeleteOptions, Embedded, Options, Part, Resource, Rule,
    Selector, Served, Settings,
};
use crate::sim::hollow::{self, HollowKubelets, Switch};

/// From one sign of life of a node to the next. Shorter than in a real cluster, as are the next
/// two: an outage must fit into the scenario.
const LEASE_INTERVAL: Duration = Duration::from_secs(2);
/// How often the signs of life are looked at.
const MONITOR_PERIOD: Duration = Duration::from_secs(1);
/// After so much silence a node is unreachable. Long enough for a machine that is busy.
const MONITOR_GRACE: Duration = Duration::from_secs(7);
/// Taints for outages per second.
const TAINT_RATE: f64 = 1.0;
/// Requests of the hollow kubelets that are on their way at a time.
const KUBELET_WRITES: usize = 32;
/// The condition that the sick node reports.
const CONDITION: &str = "KernelDeadlock";
/// From its cordon to its drain.
const NOTICE: Duration = Duration::from_secs(2);
/// For how long it must be well until it is used again.
const CLEAR_AFTER: Duration = Duration::from_secs(3);
/// Changes that are remembered for each resource, over those that set the bed.
const HISTORY: usize = 8192;
/// For how long the controller waits for the cluster: a fault may be that it never answers.
const API_SERVER_WAIT: Duration = Duration::from_secs(30);
/// For how long the controller may take to know the cluster.
const READY_LIMIT: Duration = Duration::from_secs(60);
/// For how long each part may take to end. Long enough for a machine that is busy.
const STOP_LIMIT: Duration = Duration::from_secs(15);

/// Any port of the loopback interface.
pub(super) const FREE_PORT: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 0);

/// Everything that runs.
pub(super) struct TestBed {
    pub(super) fixtures: Fixtures,
    cluster: Embedded,
    outside: Outside,
    kubelets: HollowKubelets,
    controllers: Controllers,
    served: Served,
    client: Client,
    compat: Compat,
    /// `None` only while it is being restarted.
    controller: Option<Running>,
}

/// Someone who watches the cluster's history. Nothing calls it: it reads what was stored when it is
/// asked, so nobody ever waits for it, and it for nobody.
struct Outside {
    changes: UnboundedReceiver<Arc<Change>>,
    observations: Observations,
    drain: Drain,
}

impl Outside {
    /// What it has seen up to now.
    fn now(&mut self) -> &mut Self {
        while let Ok(change) = self.changes.try_recv() {
            self.observations.take(&change);
            self.drain.take(&change);
        }
        self
    }
}

impl TestBed {
    /// Sets the bed and starts the controller. Returns when it knows the cluster.
    pub(super) async fn set(
        nodes: usize,
        pods: usize,
        at: SocketAddr,
        compat: Compat,
        seed: u64,
    ) -> anyhow::Result<Self> {
        let clock = Clock::system();
        let options = Options { seed, history: HISTORY, ..Options::default() };
        let cluster = Embedded::new(clock.clone(), options);
        // The port first, so that a used one is reported at once.
        let served = cluster.serve(at).await.with_context(|| {
            format!("cannot serve on {at}; choose a free port with --serve, or 0 for any")
        })?;
        let changes = cluster.store().follow();
        let fixtures = Fixtures::enter(cluster.store(), nodes, pods)?;
        debug!(nodes, pods, "stored the pods");
        let (observations, drain) = (Observations::default(), Drain::of(&fixtures.sick));
        let outside = Outside { changes, observations, drain };
        let options = hollow::Options {
            lease_interval: LEASE_INTERVAL,
            pod_writes: KUBELET_WRITES,
            node_writes: KUBELET_WRITES,
            sync_interval: Duration::from_secs(2),
            clock,
            ..hollow::Options::default()
        };
        let kubelets = HollowKubelets::start(cluster.client(), options).await?;
        debug!("started the kubelets");
        kubelets.add_nodes(fixtures.hollow_nodes()).await?;
        debug!("registered the nodes");
        let settings = Settings {
            monitor_period: MONITOR_PERIOD,
            monitor_grace: MONITOR_GRACE,
            taint_rate: TAINT_RATE,
            // The fixtures contain the daemons that the scenario uses.
            daemons: false,
            ..Settings::default()
        };
        let controllers = Controllers::start(cluster.store(), &settings);
        let url = served.url().parse().context("cannot read the cluster's own URL")?;
        let client = open(kube::Config::new(url))?.client;
        debug!("started the controllers of the cluster");
        let controller = Some(start(&client, FREE_PORT, compat).await?);
        Ok(Self {
            fixtures,
            cluster,
            outside,
            kubelets,
            controllers,
            served,
            client,
            compat,
            controller,
        })
    }

    /// The cluster's time.
    pub(super) fn now(&self) -> Timestamp {
        self.cluster.store().clock().now()
    }

    /// What was seen from outside up to now.
    pub(super) fn observations(&mut self) -> &mut Observations {
        &mut self.outside.now().observations
    }

    /// Who is in the cluster, and what was seen of them and of the drain up to now.
    pub(super) fn seen(&mut self) -> (&Fixtures, &Observations, &Drain) {
        let Outside { observations, drain, .. } = self.outside.now();
        (&self.fixtures, observations, drain)
    }

    /// What was seen of the drain up to now.
    pub(super) fn drain(&mut self) -> &mut Drain {
        &mut self.outside.now().drain
    }

    /// Where the cluster is served.
    pub(super) fn url(&self) -> String {
        self.served.url()
    }

    /// How `kubectl` gets at it.
    pub(super) fn kubeconfig(&self) -> String {
        self.served.kubeconfig()
    }

    /// Where the controller's metrics are.
    pub(super) fn metrics_url(&self) -> String {
        let address = self.controller.as_ref().map(Running::address);
        address.map_or(String::new(), |address| format!("http://{address}/metrics"))
    }

    /// Adds the scenario's taint to a node, also with NoSchedule, so that no new pod is scheduled there.
    pub(super) fn taint(&self, node: &str) -> anyhow::Result<()> {
        let ours =
            ["NoExecute", "NoSchedule"].map(|effect| json!({"key": MAINTENANCE, "effect": effect}));
        self.change_taints(node, |taints| taints.extend(ours.clone()))
    }

    /// Takes it off.
    pub(super) fn untaint(&self, node: &str) -> anyhow::Result<()> {
        self.change_taints(node, |taints| taints.retain(|taint| taint["key"] != MAINTENANCE))
    }

    fn change_taints(&self, node: &str, change: impl Fn(&mut Vec<Value>)) -> anyhow::Result<()> {
        let changed = |node: &Value| -> Result<Value, ApiError> {
            let mut node = node.clone();
            let mut taints = node["spec"]["taints"].as_array().cloned().unwrap_or_default();
            change(&mut taints);
            node["spec"]["taints"] = taints.into();
            Ok(node)
        };
        let store = self.cluster.store();
        store.modify(Resource::Nodes, "", node, Part::Whole, false, changed).map(drop)?;
        Ok(())
    }

    /// Cuts a node off, or brings it back.
    pub(super) async fn silence(&self, node: &str, silent: bool) -> anyhow::Result<()> {
        Ok(self.kubelets.set(node, Switch::Silent(silent)).await?)
    }

    /// Has the node that is to be drained report its condition bad, or good again.
    pub(super) fn report(&mut self, bad: bool) -> anyhow::Result<()> {
        if bad {
            let pods = self.cluster.store().select(Resource::Pods, &Selector::default());
            let Outside { observations, drain, .. } = self.outside.now();
            drain.begin(pods.iter().map(|pod| &**pod));
            for uid in drain.to_go() {
                observations.expect_by_hand(uid);
            }
        }
        let now = self.now().strftime("%Y-%m-%dT%H:%M:%SZ").to_string();
        let condition = json!({
            "type": CONDITION,
            "status": if bad { "True" } else { "False" },
            "reason": if bad { "DeadlockFound" } else { "KernelHasNoDeadlock" },
            "message": "set by the demo",
            "lastHeartbeatTime": now,
            "lastTransitionTime": now,
        });
        let changed = |node: &Value| -> Result<Value, ApiError> {
            let mut node = node.clone();
            let mut all = node["status"]["conditions"].as_array().cloned().unwrap_or_default();
            all.retain(|condition| condition["type"] != CONDITION);
            all.push(condition.clone());
            node["status"]["conditions"] = all.into();
            Ok(node)
        };
        let (store, node) = (self.cluster.store(), &self.fixtures.sick);
        store.modify(Resource::Nodes, "", node, Part::Status, false, changed).map(drop)?;
        Ok(())
    }

    /// Deletes the pod that comes back under its name.
    pub(super) fn delete_namesake(&mut self) -> anyhow::Result<()> {
        self.outside.now().observations.expect_by_hand(&self.fixtures.namesake);
        let (namespace, name) = NAMESAKE;
        let options = DeleteOptions::default();
        self.cluster.store().delete(Resource::Pods, namespace, name, &options)?;
        Ok(())
    }

    /// The node of the recreated pod, if it is not being deleted.
    pub(super) fn namesakes_node(&self) -> Option<String> {
        let (namespace, name) = NAMESAKE;
        let pod = self.cluster.store().get(Resource::Pods, namespace, name).ok()?;
        let is_another = uid(&pod) != self.fixtures.namesake;
        let stays = pod["metadata"]["deletionTimestamp"].is_null();
        let node = pod["spec"]["nodeName"].as_str().unwrap_or("no node");
        (is_another && stays).then(|| node.to_owned())
    }

    /// Injects these faults into the controller's requests from now on, and into no others.
    pub(super) fn inject_faults(&self, faults: &[Rule]) {
        for rule in faults {
            self.cluster.faults().add(rule.clone().by(AGENT));
        }
    }

    /// Stops the controller and starts it again.
    pub(super) async fn restart(&mut self) -> anyhow::Result<()> {
        let mut address = FREE_PORT;
        if let Some(running) = self.controller.take() {
            // The metrics keep their address.
            address = running.address();
            running.stop().await?;
        }
        self.controller = Some(start(&self.client, address, self.compat).await?);
        Ok(())
    }

    /// Completes only if the controller has failed.
    pub(super) async fn failed(&mut self) -> anyhow::Error {
        match &mut self.controller {
            Some(running) => anyhow!(running.failed().await).context("the controller failed"),
            None => std::future::pending().await,
        }
    }

    /// Ends everything, each part within its limit.
    pub(super) async fn stop(self) -> anyhow::Result<()> {
        self.cluster.faults().clear();
        let stopped = match self.controller {
            Some(running) => timeout(STOP_LIMIT, running.stop()).await,
            None => Ok(Ok(())),
        };
        // What does not end in time ends with the runtime.
        let _ = timeout(STOP_LIMIT, self.kubelets.stop()).await;
        let _ = timeout(STOP_LIMIT, self.controllers.stop()).await;
        let _ = timeout(STOP_LIMIT, self.served.stop()).await;
        match stopped {
            Ok(outcome) => outcome.context("the controller failed while stopping"),
            Err(_) => bail!("the controller did not stop within {STOP_LIMIT:?}"),
        }
    }
}

/// The policy by which the sick node is cordoned and drained.
fn policy() -> Policy {
    let rule = ConditionRule {
        clear_after: Some(CLEAR_AFTER),
        ..ConditionRule::new(CONDITION, ConditionStatus::True, Duration::ZERO)
    };
    let pace = Limits { notice: NOTICE, spacing: Duration::ZERO, ..Limits::default() };
    Policy { pace, ..Policy::new("demo", vec![rule]) }
}

/// Starts the controller, and waits until it knows all nodes and pods.
async fn start(client: &Client, listen: SocketAddr, compat: Compat) -> anyhow::Result<Running> {
    let config = Config {
        kubeconfig: None,
        context: None,
        api_server_wait: API_SERVER_WAIT,
        listen,
        compat,
        election: None,
        lease_namespace: "kube-system".to_owned(),
        pod_uid: None,
        instance: "ostrakon-demo".to_owned(),
        dry_run: None,
        require_exclusive: false,
        settings: vec![policy()].into(),
        file: None,
    };
    let cluster =
        Cluster { client: client.clone(), server: "the cluster in this process".to_owned() };
    let running = controller::start(cluster, &config).await?;
    let address = running.address();
    let ready = async {
        while !is_ready(address).await.unwrap_or(false) {
            sleep(Duration::from_millis(10)).await;
        }
    };
    if timeout(READY_LIMIT, ready).await.is_err() {
        bail!("the controller did not become ready within {READY_LIMIT:?}");
    }
    Ok(running)
}

/// Asks `/readyz`.
async fn is_ready(address: SocketAddr) -> std::io::Result<bool> {
    let mut stream = TcpStream::connect(address).await?;
    stream.write_all(b"GET /readyz HTTP/1.0\r\n\r\n").await?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await?;
    Ok(answer.split(' ').nth(1) == Some("200"))
}
