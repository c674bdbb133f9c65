//! Each slice gets the share that it requested, whatever its kernels and its device are like.

use std::fs;
use std::os::unix::fs::symlink;

use aliquot_harness::{GIB, HostProgram, Node, Process, Shares, SimulatedGpu, artifacts};
use aliquot_proto::node::v1::Part;

use crate::{alone_on_the_machine, busy, go, part, ready};

#[test]
fn two_busy_containers_get_their_requested_shares() {
    let _alone = alone_on_the_machine();
    let gpu = SimulatedGpu::new();
    let node = Node::start(&gpu);
    let (small, large) = (node.slice("small", 30, 8 * GIB), node.slice("large", 70, GIB));
    let (first, second) = (busy(&gpu, &small, 500_000), busy(&gpu, &large, 500_000));
    Shares::of(&gpu).exactly(30, &[first.id()]).exactly(70, &[second.id()]).assert_kept();
}

#[test]
fn neither_the_length_nor_the_blocks_of_kernels_matter() {
    let _alone = alone_on_the_machine();
    let gpu = SimulatedGpu::new();
    let node = Node::start(&gpu);
    let slices = [node.slice("short", 30, 8 * GIB), node.slice("long", 70, GIB)];
    let short = ready(&gpu, &slices[0], &["kernels=100000", "blocks=1000000"]);
    let long = ready(&gpu, &slices[1], &["kernels=15000000", "blocks=1"]);
    go(&short);
    go(&long);
    Shares::of(&gpu).exactly(30, &[short.id()]).exactly(70, &[long.id()]).assert_kept();
}

#[test]
fn a_limit_holds_for_a_container_alone() {
    let _alone = alone_on_the_machine();
    let gpu = SimulatedGpu::new();
    let node = Node::start(&gpu);
    let slice = node.slice("alone", 30, 8 * GIB);
    let process = busy(&gpu, &slice, 500_000);
    Shares::of(&gpu).exactly(30, &[process.id()]).assert_kept();
    let usage = node.client().usage("alone").unwrap();
    assert!(usage.parts[0].throttled_ns > 0, "{usage:?}");
}

/// A slice of two very different devices, which its programs see in another order than the machine.
#[test]
fn each_device_has_its_own_limit_whatever_its_size_and_number() {
    let _alone = alone_on_the_machine();
    let gpu = SimulatedGpu::with("[[device]]\nsm_count = 304\n[[device]]\nsm_count = 4\n");
    let node = Node::start(&gpu);
    let parts = [(0, 20), (1, 60)]
        .map(|(device, percent)| Part { device_uuid: gpu.uuid(device), ..part(percent, percent) })
        .to_vec();
    let slice = node.slice_of("both", parts);
    let on = |device: &str| {
        let mut command = HostProgram::linked(&gpu, "busy").on(&gpu);
        command.args(["500000", "0"]).env("CUDA_VISIBLE_DEVICES", device);
        let mut process = Process::start(slice.preload_into(&mut command));
        process.wait_for("busy\n");
        process
    };
    let (large, small) = (on("0"), on("1"));
    Shares::of_device(&gpu, 0).exactly(20, &[large.id()]).assert_kept();
    Shares::of_device(&gpu, 1).exactly(60, &[small.id()]).assert_kept();
}

/// Replaces the machine's NVML by the library `nvml_without_samples`.
fn hide_samples(gpu: &SimulatedGpu) {
    let dir = gpu.library_dir();
    let behind = artifacts::fake_nvml();
    fs::create_dir(dir.join("behind")).expect("a directory");
    symlink(behind, dir.join("behind/libnvidia-ml.so.1")).expect("the library behind");
    let behind = behind.to_str().expect("a path in UTF-8");
    let options = ["-shared", "-fPIC", "-Wl,--no-as-needed,-rpath,$ORIGIN/behind", behind];
    let front = HostProgram::variant("nvml_without_samples", "libnvidia-ml.so.1", &options);
    fs::remove_file(gpu.nvml_library()).expect("the usual one goes");
    fs::copy(front.path(), gpu.nvml_library()).expect("the library in front");
}

#[test]
fn a_limit_holds_where_nvml_has_no_samples_of_processes() {
    let _alone = alone_on_the_machine();
    let gpu = SimulatedGpu::new();
    hide_samples(&gpu);
    let node = Node::start(&gpu);
    let slice = node.slice("unseen", 30, 8 * GIB);
    let process = busy(&gpu, &slice, 500_000);
    Shares::of(&gpu).exactly(30, &[process.id()]).assert_kept();
}
