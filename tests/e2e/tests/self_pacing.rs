//! Without a manager, the processes of a container keep to their common limit by themselves.

use std::process::Command;
use std::sync::atomic::Ordering;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use aliquot_abi::pacing::DEBT_MAX_NS;
use aliquot_abi::region::{FLAG_EVENTS, gate};
use aliquot_fake_machine::now_ns;
use aliquot_harness::{GIB, HostProgram, Node, Process, Region, Shares, SimulatedGpu, Slice, wait};
use rustix::process::Signal;

/// Each test here holds this lock, so that tests do not compete for the processors.
fn alone_on_the_machine() -> MutexGuard<'static, ()> {
    static MACHINE: Mutex<()> = Mutex::new(());
    MACHINE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The region of a container whose manager is gone, with this limit and gate word.
fn orphan(gpu: &SimulatedGpu, limit_percent: u32, word: u32) -> Region {
    let region = Region::new(gpu, GIB);
    let limits = &region.limits().devices[0];
    limits.core_limit_percent.store(limit_percent, Ordering::Relaxed);
    limits.gate.store(word, Ordering::Relaxed);
    region.limits().heartbeat_ns.store(1, Ordering::Relaxed);
    region
}

/// Starts `count` processes of the program that loads the device as `arguments` say.
fn start_load(gpu: &SimulatedGpu, region: &Region, count: usize, arguments: &[&str]) -> Vec<Process> {
    let mut command = HostProgram::linked(gpu, "load").on(gpu);
    begin(count, region.preload_into(command.args(arguments)))
}

fn begin(count: usize, command: &mut Command) -> Vec<Process> {
    let mut processes: Vec<Process> = (0..count).map(|_| Process::start(command)).collect();
    for process in &mut processes {
        process.wait_for("ready\n");
    }
    for process in &processes {
        process.signal(Signal::USR1);
    }
    processes
}

/// The window for errors that are small in each period and show only when they add up.
const LONG: Duration = Duration::from_secs(5);

/// Fails the test unless `count` processes that load the device as `arguments` say use at least half of what the limit
/// allows, and not more. On a busy machine, their work ends later than it should and they wait longer for it.
#[track_caller]
fn assert_limited(limit_percent: u32, count: usize, arguments: &[&str]) {
    let _alone = alone_on_the_machine();
    let gpu = SimulatedGpu::new();
    let region = orphan(&gpu, limit_percent, gate::OPEN);
    let processes = start_load(&gpu, &region, count, arguments);
    let pids: Vec<u32> = processes.iter().map(Process::id).collect();
    Shares::of(&gpu).between(limit_percent / 2..=limit_percent, &pids).over_at_least(LONG).assert_kept();
}

#[test]
fn the_limit_holds_for_tiny_kernels() {
    assert_limited(30, 1, &["kernels=50000"]);
}

#[test]
fn the_limit_holds_for_kernels_that_are_waited_for_one_by_one() {
    assert_limited(50, 1, &["kernels=300000", "sync=1"]);
}

#[test]
fn the_limit_holds_for_kernels_much_longer_than_any_period() {
    assert_limited(20, 1, &["kernels=200000000"]);
}

#[test]
fn the_limit_holds_for_tiny_kernels_among_long_ones() {
    assert_limited(30, 1, &["kernels=50000,50000,50000,50000,50000,50000,50000,60000000"]);
}

#[test]
fn the_limit_holds_for_graphs() {
    assert_limited(30, 1, &["kernels=50000", "graph=100"]);
}

#[test]
fn the_limit_holds_where_events_are_asked_for() {
    let _alone = alone_on_the_machine();
    let gpu = SimulatedGpu::new();
    let region = orphan(&gpu, 30, gate::OPEN);
    region.limits().flags.store(FLAG_EVENTS, Ordering::Relaxed);
    let processes = start_load(&gpu, &region, 1, &["kernels=1000000"]);
    Shares::of(&gpu).between(15..=30, &[processes[0].id()]).assert_kept();
    let mut work = region.ledger().slots.iter().map(|slot| &slot.devices[0]);
    assert!(work.all(|work| work.markers_by_device.load(Ordering::Relaxed) == 0), "the device has written markers");
}

#[test]
fn streams_share_the_limit() {
    assert_limited(40, 1, &["kernels=2000000", "streams=8"]);
}

#[test]
fn processes_share_the_limit() {
    assert_limited(50, 4, &["kernels=1000000"]);
}

#[test]
fn processes_with_long_kernels_share_the_limit() {
    assert_limited(40, 8, &["kernels=30000000", "sync=1"]);
}

