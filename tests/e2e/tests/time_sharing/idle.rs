//! Other containers may use the time that one leaves, until it wants it again.

use aliquot_harness::{Node, Shares, SimulatedGpu};

use crate::{alone_on_the_machine, busy, go, part, ready};

#[test]
fn unused_time_may_be_used_up_to_the_limit() {
    let _alone = alone_on_the_machine();
    let gpu = SimulatedGpu::new();
    let node = Node::start(&gpu);
    let bursting = node.slice_of("bursting", vec![part(20, 60)]);
    let other = node.slice_of("other", vec![part(80, 80)]);
    let first = busy(&gpu, &bursting, 500_000);
    let second = ready(&gpu, &other, &["kernels=500000"]);
    Shares::of(&gpu).exactly(60, &[first.id()]).assert_kept();
    go(&second);
    // If the second process uses less, as on a busy machine, the first may use the rest.
    Shares::of(&gpu).between(20..=60, &[first.id()]).exactly(80, &[second.id()]).assert_kept();
}

#[test]
fn beside_a_pausing_container_the_device_is_used_and_shares_return() {
    let _alone = alone_on_the_machine();
    let gpu = SimulatedGpu::new();
    let node = Node::start(&gpu);
    let slices = [node.slice_of("pausing", vec![part(50, 100)]), node.slice_of("steady", vec![part(50, 100)])];
    let pausing = ready(&gpu, &slices[0], &["kernels=500000", "on_ms=100", "off_ms=100"]);
    let steady = busy(&gpu, &slices[1], 500_000);
    go(&pausing);
    // The pausing process wants the device half of the time, and gets half of the device then. No time stays unused.
    let both = [pausing.id(), steady.id()];
    Shares::of(&gpu).between(25..=50, &both[..1]).between(97..=100, &both).assert_kept();
}
