//! Looks at the processes on the devices: what they use beyond their ledgers, how much time slices use that have a
//! device to themselves, and what the container is shown of both. The audit judges the same look.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tracing::debug;

use crate::attribution::{Attribution, Census, Place, ProcessId};
use crate::audit::{Audit, Auditor};
use crate::clock::monotonic_ns;
use crate::inventory::{DeviceProcess, DeviceSource, DeviceUuid, Inventory, SharingMode, UtilisationSample};
use crate::live::{LiveSlice, LiveSlices};
use crate::procfs::Stat;
use crate::region::view;

/// A slice's part of a device, when it was looked at.
pub(crate) struct PartLook {
    /// The slice.
    pub slice: Arc<LiveSlice>,
    /// The part's number in the slice.
    pub number: usize,
    /// The slice's memory limit on the device.
    pub limit_bytes: u64,
    /// The greatest that it has had: what was taken before a resize is held on.
    pub limit_max_bytes: u64,
    /// What its ledger said that it used, before and after the driver was asked: the greater of both, so that an
    /// allocation between the two is no overhead.
    pub ledger_bytes: u64,
}

/// A process on a device, when it was looked at.
pub(crate) struct ProcessLook {
    /// The process.
    pub id: ProcessId,
    /// Where it belongs.
    pub place: Place,
    /// What it uses of the device's memory; `None` where the driver does not tell.
    pub memory_bytes: Option<u64>,
    /// It computes there; `false`: it only draws.
    pub computes: bool,
    /// Part of the time since the last look in which it kept the device at work.
    pub busy_percent: u32,
}

/// A device, when it was looked at.
pub(crate) struct DeviceLook {
    /// The device.
    pub device: DeviceUuid,
    /// How it is shared.
    pub sharing: SharingMode,
    /// The slices that have a part of it.
    pub parts: Vec<PartLook>,
    /// The processes on it, each once.
    pub processes: Vec<ProcessLook>,
}

impl DeviceLook {
    /// The processes of a slice.
    pub(crate) fn of_slice(&self, slice: &LiveSlice) -> impl Iterator<Item = &ProcessLook> {
        let number = slice.number;
        self.processes.iter().filter(move |process| match &process.place {
            Place::Inside { slice, .. } => slice.number == number,
            Place::Outside => false,
        })
    }
}

pub(super) struct ProcessWatch {
    slices: Arc<LiveSlices>,
    attribution: Attribution,
    auditor: Auditor,
    /// Up to when, by the driver's clock, samples of a device were taken.
    since_us: BTreeMap<DeviceUuid, u64>,
    /// The slices, with the number of the part, that had a device to themselves at the last look.
    free_before: BTreeSet<(u64, usize)>,
}

impl ProcessWatch {
    pub(super) fn new(slices: Arc<LiveSlices>, audit: Arc<Audit>) -> ProcessWatch {
        ProcessWatch {
            slices,
            attribution: Attribution::default(),
            auditor: Auditor::new(audit),
            since_us: BTreeMap::new(),
            free_before: BTreeSet::new(),
        }
    }

    /// Looks at all devices, `elapsed` after the last time. Asks the driver nothing where there is no slice.
    pub(super) fn look(&mut self, source: &mut dyn DeviceSource, inventory: &Inventory, elapsed: Duration) {
        let slices = self.slices.all();
        let mut parts: BTreeMap<DeviceUuid, Vec<PartLook>> = BTreeMap::new();
        for live in &slices {
            for (number, part) in live.parts().into_iter().enumerate() {
                let look = PartLook {
                    slice: Arc::clone(live),
                    number,
                    limit_bytes: part.memory_limit_bytes,
                    limit_max_bytes: live.memory_limit_max_bytes(number),
                    ledger_bytes: 0,
                };
                parts.entry(part.device).or_default().push(look);
            }
        }
        if !slices.is_empty() {
            // A process of a slice can be on a device of which no slice has a part. What is on a partitioned device is
            // on one of its instances, and stands in that one's list.
            for device in inventory.devices.iter().filter(|device| !device.mig_enabled) {
                parts.entry(device.uuid.clone()).or_default();
            }
        }
        let mut attribution = std::mem::take(&mut self.attribution);
        let mut census = attribution.census(&slices);
        let mut free_now = BTreeSet::new();
        let mut looks = Vec::new();
        for (device, parts) in parts {
            let sharing = inventory.device(&device).map(|device| device.sharing).unwrap_or_default();
            let Some(look) = self.look_at(source, &device, sharing, parts, &mut census) else { continue };
            for part in &look.parts {
                if part.slice.is_free(part.number) {
                    free_now.insert((part.slice.number, part.number));
                }
                self.take_down(&look, part, elapsed);
            }
            looks.push(look);
        }
        self.auditor.look(monotonic_ns(), &looks);
        (self.free_before, self.attribution) = (free_now, attribution);
    }

