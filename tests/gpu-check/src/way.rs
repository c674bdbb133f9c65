//! The three ways in which everything runs.

use std::fmt;

use clap::{Args, ValueEnum};
use serde::{Deserialize, Serialize};

/// How a program of the check runs.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Way {
    /// Without a slice.
    Bare,
    /// In a slice that holds the whole device.
    Unlimited,
    /// In a slice of [`Limits`].
    Limited,
}

/// The limits of the limited slice. Workers get these numbers, so that no judgement relies on figures shown by the
/// shim.
#[derive(Args, Clone, Copy, PartialEq, Eq, Debug, Serialize)]
pub(crate) struct Limits {
    /// Memory of the slice.
    #[arg(long)]
    pub(crate) memory_bytes: u64,
    /// Share of the device's time.
    #[arg(long)]
    pub(crate) core_percent: u32,
    /// Device memory of a context, measured without a slice.
    #[arg(long)]
    pub(crate) context_bytes: u64,
}

/// Memory for the cases in addition to their contexts. Every device since sm_50 has that much.
const CASES_BYTES: u64 = 1536 << 20;
/// Maximum number of contexts of a case at the same time.
const CONTEXTS: u64 = 4;
const LIMITED_CORE_PERCENT: u32 = 50;
/// The limited slice's memory is a multiple of this.
const LIMIT_GRANULE_BYTES: u64 = 64 << 20;

impl Limits {
    /// Limits with enough memory for the cases if each context takes `context_bytes`.
    pub(crate) fn with_contexts_of(context_bytes: u64) -> Limits {
        let memory_bytes = (CASES_BYTES + CONTEXTS * context_bytes).next_multiple_of(LIMIT_GRANULE_BYTES);
        Limits { memory_bytes, core_percent: LIMITED_CORE_PERCENT, context_bytes }
    }

    /// The limits as arguments of a worker.
    pub(crate) fn args(&self) -> [String; 6] {
        let Limits { memory_bytes, core_percent, context_bytes } = self;
        let numbers = [memory_bytes.to_string(), core_percent.to_string(), context_bytes.to_string()];
        let [memory, core, context] = numbers;
        ["--memory-bytes".into(), memory, "--core-percent".into(), core, "--context-bytes".into(), context]
    }
}

impl Way {
    /// All ways, in the order in which they run.
    pub(crate) const ALL: [Way; 3] = [Way::Bare, Way::Unlimited, Way::Limited];

    /// The slice for this way; `None`: the program runs without a slice.
    pub(crate) fn share(self, limits: &Limits) -> Option<Share> {
        match self {
            Way::Bare => None,
            Way::Unlimited => Some(Share { core_percent: 100, core_limit_percent: 100, memory: "100%".to_owned() }),
            Way::Limited => Some(Share::new(limits.core_percent, limits.memory_bytes)),
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

/// A slice of the device, as arguments of `aliquot run`.
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
    /// A slice with this share as request and limit, and this memory.
    pub(crate) fn new(core_percent: u32, memory_bytes: u64) -> Share {
        Share { core_percent, core_limit_percent: core_percent, memory: format!("{memory_bytes}B") }
    }
}
