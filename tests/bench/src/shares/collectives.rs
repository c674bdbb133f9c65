//! Containers with two devices each, whose kernels wait for each other across the devices.

use std::time::{Duration, Instant};

use aliquot_arbiter::timing::{OVERRUN_LAST_NS, OVERRUN_MAX_NS};
use aliquot_harness::{GIB, HostProgram, Process};
use aliquot_proto::node::v1::Part;

use crate::shares::stage::Stage;
use crate::shares::{Depth, MS, duration};
use crate::table::{Table, yes_or_no};

const TWO_DEVICES: &str = "[[device]]\n[[device]]\n";
const LOOK_INTERVAL: Duration = Duration::from_millis(5);
/// The longest pause: a kernel that waits for its peer can go on after at most two overruns.
const PAUSE_MS: f64 = (OVERRUN_MAX_NS + OVERRUN_LAST_NS) as f64 / MS as f64;

/// The progress of one container.
#[derive(Clone, Copy)]
struct Progress {
    rounds_per_second: f64,
    longest_pause_ms: f64,
}

/// Measures them one after the other.
pub(super) fn measure(depth: Depth) {
    let mut table = Table::new(&[
        "kernels that wait for each other on 2 devices",
        "alone without Aliquot, rounds/s",
        "each of the containers, rounds/s",
        "of a fair part %",
        "longest pause, ms",
        "aim: pause",
        "met",
        "machine lost, ms",
    ]);
    // Duration of a meeting, duration of the kernel before it, number of containers.
    for (meeting_ns, compute_ns, containers) in
        depth.of(vec![(MS, MS, 2), (5 * MS, 0, 2), (MS, 5 * MS, 2), (MS, MS, 3)], 1)
    {
        let stage = Stage::with(TWO_DEVICES);
        let program = HostProgram::linked(&stage.gpu, "collective");
        let command = || {
            let mut command = program.on(&stage.gpu);
            command.args([meeting_ns.to_string(), compute_ns.to_string()]);
            command
        };
        let window = Duration::from_nanos(depth.window_ns());
        let alone = progress(vec![Process::start(&mut command())], window / 2)[0].rounds_per_second;
        let lost_ns = stage.witness.lost_ns();
        let together = (0..containers).map(|number| {
            let part = |device| Part {
                device_uuid: stage.gpu.uuid(device),
                core_request_percent: 100 / containers,
                memory_limit_bytes: GIB,
                ..Part::default()
            };
            let slice = stage.node.slice_of(&format!("gang-{number}"), vec![part(0), part(1)]);
            Process::start(slice.preload_into(&mut command()))
        });
        let together = progress(together.collect(), window);
        let lost_ms = (stage.witness.lost_ns() - lost_ns) as f64 / MS as f64;
        let slowest = together.iter().map(|progress| progress.rounds_per_second).fold(f64::INFINITY, f64::min);
        let pause_ms = together.iter().map(|progress| progress.longest_pause_ms).fold(0.0, f64::max);
        let rates: Vec<String> = together.iter().map(|progress| format!("{:.1}", progress.rounds_per_second)).collect();
        table.row(&[
            format!("{containers} containers, {} after kernels of {}", duration(meeting_ns), duration(compute_ns)),
            format!("{alone:.1}"),
            rates.join(", "),
            format!("{:.1}", slowest * f64::from(containers) / alone * 100.0),
            format!("{pause_ms:.0}"),
            format!("≤ {PAUSE_MS} ms"),
            yes_or_no(pause_ms <= PAUSE_MS),
            format!("{lost_ms:.0}"),
        ]);
    }
}

/// Lets the programs run for `window` after all have begun.
fn progress(mut programs: Vec<Process>, window: Duration) -> Vec<Progress> {
    programs.iter_mut().for_each(|program| program.wait_for("rounds"));
    let start = Instant::now();
    let first: Vec<u64> = programs.iter().map(rounds).collect();
    let mut seen: Vec<(u64, Instant)> = first.iter().map(|&rounds| (rounds, start)).collect();
    let mut pauses = vec![Duration::ZERO; programs.len()];
    while start.elapsed() < window {
        std::thread::sleep(LOOK_INTERVAL);
        for ((program, (last, since)), pause) in programs.iter().zip(&mut seen).zip(&mut pauses) {
            let now = rounds(program);
            *pause = (*pause).max(since.elapsed());
            if now != *last {
                (*last, *since) = (now, Instant::now());
            }
        }
    }
    let elapsed = start.elapsed().as_secs_f64();
    let done = seen.iter().zip(first).map(|((last, _), first)| (last - first) as f64 / elapsed);
    done.zip(pauses)
        .map(|(rounds_per_second, pause)| Progress { rounds_per_second, longest_pause_ms: pause.as_secs_f64() * 1e3 })
        .collect()
}

/// The number of rounds that a program has printed.
fn rounds(program: &Process) -> u64 {
    let said = program.output();
    let complete = said.rsplit_once('\n').map_or("", |(complete, _)| complete);
    complete.lines().rev().find_map(|line| line.strip_suffix(" rounds")?.parse().ok()).unwrap_or(0)
}
