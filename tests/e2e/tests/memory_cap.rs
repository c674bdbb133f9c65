//! A slice with a memory limit behaves like a device of that size, to the byte.

use std::process::Command;
use std::sync::atomic::Ordering;
use std::sync::mpsc::{self, RecvTimeoutError};
use std::time::Duration;

use aliquot_abi::ledger;
use aliquot_abi::region::CONTEXT_NEGLIGIBLE;
use aliquot_harness::{
    EXACT_MEMORY, FrontDriver, GIB, HostProgram, MIB, Node, Part, Process, Region, SimulatedGpu, Slice, freeze,
    like_a_device_of, resume, run, unchanged_in_a_slice, wait,
};
use aliquot_proto::node::v1 as proto;
use rustix::process::Signal;

#[test]
fn the_last_byte_is_granted_and_the_next_is_not() {
    let gpu = SimulatedGpu::new();
    let program = HostProgram::linked(&gpu, "exact");
    // The second size is no multiple of any unit to which the driver may round.
    for bytes in [64 * MIB, 5 * GIB + 12_345] {
        let region = Region::new(&gpu, bytes);
        let outcome = run(region.preload_into(program.on(&gpu).arg(bytes.to_string()))).success();
        let expected = format!(
            "free: {bytes}\none byte more than all: 2\nfree with all of it taken: 0\none byte more: 2\n\
             free with all but 4096 taken: 4096\n4097: 2\nand again one byte: 2\nfreed twice: 1\nfree: {bytes}\n"
        );
        assert_eq!(outcome.stdout, expected);
        assert_eq!((region.used_bytes(0), region.peak_bytes(0)), (0, bytes));
        assert_eq!(region.ledger().devices[0].refused.load(Ordering::Relaxed), 4);
    }
}

#[test]
fn every_kind_of_memory_is_counted() {
    let (said, _) = like_a_device_of(64 * MIB, "", "allocations", &[]);
    assert!(said.contains("linear, round 2: 16 pieces, then 2; free: 0\n"), "{said}");
    assert!(said.contains("physical, round 2: 16 pieces, then 2; free: 0\n"), "{said}");
    assert!(!said.contains(": no\n"), "{said}");
}

#[test]
fn physical_memory_is_counted_until_the_last_handle_and_mapping_are_gone() {
    let (said, _) = like_a_device_of(64 * MIB, "", "virtual_memory", &[]);
    assert!(said.contains("released, the mapping is left: 4 MiB in use\nunmapped: 0 MiB in use\n"), "{said}");
}

#[test]
fn physical_memory_is_given_back_once_however_it_goes() {
    let (said, region) = like_a_device_of(64 * MIB, "", "physical", &[]);
    assert!(said.contains("given back by two threads at once, and wrong: 0\nat the end: 0 MiB in use\n"), "{said}");
    assert!(!said.contains(": 0\n") || said.matches(": 0\n").count() == 1, "{said}");
    assert_eq!(region.used_bytes(0), 0);
}

#[test]
fn physical_memory_that_is_bound_to_something_is_charged_for_as_long() {
    const TWO: &str = "[[device]]\nmemory = '64MiB'\nnvlink = [1]\n[[device]]\nmemory = '64MiB'\nnvlink = [0]\n";
    let gpu = SimulatedGpu::with(&format!("{EXACT_MEMORY}{TWO}"));
    let program = HostProgram::linked(&gpu, "bindings");
    let bare = run(&mut program.on(&gpu)).success();
    let region = Region::new(&gpu, 64 * MIB);
    let in_slice = run(region.preload_into(&mut program.on(&gpu))).success();
    assert_eq!(bare.stdout, in_slice.stdout);
    assert!(bare.stdout.contains("released: 2 MiB in use\nthe array destroyed: 0 MiB in use\n"), "{}", bare.stdout);
    assert_eq!(region.used_bytes(0), 0);
}

