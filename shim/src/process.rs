//! This process's attachment to its container's region.
//!
//! All state that belongs to one process is in one page-aligned block, which the kernel wipes in a forked child. A
//! child finds the state "off" and attaches for itself, with a slot of its own, at its first use of CUDA. A process
//! that never uses CUDA never gets here. So a fork is noticed without a handler, and without a system call in each
//! hook.

mod devices;
mod environment;
mod part;

use crate::clock;
use crate::gate::{self, Shard};
use crate::graph_memory::GraphMemory;
use crate::hooks::real;
use crate::markers::{Flight, MarkerPage};
use crate::polling::Polls;
use crate::pools::Pools;
use crate::references::References;
use crate::region::{self, Region, Unattached};
use crate::sys::{self, Access, Errno, File};
use aliquot_abi::cuda::{CUdevice, CUresult};
use aliquot_abi::ledger::{self, Identity};
use aliquot_abi::region::{
    Account, AttachMessage, DEVICES_MAX, DeviceLimits, FLAG_EVENTS, Ledger, Limits, NO_SLOT, Slot, markers_per_device,
};
use core::ffi::CStr;
use core::sync::atomic::{AtomicPtr, AtomicU32, AtomicU64, AtomicUsize, Ordering};
use devices::uuid;
pub(crate) use devices::{current_ordinal, ordinal_of_stream};
pub(crate) use part::Part;

/// The most devices that a process can see.
const ORDINALS_MAX: usize = 64;
/// Number of shards of one device, over which threads and streams are spread: see [`Shard`].
pub(crate) const SHARDS: usize = 128;

/// The longest time for which a process waits for a slot when it attaches. After that, its requests are refused while
/// it has none.
const SLOT_WAIT_NS_MAX: u64 = 5_000_000_000;
/// The interval at which the process looks for a free slot meanwhile.
const SLOT_INTERVAL_NS: u64 = 50_000_000;

const OFF: u32 = 0;
const ATTACHING: u32 = 1;
const ATTACHED: u32 = 2;

/// A process's own state. All zero is the state "off".
#[repr(C, align(4096))]
pub(crate) struct Process {
    /// The limits of the device, if the process sees only one and that is part of the slice; otherwise null.
    only: AtomicPtr<DeviceLimits>,
    /// Index of the part that this device is.
    only_index: AtomicU32,
    state: AtomicU32,
    /// The thread that attaches or attached the process, by its thread pointer.
    attaching: AtomicUsize,
    /// Number of devices that the process sees.
    ordinals: AtomicU32,
    limits: AtomicPtr<Limits>,
    ledger: AtomicPtr<Ledger>,
    slot: AtomicPtr<Slot>,
    /// [`NO_SLOT`]: the process has no slot.
    slot_index: AtomicU32,
    slot_generation: AtomicU32,
    /// Not zero while a thread searches for a slot.
    seeks_slot: AtomicU32,
    /// For each device that the process sees, the index of its part in the region plus one; 0 if it has no part.
    parts: [AtomicU32; ORDINALS_MAX],
    /// The counted references to the primary context of each device.
    primary_references: [References; ORDINALS_MAX],
    marker_page: MarkerPage,
    /// Number of rings in a row that could not be sent.
    unheard: AtomicU32,
    /// Number of threads that are putting markers into streams which the current call did not name.
    marking: AtomicU32,
    /// Not zero: some thread may have made launches without a marker.
    unmarked: AtomicU32,
    /// Not zero once there was a stream for which the legacy default stream is a barrier.
    blocking: AtomicU32,
    /// Not zero: see [`Process::launches_block`].
    launches_block: AtomicU32,
    /// Not zero once a free was queued in a stream of memory that is charged on its own.
    pub(crate) queued_frees: AtomicU32,
    polls: Polls,
    flights: [Flight; DEVICES_MAX],
    pub(crate) pools: Pools,
    pub(crate) graph_memory: GraphMemory,
    shards: [[Shard; SHARDS]; DEVICES_MAX],
    /// Takes the place of the slot while the process has none. No bytes are ever reserved in it.
    no_slot: Slot,
}

static PROCESS: AtomicPtr<Process> = AtomicPtr::new(core::ptr::null_mut());

impl Process {
    /// This process's attachment, if it can be made. For calls that are never refused.
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

