//! The types that describe the node's devices, and the trait of their sources.

use std::fmt;
use std::sync::Arc;

use aliquot_node::{Partition, Partitioning, Placement};

/// A device's UUID, as NVML writes it: `GPU-` or `MIG-` and 32 hexadecimal digits in five groups.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, serde::Serialize, serde::Deserialize)]
#[serde(transparent)]
pub struct DeviceUuid(String);

impl DeviceUuid {
    /// The UUID with this text.
    #[must_use]
    pub fn new(text: impl Into<String>) -> DeviceUuid {
        DeviceUuid(text.into())
    }

    /// The UUID of a whole GPU, from the CUDA driver's bytes.
    #[must_use]
    pub fn of_gpu(bytes: [u8; 16]) -> DeviceUuid {
        let digits: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
        let groups = [&digits[..8], &digits[8..12], &digits[12..16], &digits[16..20], &digits[20..]];
        DeviceUuid(format!("GPU-{}", groups.join("-")))
    }

    /// The text, as NVML writes it.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// The sixteen bytes by which the CUDA driver knows the UUID; `None` if the text does not encode sixteen bytes.
    #[must_use]
    pub fn bytes(&self) -> Option<[u8; 16]> {
        let (_, digits) = self.0.split_once('-')?;
        let digits: Vec<u8> = digits.bytes().filter(|&byte| byte != b'-').collect();
        let mut bytes = [0; 16];
        if digits.len() != 2 * bytes.len() {
            return None;
        }
        for (byte, pair) in bytes.iter_mut().zip(digits.chunks_exact(2)) {
            let digit = |at: usize| char::from(pair[at]).to_digit(16);
            *byte = u8::try_from(digit(0)? * 16 + digit(1)?).ok()?;
        }
        Some(bytes)
    }
}

impl fmt::Display for DeviceUuid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl fmt::Debug for DeviceUuid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// Whether new slices may use a device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Health {
    /// The device answers, and new slices may use it.
    Healthy,
    /// The device does not work properly.
    Unhealthy {
        /// Why, in the driver's words if it gives any.
        reason: String,
    },
}

/// How a device is shared between slices.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, serde::Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum SharingMode {
    /// In time: slices take turns, by leases of the manager.
    #[default]
    Time,
    /// In space: NVIDIA's multi-process service (MPS) gives each slice its part of the multiprocessors.
    Mps,
}

/// The GPU, the profile and the place of a device that is a MIG instance.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MigInstance {
    /// The UUID of the GPU.
    pub gpu: DeviceUuid,
    /// For example `3g.40gb`; empty if the driver does not say.
    pub profile: String,
    /// The GPU instance's number on its GPU, if known.
    pub gpu_instance: Option<u32>,
    /// The compute instance's number in the GPU instance, if known.
    pub compute_instance: Option<u32>,
    /// The placement of the GPU instance on its GPU, if known.
    pub placement: Option<Placement>,
}

/// A device of the node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Device {
    /// Identifies the device everywhere.
    pub uuid: DeviceUuid,
    /// NVML's index, for people to read. It can change, so it must not identify a device.
    pub index: u32,
    /// For example `NVIDIA H100 80GB HBM3`.
    pub model: String,
    /// Its total memory, in bytes.
    pub memory_bytes: u64,
    /// The PCI bus id in NVML's form, for example `00000000:3B:00.0`.
    pub pci_bus_id: String,
    /// Minor number of `/dev/nvidiaN`, if there is one.
    pub minor: Option<u32>,
    /// The NUMA node that it is attached to, if known.
    pub numa_node: Option<i32>,
    /// The devices that NVLink connects it to.
    pub nvlink_peers: Vec<DeviceUuid>,
    /// Major and minor number, if known.
    pub compute_capability: Option<(u32, u32)>,
    /// Whether it is partitioned by MIG: then its instances are used in its place.
    pub mig_enabled: bool,
    /// The possible and the occupied placements; `None` if it is not in MIG mode, or the driver does not say.
    pub partitioning: Option<Partitioning>,
    /// For a MIG instance: its GPU, numbers and placement.
    pub mig_instance: Option<MigInstance>,
    /// Whether the driver says how busy processes keep it. It does not do so for MIG instances.
    pub tells_utilisation: bool,
    /// How it is shared between slices.
    pub sharing: SharingMode,
    /// Whether new slices may use it.
    pub health: Health,
}

