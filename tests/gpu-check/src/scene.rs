//! The environment of a case: an open device, in one of the three ways.

use std::time::{Duration, Instant};

use aliquot_abi::cuda::CUresult;

use crate::cuda::{Cuda, Done, result_name};
use crate::findings::Findings;
use crate::way::{Limits, Way};

/// Tolerance for comparisons of memory. The driver takes memory in pieces, and the node manager counts the difference
/// to the requested size a moment later.
pub(crate) const ROUNDING_BYTES: u64 = 4 << 20;
/// Longest time until freed memory is free again and the node manager's figures agree with the driver's, on a busy
/// machine.
const SETTLE_TIMEOUT: Duration = Duration::from_secs(60);
/// If free memory is still changing after this time, it is taken as it is.
const STEADY_TIMEOUT: Duration = Duration::from_secs(5);
const SETTLE_INTERVAL: Duration = Duration::from_millis(20);
/// Number of equal consecutive readings for a steady value.
const STEADY_READINGS: u32 = 15;
/// Number of readings that take more than one second: the node manager compares its figures with the driver's once per
/// second.
const SETTLED_READINGS: u32 = 60;

/// The environment of a case.
pub(crate) struct Scene {
    /// The device.
    pub(crate) cuda: Cuda,
    /// How the case is run.
    pub(crate) way: Way,
    /// The limits with which the check has made the limited slice.
    pub(crate) limits: Limits,
}

impl Scene {
    /// Free bytes, read until they no longer change.
    pub(crate) fn steady_free(&self) -> Done<u64> {
        equal_readings(&self.cuda, STEADY_READINGS)
    }

    /// Free bytes, read until the node manager has compared its figures with the driver's.
    pub(crate) fn settled_free(&self) -> Done<u64> {
        settled_free(&self.cuda)
    }

    /// Waits until about `wanted` bytes are free. Returns the free bytes.
    pub(crate) fn wait_for_free(&self, wanted: u64) -> Done<u64> {
        let deadline = Instant::now() + SETTLE_TIMEOUT;
        loop {
            let free = self.cuda.memory()?.0;
            if is_about(free, wanted) || Instant::now() > deadline {
                return Ok(free);
            }
            std::thread::sleep(SETTLE_INTERVAL);
        }
    }

    /// In the limited slice, records whether free memory is about `before - bytes`. In the other ways the figure is
    /// that of the whole device, which other programs may use.
    pub(crate) fn expect_charged(&self, findings: &mut Findings, what: &str, before: u64, bytes: u64) -> Done {
        if self.way == Way::Limited {
            let wanted = before.saturating_sub(bytes);
            let free = self.wait_for_free(wanted)?;
            let saw = format!("{bytes} bytes were to be charged; {before} were free, {free} are");
            findings.expect(what, is_about(free, wanted), saw);
        }
        Ok(())
    }
}

/// Free bytes as a program sees them, when the node manager has compared its figures with the driver's.
pub(crate) fn settled_free(cuda: &Cuda) -> Done<u64> {
    equal_readings(cuda, SETTLED_READINGS)
}

fn equal_readings(cuda: &Cuda, wanted: u32) -> Done<u64> {
    let deadline = Instant::now() + STEADY_TIMEOUT;
    let (mut free, mut readings) = (cuda.memory()?.0, 1);
    while readings < wanted && Instant::now() < deadline {
        std::thread::sleep(SETTLE_INTERVAL);
        let now = cuda.memory()?.0;
        readings = if now == free { readings + 1 } else { 1 };
        free = now;
    }
    Ok(free)
}

/// The driver's name of a call's result.
pub(crate) fn answer_name<T>(got: &Done<T>) -> String {
    result_name(got.as_ref().err().map_or(CUresult::SUCCESS, |error| error.result))
}

/// Whether two amounts of memory are the same but for rounding.
pub(crate) fn is_about(bytes: u64, wanted: u64) -> bool {
    bytes.abs_diff(wanted) <= ROUNDING_BYTES
}
