//! A slice at work: its region, the processes in it, and what they are charged.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::time::SystemTime;

use aliquot_abi::ledger::Identity;
use aliquot_abi::region::{CONTEXT_NEGLIGIBLE, DeviceCounters, DeviceLimits, DeviceWaits, LEDGER_FILE};
use aliquot_kubernetes::node::Consumer;
use parking_lot::{Mutex, MutexGuard, RwLock};

use crate::config::AuditPolicy;
use crate::devices::store_if_changed;
use crate::procfs::{self, CommandLine, Mapped};
use crate::refusals::Refusals;
use crate::region::Region;
use crate::region::files::REGION_DIR;
use crate::slices::{Owner, Part, PriorityClass, Slice, SliceId};
use crate::time_sharing::Turns;
use crate::usage::{History, Past};

/// A process of a slice.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Attached {
    /// In the manager's pid namespace.
    pub pid: u32,
    /// In its own pid namespace.
    pub own_pid: u32,
    /// Its slot in the ledger.
    pub slot: AttachedSlot,
    /// What it was started as, by what the kernel said when it attached.
    pub command: CommandLine,
    /// When it attached.
    pub since: SystemTime,
}

/// A process's slot in the ledger, as it was verified when the process attached.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct AttachedSlot {
    /// Its number.
    pub index: usize,
    /// With which generation it was taken.
    pub generation: u32,
    /// Whose it is.
    pub identity: Identity,
}

/// What has happened to a region. Its processes get nothing more.
#[derive(Clone, Debug)]
pub(crate) struct Damage {
    /// For people to read.
    pub what: String,
    /// When it was found.
    pub since: SystemTime,
}

impl Damage {
    /// The same with what to do about it.
    #[must_use]
    pub(crate) fn problem(&self) -> String {
        format!(
            "its region is damaged: {}; its processes get no memory and no time any more: end them, remove the slice and make it anew",
            self.what
        )
    }
}

/// The processes of a slice, and what is asked of them many times a second.
struct Members {
    processes: Arc<[Attached]>,
    /// The slots that they use, each once.
    slots: Arc<[usize]>,
    /// How often a process has ended. What was seen of memory before such an end is not true after it.
    ends: u64,
    /// The parts of which the driver told at the last look what processes use.
    told: BTreeSet<usize>,
}

/// What a look has shown of the memory that a slice uses of a device.
pub(crate) struct MemorySeen {
    /// What its processes use beyond their ledger.
    pub overhead_bytes: u64,
    /// Whether processes that have ended hold some of it.
    pub holds_ended: bool,
    /// What contexts take on the device; `None`: not known yet.
    pub context_bytes: Option<u64>,
}

impl Members {
    fn set(&mut self, processes: Vec<Attached>) {
        let slots: BTreeSet<usize> = processes.iter().map(|process| process.slot.index).collect();
        self.slots = slots.into_iter().collect();
        self.processes = processes.into();
    }
}

