//! A process is killed while it holds memory: how soon other processes of its container can use it.

use std::time::Instant;

use aliquot_harness::{GIB, HostProgram, Node, Process, SimulatedGpu};
use rustix::process::Signal;

use crate::client::INSTANT;
use crate::statistics::{median, quantile};
use crate::table::{Table, yes_or_no};

const RUNS_FACTOR: usize = 10;
const AIM_MS: f64 = 10.0;

/// Kills processes, and measures when the ledger no longer contains their memory.
pub(crate) fn measure(runs: usize) {
    let gpu = SimulatedGpu::with(INSTANT);
    let node = Node::start(&gpu);
    let slice = node.slice("killed", 50, 2 * GIB);
    let hold = HostProgram::linked(&gpu, "hold");
    let latencies: Vec<f64> = (0..runs * RUNS_FACTOR)
        .map(|_| {
            let mut holder = Process::start(slice.preload_into(hold.on(&gpu).arg(GIB.to_string())));
            holder.wait_for("held");
            assert!(slice.used_bytes(0) >= GIB);
            let killed = Instant::now();
            holder.signal(Signal::KILL);
            while slice.used_bytes(0) != 0 {
                std::thread::yield_now();
                assert!(killed.elapsed().as_secs() < 60, "the memory of a killed process is never free again");
            }
            killed.elapsed().as_nanos() as f64 / 1e6
        })
        .collect();
    let (middle, worst) = (median(latencies.clone()), quantile(latencies.clone(), 1.0));
    let mut table = Table::new(&["SIGKILL of a process that holds 1 GiB", "median", "worst", "runs", "aim", "met"]);
    table.row(&[
        "until its memory is in the budget again, ms".to_owned(),
        format!("{middle:.2}"),
        format!("{worst:.2}"),
        latencies.len().to_string(),
        format!("≤ {AIM_MS}"),
        yes_or_no(worst <= AIM_MS),
    ]);
}
