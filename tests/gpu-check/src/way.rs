//! The three ways in which everything is run.

use std::fmt;

use clap::ValueEnum;
use serde::{Deserialize, Serialize};

/// How a program of the check is run.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Way {
    /// As it is.
    Bare,
    /// In a slice that holds the whole device.
    Unlimited,
    /// In a slice of half the device's time and [`LIMITED_MEMORY_BYTES`].
    Limited,
}

/// Memory of the limited slice. Room for a context and what the cases take; every device since sm_50 has it.
pub(crate) const LIMITED_MEMORY_BYTES: u64 = 1536 << 20;
/// Share of the device's time of the limited slice.
pub(crate) const LIMITED_CORE_PERCENT: u32 = 50;

impl Way {
    /// All of them, in the order in which they are run.
    pub(crate) const ALL: [Way; 3] = [Way::Bare, Way::Unlimited, Way::Limited];

    /// The slice; `None`: the program runs in none.
    pub(crate) fn share(self) -> Option<Share> {
        match self {
            Way::Bare => None,
            Way::Unlimited => Some(Share { core_percent: 100, core_limit_percent: 100, memory: "100%".to_owned() }),
            Way::Limited => Some(Share::new(LIMITED_CORE_PERCENT, LIMITED_MEMORY_BYTES)),
        }
    }
}

impl fmt::Display for Way {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Way::Bare => "bare",
            Way::Unlimited => "unlimited",
            Way::Limited => "limited",
        })
    }
}

/// A slice of the device, as `aliquot run` is told.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Share {
    /// `--gpu-core`.
    pub(crate) core_percent: u32,
    /// `--gpu-core-limit`.
    pub(crate) core_limit_percent: u32,
    /// `--gpu-memory`.
    pub(crate) memory: String,
}

impl Share {
    /// A slice of so much time and memory.
    pub(crate) fn new(core_percent: u32, memory_bytes: u64) -> Share {
        Share { core_percent, core_limit_percent: core_percent, memory: format!("{memory_bytes}B") }
    }
}
