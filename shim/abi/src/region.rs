//! The region: the files that the node manager and the processes of one container share.
//!
//! A region is a directory that the manager makes before the container starts. It holds
//!
//! | file | writers | content |
//! | --- | --- | --- |
//! | [`LIMITS_FILE`] | the manager only; read-only in the container | [`Limits`]: what the container may use, and its leases |
//! | [`LEDGER_FILE`] | the container's processes and the manager | [`Ledger`]: the use of the container, one slot per
//! process |
//! | [`ATTACH_SOCKET`] | | a Unix seqpacket socket: a process sends one [`AttachMessage`] and closes |
//! | the shim | the manager only | the library that is preloaded; it finds the other files beside itself |
//!
//! Rules for both files:
//!
//! * `repr(C)`, integers of fixed width and atomics of them, no unnamed padding, offsets asserted below.
//! * A file's size is a constant ([`LIMITS_FILE_BYTES`], [`LEDGER_FILE_BYTES`]) that is greater than its contents. So a
//!   later minor version can add fields at the end, and an older mapping never reaches past the end of the file.
//! * [`Header::magic`] is stored last, with release ordering: a reader that sees it sees a complete file. A reader can
//!   tell a file that is not ready from one of another major version: see [`Header::check`].
//! * Fields of a minor version that the reader does not know are zero or ignored. A reader does not use a file of
//!   another major version; the shim then refuses the device.
//! * The manager trusts nothing that it reads from the ledger: every index and count is bounded before use.

mod attach_message;
mod header;

use crate::atomic::{AtomicU32, AtomicU64, Ordering};
pub use attach_message::AttachMessage;
pub use header::{Header, HeaderError, MAJOR, MINOR};

/// Name of the limits file in the region's directory.
pub const LIMITS_FILE: &str = "limits";
/// Name of the ledger file in the region's directory.
pub const LEDGER_FILE: &str = "ledger";
/// Name of the attach socket in the region's directory.
pub const ATTACH_SOCKET: &str = "attach.sock";

/// Greatest number of devices of one region.
pub const DEVICES_MAX: usize = if cfg!(loom) { 1 } else { 16 };
/// Slots of one region. Slot [`NO_SLOT`] is never owned, so the number of processes is one less. Under the model
/// checker, all counts are the smallest with which the protocols are complete.
pub const SLOTS_MAX: usize = if cfg!(loom) { 3 } else { 4096 };
/// The slot that no process owns: a process without a slot has this number.
pub const NO_SLOT: usize = 0;
/// Slots that the manager backs with memory when it makes the region. Each further slot is backed by the first process
/// that takes it: see [`claim`](crate::ledger::claim).
pub const SLOTS_BACKED: usize = if cfg!(loom) { 3 } else { 32 };
/// Accounts of one region: one for the memory of each device, and [`HOST_ACCOUNT`].
pub const ACCOUNTS: usize = DEVICES_MAX + 1;
/// Number of the account of page-locked host memory.
pub const HOST_ACCOUNT: usize = DEVICES_MAX;
/// Classes of length by which waits for leases are counted.
pub const WAIT_LENGTHS: usize = 14;
/// Cells for the progress markers of one process, on all devices of its slice together: see [`Slot::row`].
pub const MARKER_CELLS: usize = if cfg!(loom) { 2 } else { 128 };
/// The most progress markers that a process can have in flight on one device.
pub const MARKERS_MAX: usize = if cfg!(loom) { 2 } else { 64 };

/// Size of the limits file in bytes.
pub const LIMITS_FILE_BYTES: usize = 16 * 1024;
/// Size of the ledger file in bytes: address space, of which only a small part is backed by memory.
pub const LEDGER_FILE_BYTES: usize = 20 * 1024 * 1024;
/// Bytes at the start of the ledger file that are backed when it is made. The rest is backed as slots are taken. A slot
/// without an owner is not read: on a memory file system even a read allocates a page.
pub const LEDGER_BACKED_BYTES: usize = core::mem::offset_of!(Ledger, slots) + SLOTS_BACKED * size_of::<Slot>();

