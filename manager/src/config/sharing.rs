//! How a device is shared between slices.

use std::path::PathBuf;

use aliquot_arbiter::timing::{QUANTUM_MAX_NS, QUANTUM_URGENT_NS};
use serde::Deserialize;

use crate::config::{ConfigError, absolute};
use crate::inventory::{DeviceUuid, SharingMode};

/// How devices are shared between slices.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct SharingSettings {
    /// How devices are shared, except those in `devices`.
    pub mode: SharingMode,
    /// The longest lease while other slices wait for the device, in milliseconds.
    pub lease_max_ms: u64,
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

/// The shortest and the longest value of [`SharingSettings::lease_max_ms`].
const LEASE_MAX_MS: std::ops::RangeInclusive<u64> = QUANTUM_URGENT_NS / NS_PER_MS..=QUANTUM_MAX_NS / NS_PER_MS;
const NS_PER_MS: u64 = 1_000_000;

impl Default for SharingSettings {
    fn default() -> SharingSettings {
        SharingSettings {
            mode: SharingMode::default(),
            lease_max_ms: *LEASE_MAX_MS.end(),
            devices: Vec::new(),
            mps: MpsSettings::default(),
        }
    }
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
        if !LEASE_MAX_MS.contains(&self.lease_max_ms) {
            return Err(ConfigError::LeaseMax { ms: self.lease_max_ms, allowed: LEASE_MAX_MS });
        }
        let MpsSettings { control, pipe_directory, shm_directory } = self.mps;
        let mps = MpsSettings {
            control: absolute("sharing.mps.control", control)?,
            pipe_directory: absolute("sharing.mps.pipe_directory", pipe_directory)?,
            shm_directory: absolute("sharing.mps.shm_directory", shm_directory)?,
        };
        Ok(SharingSettings { mps, ..self })
    }

    /// The longest lease while other slices wait for the device.
    #[must_use]
    pub(crate) fn lease_max_ns(&self) -> u64 {
        self.lease_max_ms.saturating_mul(NS_PER_MS)
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

    #[test]
    fn leases_are_as_long_as_the_arbiter_can_make_them() {
        let settings = |ms| SharingSettings { lease_max_ms: ms, ..SharingSettings::default() };
        assert_eq!(SharingSettings::default().lease_max_ns(), QUANTUM_MAX_NS);
        assert_eq!(settings(2).validated().unwrap().lease_max_ns(), QUANTUM_URGENT_NS);
        for ms in [0, 1, 21, u64::MAX] {
            let error = settings(ms).validated().unwrap_err().to_string();
            assert!(error.contains(&ms.to_string()) && error.contains("2 to 20"), "{error}");
        }
    }
}
