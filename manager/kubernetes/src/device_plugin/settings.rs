//! Settings of the device plugin.

use std::time::Duration;

use aliquot_dialects::{Clash, Dialect, NodeFacts, QgpuPolicy, Spoken, UnknownDialect};
use serde::Deserialize;

const MIB: u64 = 1 << 20;
const GIB: u64 = 1 << 30;

/// The settings as a person writes them, with their defaults.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Settings {
    /// The dialects that are understood besides Aliquot's own, by the names of [`Dialect`].
    pub dialects: Vec<String>,
    /// The memory of one `aliquot.dev/gpu-memory`, in whole MiB.
    pub memory_unit_bytes: u64,
    /// The percentage of a device's memory that is kept for containers that request `aliquot.dev/gpu-core` alone.
    pub core_memory_percent: Option<u32>,
    /// Whether whole devices are given out, too, as `aliquot.dev/gpu`.
    pub whole_devices: bool,
    /// The memory of one `aliyun.com/gpu-mem` in the dialect `gpushare`: a GiB or a MiB.
    pub gpushare_unit_bytes: u64,
    /// How qGPU shares this node's devices: `best-effort`, `fixed-share` or `burst-share`.
    pub qgpu_policy: String,
    /// Maximum containers on one device for HAMi and Volcano.
    pub slots_per_device: u32,
    /// Number of `nvidia.com/gpu.shared` for each device. With 1, devices are whole: `nvidia.com/gpu`.
    pub nvidia_replicas: u32,
    /// Number of `k8s.amazonaws.com/vgpu` for each device.
    pub aws_vgpus: u32,
    /// How long a slice stays after kubelet has forgotten its container. It goes sooner if its pod is gone for the API
    /// server, too.
    pub gone_grace_seconds: u64,
    /// How long a pod waits for room on the node's devices before it is evicted. Only pods of a `ReplicaSet`, a
    /// `StatefulSet` or a `ReplicationController` are evicted, and of each of these one in an hour.
    pub room_grace_seconds: u64,
}

impl Default for Settings {
    fn default() -> Settings {
        Settings {
            dialects: Vec::new(),
            memory_unit_bytes: 256 * MIB,
            core_memory_percent: None,
            whole_devices: false,
            gpushare_unit_bytes: GIB,
            qgpu_policy: "best-effort".into(),
            slots_per_device: 10,
            nvidia_replicas: 1,
            aws_vgpus: 10,
            gone_grace_seconds: 30,
            room_grace_seconds: 60,
        }
    }
}

/// Settings that cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SettingsError {
    /// A dialect that does not exist.
    #[error("device_plugin.dialects: {0}")]
    Dialect(#[from] UnknownDialect),
    /// Two dialects that clash.
    #[error("device_plugin.dialects: {0}")]
    Clash(#[from] Clash),
    /// A value out of its range.
    #[error("device_plugin.{key} is {found}; it must be {must}")]
    Value {
        /// The key of the setting.
        key: &'static str,
        /// The value of the setting.
        found: String,
        /// The condition that the value must meet.
        must: &'static str,
    },
}

/// Settings that were checked and can be used.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Config {
    /// The dialects that are spoken.
    pub(super) spoken: Spoken,
    /// The meaning of the dialects' resources on this node.
    pub(super) facts: NodeFacts,
    /// How long a slice stays after kubelet has forgotten its container. It goes sooner if its pod is gone for the API
    /// server, too.
    pub(super) gone_grace: Duration,
    /// How long a pod waits for room before it is evicted.
    pub(super) room_grace: Duration,
}

