//! Reads the use of slices from regions and counters. [`usage`] computes the figures that follow from these.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, SystemTime};

use aliquot_abi::region::{DeviceWaits, HOST_ACCOUNT};
use aliquot_arbiter::WAIT_BOUNDS_NS;
use aliquot_node::{MemoryUsage, PartHistory, PartUsage, ProcessUsage, SliceHistory, SliceUsage, WaitHistogram};

use crate::clock::monotonic_ns;
use crate::inventory::{DeviceUuid, Inventory};
use crate::live::{Attached, LiveSlice};
use crate::region::view::{self, AccountView};
use crate::slices::Part;
use crate::usage::{self, History, SECOND_NS, Totals};

/// The present, by both clocks.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Now {
    /// The time by the clock of all times in regions.
    pub monotonic_ns: u64,
    /// The time by the clock that people read.
    pub time: SystemTime,
}

impl Now {
    /// Reads both clocks now.
    #[must_use]
    pub(crate) fn read() -> Now {
        Now { monotonic_ns: monotonic_ns(), time: SystemTime::now() }
    }
}

/// The present use of each of these slices.
#[must_use]
pub(crate) fn usage(slices: &[Arc<LiveSlice>], inventory: &Inventory, now: Now) -> Vec<SliceUsage> {
    slices.iter().map(|live| usage_of(live, inventory, now)).collect()
}

fn usage_of(live: &LiveSlice, inventory: &Inventory, now: Now) -> SliceUsage {
    let damage = live.damage();
    // The numbers of a damaged ledger are not trusted, so they stay 0.
    let is_trusted = damage.is_none();
    let ledger = live.region.ledger();
    let history = live.history.lock();
    let parts = live.parts().into_iter().zip(history.iter()).enumerate();
    let parts = parts.map(|(number, (part, history))| {
        let device_index = inventory.device(&part.device).map_or(0, |device| device.index);
        let usage = part_usage(live, number, &part, history, now.monotonic_ns, is_trusted);
        PartUsage { device_index, ..usage }
    });
    let parts = parts.collect();
    drop(history);
    let own_slot = |process: &Attached| is_trusted.then_some(process.slot.index);
    let processes = live.processes();
    let processes = processes.iter().map(|process| ProcessUsage {
        pid: process.pid,
        own_pid: process.own_pid,
        command: process.command.text().to_owned(),
        memory_used_bytes: own_slot(process)
            .map(|slot| view::held_bytes(ledger, slot, live.region.device_count()))
            .unwrap_or_default(),
        host_memory_used_bytes: own_slot(process).map_or(0, |slot| view::held_bytes_of(ledger, slot, HOST_ACCOUNT)),
        attached: process.since,
    });
    SliceUsage {
        name: live.name.clone(),
        id: live.id.to_string(),
        parts,
        host_memory: host_memory(live, is_trusted),
        processes: processes.collect(),
        problem: damage.map(|damage| damage.problem()),
        qos_class: live.qos_class(),
        consumers: live.consumers().as_ref().clone(),
    }
}

fn part_usage(
    live: &LiveSlice,
    number: usize,
    part: &Part,
    history: &History,
    now_ns: u64,
    is_trusted: bool,
) -> PartUsage {
    let (counters, core_used_ns) = (live.counters(number), live.core_used_ns(number));
    let share = |seconds| history.share_millipercent(now_ns, core_used_ns, seconds * SECOND_NS);
    let usage = PartUsage {
        device_uuid: part.device.to_string(),
        core_request_percent: part.core_request_percent,
        core_limit_percent: part.core_limit_percent,
        core_used_1s_millipercent: share(1),
        core_used_10s_millipercent: share(10),
        core_used_60s_millipercent: share(60),
        core_used_ns,
        overruns: counters.overruns.load(Ordering::Relaxed),
        overrun_ns: counters.overrun_ns.load(Ordering::Relaxed),
        leases: counters.leases.load(Ordering::Relaxed),
        lease_waits: waits(live.waits(number)),
        memory: device_memory(live, number, part, is_trusted),
        memory_overhead_bytes: overhead_bytes(live, number),
        ..PartUsage::default()
    };
    if !is_trusted {
        return usage;
    }
    let sum = view::sum(live.region.ledger(), live.slots(), number);
    let total = |ended: &AtomicU64, living| ended.load(Ordering::Relaxed).saturating_add(living);
    PartUsage {
        throttled_ns: total(&counters.ended_throttled_ns, sum.throttled_ns),
        launches: total(&counters.ended_launches, sum.launches),
        copies: total(&counters.ended_copies, sum.copies),
        copied_bytes: total(&counters.ended_copied_bytes, sum.copied_bytes),
        copy_ns: total(&counters.ended_copy_ns, sum.copy_ns),
        waiting: sum.waiting > 0,
        ..usage
    }
}

fn overhead_bytes(live: &LiveSlice, number: usize) -> u64 {
    live.region.device_limits(number).memory_overhead_bytes.load(Ordering::Relaxed)
}

