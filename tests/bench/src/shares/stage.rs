//! The set-up of the cases: a device, a node manager, and containers with programs that keep the device busy.

use aliquot_harness::{FrontDriver, GIB, HostProgram, Node, Process, SimulatedGpu, Slice, Witness};
use aliquot_proto::node::v1::{CreateSliceRequest, Part};
use rustix::process::Signal;

use crate::shares::recording::{Recording, Users};

/// A simulated machine with a node manager.
pub(super) struct Stage {
    pub(super) gpu: SimulatedGpu,
    pub(super) node: Node,
    pub(super) witness: Witness,
    load: HostProgram,
    /// The driver in front of the simulated one, if there is one.
    front: Option<FrontDriver>,
}

/// A container whose programs wait for a signal to begin.
pub(super) struct Tenant {
    pub(super) slice: Slice,
    pub(super) processes: Vec<Process>,
}

/// A part of the stage's first device with `percent` as request and limit.
pub(super) fn share(percent: u32) -> Part {
    bursting(percent, percent)
}

/// A part of the stage's first device.
pub(super) fn bursting(request_percent: u32, limit_percent: u32) -> Part {
    Part {
        core_request_percent: request_percent,
        core_limit_percent: limit_percent,
        memory_limit_bytes: GIB,
        ..Part::default()
    }
}

/// The part with memory for the contexts of several processes.
pub(super) fn with_room(part: Part) -> Part {
    Part { memory_limit_bytes: 4 * GIB, ..part }
}

impl Stage {
    /// A stage with one device.
    pub(super) fn new() -> Stage {
        Stage::with("")
    }

    /// A stage whose machine's configuration has these keys.
    pub(super) fn with(configuration: &str) -> Stage {
        Stage::with_settings(configuration, "")
    }

    /// The same with these keys in the manager's configuration.
    pub(super) fn with_settings(configuration: &str, settings: &str) -> Stage {
        let gpu = SimulatedGpu::with(configuration);
        let node = Node::with(&gpu, &format!("cdi_dir = 'off'\n{settings}"));
        let load = HostProgram::linked(&gpu, "load");
        Stage { gpu, node, load, witness: Witness::start(), front: None }
    }

    /// A stage with one device that cannot write progress markers, so that the shim uses events instead.
    pub(super) fn without_device_writes() -> Stage {
        let stage = Stage::new();
        let front = FrontDriver::new(&stage.gpu, "driver_with_events");
        Stage { front: Some(front), ..stage }
    }

    /// A container with `processes` processes of the program `load`, each with these arguments.
    pub(super) fn tenant(&self, name: &str, part: Part, processes: usize, arguments: &str) -> Tenant {
        let slice = self.node.slice_of(name, vec![part]);
        self.occupy(slice, processes, arguments)
    }

    /// The requested container, with one process of the program `load`.
    pub(super) fn tenant_of(&self, request: CreateSliceRequest, arguments: &str) -> Tenant {
        let slice = self.node.client().create(request).unwrap_or_else(|status| panic!("{}", status.message()));
        self.occupy(Slice::open(slice), 1, arguments)
    }

    fn occupy(&self, slice: Slice, processes: usize, arguments: &str) -> Tenant {
        let device = slice.description().parts[0].device_uuid.clone();
        let start = |_| {
            let mut command = self.load.on(&self.gpu);
            command.args(arguments.split(' ')).env("CUDA_VISIBLE_DEVICES", &device);
            if let Some(front) = &self.front {
                front.show_to(&mut command);
            }
            Process::start(slice.preload_into(&mut command))
        };
        let mut processes: Vec<Process> = (0..processes).map(start).collect();
        processes.iter_mut().for_each(|process| process.wait_for("ready"));
        Tenant { slice, processes }
    }

    /// A process of the program `load` outside of all containers.
    pub(super) fn outsider(&self, arguments: &str) -> Process {
        let mut process = Process::start(self.load.on(&self.gpu).args(arguments.split(' ')));
        process.wait_for("ready");
        process
    }

    /// Lets all programs begin, and records from their first use of the device on.
    pub(super) fn play(&self, tenants: &[&Tenant], duration_ns: u64) -> Recording {
        tenants.iter().for_each(|tenant| tenant.begin());
        Recording::from_first_use(&self.users(tenants), &self.witness, duration_ns)
    }

    /// Records the tenants' device time from now on.
    pub(super) fn watch(&self, tenants: &[&Tenant], duration_ns: u64) -> Recording {
        Recording::from_now(&self.users(tenants), &self.witness, duration_ns)
    }

    /// The tenants as users of the first device.
    pub(super) fn users(&self, tenants: &[&Tenant]) -> Users<'_> {
        let pids = tenants.iter().map(|tenant| tenant.processes.iter().map(Process::id).collect()).collect();
        Users { machine: self.gpu.machine(), device: 0, pids }
    }
}

impl Tenant {
    /// Lets the tenant's programs begin.
    pub(super) fn begin(&self) {
        self.processes.iter().for_each(|process| process.signal(Signal::USR1));
    }
}
