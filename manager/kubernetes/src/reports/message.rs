//! Converts the use and the devices of a node to a report.

use aliquot_node::{Consumer, Device, Devices, Enforcement, NodeUsage, PartUsage, SliceUsage};
use aliquot_proto::reports::v1 as proto;

/// The report of a node with these devices and this use of them.
pub(super) fn report_of(devices: &Devices, usage: NodeUsage) -> proto::NodeReport {
    let NodeUsage { slices, memory_outside_bytes } = usage;
    let device = |device: &Device| proto::Device {
        uuid: device.uuid.clone(),
        problem: device.problem.clone().unwrap_or_default(),
        memory_bytes: device.memory_bytes,
        enforcement: enforcement(device.enforcement).into(),
        memory_outside_bytes: memory_outside_bytes.get(&device.uuid).copied(),
    };
    proto::NodeReport {
        version: env!("CARGO_PKG_VERSION").to_owned(),
        devices: devices.usable().map(device).collect(),
        slices: slices.into_iter().map(slice).collect(),
    }
}

fn enforcement(enforcement: Enforcement) -> proto::Enforcement {
    match enforcement {
        Enforcement::Limits => proto::Enforcement::Limits,
        Enforcement::Shares => proto::Enforcement::Shares,
        Enforcement::Hardware => proto::Enforcement::Hardware,
    }
}

fn slice(usage: SliceUsage) -> proto::Slice {
    let consumer = |Consumer { namespace, pod, container }| proto::Consumer { namespace, pod, container };
    let part = |part: PartUsage| proto::Part {
        core_used_millipercent: part.core_used_10s_millipercent,
        core_used_ns: part.core_used_ns,
        memory_used_bytes: part.memory.used_bytes,
        device_uuid: part.device_uuid,
    };
    proto::Slice {
        id: usage.id,
        consumers: usage.consumers.into_iter().map(consumer).collect(),
        parts: usage.parts.into_iter().map(part).collect(),
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use aliquot_node::MemoryUsage;

    use super::*;
    use crate::device_plugin::test_node::{GIB, device, mig_instance};

    #[test]
    fn a_report_says_what_is_used_and_how_devices_are() {
        let gpu = device(0, 80);
        let ill = Device { problem: Some("XID 79".into()), enforcement: Enforcement::Limits, ..device(1, 80) };
        let instance = Device { enforcement: Enforcement::Hardware, ..mig_instance(2, "1g.10gb") };
        let partitioned = Device { is_partitioned: true, ..device(3, 80) };
        let devices = Devices { devices: vec![gpu.clone(), ill, instance, partitioned], ..Devices::default() };
        let part = PartUsage {
            device_uuid: gpu.uuid.clone(),
            core_used_10s_millipercent: 29_970,
            core_used_ns: 5,
            memory: MemoryUsage { used_bytes: GIB, ..MemoryUsage::default() },
            ..PartUsage::default()
        };
        let consumer = Consumer { namespace: "team".into(), pod: "a".into(), container: "main".into() };
        let slice =
            SliceUsage { id: "s".into(), parts: vec![part], consumers: [consumer].into(), ..SliceUsage::default() };
        let memory_outside_bytes = BTreeMap::from([(gpu.uuid.clone(), 7)]);
        let report = report_of(&devices, NodeUsage { slices: vec![slice], memory_outside_bytes });
        let found: Vec<_> =
            report.devices.iter().map(|of| (of.problem.as_str(), of.enforcement(), of.memory_outside_bytes)).collect();
        let expected = [
            ("", proto::Enforcement::Shares, Some(7)),
            ("XID 79", proto::Enforcement::Limits, None),
            ("", proto::Enforcement::Hardware, None),
        ];
        assert_eq!(found, expected);
        let [slice] = report.slices.as_slice() else { panic!("{:?}", report.slices) };
        let part = &slice.parts[0];
        assert_eq!((slice.id.as_str(), slice.consumers[0].pod.as_str()), ("s", "a"));
        assert_eq!((part.core_used_millipercent, part.core_used_ns, part.memory_used_bytes), (29_970, 5, GIB));
    }
}
