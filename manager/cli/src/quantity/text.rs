//! Quantities as they are printed.

/// Thousandths of a percent for people: `29.9`.
pub(crate) fn millipercent_human(millipercent: u64) -> String {
    let tenths = (millipercent + 50) / 100;
    format!("{}.{}", tenths / 10, tenths % 10)
}

/// A time span for people: `0 s`, `3.2 ms`, `4.5 s`, `2 min 5 s`.
pub(crate) fn duration_human(ns: u64) -> String {
    match ns {
        0 => "0 s".to_owned(),
        1..1_000_000 => format!("{:.1} µs", ns as f64 / 1e3),
        1_000_000..1_000_000_000 => format!("{:.1} ms", ns as f64 / 1e6),
        1_000_000_000..60_000_000_000 => format!("{:.1} s", ns as f64 / 1e9),
        _ => {
            let seconds = ns / 1_000_000_000;
            match (seconds / 3600, seconds / 60 % 60, seconds % 60) {
                (0, minutes, seconds) => format!("{minutes} min {seconds} s"),
                (hours, minutes, _) => format!("{hours} h {minutes} min"),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_and_times_are_readable() {
        assert_eq!(millipercent_human(29_949), "29.9");
        assert_eq!(millipercent_human(29_950), "30.0");
        assert_eq!(duration_human(0), "0 s");
        assert_eq!(duration_human(3_200_000), "3.2 ms");
        assert_eq!(duration_human(125_000_000_000), "2 min 5 s");
        assert_eq!(duration_human(7_380_000_000_000), "2 h 3 min");
    }
}
