//! The least of several keys that change often.

/// A fixed number of keys, all absent at first. It is cheaper than an ordered set where only the least is asked for.
#[derive(Debug)]
pub(crate) struct Least<K> {
    /// A binary tree: the children of `at` are 2 · at and 2 · at + 1, the root is 1, and the keys are the last half.
    /// What is not a key is the lesser one of its children.
    tree: Vec<Option<K>>,
}

impl<K: Ord + Copy> Least<K> {
    pub(crate) fn new(keys: usize) -> Self {
        Self { tree: vec![None; 2 * keys] }
    }

    pub(crate) fn get(&self) -> Option<&K> {
        self.tree.get(1)?.as_ref()
    }

    /// Changes the key with this number, which is less than the number of keys.
    pub(crate) fn set(&mut self, number: usize, key: Option<K>) {
        let mut at = self.tree.len() / 2 + number;
        self.tree[at] = key;
        while at > 1 {
            at /= 2;
            self.tree[at] = match (self.tree[2 * at], self.tree[2 * at + 1]) {
                (Some(one), Some(other)) => Some(one.min(other)),
                (one, other) => one.or(other),
            };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::collection::vec;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn the_least_is_found_after_every_change(
            count in 1_usize..20,
            changes in vec((0_usize..20, any::<Option<u8>>()), 0..60),
        ) {
            let (mut keys, mut least) = (vec![None; count], Least::new(count));
            prop_assert_eq!(least.get(), None);
            for (number, key) in changes {
                keys[number % count] = key;
                least.set(number % count, key);
                prop_assert_eq!(least.get(), keys.iter().flatten().min());
            }
        }
    }

    #[test]
    fn of_no_keys_none_is_the_least() {
        assert_eq!(Least::<u8>::new(0).get(), None);
    }
}
