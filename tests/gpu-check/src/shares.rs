//! Shares of device time that slices get, measured by the work done in them.
//!
//! A share is the rate at which a program's kernels complete, as a part of the rate at which the same kernels complete
//! without a slice on an idle device. So neither the clock of the device nor the time between kernels matters.
//!
//! ```text
//! series.rs ── the list of measurements
//!    └── measure.rs: starts the workers of a case, converts their rates to shares ── load.rs: the worker
//! compare.rs: the same on a real and on a simulated device
//! neighbours.rs: two programs in slices, against the driver's own sharing
//! leases.rs: what a change of lease costs
//! ```

mod compare;
pub(crate) mod leases;
mod load;
mod measure;
pub(crate) mod neighbours;
mod series;

pub(crate) use compare::{Compared, compare};
pub(crate) use load::{Load, monotonic_ns};
pub(crate) use measure::Measurement;
pub(crate) use series::Series;

const US: u64 = 1_000;
const MS: u64 = 1_000_000;
const SECOND_NS: u64 = 1_000_000_000;
