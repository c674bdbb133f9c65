//! Processes and managers that die at the worst moment: limits hold, no process hangs, nothing is lost.

use std::sync::atomic::Ordering;
use std::thread;
use std::time::{Duration, Instant};

use aliquot_abi::region::owner;
use aliquot_harness::{EXACT_MEMORY, HostProgram, MIB, Node, Process, SimulatedGpu, Slice, run, wait};
use rustix::process::Signal;

fn hold(gpu: &SimulatedGpu, slice: &Slice, bytes: u64) -> Process {
    let mut command = HostProgram::linked(gpu, "hold").on(gpu);
    command.arg(bytes.to_string());
    let mut process = Process::start(slice.preload_into(&mut command));
    process.wait_for("held");
    process
}

/// Runs a program that allocates memory to the last byte, and fails the test unless exactly `free_bytes` were free.
#[track_caller]
fn assert_exactly_free(gpu: &SimulatedGpu, slice: &Slice, free_bytes: u64) {
    let mut command = HostProgram::linked(gpu, "exact").on(gpu);
    command.arg(free_bytes.to_string());
    let outcome = run(slice.preload_into(&mut command)).success();
    let expected = format!("free: {free_bytes}\none byte more than all: 2\n");
    assert!(outcome.stdout.starts_with(&expected), "{outcome:?}");
}

/// The number of slots in use.
fn slots_in_use(slice: &Slice) -> usize {
    slice.ledger().owners.iter().filter(|word| owner::state(word.load(Ordering::Relaxed)) != owner::FREE).count()
}

#[test]
fn memory_of_a_killed_process_is_free_again() {
    let gpu = SimulatedGpu::exact();
    let node = Node::start(&gpu);
    let slice = node.slice("killed", 50, 64 * MIB);
    let mut latencies = Vec::new();
    for _ in 0..20 {
        let holder = hold(&gpu, &slice, 64 * MIB);
        assert_eq!(slice.used_bytes(0), 64 * MIB);
        let killed = Instant::now();
        holder.signal(Signal::KILL);
        // The driver has the memory back once it shows neither in the ledger nor as overhead.
        let overhead = &slice.limits().devices[0].memory_overhead_bytes;
        while slice.used_bytes(0) != 0 || overhead.load(Ordering::Relaxed) != 0 {
            assert!(killed.elapsed() < wait::DEADLINE, "the memory is not free again");
            thread::yield_now();
        }
        latencies.push(killed.elapsed());
    }
    latencies.sort_unstable();
    println!("from SIGKILL to free memory: median {:?}, at most {:?}", latencies[10], latencies[19]);
    assert_exactly_free(&gpu, &slice, 64 * MIB);
    wait::until_true("all slots are free again", || slots_in_use(&slice) == 0);
}

#[test]
fn processes_killed_at_any_moment_of_their_start_leave_nothing() {
    const ROUNDS: u64 = 500;
    const AT_ONCE: u64 = 4;
    let gpu = SimulatedGpu::exact();
    let node = Node::start(&gpu);
    let slice = node.slice("killed", 50, 64 * MIB);
    let program = HostProgram::linked(&gpu, "racer");
    let command = || {
        let mut command = program.on(&gpu);
        command.args(["65536", "100000"]);
        slice.preload_into(&mut command);
        command
    };
    for round in 0..ROUNDS / AT_ONCE {
        let processes: Vec<Process> = (0..AT_ONCE).map(|_| Process::start(&mut command())).collect();
        // A different moment each time, from before the loader runs to well into the program.
        thread::sleep(Duration::from_micros(round * 7919 % 20_000));
        for process in processes {
            assert_eq!(process.kill().signal(), Some(9));
        }
    }
    wait::until_true("the budget is whole again", || slice.used_bytes(0) == 0);
    wait::until_true("all slots are free again", || slots_in_use(&slice) == 0);
    let held = slice.ledger().slots.iter().any(|slot| slot.devices[0].memory.load(Ordering::Relaxed) != 0);
    assert!(!held, "a slot that nobody owns holds memory");
    // A look between a process's allocation and its entry in the ledger takes the difference for memory of contexts.
    let overhead = &slice.limits().devices[0].memory_overhead_bytes;
    wait::until_true("no process has a context", || overhead.load(Ordering::Relaxed) == 0);
    assert_exactly_free(&gpu, &slice, 64 * MIB);
    wait::until_true("the manager knows no process", || node.client().usage("killed").unwrap().processes.is_empty());
}

