//! The audit finds and names processes that bypass the shim and, where the node's policy says so, stops them. It never
//! accuses another process.

use std::env;
use std::fs::{self, Permissions};
use std::io::Write;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Command;
use std::sync::atomic::Ordering;

use aliquot_fake_machine::{Config, Machine};
use aliquot_harness::{
    EXACT_MEMORY, GIB, HostProgram, Image, MIB, Node, Process, RootFs, SimulatedGpu, Slice, artifacts, copy_program,
    run, tool, wait,
};
use aliquot_proto::node::v1::{CreateSliceRequest, Finding, FindingKind, Part};

/// Memory that a process may use here beyond what the ledger shows: more than a context takes.
const ALLOWANCE_BYTES: u64 = GIB;
/// Memory that a program which bypasses its slice holds.
const HELD_BYTES: u64 = 3 * GIB;

/// A manager with this policy.
fn node(gpu: &SimulatedGpu, policy: &str) -> Node {
    let audit = format!("[audit]\npolicy = '{policy}'\noverhead_allowance_bytes = {ALLOWANCE_BYTES}\n");
    Node::with(gpu, &format!("cdi_dir = 'off'\n{audit}"))
}

/// A slice of half of the first device's time. All processes that this test starts belong to it.
fn slice(node: &Node, gpu: &SimulatedGpu, memory_limit_bytes: u64) -> Slice {
    let part = Part { device_uuid: gpu.uuid(0), core_request_percent: 50, memory_limit_bytes, ..Part::default() };
    let request = CreateSliceRequest {
        name: "watched".into(),
        parts: vec![part],
        owner_pid: std::process::id(),
        allowed_uids: vec![65534],
        ..CreateSliceRequest::default()
    };
    Slice::open(node.client().create(request).unwrap())
}

/// The program `bypass`, told to use the driver in the way `how`.
fn bypass(gpu: &SimulatedGpu, how: &str, further: &[&str]) -> Command {
    let mut command = HostProgram::new("bypass").on(gpu);
    command.arg(gpu.library_dir().join("libcuda.so.1")).arg(how).arg(HELD_BYTES.to_string()).args(further);
    command
}

/// The findings about a process.
fn about(node: &Node, pid: u32) -> Vec<Finding> {
    node.client().findings().unwrap().findings.into_iter().filter(|finding| finding.pid == pid).collect()
}

/// Waits for a finding of this kind about a process. If only its attachment ties a process to its slice, the audit
/// reports it as outside of all slices until the manager has received that.
#[track_caller]
fn wait_for_finding(node: &Node, pid: u32, kind: FindingKind) -> Finding {
    wait::until(&format!("{kind:?} is found of {pid}"), || {
        let findings = about(node, pid);
        let expected = |finding: &Finding| [kind, FindingKind::OutsideSlices].contains(&finding.kind());
        assert!(findings.iter().all(expected), "{findings:?}");
        findings.into_iter().find(|finding| finding.kind() == kind)
    })
}

/// Runs `command` in a slice of the first device, on a node where each device has another slice too, under both
/// policies. The audit reports this kind of finding. The process goes on under `report` and is stopped under `stop`.
fn is_found_and_stopped(gpu: &SimulatedGpu, command: &dyn Fn() -> Command, kind: FindingKind) {
    for policy in ["report", "stop"] {
        let node = node(gpu, policy);
        for device in node.client().node().unwrap().devices {
            let part = Part { device_uuid: device.uuid, core_request_percent: 10, ..Part::default() };
            let _ = node.slice_of(&format!("other-{}", device.index), vec![part]);
        }
        let slice = slice(&node, gpu, 64 * MIB);
        let mut process = Process::start(slice.preload_into(&mut command()));
        if policy == "report" {
            process.wait_for("held");
        }
        let finding = wait_for_finding(&node, process.id(), kind);
        assert_eq!((finding.slice.as_str(), finding.device_uuid.starts_with("GPU-")), ("watched", true), "{finding:?}");
        assert!(!finding.command.is_empty() && finding.since.is_some(), "{finding:?}");
        assert_eq!(finding.stopped.is_some(), policy == "stop", "{finding:?}");
        let usage = node.client().usage("watched").unwrap();
        assert_eq!(usage.findings.len(), 1, "{usage:?}");
        let mut ps = Command::new(artifacts::cli());
        let shown = run(ps.arg("--socket").arg(node.socket()).args(["ps", "watched"])).success();
        let line = format!("! watched: {} ", process.id());
        assert!(shown.stdout.contains("watched !") && shown.stdout.contains(&line), "{shown:?}");
        if policy == "stop" {
            assert_eq!(process.wait().signal(), Some(9));
            assert_eq!(node.client().findings().unwrap().stopped, 1);
            assert!(node.log().contains("stopped a process by the audit's policy"), "{}", node.log());
        } else {
            assert!(!process.has_ended());
            // If the process has attached only now, it counts from the manager's next look on.
            wait::until_true("what nothing limits counts against the slice all the same", || {
                let usage = node.client().usage("watched").unwrap();
                usage.parts[0].memory_used_bytes >= HELD_BYTES || usage.processes.is_empty()
            });
            drop(process);
            wait::until_true("nothing is found any more", || node.client().findings().unwrap().findings.is_empty());
        }
        assert_eq!(node.log().matches("a process gets past its slice").count(), 1, "{}", node.log());
    }
}

