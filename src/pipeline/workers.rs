//! The threads of the pipeline: two dispatchers and eight workers, from start to stop.
//!
//! A worker waits for a node item, a pod item or the stop. When it receives a pod item, it first handles
//! the node items in its channel: a change of a node affects all its pods, so it matters more, and the pod
//! is then evaluated with newer facts. This priority is an optimization; correctness does not depend on it.
//!
//! Nodes cannot starve pods. Each node waits at most once, and a worker handles at most
//! [`NODES_BEFORE_POD`] node items while it holds a pod item, however fast they arrive.
//!
//! The worker calls `done` after handling a key, so a key that changes on its way, or while it is being
//! handled, is handled once more and never twice at once.
//!
//! A panic is never swallowed: it stops all threads and is reported by [`Pipeline::failed`], and the
//! process must end. If only one worker died, an eighth of the cluster would have no evictions, and a
//! decision that panics once will do so again.

use std::any::Any;
use std::convert::Infallible;
use std::fmt;
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::thread::{self, JoinHandle};

use crossbeam_channel::{Receiver, Sender, TryRecvError, bounded, select};
use parking_lot::Mutex;
use tokio::runtime::Handle;
use tokio::sync::watch;

use super::dispatch::{Sharded, Stop, dispatch};
use super::{SHARDS, WorkQueue};

/// Node items that fit into a shard's channel; upstream's `NodeUpdateChannelSize`.
const NODE_CHANNEL: usize = 10;

/// Pod items that fit into a shard's channel; upstream's `podUpdateChannelSize`.
const POD_CHANNEL: usize = 1;

/// Node items that a worker handles at the most while it holds a pod item. More than a shard has
/// nodes in a cluster of 5,000, so nodes win in every ordinary case.
const NODES_BEFORE_POD: usize = 1_000;

/// What the workers do with the items. One handler serves all eight workers.
///
/// The methods run on a worker's thread, in the context of the tokio runtime that the pipeline was
/// started with. They must not block and must not do I/O: while one runs, its shard stands still,
/// and soon after so do the others. A panic ends the whole pipeline, see [`Pipeline::failed`].
pub trait Handler: Send + Sync + 'static {
    /// Keys of the node queue.
    type Node: Sharded;
    /// Keys of the pod queue.
    type Pod: Sharded;

    /// A node changed. Items of the same shard are handled one after the other.
    fn node(&self, shard: usize, node: &Self::Node);

    /// A pod changed. The node items that waited in the shard's channel have been handled before,
    /// up to a bound.
    fn pod(&self, shard: usize, pod: &Self::Pod);
}

/// The running threads. Stops them when dropped.
pub struct Pipeline<N: Sharded, P: Sharded> {
    control: Arc<Control<N, P>>,
    /// The receiving ends of the shards' channels.
    channels: Vec<(Receiver<N>, Receiver<P>)>,
    threads: Mutex<Vec<JoinHandle<()>>>,
}

/// How a panic in one thread, or a call from outside, reaches all the others.
struct Control<N, P> {
    nodes: Arc<WorkQueue<N>>,
    pods: Arc<WorkQueue<P>>,
    /// Dropped to stop.
    running: Mutex<Option<Sender<Infallible>>>,
    failure: watch::Sender<Option<Failure>>,
}

/// A thread of the pipeline panicked. The pipeline has stopped for good; the process must end with
/// an error, so that its supervisor restarts it.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("thread {thread} panicked, so the process must be restarted: {message}")]
pub struct Failure {
    /// The thread's name, such as `shard-3`.
    pub thread: String,
    /// What it panicked with.
    pub message: String,
}

impl<N: Sharded, P: Sharded> Pipeline<N, P> {
    /// Starts two dispatchers (`dispatch-nodes`, `dispatch-pods`) and eight workers (`shard-0` to
    /// `shard-7`), which carry what is added to `nodes` and `pods` to the `handler`. What the queues
    /// hold already is carried too. The workers run in the context of `runtime`.
    ///
    /// Shutting one of the queues down stops the pipeline.
    ///
    /// The error is the system's, when it grants no thread; those already started are stopped.
    pub fn start<H>(
        nodes: &Arc<WorkQueue<N>>,
        pods: &Arc<WorkQueue<P>>,
        handler: &Arc<H>,
        runtime: &Handle,
    ) -> io::Result<Self>
    where
        H: Handler<Node = N, Pod = P>,
    {
        let (running, stop) = bounded(0);
        let mut pipeline = Self {
            control: Arc::new(Control {
                nodes: Arc::clone(nodes),
                pods: Arc::clone(pods),
                running: Mutex::new(Some(running)),
                failure: watch::Sender::new(None),
            }),
            channels: Vec::with_capacity(SHARDS),
            threads: Mutex::new(Vec::with_capacity(SHARDS + 2)),
        };

        let node_channels: [_; SHARDS] = std::array::from_fn(|_| bounded(NODE_CHANNEL));
        let pod_channels: [_; SHARDS] = std::array::from_fn(|_| bounded(POD_CHANNEL));
        let to_nodes = node_channels.each_ref().map(|(sender, _)| sender.clone());
        let to_pods = pod_channels.each_ref().map(|(sender, _)| sender.clone());

        for (shard, ((_, nodes), (_, pods))) in
            node_channels.into_iter().zip(pod_channels).enumerate()
        {
            pipeline.channels.push((nodes.clone(), pods.clone()));
            let worker = Worker {
                shard,
                handler: Arc::clone(handler),
                control: Arc::clone(&pipeline.control),
                nodes,
                pods,
                stop: stop.clone(),
            };
            let runtime = runtime.clone();
            pipeline.spawn(format!("shard-{shard}"), move || {
                let _context = runtime.enter();
                worker.run();
            })?;
        }

        let (nodes, stop_nodes) = (Arc::clone(nodes), stop.clone());
        pipeline.spawn("dispatch-nodes".to_owned(), move || {
            dispatch(&nodes, &to_nodes, &stop_nodes);
        })?;
        let pods = Arc::clone(pods);
        pipeline.spawn("dispatch-pods".to_owned(), move || {
            dispatch(&pods, &to_pods, &stop);
        })?;
        Ok(pipeline)
    }

