//! A launch waits for the device that it runs on, whatever the calling thread's current device, and for nothing else.

use std::os::unix::fs::symlink;
use std::sync::atomic::Ordering;

use aliquot_abi::ledger;
use aliquot_abi::region::gate;
use aliquot_harness::{FrontDriver, GIB, HostProgram, Part, Process, Region, SimulatedGpu, run, wait};
use rustix::process::Signal;

/// Threads that wait for the gate of part `part`.
fn waiting(region: &Region, part: usize) -> u32 {
    region.ledger().slots.iter().map(|slot| slot.devices[part].waiting.load(Ordering::Relaxed)).sum()
}

/// Opens the gate of part `part`, as for a lease.
fn open(region: &Region, part: usize) {
    region.limits().devices[part].gate.store(gate::OPEN | gate::TICK, Ordering::SeqCst);
}

/// Runs `elsewhere` with the gate of the second device closed: its launch must wait for that gate alone.
fn assert_waits_for_the_second_device(way: &str) {
    let gpu = SimulatedGpu::with("[[device]]\n[[device]]\n");
    let region = Region::with_parts(&gpu, &[0, 1].map(|device| Part { device, memory_limit_bytes: GIB }));
    region.close_gate(1);
    let mut command = HostProgram::linked(&gpu, "elsewhere").on(&gpu);
    let mut process = Process::start(region.preload_into(command.arg(way)));
    process.wait_for("launches\n");
    wait::until_true("the launch waits", || waiting(&region, 1) == 1);
    assert_eq!(waiting(&region, 0), 0);
    assert_eq!([0, 1].map(|device| gpu.machine().device_use(device).busy_ns), [0, 0]);
    open(&region, 1);
    process.wait().success().assert_said("launches\ndone\n");
    assert!(gpu.machine().device_use(1).busy_ns >= 1_000_000);
    let marked = region.ledger().slots.iter().any(|slot| slot.devices[1].marker_submitted.load(Ordering::Relaxed) > 0);
    assert!(marked, "the second device's work has no marker");
}

#[test]
fn a_cooperative_launch_waits_for_each_of_its_devices() {
    assert_waits_for_the_second_device("cooperative");
}

#[test]
fn a_graph_waits_for_the_device_of_its_stream() {
    assert_waits_for_the_second_device("graph");
}

#[test]
fn host_functions_and_sets_do_not_wait_for_the_device() {
    let gpu = SimulatedGpu::new();
    let region = Region::new(&gpu, GIB);
    region.close_gate(0);
    let mut command = HostProgram::linked(&gpu, "host_calls").on(&gpu);
    let mut process = Process::start(region.preload_into(&mut command));
    process.wait_for("20 calls\n");
    wait::until_true("the launch waits", || waiting(&region, 0) == 1);
    open(&region, 0);
    process.wait().success().assert_said("20 calls\nlaunched\n");
}

/// As with a profiler: a callback of the driver calls the driver while the shim waits for the driver's answer.
#[test]
fn a_driver_that_calls_back_is_not_waited_for() {
    let gpu = SimulatedGpu::new();
    let driver = tempfile::tempdir().expect("a directory");
    let options = ["-shared", "-fPIC", "-Wl,-soname,libcuda.so.1"];
    let library = HostProgram::variant("driver_with_callbacks", "libcuda.so.1", &options);
    symlink(library.path(), driver.path().join("libcuda.so.1")).expect("a link");
    let program = HostProgram::new("asks_once");
    let region = Region::unlimited(&gpu);
    let mut command = program.on(&gpu);
    let outcome = run(region.preload_into(command.env("LD_LIBRARY_PATH", driver.path()))).success();
    // The front driver's device is not in the slice.
    outcome.assert_said("free 0 of 2000\n");
}

/// The context that ends has registered the page to which the device writes markers. The page must stay registered
/// until the markers of the other context are written.
#[test]
fn a_context_does_not_end_before_the_markers_of_others_are_written() {
    let gpu = SimulatedGpu::new();
    let outcome = wait::until("the other's work is done within the time for which the shim waits", || {
        let region = Region::new(&gpu, GIB);
        open(&region, 0);
        let mut command = HostProgram::linked(&gpu, "ends_beside_work").on(&gpu);
        let outcome = run(region.preload_into(command.arg("first"))).success();
        (outcome.stdout != "held up\n").then_some(outcome)
    });
    outcome.assert_said("the other's work was done: 1\ndone\n");
}

