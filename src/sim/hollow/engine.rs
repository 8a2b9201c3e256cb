//! The task that advances the state, and the tasks that send its requests.

use k8s_openapi::api::core::v1 as core;
use kube::runtime::watcher::Event;
use tokio::sync::{mpsc, oneshot, watch};
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use super::calls::Calls;
use super::node::HollowNode;
use super::objects::{Node, Pod};
use super::state::{Call, Outcome, Reply, Request, State, Work};
use super::switches::Switch;
use crate::model::NodeName;

/// What a person or a test tells the kubelets to do.
pub(super) enum Command {
    /// Take over a node that was registered.
    Adopt { node: Box<HollowNode>, address: String, stored: Box<Node> },
    /// Change a node's behaviour. An answer is dropped if there is no such node.
    Set { node: NodeName, switch: Switch, done: oneshot::Sender<()> },
    /// Restart a kubelet.
    Restart { node: NodeName, down_for: std::time::Duration, done: oneshot::Sender<()> },
    /// Let go of a node.
    Dismiss(NodeName),
}

/// Where the engine hears from.
pub(super) struct Inbox {
    pub(super) commands: mpsc::Receiver<Command>,
    pub(super) pods: mpsc::Receiver<Event<Pod>>,
    pub(super) nodes: mpsc::Receiver<Event<Node>>,
}

/// Runs until `stop`, then waits for the requests that are on their way.
pub(super) async fn run(
    mut state: State,
    calls: Calls,
    mut inbox: Inbox,
    synced: watch::Sender<bool>,
    stop: CancellationToken,
) {
    let mut flying: JoinSet<(Work, NodeName, Outcome)> = JoinSet::new();
    loop {
        while let Some(request) = state.next_request() {
            let calls = calls.clone();
            flying.spawn(async move {
                let Request { work, node, call } = request;
                let outcome = send(&calls, call).await;
                (work, node, outcome)
            });
        }
        tokio::select! {
            () = stop.cancelled() => break,
            Some(command) = inbox.commands.recv() => obey(&mut state, command),
            Some(event) = inbox.pods.recv() => state.pod_event(event),
            Some(event) = inbox.nodes.recv() => state.node_event(event),
            Some(done) = flying.join_next() => {
                if let Ok((work, node, outcome)) = done {
                    state.settle(work, &node, outcome);
                }
            }
            work = state.timers.next() => state.ask(work),
        }
        synced.send_if_modified(|was| !std::mem::replace(was, state.is_synced()) && *was);
    }
    // Each has its timeout, so this comes to an end.
    while flying.join_next().await.is_some() {}
}

fn obey(state: &mut State, command: Command) {
    match command {
        Command::Adopt { node, address, stored } => state.adopt(*node, address, *stored),
        Command::Set { node, switch, done } => state.set(&node, switch, done),
        Command::Restart { node, down_for, done } => state.restart(&node, down_for, done),
        Command::Dismiss(node) => state.dismiss(&node),
    }
}

async fn send(calls: &Calls, call: Call) -> Outcome {
    let node = |node| Reply::Node(Box::new(node));
    let pod = |pod| Reply::Pod(Box::new(pod));
    match call {
        Call::CreateLease(lease) => calls.create_lease(&lease).await.map(|()| Reply::Done),
        Call::RenewLease(name, patch) => {
            calls.patch_lease(&name, &patch).await.map(|()| Reply::Done)
        }
        Call::PatchNodeStatus(name, patch) => {
            calls.patch_node_status(&name, &patch).await.map(node)
        }
        Call::CreatePod(pod) => create(calls, &pod).await,
        Call::PatchPodStatus(of, patch) => calls.patch_pod_status(&of, &patch).await.map(pod),
        Call::RemovePod(pod) => calls.remove_pod(&pod).await.map(|()| Reply::Done),
    }
}

async fn create(calls: &Calls, pod: &core::Pod) -> Outcome {
    calls.create_pod(pod).await.map(|_| Reply::Done)
}
