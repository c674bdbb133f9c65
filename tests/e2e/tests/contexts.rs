//! The memory of contexts is charged to the slice before the manager has seen it.

use std::sync::atomic::Ordering;
use std::sync::mpsc::{self, RecvTimeoutError};
use std::time::Duration;

use aliquot_harness::{GIB, HostProgram, MIB, Node, Process, Region, SimulatedGpu, run, wait};

#[test]
fn a_context_is_charged_from_its_beginning_to_its_end() {
    let gpu = SimulatedGpu::with("context_memory = '20MiB'\n");
    let region = Region::new(&gpu, 64 * MIB);
    region.limits().devices[0].context_bytes.store(20 * MIB, Ordering::Relaxed);
    let mut command = HostProgram::linked(&gpu, "charged_contexts").on(&gpu);
    let outcome = run(region.preload_into(&mut command)).success();
    assert_eq!(
        outcome.stdout,
        "the primary context: 20 MiB\ntwo more: 60 MiB\none that does not fit: 2\none destroyed: 40 MiB\n\
         one that the driver refuses: 1\nit costs nothing: 40 MiB\nattached and detached: 40 MiB\n\
         detached for good: 20 MiB\nretained and released: 20 MiB\nreleased and made again: 20 MiB\n\
         reset and made again: 20 MiB\n"
    );
    assert_eq!((region.used_bytes(0), region.peak_bytes(0)), (0, 60 * MIB));
}

#[test]
fn a_context_that_does_not_fit_by_its_learned_size_is_never_made() {
    let gpu = SimulatedGpu::with("context_memory = '300MiB'\n");
    let node = Node::start(&gpu);
    let slice = node.slice("contexts", 50, GIB);
    let hold = || {
        let mut command = HostProgram::linked(&gpu, "hold").on(&gpu);
        slice.preload_into(command.arg((100 * MIB).to_string()));
        command
    };
    let start = || {
        let mut process = Process::start(&mut hold());
        process.wait_for("held");
        process
    };
    let _first = start();
    let learned = || slice.limits().devices[0].context_bytes.load(Ordering::Relaxed);
    wait::until_true("the first context has shown what one takes", || learned() == 300 * MIB);
    let _second = start();
    // The second context is in the ledger, so it is not overhead.
    let usage = || node.client().usage("contexts").unwrap().parts.remove(0);
    wait::until_true("each byte is counted once", || {
        (usage().memory_used_bytes, usage().memory_overhead_bytes, slice.used_bytes(0))
            == (800 * MIB, 300 * MIB, 500 * MIB)
    });
    let refused = run(&mut hold());
    assert!(refused.stderr.contains("cuDevicePrimaryCtxRetain(&context, device) answers 2"), "{refused:?}");
    assert_eq!((slice.used_bytes(0), usage().memory_refused), (500 * MIB, 1));
    // Another slice on the device has the learned size from its beginning.
    let other = node.slice("other", 50, GIB);
    assert_eq!(other.limits().devices[0].context_bytes.load(Ordering::Relaxed), 300 * MIB);
}

#[test]
fn the_first_context_of_a_device_counts_before_allocations() {
    let gpu = SimulatedGpu::with("context_memory = '300MiB'\n");
    let node = Node::start(&gpu);
    let slice = node.slice("first", 50, GIB);
    let mut command = HostProgram::linked(&gpu, "hold").on(&gpu);
    let mut process = Process::start(slice.preload_into(command.arg((800 * MIB).to_string())));
    wait::until_true("it is granted or refused", || process.has_ended() || process.output().contains("held"));
    assert!(process.errors().contains("cuMemAlloc") && process.errors().contains("answers 2"), "{}", process.errors());
}

/// The test plays a manager that has not heard of the process at its first looks after the context was made.
#[test]
fn a_look_that_misses_the_first_context_is_not_the_last() {
    let gpu = SimulatedGpu::with("context_memory = '300MiB'\n");
    let region = Region::new(&gpu, GIB);
    let (limits, slots) = (&region.limits().devices[0], &region.ledger().slots);
    // Nobody knows yet what a context takes.
    limits.context_bytes.store(0, Ordering::Relaxed);
    let is_there = || slots.iter().any(|slot| slot.devices[0].contexts.load(Ordering::Acquire) != 0);
    std::thread::scope(|scope| {
        let (_ended, has_ended) = mpsc::channel::<()>();
        scope.spawn(move || {
            let mut missed = 0;
            while has_ended.recv_timeout(Duration::from_millis(1)) == Err(RecvTimeoutError::Timeout) {
                limits.memory_looks.fetch_add(1, Ordering::AcqRel);
                missed += u32::from(is_there());
                if missed > 2 {
                    limits.memory_overhead_bytes.store(300 * MIB, Ordering::Release);
                    limits.context_bytes.store(300 * MIB, Ordering::Release);
                }
                limits.memory_looks.fetch_add(1, Ordering::AcqRel);
            }
        });
        let mut command = HostProgram::linked(&gpu, "hold").on(&gpu);
        let refused = run(region.preload_into(command.arg((800 * MIB).to_string())));
        assert!(refused.stderr.contains("cuMemAlloc") && refused.stderr.contains("answers 2"), "{refused:?}");
    });
}

/// A process finds the parts of its slice once.
#[test]
fn a_process_is_not_restored_onto_another_device() {
    let gpu = SimulatedGpu::with("cuda_version = 13050\n");
    let program = HostProgram::linked(&gpu, "restores");
    let said = |another| format!("the same: 801\nanother: {another}\nno list: 801\n");
    run(&mut program.on(&gpu)).success().assert_said(&said(801));
    let region = Region::new(&gpu, GIB);
    run(region.preload_into(&mut program.on(&gpu))).success().assert_said(&said(800));
}
