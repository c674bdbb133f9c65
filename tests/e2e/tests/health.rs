//! A device becomes unhealthy while slices are on it, and recovers.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::process::Command;
use std::sync::mpsc::{self, RecvTimeoutError};
use std::thread;
use std::time::Duration;

use aliquot_harness::{GIB, Node, SimulatedGpu, artifacts, run, wait};
use aliquot_proto::node::v1::{CreateSliceRequest, Device, DeviceHealth, Part};
use tonic::Code;

fn device(node: &Node, index: usize) -> Device {
    node.client().node().expect("the manager answers").devices.swap_remove(index)
}

/// Waits until the manager reports a device as unhealthy for a reason with `words`.
fn wait_until_ill(node: &Node, index: usize, words: &str) {
    wait::until_true(&format!("device {index} is unhealthy: {words}"), || {
        let device = device(node, index);
        device.health() == DeviceHealth::Unhealthy && device.health_reason.contains(words)
    });
}

fn wait_until_well(node: &Node, index: usize) {
    wait::until_true(&format!("device {index} is well"), || device(node, index).health() == DeviceHealth::Healthy);
}

/// Runs `work` while the driver reports critical errors of a device repeatedly, so that it does not recover.
fn while_failing(gpu: &SimulatedGpu, index: usize, xid: u32, work: impl FnOnce()) {
    thread::scope(|scope| {
        let (end, ended) = mpsc::channel::<()>();
        scope.spawn(move || {
            while ended.recv_timeout(Duration::from_millis(500)) == Err(RecvTimeoutError::Timeout) {
                gpu.machine().report_xid(index, xid);
            }
        });
        work();
        drop(end);
    });
}

fn part_of(gpu: &SimulatedGpu, index: usize) -> Part {
    let device_uuid = gpu.uuid(index);
    Part { device_uuid, core_request_percent: 20, memory_limit_bytes: GIB, ..Part::default() }
}

/// Fails the test unless a slice of this device is refused with `words`.
#[track_caller]
fn assert_refused(gpu: &SimulatedGpu, node: &Node, index: usize, words: &str) {
    let request = CreateSliceRequest { parts: vec![part_of(gpu, index)], ..CreateSliceRequest::default() };
    let refused = node.client().create(request).unwrap_err();
    assert_eq!(refused.code(), Code::FailedPrecondition, "{refused:?}");
    let says = ["is unhealthy", words, "use another device, or this one when it has recovered"];
    assert!(says.iter().all(|words| refused.message().contains(words)), "{}", refused.message());
}

/// Waits until a device has worked for a tenth of a second more.
fn wait_for_work(gpu: &SimulatedGpu, index: usize) {
    let used_ns = || gpu.machine().device_use(index).busy_ns;
    let before_ns = used_ns();
    wait::until_true("it works on", || used_ns() > before_ns + 100_000_000);
}

fn aliquot(node: &Node, arguments: &[&str]) -> String {
    let mut command = Command::new(artifacts::cli());
    run(command.env("ALIQUOT_SOCKET", node.socket()).args(arguments)).success().stdout
}

/// The address of a manager's metrics, from its log.
fn metrics_address(node: &Node) -> SocketAddr {
    let log = node.log();
    let (_, address) = log.split_once("serving metrics address=").unwrap_or_else(|| panic!("no address:\n{log}"));
    let (address, _) = address.split_once('\n').expect("a whole line");
    address.parse().expect("an address")
}

/// Whether metrics say that a device is healthy.
fn is_well_in_metrics(gpu: &SimulatedGpu, address: SocketAddr, index: usize) -> bool {
    let mut text = String::new();
    let mut stream = TcpStream::connect(address).expect("metrics are served");
    stream
        .write_all(b"GET /metrics HTTP/1.0\r\n\r\n")
        .and_then(|()| stream.read_to_string(&mut text))
        .expect("metrics");
    let of_device = |line: &&str| line.starts_with("aliquot_device_healthy{") && line.contains(&gpu.uuid(index));
    let line = text.lines().find(of_device).unwrap_or_else(|| panic!("nothing of the device's health:\n{text}"));
    line.ends_with(" 1")
}