#[test]
fn work_is_in_flight_though_a_context_beside_it_has_ended() {
    let gpu = SimulatedGpu::new();
    let region = Region::new(&gpu, GIB);
    open(&region, 0);
    let drained = || {
        let slots = &region.ledger().slots;
        slots.iter().all(|slot| slot.row(0).is_some_and(|row| ledger::drained(&slot.devices[0], row)))
    };
    let mut command = HostProgram::linked(&gpu, "ends_beside_work").on(&gpu);
    let mut process = Process::start(region.preload_into(command.arg("second")));
    process.wait_for("ended\n");
    assert!(!drained(), "nobody waits for the work that is left");
    process.signal(Signal::USR1);
    process.wait().success().assert_said("ended\ndone\n");
    assert!(drained());
}

/// A thread may be held up between a launch and its marker, as in a container with little CPU time. The shim must not
/// take its kernels for short ones then, because their duration bounds the work in flight.
#[test]
fn kernels_are_not_taken_for_short_because_their_launches_return_late() {
    let gpu = SimulatedGpu::new();
    let driver = FrontDriver::new(&gpu, "driver_that_returns_late");
    let region = Region::new(&gpu, GIB);
    open(&region, 0);
    let mut command = HostProgram::linked(&gpu, "late_returns").on(&gpu);
    let outcome = run(region.preload_into(driver.show_to(&mut command))).success();
    // All but a few of sixty kernels of 5 ms were done when the last was launched.
    let launching_ms: u64 = outcome.stdout.trim().parse().expect("a number");
    assert!(launching_ms > 200, "300 ms of work were launched within {launching_ms} ms");
}

/// The kernels behind the long one were short so far. With all markers in use, the shim learns nothing new about them
/// before the long kernel ends.
#[test]
fn behind_a_long_kernel_no_more_is_launched_than_there_are_markers() {
    let gpu = SimulatedGpu::new();
    let region = Region::new(&gpu, GIB);
    region.limits().devices[0].marker_launches_max.store(1, Ordering::Relaxed);
    open(&region, 0);
    let mut command = HostProgram::linked(&gpu, "behind_a_long_kernel").on(&gpu);
    let outcome = run(region.preload_into(&mut command)).success();
    let launching_ms: u64 = outcome.stdout.trim().parse().expect("a number");
    assert!(launching_ms >= 400, "100 kernels were launched behind one of 400 ms within {launching_ms} ms");
}

/// The number of launches that markers stand for.
fn marked(region: &Region, part: usize) -> u64 {
    region.ledger().slots.iter().map(|slot| slot.devices[part].launches.load(Ordering::Relaxed)).sum()
}

/// Runs `left_behind` with the first device's gate closed. Returns how many of its nine launches on the second device
/// have a marker while the program waits at that gate.
#[track_caller]
fn marked_behind(way: &str) -> u64 {
    let gpu = SimulatedGpu::with("[[device]]\n[[device]]\n");
    let region = Region::with_parts(&gpu, &[0, 1].map(|device| Part { device, memory_limit_bytes: GIB }));
    region.close_gate(0);
    open(&region, 1);
    // So long a time that one marker can stand for all following launches.
    region.limits().devices[1].inflight_ns_max.store(1_000_000_000, Ordering::SeqCst);
    let mut command = HostProgram::linked(&gpu, "left_behind").on(&gpu);
    let mut process = Process::start(region.preload_into(command.arg(way)));
    process.wait_for("launches\n");
    wait::until_true("the launch waits", || waiting(&region, 0) == 1);
    let found = marked(&region, 1);
    open(&region, 0);
    process.wait().success().assert_said("launches\ndone\n");
    found
}

#[test]
fn a_thread_that_waits_leaves_no_launch_on_another_device_without_a_marker() {
    assert_eq!(marked_behind("stream"), 9);
    assert_eq!(marked_behind("default"), 9);
}

#[test]
fn remaining_work_of_a_destroyed_stream_has_a_marker() {
    assert_eq!(marked_behind("destroyed"), 9);
}

/// Launches without a marker stay without one, because in a capturing stream the marker would become part of the graph.
#[test]
fn a_thread_that_waits_puts_no_marker_into_a_capture() {
    // Repeated: if the machine holds up the first launches, all are taken for long ones and each has a marker.
    wait::until_true("some launches have none", || (1..=8).contains(&marked_behind("captured")));
}

