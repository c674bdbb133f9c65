//! MIG instances: which there are, and which there could be.

use std::collections::BTreeMap;
use std::fmt;
use std::ops::Range;

use serde::{Deserialize, Serialize};

/// Which instance of a GPU in MIG mode a device is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MigInstance {
    /// The GPU.
    pub gpu_uuid: String,
    /// For example `3g.40gb`; empty if the driver does not tell.
    pub profile: String,
    /// Where it is on the GPU, if known.
    pub placement: Option<Placement>,
}

/// What a GPU in MIG mode can be divided into, and what of it is taken.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Partitioning {
    /// The kinds of instances.
    pub profiles: Vec<MigProfile>,
    /// Where there are instances now, whoever has made them, and whether programs can run on them or not yet.
    pub occupied: Vec<Placement>,
}

/// A kind of MIG instance.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MigProfile {
    /// For example `3g.40gb`.
    pub name: String,
    /// Its memory.
    pub memory_bytes: u64,
    /// What it takes of its GPU besides memory slices, by name: compute slices, engines.
    pub units: BTreeMap<String, u32>,
    /// Where it can be.
    pub placements: Vec<Placement>,
}

/// Where a MIG instance is on its GPU, in memory slices.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Placement {
    /// The first one.
    pub start: u32,
    /// How many.
    pub size: u32,
}

impl Placement {
    /// Its memory slices.
    #[must_use]
    pub fn slices(self) -> Range<u32> {
        self.start..self.start.saturating_add(self.size)
    }

    /// Whether both have a memory slice in common, so that only one of them can be taken.
    #[must_use]
    pub fn overlaps(self, other: Placement) -> bool {
        self.slices().start < other.slices().end && other.slices().start < self.slices().end
    }
}

/// As `nvidia-smi` writes it.
impl fmt::Display for Placement {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.start, self.size)
    }
}

/// A MIG instance that is or could be: which, and where.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Partition {
    /// The GPU.
    pub gpu_uuid: String,
    /// The name of its profile.
    pub profile: String,
    /// Where it is on the GPU.
    pub placement: Placement,
}

impl Partition {
    /// Whether only one of both can be.
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