/// [`Header::magic`] of a limits file: `ALIQLIMT`, read as a little-endian number.
pub const LIMITS_MAGIC: u64 = u64::from_le_bytes(*b"ALIQLIMT");
/// [`Header::magic`] of a ledger file: `ALIQLEDG`, read as a little-endian number.
pub const LEDGER_MAGIC: u64 = u64::from_le_bytes(*b"ALIQLEDG");

/// The content of the limits file.
#[repr(C)]
pub struct Limits {
    /// See [`Header`], with [`LIMITS_MAGIC`].
    pub header: Header,
    /// When the manager last wrote its heartbeat: `CLOCK_MONOTONIC` in nanoseconds; see [`HEARTBEAT_STALE_NS`].
    pub heartbeat_ns: AtomicU64,
    /// Number of valid entries at the start of [`Limits::devices`]. At most [`DEVICES_MAX`]; never changes.
    pub device_count: AtomicU32,
    /// A set of flags: [`FLAG_EVENTS`].
    pub flags: AtomicU32,
    /// Limit of page-locked host memory in bytes; 0: no limit.
    pub host_memory_limit_bytes: AtomicU64,
    /// Reserved, zero.
    pub reserved: [u64; 9],
    /// The limits of the container on each device.
    pub devices: [DeviceLimits; DEVICES_MAX],
    /// The container's use of each device so far. Kept here so that it outlives the manager.
    pub counters: [DeviceCounters; DEVICES_MAX],
    /// How the container has waited for each device.
    pub waits: [DeviceWaits; DEVICES_MAX],
}

/// In [`Limits::flags`]: progress markers are events even where the device could write them, so that both ways can be
/// compared.
pub const FLAG_EVENTS: u32 = 2;

/// The value of [`DeviceLimits::memory_looks`] at the end of the first look that begins after the value was `looks`. A look
/// that is under way does not count: it may have asked the driver already.
pub const fn end_of_next_look(looks: u64) -> u64 {
    looks.wrapping_add(3) & !1
}

/// In [`DeviceLimits::context_bytes`]: a context takes next to nothing, or the driver does not tell how much.
pub const CONTEXT_NEGLIGIBLE: u64 = u64::MAX;

/// The manager writes [`Limits::heartbeat_ns`] this often.
pub const HEARTBEAT_INTERVAL_NS: u64 = 100_000_000;
/// A heartbeat older than this means that the manager is gone: the shim then ignores a closed gate, and keeps to
/// [`DeviceLimits::core_limit_percent`] by pacing itself. Several intervals, so that a busy machine does not look like
/// a dead manager.
pub const HEARTBEAT_STALE_NS: u64 = 1_000_000_000;

/// The limits of a container on one device. Each field is read on its own: no two fields need to agree.
#[repr(C, align(128))]
pub struct DeviceLimits {
    /// The gate to the device: see [`gate`]. It shares a cache line only with other fields that a launch reads.
    pub gate: AtomicU32,
    /// The most launches of one thread between two progress markers.
    pub marker_launches_max: AtomicU32,
    /// Bound on work in flight, in nanoseconds: while more is outstanding, a launch waits.
    pub inflight_ns_max: AtomicU32,
    /// Limit of device time, in percent. 0: the slice was taken away, and launches fail.
    pub core_limit_percent: AtomicU32,
    /// Guaranteed share of device time, in percent.
    pub core_request_percent: AtomicU32,
    /// Reserved, zero.
    pub reserved0: u32,
    /// Limit of device memory in bytes.
    pub memory_limit_bytes: AtomicU64,
    /// Bytes that the container uses beyond its ledger (contexts, modules). They count against the limit.
    pub memory_overhead_bytes: AtomicU64,
    /// The device's UUID, as `cuDeviceGetUuid` gives it. Never changes.
    pub uuid: [u8; 16],
    /// Bytes that a context takes, by the manager's last figures for other contexts on the device. This many are
    /// reserved when a context is made. 0: unknown; [`CONTEXT_NEGLIGIBLE`]: nothing is reserved.
    pub context_bytes: AtomicU64,
    /// Counts the manager's looks at the use of the device's memory: one more at the start of each look and one more at
    /// its end. So the number is odd while a look is under way.
    pub memory_looks: AtomicU64,
    /// Not zero: [`DeviceLimits::memory_overhead_bytes`] includes memory of processes that have ended, until a look
    /// shows that the driver has it back.
    pub memory_settling: AtomicU32,
    /// Reserved, zero.
    pub reserved1: u32,
    /// The part of [`Account::rounding_bytes`] that the manager's last look has seen.
    /// [`DeviceLimits::memory_overhead_bytes`] includes it as far as the driver has taken it: see
    /// [`rounding::Looked`](crate::rounding::Looked). 0: no manager looks.
    pub rounding_seen: AtomicU64,
    /// Reserved, zero.
    pub reserved: [u64; 5],
}

