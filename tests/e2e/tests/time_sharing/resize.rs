//! A slice's limits are changed while its programs run.

use aliquot_harness::{GIB, HostProgram, MIB, Node, Process, Shares, SimulatedGpu};
use aliquot_proto::node::v1::{Part, ResizeSliceRequest};

use crate::{alone_on_the_machine, busy, part};

fn resize(node: &Node, name: &str, part: Part) {
    let request = ResizeSliceRequest { name: name.into(), parts: vec![part], ..Default::default() };
    node.client().resize(request).unwrap();
}

#[test]
fn shares_that_are_changed_hold_while_programs_run() {
    let _alone = alone_on_the_machine();
    let gpu = SimulatedGpu::new();
    let node = Node::start(&gpu);
    let slices = [node.slice("first", 30, 8 * GIB), node.slice("second", 70, GIB)];
    let (first, second) = (busy(&gpu, &slices[0], 500_000), busy(&gpu, &slices[1], 500_000));
    Shares::of(&gpu).exactly(30, &[first.id()]).exactly(70, &[second.id()]).assert_kept();
    resize(&node, "second", part(20, 20));
    resize(&node, "first", part(60, 60));
    Shares::of(&gpu).exactly(60, &[first.id()]).exactly(20, &[second.id()]).assert_kept();
    // The guarantee stays, the limit changes.
    resize(&node, "second", part(20, 40));
    Shares::of(&gpu).exactly(60, &[first.id()]).exactly(40, &[second.id()]).assert_kept();
}

#[test]
fn a_memory_limit_that_is_changed_holds_in_programs_that_run() {
    let gpu = SimulatedGpu::exact();
    let node = Node::start(&gpu);
    let slice = node.slice("changing", 20, 64 * MIB);
    let requests = tempfile::tempdir().expect("a directory");
    let mut command = HostProgram::linked(&gpu, "on_request").on(&gpu);
    let mut process = Process::start(slice.preload_into(command.arg(requests.path())));
    let mut number = 0;
    let mut asks = |mebibytes: u32, expected: &str| {
        number += 1;
        // By a rename, because the program reads the file as soon as it exists.
        let written = requests.path().join("next");
        std::fs::write(&written, mebibytes.to_string()).expect("the request");
        std::fs::rename(&written, requests.path().join(number.to_string())).expect("the request");
        process.wait_for(&format!("done {number}\n"));
        let answer = process.output();
        assert!(answer.contains(&format!("request {number}: {expected}\n")), "{answer}");
    };
    let memory = |mebibytes: u64| Part { memory_limit_bytes: mebibytes * MIB, ..Part::default() };
    asks(48, "0, free 16");
    asks(32, "2, free 16");
    resize(&node, "changing", memory(96));
    asks(32, "0, free 16");
    // Less than the program holds: nothing is taken away, and nothing more is granted.
    resize(&node, "changing", memory(40));
    asks(1, "2, free 0");
    resize(&node, "changing", memory(100));
    asks(20, "0, free 0");
}
