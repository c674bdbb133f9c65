//! Many processes of one container: all are counted, none waits for another, and none pays for how many there are.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::process::Command;
use std::sync::atomic::Ordering;

use aliquot_abi::region::owner;
use aliquot_harness::{EXACT_MEMORY, GIB, HostProgram, MIB, Node, Process, Region, SimulatedGpu, run, tool, wait};

/// Each process takes this much.
const PIECE: u64 = 64 << 10;

/// Starts processes that take `bytes` each and hold them, without waiting for any.
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

/// Slots that belong to a process.
fn slots_in_use(region: &Region) -> usize {
    region.ledger().owners.iter().filter(|word| owner::state(word.load(Ordering::Relaxed)) != owner::FREE).count()
}

/// How many system calls a process that uses the device once and ends makes more in `region` than without it.
fn system_calls_of_the_shim(gpu: &SimulatedGpu, region: &Region) -> usize {
    let program = HostProgram::linked(gpu, "exec");
    let calls = |environment: Option<String>| {
        let log = tempfile::NamedTempFile::new().unwrap();
        let mut traced = Command::new(tool("strace", "strace"));
        traced.args(["--follow-forks", "--output"]).arg(log.path());
        // Not in the tracer itself.
        traced.args(environment.map(|variable| format!("--env={variable}")));
        let _ = run(gpu.show_to(traced.arg(program.path()).arg("fresh"))).success();
        let log = fs::read_to_string(log.path()).unwrap();
        log.lines().filter(|line| !line.contains(" resumed>")).count()
    };
    let with_shim = calls(Some(format!("LD_PRELOAD={}", region.shim().display())));
    with_shim.checked_sub(calls(None)).expect("the shim makes calls of its own")
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
fn what_a_process_does_to_start_does_not_grow_with_how_many_there_are() {
    const OTHERS: usize = 150;
    let gpu = SimulatedGpu::with("mode = 'instant'\n");
    let region = Region::new(&gpu, GIB);
    // The first makes what all share.
    let _ = system_calls_of_the_shim(&gpu, &region);
    let alone = system_calls_of_the_shim(&gpu, &region);
    let mut holders = start(&gpu, OTHERS, PIECE, |command| {
        region.preload_into(command);
    });
    wait_for_all(&mut holders);
    let among_many = system_calls_of_the_shim(&gpu, &region);
    // How many there are depends a little on when the driver's threads run; one for each of the others would show.
    let found = format!("{alone} system calls alone, {among_many} beside {OTHERS} others");
    assert!(alone > 0 && among_many <= alone + OTHERS / 5, "{found}");
}

/// There are more processes than slots: the last ones share one. This test itself is the living owner of all slots
/// but a few.
#[test]
fn processes_beyond_the_slots_are_limited_all_the_same() {
    const OWN: usize = 3;
    const SHARING: usize = 5;
    let gpu = SimulatedGpu::with("mode = 'instant'\n");
    let region = Region::new(&gpu, 8 * MIB);
    let ledger = region.ledger();
    let own_namespace = fs::metadata("/proc/self/ns/pid").unwrap().ino();
    for index in 1 + OWN..ledger.owners.len() {
        ledger.start_times[index].store(own_start_time(), Ordering::Relaxed);
        ledger.slots[index].pid_namespace.store(own_namespace, Ordering::Relaxed);
        ledger.owners[index].store(owner::word(owner::ATTACHED, 1, std::process::id()), Ordering::Relaxed);
    }
    let mut holders = start(&gpu, OWN + SHARING, MIB, |command| {
        region.preload_into(command);
    });
    wait_for_all(&mut holders);
    // All but the shared one, which has no owner.
    assert_eq!((region.used_bytes(0), slots_in_use(&region)), (8 * MIB, ledger.owners.len() - 1));
    // All is taken: nobody gets more, with a slot or without.
    let program = HostProgram::linked(&gpu, "exact");
    let refused = run(region.preload_into(program.on(&gpu).arg("1")));
    assert!(refused.stdout.starts_with("free: 0\none byte more than all: 2\n"), "{refused:?}");
}

/// A process dies while no manager runs, and its id is given to another one, here to this test: no sign of life.
#[test]
fn what_the_dead_held_is_given_back_though_their_ids_are_used_again() {
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

/// Processes are killed in the middle of what they do, again and again, and others take their places.
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
        slice.used_bytes(0) == 0 && node.client().usage("kills").unwrap().processes.is_empty()
    });
    // And all of it can be had.
    let mut last = start(&gpu, 1, 64 * MIB, |command| {
        slice.preload_into(command);
    });
    wait_for_all(&mut last);
}

/// When this process was started, in the kernel's units.
fn own_start_time() -> u64 {
    let stat = fs::read_to_string("/proc/self/stat").unwrap();
    let after_name = stat.rsplit_once(')').unwrap().1;
    after_name.split_ascii_whitespace().nth(19).unwrap().parse().unwrap()
}
