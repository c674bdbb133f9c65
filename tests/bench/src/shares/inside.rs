//! Several processes, several streams, and graphs under one cap.

use crate::shares::judgement::{self, Wanted};
use crate::shares::stage::{Stage, share, with_room};
use crate::shares::{Depth, MS, US};

const PERCENT: u32 = 50;

/// Measures them one after the other.
pub(super) fn measure(depth: Depth) {
    let mut table = judgement::table("under one cap");
    // Name, number of processes, arguments, and the duration of the longest kernel or graph.
    let cases = vec![
        ("4 processes, kernels of 1 ms", 4, "kernels=1000000", MS),
        ("4 streams, kernels of 1 ms", 1, "kernels=1000000 streams=4", MS),
        ("graphs of 100 kernels of 50 µs", 1, "kernels=50000 graph=100", 5 * MS),
        ("4 processes, kernels of 50 µs", 4, "kernels=50000", 50 * US),
        ("4 processes, kernels of 20 ms", 4, "kernels=20000000", 20 * MS),
        ("4 streams, kernels of 50 µs, 1 ms, 20 ms", 1, "kernels=50000,1000000,20000000 streams=4", 20 * MS),
        ("4 streams, kernels of 1 ms, 100 between waits", 1, "kernels=1000000 streams=4 sync=100", MS),
        ("graphs of 100 kernels of 1 ms", 1, "kernels=1000000 graph=100", 100 * MS),
        ("graphs of 100 kernels of 50 µs, each waited for", 1, "kernels=50000 graph=100 sync=1", 5 * MS),
        ("4 processes, graphs of 100 kernels of 50 µs", 4, "kernels=50000 graph=100", 5 * MS),
    ];
    for (name, processes, arguments, longest_ns) in depth.of(cases, 3) {
        let stage = Stage::new();
        let tenant = stage.tenant("capped", with_room(share(PERCENT)), processes, arguments);
        let recording = stage.play(&[&tenant], depth.window_ns());
        let percent = f64::from(PERCENT);
        let wanted = Wanted { what: format!("{PERCENT} %, {name}"), percent, longest_ns: Some(longest_ns) };
        judgement::add(&mut table, wanted, &recording, 0);
    }
}
