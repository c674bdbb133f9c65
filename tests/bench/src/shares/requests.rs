//! Requests of 1 ms that come at random times, beside containers that are always busy with long kernels.

use aliquot_arbiter::timing::QUANTUM_MAX_NS;
use aliquot_harness::{GIB, HostProgram, Process, Slice};
use aliquot_proto::node::v1::{CreateSliceRequest, Part, PriorityClass};
use rustix::process::Signal;

use crate::shares::stage::{Stage, Tenant, bursting};
use crate::shares::{Depth, MS, SECOND_NS, US};
use crate::statistics::{median, quantile};
use crate::table::{Table, yes_or_no};

const REQUEST_NS: u64 = MS;
const BATCH_KERNEL_NS: u64 = 20 * MS;
const REQUESTED_PERCENT: u32 = 30;
const SEED: u32 = 7;
/// The longest allowed wait of 99 % of the requests: a quantum and a kernel.
const AIM_MS: f64 = (QUANTUM_MAX_NS + BATCH_KERNEL_NS) as f64 / MS as f64;

/// The container that answers requests, and its neighbours.
struct Scene {
    class: (&'static str, PriorityClass),
    batches: u32,
    mean_pause_us: u32,
    /// Whether the batch work has had the device alone before, and so has filled its queue.
    comes_later: bool,
}

/// Measures them one after the other.
pub(super) fn measure(depth: Depth) {
    let mut table = Table::new(&[
        "requests of 1 ms beside kernels of 20 ms",
        "requests",
        "wait, ms: median",
        "p99",
        "longest",
        "aim: p99",
        "met",
        "machine lost, ms",
    ]);
    let scene = |class, batches, mean_pause_us, comes_later| Scene { class, batches, mean_pause_us, comes_later };
    let critical = ("latency-critical", PriorityClass::LatencyCritical);
    let scenes = vec![
        scene(critical, 1, 20_000, false),
        scene(("standard", PriorityClass::Standard), 1, 20_000, false),
        scene(critical, 3, 20_000, false),
        scene(critical, 1, 4_000, false),
        scene(critical, 1, 20_000, true),
    ];
    for scene in depth.of(scenes, 2) {
        scene.measure(&mut table, if depth == Depth::Quick { 100 } else { 500 });
    }
}

impl Scene {
    fn measure(&self, table: &mut Table, requests: u32) {
        let stage = Stage::new();
        let part = bursting((100 - REQUESTED_PERCENT) / self.batches, 100);
        let load = format!("kernels={BATCH_KERNEL_NS}");
        let batches: Vec<Tenant> = (0..self.batches)
            .map(|number| stage.tenant_of(slice(format!("batch-{number}"), PriorityClass::Batch, part.clone()), &load))
            .collect();
        if self.comes_later {
            batches.iter().for_each(Tenant::begin);
            // By then the batch work has filled the driver's queue.
            let _ = stage.watch(&[], SECOND_NS);
        }
        let part = bursting(REQUESTED_PERCENT, REQUESTED_PERCENT);
        let created = stage.node.client().create(slice("requests".to_owned(), self.class.1, part));
        let slice = Slice::open(created.unwrap_or_else(|status| panic!("{}", status.message())));
        let process = start(&stage, Some(&slice), requests, self.mean_pause_us);
        if !self.comes_later {
            batches.iter().for_each(Tenant::begin);
        }
        let lost_ns = stage.witness.lost_ns();
        let waits = waits(process);
        let lost_ms = (stage.witness.lost_ns() - lost_ns) as f64 / MS as f64;
        let late = quantile(waits.clone(), 0.99);
        let later = if self.comes_later { ", which had the device for itself before" } else { "" };
        let pause_ms = (u64::from(self.mean_pause_us) * US + REQUEST_NS) / MS;
        table.row(&[
            format!("{}, every {pause_ms} ms, {} batch{later}", self.class.0, self.batches),
            waits.len().to_string(),
            format!("{:.2}", median(waits.clone())),
            format!("{late:.2}"),
            format!("{:.2}", quantile(waits, 1.0)),
            format!("≤ {AIM_MS}"),
            yes_or_no(late <= AIM_MS),
            format!("{lost_ms:.0}"),
        ]);
    }
}

/// Starts the program that answers requests, in a slice or outside of all. It waits for [`waits`].
pub(super) fn start(stage: &Stage, slice: Option<&Slice>, requests: u32, mean_pause_us: u32) -> Process {
    let mut command = HostProgram::linked(&stage.gpu, "requests").on(&stage.gpu);
    command.args([requests, REQUEST_NS as u32, mean_pause_us, SEED].map(|number: u32| number.to_string()));
    if let Some(slice) = slice {
        slice.preload_into(&mut command);
    }
    let mut process = Process::start(&mut command);
    process.wait_for("ready");
    process
}

/// Lets it begin, waits for its end, and returns how many milliseconds each request waited.
pub(super) fn waits(process: Process) -> Vec<f64> {
    process.signal(Signal::USR1);
    let said = process.wait().success().stdout;
    said.lines().filter_map(|line| line.parse().ok()).map(wait_ms).collect()
}

pub(super) fn slice(name: String, class: PriorityClass, part: Part) -> CreateSliceRequest {
    let part = Part { memory_limit_bytes: GIB, ..part };
    CreateSliceRequest { name, parts: vec![part], priority_class: class.into(), ..CreateSliceRequest::default() }
}

/// The part of a request's time that was not its own work.
fn wait_ms(took_ns: u64) -> f64 {
    took_ns.saturating_sub(REQUEST_NS) as f64 / MS as f64
}
