//! The cost of sharing: one container alone on a device, and two containers with half of it each.

use crate::shares::recording::{Recording, Users};
use crate::shares::stage::{Stage, share};
use crate::shares::{Depth, MS, SECOND_NS, US, duration};
use crate::statistics::median;
use crate::table::{Table, yes_or_no};
use rustix::process::Signal;

const ALONE_PERCENT: f64 = 99.5;
const HALVES_PERCENT: f64 = 98.0;

/// Measures both.
pub(super) fn measure(depth: Depth) {
    let mut table =
        Table::new(&["throughput", "without the shim %", "with it %", "kept %", "aim", "met", "machine lost, ms"]);
    let (runs, window_ns) = if depth == Depth::Quick { (3, SECOND_NS) } else { (7, 2 * SECOND_NS) };
    let kernels = vec![(50 * US, 0), (MS, 0), (MS, 1), (20 * MS, 1)];
    for (kernel_ns, sync) in depth.of(kernels, 1) {
        alone(&mut table, kernel_ns, sync, runs, window_ns);
    }
    for kernel_ns in depth.of(vec![MS, 50 * US, 20 * MS], 1) {
        halves(&mut table, kernel_ns, depth);
    }
}

/// Device time of a container without a cap, with and without the shim alternately.
fn alone(table: &mut Table, kernel_ns: u64, sync: u32, runs: usize, window_ns: u64) {
    let arguments = format!("kernels={kernel_ns} sync={sync}");
    let stage = Stage::new();
    let lost_ns = stage.witness.lost_ns();
    let (mut bare, mut with) = (Vec::new(), Vec::new());
    for run in 0..runs {
        let process = stage.outsider(&arguments);
        process.signal(Signal::USR1);
        let users = Users { machine: stage.gpu.machine(), device: 0, pids: vec![vec![process.id()]] };
        bare.push(Recording::from_first_use(&users, &stage.witness, window_ns).share(0));
        drop(process);
        let tenant = stage.tenant(&format!("alone-{run}"), share(100), 1, &arguments);
        with.push(stage.play(&[&tenant], window_ns).share(0));
        let name = tenant.slice.name().to_owned();
        drop(tenant);
        // The next container must get the whole device.
        let removed = stage.node.client().remove(&name, true);
        removed.unwrap_or_else(|status| panic!("cannot remove {name}: {}", status.message()));
    }
    let lost_ms = (stage.witness.lost_ns() - lost_ns) as f64 / MS as f64;
    let (bare, with) = (median(bare), median(with));
    let kept = with / bare * 100.0;
    let waits = if sync == 0 { "" } else { ", each waited for" };
    table.row(&[
        format!("uncapped, alone, kernels of {}{waits}", duration(kernel_ns)),
        format!("{bare:.2}"),
        format!("{with:.2}"),
        format!("{kept:.2}"),
        format!("≥ {ALONE_PERCENT}"),
        yes_or_no(kept >= ALONE_PERCENT),
        format!("{lost_ms:.0}"),
    ]);
}

fn halves(table: &mut Table, kernel_ns: u64, depth: Depth) {
    let stage = Stage::new();
    let tenants = ["first", "second"].map(|name| stage.tenant(name, share(50), 1, &format!("kernels={kernel_ns}")));
    let recording = stage.play(&tenants.each_ref(), depth.window_ns());
    let shares = [0, 1].map(|user| recording.share(user));
    let kept = shares[0].min(shares[1]) * 2.0;
    table.row(&[
        format!("two halves, kernels of {}", duration(kernel_ns)),
        "perfect: 50 and 50".to_owned(),
        format!("{:.2} and {:.2}", shares[0], shares[1]),
        format!("{kept:.2}"),
        format!("≥ {HALVES_PERCENT}"),
        yes_or_no(kept >= HALVES_PERCENT),
        format!("{:.0}", recording.lost_ms()),
    ]);
}
