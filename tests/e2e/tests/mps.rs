//! MPS: where the node's configuration asks for it, MPS limits the shares. Elsewhere leases go on beside it.

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::Ordering;

use aliquot_abi::region::gate;
use aliquot_harness::{GIB, HostProgram, MIB, Node, Process, SimulatedGpu, artifacts, copy_program, run, wait};
use aliquot_proto::node::v1::{CreateSliceRequest, FindingKind, Part, PriorityClass, ResizeSliceRequest, SharingMode};
use tempfile::TempDir;
use tonic::Code;

/// A stand-in for `nvidia-cuda-mps-control` that works on files in the pipe directory: `percent` holds the default
/// percentage, `server-PID` that of a server. It fails without the file `daemon`. With the file `silent` it answers
/// nothing, and writes its pid there.
const CONTROL: &str = r#"#!/bin/sh
cd "$CUDA_MPS_PIPE_DIRECTORY" || exit 1
[ -e silent ] && { echo $$ >silent; while [ -e silent ]; do sleep 0.1; done; }
[ -e daemon ] || { echo 'Cannot find MPS control daemon process'; exit 1; }
read -r command server percent
case "$command" in
get_default_active_thread_percentage) cat percent ;;
set_default_active_thread_percentage) echo "$server.0" >percent ;;
get_server_list) ls | sed -n 's/^server-//p' ;;
get_active_thread_percentage) cat "server-$server" ;;
set_active_thread_percentage) echo "$percent.0" >"server-$server" ;;
*) echo "Unknown command"; exit 1 ;;
esac
"#;

/// A test's own MPS: a control daemon that runs or does not, and the programs in the manager's configuration.
struct Mps {
    dir: TempDir,
}

impl Mps {
    /// An MPS with a running control daemon.
    fn new() -> Mps {
        let mps = Mps { dir: tempfile::Builder::new().permissions(Permissions::from_mode(0o755)).tempdir().unwrap() };
        fs::create_dir(mps.pipes()).unwrap();
        let text = mps.dir.path().join("control.sh");
        fs::write(&text, CONTROL).unwrap();
        copy_program(&text, &mps.control());
        fs::set_permissions(mps.control(), Permissions::from_mode(0o755)).unwrap();
        mps.start_daemon();
        mps
    }

    fn pipes(&self) -> PathBuf {
        self.dir.path().join("pipes")
    }

    fn control(&self) -> PathBuf {
        self.dir.path().join("nvidia-cuda-mps-control")
    }

    /// Starts the control daemon with default settings.
    fn start_daemon(&self) {
        fs::write(self.pipes().join("percent"), "100.0\n").unwrap();
        fs::write(self.pipes().join("daemon"), "").unwrap();
    }

    fn stop_daemon(&self) {
        fs::remove_file(self.pipes().join("daemon")).unwrap();
    }

    /// Starts an MPS server: a process on the device that the control daemon knows.
    fn start_server(&self, gpu: &SimulatedGpu) -> Process {
        let program = self.server();
        copy_program(HostProgram::linked(gpu, "hold").path(), &program);
        let mut command = Command::new(program);
        gpu.show_to(&mut command);
        let mut server = Process::start(command.arg(MIB.to_string()));
        server.wait_for("held");
        fs::copy(self.pipes().join("percent"), self.of_server(&server)).unwrap();
        server
    }

    fn server(&self) -> PathBuf {
        self.dir.path().join("nvidia-cuda-mps-server")
    }

    fn of_server(&self, server: &Process) -> PathBuf {
        self.pipes().join(format!("server-{}", server.id()))
    }

    /// Keys of a manager's configuration that share `device` by MPS, and the other devices by time.
    fn settings(&self, device: Option<&str>) -> String {
        let mps = self.dir.path().join("shm");
        let named = device.map(|uuid| format!("[[sharing.devices]]\nuuid = '{uuid}'\nmode = 'mps'\n"));
        format!(
            "[audit]\nmps_server = {:?}\n[sharing]\n{}[sharing.mps]\ncontrol = {:?}\npipe_directory = {:?}\nshm_directory = {mps:?}\n",
            self.server(),
            named.unwrap_or_default(),
            self.control(),
            self.pipes(),
        )
    }
}