    /// Completes when a thread of the pipeline has panicked, with the first such panic, and never
    /// otherwise. By then all threads are about to stop. Whoever runs the pipeline awaits this
    /// beside its other reasons to end.
    pub fn failed(&self) -> impl Future<Output = Failure> + Send + use<N, P> {
        let mut failure = self.control.failure.subscribe();
        async move {
            if let Ok(failure) = failure.wait_for(Option::is_some).await
                && let Some(failure) = failure.clone()
            {
                return failure;
            }
            // The pipeline is gone, and had not failed.
            std::future::pending().await
        }
    }

    /// Shuts both queues down, stops all threads and waits for them: for as long as the items
    /// being handled take. Blocks the calling thread. What waits is dropped. A second call finds
    /// nothing to do. The error is the panic that ended a thread, if one did.
    pub fn stop(&self) -> Result<(), Failure> {
        self.control.stop();
        let threads = std::mem::take(&mut *self.threads.lock());
        for thread in threads {
            // A handler may hold the last reference to the pipeline; a thread cannot wait for itself.
            if thread.thread().id() != thread::current().id() {
                // It cannot have panicked: `spawn` catches that and reports it below.
                let _ = thread.join();
            }
        }
        let failure = self.control.failure.borrow().clone();
        failure.map_or(Ok(()), Err)
    }

    /// Runs `body` on a thread of its own. When that ends, for whatever reason, all others do.
    fn spawn(&self, name: String, body: impl FnOnce() + Send + 'static) -> io::Result<()> {
        let control = Arc::clone(&self.control);
        let thread = thread::Builder::new().name(name.clone()).spawn(move || {
            // What the panic left half done is not evaluated again: everything stops.
            match catch_unwind(AssertUnwindSafe(body)) {
                Ok(()) => control.stop(),
                Err(panic) => {
                    control.fail(Failure { thread: name, message: message(panic.as_ref()) })
                }
            }
        })?;
        self.threads.lock().push(thread);
        Ok(())
    }
}

impl<N: Sharded, P: Sharded> Drop for Pipeline<N, P> {
    fn drop(&mut self) {
        // Who wants to know of a failure calls `stop` or awaits `failed`.
        let _ = self.stop();
    }
}

impl<N: Sharded, P: Sharded> fmt::Debug for Pipeline<N, P> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let waiting = self.channels.iter().map(|(nodes, pods)| (nodes.len(), pods.len()));
        f.debug_struct("Pipeline")
            .field("nodes", &self.control.nodes)
            .field("pods", &self.control.pods)
            .field("waiting", &waiting.collect::<Vec<_>>())
            .finish_non_exhaustive()
    }
}

impl<N: Sharded, P: Sharded> Control<N, P> {
    fn stop(&self) {
        self.nodes.shutdown();
        self.pods.shutdown();
        self.running.lock().take();
    }

    fn fail(&self, failure: Failure) {
        self.failure.send_if_modified(|first| {
            let is_first = first.is_none();
            first.get_or_insert(failure);
            is_first
        });
        self.stop();
    }
}

/// What a thread panicked with. `panic!` makes a `&str` or a `String`.
fn message(panic: &(dyn Any + Send)) -> String {
    let text = panic.downcast_ref::<&str>().copied();
    let text = text.or_else(|| panic.downcast_ref::<String>().map(String::as_str));
    text.unwrap_or("(no message)").to_owned()
}

/// One shard's thread.
struct Worker<H: Handler> {
    shard: usize,
    handler: Arc<H>,
    control: Arc<Control<H::Node, H::Pod>>,
    nodes: Receiver<H::Node>,
    pods: Receiver<H::Pod>,
    stop: Stop,
}

impl<H: Handler> Worker<H> {
    fn run(&self) {
        while !self.stopping() {
            select! {
                recv(self.stop) -> _ => return,
                recv(self.nodes) -> node => match node {
                    Ok(node) => self.node(&node),
                    Err(_) => return,
                },
                recv(self.pods) -> pod => match pod {
                    Ok(pod) => {
                        self.waiting_nodes();
                        if self.stopping() {
                            return;
                        }
                        self.pod(&pod);
                    }
                    Err(_) => return,
                },
            }
        }
    }

    fn waiting_nodes(&self) {
        for node in self.nodes.try_iter().take(NODES_BEFORE_POD) {
            self.node(&node);
            if self.stopping() {
                return;
            }
        }
    }

    fn node(&self, node: &H::Node) {
        self.handler.node(self.shard, node);
        self.control.nodes.done(node);
    }

    fn pod(&self, pod: &H::Pod) {
        self.handler.pod(self.shard, pod);
        self.control.pods.done(pod);
    }

    fn stopping(&self) -> bool {
        matches!(self.stop.try_recv(), Err(TryRecvError::Disconnected))
    }
}

#[cfg(test)]
mod tests;
