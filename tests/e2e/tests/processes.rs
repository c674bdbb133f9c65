//! A process that forks, becomes another program or user, changes its root, closes its descriptors or ends during a
//! call is limited, does not hang, and behaves as without the shim.

use std::fs;
use std::path::Path;
use std::process::Command;
use std::sync::atomic::Ordering;

use aliquot_abi::ledger;
use aliquot_abi::region::{LEDGER_FILE, LIMITS_FILE, SLOTS_MAX, owner};
use aliquot_harness::{
    EXACT_MEMORY, HostProgram, MIB, Outcome, Part, Process, Region, SimulatedGpu, run, unchanged_in_a_slice, wait,
};
use rustix::io::Errno;

/// Runs a program without a slice, in an unlimited slice, and in a slice of 64 MiB. All must end alike. Returns the
/// last run's outcome and region.
#[track_caller]
fn limited(gpu: &SimulatedGpu, program: &HostProgram, arguments: &[&str]) -> (Outcome, Region) {
    let bare = unchanged_in_a_slice(gpu, || {
        let mut command = program.on(gpu);
        command.args(arguments);
        command
    });
    let region = Region::new(gpu, 64 * MIB);
    let outcome = run(region.preload_into(program.on(gpu).args(arguments)));
    assert_eq!(outcome.status, bare.status, "bare and limited:\n{bare:?}\n{outcome:?}");
    (outcome, region)
}

#[test]
fn a_refusal_waits_for_what_an_ended_process_held() {
    let gpu = SimulatedGpu::exact();
    let region = Region::new(&gpu, 64 * MIB);
    let program = HostProgram::linked(&gpu, "hold");
    let hold = || Process::start(region.preload_into(program.on(&gpu).arg((40 * MIB).to_string())));
    let mut first = hold();
    first.wait_for("held");
    let ledger = region.ledger();
    let ended = |index: &usize| ledger::identity(ledger, *index).is_some_and(|owner| owner.pid == first.id());
    let index = (1..SLOTS_MAX).find(ended).expect("the first has a slot");
    let owner = ledger::identity(ledger, index).expect("its owner");
    first.kill();
    let mut second = hold();
    wait::until_true("the second has a slot", || slots_in_use(&region) == 2);
    // As the manager does when it learns of the process's end, and when the driver has freed the memory.
    let limits = &region.limits().devices[0];
    limits.memory_settling.store(1, Ordering::SeqCst);
    limits.memory_overhead_bytes.store(40 * MIB, Ordering::SeqCst);
    assert_eq!(ledger::reclaim(ledger, index, owner, ledger::MANAGER_PID), ledger::Reclaimed::Exactly);
    assert!(!second.has_ended(), "{}", second.errors());
    limits.memory_overhead_bytes.store(0, Ordering::SeqCst);
    limits.memory_settling.store(0, Ordering::SeqCst);
    second.wait_for("held");
    assert_eq!(ledger.devices[0].refused.load(Ordering::Relaxed), 0);
}

/// Only a kernel that does not know this advice leaves a process without limits: memory can be short, too, or a filter
/// forbid the call.
#[test]
fn only_a_kernel_that_cannot_wipe_memory_in_children_is_excused() {
    let gpu = SimulatedGpu::new();
    let program = HostProgram::linked(&gpu, "filtered_advice");
    let says = |errno: Errno| {
        let region = Region::new(&gpu, 64 * MIB);
        run(region.preload_into(program.on(&gpu).arg(errno.raw_os_error().to_string()))).success().stdout
    };
    assert_eq!(says(Errno::INVAL), "context: 0\nmemory: 0\n");
    for other in [Errno::NOMEM, Errno::PERM] {
        assert_eq!(says(other), "context: 800\nmemory: 201\n", "{other}");
    }
}

fn require_root() {
    let root = rustix::process::geteuid().is_root();
    assert!(root, "this test changes users and roots: run it as root");
}

/// The number of slots in use.
fn slots_in_use(region: &Region) -> usize {
    region.ledger().owners.iter().filter(|word| owner::state(word.load(Ordering::Relaxed)) != owner::FREE).count()
}

#[test]
fn a_child_that_was_forked_before_cuda_began_has_books_of_its_own() {
    let gpu = SimulatedGpu::new();
    let (outcome, region) = limited(&gpu, &HostProgram::linked(&gpu, "fork"), &["before"]);
    outcome.success().assert_said("child: took 8 MiB, ran a kernel\nparent: took 8 MiB, ran a kernel\n");
    assert_eq!((region.used_bytes(0), region.peak_bytes(0)), (0, 8 * MIB));
}

