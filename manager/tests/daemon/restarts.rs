//! A manager that ends, and the next one that takes over.

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::sync::atomic::Ordering;

use aliquot_abi::ledger::{BYTES_MASK, MANAGER_PID, OPERATION};
use aliquot_abi::region::{gate, owner};
use aliquot_proto::node::v1::WaitHistogram;
use tonic::Code;

use crate::node::{GIB, Node, eventually, part, refused};
use crate::tenant::{Tenant, ledger, limits};

#[test]
fn slices_processes_and_books_are_the_same_after_a_restart() {
    let mut node = Node::start();
    let slice = node.create("a", vec![part(30, GIB)]).unwrap();
    let mut tenant = Tenant::start(&slice.region_path);
    tenant.tell("reserve 1000");
    eventually("the process is attached", || (node.get("a").unwrap().processes == 1).then_some(()));
    let before = node.get("a").unwrap();
    node.stop();
    // The limits hold without a manager.
    assert!(tenant.tell(&format!("reserve {GIB}")).starts_with("Err"));
    node.restart().unwrap();
    // At once: a new manager finds the processes before it serves.
    assert_eq!(node.get("a").unwrap(), before);
    assert_eq!(node.usage("a").processes[0].pid, tenant.pid());
    assert_eq!(node.usage("a").parts[0].memory_used_bytes, 1000);
    tenant.kill();
    eventually("what it held is free", || (node.usage("a").parts[0].memory_used_bytes == 0).then_some(()));
    // The socket is a new one with the same path.
    let mut tenant = Tenant::start(&slice.region_path);
    eventually("another process is attached", || (node.get("a").unwrap().processes == 1).then_some(()));
    tenant.tell("wait");
    tenant.tell("ring");
    let gate = &limits(Path::new(&slice.region_path)).devices[0].gate;
    eventually("the gate opens", || (gate.load(Ordering::Relaxed) & gate::OPEN != 0).then_some(()));
}

#[test]
fn waits_for_leases_are_counted_by_length_and_outlive_the_manager() {
    let mut node = Node::start();
    let slice = node.create("a", vec![part(30, GIB)]).unwrap();
    let mut tenant = Tenant::start(&slice.region_path);
    let waits = |node: &Node| node.usage("a").parts.remove(0).lease_waits.unwrap();
    assert_eq!(waits(&node).counts, [0; 14]);
    tenant.tell("wait");
    tenant.tell("ring");
    let counted =
        eventually("its wait is counted", || Some(waits(&node)).filter(|waits| waits.counts.iter().sum::<u64>() > 0));
    assert_eq!(counted.bounds_ns.len() + 1, counted.counts.len());
    assert!(counted.longest_ns <= counted.total_ns, "{counted:?}");
    assert!(node.usage("a").parts[0].leases > 0);
    tenant.kill();
    eventually("its end is seen", || (node.get("a").unwrap().processes == 0).then_some(()));
    node.restart().unwrap();
    let after = waits(&node);
    let count = |waits: &WaitHistogram| waits.counts.iter().sum::<u64>();
    assert!(count(&after) >= count(&counted) && after.total_ns >= counted.total_ns, "{counted:?}, then {after:?}");
    let of_part = format!("{{slice=\"a\",device=\"{}\"}}", slice.parts[0].device_uuid);
    let metric =
        |name: &str| crate::metrics::value(&node, &format!("aliquot_slice_lease_wait_seconds_{name}{of_part}"));
    assert_eq!((metric("count"), metric("sum")), (count(&after) as f64, after.total_ns as f64 / 1e9));
}

#[test]
fn processes_that_ended_without_a_manager_are_reclaimed_before_the_next_one_serves() {
    let mut node = Node::start();
    let slice = node.create("a", vec![part(30, GIB)]).unwrap();
    let mut tenant = Tenant::start(&slice.region_path);
    tenant.tell("reserve 1000");
    node.stop();
    drop(tenant);
    node.restart().unwrap();
    assert_eq!(node.get("a").unwrap().processes, 0);
    assert_eq!(ledger(Path::new(&slice.region_path)).devices[0].used.load(Ordering::Acquire) & BYTES_MASK, 0);
    eventually("its memory is free", || (node.usage("a").parts[0].memory_used_bytes == 0).then_some(()));
}

#[test]
fn a_reclaim_that_a_kill_interrupted_is_finished_by_the_next_manager() {
    let mut node = Node::start();
    let slice = node.create("a", vec![part(30, GIB)]).unwrap();
    // The word of the slot, and whether the account has been changed already.
    for (word, is_subtracted) in [(1000, false), (OPERATION, false), (OPERATION, true), (0, true)] {
        let mut tenant = Tenant::start(&slice.region_path);
        tenant.tell("reserve 1000");
        eventually("the process is attached", || (node.get("a").unwrap().processes == 1).then_some(()));
        node.stop();
        let (index, generation) = (tenant.slot.index, tenant.slot.generation);
        drop(tenant);
        let ledger = ledger(Path::new(&slice.region_path));
        ledger.owners[index].store(owner::word(owner::RECLAIMING, generation, MANAGER_PID), Ordering::Release);
        ledger.slots[index].devices[0].memory.store(word, Ordering::Release);
        if is_subtracted {
            ledger.devices[0].used.fetch_sub(1000, Ordering::AcqRel);
        }
        node.restart().unwrap();
        assert_eq!(node.usage("a").parts[0].memory_used_bytes, 0, "{word:#x} {is_subtracted}");
        assert_eq!(owner::state(ledger.owners[index].load(Ordering::Acquire)), owner::FREE);
    }
}

