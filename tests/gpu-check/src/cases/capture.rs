//! Stream capture: the shim must not add anything to a capture or invalidate it, whatever other threads do at the same
//! time.

use std::ptr;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::{Duration, Instant};

use aliquot_abi::cuda::{CUgraph, CUgraphExec, c_uint};

use crate::cuda::{Cuda, Done, Kernel, Shape, call};
use crate::findings::Findings;
use crate::scene::Scene;

const MODES: [(&str, c_uint); 3] = [("global", 0), ("thread-local", 1), ("relaxed", 2)];
/// Number of captured launches.
const CAPTURED: usize = 200;
/// Duration of each of them when it runs.
const SPIN_NS: u64 = 20_000;
/// Number of launches by another thread during a capture.
const BESIDE: u32 = 50;
/// The other thread's pause after each launch. It is longer than the launch's work, so the driver's queue never fills.
const BESIDE_REST: Duration = Duration::from_micros(200);
const BESIDE_TIMEOUT: Duration = Duration::from_secs(60);

pub(super) fn run(scene: &Scene, findings: &mut Findings) -> anyhow::Result<()> {
    let cuda = &scene.cuda;
    let spin = cuda.kernel(c"spin_ns")?;
    let (stop, launched) = (AtomicBool::new(false), AtomicU32::new(0));
    std::thread::scope(|scope| -> anyhow::Result<()> {
        let beside = scope.spawn(|| launch_until(cuda, spin, &stop, &launched));
        let captures =
            MODES.iter().try_for_each(|&(name, mode)| capture(cuda, spin, findings, name, mode, (&stop, &launched)));
        stop.store(true, Ordering::Relaxed);
        let ended = beside.join().map_err(|_| anyhow::anyhow!("the launching thread panicked"))?;
        findings.expect_ok("the other thread's launches all succeed", ended);
        captures.map_err(Into::into)
    })
}

/// Launches into a separate stream. Otherwise no marker would become due during a capture.
fn launch_until(cuda: &Cuda, spin: Kernel, stop: &AtomicBool, launched: &AtomicU32) -> Done {
    cuda.bind()?;
    let stream = cuda.stream()?;
    while !stop.load(Ordering::Relaxed) {
        if let Err(error) = cuda.launch(spin, Shape::ONE, stream, SPIN_NS) {
            stop.store(true, Ordering::Relaxed);
            return Err(error);
        }
        launched.fetch_add(1, Ordering::Relaxed);
        // Does not wait for the stream, because a capture in global mode forbids that to all threads.
        std::thread::sleep(BESIDE_REST);
    }
    cuda.finish(stream)
}

fn capture(
    cuda: &Cuda,
    spin: Kernel,
    findings: &mut Findings,
    name: &str,
    mode: c_uint,
    (stop, launched): (&AtomicBool, &AtomicU32),
) -> Done {
    let stream = cuda.stream()?;
    let (mut graph, mut exec, mut nodes) = (CUgraph::NULL, CUgraphExec::NULL, 0);
    // SAFETY: outputs are live locals; the driver checks the handles.
    unsafe {
        call!(cuda, cuStreamBeginCapture_v2(stream, mode))?;
        let captured = (0..CAPTURED).try_for_each(|_| cuda.launch(spin, Shape::ONE, stream, SPIN_NS));
        let wanted = launched.load(Ordering::Relaxed) + BESIDE;
        let deadline = Instant::now() + BESIDE_TIMEOUT;
        while launched.load(Ordering::Relaxed) < wanted && !stop.load(Ordering::Relaxed) && Instant::now() < deadline {
            std::thread::sleep(Duration::from_millis(1));
        }
        let beside = launched.load(Ordering::Relaxed) >= wanted;
        findings.expect(format!("{name}: another thread's launches go on during a capture"), beside, "");
        let ended = call!(cuda, cuStreamEndCapture(stream, &mut graph));
        findings.expect_ok(format!("{name}: launches into a capturing stream"), captured);
        if findings.expect_ok(format!("{name}: the capture ends well"), ended).is_none() {
            return Ok(());
        }
        call!(cuda, cuGraphGetNodes(graph, ptr::null_mut(), &mut nodes))?;
        findings.expect(
            format!("{name}: the graph holds what was captured and nothing else"),
            nodes == CAPTURED,
            format!("{nodes} nodes of {CAPTURED} launches"),
        );
        call!(cuda, cuGraphInstantiateWithFlags(&mut exec, graph, 0))?;
        let run = call!(cuda, cuGraphLaunch(exec, stream)).and_then(|()| cuda.finish(stream));
        findings.expect_ok(format!("{name}: the graph runs"), run);
        call!(cuda, cuGraphExecDestroy(exec))?;
        call!(cuda, cuGraphDestroy(graph))
    }
}