/// A container's use of one device since its slice was made. It is in this file because a container cannot write it,
/// and because the manager has no other place for it that outlives the manager. No launch reads these cache lines.
#[repr(C, align(128))]
pub struct DeviceCounters {
    /// Device time that was charged for leases, in nanoseconds.
    pub charged_ns: AtomicU64,
    /// Device time while the gate was [`gate::FREE`], by the driver's samples, in nanoseconds.
    pub free_ns: AtomicU64,
    /// Leases that ended with work still in flight.
    pub overruns: AtomicU64,
    /// Nanoseconds of these overruns together.
    pub overrun_ns: AtomicU64,
    /// Nanoseconds for which launches of processes that have ended had waited.
    pub ended_throttled_ns: AtomicU64,
    /// Launches of processes that have ended.
    pub ended_launches: AtomicU64,
    /// Copies and memsets of processes that have ended.
    pub ended_copies: AtomicU64,
    /// Bytes that these copies and memsets moved.
    pub ended_copied_bytes: AtomicU64,
    /// Nanoseconds for which these processes had waited for copies and memsets.
    pub ended_copy_ns: AtomicU64,
    /// Device time that the container used in the last second, in thousandths of the device's time. In the container,
    /// NVML's utilisation is computed from it.
    pub used_permille: AtomicU64,
    /// Leases granted; a renewal does not count.
    pub leases: AtomicU64,
    /// Reserved, zero.
    pub reserved: [u64; 5],
}

/// How a container has waited for leases of one device since its slice was made. A wait lasts from the moment at which
/// the manager saw the first thread wait until the grant, and counts once, however many threads wait. Written by the
/// manager, as [`DeviceCounters`] are.
#[repr(C, align(128))]
pub struct DeviceWaits {
    /// Number of waits by length. The bounds between the classes are the arbiter's `WAIT_BOUNDS_NS` and part of this
    /// layout: other bounds need other fields.
    pub by_length: [AtomicU64; WAIT_LENGTHS],
    /// Total length of these waits in nanoseconds.
    pub waited_ns: AtomicU64,
    /// Length of the longest wait in nanoseconds.
    pub longest_ns: AtomicU64,
}

/// The gate: the word by which the manager lets a container use a device or makes it wait. Processes wait for it with a
/// futex on this word.
///
/// During a lease the manager changes the counting part of the word at every tick (about a millisecond). So a single
/// comparison tells a launch that nothing has happened since its thread last saw the word. If the word has changed, the
/// launch takes the slow path: it places a progress marker and looks at the clock. A thread's first launch after a tick
/// is therefore always marked, so that even a rare long kernel is seen.
///
/// No flag announces that a gate is about to open. It was tried: waking the next container early gained 0.1 points of a
/// share and cost processor time on both sides.
pub mod gate {
    /// Set: launches may go on.
    pub const OPEN: u32 = 1;
    /// Set together with [`OPEN`]: the device is not shared in time for now. There are no ticks and no markers, and
    /// work in flight is not bounded.
    pub const FREE: u32 = 2;
    /// Set without [`OPEN`]: the manager is awake and reads [`SlotDevice::waiting`](super::SlotDevice::waiting) by
    /// itself, so a waiting thread need not ring: see [`handshake`](crate::handshake).
    pub const WATCHED: u32 = 2;
    /// Increment of the counting part.
    pub const TICK: u32 = 4;
}

