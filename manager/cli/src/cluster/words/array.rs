//! The indices of an array's tasks: `0-99`, `1,3,5-7`.

use std::collections::BTreeSet;
use std::str::FromStr;

/// More tasks than any scheduler takes in at once.
const COUNT_MAX: usize = 1_000_000;

const ACCEPTED: &str = "write indices and ranges, such as 0-99 or 1,3,5-7";

/// Indices in ascending order, at least one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Indices(Vec<u32>);

impl Indices {
    pub(crate) fn into_vec(self) -> Vec<u32> {
        self.0
    }
}

impl FromStr for Indices {
    type Err = String;

    fn from_str(text: &str) -> Result<Indices, String> {
        let mut indices = BTreeSet::new();
        for part in text.split(',') {
            let (first, last) =
                range(part.trim()).ok_or_else(|| format!("{part:?} in {text:?} is no index or range; {ACCEPTED}"))?;
            if first > last {
                return Err(format!("{part:?} ends before it begins; {ACCEPTED}"));
            }
            if usize::try_from(last - first).map_or(true, |more| more >= COUNT_MAX - indices.len()) {
                return Err(format!("{text:?} are more than {COUNT_MAX} tasks; submit several jobs"));
            }
            if let Some(twice) = (first..=last).find(|&index| !indices.insert(index)) {
                return Err(format!("{text:?} has the index {twice} twice; {ACCEPTED}"));
            }
        }
        Ok(Indices(indices.into_iter().collect()))
    }
}

fn range(text: &str) -> Option<(u32, u32)> {
    let index = |text: &str| text.bytes().all(|byte| byte.is_ascii_digit()).then(|| text.parse().ok()).flatten();
    match text.split_once('-') {
        Some((first, last)) => Some((index(first)?, index(last)?)),
        None => index(text).map(|index| (index, index)),
    }
}

/// Indices as people write them: `0-99`, `1,3,5-7`. They must ascend.
pub(crate) fn short(indices: &[u32]) -> String {
    let mut ranges: Vec<(u32, u32)> = Vec::new();
    for &index in indices {
        match ranges.last_mut() {
            Some((_, last)) if last.checked_add(1) == Some(index) => *last = index,
            _ => ranges.push((index, index)),
        }
    }
    let text = |&(first, last): &(u32, u32)| if first == last { first.to_string() } else { format!("{first}-{last}") };
    ranges.iter().map(text).collect::<Vec<_>>().join(",")
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn indices(text: &str) -> Result<Vec<u32>, String> {
        text.parse().map(Indices::into_vec)
    }

    #[test]
    fn indices_and_ranges() {
        assert_eq!(indices("0-3"), Ok(vec![0, 1, 2, 3]));
        assert_eq!(indices("1,3,5-7"), Ok(vec![1, 3, 5, 6, 7]));
        assert_eq!(indices("7, 2"), Ok(vec![2, 7]));
        assert_eq!(indices("4294967295"), Ok(vec![u32::MAX]));
        for (text, problem) in [
            ("", "no index"),
            ("1,,2", "no index"),
            ("a", "no index"),
            ("-1", "no index"),
            ("1-", "no index"),
            ("1-2-3", "no index"),
            ("+1", "no index"),
            ("4294967296", "no index"),
            ("5-3", "ends before it begins"),
            ("1,0-2", "the index 1 twice"),
            ("0-4294967295", "more than 1000000 tasks"),
            ("0-999999,2000000", "more than 1000000 tasks"),
        ] {
            let error = indices(text).expect_err(text);
            assert!(error.contains(problem), "{text}: {error}");
        }
        assert_eq!(indices("0-999999").unwrap().len(), COUNT_MAX);
    }

    proptest! {
        #[test]
        fn never_panics(text in "[0-9,-]{0,12}|\\PC*") {
            let _ = indices(&text);
        }

        #[test]
        fn what_is_shown_is_read_back(set in proptest::collection::btree_set(0u32..300, 1..100)) {
            let set: Vec<u32> = set.into_iter().collect();
            prop_assert_eq!(indices(&short(&set)), Ok(set));
        }
    }
}
