//! Quantities as people write them: `30`, `30%`, `4GiB`, `25%`.
//!
//! This is the one place where they are parsed. Parsing is strict: a quantity with two possible meanings is refused,
//! and the error says what is accepted. There is no floating point: a fraction such as `1.1GiB` is rounded down to
//! whole bytes exactly.
//!
//! The quantities of Kubernetes are another language, which `aliquot_dialects::quantity` reads: there `4G` is 4·1000³
//! bytes and `4m` four thousandths, and both are refused here.

mod amounts;
mod decimal;
mod memory;
mod share;
mod span;
mod text;

use std::fmt;

pub(crate) use aliquot_terminal::human::{bytes_human, percent_human, span_human, thousandths_human};
pub(crate) use amounts::{Bytes, CountLimit, MemoryLimit, Thousandths};
pub(crate) use memory::{HostMemory, Memory, bytes_exact};
pub(crate) use share::CorePercent;
pub(crate) use span::{MinRuntime, Span};
pub(crate) use text::{duration_human, millipercent_human};

/// The problem with a quantity.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct QuantityError {
    /// The problem, with the value.
    problem: String,
    /// The forms that are accepted.
    accepted: &'static str,
}

impl fmt::Display for QuantityError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}; {}", self.problem, self.accepted)
    }
}

impl std::error::Error for QuantityError {}
