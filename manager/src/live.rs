//! A slice at work: its region, its processes, and its use so far.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::time::{Duration, Instant, SystemTime};

use aliquot_abi::ledger::Identity;
use aliquot_abi::region::{CONTEXT_NEGLIGIBLE, DeviceCounters, DeviceLimits, DeviceWaits, LEDGER_FILE};
use aliquot_node::{AuditPolicy, Consumer, QosClass};
use parking_lot::{Mutex, MutexGuard, RwLock};

use crate::devices::store_if_changed;
use crate::procfs::{self, CommandLine, Mapped};
use crate::refusals::Refusals;
use crate::region::Region;
use crate::region::files::REGION_DIR;
use crate::slices::{Owner, Part, Slice, SliceId};
use crate::time_sharing::GangStates;
use crate::usage::{History, Past};

/// How long what was known of ended processes' memory stays while the driver does not answer.
const SILENCE_MAX: Duration = Duration::from_secs(10);
/// How long a manager keeps what an earlier one knew of ended processes' memory, if the driver lists ended processes
/// that may be meant. The driver of an H100 has freed all after a few seconds.
const INHERITED_MAX: Duration = Duration::from_secs(25);

/// A process of a slice.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Attached {
    /// The pid in the manager's pid namespace.
    pub pid: u32,
    /// The pid in its own pid namespace.
    pub own_pid: u32,
    /// Its slot in the ledger.
    pub slot: AttachedSlot,
    /// Its command line, as the kernel gave it when the process attached.
    pub command: CommandLine,
    /// When the process attached to the slice.
    pub since: SystemTime,
}

/// A process's slot in the ledger, as it was verified when the process attached.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct AttachedSlot {
    /// The number of the slot.
    pub index: usize,
    /// The generation with which it was taken.
    pub generation: u32,
    /// The process that owns the slot.
    pub identity: Identity,
}

/// Damage to a region. The slice's processes get nothing more.
#[derive(Clone, Debug)]
pub(crate) struct Damage {
    /// What happened, for people to read.
    pub what: String,
    /// When it was found.
    pub since: SystemTime,
}

impl Damage {
    /// The damage, and advice what to do about it.
    #[must_use]
    pub(crate) fn problem(&self) -> String {
        format!(
            "its region is damaged: {}; its processes get no more memory and no more time: end them, remove the slice and create it again",
            self.what
        )
    }
}

/// The processes of a slice, and values derived from them that are needed many times a second.
struct Members {
    /// In the order of their pids.
    processes: Arc<[Attached]>,
    /// The slots that they use, each listed once.
    slots: Arc<[usize]>,
    /// How often a process has ended. A memory figure from before such an end is outdated after it.
    ends: u64,
    /// The parts for which the driver gives the processes' memory, as far as the last looks tell.
    told: BTreeSet<usize>,
    /// Since when the driver has not given it, for each of these parts.
    silent_since: BTreeMap<usize, Instant>,
    /// The parts of which an earlier manager knew what the driver still holds of ended processes, and since when this
    /// manager keeps that in mind.
    inherited: BTreeMap<usize, Instant>,
}

/// The figures of a slice's device memory from one look.
pub(crate) struct MemorySeen {
    /// Memory that its processes use beyond their ledger.
    pub overhead_bytes: u64,
    /// Whether ended processes still hold some of it.
    pub holds_ended: bool,
    /// Whether the driver lists ended processes on the device of which it is not known to whom they belonged.
    pub has_unplaced: bool,
    /// Memory that a context takes on the device; `None`: not known yet.
    pub context_bytes: Option<u64>,
    /// The value to write to [`DeviceLimits::rounding_seen`].
    pub rounding_seen: u64,
}

impl Members {
    fn set(&mut self, mut processes: Vec<Attached>) {
        processes.sort_by_key(|process| process.pid);
        let slots: BTreeSet<usize> = processes.iter().map(|process| process.slot.index).collect();
        self.slots = slots.into_iter().collect();
        self.processes = processes.into();
    }
}

