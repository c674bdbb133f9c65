//! Which ways to use the device are noticed: a program in the limited slice uses it in one way only, and the slice's
//! usage, as the node manager shows it outside of the slice, must show just that. If a hook is passed by, its line of
//! the usage stays as without any use.

use std::ffi::c_void;
use std::io::Read;
use std::path::Path;
use std::process::Command;
use std::ptr;
use std::time::{Duration, Instant};

use aliquot_abi::cuda::{CU_STREAM_PER_THREAD, CUgraphExec, CUstream};
use anyhow::bail;
use clap::ValueEnum;
use serde::{Deserialize, Serialize};

use crate::cuda::{COOPERATIVE_LAUNCH, Cuda, Done, Kernel, Shape, call, one_thread};
use crate::driver::Driver;
use crate::findings::Findings;
use crate::launcher::{Launcher, Running};
use crate::part_run::PartRun;
use crate::way::Way;
use crate::workers;

/// Memory that a program takes.
const BYTES: u64 = 256 << 20;
/// How long it goes on.
const USE_TIME: Duration = Duration::from_secs(1);
/// Duration of its kernels.
const KERNEL_NS: u64 = 1_000_000;
/// Kernels of its graphs.
const GRAPH_KERNELS: u32 = 10;
/// Time between two looks at the usage.
const LOOK_INTERVAL: Duration = Duration::from_millis(100);
/// `aliquot ps` answers by then, or is asked anew.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(10);
/// The most looks at the usage of a program that holds what it has used.
const LOOKS_MAX: usize = 30;
/// The least part of its launches and of their time that must be seen: launches are counted at progress markers.
const LEAST_PERCENT: u64 = 50;
const PERCENT: u64 = 100;
/// How often a context is tried once more while the node manager has not seen one.
const CONTEXTS_MORE: u32 = 3;
/// The name of the slices.
const SLICE: &str = "gpu-check-hooks";

/// A way to use the device.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, ValueEnum)]
pub(crate) enum Use {
    /// A context only.
    Nothing,
    /// `cuMemAlloc`.
    Malloc,
    /// `cuMemAllocAsync`.
    MallocAsync,
    /// `cuLaunchKernel`.
    Launch,
    /// `cuLaunchKernel`, in its form for per-thread default streams.
    LaunchPerThread,
    /// `cuLaunchKernelEx`.
    LaunchEx,
    /// `cuLaunchCooperativeKernel`.
    LaunchCooperative,
    /// `cuGraphLaunch`.
    Graph,
}

impl Use {
    /// The ways of the driver API.
    const ALL: [Use; 7] = [
        Use::Malloc,
        Use::MallocAsync,
        Use::Launch,
        Use::LaunchPerThread,
        Use::LaunchEx,
        Use::LaunchCooperative,
        Use::Graph,
    ];

    /// Its name on the command line of workers.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Use::Nothing => "nothing",
            Use::Malloc => "malloc",
            Use::MallocAsync => "malloc-async",
            Use::Launch => "launch",
            Use::LaunchPerThread => "launch-per-thread",
            Use::LaunchEx => "launch-ex",
            Use::LaunchCooperative => "launch-cooperative",
            Use::Graph => "graph",
        }
    }

    /// The symbol of its function.
    fn symbol(self) -> &'static str {
        match self {
            Use::Nothing => "cuInit",
            Use::Malloc => "cuMemAlloc_v2",
            Use::MallocAsync => "cuMemAllocAsync",
            Use::Launch => "cuLaunchKernel",
            Use::LaunchPerThread => "cuLaunchKernel_ptsz",
            Use::LaunchEx => "cuLaunchKernelEx",
            Use::LaunchCooperative => "cuLaunchCooperativeKernel",
            Use::Graph => "cuGraphLaunch",
        }
    }

    fn takes_memory(self) -> bool {
        matches!(self, Use::Malloc | Use::MallocAsync)
    }
}

