//! This process's attachment to its container's region.
//!
//! All that belongs to one process lies in one page-aligned block that the kernel wipes in a forked child: a child
//! finds it off, and attaches for itself, with a slot of its own, when it first uses CUDA. A process that never does
//! never gets here. So a fork is noticed without a handler, and without a system call in each hook.

use crate::clock;
use crate::gate::{self, Shard};
use crate::graph_memory::GraphMemory;
use crate::hooks::real;
use crate::markers::{Flight, MarkerPage};
use crate::polling::Polls;
use crate::pools::Pools;
use crate::references::References;
use crate::region::{self, Region, Unattached};
use crate::sys::{self, Access, File};
use aliquot_abi::cuda::{CU_STREAM_LEGACY, CU_STREAM_PER_THREAD, CUcontext, CUdevice, CUresult, CUstream, CUuuid};
use aliquot_abi::ledger::{self, Identity};
use aliquot_abi::region::{
    Account, AttachMessage, DEVICES_MAX, DeviceLimits, FLAG_DISABLED, FLAG_EVENTS, Ledger, Limits, NO_SLOT, Slot,
    SlotDevice, markers_per_device,
};
use core::ffi::CStr;
use core::sync::atomic::{AtomicPtr, AtomicU32, AtomicU64, AtomicUsize, Ordering};

/// Devices that a process can see.
const ORDINALS_MAX: usize = 64;
/// Threads that launch at once share these: see [`Shard`].
pub(crate) const SHARDS: usize = 128;

/// A process waits so long for a slot when it attaches. After that it is refused what it asks for while there is none.
const SLOT_WAIT_NS_MAX: u64 = 5_000_000_000;
/// Between two looks for one.
const SLOT_INTERVAL_NS: u64 = 50_000_000;

const OFF: u32 = 0;
const ATTACHING: u32 = 1;
const ATTACHED: u32 = 2;

/// A process's own state; all zero is the state "off".
#[repr(C, align(4096))]
pub(crate) struct Process {
    /// The limits of the only device that the process sees; null unless there is only one, and it is part of the slice.
    only: AtomicPtr<DeviceLimits>,
    /// Index of that part.
    only_index: AtomicU32,
    state: AtomicU32,
    /// The thread that attaches, or did so: its thread pointer.
    attaching: AtomicUsize,
    /// Number of devices that the process sees.
    ordinals: AtomicU32,
    limits: AtomicPtr<Limits>,
    ledger: AtomicPtr<Ledger>,
    slot: AtomicPtr<Slot>,
    /// [`NO_SLOT`]: there was none.
    slot_index: AtomicU32,
    slot_generation: AtomicU32,
    /// Not zero while a thread looks for a slot.
    seeks_slot: AtomicU32,
    /// For each device that the process sees, the index of its part in the region plus one; 0: no part.
    parts: [AtomicU32; ORDINALS_MAX],
    /// The known references to each of those devices' primary contexts.
    primary_references: [References; ORDINALS_MAX],
    marker_page: MarkerPage,
    /// Rings that the manager was not to be reached with, since it last was.
    unheard: AtomicU32,
    /// Threads that put markers into streams that are not those of a call of theirs.
    marking: AtomicU32,
    /// Not zero: some thread may have made launches that no marker stands for.
    unmarked: AtomicU32,
    polls: Polls,
    flights: [Flight; DEVICES_MAX],
    pub(crate) pools: Pools,
    pub(crate) graph_memory: GraphMemory,
    shards: [[Shard; SHARDS]; DEVICES_MAX],
    /// What stands for the slot while there is none. Nothing is ever reserved in it.
    no_slot: Slot,
}

static PROCESS: AtomicPtr<Process> = AtomicPtr::new(core::ptr::null_mut());

/// One part of the slice as one process sees it.
#[derive(Clone, Copy)]
pub(crate) struct Part {
    pub(crate) process: &'static Process,
    pub(crate) index: usize,
    pub(crate) limits: &'static DeviceLimits,
}