#[test]
fn the_end_of_a_context_gives_back_what_was_in_it() {
    let (said, region) = like_a_device_of(64 * MIB, "", "contexts", &[]);
    assert!(said.contains("the second context destroyed: 1 MiB in use\n"), "{said}");
    assert!(said.contains("a third context destroyed with none current: 1 MiB in use\n"), "{said}");
    assert!(said.contains("and detached for good: 1 MiB in use\n"), "{said}");
    assert!(said.contains("the primary context reset: 0 MiB in use\n"), "{said}");
    // The program ends with one set of its allocations, 1 MiB of which is host memory.
    assert_eq!(ledger::used_bytes(&region.ledger().host), MIB);
}

#[test]
fn the_last_reference_to_the_primary_context_ends_it() {
    let (said, region) = like_a_device_of(64 * MIB, "", "last_reference", &[]);
    assert!(said.contains("a green context holds the last: 5 MiB in use\nand is destroyed: 0 MiB in use\n"), "{said}");
    assert!(said.ends_with("released by many threads at once: 0 MiB in use\n"), "{said}");
    assert_eq!(region.used_bytes(0), 0);
}

/// The driver answers no queries after a fault, and each query before costs the program time, so the shim queries it
/// only when a context ends.
#[test]
fn a_reset_gives_back_what_was_taken_before_a_fault() {
    let gpu = SimulatedGpu::new();
    let driver = FrontDriver::new(&gpu, "driver_that_faults");
    let program = HostProgram::linked(&gpu, "reset_after_fault");
    // A ruined context is reported as inactive, or the driver does not tell.
    for variables in [&[][..], &[("RUINED_IS_INACTIVE", "1")]] {
        let region = Region::new(&gpu, 64 * MIB);
        let mut command = program.on(&gpu);
        command.envs(variables.iter().copied());
        let outcome = run(region.preload_into(driver.show_to(&mut command))).success();
        let said = outcome.stdout.strip_prefix("took all again\n").and_then(|said| said.strip_suffix(" questions\n"));
        let questions = said.and_then(|said| said.parse::<u32>().ok());
        assert!(questions.is_some_and(|questions| (1..1000).contains(&questions)), "{outcome:?}");
    }
}

/// An array that is made while a green context is current is the primary context's.
#[test]
fn a_reset_gives_back_arrays_that_were_made_in_a_green_context() {
    let (said, region) = like_a_device_of(64 * MIB, "", "green_arrays", &[]);
    assert_eq!(said, "made twice\n");
    assert_eq!(region.used_bytes(0), 0);
}

/// A program allocates and frees every kind of memory in a seeded random order. After each step the slice has as much
/// left as a device of its size, so the ledger equals the driver's own count.
#[test]
fn the_ledger_is_the_driver_s_own_count_whatever_a_program_does() {
    for seed in 0..6_u32 {
        let (_, region) = like_a_device_of(96 * MIB, "pool_chunk = '2MiB'", "random_memory", &[&seed.to_string()]);
        let held = (region.used_bytes(0), ledger::used_bytes(&region.ledger().host));
        assert_eq!(held, (0, 0), "seed {seed}");
    }
}

#[test]
fn threads_share_the_limit() {
    let (said, _) = like_a_device_of(64 * MIB, "", "threads", &[]);
    assert!(said.ends_with("256 pieces granted, all given back: yes\n"), "{said}");
    assert!(said.starts_with("thread 0 without a context: 201\n"), "{said}");
}

#[test]
fn with_nothing_to_forbid_the_shim_changes_nothing() {
    let gpu = SimulatedGpu::with(&format!("{EXACT_MEMORY}[[device]]\nmemory = '96MiB'\n"));
    for program in ["allocations", "virtual_memory", "contexts", "threads", "pools", "graph_memory", "physical"] {
        let program = HostProgram::linked(&gpu, program);
        let _ = unchanged_in_a_slice(&gpu, || program.on(&gpu)).success();
    }
}

