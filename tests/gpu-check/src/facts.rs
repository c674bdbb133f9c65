//! Facts about the device and its driver, determined without a slice: behaviour on which the shim and the manager rely,
//! and figures from which Aliquot's performance can be predicted. They have the form of cases.

mod contexts;
mod device;
mod lookup;
mod managed;
mod markers;
mod next_launches;
mod registration;
mod rounding;
mod time_slices;

pub(crate) use contexts::ask_stale;
pub(crate) use markers::overlap;
pub(crate) use time_slices::watch_gaps;

use std::time::{Duration, Instant};

use crate::cases::Case;
use crate::cuda::{Cuda, Done};
use crate::overhead::median;

/// All facts, in the order in which they are determined.
pub(crate) const FACTS: &[Case] = &[
    Case { name: "device", about: "what the device and NVML say of themselves", run: device::run },
    Case { name: "addresses", about: "whether each function has one address, however it is found", run: lookup::run },
    Case { name: "registration", about: "which files\u{2019} pages the device can write into", run: registration::run },
    Case { name: "marker-cost", about: "what a write by the device costs, and an event", run: markers::run },
    Case { name: "next-launches", about: "what a marker costs between kernels that overlap", run: next_launches::run },
    Case { name: "contexts", about: "what contexts take, and what a stale one answers", run: contexts::run },
    Case { name: "rounding", about: "what the driver takes for what is asked for", run: rounding::run },
    Case { name: "managed", about: "whether managed memory is listed for its process", run: managed::run },
    Case { name: "time-slices", about: "how the driver itself shares time between processes", run: time_slices::run },
];

/// Lets the device write into a page of a file on a memory file system. Returns how long this took.
pub(crate) fn write_into_a_page(cuda: &Cuda) -> anyhow::Result<Duration> {
    registration::Page::register(cuda, &tempfile::tempfile_in("/dev/shm")?)?.write(cuda)
}

/// The median duration of `rounds` calls, in µs.
fn median_us(rounds: usize, mut call: impl FnMut() -> Done) -> Done<f64> {
    let mut each = Vec::with_capacity(rounds);
    for _ in 0..rounds {
        let start = Instant::now();
        call()?;
        each.push(start.elapsed().as_secs_f64() * 1e6);
    }
    Ok(median(each))
}
