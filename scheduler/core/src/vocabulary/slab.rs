//! Numbered slots that are used again, with keys that are never used again.

use std::marker::PhantomData;

use crate::vocabulary::chunks::Chunks;

/// The number of slots that are copied together when a copy of the slab is changed.
const CHUNK: usize = 64;

/// Names a value as long as the value exists. Keys are ordered as their values were added. Slots are used again, and
/// plans must not depend on a value's slot.
pub struct Key<T> {
    index: u32,
    serial: u64,
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
        self.serial
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
        self.number() == other.number()
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
        write!(f, "#{}", self.serial)
    }
}

/// Values by key. `K` is the type that keys name. Copies share the chunks that have not changed since.
#[derive(Clone, Debug)]
pub(crate) struct Slab<T, K = T> {
    /// Each slot, with the serial number of its present or last value.
    slots: Chunks<(u64, Option<T>), CHUNK>,
    free: Vec<u32>,
    next_serial: u64,
    keys: PhantomData<fn() -> K>,
}

impl<T, K> Default for Slab<T, K> {
    fn default() -> Self {
        Self { slots: Chunks::default(), free: Vec::new(), next_serial: 0, keys: PhantomData }
    }
}

impl<T: Clone, K> Slab<T, K> {
    pub(crate) fn insert(&mut self, value: T) -> Key<K> {
        let serial = self.next_serial;
        self.next_serial += 1;
        if let Some(index) = self.free.pop()
            && let Some(slot) = self.slots.get_mut(index as usize)
        {
            *slot = (serial, Some(value));
            return Key { index, serial, of: PhantomData };
        }
        let index = u32::try_from(self.slots.len()).expect("fewer than 2^32 entries");
        self.slots.push((serial, Some(value)));
        Key { index, serial, of: PhantomData }
    }

    pub(crate) fn remove(&mut self, key: Key<K>) -> Option<T> {
        self.get(key)?;
        let value = self.slots.get_mut(key.index())?.1.take()?;
        self.free.push(key.index);
        Some(value)
    }

    pub(crate) fn get_mut(&mut self, key: Key<K>) -> Option<&mut T> {
        self.slots.get_mut(key.index()).filter(|(serial, _)| *serial == key.serial)?.1.as_mut()
    }
}

impl<T, K> Slab<T, K> {
    pub(crate) fn get(&self, key: Key<K>) -> Option<&T> {
        self.slots.get(key.index()).filter(|(serial, _)| *serial == key.serial)?.1.as_ref()
    }

    /// All values, in the order of slots, which is not the order of keys.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (Key<K>, &T)> {
        self.slots.iter().zip(0u32..).filter_map(|((serial, slot), index)| {
            Some((Key { index, serial: *serial, of: PhantomData }, slot.as_ref()?))
        })
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
}
