//! Which ways to use the device are noticed: a program in the limited slice uses it in one way only, and the slice's
//! usage, as the node manager shows it outside of the slice, must show just that. If a hook is passed by, its line of
//! the usage stays as without any use.

use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::bail;
use clap::ValueEnum;
use serde::{Deserialize, Serialize};

use crate::cuda::{Cuda, Shape, call};
use crate::findings::Findings;
use crate::launcher::{Launcher, Running};
use crate::part_run::PartRun;
use crate::way::Way;

/// Memory that a program takes.
const BYTES: u64 = 256 << 20;
/// How long it goes on, and how long it then waits.
const USE_TIME: Duration = Duration::from_secs(1);
/// Duration of its kernels.
const KERNEL_NS: u64 = 1_000_000;
/// Kernels of its graphs.
const GRAPH_KERNELS: u32 = 10;
/// Time between two looks at the usage.
const LOOK_INTERVAL: Duration = Duration::from_millis(100);
/// `aliquot ps` answers by then, or is asked anew.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(10);
/// The least part that must be seen: the last look may be long before the program's end.
const LEAST_PERCENT: u64 = 50;
const PERCENT: u64 = 100;
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
    /// `cuGraphLaunch`.
    Graph,
}

impl Use {
    /// Its name on the command line of workers.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Use::Nothing => "nothing",
            Use::Malloc => "malloc",
            Use::MallocAsync => "malloc-async",
            Use::Launch => "launch",
            Use::Graph => "graph",
        }
    }
}

/// The most that a slice's usage showed while a program ran.
#[derive(Clone, Copy, Debug, Default)]
struct Seen {
    /// Memory that is charged for requests, without what the driver takes on its own.
    charged_bytes: u64,
    launches: u64,
    device_ns: u64,
}

/// The program's own account of its use.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub(crate) struct Used {
    launches: u64,
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

/// Checks the ways of the driver API.
pub(crate) fn check(run: &mut PartRun) {
    let what = "the driver API";
    if run.begins(what) {
        let mut findings = Findings::default();
        match std::env::current_exe() {
            Ok(own) => each_is_noticed(&run.launcher, &own, |kind| vec!["worker", "use", kind.name()], &mut findings),
            Err(error) => findings.expect("the check finds its own program", false, error.to_string()),
        }
        run.add(what, Way::Limited, findings);
    }
}

/// Runs `program` in the limited slice for each way, with these arguments, and judges what the usage shows.
pub(crate) fn each_is_noticed(
    launcher: &Launcher,
    program: &Path,
    args: impl Fn(Use) -> Vec<&'static str>,
    findings: &mut Findings,
) {
    let launcher = Launcher { slice_name: Some(SLICE.to_owned()), ..launcher.clone() };
    let share = Way::Limited.share(&launcher.limits);
    let seen = |kind: Use| {
        let command = launcher.command(share.as_ref(), program, &args(kind));
        launcher.start_command(command).and_then(|running| watched(&launcher, running))
    };
    // The first context shows the node manager what contexts take. It charges for all later ones in the same way.
    let nothing = match seen(Use::Nothing).and_then(|_| seen(Use::Nothing)) {
        Ok((nothing, _)) => nothing,
        Err(error) => {
            findings.expect("a program that only makes a context runs to its end", false, format!("{error:#}"));
            return;
        }
    };
    for kind in [Use::Malloc, Use::MallocAsync, Use::Launch, Use::Graph] {
        let name = kind.name();
        let (seen, used) = match seen(kind) {
            Ok(both) => both,
            Err(error) => {
                findings.expect(format!("{name}: the program runs to its end"), false, format!("{error:#}"));
                continue;
            }
        };
        let more_bytes = seen.charged_bytes.saturating_sub(nothing.charged_bytes);
        let more_launches = seen.launches.saturating_sub(nothing.launches);
        let more_ns = seen.device_ns.saturating_sub(nothing.device_ns);
        if matches!(kind, Use::Malloc | Use::MallocAsync) {
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
        let least_ns = used.launches * kernel_ns(kind) * LEAST_PERCENT / PERCENT;
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

/// Looks at the usage until the program ends.
fn watched(launcher: &Launcher, mut running: Running) -> anyhow::Result<(Seen, Used)> {
    let mut looks: Vec<Seen> = Vec::new();
    while running.is_running()? {
        // Without an answer the slice is not there yet, or not any more.
        looks.extend(usage(launcher));
        std::thread::sleep(LOOK_INTERVAL);
    }
    let used = running.answer()?;
    if looks.is_empty() {
        bail!("`aliquot ps --json` has not shown the slice while the program ran");
    }
    let most = |figure: fn(&Seen) -> u64| looks.iter().map(figure).max().unwrap_or_default();
    let seen = Seen {
        charged_bytes: most(|seen| seen.charged_bytes),
        launches: most(|seen| seen.launches),
        device_ns: most(|seen| seen.device_ns),
    };
    Ok((seen, used))
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
        charged_bytes: part.memory_used_bytes.saturating_sub(part.memory_overhead_bytes),
        launches: part.launches,
        device_ns: part.core_used_ns,
    })
}

/// The program's process: uses the device in one way, and holds what it has taken for a while.
pub(crate) fn use_device(kind: Use) -> anyhow::Result<Used> {
    let cuda = Cuda::open()?;
    let (spin, stream) = (cuda.kernel(c"spin_ns")?, cuda.stream()?);
    let graph = if kind == Use::Graph { Some(cuda.graph(spin, Shape::ONE, KERNEL_NS, GRAPH_KERNELS)?) } else { None };
    match kind {
        Use::Malloc => drop(cuda.allocate(BYTES)?),
        Use::MallocAsync => {
            let mut address = 0;
            // SAFETY: the output is a live local.
            unsafe { call!(cuda, cuMemAllocAsync(&mut address, BYTES as usize, stream))? };
            cuda.finish(stream)?;
        }
        Use::Nothing | Use::Launch | Use::Graph => {}
    }
    let (start, mut used) = (Instant::now(), Used { launches: 0 });
    while start.elapsed() < USE_TIME {
        match (kind, graph) {
            (Use::Launch, _) => cuda.launch(spin, Shape::ONE, stream, KERNEL_NS)?,
            (Use::Graph, Some(graph)) => cuda.launch_graph(graph, stream)?,
            _ => std::thread::sleep(LOOK_INTERVAL),
        }
        if matches!(kind, Use::Launch | Use::Graph) {
            used.launches += 1;
            cuda.finish(stream)?;
        }
    }
    // The usage of a program that has ended is not shown any more.
    std::thread::sleep(USE_TIME);
    Ok(used)
}
