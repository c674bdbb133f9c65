//! How a device is shared between slices.

use std::path::PathBuf;

use serde::Deserialize;

use crate::config::{ConfigError, absolute};
use crate::inventory::{DeviceUuid, SharingMode};

/// How devices are shared between slices.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct SharingSettings {
    /// How devices are shared, except those in `devices`.
    pub mode: SharingMode,
    /// Devices with a mode of their own.
    pub devices: Vec<DeviceSharing>,
    /// The machine's MPS, for devices that are shared through it.
    pub mps: MpsSettings,
}

/// How one device is shared.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DeviceSharing {
    /// The UUID of the device.
    pub uuid: DeviceUuid,
    /// How it is shared.
    pub mode: SharingMode,
}

/// The MPS of this machine: one control daemon, which the manager does not start.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct MpsSettings {
    /// The program that sends commands to the control daemon.
    pub control: PathBuf,
    /// The control daemon's `CUDA_MPS_PIPE_DIRECTORY`. Containers get it at the same path.
    pub pipe_directory: PathBuf,
    /// The control daemon's `/dev/shm`, through which clients and server communicate. Containers get it as theirs.
    pub shm_directory: PathBuf,
}

impl Default for MpsSettings {
    fn default() -> MpsSettings {
        MpsSettings {
            control: "/usr/bin/nvidia-cuda-mps-control".into(),
            pipe_directory: "/tmp/nvidia-mps".into(),
            shm_directory: "/dev/shm".into(),
        }
    }
}

impl SharingSettings {
    /// Checks these settings, and returns them.
    pub(super) fn validated(self) -> Result<SharingSettings, ConfigError> {
        if let Some(device) = self.devices.iter().find(|device| device.uuid.bytes().is_none()) {
            return Err(ConfigError::SharedDevice { uuid: device.uuid.clone() });
        }
        let MpsSettings { control, pipe_directory, shm_directory } = self.mps;
        let mps = MpsSettings {
            control: absolute("sharing.mps.control", control)?,
            pipe_directory: absolute("sharing.mps.pipe_directory", pipe_directory)?,
            shm_directory: absolute("sharing.mps.shm_directory", shm_directory)?,
        };
        Ok(SharingSettings { mps, ..self })
    }

    /// The sharing mode of `device`.
    #[must_use]
    pub fn mode_of(&self, device: &DeviceUuid) -> SharingMode {
        let named = self.devices.iter().find(|sharing| sharing.uuid == *device);
        named.map_or(self.mode, |sharing| sharing.mode)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_named_device_has_the_configured_sharing_mode() {
        let settings: SharingSettings =
            toml::from_str("mode = 'mps'\n[[devices]]\nuuid = 'GPU-1'\nmode = 'time'").unwrap();
        assert_eq!(settings.mode_of(&DeviceUuid::new("GPU-1")), SharingMode::Time);
        assert_eq!(settings.mode_of(&DeviceUuid::new("GPU-2")), SharingMode::Mps);
        assert_eq!(SharingSettings::default().mode_of(&DeviceUuid::new("GPU-2")), SharingMode::Time);
    }
}
