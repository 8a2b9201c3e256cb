//! What many pods have in common, kept once: namespaces, node names, toleration lists.
//!
//! A cluster of 150,000 pods has a few thousand node names and a handful of different toleration
//! lists. Nobody says when the last pod with a text is gone, so what nobody else holds is
//! forgotten from time to time: never less often than when twice as much has come together as
//! was left the last time.

use std::sync::Arc;

use ahash::{AHashMap, AHashSet};
use bytes::Bytes;

use crate::model::Toleration;

/// Below this number of entries nothing is forgotten unasked.
const FEW: usize = 1024;

/// Texts, each once.
#[derive(Debug, Default)]
pub(super) struct Texts {
    known: AHashSet<Arc<str>>,
    kept: usize,
}

impl Texts {
    /// The one copy of this text.
    pub(super) fn get(&mut self, text: &str) -> Arc<str> {
        if let Some(known) = self.known.get(text) {
            return Arc::clone(known);
        }
        if self.known.len() >= self.kept.max(FEW) * 2 {
            self.prune();
        }
        let new: Arc<str> = Arc::from(text);
        self.known.insert(Arc::clone(&new));
        new
    }

    /// Forgets what nobody else holds.
    pub(super) fn prune(&mut self) {
        self.known.retain(|text| Arc::strong_count(text) > 1);
        self.known.shrink_to_fit();
        self.kept = self.known.len();
    }

    #[cfg(test)]
    pub(super) fn len(&self) -> usize {
        self.known.len()
    }
}

/// Toleration lists, each once, by the bytes in which they came.
///
/// Nearly every list came before, and then it is found without reading it. Two lists that mean
/// the same in different bytes are kept twice, which costs a little room and nothing else.
#[derive(Debug, Default)]
pub(super) struct Lists {
    known: AHashMap<Box<[u8]>, Arc<[Toleration]>>,
    kept: usize,
    key: Vec<u8>,
}

impl Lists {
    /// The one copy of the list that these messages make up, read by `read` if it is new.
    pub(super) fn get(
        &mut self,
        messages: &[Bytes],
        read: impl FnOnce(&[Bytes]) -> Result<Arc<[Toleration]>, String>,
    ) -> Result<Arc<[Toleration]>, String> {
        self.key.clear();
        for message in messages {
            self.key.extend_from_slice(&message.len().to_le_bytes());
            self.key.extend_from_slice(message);
        }
        if let Some(known) = self.known.get(self.key.as_slice()) {
            return Ok(Arc::clone(known));
        }
        if self.known.len() >= self.kept.max(FEW) * 2 {
            self.prune();
        }
        let new = read(messages)?;
        self.known.insert(self.key.as_slice().into(), Arc::clone(&new));
        Ok(new)
    }

    /// Forgets what nobody else holds.
    pub(super) fn prune(&mut self) {
        self.known.retain(|_, list| Arc::strong_count(list) > 1);
        self.known.shrink_to_fit();
        self.kept = self.known.len();
    }

    #[cfg(test)]
    pub(super) fn len(&self) -> usize {
        self.known.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_that_nobody_holds_are_forgotten_unasked_and_others_never() {
        let mut texts = Texts::default();
        let held = texts.get("held");
        for number in 0..10 * FEW {
            texts.get(&number.to_string());
        }
        assert!(texts.len() <= 2 * FEW + 1, "{}", texts.len());
        assert!(Arc::ptr_eq(&held, &texts.get("held")));
    }

    #[test]
    fn a_list_is_told_from_the_same_bytes_cut_elsewhere() {
        let mut lists = Lists::default();
        let mut get = |messages: &[&'static [u8]]| {
            let messages: Vec<_> = messages.iter().map(|m| Bytes::from_static(m)).collect();
            lists.get(&messages, |_| Ok(Arc::from([]))).unwrap()
        };
        assert!(Arc::ptr_eq(&get(&[b"ab", b"c"]), &get(&[b"ab", b"c"])));
        get(&[b"a", b"bc"]);
        get(&[b"abc"]);
        assert_eq!(lists.len(), 3);
    }
}