#[test]
fn after_a_reboot_slices_are_made_again_with_the_same_ids() {
    let mut node = Node::start();
    let before = node.create("a", vec![part(30, GIB)]).unwrap();
    node.stop();
    fs::remove_dir_all(&node.config.runtime_dir).unwrap();
    let text = fs::read_to_string(node.checkpoint()).unwrap();
    let mut checkpoint: serde_json::Value = serde_json::from_str(&text).unwrap();
    checkpoint["boot_id"] = "another".into();
    fs::write(node.checkpoint(), checkpoint.to_string()).unwrap();
    node.restart().unwrap();
    assert_eq!(node.get("a").unwrap(), before);
    assert!(Path::new(&before.shim_path).exists());
}

/// Turns the region in `path` into one of an older manager, which only an unguessable name protected. Returns its
/// directory.
fn make_open(path: &str) -> &Path {
    let region = Path::new(path);
    let around = region.parent().unwrap();
    for file in fs::read_dir(region).unwrap().map(Result::unwrap) {
        fs::rename(file.path(), around.join(file.file_name())).unwrap();
    }
    fs::remove_dir(region).unwrap();
    fs::set_permissions(around, Permissions::from_mode(0o755)).unwrap();
    around
}

#[test]
fn an_open_region_is_made_anew_once_it_is_unused() {
    let mut node = Node::start();
    let slice = node.create("old", vec![part(30, GIB)]).unwrap();
    node.stop();
    let region = Path::new(&slice.region_path);
    let around = make_open(&slice.region_path);
    let tenant = Tenant::silent(around.to_str().unwrap());
    node.restart().unwrap();
    let problem = node.get("old").unwrap().problem;
    assert!(problem.contains("open to every user") && problem.contains(&tenant.pid().to_string()), "{problem}");
    assert_eq!(fs::metadata(around).unwrap().permissions().mode() & 0o777, 0o700);
    drop(tenant);
    node.restart().unwrap();
    assert_eq!(node.get("old").unwrap(), slice);
    assert!(region.join("limits").exists() && !around.join("limits").exists());
}

/// What this manager cannot write to its processes' limits must not be in its books either.
#[test]
fn a_slice_in_use_that_cannot_be_taken_over_gives_nothing_twice() {
    let mut node = Node::start();
    let slice = node.create("old", vec![part(60, GIB)]).unwrap();
    node.stop();
    let around = make_open(&slice.region_path);
    let tenant = Tenant::silent(around.to_str().unwrap());
    let limit_percent = &limits(around).devices[0].core_limit_percent;
    let before = limit_percent.load(Ordering::Relaxed);
    node.restart().unwrap();
    refused(
        node.resize("old", vec![part(10, GIB)]),
        Code::FailedPrecondition,
        &format!("(the first: {}): end them", tenant.pid()),
    );
    assert_eq!(node.get("old").unwrap().parts, slice.parts);
    assert_eq!(limit_percent.load(Ordering::Relaxed), before);
    node.remove("old", true).unwrap();
    assert_eq!(limit_percent.load(Ordering::Relaxed), 0);
}

/// A slice can be removed by force while processes use it.
#[test]
fn a_removal_that_a_kill_interrupted_leaves_nothing_in_use() {
    for is_retired in [false, true] {
        let mut node = Node::start();
        let slice = node.create("a", vec![part(60, GIB)]).unwrap();
        let mut tenant = Tenant::start(&slice.region_path);
        let region = Path::new(&slice.region_path);
        let limits = limits(region);
        node.stop();
        let text = fs::read_to_string(node.checkpoint()).unwrap();
        fs::write(node.checkpoint(), text.replace("\"ready\"", "\"removing\"")).unwrap();
        if is_retired {
            let around = region.parent().unwrap();
            fs::rename(around, around.with_file_name(format!(".old-{}", slice.id))).unwrap();
        }
        node.restart().unwrap();
        assert!(node.list().is_empty() && node.regions().is_empty());
        assert_eq!(limits.devices[0].core_limit_percent.load(Ordering::Relaxed), 0, "retired: {is_retired}");
        assert!(tenant.tell("reserve 1000").starts_with("Err"));
    }
}

#[test]
fn unfinished_slices_are_removed() {
    let mut node = Node::start();
    node.create("kept", vec![part(30, GIB)]).unwrap();
    node.create("begun", vec![part(30, GIB)]).unwrap();
    node.stop();
    let text = fs::read_to_string(node.checkpoint()).unwrap();
    for phase in ["making", "removing"] {
        let mut checkpoint: serde_json::Value = serde_json::from_str(&text).unwrap();
        let begun =
            checkpoint["slices"].as_array_mut().unwrap().iter_mut().find(|slice| slice["name"] == "begun").unwrap();
        begun["phase"] = phase.into();
        fs::write(node.checkpoint(), checkpoint.to_string()).unwrap();
        node.restart().unwrap();
        assert_eq!(node.list().iter().map(|slice| slice.name.as_str()).collect::<Vec<_>>(), ["kept"]);
        assert!(node.regions().len() == 1 && node.cdi_file("kept").exists() && !node.cdi_file("begun").exists());
        node.create("begun", vec![part(30, GIB)]).unwrap();
        node.stop();
    }
}

#[test]
fn a_manager_without_state_leaves_no_slices() {
    let mut node = Node::prepare();
    node.config.state_dir = None;
    node.restart().unwrap();
    node.create("a", vec![part(30, GIB)]).unwrap();
    node.stop();
    assert!(node.regions().is_empty() && !node.cdi_file("a").exists() && !node.config.socket.exists());
    node.restart().unwrap();
    assert!(node.list().is_empty());
}