impl Process {
    /// This process's attachment, if it can be made: for calls that are refused by nothing.
    #[inline]
    pub(crate) fn attached() -> Option<&'static Process> {
        #[cold]
        #[inline(never)]
        fn attach() -> Option<&'static Process> {
            Process::attach().ok()
        }
        match Process::if_attached() {
            None => attach(),
            some => some,
        }
    }

    /// This process's attachment, made at the first call after the driver was initialised; else what becomes of the
    /// call.
    #[inline]
    pub(crate) fn for_call() -> Result<&'static Process, Unattached> {
        Process::if_attached().map_or_else(Process::attach, Ok)
    }

    /// This process's attachment, if it has been made. It is two loads, and a wiped block reads as `None`.
    #[inline]
    pub(crate) fn if_attached() -> Option<&'static Process> {
        // SAFETY: what is stored here is mapped for ever.
        let process = unsafe { PROCESS.load(Ordering::Acquire).as_ref() }?;
        // Pairs with the store at the end of `attach`.
        (process.state.load(Ordering::Acquire) == ATTACHED).then_some(process)
    }

    /// The attachment of a process that sees one device, and the limits of that device. `None` says nothing.
    ///
    /// Launches begin here: it is two loads, and a wiped block reads as null.
    #[inline]
    pub(crate) fn with_one_device() -> Option<(&'static Process, &'static DeviceLimits)> {
        // SAFETY: what is stored here is mapped for ever.
        let process = unsafe { PROCESS.load(Ordering::Acquire).as_ref() }?;
        // SAFETY: as above. Pairs with the store in `attach`: the rest of the block is complete.
        let limits = unsafe { process.only.load(Ordering::Acquire).as_ref() }?;
        Some((process, limits))
    }

    /// Shard number `number` of the only device.
    #[inline]
    pub(crate) fn only_shard(&self, number: usize) -> Option<&Shard> {
        self.shards.get(self.only_index.load(Ordering::Relaxed) as usize)?.get(number)
    }

    #[cold]
    fn attach() -> Result<&'static Process, Unattached> {
        let region = Region::get()?;
        let process = Process::block()?;
        loop {
            match process.state.compare_exchange(OFF, ATTACHING, Ordering::Acquire, Ordering::Acquire) {
                Ok(_) => break,
                Err(ATTACHED) => return Ok(process),
                // The driver calls back: what a callback does meanwhile goes to the driver as it is.
                Err(_) if process.attaching.load(Ordering::Relaxed) == sys::thread_pointer() => {
                    return Err(Unattached::Free);
                }
                Err(_) => sys::yield_now(),
            }
        }
        process.attaching.store(sys::thread_pointer(), Ordering::Relaxed);
        let done = process.find_parts(region.limits).is_some();
        if done {
            clock::learn_offset();
            process.take_slot(region);
        }
        process.state.store(if done { ATTACHED } else { OFF }, Ordering::Release);
        // The driver is not initialised.
        done.then_some(process).ok_or(Unattached::Free)
    }

    /// The block, made at the first call.
    fn block() -> Result<&'static Process, Unattached> {
        const BYTES: usize = size_of::<Process>();
        let mut block = PROCESS.load(Ordering::Acquire);
        if block.is_null() {
            let fresh = sys::map_anonymous(BYTES).map_err(|_| Unattached::Refused)?;
            // SAFETY: the mapping is new; zeros in a child are what this is for.
            if unsafe { sys::wipe_on_fork(fresh, BYTES) }.is_err() {
                // A kernel before 4.14: a child could not be told from its parent, and both would use one slot.
                return Err(region::give_up(
                    Unattached::Free,
                    b"aliquot: the kernel lacks MADV_WIPEONFORK: the GPU is not limited in this process\n",
                ));
            }
            block = match PROCESS.compare_exchange(
                core::ptr::null_mut(),
                fresh.cast(),
                Ordering::AcqRel,
                Ordering::Acquire,
            ) {
                Ok(_) => fresh.cast(),
                Err(first) => {
                    // SAFETY: nobody else knows this mapping.
                    unsafe { sys::unmap(fresh, BYTES) };
                    first
                }
            };
        }
        // SAFETY: mapped for ever, page-aligned, and valid whatever its bytes are.
        unsafe { block.as_ref() }.ok_or(Unattached::Refused)
    }

    /// Finds out which of the devices that the process sees is which part of the slice.
    fn find_parts(&self, limits: &'static Limits) -> Option<()> {
        let mut count = 0;
        let get_count = real!(cuDeviceGetCount)?;
        // SAFETY: the pointer is valid.
        if !unsafe { get_count(&raw mut count) }.is_ok() {
            return None;
        }
        let known = limits.devices.iter().take(limits.device_count.load(Ordering::Relaxed) as usize);
        for (ordinal, part) in (0..count).zip(&self.parts) {
            let uuid = uuid(ordinal);
            let found = uuid.and_then(|uuid| known.clone().position(|device| device.uuid == uuid.bytes));
            part.store(found.map_or(0, |index| index as u32 + 1), Ordering::Relaxed);
        }
        self.ordinals.store(count as u32, Ordering::Relaxed);
        self.limits.store(core::ptr::from_ref(limits).cast_mut(), Ordering::Relaxed);
        Some(())
    }

    /// Takes a slot, and waits a while for one if there is none.
    fn take_slot(&'static self, region: Region) {
        self.ledger.store(core::ptr::from_ref(region.ledger).cast_mut(), Ordering::Relaxed);
        self.slot.store(core::ptr::from_ref(&self.no_slot).cast_mut(), Ordering::Relaxed);
        for _ in 0..SLOT_WAIT_NS_MAX / SLOT_INTERVAL_NS {
            if self.has_slot() {
                return;
            }
            sys::sleep_ns(SLOT_INTERVAL_NS);
        }
        sys::warn(
            b"aliquot: the slice has too many processes: this one is refused memory and launches until others end\n",
        );
    }

    /// Whether this process has a slot, now or from now on. Without one nothing that it does can be counted: it is
    /// refused memory and launches.
    #[inline]
    pub(crate) fn has_slot(&'static self) -> bool {
        self.slot_index.load(Ordering::Acquire) as usize != NO_SLOT || self.seek_slot()
    }

    #[cold]
    #[inline(never)]
    fn seek_slot(&'static self) -> bool {
        if self.seeks_slot.swap(1, Ordering::Acquire) != 0 {
            return false;
        }
        // Another thread may have found one meanwhile. To seek again would give that back.
        let found = self.slot_index.load(Ordering::Relaxed) as usize != NO_SLOT || self.claim_slot().is_some();
        self.seeks_slot.store(0, Ordering::Release);
        found
    }

    fn claim_slot(&'static self) -> Option<()> {
        let me = Identity {
            pid: sys::pid(),
            start_time: start_time(c"/proc/self/stat").unwrap_or(0),
            pid_namespace: sys::inode(c"/proc/self/ns/pid").unwrap_or(0),
        };
        let claimed = ledger::claim(self.ledger(), me, is_alive, |slot| sys::can_write(&slot.markers))?;
        let slot = self.ledger().slots.get(claimed.index)?;
        slot.markers_per_device.store(markers_per_device(self.all_devices().len()) as u64, Ordering::Relaxed);
        self.slot.store(core::ptr::from_ref(slot).cast_mut(), Ordering::Relaxed);
        self.slot_generation.store(claimed.generation, Ordering::Relaxed);
        // Pairs with the load in `has_slot`.
        self.slot_index.store(claimed.index as u32, Ordering::Release);
        // One that was not heard says it again when it waits, and is found when the manager looks through the ledger.
        self.unheard.store(u32::from(!self.send(AttachMessage::ATTACH, 0)), Ordering::Relaxed);
        self.note_only_device();
        Some(())
    }

    fn note_only_device(&'static self) {
        if let (1, Some(part)) = (self.ordinals.load(Ordering::Relaxed), self.part(0)) {
            self.only_index.store(part.index as u32, Ordering::Relaxed);
            self.only.store(core::ptr::from_ref(part.limits).cast_mut(), Ordering::Release);
        }
    }

    /// Tells the manager; whether it was told.
    pub(crate) fn send(&self, kind: u32, device: usize) -> bool {
        Region::send(AttachMessage {
            magic: AttachMessage::MAGIC,
            kind,
            slot: self.slot_index.load(Ordering::Relaxed),
            generation: self.slot_generation.load(Ordering::Relaxed),
            device: device as u32,
            reserved: 0,
        })
    }

    /// The limits. Valid once attached.
    #[inline]
    fn limits(&self) -> &'static Limits {
        // SAFETY: an attached process's pointers are set and valid for ever.
        unsafe { &*self.limits.load(Ordering::Relaxed) }
    }

    /// Whether the manager has switched enforcement off.
    #[inline]
    pub(crate) fn is_disabled(&self) -> bool {
        self.limits().flags.load(Ordering::Relaxed) & FLAG_DISABLED != 0
    }

    /// Whether progress markers are to be events.
    pub(crate) fn marks_by_events(&self) -> bool {
        self.limits().flags.load(Ordering::Relaxed) & FLAG_EVENTS != 0
    }

    /// `CLOCK_MONOTONIC` in nanoseconds of the manager's last sign of life.
    pub(crate) fn heartbeat_ns(&self) -> u64 {
        self.limits().heartbeat_ns.load(Ordering::Relaxed)
    }

    /// Whether every device that the process sees is part of the slice, and not shared in time for now. Never so without
    /// a slot.
    pub(crate) fn has_free_gates(&'static self) -> bool {
        let is_free = |part: Part| gate::is_free(part.limits.gate.load(Ordering::Acquire));
        self.has_slot() && (0..self.ordinals()).all(|ordinal| self.part(ordinal).is_some_and(is_free))
    }

    /// The number of rings that the manager was not to be reached with, since it last was.
    pub(crate) fn unheard(&self) -> &AtomicU32 {
        &self.unheard
    }

    /// The number of threads that put markers into streams that are not those of a call of theirs.
    pub(crate) fn marking(&self) -> &AtomicU32 {
        &self.marking
    }

    /// What threads have asked for last.
    pub(crate) fn polls(&self) -> &Polls {
        &self.polls
    }

    /// Whether some thread may have made launches that no marker stands for. The calling thread's own are never missed.
    #[inline]
    pub(crate) fn may_have_unmarked(&self) -> bool {
        self.unmarked.load(Ordering::Relaxed) != 0
    }

    /// Launches may be made that no marker stands for.
    pub(crate) fn note_unmarked(&self) {
        // Reads what is there, so that whoever forgets several notes at once sees what was done before each.
        self.unmarked.fetch_or(1, Ordering::Release);
    }

    /// All launches are about to be looked at: what is noted from now on stays noted.
    pub(crate) fn forget_unmarked(&self) {
        self.unmarked.swap(0, Ordering::Acquire);
    }

    /// Where the device writes this process's markers.
    pub(crate) fn marker_page(&self) -> &MarkerPage {
        &self.marker_page
    }

    /// The known references to the primary context of device `ordinal`.
    pub(crate) fn primary_references(&self, ordinal: CUdevice) -> Option<&References> {
        self.primary_references.get(ordinal as usize)
    }

    /// The part that is device `ordinal`; `None` if the slice has no part of it.
    #[inline]
    pub(crate) fn part(&'static self, ordinal: CUdevice) -> Option<Part> {
        let index = self.parts.get(ordinal as usize)?.load(Ordering::Relaxed).checked_sub(1)? as usize;
        Some(Part { process: self, index, limits: self.limits().devices.get(index)? })
    }

    /// The limits of all parts of the slice.
    fn all_devices(&self) -> &'static [DeviceLimits] {
        let limits = self.limits();
        let count = (limits.device_count.load(Ordering::Relaxed) as usize).min(DEVICES_MAX);
        limits.devices.get(..count).unwrap_or_default()
    }

    /// All parts of the slice.
    pub(crate) fn all_parts(&'static self) -> impl Iterator<Item = Part> {
        self.all_devices().iter().enumerate().map(move |(index, limits)| Part { process: self, index, limits })
    }

    /// The container's and this process's books for account `number`: that of a part, or
    /// [`HOST_ACCOUNT`](aliquot_abi::region::HOST_ACCOUNT). `None` in a process without a slot.
    #[inline(never)]
    pub(crate) fn books(&'static self, number: usize) -> Option<(&'static Account, &'static AtomicU64)> {
        let account = self.ledger().account(number)?;
        if self.has_slot() { Some((account, self.slot().memory(number)?)) } else { None }
    }

    /// The ledger. Valid once attached.
    #[inline]
    pub(crate) fn ledger(&self) -> &'static Ledger {
        // SAFETY: an attached process's pointers are set and valid for ever.
        unsafe { &*self.ledger.load(Ordering::Relaxed) }
    }

    /// This process's slot.
    #[inline]
    pub(crate) fn slot(&self) -> &'static Slot {
        // SAFETY: an attached process's pointers are set and valid for ever.
        unsafe { &*self.slot.load(Ordering::Relaxed) }
    }

    /// Bytes of page-locked host memory that the container may use.
    pub(crate) fn host_memory_limit_bytes(&self) -> u64 {
        match self.limits().host_memory_limit_bytes.load(Ordering::Relaxed) {
            0 => u64::MAX,
            _ if self.is_disabled() => u64::MAX,
            limit => limit,
        }
    }

    /// Bytes that the container may use of account number `account` beside what its ledger does not know.
    pub(crate) fn limit_bytes(&'static self, account: usize) -> u64 {
        match self.limits().devices.get(account) {
            Some(limits) => Part { process: self, index: account, limits }.memory_limit_bytes(),
            None => self.host_memory_limit_bytes(),
        }
    }

    /// Number of devices that the process sees.
    pub(crate) fn ordinals(&self) -> CUdevice {
        self.ordinals.load(Ordering::Relaxed) as CUdevice
    }

    /// The ordinal of the device that is part number `index`; `None` if the process does not see it.
    pub(crate) fn ordinal_of(&self, index: usize) -> Option<CUdevice> {
        let is_it = |part: &AtomicU32| part.load(Ordering::Relaxed) as usize == index + 1;
        self.parts.iter().position(is_it).map(|ordinal| ordinal as CUdevice)
    }

    /// The ordinal of the device that the calling thread uses; the driver's error if it uses none.
    #[inline]
    pub(crate) fn current_ordinal(&self) -> Result<CUdevice, CUresult> {
        if self.ordinals.load(Ordering::Relaxed) == 1 { Ok(0) } else { current_ordinal() }
    }
}