/// A program that uses the device in one way.
pub(crate) struct Attempt {
    kind: Use,
    /// The way's name in findings.
    name: String,
    /// The program's arguments.
    args: Vec<&'static str>,
}

impl Attempt {
    /// A program with these arguments.
    pub(crate) fn new(kind: Use, args: &[&'static str]) -> Attempt {
        Attempt { kind, name: kind.name().to_owned(), args: args.to_vec() }
    }

    /// A worker of this program, which finds the driver's functions by `dlsym`.
    fn by_dlsym(kind: Use) -> Attempt {
        Attempt::new(kind, &["worker", "use", kind.name()])
    }

    /// A worker of this program, which finds the driver's functions by `cuGetProcAddress`.
    fn by_proc_address(kind: Use) -> Attempt {
        let args = vec!["worker", "use", kind.name(), "--by-proc-address"];
        Attempt { kind, name: format!("{} by cuGetProcAddress", kind.name()), args }
    }
}

/// What a slice's usage shows of a program that holds what it has used.
#[derive(Clone, Copy, Debug, Default)]
struct Seen {
    /// All memory that is charged.
    used_bytes: u64,
    /// Memory that is charged for requests, without what the driver takes on its own.
    charged_bytes: u64,
    launches: u64,
    device_ns: u64,
}

/// The program's own account of its use.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
struct Used {
    launches: u64,
    /// What the driver or the device lacks for this use; empty: nothing.
    #[serde(default)]
    missing: String,
}

/// A part of the answer of `aliquot ps --json`.
#[derive(Deserialize)]
struct Usage {
    slices: Vec<SliceUsage>,
}

#[derive(Deserialize)]
struct SliceUsage {
    parts: Vec<PartUsage>,
}

#[derive(Deserialize)]
struct PartUsage {
    memory_used_bytes: u64,
    memory_overhead_bytes: u64,
    launches: u64,
    core_used_ns: u64,
}

/// Checks the ways of the driver API, each with its function found in both ways.
pub(crate) fn check(run: &mut PartRun) {
    let attempts = Use::ALL.map(Attempt::by_dlsym).into_iter().chain(Use::ALL.map(Attempt::by_proc_address));
    check_these(run, "the driver API", &attempts.collect::<Vec<_>>());
}

/// Checks that slices are enforced at all, for parts that would not notice if they were not.
pub(crate) fn check_that_slices_hold(run: &mut PartRun) {
    check_these(run, "before the other parts", &[Use::Malloc, Use::Launch].map(Attempt::by_dlsym));
}

fn check_these(run: &mut PartRun, what: &str, attempts: &[Attempt]) {
    if run.begins(what) {
        let mut findings = Findings::default();
        match std::env::current_exe() {
            Ok(own) => each_is_noticed(&run.launcher, &own, &Attempt::by_dlsym(Use::Nothing), attempts, &mut findings),
            Err(error) => findings.expect("the check finds its own program", false, error.to_string()),
        }
        run.add(what, Way::Limited, findings);
    }
}

/// Runs `program` in the limited slice for each attempt, and judges what the usage shows beyond that of `nothing`.
pub(crate) fn each_is_noticed(
    launcher: &Launcher,
    program: &Path,
    nothing: &Attempt,
    attempts: &[Attempt],
    findings: &mut Findings,
) {
    let launcher = Launcher { slice_name: Some(SLICE.to_owned()), ..launcher.clone() };
    let share = Way::Limited.share(&launcher.limits);
    let seen_once = |attempt: &Attempt, is_enough: &dyn Fn(&Seen) -> bool| {
        let command = launcher.command(share.as_ref(), program, &attempt.args);
        launcher.start_held(command).and_then(|running| watched(&launcher, running, is_enough))
    };
    let context_bytes_min = launcher.limits.context_bytes / 2;
    // The node manager has looked at a context when the slice is charged for it, if only as the driver's own memory.
    let context_seen = || seen_once(nothing, &|seen: &Seen| seen.used_bytes >= context_bytes_min);
    // The first context shows the node manager what contexts take, once it has looked: on a busy machine maybe not the
    // first one. It charges for all later ones in the same way.
    let is_too_early = |seen: &Seen| seen.charged_bytes < context_bytes_min;
    let mut context = context_seen().and_then(|_| context_seen());
    for _ in 0..CONTEXTS_MORE {
        if context.as_ref().is_ok_and(|(seen, _)| is_too_early(seen)) {
            context = context_seen();
        }
    }
    let nothing = match context {
        Ok((nothing, _)) => nothing,
        Err(error) => {
            findings.expect("a program that only makes a context runs to its end", false, format!("{error:#}"));
            return;
        }
    };
    for attempt in attempts {
        let Attempt { kind, name, .. } = attempt;
        let (seen, used) = match seen_once(attempt, &|_: &Seen| true) {
            Ok(both) => both,
            Err(error) => {
                findings.expect(format!("{name}: the program runs to its end"), false, format!("{error:#}"));
                continue;
            }
        };
        if !used.missing.is_empty() {
            findings.skip(name, used.missing);
            continue;
        }
        let more_bytes = seen.charged_bytes.saturating_sub(nothing.charged_bytes);
        let more_launches = seen.launches.saturating_sub(nothing.launches);
        let more_ns = seen.device_ns.saturating_sub(nothing.device_ns);
        if kind.takes_memory() {
            findings.expect(
                format!("{name}: its memory is charged"),
                (BYTES..2 * BYTES).contains(&more_bytes),
                format!("{more_bytes} bytes of {BYTES}"),
            );
            continue;
        }
        findings.expect(
            format!("{name}: its launches are counted"),
            used.launches > 0 && more_launches >= used.launches * LEAST_PERCENT / PERCENT,
            format!("{more_launches} of {}", used.launches),
        );
        let least_ns = used.launches * kernel_ns(*kind) * LEAST_PERCENT / PERCENT;
        findings.expect(
            format!("{name}: its device time is charged"),
            more_ns >= least_ns,
            format!("{} ms, at least {} ms were expected", more_ns / 1_000_000, least_ns / 1_000_000),
        );
    }
}

/// Device time of a launch.
fn kernel_ns(kind: Use) -> u64 {
    if kind == Use::Graph { KERNEL_NS * u64::from(GRAPH_KERNELS) } else { KERNEL_NS }
}

/// Looks at the usage when the program has said what it has used, until a look is enough. Then lets the program end.
fn watched(
    launcher: &Launcher,
    mut running: Running,
    is_enough: impl Fn(&Seen) -> bool,
) -> anyhow::Result<(Seen, Used)> {
    let (mut seen, mut looks): (Option<Seen>, usize) = (None, 0);
    while running.is_running()? && looks < LOOKS_MAX && !seen.as_ref().is_some_and(&is_enough) {
        // A look that begins earlier may miss a part of the use.
        if running.said::<Used>().is_some() {
            seen = usage(launcher).or(seen);
            looks += 1;
        }
        std::thread::sleep(LOOK_INTERVAL);
    }
    running.let_go();
    let used: Used = running.answer()?;
    if seen.is_none() && used.missing.is_empty() {
        bail!("`aliquot ps --json` has not shown the slice while the program held what it had used");
    }
    Ok((seen.unwrap_or_default(), used))
}

fn usage(launcher: &Launcher) -> Option<Seen> {
    let mut command = Command::new(&launcher.aliquot);
    if let Some(socket) = &launcher.socket {
        command.arg("--socket").arg(socket);
    }
    command.args(["ps", "--json", SLICE]);
    let answer = launcher.start_command(command).ok()?.within(ANSWER_TIMEOUT).succeeded().ok()?;
    let usage: Usage = serde_json::from_str(&answer.lines).ok()?;
    let part = usage.slices.first()?.parts.first()?;
    Some(Seen {
        used_bytes: part.memory_used_bytes,
        charged_bytes: part.memory_used_bytes.saturating_sub(part.memory_overhead_bytes),
        launches: part.launches,
        device_ns: part.core_used_ns,
    })
}

/// The program's process: uses the device in one way, says so, and holds what it has taken until standard input ends.
pub(crate) fn use_device(kind: Use, by_proc_address: bool) -> anyhow::Result<()> {
    let mut driver = Driver::load()?;
    let has_launch_ex = driver.cuLaunchKernelEx.is_some();
    let given = if by_proc_address { driver.take_given() } else { vec![kind.symbol()] };
    let cuda = Cuda::start(driver)?.with_kernels()?;
    let missing = match kind {
        Use::LaunchEx if !has_launch_ex => "the driver lacks it",
        Use::LaunchCooperative if cuda.attribute(COOPERATIVE_LAUNCH)? == 0 => "the device has no cooperative launch",
        _ => "",
    };
    if !missing.is_empty() {
        return workers::say(&Used { missing: missing.to_owned(), ..Used::default() });
    }
    if !given.contains(&kind.symbol()) {
        bail!("cuGetProcAddress does not give {}", kind.symbol());
    }
    let (spin, stream) = (cuda.kernel(c"spin_ns")?, cuda.stream()?);
    let graph =
        if kind == Use::Graph { cuda.graph(spin, Shape::ONE, KERNEL_NS, GRAPH_KERNELS)? } else { CUgraphExec::NULL };
    match kind {
        Use::Malloc => drop(cuda.allocate(BYTES)?),
        Use::MallocAsync => {
            let mut address = 0;
            // SAFETY: the output is a live local.
            unsafe { call!(cuda, cuMemAllocAsync(&mut address, BYTES as usize, stream))? };
            cuda.finish(stream)?;
        }
        _ => {}
    }
    let (start, mut used) = (Instant::now(), Used::default());
    while start.elapsed() < USE_TIME {
        if kind == Use::Nothing || kind.takes_memory() {
            std::thread::sleep(LOOK_INTERVAL);
            continue;
        }
        launch(&cuda, kind, spin, graph, stream)?;
        used.launches += 1;
        cuda.finish(if kind == Use::LaunchPerThread { CU_STREAM_PER_THREAD } else { stream })?;
    }
    workers::say(&used)?;
    // The usage of a program that has ended is not shown any more.
    std::io::stdin().read_to_end(&mut Vec::new())?;
    Ok(())
}

/// Launches the kernel, or the graph, in the way of `kind`.
fn launch(cuda: &Cuda, kind: Use, kernel: Kernel, graph: CUgraphExec, stream: CUstream) -> Done {
    let mut duration_ns = KERNEL_NS;
    let mut parameters: [*mut c_void; 1] = [(&raw mut duration_ns).cast()];
    let (function, parameters, none) = (kernel.0, parameters.as_mut_ptr(), ptr::null_mut());
    // SAFETY: the kernel has one parameter of eight bytes, which the driver copies before each call returns.
    unsafe {
        match kind {
            Use::Nothing | Use::Malloc | Use::MallocAsync => Ok(()),
            Use::Launch => call!(cuda, cuLaunchKernel(function, 1, 1, 1, 1, 1, 1, 0, stream, parameters, none)),
            Use::LaunchPerThread => {
                let stream = CUstream::NULL;
                call!(cuda, cuLaunchKernel_ptsz(function, 1, 1, 1, 1, 1, 1, 0, stream, parameters, none))
            }
            Use::LaunchEx => call!(cuda, cuLaunchKernelEx(&one_thread(stream), function, parameters, none)),
            Use::LaunchCooperative => {
                call!(cuda, cuLaunchCooperativeKernel(function, 1, 1, 1, 1, 1, 1, 0, stream, parameters))
            }
            Use::Graph => cuda.launch_graph(graph, stream),
        }
    }
}
