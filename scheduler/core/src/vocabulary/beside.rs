//! Values that are kept beside those of a slab, and found by the same keys without a search.

use crate::vocabulary::slab::Key;

/// Values by key, in a table by the number of the key's slot.
#[derive(Clone, Debug)]
pub(crate) struct Beside<T, K> {
    slots: Vec<Option<(Key<K>, T)>>,
}

impl<T, K> Default for Beside<T, K> {
    fn default() -> Self {
        Self { slots: Vec::new() }
    }
}

impl<T, K> Beside<T, K> {
    pub(crate) fn get(&self, key: Key<K>) -> Option<&T> {
        self.slots.get(key.index())?.as_ref().filter(|(of, _)| *of == key).map(|(_, value)| value)
    }

    pub(crate) fn get_mut(&mut self, key: Key<K>) -> Option<&mut T> {
        self.slots.get_mut(key.index())?.as_mut().filter(|(of, _)| *of == key).map(|(_, value)| value)
    }
}

impl<T: Default, K> Beside<T, K> {
    /// The value of a key. If there is none yet, it is the default.
    pub(crate) fn of(&mut self, key: Key<K>) -> &mut T {
        if self.slots.len() <= key.index() {
            self.slots.resize_with(key.index() + 1, || None);
        }
        let slot = &mut self.slots[key.index()];
        if slot.as_ref().is_some_and(|(of, _)| *of != key) {
            *slot = None;
        }
        &mut slot.get_or_insert_with(|| (key, T::default())).1
    }
}

impl<T: Default, K> FromIterator<(Key<K>, T)> for Beside<T, K> {
    fn from_iter<I: IntoIterator<Item = (Key<K>, T)>>(values: I) -> Self {
        let mut beside = Self::default();
        values.into_iter().for_each(|(key, value)| *beside.of(key) = value);
        beside
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::vocabulary::slab::Slab;

    #[test]
    fn a_value_is_not_found_by_a_later_key_of_the_same_slot() {
        let mut slab: Slab<()> = Slab::default();
        let first = slab.insert(());
        let mut beside: Beside<u32, ()> = Beside::default();
        *beside.of(first) = 1;
        slab.remove(first);
        let second = slab.insert(());
        assert_eq!(second.index(), first.index());
        assert_eq!((beside.get(first), beside.get(second)), (Some(&1), None));
        *beside.of(second) += 2;
        assert_eq!((beside.get(first), beside.get(second)), (None, Some(&2)));
    }
}