/// The ordinal of the device of the calling thread's context, as the driver says.
pub(crate) fn current_ordinal() -> Result<CUdevice, CUresult> {
    let mut device = 0;
    let get = real!(cuCtxGetDevice).ok_or(CUresult::NOT_FOUND)?;
    // SAFETY: the pointer is valid.
    let result = unsafe { get(&raw mut device) };
    if result.is_ok() { Ok(device) } else { Err(result) }
}

/// The ordinal of the device whose work is put into `stream`.
pub(crate) fn ordinal_of_stream(process: &Process, stream: CUstream) -> Result<CUdevice, CUresult> {
    // The default streams are those of the calling thread's context.
    if process.ordinals() == 1 || [CUstream::NULL, CU_STREAM_LEGACY, CU_STREAM_PER_THREAD].contains(&stream) {
        return process.current_ordinal();
    }
    if let Some(get_device) = real!(cuStreamGetDevice) {
        let mut device = 0;
        // SAFETY: the pointer is valid; the driver checks the stream.
        if unsafe { get_device(stream, &raw mut device) }.is_ok() {
            return Ok(device);
        }
    }
    // Drivers before CUDA 12.8.
    let (mut context, mut popped) = (CUcontext::NULL, CUcontext::NULL);
    let get = real!(cuStreamGetCtx).ok_or(CUresult::NOT_FOUND)?;
    let (push, pop) = (real!(cuCtxPushCurrent_v2), real!(cuCtxPopCurrent_v2));
    let (push, pop) = (push.ok_or(CUresult::NOT_FOUND)?, pop.ok_or(CUresult::NOT_FOUND)?);
    let get_current = real!(cuCtxGetCurrent).ok_or(CUresult::NOT_FOUND)?;
    // SAFETY: the pointers are valid; the driver checks the handles; what is pushed is popped.
    unsafe {
        let found = get(stream, &raw mut context);
        if !found.is_ok() {
            return Err(found);
        }
        let mut current = CUcontext::NULL;
        // Nearly always.
        if get_current(&raw mut current).is_ok() && current == context {
            return current_ordinal();
        }
        let pushed = push(context);
        if !pushed.is_ok() {
            return Err(pushed);
        }
        let ordinal = current_ordinal();
        let _ = pop(&raw mut popped);
        ordinal
    }
}

