//! MIG: an instance of a GPU is a device of its own, with its own memory and its own time.

use std::fs;
use std::process::Command;
use std::time::{Duration, Instant};

use aliquot_harness::{GIB, HostProgram, MIB, Node, Process, SimulatedGpu, Slice, artifacts, run, wait};
use aliquot_proto::node::v1::{CreateSliceRequest, Device, FindingKind, Part};
use tonic::Code;

/// The longest time over which shares are judged.
const WINDOW_MAX: Duration = Duration::from_secs(5);
/// The indices of the machine's devices: the GPU first, then its instances.
const GPU: usize = 0;
const LARGE: usize = 1;
const SMALL: usize = 2;

/// A GPU in MIG mode with two instances, whose contexts take 6 MiB each.
fn partitioned() -> SimulatedGpu {
    SimulatedGpu::with(
        "context_memory = '6MiB'\nallocation_block = '512B'\n[[device]]\nmemory = '80GiB'\nmig = [\
         { profile = '3g.40gb', memory = '40GiB', sm_count = 60 }, \
         { profile = '1g.10gb', memory = '10GiB', sm_count = 16 }]\n",
    )
}

fn part(gpu: &SimulatedGpu, device: usize, core_percent: u32, memory_limit_bytes: u64) -> Part {
    let device_uuid = gpu.uuid(device);
    Part { device_uuid, core_request_percent: core_percent, memory_limit_bytes, ..Part::default() }
}

/// The program `name` in the slice, which has one device.
fn program(gpu: &SimulatedGpu, slice: &Slice, name: &str, arguments: &[&str]) -> Command {
    let mut command = HostProgram::linked(gpu, name).on(gpu);
    command.args(arguments).env("CUDA_VISIBLE_DEVICES", &slice.description().parts[0].device_uuid);
    slice.preload_into(&mut command);
    command
}

fn devices(node: &Node) -> Vec<Device> {
    node.client().node().unwrap().devices
}

#[test]
fn the_instances_are_devices_with_their_own_memory_and_profile() {
    let gpu = partitioned();
    let node = Node::start(&gpu);
    let found = devices(&node);
    let told = |device: &Device| {
        let Device { uuid, memory_bytes, mig_enabled, mig_gpu_uuid, mig_profile, .. } = device.clone();
        (uuid, memory_bytes / GIB, mig_enabled, mig_gpu_uuid, mig_profile)
    };
    let parent = gpu.uuid(GPU);
    assert_eq!(
        found.iter().map(told).collect::<Vec<_>>(),
        [
            (parent.clone(), 80, true, String::new(), String::new()),
            (gpu.uuid(LARGE), 40, false, parent.clone(), "3g.40gb".to_owned()),
            (gpu.uuid(SMALL), 10, false, parent, "1g.10gb".to_owned()),
        ]
    );
    assert!(gpu.uuid(LARGE).starts_with("MIG-") && found.iter().all(|device| device.health_reason.is_empty()));
    let mut nodes = Command::new(artifacts::cli());
    let shown = run(nodes.arg("--socket").arg(node.socket()).arg("nodes")).success();
    assert!(shown.stdout.contains("healthy, partitioned by MIG") && shown.stdout.contains("MIG 1g.10gb"), "{shown:?}");
}

#[test]
fn a_slice_is_made_on_an_instance_and_never_on_the_gpu_itself() {
    let gpu = partitioned();
    let node = Node::start(&gpu);
    let request = |part| CreateSliceRequest { parts: vec![part], ..CreateSliceRequest::default() };
    let refused = node.client().create(request(part(&gpu, GPU, 50, GIB))).unwrap_err();
    assert_eq!(refused.code(), Code::FailedPrecondition);
    assert!(refused.message().contains("partitioned by MIG; use one of its instances"), "{}", refused.message());
    // The default is half of the instance's memory, not of the GPU's.
    let half = node.slice_of("half", vec![part(&gpu, SMALL, 50, 0)]);
    assert_eq!(half.description().parts[0].memory_limit_bytes, 5 * GIB);
    // If the request names no device, the manager takes the one with the least room that is enough.
    let any = node.slice("any", 60, GIB);
    assert_eq!(any.description().parts[0].device_uuid, gpu.uuid(LARGE));
}

