//! Many processes of one container: all are counted, none waits for another, and their number costs none of them time.

use std::fs;
use std::process::Command;
use std::sync::atomic::Ordering;

use aliquot_abi::region::owner;
use aliquot_harness::{
    EXACT_MEMORY, GIB, HostProgram, MIB, Node, Process, Region, SimulatedGpu, Witness, run, tool, wait,
};

/// Memory that each process takes.
const PIECE: u64 = 64 << 10;

/// Starts processes that take `bytes` each and hold them. Does not wait for them.
fn start(gpu: &SimulatedGpu, count: usize, bytes: u64, enter: impl Fn(&mut Command)) -> Vec<Process> {
    let program = HostProgram::linked(gpu, "hold");
    let one = || {
        let mut command = program.on(gpu);
        enter(command.arg(bytes.to_string()));
        Process::start(&mut command)
    };
    (0..count).map(|_| one()).collect()
}

fn wait_for_all(holders: &mut [Process]) {
    for holder in holders {
        holder.wait_for("held");
    }
}

/// The number of additional system calls in `region` of a process that uses the device once and ends.
fn system_calls_of_the_shim(gpu: &SimulatedGpu, region: &Region) -> usize {
    const COUNTS: usize = 3;
    let program = HostProgram::linked(gpu, "exec");
    let calls = |environment: Option<&str>| {
        let log = tempfile::NamedTempFile::new().unwrap();
        let mut traced = Command::new(tool("strace", "strace"));
        traced.args(["--follow-forks", "--output"]).arg(log.path());
        // Preloads the shim into the program, not into the tracer.
        traced.args(environment.map(|variable| format!("--env={variable}")));
        let _ = run(gpu.show_to(traced.arg(program.path()).arg("fresh"))).success();
        let log = fs::read_to_string(log.path()).unwrap();
        log.lines().filter(|line| !line.contains(" resumed>")).count()
    };
    // A thread that is held up may make some calls more.
    let fewest =
        |environment: Option<&str>| (0..COUNTS).map(|_| calls(environment)).min().expect("there are several counts");
    let with_shim = fewest(Some(format!("LD_PRELOAD={}", region.shim().display()).as_str()));
    with_shim.checked_sub(fewest(None)).expect("the shim makes calls of its own")
}

#[test]
fn two_hundred_that_start_at_once_are_all_counted() {
    const COUNT: usize = 200;
    let gpu = SimulatedGpu::with(&format!("{EXACT_MEMORY}mode = 'instant'\n"));
    let node = Node::start(&gpu);
    let slice = node.slice("many", 50, GIB);
    let mut holders = start(&gpu, COUNT, PIECE, |command| {
        slice.preload_into(command);
    });
    wait_for_all(&mut holders);
    assert_eq!(slice.used_bytes(0), COUNT as u64 * PIECE);
    wait::until_true("the manager knows all of them", || {
        let usage = node.client().usage("many").unwrap();
        usage.processes.len() == COUNT && usage.parts[0].memory_used_bytes == COUNT as u64 * PIECE
    });
    drop(holders);
    wait::until_true("all is given back", || {
        slice.used_bytes(0) == 0 && node.client().usage("many").unwrap().processes.is_empty()
    });
}

#[test]
fn the_work_to_start_does_not_grow_with_the_number_of_processes() {
    const OTHERS: usize = 150;
    let gpu = SimulatedGpu::with("mode = 'instant'\n");
    let region = Region::new(&gpu, GIB);
    // The first process sets up the state that all share.
    let _ = system_calls_of_the_shim(&gpu, &region);
    let alone = system_calls_of_the_shim(&gpu, &region);
    let mut holders = start(&gpu, OTHERS, PIECE, |command| {
        region.preload_into(command);
    });
    wait_for_all(&mut holders);
    let among_many = system_calls_of_the_shim(&gpu, &region);
    // The number depends a little on when the driver's threads run. One call per other process would exceed the bound.
    let found = format!("{alone} system calls alone, {among_many} beside {OTHERS} others");
    assert!(alone > 0 && among_many <= alone + OTHERS / 5, "{found}");
}

