//! Amounts by model.

/// Amounts by the resource number of the model, each number once and in ascending order. Most claims are charged for
/// one model, which needs no memory of its own.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum ByModel {
    OneAtMost(Option<(usize, u64)>),
    /// Two or more.
    Several(Vec<(usize, u64)>),
}

impl Default for ByModel {
    fn default() -> Self {
        Self::OneAtMost(None)
    }
}

impl ByModel {
    pub(super) fn as_slice(&self) -> &[(usize, u64)] {
        match self {
            Self::OneAtMost(only) => only.as_slice(),
            Self::Several(several) => several,
        }
    }

    /// Adds to the amount of a model.
    pub(super) fn add(&mut self, number: usize, amount: u64) {
        match self {
            Self::OneAtMost(only @ None) => *only = Some((number, amount)),
            Self::OneAtMost(Some((known, sum))) if *known == number => *sum = sum.saturating_add(amount),
            Self::OneAtMost(Some(only)) => {
                let mut both = vec![*only, (number, amount)];
                both.sort_unstable();
                *self = Self::Several(both);
            }
            Self::Several(several) => match several.binary_search_by_key(&number, |(known, _)| *known) {
                Ok(at) => several[at].1 = several[at].1.saturating_add(amount),
                Err(at) => several.insert(at, (number, amount)),
            },
        }
    }
}

impl FromIterator<(usize, u64)> for ByModel {
    fn from_iter<I: IntoIterator<Item = (usize, u64)>>(amounts: I) -> Self {
        let mut sum = Self::default();
        amounts.into_iter().for_each(|(number, amount)| sum.add(number, amount));
        sum
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn amounts_are_sums_in_ascending_order_of_models() {
        let mut sum = ByModel::default();
        assert_eq!(sum.as_slice(), []);
        let mut add = |number, amount, expected: &[(usize, u64)]| {
            sum.add(number, amount);
            assert_eq!(sum.as_slice(), expected);
        };
        add(6, 10, &[(6, 10)]);
        add(6, 5, &[(6, 15)]);
        add(4, 1, &[(4, 1), (6, 15)]);
        add(5, u64::MAX, &[(4, 1), (5, u64::MAX), (6, 15)]);
        add(5, 1, &[(4, 1), (5, u64::MAX), (6, 15)]);
    }

    #[test]
    fn the_same_amounts_are_equal_in_whatever_order_they_came() {
        let [one, other] = [[(4, 1), (7, 2)], [(7, 2), (4, 1)]].map(ByModel::from_iter);
        assert_eq!(one, other);
        assert_ne!(one, ByModel::from_iter([(4, 1)]));
    }
}
