//! Allocations, and queries about memory.

use aliquot_harness::{GIB, Node, SimulatedGpu};

use crate::client::{Client, INSTANT};
use crate::statistics::compare;
use crate::table::Table;

/// Numbers of other live allocations during the measurement.
const LIVE: [u32; 4] = [0, 1_000, 100_000, 1_000_000];
const PAIR_AIM_NS: f64 = 60.0;
const INFO_AIM_NS: f64 = 20.0;

/// Measures calls about memory.
pub(crate) fn measure(client: &Client, runs: usize) {
    let gpu = SimulatedGpu::with(INSTANT);
    let node = Node::start(&gpu);
    let slice = node.slice("measured", 50, 16 * GIB);
    let mut table = Table::of_costs("memory, ns");
    let mut add = |what: String, arguments: &str, aim_ns| {
        let compared =
            compare(runs, || client.measure(&gpu, None, arguments), || client.measure(&gpu, Some(&slice), arguments));
        table.cost(what, compared, 1.0, aim_ns);
    };
    for live in LIVE {
        add(format!("cuMemAlloc and cuMemFree, {live} live"), &format!("pair {live}"), PAIR_AIM_NS);
    }
    add("cuMemGetInfo".to_owned(), "info", INFO_AIM_NS);
}
