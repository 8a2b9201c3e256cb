//! Decodes the zone of a node: the value of the label that is configured to name it.

use std::sync::Arc;

use super::entry;
use crate::cluster::intern::Texts;
use crate::cluster::wire::fields::{Value, all, fields};

/// A longer value is none: the API server stores no label with one.
const LONGEST: usize = 63;

/// Reads the zones of nodes, sharing their names.
#[derive(Debug)]
pub struct Zones {
    label: Arc<str>,
    texts: Texts,
}

impl Zones {
    /// Zones by this label.
    pub fn by(label: Arc<str>) -> Self {
        Self { label, texts: Texts::default() }
    }

    /// The zone of a node in protobuf; `None` if the label is missing, empty, or no text.
    pub fn read(&mut self, object: &[u8]) -> Option<Arc<str>> {
        let labels = all(object, 1).flat_map(fields).filter_map(|field| match field {
            Ok((11, Value::Bytes(message))) => entry(message).ok(),
            _ => None,
        });
        let mut named = labels.filter(|(key, _)| *key == self.label.as_bytes());
        let (_, zone) = named.next()?;
        let zone = std::str::from_utf8(zone).ok().filter(|zone| !zone.is_empty())?;
        (zone.len() <= LONGEST).then(|| self.texts.get(zone))
    }
}

#[cfg(test)]
mod tests {
    use prost::Message;

    use super::*;
    use crate::cluster::wire;

    fn node(labels: &[(&str, &str)]) -> Vec<u8> {
        let label = |(key, value): &(&str, &str)| wire::MapEntry {
            key: (*key).to_owned().into(),
            value: (*value).to_owned().into(),
        };
        let metadata = wire::DrainMeta { labels: labels.iter().map(label).collect() };
        let rest = wire::NodeWithDrainFacts { metadata, ..wire::NodeWithDrainFacts::default() };
        [wire::Node::default().encode_to_vec(), rest.encode_to_vec()].concat()
    }

    #[test]
    fn the_zone_is_the_value_of_the_configured_label_and_is_shared() {
        let mut zones = Zones::by("example.com/rack".into());
        let stored = node(&[("topology.kubernetes.io/zone", "z"), ("example.com/rack", "r1")]);
        let (first, second) = (zones.read(&stored).unwrap(), zones.read(&stored).unwrap());
        assert_eq!(&*first, "r1");
        assert!(Arc::ptr_eq(&first, &second));
        assert_eq!(zones.read(&node(&[("topology.kubernetes.io/zone", "z")])), None);
        assert_eq!(zones.read(&node(&[("example.com/rack", "")])), None);
        assert_eq!(zones.read(&node(&[("example.com/rack", &"r".repeat(64))])), None);
        assert_eq!(zones.read(&[0xff, 0xff]), None, "what cannot be read has no zone");
    }
}
