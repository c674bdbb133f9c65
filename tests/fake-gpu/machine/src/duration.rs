//! Durations of device work, by the rules in the [crate](crate)'s documentation.

use crate::DeviceConfig;

const KERNEL_START_NS: u64 = 2_000;
const WAVE_NS: u64 = 10_000;
const BLOCKS_PER_SM_MAX: u64 = 32;
const THREADS_PER_SM: u64 = 2_048;

/// Whether a kernel's first parameter is its duration.
#[must_use]
pub fn is_spin_kernel(name: &[u8]) -> bool {
    name.starts_with(b"spin_ns")
}

/// The duration of a kernel that is not a spin kernel.
#[must_use]
pub fn kernel_duration_ns(device: &DeviceConfig, blocks: u64, threads_per_block: u64) -> u64 {
    let resident_per_sm = (THREADS_PER_SM / threads_per_block.max(1)).clamp(1, BLOCKS_PER_SM_MAX);
    let waves = blocks.div_ceil(u64::from(device.sm_count) * resident_per_sm);
    KERNEL_START_NS.saturating_add(waves.saturating_mul(WAVE_NS))
}

/// The memories between which a copy goes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum CopyPath {
    /// Over the bus, at 25 GB/s.
    HostDevice,
    /// Within the device's memory, at 1 TB/s.
    DeviceDevice,
}

/// The duration of a copy or set of `bytes`.
#[must_use]
pub fn copy_duration_ns(path: CopyPath, bytes: u64) -> u64 {
    match path {
        CopyPath::HostDevice => bytes / 25,
        CopyPath::DeviceDevice => bytes / 1000,
    }
}
