//! Amounts of resources that are only counted, by name. A name that a map does not list has the amount 0.

use std::collections::BTreeMap;

/// The amount under a name; 0 if the map does not list it.
pub(crate) fn amount(amounts: &BTreeMap<String, u64>, name: &str) -> u64 {
    amounts.get(name).copied().unwrap_or(0)
}

/// The names of which more is wanted than there is: name, wanted amount, available amount.
fn lacking<'a>(
    wanted: &'a BTreeMap<String, u64>,
    there: &'a BTreeMap<String, u64>,
) -> impl Iterator<Item = (&'a str, u64, u64)> {
    let compared = wanted.iter().map(|(name, wanted)| (name.as_str(), *wanted, amount(there, name)));
    compared.filter(|(_, wanted, there)| wanted > there)
}

/// Whether there is enough of everything that is wanted.
pub(crate) fn is_enough(there: &BTreeMap<String, u64>, wanted: &BTreeMap<String, u64>) -> bool {
    lacking(wanted, there).next().is_none()
}

/// Adds amounts to a sum.
pub(crate) fn add(sum: &mut BTreeMap<String, u64>, amounts: &BTreeMap<String, u64>) {
    for (name, amount) in amounts.iter().filter(|(_, amount)| **amount > 0) {
        match sum.get_mut(name) {
            Some(sum) => *sum = sum.saturating_add(*amount),
            None => _ = sum.insert(name.clone(), *amount),
        }
    }
}

/// The sum of all these amounts, by name.
pub(crate) fn sum<'a>(all: impl Iterator<Item = &'a BTreeMap<String, u64>>) -> BTreeMap<String, u64> {
    all.fold(BTreeMap::new(), |mut sum, amounts| {
        add(&mut sum, amounts);
        sum
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn amounts<const N: usize>(all: [(&str, u64); N]) -> BTreeMap<String, u64> {
        all.into_iter().map(|(name, amount)| (name.to_owned(), amount)).collect()
    }

    #[test]
    fn what_is_not_listed_there_is_none_of() {
        let there = amounts([("pods", 2)]);
        assert!(is_enough(&there, &amounts([("pods", 2), ("hca", 0)])));
        let wanted = amounts([("hca", 1), ("pods", 3)]);
        assert_eq!(lacking(&wanted, &there).collect::<Vec<_>>(), [("hca", 1, 0), ("pods", 3, 2)]);
    }

    #[test]
    fn sums_are_by_name_and_hold_no_zeros() {
        let all = [amounts([("a", 1), ("b", 0)]), amounts([("a", u64::MAX), ("c", 2)])];
        assert_eq!(sum(all.iter()), amounts([("a", u64::MAX), ("c", 2)]));
    }
}
