//! How much memory a context takes on each device, learned from processes.
//!
//! Right after a process has made its first context, its use is the size of that context. Modules and stacks come
//! later. A process that has allocated shows no size: an allocation counts from before the driver gives it, so one that
//! is under way would make the context too small, and the driver rounds allocations up. Its slice keeps the size that
//! it knows. Where none is known, the next process waits with its context for a look, and shows it.
//!
//! A tenant can falsify the figures by writing into its slot, or by allocating past the shim. So the least of the last
//! few figures counts. Looks find memory of contexts beyond that.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use crate::attribution::ProcessId;
use crate::inventory::DeviceUuid;

/// Figures kept for each device.
const KEPT: usize = 8;
/// Upper bound for a context on any device.
const CONTEXT_BYTES_MAX: u64 = 2 << 30;
/// A smaller figure is not a context, but an allocation that was made or freed while the driver was asked.
const CONTEXT_BYTES_MIN: u64 = 1 << 20;

/// Memory that contexts take.
#[derive(Debug, Default)]
pub(super) struct ContextSizes {
    figures: BTreeMap<DeviceUuid, VecDeque<u64>>,
    /// Processes that had a context on a device at the last look.
    met: BTreeSet<(ProcessId, DeviceUuid)>,
    /// Processes that have one at the current look.
    meeting: BTreeSet<(ProcessId, DeviceUuid)>,
}

impl ContextSizes {
    /// Records that a process has `contexts` on a device, and uses `bytes` there, all for them; `None` if it may have
    /// allocated.
    pub(super) fn see(&mut self, process: ProcessId, device: &DeviceUuid, contexts: u64, bytes: Option<u64>) {
        if contexts == 0 {
            return;
        }
        let key = (process, device.clone());
        if let Some(bytes) = bytes.filter(|_| contexts == 1 && !self.met.contains(&key)) {
            let figures = self.figures.entry(device.clone()).or_default();
            figures.push_back(if bytes < CONTEXT_BYTES_MIN { 0 } else { bytes.min(CONTEXT_BYTES_MAX) });
            if figures.len() > KEPT {
                figures.pop_front();
            }
        }
        self.meeting.insert(key);
    }

    /// Ends a look: processes that were not seen in it are forgotten.
    pub(super) fn finish_look(&mut self) {
        self.met = std::mem::take(&mut self.meeting);
    }

    /// The memory that a context takes on a device; `None` if unknown.
    pub(super) fn of(&self, device: &DeviceUuid) -> Option<u64> {
        self.figures.get(device)?.iter().min().copied()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn process(pid: u32) -> ProcessId {
        ProcessId { pid, start_time: 1 }
    }

    const MIB: u64 = 1 << 20;

    #[test]
    fn the_first_figure_of_a_process_with_one_context_counts() {
        let (mut sizes, device) = (ContextSizes::default(), DeviceUuid::new("GPU-1"));
        assert_eq!(sizes.of(&device), None);
        sizes.see(process(1), &device, 0, Some(5 * MIB));
        sizes.see(process(2), &device, 2, Some(200 * MIB));
        sizes.see(process(3), &device, 1, None);
        sizes.finish_look();
        assert_eq!(sizes.of(&device), None);
        sizes.see(process(1), &device, 1, Some(100 * MIB));
        sizes.see(process(2), &device, 1, Some(50 * MIB));
        // It has allocated before, and has modules.
        sizes.see(process(3), &device, 1, Some(40 * MIB));
        sizes.see(process(4), &device, 1, Some(110 * MIB));
        sizes.finish_look();
        assert_eq!(sizes.of(&device), Some(100 * MIB));
        // Later figures of the same process do not count.
        sizes.see(process(1), &device, 1, Some(90 * MIB));
        assert_eq!((sizes.of(&device), sizes.of(&DeviceUuid::new("GPU-2"))), (Some(100 * MIB), None));
    }

    #[test]
    fn an_old_figure_is_forgotten_and_none_is_believed_without_bound() {
        let (mut sizes, device) = (ContextSizes::default(), DeviceUuid::new("GPU-1"));
        sizes.see(process(1), &device, 1, Some(65_536));
        assert_eq!(sizes.of(&device), Some(0));
        for pid in 2..2 + KEPT as u32 {
            sizes.see(process(pid), &device, 1, Some(u64::MAX));
        }
        assert_eq!(sizes.of(&device), Some(CONTEXT_BYTES_MAX));
    }
}