/// The percentage in a file of the control daemon.
fn percent(file: &Path) -> String {
    fs::read_to_string(file).unwrap().trim().to_owned()
}

fn limited(gpu: &SimulatedGpu, device: usize, request: u32, limit: u32) -> Part {
    Part {
        device_uuid: gpu.uuid(device),
        core_request_percent: request,
        core_limit_percent: limit,
        memory_limit_bytes: GIB,
    }
}

fn aliquot(node: &Node, arguments: &[&str]) -> String {
    run(Command::new(artifacts::cli()).arg("--socket").arg(node.socket()).args(arguments)).success().stdout
}

#[test]
fn containers_are_told_their_share_and_wait_for_no_lease() {
    let gpu = SimulatedGpu::new();
    let (mps, cdi) = (Mps::new(), tempfile::tempdir().unwrap());
    let server = mps.start_server(&gpu);
    let node = Node::with(&gpu, &format!("cdi_dir = {:?}\n{}", cdi.path(), mps.settings(Some(&gpu.uuid(0)))));
    let small = node.slice_of("small", vec![limited(&gpu, 0, 30, 30)]);
    let large = node.slice_of("large", vec![limited(&gpu, 0, 30, 60)]);

    let spec: serde_json::Value =
        serde_json::from_slice(&fs::read(cdi.path().join("aliquot.dev-slice-small.json")).unwrap()).unwrap();
    let edits = &spec["devices"][0]["containerEdits"];
    let pipes = mps.pipes();
    let environment =
        [format!("CUDA_MPS_PIPE_DIRECTORY={}", pipes.display()), "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE=30".to_owned()];
    for entry in &environment {
        assert!(edits["env"].as_array().unwrap().iter().any(|found| found == entry), "{entry}: {edits}");
    }
    let mounts = edits["mounts"].as_array().unwrap();
    let is_mounted = |at: &str| mounts.iter().any(|mount| mount["containerPath"] == at && mount["options"][0] == "rw");
    assert!(is_mounted(pipes.to_str().unwrap()) && is_mounted("/dev/shm"), "{edits}");
    assert_eq!(small.description().environment, environment);
    // The control daemon caps every client at the greatest limit of a slice, whatever the client's environment says.
    assert_eq!((percent(&pipes.join("percent")), percent(&mps.of_server(&server))), ("60.0".into(), "60.0".into()));

    for slice in [&small, &large] {
        let word = slice.limits().devices[0].gate.load(Ordering::Relaxed);
        assert_eq!(word & (gate::OPEN | gate::FREE), gate::OPEN | gate::FREE);
    }
    // Sharing by time would hold the process to 30 %. The use comes from the driver's samples.
    let _busy = small.busy(&gpu);
    wait::until_true("its use is told", || {
        node.client().usage("small").unwrap().parts[0].core_used_1s_millipercent > 60_000
    });
    let _other = large.busy(&gpu);
    wait::until_true("so is that of the other", || {
        node.client().usage("large").unwrap().parts[0].core_used_1s_millipercent > 10_000
    });
    let usage = node.client().usage("small").unwrap();
    assert_eq!((usage.parts[0].throttled_ns, usage.parts[0].leases), (0, 0));
}

#[test]
fn memory_is_limited_by_the_shim_as_ever() {
    let gpu = SimulatedGpu::exact();
    let mps = Mps::new();
    let node = Node::with(&gpu, &format!("cdi_dir = 'off'\n{}", mps.settings(Some(&gpu.uuid(0)))));
    let slice = node.slice("limited", 30, GIB);
    let mut command = HostProgram::linked(&gpu, "exact").on(&gpu);
    let outcome = run(slice.preload_into(command.arg(GIB.to_string()))).success();
    assert!(outcome.stdout.contains("one byte more than all: 2\n"), "{outcome:?}");
}