/// The devices and versions of the node.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Inventory {
    /// Empty if there is no driver.
    pub driver_version: String,
    /// The CUDA version of the driver, for example `13.0`; empty if there is no driver.
    pub cuda_version: String,
    /// All devices, in NVML's order.
    pub devices: Vec<Device>,
}

impl Inventory {
    /// The device that `uuid` names.
    #[must_use]
    pub fn device(&self, uuid: &DeviceUuid) -> Option<&Device> {
        self.devices.iter().find(|device| device.uuid == *uuid)
    }
}

/// A process that uses a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DeviceProcess {
    /// The pid in the manager's pid namespace.
    pub pid: u32,
    /// Device memory; `None` if the driver does not say.
    pub memory_bytes: Option<u64>,
    /// Whether the process computes; `false` means that it only draws.
    pub computes: bool,
}

/// How busy a process kept a device during one of the driver's sampling periods.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UtilisationSample {
    /// The pid in the manager's pid namespace.
    pub pid: u32,
    /// The driver's clock, in microseconds, at the end of the period.
    pub time_us: u64,
    /// Percentage of the period in which a kernel of the process was on the device.
    pub busy_percent: u32,
}

/// The device or the driver did not answer.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct SourceError(pub String);

/// A function to call, from any thread, when the health of a device may have changed.
pub type Alert = Arc<dyn Fn() + Send + Sync>;

/// A source of devices: the interface to NVML.
pub trait DeviceSource: Send {
    /// Registers `alert`, to be called when a look at the devices may show a different health than the last one. A
    /// source without notifications never calls it.
    fn set_alert(&mut self, alert: Alert) {
        drop(alert);
    }

    /// The node's devices with their health, freshly asked.
    ///
    /// # Errors
    /// The driver did not answer at all. A single device that does not answer is listed as unhealthy.
    fn inventory(&mut self) -> Result<Inventory, SourceError>;

    /// The processes that use a device now.
    ///
    /// # Errors
    /// The device does not answer, or does not tell.
    fn processes(&mut self, uuid: &DeviceUuid) -> Result<Vec<DeviceProcess>, SourceError>;

    /// Device memory that is in use now, by any process; `None` if the source does not say.
    ///
    /// # Errors
    /// The device does not answer.
    fn used_bytes(&mut self, uuid: &DeviceUuid) -> Result<Option<u64>, SourceError> {
        let _ = uuid;
        Ok(None)
    }

    /// How busy processes kept a device since `since_us` of the driver's clock.
    ///
    /// # Errors
    /// The device does not answer, or does not tell.
    fn utilisation(&mut self, uuid: &DeviceUuid, since_us: u64) -> Result<Vec<UtilisationSample>, SourceError>;

    /// Makes a MIG instance at its placement, ready for programs.
    ///
    /// # Errors
    /// The driver refuses: the placement is not free, the GPU is not in MIG mode, or this user may not. Then there is
    /// no new instance.
    fn create_instance(&mut self, partition: &Partition) -> Result<(), SourceError>;

    /// Destroys the MIG instance with this placement and profile. It is no error if there is none.
    ///
    /// # Errors
    /// The driver refuses: programs use it, or this user may not.
    fn destroy_instance(&mut self, partition: &Partition) -> Result<(), SourceError>;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_uuid_stands_for_sixteen_bytes_or_none() {
        let uuid = DeviceUuid::new("GPU-00010203-0405-0607-0809-0a0b0c0d0eff");
        let bytes = uuid.bytes().unwrap();
        assert_eq!((bytes[0], bytes[10], bytes[15]), (0, 10, 255));
        for text in [
            "",
            "GPU",
            "GPU-",
            "GPU-0001",
            "GPU-0001020304050607-08090a0b0c0d0exx",
            "00010203-0405-0607-0809-0a0b0c0d0e0f",
        ] {
            assert_eq!(DeviceUuid::new(text).bytes(), None, "{text}");
        }
    }
}
