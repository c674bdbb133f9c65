//! The three ways in which everything is run.

use std::fmt;

use clap::{Args, ValueEnum};
use serde::{Deserialize, Serialize};

/// How a program of the check is run.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Way {
    /// As it is.
    Bare,
    /// In a slice that holds the whole device.
    Unlimited,
    /// In a slice of [`Limits`].
    Limited,
}

/// What the limited slice has. Workers are told these numbers: nothing is judged by what the shim itself shows.
#[derive(Args, Clone, Copy, PartialEq, Eq, Debug, Serialize)]
pub(crate) struct Limits {
    /// Memory of the slice.
    #[arg(long)]
    pub(crate) memory_bytes: u64,
    /// Share of the device's time.
    #[arg(long)]
    pub(crate) core_percent: u32,
    /// What a context takes of the device, measured without a slice.
    #[arg(long)]
    pub(crate) context_bytes: u64,
}

/// What the cases take beside their contexts. Every device since sm_50 has it.
const CASES_BYTES: u64 = 1536 << 20;
/// Contexts that a case has at the same time.
const CONTEXTS: u64 = 4;
const LIMITED_CORE_PERCENT: u32 = 50;
/// The limited slice is a whole number of these.
const LIMIT_GRANULE_BYTES: u64 = 64 << 20;

impl Limits {
    /// Limits that leave room for the cases where each context takes `context_bytes`.
    pub(crate) fn with_contexts_of(context_bytes: u64) -> Limits {
        let memory_bytes = (CASES_BYTES + CONTEXTS * context_bytes).next_multiple_of(LIMIT_GRANULE_BYTES);
        Limits { memory_bytes, core_percent: LIMITED_CORE_PERCENT, context_bytes }
    }

    /// The arguments that hand them to a worker.
    pub(crate) fn args(&self) -> [String; 6] {
        let Limits { memory_bytes, core_percent, context_bytes } = self;
        let numbers = [memory_bytes.to_string(), core_percent.to_string(), context_bytes.to_string()];
        let [memory, core, context] = numbers;
        ["--memory-bytes".into(), memory, "--core-percent".into(), core, "--context-bytes".into(), context]
    }
}

impl Way {
    /// All of them, in the order in which they are run.
    pub(crate) const ALL: [Way; 3] = [Way::Bare, Way::Unlimited, Way::Limited];

    /// The slice, with `limits` if it is the limited one; `None`: the program runs in none.
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