#[test]
fn where_mps_is_configured_no_process_is_accused() {
    let gpu = SimulatedGpu::with("[[device]]\nmemory = '8GiB'\n[[device]]\nmemory = '8GiB'\n");
    let mps = Mps::new();
    let _server = mps.start_server(&gpu);
    let node = Node::with(&gpu, &format!("cdi_dir = 'off'\n{}", mps.settings(Some(&gpu.uuid(0)))));
    let _slices = [0, 1].map(|device| node.slice_of(&format!("on-{device}"), vec![limited(&gpu, device, 30, 30)]));
    // The same on both devices, and first on the server's device: when the second stranger is found, the first one
    // would have been found too.
    let strangers = [0, 1].map(|device| {
        let mut command = HostProgram::linked(&gpu, "hold").on(&gpu);
        let mut stranger = Process::start(command.arg("4096").env("CUDA_VISIBLE_DEVICES", gpu.uuid(device)));
        stranger.wait_for("held");
        stranger
    });
    wait::until_true("what is on the other device is found", || {
        node.client().findings().unwrap().findings.iter().any(|finding| finding.pid == strangers[1].id())
    });
    let found = node.client().findings().unwrap().findings;
    assert_eq!((found.len(), found[0].kind()), (1, FindingKind::OutsideSlices), "{found:?}");
}

#[test]
fn without_a_control_daemon_nothing_is_given_out() {
    let gpu = SimulatedGpu::new();
    let mps = Mps::new();
    mps.stop_daemon();
    let node = Node::with(&gpu, &format!("cdi_dir = 'off'\n{}", mps.settings(Some(&gpu.uuid(0)))));
    let request = || CreateSliceRequest {
        name: "early".into(),
        parts: vec![limited(&gpu, 0, 30, 30)],
        ..CreateSliceRequest::default()
    };
    let refused = node.client().create(request()).unwrap_err();
    assert_eq!(refused.code(), Code::FailedPrecondition);
    for words in ["to be shared by MPS", "Cannot find MPS control daemon process", "nvidia-cuda-mps-control -d"] {
        assert!(refused.message().contains(words), "{words}: {}", refused.message());
    }
    assert!(aliquot(&node, &["nodes"]).contains("unhealthy: it is to be shared by MPS"));

    mps.start_daemon();
    wait::until_true("the device recovers", || node.client().create(request()).is_ok());
    assert_eq!(percent(&mps.pipes().join("percent")), "30.0");
    assert!(aliquot(&node, &["nodes"]).contains("healthy, shared by MPS"));

    // A restarted control daemon has lost its settings.
    mps.start_daemon();
    wait::until_true("it is told again", || percent(&mps.pipes().join("percent")) == "30.0");
    mps.stop_daemon();
    wait::until_true("its end is seen", || aliquot(&node, &["nodes"]).contains("unhealthy"));
}

/// While the manager waits for the control daemon, it goes on looking at the devices.
#[test]
fn a_silent_control_daemon_delays_no_look_at_memory() {
    let gpu =
        SimulatedGpu::with("context_memory = '300MiB'\n[[device]]\nmemory = '8GiB'\n[[device]]\nmemory = '8GiB'\n");
    let mps = Mps::new();
    let node = Node::with(&gpu, &format!("cdi_dir = 'off'\n{}", mps.settings(Some(&gpu.uuid(0)))));
    let slice = node.slice_of("by-time", vec![limited(&gpu, 1, 30, 30)]);
    let silent = mps.pipes().join("silent");
    fs::write(&silent, "").unwrap();
    wait::until_true("memory is seen while the manager waits for the daemon", || {
        let pid: Option<u32> = fs::read_to_string(&silent).unwrap().trim().parse().ok();
        let is_asked = || pid.is_some_and(|pid| Path::new("/proc").join(pid.to_string()).exists());
        if !is_asked() {
            return false;
        }
        let mut command = HostProgram::linked(&gpu, "hold").on(&gpu);
        command.arg(MIB.to_string()).env("CUDA_VISIBLE_DEVICES", gpu.uuid(1));
        let mut process = Process::start(slice.preload_into(&mut command));
        process.wait_for("held");
        let overhead_bytes = || node.client().usage("by-time").unwrap().parts[0].memory_overhead_bytes;
        let mut seen = false;
        while is_asked() && !seen {
            seen = overhead_bytes() > 0;
        }
        let _ = process.kill();
        wait::until_true("its memory is given back", || overhead_bytes() == 0);
        seen
    });
}