/// A slice at work.
pub(crate) struct LiveSlice {
    /// Identifies the slice within this run of the manager.
    pub number: u64,
    /// The permanent id of the slice.
    pub id: SliceId,
    /// The name of the slice.
    pub name: String,
    /// The process with whose end the slice is removed.
    pub owner: Option<Owner>,
    users: RwLock<BTreeSet<u32>>,
    /// The policy for processes that get past the slice, if it is stricter than the node's policy.
    pub audit_policy: Option<AuditPolicy>,
    /// The slice's region, mapped.
    pub region: Region,
    /// Whether the gate stands open permanently, for each part.
    free: Vec<AtomicBool>,
    /// Device time by the driver's newest samples, in thousandths of the device's time, for each part.
    sampled_permille: Vec<AtomicU32>,
    /// Device time used up to certain moments in the past, for each part.
    pub history: Mutex<Vec<History>>,
    /// The refusals of memory that have been reported.
    pub refusals: Mutex<Refusals>,
    /// The use in the last hour, for each part.
    pub past: Mutex<Vec<Past>>,
    /// Its state in the time sharing of each device.
    pub gang_states: GangStates,
    parts: RwLock<Vec<Part>>,
    qos_class: RwLock<QosClass>,
    /// The highest memory limit so far, for each part.
    memory_limits_max_bytes: Vec<AtomicU64>,
    members: Mutex<Members>,
    consumers: RwLock<Arc<BTreeSet<Consumer>>>,
    is_implausible: AtomicBool,
    damage: Mutex<Option<Damage>>,
    /// Its region is removed on purpose, or about to be.
    is_leaving: Mutex<bool>,
}

impl LiveSlice {
    /// A slice with its region, without processes.
    #[must_use]
    pub(crate) fn new(slice: &Slice, region: Region) -> LiveSlice {
        static NEXT: AtomicU64 = AtomicU64::new(1);
        LiveSlice {
            number: NEXT.fetch_add(1, Ordering::Relaxed),
            id: slice.id,
            name: slice.name.clone(),
            owner: slice.owner,
            users: RwLock::new(slice.users.clone()),
            audit_policy: slice.audit_policy,
            refusals: Mutex::new(Refusals::from_now_on(&region)),
            region,
            free: slice.parts.iter().map(|_| AtomicBool::new(false)).collect(),
            sampled_permille: slice.parts.iter().map(|_| AtomicU32::new(0)).collect(),
            history: Mutex::new(slice.parts.iter().map(|_| History::default()).collect()),
            past: Mutex::new(slice.parts.iter().map(|_| Past::default()).collect()),
            gang_states: GangStates::new(slice.parts.len()),
            parts: RwLock::new(slice.parts.clone()),
            qos_class: RwLock::new(slice.qos_class),
            memory_limits_max_bytes: slice.parts.iter().map(|part| AtomicU64::new(part.memory_limit_bytes)).collect(),
            members: Mutex::new(Members {
                processes: Arc::new([]),
                slots: Arc::new([]),
                ends: 0,
                told: BTreeSet::new(),
                silent_since: BTreeMap::new(),
                inherited: BTreeMap::new(),
            }),
            consumers: RwLock::default(),
            is_implausible: AtomicBool::new(false),
            damage: Mutex::new(None),
            is_leaving: Mutex::new(false),
        }
    }

    /// Notes that an earlier manager has had this slice: processes of it may have ended of which the driver still holds
    /// memory, and this manager has never seen them.
    pub(crate) fn inherit(&self) {
        let mut members = self.members.lock();
        let parts = 0..self.region.device_count();
        members.told = parts.clone().collect();
        members.inherited = parts.map(|part| (part, Instant::now())).collect();
    }

    /// Takes over what contexts take on the devices that the slice shares with `other`, as far as it does not know it.
    /// Otherwise contexts that several processes make before the next look would not be charged.
    fn learn_contexts_of(&self, other: &LiveSlice) {
        let others = other.parts();
        for (number, part) in self.parts().iter().enumerate() {
            let Some(same) = others.iter().position(|other| other.device == part.device) else { continue };
            let known_bytes = other.region.device_limits(same).context_bytes.load(Ordering::Relaxed);
            // 0 means unknown.
            replace(&self.region.device_limits(number).context_bytes, 0, known_bytes);
        }
    }