/// A free can wait as long as a synchronization. Meanwhile the thread launches nothing that would mark its earlier
/// launches, so these need a marker before the call.
#[test]
fn a_thread_that_waits_implicitly_leaves_no_launch_without_a_marker() {
    let gpu = SimulatedGpu::new();
    let calls = [
        "cuMemFree(",
        "cuMemFreeHost(",
        "cuMemHostUnregister(",
        "cuModuleUnload(",
        "cuArrayDestroy(",
        "cuMemPoolTrimTo(",
        "cuMemPoolDestroy(",
        "cuCtxSetLimit(",
        "cuMemcpyDtoHAsync(",
        "cuMemcpyHtoDAsync(",
        "cuMemcpyAsync(",
        "cuMemcpyAtoHAsync(",
        "cuMemcpy2DAsync(",
        "cuMemcpyBatchAsync(",
    ];
    let marked_behind = |call: &str| {
        let region = Region::new(&gpu, GIB);
        open(&region, 0);
        // So long a time that one marker can stand for all following launches.
        region.limits().devices[0].inflight_ns_max.store(1_000_000_000, Ordering::SeqCst);
        let mut command = HostProgram::linked(&gpu, "implicit_waits").on(&gpu);
        let mut process = Process::start(region.preload_into(command.arg(call)));
        process.wait_for("called\n");
        let marked = marked(&region, 0);
        process.signal(Signal::USR1);
        process.wait().success().assert_said("called\ndone\n");
        marked
    };
    for call in calls {
        assert_eq!(marked_behind(call), 9, "{call}");
    }
    // Repeated: if the machine holds up the first launches, all are taken for long ones and each has a marker.
    wait::until_true("without a call some launches have none", || marked_behind("none") < 9);
}

/// The launches in its default stream can be marked only while the green context lives: the driver must not be given its
/// handle afterwards.
#[test]
fn launches_in_a_green_context_are_marked_before_it_ends() {
    let gpu = SimulatedGpu::new();
    let region = Region::new(&gpu, GIB);
    open(&region, 0);
    // So long a time that one marker can stand for all following launches.
    region.limits().devices[0].inflight_ns_max.store(1_000_000_000, Ordering::SeqCst);
    let mut process = Process::start(region.preload_into(&mut HostProgram::linked(&gpu, "ends_green").on(&gpu)));
    process.wait_for("destroyed\n");
    let marked = marked(&region, 0);
    process.signal(Signal::USR1);
    process.wait().success().assert_said("destroyed\ndone\n");
    assert_eq!(marked, 9);
}

/// Runs the program `ruined`, whose only kernel never ends. Afterwards nothing of it may count as in flight.
#[track_caller]
fn assert_not_in_flight_after(arguments: &[&str], answer: u32) {
    let gpu = SimulatedGpu::new();
    let driver = FrontDriver::new(&gpu, "driver_that_loses_kernels");
    let region = Region::new(&gpu, GIB);
    open(&region, 0);
    let mut command = HostProgram::linked(&gpu, "ruined").on(&gpu);
    let outcome = run(region.preload_into(driver.show_to(command.args(arguments)))).success();
    outcome.assert_said(&format!("launched\n{answer}\n"));
    assert_eq!(marked(&region, 0), 1, "{arguments:?}");
    let in_flight =
        region.ledger().slots.iter().filter(|slot| !ledger::drained(&slot.devices[0], slot.row(0).unwrap()));
    assert_eq!(in_flight.count(), 0, "{arguments:?}");
}

/// Its markers never come.
#[test]
fn work_that_a_fault_has_ended_is_not_in_flight_whichever_call_tells() {
    for call in [
        "cuCtxSynchronize",
        "cuMemcpyDtoH",
        "cuEventQuery",
        "cuStreamQuery",
        "cuStreamCreate",
        "cuMemAlloc",
        "cuMemAllocPitch",
        "cuMemAllocAsync",
        "cuMemHostAlloc",
        "cuMemFree",
        "cuMemFreeAsync",
        "cuMemGetInfo",
    ] {
        assert_not_in_flight_after(&[call], 700);
    }
}

/// A marker in a legacy default stream is a barrier to the other streams, so a thread puts none there for launches of
/// other threads.
#[test]
fn a_thread_that_waits_puts_no_barrier_behind_what_others_have_launched() {
    let gpu = SimulatedGpu::new();
    let marked_after = || {
        let region = Region::new(&gpu, GIB);
        open(&region, 0);
        region.limits().devices[0].inflight_ns_max.store(1_000_000_000, Ordering::SeqCst);
        let mut command = HostProgram::linked(&gpu, "legacy_of_others").on(&gpu);
        let mut process = Process::start(region.preload_into(&mut command));
        process.wait_for("waited\n");
        let marked = marked(&region, 0);
        process.signal(Signal::USR1);
        process.wait().success().assert_said("waited\ndone\n");
        marked
    };
    // Repeated: if the machine holds up the first launches, all are taken for long ones and each has a marker.
    wait::until_true("some launches have none", || marked_after() < 9);
}

/// A green context has a handle of its own, and ends with the primary context.
#[test]
fn work_in_a_green_context_ends_with_the_primary_context() {
    assert_not_in_flight_after(&["cuCtxSynchronize", "green"], 700);
    assert_not_in_flight_after(&["cuDevicePrimaryCtxReset", "green"], 0);
}