#[test]
fn when_the_manager_is_killed_memory_limits_hold() {
    let gpu = SimulatedGpu::exact();
    let mut node = Node::start(&gpu);
    let slice = node.slice("orphan", 50, 64 * MIB);
    let holder = hold(&gpu, &slice, 16 * MIB);
    node.kill();
    // This also holds for processes that start now, when no manager answers at the attach socket.
    assert_exactly_free(&gpu, &slice, 48 * MIB);
    let second = hold(&gpu, &slice, 8 * MIB);
    assert_exactly_free(&gpu, &slice, 40 * MIB);

    node.restart();
    let listed = node.client().slices().unwrap();
    assert_eq!(listed.iter().map(|slice| &slice.id).collect::<Vec<_>>(), [&slice.description().id]);
    assert_eq!(listed[0].region_path, slice.description().region_path);
    let usage = node.client().usage("orphan").unwrap();
    assert_eq!(usage.parts[0].memory_used_bytes, 24 * MIB, "{usage:?}");
    let mut pids: Vec<u32> = usage.processes.iter().map(|process| process.pid).collect();
    let mut expected = [holder.id(), second.id()];
    pids.sort_unstable();
    expected.sort_unstable();
    assert_eq!(pids, expected);

    // The new manager watches the processes of the old one.
    let _ = holder.kill();
    wait::until_true("the memory is free again", || slice.used_bytes(0) == 8 * MIB);
    drop(second);
    wait::until_true("the memory is free again", || slice.used_bytes(0) == 0);
}

#[test]
fn memory_of_processes_that_die_without_a_manager_is_freed_by_the_next() {
    let gpu = SimulatedGpu::exact();
    let mut node = Node::start(&gpu);
    let slice = node.slice("orphan", 50, 64 * MIB);
    let holder = hold(&gpu, &slice, 16 * MIB);
    node.kill();
    let _ = holder.kill();
    assert_eq!(slice.used_bytes(0), 16 * MIB);
    node.restart();
    wait::until_true("the memory is free again", || slice.used_bytes(0) == 0);
    assert_exactly_free(&gpu, &slice, 64 * MIB);
}

#[test]
fn a_manager_that_stops_leaves_running_programs_limited() {
    let gpu = SimulatedGpu::exact();
    let mut node = Node::start(&gpu);
    let slice = node.slice("stopped", 50, 64 * MIB);
    let holder = hold(&gpu, &slice, 16 * MIB);
    node.stop();
    assert_exactly_free(&gpu, &slice, 48 * MIB);
    node.restart();
    let usage = node.client().usage("stopped").unwrap();
    assert_eq!(usage.parts[0].memory_used_bytes, 16 * MIB, "{usage:?}");
    drop(holder);
}

/// A driver may still be freeing the memory of a slice's last process when the slice is removed.
#[test]
fn what_the_driver_still_holds_of_a_removed_slice_is_nobody_s() {
    let gpu = SimulatedGpu::with(&format!("{EXACT_MEMORY}teardown_ms = 10000\n[[device]]\nmemory = '128MiB'\n"));
    let node = Node::start(&gpu);
    let first = node.slice("first", 50, 96 * MIB);
    let holder = hold(&gpu, &first, 96 * MIB);
    // A look that began after the process held its memory: the driver lists it in the slice.
    let looks = || first.limits().devices[0].memory_looks.load(Ordering::Relaxed);
    let before = looks();
    wait::until_true("the manager has looked", || looks() >= before + 4);
    let _ = holder.kill();
    wait::until_true("the manager has seen its end", || node.client().usage("first").unwrap().processes.is_empty());
    assert!(!gpu.machine().device_use(0).processes.is_empty());
    node.client().remove("first", false).unwrap();
    assert!(gpu.machine().device_use(0).processes.is_empty());
    let second = node.slice("second", 50, 96 * MIB);
    assert_exactly_free(&gpu, &second, 96 * MIB);
}

