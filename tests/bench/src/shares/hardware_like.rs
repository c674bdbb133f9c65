//! The cost of sharing on a device whose launches, markers and changes of process are as slow as on an H100. Compared
//! with the driver's own time slicing or, for one container, with the bare driver.
//!
//! The measure is the duration of the programs' kernels per wall-clock time, not the device's busy time, which includes
//! the markers.

use aliquot_harness::{Process, Slice};
use aliquot_proto::node::v1::PriorityClass;
use rustix::process::Signal;

use crate::shares::recording::{Recording, Users};
use crate::shares::stage::{Stage, Tenant, bursting, share, with_room};
use crate::shares::{Depth, MS, US, requests};
use crate::statistics::{median, quantile};
use crate::table::{Table, yes_or_no};

/// Launches of 3 µs, writes of 2 µs, changes of process of 100 µs.
const HARDWARE: &str = "launch_ns = 3000\nwrite_ns = 2000\nwrite_call_ns = 1000\ncontext_switch_us = 100";

/// Programs on the device, and how much of their work must be left in slices.
struct Case {
    what: &'static str,
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

/// A container's lease lasts for its part of the arbiter's cycle of 50 ms, but for 20 ms at most and 2 ms at least: two
/// containers that want the device have leases of 20 ms, ten have 5 ms, 25 have 2 ms.
const CASES: &[Case] = &[
    busy("2 always busy, kernels of 30 µs (leases of 20 ms)", 2, "kernels=30000", 30 * US),
    busy("2 always busy, kernels of 1 ms (20 ms)", 2, "kernels=1000000", MS),
    busy("10 always busy, kernels of 30 µs (5 ms)", 10, "kernels=30000", 30 * US),
    busy("10 always busy, kernels of 1 ms (5 ms)", 10, "kernels=1000000", MS),
    busy("25 always busy, kernels of 30 µs (2 ms)", 25, "kernels=30000", 30 * US),
    busy("25 always busy, kernels of 1 ms (2 ms)", 25, "kernels=1000000", MS),
    bound_by_host("2 bound by their hosts: 200 µs of work, pauses of 1 ms (20 ms)", 2),
    bound_by_host("10 bound by their hosts (5 ms)", 10),
    bound_by_host("25 bound by their hosts (2 ms)", 25),
    Case {
        what: "alone at 99 %, graphs of 30 µs",
        containers: 1,
        limit: NEARLY_ALL,
        arguments: "kernels=30000 graph=1",
        launch_ns: 30 * US,
        aim: Some(99.0),
    },
    Case {
        what: "alone at 99 %, 8 kernels of 30 µs and a polling loop",
        containers: 1,
        limit: NEARLY_ALL,
        arguments: "kernels=30000 sync=8 poll=2",
        launch_ns: 30 * US,
        aim: Some(98.0),
    },
];

/// Containers that are always busy.
const fn busy(what: &'static str, containers: u32, arguments: &'static str, launch_ns: u64) -> Case {
    Case { what, containers, limit: 100, arguments, launch_ns, aim: Some(98.0) }
}

/// Containers whose programs wait for their kernels and then work on the processor.
const fn bound_by_host(what: &'static str, containers: u32) -> Case {
    Case { what, containers, limit: 100, arguments: "kernels=50000 sync=4 gap_us=1000", launch_ns: 50 * US, aim: None }
}

/// Measures the cases one after the other, alternately without the shim and in slices.
pub(super) fn measure(depth: Depth) -> Table {
    let mut table = Table::new(&[
        "as on hardware: work of kernels, % of the time",
        "without the shim",
        "in slices; least and most of one, last run",
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
    for (what, class) in [("latency-critical", PriorityClass::LatencyCritical), ("standard", PriorityClass::Standard)] {
        latency(&mut table, what, class, if depth == Depth::Quick { 100 } else { 500 });
    }
    table
}

impl Case {
    fn measure(&self, table: &mut Table, runs: usize, for_ms: u64) {
        let stage = Stage::with(HARDWARE);
        let lost_ns = stage.witness.lost_ns();
        let arguments = format!("{} for_ms={for_ms}", self.arguments);
        let (mut bare, mut with, mut each) = (Vec::new(), Vec::new(), Vec::new());
        for run in 0..runs {
            let outsiders: Vec<Process> = (0..self.containers).map(|_| stage.outsider(&arguments)).collect();
            outsiders.iter().for_each(|process| process.signal(Signal::USR1));
            bare.push(self.rates(outsiders).iter().sum());
            let part = bursting((100 / self.containers).min(self.limit), self.limit);
            let tenant = |number| stage.tenant(&format!("run-{run}-{number}"), part.clone(), 1, &arguments);
            let tenants: Vec<Tenant> = (0..self.containers).map(tenant).collect();
            tenants.iter().for_each(Tenant::begin);
            let names: Vec<String> = tenants.iter().map(|tenant| tenant.slice.name().to_owned()).collect();
            let (slices, processes): (Vec<_>, Vec<_>) =
                tenants.into_iter().map(|tenant| (tenant.slice, tenant.processes)).unzip();
            each = self.rates(processes.into_iter().flatten().collect());
            with.push(each.iter().sum());
            drop(slices);
            for name in names {
                let removed = stage.node.client().remove(&name, true);
                removed.unwrap_or_else(|status| panic!("cannot remove {name}: {}", status.message()));
            }
        }
        let lost_ms = (stage.witness.lost_ns() - lost_ns) as f64 / MS as f64;
        let (bare, with) = (median(bare), median(with));
        let kept = with / bare.min(f64::from(self.limit)) * 100.0;
        let (least, most) = (quantile(each.clone(), 0.0), quantile(each, 1.0));
        table.row(vec![
            self.what.to_owned(),
            format!("{bare:.1}"),
            format!("{with:.1}; {least:.1} to {most:.1}"),
            format!("{kept:.1}"),
            self.aim.map_or("recorded".to_owned(), |aim| format!("≥ {aim}")),
            self.aim.map_or(String::new(), |aim| yes_or_no(kept >= aim)),
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

/// Four processes under one limit, compared with a half of what four processes do without the shim.
fn four_processes(table: &mut Table, depth: Depth, what: &str, configuration: &str) {
    let stage = Stage::with(configuration);
    let tenant = stage.tenant("four", with_room(share(50)), 4, "kernels=1000000");
    let recording = stage.play(&[&tenant], depth.window_ns());
    let found = recording.share(0);
    drop(tenant);
    let outsiders: Vec<Process> = (0..4).map(|_| stage.outsider("kernels=1000000")).collect();
    outsiders.iter().for_each(|process| process.signal(Signal::USR1));
    let pids = outsiders.iter().map(Process::id).collect();
    let users = Users { machine: stage.gpu.machine(), device: 0, pids: vec![pids] };
    let bare = Recording::from_first_use(&users, &stage.witness, depth.window_ns());
    table.row(vec![
        what.to_owned(),
        format!("{:.1}", bare.share(0)),
        format!("{found:.1}"),
        format!("{:.1}", found / bare.share(0).min(50.0) * 100.0),
        "50 ± 1".to_owned(),
        yes_or_no((found - 50.0).abs() <= 1.0),
        format!("{:.0}", recording.lost_ms() + bare.lost_ms()),
    ]);
}

/// Requests of 1 ms beside a batch container that is always busy: how long they wait.
fn latency(table: &mut Table, what: &str, class: PriorityClass, count: u32) {
    const LOAD: &str = "kernels=1000000";
    const MEAN_PAUSE_US: u32 = 20_000;
    let stage = Stage::with(HARDWARE);
    let lost_ns = stage.witness.lost_ns();
    let neighbour = stage.outsider(LOAD);
    neighbour.signal(Signal::USR1);
    let bare = requests::waits(requests::start(&stage, None, count, MEAN_PAUSE_US));
    drop(neighbour);
    let batch = requests::slice("batch".to_owned(), PriorityClass::Batch, bursting(70, 100));
    let batch = stage.tenant_of(batch, LOAD);
    let created = stage.node.client().create(requests::slice("requests".to_owned(), class, share(30)));
    let slice = Slice::open(created.unwrap_or_else(|status| panic!("{}", status.message())));
    let process = requests::start(&stage, Some(&slice), count, MEAN_PAUSE_US);
    batch.begin();
    let with = requests::waits(process);
    let waits = |waits: Vec<f64>| format!("{:.2}, {:.2} ms", median(waits.clone()), quantile(waits, 0.99));
    table.row(vec![
        format!("requests of 1 ms, {what}, beside kernels of 1 ms: wait, median and p99"),
        waits(bare),
        waits(with),
        String::new(),
        "recorded".to_owned(),
        String::new(),
        format!("{:.0}", (stage.witness.lost_ns() - lost_ns) as f64 / MS as f64),
    ]);
}
