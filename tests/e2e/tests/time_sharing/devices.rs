//! Containers with several devices each.

use aliquot_harness::{Node, SimulatedGpu, wait};
use aliquot_proto::node::v1::Part;

use crate::{alone_on_the_machine, at_work, part};

/// The number of rounds that a program of collective kernels reports.
fn rounds(output: &str) -> u64 {
    let last = output.lines().rev().find_map(|line| line.strip_suffix(" rounds"));
    last.map_or(0, |number| number.parse().expect("a number of rounds"))
}

/// In each container a kernel on one device waits for a kernel on the other. If different containers had the two
/// devices, no kernel would ever end.
#[test]
fn kernels_that_wait_for_each_other_on_two_devices_make_progress() {
    let _alone = alone_on_the_machine();
    let gpu = SimulatedGpu::with("[[device]]\n[[device]]\n");
    let node = Node::start(&gpu);
    let both =
        |percent: u32| [0, 1].map(|device| Part { device_uuid: gpu.uuid(device), ..part(percent, percent) }).to_vec();
    let slices = [node.slice_of("first", both(50)), node.slice_of("second", both(50))];
    let processes = slices.each_ref().map(|slice| at_work(&gpu, slice, "collective", &["200000", "500000"]));
    for process in &processes {
        let before = rounds(&process.output());
        wait::until_true("a container makes progress", || rounds(&process.output()) >= before + 100);
    }
}
