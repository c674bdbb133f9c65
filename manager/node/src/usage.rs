//! What slices use: now, and in the last hour.

use std::collections::{BTreeMap, BTreeSet};
use std::time::SystemTime;

use crate::consumer::Consumer;
use crate::policy::QosClass;

/// What is used of a node's devices now.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NodeUsage {
    /// What each slice uses.
    pub slices: Vec<SliceUsage>,
    /// Memory in use that no slice was given, by the UUID of the device. Devices of which that is not known are left out.
    pub memory_outside_bytes: BTreeMap<String, u64>,
}

/// What a slice uses now.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SliceUsage {
    /// Its name.
    pub name: String,
    /// Its id, which is never reused.
    pub id: String,
    /// One for each device.
    pub parts: Vec<PartUsage>,
    /// Page-locked host memory; a limit of 0 is none.
    pub host_memory: MemoryUsage,
    /// The processes in it.
    pub processes: Vec<ProcessUsage>,
    /// Why its ledger is not believed; the figures from the ledger are then 0.
    pub problem: Option<String>,
    /// How it is ordered among the slices of its devices.
    pub qos_class: QosClass,
    /// The containers of pods that run in it, as far as they are known.
    pub consumers: BTreeSet<Consumer>,
}

/// What a slice uses of one memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MemoryUsage {
    /// What is never exceeded.
    pub limit_bytes: u64,
    /// In use now.
    pub used_bytes: u64,
    /// The most that was in use.
    pub peak_bytes: u64,
    /// Requests that were refused because of the limit.
    pub refused: u64,
}

/// What a slice uses of one device. Counters count from the making of the slice.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PartUsage {
    /// The device.
    pub device_uuid: String,
    /// Its NVML index; 0 if the device is not known.
    pub device_index: u32,
    /// Guaranteed share of the device's time.
    pub core_request_percent: u32,
    /// Share of the device's time that is never exceeded.
    pub core_limit_percent: u32,
    /// Share of the device's time in the last second, in thousandths of a percent.
    pub core_used_1s_millipercent: u32,
    /// The same, in the last 10 seconds.
    pub core_used_10s_millipercent: u32,
    /// The same, in the last 60 seconds.
    pub core_used_60s_millipercent: u32,
    /// Device time.
    pub core_used_ns: u64,
    /// Time that threads waited in launches, of all threads together.
    pub throttled_ns: u64,
    /// Leases that work outlasted.
    pub overruns: u64,
    /// Device time by which it did.
    pub overrun_ns: u64,
    /// The device's memory.
    pub memory: MemoryUsage,
    /// Memory of contexts and modules, which the ledger lacks; part of the memory in use.
    pub memory_overhead_bytes: u64,
    /// Launches, counted at progress markers.
    pub launches: u64,
    /// A process waits for the device now.
    pub waiting: bool,
    /// Copies and memsets.
    pub copies: u64,
    /// Bytes that these moved.
    pub copied_bytes: u64,
    /// Time that threads waited for these.
    pub copy_ns: u64,
    /// Leases granted, without renewals.
    pub leases: u64,
    /// How long the slice waited for its leases.
    pub lease_waits: WaitHistogram,
}

/// Waits by their length.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct WaitHistogram {
    /// Upper bounds, inclusive, in ascending order.
    pub bounds_ns: &'static [u64],
    /// One count for each bound, and one for the waits above all bounds.
    pub counts: Vec<u64>,
    /// All waits together.
    pub total_ns: u64,
    /// The longest wait.
    pub longest_ns: u64,
}

/// What a process of a slice uses.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProcessUsage {
    /// In the manager's pid namespace.
    pub pid: u32,
    /// In its own pid namespace.
    pub own_pid: u32,
    /// Its command line.
    pub command: String,
    /// Memory of each device, in the order of the slice's parts; empty if the ledger is not believed.
    pub memory_used_bytes: Vec<u64>,
    /// Page-locked host memory.
    pub host_memory_used_bytes: u64,
    /// Since when it is in the slice.
    pub attached: SystemTime,
}

/// What a slice has used over time.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SliceHistory {
    /// Its name.
    pub name: String,
    /// Its id.
    pub id: String,
    /// One for each device.
    pub parts: Vec<PartHistory>,
}

/// What a slice has used of one device over time.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PartHistory {
    /// The device.
    pub device_uuid: String,
    /// Its NVML index; 0 if the device is not known.
    pub device_index: u32,
    /// Guaranteed share of the device's time, as it is now.
    pub core_request_percent: u32,
    /// Share of the device's time that is never exceeded, as it is now.
    pub core_limit_percent: u32,
    /// Memory that is never exceeded, as it is now.
    pub memory_limit_bytes: u64,
    /// Consecutive, the oldest first.
    pub points: Vec<UsagePoint>,
}

/// The use in one piece of time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct UsagePoint {
    /// When the piece begins, if the clock can say so.
    pub begin: Option<SystemTime>,
    /// How long it is.
    pub length_ns: u64,
    /// Device time.
    pub core_used_ns: u64,
    /// Time that threads waited in launches, of all threads together.
    pub throttled_ns: u64,
    /// Waits for leases that ended in this piece.
    pub waited_ns: u64,
    /// The most memory that was seen in use.
    pub memory_peak_bytes: u64,
    /// Requests for memory that were refused because of the limit.
    pub memory_refused: u64,
}
