//! Eight processes race for memory under one cap: how far they get above it.

use aliquot_harness::{GIB, Node, Process, SimulatedGpu};

use crate::client::{Client, INSTANT};
use crate::table::{Table, yes_or_no};

const PROCESSES: usize = 8;
const CAP_BYTES: u64 = 2 * GIB;
const PIECES: [(&str, u64); 2] = [("256 KiB", 256 << 10), ("4 MiB", 4 << 20)];
const MILLISECONDS: u32 = 3_000;

/// Runs the races.
pub(crate) fn measure(client: &Client) {
    let mut table = Table::new(&[
        "8 processes, cap 2 GiB",
        "allocations",
        "over the cap by the ledger",
        "by the device",
        "aim",
        "met",
    ]);
    for (name, bytes) in PIECES {
        let gpu = SimulatedGpu::with(INSTANT);
        let node = Node::start(&gpu);
        let slice = node.slice("raced", 50, CAP_BYTES);
        let arguments = format!("race {bytes} {MILLISECONDS}");
        let racers: Vec<Process> =
            (0..PROCESSES).map(|_| Process::start(&mut client.command(&gpu, Some(&slice), &arguments))).collect();
        let counts = racers.into_iter().map(|racer| racer.wait().success().stdout);
        let granted: f64 = counts.map(|said| said.trim().parse::<f64>().expect("a racer prints a number")).sum();
        let by_ledger = slice.ledger().devices[0].peak_bytes.load(std::sync::atomic::Ordering::Relaxed);
        let by_device = gpu.machine().device_use(0).memory_peak_bytes;
        assert!(by_device > CAP_BYTES / 2, "the racers never came near the cap");
        let over = by_ledger.max(by_device).saturating_sub(CAP_BYTES);
        table.row(&[
            format!("pieces of {name}"),
            format!("{granted:.0}"),
            format!("{} B", by_ledger.saturating_sub(CAP_BYTES)),
            format!("{} B", by_device.saturating_sub(CAP_BYTES)),
            "0 B".to_owned(),
            yes_or_no(over == 0),
        ]);
    }
}
