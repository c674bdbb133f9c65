//! The manager writes a container's use into its region, where the processes read it for their own view of the device.

use std::sync::atomic::{AtomicU64, Ordering};

use aliquot_abi::ledger;
use aliquot_abi::region::{SLOTS_MAX, SlotDevice};
use aliquot_harness::{EXACT_MEMORY, GIB, HostProgram, MIB, Node, Process, Shares, SimulatedGpu, Slice, run, wait};
use aliquot_proto::node::v1::{CreateSliceRequest, Part, PartUsage, PriorityClass, ResizeSliceRequest};

/// The slice's use of its first device in the last second by its counters, in thousandths.
fn used_permille(slice: &Slice) -> u64 {
    slice.limits().counters[0].used_permille.load(Ordering::Relaxed)
}

/// A figure of each of the slice's processes, without zeros. Slots without an owner are ignored.
fn of_processes(slice: &Slice, figure: fn(&SlotDevice) -> &AtomicU64) -> Vec<u64> {
    let ledger = slice.ledger();
    let owned = (0..SLOTS_MAX).filter(|&index| ledger::identity(ledger, index).is_some());
    let figures = owned.map(|index| figure(&ledger.slots[index].devices[0]).load(Ordering::Relaxed));
    figures.filter(|&value| value > 0).collect()
}

#[test]
fn the_share_that_a_container_uses_under_leases_is_shown_in_it() {
    let gpu = SimulatedGpu::new();
    let node = Node::start(&gpu);
    let slice = node.slice("shown", 30, GIB);
    assert_eq!(used_permille(&slice), 0);
    let process = slice.busy(&gpu);
    // The bounds leave room for a busy machine. Other tests judge how exact shares are.
    wait::until_true("a share of 30 % is shown", || (250..=350).contains(&used_permille(&slice)));
    wait::until_true("so is that of the process", || {
        let shown = of_processes(&slice, |part| &part.used_permille);
        shown.len() == 1 && (200..=400).contains(&shown[0])
    });
    drop(process);
    wait::until_true("nothing is shown any more", || {
        used_permille(&slice) == 0 && of_processes(&slice, |part| &part.used_permille).is_empty()
    });
}

#[test]
fn the_share_of_a_container_with_a_device_to_itself_is_shown_in_it() {
    let gpu = SimulatedGpu::new();
    let node = Node::start(&gpu);
    let slice = node.slice("alone", 100, GIB);
    let process = slice.busy(&gpu);
    wait::until_true("nearly all of the device is shown", || used_permille(&slice) >= 900);
    wait::until_true("so is that of the process", || {
        of_processes(&slice, |part| &part.used_permille).iter().any(|&permille| permille >= 900)
    });
    drop(process);
    wait::until_true("nothing is shown any more", || used_permille(&slice) == 0);
}

#[test]
fn overhead_of_a_process_is_shown_in_its_slot() {
    let gpu = SimulatedGpu::with("context_memory = '6MiB'\nallocation_block = '512B'\n");
    let node = Node::start(&gpu);
    let slice = node.slice("contexts", 50, GIB);
    let hold = |bytes: u64| {
        let mut command = HostProgram::linked(&gpu, "hold").on(&gpu);
        let mut process = Process::start(slice.preload_into(command.arg(bytes.to_string())));
        process.wait_for("held");
        process
    };
    let (first, _second) = (hold(16 * MIB), hold(MIB));
    // The manager sees the first context. The second is reserved with the size learned from the first.
    wait::until_true("the context of each is shown", || {
        let seen = of_processes(&slice, |part| &part.overhead_bytes);
        let reserved = of_processes(&slice, |part| &part.context_bytes);
        (seen, reserved) == (vec![6 * MIB], vec![6 * MIB])
    });
    let overhead = || slice.limits().devices[0].memory_overhead_bytes.load(Ordering::Relaxed);
    wait::until_true("both count against the limit", || (overhead(), slice.used_bytes(0)) == (6 * MIB, 23 * MIB));
    drop(first);
    wait::until_true("only the other's is left", || (overhead(), slice.used_bytes(0)) == (0, 7 * MIB));
}