#[test]
fn programs_and_containers_are_told_the_instance_by_its_uuid() {
    let gpu = partitioned();
    let cdi = tempfile::tempdir().unwrap();
    let node = Node::with(&gpu, &format!("cdi_dir = {:?}\n", cdi.path()));
    let slice = node.slice_of("told", vec![part(&gpu, SMALL, 50, GIB)]);
    let spec = fs::read_to_string(cdi.path().join("aliquot.dev-slice-told.json")).unwrap();
    for variable in ["CUDA_VISIBLE_DEVICES", "ALIQUOT_DEVICES"] {
        assert!(spec.contains(&format!("{variable}={}", gpu.uuid(SMALL))), "{spec}");
    }
    let seen = run(&mut program(&gpu, &slice, "devices", &[])).success();
    assert!(seen.stdout.starts_with("device 0: total 1073741824, "), "{seen:?}");
    assert_eq!(seen.stdout.lines().count(), 1, "{seen:?}");
    let mut aliquot = Command::new(artifacts::cli());
    gpu.show_to(&mut aliquot).env("ALIQUOT_SOCKET", node.socket());
    let uuid = gpu.uuid(LARGE);
    aliquot.args(["run", "--gpu-core", "30", "--gpu-memory", "64MiB", "--device", &uuid, "--"]);
    let outcome = run(aliquot.arg(HostProgram::linked(&gpu, "devices").path())).success();
    assert!(outcome.stdout.starts_with("device 0: total 67108864, "), "{outcome:?}");
    assert_eq!(outcome.stdout.lines().count(), 1, "{outcome:?}");
}

#[test]
fn a_gpu_that_does_not_tell_its_instances_still_has_them() {
    let gpu = partitioned();
    let node = Node::start(&gpu);
    let _slice = node.slice_of("kept", vec![part(&gpu, LARGE, 50, GIB)]);
    let reasons = || devices(&node).into_iter().map(|device| device.health_reason).collect::<Vec<_>>();
    gpu.machine().set_mig_silent(GPU, true);
    let ill = wait::until("they are unhealthy", || {
        Some(reasons()).filter(|reasons| reasons.iter().all(|why| !why.is_empty()))
    });
    assert!(ill.len() == 3 && ill[LARGE].contains("does not tell its MIG instances"), "{ill:?}");
    let listed = devices(&node);
    assert!(listed[GPU].mig_enabled && listed[LARGE].mig_gpu_uuid == gpu.uuid(GPU), "{listed:?}");
    gpu.machine().set_mig_silent(GPU, false);
    wait::until_true("they are healthy again", || reasons().iter().all(String::is_empty));
    assert_eq!(devices(&node).len(), 3);
}

#[test]
fn two_instances_of_a_gpu_share_no_time() {
    let gpu = partitioned();
    let node = Node::start(&gpu);
    let slices = [(LARGE, "large"), (SMALL, "small")]
        .map(|(device, name)| node.slice_of(name, vec![part(&gpu, device, 80, GIB)]));
    let _busy = slices.each_ref().map(|slice| slice.busy(&gpu));
    let used_ns = || [LARGE, SMALL].map(|device| gpu.machine().device_use(device).busy_ns);
    let (mut begun, mut before) = (Instant::now(), used_ns());
    // On a single device, both together could not use more than 100 % of the time.
    wait::until_true("both are at work at the same time, and neither beyond its limit", || {
        // A window that began while the machine was busy is given up.
        if begun.elapsed() > WINDOW_MAX {
            (begun, before) = (Instant::now(), used_ns());
        }
        // In this order, so that the window is no shorter than the use measured in it.
        let (after, elapsed_ns) = (used_ns(), begun.elapsed().as_nanos() as u64);
        let used = [0, 1].map(|instance| after[instance] - before[instance]);
        elapsed_ns > 1_000_000_000
            && used.iter().sum::<u64>() * 100 > elapsed_ns * 120
            && used.iter().all(|used_ns| used_ns * 100 < elapsed_ns * 95)
    });
}