#[test]
fn a_new_limit_is_for_new_processes_and_is_told_so() {
    let gpu = SimulatedGpu::new();
    let (mps, cdi) = (Mps::new(), tempfile::tempdir().unwrap());
    let node = Node::with(&gpu, &format!("cdi_dir = {:?}\n{}", cdi.path(), mps.settings(Some(&gpu.uuid(0)))));
    let slice = node.slice_of("resized", vec![limited(&gpu, 0, 30, 30)]);
    let resize = |request: u32, limit: u32| {
        let part = Part { core_request_percent: request, core_limit_percent: limit, ..Part::default() };
        let request = ResizeSliceRequest { name: "resized".into(), parts: vec![part], ..ResizeSliceRequest::default() };
        node.client().resize(request).unwrap()
    };
    assert_eq!(resize(30, 40).warnings, Vec::<String>::new());
    let _process = slice.busy(&gpu);
    wait::until_true("the manager knows it", || node.client().usage("resized").unwrap().processes.len() == 1);
    let resized = resize(30, 50);
    assert!(resized.warnings.iter().any(|warning| warning.contains("keep the share that they have")), "{resized:?}");
    assert!(resized.environment.contains(&"CUDA_MPS_ACTIVE_THREAD_PERCENTAGE=50".to_owned()));
    let spec = fs::read_to_string(cdi.path().join("aliquot.dev-slice-resized.json")).unwrap();
    assert!(spec.contains("CUDA_MPS_ACTIVE_THREAD_PERCENTAGE=50"), "{spec}");
    assert_eq!(percent(&mps.pipes().join("percent")), "50.0");
    // The control daemon's percentage falls with the limit.
    let _ = resize(20, 20);
    wait::until_true("the ceiling falls", || percent(&mps.pipes().join("percent")) == "20.0");
}

#[test]
fn a_resize_that_containers_cannot_be_told_of_changes_nothing() {
    let gpu = SimulatedGpu::new();
    let (mps, cdi) = (Mps::new(), tempfile::tempdir().unwrap());
    let mut node = Node::with(&gpu, &format!("cdi_dir = {:?}\n{}", cdi.path(), mps.settings(Some(&gpu.uuid(0)))));
    let slice = node.slice_of("kept", vec![limited(&gpu, 0, 30, 30)]);
    let resize = |node: &Node| {
        let part = Part { core_request_percent: 60, ..Part::default() };
        let request = ResizeSliceRequest { name: "kept".into(), parts: vec![part], ..ResizeSliceRequest::default() };
        node.client().resize(request)
    };
    // A directory in the file's place makes the manager's write fail.
    let spec = cdi.path().join("aliquot.dev-slice-kept.json");
    fs::remove_file(&spec).unwrap();
    fs::create_dir(&spec).unwrap();
    assert!(resize(&node).unwrap_err().message().contains("cannot change the CDI specification"));
    let request = |node: &Node| node.client().slices().unwrap()[0].parts[0].core_request_percent;
    let given = |node: &Node| node.client().node().unwrap().devices[0].core_requested_percent;
    assert_eq!((request(&node), given(&node)), (30, 30));
    assert_eq!(slice.limits().devices[0].core_request_percent.load(Ordering::Relaxed), 30);
    fs::remove_dir(&spec).unwrap();
    node.kill();
    node.restart();
    assert_eq!((request(&node), given(&node)), (30, 30));
    assert_eq!(slice.limits().devices[0].core_request_percent.load(Ordering::Relaxed), 30);
    let _ = resize(&node).unwrap();
    assert_eq!((request(&node), given(&node)), (60, 60));
}

#[test]
fn without_a_control_daemon_a_slice_s_priority_can_be_changed() {
    let gpu = SimulatedGpu::new();
    let mps = Mps::new();
    let node = Node::with(&gpu, &format!("cdi_dir = 'off'\n{}", mps.settings(Some(&gpu.uuid(0)))));
    let _slice = node.slice_of("changed", vec![limited(&gpu, 0, 30, 30)]);
    mps.stop_daemon();
    let request = ResizeSliceRequest {
        name: "changed".into(),
        priority_class: PriorityClass::Batch.into(),
        ..ResizeSliceRequest::default()
    };
    assert_eq!(node.client().resize(request).unwrap().priority_class(), PriorityClass::Batch);
}