#[test]
fn a_child_that_was_forked_after_cuda_began_does_not_touch_its_parent_s_books() {
    let gpu = SimulatedGpu::new();
    let (outcome, region) = limited(&gpu, &HostProgram::linked(&gpu, "fork"), &["after"]);
    let outcome = outcome.success();
    assert!(outcome.stdout.contains("cuMemAlloc refused\n"), "{outcome:?}");
    assert!(outcome.stdout.contains("parent: still holds it: yes\nparent: gave it back: yes\n"), "{outcome:?}");
    assert_eq!(region.used_bytes(0), 0);
}

#[test]
fn children_that_only_end_change_nothing() {
    let gpu = SimulatedGpu::new();
    let (outcome, region) = limited(&gpu, &HostProgram::linked(&gpu, "fork"), &["storm"]);
    outcome.success().assert_said("parent: still holds it: yes\n");
    assert_eq!(slots_in_use(&region), 1);
}

#[test]
fn a_child_that_becomes_another_program_shares_the_limit() {
    let gpu = SimulatedGpu::new();
    for way in ["fork", "vfork", "clone", "spawn"] {
        let (outcome, _) = limited(&gpu, &HostProgram::linked(&gpu, "exec"), &[way]);
        outcome
            .success()
            .assert_said("holding 16 MiB: free 48 MiB\nfresh: free 48 MiB\nfresh: took 8 MiB\nparent: free 48 MiB\n");
    }
}

#[test]
fn a_process_that_becomes_another_program_leaves_nothing_behind() {
    let gpu = SimulatedGpu::new();
    for way in ["self", "thread"] {
        let (outcome, region) = limited(&gpu, &HostProgram::linked(&gpu, "exec"), &[way]);
        outcome.success().assert_said("holding 16 MiB: free 48 MiB\nfresh: free 64 MiB\nfresh: took 8 MiB\n");
        assert_eq!((region.used_bytes(0), region.peak_bytes(0), slots_in_use(&region)), (0, 16 * MIB, 1), "{way}");
    }
}

#[test]
fn a_program_forks_while_its_threads_allocate() {
    let gpu = SimulatedGpu::new();
    let (outcome, region) = limited(&gpu, &HostProgram::linked(&gpu, "fork_in_storm"), &[]);
    outcome.success().assert_said("100 children, 100 refused; all given back: yes\n");
    assert_eq!((region.used_bytes(0), slots_in_use(&region)), (0, 1));
}

#[test]
fn a_daemon_that_lost_its_parents_is_limited() {
    let gpu = SimulatedGpu::new();
    let (outcome, region) = limited(&gpu, &HostProgram::linked(&gpu, "daemon"), &[]);
    outcome.success().assert_said("daemon: took 8 MiB, one byte more than is left: 2\ngone\n");
    assert_eq!(region.peak_bytes(0), 8 * MIB);
}

#[test]
fn a_child_in_a_process_namespace_of_its_own_shares_the_limit() {
    require_root();
    let gpu = SimulatedGpu::new();
    let (outcome, region) = limited(&gpu, &HostProgram::linked(&gpu, "pid_namespace"), &[]);
    outcome.success().assert_said("child: took 8 MiB, free 56 MiB\nparent: took 4 MiB, free 52 MiB\n");
    // Their ids belong to different namespaces, and neither process took the other for dead.
    assert_eq!((region.peak_bytes(0), slots_in_use(&region)), (12 * MIB, 2));
}

#[test]
fn a_process_that_gave_up_its_privileges_is_limited() {
    require_root();
    let gpu = SimulatedGpu::exact();
    let (outcome, _) = limited(&gpu, &HostProgram::linked(&gpu, "privileges"), &[]);
    outcome.success().assert_said("free: 67108864\ntoo much: 2\nfree: 0\n");
}

#[test]
fn a_process_with_another_root_is_limited() {
    require_root();
    let gpu = SimulatedGpu::exact();
    let root = tempfile::tempdir().unwrap();
    // The new root has the simulated machine's files, as a container has the driver's, but neither the region nor
    // /proc.
    let machine = root.path().join(gpu.dir().strip_prefix("/").unwrap());
    fs::create_dir_all(&machine).unwrap();
    fs::copy(gpu.config_file(), machine.join("machine.toml")).unwrap();
    for when in ["before", "after"] {
        let arguments = [when, root.path().to_str().unwrap()];
        let (outcome, region) = limited(&gpu, &HostProgram::linked(&gpu, "chroot"), &arguments);
        outcome.success().assert_said("free: 67108864\ntoo much: 2\nfree: 0\n");
        assert_eq!((region.used_bytes(0), region.peak_bytes(0)), (0, 64 * MIB), "{when}");
    }
}

