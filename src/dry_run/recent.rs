//! A map that forgets its oldest keys.

use std::collections::VecDeque;
use std::hash::Hash;

use ahash::AHashMap;

/// A map of so many keys at the most. A further key takes the place of the oldest.
#[derive(Debug)]
pub(super) struct Recent<K, V> {
    most: usize,
    values: AHashMap<K, V>,
    /// Keys in the order in which they came; some may be gone.
    order: VecDeque<K>,
}

impl<K: Clone + Eq + Hash, V> Recent<K, V> {
    pub(super) fn new(most: usize) -> Self {
        Self { most, values: AHashMap::new(), order: VecDeque::new() }
    }

    pub(super) fn get(&self, key: &K) -> Option<&V> {
        self.values.get(key)
    }

    pub(super) fn remove(&mut self, key: &K) -> Option<V> {
        let removed = self.values.remove(key);
        self.trim();
        removed
    }

    /// The value of a key, which is made if there is none.
    pub(super) fn entry(&mut self, key: K, value: impl FnOnce() -> V) -> &mut V {
        if !self.values.contains_key(&key) {
            while self.values.len() >= self.most {
                let Some(oldest) = self.order.pop_front() else { break };
                self.values.remove(&oldest);
            }
            self.trim();
            self.order.push_back(key.clone());
        }
        self.values.entry(key).or_insert_with(value)
    }

    /// The order holds twice as many keys as there may be, at the most.
    fn trim(&mut self) {
        if self.order.len() > 2 * self.most {
            let values = &self.values;
            self.order.retain(|key| values.contains_key(key));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_oldest_keys_are_forgotten_and_removed_ones_take_no_room() {
        let mut recent = Recent::new(2);
        for key in 0..100 {
            *recent.entry(key, || 0) += key;
            if key % 3 == 0 {
                recent.remove(&key);
            }
            assert!(recent.values.len() <= 2 && recent.order.len() <= 5);
        }
        let left = [97, 98, 99].map(|key| recent.get(&key).copied());
        assert_eq!(left, [None, Some(98), None]);
    }
}