/// Eight processes race small and large allocations against one limit. Together they never hold more than the limit,
/// neither by the ledger nor by the machine's count.
#[test]
fn processes_that_race_never_pass_the_limit() {
    const PIECES: [u64; 2] = [256 << 10, 4 << 20];
    let limit = 33 * MIB + 4096;
    let gpu = SimulatedGpu::with(&format!("{EXACT_MEMORY}mode = 'instant'\n"));
    let region = Region::new(&gpu, limit);
    let racer = HostProgram::linked(&gpu, "racer");
    let racers: Vec<Process> = (0..8)
        .map(|number| {
            let mut command = racer.on(&gpu);
            command.args([PIECES[number % 2].to_string(), "1500".to_owned()]);
            Process::start(region.preload_into(&mut command))
        })
        .collect();
    let (mut granted, mut refused) = (0, 0);
    for racer in racers {
        let outcome = racer.wait().success();
        let numbers: Vec<u64> = outcome.stdout.split(' ').filter_map(|word| word.trim().parse().ok()).collect();
        granted += numbers[0];
        refused += numbers[1];
    }
    assert!(granted > 1000 && refused > 100, "there was no race: {granted} granted, {refused} refused");
    let held_most = gpu.machine().device_use(0).memory_peak_bytes;
    assert!(held_most > limit / 2, "the machine was never under load: {held_most}");
    assert!(held_most <= limit, "the machine saw {} bytes above the limit", held_most - limit);
    assert!(region.peak_bytes(0) <= limit, "the ledger saw {} bytes above the limit", region.peak_bytes(0) - limit);
    assert_eq!(region.used_bytes(0), 0);
}

#[test]
fn each_device_has_its_own_limit_and_a_device_without_a_part_has_nothing() {
    let gpu = SimulatedGpu::with(&format!("{EXACT_MEMORY}{}", "[[device]]\nmemory = '4GiB'\n".repeat(3)));
    // The parts are not in the machine's order.
    let parts = [Part { device: 2, memory_limit_bytes: 32 * MIB }, Part { device: 0, memory_limit_bytes: 64 * MIB }];
    let region = Region::with_parts(&gpu, &parts);
    let program = HostProgram::linked(&gpu, "devices");
    let outcome = run(region.preload_into(&mut program.on(&gpu))).success();
    assert_eq!(
        outcome.stdout,
        format!(
            "device 0: total {}, free {}, all 0, then 2, launch 0\n\
             device 1: context 2\n\
             device 2: total {}, free {}, all 0, then 2, launch 0\n",
            64 * MIB,
            64 * MIB,
            32 * MIB,
            32 * MIB
        )
    );
    assert_eq!((region.peak_bytes(0), region.peak_bytes(1)), (32 * MIB, 64 * MIB));
}

#[test]
fn memory_is_charged_to_the_device_that_has_it_whichever_is_current() {
    const TWO: &str = "[[device]]\nmemory = '64MiB'\nnvlink = [1]\n[[device]]\nmemory = '64MiB'\nnvlink = [0]\n";
    let gpu = SimulatedGpu::with(&format!("{EXACT_MEMORY}pool_chunk = '2MiB'\n{TWO}"));
    let program = HostProgram::linked(&gpu, "across_devices");
    let said = unchanged_in_a_slice(&gpu, || program.on(&gpu)).success().stdout;
    assert!(
        said.contains("with none current: 0 12 MiB in use\nlinear and managed memory of the first: 4 12 MiB"),
        "{said}"
    );
    assert!(said.ends_with("all given back with the first current: 0 0 MiB in use\n"), "{said}");
    let region = Region::unlimited(&gpu);
    let _ = run(region.preload_into(&mut program.on(&gpu))).success();
    assert_eq!((region.peak_bytes(0), region.peak_bytes(1)), (4 * MIB, 12 * MIB));
}