#[test]
fn use_of_an_instance_is_known_without_the_drivers_samples() {
    let gpu = partitioned();
    let node = Node::start(&gpu);
    // The slice is alone and unlimited: on a whole GPU, its use would come from the driver's samples.
    let slice = node.slice_of("whole", vec![part(&gpu, LARGE, 100, GIB)]);
    let _process = slice.busy(&gpu);
    let usage = || node.client().usage("whole").unwrap();
    wait::until_true("its share is told", || usage().parts[0].core_used_1s_millipercent > 50_000);
    wait::until_true("so is what its context takes", || usage().parts[0].memory_overhead_bytes == 6 * MIB);
    assert_eq!(usage().processes.len(), 1);
    let (charged_ns, used_ns) = (|| usage().parts[0].core_used_ns, || gpu.machine().device_use(LARGE).busy_ns);
    // A lease is charged by the clock, also while a busy machine keeps the holder from using it.
    wait::until_true("it is charged for what it uses", || {
        // In this order, so that the window of the charge lies within the window of the use.
        let (used_before_ns, charged_before_ns) = (used_ns(), charged_ns());
        wait::until_true("it works on", || used_ns() > used_before_ns + 500_000_000);
        let (charged_ns, used_ns) = (charged_ns() - charged_before_ns, used_ns() - used_before_ns);
        (used_ns / 2..=used_ns + used_ns / 10 + 50_000_000).contains(&charged_ns)
    });
}

#[test]
fn a_program_on_another_instance_than_its_slice_s_is_found() {
    let gpu = partitioned();
    let node = Node::start(&gpu);
    let request = CreateSliceRequest {
        name: "watched".into(),
        parts: vec![part(&gpu, LARGE, 50, GIB)],
        // All processes that this test starts belong to the slice.
        owner_pid: std::process::id(),
        ..CreateSliceRequest::default()
    };
    let slice = Slice::open(node.client().create(request).unwrap());
    let mut honest = Process::start(&mut program(&gpu, &slice, "hold", &["4096"]));
    honest.wait_for("held");
    let mut stranger = HostProgram::linked(&gpu, "hold").on(&gpu);
    let mut stranger = Process::start(stranger.arg("4096").env("CUDA_VISIBLE_DEVICES", gpu.uuid(SMALL)));
    stranger.wait_for("held");
    let found = wait::until("it is found", || node.client().findings().unwrap().findings.into_iter().next());
    assert_eq!((found.pid, found.kind()), (stranger.id(), FindingKind::ForeignDevice), "{found:?}");
    assert_eq!((found.device_uuid, found.slice), (gpu.uuid(SMALL), "watched".to_owned()));
    assert_eq!(node.client().findings().unwrap().findings.len(), 1);
}

#[test]
fn a_change_of_the_mode_is_seen_while_the_manager_runs() {
    let gpu = partitioned();
    let node = Node::start(&gpu);
    let problem = |name: &str| {
        let slices = node.client().slices().unwrap();
        slices.into_iter().find(|slice| slice.name == name).unwrap().problem
    };
    let _on_instance = node.slice_of("on-instance", vec![part(&gpu, SMALL, 50, GIB)]);
    assert_eq!(problem("on-instance"), "");

    gpu.machine().set_mig_mode(GPU, false);
    wait::until_true("the instances are gone", || devices(&node).len() == 1);
    assert!(!devices(&node)[0].mig_enabled);
    assert!(problem("on-instance").contains("is not there any more"), "{}", problem("on-instance"));
    let request = |part| CreateSliceRequest { parts: vec![part], ..CreateSliceRequest::default() };
    let refused = node.client().create(request(part(&gpu, SMALL, 1, MIB))).unwrap_err();
    assert_eq!(refused.code(), Code::NotFound, "{refused:?}");
    let _on_gpu = node.slice_of("on-gpu", vec![part(&gpu, GPU, 50, GIB)]);
    assert_eq!(problem("on-gpu"), "");

    gpu.machine().set_mig_mode(GPU, true);
    wait::until_true("the instances are back", || devices(&node).len() == 3);
    assert!(problem("on-gpu").contains("was partitioned by MIG"), "{}", problem("on-gpu"));
    assert_eq!(problem("on-instance"), "");
}
