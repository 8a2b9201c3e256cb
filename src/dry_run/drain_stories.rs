//! What a dry run's drains would have done, node by node.

use std::collections::BTreeMap;

use jiff::Timestamp;
use parking_lot::Mutex;
use serde::Serialize;

use crate::model::NodeName;

/// So many nodes are told of.
const NODES: usize = 5_000;
/// So many steps of one node, the newest.
const STEPS: usize = 50;

/// The stories of all nodes that would have been cordoned or drained.
#[derive(Debug, Default)]
pub(crate) struct DrainStories {
    nodes: Mutex<BTreeMap<NodeName, Story>>,
}

/// What would have been done about one node.
#[derive(Clone, Debug, Default, Serialize)]
pub(crate) struct Story {
    /// The steps, in order. Their reasons are those of events.
    pub steps: Vec<Step>,
    /// Earlier steps that are not in the list.
    pub omitted: u64,
}

/// One step.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(crate) struct Step {
    /// When.
    pub at: Timestamp,
    /// For programs.
    pub reason: String,
    /// For people.
    pub message: String,
}

impl DrainStories {
    /// Something would have been done about a node, or something stood in the way.
    pub(crate) fn note(&self, node: &NodeName, at: Timestamp, reason: &str, message: &str) {
        let mut nodes = self.nodes.lock();
        if nodes.len() >= NODES && !nodes.contains_key(node) {
            return;
        }
        let story = nodes.entry(node.clone()).or_default();
        if story.steps.len() == STEPS {
            story.steps.remove(0);
            story.omitted += 1;
        }
        story.steps.push(Step { at, reason: reason.to_owned(), message: message.to_owned() });
    }

    /// The stories by node.
    pub(crate) fn all(&self) -> Vec<(NodeName, Story)> {
        self.nodes.lock().iter().map(|(node, story)| (node.clone(), story.clone())).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::build::at;

    #[test]
    fn the_newest_steps_of_so_many_nodes_are_kept() {
        let stories = DrainStories::default();
        for number in 0..i64::try_from(STEPS).unwrap() + 2 {
            stories.note(&"n1".into(), at(number), "DrainWaits", "x");
        }
        for number in 0..NODES {
            stories.note(
                &NodeName::from(format!("m{number}").as_str()),
                at(0),
                "CordonSucceeded",
                "x",
            );
        }
        let all = stories.all();
        assert_eq!(all.len(), NODES);
        let (_, story) = all.iter().find(|(node, _)| node.as_str() == "n1").unwrap();
        assert_eq!((story.steps.len(), story.omitted, story.steps[0].at), (STEPS, 2, at(2)));
    }
}
