//! The cost of sharing on a device whose launches, markers and changes of process are as slow as on an H100. Compared
//! with the driver's own time slicing or, for one container, with the bare driver.
//!
//! The measure is the duration of the programs' kernels per wall-clock time. In slices it is not the device's busy time,
//! which includes the markers. A quick run has three windows of one second of each kind for each case, and 200 requests
//! where a full run has 500: so its 99th percentile is the longest wait but two.

use std::time::Instant;

use aliquot_harness::{Process, Slice};
use aliquot_proto::node::v1::PriorityClass;
use rustix::process::Signal;

use crate::shares::recording::{Recording, Users};
use crate::shares::stage::{Stage, Tenant, bursting, share, with_room};
use crate::shares::{Depth, MS, SECOND_NS, US, requests};
use crate::statistics::{median, quantile};
use crate::table::{Table, yes_or_no};

/// Launches of 3 µs, writes of 2 µs, changes of process of 100 µs.
const HARDWARE: &str = "launch_ns = 3000\nwrite_ns = 2000\nwrite_call_ns = 1000\ncontext_switch_us = 100";

/// Programs on the device, and how much of their work must be left in slices.
struct Case {
    what: &'static str,
    /// The longest lease that the node's configuration allows.
    lease_max_ms: u32,
    /// The number of containers, which have equal requests.
    containers: u32,
    /// The limit of each container in percent.
    limit: u32,
    arguments: &'static str,
    /// Device time of one launch.
    launch_ns: u64,
    /// The aim in percent of the bare rate, or of the limit if that is less; `None`: only recorded.
    aim: Option<f64>,
}

/// A limit that keeps a lone container's gate from being free, so that its work is marked and interrupted.
const NEARLY_ALL: u32 = 99;
/// The default of the longest lease.
const LONGEST_MS: u32 = 20;
/// How far each container may be from the mean of all, in percentage points of the device's time.
const SHARE_POINTS: f64 = 1.0;

/// A container's lease lasts for its part of the arbiter's cycle of 50 ms, but for no longer than the node's
/// configuration allows, and for no less than the shortest lease.
const CASES: &[Case] = &[
    busy("2 always busy, kernels of 30 µs", 2, LONGEST_MS, 30 * US),
    busy("... leases of at most 5 ms", 2, 5, 30 * US),
    busy("... leases of at most 2 ms", 2, 2, 30 * US),
    busy("2 always busy, kernels of 1 ms", 2, LONGEST_MS, MS),
    busy("... leases of at most 5 ms", 2, 5, MS),
    busy("... leases of at most 2 ms", 2, 2, MS),
    busy("10 always busy, kernels of 30 µs", 10, LONGEST_MS, 30 * US),
    busy("10 always busy, kernels of 1 ms", 10, LONGEST_MS, MS),
    busy("25 always busy, kernels of 30 µs", 25, LONGEST_MS, 30 * US),
    busy("25 always busy, kernels of 1 ms", 25, LONGEST_MS, MS),
    bound_by_host("2 bound by their hosts: 200 µs of work, pauses of 1 ms", 2, LONGEST_MS),
    bound_by_host("... leases of at most 5 ms", 2, 5),
    bound_by_host("... leases of at most 2 ms", 2, 2),
    bound_by_host("10 bound by their hosts", 10, LONGEST_MS),
    bound_by_host("25 bound by their hosts", 25, LONGEST_MS),
    alone("alone at 99 %, graphs of 30 µs", "kernels=30000 graph=1", 99.0),
    alone("alone at 99 %, 8 kernels of 30 µs and a polling loop", "kernels=30000 sync=8 poll=2", 98.0),
];

/// Containers that are always busy.
const fn busy(what: &'static str, containers: u32, lease_max_ms: u32, launch_ns: u64) -> Case {
    let arguments = if launch_ns == MS { "kernels=1000000" } else { "kernels=30000" };
    Case { what, lease_max_ms, containers, limit: 100, arguments, launch_ns, aim: Some(98.0) }
}

/// Containers whose programs wait for their kernels and then work on the processor.
const fn bound_by_host(what: &'static str, containers: u32, lease_max_ms: u32) -> Case {
    let arguments = "kernels=50000 sync=4 gap_us=1000";
    Case { what, lease_max_ms, containers, limit: 100, arguments, launch_ns: 50 * US, aim: None }
}

/// A container that has the device to itself, up to a limit.
const fn alone(what: &'static str, arguments: &'static str, aim: f64) -> Case {
    let lease_max_ms = LONGEST_MS;
    Case { what, lease_max_ms, containers: 1, limit: NEARLY_ALL, arguments, launch_ns: 30 * US, aim: Some(aim) }
}

/// Requests of 1 ms in a container with 30 % of the device, beside containers that are always busy with kernels of
/// 1 ms.
struct Latency {
    what: &'static str,
    class: PriorityClass,
    neighbours: u32,
    neighbours_class: PriorityClass,
    /// As in [`Case`].
    lease_max_ms: u32,
}

