//! Looks at the processes on the devices: the memory that they use beyond their ledgers, and the time of slices that
//! have a device to themselves. Writes both figures for the lists that containers see. The audit judges the same look.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use aliquot_abi::rounding::Looked;
use tracing::debug;

use crate::attribution::{Attribution, Census, Place, ProcessId};
use crate::audit::{Audit, Auditor};
use crate::clock::monotonic_ns;
use crate::devices::contexts::ContextSizes;
use crate::devices::unlisted::Unlisted;
use crate::inventory::{DeviceProcess, DeviceSource, DeviceUuid, Inventory, SharingMode, UtilisationSample};
use crate::live::{Attached, LiveSlice, LiveSlices, MemorySeen};
use crate::procfs::Stat;
use crate::region::view::{self, ContextView};

/// A slice's part of a device at the time of a look.
pub(crate) struct PartLook {
    /// The slice that the part belongs to.
    pub slice: Arc<LiveSlice>,
    /// The part's number in the slice.
    pub number: usize,
    /// The slice's memory limit on the device.
    pub limit_bytes: u64,
    /// The highest memory limit that the slice ever had: after a resize it keeps what it had taken before.
    pub limit_max_bytes: u64,
    /// The memory in use by the ledger: [`Looked::used_bytes`].
    pub ledger_bytes: u64,
    /// The value to publish with the overhead: [`Looked::seen`].
    rounding_seen: u64,
    /// [`LiveSlice::ends`] before the driver was asked.
    ends: u64,
    /// The contexts that its processes had reported before the driver was asked, by pid.
    contexts: BTreeMap<u32, ContextView>,
}

/// A process on a device at the time of a look.
pub(crate) struct ProcessLook {
    /// The pid and the start time of the process.
    pub id: ProcessId,
    /// [`Stat::start_stack`]: it differs for each program that the process runs.
    pub start_stack: u64,
    /// Its slice, if it has one.
    pub place: Place,
    /// Device memory that it uses; `None` if the driver does not say.
    pub memory_bytes: Option<u64>,
    /// The process computes; `false`: it only draws.
    pub computes: bool,
    /// Percentage of the time since the last look in which it kept the device busy.
    pub busy_percent: u32,
}

/// A device at the time of a look.
pub(crate) struct DeviceLook {
    /// The UUID of the device.
    pub device: DeviceUuid,
    /// How it is shared.
    pub sharing: SharingMode,
    /// The slices that have a part of it.
    pub parts: Vec<PartLook>,
    /// The processes on it, each listed once, in the order of their pids.
    pub processes: Vec<ProcessLook>,
    /// Memory that each computing process uses beyond what the driver lists for it.
    unlisted_bytes: u64,
    /// Memory that the driver lists for processes that have ended, by pid.
    ended: BTreeMap<u32, Option<u64>>,
}

impl DeviceLook {
    /// The process `pid`, if it is on the device.
    fn process(&self, pid: u32) -> Option<&ProcessLook> {
        let at = self.processes.binary_search_by_key(&pid, |process| process.id.pid).ok()?;
        self.processes.get(at)
    }