    /// Counters of the slice's use of part `part`, which must exist. Each counter is written by one thread.
    #[must_use]
    pub(crate) fn counters(&self, part: usize) -> &DeviceCounters {
        self.region.counters(part)
    }

    /// Its waits for leases of part `part`, which must exist. Written by one thread.
    #[must_use]
    pub(crate) fn waits(&self, part: usize) -> &DeviceWaits {
        self.region.waits(part)
    }

    /// Total device time that the slice has used of part `part`.
    #[must_use]
    pub(crate) fn core_used_ns(&self, part: usize) -> u64 {
        let counters = self.counters(part);
        counters.charged_ns.load(Ordering::Relaxed).saturating_add(counters.free_ns.load(Ordering::Relaxed))
    }

    /// Whether the gate of part `part` stands open permanently, so that the arbiter does not charge it.
    #[must_use]
    pub(crate) fn is_free(&self, part: usize) -> bool {
        self.free.get(part).is_some_and(|free| free.load(Ordering::Relaxed))
    }

    /// Notes whether the gate of part `part` stands open permanently.
    pub(crate) fn set_free(&self, part: usize, is_free: bool) {
        if let Some(free) = self.free.get(part) {
            free.store(is_free, Ordering::Relaxed);
        }
    }

    /// Its use of part `part` by the driver's newest samples, in thousandths of the device's time.
    #[must_use]
    pub(crate) fn sampled_permille(&self, part: usize) -> u32 {
        self.sampled_permille.get(part).map_or(0, |permille| permille.load(Ordering::Relaxed))
    }

    /// Notes the driver's samples of part `part`.
    pub(crate) fn set_sampled_permille(&self, part: usize, permille: u32) {
        if let Some(sampled) = self.sampled_permille.get(part) {
            sampled.store(permille, Ordering::Relaxed);
        }
    }

    /// Its parts as they are now.
    #[must_use]
    pub(crate) fn parts(&self) -> Vec<Part> {
        self.parts.read().clone()
    }

    /// Its priority class as it is now.
    #[must_use]
    pub(crate) fn qos_class(&self) -> QosClass {
        *self.qos_class.read()
    }

    /// Takes over the values of a resized slice.
    pub(crate) fn resize(&self, slice: &Slice) {
        self.region.write_limits(slice);
        for (max_bytes, part) in self.memory_limits_max_bytes.iter().zip(&slice.parts) {
            max_bytes.fetch_max(part.memory_limit_bytes, Ordering::Relaxed);
        }
        self.parts.write().clone_from(&slice.parts);
        *self.qos_class.write() = slice.qos_class;
        self.users.write().clone_from(&slice.users);
    }

    /// Users of this node, besides the manager's own, who may run programs in it outside of containers.
    #[must_use]
    pub(crate) fn users(&self) -> BTreeSet<u32> {
        self.users.read().clone()
    }

    /// The highest memory limit of part `part` since the slice was made or taken over.
    #[must_use]
    pub(crate) fn memory_limit_max_bytes(&self, part: usize) -> u64 {
        self.memory_limits_max_bytes.get(part).map_or(0, |bytes| bytes.load(Ordering::Relaxed))
    }

    /// The processes in it now.
    #[must_use]
    pub(crate) fn processes(&self) -> Arc<[Attached]> {
        Arc::clone(&self.members.lock().processes)
    }

    /// The slot of the process `pid`, if it is attached now.
    #[must_use]
    pub(crate) fn slot_of(&self, pid: u32) -> Option<AttachedSlot> {
        let processes = self.processes();
        let at = processes.binary_search_by_key(&pid, |process| process.pid).ok()?;
        processes.get(at).map(|process| process.slot)
    }

    /// The slots that its processes use now, each once.
    pub(crate) fn slots(&self) -> impl Iterator<Item = usize> + use<> {
        let slots = Arc::clone(&self.members.lock().slots);
        (0..slots.len()).filter_map(move |at| slots.get(at).copied())
    }

