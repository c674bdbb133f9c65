//! A container has one share, whichever process, stream or function launches.

use aliquot_harness::{GIB, HostProgram, Node, Process, Shares, SimulatedGpu, Slice};

use crate::{alone_on_the_machine, at_work, busy, go, ready};

#[test]
fn four_processes_have_one_limit() {
    let _alone = alone_on_the_machine();
    // A switch between two processes of a slice takes that slice's time, but counts as no process's work. Four busy
    // processes switch at every time slice of the device, which would be a tenth of the slice's time.
    let gpu = SimulatedGpu::with("context_switch_us = 0");
    let node = Node::start(&gpu);
    let slice = node.slice("four", 50, 8 * GIB);
    let processes = [300_000, 300_000, 1_000_000, 5_000_000].map(|kernel_ns| busy(&gpu, &slice, kernel_ns));
    let pids = processes.each_ref().map(|process| process.id());
    Shares::of(&gpu).exactly(50, &pids).assert_kept();
}

#[test]
fn four_streams_and_graphs_of_a_hundred_kernels_are_charged_in_full() {
    let _alone = alone_on_the_machine();
    let gpu = SimulatedGpu::new();
    let node = Node::start(&gpu);
    let slices = [node.slice("streams", 30, 8 * GIB), node.slice("graphs", 70, GIB)];
    let streams = ready(&gpu, &slices[0], &["streams=4", "kernels=300000"]);
    let graphs = ready(&gpu, &slices[1], &["graph=100", "kernels=50000"]);
    go(&streams);
    go(&graphs);
    Shares::of(&gpu).exactly(30, &[streams.id()]).exactly(70, &[graphs.id()]).assert_kept();
}

/// A marker behind one stream's kernel says nothing of another stream's, which may end before or long after it.
#[test]
fn streams_whose_kernels_overlap_are_charged_once() {
    let _alone = alone_on_the_machine();
    let gpu = SimulatedGpu::with("concurrent_kernels = 8");
    let node = Node::start(&gpu);
    let slices = [node.slice("short", 30, 8 * GIB), node.slice("long", 70, GIB)];
    let short = ready(&gpu, &slices[0], &["streams=4", "kernels=300000"]);
    let long = ready(&gpu, &slices[1], &["streams=8", "kernels=5000000"]);
    go(&short);
    go(&long);
    Shares::of(&gpu).exactly(30, &[short.id()]).exactly(70, &[long.id()]).assert_kept();
}

#[test]
fn contexts_default_streams_of_threads_and_cooperative_kernels_are_charged_in_full() {
    let _alone = alone_on_the_machine();
    let gpu = SimulatedGpu::new();
    let node = Node::start(&gpu);
    let ways = [("contexts", 20), ("per-thread", 30), ("cooperative", 50)];
    let slices = ways.map(|(way, percent)| node.slice(way, percent, 8 * GIB));
    let processes = slices.each_ref().map(|slice| at_work(&gpu, slice, "busy_ways", &[slice.name()]));
    let shares = Shares::of(&gpu);
    let shares = ways
        .iter()
        .zip(&processes)
        .fold(shares, |shares, (&(_, percent), process)| shares.exactly(percent, &[process.id()]));
    shares.assert_kept();
}

/// With this variable, which PyTorch's users know from debugging, a kernel runs while the launch is being made.
#[test]
fn launches_that_block_until_the_kernel_has_ended_are_charged_in_full() {
    let _alone = alone_on_the_machine();
    let gpu = SimulatedGpu::new();
    let node = Node::start(&gpu);
    let start = |slice: &Slice, kernels: &str| {
        let mut command = HostProgram::linked(&gpu, "load").on(&gpu);
        command.arg(kernels).env("CUDA_LAUNCH_BLOCKING", "1");
        let mut process = Process::start(slice.preload_into(&mut command));
        process.wait_for("ready\n");
        go(&process);
        process
    };
    let slices = [node.slice("long", 10, 8 * GIB), node.slice("mixed", 30, 8 * GIB)];
    let long = start(&slices[0], "kernels=5000000");
    // Among short kernels a rare long one must be seen, too.
    let mixed = start(&slices[1], "kernels=20000,20000,20000,20000,20000,8000000");
    Shares::of(&gpu).exactly(10, &[long.id()]).exactly(30, &[mixed.id()]).assert_kept();
}