    /// This process's attachment, made at the first call after the driver was initialised. The error tells how to
    /// answer the call without one.
    #[inline]
    pub(crate) fn for_call() -> Result<&'static Process, Unattached> {
        Process::if_attached().map_or_else(Process::attach, Ok)
    }

    /// This process's attachment, if it has been made. Two loads; a wiped block reads as `None`.
    #[inline]
    pub(crate) fn if_attached() -> Option<&'static Process> {
        // SAFETY: the block that is stored here is mapped for ever.
        let process = unsafe { PROCESS.load(Ordering::Acquire).as_ref() }?;
        // Pairs with the store at the end of `attach`.
        (process.state.load(Ordering::Acquire) == ATTACHED).then_some(process)
    }

    /// The attachment of a process that sees only one device, and the limits of that device. `None`: the caller must
    /// use another way to find out.
    ///
    /// Launches begin here. Two loads; a wiped block reads as null.
    #[inline]
    pub(crate) fn with_one_device() -> Option<(&'static Process, &'static DeviceLimits)> {
        // SAFETY: the block that is stored here is mapped for ever.
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
                // The driver has called back into the program: calls from such a callback go to the driver unchanged.
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
            process.launches_block.store(u32::from(environment::says_that_launches_block()), Ordering::Relaxed);
            process.take_slot(region);
        }
        // A later attempt may be another thread's: this one must not take itself for a callback then.
        process.attaching.store(0, Ordering::Relaxed);
        process.state.store(if done { ATTACHED } else { OFF }, Ordering::Release);
        // The driver is not initialised.
        done.then_some(process).ok_or(Unattached::Free)
    }

    /// The block, mapped at the first call.
    fn block() -> Result<&'static Process, Unattached> {
        const BYTES: usize = size_of::<Process>();
        let mut block = PROCESS.load(Ordering::Acquire);
        if block.is_null() {
            let fresh = sys::map_anonymous(BYTES).map_err(|_| Unattached::Refused)?;
            // SAFETY: the mapping is new, and is meant to read as zero in a child.
            if let Err(error) = unsafe { sys::wipe_on_fork(fresh, BYTES) } {
                // SAFETY: no other code knows this mapping.
                unsafe { sys::unmap(fresh, BYTES) };
                let (verdict, reason): (_, &[u8]) = match error {
                    // A kernel before 4.14: a child would take itself for its parent, and both would use one slot.
                    Errno::EINVAL => (
                        Unattached::Free,
                        b"aliquot: the kernel lacks MADV_WIPEONFORK: the GPU is not limited in this process\n",
                    ),
                    // The next call tries again.
                    error if error.is_passing() => return Err(Unattached::Refused),
                    _ => (
                        Unattached::Refused,
                        b"aliquot: a filter forbids MADV_WIPEONFORK: the GPU is refused in this process\n",
                    ),
                };
                return Err(region::give_up(verdict, reason));
            }
            block = match PROCESS.compare_exchange(
                core::ptr::null_mut(),
                fresh.cast(),
                Ordering::AcqRel,
                Ordering::Acquire,
            ) {
                Ok(_) => fresh.cast(),
                Err(first) => {
                    // SAFETY: no other code knows this mapping.
                    unsafe { sys::unmap(fresh, BYTES) };
                    first
                }
            };
        }
        // SAFETY: mapped for ever, page-aligned, and valid whatever its bytes are.
        unsafe { block.as_ref() }.ok_or(Unattached::Refused)
    }

    /// Finds the part of the slice that each visible device is.
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

    /// Takes a slot. If none is free, waits for one for [`SLOT_WAIT_NS_MAX`].
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

    /// Whether this process has a slot, perhaps since this call. Without a slot no use of the process can be counted,
    /// so memory and launches are refused.
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
        // Another thread may have found a slot meanwhile. A second claim would reclaim that slot.
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
        // If the message could not be sent, the thread rings when it waits, and the manager finds the slot when it
        // searches the ledger.
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

    /// Sends a message to the manager. Returns whether it could be sent.
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

    /// Whether progress markers must be events.
    pub(crate) fn marks_by_events(&self) -> bool {
        self.limits().flags.load(Ordering::Relaxed) & FLAG_EVENTS != 0
    }

    /// When the manager last wrote its heartbeat: `CLOCK_MONOTONIC` in nanoseconds.
    pub(crate) fn heartbeat_ns(&self) -> u64 {
        self.limits().heartbeat_ns.load(Ordering::Relaxed)
    }

    /// Whether every device that the process sees is part of the slice and currently not shared in time. `false`
    /// without a slot.
    pub(crate) fn has_free_gates(&'static self) -> bool {
        let is_free = |part: Part| gate::is_free(part.limits.gate.load(Ordering::Acquire));
        self.has_slot() && (0..self.ordinals()).all(|ordinal| self.part(ordinal).is_some_and(is_free))
    }

    /// Number of rings in a row that could not be sent.
    pub(crate) fn unheard(&self) -> &AtomicU32 {
        &self.unheard
    }

    /// Number of threads that are putting markers into streams which the current call did not name.
    pub(crate) fn marking(&self) -> &AtomicU32 {
        &self.marking
    }

    /// The last queries of threads.
    pub(crate) fn polls(&self) -> &Polls {
        &self.polls
    }

    /// Whether some thread may have made launches without a marker. Never `false` if the calling thread has made some.
    #[inline]
    pub(crate) fn may_have_unmarked(&self) -> bool {
        self.unmarked.load(Ordering::Relaxed) != 0
    }

    /// To be called before launches without a marker may be made.
    pub(crate) fn note_unmarked(&self) {
        // A read-modify-write, so that a thread that resets several such notes at once sees all changes before each.
        self.unmarked.fetch_or(1, Ordering::Release);
    }

    /// To be called before all launches are looked at: a later note stays set.
    pub(crate) fn forget_unmarked(&self) {
        self.unmarked.swap(0, Ordering::Acquire);
    }

    /// Whether there was a stream for which the legacy default stream is a barrier, and whose work is one for it.
    pub(crate) fn has_blocking_streams(&self) -> bool {
        self.blocking.load(Ordering::Relaxed) != 0
    }

    /// Whether the driver returns from a launch only when the kernel has ended, as far as the environment tells.
    pub(crate) fn launches_block(&self) -> bool {
        self.launches_block.load(Ordering::Relaxed) != 0
    }

    /// To be called before there is such a stream.
    pub(crate) fn note_blocking_stream(&self) {
        self.blocking.store(1, Ordering::Relaxed);
    }

    /// The registration of the page into which the device writes this process's markers.
    pub(crate) fn marker_page(&self) -> &MarkerPage {
        &self.marker_page
    }

    /// The counted references to the primary context of device `ordinal`.
    pub(crate) fn primary_references(&self, ordinal: CUdevice) -> Option<&References> {
        self.primary_references.get(ordinal as usize)
    }

    /// The part that is device `ordinal`; `None` if the slice has no part of that device.
    #[inline]
    pub(crate) fn part(&'static self, ordinal: CUdevice) -> Option<Part> {
        let index = self.parts.get(ordinal as usize)?.load(Ordering::Relaxed).checked_sub(1)? as usize;
        self.part_of_account(index)
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

    /// The container's account number `number`, and this process's word for it. The account is that of a part, or
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

    /// This process's slot or, if it has none, the block's replacement for it.
    #[inline]
    pub(crate) fn slot(&self) -> &'static Slot {
        // SAFETY: an attached process's pointers are set and valid for ever.
        unsafe { &*self.slot.load(Ordering::Relaxed) }
    }

    /// The container's limit of page-locked host memory, in bytes.
    pub(crate) fn host_memory_limit_bytes(&self) -> u64 {
        match self.limits().host_memory_limit_bytes.load(Ordering::Relaxed) {
            0 => u64::MAX,
            limit => limit,
        }
    }

    /// The part whose memory is that of account number `account`; `None`: it is the host's.
    #[inline]
    pub(crate) fn part_of_account(&'static self, account: usize) -> Option<Part> {
        Some(Part { process: self, index: account, limits: self.limits().devices.get(account)? })
    }

    /// The bytes that the ledger may reserve in account number `account`: the limit minus the overhead.
    #[inline(never)]
    pub(crate) fn limit_bytes(&'static self, account: usize) -> u64 {
        self.part_of_account(account).map_or_else(|| self.host_memory_limit_bytes(), |part| part.memory_limit_bytes())
    }

    /// The bytes of them that may be reserved before the manager looks again.
    #[inline(never)]
    pub(crate) fn limit_bytes_until_look(&'static self, account: usize) -> u64 {
        // In this order: see `memory_limit_bytes_until_look`.
        let unseen_bytes = self.part_of_account(account).map_or(0, |part| part.unseen().bytes());
        self.limit_bytes(account).saturating_sub(unseen_bytes)
    }

    /// Number of devices that the process sees.
    pub(crate) fn ordinals(&self) -> CUdevice {
        self.ordinals.load(Ordering::Relaxed) as CUdevice
    }

    /// Whether the process sees a device `ordinal`, of the slice or not.
    pub(crate) fn has_device(&self, ordinal: CUdevice) -> bool {
        (0..self.ordinals()).contains(&ordinal)
    }

    /// The ordinal of the device that is part number `index`; `None` if the process does not see that device.
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

/// Whether a process with this pid lives in this pid namespace. If the pid has been given to another process since, the
/// manager must notice that.
pub(crate) fn is_alive(other: Identity) -> bool {
    sys::process_exists(other.pid)
}

/// Field 22 of a `/proc/PID/stat` file: when the process was started, in clock ticks since boot.
fn start_time(path: &CStr) -> Option<u64> {
    let mut buffer = [0_u8; 512];
    let length = File::open(path, Access::ReadOnly).ok()?.read(&mut buffer).ok()?;
    let line = buffer.get(..length)?;
    // The second field is the program's name in parentheses, which can contain anything. The third field follows the
    // last closing parenthesis.
    let end_of_name = line.iter().rposition(|&byte| byte == b')')?;
    let field = line.get(end_of_name..)?.split(|&byte| byte == b' ').nth(22 - 2)?;
    field.iter().try_fold(0_u64, |number, &byte| {
        let digit = byte.checked_sub(b'0').filter(|&digit| digit < 10)?;
        number.checked_mul(10)?.checked_add(u64::from(digit))
    })
}