const LATENCIES: &[Latency] = &[
    latency("latency-critical, beside a batch container", CRITICAL, 1, PriorityClass::Batch, LONGEST_MS),
    latency("latency-critical, beside a standard one", CRITICAL, 1, STANDARD, LONGEST_MS),
    latency("... leases of at most 5 ms", CRITICAL, 1, STANDARD, 5),
    latency("... leases of at most 2 ms", CRITICAL, 1, STANDARD, 2),
    latency("latency-critical, beside 24 standard ones", CRITICAL, 24, STANDARD, LONGEST_MS),
    latency("standard, beside a batch container", STANDARD, 1, PriorityClass::Batch, LONGEST_MS),
    latency("standard, beside a standard one", STANDARD, 1, STANDARD, LONGEST_MS),
    latency("... leases of at most 5 ms", STANDARD, 1, STANDARD, 5),
    latency("... leases of at most 2 ms", STANDARD, 1, STANDARD, 2),
    latency("standard, beside 24 standard ones", STANDARD, 24, STANDARD, LONGEST_MS),
];

const CRITICAL: PriorityClass = PriorityClass::LatencyCritical;
const STANDARD: PriorityClass = PriorityClass::Standard;

const fn latency(
    what: &'static str,
    class: PriorityClass,
    neighbours: u32,
    neighbours_class: PriorityClass,
    lease_max_ms: u32,
) -> Latency {
    Latency { what, class, neighbours, neighbours_class, lease_max_ms }
}

/// A stage with this hardware and longest lease.
fn stage(hardware: &str, lease_max_ms: u32) -> Stage {
    Stage::with_settings(hardware, &format!("[sharing]\nlease_max_ms = {lease_max_ms}\n"))
}

/// Measures the cases one after the other, alternately without the shim and in slices.
pub(super) fn measure(depth: Depth) {
    let mut table = Table::new(&[
        "as on hardware: work of kernels, % of the time",
        "without the shim",
        "in slices",
        "shares off, points",
        "kept %",
        "aim",
        "met",
        "machine lost, ms",
    ]);
    let (runs, for_ms) = if depth == Depth::Quick { (3, 1000) } else { (5, 3000) };
    for case in CASES {
        case.measure(&mut table, runs, for_ms);
    }
    four_processes(&mut table, depth, "4 processes under one limit of 50 %, kernels of 1 ms", HARDWARE);
    let free_changes = HARDWARE.replace("context_switch_us = 100", "context_switch_us = 0");
    four_processes(&mut table, depth, "... if changes of process took no time", &free_changes);
    for case in LATENCIES {
        case.measure(&mut table, if depth == Depth::Quick { 200 } else { 500 });
    }
}

/// What `count` programs use of the device without the shim. They are killed at the end: their queues can hold a second
/// of work each.
fn bare(stage: &Stage, count: u32, arguments: &str, duration_ns: u64) -> Recording {
    let outsiders: Vec<Process> = (0..count).map(|_| stage.outsider(arguments)).collect();
    outsiders.iter().for_each(|process| process.signal(Signal::USR1));
    let pids = outsiders.iter().map(Process::id).collect();
    let users = Users { machine: stage.gpu.machine(), device: 0, pids: vec![pids] };
    Recording::from_first_use(&users, &stage.witness, duration_ns)
}

impl Case {
    fn measure(&self, table: &mut Table, runs: usize, for_ms: u64) {
        let stage = stage(HARDWARE, self.lease_max_ms);
        let lost_ns = stage.witness.lost_ns();
        let arguments = format!("{} for_ms={for_ms}", self.arguments);
        let (mut without, mut with, mut off) = (Vec::new(), Vec::new(), Vec::new());
        for run in 0..runs {
            without.push(bare(&stage, self.containers, self.arguments, for_ms * MS).share(0));
            let part = bursting((100 / self.containers).min(self.limit), self.limit);
            let tenant = |number| stage.tenant(&format!("run-{run}-{number}"), part.clone(), 1, &arguments);
            let tenants: Vec<Tenant> = (0..self.containers).map(tenant).collect();
            tenants.iter().for_each(Tenant::begin);
            let names: Vec<String> = tenants.iter().map(|tenant| tenant.slice.name().to_owned()).collect();
            let (slices, processes): (Vec<_>, Vec<_>) =
                tenants.into_iter().map(|tenant| (tenant.slice, tenant.processes)).unzip();
            let rates = self.rates(processes.into_iter().flatten().collect());
            let sum: f64 = rates.iter().sum();
            let mean = sum / f64::from(self.containers);
            with.push(sum);
            off.push(rates.iter().map(|rate| (rate - mean).abs()).fold(0.0, f64::max));
            drop(slices);
            for name in names {
                let removed = stage.node.client().remove(&name, true);
                removed.unwrap_or_else(|status| panic!("cannot remove {name}: {}", status.message()));
            }
        }
        let lost_ms = (stage.witness.lost_ns() - lost_ns) as f64 / MS as f64;
        let (without, with, worst) = (median(without), median(with), quantile(off.clone(), 1.0));
        let kept = with / without.min(f64::from(self.limit)) * 100.0;
        table.row(&[
            self.what.to_owned(),
            format!("{without:.1}"),
            format!("{with:.1}"),
            if self.containers > 1 { format!("{:.2}; worst run {worst:.2}", median(off)) } else { String::new() },
            format!("{kept:.1}"),
            self.aim.map_or("recorded".to_owned(), |aim| format!("≥ {aim}, shares ±{SHARE_POINTS}")),
            self.aim.map_or(String::new(), |aim| yes_or_no(kept >= aim && worst <= SHARE_POINTS)),
            format!("{lost_ms:.0}"),
        ]);
    }

