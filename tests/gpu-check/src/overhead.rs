//! The costs of calls with and without the shim. The three ways are run alternately several times; the medians count.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

use crate::cuda::{Cuda, Done, Kernel, Shape};
use crate::driver::Driver;
use crate::part_run::PartRun;
use crate::way::Way;

/// Launches that are timed together: few enough for the driver's queue.
const BATCH: u32 = 200;
const BATCHES: usize = 30;
/// Calls of the other kinds that are timed together.
const PAIRS: u32 = 50;
const QUERIES: u32 = 50;
/// After a batch, the device rests for this many times the batch's duration, so that a capped slice has budget left.
const REST: u32 = 4;
const REST_MAX: Duration = Duration::from_millis(100);
const THREADS: [usize; 3] = [1, 2, 4];
const ALLOC_FREE: &str = "cuMemAlloc and cuMemFree";
const MEM_INFO: &str = "cuMemGetInfo";
const INIT: &str = "cuInit and first context";

/// The name of the figure for launches by `threads` threads.
fn launch(threads: usize) -> String {
    format!("cuLaunchKernel, {threads} thread{}", if threads == 1 { "" } else { "s" })
}

/// Nanoseconds of each kind of call.
type Figures = BTreeMap<String, f64>;

/// Measures all calls, in a worker.
pub(crate) fn measure() -> anyhow::Result<Figures> {
    let driver = Driver::load()?;
    let start = Instant::now();
    let cuda = Cuda::start(driver)?;
    let mut figures = Figures::from([(INIT.to_owned(), start.elapsed().as_nanos() as f64)]);
    let cuda = cuda.with_kernels()?;
    let nothing = cuda.kernel(c"nothing")?;
    for threads in THREADS {
        let per_thread: Vec<Done<Vec<f64>>> = std::thread::scope(|scope| {
            let threads: Vec<_> = (0..threads).map(|_| scope.spawn(|| launches(&cuda, nothing))).collect();
            threads.into_iter().filter_map(|thread| thread.join().ok()).collect()
        });
        let batches: Vec<f64> = per_thread.into_iter().collect::<Done<Vec<_>>>()?.concat();
        figures.insert(launch(threads), median(batches));
    }
    figures.insert(ALLOC_FREE.to_owned(), batches(PAIRS, || cuda.free(cuda.allocate(1 << 20)?))?);
    figures.insert(MEM_INFO.to_owned(), batches(QUERIES, || cuda.memory().map(drop))?);
    Ok(figures)
}

/// Nanoseconds of a launch, batch by batch.
fn launches(cuda: &Cuda, kernel: Kernel) -> Done<Vec<f64>> {
    cuda.bind()?;
    let stream = cuda.stream()?;
    let mut batches = Vec::new();
    for _ in 0..BATCHES {
        // Not timed, because in a capped slice the first launch after a rest waits for a lease.
        cuda.launch(kernel, Shape::ONE, stream, 0)?;
        let start = Instant::now();
        for _ in 0..BATCH {
            cuda.launch(kernel, Shape::ONE, stream, 0)?;
        }
        batches.push(start.elapsed().as_nanos() as f64 / f64::from(BATCH));
        cuda.finish(stream)?;
        std::thread::sleep((start.elapsed() * REST).min(REST_MAX));
    }
    Ok(batches)
}

/// The median nanoseconds of a call, over batches of `count`.
fn batches(count: u32, mut call: impl FnMut() -> Done) -> Done<f64> {
    let mut batches = Vec::new();
    for _ in 0..BATCHES {
        let start = Instant::now();
        (0..count).try_for_each(|_| call())?;
        batches.push(start.elapsed().as_nanos() as f64 / f64::from(count));
    }
    Ok(median(batches))
}

/// One kind of call in the three ways.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Overhead {
    /// The kind of call.
    pub(crate) call: String,
    /// Without the shim, in nanoseconds.
    pub(crate) bare_ns: f64,
    /// In a slice that holds the whole device.
    pub(crate) unlimited_ns: f64,
    /// In a limited slice, with budget left.
    pub(crate) limited_ns: f64,
}

/// Measures `rounds` times in each way, interleaved. A way that has failed is not measured again.
pub(crate) fn compare(run: &mut PartRun, rounds: usize) -> Vec<Overhead> {
    let mut seen: BTreeMap<(String, Way), Vec<f64>> = BTreeMap::new();
    let mut failed = Vec::new();
    for round in 1..=rounds {
        for way in Way::ALL {
            if failed.contains(&way) || !run.begins(&format!("round {round} of {rounds}, {way}")) {
                continue;
            }
            match run.launcher.run::<Figures>(way.share(&run.launcher.limits).as_ref(), &["overhead"]) {
                Ok(figures) => {
                    for (call, ns) in figures {
                        seen.entry((call, way)).or_default().push(ns);
                    }
                }
                Err(error) => {
                    run.fails(&format!("costs of calls, {way}"), &error);
                    failed.push(way);
                }
            }
        }
    }
    let mut of = |call: &str, way| seen.remove(&(call.to_owned(), way)).map_or(f64::NAN, median);
    let calls = THREADS.map(launch).into_iter().chain([ALLOC_FREE, MEM_INFO, INIT].map(str::to_owned));
    calls
        .map(|call| Overhead {
            bare_ns: of(&call, Way::Bare),
            unlimited_ns: of(&call, Way::Unlimited),
            limited_ns: of(&call, Way::Limited),
            call,
        })
        .collect()
}

/// The median; NaN if there are no values.
pub(crate) fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    let middle = values.len() / 2;
    match values.len() {
        0 => f64::NAN,
        n if n % 2 == 1 => values[middle],
        _ => (values[middle - 1] + values[middle]) / 2.0,
    }
}

#[cfg(test)]
mod tests {
    use super::median;

    #[test]
    fn the_median_is_the_middle() {
        assert_eq!(median(vec![3.0, 1.0, 2.0]), 2.0);
        assert_eq!(median(vec![4.0, 1.0, 2.0, 3.0]), 2.5);
        assert!(median(Vec::new()).is_nan());
    }
}
