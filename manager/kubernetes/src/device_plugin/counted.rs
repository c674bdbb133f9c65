//! Resources that only the scheduler counts: containers request them in other systems' words, besides the units that
//! kubelet hands out. They stand in the node's status, because in Kubernetes any client with the right may add extended
//! resources.

use std::collections::BTreeMap;

use aliquot_dialects::{Count, NodeFacts, Spoken};
use aliquot_node::{Device, Devices, Part, Slice};

const MIB: u64 = 1 << 20;

/// The node's amount of each such resource: the sum over the devices that can be used. For an unhealthy device it
/// counts the amount that slices hold of it, because kube-scheduler still counts the requests of their pods.
#[must_use]
pub(super) fn counted(
    spoken: &Spoken,
    facts: &NodeFacts,
    devices: &Devices,
    slices: &[Slice],
) -> BTreeMap<&'static str, u64> {
    let counted = spoken.iter().flat_map(|dialect| dialect.counted(facts));
    let of_device = |count: Count, device: &Device| match device.problem {
        None => whole(count, device),
        Some(_) => held(count, device, slices).min(whole(count, device)),
    };
    counted
        .map(|counted| (counted.resource, devices.usable().map(|device| of_device(counted.count, device)).sum()))
        .collect()
}

/// The amount for a whole device.
fn whole(count: Count, device: &Device) -> u64 {
    match count {
        Count::MemoryMib => device.memory_bytes / MIB,
        Count::MemoryPercent | Count::CorePercent => 100,
        Count::Containers { per_device } => per_device.into(),
    }
}

/// The amount that slices hold of a device, rounded up.
fn held(count: Count, device: &Device, slices: &[Slice]) -> u64 {
    let of_part = |part: &Part| match count {
        Count::MemoryMib => part.memory_limit_bytes.div_ceil(MIB),
        Count::MemoryPercent => {
            let percent = (u128::from(part.memory_limit_bytes) * 100).div_ceil(device.memory_bytes.max(1).into());
            u64::try_from(percent).unwrap_or(u64::MAX)
        }
        Count::CorePercent => part.core_request_percent.into(),
        Count::Containers { .. } => 1,
    };
    let parts = slices.iter().flat_map(|slice| &slice.content.parts).filter(|part| part.device_uuid == device.uuid);
    parts.map(of_part).fold(0, u64::saturating_add)
}

#[cfg(test)]
mod tests {
    use aliquot_dialects::Dialect;

    use super::*;
    use crate::device_plugin::test_node::{GIB, device, slice_of};

    #[test]
    fn the_sums_are_of_devices_that_can_be_used() {
        let mut devices = Devices { devices: (0..3).map(|number| device(number, 16)).collect(), ..Devices::default() };
        let slices = [slice_of("a", &devices.devices[0], 30, 5 * GIB + 1), slice_of("b", &devices.devices[2], 50, GIB)];
        let of = |dialects: &[Dialect], devices: &Devices, slices: &[Slice]| -> Vec<(&str, u64)> {
            let spoken = Spoken::new(dialects.iter().copied()).unwrap();
            counted(&spoken, &NodeFacts::default(), devices, slices).into_iter().collect()
        };
        assert_eq!(of(&[Dialect::GpuShare, Dialect::Nvidia, Dialect::Qgpu], &devices, &slices), []);
        let all = [
            ("nvidia.com/gpucores", 300),
            ("nvidia.com/gpumem", 3 * 16 * 1024),
            ("nvidia.com/gpumem-percentage", 300),
            ("nvidia.com/priority", 30),
        ];
        assert_eq!(of(&[Dialect::Hami], &devices, &slices), all);
        devices.devices[0].problem = Some("ill".into());
        devices.devices[1].is_partitioned = true;
        let one = [
            ("volcano.sh/vgpu-cores", 100),
            ("volcano.sh/vgpu-memory", 16 * 1024),
            ("volcano.sh/vgpu-memory-percentage", 100),
        ];
        assert_eq!(of(&[Dialect::Volcano], &devices, &[]), one);
        // A container that holds a part of the unhealthy device still counts.
        let with_held = [
            ("nvidia.com/gpucores", 100 + 30),
            ("nvidia.com/gpumem", 16 * 1024 + 5 * 1024 + 1),
            ("nvidia.com/gpumem-percentage", 100 + 32),
            ("nvidia.com/priority", 10 + 1),
        ];
        assert_eq!(of(&[Dialect::Hami], &devices, &slices), with_held);
    }
}
