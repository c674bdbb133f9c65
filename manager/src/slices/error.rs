//! The reasons why a slice cannot be made, changed or removed. Each names the wrong value and says what to do.

use crate::inventory::{DeviceUuid, Inventory};
use crate::size::Bytes;
use crate::slices::name::Quoted;
use crate::slices::{HOST_MEMORY_BYTES_MAX, NameError, VariableError};
use aliquot_abi::region::DEVICES_MAX;
use aliquot_proto::node::v1::DESCRIPTION_BYTES_MAX;

/// Why a device cannot provide a part.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum PartError {
    /// The guaranteed share is out of range.
    #[error("gpu-core is {found}; it must be 1 to 100 percent of each device")]
    CoreRequest {
        /// The requested share, in percent.
        found: u32,
    },
    /// The limit is out of range.
    #[error("gpu-core-limit is {found}; it must be at most 100 percent of each device")]
    CoreLimit {
        /// The requested limit, in percent.
        found: u32,
    },
    /// The limit is below the guaranteed share.
    #[error("gpu-core-limit is {limit}, below gpu-core, which is {request}; give a limit of at least {request}")]
    LimitBelowRequest {
        /// The guaranteed share, in percent.
        request: u32,
        /// The limit, in percent.
        limit: u32,
    },
    /// There is no such device.
    #[error("there is no device {device}; {}", list(known))]
    Unknown {
        /// The UUID of the requested device.
        device: DeviceUuid,
        /// The UUIDs of the node's devices.
        known: Vec<DeviceUuid>,
    },
    /// No new slice may use the device now.
    #[error("device {device} is unhealthy: {reason}; use another device, or this one when it has recovered")]
    Unhealthy {
        /// The UUID of the device.
        device: DeviceUuid,
        /// The reason why it is unhealthy.
        reason: String,
    },
    /// The device is partitioned.
    #[error("device {device} is partitioned by MIG; use one of its instances")]
    Partitioned {
        /// The UUID of the device.
        device: DeviceUuid,
    },
    /// The device's UUID has an unknown form.
    #[error("device {device} has a UUID that is not 16 bytes; the driver is too old or too new for this version")]
    Unnameable {
        /// The UUID of the device.
        device: DeviceUuid,
    },
    /// The request exceeds the device's memory.
    #[error("gpu-memory is {}; device {device} has {}", Bytes(*.asked), Bytes(*.has))]
    MemoryMax {
        /// The UUID of the device.
        device: DeviceUuid,
        /// The requested memory, in bytes.
        asked: u64,
        /// The device's memory, in bytes.
        has: u64,
    },
    /// Too little of the device's time is left.
    #[error(
        "gpu-core {asked} does not fit on device {device}: only {free} percent are free; ask for less, or remove or resize a slice"
    )]
    CoreRoom {
        /// The UUID of the device.
        device: DeviceUuid,
        /// The requested share, in percent.
        asked: u32,
        /// The share that is not given out, in percent.
        free: u32,
    },
    /// Too little of the device's memory is left.
    #[error("gpu-memory {} does not fit on device {device}: only {} are free; ask for less, or remove or resize a slice", Bytes(*.asked), Bytes(*.free))]
    MemoryRoom {
        /// The UUID of the device.
        device: DeviceUuid,
        /// The requested memory, in bytes.
        asked: u64,
        /// The memory that is not given out, in bytes.
        free: u64,
    },
}

impl PartError {
    pub(super) fn unknown(device: &DeviceUuid, inventory: &Inventory) -> PartError {
        let known = inventory.devices.iter().map(|device| device.uuid.clone()).collect();
        PartError::Unknown { device: device.clone(), known }
    }

    /// Whether only room is missing, so that the same request can succeed later.
    #[must_use]
    pub fn is_want_of_room(&self) -> bool {
        matches!(self, PartError::CoreRoom { .. } | PartError::MemoryRoom { .. })
    }
}

fn list(known: &[DeviceUuid]) -> String {
    match known {
        [] => "this node has none".into(),
        known => format!("this node has {}", known.iter().map(DeviceUuid::as_str).collect::<Vec<_>>().join(", ")),
    }
}

/// A limit on host memory that is too great for a ledger.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error("host-memory is {}; at most {} can be counted: ask for less, or for no limit", Bytes(*.found_bytes), Bytes(HOST_MEMORY_BYTES_MAX))]
pub struct HostMemoryError {
    /// The requested limit, in bytes.
    pub found_bytes: u64,
}

