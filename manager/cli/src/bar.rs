//! Bars and small charts made of characters.

/// Columns between the ends of a bar.
const WIDTH: u64 = 10;
/// Blocks that fill 0 to 7 eighths of a column, from the left.
const LEFT_EIGHTHS: [&str; 8] = ["", "▏", "▎", "▍", "▌", "▋", "▊", "▉"];
/// Blocks that fill 1 to 8 eighths of a column, from below.
const LOWER_EIGHTHS: [char; 8] = ['▁', '▂', '▃', '▄', '▅', '▆', '▇', '█'];

/// A bar that shows `part` of `whole`: `▕███▌      ▏`.
pub(crate) fn bar(part: u64, whole: u64) -> String {
    let eighths = u128::from(part) * u128::from(WIDTH * 8) / u128::from(whole.max(1));
    let eighths = (eighths as u64).min(WIDTH * 8);
    // A part above 0 is always visible, however small it is.
    let eighths = if part > 0 { eighths.max(1) } else { 0 };
    let filled = "█".repeat((eighths / 8) as usize) + LEFT_EIGHTHS[(eighths % 8) as usize];
    let blank = " ".repeat((WIDTH - eighths.div_ceil(8)) as usize);
    format!("▕{filled}{blank}▏")
}

/// A chart with one column for each of `values`; `whole` has full height, and 0 is blank.
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
