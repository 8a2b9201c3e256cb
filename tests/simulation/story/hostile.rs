//! A kubelet and a tenant that write what nobody else would, as fast as they may: P8. Each writes only what
//! the API lets it write. What happens to their own node and pods is their own affair; everybody else's pods
//! go and stay as they would without them, in calm stories to the second.

use ostrakon::model::{Node, NodeDrainFacts};
use ostrakon::sim::embedded::{DeleteOptions, Part, Resource};
use rand::Rng;
use rand::rngs::StdRng;
use serde_json::{Value, json};

use super::Story;

/// The kubelet's node.
pub(crate) const NODE: &str = "hostile";
/// The tenant's namespace.
pub(crate) const TENANT: &str = "tenant";

pub(super) struct Hostile {
    random: StdRng,
    serial: u64,
}

impl Hostile {
    pub(super) fn new(random: StdRng) -> Self {
        Self { random, serial: 0 }
    }
}

impl Story {
    /// The two do something, if they are there.
    pub(super) fn harass(&mut self) {
        let Some(mut hostile) = self.hostile.take() else { return };
        hostile.serial += 1;
        match hostile.random.random_range(0..12) {
            0..2 => self.many_conditions(&mut hostile),
            2..4 => self.absurd_annotations(&mut hostile),
            4 => self.rapid_patches(&mut hostile),
            5..7 => self.tolerant_pods(&mut hostile),
            7 => self.taints_of_its_own(&mut hostile),
            _ => {}
        }
        self.hostile = Some(hostile);
    }

    /// They are gone, and with them whatever waits because of them.
    pub(super) fn end_hostility(&mut self) {
        let Some(mut hostile) = self.hostile.take() else { return };
        self.drop_pods(&mut hostile, u64::MAX);
        let _ = self.cluster.store().delete(Resource::Nodes, "", NODE, &DeleteOptions::default());
    }

    fn hostile_node(&self, change: impl Fn(&mut Value)) {
        let node = json!({"metadata": {"name": NODE}, "status": {"conditions": []}});
        // It is there already, but for the first time.
        let _ = self.cluster.store().insert(Resource::Nodes, node);
        self.change_node(NODE, Part::Status, &change);
        self.change_node(NODE, Part::Whole, change);
    }

    fn many_conditions(&mut self, hostile: &mut Hostile) {
        let many = hostile.random.random_range(1..100);
        let serial = hostile.serial;
        self.hostile_node(|node| {
            let condition = |number| {
                json!({"type": format!("Odd{number}"), "status": "True", "reason": format!("r{serial}"),
                       "lastTransitionTime": "9000-01-01T00:00:00Z"})
            };
            node["status"]["conditions"] = (0..many).map(condition).collect();
        });
    }

    fn absurd_annotations(&mut self, hostile: &mut Hostile) {
        let texts = [
            "\u{fffd}".repeat(20),
            "x".repeat(40_000),
            r#"{"started":"9000-01-01T00:00:00Z","phase":"scheduled"}"#.to_owned(),
            r#"{"taints":[{"key":"b","value":"","since":"1970-01-01T00:00:00Z"}]}"#.to_owned(),
            "Odd1=True,0s;Odd2=True,0s;".repeat(300),
        ];
        let keys = [
            Node::SINCE_ANNOTATION,
            NodeDrainFacts::RECORD_ANNOTATION,
            NodeDrainFacts::DRAINO_CONDITIONS_ANNOTATION,
            NodeDrainFacts::RETRY_ANNOTATION,
        ];
        let text = texts[hostile.random.random_range(0..texts.len())].clone();
        let key = keys[hostile.random.random_range(0..keys.len())];
        self.hostile_node(|node| node["metadata"]["annotations"] = json!({key: text}));
    }

    fn rapid_patches(&mut self, hostile: &mut Hostile) {
        for _ in 0..20 {
            hostile.serial += 1;
            let text = hostile.serial.to_string();
            self.hostile_node(|node| {
                node["metadata"]["annotations"] = json!({Node::SINCE_ANNOTATION: text});
            });
        }
    }

    /// As a kubelet may register with.
    fn taints_of_its_own(&mut self, hostile: &mut Hostile) {
        let many = hostile.random.random_range(0..150);
        let taint = |number| json!({"key": format!("odd{number}"), "effect": "NoExecute"});
        self.hostile_node(|node| node["spec"]["taints"] = (0..many).map(taint).collect());
    }

    fn tolerant_pods(&mut self, hostile: &mut Hostile) {
        self.drop_pods(hostile, 3);
        let many = hostile.random.random_range(1..100);
        let nodes = [NODE, NODE, NODE, "n1", "n2", "n3"];
        let node = nodes[hostile.random.random_range(0..nodes.len())];
        let toleration = |number| json!({"key": format!("odd{number}"), "operator": "Exists", "tolerationSeconds": number});
        let name = format!("odd-{}", hostile.serial);
        let tolerations: Vec<_> = (0..many).map(toleration).collect();
        let _ = self.cluster.store().insert(Resource::Pods, json!({
            "metadata": {"name": name, "namespace": TENANT},
            "spec": {
                "nodeName": node, "terminationGracePeriodSeconds": 0, "tolerations": tolerations,
            },
            "status": {"phase": "Running", "conditions": [{"type": "PodScheduled", "status": "True"}]},
        }));
    }

    /// Deletes the latest pods of the tenant, so many at the most.
    fn drop_pods(&mut self, hostile: &mut Hostile, most: u64) {
        let at_once = DeleteOptions { grace_period_seconds: Some(0), ..DeleteOptions::default() };
        for serial in (0..=hostile.serial).rev().take(usize::try_from(most).unwrap_or(usize::MAX)) {
            let name = format!("odd-{serial}");
            let _ = self.cluster.store().delete(Resource::Pods, TENANT, &name, &at_once);
        }
    }
}