/// The content of the ledger file.
#[repr(C)]
pub struct Ledger {
    /// See [`Header`], with [`LEDGER_MAGIC`].
    pub header: Header,
    /// Reserved, zero.
    pub reserved: [u64; 12],
    /// The container's use of each device's memory, in the order of [`Limits::devices`].
    pub devices: [Account; DEVICES_MAX],
    /// The container's use of the host's page-locked memory.
    pub host: Account,
    /// Fills the first page.
    pub reserved_page: [u64; 224],
    /// The owner of each slot: see [`owner`].
    pub owners: [AtomicU64; SLOTS_MAX],
    /// When each owner was started: field 22 of `/proc/PID/stat`, in clock ticks since boot.
    pub start_times: [AtomicU64; SLOTS_MAX],
    /// The slots, one page each: processes share no cache line, and each process can register its page with the device.
    /// The contents of a slot without an owner mean nothing.
    pub slots: [Slot; SLOTS_MAX],
}

/// A container's use of one memory: a device's, or the host's page-locked memory.
#[repr(C, align(128))]
pub struct Account {
    /// Bytes in use by all slots together, in the low 48 bits; above them a count of changes: see
    /// [`ledger`](crate::ledger).
    pub used: AtomicU64,
    /// The most bytes that have been in use at a time.
    pub peak_bytes: AtomicU64,
    /// Requests for memory that were refused because of the limit.
    pub refused: AtomicU64,
    /// While the container paces itself: the time up to which it has paid for its device time (`CLOCK_MONOTONIC` in
    /// nanoseconds). See [`pacing`](crate::pacing).
    pub charged_until_ns: AtomicU64,
    /// While the container paces itself: the time at which it has earned the time that it used (`CLOCK_MONOTONIC` in
    /// nanoseconds). It launches nothing before.
    pub paced_until_ns: AtomicU64,
    /// The most that the driver may have taken beyond the allocations of the ledger because it gives out whole blocks:
    /// see [`rounding`](crate::rounding). Only its growth since a look of the manager has a meaning, because the part
    /// of killed processes stays in it.
    pub rounding_bytes: AtomicU64,
    /// Reserved, zero.
    pub reserved: [u64; 10],
}

impl Ledger {
    /// Account number `number`: that of a device, or [`HOST_ACCOUNT`].
    #[inline]
    #[must_use]
    pub fn account(&self, number: usize) -> Option<&Account> {
        if number == HOST_ACCOUNT { Some(&self.host) } else { self.devices.get(number) }
    }
}

/// How many progress markers a process may have in flight on each of its `device_count` devices: they share the cells
/// equally.
#[must_use]
pub fn markers_per_device(device_count: usize) -> usize {
    (MARKER_CELLS / device_count.clamp(1, DEVICES_MAX)).min(MARKERS_MAX)
}

impl Slot {
    /// The row of device number `device`. When all work that was in a marker's stream before it is done, the device
    /// writes the number `n` of the marker into element `n` modulo the row's length. Numbers begin at 1. At most as
    /// many markers as the row has elements are in flight.
    #[inline]
    #[must_use]
    pub fn row(&self, device: usize) -> Option<&[AtomicU64]> {
        let cells = self.markers_per_device.load(Ordering::Relaxed).clamp(1, MARKERS_MAX as u64) as usize;
        self.markers.get(device.checked_mul(cells)?..)?.get(..cells)
    }

    /// The word with what the process holds in account number `number`: bytes, and operations under way (see
    /// [`ledger`](crate::ledger)).
    #[inline]
    #[must_use]
    pub fn memory(&self, number: usize) -> Option<&AtomicU64> {
        if number == HOST_ACCOUNT { Some(&self.host_memory) } else { Some(&self.devices.get(number)?.memory) }
    }
}