#[test]
fn a_limit_that_is_changed_holds_at_once() {
    let gpu = SimulatedGpu::new();
    let region = Region::new(&gpu, 64 * MIB);
    let program = HostProgram::linked(&gpu, "on_request");
    let mut command = program.on(&gpu);
    let requests = tempfile::tempdir().unwrap();
    command.arg(requests.path());
    let mut process = Process::start(region.preload_into(&mut command));
    let mut ask = |number: usize, mebibytes: u64| {
        std::fs::write(requests.path().join(format!("new-{number}")), mebibytes.to_string()).unwrap();
        std::fs::rename(requests.path().join(format!("new-{number}")), requests.path().join(number.to_string()))
            .unwrap();
        let answer = format!("request {number}: ");
        process.wait_for(&answer);
        process.wait_for(&format!("done {number}\n"));
        let output = process.output();
        output.split_once(&answer).unwrap().1.lines().next().unwrap().to_owned()
    };
    assert_eq!(ask(1, 48), "0, free 16");
    assert_eq!(ask(2, 48), "2, free 16");
    region.limits().devices[0].memory_limit_bytes.store(96 * MIB, Ordering::Relaxed);
    assert_eq!(ask(3, 48), "0, free 0");
    // The new limit is below the memory in use: no memory is taken away, and no more is given.
    region.limits().devices[0].memory_limit_bytes.store(32 * MIB, Ordering::Relaxed);
    assert_eq!(ask(4, 1), "2, free 0");
    // Overhead of contexts and modules, as the manager finds it, counts too.
    region.limits().devices[0].memory_limit_bytes.store(128 * MIB, Ordering::Relaxed);
    region.limits().devices[0].memory_overhead_bytes.store(24 * MIB, Ordering::Relaxed);
    assert_eq!(ask(5, 9), "2, free 8");
    assert_eq!(ask(6, 8), "0, free 0");
}

/// A run of the program `fill`, which keeps the memory that it got.
struct Filled {
    process: Process,
    pieces: u64,
}

/// Fills a slice with pieces of `bytes`. `preload` puts the program into the slice. `more_bytes`: see the program.
fn fill(gpu: &SimulatedGpu, bytes: u64, threads: u64, more_bytes: u64, preload: impl FnOnce(&mut Command)) -> Filled {
    let mut command = HostProgram::linked(gpu, "fill").on(gpu);
    command.args([bytes, threads, more_bytes].map(|number| number.to_string()));
    preload(&mut command);
    let mut process = Process::start(&mut command);
    process.wait_for(" pieces\n");
    let pieces = process.output().split_whitespace().next().and_then(|count| count.parse().ok());
    Filled { process, pieces: pieces.expect("a number of pieces") }
}

fn fill_slice(gpu: &SimulatedGpu, slice: &Slice, bytes: u64, threads: u64) -> Filled {
    fill(gpu, bytes, threads, 0, |command| _ = slice.preload_into(command))
}

/// The driver gives out whole blocks. Its excess over the requests counts against the limit before the manager's next
/// regular look, and no request is refused for an excess that no look has seen.
#[test]
fn a_slice_is_not_exceeded_by_rounding() {
    let gpu = SimulatedGpu::with("context_memory = 0\n");
    let node = Node::start(&gpu);
    let limit = 256 * MIB;
    // The first size takes a block of 2 MiB, and of the second two share one.
    for (bytes, threads) in [(MIB + 4096, 1), (700 << 10, 1), (MIB + 4096, 8), (700 << 10, 8)] {
        let slice = node.slice(&format!("slice-{bytes}-{threads}"), 20, limit);
        let most = limit + threads * 2 * MIB;
        // A manager that gets no processor for a second counts as dead, and then the rounding goes unnoticed.
        let is_within = (0..5).any(|_| {
            let filled = fill_slice(&gpu, &slice, bytes, threads);
            let taken = gpu.machine().device_use(0).memory_bytes;
            assert!(taken > limit - 4 * MIB, "{threads} threads got {} pieces of {bytes}: too few", filled.pieces);
            let _ = filled.process.kill();
            wait::until_true("the memory is free", || gpu.machine().device_use(0).memory_bytes == 0);
            wait::until_true("the books are empty", || slice.used_bytes(0) == 0);
            taken <= most
        });
        assert!(is_within, "{threads} threads, pieces of {bytes}: each time more than {most} bytes were taken");
    }
}

#[test]
fn where_nothing_is_rounded_all_of_a_slice_is_granted() {
    let gpu = SimulatedGpu::exact();
    let node = Node::start(&gpu);
    let limit = 64 * MIB + 512;
    for (bytes, threads) in [(MIB + 4096, 1), (700 << 10, 1), (1024, 1), (MIB + 4096, 8), (1024, 8)] {
        let slice = node.slice(&format!("slice-{bytes}-{threads}"), 10, limit);
        let filled = fill_slice(&gpu, &slice, bytes, threads);
        assert_eq!(filled.pieces, limit / bytes, "{threads} threads, pieces of {bytes}");
    }
}

