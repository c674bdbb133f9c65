//! What a container uses is written where its processes can read it: for their own views of the device.

use std::sync::atomic::{AtomicU64, Ordering};

use aliquot_abi::region::SlotDevice;
use aliquot_harness::{GIB, HostProgram, MIB, Node, Process, SimulatedGpu, Slice, run, wait};
use aliquot_proto::node::v1::{CreateSliceRequest, Part};

fn busy(gpu: &SimulatedGpu, slice: &Slice) -> Process {
    let mut command = HostProgram::linked(gpu, "busy").on(gpu);
    command.args(["500000", "0"]);
    let mut process = Process::start(slice.preload_into(&mut command));
    process.wait_for("busy");
    process
}

/// What the slice's counters say that it used of its first device in the last second, in thousandths.
fn used_permille(slice: &Slice) -> u64 {
    slice.limits().counters[0].used_permille.load(Ordering::Relaxed)
}

/// A figure of each of the slice's processes, of those where there is any.
fn of_processes(slice: &Slice, figure: fn(&SlotDevice) -> &AtomicU64) -> Vec<u64> {
    let figures = slice.ledger().slots.iter().map(|slot| figure(&slot.devices[0]).load(Ordering::Relaxed));
    figures.filter(|&value| value > 0).collect()
}

#[test]
fn the_share_that_a_container_uses_under_leases_is_shown_in_it() {
    let gpu = SimulatedGpu::new();
    let node = Node::start(&gpu);
    let slice = node.slice("shown", 30, GIB);
    assert_eq!(used_permille(&slice), 0);
    let process = busy(&gpu, &slice);
    // The bounds leave room for a busy machine: what shares are exact to is another test's.
    wait::until_true("a share of 30 % is shown", || (250..=350).contains(&used_permille(&slice)));
    wait::until_true("so is that of the process", || {
        let shown = of_processes(&slice, |part| &part.used_permille);
        shown.len() == 1 && (200..=400).contains(&shown[0])
    });
    drop(process);
    wait::until_true("nothing is shown any more", || used_permille(&slice) == 0);
    assert_eq!(of_processes(&slice, |part| &part.used_permille), []);
}

#[test]
fn the_share_of_a_container_with_a_device_to_itself_is_shown_in_it() {
    let gpu = SimulatedGpu::new();
    let node = Node::start(&gpu);
    let slice = node.slice("alone", 100, GIB);
    let process = busy(&gpu, &slice);
    wait::until_true("nearly all of the device is shown", || used_permille(&slice) >= 900);
    wait::until_true("so is that of the process", || {
        of_processes(&slice, |part| &part.used_permille).iter().any(|&permille| permille >= 900)
    });
    drop(process);
    wait::until_true("nothing is shown any more", || used_permille(&slice) == 0);
}

#[test]
fn what_a_process_uses_beyond_its_allocations_is_shown_in_its_slot() {
    let gpu = SimulatedGpu::with("context_memory = '6MiB'");
    let node = Node::start(&gpu);
    let slice = node.slice("contexts", 50, GIB);
    let hold = |bytes: u64| {
        let mut command = HostProgram::linked(&gpu, "hold").on(&gpu);
        let mut process = Process::start(slice.preload_into(command.arg(bytes.to_string())));
        process.wait_for("held");
        process
    };
    let (first, _second) = (hold(16 * MIB), hold(MIB));
    wait::until_true("the context of each is shown", || {
        of_processes(&slice, |part| &part.overhead_bytes) == [6 * MIB, 6 * MIB]
    });
    let overhead = &slice.limits().devices[0].memory_overhead_bytes;
    wait::until_true("both count against the limit", || overhead.load(Ordering::Relaxed) == 12 * MIB);
    drop(first);
    wait::until_true("only the other's is left", || {
        of_processes(&slice, |part| &part.overhead_bytes) == [6 * MIB] && overhead.load(Ordering::Relaxed) == 6 * MIB
    });
}

#[test]
fn host_memory_and_copies_are_told_of_programs_that_have_ended() {
    let gpu = SimulatedGpu::new();
    let node = Node::start(&gpu);
    let part = Part { core_request_percent: 50, memory_limit_bytes: 64 * MIB, ..Part::default() };
    let request = CreateSliceRequest {
        name: "told".into(),
        parts: vec![part],
        host_memory_limit_bytes: 16 * MIB,
        ..CreateSliceRequest::default()
    };
    let slice = Slice::open(node.client().create(request).unwrap());
    let usage = || node.client().usage("told").unwrap();

    let asked = run(slice.preload_into(&mut HostProgram::linked(&gpu, "host_memory").on(&gpu))).success();
    let refusals = asked.stdout.lines().filter(|line| line.ends_with(": 2")).count() as u64;
    wait::until_true("what it had is free again", || usage().host_memory.unwrap().used_bytes == 0);
    let host = usage().host_memory.unwrap();
    assert_eq!((host.limit_bytes, host.peak_bytes, host.refused), (16 * MIB, 16 * MIB, refusals));

    let before = usage().parts.remove(0);
    // It copies a page to the device and back.
    let _ = run(slice.preload_into(&mut HostProgram::linked(&gpu, "plain").on(&gpu))).success();
    wait::until_true("its copies are told", || usage().parts[0].copies >= before.copies + 2);
    wait::until_true("its end is noticed", || usage().processes.is_empty());
    let after = usage().parts.remove(0);
    assert_eq!((after.copies - before.copies, after.copied_bytes - before.copied_bytes), (2, 2 * 4096));
    assert!(after.copy_ns > before.copy_ns, "{after:?}");
}
