//! The use of slices: recorded as a short history, and assembled for clients.

use std::collections::{BTreeSet, VecDeque};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, SystemTime};

use aliquot_abi::region::{DeviceWaits, HOST_ACCOUNT};
use aliquot_arbiter::WAIT_BOUNDS_NS;
use aliquot_node::Consumer;
use aliquot_proto::node::v1 as proto;

use crate::audit::Finding;
use crate::inventory::Inventory;
use crate::live::{Attached, LiveSlice};
use crate::region::view;
use crate::size::Bytes;

mod past;
pub(crate) use past::{Past, history_of_slices, totals};

/// Time between two entries of the history.
pub(crate) const SAMPLE_INTERVAL: Duration = Duration::from_millis(250);

/// A second in nanoseconds.
pub(crate) const SECOND_NS: u64 = 1_000_000_000;
/// The longest time over which a share is computed.
const HISTORY_NS: u64 = 60 * SECOND_NS;

/// Device time used up to certain moments in the past.
#[derive(Debug, Default)]
pub(crate) struct History {
    /// Pairs of time and use, both in nanoseconds and never decreasing; the oldest first.
    samples: VecDeque<(u64, u64)>,
}

impl History {
    /// Records that `used_ns` had been used by `now_ns`.
    pub(crate) fn record(&mut self, now_ns: u64, used_ns: u64) {
        self.samples.push_back((now_ns, used_ns));
        // One entry from before the longest window stays, as the base of the computation.
        while self.samples.get(1).is_some_and(|(at_ns, _)| at_ns + HISTORY_NS <= now_ns) {
            self.samples.pop_front();
        }
    }

    /// The share of the last `window_ns` in thousandths of a percent, with `used_ns` used by `now_ns`. If the history
    /// is shorter than the window, the share since its beginning.
    #[must_use]
    pub(crate) fn share_millipercent(&self, now_ns: u64, used_ns: u64, window_ns: u64) -> u32 {
        let before = self.samples.iter().rev().find(|(at_ns, _)| at_ns + window_ns <= now_ns);
        let Some(&(then_ns, then_used_ns)) = before.or(self.samples.front()) else { return 0 };
        let elapsed_ns = u128::from(now_ns.saturating_sub(then_ns));
        if elapsed_ns == 0 {
            return 0;
        }
        let share = u128::from(used_ns.saturating_sub(then_used_ns)) * 100_000 / elapsed_ns;
        u32::try_from(share.min(100_000)).unwrap_or(100_000)
    }
}

/// What a slice uses now.
#[must_use]
fn of_slice(live: &LiveSlice, inventory: &Inventory, findings: &[Finding], now_ns: u64) -> proto::SliceUsage {
    let processes = live.processes();
    let ledger = live.region.ledger();
    let damage = live.damage();
    let history = live.history.lock();
    let parts = live.parts().into_iter().zip(history.iter()).enumerate();
    let parts = parts.map(|(number, (part, history))| {
        let (counters, used_ns) = (live.counters(number), live.core_used_ns(number));
        let share = |seconds| history.share_millipercent(now_ns, used_ns, seconds * SECOND_NS);
        let overhead_bytes = live.region.device_limits(number).memory_overhead_bytes.load(Ordering::Relaxed);
        let mut usage = proto::PartUsage {
            device_index: inventory.device(&part.device).map_or(0, |device| device.index),
            device_uuid: part.device.to_string(),
            core_request_percent: part.core_request_percent,
            core_limit_percent: part.core_limit_percent,
            core_used_1s_millipercent: share(1),
            core_used_10s_millipercent: share(10),
            core_used_60s_millipercent: share(60),
            core_used_ns: used_ns,
            overruns: counters.overruns.load(Ordering::Relaxed),
            overrun_ns: counters.overrun_ns.load(Ordering::Relaxed),
            leases: counters.leases.load(Ordering::Relaxed),
            lease_waits: Some(waits(live.waits(number))),
            memory_limit_bytes: part.memory_limit_bytes,
            memory_overhead_bytes: overhead_bytes,
            ..proto::PartUsage::default()
        };
        // The numbers of a damaged ledger are not trusted, so they stay 0.
        if damage.is_none() {
            let books = view::account(ledger, number);
            let sum = view::sum(ledger, live.slots(), number);
            usage.memory_used_bytes = books.used_bytes.saturating_add(overhead_bytes);
            usage.memory_peak_bytes = books.peak_bytes.saturating_add(overhead_bytes);
            usage.memory_refused = books.refused;
            let total = |ended: &AtomicU64, living| ended.load(Ordering::Relaxed).saturating_add(living);
            usage.throttled_ns = total(&counters.ended_throttled_ns, sum.throttled_ns);
            usage.launches = total(&counters.ended_launches, sum.launches);
            usage.copies = total(&counters.ended_copies, sum.copies);
            usage.copied_bytes = total(&counters.ended_copied_bytes, sum.copied_bytes);
            usage.copy_ns = total(&counters.ended_copy_ns, sum.copy_ns);
            usage.waiting = sum.waiting > 0;
        }
        usage
    });
    let parts = parts.collect();
    drop(history);
    let own_slot = |process: &Attached| damage.is_none().then_some(process.slot.index);
    let processes = processes.iter().map(|process| proto::Process {
        pid: process.pid,
        container_pid: process.own_pid,
        command: process.command.text().to_owned(),
        memory_used_bytes: own_slot(process)
            .map(|slot| view::held_bytes(ledger, slot, live.region.device_count()))
            .unwrap_or_default(),
        attached: Some(process.since.into()),
        host_memory_used_bytes: own_slot(process).map_or(0, |slot| view::held_bytes_of(ledger, slot, HOST_ACCOUNT)),
    });
    let mut host_memory =
        proto::HostMemoryUsage { limit_bytes: live.region.host_memory_limit_bytes(), ..Default::default() };
    if damage.is_none() {
        let books = view::account(ledger, HOST_ACCOUNT);
        host_memory.used_bytes = books.used_bytes;
        host_memory.peak_bytes = books.peak_bytes;
        host_memory.refused = books.refused;
    }
    proto::SliceUsage {
        name: live.name.clone(),
        id: live.id.to_string(),
        parts,
        processes: processes.collect(),
        problem: damage.map(|damage| damage.problem()).unwrap_or_default(),
        host_memory: Some(host_memory),
        findings: findings
            .iter()
            .filter(|finding| finding.slice.as_deref() == Some(&live.name))
            .cloned()
            .map(Into::into)
            .collect(),
        priority_class: crate::grpc::told_priority_class(live.priority_class()),
        consumers: consumers(&live.consumers()),
    }
}