#[test]
fn a_program_that_clears_its_environment_is_found_and_stopped() {
    let gpu = SimulatedGpu::exact();
    let command = || {
        let mut command = Command::new("/usr/bin/env");
        gpu.show_to(&mut command);
        command.args(["-u", "LD_PRELOAD"]).arg(HostProgram::linked(&gpu, "hold").path()).arg(HELD_BYTES.to_string());
        command
    };
    is_found_and_stopped(&gpu, &command, FindingKind::Unregistered);
}

#[test]
fn a_program_with_a_second_copy_of_the_driver_s_library_is_found_and_stopped() {
    let gpu = SimulatedGpu::exact();
    is_found_and_stopped(&gpu, &|| bypass(&gpu, "own", &[]), FindingKind::Unregistered);
}

#[test]
fn a_process_that_goes_on_as_a_program_without_the_shim_is_found_and_stopped() {
    let gpu = SimulatedGpu::exact();
    is_found_and_stopped(&gpu, &|| bypass(&gpu, "exec", &[]), FindingKind::Unregistered);
}

#[test]
fn a_process_without_its_main_thread_and_without_a_readable_name_is_found_and_stopped() {
    let gpu = SimulatedGpu::exact();
    is_found_and_stopped(&gpu, &|| bypass(&gpu, "leave", &[]), FindingKind::Unregistered);
}

#[test]
fn a_set_user_id_program_that_ignores_the_shim_is_found_and_stopped() {
    assert!(rustix::process::geteuid().is_root(), "this test becomes another user: run it as root");
    let gpu = SimulatedGpu::exact();
    let dir = tempfile::Builder::new().permissions(Permissions::from_mode(0o755)).tempdir().unwrap();
    let program = dir.path().join("bypass");
    copy_program(HostProgram::new("bypass").path(), &program);
    fs::set_permissions(&program, Permissions::from_mode(0o4755)).unwrap();
    let library = fs::canonicalize(artifacts::fake_cuda()).unwrap();
    let command = || {
        let mut command = Command::new(&program);
        gpu.show_to(&mut command);
        command.arg(&library).arg("same").arg(HELD_BYTES.to_string()).uid(65534).gid(65534);
        command
    };
    is_found_and_stopped(&gpu, &command, FindingKind::Unregistered);
}

/// The environment variable that makes [`raw_process`] use a device: the device's index.
const RAW: &str = "ALIQUOT_TEST_RAW_DEVICE";

/// Not a test of its own: plays a program that contains the driver, and loads no driver library.
#[test]
fn raw_process() {
    let Some(device) = env::var(RAW).ok().and_then(|device| device.parse().ok()) else { return };
    let machine: &'static Machine = Box::leak(Box::new(Config::from_env().and_then(Machine::open).unwrap()));
    let member = machine.join().unwrap();
    assert!(member.reserve_memory(device, HELD_BYTES));
    println!("held");
    std::io::stdout().flush().unwrap();
    loop {
        std::thread::park();
    }
}

fn raw(gpu: &SimulatedGpu, device: usize) -> Command {
    let mut command = Command::new(env::current_exe().unwrap());
    command.args(["raw_process", "--exact", "--nocapture", "--test-threads=1"]).env(RAW, device.to_string());
    gpu.show_to(&mut command);
    command
}

