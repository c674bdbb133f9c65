//! Values that many things have in common, each kept once.

use std::borrow::Borrow;
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

/// The number of the chunk with a value, or where it would be, and its position in the chunk, or where it would be.
type Place = (usize, Result<usize, usize>);

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
    pub(crate) fn join(&mut self, value: impl Borrow<T> + Into<Arc<T>>) -> Arc<T> {
        let place = self.find(value.borrow());
        self.join_at(place, 1, || value.into())
    }

    /// Adds several things that have this value. `new` makes the value to keep, equal to this one, if it is not known
    /// yet. Returns the kept value.
    pub(crate) fn join_with(&mut self, value: &T, things: usize, new: impl FnOnce() -> Arc<T>) -> Arc<T> {
        self.join_at(self.find(value), things, new)
    }

    fn join_at(&mut self, (number, found): Place, things: usize, new: impl FnOnce() -> Arc<T>) -> Arc<T> {
        let chunks = Arc::make_mut(&mut self.chunks);
        if chunks.is_empty() {
            chunks.push(Arc::default());
        }
        let chunk = Arc::make_mut(&mut chunks[number]);
        let value = match found {
            Ok(at) => {
                let (known, known_things) = &mut chunk[at];
                *known_things += things;
                return Arc::clone(known);
            }
            Err(at) => {
                let value = new();
                chunk.insert(at, (Arc::clone(&value), things));
                value
            }
        };
        if chunk.len() > CHUNK_MAX {
            let upper = chunk.split_off(CHUNK_MAX / 2);
            chunks.insert(number + 1, Arc::new(upper));
        }
        value
    }

    /// Removes several things that have a value. A value that no thing has is forgotten. Returns whether this one was
    /// forgotten now.
    pub(crate) fn leave(&mut self, value: &T, things: usize) -> bool {
        let (number, Ok(at)) = self.find(value) else { return false };
        let chunks = Arc::make_mut(&mut self.chunks);
        let chunk = Arc::make_mut(&mut chunks[number]);
        chunk[at].1 = chunk[at].1.saturating_sub(things);
        if chunk[at].1 > 0 {
            return false;
        }
        chunk.remove(at);
        if chunk.is_empty() {
            chunks.remove(number);
        }
        true
    }

    /// Whether there are no values.
    #[cfg(test)]
    pub(crate) fn is_empty(&self) -> bool {
        self.chunks.is_empty()
    }

    /// All values in order, each with the number of things that have it.
    #[cfg(test)]
    pub(crate) fn counts(&self) -> impl Iterator<Item = (&T, usize)> {
        self.chunks.iter().flat_map(|chunk| chunk.iter().map(|(value, things)| (&**value, *things)))
    }

    fn find(&self, value: &T) -> Place {
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

    #[test]
    fn equal_values_are_kept_once_and_forgotten_with_the_last() {
        let mut shared: Shared<str> = Shared::default();
        let (first, second, other) = (shared.join("a"), shared.join("a"), shared.join("b"));
        assert!(Arc::ptr_eq(&first, &second) && !Arc::ptr_eq(&first, &other));
        assert!(!shared.leave("a", 1));
        assert!(Arc::ptr_eq(&first, &shared.join("a")), "one thing still had it");
        assert!(shared.leave("a", 2), "these were all");
        assert!(!shared.leave("a", 1), "it was forgotten before");
        assert!(!Arc::ptr_eq(&first, &shared.join("a")), "nothing had it any more");
    }

    #[test]
    fn a_value_to_keep_is_made_only_if_it_is_not_known() {
        let mut shared: Shared<str> = Shared::default();
        let first = shared.join_with("a", 3, || "a".into());
        assert!(Arc::ptr_eq(&first, &shared.join_with("a", 2, || unreachable!("it is known"))));
        assert!(!shared.leave("a", 4) && shared.leave("a", 1));
        assert!(shared.is_empty());
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
        assert!(copy.counts().map(|(value, things)| (*value, things)).eq((0..1000).map(|value| (value, 1))));
    }

    proptest! {
        #[test]
        fn values_are_counted_in_order(steps in vec((any::<bool>(), 0u16..300, 1usize..4), 0..2000)) {
            let (mut shared, mut expected) = (Shared::<u16>::default(), BTreeMap::<u16, usize>::new());
            for (joins, value, things) in steps {
                if joins {
                    *expected.entry(value).or_default() += things;
                    prop_assert_eq!(*shared.join_with(&value, things, || Arc::new(value)), value);
                } else {
                    let was_known = expected.contains_key(&value);
                    expected.entry(value).and_modify(|known| *known = known.saturating_sub(things));
                    expected.retain(|_, things| *things > 0);
                    let is_forgotten = was_known && !expected.contains_key(&value);
                    prop_assert_eq!(shared.leave(&value, things), is_forgotten);
                }
            }
            prop_assert!(shared.counts().eq(expected.iter().map(|(value, things)| (value, *things))));
            let is_full = |chunk: &Chunk<u16>| (1..=CHUNK_MAX).contains(&chunk.len());
            prop_assert!(shared.chunks.iter().all(is_full));
        }
    }
}
