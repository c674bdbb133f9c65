//! Use beyond a share, because a running kernel cannot be stopped, is made up for. Unused time is not saved up.

use std::thread;
use std::time::{Duration, Instant};

use aliquot_harness::{GIB, Node, Shares, SimulatedGpu, wait};

use crate::{alone_on_the_machine, busy, go, ready};

#[test]
fn a_kernel_that_is_longer_than_any_lease_is_made_up_for() {
    let _alone = alone_on_the_machine();
    let gpu = SimulatedGpu::new();
    let node = Node::start(&gpu);
    let slice = node.slice("huge", 20, 8 * GIB);
    let process = ready(&gpu, &slice, &["kernels=200000000", "sync=1"]);
    let used_ns = || gpu.machine().device_use(0).busy_ns;
    let mut before_ns = used_ns();
    go(&process);
    wait::in_one_of_a_few(|| {
        let start = Instant::now();
        wait::until_true("the third kernel is at work", || used_ns() > before_ns + 410_000_000);
        // The two kernels before took 400 ms, which is the container's share of 2 s.
        before_ns += 400_000_000;
        let found = format!("the third kernel began after {:?}", start.elapsed());
        if start.elapsed() > Duration::from_millis(1900) { Ok(found) } else { Err(found) }
    });
}

/// Many launches of small kernels share one marker. A long kernel among them must be noticed before the program waits
/// for it.
#[test]
fn a_long_kernel_behind_small_ones_is_made_up_for() {
    let _alone = alone_on_the_machine();
    for way in ["poll=0", "poll=1"] {
        let gpu = SimulatedGpu::new();
        let node = Node::start(&gpu);
        let slice = node.slice("tail", 20, 8 * GIB);
        let process = ready(&gpu, &slice, &["kernels=10000", "sync=61", "last_ns=50000000", way]);
        go(&process);
        Shares::of(&gpu).exactly(20, &[process.id()]).assert_kept();
    }
}

#[test]
fn beside_huge_kernels_the_others_have_their_share() {
    let _alone = alone_on_the_machine();
    let gpu = SimulatedGpu::new();
    let node = Node::start(&gpu);
    let slices = [node.slice("huge", 40, 8 * GIB), node.slice("small", 60, GIB)];
    let huge = ready(&gpu, &slices[0], &["kernels=80000000"]);
    go(&huge);
    let small = busy(&gpu, &slices[1], 500_000);
    Shares::of(&gpu).exactly(40, &[huge.id()]).exactly(60, &[small.id()]).assert_kept();
}

#[test]
fn idle_time_is_not_saved_up() {
    let _alone = alone_on_the_machine();
    let gpu = SimulatedGpu::new();
    let node = Node::start(&gpu);
    let slice = node.slice("rested", 20, 8 * GIB);
    wait::in_one_of_a_few(|| {
        let process = ready(&gpu, &slice, &["kernels=1000000"]);
        // The share of one second would be 200 ms.
        thread::sleep(Duration::from_secs(1));
        let before_ns = gpu.machine().device_use(0).busy_ns;
        let start = Instant::now();
        go(&process);
        wait::until_true("150 ms are used", || gpu.machine().device_use(0).busy_ns > before_ns + 150_000_000);
        let found = format!("150 ms of the device's time in {:?}", start.elapsed());
        if start.elapsed() > Duration::from_millis(600) { Ok(found) } else { Err(found) }
    });
}