#[test]
fn a_file_that_took_the_place_of_standard_error_is_never_written_to() {
    let gpu = SimulatedGpu::new();
    let program = HostProgram::linked(&gpu, "closed_descriptors");
    let dir = tempfile::tempdir().unwrap();
    let (data, result) = (dir.path().join("data"), dir.path().join("result"));
    let with = |region: Option<&Region>| {
        fs::write(&data, "precious").unwrap();
        let mut command = program.on(&gpu);
        command.args([&data, &result]);
        if let Some(region) = region {
            region.preload_into(&mut command);
        }
        let _ = run(&mut command).success();
        assert_eq!(fs::read_to_string(&data).unwrap(), "precious");
        fs::read_to_string(&result).unwrap()
    };
    assert_eq!(with(None), "cuInit 0, cuMemAlloc 0 and 2\n");
    assert_eq!(with(Some(&Region::new(&gpu, 64 * MIB))), "cuInit 0, cuMemAlloc 0 and 2\n");
    // Without a region the shim has a warning to write.
    let bare = Region::new(&gpu, 64 * MIB);
    for file in [LIMITS_FILE, LEDGER_FILE] {
        fs::remove_file(bare.dir().join(file)).unwrap();
    }
    assert_eq!(with(Some(&bare)), "cuInit 0, cuMemAlloc 0 and 2\n");
}

#[test]
fn a_process_that_closes_all_descriptors_goes_on() {
    let gpu = SimulatedGpu::new();
    let (outcome, region) = limited(&gpu, &HostProgram::linked(&gpu, "closefrom"), &[]);
    outcome.success().assert_said("too much: 2\nit goes on; descriptors open: 0\n");
    assert_eq!(region.peak_bytes(0), MIB);
}

#[test]
fn threads_that_come_and_go_leave_nothing() {
    let gpu = SimulatedGpu::new();
    let (outcome, region) = limited(&gpu, &HostProgram::linked(&gpu, "thread_storm"), &[]);
    outcome.success().assert_said("1000 threads, all given back: yes\n");
    assert_eq!(region.used_bytes(0), 0);
}

#[test]
fn threads_that_are_cancelled_leave_nothing() {
    let gpu = SimulatedGpu::new();
    let (outcome, region) = limited(&gpu, &HostProgram::linked(&gpu, "cancel"), &[]);
    outcome.success().assert_said("160 threads cancelled, all given back: yes\n");
    assert_eq!(region.used_bytes(0), 0);
}

#[test]
fn the_driver_is_opened_and_closed_while_a_thread_uses_it() {
    let gpu = SimulatedGpu::new();
    let (outcome, region) = limited(&gpu, &HostProgram::new("dlclose_race"), &[]);
    outcome.success().assert_said("500 times opened and closed, 500 times refused\n");
    assert_eq!(region.used_bytes(0), 0);
}

#[test]
fn contexts_end_while_others_are_used() {
    let gpu = SimulatedGpu::with("mode = 'instant'\n");
    let (outcome, region) = limited(&gpu, &HostProgram::linked(&gpu, "contexts_race"), &[]);
    outcome.success().assert_said("600 contexts destroyed, 16 MiB in use\nall given back: yes\n");
    assert_eq!(region.used_bytes(0), 0);
}

/// A program must not do this. If it does, at most the operations under way stay charged until the program ends.
#[test]
fn the_primary_context_is_reset_while_threads_allocate_in_it() {
    const UNDER_WAY_BYTES: u64 = 4 * 4096;
    const RESETS: u64 = 101;
    let gpu = SimulatedGpu::with("mode = 'instant'\n");
    let (outcome, region) = limited(&gpu, &HostProgram::linked(&gpu, "reset_race"), &[]);
    outcome.success().assert_said("reset 101 times, and then took 32 MiB: 0\n");
    assert!(region.used_bytes(0) <= RESETS * UNDER_WAY_BYTES, "{} bytes stay charged", region.used_bytes(0));
}