/// On the drivers from 535.43 to 535.86. With so many processes, their list would also not fit into the memory for the
/// usual entries.
#[test]
fn processes_are_counted_where_entries_of_their_lists_are_long() {
    const COUNT: u64 = 20;
    let gpu = SimulatedGpu::with("context_memory = '6MiB'\nallocation_block = '512B'\nlong_process_entries = true\n");
    let node = Node::start(&gpu);
    let slice = node.slice("many", 50, GIB);
    let hold = |_| {
        let mut command = HostProgram::linked(&gpu, "hold").on(&gpu);
        let mut process = Process::start(slice.preload_into(command.arg(MIB.to_string())));
        process.wait_for("held");
        process
    };
    let _processes: Vec<Process> = (0..COUNT).map(hold).collect();
    // The context of the first one is overhead. Those of the others were reserved.
    let overhead = || slice.limits().devices[0].memory_overhead_bytes.load(Ordering::Relaxed);
    wait::until_true("all contexts count", || (overhead() + slice.used_bytes(0)) == COUNT * 7 * MIB);
    wait::until_true("no process is unknown", || {
        let looked = node.client().usage("many").unwrap().processes.len() as u64 == COUNT;
        looked && node.client().findings().unwrap().findings.is_empty()
    });
}

/// Programs ask for bytes, and the driver takes whole blocks of 2 MiB. The excess over the ledger is in the overhead as
/// soon as the manager has looked.
#[test]
fn memory_that_the_driver_rounds_up_counts_against_the_limit() {
    let gpu = SimulatedGpu::with("context_memory = '6MiB'\n");
    let node = Node::start(&gpu);
    let slice = node.slice("rounded", 50, 16 * MIB);
    let program = HostProgram::linked(&gpu, "hold");
    let mut holder = Process::start(slice.preload_into(program.on(&gpu).arg((3 * MIB).to_string())));
    holder.wait_for("held");
    let overhead = || slice.limits().devices[0].memory_overhead_bytes.load(Ordering::Relaxed);
    wait::until_true("the fourth MiB is found", || (overhead(), slice.used_bytes(0)) == (7 * MIB, 3 * MIB));
    // 10 MiB are used. Another context takes the rest, and there would be room for one more MiB without the rounding.
    let refused = run(slice.preload_into(program.on(&gpu).arg("1")));
    assert!(refused.stderr.contains("cuMemAlloc") && refused.stderr.contains("answers 2"), "{refused:?}");
}

#[test]
fn host_memory_and_copies_are_told_of_programs_that_have_ended() {
    let gpu = SimulatedGpu::with(&format!("{EXACT_MEMORY}pool_chunk = '2MiB'\n"));
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
    // The program copies a page to the device and back.
    let _ = run(slice.preload_into(&mut HostProgram::linked(&gpu, "plain").on(&gpu))).success();
    wait::until_true("its copies are told", || usage().parts[0].copies >= before.copies + 2);
    wait::until_true("its end is noticed", || usage().processes.is_empty());
    let after = usage().parts.remove(0);
    assert_eq!((after.copies - before.copies, after.copied_bytes - before.copied_bytes), (2, 2 * 4096));
    assert!(after.copy_ns > before.copy_ns, "{after:?}");
}

/// The usage of the slice's first device, from the manager.
fn part(node: &Node, slice: &Slice) -> PartUsage {
    node.client().usage(slice.name()).unwrap().parts.remove(0)
}

fn waits(part: &PartUsage) -> u64 {
    part.lease_waits.as_ref().unwrap().counts.iter().sum()
}

