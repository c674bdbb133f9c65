//! Latency-critical slices get the device before batch slices.

use aliquot_harness::{HostProgram, Node, Process, SimulatedGpu, Slice, wait};
use aliquot_proto::node::v1::{CreateSliceRequest, PriorityClass};

use crate::{alone_on_the_machine, busy, go, part};

fn slice(node: &Node, name: &str, core_percent: u32, class: PriorityClass) -> Slice {
    let request = CreateSliceRequest {
        name: name.into(),
        parts: vec![part(core_percent, 100)],
        priority_class: class.into(),
        ..CreateSliceRequest::default()
    };
    Slice::open(node.client().create(request).unwrap())
}

/// When a request comes, one of three batches runs a kernel of 20 ms. The request is next after that kernel. After all
/// three batches it would wait at least twice as long.
#[test]
fn requests_wait_for_one_kernel_of_a_batch_and_not_for_their_turn() {
    const REQUESTS: u64 = 60;
    let _alone = alone_on_the_machine();
    let gpu = SimulatedGpu::new();
    let node = Node::start(&gpu);
    let service = slice(&node, "service", 25, PriorityClass::LatencyCritical);
    let batches = ["one", "two", "three"].map(|name| slice(&node, name, 25, PriorityClass::Batch));
    let _at_work = batches.each_ref().map(|batch| busy(&gpu, batch, 20_000_000));
    let mut command = HostProgram::linked(&gpu, "requests").on(&gpu);
    command.args([&REQUESTS.to_string(), "1000000", "2000", "1"]);
    service.preload_into(&mut command);
    let used_ns = || gpu.machine().device_use(0).busy_ns;
    wait::in_one_of_a_few(|| {
        let mut process = Process::start(&mut command);
        process.wait_for("ready\n");
        let before_ns = used_ns();
        go(&process);
        let _ = process.wait().success();
        // Measured in device time, because a slow machine delays the batches too. If it delays only the requests, the
        // batches use the device meanwhile, so more attempts are allowed.
        let meanwhile_ns = (used_ns() - before_ns) / REQUESTS;
        let found = format!("from a request's end to the next one's the device works for {meanwhile_ns} ns");
        if meanwhile_ns < 45_000_000 { Ok(found) } else { Err(found) }
    });
}
