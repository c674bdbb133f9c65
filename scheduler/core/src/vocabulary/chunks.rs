//! A growing list that is cheap to copy: copies share the chunks that have not changed since.

use std::sync::Arc;

/// A list in chunks of `N`, each shared by all copies of the list until one of them changes it.
#[derive(Clone, Debug)]
pub struct Chunks<T, const N: usize> {
    chunks: Vec<Arc<[T; N]>>,
    len: usize,
}

impl<T, const N: usize> Default for Chunks<T, N> {
    fn default() -> Self {
        Self { chunks: Vec::new(), len: 0 }
    }
}

impl<T, const N: usize> Chunks<T, N> {
    /// The number of values.
    #[must_use]
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether the list has no value.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The value at an index.
    #[must_use]
    pub fn get(&self, index: usize) -> Option<&T> {
        if index >= self.len {
            return None;
        }
        Some(&self.chunks.get(index / N)?[index % N])
    }

    /// All values, in order.
    pub fn iter(&self) -> impl Iterator<Item = &T> {
        self.chunks.iter().flat_map(|chunk| chunk.iter()).take(self.len)
    }
}

impl<T: Clone + Default, const N: usize> Chunks<T, N> {
    /// The value at an index, to be changed. If another list shares its chunk, the chunk is copied first.
    pub fn get_mut(&mut self, index: usize) -> Option<&mut T> {
        if index >= self.len {
            return None;
        }
        Some(&mut Arc::make_mut(self.chunks.get_mut(index / N)?)[index % N])
    }

    /// Adds a value at the end.
    pub fn push(&mut self, value: T) {
        if self.len.is_multiple_of(N) {
            self.chunks.push(Arc::new(std::array::from_fn(|_| T::default())));
        }
        self.len += 1;
        if let Some(slot) = self.get_mut(self.len - 1) {
            *slot = value;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_copy_keeps_what_the_original_changes() {
        let mut list: Chunks<u32, 4> = Chunks::default();
        (0..10).for_each(|value| list.push(value));
        let copy = list.clone();
        *list.get_mut(9).expect("ten were pushed") = 90;
        list.push(10);
        assert_eq!(copy.iter().copied().collect::<Vec<u32>>(), (0..10).collect::<Vec<u32>>());
        assert_eq!((list.get(9), list.get(10), list.get(11)), (Some(&90), Some(&10), None));
        assert_eq!((copy.get(9), copy.get(10), copy.len()), (Some(&9), None, 10));
    }

    #[test]
    fn a_change_copies_one_chunk_only() {
        let mut list: Chunks<u32, 4> = Chunks::default();
        (0..10).for_each(|value| list.push(value));
        let copy = list.clone();
        *list.get_mut(0).expect("ten were pushed") = 100;
        let shared = list.chunks.iter().zip(&copy.chunks).map(|(own, other)| Arc::ptr_eq(own, other));
        assert_eq!(shared.collect::<Vec<bool>>(), [false, true, true]);
    }
}