impl Part {
    /// The container's and this process's books for this device's memory.
    #[inline]
    pub(crate) fn books(&self) -> Option<(&'static Account, &'static AtomicU64)> {
        self.process.books(self.index)
    }

    /// This process's slot.
    #[inline]
    pub(crate) fn slot(&self) -> &'static Slot {
        self.process.slot()
    }

    /// What this process does on this device.
    #[inline]
    pub(crate) fn work(&self) -> Option<&'static SlotDevice> {
        self.slot().devices.get(self.index)
    }

    /// The cells that this device writes this process's markers into.
    #[inline]
    pub(crate) fn row(&self) -> Option<&'static [AtomicU64]> {
        self.slot().row(self.index)
    }

    /// This process's work in flight on this device.
    #[inline]
    pub(crate) fn flight(&self) -> Option<&'static Flight> {
        self.process.flights.get(self.index)
    }

    /// Shard number `number` of this process's launches on this device.
    #[inline]
    pub(crate) fn shard(&self, number: usize) -> Option<&'static Shard> {
        self.process.shards.get(self.index)?.get(number)
    }

    /// All shards of this process's launches on this device.
    pub(crate) fn shards(&self) -> &'static [Shard] {
        self.process.shards.get(self.index).map_or(&[], |shards| shards)
    }

    /// Tells the manager that a thread waits at this device's gate. `false` if it cannot be told.
    pub(crate) fn ring(&self) -> bool {
        self.process.send(AttachMessage::RING, self.index)
    }

    /// Bytes that the container may use beside what its ledger does not know.
    #[inline]
    pub(crate) fn memory_limit_bytes(&self) -> u64 {
        if self.process.is_disabled() {
            return u64::MAX;
        }
        let overhead = self.limits.memory_overhead_bytes.load(Ordering::Relaxed);
        self.limits.memory_limit_bytes.load(Ordering::Relaxed).saturating_sub(overhead)
    }
}

