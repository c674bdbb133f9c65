//! `cuLaunchKernel`: with a free gate, and in capped slices with budget left, by one and by several threads.

use aliquot_harness::{GIB, Node, SimulatedGpu};

use crate::client::{Client, INSTANT};
use crate::statistics::compare;
use crate::table::Table;

const THREADS: [u32; 3] = [1, 2, 4];
/// Each slice's share in percent, and the time in nanoseconds that it may add to a launch. The work takes no device
/// time, so every slice has budget left.
const SHARES: [(u32, f64); 3] = [(100, 5.0), (99, 10.0), (30, 10.0)];

/// Measures launches.
pub(crate) fn measure(client: &Client, runs: usize) {
    let gpu = SimulatedGpu::with(INSTANT);
    let mut table = Table::of_costs("cuLaunchKernel, ns");
    for (percent, aim) in SHARES {
        // One node for each slice: a slice of the whole device that is alone on it runs without time sharing.
        let node = Node::start(&gpu);
        let slice = node.slice("measured", percent, 4 * GIB);
        for threads in THREADS {
            let arguments = format!("launch {threads}");
            let compared = compare(
                runs,
                || client.measure(&gpu, None, &arguments),
                || client.measure(&gpu, Some(&slice), &arguments),
            );
            let limit =
                if percent == 100 { "uncapped".to_owned() } else { format!("capped at {percent} %, budget left") };
            let plural = if threads == 1 { "" } else { "s" };
            table.cost(format!("{limit}, {threads} thread{plural}"), compared, 1.0, aim);
        }
    }
}