    /// The processes of `slice` on the device.
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
    context_sizes: ContextSizes,
    unlisted: Unlisted,
    /// The slice numbers of the processes that the driver listed for each device at the last look, ended processes
    /// included.
    slices_of: BTreeMap<(DeviceUuid, u32), u64>,
    /// See [`Self::awaits_memory`].
    awaits_memory: bool,
    /// The time of the driver's clock up to which the samples of each device were taken.
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
            context_sizes: ContextSizes::default(),
            unlisted: Unlisted::default(),
            slices_of: BTreeMap::new(),
            awaits_memory: false,
            since_us: BTreeMap::new(),
            free_before: BTreeSet::new(),
        }
    }

    /// Looks at all devices, `elapsed` after the last look. Does not ask the driver if there are no slices.
    pub(super) fn look(&mut self, source: &mut dyn DeviceSource, inventory: &Inventory, elapsed: Duration) {
        let slices = self.slices.all();
        self.awaits_memory = false;
        let mut parts = parts_of(&slices);
        if !slices.is_empty() {
            // A process of a slice can be on a device of which no slice has a part. A partitioned device is skipped:
            // its processes run on its instances, and stand in their lists.
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
            let Some(mut look) = self.ask(source, &device, sharing, parts, &mut census) else { continue };
            self.sample(source, &mut look);
            for part in &look.parts {
                if part.slice.is_free(part.number) {
                    free_now.insert((part.slice.number, part.number));
                }
                self.take_down_memory(&look, part);
                self.take_down_time(&look, part, elapsed);
            }
            looks.push(look);
        }
        self.context_sizes.finish_look();
        self.auditor.look(monotonic_ns(), &looks);
        (self.free_before, self.attribution) = (free_now, attribution);
    }

    /// Looks only at the device memory of slices. It does not look at how busy processes were, which is known only for
    /// longer intervals, and it does not concern the audit, which counts looks.
    pub(super) fn look_at_memory(&mut self, source: &mut dyn DeviceSource, inventory: &Inventory) {
        let slices = self.slices.all();
        self.awaits_memory = false;
        let mut attribution = std::mem::take(&mut self.attribution);
        let mut census = attribution.census(&slices);
        for (device, parts) in parts_of(&slices) {
            let sharing = inventory.device(&device).map(|device| device.sharing).unwrap_or_default();
            let Some(look) = self.ask(source, &device, sharing, parts, &mut census) else { continue };
            look.parts.iter().for_each(|part| self.take_down_memory(&look, part));
        }
        self.context_sizes.finish_look();
        self.attribution = attribution;
    }

    /// Asks the driver for the processes of a device; `None` if it does not answer.
    fn ask(
        &mut self,
        source: &mut dyn DeviceSource,
        device: &DeviceUuid,
        sharing: SharingMode,
        parts: Vec<PartLook>,
        census: &mut Census<'_>,
    ) -> Option<DeviceLook> {
        let untold: Vec<(Arc<LiveSlice>, usize)> =
            parts.iter().map(|part| (Arc::clone(&part.slice), part.number)).collect();
        let Some(look) = ask(source, device, sharing, parts, census, &mut self.unlisted) else {
            untold.iter().for_each(|(slice, number)| slice.end_memory_look(*number, slice.ends(), None));
            return None;
        };
        let slices_of = |process: &ProcessLook| match &process.place {
            Place::Inside { slice, .. } => Some((process.id.pid, slice.number)),
            Place::Outside => None,
        };
        let key = |pid: u32| (device.clone(), pid);
        let ended = look.ended.keys().filter_map(|&pid| Some((pid, *self.slices_of.get(&key(pid))?)));
        let listed: Vec<(u32, u64)> = look.processes.iter().filter_map(slices_of).chain(ended).collect();
        self.slices_of.retain(|(of, _), _| of != device);
        self.slices_of.extend(listed.into_iter().map(|(pid, slice)| (key(pid), slice)));
        Some(look)
    }

    /// Whether the driver still lists ended processes of slices: their memory counts for the slice until the driver
    /// frees it.
    pub(super) fn awaits_memory(&self) -> bool {
        self.awaits_memory
    }

    /// Asks the driver how busy the processes of a device have been.
    fn sample(&mut self, source: &mut dyn DeviceSource, look: &mut DeviceLook) {
        let device = &look.device;
        let since_us = self.since_us.get(device).copied().unwrap_or(0);
        let samples = source.utilisation(device, since_us).unwrap_or_else(|error| {
            debug!(%device, %error, "cannot tell how busy processes are");
            Vec::new()
        });
        if let Some(newest_us) = samples.iter().map(|sample| sample.time_us).max() {
            self.since_us.insert(device.clone(), newest_us);
        }
        let busy = busy_percent(&samples);
        for process in &mut look.processes {
            process.busy_percent = busy.get(&process.id.pid).copied().unwrap_or(0);
        }
    }

    /// Records how much of a device's memory a slice uses.
    fn take_down_memory(&mut self, look: &DeviceLook, part: &PartLook) {
        let PartLook { slice, number, .. } = part;
        // Unregistered processes of the slice count too, because the limit applies to the slice.
        let used_bytes = look.of_slice(slice).try_fold(0_u64, |sum, process| {
            let unlisted_bytes = if process.computes { look.unlisted_bytes } else { 0 };
            Some(sum.saturating_add(process.memory_bytes?).saturating_add(unlisted_bytes))
        });
        let is_its = |pid: u32| self.slices_of.get(&(look.device.clone(), pid)) == Some(&slice.number);
        let mut ended = look.ended.iter().filter(|(pid, _)| is_its(**pid)).peekable();
        let holds_ended = ended.peek().is_some();
        let ended_bytes = ended.filter_map(|(_, bytes)| *bytes).fold(0, u64::saturating_add);
        let used_bytes = used_bytes.map(|bytes| bytes.saturating_add(ended_bytes));
        show_memory(look, part);
        self.learn_contexts(look, part);
        let context_bytes = self.context_sizes.of(&look.device);
        let has_unplaced = look.ended.keys().any(|&pid| !self.slices_of.contains_key(&(look.device.clone(), pid)));
        let seen = used_bytes.map(|bytes| {
            let overhead_bytes = bytes.saturating_sub(part.ledger_bytes);
            let rounding_seen = part.rounding_seen;
            MemorySeen { overhead_bytes, holds_ended, has_unplaced, context_bytes, rounding_seen }
        });
        slice.end_memory_look(*number, part.ends, seen);
        self.awaits_memory |= slice.awaits_memory();
    }

    /// Learns the size of contexts from the processes of a slice.
    fn learn_contexts(&mut self, look: &DeviceLook, part: &PartLook) {
        let ledger = part.slice.region.ledger();
        for attached in part.slice.processes().iter() {
            let seen = look.process(attached.pid);
            let (Some(seen), Some(before)) = (seen, part.contexts.get(&attached.pid)) else { continue };
            let is_at_rest = view::contexts(ledger, attached.slot.index, part.number) == Some(*before);
            let memory_bytes = seen.memory_bytes.filter(|_| is_at_rest && before.other_bytes == 0);
            let bytes = memory_bytes.map(|bytes| bytes.saturating_add(look.unlisted_bytes));
            self.context_sizes.see(seen.id, &look.device, before.count, bytes);
        }
    }

    /// Records how much of a device's time a slice uses.
    fn take_down_time(&self, look: &DeviceLook, part: &PartLook, elapsed: Duration) {
        let PartLook { slice, number, .. } = part;
        let busy_percent = look.of_slice(slice).map(|process| process.busy_percent).sum::<u32>().min(100);
        slice.set_sampled_permille(*number, busy_percent * 10);
        if slice.is_free(*number) && self.free_before.contains(&(slice.number, *number)) {
            let busy_ns = elapsed.as_nanos() * u128::from(busy_percent) / 100;
            slice.counters(*number).free_ns.fetch_add(u64::try_from(busy_ns).unwrap_or(0), Ordering::Relaxed);
        }
        show_time(look, part);
    }
}

