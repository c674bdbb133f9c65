//! The state file: a header, the devices, one record per process. Everything is an atomic integer.

use core::sync::atomic::{AtomicU32, AtomicU64};

use crate::lock::OwnedLock;

/// Devices of a machine at most.
pub const DEVICES_MAX: usize = 64;
/// Processes of a machine at most.
pub const PROCESSES_MAX: usize = 1024;

/// Samples that are kept: more than a second's.
pub(crate) const HISTORY_SAMPLES: usize = 8;

/// `alq-fake` in ASCII.
pub(crate) const MAGIC: u64 = u64::from_be_bytes(*b"alq-fake");
/// Changes with every change of this file.
pub(crate) const VERSION: u32 = 6;

/// The whole file.
#[repr(C)]
pub(crate) struct State {
    /// [`MAGIC`] once the state is ready.
    pub(crate) magic: AtomicU64,
    /// [`VERSION`].
    pub(crate) version: AtomicU32,
    /// Records from here on have never been used.
    pub(crate) record_high_water: AtomicU32,
    /// A digest of what the processes must agree on: the devices.
    pub(crate) devices_digest: AtomicU64,
    /// The devices, one bit for each, that are GPU instances that were made.
    pub(crate) gpu_instances: AtomicU64,
    /// Those of them in which the compute instance was made as well.
    pub(crate) compute_instances: AtomicU64,
    /// Rung when a device may have gone bad or well.
    pub(crate) fault_bell: AtomicU32,
    pub(crate) devices: [Device; DEVICES_MAX],
    pub(crate) records: [Record; PROCESSES_MAX],
}

/// What the processes share of one device.
#[repr(C, align(64))]
pub(crate) struct Device {
    /// Held to reserve memory.
    pub(crate) memory: OwnedLock,
    /// The most bytes that all processes together have held.
    pub(crate) memory_peak_bytes: AtomicU64,
    /// Held to change anything below.
    pub(crate) turns: OwnedLock,
    /// Token of the process whose turn it is; 0: nobody's.
    pub(crate) holder: AtomicU32,
    /// Token of the process that ran last.
    pub(crate) last_holder: AtomicU32,
    /// Counts turns, so that a holder sees that its turn was taken away.
    pub(crate) turn_id: AtomicU64,
    /// The instant up to which the device's time is given out.
    pub(crate) free_at_ns: AtomicU64,
    /// The instant at which the present turn began.
    pub(crate) turn_start_ns: AtomicU64,
    /// The instant at which the present turn ends.
    pub(crate) turn_end_ns: AtomicU64,
    /// When the device was last handed over in real time, so that a waiter that never comes is noticed.
    pub(crate) released_at_ns: AtomicU64,
    /// The next waiter's number in the queue.
    pub(crate) next_ticket: AtomicU64,
    /// Device time used by all processes since the state was made, those that have ended included.
    pub(crate) busy_ns: AtomicU64,
    /// Not 0: its MIG mode was switched off.
    pub(crate) mig_is_off: AtomicU32,
    /// Not 0: it answers nobody.
    pub(crate) is_lost: AtomicU32,
    /// What the driver wants done with it, in NVML's numbers.
    pub(crate) recovery_action: AtomicU32,
    /// Critical errors that were reported: how many in the upper half, the last one's XID in the lower.
    pub(crate) critical_errors: AtomicU64,
    pub(crate) history: History,
}

/// One process.
#[repr(C, align(64))]
pub(crate) struct Record {
    /// 0: free; else the record's generation, which names its present owner.
    pub(crate) generation: AtomicU32,
    /// The owner's process id in its own namespace.
    pub(crate) pid: AtomicU32,
    /// The owner's process id namespace, as an inode number.
    pub(crate) pid_namespace: AtomicU64,
    /// The owner's start time in clock ticks since boot.
    pub(crate) start_ticks: AtomicU64,
    /// How often the record was given out.
    pub(crate) uses: AtomicU32,
    /// When the owner's death was noticed; 0: it was not.
    pub(crate) died_at_ns: AtomicU64,
    pub(crate) devices: [Share; DEVICES_MAX],
}

/// One process on one device.
#[repr(C, align(64))]
pub(crate) struct Share {
    /// Bytes held.
    pub(crate) memory_bytes: AtomicU64,
    /// Those of them that are listed for nobody.
    pub(crate) unlisted_bytes: AtomicU64,
    /// Device time used.
    pub(crate) busy_ns: AtomicU64,
    /// Contexts on the device.
    pub(crate) contexts: AtomicU32,
    /// Rung when it may be this process's turn.
    pub(crate) bell: AtomicU32,
    /// Place in the queue of those who want the device; 0: does not want it.
    pub(crate) ticket: AtomicU64,
    /// Since when it has wanted the device, on the timeline.
    pub(crate) wanted_since_ns: AtomicU64,
    pub(crate) history: History,
}

/// Samples of the device time used.
#[repr(C)]
pub(crate) struct History {
    /// When device time was used last.
    pub(crate) charged_at_ns: AtomicU64,
    /// Samples taken.
    pub(crate) count: AtomicU64,
    pub(crate) samples: [Sample; HISTORY_SAMPLES],
}

/// Device time used up to an instant.
#[repr(C)]
pub(crate) struct Sample {
    pub(crate) at_ns: AtomicU64,
    pub(crate) busy_ns: AtomicU64,
}
