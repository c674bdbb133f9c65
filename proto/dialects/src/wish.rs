//! What a container is to get, in the same form for every dialect.

use crate::constraints::Constraints;
use crate::dialect::Dialect;
use crate::environment::Variable;

/// The finest part of a device's memory that can be requested is a millionth.
pub const MILLION: u32 = 1_000_000;

/// A wish for equal parts of one or several devices.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Wish {
    /// The dialect of the request.
    pub dialect: Dialect,
    /// The number of devices, at least 1, all different.
    pub devices: u32,
    /// The share of each device.
    pub share: Share,
    /// The priority, if the request names one.
    pub priority: Option<Priority>,
    /// The conditions on the devices.
    pub constraints: Constraints,
    /// The variables that programs written for that system read.
    pub(crate) variables: Vec<Variable>,
}

/// A part of one device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Share {
    /// The whole device, exclusively.
    Whole,
    /// A part of its time, and the same part of its memory.
    ByCore(Core),
    /// A part of its memory, and the same part of its time guaranteed: at least 1 percent, since a slice without any
    /// would never run.
    ByMemory {
        /// The requested part of its memory.
        memory: Memory,
        /// The limit on time in percent, 1 to 100; `None`: equal to the guarantee.
        core_limit_percent: Option<u32>,
    },
    /// A part of its time, and a part of its memory.
    Both {
        /// The requested part of its time.
        core: Core,
        /// The requested part of its memory.
        memory: Memory,
    },
}

/// A part of a device's time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Core {
    /// The guarantee, 1 to 100.
    pub request_percent: u32,
    /// The limit, request to 100.
    pub limit_percent: u32,
}

/// A part of a device's memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Memory {
    /// An absolute amount in bytes.
    Bytes(u64),
    /// In millionths of the device's memory, at most a million.
    PartsPerMillion(u32),
}

/// The order in which containers get the time of a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Priority {
    /// Before the others, within its request.
    LatencyCritical,
    /// The default: after latency-critical, and before batch.
    Standard,
    /// After the others, for work that can wait.
    Batch,
}

/// A share of one device, in figures.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Part {
    /// Guaranteed share of its time, 1 to 100.
    pub core_request_percent: u32,
    /// Limit on its time, request to 100.
    pub core_limit_percent: u32,
    /// Limit on its memory. It exceeds the device's memory if the request does.
    pub memory_bytes: u64,
}

impl Share {
    /// The share in figures for a device with this memory. Rounded down, so that parts which add up to the whole device
    /// fit on it.
    #[must_use]
    pub fn on(&self, device_memory_bytes: u64) -> Part {
        let (core, memory_bytes) = match *self {
            Share::Whole => (Core::FULL, device_memory_bytes),
            Share::ByCore(core) => (core, part_of(device_memory_bytes, u64::from(core.request_percent), 100)),
            Share::ByMemory { memory, core_limit_percent } => {
                let bytes = memory.on(device_memory_bytes);
                let most = core_limit_percent.unwrap_or(100).clamp(1, 100);
                let part = part_of(100, bytes, device_memory_bytes.max(1)).clamp(1, u64::from(most));
                let request_percent = u32::try_from(part).unwrap_or(most);
                let limit_percent = core_limit_percent.map_or(request_percent, |_| most);
                (Core { request_percent, limit_percent }, bytes)
            }
            Share::Both { core, memory } => (core, memory.on(device_memory_bytes)),
        };
        Part { core_request_percent: core.request_percent, core_limit_percent: core.limit_percent, memory_bytes }
    }
}

impl Core {
    /// All of a device's time.
    pub const FULL: Core = Core { request_percent: 100, limit_percent: 100 };

    /// A limit that equals the guarantee.
    #[must_use]
    pub(crate) fn exactly(percent: u32) -> Core {
        Core { request_percent: percent, limit_percent: percent }
    }

    /// A guarantee, and all time that others leave.
    #[must_use]
    pub(crate) fn at_least(percent: u32) -> Core {
        Core { request_percent: percent, limit_percent: 100 }
    }
}

impl Memory {
    /// All memory of a device.
    pub const ALL: Memory = Memory::PartsPerMillion(MILLION);

    fn on(self, device_memory_bytes: u64) -> u64 {
        match self {
            Memory::Bytes(bytes) => bytes,
            Memory::PartsPerMillion(parts) => part_of(device_memory_bytes, u64::from(parts), u64::from(MILLION)),
        }
    }
}

/// `part / whole` of `amount`, rounded down.
fn part_of(amount: u64, part: u64, whole: u64) -> u64 {
    let product = u128::from(amount) * u128::from(part) / u128::from(whole);
    u64::try_from(product).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    const GIB: u64 = 1 << 30;

    #[test]
    fn a_share_without_time_or_memory_gets_it_in_proportion() {
        let part = |request, limit, memory_bytes| Part {
            core_request_percent: request,
            core_limit_percent: limit,
            memory_bytes,
        };
        for (share, found) in [
            (Share::Whole, part(100, 100, 80 * GIB)),
            (Share::ByCore(Core::exactly(25)), part(25, 25, 20 * GIB)),
            (Share::ByMemory { memory: Memory::Bytes(8 * GIB), core_limit_percent: Some(100) }, part(10, 100, 8 * GIB)),
            (Share::ByMemory { memory: Memory::Bytes(1), core_limit_percent: None }, part(1, 1, 1)),
            (
                Share::ByMemory { memory: Memory::Bytes(160 * GIB), core_limit_percent: Some(50) },
                part(50, 50, 160 * GIB),
            ),
            (Share::Both { core: Core::at_least(30), memory: Memory::PartsPerMillion(1) }, part(30, 100, 85_899)),
        ] {
            assert_eq!(share.on(80 * GIB), found, "{share:?}");
        }
    }

    #[test]
    fn a_device_without_memory_is_no_reason_to_panic() {
        let share = Share::ByMemory { memory: Memory::Bytes(1), core_limit_percent: Some(100) };
        assert_eq!(share.on(0).core_request_percent, 100);
        assert_eq!(Share::Whole.on(0).memory_bytes, 0);
    }
}
