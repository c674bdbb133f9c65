//! Who answers requests goes before who works through a batch.

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

/// A request finds one of three at work with a kernel of 20 ms, and goes next. After all of them it would be at least
/// twice as long.
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
        // By the device's clock: a machine that is slow delays the batches as well. But if it is only the requests that
        // it keeps from running, the batches have the device meanwhile.
        let meanwhile_ns = (used_ns() - before_ns) / REQUESTS;
        let found = format!("from a request's end to the next one's the device works for {meanwhile_ns} ns");
        if meanwhile_ns < 45_000_000 { Ok(found) } else { Err(found) }
    });
}
