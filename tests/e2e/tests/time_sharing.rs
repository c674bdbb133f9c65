//! Device time is shared as it was asked for, measured by the device itself.

use std::sync::atomic::Ordering;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Duration;

use aliquot_abi::region::gate;
use aliquot_fake_machine::now_ns;
use aliquot_harness::{GIB, HostProgram, Node, Process, Region, SimulatedGpu, Slice, run, wait};
use aliquot_proto::node::v1::{Part, ResizeSliceRequest};
use rustix::process::Signal;

/// Machines that run tests are slow and shared; the aim itself is a figure of the benchmarks.
const TOLERANCE_POINTS: f64 = 3.0;
/// How long shares are measured.
const WINDOW: Duration = Duration::from_secs(4);

/// Starts a program in `slice` that keeps the device busy with kernels of so many nanoseconds.
fn busy(gpu: &SimulatedGpu, slice: &Slice, kernel_ns: u64) -> Process {
    let mut command = HostProgram::linked(gpu, "busy").on(gpu);
    command.args([&kernel_ns.to_string(), "0"]);
    let mut process = Process::start(slice.preload_into(&mut command));
    process.wait_for("busy\n");
    process
}

/// Device time that a process has used, as the machine knows it.
fn busy_ns(gpu: &SimulatedGpu, process: &Process) -> u64 {
    let used = gpu.machine().device_use(0);
    used.processes.iter().find(|used| used.pid == process.id()).map_or(0, |used| used.busy_ns)
}

/// The shares of the device that processes get, in percent, once all have begun.
fn shares<const N: usize>(gpu: &SimulatedGpu, processes: [&Process; N]) -> [f64; N] {
    // The first leases are past when each has used the device for a while.
    wait::until_true("all use the device", || processes.iter().all(|process| busy_ns(gpu, process) > 150_000_000));
    let before = processes.map(|process| busy_ns(gpu, process));
    let start_ns = now_ns();
    thread::sleep(WINDOW);
    let after = processes.map(|process| busy_ns(gpu, process));
    let window_ns = (now_ns() - start_ns) as f64;
    std::array::from_fn(|index| (after[index] - before[index]) as f64 * 100.0 / window_ns)
}

/// Fails the test unless the processes shared the device as `expected`, in percent of what all of them used: where the
/// machine itself is too busy to keep the device busy, that is nobody's share.
#[track_caller]
fn assert_shared<const N: usize>(measured: [f64; N], expected: [f64; N]) {
    let used: f64 = measured.iter().sum();
    assert!(used >= 80.0, "the device was idle: the shares were {measured:.2?}");
    for (measured, expected) in measured.iter().zip(expected) {
        assert_share(measured * 100.0 / used, expected);
    }
}

/// Held by each test here: side by side they would take each other's processors.
fn alone_on_the_machine() -> MutexGuard<'static, ()> {
    static MACHINE: Mutex<()> = Mutex::new(());
    MACHINE.lock().unwrap_or_else(PoisonError::into_inner)
}

#[track_caller]
fn assert_share(measured: f64, expected: f64) {
    assert!((measured - expected).abs() <= TOLERANCE_POINTS, "{measured:.2} % of the device, not {expected} %");
}

#[test]
fn two_that_are_always_busy_get_what_they_asked_for() {
    let _alone = alone_on_the_machine();
    let gpu = SimulatedGpu::new();
    let node = Node::start(&gpu);
    let (small, large) = (node.slice("small", 30, GIB), node.slice("large", 70, GIB));
    let (first, second) = (busy(&gpu, &small, 500_000), busy(&gpu, &large, 500_000));
    assert_shared(shares(&gpu, [&first, &second]), [30.0, 70.0]);
}

#[test]
fn the_length_of_kernels_does_not_matter() {
    let _alone = alone_on_the_machine();
    let gpu = SimulatedGpu::new();
    let node = Node::start(&gpu);
    let (short, long) = (node.slice("short", 50, GIB), node.slice("long", 50, GIB));
    let (first, second) = (busy(&gpu, &short, 100_000), busy(&gpu, &long, 15_000_000));
    assert_shared(shares(&gpu, [&first, &second]), [50.0, 50.0]);
}

#[test]
fn a_limit_holds_for_one_that_is_alone() {
    let _alone = alone_on_the_machine();
    let gpu = SimulatedGpu::new();
    let node = Node::start(&gpu);
    let slice = node.slice("alone", 30, GIB);
    let process = busy(&gpu, &slice, 500_000);
    let [share] = shares(&gpu, [&process]);
    assert_share(share, 30.0);
    let usage = node.client().usage("alone").unwrap();
    let told = f64::from(usage.parts[0].core_used_1s_millipercent) / 1000.0;
    assert_share(told, 30.0);
    assert!(usage.parts[0].throttled_ns > 0, "{usage:?}");
}

#[test]
fn processes_of_one_slice_share_its_limit() {
    let _alone = alone_on_the_machine();
    let gpu = SimulatedGpu::new();
    let node = Node::start(&gpu);
    let slice = node.slice("pair", 40, GIB);
    let processes = [busy(&gpu, &slice, 300_000), busy(&gpu, &slice, 300_000)];
    let shares = shares(&gpu, [&processes[0], &processes[1]]);
    assert_share(shares[0] + shares[1], 40.0);
}

