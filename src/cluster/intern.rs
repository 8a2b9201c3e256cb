//! Interning of values that many pods share: namespaces, node names, toleration lists.
//!
//! A cluster of 150,000 pods has a few thousand node names and a handful of different toleration lists.
//! Unused values are dropped from time to time, at the latest when the number of interned bytes has
//! doubled since the last time. Bytes count, not entries, because the author of a pod chooses their
//! length.

use std::sync::Arc;

use ahash::{AHashMap, AHashSet};

use crate::model::Toleration;

/// Below this many bytes, values are only dropped on request.
const FEW: usize = 128 << 10;
/// What an entry costs beside its text: its place in the table and the counters of what is shared.
const ENTRY: usize = 48;
/// A list in more bytes than this is not shared: it would be its own key, and no workload that has
/// many pods has one.
const LONGEST_KEY: usize = 4 << 10;

/// Texts, each once.
#[derive(Debug, Default)]
pub(super) struct Texts {
    known: AHashSet<Arc<str>>,
    room: Room,
}

/// How much a table takes, in bytes.
#[derive(Debug, Default)]
struct Room {
    taken: usize,
    /// What was left when it was pruned the last time.
    kept: usize,
}

impl Room {
    fn is_full(&self) -> bool {
        self.taken >= self.kept.max(FEW) * 2
    }

    fn pruned(&mut self, left: usize) {
        *self = Self { taken: left, kept: left };
    }
}

impl Texts {
    /// The one copy of this text.
    pub(super) fn get(&mut self, text: &str) -> Arc<str> {
        if let Some(known) = self.known.get(text) {
            return Arc::clone(known);
        }
        if self.room.is_full() {
            self.prune();
        }
        let new: Arc<str> = Arc::from(text);
        self.room.taken += text.len() + ENTRY;
        self.known.insert(Arc::clone(&new));
        new
    }

    /// Drops unused values.
    pub(super) fn prune(&mut self) {
        self.known.retain(|text| Arc::strong_count(text) > 1);
        self.known.shrink_to_fit();
        self.room.pruned(self.known.iter().map(|text| text.len() + ENTRY).sum());
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
    room: Room,
    key: Vec<u8>,
}

impl Lists {
    /// The one copy of the list that these messages make up, read by `read` if it is new. `read` says
    /// besides whether the list may be kept for the next pod with the same.
    pub(super) fn get<'a, M: Iterator<Item = &'a [u8]> + Clone>(
        &mut self,
        messages: M,
        read: impl FnOnce(M) -> (Arc<[Toleration]>, bool),
    ) -> Arc<[Toleration]> {
        self.key.clear();
        for message in messages.clone() {
            self.key.extend_from_slice(&message.len().to_le_bytes());
            if self.key.len() + message.len() > LONGEST_KEY {
                return read(messages).0;
            }
            self.key.extend_from_slice(message);
        }
        if let Some(known) = self.known.get(self.key.as_slice()) {
            return Arc::clone(known);
        }
        if self.room.is_full() {
            self.prune();
        }
        let (new, is_kept) = read(messages);
        if is_kept {
            self.room.taken += bytes_of(&self.key, &new);
            self.known.insert(self.key.as_slice().into(), Arc::clone(&new));
        }
        new
    }

    /// Drops unused values.
    pub(super) fn prune(&mut self) {
        self.known.retain(|_, list| Arc::strong_count(list) > 1);
        self.known.shrink_to_fit();
        self.room.pruned(self.known.iter().map(|(key, list)| bytes_of(key, list)).sum());
    }

    #[cfg(test)]
    pub(super) fn len(&self) -> usize {
        self.known.len()
    }
}

/// What a list and its key take, with the texts that it may be the last to hold.
fn bytes_of(key: &[u8], list: &[Toleration]) -> usize {
    let texts = list.iter().map(|t| t.key.len() + t.value.len()).sum::<usize>();
    key.len() + size_of_val(list) + texts + 2 * ENTRY
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_that_nobody_holds_are_forgotten_unasked_and_others_never() {
        let mut texts = Texts::default();
        let held = texts.get("held");
        for number in 0..100_000 {
            texts.get(&number.to_string());
        }
        assert!(texts.len() <= 2 * FEW / ENTRY, "{}", texts.len());
        for number in 0..1_000 {
            texts.get(&number.to_string().repeat(1_000));
        }
        let bytes: usize = texts.known.iter().map(|text| text.len()).sum();
        assert!(bytes <= 3 * FEW, "a few long ones count as many short ones: {bytes}");
        assert!(Arc::ptr_eq(&held, &texts.get("held")));
    }

    #[test]
    fn a_list_is_told_from_the_same_bytes_cut_elsewhere() {
        let mut lists = Lists::default();
        let mut get = |messages: &[&'static [u8]]| {
            lists.get(messages.iter().copied(), |_| (Arc::from([]), true))
        };
        assert!(Arc::ptr_eq(&get(&[b"ab", b"c"]), &get(&[b"ab", b"c"])));
        get(&[b"a", b"bc"]);
        get(&[b"abc"]);
        assert_eq!(lists.len(), 3);
    }
}