/// The parts of all slices, by device.
fn parts_of(slices: &[Arc<LiveSlice>]) -> BTreeMap<DeviceUuid, Vec<PartLook>> {
    let mut parts: BTreeMap<DeviceUuid, Vec<PartLook>> = BTreeMap::new();
    for live in slices {
        for (number, part) in live.parts().into_iter().enumerate() {
            let look = PartLook {
                slice: Arc::clone(live),
                number,
                limit_bytes: part.memory_limit_bytes,
                limit_max_bytes: live.memory_limit_max_bytes(number),
                ledger_bytes: 0,
                rounding_seen: 0,
                ends: 0,
                contexts: BTreeMap::new(),
            };
            parts.entry(part.device).or_default().push(look);
        }
    }
    parts
}

/// Asks the driver for the processes of a device and their use of its memory; `None` if it does not answer.
fn ask(
    source: &mut dyn DeviceSource,
    device: &DeviceUuid,
    sharing: SharingMode,
    mut parts: Vec<PartLook>,
    census: &mut Census<'_>,
    unlisted: &mut Unlisted,
) -> Option<DeviceLook> {
    let mut begun = Vec::with_capacity(parts.len());
    for part in &mut parts {
        part.ends = part.slice.begin_memory_look(part.number);
        let processes = part.slice.processes();
        let ledger = part.slice.region.ledger();
        begun.push(view::begin_look(ledger, part.number, part.slice.slots()));
        let contexts =
            |attached: &Attached| Some((attached.pid, view::contexts(ledger, attached.slot.index, part.number)?));
        part.contexts = processes.iter().filter_map(contexts).collect();
    }
    let processes = match source.processes(device) {
        Ok(processes) => processes,
        Err(error) => {
            debug!(%device, %error, "cannot read the memory use of processes");
            return None;
        }
    };
    let listed = each_once(&processes);
    let unlisted_bytes = unlisted.bytes(source, device, &listed);
    for (part, look) in parts.iter_mut().zip(begun) {
        let ledger = part.slice.region.ledger();
        let looked = look.and_then(|look| view::end_look(ledger, part.number, part.slice.slots(), look));
        let Some(Looked { used_bytes, seen }) = looked else { continue };
        (part.ledger_bytes, part.rounding_seen) = (used_bytes, seen);
    }
    // An ended process stays in the driver's list until its memory is free.
    let mut ended = BTreeMap::new();
    let process = |process: DeviceProcess| {
        let DeviceProcess { pid, memory_bytes, computes } = process;
        let Some(stat) = Stat::of(pid).filter(|stat| !stat.has_ended()) else {
            ended.insert(pid, memory_bytes);
            return None;
        };
        let id = ProcessId { pid, start_time: stat.start_time };
        let (place, start_stack) = (census.place(id), stat.start_stack);
        Some(ProcessLook { id, start_stack, place, memory_bytes, computes, busy_percent: 0 })
    };
    let processes = listed.into_values().filter_map(process).collect();
    Some(DeviceLook { device: device.clone(), sharing, parts, processes, unlisted_bytes, ended })
}

