//! Where a case runs: an open device, in one of the three ways.

use std::time::{Duration, Instant};

use aliquot_abi::cuda::CUresult;

use crate::cuda::{Cuda, Done, result_name};
use crate::findings::Findings;
use crate::way::{Limits, Way};

/// Memory appears to change by so much without anybody's doing: the driver takes memory in pieces, and the node manager
/// counts what lies between what was asked for and what was taken a moment later.
pub(crate) const ROUNDING_BYTES: u64 = 4 << 20;
/// How long memory that is given back may take to be free again, and the node manager's books to follow the driver's,
/// on a machine that is busy with something else.
const SETTLE_TIMEOUT: Duration = Duration::from_secs(60);
/// How long others may go on changing what is free until it is taken as it is.
const STEADY_TIMEOUT: Duration = Duration::from_secs(5);
const SETTLE_INTERVAL: Duration = Duration::from_millis(20);
/// So many equal readings one after the other are a steady value.
const STEADY_READINGS: u32 = 15;
/// So many are longer than a second: the node manager compares its books with the driver's once a second.
const SETTLED_READINGS: u32 = 60;

/// What a case works with.
pub(crate) struct Scene {
    /// The device.
    pub(crate) cuda: Cuda,
    /// How the case is run.
    pub(crate) way: Way,
    /// What the limited slice has, as the check has made it.
    pub(crate) limits: Limits,
}

impl Scene {
    /// Free bytes, read until they no longer change.
    pub(crate) fn steady_free(&self) -> Done<u64> {
        equal_readings(&self.cuda, STEADY_READINGS)
    }

    /// Free bytes, read until the node manager has compared its books with the driver's.
    pub(crate) fn settled_free(&self) -> Done<u64> {
        settled_free(&self.cuda)
    }

    /// Waits until about `wanted` bytes are free. Returns what is free then.
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

    /// In the limited slice: notes whether about `bytes` less are free than the `before` that were. Elsewhere the whole
    /// device is seen, which others may use.
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

/// Free bytes as a program sees them, once the node manager has compared its books with the driver's.
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

/// What a call answered, by the driver's name.
pub(crate) fn answer_name<T>(got: &Done<T>) -> String {
    result_name(got.as_ref().err().map_or(CUresult::SUCCESS, |error| error.result))
}

/// Whether two amounts of memory are the same but for rounding.
pub(crate) fn is_about(bytes: u64, wanted: u64) -> bool {
    bytes.abs_diff(wanted) <= ROUNDING_BYTES
}
