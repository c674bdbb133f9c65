//! The layout of the state file: a header, the devices, and one record for each process. All fields are atomic
//! integers.

use core::sync::atomic::{AtomicU32, AtomicU64};

use crate::lock::OwnedLock;

/// Maximum number of devices of a machine.
pub const DEVICES_MAX: usize = 64;
/// Maximum number of processes of a machine.
pub const PROCESSES_MAX: usize = 1024;

/// Number of samples kept. They span more than one second.
pub(crate) const HISTORY_SAMPLES: usize = 8;

/// `alq-fake` in ASCII.
pub(crate) const MAGIC: u64 = u64::from_be_bytes(*b"alq-fake");
/// Version of this layout; must change with every change of this file.
pub(crate) const VERSION: u32 = 6;

/// The layout of the whole state file.
#[repr(C)]
pub(crate) struct State {
    /// [`MAGIC`] once the state is ready.
    pub(crate) magic: AtomicU64,
    /// [`VERSION`].
    pub(crate) version: AtomicU32,
    /// Records with this index or a higher one have never been used.
    pub(crate) record_high_water: AtomicU32,
    /// A digest of the devices, on which all processes must agree.
    pub(crate) devices_digest: AtomicU64,
    /// A bit for each device that is a GPU instance: set while the instance exists.
    pub(crate) gpu_instances: AtomicU64,
    /// A bit for each GPU instance: set while its compute instance exists.
    pub(crate) compute_instances: AtomicU64,
    /// Rung when a fault of a device was set or cleared.
    pub(crate) fault_bell: AtomicU32,
    pub(crate) devices: [Device; DEVICES_MAX],
    pub(crate) records: [Record; PROCESSES_MAX],
}

/// The state of one device that all processes share.
#[repr(C, align(64))]
pub(crate) struct Device {
    /// Held while memory is reserved.
    pub(crate) memory: OwnedLock,
    /// The most bytes that all processes together have held.
    pub(crate) memory_peak_bytes: AtomicU64,
    /// Held while the time slice fields below are changed.
    pub(crate) time_slices: OwnedLock,
    /// Token of the process that has the time slice; 0: no process has it.
    pub(crate) holder: AtomicU32,
    /// Token of the process that ran last.
    pub(crate) last_holder: AtomicU32,
    /// Counts time slices, so that a holder notices that its time slice was taken away.
    pub(crate) time_slice_id: AtomicU64,
    /// The instant up to which the device's time has been given out.
    pub(crate) free_at_ns: AtomicU64,
    /// The instant at which the present time slice began.
    pub(crate) turn_start_ns: AtomicU64,
    /// The instant at which the present time slice ends.
    pub(crate) turn_end_ns: AtomicU64,
    /// When the device was last handed over, in real time, so that a waiter that never comes is noticed.
    pub(crate) released_at_ns: AtomicU64,
    /// The number of tickets given out so far.
    pub(crate) next_ticket: AtomicU64,
    /// Device time used since the state was made, by all processes including ended ones.
    pub(crate) busy_ns: AtomicU64,
    /// Not 0: MIG mode has been switched off.
    pub(crate) mig_is_off: AtomicU32,
    /// Not 0: the device has stopped answering.
    pub(crate) is_lost: AtomicU32,
    /// The action that the driver requests, as NVML's number.
    pub(crate) recovery_action: AtomicU32,
    /// Not 0: the driver answers no question about the device's MIG mode and instances.
    pub(crate) mig_is_silent: AtomicU32,
    /// Critical errors: their number in the upper 32 bits, the last XID in the lower 32 bits.
    pub(crate) critical_errors: AtomicU64,
    pub(crate) history: History,
}

/// The record of one process.
#[repr(C, align(64))]
pub(crate) struct Record {
    /// 0: free. Otherwise the record's generation, which identifies its present owner.
    pub(crate) generation: AtomicU32,
    /// The owner's process id in its own namespace.
    pub(crate) pid: AtomicU32,
    /// The owner's process id namespace, as an inode number.
    pub(crate) pid_namespace: AtomicU64,
    /// The owner's start time in clock ticks since boot.
    pub(crate) start_ticks: AtomicU64,
    /// How often the record has been given out.
    pub(crate) uses: AtomicU32,
    /// When the owner's death was noticed; 0: not yet.
    pub(crate) died_at_ns: AtomicU64,
    pub(crate) devices: [Share; DEVICES_MAX],
}

/// The state of one process on one device.
#[repr(C, align(64))]
pub(crate) struct Share {
    /// Bytes held.
    pub(crate) memory_bytes: AtomicU64,
    /// The part of `memory_bytes` that NVML lists for no process.
    pub(crate) unlisted_bytes: AtomicU64,
    /// Device time used.
    pub(crate) busy_ns: AtomicU64,
    /// Contexts on the device.
    pub(crate) contexts: AtomicU32,
    /// Rung when this process may get the time slice.
    pub(crate) bell: AtomicU32,
    /// Ticket in the queue for the device; 0: the process does not want the device.
    pub(crate) ticket: AtomicU64,
    /// The instant on the timeline since which the process has wanted the device.
    pub(crate) wanted_since_ns: AtomicU64,
    pub(crate) history: History,
}

/// Samples of the device time used.
#[repr(C)]
pub(crate) struct History {
    /// When device time was last used.
    pub(crate) charged_at_ns: AtomicU64,
    /// Number of samples taken.
    pub(crate) count: AtomicU64,
    pub(crate) samples: [Sample; HISTORY_SAMPLES],
}

/// The device time used up to an instant.
#[repr(C)]
pub(crate) struct Sample {
    pub(crate) at_ns: AtomicU64,
    pub(crate) busy_ns: AtomicU64,
}
