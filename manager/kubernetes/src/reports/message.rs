//! Reports as messages.

use aliquot_node::{Consumer, Devices, PartUsage, SliceUsage};
use aliquot_proto::reports::v1 as proto;

/// What is reported of a node with these devices, whose slices use this.
pub(super) fn report_of(devices: &Devices, usage: Vec<SliceUsage>) -> proto::NodeReport {
    let device = |device: &aliquot_node::Device| proto::Device {
        uuid: device.uuid.clone(),
        problem: device.problem.clone().unwrap_or_default(),
        memory_bytes: device.memory_bytes,
    };
    proto::NodeReport {
        version: env!("CARGO_PKG_VERSION").to_owned(),
        devices: devices.usable().map(device).collect(),
        slices: usage.into_iter().map(slice).collect(),
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
