//! The node manager is killed before a container's programs begin, so they pace themselves.

use crate::shares::stage::{Stage, share};
use crate::shares::{Depth, MS, US, duration};
use crate::table::{Table, yes_or_no};

const PERCENT: u32 = 30;
/// Allowed excess over the cap, in percentage points, in addition to the unavoidable excess from the kernels' length.
const POINTS_ABOVE: f64 = 1.0;

/// Measures them one after the other.
pub(super) fn measure(depth: Depth) {
    let mut table = Table::new(&[
        "without a manager",
        "cap %",
        "whole time %",
        "worst second %",
        "aim: whole time %",
        "met",
        "machine lost, ms",
    ]);
    let cases = vec![(1, MS), (4, 20 * MS), (1, 50 * US), (1, 20 * MS), (1, 200 * MS), (4, MS), (4, 200 * MS)];
    for (processes, kernel_ns) in depth.of(cases, 2) {
        let mut stage = Stage::new();
        let tenant = stage.tenant("orphan", share(PERCENT), processes, &format!("kernels={kernel_ns}"));
        stage.node.kill();
        let recording = stage.play(&[&tenant], depth.window_ns());
        let (whole, cap) = (recording.share(0), f64::from(PERCENT));
        // Each process can have one kernel too many under way when the time ends.
        let forced = processes as f64 * kernel_ns as f64 * 100.0 / depth.window_ns() as f64;
        let most = cap + POINTS_ABOVE + forced;
        let plural = if processes == 1 { "process" } else { "processes" };
        table.row(&[
            format!("{processes} {plural}, kernels of {}", duration(kernel_ns)),
            format!("{cap}"),
            format!("{whole:.2}"),
            format!("{:.1}", recording.worst_second(0, 0.0)),
            format!("{:.0} to {most:.1}", cap / 2.0),
            yes_or_no((cap / 2.0..=most).contains(&whole)),
            format!("{:.0}", recording.lost_ms()),
        ]);
    }
}
