//! Comparison of the two ways to see progress: markers written by the device, and queried events.

use std::process::Command;

use aliquot_harness::{FrontDriver, GIB, Node, SimulatedGpu, Slice};

use crate::client::{self, Client, INSTANT};
use crate::shares::stage::{Stage, share};
use crate::shares::{Depth, MS, US, duration};
use crate::statistics::median;
use crate::table::Table;

const CAPPED_PERCENT: u32 = 99;
const SHARE_PERCENT: u32 = 30;

/// Measures both ways in turn.
pub(super) fn measure(client: &Client, depth: Depth) {
    let mut table =
        Table::new(&["progress is seen by", "markers that the device writes", "events", "machine lost, ms"]);
    launches(&mut table, client, if depth == Depth::Quick { 3 } else { 9 });
    for kernel_ns in depth.of(vec![50 * US, MS, 20 * MS], 1) {
        let ways = [Stage::new(), Stage::without_device_writes()].map(|stage| {
            let tenant = stage.tenant("capped", share(SHARE_PERCENT), 1, &format!("kernels={kernel_ns}"));
            stage.play(&[&tenant], depth.window_ns())
        });
        table.row(&[
            format!("share, {SHARE_PERCENT} %, kernels of {}: points off", duration(kernel_ns)),
            format!("{:+.2}", ways[0].share(0) - f64::from(SHARE_PERCENT)),
            format!("{:+.2}", ways[1].share(0) - f64::from(SHARE_PERCENT)),
            format!("{:.0} and {:.0}", ways[0].lost_ms(), ways[1].lost_ms()),
        ]);
    }
}

/// The cost of a launch with budget left, and the part that the shim adds.
fn launches(table: &mut Table, client: &Client, runs: usize) {
    let gpu = SimulatedGpu::with(INSTANT);
    let front = FrontDriver::new(&gpu, "driver_with_events");
    let node = Node::start(&gpu);
    let slice = node.slice("measured", CAPPED_PERCENT, 4 * GIB);
    let command = |slice: Option<&Slice>, events: bool| -> Command {
        let mut command = client.command(&gpu, slice, "launch 1");
        if events {
            front.show_to(&mut command);
        }
        command
    };
    let mut added = [Vec::new(), Vec::new()];
    for _ in 0..runs {
        for (events, added) in [false, true].into_iter().zip(&mut added) {
            let (bare, with) =
                (client::measure(&mut command(None, events)), client::measure(&mut command(Some(&slice), events)));
            added.push(with - bare);
        }
    }
    let [markers, events] = added.map(median);
    table.row(&[
        format!("added to a launch, capped at {CAPPED_PERCENT} %, ns"),
        format!("{markers:.1}"),
        format!("{events:.1}"),
        String::new(),
    ]);
}
