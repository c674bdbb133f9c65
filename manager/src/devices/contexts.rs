//! How much memory a context takes on each device, learned from processes.
//!
//! Right after a process has made its first context, its use beyond its allocations is the size of that context.
//! Modules and stacks come later. The driver rounds allocations up, so a process that has some by then shows only
//! between which sizes a context is. A tenant can falsify the figures by writing into its slot, or by allocating past
//! the shim. So of the last few figures the greatest lower bound counts, and no more than any of them allows. Looks find
//! memory of contexts beyond that.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::ops::RangeInclusive;

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
    figures: BTreeMap<DeviceUuid, VecDeque<RangeInclusive<u64>>>,
    /// Processes that had a context on a device at the last look.
    met: BTreeSet<(ProcessId, DeviceUuid)>,
    /// Processes that have one at the current look.
    meeting: BTreeSet<(ProcessId, DeviceUuid)>,
}

impl ContextSizes {
    /// Records that a process has `contexts` on a device, and uses between the least and the most of `bytes` there
    /// beyond its allocations; `None` if that is uncertain.
    pub(super) fn see(
        &mut self,
        process: ProcessId,
        device: &DeviceUuid,
        contexts: u64,
        bytes: Option<RangeInclusive<u64>>,
    ) {
        if contexts == 0 {
            return;
        }
        let is_new = !self.met.contains(&(process, device.clone()));
        match bytes {
            // Not recorded, so that the next look asks again.
            None if is_new => return,
            Some(bytes) if is_new && contexts == 1 => {
                let figures = self.figures.entry(device.clone()).or_default();
                figures.push_back(bytes);
                if figures.len() > KEPT {
                    figures.pop_front();
                }
            }
            _ => {}
        }
        self.meeting.insert((process, device.clone()));
    }

    /// Ends a look: processes that were not seen in it are forgotten.
    pub(super) fn finish_look(&mut self) {
        self.met = std::mem::take(&mut self.meeting);
    }

    /// The memory that a context takes on a device; `None` if unknown.
    pub(super) fn of(&self, device: &DeviceUuid) -> Option<u64> {
        let figures = self.figures.get(device)?;
        let least_bytes = figures.iter().map(|bytes| *bytes.start()).max()?;
        let most_bytes = figures.iter().map(|bytes| *bytes.end()).min()?;
        let bytes = least_bytes.min(most_bytes).min(CONTEXT_BYTES_MAX);
        Some(if bytes < CONTEXT_BYTES_MIN { 0 } else { bytes })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn process(pid: u32) -> ProcessId {
        ProcessId { pid, start_time: 1 }
    }

    const MIB: u64 = 1 << 20;

    fn exactly(bytes: u64) -> Option<RangeInclusive<u64>> {
        Some(bytes..=bytes)
    }

    #[test]
    fn a_process_with_many_allocations_does_not_make_contexts_small() {
        let (mut sizes, device) = (ContextSizes::default(), DeviceUuid::new("GPU-1"));
        let sees = |sizes: &mut ContextSizes, pid: u32, bytes: RangeInclusive<u64>| {
            sizes.see(process(pid), &device, 1, Some(bytes));
            sizes.of(&device).map(|bytes| bytes / MIB)
        };
        assert_eq!(sees(&mut sizes, 1, 80 * MIB..=104 * MIB), Some(80));
        assert_eq!(sees(&mut sizes, 2, 99 * MIB..=101 * MIB), Some(99));
        assert_eq!(sees(&mut sizes, 3, 60 * MIB..=130 * MIB), Some(99));
        // What a tenant pretends raises the size to no more than others have shown.
        assert_eq!(sees(&mut sizes, 4, 900 * MIB..=900 * MIB), Some(101));
        // Where a context does not show within the rounding of allocations, it takes nothing.
        let rounded = DeviceUuid::new("GPU-2");
        sizes.see(process(5), &rounded, 1, Some(0..=127 * MIB));
        assert_eq!(sizes.of(&rounded), Some(0));
    }

    #[test]
    fn the_first_figure_of_a_process_with_one_context_counts() {
        let (mut sizes, device) = (ContextSizes::default(), DeviceUuid::new("GPU-1"));
        assert_eq!(sizes.of(&device), None);
        sizes.see(process(1), &device, 0, exactly(5 * MIB));
        sizes.see(process(2), &device, 2, exactly(200 * MIB));
        sizes.see(process(3), &device, 1, None);
        sizes.finish_look();
        assert_eq!(sizes.of(&device), None);
        sizes.see(process(1), &device, 1, exactly(100 * MIB));
        sizes.see(process(2), &device, 1, exactly(50 * MIB));
        sizes.see(process(3), &device, 1, exactly(110 * MIB));
        sizes.finish_look();
        assert_eq!(sizes.of(&device), Some(100 * MIB));
        // Later figures of the same process include modules, and do not count.
        sizes.see(process(1), &device, 1, exactly(90 * MIB));
        assert_eq!((sizes.of(&device), sizes.of(&DeviceUuid::new("GPU-2"))), (Some(100 * MIB), None));
    }

    #[test]
    fn an_old_figure_is_forgotten_and_none_is_believed_without_bound() {
        let (mut sizes, device) = (ContextSizes::default(), DeviceUuid::new("GPU-1"));
        sizes.see(process(1), &device, 1, exactly(65_536));
        assert_eq!(sizes.of(&device), Some(0));
        for pid in 2..2 + KEPT as u32 {
            sizes.see(process(pid), &device, 1, exactly(u64::MAX));
        }
        assert_eq!(sizes.of(&device), Some(CONTEXT_BYTES_MAX));
    }
}
