//! Numbered slots that are used again, with keys that are never used again.

use std::marker::PhantomData;
use std::num::NonZeroU64;

use crate::vocabulary::chunks::Chunks;

/// The number of slots that are copied together when a copy of the slab is changed.
const CHUNK: usize = 64;

/// Names a value as long as the value exists. Keys are ordered as their values were added. Slots are used again, and
/// plans must not depend on a value's slot.
pub struct Key<T> {
    index: u32,
    /// One more than the number, so that an optional key takes no more memory than a key.
    serial: NonZeroU64,
    of: PhantomData<fn() -> T>,
}

impl<T> Key<T> {
    /// The slot's number, for tables beside the slab.
    #[must_use]
    pub fn index(self) -> usize {
        self.index as usize
    }

    /// A number that no other key of the same slab has or will have.
    #[must_use]
    pub fn number(self) -> u64 {
        self.serial.get() - 1
    }

    fn new(index: u32, number: u64) -> Self {
        Self { index, serial: NonZeroU64::MIN.saturating_add(number), of: PhantomData }
    }
}

impl<T> Clone for Key<T> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<T> Copy for Key<T> {}

impl<T> PartialEq for Key<T> {
    fn eq(&self, other: &Self) -> bool {
        self.serial == other.serial
    }
}

impl<T> Eq for Key<T> {}

impl<T> PartialOrd for Key<T> {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl<T> Ord for Key<T> {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        self.serial.cmp(&other.serial)
    }
}

impl<T> std::fmt::Debug for Key<T> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "#{}", self.number())
    }
}

/// Values by key. `K` is the type that keys name. Copies share the chunks that have not changed since.
#[derive(Clone, Debug)]
pub(crate) struct Slab<T, K = T> {
    /// Each slot, with the number of its present or last value.
    slots: Chunks<(u64, Option<T>), CHUNK>,
    free: Vec<u32>,
    next_number: u64,
    keys: PhantomData<fn() -> K>,
}

impl<T, K> Default for Slab<T, K> {
    fn default() -> Self {
        Self { slots: Chunks::default(), free: Vec::new(), next_number: 0, keys: PhantomData }
    }
}

impl<T: Clone, K> Slab<T, K> {
    pub(crate) fn insert(&mut self, value: T) -> Key<K> {
        let number = self.next_number;
        self.next_number += 1;
        if let Some(index) = self.free.pop()
            && let Some(slot) = self.slots.get_mut(index as usize)
        {
            *slot = (number, Some(value));
            return Key::new(index, number);
        }
        let index = u32::try_from(self.slots.len()).expect("fewer than 2^32 entries");
        self.slots.push((number, Some(value)));
        Key::new(index, number)
    }

    pub(crate) fn remove(&mut self, key: Key<K>) -> Option<T> {
        self.get(key)?;
        let value = self.slots.get_mut(key.index())?.1.take()?;
        self.free.push(key.index);
        Some(value)
    }

    pub(crate) fn get_mut(&mut self, key: Key<K>) -> Option<&mut T> {
        self.slots.get_mut(key.index()).filter(|(number, _)| *number == key.number())?.1.as_mut()
    }
}

impl<T, K> Slab<T, K> {
    pub(crate) fn get(&self, key: Key<K>) -> Option<&T> {
        self.slots.get(key.index()).filter(|(number, _)| *number == key.number())?.1.as_ref()
    }

    /// All values, in the order of slots, which is not the order of keys.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (Key<K>, &T)> {
        self.slots
            .iter()
            .zip(0u32..)
            .filter_map(|((number, slot), index)| Some((Key::new(index, *number), slot.as_ref()?)))
    }

    pub(crate) fn len(&self) -> usize {
        self.slots.len() - self.free.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_names_nothing_once_its_value_is_gone() {
        let mut slab: Slab<&str> = Slab::default();
        let first = slab.insert("first");
        assert_eq!(slab.remove(first), Some("first"));
        let second = slab.insert("second");
        assert_eq!(second.index(), first.index());
        assert!(second > first, "keys are ordered by time, not by slot");
        assert_eq!(slab.get(first), None);
        assert_eq!(slab.remove(first), None);
        assert_eq!(slab.get(second), Some(&"second"));
        assert_eq!(slab.len(), 1);
    }

    #[test]
    fn an_optional_key_takes_no_more_memory_than_a_key() {
        assert_eq!(size_of::<Option<Key<&str>>>(), size_of::<Key<&str>>());
        let mut slab: Slab<&str> = Slab::default();
        let numbers = ["first", "second"].map(|value| slab.insert(value).number());
        assert_eq!(numbers, [0, 1], "the first key's number is 0 all the same");
    }
}
