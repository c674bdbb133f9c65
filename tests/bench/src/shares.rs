//! Shares of device time, as the simulated device itself counts them.

use std::time::{Duration, Instant};

use aliquot_harness::{GIB, HostProgram, Node, Process, SimulatedGpu};

use crate::table::{Table, yes_or_no};

/// Percent of the slices that are at work together.
const SLICES: [&[u32]; 6] = [&[10], &[30], &[50], &[80], &[30, 70], &[50, 50]];
const KERNELS: [(&str, u64); 3] = [("50 µs", 50_000), ("1 ms", 1_000_000), ("20 ms", 20_000_000)];
const WARM_UP: Duration = Duration::from_secs(2);
const WINDOW: Duration = Duration::from_secs(10);
const AIM_POINTS: f64 = 1.0;

/// Lets slices share a device, and looks at the device's own account of them.
pub(crate) fn measure() -> Table {
    let mut table =
        Table::new(&["share of device time over 10 s", "wanted %", "measured %", "points off", "aim", "met"]);
    for (name, kernel_ns) in KERNELS {
        for percents in SLICES {
            let measured = together(percents, kernel_ns);
            for (index, (&wanted, got)) in percents.iter().zip(measured).enumerate() {
                let off = got - f64::from(wanted);
                let others: Vec<String> = percents
                    .iter()
                    .enumerate()
                    .filter(|&(other, _)| other != index)
                    .map(|(_, percent)| format!(" beside {percent} %"))
                    .collect();
                table.row(vec![
                    format!("kernels of {name}, {wanted} %{}", others.concat()),
                    wanted.to_string(),
                    format!("{got:.2}"),
                    format!("{off:+.2}"),
                    format!("±{AIM_POINTS}"),
                    yes_or_no(off.abs() <= AIM_POINTS),
                ]);
            }
        }
    }
    table
}

/// The shares, in percent, of one process in each of the slices.
fn together(percents: &[u32], kernel_ns: u64) -> Vec<f64> {
    let gpu = SimulatedGpu::new();
    let node = Node::start(&gpu);
    let busy = HostProgram::linked(&gpu, "busy");
    let slices: Vec<_> = percents
        .iter()
        .enumerate()
        .map(|(index, &percent)| node.slice(&format!("share-{index}"), percent, GIB))
        .collect();
    let mut programs: Vec<Process> = slices
        .iter()
        .map(|slice| Process::start(slice.preload_into(busy.on(&gpu).args([kernel_ns.to_string(), "0".to_owned()]))))
        .collect();
    programs.iter_mut().for_each(|program| program.wait_for("busy"));
    std::thread::sleep(WARM_UP);
    let busy_ns = || -> Vec<u64> {
        let used = gpu.machine().device_use(0).processes;
        let of = |pid| used.iter().find(|process| process.pid == pid).map_or(0, |process| process.busy_ns);
        programs.iter().map(|program| of(program.id())).collect()
    };
    let (start, before) = (Instant::now(), busy_ns());
    std::thread::sleep(WINDOW);
    let (elapsed, after) = (start.elapsed(), busy_ns());
    let share = |(after, before): (u64, u64)| (after - before) as f64 / elapsed.as_nanos() as f64 * 100.0;
    after.into_iter().zip(before).map(share).collect()
}