/// A slice whose only process was killed, and whose memory the driver holds for `teardown_ms` more.
fn with_memory_of_the_dead(teardown_ms: u32) -> (SimulatedGpu, Node, Slice) {
    let gpu = SimulatedGpu::with(&format!("{EXACT_MEMORY}teardown_ms = {teardown_ms}\n"));
    let node = Node::start(&gpu);
    let slice = node.slice("left", 50, 64 * MIB);
    let holder = hold(&gpu, &slice, 32 * MIB);
    let looks = || slice.limits().devices[0].memory_looks.load(Ordering::Relaxed);
    let before = looks();
    wait::until_true("the manager has looked", || looks() >= before + 4);
    let _ = holder.kill();
    wait::until_true("the manager has seen its end", || node.client().usage("left").unwrap().processes.is_empty());
    (gpu, node, slice)
}

#[test]
fn a_slice_whose_removal_waits_is_kept_for_who_comes_meanwhile() {
    let (gpu, node, slice) = with_memory_of_the_dead(15_000);
    let (is_in_use, _holder) = thread::scope(|scope| {
        let removal = scope.spawn(|| node.client().remove("left", false).is_err());
        let holder = hold(&gpu, &slice, 16 * MIB);
        (removal.join().unwrap(), holder)
    });
    assert!(is_in_use && node.client().usage("left").unwrap().processes.len() == 1);
}

/// A service manager kills a daemon that takes longer than it was given.
#[test]
fn a_manager_that_is_told_to_end_waits_for_no_driver() {
    let (gpu, mut node, _slice) = with_memory_of_the_dead(20_000);
    let mut client = node.client();
    thread::scope(|scope| {
        let removal = scope.spawn(move || client.remove("left", false));
        // Answers to later requests. The removal has most likely begun before them; otherwise this test shows nothing.
        (0..50).for_each(|_| drop(node.client().usage("left")));
        node.stop();
        let _ = removal.join().unwrap();
    });
    assert!(!gpu.machine().device_use(0).processes.is_empty(), "the manager has waited for the driver");
}

/// A driver may need time to free a dead process's memory. Meanwhile it lists the memory under the old process id.
#[test]
fn the_dead_are_accused_of_nothing_while_the_driver_tears_them_down() {
    let gpu = SimulatedGpu::with(&format!("{EXACT_MEMORY}teardown_ms = 10000\n"));
    let node = Node::with(&gpu, "cdi_dir = 'off'\n[audit]\npolicy = 'stop'\n");
    let slice = node.slice("killed", 50, 64 * MIB);
    let holder = hold(&gpu, &slice, 64 * MIB);
    let id = holder.id();
    let _ = holder.kill();
    let listed = || gpu.machine().device_use(0).processes;
    assert_eq!(listed().iter().map(|process| process.pid).collect::<Vec<_>>(), [id]);
    wait::until_true("the driver lets go of its memory", || {
        let found = node.client().findings().unwrap().findings;
        assert!(found.is_empty(), "{found:?}");
        listed().is_empty()
    });
    let overhead_bytes = || slice.limits().devices[0].memory_overhead_bytes.load(Ordering::Relaxed);
    wait::until_true("the slice has it again", || slice.used_bytes(0) == 0 && overhead_bytes() == 0);
    assert_exactly_free(&gpu, &slice, 64 * MIB);
}