    /// Sets its processes. When the last one has ended, the overhead of each part for which the driver does not give
    /// the processes' memory becomes 0 at once: no later look would do it.
    pub(crate) fn set_processes(&self, processes: Vec<Attached>) {
        let mut members = self.members.lock();
        if processes.is_empty() {
            for part in (0..self.region.device_count()).filter(|part| !members.told.contains(part)) {
                self.region.device_limits(part).memory_overhead_bytes.store(0, Ordering::Relaxed);
            }
        }
        members.set(processes);
    }

    /// How often one of its processes has ended. Must be read before the driver is asked.
    #[must_use]
    pub(crate) fn ends(&self) -> u64 {
        self.members.lock().ends
    }

    /// Keeps an ended process's bytes of each part as overhead; call it before the process's slot is given back. The
    /// driver takes its time to free them (half a second for a large process, many seconds for one with much
    /// page-locked memory), so they stay charged until a look has shown that they are free. Otherwise the manager would
    /// grant them to a neighbour, and the device would then refuse them.
    pub(crate) fn keep_as_overhead(&self, held_bytes: &[u64]) {
        let mut members = self.members.lock();
        members.ends += 1;
        for (part, &bytes) in held_bytes.iter().enumerate().filter(|(part, _)| members.told.contains(part)) {
            let DeviceLimits { memory_overhead_bytes: overhead, memory_settling, .. } = self.region.device_limits(part);
            // Before the slot is given back: a process that is about to be refused reads the slots first.
            memory_settling.store(1, Ordering::Release);
            overhead.store(overhead.load(Ordering::Relaxed).saturating_add(bytes), Ordering::Relaxed);
        }
    }

    /// Whether the driver may still hold memory of processes that have ended: [`Self::keep_as_overhead`].
    #[must_use]
    pub(crate) fn awaits_memory(&self) -> bool {
        let mut parts = (0..self.region.device_count()).map(|part| self.region.device_limits(part));
        parts.any(|limits| limits.memory_settling.load(Ordering::Acquire) != 0)
    }

    /// Begins a look at the memory of part `part`, which must exist. The driver is asked after this call. Returns
    /// [`Self::ends`].
    pub(crate) fn begin_memory_look(&self, part: usize) -> u64 {
        let looks = &self.region.device_limits(part).memory_looks;
        // Made odd whatever the value was: a manager that was killed may have left it odd.
        looks.store(looks.load(Ordering::Relaxed).wrapping_add(1) | 1, Ordering::Release);
        self.ends()
    }

    /// Ends the look that began when [`Self::ends`] was `ends`. `seen` is the processes' use of part `part`, which must
    /// exist, beyond their ledger; `None` if the driver does not say. If a process has ended since, the figures are
    /// outdated and not stored.
    pub(crate) fn end_memory_look(&self, part: usize, ends: u64, seen: Option<MemorySeen>) {
        let mut members = self.members.lock();
        let limits = self.region.device_limits(part);
        let DeviceLimits { memory_overhead_bytes: overhead, memory_settling, context_bytes, .. } = limits;
        match seen {
            Some(MemorySeen {
                overhead_bytes,
                holds_ended,
                has_unplaced,
                context_bytes: seen_bytes,
                rounding_seen,
            }) => {
                members.told.insert(part);
                members.silent_since.remove(&part);
                if members.ends == ends {
                    // What an earlier manager has noted stays until the driver lists nobody whom it may belong to.
                    let inherits = has_unplaced
                        && members.inherited.get(&part).is_some_and(|since| since.elapsed() < INHERITED_MAX);
                    if !inherits {
                        members.inherited.remove(&part);
                    }
                    let is_kept = inherits && memory_settling.load(Ordering::Acquire) != 0;
                    let kept_bytes = if is_kept { overhead.load(Ordering::Relaxed) } else { 0 };
                    store_if_changed(overhead, overhead_bytes.max(kept_bytes));
                    memory_settling.store(u32::from(holds_ended || is_kept), Ordering::Release);
                    // Stored after the overhead, which includes it: a process reads the two in the opposite order, and
                    // so misses nothing.
                    limits.rounding_seen.store(rounding_seen, Ordering::Release);
                }
                match seen_bytes {
                    Some(0) => store_if_changed(context_bytes, CONTEXT_NEGLIGIBLE),
                    Some(bytes) => store_if_changed(context_bytes, bytes),
                    // The driver did not answer before, or there was another manager.
                    None => replace(context_bytes, CONTEXT_NEGLIGIBLE, 0),
                }
            }
            None => {
                // What is known stays: the driver may be silent only for once.
                let is_told = members.told.contains(&part);
                let since = *members.silent_since.entry(part).or_insert_with(Instant::now);
                if !is_told || since.elapsed() >= SILENCE_MAX {
                    members.told.remove(&part);
                    if members.processes.is_empty() {
                        store_if_changed(overhead, 0);
                    }
                    memory_settling.store(0, Ordering::Release);
                }
                replace(context_bytes, 0, CONTEXT_NEGLIGIBLE);
                // No look shows the rounding, so no process must wait for one.
                store_if_changed(&limits.rounding_seen, 0);
            }
        }
        let looks = &limits.memory_looks;
        looks.store(looks.load(Ordering::Relaxed).wrapping_add(1) & !1, Ordering::Release);
    }

