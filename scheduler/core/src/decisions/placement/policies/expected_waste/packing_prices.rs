//! Prices of parts of a device, given how often each size is asked for.

use crate::decisions::placement::policies::expected_waste::fixed_point::{ONE, fixed, ratio, solve};

/// A number smaller than this is only an error of rounding.
const LEAST: i128 = ONE >> 28;
/// The most rounds. This is enough for any mix; each round improves the prices.
const ROUNDS_MAX: usize = 1000;

/// Prices of sizes, in thousandths of a device. They make all tasks together worth the most, while no packing of a
/// device is worth more than 1. This is the dual of packing the tasks, taken as divisible, onto as few devices as
/// possible. A size that can only be packed with waste bears the cost of that waste. A size that fits into what others
/// leave is worth little. The prices are found by column generation.
///
/// `sizes` are ascending, different, and between 1 and 1000; `counts` say how often each size is asked for.
pub(crate) fn prices(sizes: &[u16], counts: &[u64]) -> Vec<i128> {
    let number = sizes.len();
    let unit = |row: usize, value: i128| -> Vec<i128> {
        (0..number).map(|index| if index == row { value } else { 0 }).collect()
    };
    // At the beginning, each size is packed by itself.
    let mut patterns: Vec<Vec<i128>> =
        (0..number).map(|row| unit(row, fixed(u64::from(1000 / sizes[row].max(1))))).collect();
    let mut worths = vec![ONE; number];
    let wanted: Vec<i128> = counts.iter().map(|count| fixed(*count)).collect();
    let mut prices = vec![0; number];
    for _ in 0..ROUNDS_MAX {
        prices = solve(patterns.clone(), worths.clone());
        let surplus = (0..number).filter(|size| prices[*size] < -LEAST).min_by_key(|size| prices[*size]);
        let (column, worth) = match surplus {
            // More of this size than is asked for costs nothing.
            Some(size) => (unit(size, -ONE), 0),
            None => match best_packing(sizes, &prices) {
                (worth, packing) if worth > ONE + LEAST => (packing, ONE),
                _ => break,
            },
        };
        let rows: Vec<Vec<i128>> =
            (0..number).map(|row| patterns.iter().map(|pattern| pattern[row]).collect()).collect();
        let used = solve(rows.clone(), wanted.clone());
        let replaced = solve(rows, column.clone());
        let leaving = (0..number).filter(|index| replaced[*index] > LEAST);
        let Some(leaving) = leaving.min_by_key(|index| ratio(used[*index].max(0), replaced[*index])) else { break };
        patterns[leaving] = column;
        worths[leaving] = worth;
    }
    prices.iter().map(|price| (*price).max(0)).collect()
}

/// The most worth that each free part of a device can be filled with, by thousandths from 0 to 1000.
pub(crate) fn values(sizes: &[u16], prices: &[i128]) -> Vec<i128> {
    let mut values = vec![0; 1001];
    for free in 1..=1000usize {
        let filled = sizes.iter().zip(prices).filter_map(|(size, price)| {
            let rest = free.checked_sub(usize::from(*size))?;
            Some(values[rest] + price)
        });
        values[free] = filled.max().unwrap_or(0).max(values[free - 1]);
    }
    values
}

/// The packing of one device with the greatest worth: its worth, and the number of each size in it.
fn best_packing(sizes: &[u16], prices: &[i128]) -> (i128, Vec<i128>) {
    let values = values(sizes, prices);
    let mut packing = vec![0; sizes.len()];
    let mut free = 1000usize;
    while free > 0 {
        let taken = sizes.iter().zip(prices).position(|(size, price)| {
            let rest = free.checked_sub(usize::from(*size));
            *price > 0 && rest.is_some_and(|rest| values[rest] + price == values[free])
        });
        match taken {
            Some(size) if values[free] > values[free - 1] => {
                packing[size] += ONE;
                free -= usize::from(sizes[size]);
            }
            _ => free -= 1,
        }
    }
    (values[1000], packing)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn thousandths(prices: &[i128]) -> Vec<i128> {
        prices.iter().map(|price| (price * 1000 + ONE / 2) / ONE).collect()
    }

    #[test]
    fn sizes_that_fill_a_device_share_its_worth() {
        assert_eq!(thousandths(&prices(&[250, 500], &[10, 10])), [250, 500]);
    }

    #[test]
    fn a_size_that_leaves_a_remainder_pays_for_it() {
        // Hardly anything fits beside 810; what does is too rare to matter and so gets its place for nothing.
        assert_eq!(thousandths(&prices(&[160, 810], &[10, 1000])), [0, 1000]);
        // Now it is the other way round: the remainders are what is wanted.
        let prices = thousandths(&prices(&[160, 810], &[10_000, 10]));
        assert_eq!(prices, [167, 833]);
    }

    #[test]
    fn no_packing_is_worth_more_than_a_device() {
        let sizes: Vec<u16> = (1..60).map(|step| step * 17).filter(|size| *size <= 1000).collect();
        let counts: Vec<u64> = sizes.iter().map(|size| u64::from(size * 7 % 90 + 1)).collect();
        let prices = prices(&sizes, &counts);
        let (worth, _) = best_packing(&sizes, &prices);
        assert!(worth <= ONE + LEAST * 4 && worth > ONE - LEAST * 4, "{worth}");
    }
}