#[test]
fn each_device_has_its_own_rounding() {
    let gpu = SimulatedGpu::with("context_memory = 0\n[[device]]\n[[device]]\n");
    let node = Node::start(&gpu);
    let parts = [64 * MIB, 32 * MIB].into_iter().enumerate();
    let part = |(index, memory_limit_bytes)| proto::Part {
        device_uuid: gpu.uuid(index),
        core_request_percent: 50,
        memory_limit_bytes,
        ..proto::Part::default()
    };
    let slice = node.slice_of("both", parts.map(part).collect());
    for (visible, limit) in [("0", 64 * MIB), ("1", 32 * MIB)] {
        let filled = fill(&gpu, MIB + 4096, 1, 0, |command| {
            slice.preload_into(command.env("CUDA_VISIBLE_DEVICES", visible));
        });
        let taken = gpu.machine().device_use(visible.parse().unwrap()).memory_bytes;
        assert!((limit - 2 * MIB..=limit + 2 * MIB).contains(&taken), "{} pieces: {taken} bytes", filled.pieces);
    }
}

/// When pieces are freed, the rest of their blocks no longer counts against the limit, even before the manager's next
/// look.
#[test]
fn all_that_pieces_took_can_be_had_when_they_are_freed() {
    let gpu = SimulatedGpu::with("context_memory = 0\n");
    let node = Node::start(&gpu);
    let slice = node.slice("slice", 50, 64 * MIB);
    let bytes = MIB + 4096;
    // As much as all pieces, and almost all that their blocks had to spare.
    let more_bytes = 30 * (2 * MIB - bytes);
    let mut filled = fill(&gpu, bytes, 1, more_bytes, |command| _ = slice.preload_into(command));
    assert!((31..=32).contains(&filled.pieces), "{}", filled.pieces);
    filled.process.signal(Signal::USR1);
    filled.process.wait_for("then all: 0\n");
}

/// The test plays the manager of this slice, and chooses when it looks.
#[test]
fn no_request_is_refused_for_what_no_look_has_seen() {
    let gpu = SimulatedGpu::exact();
    let region = Region::new(&gpu, 64 * MIB);
    let (region, limits, account) = (&region, &region.limits().devices[0], &region.ledger().devices[0]);
    // The manager has seen an empty slice, and another look is under way.
    limits.rounding_seen.store(1, Ordering::Relaxed);
    limits.memory_looks.store(3, Ordering::Relaxed);
    let bytes = MIB + 4096;
    std::thread::scope(|scope| {
        let (_full, is_full) = mpsc::channel::<()>();
        scope.spawn(move || {
            // If each piece took two blocks, this would be the last one.
            wait::until_true("the program waits for a look", || region.used_bytes(0) == 32 * bytes);
            // The look that is under way does not see changes after its beginning.
            limits.memory_looks.store(4, Ordering::Release);
            while is_full.recv_timeout(Duration::from_millis(1)) == Err(RecvTimeoutError::Timeout) {
                limits.memory_looks.fetch_add(1, Ordering::AcqRel);
                let rounding_bytes = account.rounding_bytes.load(Ordering::Acquire);
                limits.rounding_seen.store(rounding_bytes + 1, Ordering::Release);
                limits.memory_looks.fetch_add(1, Ordering::AcqRel);
            }
        });
        let filled = fill(&gpu, bytes, 1, 0, |command| _ = region.preload_into(command));
        assert_eq!(filled.pieces, 64 * MIB / bytes);
    });
}

