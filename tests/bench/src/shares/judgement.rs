//! Table rows with the errors of shares.

use crate::shares::SECOND_NS;
use crate::shares::recording::Recording;
use crate::table::{Table, yes_or_no};

/// Allowed error over the whole time, in percentage points.
const WHOLE_POINTS: f64 = 1.0;
/// Allowed error of any single second, in percentage points, in addition to the unavoidable error from the kernels'
/// length.
const SECOND_POINTS: f64 = 3.0;

/// An expected share.
pub(super) struct Wanted {
    /// The programs that ran.
    pub(super) what: String,
    pub(super) percent: f64,
    /// The longest piece of work that cannot be divided, if single seconds are judged.
    pub(super) longest_ns: Option<u64>,
}

/// A table with such rows.
pub(super) fn table(what: &'static str) -> Table {
    Table::new(&[
        what,
        "wanted %",
        "whole time %",
        "off",
        "worst second %",
        "first second %",
        "aim: points off",
        "met",
        "machine lost, ms",
    ])
}

/// Adds a row for the recording's user number `user`.
pub(super) fn add(table: &mut Table, wanted: Wanted, recording: &Recording, user: usize) {
    let Wanted { what, percent, longest_ns } = wanted;
    let (whole, first) = (recording.share(user), recording.first_second(user));
    let worst = recording.worst_second(user, percent);
    let second_points = longest_ns.map(|ns| SECOND_POINTS + ns as f64 * 100.0 / SECOND_NS as f64);
    let holds = |measured: f64, points: f64| (measured - percent).abs() <= points;
    let met = holds(whole, WHOLE_POINTS) && second_points.is_none_or(|points| holds(worst, points));
    let aim = match second_points {
        None => format!("±{WHOLE_POINTS}"),
        Some(points) => format!("±{WHOLE_POINTS}; a second ±{points:.1}"),
    };
    table.row(&[
        what,
        format!("{percent}"),
        format!("{whole:.2}"),
        format!("{:+.2}", whole - percent),
        format!("{worst:.1}"),
        format!("{first:.1}"),
        aim,
        yes_or_no(met),
        format!("{:.0}", recording.lost_ms()),
    ]);
}