/// The memory of the device of part `number`, in use and at most.
fn device_memory(live: &LiveSlice, number: usize, part: &Part, is_trusted: bool) -> MemoryUsage {
    let limit_bytes = part.memory_limit_bytes;
    if is_trusted {
        memory(view::account(live.region.ledger(), number), limit_bytes, overhead_bytes(live, number))
    } else {
        MemoryUsage { limit_bytes, ..MemoryUsage::default() }
    }
}

/// The device memory that a slice uses within what it was given, by device. For a slice whose ledger is not believed,
/// all that it was given counts.
#[must_use]
pub(crate) fn used_within_limits(live: &LiveSlice) -> Vec<(DeviceUuid, u64)> {
    let is_trusted = live.damage().is_none();
    let parts = live.parts().into_iter().enumerate();
    let used = parts.map(|(number, part)| {
        let MemoryUsage { limit_bytes, used_bytes, .. } = device_memory(live, number, &part, is_trusted);
        (part.device, if is_trusted { used_bytes.min(limit_bytes) } else { limit_bytes })
    });
    used.collect()
}

fn host_memory(live: &LiveSlice, is_trusted: bool) -> MemoryUsage {
    let limit_bytes = live.region.host_memory_limit_bytes();
    if is_trusted {
        memory(view::account(live.region.ledger(), HOST_ACCOUNT), limit_bytes, 0)
    } else {
        MemoryUsage { limit_bytes, ..MemoryUsage::default() }
    }
}

/// An account of the ledger, plus the memory that the ledger lacks.
fn memory(books: AccountView, limit_bytes: u64, overhead_bytes: u64) -> MemoryUsage {
    MemoryUsage {
        limit_bytes,
        used_bytes: books.used_bytes.saturating_add(overhead_bytes),
        peak_bytes: books.peak_bytes.saturating_add(overhead_bytes),
        refused: books.refused,
    }
}

fn waits(waits: &DeviceWaits) -> WaitHistogram {
    let counts = waits.by_length.iter().map(|count| count.load(Ordering::Relaxed)).collect();
    let (total_ns, longest_ns) = (waits.waited_ns.load(Ordering::Relaxed), waits.longest_ns.load(Ordering::Relaxed));
    // A wait that is just being added can be the longest already, and not be in the sum yet.
    let total_ns = total_ns.max(longest_ns);
    WaitHistogram { bounds_ns: &WAIT_BOUNDS_NS, counts, total_ns, longest_ns }
}

/// Warnings for a slice's user, given although nothing is wrong: see [`usage::beyond_limit`].
#[must_use]
pub(crate) fn warnings(live: &LiveSlice) -> Vec<String> {
    let is_trusted = live.damage().is_none();
    let of_devices = live.parts().into_iter().enumerate().filter_map(|(number, part)| {
        let memory = device_memory(live, number, &part, is_trusted);
        usage::beyond_limit(&memory, &format!("the memory of device {}", part.device))
    });
    let host = Some(host_memory(live, is_trusted)).filter(|memory| memory.limit_bytes != 0);
    let of_host = host.and_then(|memory| usage::beyond_limit(&memory, "page-locked host memory"));
    of_devices.chain(of_host).collect()
}

/// The totals of part `part` of `live`, which must exist. Numbers of a damaged ledger are left 0.
#[must_use]
pub(crate) fn totals(live: &LiveSlice, part: usize) -> Totals {
    let counters = live.counters(part);
    let mut totals = Totals {
        core_used_ns: live.core_used_ns(part),
        waited_ns: live.waits(part).waited_ns.load(Ordering::Relaxed),
        ..Totals::default()
    };
    if live.damage().is_none() {
        let ledger = live.region.ledger();
        let (books, sum) = (view::account(ledger, part), view::sum(ledger, live.slots(), part));
        totals.throttled_ns = counters.ended_throttled_ns.load(Ordering::Relaxed).saturating_add(sum.throttled_ns);
        totals.memory_refused = books.refused;
        totals.memory_overhead_bytes = overhead_bytes(live, part);
        totals.memory_used_bytes = books.used_bytes.saturating_add(totals.memory_overhead_bytes);
        totals.ledger_peak_bytes = books.peak_bytes;
    }
    totals
}

/// The use of a slice in the last `since`, in at most `points_max` intervals; `None` stands for the whole history that
/// is kept.
#[must_use]
pub(crate) fn history_of(
    live: &LiveSlice,
    inventory: &Inventory,
    now: Now,
    since: Option<Duration>,
    points_max: usize,
) -> SliceHistory {
    let since_ns = since.map_or(u64::MAX, |since| u64::try_from(since.as_nanos()).unwrap_or(u64::MAX));
    let past = live.past.lock();
    let parts = live.parts().into_iter().zip(past.iter()).enumerate();
    let parts = parts.map(|(number, (part, past))| {
        let points = past.told(now.monotonic_ns, totals(live, number), since_ns, points_max);
        PartHistory {
            device_index: inventory.device(&part.device).map_or(0, |device| device.index),
            device_uuid: part.device.to_string(),
            core_request_percent: part.core_request_percent,
            core_limit_percent: part.core_limit_percent,
            memory_limit_bytes: part.memory_limit_bytes,
            points: points.into_iter().map(|point| point.usage(now.monotonic_ns, now.time)).collect(),
        }
    });
    SliceHistory { name: live.name.clone(), id: live.id.to_string(), parts: parts.collect() }
}
