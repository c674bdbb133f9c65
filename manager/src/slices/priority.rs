//! Which slice goes first where several want a device.

use std::fmt;

use clap::ValueEnum;
use serde::{Deserialize, Serialize};

/// A slice's priority class. It takes from nobody what they requested: it decides among those within their requests,
/// and about what is left over.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub enum PriorityClass {
    /// Gets the device within one shortest lease plus one kernel of its holder, within its request.
    LatencyCritical,
    /// The usual one.
    #[default]
    Standard,
    /// Goes after the others.
    Batch,
}

impl PriorityClass {
    /// The priority by which an arbiter compares; the greater goes first.
    #[must_use]
    pub(crate) fn priority(self) -> i32 {
        match self {
            PriorityClass::LatencyCritical => 1,
            PriorityClass::Standard => 0,
            PriorityClass::Batch => -1,
        }
    }

    /// Its name, as it is written everywhere.
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
