//! The driver's own time slicing between two processes: how long each runs, and the cost of a change.

use std::process::{Child, Command, Stdio};

use aliquot_abi::cuda::c_void;
use anyhow::Context;

use crate::cuda::{Cuda, Shape, call};
use crate::findings::Findings;
use crate::overhead::median;
use crate::scene::Scene;

/// Duration of the watching kernel in nanoseconds.
const WATCH_NS: u64 = 300_000_000;
/// Size of the kernel's output: the number of gaps, then the beginning and end of each. See kernels.ptx.
const WORDS: usize = 2 + 2 * 1024;

pub(super) fn run(_: &Scene, findings: &mut Findings) -> anyhow::Result<()> {
    const WHAT: &str = "how the driver shares time";
    let start = || -> anyhow::Result<Child> {
        let mut command = Command::new(std::env::current_exe()?);
        let watcher = command.args(["worker", "watch-gaps"]).stdin(Stdio::null()).stdout(Stdio::piped());
        watcher.spawn().context("cannot start a second process")
    };
    let watchers = [start()?, start()?];
    for watcher in watchers {
        let output = watcher.wait_with_output()?;
        let gaps: Vec<[u64; 2]> = serde_json::from_slice(&output.stdout).context("a watcher says nothing")?;
        let off: Vec<f64> = gaps.iter().map(|[from, to]| (to - from) as f64 / 1e3).collect();
        let on: Vec<f64> = gaps.windows(2).map(|pair| (pair[1][0] - pair[0][1]) as f64 / 1e3).collect();
        if on.is_empty() {
            findings.skip(WHAT, "no process was interrupted in a kernel");
            return Ok(());
        }
        let (on, off) = (median(on), median(off));
        findings.figure("a process runs for", on, "us");
        findings.figure("and is interrupted for", off, "us");
        findings.figure("so a change of process costs", (off - on) / 2.0, "us");
    }
    Ok(())
}

/// A watcher's process: runs one kernel that records when it did not run.
pub(crate) fn watch_gaps() -> anyhow::Result<()> {
    let cuda = Cuda::open()?;
    let (kernel, stream) = (cuda.kernel(c"watch_gaps")?, cuda.stream()?);
    let mut words = vec![0_u64; WORDS];
    words[1] = WATCH_NS;
    let bytes = WORDS * 8;
    let memory = cuda.allocate(bytes as u64)?;
    // SAFETY: the vector has this number of bytes, and lives until the copies are done.
    unsafe { call!(cuda, cuMemcpyHtoD_v2(memory, words.as_ptr().cast::<c_void>(), bytes))? };
    cuda.launch(kernel, Shape::ONE, stream, memory)?;
    cuda.finish(stream)?;
    // SAFETY: as above.
    unsafe { call!(cuda, cuMemcpyDtoH_v2(words.as_mut_ptr().cast::<c_void>(), memory, bytes))? };
    let count = usize::try_from(words[0])?.min(WORDS / 2 - 1);
    let gaps: Vec<[u64; 2]> = words[2..].chunks_exact(2).take(count).map(|gap| [gap[0], gap[1]]).collect();
    println!("{}", serde_json::to_string(&gaps)?);
    Ok(())
}
