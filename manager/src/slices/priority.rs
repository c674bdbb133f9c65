//! The order of slices that want the same device.

use std::fmt;

use clap::ValueEnum;
use serde::{Deserialize, Serialize};

/// A slice's priority class. It never takes what another slice has requested: it orders slices within their requests,
/// and the distribution of what is left over.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub enum PriorityClass {
    /// Gets the device after at most one shortest lease plus one kernel of the holder, while it is within its request.
    LatencyCritical,
    /// The default.
    #[default]
    Standard,
    /// Goes after the others.
    Batch,
}

impl PriorityClass {
    /// The arbiter's priority; greater goes first.
    #[must_use]
    pub(crate) fn priority(self) -> i32 {
        match self {
            PriorityClass::LatencyCritical => 1,
            PriorityClass::Standard => 0,
            PriorityClass::Batch => -1,
        }
    }

    /// Its name in configuration and output.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            PriorityClass::LatencyCritical => "latency-critical",
            PriorityClass::Standard => "standard",
            PriorityClass::Batch => "batch",
        }
    }
}

impl fmt::Display for PriorityClass {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}