#[test]
fn processes_that_pause_share_the_limit() {
    assert_limited(30, 4, &["kernels=5000000,100000", "on_ms=20", "off_ms=30"]);
}

#[test]
fn pauses_of_the_program_are_not_paid_for() {
    let _alone = alone_on_the_machine();
    let gpu = SimulatedGpu::new();
    let region = orphan(&gpu, 50, gate::OPEN);
    // If pauses were charged, the program would wait as long as it pauses.
    let started = Instant::now();
    let _process = start_load(&gpu, &region, 1, &["kernels=1000000", "sync=1", "on_ms=3", "off_ms=97"]);
    let used_ns = || gpu.machine().device_use(0).busy_ns;
    wait::until_true("it has worked and paused many times", || used_ns() > 60_000_000);
    let slots = || region.ledger().slots.iter();
    let waited_ns = || slots().map(|slot| slot.devices[0].throttled_ns.load(Ordering::Relaxed)).sum::<u64>();
    // Repeated, because a busy machine may lengthen the waits for some time.
    wait::until_true("it has waited for little of the time", || {
        u128::from(waited_ns()) < started.elapsed().as_nanos() / 4
    });
}

#[test]
fn a_gate_without_a_manager_does_not_block_processes() {
    let _alone = alone_on_the_machine();
    let gpu = SimulatedGpu::new();
    let region = orphan(&gpu, 30, gate::WATCHED);
    let processes = start_load(&gpu, &region, 1, &["kernels=1000000"]);
    Shares::of(&gpu).between(15..=30, &[processes[0].id()]).assert_kept();
}

#[test]
fn no_value_in_the_account_blocks_a_process_for_ever() {
    let _alone = alone_on_the_machine();
    let gpu = SimulatedGpu::new();
    let region = orphan(&gpu, 80, gate::OPEN);
    let account = &region.ledger().devices[0];
    for word in [u64::MAX, now_ns() + 1_000_000_000_000, 0] {
        account.charged_until_ns.store(word, Ordering::Relaxed);
        account.paced_until_ns.store(word, Ordering::Relaxed);
        let started = Instant::now();
        let processes = start_load(&gpu, &region, 1, &["kernels=1000000"]);
        Shares::of(&gpu).between(40..=80, &[processes[0].id()]).assert_kept();
        println!("with {word:#x} in the account: {:?}, and {DEBT_MAX_NS} ns can be owed", started.elapsed());
    }
}

#[test]
fn killed_processes_do_not_block_others() {
    let _alone = alone_on_the_machine();
    let gpu = SimulatedGpu::new();
    let region = orphan(&gpu, 50, gate::OPEN);
    let survivor = start_load(&gpu, &region, 1, &["kernels=1000000"]);
    for _ in 0..10 {
        for process in start_load(&gpu, &region, 2, &["kernels=500000,20000000"]) {
            assert_eq!(process.kill().signal(), Some(9));
        }
    }
    Shares::of(&gpu).between(25..=50, &[survivor[0].id()]).assert_kept();
}

/// Starts the program `load` in the slice. Returns it and its pid.
fn start_in_slice(gpu: &SimulatedGpu, slice: &Slice, arguments: &[&str]) -> (Process, [u32; 1]) {
    let mut command = HostProgram::linked(gpu, "load").on(gpu);
    let process = begin(1, slice.preload_into(command.args(arguments))).remove(0);
    let pid = process.id();
    (process, [pid])
}

#[test]
fn the_limit_holds_while_managers_go_and_come() {
    let _alone = alone_on_the_machine();
    let gpu = SimulatedGpu::new();
    let mut node = Node::start(&gpu);
    let slice = node.slice("orphan", 30, 8 * GIB);
    let (mut process, pids) = start_in_slice(&gpu, &slice, &["kernels=500000,10000000"]);
    Shares::of(&gpu).exactly(30, &pids).assert_kept();
    node.kill();
    // Measured at once: use before the process notices the manager's end is made up for.
    Shares::of(&gpu).between(15..=30, &pids).assert_kept();
    node.restart();
    Shares::of(&gpu).exactly(30, &pids).assert_kept();
    assert!(!process.has_ended(), "{}", process.errors());
    let charged_ns = || slice.ledger().devices[0].charged_until_ns.load(Ordering::Relaxed);
    let used_ns = || gpu.machine().device_use(0).busy_ns;
    // Repeated, because the manager may be held up for so long that it seems gone again.
    wait::until_true("it does not pace itself beside a manager", || {
        let (charged_before_ns, used_before_ns) = (charged_ns(), used_ns());
        wait::until_true("it works on", || used_ns() > used_before_ns + 100_000_000);
        charged_ns() == charged_before_ns
    });
}