#[test]
fn a_program_that_speaks_to_the_device_by_itself_is_found_and_stopped() {
    let gpu = SimulatedGpu::exact();
    is_found_and_stopped(&gpu, &|| raw(&gpu, 0), FindingKind::Unregistered);
}

#[test]
fn a_program_on_a_device_that_is_not_its_slice_s_is_found_and_stopped() {
    let gpu = SimulatedGpu::with(&format!("{EXACT_MEMORY}{}", "[[device]]\nmemory = '16GiB'\n".repeat(2)));
    is_found_and_stopped(&gpu, &|| raw(&gpu, 1), FindingKind::ForeignDevice);
}

#[test]
fn a_program_that_has_the_shim_and_takes_memory_past_it_is_found_and_stopped() {
    let gpu = SimulatedGpu::exact();
    is_found_and_stopped(&gpu, &|| bypass(&gpu, "both", &[]), FindingKind::MemoryBeyondLimit);
}

#[test]
fn a_child_that_only_inherits_the_shim_s_mappings_is_found_and_stopped() {
    let gpu = SimulatedGpu::exact();
    let node = node(&gpu, "stop");
    // This is more than any process uses.
    let slice = slice(&node, &gpu, 4 * HELD_BYTES);
    let mut parent = Process::start(slice.preload_into(&mut bypass(&gpu, "fork", &[])));
    parent.wait_for("held");
    // Not before a sweep would have found it if no other report named it.
    wait::until_true("the child is stopped", || node.client().findings().unwrap().stopped == 1);
    let found = node.client().findings().unwrap().findings;
    assert_eq!((found.len(), found[0].kind(), found[0].slice.as_str()), (1, FindingKind::Unregistered, "watched"));
    assert!(found[0].pid != parent.id() && found[0].stopped.is_some(), "{found:?}");
    assert!(!parent.has_ended());
}

#[test]
fn a_program_that_takes_time_past_the_shim_is_found_and_not_stopped() {
    let gpu = SimulatedGpu::exact();
    let node = node(&gpu, "stop");
    let part = Part { core_request_percent: 50, memory_limit_bytes: 4 * HELD_BYTES, ..Part::default() };
    let slice = node.slice_of("watched", vec![part]);
    let mut command = bypass(&gpu, "both", &["1000000"]);
    let mut process = Process::start(slice.preload_into(&mut command));
    let finding = wait_for_finding(&node, process.id(), FindingKind::TimeWithoutLease);
    assert_eq!((finding.slice.as_str(), finding.stopped), ("watched", None));
    assert!(!process.has_ended());
    assert_eq!(node.client().findings().unwrap().stopped, 0);
}

#[test]
fn a_process_of_no_slice_is_reported_and_never_stopped() {
    let gpu = SimulatedGpu::exact();
    let node = node(&gpu, "stop");
    let mut process = Process::start(&mut raw(&gpu, 0));
    process.wait_for("held");
    // Not reported before the device has a slice.
    let _slice = node.slice("watched", 50, 64 * MIB);
    let finding = wait_for_finding(&node, process.id(), FindingKind::OutsideSlices);
    assert_eq!((finding.slice.as_str(), finding.memory_bytes, finding.stopped), ("", HELD_BYTES, None));
    assert!(!process.has_ended());
    assert!(node.client().usage("watched").unwrap().findings.is_empty());
    let mut ps = Command::new(artifacts::cli());
    let shown = run(ps.arg("--socket").arg(node.socket()).arg("ps")).success();
    let expected = format!("! outside of slices: {} audit", process.id());
    assert!(shown.stdout.lines().any(|line| line.starts_with(&expected)), "{shown:?}");
}

