//! The cost of many processes of one container that start at once.

use std::time::Instant;

use aliquot_harness::{GIB, Node, Process, SimulatedGpu, Slice};

use crate::client::{Client, INSTANT};
use crate::statistics::compare;
use crate::table::Table;

const AIM_MS: f64 = 0.5;
const MS: f64 = 1e6;
/// Numbers of processes that start together. The cost of one process must not grow with them.
const PROCESSES: [usize; 3] = [10, 50, 200];

/// Measures the time from the first process's start to the last one's end, divided by the number of processes.
pub(crate) fn measure(client: &Client, runs: usize) {
    let mut table = Table::of_costs("start, cuInit and first context of each, ms");
    for processes in PROCESSES {
        let gpu = SimulatedGpu::with(INSTANT);
        let node = Node::start(&gpu);
        let slice = node.slice("measured", 50, 16 * GIB);
        let each_ns = |slice: Option<&Slice>| {
            let start = Instant::now();
            let started: Vec<Process> =
                (0..processes).map(|_| Process::start(&mut client.command(&gpu, slice, "start"))).collect();
            started.into_iter().for_each(|process| drop(process.wait().success()));
            start.elapsed().as_nanos() as f64 / processes as f64
        };
        let compared = compare(runs, || each_ns(None), || each_ns(Some(&slice)));
        table.cost(format!("{processes} processes at once"), compared, MS, AIM_MS);
    }
}