/// A process's part of the ledger.
#[repr(C)]
#[cfg_attr(not(loom), repr(align(4096)))]
pub struct Slot {
    /// The process's use of each device.
    pub devices: [SlotDevice; DEVICES_MAX],
    /// Inode number of the process's pid namespace: a pid has no meaning outside it.
    pub pid_namespace: AtomicU64,
    /// Page-locked host memory: bytes in use and operations under way, as in [`SlotDevice::memory`].
    pub host_memory: AtomicU64,
    /// Number of cells in [`Slot::markers`] for each device, as the process has divided them: see
    /// [`markers_per_device`].
    pub markers_per_device: AtomicU64,
    /// Reserved, zero.
    pub reserved: [u64; 125],
    /// Progress markers, a row for each device of the slice: see [`Slot::row`].
    pub markers: [AtomicU64; MARKER_CELLS],
}

/// A process's use of one device.
#[repr(C, align(128))]
pub struct SlotDevice {
    /// Bytes in use and operations under way: see [`ledger`](crate::ledger).
    pub memory: AtomicU64,
    /// Threads that wait at the gate now.
    pub waiting: AtomicU32,
    /// Not zero: the device writes the markers. Zero: the process does, when a query of the driver shows that work is
    /// done.
    pub markers_by_device: AtomicU32,
    /// Number of the newest marker that was put into a stream.
    pub marker_submitted: AtomicU64,
    /// When the newest marker was put into a stream: `CLOCK_MONOTONIC` in nanoseconds.
    pub marker_submitted_ns: AtomicU64,
    /// When work was first in flight again after the process's work on the device had drained: the time at which the
    /// first marker was put or, if the container paces itself, at which its launch was admitted. `CLOCK_MONOTONIC` in
    /// nanoseconds.
    pub busy_since_ns: AtomicU64,
    /// Launches; the number is updated at each marker.
    pub launches: AtomicU64,
    /// Nanoseconds for which launches of all threads have waited, at the gate or because the container paces itself.
    pub throttled_ns: AtomicU64,
    /// Number of copies and memsets.
    pub copies: AtomicU64,
    /// Bytes that these copies and memsets moved.
    pub copied_bytes: AtomicU64,
    /// Nanoseconds for which threads waited for copies and memsets.
    pub copy_ns: AtomicU64,
    /// Bytes that the process uses of the device beyond what it holds here (its context, its modules). The manager
    /// learns them from the driver and writes them for the container's process lists; no decision depends on them.
    pub overhead_bytes: AtomicU64,
    /// Device time that the process used in the last second, in thousandths of the device's time. Also written by the
    /// manager for display only.
    pub used_permille: AtomicU64,
    /// Number of the process's contexts.
    pub contexts: AtomicU64,
    /// Bytes of [`SlotDevice::memory`] that are reserved for these contexts.
    pub context_bytes: AtomicU64,
    /// Bytes that the driver is being asked for, or is taking back, and that [`SlotDevice::memory`] may have already or
    /// still. Only large amounts are here: see [`rounding`](crate::rounding).
    pub moving_bytes: AtomicU64,
    /// Reserved, zero.
    pub reserved: u64,
}

/// The owner of a slot: one word in [`Ledger::owners`].
///
/// Bits 0 to 31 hold a pid in the owner's pid namespace: the owner's or, while the slot is given back, that of the
/// reclaiming process (0: the manager). Bits 32 to 55 hold a generation that grows with each owner, bits 56 to 63 the
/// state. A slot never moves, so slot and generation together identify one owner.
pub mod owner {
    /// The slot is free.
    pub const FREE: u64 = 0;
    /// A process has taken the slot and is filling it in; it holds no memory yet.
    pub const CLAIMED: u64 = 1;
    /// The slot belongs to a process.
    pub const ATTACHED: u64 = 2;
    /// The owner is dead, and its memory is being given back.
    pub const RECLAIMING: u64 = 3;

    /// The word for `state`, `generation` (its low 24 bits) and `pid`.
    #[must_use]
    pub const fn word(state: u64, generation: u32, pid: u32) -> u64 {
        state << 56 | (generation as u64 & 0xFF_FFFF) << 32 | pid as u64
    }

    /// The state in `word`.
    #[must_use]
    pub const fn state(word: u64) -> u64 {
        word >> 56
    }

    /// The generation in `word`.
    #[must_use]
    pub const fn generation(word: u64) -> u32 {
        (word >> 32) as u32 & 0xFF_FFFF
    }

