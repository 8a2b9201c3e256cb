//! Turns: who waits for the same thing, in the order in which they go.

use std::collections::BTreeSet;
use std::sync::Arc;

use ahash::AHashMap;

/// Nobody counts further than this: whoever is that far behind asks again when so many have gone.
const FAR: usize = 256;

/// Lines that wait, the one with the least key first.
#[derive(Debug)]
pub(super) struct Turns<K> {
    order: BTreeSet<(K, Arc<str>)>,
    keys: AHashMap<Arc<str>, K>,
}

impl<K> Default for Turns<K> {
    fn default() -> Self {
        Self { order: BTreeSet::new(), keys: AHashMap::new() }
    }
}

impl<K: Ord + Copy> Turns<K> {
    /// How many go before this line, which waits from now on. One that waits already keeps its key.
    pub(super) fn join(&mut self, line: &str, key: K) -> usize {
        if !self.keys.contains_key(line) {
            let line: Arc<str> = Arc::from(line);
            self.order.insert((key, Arc::clone(&line)));
            self.keys.insert(line, key);
        }
        self.ahead(line)
    }

    /// The line does not wait any more. Returns its key if it did.
    pub(super) fn leave(&mut self, line: &str) -> Option<K> {
        let (line, key) = self.keys.remove_entry(line)?;
        self.order.remove(&(key, line));
        Some(key)
    }

    /// Whether a line waits.
    pub(super) fn has(&self, line: &str) -> bool {
        self.keys.contains_key(line)
    }

    /// How many lines wait.
    pub(super) fn len(&self) -> usize {
        self.order.len()
    }

    /// How many go before this line. Counts no further than 256.
    pub(super) fn ahead(&self, line: &str) -> usize {
        self.order.iter().take(FAR).position(|(_, other)| &**other == line).unwrap_or(FAR)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_least_key_goes_first_and_a_line_keeps_its_own() {
        let mut turns = Turns::default();
        assert_eq!(turns.join("b", 2), 0);
        assert_eq!(turns.join("c", 3), 1);
        assert_eq!(turns.join("a", 1), 0);
        assert_eq!(turns.join("b", 9), 1, "it waits since 2");
        assert_eq!((turns.leave("a"), turns.leave("a")), (Some(1), None));
        assert_eq!((turns.join("b", 9), turns.len()), (0, 2));
    }

    #[test]
    fn who_is_far_behind_is_counted_as_far() {
        let mut turns = Turns::default();
        let ahead: Vec<_> = (0..1_000).map(|n| turns.join(&format!("{n:04}"), n)).collect();
        assert_eq!((ahead[0], ahead[255], ahead[999]), (0, 255, FAR));
    }
}