/// Writes the driver's memory figure of each process into its slot, for the lists that the container sees.
fn show_memory(look: &DeviceLook, part: &PartLook) {
    let ledger = part.slice.region.ledger();
    for attached in part.slice.processes().iter() {
        let slot = attached.slot;
        let memory_bytes = look.process(attached.pid).and_then(|process| process.memory_bytes).unwrap_or(0);
        let held_bytes = view::held_bytes_of(ledger, slot.index, part.number);
        let Some(slot) = view::shown(ledger, slot.index, slot.identity, part.number) else { continue };
        store_if_changed(&slot.overhead_bytes, memory_bytes.saturating_sub(held_bytes));
    }
}

/// Writes the driver's figure of how busy each process was into its slot, for the lists that the container sees.
fn show_time(look: &DeviceLook, part: &PartLook) {
    let ledger = part.slice.region.ledger();
    for attached in part.slice.processes().iter() {
        let slot = attached.slot;
        let seen = look.process(attached.pid);
        let Some(slot) = view::shown(ledger, slot.index, slot.identity, part.number) else { continue };
        store_if_changed(&slot.used_permille, seen.map_or(0, |process| u64::from(process.busy_percent) * 10));
    }
}

/// Stores only a changed value: an unchanged page stays clean, and its cache line stays with its readers.
pub(crate) fn store_if_changed(cell: &AtomicU64, value: u64) {
    if cell.load(Ordering::Relaxed) != value {
        cell.store(value, Ordering::Relaxed);
    }
}