    /// The percentage of the time that kernels took, for each of these processes.
    fn rates(&self, processes: Vec<Process>) -> Vec<f64> {
        let rate = |process: Process| {
            let said = process.wait().success().stdout;
            let numbers: Vec<f64> = said.split_whitespace().filter_map(|word| word.parse().ok()).collect();
            let [launches, took_ns] = numbers[..] else { panic!("the program said {said:?}") };
            launches * self.launch_ns as f64 * 100.0 / took_ns
        };
        processes.into_iter().map(rate).collect()
    }
}

/// Four processes under one limit of 50 %. Kept is what they do of half of what four processes do without the shim: the
/// device changes between them there too. The share is the time by the manager's clock, which includes those changes.
fn four_processes(table: &mut Table, depth: Depth, what: &str, configuration: &str) {
    let stage = stage(configuration, LONGEST_MS);
    let tenant = stage.tenant("four", with_room(share(50)), 4, "kernels=1000000");
    let used_ns = || {
        let usage = stage.node.client().usage("four").unwrap_or_else(|status| panic!("{}", status.message()));
        usage.parts[0].core_used_ns
    };
    // The first leases are learned from.
    let _ = stage.play(&[&tenant], SECOND_NS / 2);
    let (used_before_ns, begun) = (used_ns(), Instant::now());
    let recording = stage.watch(&[&tenant], depth.window_ns());
    let used_percent = (used_ns() - used_before_ns) as f64 * 100.0 / begun.elapsed().as_nanos() as f64;
    let found = recording.share(0);
    drop(tenant);
    let without = bare(&stage, 4, "kernels=1000000", depth.window_ns());
    let kept = found / (without.share(0) / 2.0) * 100.0;
    let off = (used_percent - 50.0).abs();
    table.row(&[
        what.to_owned(),
        format!("{:.1}, half of it {:.1}", without.share(0), without.share(0) / 2.0),
        format!("{found:.1}"),
        format!("{off:.2}: {used_percent:.2} % of the time"),
        format!("{kept:.1}"),
        format!("≥ 98, share ±{SHARE_POINTS}"),
        yes_or_no(kept >= 98.0 && off <= SHARE_POINTS),
        format!("{:.0}", recording.lost_ms() + without.lost_ms()),
    ]);
}

impl Latency {
    /// How long the requests wait, without slices and in slices.
    fn measure(&self, table: &mut Table, count: u32) {
        const LOAD: &str = "kernels=1000000";
        const MEAN_PAUSE_US: u32 = 20_000;
        let stage = stage(HARDWARE, self.lease_max_ms);
        let lost_ns = stage.witness.lost_ns();
        let neighbours: Vec<Process> = (0..self.neighbours).map(|_| stage.outsider(LOAD)).collect();
        neighbours.iter().for_each(|process| process.signal(Signal::USR1));
        let bare = requests::waits(requests::start(&stage, None, count, MEAN_PAUSE_US));
        drop(neighbours);
        let part = bursting(70 / self.neighbours, 100);
        let neighbour = |number| requests::slice(format!("neighbour-{number}"), self.neighbours_class, part.clone());
        let neighbours: Vec<Tenant> =
            (0..self.neighbours).map(|number| stage.tenant_of(neighbour(number), LOAD)).collect();
        let created = stage.node.client().create(requests::slice("requests".to_owned(), self.class, share(30)));
        let slice = Slice::open(created.unwrap_or_else(|status| panic!("{}", status.message())));
        let process = requests::start(&stage, Some(&slice), count, MEAN_PAUSE_US);
        neighbours.iter().for_each(Tenant::begin);
        let with = requests::waits(process);
        let waits = |waits: Vec<f64>| format!("{:.2}, {:.2} ms", median(waits.clone()), quantile(waits, 0.99));
        table.row(&[
            format!("requests of 1 ms, {}: wait, median and p99", self.what),
            waits(bare),
            waits(with),
            String::new(),
            String::new(),
            "recorded".to_owned(),
            String::new(),
            format!("{:.0}", (stage.witness.lost_ns() - lost_ns) as f64 / MS as f64),
        ]);
    }
}
