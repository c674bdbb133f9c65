//! Reasons why a node cannot take an allocation.

use crate::vocabulary::quantity::{Bytes, DeviceCore, MilliCpu};

/// Why a node or its devices cannot take an allocation.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum NotEnough {
    /// Not enough CPU is free.
    #[error("{} thousandths of a CPU core are wanted, {} are free", wanted.get(), free.get())]
    Cpu {
        /// The amount that the allocation takes.
        wanted: MilliCpu,
        /// The amount that is free on the node.
        free: MilliCpu,
    },
    /// Not enough memory is free.
    #[error("{} bytes of memory are wanted, {} are free", wanted.get(), free.get())]
    Memory {
        /// The amount that the allocation takes.
        wanted: Bytes,
        /// The amount that is free on the node.
        free: Bytes,
    },
    /// Not enough of a counted resource is free.
    #[error("{wanted} {name} are wanted, {free} are free")]
    Counted {
        /// The name of the counted resource.
        name: String,
        /// The amount that the allocation takes.
        wanted: u64,
        /// The amount that is free on the node.
        free: u64,
    },
    /// There is no such device, or a request names it twice or not in ascending order.
    #[error(
        "device {device} is not on the node, or is listed twice or out of order; a request lists devices in ascending order"
    )]
    NoSuchDevice {
        /// The device's index in the allocation.
        device: u16,
    },
    /// The allocation has another amount than the request asks for.
    #[error("the amount that is allocated of device {device} differs from the requested amount")]
    Mismatch {
        /// The device's index on the node.
        device: u16,
    },
    /// The allocation has another number of devices than the request asks for.
    #[error("{allocated} devices are allocated, {wanted} were requested")]
    DeviceCount {
        /// Devices that the request asks for.
        wanted: u16,
        /// Devices that the allocation has.
        allocated: usize,
    },
    /// The request has no such choice.
    #[error("choice {alternative} (counted from 0) is allocated, but the claim's number of choices is {choices}")]
    NoSuchChoice {
        /// The choice that the allocation names, counted from 0.
        alternative: u16,
        /// How many choices the request has.
        choices: u16,
    },
    /// Not enough of the device's time is free.
    #[error("{} thousandths of device {device}'s time are wanted, {} are free", wanted.get(), free.get())]
    DeviceCore {
        /// The device's index on the node.
        device: u16,
        /// The amount that the allocation takes of the device.
        wanted: DeviceCore,
        /// The amount that is free on the device.
        free: DeviceCore,
    },
    /// Not enough of the device's memory is free.
    #[error("{} bytes of device {device}'s memory are wanted, {} are free", wanted.get(), free.get())]
    DeviceMemory {
        /// The device's index on the node.
        device: u16,
        /// The amount that the allocation takes of the device.
        wanted: Bytes,
        /// The amount that is free on the device.
        free: Bytes,
    },
}
