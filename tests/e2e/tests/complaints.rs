//! Complaints of users about other GPU sharing libraries, each with the test that shows that it does not happen here.
//! Tests that belong to no other file are in this one.
//!
//! | complaint | shown by |
//! | --- | --- |
//! | a limit on time is inexact, oscillates, or does not hold for a container alone on the device | the second table |
//! | large GPUs are hardly limited | `requests::each_device_has_its_own_limit_whatever_its_size_and_number` of `time_sharing` |
//! | graphs are not limited, or broken | `launchers::four_streams_and_graphs_of_a_hundred_kernels_are_charged_in_full` of `time_sharing`, `capture::*`, `graph_memory::*` |
//! | a form of launch is forgotten | [`no_form_of_launch_passes_a_closed_gate`], `headers::every_function_of_the_driver_is_classified_once` |
//! | a process killed in the middle leaves a lock behind | `many_processes::a_storm_of_kills_leaves_nothing_charged`, [`killed_processes_leave_no_lock_behind`] |
//! | hundreds of processes start one after the other | `many_processes::two_hundred_that_start_at_once_are_all_counted`, `the_work_to_start_does_not_grow_with_the_number_of_processes` |
//! | a dead process's slot or id goes to another process, and its memory is lost | `processes::slots_of_the_dead_are_used_again`, `many_processes::memory_of_dead_processes_is_freed_although_their_ids_are_reused` |
//! | numbers are negative or enormous; the second process sees all memory free | [`numbers_never_wrap`], [`every_process_sees_the_memory_of_all`] |
//! | a process that is not found by its id on the host is not limited | `processes::a_child_in_a_process_namespace_of_its_own_shares_the_limit`, `containers::two_containers_share_a_device_as_asked` |
//! | virtual memory: crashes without a context, charges until the release only | `memory_cap::physical_memory_is_counted_until_the_last_handle_and_mapping_are_gone`, `conformance::*` |
//! | freeing memory fails if its allocation was not seen | `differential::*`, `conformance::*`, `pools::*` |
//! | peers are not found; functions are null | `processes::devices_that_reach_each_other_keep_their_own_books`, `lookup::functions_that_the_driver_lacks_stay_missing` |
//! | a look-up of another version gets the wrong function | `lookup::get_proc_address_answers_are_unchanged`, `headers::names_and_versions_are_those_of_the_headers` |
//! | the `dlsym` hook recurses for ever, or loses its caller | `lookup::*`, `interposing::*` |
//! | a newer toolkit gets around the limit | `lookup::every_way_leads_to_the_limit`, `deep_binding::*`, `namespaces::*`, `audit::*` |
//! | a child runs its parent's exit handler, or is not limited | [`a_child_made_by_clone_does_not_run_the_parents_exit_handler`], `processes::*` |
//! | a missing, replaced or broken file breaks every program, or lifts every limit | `hostile_tenant::a_region_that_cannot_be_used_gives_nothing`, `damaged_regions::*`, `upgrade::*`, `injection::*`, `library_file::*` |
//! | a program waits for its registration | [`a_manager_that_never_answers_holds_up_no_process`], `manager_death::*` |
//! | null pointers crash, errors are not the driver's | [`null_arguments_are_the_drivers_to_refuse`], `differential::*` |
//! | nothing is counted without a limit; a limit on one thing is off with that on another | `memory_cap::*` with all of the time, `usage::the_share_of_a_container_with_a_device_to_itself_is_shown_in_it`, `host_memory::without_a_limit_the_host_s_memory_is_counted_all_the_same` |
//!
//! The causes of inexact limits on device time. The tests are in `time_sharing` unless another module is named.
//!
//! | why limits on time are inexact elsewhere | shown by |
//! | --- | --- |
//! | only the presence of a kernel is measured: one of a single block, or tiny ones, count as a whole busy device | `requests::neither_the_length_nor_the_blocks_of_kernels_matter` |
//! | samples come late, so a controller oscillates, and acts only after too much work has passed | `debt::idle_time_is_not_saved_up`, the arbiter's own tests in virtual time, from the first second on |
//! | a launch is charged by its blocks, not by its time, and only up to some number of threads | `requests::neither_the_length_nor_the_blocks_of_kernels_matter` |
//! | a grid greater than the budget never starts | the same, with a million blocks |
//! | the controller's steps grow with the device: large devices are hardly limited, small ones are slow | `requests::each_device_has_its_own_limit_whatever_its_size_and_number` |
//! | a launch starts before its cost is known, and any single kernel passes | `debt::a_kernel_that_is_longer_than_any_lease_is_made_up_for`, `debt::beside_huge_kernels_the_others_have_their_share` |
//! | each process has a budget of its own | `launchers::four_processes_have_one_limit`, `self_pacing::processes_share_the_limit` |
//! | NVML without samples, or with an error, counts as an idle device | `requests::a_limit_holds_where_nvml_has_no_samples_of_processes` |
//! | the wrong device is measured where CUDA and NVML number them differently; only the first has a limit | `requests::each_device_has_its_own_limit_whatever_its_size_and_number` |
//! | a thread in each process polls NVML all the time | `bystanders::in_a_program_that_does_nothing_nothing_is_done` |
//! | a lock is held during the search for processes | [`killed_processes_leave_no_lock_behind`], `many_processes::*`: there is no lock |
//! | graphs, cooperative and extended launches are free | [`no_form_of_launch_passes_a_closed_gate`], `launchers::*` |
//! | a limit does not hold for a container alone, or for good once a process is not found | `requests::a_limit_holds_for_a_container_alone`, `containers::two_containers_share_a_device_as_asked` |
//! | time that one container leaves unused is lost to all | `idle::unused_time_may_be_used_up_to_the_limit`, `idle::beside_a_pausing_container_the_device_is_used_and_shares_return` |
//! | a container alone gets less than its limit, because the controller stays below it | `requests::a_limit_holds_for_a_container_alone` |
//! | shares between containers are not those that were asked for | `requests::two_busy_containers_get_their_requested_shares` |
//! | one container keeps the device for seconds | `latency::requests_wait_for_one_kernel_of_a_batch_and_not_for_their_turn` |
//! | limits end when a heartbeat is old | `self_pacing::*`, `holders::limits_hold_while_a_manager_is_killed_during_leases_and_restarts` |
//! | only one process, or one device, is considered | `launchers::*`, `devices::kernels_that_wait_for_each_other_on_two_devices_make_progress` |
//! | not only launches have to wait, but also copies and host functions | `bystanders::*` |

