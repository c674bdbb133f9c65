//! Reasons why a node cannot take an allocation.

use crate::vocabulary::quantity::{Bytes, DeviceCore, MilliCpu};

/// Why a node or its devices cannot take what an allocation says.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum NotEnough {
    /// Less CPU is free.
    #[error("{} thousandths of a CPU core are wanted, {} are free", wanted.get(), free.get())]
    Cpu {
        /// What is asked for.
        wanted: MilliCpu,
        /// What is free.
        free: MilliCpu,
    },
    /// Less memory is free.
    #[error("{} bytes of memory are wanted, {} are free", wanted.get(), free.get())]
    Memory {
        /// What is asked for.
        wanted: Bytes,
        /// What is free.
        free: Bytes,
    },
    /// Less is free of something that is only counted.
    #[error("{wanted} {name} are wanted, {free} are free")]
    Counted {
        /// What it is.
        name: String,
        /// What is asked for.
        wanted: u64,
        /// What is free.
        free: u64,
    },
    /// There is no such device, or it is named twice, or not in order.
    #[error("device {device} is not a device of the node that is named once and in ascending order")]
    NoSuchDevice {
        /// The index.
        device: u16,
    },
    /// The allocation is not what the request asks for.
    #[error("device {device} is allocated with another amount than was requested")]
    Mismatch {
        /// The index.
        device: u16,
    },
    /// Other than the number of devices that the request asks for.
    #[error("{allocated} devices are allocated, {wanted} were requested")]
    DeviceCount {
        /// What is asked for.
        wanted: u16,
        /// What was allocated.
        allocated: usize,
    },
    /// Less time of the device is free.
    #[error("{} thousandths of device {device}'s time are wanted, {} are free", wanted.get(), free.get())]
    DeviceCore {
        /// The index.
        device: u16,
        /// What is asked for.
        wanted: DeviceCore,
        /// What is free.
        free: DeviceCore,
    },
    /// Less memory of the device is free.
    #[error("{} bytes of device {device}'s memory are wanted, {} are free", wanted.get(), free.get())]
    DeviceMemory {
        /// The index.
        device: u16,
        /// What is asked for.
        wanted: Bytes,
        /// What is free.
        free: Bytes,
    },
}
