//! The cost of `cuInit` and the first context, in an empty container and in a full one.

use aliquot_harness::{GIB, HostProgram, Node, Process, SimulatedGpu};

use crate::client::{Client, INSTANT};
use crate::statistics::compare;
use crate::table::Table;

const AIM_MS: f64 = 0.5;
const MS: f64 = 1e6;
/// Numbers of processes in the container, including the measured one.
const PROCESSES: [usize; 2] = [1, 200];
/// Runs are short, so there are more of them.
const RUNS_FACTOR: usize = 5;

/// Measures the start of CUDA.
pub(crate) fn measure(client: &Client, runs: usize) {
    let gpu = SimulatedGpu::with(INSTANT);
    let hold = HostProgram::linked(&gpu, "hold");
    let mut table = Table::of_costs("cuInit and first context, ms");
    for processes in PROCESSES {
        let node = Node::start(&gpu);
        let slice = node.slice("measured", 50, 16 * GIB);
        let mut others: Vec<Process> =
            (1..processes).map(|_| Process::start(slice.preload_into(hold.on(&gpu).arg("4096")))).collect();
        others.iter_mut().for_each(|other| other.wait_for("held"));
        let compared = compare(
            runs * RUNS_FACTOR,
            || client.measure(&gpu, None, "start"),
            || client.measure(&gpu, Some(&slice), "start"),
        );
        let plural = if processes == 1 { "" } else { "es" };
        table.cost(format!("{processes} process{plural} of the container"), compared, MS, AIM_MS);
    }
}
