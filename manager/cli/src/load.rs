//! `aliquot load`: a program that keeps a device busy and holds some of its memory, to see the effect of slices.

use std::thread;
use std::time::{Duration, Instant};

use aliquot_abi::cuda::CUresult;

use crate::args::LoadArgs;
use crate::device_work::{CudaError, DeviceWork, result_name};
use crate::error::{Failure, Result};
use crate::output;
use crate::quantity::{bytes_human, millipercent_human};

/// Maximum backlog of delayed work that is made up for; the rest is dropped.
const MADE_GOOD_NS_MAX: u64 = 100_000_000;

impl From<CudaError> for Failure {
    fn from(error: CudaError) -> Failure {
        Failure::new(error.to_string())
            .hint("without a GPU: aliquot run --simulated --gpu-core 30 --gpu-memory 4GiB -- aliquot load")
    }
}

/// Keeps the device busy until the time is over or a signal ends it.
pub(crate) fn load(args: &LoadArgs) -> Result<()> {
    let kernel_ns = args.kernel_ms * 1_000_000;
    let mut work = DeviceWork::open(kernel_ns)?;
    let (_, total_bytes) = work.cuda.memory_info()?;
    let memory_bytes = args.memory.map_or(Ok(0), |memory| memory.of_device(total_bytes))?;
    if memory_bytes > 0 {
        work.cuda.allocate(memory_bytes).map_err(|refusal| refused(memory_bytes, total_bytes, refusal))?;
    }
    let busy_percent = u64::from(args.busy.percent());
    output::print(&format!(
        "Keeps the device busy for {busy_percent} % of the time with kernels of {} ms, and holds {} of its memory; Ctrl-C ends \
         it.\n",
        args.kernel_ms,
        bytes_human(memory_bytes)
    ))?;
    let begun = Instant::now();
    let end = args.seconds.map(|seconds| begun + Duration::from_secs(seconds));
    let mut pace = Pace { busy_percent, launched_ns: 0, forgotten_ns: 0 };
    while end.is_none_or(|end| Instant::now() < end) {
        let wait_ns = pace.wait_ns(nanoseconds(begun.elapsed()));
        if wait_ns > 0 {
            let left = end.map_or(Duration::MAX, |end| end.saturating_duration_since(Instant::now()));
            thread::sleep(Duration::from_nanos(wait_ns).min(left));
            continue;
        }
        work.launch_one()?;
        pace.launched_ns += kernel_ns;
    }
    work.complete_all()?;
    let (busy_ns, elapsed_ns) = (work.completed() * kernel_ns, nanoseconds(begun.elapsed()));
    output::print(&format!(
        "It was busy with it for {} % of {:.1} s: {} kernels.\n",
        millipercent_human((u128::from(busy_ns) * 100_000 / u128::from(elapsed_ns.max(1))) as u64),
        begun.elapsed().as_secs_f64(),
        work.completed()
    ))
}

fn refused(bytes: u64, total_bytes: u64, refusal: CUresult) -> Failure {
    Failure::new(format!("the driver refuses {} of memory: {}", bytes_human(bytes), result_name(refusal)))
        .hint(format!("this process sees a device of {}, and a context takes some of it", bytes_human(total_bytes)))
}

fn nanoseconds(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}

/// Decides when the next kernel is due.
struct Pace {
    busy_percent: u64,
    launched_ns: u64,
    /// Work that was due and was dropped.
    forgotten_ns: u64,
}

impl Pace {
    /// How long to wait before the next kernel, `elapsed_ns` after the beginning.
    fn wait_ns(&mut self, elapsed_ns: u64) -> u64 {
        if self.busy_percent >= 100 {
            return 0;
        }
        let due_ns = (elapsed_ns / 100).saturating_mul(self.busy_percent).saturating_sub(self.forgotten_ns);
        let behind_ns = due_ns.saturating_sub(self.launched_ns);
        self.forgotten_ns += behind_ns.saturating_sub(MADE_GOOD_NS_MAX);
        let ahead_ns = self.launched_ns.saturating_sub(due_ns);
        ahead_ns.saturating_mul(100) / self.busy_percent.max(1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn work_fills_its_share_of_the_time() {
        let mut pace = Pace { busy_percent: 25, launched_ns: 0, forgotten_ns: 0 };
        assert_eq!(pace.wait_ns(0), 0);
        pace.launched_ns += 1_000_000;
        // A quarter of the time means 1 ms of work in 4 ms.
        assert_eq!(pace.wait_ns(0), 4_000_000);
        assert_eq!(pace.wait_ns(1_000_000), 3_000_000);
        assert_eq!(pace.wait_ns(4_000_000), 0);
    }

    #[test]
    fn a_long_delay_is_not_caught_up() {
        let mut pace = Pace { busy_percent: 50, launched_ns: 0, forgotten_ns: 0 };
        assert_eq!(pace.wait_ns(10_000_000_000), 0);
        // 100 ms of work are still due; then the normal pace continues.
        pace.launched_ns += 100_000_000;
        assert_eq!(pace.wait_ns(10_000_000_000), 0);
        pace.launched_ns += 1_000_000;
        assert_eq!(pace.wait_ns(10_000_000_000), 2_000_000);
        let mut whole = Pace { busy_percent: 100, launched_ns: u64::MAX, forgotten_ns: 0 };
        assert_eq!(whole.wait_ns(0), 0);
    }
}
