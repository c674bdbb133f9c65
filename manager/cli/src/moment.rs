//! Formats times for people.

use prost_types::Timestamp;

/// A time to the second, in UTC: `2026-11-23 04:23:46Z`; `-` if it is unknown.
pub(crate) fn human(time: Option<&Timestamp>) -> String {
    let text = time.map(|time| Timestamp { nanos: 0, ..*time }.to_string());
    text.map_or_else(|| "-".to_owned(), |text| text.replacen('T', " ", 1))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_time_has_no_more_digits_than_people_read() {
        let time = Timestamp { seconds: 1_795_321_426, nanos: 362_850_118 };
        assert_eq!(human(Some(&time)), "2026-11-22 04:23:46Z");
        assert_eq!(human(None), "-");
    }
}