    /// Asks the driver for the processes of a device; `None` if it does not answer.
    fn look_at(
        &mut self,
        source: &mut dyn DeviceSource,
        device: &DeviceUuid,
        sharing: SharingMode,
        mut parts: Vec<PartLook>,
        census: &mut Census<'_>,
    ) -> Option<DeviceLook> {
        let ledger_bytes = |part: &PartLook| view::account(part.slice.region.ledger(), part.number).used_bytes;
        parts.iter_mut().for_each(|part| part.ledger_bytes = ledger_bytes(part));
        let processes = match source.processes(device) {
            Ok(processes) => processes,
            Err(error) => {
                debug!(%device, %error, "cannot tell what processes use");
                return None;
            }
        };
        parts.iter_mut().for_each(|part| part.ledger_bytes = part.ledger_bytes.max(ledger_bytes(part)));
        let since_us = self.since_us.get(device).copied().unwrap_or(0);
        let samples = source.utilisation(device, since_us).unwrap_or_else(|error| {
            debug!(%device, %error, "cannot tell how busy processes are");
            Vec::new()
        });
        if let Some(newest_us) = samples.iter().map(|sample| sample.time_us).max() {
            self.since_us.insert(device.clone(), newest_us);
        }
        let busy = busy_percent(&samples);
        let process = |process: DeviceProcess| {
            let DeviceProcess { pid, memory_bytes, computes } = process;
            // One that has ended can stand in the driver's list for a while.
            let stat = Stat::of(pid).filter(|stat| !stat.has_ended())?;
            let id = ProcessId { pid, start_time: stat.start_time };
            let busy_percent = busy.get(&pid).copied().unwrap_or(0);
            Some(ProcessLook { id, place: census.place(id), memory_bytes, computes, busy_percent })
        };
        let processes = each_once(&processes).into_values().filter_map(process).collect();
        Some(DeviceLook { device: device.clone(), sharing, parts, processes })
    }

    /// Writes down what a slice uses of a device.
    fn take_down(&self, look: &DeviceLook, part: &PartLook, elapsed: Duration) {
        let PartLook { slice, number, .. } = part;
        // Unregistered processes of the slice count as well: it is the slice that has the limit.
        let used_bytes =
            look.of_slice(slice).try_fold(0_u64, |sum, process| Some(sum.saturating_add(process.memory_bytes?)));
        if let Some(used_bytes) = used_bytes {
            slice.set_memory_overhead_bytes(*number, used_bytes.saturating_sub(part.ledger_bytes));
        }
        let busy_percent = look.of_slice(slice).map(|process| process.busy_percent).sum::<u32>().min(100);
        slice.set_sampled_permille(*number, busy_percent * 10);
        if slice.is_free(*number) && self.free_before.contains(&(slice.number, *number)) {
            let busy_ns = elapsed.as_nanos() * u128::from(busy_percent) / 100;
            slice.counters(*number).free_ns.fetch_add(u64::try_from(busy_ns).unwrap_or(0), Ordering::Relaxed);
        }
        show_processes(look, part);
    }
}

/// Writes into the slots of a slice's processes what the driver says of each, for the lists that the container sees.
fn show_processes(look: &DeviceLook, part: &PartLook) {
    let ledger = part.slice.region.ledger();
    for attached in part.slice.processes().iter() {
        let Some(slot) = attached.slot else { continue };
        let seen = look.processes.iter().find(|process| process.id.pid == attached.pid);
        let memory_bytes = seen.and_then(|process| process.memory_bytes).unwrap_or(0);
        let held_bytes = view::held_bytes_of(ledger, slot.index, part.number);
        let Some(slot) = view::shown(ledger, slot.index, slot.identity, part.number) else { continue };
        store_if_changed(&slot.overhead_bytes, memory_bytes.saturating_sub(held_bytes));
        store_if_changed(&slot.used_permille, seen.map_or(0, |process| u64::from(process.busy_percent) * 10));
    }
}

/// A page that is only read stays clean, and its cache line with those who read it.
pub(crate) fn store_if_changed(cell: &AtomicU64, value: u64) {
    if cell.load(Ordering::Relaxed) != value {
        cell.store(value, Ordering::Relaxed);
    }
}

/// Each process with what it uses in all; what that is is not known if the driver does not tell it of one of its
/// entries.
fn each_once(processes: &[DeviceProcess]) -> BTreeMap<u32, DeviceProcess> {
    let mut by_pid: BTreeMap<u32, DeviceProcess> = BTreeMap::new();
    for process in processes {
        let nothing = DeviceProcess { pid: process.pid, memory_bytes: Some(0), computes: false };
        let whole = by_pid.entry(process.pid).or_insert(nothing);
        whole.memory_bytes = whole.memory_bytes.zip(process.memory_bytes).map(|(sum, bytes)| sum.saturating_add(bytes));
        whole.computes |= process.computes;
    }
    by_pid
}

/// How busy each process kept the device: the mean of its samples.
fn busy_percent(samples: &[UtilisationSample]) -> BTreeMap<u32, u32> {
    let mut by_pid: BTreeMap<u32, (u64, u64)> = BTreeMap::new();
    for sample in samples {
        let (sum, count) = by_pid.entry(sample.pid).or_default();
        (*sum, *count) = (*sum + u64::from(sample.busy_percent), *count + 1);
    }
    by_pid.into_iter().map(|(pid, (sum, count))| (pid, u32::try_from((sum / count).min(100)).unwrap_or(100))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_with_several_entries_uses_their_sum_and_an_unknown_one_makes_it_unknown() {
        let process = |pid, memory_bytes, computes| DeviceProcess { pid, memory_bytes, computes };
        let processes = [
            process(1, Some(10), false),
            process(2, Some(20), false),
            process(1, Some(5), true),
            process(2, None, false),
        ];
        let expected = [(1, process(1, Some(15), true)), (2, process(2, None, false))];
        assert_eq!(each_once(&processes), BTreeMap::from(expected));
    }

    #[test]
    fn several_samples_of_a_process_are_averaged() {
        let sample = |pid, busy_percent| UtilisationSample { pid, time_us: 0, busy_percent };
        let samples = [sample(1, 20), sample(1, 40), sample(2, 50), sample(3, 250)];
        assert_eq!(busy_percent(&samples), BTreeMap::from([(1, 30), (2, 50), (3, 100)]));
        assert_eq!(busy_percent(&[]), BTreeMap::new());
    }
}