#[test]
fn lease_waits_are_counted_apart_from_throttling_and_outlive_the_manager() {
    let gpu = SimulatedGpu::new();
    let mut node = Node::start(&gpu);
    let (first, second) = (node.slice("first", 50, GIB), node.slice("second", 50, GIB));
    let processes = [first.busy(&gpu), second.busy(&gpu)];
    wait::until_true("each waits for the other's leases to end", || {
        [&first, &second].into_iter().all(|slice| waits(&part(&node, slice)) >= 20)
    });
    let told = part(&node, &first);
    let histogram = told.lease_waits.clone().unwrap();
    assert!(told.leases > 0 && told.throttled_ns > 0, "{told:?}");
    // Buckets and total must agree, and no wait is longer than the longest.
    let (mut least_ns, mut from_ns) = (0, 0);
    for (index, count) in histogram.counts.iter().enumerate() {
        assert!(*count == 0 || histogram.longest_ns > from_ns || from_ns == 0, "{histogram:?}");
        least_ns += count * from_ns;
        from_ns = histogram.bounds_ns.get(index).copied().unwrap_or(u64::MAX);
    }
    assert!((least_ns..=waits(&told) * histogram.longest_ns).contains(&histogram.total_ns), "{histogram:?}");

    drop(processes);
    wait::until_true("their end is noticed", || node.client().usage("first").unwrap().processes.is_empty());
    node.kill();
    node.restart();
    let after = part(&node, &first);
    assert!(waits(&after) >= waits(&told) && after.leases >= told.leases, "{told:?}, then {after:?}");
    assert!(after.lease_waits.unwrap().longest_ns >= histogram.longest_ns);
}

#[test]
fn a_resize_of_a_running_container_holds_when_its_answer_comes() {
    let gpu = SimulatedGpu::exact();
    let node = Node::start(&gpu);
    let slice = node.slice("changing", 20, 64 * MIB);
    let mut command = HostProgram::linked(&gpu, "hold").on(&gpu);
    let mut holder = Process::start(slice.preload_into(command.arg((32 * MIB).to_string())));
    holder.wait_for("held");
    let worker = slice.busy(&gpu);
    wait::until_true("both are known", || node.client().usage("changing").unwrap().processes.len() == 2);

    let changed = ResizeSliceRequest {
        name: "changing".into(),
        parts: vec![Part {
            core_request_percent: 40,
            core_limit_percent: 80,
            memory_limit_bytes: 16 * MIB,
            ..Part::default()
        }],
        priority_class: PriorityClass::LatencyCritical.into(),
        ..ResizeSliceRequest::default()
    };
    let answer = node.client().resize(changed).unwrap();
    // Read without waiting: the answer promises that the new limits hold.
    let limits = &slice.limits().devices[0];
    let percent =
        (limits.core_request_percent.load(Ordering::Relaxed), limits.core_limit_percent.load(Ordering::Relaxed));
    assert_eq!((percent, limits.memory_limit_bytes.load(Ordering::Relaxed)), ((40, 80), 16 * MIB));
    let usage = node.client().usage("changing").unwrap();
    assert_eq!((usage.priority_class(), usage.parts[0].core_limit_percent), (PriorityClass::LatencyCritical, 80));
    // A warning says that the process holds more than the new limit, and the slice gets nothing more.
    assert!(answer.warnings.len() == 1 && answer.warnings[0].contains("the limit is 16 MiB"), "{answer:?}");
    let mut more = HostProgram::linked(&gpu, "exact").on(&gpu);
    let refused = run(slice.preload_into(more.arg("1")));
    assert!(refused.stdout.starts_with("free: 0\n"), "{refused:?}");
    drop(holder);
    wait::until_true("below its limit nothing is said", || {
        node.client().slices().unwrap().iter().all(|slice| slice.warnings.is_empty())
    });

    // The arbiter applies the new limits: the process uses more than the old limit allowed, and no more than the new
    // one.
    Shares::of(&gpu).between(40..=80, &[worker.id()]).assert_kept();
}
