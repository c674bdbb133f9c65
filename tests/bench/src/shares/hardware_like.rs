//! The cost of sharing on a device whose launches, markers and changes of process are as slow as on an H100. Compared
//! with the driver's own time slicing or, for one container, with the bare driver.
//!
//! The measure is the duration of the programs' kernels per wall-clock time, not the device's busy time, which includes
//! the markers.

use aliquot_harness::Process;
use rustix::process::Signal;

use crate::shares::stage::{Stage, Tenant, bursting, share};
use crate::shares::{Depth, MS, US};
use crate::statistics::median;
use crate::table::{Table, yes_or_no};

/// Launches of 3 µs, writes of 2 µs, changes of process of 100 µs.
const HARDWARE: &str = "launch_ns = 3000\nwrite_ns = 2000\nwrite_call_ns = 1000\ncontext_switch_us = 100";

/// Programs on the device, and the part of their rate without the shim that they should keep.
struct Case {
    what: &'static str,
    /// The limits of the containers in percent.
    limits: &'static [u32],
    arguments: &'static str,
    /// Device time of one launch.
    launch_ns: u64,
    /// The aim in percent of the bare rate; `None`: only recorded.
    aim: Option<f64>,
}

/// A container alone under a limit of 99 %. Its gate is never free, so its loss consists of its markers and pauses.
const ALONE: &[u32] = &[99];
const PAIR: &[u32] = &[100, 100];

const CASES: &[Case] = &[
    Case {
        what: "two always busy, kernels of 30 µs",
        limits: PAIR,
        arguments: "kernels=30000",
        launch_ns: 30 * US,
        aim: Some(98.0),
    },
    Case {
        what: "two always busy, kernels of 1 ms",
        limits: PAIR,
        arguments: "kernels=1000000",
        launch_ns: MS,
        aim: Some(98.0),
    },
    Case {
        what: "two bound by their hosts: 200 µs of work, pauses of 1 ms",
        limits: PAIR,
        arguments: "kernels=50000 sync=4 gap_us=1000",
        launch_ns: 50 * US,
        aim: None,
    },
    Case {
        what: "alone at 99 %, graphs of 30 µs",
        limits: ALONE,
        arguments: "kernels=10000 graph=3",
        launch_ns: 30 * US,
        aim: Some(98.0),
    },
    Case {
        what: "alone at 99 %, 8 kernels of 30 µs and a polling loop",
        limits: ALONE,
        arguments: "kernels=30000 sync=8 poll=2",
        launch_ns: 30 * US,
        aim: Some(97.0),
    },
];

/// Measures the cases one after the other, alternately without the shim and in slices.
pub(super) fn measure(depth: Depth) -> Table {
    let mut table = Table::new(&[
        "as on hardware: work of kernels, % of the time",
        "without the shim",
        "in slices, each",
        "kept %",
        "aim",
        "met",
        "machine lost, ms",
    ]);
    let (runs, for_ms) = if depth == Depth::Quick { (3, 1000) } else { (5, 3000) };
    for case in CASES {
        case.measure(&mut table, runs, for_ms);
    }
    four_processes(&mut table, depth);
    table
}

impl Case {
    fn measure(&self, table: &mut Table, runs: usize, for_ms: u64) {
        let stage = Stage::with(HARDWARE);
        let lost_ns = stage.witness.lost_ns();
        let arguments = format!("{} for_ms={for_ms}", self.arguments);
        let (mut bare, mut with, mut each) = (Vec::new(), Vec::new(), Vec::new());
        for run in 0..runs {
            let outsiders: Vec<Process> = self.limits.iter().map(|_| stage.outsider(&arguments)).collect();
            outsiders.iter().for_each(|process| process.signal(Signal::USR1));
            bare.push(self.rates(outsiders).iter().sum());
            let request = 100 / self.limits.len() as u32;
            let tenant = |(number, limit): (usize, &u32)| {
                stage.tenant(&format!("run-{run}-{number}"), bursting(request.min(*limit), *limit), 1, &arguments)
            };
            let tenants: Vec<Tenant> = self.limits.iter().enumerate().map(tenant).collect();
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
        let kept = with / bare * 100.0;
        let each: Vec<String> = each.iter().map(|rate| format!("{rate:.1}")).collect();
        table.row(vec![
            self.what.to_owned(),
            format!("{bare:.1}"),
            each.join(" and "),
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

/// Four processes under one limit.
fn four_processes(table: &mut Table, depth: Depth) {
    let stage = Stage::with(HARDWARE);
    let tenant = stage.tenant("four", share(50), 4, "kernels=1000000");
    let recording = stage.play(&[&tenant], depth.window_ns());
    let found = recording.share(0);
    table.row(vec![
        "4 processes under one limit of 50 %, kernels of 1 ms".to_owned(),
        String::new(),
        format!("{found:.1}"),
        format!("{:.1}", found * 2.0),
        "50 ± 1".to_owned(),
        yes_or_no((found - 50.0).abs() <= 1.0),
        format!("{:.0}", recording.lost_ms()),
    ]);
}