#[test]
fn a_command_that_is_run_in_a_slice_is_a_client() {
    let gpu = SimulatedGpu::new();
    let mps = Mps::new();
    let node = Node::with(&gpu, &format!("cdi_dir = 'off'\n{}", mps.settings(Some(&gpu.uuid(0)))));
    let shown = aliquot(&node, &["run", "--gpu-core", "35", "--gpu-memory", "64MiB", "--", "env"]);
    let pipes = format!("CUDA_MPS_PIPE_DIRECTORY={}", mps.pipes().display());
    for entry in ["CUDA_MPS_ACTIVE_THREAD_PERCENTAGE=35", &pipes] {
        assert!(shown.lines().any(|line| line == entry), "{entry}: {shown}");
    }
}

#[test]
fn a_slice_is_shared_by_mps_on_all_its_devices_or_on_none() {
    let gpu = SimulatedGpu::with("[[device]]\n[[device]]\n[[device]]\n");
    let mps = Mps::new();
    let node = Node::with(&gpu, &format!("cdi_dir = 'off'\n{}", mps.settings(Some(&gpu.uuid(1)))));
    let modes: Vec<_> = node.client().node().unwrap().devices.iter().map(|device| device.sharing()).collect();
    assert_eq!(modes, [SharingMode::Time, SharingMode::Mps, SharingMode::Time]);
    let parts = [0, 1].map(|device| limited(&gpu, device, 10, 10)).to_vec();
    let refused = node.client().create(CreateSliceRequest { parts, ..CreateSliceRequest::default() }).unwrap_err();
    assert_eq!(refused.code(), Code::FailedPrecondition);
    assert!(refused.message().contains(&gpu.uuid(1)), "{}", refused.message());
    // If the manager chooses the second device, it takes one that is shared as the first is.
    let any = Part { core_request_percent: 10, memory_limit_bytes: GIB, ..Part::default() };
    let pair = node.slice_of("pair", vec![limited(&gpu, 0, 10, 10), any]);
    assert_eq!(pair.description().parts[1].device_uuid, gpu.uuid(2));
    assert!(pair.description().environment.is_empty());
}

#[test]
fn clients_of_mps_are_seen_though_nvml_lists_them_apart() {
    for entries in ["", "long_process_entries = true\n"] {
        let gpu = SimulatedGpu::with(&format!("mps_clients = true\n{entries}"));
        let node = Node::start(&gpu);
        let slice = node.slice("clients", 30, GIB);
        let hold = || {
            let mut command = HostProgram::linked(&gpu, "hold").on(&gpu);
            command.arg(MIB.to_string());
            command
        };
        let mut client = Process::start(slice.preload_into(&mut hold()));
        let mut outsider = Process::start(&mut hold());
        client.wait_for("held");
        outsider.wait_for("held");
        // The memory that the driver lists of the client beyond its allocations: its context.
        wait::until_true("the client's context shows", || {
            node.client().usage("clients").unwrap().parts[0].memory_used_bytes > 512 * MIB
        });
        wait::until_true("the other process is found", || {
            node.client().findings().unwrap().findings.iter().any(|finding| finding.pid == outsider.id())
        });
    }
}

#[test]
fn beside_an_unconfigured_mps_server_leases_go_on_with_a_warning() {
    let gpu = SimulatedGpu::new();
    let mps = Mps::new();
    let node = Node::with(&gpu, &format!("cdi_dir = 'off'\n{}", mps.settings(None)));
    let slice = node.slice("leased", 30, GIB);
    assert_eq!(slice.description().environment, Vec::<String>::new());
    let _server = mps.start_server(&gpu);
    let _busy = slice.busy(&gpu);
    wait::until_true("the server is seen", || node.client().node().unwrap().devices[0].has_mps_server);
    let leases = || node.client().usage("leased").unwrap().parts[0].leases;
    let before = leases();
    wait::until_true("leases go on", || leases() > before + 10);
    let word = slice.limits().devices[0].gate.load(Ordering::Relaxed);
    assert!(word & (gate::OPEN | gate::FREE) != gate::OPEN | gate::FREE, "the gate is open for good");
    assert!(node.client().usage("leased").unwrap().parts[0].throttled_ns > 0);
    assert!(aliquot(&node, &["nodes"]).contains("healthy, beside an MPS server"));
    let described = aliquot(&node, &["describe", "leased"]);
    assert!(described.contains("an MPS server serves device") && described.contains("mode = \"mps\""), "{described}");
    // The manager does not change an MPS that it was not configured to use.
    assert_eq!(percent(&mps.pipes().join("percent")), "100.0");
}
