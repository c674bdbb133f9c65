//! A damaged or lost checkpoint, and left-over files.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering;

use aliquot_proto::node::v1 as proto;
use tonic::Code;

use crate::node::{GIB, Node, eventually, part, refused};
use crate::tenant::{Tenant, ledger};

/// The checkpoint and its copy.
fn files(node: &Node) -> [PathBuf; 2] {
    [node.checkpoint(), node.checkpoint().with_file_name("checkpoint.copy.json")]
}

/// The manifest of the slice `id`, beside its region.
fn manifest(node: &Node, id: &str) -> PathBuf {
    node.config.runtime_dir.join("slices").join(id).join("slice.json")
}

/// Damages or removes a file.
type Harm = fn(&Path);

const HARMS: [Harm; 4] = [
    |path| fs::write(path, "").unwrap(),
    |path| fs::write(path, [0; 512]).unwrap(),
    |path| {
        let text = fs::read(path).unwrap();
        fs::write(path, &text[..text.len() / 2]).unwrap();
    },
    // The file may be gone already.
    |path| drop(fs::remove_file(path)),
];

/// A node with a slice of 90 percent in which a process holds memory, and an idle slice with every optional setting.
fn busy_node() -> (Node, Tenant, Vec<proto::Slice>) {
    let node = Node::start();
    let busy = node.create("busy", vec![part(90, 40 * GIB)]).unwrap();
    node.create_by(proto::CreateSliceRequest {
        name: "idle".into(),
        parts: vec![part(20, GIB)],
        host_memory_limit_bytes: 3 * GIB,
        priority_class: proto::PriorityClass::Batch.into(),
        description: "for a test".into(),
        ..proto::CreateSliceRequest::default()
    })
    .unwrap();
    // The changed values count, not those at the creation.
    node.resize("idle", vec![part(30, 2 * GIB)]).unwrap();
    let mut tenant = Tenant::start(&busy.region_path);
    assert_eq!(tenant.tell("reserve 1000"), "Ok(())");
    eventually("the process is attached", || (node.get("busy").unwrap().processes == 1).then_some(()));
    let slices = node.list();
    (node, tenant, slices)
}

#[test]
fn a_damaged_checkpoint_is_restored_from_its_copy() {
    let (mut node, tenant, slices) = busy_node();
    for harm in HARMS {
        node.stop();
        harm(&files(&node)[0]);
        node.restart().unwrap();
        assert_eq!(node.list(), slices);
        assert_eq!(node.usage("busy").processes[0].pid, tenant.pid());
    }
    // After a reboot there are no regions to recover from.
    drop(tenant);
    for harm in HARMS {
        node.stop();
        fs::remove_dir_all(&node.config.runtime_dir).unwrap();
        harm(&files(&node)[0]);
        node.restart().unwrap();
        assert_eq!(
            node.list().iter().map(|slice| &slice.id).collect::<Vec<_>>(),
            ["busy", "idle"].map(|name| { &slices.iter().find(|slice| slice.name == name).unwrap().id })
        );
    }
}

#[test]
fn slices_are_recovered_from_their_regions() {
    let (mut node, mut tenant, slices) = busy_node();
    for harm in HARMS {
        node.stop();
        files(&node).iter().for_each(|file| harm(file));
        node.restart().unwrap();
        assert_eq!(node.list(), slices);
        assert_eq!(node.usage("busy").parts[0].memory_used_bytes, 1000);
        assert!(node.cdi_file("busy").exists() && node.cdi_file("idle").exists());
        // Nothing that the slices hold is given out again.
        refused(node.create("third", vec![part(90, 40 * GIB)]), Code::ResourceExhausted, "percent");
    }
    assert_eq!(tenant.tell("reserve 1000"), "Ok(())");
    tenant.kill();
    eventually("what it held is free", || (node.usage("busy").parts[0].memory_used_bytes == 0).then_some(()));
    // The unreadable checkpoint is kept for inspection.
    assert!(node.checkpoint().with_file_name("checkpoint.damaged.json").exists());
}

#[test]
fn a_region_without_manifest_is_recovered_from_its_limits() {
    let (mut node, tenant, slices) = busy_node();
    node.stop();
    for slice in &slices {
        fs::remove_file(manifest(&node, &slice.id)).unwrap();
    }
    files(&node).iter().for_each(|file| fs::remove_file(file).unwrap());
    node.restart().unwrap();
    let found = node.list();
    for before in &slices {
        let after = found.iter().find(|slice| slice.id == before.id).unwrap();
        assert_eq!((&after.parts, after.problem.as_str()), (&before.parts, ""));
        assert_eq!(after.host_memory_limit_bytes, before.host_memory_limit_bytes);
        assert_eq!(after.name, format!("recovered-{:.8}", before.id));
    }
    assert_eq!(found.iter().map(|slice| slice.processes).sum::<u32>(), 1);
    drop(tenant);
}

