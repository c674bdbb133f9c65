//! MIG instances: those that exist, and those that could be made.

use std::collections::BTreeMap;
use std::fmt;
use std::ops::Range;

use serde::{Deserialize, Serialize};

/// The GPU, the profile and the place of a device that is a MIG instance.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MigInstance {
    /// The UUID of the GPU in MIG mode.
    pub gpu_uuid: String,
    /// For example `3g.40gb`; empty if the driver does not tell.
    pub profile: String,
    /// Where it is on the GPU, if known.
    pub placement: Option<Placement>,
}

/// The instances that a GPU in MIG mode can be divided into, and its places that are taken.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Partitioning {
    /// The kinds of instances that the GPU can hold.
    pub profiles: Vec<MigProfile>,
    /// The places of all instances now: also of those that other programs have made, and of those that programs cannot
    /// run on yet.
    pub occupied: Vec<Placement>,
}

/// A kind of MIG instance.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MigProfile {
    /// The profile's name, for example `3g.40gb`.
    pub name: String,
    /// The instance's memory, in bytes.
    pub memory_bytes: u64,
    /// The GPU's resources that an instance takes besides memory slices, by name: compute slices, engines.
    pub units: BTreeMap<String, u32>,
    /// The places on the GPU where an instance can be.
    pub placements: Vec<Placement>,
}

/// Where a MIG instance is on its GPU, in memory slices.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Placement {
    /// The first memory slice.
    pub start: u32,
    /// The number of memory slices.
    pub size: u32,
}

impl Placement {
    /// The range of its memory slices.
    #[must_use]
    pub fn slices(self) -> Range<u32> {
        self.start..self.start.saturating_add(self.size)
    }

    /// Whether the two places have a memory slice in common, so that only one of them can be taken.
    #[must_use]
    pub fn overlaps(self, other: Placement) -> bool {
        self.slices().start < other.slices().end && other.slices().start < self.slices().end
    }
}

/// Written as `nvidia-smi` writes it.
impl fmt::Display for Placement {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.start, self.size)
    }
}

/// A MIG instance that exists or could be made: its GPU, profile and place.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Partition {
    /// The UUID of the GPU.
    pub gpu_uuid: String,
    /// The name of its profile.
    pub profile: String,
    /// Where it is on the GPU.
    pub placement: Placement,
}

impl Partition {
    /// Whether only one of the two instances can exist.
    #[must_use]
    pub fn excludes(&self, other: &Partition) -> bool {
        self.gpu_uuid == other.gpu_uuid && self.placement.overlaps(other.placement)
    }
}

impl fmt::Display for Partition {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Partition { gpu_uuid, profile, placement } = self;
        write!(f, "MIG instance {profile} at {placement} of {gpu_uuid}")
    }
}
