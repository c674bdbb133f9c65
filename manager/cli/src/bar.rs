//! Bars and small charts of characters.

/// Columns that a bar fills, between its ends.
const WIDTH: u64 = 10;
/// Blocks that fill a column from the left by so many eighths.
const LEFT_EIGHTHS: [&str; 8] = ["", "▏", "▎", "▍", "▌", "▋", "▊", "▉"];
/// Blocks that fill a column from below by so many eighths.
const LOWER_EIGHTHS: [char; 8] = ['▁', '▂', '▃', '▄', '▅', '▆', '▇', '█'];

/// How much of `whole` `part` is: `▕███▌      ▏`.
pub(crate) fn bar(part: u64, whole: u64) -> String {
    let eighths = u128::from(part) * u128::from(WIDTH * 8) / u128::from(whole.max(1));
    let eighths = (eighths as u64).min(WIDTH * 8);
    // What is there is seen, however little it is.
    let eighths = if part > 0 { eighths.max(1) } else { 0 };
    let filled = "█".repeat((eighths / 8) as usize) + LEFT_EIGHTHS[(eighths % 8) as usize];
    let blank = " ".repeat((WIDTH - eighths.div_ceil(8)) as usize);
    format!("▕{filled}{blank}▏")
}

/// A column for each of `values`, the greatest that can be being `whole`; a blank for one that is 0.
pub(crate) fn columns(values: impl IntoIterator<Item = u64>, whole: u64) -> String {
    let column = |value: u64| match u128::from(value) * 8 / u128::from(whole.max(1)) {
        _ if value == 0 => ' ',
        eighths => LOWER_EIGHTHS[eighths.clamp(1, 8) as usize - 1],
    };
    values.into_iter().map(column).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bar_is_as_long_as_its_part() {
        assert_eq!(bar(0, 100), "▕          ▏");
        assert_eq!(bar(1, 1_000_000), "▕▏         ▏");
        assert_eq!(bar(35, 100), "▕███▌      ▏");
        assert_eq!(bar(100, 100), "▕██████████▏");
        for (part, whole) in [(u64::MAX, 1), (7, 0), (u64::MAX, u64::MAX)] {
            assert_eq!(bar(part, whole), bar(1, 1), "{part} of {whole}");
        }
    }

    #[test]
    fn columns_are_as_high_as_their_values() {
        assert_eq!(columns([0, 1, 50, 100, u64::MAX], 100), " ▁▄██");
        assert_eq!(columns([3], 0), "█");
    }
}
