//! Values that many things have in common, each kept once.

use std::sync::Arc;

/// The most values in a chunk. A change after a copy copies one chunk, and a reference to each of the other chunks.
const CHUNK_MAX: usize = 64;

/// Values, each with the number of things that have it. A copy is cheap: it shares the chunks that have not changed
/// since.
#[derive(Debug)]
pub(crate) struct Shared<T: ?Sized> {
    /// The values are in order, within a chunk and from chunk to chunk. No chunk is empty.
    chunks: Arc<Vec<Chunk<T>>>,
}

type Chunk<T> = Arc<Vec<(Arc<T>, usize)>>;

impl<T: ?Sized> Clone for Shared<T> {
    fn clone(&self) -> Self {
        Self { chunks: Arc::clone(&self.chunks) }
    }
}

impl<T: ?Sized> Default for Shared<T> {
    fn default() -> Self {
        Self { chunks: Arc::default() }
    }
}

impl<T: Ord + ?Sized> Shared<T> {
    /// Adds one thing that has this value. Returns the kept value that is equal to it.
    pub(crate) fn join(&mut self, value: impl Into<Arc<T>>) -> Arc<T> {
        let value = value.into();
        let (number, found) = self.find(&value);
        let chunks = Arc::make_mut(&mut self.chunks);
        if chunks.is_empty() {
            chunks.push(Arc::default());
        }
        let chunk = Arc::make_mut(&mut chunks[number]);
        match found {
            Ok(at) => {
                let (known, things) = &mut chunk[at];
                *things += 1;
                return Arc::clone(known);
            }
            Err(at) => chunk.insert(at, (Arc::clone(&value), 1)),
        }
        if chunk.len() > CHUNK_MAX {
            let upper = chunk.split_off(CHUNK_MAX / 2);
            chunks.insert(number + 1, Arc::new(upper));
        }
        value
    }

    /// Removes one thing that has a value. A value that no thing has is forgotten.
    pub(crate) fn leave(&mut self, value: &T) {
        let (number, Ok(at)) = self.find(value) else { return };
        let chunks = Arc::make_mut(&mut self.chunks);
        let chunk = Arc::make_mut(&mut chunks[number]);
        chunk[at].1 -= 1;
        if chunk[at].1 == 0 {
            chunk.remove(at);
        }
        if chunk.is_empty() {
            chunks.remove(number);
        }
    }

    /// Whether there are no values.
    #[cfg(test)]
    pub(crate) fn is_empty(&self) -> bool {
        self.chunks.is_empty()
    }

    /// The number of the chunk with a value, or where it would be, and its position in the chunk, or where it would be.
    fn find(&self, value: &T) -> (usize, Result<usize, usize>) {
        let begins_at_most_there = |chunk: &Chunk<T>| chunk.first().is_some_and(|(first, _)| **first <= *value);
        let number = self.chunks.partition_point(begins_at_most_there).saturating_sub(1);
        let within = |chunk: &Chunk<T>| chunk.binary_search_by(|(known, _)| (**known).cmp(value));
        (number, self.chunks.get(number).map_or(Err(0), within))
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::collection::vec;
    use proptest::prelude::*;

    use super::*;

    /// All values, each with the number of things that have it.
    fn counts(shared: &Shared<u16>) -> Vec<(u16, usize)> {
        shared.chunks.iter().flat_map(|chunk| chunk.iter().map(|(value, things)| (**value, *things))).collect()
    }

    #[test]
    fn equal_values_are_kept_once_and_forgotten_with_the_last() {
        let mut shared: Shared<str> = Shared::default();
        let (first, second, other) = (shared.join("a"), shared.join("a"), shared.join("b"));
        assert!(Arc::ptr_eq(&first, &second) && !Arc::ptr_eq(&first, &other));
        shared.leave("a");
        assert!(Arc::ptr_eq(&first, &shared.join("a")), "one thing still had it");
        shared.leave("a");
        shared.leave("a");
        assert!(!Arc::ptr_eq(&first, &shared.join("a")), "nothing had it any more");
    }

    #[test]
    fn a_change_after_a_copy_copies_one_chunk() {
        let mut shared: Shared<u16> = Shared::default();
        (0..1000).for_each(|value| _ = shared.join(value));
        let copy = shared.clone();
        shared.join(500);
        let pairs = || shared.chunks.iter().zip(copy.chunks.iter());
        assert_eq!(pairs().filter(|(own, other)| !Arc::ptr_eq(own, other)).count(), 1);
        assert!(pairs().count() > 10);
        assert_eq!(counts(&copy), (0..1000).map(|value| (value, 1)).collect::<Vec<_>>());
    }

    proptest! {
        #[test]
        fn values_are_counted_in_order(steps in vec((any::<bool>(), 0u16..300), 0..2000)) {
            let (mut shared, mut expected) = (Shared::default(), BTreeMap::<u16, usize>::new());
            for (joins, value) in steps {
                if joins {
                    *expected.entry(value).or_default() += 1;
                    prop_assert_eq!(*shared.join(value), value);
                } else {
                    expected.entry(value).and_modify(|things| *things -= 1);
                    expected.retain(|_, things| *things > 0);
                    shared.leave(&value);
                }
            }
            prop_assert_eq!(counts(&shared), expected.into_iter().collect::<Vec<_>>());
            let is_full = |chunk: &Chunk<u16>| (1..=CHUNK_MAX).contains(&chunk.len());
            prop_assert!(shared.chunks.iter().all(is_full));
        }
    }
}