/// The UUID of device `ordinal`.
fn uuid(ordinal: CUdevice) -> Option<CUuuid> {
    let mut device = 0;
    let mut uuid = CUuuid { bytes: [0; 16] };
    // The second version tells MIG instances apart; drivers before CUDA 11.4 have only the first.
    let get_uuid = real!(cuDeviceGetUuid_v2).or_else(|| real!(cuDeviceGetUuid))?;
    let get_device = real!(cuDeviceGet)?;
    // SAFETY: the pointers are valid.
    let found = unsafe { get_device(&raw mut device, ordinal).is_ok() && get_uuid(&raw mut uuid, device).is_ok() };
    found.then_some(uuid)
}

/// Whether a process of this pid namespace lives. A pid that another process has been given since is left to the
/// manager.
pub(crate) fn is_alive(other: Identity) -> bool {
    sys::process_exists(other.pid)
}

/// Field 22 of a `/proc/PID/stat` file: when the process was started, in clock ticks since boot.
fn start_time(path: &CStr) -> Option<u64> {
    let mut buffer = [0_u8; 512];
    let length = File::open(path, Access::ReadOnly).ok()?.read(&mut buffer).ok()?;
    let line = buffer.get(..length)?;
    // The second field is the program's name in parentheses and can hold anything; the third follows the last one.
    let end_of_name = line.iter().rposition(|&byte| byte == b')')?;
    let field = line.get(end_of_name..)?.split(|&byte| byte == b' ').nth(22 - 2)?;
    field.iter().try_fold(0_u64, |number, &byte| {
        let digit = byte.checked_sub(b'0').filter(|&digit| digit < 10)?;
        number.checked_mul(10)?.checked_add(u64::from(digit))
    })
}