/// Runs `count` short processes in one slice, `at_once` at a time, and one more when they have ended.
fn short_processes(count: u64, at_once: u64) {
    let gpu = SimulatedGpu::with(EXACT_MEMORY);
    let node = Node::start(&gpu);
    let slice = node.slice("short", 50, GIB);
    let program = HostProgram::linked(&gpu, "many");
    let witness = Witness::start();
    let mut command = program.on(&gpu);
    command.args([count.to_string(), at_once.to_string()]);
    let mut process = Process::start(slice.preload_into(&mut command));
    // A slow machine needs minutes for all of them, but not for the next one.
    let machine = gpu.machine();
    let progress = || (machine.device_use(0).busy_ns, slice.used_bytes(0));
    while !process.has_ended() {
        let before = progress();
        wait::until_true("one more process has worked or ended", || progress() != before || process.has_ended());
    }
    process.wait().success().assert_said("all have done their work\n");
    wait::until_true("all is given back", || {
        slice.used_bytes(0) == 0 && node.client().usage("short").unwrap().processes.is_empty()
    });
    let (busy_ns, lost_ns) = (gpu.machine().device_use(0).busy_ns, witness.lost_ns());
    let charged_ns = node.client().usage("short").unwrap().parts[0].core_used_ns;
    println!("charged {charged_ns} ns for {busy_ns} ns of work, while the machine stood still for {lost_ns} ns");
    assert!(busy_ns >= (count + 1) * 1_000_000);
    // A process that notices late that its work is done is charged meanwhile. Hundreds of processes on two processors
    // are late, by how much depends on the machine. When slots were shared, the charge was a thousand times the work.
    assert!(charged_ns <= 100 * busy_ns + lost_ns, "charged {charged_ns} ns for {busy_ns} ns of work");
    assert!(charged_ns + lost_ns >= busy_ns / 2, "charged {charged_ns} ns for {busy_ns} ns of work");
}

#[test]
fn six_hundred_and_fifty_short_processes_at_once() {
    short_processes(650, 650);
}

#[test]
fn two_thousand_short_processes() {
    short_processes(2000, 900);
}

/// A process dies while no manager runs, and its id is reused, here by the test itself. The manager must not take the
/// slot's owner for alive.
#[test]
fn memory_of_dead_processes_is_freed_although_their_ids_are_reused() {
    let gpu = SimulatedGpu::with(&format!("{EXACT_MEMORY}mode = 'instant'\n"));
    let mut node = Node::start(&gpu);
    let slice = node.slice("reuse", 50, 64 * MIB);
    let mut holders = start(&gpu, 1, MIB, |command| {
        slice.preload_into(command);
    });
    wait_for_all(&mut holders);
    node.kill();
    let holder = holders.remove(0);
    let pid = holder.id();
    let _ = holder.kill();
    assert_eq!(slice.used_bytes(0), MIB);
    let slot = slice.ledger().owners.iter().find(|word| owner::pid(word.load(Ordering::Relaxed)) == pid).unwrap();
    let word = slot.load(Ordering::Relaxed);
    let reused = owner::word(owner::state(word), owner::generation(word), std::process::id());
    slot.store(reused, Ordering::Relaxed);
    node.restart();
    wait::until_true("the manager gives it back", || slice.used_bytes(0) == 0);
    assert_eq!(owner::state(slot.load(Ordering::Relaxed)), owner::FREE);
}

/// Processes are killed at work repeatedly, and others take their places.
#[test]
fn a_storm_of_kills_leaves_nothing_charged() {
    const ROUNDS: usize = 10;
    const TOGETHER: usize = 8;
    let gpu = SimulatedGpu::with(&format!("{EXACT_MEMORY}mode = 'instant'\n"));
    let node = Node::start(&gpu);
    let slice = node.slice("kills", 50, 64 * MIB);
    let racer = HostProgram::linked(&gpu, "racer");
    let start_one = || {
        let mut command = racer.on(&gpu);
        command.args(["4096", "100000000"]);
        Process::start(slice.preload_into(&mut command))
    };
    for round in 0..ROUNDS {
        let racers: Vec<Process> = (0..TOGETHER).map(|_| start_one()).collect();
        // Some are killed while they start, others while they allocate.
        wait::until_true("some are at work", || slice.used_bytes(0) > 0);
        for (number, racer) in racers.into_iter().enumerate() {
            if (number + round) % 3 == 0 {
                wait::until_true("it is known", || {
                    let usage = node.client().usage("kills").unwrap();
                    usage.processes.iter().any(|process| process.pid == racer.id())
                });
            }
            assert_eq!(racer.kill().signal(), Some(9));
        }
    }
    wait::until_true("all is given back", || {
        let usage = node.client().usage("kills").unwrap();
        // Includes memory of dead processes that the driver still held at the manager's last look.
        slice.used_bytes(0) == 0 && usage.processes.is_empty() && usage.parts[0].memory_used_bytes == 0
    });
    // The whole limit can be allocated again.
    let mut last = start(&gpu, 1, 64 * MIB, |command| {
        slice.preload_into(command);
    });
    wait_for_all(&mut last);
}