#[test]
fn a_device_with_a_critical_error_gets_nothing_new_until_it_has_been_well_for_a_while() {
    let gpu = SimulatedGpu::with("[[device]]\n[[device]]\n");
    let node = Node::with(&gpu, "cdi_dir = 'off'\nmetrics_address = '127.0.0.1:0'\n");
    let address = metrics_address(&node);
    let slice = node.slice_of("before", vec![part_of(&gpu, 0)]);
    let mut process = slice.busy(&gpu);
    assert!(is_well_in_metrics(&gpu, address, 0));

    while_failing(&gpu, 0, 48, || {
        wait_until_ill(&node, 0, "critical error XID 48");
        assert_refused(&gpu, &node, 0, "XID 48");
        assert!(aliquot(&node, &["nodes"]).contains("unhealthy: the driver reported the critical error XID 48"));
        assert!(!is_well_in_metrics(&gpu, address, 0) && is_well_in_metrics(&gpu, address, 1));
        // A slice on any device goes to the healthy one.
        let elsewhere = node.slice("elsewhere", 10, GIB);
        assert_eq!(elsewhere.description().parts[0].device_uuid, gpu.uuid(1));
        // The earlier slice continues, and its description names the fault.
        wait_for_work(&gpu, 0);
        assert!(!process.has_ended());
        let problem = aliquot(&node, &["describe", "before"]);
        assert!(problem.contains("is unhealthy: the driver reported the critical error XID 48"), "{problem}");
        assert!(!aliquot(&node, &["describe", "elsewhere"]).contains("unhealthy"));
    });

    wait_until_well(&node, 0);
    assert!(is_well_in_metrics(&gpu, address, 0));
    assert!(!aliquot(&node, &["describe", "before"]).contains("unhealthy"));
    let _after = node.slice_of("after", vec![part_of(&gpu, 0)]);
    wait_for_work(&gpu, 0);
}

#[test]
fn errors_of_programs_make_no_device_ill() {
    let gpu = SimulatedGpu::with("[[device]]\n[[device]]\n");
    let node = Node::start(&gpu);
    for xid in [13, 31, 43, 45] {
        gpu.machine().report_xid(0, xid);
        wait::until_true("the manager has heard of it", || node.log().contains(&format!("xid={xid}")));
    }
    // One look covers both devices, so the first device's state here is at least as recent as the second's.
    while_failing(&gpu, 1, 79, || wait_until_ill(&node, 1, "XID 79"));
    assert_eq!(device(&node, 0).health(), DeviceHealth::Healthy);
}

#[test]
fn a_device_that_is_lost_loses_no_slice_and_is_used_again_when_it_is_back() {
    let gpu = SimulatedGpu::with("[[device]]\n[[device]]\n");
    let node = Node::start(&gpu);
    let lost = node.slice_of("lost", vec![part_of(&gpu, 0)]);
    let other = node.slice_of("other", vec![part_of(&gpu, 1)]);
    let mut process = other.busy(&gpu);
    let before = lost.description().clone();

    gpu.machine().set_lost(0, true);
    wait_until_ill(&node, 0, "the device does not answer: device fell off the bus");
    assert_refused(&gpu, &node, 0, "fell off the bus");
    assert_eq!(node.client().slices().unwrap().len(), 2);
    // Neither the neighbour's work nor its reported health is affected.
    wait_for_work(&gpu, 1);
    assert!(!process.has_ended());
    assert_eq!(device(&node, 1).health(), DeviceHealth::Healthy);

    gpu.machine().set_lost(0, false);
    wait_until_well(&node, 0);
    let slices = node.client().slices().unwrap();
    let after = slices.into_iter().find(|slice| slice.name == "lost").unwrap();
    assert_eq!((after.id, after.parts), (before.id, before.parts));
    let _process = lost.busy(&gpu);
    wait_for_work(&gpu, 0);
    let _new = node.slice_of("new", vec![part_of(&gpu, 0)]);
    // The manager receives the device's events again.
    while_failing(&gpu, 0, 48, || wait_until_ill(&node, 0, "XID 48"));
}

#[test]
fn a_device_that_has_never_answered_is_told_once_and_used_when_it_does() {
    let gpu = SimulatedGpu::with("[[device]]\n[[device]]\n");
    gpu.machine().set_lost(1, true);
    let node = Node::start(&gpu);
    gpu.machine().report_xid(0, 13);
    wait::until_true("the manager has looked again", || node.log().contains("xid=13"));
    let log = node.log();
    assert_eq!(log.matches("a device has not answered yet").count(), 1, "{log}");
    assert!(log.contains("device=\"GPU 1\" why=\"device fell off the bus"), "{log}");
    assert_eq!(node.client().node().unwrap().devices.len(), 1);
    gpu.machine().set_lost(1, false);
    wait::until_true("the device is there", || node.client().node().unwrap().devices.len() == 2);
}