#[test]
fn what_others_leave_may_be_used_up_to_the_limit() {
    let _alone = alone_on_the_machine();
    let gpu = SimulatedGpu::new();
    let node = Node::start(&gpu);
    let part = Part { core_request_percent: 20, core_limit_percent: 60, memory_limit_bytes: GIB, ..Part::default() };
    let bursting = node.slice_of("bursting", vec![part]);
    let process = busy(&gpu, &bursting, 500_000);
    let [alone] = shares(&gpu, [&process]);
    assert_share(alone, 60.0);
    let other = node.slice("other", 80, GIB);
    let second = busy(&gpu, &other, 500_000);
    assert_shared(shares(&gpu, [&process, &second]), [20.0, 80.0]);
}

#[test]
fn a_share_that_is_changed_holds_while_programs_run() {
    let _alone = alone_on_the_machine();
    let gpu = SimulatedGpu::new();
    let node = Node::start(&gpu);
    let slice = node.slice("changing", 20, GIB);
    let process = busy(&gpu, &slice, 500_000);
    let [share] = shares(&gpu, [&process]);
    assert_share(share, 20.0);
    let part = Part { core_request_percent: 50, core_limit_percent: 50, ..Part::default() };
    node.client()
        .resize(ResizeSliceRequest { name: "changing".into(), parts: vec![part], ..Default::default() })
        .unwrap();
    let [share] = shares(&gpu, [&process]);
    assert_share(share, 50.0);
}

#[test]
fn graphs_are_charged_for_all_that_they_hold() {
    let _alone = alone_on_the_machine();
    let gpu = SimulatedGpu::new();
    let node = Node::start(&gpu);
    let slices = [node.slice("graphs", 30, GIB), node.slice("kernels", 70, GIB)];
    let mut command = HostProgram::linked(&gpu, "busy_graphs").on(&gpu);
    let mut graphs = Process::start(slices[0].preload_into(command.arg("50000")));
    graphs.wait_for("busy\n");
    let kernels = busy(&gpu, &slices[1], 500_000);
    assert_shared(shares(&gpu, [&graphs, &kernels]), [30.0, 70.0]);
}

/// Streams, events, host functions, graphs and captures in each mode work as they do without the shim, while leases
/// come and go.
#[test]
fn nothing_that_is_launched_is_disturbed() {
    let _alone = alone_on_the_machine();
    let gpu = SimulatedGpu::new();
    let node = Node::start(&gpu);
    let slices = [node.slice("tested", 30, GIB), node.slice("neighbour", 70, GIB)];
    let neighbour = busy(&gpu, &slices[1], 500_000);
    for program in ["streams", "graph", "capture", "thread_storm"] {
        let program = HostProgram::linked(&gpu, program);
        let bare = run(&mut program.on(&SimulatedGpu::new())).success();
        let limited = run(slices[0].preload_into(&mut program.on(&gpu))).success();
        bare.assert_same(&limited);
    }
    drop(neighbour);
}

#[test]
fn a_program_ends_while_its_threads_wait_for_the_device() {
    let _alone = alone_on_the_machine();
    let gpu = SimulatedGpu::new();
    let node = Node::start(&gpu);
    let slice = node.slice("ending", 5, GIB);
    for way in ["exit", "_exit", "return", "thread"] {
        let mut command = HostProgram::linked(&gpu, "exit_in_launch").on(&gpu);
        let outcome = run(slice.preload_into(command.arg(way)));
        assert_eq!(outcome.status.code(), Some(7), "{way}: {outcome:?}");
    }
}

#[test]
fn a_closed_gate_holds_launches_and_nothing_else() {
    let _alone = alone_on_the_machine();
    let gpu = SimulatedGpu::new();
    let region = Region::new(&gpu, GIB);
    let limits = &region.limits().devices[0];
    limits.gate.store(0, Ordering::SeqCst);
    let start = || {
        let mut command = HostProgram::linked(&gpu, "busy").on(&gpu);
        command.args(["100000", "1"]);
        let mut process = Process::start(region.preload_into(&mut command));
        process.wait_for("busy\n");
        process
    };
    let waiting = || region.ledger().slots.iter().any(|slot| slot.devices[0].waiting.load(Ordering::Relaxed) > 0);
    let mut process = start();
    wait::until_true("the launch waits", waiting);
    assert_eq!(gpu.machine().device_use(0).busy_ns, 0);
    // Memory is not what the gate is about.
    let mut command = HostProgram::linked(&gpu, "exact").on(&gpu);
    let _ = run(region.preload_into(command.arg(GIB.to_string()))).success();
    // Nobody is woken here, as if the wake-up had been lost: who waits looks for itself now and then.
    limits.gate.store(gate::OPEN | gate::TICK, Ordering::SeqCst);
    wait::until_true("the launch goes on", || gpu.machine().device_use(0).busy_ns > 1_000_000);
    limits.gate.store(2 * gate::TICK, Ordering::SeqCst);
    wait::until_true("the next launch waits", waiting);
    assert!(!process.has_ended());
    process.signal(Signal::TERM);
    assert_eq!(process.wait().signal(), Some(15));
}
