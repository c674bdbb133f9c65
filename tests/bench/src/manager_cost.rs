//! Processor time and memory of the node manager, by the number of attached processes.

use std::fs;
use std::time::{Duration, Instant};

use aliquot_harness::{Client, GIB, HostProgram, Node, Process, SimulatedGpu, wait};

use crate::client::INSTANT;
use crate::statistics::{median, quantile};
use crate::table::Table;

const PROCESSES: [usize; 4] = [0, 1, 50, 500];
const WINDOW: Duration = Duration::from_secs(5);
const QUERIES: usize = 1000;

/// Measures a manager with more and more attached processes.
pub(crate) fn measure() {
    let gpu = SimulatedGpu::with(INSTANT);
    let hold = HostProgram::linked(&gpu, "hold");
    let node = Node::start(&gpu);
    let slice = node.slice("full", 50, 16 * GIB);
    let mut client = node.client();
    let mut holders: Vec<Process> = Vec::new();
    let mut table = Table::new(&[
        "manager, attached processes",
        "RSS, MiB",
        "PSS, MiB",
        "CPU, % of a core",
        "usage query, median ms",
        "p99 ms",
    ]);
    for processes in PROCESSES {
        while holders.len() < processes {
            holders.push(Process::start(slice.preload_into(hold.on(&gpu).arg("4096"))));
        }
        holders.iter_mut().for_each(|holder| holder.wait_for("held"));
        wait::until_true("all processes are attached", || {
            client.usage(slice.name()).is_ok_and(|usage| usage.processes.len() == processes)
        });
        let manager = node.manager_id();
        let before = cpu_seconds(manager);
        std::thread::sleep(WINDOW);
        let cpu_percent = (cpu_seconds(manager) - before) / WINDOW.as_secs_f64() * 100.0;
        let latencies: Vec<f64> = (0..QUERIES).map(|_| query_ms(&mut client, slice.name())).collect();
        table.row(&[
            processes.to_string(),
            format!("{:.1}", rollup_mib(manager, "Rss:")),
            format!("{:.1}", rollup_mib(manager, "Pss:")),
            format!("{cpu_percent:.2}"),
            format!("{:.2}", median(latencies.clone())),
            format!("{:.2}", quantile(latencies, 0.99)),
        ]);
    }
}

fn query_ms(client: &mut Client, name: &str) -> f64 {
    let start = Instant::now();
    assert!(client.usage(name).is_ok(), "the manager answers a query of usage");
    start.elapsed().as_nanos() as f64 / 1e6
}

/// Processor time that a process has used: fields 14 and 15 of its stat file.
pub(crate) fn cpu_seconds(pid: u32) -> f64 {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).expect("the manager runs");
    let after_name = stat.rsplit_once(')').expect("a name in parentheses").1;
    let ticks: f64 =
        after_name.split_whitespace().skip(11).take(2).map(|field| field.parse::<f64>().expect("a number")).sum();
    ticks / rustix::param::clock_ticks_per_second() as f64
}

/// A line of a process's smaps_rollup, which the kernel gives in KiB.
pub(crate) fn rollup_mib(pid: u32, name: &str) -> f64 {
    let rollup = fs::read_to_string(format!("/proc/{pid}/smaps_rollup")).expect("the manager runs");
    let line = rollup.lines().find_map(|line| line.strip_prefix(name)).expect("a line of this name");
    line.trim().trim_end_matches("kB").trim().parse::<f64>().expect("a number") / 1024.0
}