/// A slice at work.
pub(crate) struct LiveSlice {
    /// Names it within this run of the manager.
    pub number: u64,
    /// Its id.
    pub id: SliceId,
    /// Its name.
    pub name: String,
    /// Whose end is its end.
    pub owner: Option<Owner>,
    users: RwLock<BTreeSet<u32>>,
    /// What is done with processes that get past it; `None`: the node's policy.
    pub audit_policy: Option<AuditPolicy>,
    /// Its region.
    pub region: Region,
    /// Whose gate stands open for good, part by part.
    free: Vec<AtomicBool>,
    /// Device time by the driver's newest samples, in thousandths of the device's, part by part.
    sampled_permille: Vec<AtomicU32>,
    /// Device time that it had used at times past, part by part.
    pub history: Mutex<Vec<History>>,
    /// What has been told of memory that it was refused.
    pub refusals: Mutex<Refusals>,
    /// What it has used in the last hour, part by part.
    pub past: Mutex<Vec<Past>>,
    /// How it stands on each of its devices.
    pub turns: Turns,
    parts: RwLock<Vec<Part>>,
    priority_class: RwLock<PriorityClass>,
    /// The greatest memory limits that it has had, part by part.
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
            turns: Turns::new(slice.parts.len()),
            parts: RwLock::new(slice.parts.clone()),
            priority_class: RwLock::new(slice.priority_class),
            memory_limits_max_bytes: slice.parts.iter().map(|part| AtomicU64::new(part.memory_limit_bytes)).collect(),
            members: Mutex::new(Members {
                processes: Arc::new([]),
                slots: Arc::new([]),
                ends: 0,
                told: BTreeSet::new(),
            }),
            consumers: RwLock::default(),
            is_implausible: AtomicBool::new(false),
            damage: Mutex::new(None),
            is_leaving: Mutex::new(false),
        }
    }

    /// What it has used of its part number `part`, which must exist. Each counter is written by one thread.
    #[must_use]
    pub(crate) fn counters(&self, part: usize) -> &DeviceCounters {
        self.region.counters(part)
    }

    /// How it has waited for leases of its part number `part`, which must exist. Written by one thread.
    #[must_use]
    pub(crate) fn waits(&self, part: usize) -> &DeviceWaits {
        self.region.waits(part)
    }

    /// Device time that it has used of its part number `part` in all.
    #[must_use]
    pub(crate) fn core_used_ns(&self, part: usize) -> u64 {
        let counters = self.counters(part);
        counters.charged_ns.load(Ordering::Relaxed).saturating_add(counters.free_ns.load(Ordering::Relaxed))
    }

    /// Whether the gate of its part number `part` stands open for good, and nobody charges it.
    #[must_use]
    pub(crate) fn is_free(&self, part: usize) -> bool {
        self.free.get(part).is_some_and(|free| free.load(Ordering::Relaxed))
    }

    /// Notes whether the gate of its part number `part` stands open for good.
    pub(crate) fn set_free(&self, part: usize, is_free: bool) {
        if let Some(free) = self.free.get(part) {
            free.store(is_free, Ordering::Relaxed);
        }
    }

    /// Device time that it uses of its part number `part` by the driver's newest samples, in thousandths of the
    /// device's.
    #[must_use]
    pub(crate) fn sampled_permille(&self, part: usize) -> u32 {
        self.sampled_permille.get(part).map_or(0, |permille| permille.load(Ordering::Relaxed))
    }

    /// Notes what the driver's samples say of its part number `part`.
    pub(crate) fn set_sampled_permille(&self, part: usize, permille: u32) {
        if let Some(sampled) = self.sampled_permille.get(part) {
            sampled.store(permille, Ordering::Relaxed);
        }
    }

    /// What it has of each device now.
    #[must_use]
    pub(crate) fn parts(&self) -> Vec<Part> {
        self.parts.read().clone()
    }

    /// Which slice goes first, where several want a device.
    #[must_use]
    pub(crate) fn priority_class(&self) -> PriorityClass {
        *self.priority_class.read()
    }

    /// Takes up a resized slice.
    pub(crate) fn resize(&self, slice: &Slice) {
        self.region.write_limits(slice);
        for (max_bytes, part) in self.memory_limits_max_bytes.iter().zip(&slice.parts) {
            max_bytes.fetch_max(part.memory_limit_bytes, Ordering::Relaxed);
        }
        self.parts.write().clone_from(&slice.parts);
        *self.priority_class.write() = slice.priority_class;
        self.users.write().clone_from(&slice.users);
    }

    /// Users of this node, beside the manager's own, who may run programs in it outside of containers.
    #[must_use]
    pub(crate) fn users(&self) -> BTreeSet<u32> {
        self.users.read().clone()
    }

    /// The greatest memory limit that its part number `part` has had since it was made or taken over.
    #[must_use]
    pub(crate) fn memory_limit_max_bytes(&self, part: usize) -> u64 {
        self.memory_limits_max_bytes.get(part).map_or(0, |bytes| bytes.load(Ordering::Relaxed))
    }

    /// The processes in it now.
    #[must_use]
    pub(crate) fn processes(&self) -> Arc<[Attached]> {
        Arc::clone(&self.members.lock().processes)
    }

    /// The slots that its processes use now, each once.
    pub(crate) fn slots(&self) -> impl Iterator<Item = usize> + use<> {
        let slots = Arc::clone(&self.members.lock().slots);
        (0..slots.len()).filter_map(move |at| slots.get(at).copied())
    }

    /// Says which processes are in it. With the last of them, what it used beyond its ledger is free again at once
    /// where the driver does not tell what processes use: nobody would say so later.
    pub(crate) fn set_processes(&self, processes: Vec<Attached>) {
        let mut members = self.members.lock();
        if processes.is_empty() {
            for part in (0..self.region.device_count()).filter(|part| !members.told.contains(part)) {
                self.region.device_limits(part).memory_overhead_bytes.store(0, Ordering::Relaxed);
            }
        }
        members.set(processes);
    }

    /// How often one of its processes has ended: to be asked for before the driver is.
    #[must_use]
    pub(crate) fn ends(&self) -> u64 {
        self.members.lock().ends
    }

    /// A process has ended, and its slot, which says that it held so much of each part, is about to be given back. The
    /// driver takes its time (half a second for a large process, many seconds for one with much page-locked memory):
    /// the bytes are nobody's to take before a look has shown that they are free. Otherwise a neighbour would be
    /// granted them and then be refused by the device.
    pub(crate) fn keep_as_overhead(&self, held_bytes: &[u64]) {
        let mut members = self.members.lock();
        members.ends += 1;
        for (part, &bytes) in held_bytes.iter().enumerate().filter(|(part, _)| members.told.contains(part)) {
            let DeviceLimits { memory_overhead_bytes: overhead, memory_settling, .. } = self.region.device_limits(part);
            // Before the slot is given back: who is about to be refused looks at the slots first.
            memory_settling.store(1, Ordering::Release);
            overhead.store(overhead.load(Ordering::Relaxed).saturating_add(bytes), Ordering::Relaxed);
        }
    }

    /// A look at the memory of its part number `part`, which must exist, begins: the driver is asked after this call.
    /// Returns [`Self::ends`].
    pub(crate) fn begin_memory_look(&self, part: usize) -> u64 {
        let looks = &self.region.device_limits(part).memory_looks;
        // Odd in any case: a manager that was killed may have left it so.
        looks.store(looks.load(Ordering::Relaxed).wrapping_add(1) | 1, Ordering::Release);
        self.ends()
    }

    /// The look that began when [`Self::ends`] was `ends` has shown what its processes use of its part number `part`,
    /// which must exist, beyond their ledger; `None`: the driver does not tell. What was seen before a process ended is
    /// not true any more.
    pub(crate) fn end_memory_look(&self, part: usize, ends: u64, seen: Option<MemorySeen>) {
        let mut members = self.members.lock();
        let DeviceLimits { memory_overhead_bytes: overhead, memory_settling, context_bytes, memory_looks, .. } =
            self.region.device_limits(part);
        match seen {
            Some(MemorySeen { overhead_bytes, holds_ended, context_bytes: seen_bytes }) => {
                members.told.insert(part);
                if members.ends == ends {
                    store_if_changed(overhead, overhead_bytes);
                    memory_settling.store(u32::from(holds_ended), Ordering::Release);
                }
                match seen_bytes {
                    Some(0) => store_if_changed(context_bytes, CONTEXT_NEGLIGIBLE),
                    Some(bytes) => store_if_changed(context_bytes, bytes),
                    None => {}
                }
            }
            None => {
                members.told.remove(&part);
                if members.processes.is_empty() {
                    store_if_changed(overhead, 0);
                }
                memory_settling.store(0, Ordering::Release);
                store_if_changed(context_bytes, CONTEXT_NEGLIGIBLE);
            }
        }
        memory_looks.store(memory_looks.load(Ordering::Relaxed).wrapping_add(1) & !1, Ordering::Release);
    }

    /// The containers of pods that run in it, as far as somebody said.
    #[must_use]
    pub(crate) fn consumers(&self) -> Arc<BTreeSet<Consumer>> {
        Arc::clone(&self.consumers.read())
    }

    /// Says which containers of pods run in it.
    pub(crate) fn set_consumers(&self, consumers: BTreeSet<Consumer>) {
        *self.consumers.write() = Arc::new(consumers);
    }

    /// Whether the process `pid` has the slice's ledger mapped, as the shim does when a program begins to use the
    /// driver.
    #[must_use]
    pub(crate) fn maps_ledger(&self, pid: u32) -> Mapped {
        procfs::maps(pid, &format!("/{}/{REGION_DIR}/{LEDGER_FILE}", self.id))
    }

    /// Held while somebody looks whether its region is there, and set before that is removed.
    pub(crate) fn is_leaving(&self) -> MutexGuard<'_, bool> {
        self.is_leaving.lock()
    }

    /// Notes whether words of the ledger are implausible now. Returns whether they have just come to be.
    pub(crate) fn note_implausible(&self, is: bool) -> bool {
        !self.is_implausible.swap(is, Ordering::Relaxed) && is
    }

    /// Notes what has happened to the region. Returns whether nothing was known before: what was found first stays.
    /// Damage is not forgotten, even if the tenant makes a file look right again: what was read in between is not known
    /// to be true.
    pub(crate) fn note_damage(&self, what: &str) -> bool {
        let mut known = self.damage.lock();
        let is_new = known.is_none();
        known.get_or_insert_with(|| Damage { what: what.to_owned(), since: SystemTime::now() });
        is_new
    }

    /// What has happened to the region, if it is damaged.
    #[must_use]
    pub(crate) fn damage(&self) -> Option<Damage> {
        self.damage.lock().clone()
    }
}

/// All slices at work, by name.
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

    /// All of them, by name.
    #[must_use]
    pub(crate) fn all(&self) -> Vec<Arc<LiveSlice>> {
        self.by_name.read().values().cloned().collect()
    }

    /// Takes one in.
    pub(crate) fn put(&self, slice: Arc<LiveSlice>) {
        self.by_name.write().insert(slice.name.clone(), slice);
    }

    /// Takes one out.
    pub(crate) fn take(&self, name: &str) -> Option<Arc<LiveSlice>> {
        self.by_name.write().remove(name)
    }
}