impl Settings {
    /// The configuration with the defaults filled in and all names resolved.
    ///
    /// # Errors
    /// See [`SettingsError`].
    pub fn checked(&self) -> Result<Config, SettingsError> {
        let dialects: Result<Vec<Dialect>, UnknownDialect> = self.dialects.iter().map(|name| name.parse()).collect();
        let check = |is_right: bool, key, found: String, must| {
            if is_right { Ok(()) } else { Err(SettingsError::Value { key, found, must }) }
        };
        let unit = self.memory_unit_bytes;
        check(
            unit > 0 && unit.is_multiple_of(MIB),
            "memory_unit_bytes",
            unit.to_string(),
            "a multiple of 1048576 (1 MiB)",
        )?;
        let unit = self.gpushare_unit_bytes;
        let must = "1073741824 (1 GiB) or 1048576 (1 MiB)";
        check([GIB, MIB].contains(&unit), "gpushare_unit_bytes", unit.to_string(), must)?;
        if let Some(percent) = self.core_memory_percent {
            check(percent <= 100, "core_memory_percent", percent.to_string(), "0 to 100")?;
        }
        let to_hundred = 1..=100;
        let (slots, replicas) = (self.slots_per_device, self.nvidia_replicas);
        check(to_hundred.contains(&slots), "slots_per_device", slots.to_string(), "1 to 100")?;
        check(to_hundred.contains(&replicas), "nvidia_replicas", replicas.to_string(), "1 to 100")?;
        let vgpus = self.aws_vgpus;
        check((1..=48).contains(&vgpus), "aws_vgpus", vgpus.to_string(), "1 to 48")?;
        let qgpu_policy = QgpuPolicy::parse(&self.qgpu_policy).ok_or_else(|| SettingsError::Value {
            key: "qgpu_policy",
            found: format!("{:?}", self.qgpu_policy),
            must: "best-effort, fixed-share or burst-share",
        })?;
        Ok(Config {
            spoken: Spoken::new(dialects?)?,
            facts: NodeFacts {
                memory_unit_bytes: self.memory_unit_bytes,
                core_memory_percent: self.core_memory_percent,
                whole_devices: self.whole_devices,
                gpushare_unit_bytes: self.gpushare_unit_bytes,
                qgpu_policy,
                slots_per_device: slots,
                nvidia_replicas: replicas,
                aws_vgpus: vgpus,
            },
            gone_grace: Duration::from_secs(self.gone_grace_seconds),
            room_grace: Duration::from_secs(self.room_grace_seconds),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn without_settings_the_plugin_speaks_its_own_words() {
        let config = Settings::default().checked().unwrap();
        assert_eq!(config.spoken.iter().collect::<Vec<_>>(), [Dialect::Own]);
        assert_eq!(config.facts, NodeFacts::default());
    }

    #[test]
    fn settings_that_cannot_be_are_refused_with_what_to_do() {
        let refused = |change: fn(&mut Settings)| {
            let mut settings = Settings::default();
            change(&mut settings);
            settings.checked().unwrap_err().to_string()
        };
        for (found, words) in [
            (
                refused(|s| s.dialects = vec!["hmai".into()]),
                "device_plugin.dialects: \"hmai\" is not a dialect; the dialects are",
            ),
            (
                refused(|s| s.dialects = vec!["hami".into(), "nvidia".into()]),
                "cannot accept both dialects nvidia and hami",
            ),
            (refused(|s| s.memory_unit_bytes = 0), "memory_unit_bytes is 0; it must be a multiple of"),
            (refused(|s| s.memory_unit_bytes = 1000), "memory_unit_bytes is 1000"),
            (refused(|s| s.gpushare_unit_bytes = 256 << 20), "1073741824 (1 GiB) or 1048576 (1 MiB)"),
            (refused(|s| s.core_memory_percent = Some(101)), "core_memory_percent is 101; it must be 0 to 100"),
            (refused(|s| s.slots_per_device = 0), "slots_per_device is 0; it must be 1 to 100"),
            (refused(|s| s.nvidia_replicas = 101), "nvidia_replicas is 101; it must be 1 to 100"),
            (refused(|s| s.aws_vgpus = 49), "aws_vgpus is 49; it must be 1 to 48"),
            (refused(|s| s.qgpu_policy = "fair".into()), "qgpu_policy is \"fair\"; it must be best-effort"),
        ] {
            assert!(found.contains(words), "{found}");
        }
    }
}
