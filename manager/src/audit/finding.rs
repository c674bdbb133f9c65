//! The kinds of findings, and their contents.

use std::time::SystemTime;

use crate::attribution::ProcessId;
use crate::inventory::DeviceUuid;

/// How the driver's view contradicts the ledgers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum Kind {
    /// A process of a slice uses the device without the shim.
    Unregistered,
    /// A process of a slice uses a device of which the slice has no part.
    ForeignDevice,
    /// A slice uses more than its memory limit, and the process holds more beyond the ledger than contexts and modules
    /// can be.
    MemoryBeyondLimit,
    /// A process keeps the device busy without a lease and without work in its ledger.
    TimeWithoutLease,
    /// A process of no slice uses a device that has slices.
    OutsideSlices,
    /// The region of a slice is damaged.
    DamagedRegion,
    /// An MPS server serves the device: either this machine's, though the device is shared in time, or one that a
    /// tenant has started in its slice.
    MpsServer,
}

impl Kind {
    /// The name in metrics and logs.
    #[must_use]
    pub(crate) fn as_str(self) -> &'static str {
        match self {
            Kind::Unregistered => "unregistered",
            Kind::ForeignDevice => "foreign_device",
            Kind::MemoryBeyondLimit => "memory_beyond_limit",
            Kind::TimeWithoutLease => "time_without_lease",
            Kind::OutsideSlices => "outside_slices",
            Kind::MpsServer => "mps_server",
            Kind::DamagedRegion => "damaged_region",
        }
    }

    /// What the process does, as part of a sentence.
    #[must_use]
    pub(super) fn in_words(self) -> &'static str {
        match self {
            Kind::Unregistered => "uses the device without the shim",
            Kind::ForeignDevice => "uses a device of which its slice has no part",
            Kind::MemoryBeyondLimit => "uses memory past its slice's limit",
            Kind::TimeWithoutLease => "keeps the device at work without a lease",
            Kind::OutsideSlices => "uses the device outside of all slices",
            Kind::MpsServer => "is an MPS server on the device",
            Kind::DamagedRegion => "is in a slice whose region is damaged",
        }
    }

    /// Whether a process with this finding may be stopped at all; the [judgement](super::judgement) decides each case.
    ///
    /// Time alone is not enough evidence: a kernel that was launched before the device was shared, or shortly before a
    /// lease ended, can run on with no marker behind it. The manager must not end processes outside of slices.
    #[must_use]
    pub(super) fn may_be_stopped(self) -> bool {
        match self {
            Kind::Unregistered | Kind::ForeignDevice | Kind::MemoryBeyondLimit => true,
            Kind::TimeWithoutLease | Kind::OutsideSlices | Kind::MpsServer | Kind::DamagedRegion => false,
        }
    }

    /// How long the evidence must be seen before it is believed. A process that is just attaching or ending looks like
    /// this for a moment.
    #[must_use]
    pub(super) fn patience_ns(self) -> u64 {
        match self {
            Kind::TimeWithoutLease => 5_000_000_000,
            _ => 1_000_000_000,
        }
    }
}

/// A suspicion: one kind of evidence against one process on one device.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Subject {
    pub(super) kind: Kind,
    pub(super) process: ProcessId,
    pub(super) device: DeviceUuid,
}

/// A finding of the audit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Finding {
    /// How the driver's view contradicts the ledgers.
    pub kind: Kind,
    /// The slice's name; `None`: outside of all slices.
    pub slice: Option<String>,
    /// The UUID of the device.
    pub device: DeviceUuid,
    /// The pid in the manager's pid namespace; 0 if the finding is about no single process.
    pub pid: u32,
    /// The command line of the process.
    pub command: String,
    /// Device memory that it uses; `None` if the driver does not say.
    pub memory_bytes: Option<u64>,
    /// When the evidence was first seen.
    pub since: SystemTime,
    /// When the process was stopped.
    pub stopped: Option<SystemTime>,
}