/// R470 and older drivers do not have the function that tells a device's memory without the driver's own.
#[test]
fn a_driver_that_is_too_old_is_named() {
    let gpu = SimulatedGpu::with("driver_version = '470.82.01'\n");
    gpu.hide_nvml_function("nvmlDeviceGetMemoryInfo_v2");
    let node = Node::start(&gpu);
    let told = node.client().node().unwrap();
    assert_eq!(told.problem, "the driver 470.82.01 is too old: Aliquot needs R510 (CUDA 11.6) or later");
    assert!(node.log().contains(&told.problem), "{}", node.log());
    let doctor = run(gpu.show_to(Command::new(artifacts::cli()).env("ALIQUOT_SOCKET", node.socket()).arg("doctor")));
    for words in ["driver 470.82.01 is too old", "R510"] {
        assert!(doctor.stdout.contains(words), "{words:?}: {doctor:?}");
    }
    assert!(!doctor.stdout.contains("xid"), "{doctor:?}");
}

#[test]
fn a_device_that_the_driver_wants_reset_gets_nothing_new_until_it_was() {
    const RESET: u32 = 1;
    let gpu = SimulatedGpu::with("[[device]]\n[[device]]\n");
    let node = Node::start(&gpu);
    let slice = node.slice_of("before", vec![part_of(&gpu, 0)]);
    let mut process = slice.busy(&gpu);
    gpu.machine().set_recovery_action(0, RESET);
    gpu.machine().report_xid(0, 95);
    wait_until_ill(
        &node,
        0,
        "the driver wants a reset of the GPU (nvidia-smi --gpu-reset), after the critical error XID 95",
    );
    assert_refused(&gpu, &node, 0, "wants a reset");
    wait_for_work(&gpu, 0);
    assert!(!process.has_ended());
    // Also without an error, and only the device that the driver names.
    gpu.machine().set_recovery_action(1, RESET);
    wait_until_ill(&node, 1, "the driver wants a reset of the GPU");
    gpu.machine().set_recovery_action(1, 0);
    wait_until_well(&node, 1);
    assert_eq!(device(&node, 0).health(), DeviceHealth::Unhealthy);
}

#[test]
fn an_error_of_one_mig_instance_leaves_the_others_alone() {
    const GPU: usize = 0;
    const LARGE: usize = 1;
    const SMALL: usize = 2;
    let gpu = SimulatedGpu::with(
        "[[device]]\nmig = [{ profile = '3g.40gb', memory = '40GiB', sm_count = 60 }, \
         { profile = '1g.10gb', memory = '10GiB', sm_count = 16 }]\n",
    );
    let node = Node::start(&gpu);
    while_failing(&gpu, SMALL, 94, || {
        wait_until_ill(&node, SMALL, "XID 94");
        let _on_large = node.slice_of("on-large", vec![part_of(&gpu, LARGE)]);
        assert_refused(&gpu, &node, SMALL, "XID 94");
    });
    while_failing(&gpu, GPU, 48, || [LARGE, GPU].iter().for_each(|index| wait_until_ill(&node, *index, "XID 48")));
    gpu.machine().set_lost(GPU, true);
    for index in [SMALL, LARGE, GPU] {
        wait_until_ill(&node, index, "fell off the bus");
    }
    assert_eq!(node.client().node().unwrap().devices.len(), 3);
}

#[test]
fn doctor_in_a_manager_s_pod_tells_what_the_manager_sees() {
    let gpu = SimulatedGpu::with("[[device]]\n[[device]]\n");
    let node = Node::start(&gpu);
    let doctor = || {
        // Only the manager has the driver's libraries there.
        let mut command = Command::new(artifacts::cli());
        command.env("ALIQUOT_SOCKET", node.socket()).env("KUBERNETES_SERVICE_HOST", "10.96.0.1").arg("doctor");
        run(&mut command)
    };
    let well = doctor();
    for words in ["GPU 0", "GPU 1", "healthy", "as the manager sees it", "2 devices"] {
        assert!(well.stdout.contains(words), "nothing of {words:?}: {well:?}");
    }
    for words in ["no NVIDIA GPU", "none by NVIDIA", "podman", "docker"] {
        assert!(!well.stdout.contains(words), "{words:?}: {well:?}");
    }
    gpu.machine().set_lost(1, true);
    wait_until_ill(&node, 1, "fell off the bus");
    let ill = doctor();
    assert_eq!(ill.status.code(), Some(1), "{ill:?}");
    assert!(ill.stdout.contains("GPU 1 health"), "{ill:?}");
    assert!(ill.stdout.contains("fell off the bus"), "{ill:?}");
}