/// A look while the driver takes memory back may find the memory gone but still in the ledger, where it hides as much
/// overhead. So the bytes are marked.
#[test]
fn memory_that_the_driver_takes_back_is_marked_meanwhile() {
    let gpu = SimulatedGpu::new();
    let driver = FrontDriver::new(&gpu, "driver_that_frees_late");
    let region = Region::new(&gpu, 64 * MIB);
    let moving_bytes = || {
        let parts = region.ledger().slots.iter().map(|slot| &slot.devices[0]);
        parts.map(|part| part.moving_bytes.load(Ordering::Acquire)).sum::<u64>()
    };
    let mut command = HostProgram::linked(&gpu, "frees").on(&gpu);
    let mut process = Process::start(region.preload_into(driver.show_to(&mut command)));
    for call in ["cuMemFree_v2", "cuMemUnmap", "cuMemRelease"] {
        process.wait_for(&format!("{call}\n"));
        assert_eq!(moving_bytes(), 32 * MIB, "{call}");
        process.signal(Signal::USR1);
    }
    process.wait().success().assert_said("cuMemFree_v2\ncuMemUnmap\ncuMemRelease\ndone\n");
    assert_eq!((moving_bytes(), region.used_bytes(0)), (0, 0));
}

/// A pool takes larger pieces than it needs, and rows are longer than requested. When the charge is corrected, the
/// manager may have to look first. It finds memory that the driver has given already.
#[test]
fn memory_is_not_charged_again_after_a_look_has_found_it() {
    let gpu = SimulatedGpu::with(&format!("{EXACT_MEMORY}pool_chunk = '32MiB'\n"));
    let node = Node::start(&gpu);
    for kind in ["pool", "pitch"] {
        // Room for 32 MiB and 4 MiB beside the ten pieces. Not if each piece had taken two blocks; not twice 32 MiB.
        let slice = node.slice(kind, 50, 50 * MIB);
        let mut command = HostProgram::linked(&gpu, "gives_more").on(&gpu);
        run(slice.preload_into(command.arg(kind))).success().assert_said(&format!("{kind}: 0\nand 4 MiB: 0\n"));
    }
}

/// The manager learns the size of a context from the first look at a process. If that look comes late, the process has
/// allocated by then, and the next one shows the size.
#[test]
fn rounding_is_not_taken_for_a_context() {
    let gpu = SimulatedGpu::with("context_memory = 0\n");
    let node = Node::start(&gpu);
    let slice = node.slice("late", 50, 64 * MIB);
    freeze(node.manager_id());
    let filled = fill_slice(&gpu, &slice, MIB + 4096, 1);
    resume(node.manager_id());
    let limits = &slice.limits().devices[0];
    let context_bytes = || limits.context_bytes.load(Ordering::Relaxed);
    wait::until_true("the manager has looked", || limits.memory_overhead_bytes.load(Ordering::Relaxed) != 0);
    assert_eq!(context_bytes(), 0, "{} pieces", filled.pieces);
    let _ = filled.process.kill();
    let _next = fill_slice(&gpu, &slice, MIB + 4096, 1);
    wait::until_true("the manager has learned it", || context_bytes() != 0);
    assert_eq!(context_bytes(), CONTEXT_NEGLIGIBLE);
}

#[test]
fn without_a_manager_no_program_waits_for_its_looks() {
    let gpu = SimulatedGpu::with("context_memory = 0\n");
    let mut node = Node::start(&gpu);
    let slice = node.slice("alone", 50, 64 * MIB);
    // The manager has looked once, and is gone.
    wait::until_true("it has", || slice.limits().devices[0].rounding_seen.load(Ordering::Relaxed) != 0);
    node.kill();
    assert_eq!(fill_slice(&gpu, &slice, MIB + 4096, 1).pieces, 63);
}

/// A context's memory is not allocated by a hooked function. The manager finds it and charges it to the slice.
#[test]
fn memory_of_contexts_is_the_slice_s() {
    let gpu = SimulatedGpu::with("context_memory = '300MiB'\n");
    let node = Node::start(&gpu);
    let slice = node.slice("contexts", 50, GIB);
    let mut command = HostProgram::linked(&gpu, "hold").on(&gpu);
    let mut holder = Process::start(slice.preload_into(command.arg((100 * MIB).to_string())));
    holder.wait_for("held");
    wait::until_true("the manager has found the context", || {
        let usage = node.client().usage("contexts").unwrap().parts.remove(0);
        (usage.memory_used_bytes, usage.memory_overhead_bytes) == (400 * MIB, 300 * MIB)
    });
    assert_eq!(slice.limits().devices[0].memory_overhead_bytes.load(Ordering::Relaxed), 300 * MIB);
    let _ = holder.kill();
    wait::until_true("the manager has seen it go", || {
        node.client().usage("contexts").unwrap().parts[0].memory_used_bytes == 0
    });
}