/// The containers of pods that run in a slice, as messages.
#[must_use]
pub(crate) fn consumers(consumers: &BTreeSet<Consumer>) -> Vec<proto::Consumer> {
    let told = |Consumer { namespace, pod, container }: &Consumer| proto::Consumer {
        namespace: namespace.clone(),
        pod: pod.clone(),
        container: container.clone(),
    };
    consumers.iter().map(told).collect()
}

fn waits(waits: &DeviceWaits) -> proto::WaitHistogram {
    let counts = waits.by_length.iter().map(|count| count.load(Ordering::Relaxed)).collect();
    let (total_ns, longest_ns) = (waits.waited_ns.load(Ordering::Relaxed), waits.longest_ns.load(Ordering::Relaxed));
    // A wait that is just being added can be the longest already, and not be in the sum yet.
    let total_ns = total_ns.max(longest_ns);
    proto::WaitHistogram { bounds_ns: WAIT_BOUNDS_NS.to_vec(), counts, total_ns, longest_ns }
}

/// Warnings for a slice's user although nothing is wrong: it holds more than its limit, which was lowered.
#[must_use]
pub(crate) fn warnings(live: &LiveSlice) -> Vec<String> {
    if live.damage().is_some() {
        return Vec::new();
    }
    let beyond = |used_bytes: u64, limit_bytes: u64, memory: String| {
        (used_bytes > limit_bytes).then(|| {
            format!(
                "{} of {memory} are in use, and the limit is {}: nothing is taken away, and nothing more is given until less \
                 is in use",
                Bytes(used_bytes),
                Bytes(limit_bytes)
            )
        })
    };
    let ledger = live.region.ledger();
    let of_devices = live.parts().into_iter().enumerate().filter_map(|(number, part)| {
        let overhead_bytes = live.region.device_limits(number).memory_overhead_bytes.load(Ordering::Relaxed);
        let used_bytes = view::account(ledger, number).used_bytes.saturating_add(overhead_bytes);
        beyond(used_bytes, part.memory_limit_bytes, format!("the memory of device {}", part.device))
    });
    let host_limit_bytes = Some(live.region.host_memory_limit_bytes()).filter(|&bytes| bytes != 0);
    let of_host = host_limit_bytes.and_then(|limit_bytes| {
        beyond(view::account(ledger, HOST_ACCOUNT).used_bytes, limit_bytes, "page-locked host memory".into())
    });
    of_devices.chain(of_host).collect()
}

/// The present use of the slices in `names`; of all slices if `names` is empty.
#[must_use]
pub(crate) fn of_slices(
    slices: &[std::sync::Arc<LiveSlice>],
    names: &[String],
    inventory: &Inventory,
    findings: &[Finding],
    now_ns: u64,
) -> proto::GetUsageResponse {
    let wanted = slices.iter().filter(|live| names.is_empty() || names.contains(&live.name));
    proto::GetUsageResponse {
        time: Some(SystemTime::now().into()),
        slices: wanted.map(|live| of_slice(live, inventory, findings, now_ns)).collect(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_share_is_averaged_over_the_window() {
        let mut history = History::default();
        assert_eq!(history.share_millipercent(SECOND_NS, 5, SECOND_NS), 0);
        // Half of the device for 100 s, then nothing for 5 s, with a sample every 250 ms.
        let used = |at_ns: u64| at_ns.min(100 * SECOND_NS) / 2;
        let end = 105 * SECOND_NS;
        for step in 0..=420 {
            let now_ns = step * SECOND_NS / 4;
            history.record(now_ns, used(now_ns));
        }
        assert_eq!(history.share_millipercent(end, used(end), SECOND_NS), 0);
        assert_eq!(history.share_millipercent(end, used(end), 10 * SECOND_NS), 25_000);
        assert_eq!(history.share_millipercent(end, used(end), 60 * SECOND_NS), 45_833);
        assert!(history.samples.len() <= 242);
    }

    #[test]
    fn the_share_of_a_young_slice_is_averaged_over_its_life() {
        let mut history = History::default();
        history.record(1000, 0);
        assert_eq!(history.share_millipercent(1000, 0, SECOND_NS), 0);
        assert_eq!(history.share_millipercent(2000, 300, 60 * SECOND_NS), 30_000);
        // A share above 100 % is a measurement error.
        assert_eq!(history.share_millipercent(2000, 3000, 60 * SECOND_NS), 100_000);
    }
}