#[test]
fn devices_that_reach_each_other_keep_their_own_books() {
    let limits = [32 * MIB, 64 * MIB];
    let small = SimulatedGpu::with(&format!(
        "{EXACT_MEMORY}[[device]]\nmemory = {}\nnvlink = [1]\n[[device]]\nmemory = {}\nnvlink = [0]\n",
        limits[0], limits[1]
    ));
    let large = SimulatedGpu::with(&format!("{EXACT_MEMORY}[[device]]\nnvlink = [1]\n[[device]]\nnvlink = [0]\n"));
    let program = HostProgram::linked(&large, "peers");
    let on_small = unchanged_in_a_slice(&small, || program.on(&small)).success();
    let parts = [0, 1].map(|device| Part { device, memory_limit_bytes: limits[device] });
    let region = Region::with_parts(&large, &parts);
    run(region.preload_into(&mut program.on(&large))).success().assert_said(&on_small.stdout);
    assert!(on_small.stdout.ends_with("the first device's context reset: free 32 MiB and 64 MiB\n"), "{on_small:?}");
    assert_eq!((region.used_bytes(0), region.used_bytes(1)), (0, 0));
}

#[test]
fn a_process_ends_while_its_threads_launch() {
    let gpu = SimulatedGpu::new();
    for way in ["exit", "_exit", "quick_exit", "return", "thread", "abort"] {
        let (outcome, _) = limited(&gpu, &HostProgram::linked(&gpu, "exit_in_launch"), &[way]);
        let expected = if way == "abort" { (None, Some(6)) } else { (Some(7), None) };
        assert_eq!((outcome.status.code(), outcome.signal()), expected, "{way}: {outcome:?}");
    }
}

#[test]
fn streams_graphs_and_captures_are_unchanged() {
    let gpu = SimulatedGpu::new();
    for program in ["streams", "graph", "capture"] {
        let (outcome, _) = limited(&gpu, &HostProgram::linked(&gpu, program), &[]);
        let _ = outcome.success();
    }
}

#[test]
fn memory_is_charged_to_the_slot_of_its_process() {
    let gpu = SimulatedGpu::new();
    let region = Region::new(&gpu, 64 * MIB);
    let program = HostProgram::linked(&gpu, "hold");
    let mut holders: Vec<Process> = [3, 5]
        .map(|mebibytes: u64| {
            let mut command = program.on(&gpu);
            command.arg((mebibytes * MIB).to_string());
            Process::start(region.preload_into(&mut command))
        })
        .into();
    for holder in &mut holders {
        holder.wait_for("held");
    }
    let ledger = region.ledger();
    let held = |pid: u32| {
        let slot = ledger.owners.iter().position(|word| owner::pid(word.load(Ordering::Relaxed)) == pid);
        ledger.slots[slot.expect("the process has a slot")].devices[0].memory.load(Ordering::Relaxed)
    };
    assert_eq!([held(holders[0].id()), held(holders[1].id())], [3 * MIB, 5 * MIB]);
    assert_eq!(region.used_bytes(0), 8 * MIB);
}

/// Without a manager, a dead process's slot stays in use until the slots run out. Then a new process frees it.
#[test]
fn slots_of_the_dead_are_used_again() {
    let gpu = SimulatedGpu::with("mode = 'instant'\n");
    let region = Region::new(&gpu, 64 * MIB);
    let program = HostProgram::linked(&gpu, "hold");
    let command = || {
        let mut command = program.on(&gpu);
        command.arg("4096");
        region.preload_into(&mut command);
        command
    };
    // Filling all slots with processes would take long, so the other slots get owners that never existed.
    for (word, start_time) in region.ledger().owners.iter().zip(&region.ledger().start_times).skip(1) {
        start_time.store(1, Ordering::Relaxed);
        word.store(owner::word(owner::ATTACHED, 1, u32::MAX - 1), Ordering::Relaxed);
    }
    let own_namespace = inode(Path::new("/proc/self/ns/pid"));
    for slot in &region.ledger().slots {
        slot.pid_namespace.store(own_namespace, Ordering::Relaxed);
    }
    let mut holder = Process::start(&mut command());
    holder.wait_for("held");
    assert_eq!((slots_in_use(&region), region.used_bytes(0)), (1, 4096));
}

fn inode(path: &Path) -> u64 {
    use std::os::unix::fs::MetadataExt;
    fs::metadata(path).unwrap().ino()
}

#[test]
fn programs_that_start_others_in_their_own_ways_still_can() {
    let gpu = SimulatedGpu::new();
    // `ldd` runs the loader itself with LD_PRELOAD set; `env -i` clears the environment.
    for command in [vec!["/usr/bin/ldd", "/bin/true"], vec!["/usr/bin/env", "-i", "/bin/echo", "clean"]] {
        let region = Region::unlimited(&gpu);
        let _ = run(region.preload_into(Command::new(command[0]).args(&command[1..]))).success();
    }
}
