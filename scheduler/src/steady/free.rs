//! What is free in a cluster at the moment at which a task is lost.

use aliquot_scheduler_core::{Cluster, DeviceSpec, Request};
use serde::Serialize;

/// What was free when tasks were lost, as the mean over these tasks.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct FreeAtLoss {
    /// The free time of all devices, in devices: half a device counts as 0.5, also if the rest of it is in use.
    pub device_time: f64,
    /// The number of devices of which no part was in use.
    pub devices: f64,
    /// The number of those that were on nodes with enough free CPU for the task.
    pub devices_with_cpu: f64,
    /// The most CPU that was free on one node, in thousandths of a core.
    pub cpu_of_one_node_milli: f64,
}

/// The sums of [`FreeAtLoss`] over lost tasks.
#[derive(Clone, Copy, PartialEq, Debug, Default)]
pub(super) struct FreeSums {
    losses: u64,
    device_core: u64,
    devices: u64,
    devices_with_cpu: u64,
    cpu_of_one_node_milli: u64,
}

impl FreeSums {
    /// Looks at all nodes after one task was lost.
    pub(super) fn of_loss(cluster: &Cluster, request: &Request) -> Self {
        let mut sums = Self { losses: 1, ..Self::default() };
        for (_, node) in cluster.nodes() {
            let cpu = node.cpu_free();
            let devices = node.devices().iter().filter(|device| device.is_idle()).count() as u64;
            sums.device_core += node.devices().iter().map(|device| u64::from(device.core_free().get())).sum::<u64>();
            sums.devices += devices;
            sums.devices_with_cpu += if cpu >= request.cpu { devices } else { 0 };
            sums.cpu_of_one_node_milli = sums.cpu_of_one_node_milli.max(cpu.get());
        }
        sums
    }

    pub(super) fn add(&mut self, other: Self) {
        self.losses += other.losses;
        self.device_core += other.device_core;
        self.devices += other.devices;
        self.devices_with_cpu += other.devices_with_cpu;
        self.cpu_of_one_node_milli += other.cpu_of_one_node_milli;
    }

    /// `None` if no task was lost.
    pub(super) fn mean(self) -> Option<FreeAtLoss> {
        let mean = |sum: u64| sum as f64 / self.losses as f64;
        (self.losses > 0).then(|| FreeAtLoss {
            device_time: mean(self.device_core) / f64::from(DeviceSpec::CORE.get()),
            devices: mean(self.devices),
            devices_with_cpu: mean(self.devices_with_cpu),
            cpu_of_one_node_milli: mean(self.cpu_of_one_node_milli),
        })
    }
}