use std::collections::BTreeSet;
use std::sync::atomic::Ordering;

use aliquot_abi::region::{ATTACH_SOCKET, gate};
use aliquot_harness::{GIB, HostProgram, MIB, Process, Region, SimulatedGpu, run, unchanged_in_a_slice, wait};
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, bind, listen, socket_with};

macro_rules! symbols {
    ($($class:ident $policy:ident : $symbol:ident $(| $per_thread:ident)? = $name:ident @ $since:literal $arguments:tt;)*) => {
        /// Every function of the driver, with its class.
        const SYMBOLS: &[(&str, &str)] = &[
            $((stringify!($symbol), stringify!($class)), $((stringify!($per_thread), stringify!($class)),)?)*
        ];
    };
}

aliquot_abi::cuda_api!(symbols);

/// Threads that wait for the first part's gate.
fn waiting(region: &Region) -> u32 {
    region.ledger().slots.iter().map(|slot| slot.devices[0].waiting.load(Ordering::Relaxed)).sum()
}

#[test]
fn no_form_of_launch_passes_a_closed_gate() {
    let gpu = SimulatedGpu::new();
    let program = HostProgram::linked(&gpu, "launch_forms");
    let known = run(&mut program.on(&gpu)).success().stdout;
    let known: BTreeSet<&str> = known.lines().collect();
    let launches = SYMBOLS.iter().filter(|(_, class)| *class == "launch").map(|(symbol, _)| *symbol);
    assert_eq!(known, launches.collect(), "the program's forms and the table's");

    for form in known {
        let region = Region::new(&gpu, GIB);
        region.close_gate(0);
        let used_ns = || gpu.machine().device_use(0).busy_ns;
        let before_ns = used_ns();
        let mut command = program.on(&gpu);
        let mut process = Process::start(region.preload_into(command.arg(form)));
        process.wait_for("launches\n");
        wait::until_true(&format!("{form} waits"), || waiting(&region) == 1);
        assert_eq!(used_ns(), before_ns, "{form}");
        region.limits().devices[0].gate.store(gate::OPEN | gate::TICK, Ordering::SeqCst);
        process.wait().success().assert_said("launches\ndone\n");
        assert!(used_ns() >= before_ns + 1_000_000, "{form} did not do its work");
    }
}

#[test]
fn null_arguments_are_the_drivers_to_refuse() {
    let gpu = SimulatedGpu::new();
    let program = HostProgram::new("null_arguments");
    let outcome = unchanged_in_a_slice(&gpu, || {
        let mut command = program.on(&gpu);
        command.args(SYMBOLS.iter().map(|(symbol, _)| symbol));
        command
    });
    assert!(outcome.clone().success().stdout.ends_with("as much is free as before: yes\n"), "{outcome:?}");
    assert!(outcome.stdout.lines().filter(|line| line.ends_with(": 1")).count() > 100, "{outcome:?}");
}

#[test]
fn a_child_made_by_clone_does_not_run_the_parents_exit_handler() {
    let gpu = SimulatedGpu::new();
    let program = HostProgram::linked(&gpu, "clone_exit");
    let command = || {
        let mut command = program.on(&gpu);
        command.arg("30");
        command
    };
    let bare = unchanged_in_a_slice(&gpu, command).success();
    bare.assert_said("the parent holds what it held: yes\nand gives it back: yes\nthe parent's handler ran\n");
    let region = Region::new(&gpu, 64 * MIB);
    run(region.preload_into(&mut command())).success().assert_said(&bare.stdout);
    assert_eq!((region.used_bytes(0), region.peak_bytes(0)), (0, 8 * MIB));
}