/// The driver keeps stacks for all threads that the device can run at once.
#[test]
fn stacks_of_kernels_are_refused_and_then_counted_at_once() {
    let gpu = SimulatedGpu::with(&format!("{EXACT_MEMORY}[[device]]\nsm_count = 10\nmemory = '8GiB'\n"));
    let node = Node::start(&gpu);
    let slice = node.slice("stacks", 50, 64 * MIB);
    let outcome = run(slice.preload_into(&mut HostProgram::linked(&gpu, "stacks").on(&gpu))).success();
    outcome.assert_said("too large: 2\nlarger: 0\n50 MiB: 2\n40 MiB: 0\n");
}

/// The driver keeps room for the launches that kernels make, by this limit.
#[test]
fn memory_for_other_limits_counts_as_soon_as_they_are_set() {
    let gpu = SimulatedGpu::exact();
    let node = Node::start(&gpu);
    let slice = node.slice("limits", 50, 64 * MIB);
    let outcome = run(slice.preload_into(&mut HostProgram::linked(&gpu, "launches_in_kernels").on(&gpu))).success();
    outcome.assert_said("50 MiB: 2\n40 MiB: 0\n");
}

/// The ledger does not show what a module takes, and no look has found it yet.
#[test]
fn memory_of_a_module_counts_as_soon_as_it_is_loaded() {
    let gpu = SimulatedGpu::exact();
    let node = Node::start(&gpu);
    let slice = node.slice("modules", 50, 64 * MIB);
    let outcome = run(slice.preload_into(&mut HostProgram::linked(&gpu, "loads_variables").on(&gpu))).success();
    outcome.assert_said("50 MiB: 2\n40 MiB: 0\n");
}

/// The driver keeps memory until the stream gets to its free. The first look finds it, and no look comes between the
/// stream's end and the next request.
#[test]
fn memory_that_a_stream_is_yet_to_free_counts_until_then() {
    let gpu = SimulatedGpu::exact();
    let node = Node::start(&gpu);
    let slice = node.slice("queued", 50, 64 * MIB);
    let outcome = run(slice.preload_into(&mut HostProgram::linked(&gpu, "frees_in_stream").on(&gpu))).success();
    let kind = |kind| format!("{kind}: 8 pieces, then 2\nfreed, and all in one: 0\n");
    outcome.assert_said(&format!("{}{}", kind("linear"), kind("managed")));
    assert_eq!(gpu.machine().device_use(0).memory_peak_bytes, 64 * MIB);
}

/// Threads that first use the primary context at the same time share it, so its room in the slice is needed once.
#[test]
fn threads_that_begin_together_need_room_for_one_context() {
    let gpu = SimulatedGpu::new();
    let driver = FrontDriver::new(&gpu, "driver_that_begins_late");
    let region = Region::new(&gpu, 64 * MIB);
    region.limits().devices[0].context_bytes.store(40 * MIB, Ordering::Relaxed);
    let mut command = HostProgram::linked(&gpu, "first_together").on(&gpu);
    run(region.preload_into(driver.show_to(&mut command))).success().assert_said("8 of 8\n");
    assert_eq!(region.peak_bytes(0), 40 * MIB);
}

#[test]
fn a_passive_shim_says_so_once() {
    let gpu = SimulatedGpu::new();
    let region = Region::new(&gpu, MIB);
    for file in ["limits", "ledger"] {
        std::fs::remove_file(region.dir().join(file)).unwrap();
    }
    let program = HostProgram::linked(&gpu, "exact");
    // Through a pipe, as a container's standard error is.
    let mut command = Command::new("/bin/sh");
    command.args(["-c", "\"$0\" 1048576 2>&1 | cat", program.path().to_str().unwrap()]);
    region.preload_into(gpu.show_to(&mut command));
    let outcome = run(&mut command).success();
    assert_eq!(outcome.stdout.matches("aliquot: ").count(), 1, "{outcome:?}");
    assert!(outcome.stdout.contains("one byte more: 0"), "{outcome:?}");
}