#[test]
fn behind_mps_no_process_is_accused() {
    let gpu = SimulatedGpu::exact();
    // Two programs of the same name: one is the server, the other an impostor.
    let dir = tempfile::tempdir().unwrap();
    let [program, impostor] = ["bin", "tmp"].map(|place| {
        let program = dir.path().join(place).join("nvidia-cuda-mps-server");
        fs::create_dir(program.parent().unwrap()).unwrap();
        copy_program(HostProgram::linked(&gpu, "hold").path(), &program);
        program
    });
    let audit =
        format!("[audit]\noverhead_allowance_bytes = {ALLOWANCE_BYTES}\nmps_server = '{}'\n", program.display());
    let node = Node::with(&gpu, &format!("cdi_dir = 'off'\n{audit}"));
    let slice = node.slice("watched", 50, 64 * MIB);
    let mut process = Process::start(slice.preload_into(&mut bypass(&gpu, "both", &[])));
    process.wait_for("held");
    wait_for_finding(&node, process.id(), FindingKind::MemoryBeyondLimit);
    let start = |program: &Path| {
        let mut command = Command::new(program);
        gpu.show_to(&mut command);
        let mut server = Process::start(command.arg(MIB.to_string()));
        server.wait_for("held");
        server
    };
    let impostor = start(&impostor);
    wait_for_finding(&node, impostor.id(), FindingKind::OutsideSlices);
    assert_eq!(about(&node, process.id()).len(), 1);
    let server = start(&program);
    wait_for_finding(&node, server.id(), FindingKind::MpsServer);
    wait::until_true("nobody else is accused", || node.client().findings().unwrap().findings.len() == 1);
}

#[test]
fn mounts_show_to_which_container_a_process_belongs() {
    let gpu = SimulatedGpu::exact();
    let node = Node::publishing(&gpu, "[audit]\npolicy = 'stop'");
    let name = format!("audited-{}", std::process::id());
    let _slice = node.slice(&name, 50, 64 * MIB);
    let image = Image::of(&RootFs::with(&[&HostProgram::new("bypass"), &HostProgram::linked(&gpu, "hold")]));
    let device = format!("aliquot.dev/slice={name}");
    let bytes = HELD_BYTES.to_string();
    let mut honest = image.start(&["--device", &device], &["/bin/hold-linked", "4096"]);
    honest.process().wait_for("held");
    let mut bad = image.start(&["--device", &device], &["/bin/bypass", "/usr/lib/libcuda.so.1", "own", &bytes]);
    let mut found = Vec::new();
    wait::until_true("it is found", || {
        // In this order: with the finding, the manager may end the process.
        let has_ended = bad.process().has_ended();
        found = node.client().findings().unwrap().findings;
        assert!(!has_ended || !found.is_empty(), "{}", bad.process().errors());
        !found.is_empty()
    });
    assert_eq!((found[0].slice.as_str(), found[0].kind()), (name.as_str(), FindingKind::Unregistered), "{found:?}");
    assert!(found[0].stopped.is_some() && found[0].command.contains("bypass"), "{found:?}");
    // As a shell reports it: 128 + signal number.
    assert_eq!(bad.wait().status.code(), Some(137));
    assert!(!honest.process().has_ended());
    assert_eq!(node.client().findings().unwrap().stopped, 1);
}

/// Moves process `pid` into the cgroups of process `of`.
fn join_cgroups(pid: u32, of: u32) {
    let cgroups = fs::read_to_string(format!("/proc/{of}/cgroup")).unwrap();
    for line in cgroups.lines() {
        let [_, controllers, path] = line.splitn(3, ':').collect::<Vec<_>>()[..] else { panic!("{cgroups}") };
        // A single hierarchy is mounted at the root; of several, each is in a directory named after its controllers.
        let hierarchies = match controllers.strip_prefix("name=").unwrap_or(controllers) {
            "" => ["unified", ""].map(str::to_owned),
            name => [name, name].map(str::to_owned),
        };
        let file =
            |hierarchy: &String| Path::new("/sys/fs/cgroup").join(hierarchy).join(&path[1..]).join("cgroup.procs");
        if let Some(file) = hierarchies.iter().map(file).find(|file| file.exists()) {
            fs::write(&file, pid.to_string()).unwrap_or_else(|error| panic!("{}: {error}", file.display()));
        }
    }
}