/// Processes are killed at any point of their allocations while another process allocates too. That process must not be
/// delayed, and is refused memory only while the others hold it.
#[test]
fn killed_processes_leave_no_lock_behind() {
    let gpu = SimulatedGpu::with("mode = 'instant'\n");
    let region = Region::new(&gpu, GIB);
    let racer = HostProgram::linked(&gpu, "racer");
    let start = |milliseconds: &str| {
        let mut command = racer.on(&gpu);
        command.args(["65536", milliseconds]);
        Process::start(region.preload_into(&mut command))
    };
    let steady = start("4000");
    let holding = |pid: u32| {
        let processes = gpu.machine().device_use(0).processes;
        processes.iter().any(|process| process.pid == pid && process.memory_bytes > 0)
    };
    for _ in 0..40 {
        let victim = start("60000");
        let pid = victim.id();
        wait::until_true("it allocates", || holding(pid));
        assert_eq!(victim.kill().signal(), Some(9));
    }
    let _ = steady.wait().success();
}

#[test]
fn numbers_never_wrap() {
    let gpu = SimulatedGpu::exact();
    let region = Region::new(&gpu, 64 * MIB);
    let mut command = HostProgram::linked(&gpu, "hold").on(&gpu);
    let mut holder = Process::start(region.preload_into(command.arg((48 * MIB).to_string())));
    holder.wait_for("held");
    let limits = &region.limits().devices[0];
    for (limit, overhead) in [(64 * MIB, u64::MAX), (MIB, 0), (0, 0), (u64::MAX, u64::MAX), (u64::MAX, 0)] {
        limits.memory_limit_bytes.store(limit, Ordering::Relaxed);
        limits.memory_overhead_bytes.store(overhead, Ordering::Relaxed);
        let seen = run(region.preload_into(&mut HostProgram::linked(&gpu, "asks_memory").on(&gpu))).success().stdout;
        let numbers: Vec<u64> = seen.split_ascii_whitespace().map(|word| word.parse().unwrap()).collect();
        let [total, free, nvml_total, nvml_free, nvml_used] = numbers[..] else { panic!("{seen:?}") };
        let all = gpu.config().devices[0].memory_bytes;
        assert_eq!(total, limit.min(all), "{seen:?}");
        assert_eq!(nvml_total, total, "{seen:?}");
        let expected_free = limit.saturating_sub(overhead.saturating_add(48 * MIB)).min(all - 48 * MIB);
        assert_eq!((free, nvml_free), (expected_free, expected_free), "with a limit of {limit} and {overhead}");
        assert!(nvml_used <= nvml_total && nvml_used + nvml_free <= nvml_total, "{seen:?}");
    }
}

#[test]
fn every_process_sees_the_memory_of_all() {
    let gpu = SimulatedGpu::new();
    let region = Region::new(&gpu, 64 * MIB);
    let hold = HostProgram::linked(&gpu, "hold");
    let holders: Vec<Process> = [8, 16]
        .into_iter()
        .map(|mebibytes| {
            let mut command = hold.on(&gpu);
            let mut holder = Process::start(region.preload_into(command.arg((mebibytes * MIB).to_string())));
            holder.wait_for("held");
            holder
        })
        .collect();
    let seen = run(region.preload_into(&mut HostProgram::linked(&gpu, "asks_memory").on(&gpu))).success().stdout;
    let numbers: Vec<u64> = seen.split_ascii_whitespace().map(|word| word.parse().unwrap()).collect();
    assert_eq!(numbers, [64, 40, 64, 40, 24].map(|mebibytes| mebibytes * MIB));
    drop(holders);
}

/// The manager's socket exists, but connections are not accepted, as when the manager is stopped or overloaded.
#[test]
fn a_manager_that_never_answers_holds_up_no_process() {
    let gpu = SimulatedGpu::new();
    let program = HostProgram::linked(&gpu, "exact");
    let region = Region::new(&gpu, 64 * MIB);
    let socket = socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None).unwrap();
    bind(&socket, &SocketAddrUnix::new(region.dir().join(ATTACH_SOCKET)).unwrap()).unwrap();
    listen(&socket, 1).unwrap();
    let bytes = (64 * MIB).to_string();
    // More than the socket's backlog can hold.
    for _ in 0..200 {
        let outcome = run(region.preload_into(program.on(&gpu).arg(&bytes))).success();
        assert!(outcome.stdout.contains("one byte more: 2\n"), "{outcome:?}");
    }
    assert_eq!((region.used_bytes(0), region.peak_bytes(0)), (0, 64 * MIB));
}