/// A late marker in the legacy default stream would wait for a blocking stream that is held up, and hold up the others.
#[test]
fn blocking_streams_wait_for_nothing_but_the_program_s_work() {
    let gpu = SimulatedGpu::new();
    let region = Region::new(&gpu, GIB);
    open(&region, 0);
    region.limits().devices[0].inflight_ns_max.store(1_000_000_000, Ordering::SeqCst);
    let mut command = HostProgram::linked(&gpu, "late_barrier").on(&gpu);
    run(region.preload_into(&mut command)).success().assert_said("done\n");
    // The launches of the program's nine kernels in that stream have a marker each.
    assert_eq!(marked(&region, 0), 11);
}

/// Runs `launches_and_asks`. Returns the number of markers before its final wait, and of the launches that they mark.
#[track_caller]
fn markers_and_launches(way: &str) -> (u64, u64) {
    let gpu = SimulatedGpu::new();
    let region = Region::new(&gpu, GIB);
    open(&region, 0);
    region.limits().devices[0].inflight_ns_max.store(1_000_000_000, Ordering::SeqCst);
    let mut command = HostProgram::linked(&gpu, "launches_and_asks").on(&gpu);
    let mut process = Process::start(region.preload_into(command.arg(way)));
    process.wait_for("asked\n");
    let slots = &region.ledger().slots;
    let markers = slots.iter().map(|slot| slot.devices[0].marker_submitted.load(Ordering::Relaxed)).sum();
    let launches = marked(&region, 0);
    process.signal(Signal::USR1);
    process.wait().success().assert_said("asked\ndone\n");
    (markers, launches)
}

/// Fails unless the launches of `launches_and_asks` share their markers.
#[track_caller]
fn assert_markers_are_shared(way: &str) {
    // Repeated: if the machine holds up the first launches, all are taken for long ones and each has a marker.
    wait::until_true("most launches have no marker of their own", || {
        let (markers, launches) = markers_and_launches(way);
        assert!(launches > 140, "{markers} markers for {launches} launches");
        markers < 40
    });
}

/// PyTorch's allocator queries events at each allocation. One marker in sixteen launches is enough for that.
#[test]
fn questions_between_launches_cost_no_markers() {
    assert_markers_are_shared("queries");
}

/// The free of stream-ordered memory is queued and waits for nothing.
#[test]
fn queued_frees_between_launches_cost_no_markers() {
    assert_markers_are_shared("frees");
}

/// Copies of page-locked memory do not wait, and small ones from pageable memory do not either.
#[test]
fn queued_copies_between_launches_cost_no_markers() {
    assert_markers_are_shared("copies");
}

#[test]
fn polled_work_has_a_marker() {
    assert_eq!(markers_and_launches("polls").1, 9);
}

#[test]
fn short_graphs_share_markers() {
    assert_markers_are_shared("graphs");
}

/// Each stream has markers of its own. Without them, the work of one stream would be seen only with another's.
#[test]
fn many_streams_that_are_held_up_have_a_marker_each() {
    let gpu = SimulatedGpu::new();
    let region = Region::new(&gpu, GIB);
    open(&region, 0);
    let mut process = Process::start(region.preload_into(&mut HostProgram::linked(&gpu, "held_streams").on(&gpu)));
    process.wait_for("launched\n");
    let slots = &region.ledger().slots;
    let markers: u64 = slots.iter().map(|slot| slot.devices[0].marker_submitted.load(Ordering::Relaxed)).sum();
    process.signal(Signal::USR1);
    process.wait().success().assert_said("launched\ndone\n");
    assert_eq!(markers, 24);
}

/// Registering memory while kernels run can make them wait for each other.
#[test]
fn the_marker_page_is_registered_before_the_first_launch_but_not_for_a_query() {
    let gpu = SimulatedGpu::new();
    let driver = FrontDriver::new(&gpu, "driver_that_tells");
    let says = |what: &str, is_free: bool| {
        let region = Region::new(&gpu, GIB);
        if !is_free {
            open(&region, 0);
        }
        let mut command = HostProgram::linked(&gpu, "first_use").on(&gpu);
        run(region.preload_into(driver.show_to(command.arg(what)))).success().stdout
    };
    for is_free in [false, true] {
        assert_eq!(says("asks", is_free), "done\n");
        assert_eq!(says("allocates", is_free), "registers 4096 bytes\ndone\n");
    }
    assert_eq!(says("launches", false), "registers 4096 bytes\nlaunches\ndone\n");
    // While a device is not shared, launches have no markers.
    assert_eq!(says("launches", true), "launches\ndone\n");
}
