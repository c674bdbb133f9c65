//! The use of slices: now, and in the last hour.

use std::collections::{BTreeMap, BTreeSet};
use std::time::SystemTime;

use crate::consumer::Consumer;
use crate::policy::QosClass;

/// The present use of a node's devices.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NodeUsage {
    /// The use of each slice.
    pub slices: Vec<SliceUsage>,
    /// Memory in use on each device that belongs to no slice, by the device's UUID. Devices for which it is not known
    /// are left out.
    pub memory_outside_bytes: BTreeMap<String, u64>,
}

/// The present use of a slice.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SliceUsage {
    /// The slice's name, unique on the node.
    pub name: String,
    /// Its id, which is never reused.
    pub id: String,
    /// The slice's use of each of its devices.
    pub parts: Vec<PartUsage>,
    /// The use of page-locked host memory; a limit of 0 means that there is none.
    pub host_memory: MemoryUsage,
    /// The processes in the slice.
    pub processes: Vec<ProcessUsage>,
    /// Why its ledger is not believed; the figures from the ledger are then 0. `None` if it is believed.
    pub problem: Option<String>,
    /// The slice's place in the order of the slices of its devices.
    pub qos_class: QosClass,
    /// The containers of pods that run in it, as far as they are known.
    pub consumers: BTreeSet<Consumer>,
}

/// A slice's use of one memory: a device's, or page-locked host memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MemoryUsage {
    /// The most that the slice can use.
    pub limit_bytes: u64,
    /// The bytes in use now.
    pub used_bytes: u64,
    /// The most bytes that were in use at once.
    pub peak_bytes: u64,
    /// Requests that were refused because of the limit.
    pub refused: u64,
}

/// A slice's use of one device. Counters begin when the slice is made.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PartUsage {
    /// The UUID of the device.
    pub device_uuid: String,
    /// Its NVML index; 0 if the device is not known.
    pub device_index: u32,
    /// Guaranteed share of the device's time.
    pub core_request_percent: u32,
    /// Maximum share of the device's time.
    pub core_limit_percent: u32,
    /// Share of the device's time in the last second, in thousandths of a percent.
    pub core_used_1s_millipercent: u32,
    /// Share of the device's time in the last 10 seconds, in thousandths of a percent.
    pub core_used_10s_millipercent: u32,
    /// Share of the device's time in the last 60 seconds, in thousandths of a percent.
    pub core_used_60s_millipercent: u32,
    /// Device time used, in nanoseconds.
    pub core_used_ns: u64,
    /// Time that threads waited in launches, in nanoseconds, summed over all threads.
    pub throttled_ns: u64,
    /// Number of leases whose work lasted longer than allowed after their end.
    pub overruns: u64,
    /// Device time that work took beyond what is allowed after the end of its lease, in nanoseconds.
    pub overrun_ns: u64,
    /// The use of the device's memory.
    pub memory: MemoryUsage,
    /// Memory of contexts and modules, which is not in the ledger; it is included in the memory in use.
    pub memory_overhead_bytes: u64,
    /// Number of launches, counted at progress markers.
    pub launches: u64,
    /// Whether a process waits for the device now.
    pub waiting: bool,
    /// Number of copies and memsets.
    pub copies: u64,
    /// Bytes moved by copies and memsets.
    pub copied_bytes: u64,
    /// Time that threads waited for copies and memsets, in nanoseconds.
    pub copy_ns: u64,
    /// Leases granted; a renewal does not count.
    pub leases: u64,
    /// The slice's waits for its leases.
    pub lease_waits: WaitHistogram,
}

/// The number of waits by length.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct WaitHistogram {
    /// Upper bounds of the lengths, inclusive, in ascending order.
    pub bounds_ns: &'static [u64],
    /// One count for each bound, and one for the waits above all bounds.
    pub counts: Vec<u64>,
    /// The sum of all waits, in nanoseconds.
    pub total_ns: u64,
    /// The longest wait, in nanoseconds.
    pub longest_ns: u64,
}

/// The use of one process of a slice.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProcessUsage {
    /// The process's pid in the manager's pid namespace.
    pub pid: u32,
    /// The process's pid in its own pid namespace.
    pub own_pid: u32,
    /// The process's command line.
    pub command: String,
    /// Memory in use on each device, in the order of the slice's parts; empty if the ledger is not believed.
    pub memory_used_bytes: Vec<u64>,
    /// Page-locked host memory in use.
    pub host_memory_used_bytes: u64,
    /// When the process attached to the slice.
    pub attached: SystemTime,
}

/// The use of a slice over time.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SliceHistory {
    /// The slice's name, unique on the node.
    pub name: String,
    /// The slice's id, which is never reused.
    pub id: String,
    /// The slice's use of each of its devices.
    pub parts: Vec<PartHistory>,
}

/// A slice's use of one device over time.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PartHistory {
    /// The UUID of the device.
    pub device_uuid: String,
    /// Its NVML index; 0 if the device is not known.
    pub device_index: u32,
    /// Guaranteed share of the device's time, as it is now.
    pub core_request_percent: u32,
    /// Maximum share of the device's time, as it is now.
    pub core_limit_percent: u32,
    /// Maximum memory, as it is now.
    pub memory_limit_bytes: u64,
    /// Consecutive intervals, the oldest first.
    pub points: Vec<UsagePoint>,
}

/// The use in one interval.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct UsagePoint {
    /// When the interval begins; `None` if the clock cannot say.
    pub begin: Option<SystemTime>,
    /// The length of the interval.
    pub length_ns: u64,
    /// Device time used in the interval.
    pub core_used_ns: u64,
    /// Time that threads waited in launches, summed over all threads.
    pub throttled_ns: u64,
    /// The length of the waits for leases that ended in this interval.
    pub waited_ns: u64,
    /// The most memory that was seen in use.
    pub memory_peak_bytes: u64,
    /// Requests for memory that were refused because of the limit.
    pub memory_refused: u64,
}