/// A region's limits do not tell whether a device is a GPU or a MIG instance.
#[test]
fn a_mig_instance_keeps_its_name_while_the_driver_is_silent() {
    let mut node = Node::start();
    let slice = node.create("a", vec![part(30, GIB)]).unwrap();
    node.stop();
    let (gpu, manifest) = (slice.parts[0].device_uuid.as_str(), manifest(&node, &slice.id));
    let instance = gpu.replace("GPU-", "MIG-");
    let text = fs::read_to_string(&manifest).unwrap();
    assert!(text.contains(gpu), "{text}");
    fs::write(&manifest, text.replace(gpu, &instance)).unwrap();
    files(&node).iter().for_each(|file| fs::remove_file(file).unwrap());
    node.driver.is_silent.store(true, Ordering::Relaxed);
    node.restart().unwrap();
    let found = node.get("a").unwrap();
    assert_eq!((&*found.parts[0].device_uuid, &*found.problem), (&*instance, ""));
}

#[test]
fn a_region_in_use_is_a_slice_whatever_the_checkpoint_says() {
    let mut node = Node::start();
    node.create("first", vec![part(10, GIB)]).unwrap();
    let before = fs::read(node.checkpoint()).unwrap();
    let used = node.create("used", vec![part(60, GIB)]).unwrap();
    let unused = node.create("unused", vec![part(60, GIB)]).unwrap();
    let mut tenant = Tenant::start(&used.region_path);
    assert_eq!(tenant.tell("reserve 1000"), "Ok(())");
    node.stop();
    // An older checkpoint is put back.
    fs::write(node.checkpoint(), before).unwrap();
    node.restart().unwrap();
    let names: Vec<String> = node.list().into_iter().map(|slice| slice.name).collect();
    assert_eq!(names, ["first", "used"]);
    assert_eq!(node.usage("used").parts[0].memory_used_bytes, 1000);
    assert!(!Path::new(&unused.region_path).exists() && !node.cdi_file("unused").exists());
    drop(tenant);
    eventually("its process has ended", || (node.get("used").unwrap().processes == 0).then_some(()));
    node.remove("used", false).unwrap();
}

#[test]
fn a_region_in_use_that_cannot_be_understood_stays() {
    let mut node = Node::start();
    let slice = node.create("a", vec![part(60, GIB)]).unwrap();
    let tenant = Tenant::start(&slice.region_path);
    node.stop();
    let region = Path::new(&slice.region_path);
    fs::remove_file(manifest(&node, &slice.id)).unwrap();
    fs::remove_file(region.join("limits")).unwrap();
    files(&node).iter().for_each(|file| fs::remove_file(file).unwrap());
    node.restart().unwrap();
    assert!(node.list().is_empty() && region.exists());
    node.stop();
    drop(tenant);
    node.restart().unwrap();
    assert!(!region.exists());
}

#[test]
fn without_a_checkpoint_regions_of_another_boot_are_made_anew() {
    let mut node = Node::start();
    let slice = node.create("a", vec![part(30, GIB)]).unwrap();
    node.stop();
    let manifest = manifest(&node, &slice.id);
    let mut value: serde_json::Value = serde_json::from_slice(&fs::read(&manifest).unwrap()).unwrap();
    value["boot_id"] = "another".into();
    fs::write(&manifest, value.to_string()).unwrap();
    ledger(Path::new(&slice.region_path)).devices[0].used.store(1000, Ordering::Relaxed);
    files(&node).iter().for_each(|file| fs::remove_file(file).unwrap());
    node.restart().unwrap();
    assert_eq!(node.list(), [slice]);
    assert_eq!(node.usage("a").parts[0].memory_used_bytes, 0);
}

#[test]
fn an_owner_s_slice_does_not_outlive_a_lost_checkpoint() {
    let mut node = Node::start();
    let mut child =
        std::process::Command::new("sleep").arg("1000").stdout(std::process::Stdio::null()).spawn().unwrap();
    let request = proto::CreateSliceRequest {
        name: "owned".into(),
        parts: vec![part(10, GIB)],
        owner_pid: child.id(),
        ..proto::CreateSliceRequest::default()
    };
    node.create_by(request).unwrap();
    node.stop();
    files(&node).iter().for_each(|file| fs::remove_file(file).unwrap());
    node.restart().unwrap();
    assert_eq!(node.list().len(), 1);
    child.kill().unwrap();
    child.wait().unwrap();
    eventually("the slice is gone", || node.list().is_empty().then_some(()));
}

#[test]
fn specifications_of_former_slices_are_removed() {
    let mut node = Node::start();
    node.create("kept", vec![part(10, GIB)]).unwrap();
    node.stop();
    let of_kept = fs::read_to_string(node.cdi_file("kept")).unwrap();
    fs::write(node.cdi_file("stale"), &of_kept).unwrap();
    // The specification of another manager, and a file that is not a specification.
    let regions = node.config.runtime_dir.join("slices").display().to_string();
    fs::write(node.cdi_file("foreign"), of_kept.replace(&regions, "/run/other/slices")).unwrap();
    fs::write(node.cdi_file("odd"), "{}").unwrap();
    node.restart().unwrap();
    let is_there = ["kept", "stale", "foreign", "odd"].map(|name| node.cdi_file(name).exists());
    assert_eq!(is_there, [true, false, true, true]);
}