/// Each process once, with the sum of its entries. The sum is unknown if the driver does not give the memory of one
/// entry.
pub(super) fn each_once(processes: &[DeviceProcess]) -> BTreeMap<u32, DeviceProcess> {
    let mut by_pid: BTreeMap<u32, DeviceProcess> = BTreeMap::new();
    for process in processes {
        let nothing = DeviceProcess { pid: process.pid, memory_bytes: Some(0), computes: false };
        let whole = by_pid.entry(process.pid).or_insert(nothing);
        whole.memory_bytes = whole.memory_bytes.zip(process.memory_bytes).map(|(sum, bytes)| sum.saturating_add(bytes));
        whole.computes |= process.computes;
    }
    by_pid
}

/// How busy each process kept the device: the mean of its samples, in percent.
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
    use std::time::SystemTime;

    use aliquot_abi::ledger::{self, Identity};
    use aliquot_abi::region::{CONTEXT_NEGLIGIBLE, SlotDevice};
    use aliquot_node::Partition;
    use tempfile::TempDir;

    use super::*;
    use crate::config::AuditSettings;
    use crate::events::Events;
    use crate::inventory::SourceError;
    use crate::live::AttachedSlot;
    use crate::region::files::RegionDirs;

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

    const MIB: u64 = 1 << 20;

    /// A driver that lists these processes on each device, or that does not answer.
    struct Driver(Option<Vec<DeviceProcess>>);

    impl DeviceSource for Driver {
        fn inventory(&mut self) -> Result<Inventory, SourceError> {
            Ok(Inventory::default())
        }

        fn processes(&mut self, _: &DeviceUuid) -> Result<Vec<DeviceProcess>, SourceError> {
            self.0.clone().ok_or_else(|| SourceError("it is busy".into()))
        }

        fn utilisation(&mut self, _: &DeviceUuid, _: u64) -> Result<Vec<UtilisationSample>, SourceError> {
            Ok(Vec::new())
        }

        fn create_instance(&mut self, _: &Partition) -> Result<(), SourceError> {
            Ok(())
        }

        fn destroy_instance(&mut self, _: &Partition) -> Result<(), SourceError> {
            Ok(())
        }
    }

    /// A slice in which this process has a context.
    struct Scene {
        live: Arc<LiveSlice>,
        watch: ProcessWatch,
        _dir: TempDir,
    }

    impl Scene {
        fn new() -> Scene {
            let dir = tempfile::tempdir().unwrap();
            let mut slice = crate::checkpoint::tests::slice(1);
            slice.parts[0].device = DeviceUuid::new("GPU-00010203-0405-0607-0809-0a0b0c0d0e0f");
            let region = RegionDirs::prepare(dir.path()).unwrap().create(&slice).unwrap();
            let live = Arc::new(LiveSlice::new(&slice, region));
            let pid = std::process::id();
            let start_time = crate::procfs::start_time(pid).unwrap();
            let identity = Identity { pid, start_time, pid_namespace: 0 };
            let slot = AttachedSlot { index: 1, generation: 1, identity };
            let (command, since) = (crate::procfs::command(pid), SystemTime::now());
            live.set_processes(vec![Attached { pid, own_pid: pid, slot, command, since }]);
            let slices = Arc::new(LiveSlices::default());
            slices.put(Arc::clone(&live));
            let events = Arc::new(Events::default());
            let watch = ProcessWatch::new(slices, Arc::new(Audit::new(AuditSettings::default(), events)));
            let scene = Scene { live, watch, _dir: dir };
            scene.slot().contexts.store(1, Ordering::Relaxed);
            scene
        }

        fn slot(&self) -> &SlotDevice {
            &self.live.region.ledger().slots[1].devices[0]
        }

        /// The slice's figure of contexts after a look for which the driver says that this process uses `bytes`;
        /// `None`: it does not answer.
        fn context_bytes(&mut self, bytes: Option<u64>) -> u64 {
            self.look(bytes.map(|bytes| vec![(std::process::id(), bytes)]).as_deref());
            self.live.region.device_limits(0).context_bytes.load(Ordering::Relaxed)
        }

        /// Looks while the driver lists processes with these pids and bytes; `None`: it does not answer. Returns the
        /// slice's overhead, and whether memory of ended processes is awaited.
        fn look(&mut self, listed: Option<&[(u32, u64)]>) -> (u64, bool) {
            let process = |&(pid, bytes)| DeviceProcess { pid, memory_bytes: Some(bytes), computes: true };
            let listed = listed.map(|listed| listed.iter().map(process).collect());
            self.watch.look_at_memory(&mut Driver(listed), &Inventory::default());
            let limits = self.live.region.device_limits(0);
            (limits.memory_overhead_bytes.load(Ordering::Relaxed), self.live.awaits_memory())
        }
    }

    /// No process has this pid.
    const ENDED: u32 = u32::MAX;

    #[test]
    fn a_driver_that_is_silent_for_once_frees_no_memory() {
        let mut scene = Scene::new();
        let own = (std::process::id(), 500 * MIB);
        assert_eq!(scene.look(Some(&[own])), (500 * MIB, false));
        scene.live.keep_as_overhead(&[20 * MIB]);
        assert_eq!(scene.look(None), (520 * MIB, true));
        // It has answered, and so it counts again.
        scene.live.keep_as_overhead(&[10 * MIB]);
        assert_eq!(scene.look(None), (530 * MIB, true));
        assert_eq!(scene.look(Some(&[own])), (500 * MIB, false));
    }

    #[test]
    fn what_an_earlier_manager_kept_stays_until_it_is_free() {
        let mut scene = Scene::new();
        scene.live.inherit();
        let own = (std::process::id(), 500 * MIB);
        assert_eq!(scene.look(Some(&[own, (ENDED, 20 * MIB)])), (500 * MIB, false));
        let limits = scene.live.region.device_limits(0);
        limits.memory_overhead_bytes.store(520 * MIB, Ordering::Relaxed);
        limits.memory_settling.store(1, Ordering::Relaxed);
        assert_eq!(scene.look(Some(&[own, (ENDED, 20 * MIB)])), (520 * MIB, true));
        // Its end was missed by the manager before.
        scene.live.keep_as_overhead(&[10 * MIB]);
        assert_eq!(scene.look(Some(&[own, (ENDED, 20 * MIB), (ENDED - 1, 10 * MIB)])), (530 * MIB, true));
        assert_eq!(scene.look(Some(&[own])), (500 * MIB, false));
        // From now on this manager knows whose processes end.
        assert_eq!(scene.look(Some(&[own, (ENDED, 20 * MIB)])), (500 * MIB, false));
    }

    #[test]
    fn an_allocation_under_way_does_not_make_contexts_small() {
        let mut scene = Scene::new();
        let known_bytes = &scene.live.region.device_limits(0).context_bytes;
        known_bytes.store(500 * MIB, Ordering::Relaxed);
        let account = &scene.live.region.ledger().devices[0];
        // It is in the books, and the driver has not given it.
        ledger::reserve(account, &scene.slot().memory, 20 * MIB, u64::MAX).unwrap();
        assert_eq!(scene.context_bytes(Some(500 * MIB)), 500 * MIB);
    }

    #[test]
    fn a_driver_that_is_silent_for_once_makes_no_context_free() {
        let mut scene = Scene::new();
        assert_eq!(scene.context_bytes(None), CONTEXT_NEGLIGIBLE);
        assert_eq!(scene.context_bytes(Some(500 * MIB)), 500 * MIB);
        assert_eq!(scene.context_bytes(None), 500 * MIB);
        // A process that has allocated shows nothing, and the next context waits for a look.
        let mut scene = Scene::new();
        scene.slot().memory.store(20 * MIB, Ordering::Relaxed);
        assert_eq!(scene.context_bytes(None), CONTEXT_NEGLIGIBLE);
        assert_eq!(scene.context_bytes(Some(520 * MIB)), 0);
    }
}
