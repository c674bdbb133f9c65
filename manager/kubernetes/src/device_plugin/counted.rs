//! Resources that only the scheduler counts: what a container asks for in other systems' words beside the units that
//! kubelet hands out. They stand in the node's status, as Kubernetes lets anybody with the right add extended resources;
//! kubelet leaves there what no plugin serves, unless the machine was started anew. So they are written again and again.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use aliquot_dialects::{Count, NodeFacts, Spoken};
use tokio::time::Instant;
use tracing::warn;

use super::cluster::Cluster;
use crate::node::Devices;

/// How often what is the same is written again.
const REPEAT_INTERVAL: Duration = Duration::from_secs(60);
const MIB: u64 = 1 << 20;

/// How much of each such resource the node has: the sums over the devices that can be used.
#[must_use]
pub(super) fn counted(spoken: &Spoken, facts: &NodeFacts, devices: &Devices) -> BTreeMap<&'static str, u64> {
    let mut sums = BTreeMap::new();
    let usable = || devices.usable().filter(|device| device.problem.is_none() && !device.is_partitioned);
    for counted in spoken.iter().flat_map(|dialect| dialect.counted(facts)) {
        let of_device = |memory_bytes: u64| match counted.count {
            Count::MemoryMib => memory_bytes / MIB,
            Count::PerDevice(count) => count.into(),
        };
        sums.insert(counted.resource, usable().map(|device| of_device(device.memory_bytes)).sum());
    }
    sums
}

/// Keeps the node's status up to date.
pub(super) struct Publisher {
    cluster: Arc<dyn Cluster>,
    written: Option<(BTreeMap<&'static str, u64>, Instant)>,
    has_failed: bool,
}

impl Publisher {
    pub(super) fn new(cluster: Arc<dyn Cluster>) -> Publisher {
        Publisher { cluster, written: None, has_failed: false }
    }

    /// Writes these amounts if they are new, or were written long ago.
    pub(super) async fn publish(&mut self, amounts: BTreeMap<&'static str, u64>) {
        let is_known = |(known, at): &(BTreeMap<_, _>, Instant)| *known == amounts && at.elapsed() < REPEAT_INTERVAL;
        if amounts.is_empty() || self.written.as_ref().is_some_and(is_known) {
            return;
        }
        match self.cluster.count(&amounts).await {
            Ok(()) => (self.written, self.has_failed) = (Some((amounts, Instant::now())), false),
            Err(reason) if !self.has_failed => {
                warn!("cannot say in the node's status what other systems' pods ask for, will try again: {reason}");
                self.has_failed = true;
            }
            Err(_) => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use aliquot_dialects::Dialect;

    use super::*;
    use crate::device_plugin::test_node::device;

    #[test]
    fn the_sums_are_of_devices_that_can_be_used() {
        let mut devices = Devices { devices: (0..3).map(|number| device(number, 16)).collect(), ..Devices::default() };
        let of = |dialects: &[Dialect], devices: &Devices| -> Vec<(&str, u64)> {
            let spoken = Spoken::new(dialects.iter().copied()).unwrap();
            counted(&spoken, &NodeFacts::default(), devices).into_iter().collect()
        };
        assert_eq!(of(&[Dialect::GpuShare, Dialect::Nvidia, Dialect::Qgpu], &devices), []);
        let all = [
            ("nvidia.com/gpucores", 300),
            ("nvidia.com/gpumem", 3 * 16 * 1024),
            ("nvidia.com/gpumem-percentage", 300),
            ("nvidia.com/priority", 30),
        ];
        assert_eq!(of(&[Dialect::Hami], &devices), all);
        devices.devices[0].problem = Some("ill".into());
        devices.devices[1].is_partitioned = true;
        let one = [
            ("volcano.sh/vgpu-cores", 100),
            ("volcano.sh/vgpu-memory", 16 * 1024),
            ("volcano.sh/vgpu-memory-percentage", 100),
        ];
        assert_eq!(of(&[Dialect::Volcano], &devices), one);
    }
}