    /// The containers of pods that run in it, as far as they are known.
    #[must_use]
    pub(crate) fn consumers(&self) -> Arc<BTreeSet<Consumer>> {
        Arc::clone(&self.consumers.read())
    }

    /// Sets the containers of pods that run in it.
    pub(crate) fn set_consumers(&self, consumers: BTreeSet<Consumer>) {
        *self.consumers.write() = Arc::new(consumers);
    }

    /// Whether the process `pid` has the slice's ledger mapped; the shim maps it when a program begins to use the
    /// driver.
    #[must_use]
    pub(crate) fn maps_ledger(&self, pid: u32) -> Mapped {
        procfs::maps(pid, &format!("/{}/{REGION_DIR}/{LEDGER_FILE}", self.id))
    }

    /// Held while a thread checks whether the region exists. Set to true before the region is removed.
    pub(crate) fn is_leaving(&self) -> MutexGuard<'_, bool> {
        self.is_leaving.lock()
    }

    /// Notes whether words of the ledger are implausible now. Returns whether they were not before.
    pub(crate) fn note_implausible(&self, is: bool) -> bool {
        !self.is_implausible.swap(is, Ordering::Relaxed) && is
    }

    /// Notes damage to the region. Returns whether none was known before; the first damage stays noted. Damage is never
    /// forgotten, even if the tenant makes a file look right again: what was read in between may be wrong.
    pub(crate) fn note_damage(&self, what: &str) -> bool {
        let mut known = self.damage.lock();
        let is_new = known.is_none();
        known.get_or_insert_with(|| Damage { what: what.to_owned(), since: SystemTime::now() });
        is_new
    }

    /// The damage to the region, if there is any.
    #[must_use]
    pub(crate) fn damage(&self) -> Option<Damage> {
        self.damage.lock().clone()
    }
}

/// Stores `after` where `before` is.
fn replace(cell: &AtomicU64, before: u64, after: u64) {
    let _ = cell.compare_exchange(before, after, Ordering::Relaxed, Ordering::Relaxed);
}

/// All slices at work.
#[derive(Default)]
pub(crate) struct LiveSlices {
    by_name: RwLock<BTreeMap<String, Arc<LiveSlice>>>,
}

impl LiveSlices {
    /// The slice of that name.
    #[must_use]
    pub(crate) fn get(&self, name: &str) -> Option<Arc<LiveSlice>> {
        self.by_name.read().get(name).cloned()
    }

    /// All slices, in the order of their names.
    #[must_use]
    pub(crate) fn all(&self) -> Vec<Arc<LiveSlice>> {
        self.by_name.read().values().cloned().collect()
    }

    /// Adds a slice, so that the threads find it.
    pub(crate) fn put(&self, slice: Arc<LiveSlice>) {
        let mut by_name = self.by_name.write();
        by_name.values().for_each(|other| slice.learn_contexts_of(other));
        by_name.insert(slice.name.clone(), slice);
    }

    /// Removes the slice of that name, and returns it.
    pub(crate) fn take(&self, name: &str) -> Option<Arc<LiveSlice>> {
        self.by_name.write().remove(name)
    }
}