/// Why a slice cannot be made.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum CreateError {
    /// The name is invalid.
    #[error(transparent)]
    Name(#[from] NameError),
    /// The name is taken.
    #[error("a slice named {} exists; choose another name, or remove it", Quoted(name))]
    Exists {
        /// The name that was requested.
        name: String,
    },
    /// A variable for its containers is invalid.
    #[error(transparent)]
    Variable(#[from] VariableError),
    /// The description is too long.
    #[error("the description has {found_bytes} bytes; at most {DESCRIPTION_BYTES_MAX} are allowed")]
    Description {
        /// The length of the description, in bytes.
        found_bytes: usize,
    },
    /// The limit on host memory is too great.
    #[error(transparent)]
    HostMemory(#[from] HostMemoryError),
    /// Too few or too many parts.
    #[error("a slice of {found} devices is not possible; ask for 1 to {DEVICES_MAX}")]
    PartCount {
        /// The number of parts.
        found: usize,
    },
    /// Two parts on one device.
    #[error("device {device} is named twice; each part must be of another device")]
    DeviceTwice {
        /// The UUID of the device.
        device: DeviceUuid,
    },
    /// Some devices of the slice are shared in time, and others by MPS.
    #[error(
        "device {device} is not shared in the same way as the slice's other devices (in time, or by MPS); \
         see `aliquot nodes`"
    )]
    SharedOtherwise {
        /// The UUID of the device.
        device: DeviceUuid,
    },
    /// A part cannot be provided.
    #[error(transparent)]
    Part(#[from] PartError),
    /// This node has no device.
    #[error("this node has no device; run `aliquot doctor` to see why")]
    NoDevice,
    /// More parts than devices.
    #[error("the slice asks for more devices than this node has; ask for {has} or fewer")]
    TooFewDevices {
        /// The number of devices.
        has: usize,
    },
    /// No device can provide a part.
    #[error("no device has room: {}", .refusals.iter().map(ToString::to_string).collect::<Vec<_>>().join("; "))]
    NoRoom {
        /// The reason of each device.
        refusals: Vec<PartError>,
    },
}

impl CreateError {
    /// Whether the same request can succeed later: room is missing, or a device is unhealthy.
    #[must_use]
    pub fn can_pass(&self) -> bool {
        let passes = |error: &PartError| error.is_want_of_room() || matches!(error, PartError::Unhealthy { .. });
        match self {
            CreateError::Part(error) => passes(error),
            CreateError::NoRoom { refusals } => refusals.iter().any(passes),
            CreateError::NoDevice => true,
            _ => false,
        }
    }

    /// Why no device can provide a part, with `taken` devices used by other parts.
    pub(super) fn none(inventory: &Inventory, taken: usize, mut refusals: Vec<PartError>) -> CreateError {
        match refusals.len() {
            0 if inventory.devices.is_empty() => CreateError::NoDevice,
            0 => CreateError::TooFewDevices { has: taken },
            1 => CreateError::Part(refusals.remove(0)),
            _ => CreateError::NoRoom { refusals },
        }
    }
}

/// Why a slice cannot be changed.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum ResizeError {
    /// There is no slice of that name.
    #[error("there is no slice named {}; `aliquot slice ls` lists the slices", Quoted(name))]
    NotFound {
        /// The name that was requested.
        name: String,
    },
    /// The request is empty.
    #[error(
        "nothing to change in slice {name:?}; give gpu-core, gpu-core-limit, gpu-memory, host-memory, a priority class or a user to let in"
    )]
    NoChange {
        /// The name of the slice.
        name: String,
    },
    /// The slice has no part of that device.
    #[error("slice {name:?} has no part of device {device}; the devices of a slice cannot be changed")]
    NotItsDevice {
        /// The name of the slice.
        name: String,
        /// The UUID of the device.
        device: DeviceUuid,
    },
    /// The limit on host memory is too great.
    #[error(transparent)]
    HostMemory(#[from] HostMemoryError),
    /// A part cannot be changed as requested.
    #[error(transparent)]
    Part(#[from] PartError),
}

/// Why a slice cannot be removed.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum RemoveError {
    /// There is no slice of that name.
    #[error("there is no slice named {}; `aliquot slice ls` lists the slices", Quoted(name))]
    NotFound {
        /// The name that was requested.
        name: String,
    },
    /// Processes use the slice, and the removal is not forced.
    #[error(
        "slice {name:?} is in use by {attached} processes; end them, or force the removal: they then \
         get no more memory and no more device time"
    )]
    InUse {
        /// The name of the slice.
        name: String,
        /// The number of processes.
        attached: usize,
    },
}