#[test]
fn a_process_that_left_its_container_s_mounts_is_known_by_the_cgroup() {
    let gpu = SimulatedGpu::exact();
    let node = Node::publishing(&gpu, "[audit]\npolicy = 'stop'");
    let name = format!("left-{}", std::process::id());
    let _slice = node.slice(&name, 50, 64 * MIB);
    let image = Image::of(&RootFs::with(&[&HostProgram::linked(&gpu, "hold")]));
    let mut container = image.start(&["--device", &format!("aliquot.dev/slice={name}")], &["/bin/hold-linked", "4096"]);
    container.process().wait_for("held");
    wait::until_true("the manager knows it", || node.client().usage(&name).unwrap().processes.len() == 1);
    let member = node.client().usage(&name).unwrap().processes[0].pid;
    // In a mount namespace that is neither the container's nor the machine's.
    let mut command = Command::new(tool("unshare", "util-linux"));
    let raw = raw(&gpu, 0);
    command.arg("--mount").arg(raw.get_program()).args(raw.get_args());
    command.envs(raw.get_envs().filter_map(|(name, value)| Some((name, value?))));
    let mut process = Process::start(&mut command);
    process.wait_for("held");
    join_cgroups(process.id(), member);
    assert_eq!(process.wait().signal(), Some(9));
    wait::until_true("it is told", || node.client().findings().unwrap().stopped == 1);
    let found = node.client().usage(&name).unwrap().findings;
    assert_eq!((found.len(), found[0].kind()), (1, FindingKind::Unregistered), "{found:?}");
    assert!(!container.process().has_ended());
}

#[test]
fn of_two_hundred_honest_processes_none_is_ever_accused() {
    const AT_ONCE: usize = 50;
    let gpu = SimulatedGpu::exact();
    let node = node(&gpu, "stop");
    let slice = slice(&node, &gpu, 40 * GIB);
    let hold = HostProgram::linked(&gpu, "hold");
    let fork = HostProgram::linked(&gpu, "fork");
    let mut looked_at = 0;
    for _ in 0..200 / AT_ONCE {
        // Half of them stay until the audit has looked at them, the others come and go.
        let held: Vec<Process> =
            (0..AT_ONCE / 2).map(|_| Process::start(slice.preload_into(hold.on(&gpu).arg(MIB.to_string())))).collect();
        let brief: Vec<Process> =
            (0..AT_ONCE / 2).map(|_| Process::start(slice.preload_into(fork.on(&gpu).arg("storm")))).collect();
        for process in brief {
            assert_eq!(process.wait().signal(), None);
        }
        // Three looks, which is more than a finding takes. At each, the manager writes the device use of every known
        // process into its slot: 0 for these.
        for _ in 0..3 {
            const NOT_LOOKED_AT: u64 = 7;
            let shown = || slice.ledger().slots.iter().map(|slot| &slot.devices[0].used_permille);
            shown().for_each(|permille| permille.store(NOT_LOOKED_AT, Ordering::Relaxed));
            wait::until_true("all that stay are looked at", || {
                shown().filter(|permille| permille.load(Ordering::Relaxed) == 0).count() >= AT_ONCE / 2
            });
        }
        looked_at += held.len();
        for mut process in held {
            assert!(!process.has_ended(), "{}", process.errors());
        }
        let found = node.client().findings().unwrap();
        assert_eq!((found.stopped, found.findings), (0, Vec::new()));
    }
    assert_eq!(looked_at, 100);
    assert!(!node.log().contains("gets past its slice"), "{}", node.log());
}

#[test]
fn a_look_reads_the_state_of_each_process_once() {
    const LOOKS: usize = 3;
    let gpu = SimulatedGpu::exact();
    let node = node(&gpu, "report");
    let slice = slice(&node, &gpu, GIB);
    let mut holder = Process::start(slice.preload_into(HostProgram::linked(&gpu, "hold").on(&gpu).arg("4096")));
    holder.wait_for("held");
    wait::until_true("the process is attached", || node.client().usage("watched").unwrap().processes.len() == 1);
    let mut traced = Command::new(tool("strace", "strace"));
    traced.args(["-f", "-e", "trace=openat,statx,newfstatat", "-p", &node.manager_id().to_string()]);
    let tracer = Process::start(&mut traced);
    // The first thing that each look asks for.
    let begins = "\"/proc/1/ns/mnt\"";
    wait::until_true("some looks are seen", || tracer.errors().matches(begins).count() > LOOKS);
    let seen = tracer.errors();
    let (first, last) = (seen.find(begins).unwrap(), seen.rfind(begins).unwrap());
    let whole = &seen[first..last];
    let read = whole.matches(&format!("\"/proc/{}/stat\"", holder.id())).count();
    assert_eq!(read, whole.matches(begins).count(), "{whole}");
}
