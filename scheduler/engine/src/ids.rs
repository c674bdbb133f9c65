//! Maps names to numbers, in constant time. A copy is cheap.

#![expect(clippy::disallowed_types, reason = "values are only looked up by their key; nothing depends on an order")]

use std::collections::HashMap;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::Arc;

/// The number of parts. A change in a copy of the map copies only the part in which it falls.
const SHARDS: usize = 512;

/// A map without an order. Copies share what has not changed since they were made.
#[derive(Clone, Debug)]
pub(crate) struct IdMap<K, V> {
    shards: Vec<Arc<HashMap<K, V>>>,
}

impl<K, V> Default for IdMap<K, V> {
    fn default() -> Self {
        Self { shards: vec![Arc::default(); SHARDS] }
    }
}

impl<K: Hash + Eq + Clone, V: Copy> IdMap<K, V> {
    pub(crate) fn get(&self, key: &K) -> Option<V> {
        self.shards.get(shard(key))?.get(key).copied()
    }

    pub(crate) fn insert(&mut self, key: K, value: V) {
        if let Some(shard) = self.shards.get_mut(shard(&key)) {
            Arc::make_mut(shard).insert(key, value);
        }
    }

    pub(crate) fn remove(&mut self, key: &K) {
        if let Some(shard) = self.shards.get_mut(shard(key)) {
            Arc::make_mut(shard).remove(key);
        }
    }
}

fn shard<K: Hash>(key: &K) -> usize {
    let mut hasher = DefaultHasher::new();
    key.hash(&mut hasher);
    usize::try_from(hasher.finish() % SHARDS as u64).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_copy_keeps_what_the_original_changes() {
        let mut map: IdMap<u32, u32> = IdMap::default();
        (0..2000).for_each(|key| map.insert(key, key + 1));
        let copy = map.clone();
        map.remove(&7);
        map.insert(8, 0);
        assert_eq!((map.get(&7), map.get(&8), map.get(&1999)), (None, Some(0), Some(2000)));
        assert_eq!((copy.get(&7), copy.get(&8), copy.get(&1999)), (Some(8), Some(9), Some(2000)));
    }
}