    /// The pid in `word`.
    #[must_use]
    pub const fn pid(word: u64) -> u32 {
        word as u32
    }
}

#[cfg(not(loom))]
const _: () = {
    use core::mem::{align_of, offset_of, size_of};
    assert!(size_of::<Header>() == 32);
    assert!(offset_of!(Limits, heartbeat_ns) == 32 && offset_of!(Limits, devices) == 128);
    assert!(size_of::<DeviceLimits>() == 128 && offset_of!(DeviceLimits, memory_limit_bytes) == 24);
    assert!(offset_of!(DeviceLimits, uuid) == 40);
    assert!(offset_of!(DeviceLimits, context_bytes) == 56 && size_of::<DeviceCounters>() == 128);
    assert!(offset_of!(DeviceLimits, rounding_seen) == 80 && offset_of!(Account, rounding_bytes) == 40);
    assert!(offset_of!(Limits, counters) == 128 + 128 * DEVICES_MAX);
    assert!(size_of::<DeviceWaits>() == 128 && offset_of!(Limits, waits) == 128 + 256 * DEVICES_MAX);
    assert!(size_of::<Limits>() == 128 + 384 * DEVICES_MAX && size_of::<Limits>() <= LIMITS_FILE_BYTES);
    assert!(size_of::<Account>() == 128 && offset_of!(Ledger, devices) == 128);
    assert!(offset_of!(Ledger, host) == 128 + 128 * DEVICES_MAX);
    assert!(offset_of!(Ledger, owners) == 4096 && offset_of!(Ledger, start_times) == 4096 + 8 * SLOTS_MAX);
    assert!(offset_of!(Ledger, slots) == 4096 + 16 * SLOTS_MAX && align_of::<Ledger>() == 4096);
    assert!(size_of::<SlotDevice>() == 128 && size_of::<Slot>() == 4096);
    assert!(offset_of!(Slot, pid_namespace) == 2048 && offset_of!(Slot, markers) == 3072);
    assert!(size_of::<Ledger>() == 4096 + 4112 * SLOTS_MAX && size_of::<Ledger>() <= LEDGER_FILE_BYTES);
    assert!(size_of::<AttachMessage>() == 24);
};

#[cfg(test)]
#[cfg(not(loom))]
mod tests {
    use super::*;

    #[test]
    fn a_look_that_is_under_way_is_not_the_next_one() {
        // Even: no look is under way. The next one begins with 5 and ends with 6.
        assert_eq!(end_of_next_look(4), 6);
        // Odd: one is under way, and ends with 6. The next one begins with 7 and ends with 8.
        assert_eq!(end_of_next_look(5), 8);
        assert_eq!(end_of_next_look(0), 2);
    }

    #[test]
    fn rows_divide_the_cells_without_overlap() {
        // SAFETY: these are integers and atomics of them: all bytes zero is valid.
        let slot = unsafe { Box::<Slot>::new_zeroed().assume_init() };
        for (devices, cells) in [(0, 64), (1, 64), (2, 64), (3, 42), (8, 16), (16, 8), (usize::MAX, 8)] {
            assert_eq!(markers_per_device(devices), cells, "{devices} devices");
            slot.markers_per_device.store(cells as u64, Ordering::Relaxed);
            for device in 0..devices.min(DEVICES_MAX) {
                let row = slot.row(device).unwrap();
                assert_eq!((row.len(), row.as_ptr()), (cells, slot.markers[device * cells..].as_ptr()));
            }
        }
        // A container can write any number there.
        for forged in [0, 1, 2, 129, u64::MAX] {
            slot.markers_per_device.store(forged, Ordering::Relaxed);
            for device in [0, 1, 2, 15, usize::MAX] {
                assert!(slot.row(device).is_none_or(|row| (1..=MARKERS_MAX).contains(&row.len())));
            }
        }
    }

    #[test]
    fn an_owner_word_keeps_its_parts() {
        let word = owner::word(owner::ATTACHED, 0x12_3456, u32::MAX);
        assert_eq!(owner::state(word), owner::ATTACHED);
        assert_eq!(owner::generation(word), 0x12_3456);
        assert_eq!(owner::pid(word), u32::MAX);
    }
}
