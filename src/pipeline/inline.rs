//! The pipeline's work in the caller's task: no threads, no channels, and the same order of nodes
//! before pods. For simulations, whose time is virtual and whose every step a seed decides.

use std::future::poll_fn;
use std::task::Poll;

use super::{Handler, Sharded, WorkQueue, shard_of};

/// An item of either queue.
enum Item<N, P> {
    Node(N),
    Pod(P),
}

/// Hands what is added to `nodes` and `pods` to the `handler`, until one of the queues is shut down.
/// A node's change decides about all its pods, so pods wait while there are nodes.
pub async fn work_inline<H: Handler>(
    nodes: &WorkQueue<H::Node>,
    pods: &WorkQueue<H::Pod>,
    handler: &H,
) {
    let next = || {
        poll_fn(|context| match nodes.poll_get(context) {
            Poll::Ready(node) => Poll::Ready(node.map(Item::Node)),
            Poll::Pending => pods.poll_get(context).map(|pod| pod.map(Item::Pod)),
        })
    };
    while let Some(item) = next().await {
        match item {
            Item::Node(node) => {
                handler.node(shard_of(node.node_name()), &node);
                nodes.done(&node);
            }
            Item::Pod(pod) => {
                handler.pod(shard_of(pod.node_name()), &pod);
                pods.done(&pod);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use parking_lot::Mutex;

    use super::*;

    #[derive(Clone, PartialEq, Eq, Hash)]
    struct Key(&'static str);

    impl Sharded for Key {
        fn node_name(&self) -> &str {
            self.0
        }
    }

    #[derive(Default)]
    struct Log(Mutex<Vec<String>>);

    impl Handler for Log {
        type Node = Key;
        type Pod = Key;

        fn node(&self, shard: usize, node: &Key) {
            assert_eq!(shard, shard_of(node.0));
            self.0.lock().push(format!("node {}", node.0));
        }

        fn pod(&self, shard: usize, pod: &Key) {
            assert_eq!(shard, shard_of(pod.0));
            self.0.lock().push(format!("pod {}", pod.0));
        }
    }

    #[tokio::test]
    async fn nodes_go_before_pods_and_what_comes_later_is_handled_too() {
        let queues = Arc::new((WorkQueue::new(), WorkQueue::new(), Log::default()));
        let (nodes, pods, log) = &*queues;
        pods.add(Key("a"));
        nodes.add(Key("b"));
        nodes.add(Key("b"));
        let worker = tokio::spawn({
            let queues = Arc::clone(&queues);
            async move { work_inline(&queues.0, &queues.1, &queues.2).await }
        });
        tokio::task::yield_now().await;
        assert_eq!(*log.0.lock(), ["node b", "pod a"]);
        pods.add(Key("c"));
        tokio::task::yield_now().await;
        assert_eq!(log.0.lock().last().map(String::as_str), Some("pod c"));
        assert!(!worker.is_finished());
        pods.shutdown();
        worker.await.unwrap();
    }
}
