//! Processor time of the node manager while eight devices are shared by ten containers each.

use aliquot_harness::{GIB, Process};
use aliquot_proto::node::v1::Part;
use rustix::process::Signal;

use crate::manager_cost::cpu_seconds;
use crate::shares::stage::{Stage, Tenant};
use crate::shares::{Depth, MS, duration};
use crate::table::{Table, yes_or_no};

const DEVICES: usize = 8;
const CONTAINERS_PER_DEVICE: u32 = 10;
/// Aim in percent of one core, for each device.
const AIM_PERCENT: f64 = 5.0;

/// Measures with kernels of several lengths.
pub(super) fn measure(depth: Depth) {
    let mut table = Table::new(&[
        "manager, 8 devices shared by 10 busy containers each",
        "CPU, % of a core",
        "for each device",
        "aim",
        "met",
        "devices busy %",
        "machine lost, ms",
    ]);
    for kernel_ns in depth.of(vec![5 * MS, MS, 20 * MS], 1) {
        let stage = Stage::with(&"[[device]]\n".repeat(DEVICES));
        let tenants: Vec<Tenant> = (0..DEVICES)
            .flat_map(|device| (0..CONTAINERS_PER_DEVICE).map(move |number| (device, number)))
            .map(|(device, number)| {
                let part = Part {
                    device_uuid: stage.gpu.uuid(device),
                    core_request_percent: 100 / CONTAINERS_PER_DEVICE,
                    memory_limit_bytes: GIB,
                    ..Part::default()
                };
                stage.tenant(&format!("busy-{device}-{number}"), part, 1, &format!("kernels={kernel_ns}"))
            })
            .collect();
        let processes = tenants.iter().flat_map(|tenant| &tenant.processes);
        processes.for_each(|process: &Process| process.signal(Signal::USR1));
        // Lets the first turns pass.
        let _ = stage.watch(&[], depth.window_ns() / 3);
        let busy_ns = || -> u64 { (0..DEVICES).map(|device| stage.gpu.machine().device_use(device).busy_ns).sum() };
        let manager = stage.node.manager_id();
        let (cpu_before, busy_before, start) = (cpu_seconds(manager), busy_ns(), std::time::Instant::now());
        let recording = stage.watch(&[], depth.window_ns());
        let seconds = start.elapsed().as_secs_f64();
        let cpu_percent = (cpu_seconds(manager) - cpu_before) / seconds * 100.0;
        let busy_percent = (busy_ns() - busy_before) as f64 / 1e7 / seconds / DEVICES as f64;
        let each = cpu_percent / DEVICES as f64;
        table.row(&[
            format!("kernels of {}", duration(kernel_ns)),
            format!("{cpu_percent:.1}"),
            format!("{each:.2}"),
            format!("≤ {AIM_PERCENT}"),
            yes_or_no(each <= AIM_PERCENT),
            format!("{busy_percent:.1}"),
            format!("{:.0}", recording.lost_ms()),
        ]);
    }
}
