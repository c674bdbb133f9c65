//! A manager with a low limit on open files.

use std::fs;

use aliquot_harness::artifacts;
use tonic::Code;

use crate::killed::Process;
use crate::node::{GIB, Node, eventually, part, refused};
use crate::tenant::Tenant;

const LIMIT: usize = 72;
/// More processes than the limit on descriptors.
const TENANTS: u64 = 80;
const HELD_BYTES: u64 = 1 << 20;

fn open_files(process: &Process) -> usize {
    fs::read_dir(format!("/proc/{}/fd", process.id())).unwrap().count()
}

#[test]
fn a_process_that_cannot_be_watched_stays_charged_until_it_ends() {
    let nvml = artifacts::fake_nvml();
    let node = Node::prepare();
    let machine = node.config.runtime_dir.with_file_name("machine.toml");
    let state = machine.with_file_name("machine.state");
    fs::write(&machine, format!("state = {state:?}\n[[device]]\nmemory = \"16GiB\"\n")).unwrap();
    let process = Process::start_with_files(&node, nvml, &machine, Some(LIMIT));
    let slice = node.create("a", vec![part(10, GIB)]).unwrap();
    let mut tenants: Vec<Tenant> = (0..TENANTS)
        .map(|_| {
            let mut tenant = Tenant::start(&slice.region_path);
            assert_eq!(tenant.tell(&format!("reserve {HELD_BYTES}")), "Ok(())");
            tenant
        })
        .collect();
    let used = || node.usage("a").parts[0].memory_used_bytes;
    assert_eq!(used(), TENANTS * HELD_BYTES);
    assert!(open_files(&process) < LIMIT, "no descriptor is left");
    // Another slice could not be watched. It is refused, and the message says what to do.
    for hint in ["LimitNOFILE=", "ulimit -Hn", &format!("(RLIMIT_NOFILE) is {LIMIT}")] {
        refused(node.create("b", vec![part(10, GIB)]), Code::ResourceExhausted, hint);
    }
    assert_eq!(node.regions().len(), 1);
    // The manager never heard of the last process. It finds its end, and sees that the others are alive.
    for left in (TENANTS - 3..TENANTS).rev() {
        drop(tenants.pop());
        eventually("what it held is given back", || (used() <= left * HELD_BYTES).then_some(()));
        assert_eq!(used(), left * HELD_BYTES);
    }
    // Once descriptors are free again, the processes that were not watched are.
    tenants.truncate(8);
    eventually("what the others held is given back", || (used() <= 8 * HELD_BYTES).then_some(()));
    assert_eq!(used(), 8 * HELD_BYTES);
    eventually("all that are left are watched", || (node.get("a").unwrap().processes == 8).then_some(()));
    drop(tenants);
    eventually("nothing stays charged", || (used() == 0).then_some(()));
    node.remove("a", false).unwrap();
    node.create("b", vec![part(10, GIB)]).unwrap();
}

#[test]
fn slices_are_refused_before_descriptors_run_out_and_the_others_work() {
    let nvml = artifacts::fake_nvml();
    let node = Node::prepare();
    let machine = node.config.runtime_dir.with_file_name("machine.toml");
    let state = machine.with_file_name("machine.state");
    fs::write(&machine, format!("state = {state:?}\n[[device]]\nmemory = \"80GiB\"\n")).unwrap();
    let mut process = Process::start_with_files(&node, nvml, &machine, Some(256));
    let mut made = Vec::new();
    let status = loop {
        match node.create(&format!("s{}", made.len()), vec![part(1, GIB)]) {
            Ok(slice) => made.push(slice),
            Err(status) => break status,
        }
    };
    assert_eq!(status.code(), Code::ResourceExhausted, "{status}");
    assert!(made.len() >= 8, "{}", made.len());
    // Eight processes of each slice are watched at the same time.
    let mut tenants: Vec<Tenant> =
        made.iter().flat_map(|slice| (0..8).map(|_| Tenant::start(&slice.region_path))).collect();
    eventually("all are watched", || node.list().iter().all(|slice| slice.processes == 8).then_some(()));
    tenants.iter_mut().for_each(|tenant| assert_eq!(tenant.tell("reserve 1000"), "Ok(())"));
    // The next manager has the same limit, and takes over everything.
    process.kill();
    let _process = Process::start_with_files(&node, nvml, &machine, Some(256));
    for slice in node.list() {
        assert_eq!((slice.processes, slice.problem.as_str()), (8, ""), "{}", slice.name);
    }
}
