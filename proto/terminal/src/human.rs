//! Amounts and time spans in a form for people.

const UNITS: [(u64, &str); 5] = [(1 << 40, "TiB"), (1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB"), (1, "B")];

/// Bytes for people, with at most one digit after the point: `4 GiB`, `1.5 GiB`, `0 B`.
#[must_use]
pub fn bytes_human(bytes: u64) -> String {
    let unit = UNITS.iter().position(|&(unit_bytes, _)| bytes >= unit_bytes).unwrap_or(UNITS.len() - 1);
    let tenths = |unit: usize| {
        let unit_bytes = u128::from(UNITS[unit].0);
        (u128::from(bytes) * 10 + unit_bytes / 2) / unit_bytes
    };
    // 1023.96 MiB is shown as 1 GiB, not as 1024 MiB.
    let unit = if tenths(unit) >= 10_240 { unit.saturating_sub(1) } else { unit };
    let (tenths, name) = (tenths(unit), UNITS[unit].1);
    match tenths % 10 {
        0 => format!("{} {name}", tenths / 10),
        tenth => format!("{}.{tenth} {name}", tenths / 10),
    }
}

/// Thousandths for people, exactly: `2`, `0.5`, `1.125`.
#[must_use]
pub fn thousandths_human(millis: u64) -> String {
    let text = format!("{}.{:03}", millis / 1000, millis % 1000);
    text.trim_end_matches('0').trim_end_matches('.').to_owned()
}

/// Millionths of something as a percentage for people, to a tenth: `12.5 %`.
#[must_use]
pub fn percent_human(millionths: u64) -> String {
    format!("{} %", thousandths_human(millionths / 1000 * 100))
}

/// A time span for people, with at most two of its units, as short as in a table: `45s`, `12m`, `3h20m`, `2d4h`.
#[must_use]
pub fn span_human(seconds: u64) -> String {
    let two = |most: u64, of: &str, rest: u64, rest_of: &str| match rest {
        0 => format!("{most}{of}"),
        _ => format!("{most}{of}{rest}{rest_of}"),
    };
    match seconds {
        0..60 => format!("{seconds}s"),
        60..600 => two(seconds / 60, "m", seconds % 60, "s"),
        600..3600 => format!("{}m", seconds / 60),
        3600..86_400 => two(seconds / 3600, "h", seconds / 60 % 60, "m"),
        _ => two(seconds / 86_400, "d", seconds / 3600 % 24, "h"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_and_spans_are_readable() {
        assert_eq!(bytes_human(0), "0 B");
        assert_eq!(bytes_human(4 << 30), "4 GiB");
        assert_eq!(bytes_human((3 << 29) + 1), "1.5 GiB");
        assert_eq!(bytes_human(1023), "1023 B");
        assert_eq!(bytes_human(858_993_459), "819.2 MiB");
        assert_eq!(bytes_human((1 << 30) - 1), "1 GiB");
        assert_eq!(bytes_human(u64::MAX), "16777216 TiB");
        for (seconds, text) in
            [(0, "0s"), (59, "59s"), (60, "1m"), (75, "1m15s"), (3599, "59m"), (12_000, "3h20m"), (187_200, "2d4h")]
        {
            assert_eq!(span_human(seconds), text);
        }
    }

    #[test]
    fn texts_of_bytes_are_short() {
        for bytes in (0..50).flat_map(|bits| [(1 << bits) - 1, 1 << bits, (1_u64 << bits) * 1023 / 1000]) {
            assert!(bytes_human(bytes).len() <= "1023.9 GiB".len(), "{}", bytes_human(bytes));
        }
    }
}
