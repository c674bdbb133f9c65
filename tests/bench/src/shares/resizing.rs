//! A container's share and memory are changed while its program runs.

use std::sync::atomic::Ordering;
use std::time::Instant;

use aliquot_harness::{GIB, MIB};
use aliquot_proto::node::v1::{Part, ResizeSliceRequest};

use crate::shares::stage::{Stage, share};
use crate::shares::{Depth, SECOND_NS};
use crate::statistics::{median, quantile};
use crate::table::{Table, yes_or_no};

const AIM_MS: f64 = 100.0;
const AIM_POINTS: f64 = 3.0;
const PERCENTS: [u32; 2] = [60, 20];

/// Measures changes in both directions.
pub(super) fn measure(depth: Depth) {
    let stage = Stage::new();
    let tenant = stage.tenant("changing", share(PERCENTS[1]), 1, "kernels=1000000");
    tenant.begin();
    let limits = &tenant.slice.limits().devices[0];
    let (mut answers_ms, mut points) = (Vec::new(), Vec::new());
    let mut client = stage.node.client();
    let lost_ns = stage.witness.lost_ns();
    let changes = if depth == Depth::Quick { 4 } else { 20 };
    for change in 0..changes {
        let percent = PERCENTS[change % PERCENTS.len()];
        let memory_limit_bytes = GIB + change as u64 * MIB;
        let part = Part { memory_limit_bytes, ..share(percent) };
        let start = Instant::now();
        let request = ResizeSliceRequest { name: "changing".into(), parts: vec![part], ..Default::default() };
        client.resize(request).unwrap_or_else(|status| panic!("{}", status.message()));
        answers_ms.push(start.elapsed().as_secs_f64() * 1e3);
        assert_eq!(limits.memory_limit_bytes.load(Ordering::Relaxed), memory_limit_bytes);
        let recording = stage.watch(&[&tenant], SECOND_NS);
        points.push((recording.share(0) - f64::from(percent)).abs());
    }
    let lost_ms = (stage.witness.lost_ns() - lost_ns) as f64 / 1e6;
    let mut table =
        Table::new(&["resize of a running container", "median", "worst", "times", "aim", "met", "machine lost, ms"]);
    let mut add = |what: &str, values: Vec<f64>, aim: f64| {
        let worst = quantile(values.clone(), 1.0);
        table.row(&[
            what.to_owned(),
            format!("{:.2}", median(values)),
            format!("{worst:.2}"),
            changes.to_string(),
            format!("≤ {aim}"),
            yes_or_no(worst <= aim),
            format!("{lost_ms:.0}"),
        ]);
    };
    add("until the answer, when all is in force, ms", answers_ms, AIM_MS);
    add("share of the second after the answer, points off", points, AIM_POINTS);
}
