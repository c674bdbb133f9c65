//! Slices with damaged or deleted files: they get nothing more, every interface reports them, and other slices are not
//! harmed.

use std::fs::{self, OpenOptions};
use std::path::Path;
use std::sync::atomic::Ordering;

use aliquot_abi::region::{LEDGER_FILE, LEDGER_FILE_BYTES, LIMITS_FILE, gate};
use aliquot_harness::delete_at_once;
use aliquot_proto::node::v1 as proto;
use tonic::Code;

use crate::metrics::value;
use crate::node::{GIB, Node, eventually, part, refused};
use crate::tenant::{Tenant, limits};

/// The expected message, and a function that causes it by damaging the region in a directory.
type Harm = (&'static str, fn(&Path));

const HARM: [Harm; 5] = [
    ("the ledger was truncated", |region| {
        OpenOptions::new().write(true).open(region.join(LEDGER_FILE)).unwrap().set_len(0).unwrap();
    }),
    ("the directory of its region was deleted", |region| delete_at_once(region.parent().unwrap())),
    ("the directory of its region was deleted", delete_at_once),
    ("the ledger of its region was deleted", |region| fs::remove_file(region.join(LEDGER_FILE)).unwrap()),
    ("the limits file of its region was deleted", |region| fs::remove_file(region.join(LIMITS_FILE)).unwrap()),
];

fn findings(node: &Node, slice: &str) -> Vec<proto::Finding> {
    let request = proto::ListFindingsRequest { slices: vec![slice.into()] };
    node.runtime.block_on(node.client().list_findings(request)).unwrap().into_inner().findings
}

#[test]
fn a_damaged_slice_gets_nothing_and_is_reported_everywhere() {
    for (expected, harm) in HARM {
        let node = Node::start();
        let slice = node.create("ill", vec![part(30, GIB)]).unwrap();
        let sound = node.create("sound", vec![part(30, GIB)]).unwrap();
        let (limits, sound_limits) = (limits(Path::new(&slice.region_path)), limits(Path::new(&sound.region_path)));
        let metric = |name: &str| value(&node, &format!("aliquot_slice_damaged{{slice=\"{name}\"}}"));
        assert_eq!((metric("ill"), metric("sound")), (0.0, 0.0));
        harm(Path::new(&slice.region_path));
        let problem =
            eventually("it is told", || Some(node.get("ill").unwrap().problem).filter(|problem| !problem.is_empty()));
        assert!(problem.contains(expected) && problem.contains("create it again"), "{problem}");
        assert_eq!(node.usage("ill").problem, problem);
        assert_eq!((metric("ill"), metric("sound")), (1.0, 0.0));
        let finding = eventually("the audit tells of it", || findings(&node, "ill").pop());
        assert_eq!((finding.kind(), finding.pid), (proto::FindingKind::DamagedRegion, 0));
        let audited = format!(
            "aliquot_audit_findings{{slice=\"ill\",device=\"{}\",kind=\"damaged_region\"}}",
            slice.parts[0].device_uuid
        );
        assert_eq!(value(&node, &audited), 1.0);

        let device = &limits.devices[0];
        eventually("everything is taken away", || {
            let left =
                [device.core_limit_percent.load(Ordering::Relaxed), device.gate.load(Ordering::Relaxed) & gate::OPEN];
            (left == [0, 0] && device.memory_limit_bytes.load(Ordering::Relaxed) == 0).then_some(())
        });
        refused(
            node.resize("ill", vec![part(20, GIB)]),
            Code::FailedPrecondition,
            "remove the slice and create it again",
        );
        assert_eq!(device.memory_limit_bytes.load(Ordering::Relaxed), 0);

        assert_eq!(sound_limits.devices[0].memory_limit_bytes.load(Ordering::Relaxed), GIB);
        assert_eq!((node.get("sound").unwrap(), findings(&node, "sound")), (sound, Vec::new()));
        node.remove("ill", false).unwrap();
        assert_eq!((node.list().len(), node.regions().len()), (1, 1));
        node.create("ill", vec![part(30, GIB)]).unwrap();
        assert_eq!((node.get("ill").unwrap().problem, node.regions().len()), (String::new(), 2));
    }
}

#[test]
fn a_region_deleted_just_before_a_resize_is_not_resized() {
    let node = Node::start();
    let slice = node.create("a", vec![part(30, GIB)]).unwrap();
    delete_at_once(Path::new(&slice.region_path).parent().unwrap());
    refused(node.resize("a", vec![part(20, GIB)]), Code::FailedPrecondition, "was deleted");
    assert_eq!(node.get("a").unwrap().parts, slice.parts);
}

#[test]
fn a_runtime_directory_that_was_emptied_is_made_again() {
    let node = Node::start();
    let slice = node.create("a", vec![part(30, GIB)]).unwrap();
    let (region, stand_in) = (Path::new(&slice.region_path), Path::new(&slice.stand_in_path));
    for emptied in [stand_in.parent().unwrap(), region.ancestors().nth(2).unwrap()] {
        delete_at_once(emptied);
    }
    eventually("it is told", || Some(()).filter(|()| !node.get("a").unwrap().problem.is_empty()));
    // Both paths have a library again, and beside it an empty limits file, so it gives nothing.
    for library in [Path::new(&slice.shim_path), stand_in] {
        eventually("it is made again", || {
            let limits_bytes = fs::metadata(library.with_file_name(LIMITS_FILE)).ok()?.len();
            (library.exists() && limits_bytes == 0).then_some(())
        });
    }
    node.create("b", vec![part(30, GIB)]).unwrap();
    node.remove("a", false).unwrap();
    assert_eq!((node.get("b").unwrap().problem, node.regions().len()), (String::new(), 1));
}

#[test]
fn a_truncated_ledger_is_extended_again_while_processes_map_it() {
    let node = Node::start();
    let slice = node.create("a", vec![part(30, GIB)]).unwrap();
    let mut tenant = Tenant::start(&slice.region_path);
    assert_eq!(tenant.tell("reserve 1000"), "Ok(())");
    let path = Path::new(&slice.region_path).join(LEDGER_FILE);
    OpenOptions::new().write(true).open(&path).unwrap().set_len(0).unwrap();
    eventually("it is as long as before", || {
        (fs::metadata(&path).unwrap().len() == LEDGER_FILE_BYTES as u64).then_some(())
    });
    // The process touches the pages that were gone, survives, and gets nothing more.
    assert!(tenant.tell("reserve 1").starts_with("Err"));
}

#[test]
fn damage_is_not_forgotten_by_the_next_manager() {
    for (_, harm) in HARM {
        let mut node = Node::start();
        let slice = node.create("ill", vec![part(30, GIB)]).unwrap();
        let tenant = Tenant::start(&slice.region_path);
        let limits = limits(Path::new(&slice.region_path));
        harm(Path::new(&slice.region_path));
        eventually("it is told", || Some(()).filter(|()| !node.get("ill").unwrap().problem.is_empty()));
        drop(tenant);
        node.restart().unwrap();
        assert_ne!(node.get("ill").unwrap().problem, "");
        assert_eq!(limits.devices[0].memory_limit_bytes.load(Ordering::Relaxed), 0);
        node.remove("ill", true).unwrap();
        assert_eq!((node.list().len(), node.regions().len()), (0, 0));
    }
}

#[test]
fn a_region_deleted_without_a_manager_is_given_out_once() {
    let mut node = Node::start();
    let slice = node.create("a", vec![part(30, GIB)]).unwrap();
    let tenant = Tenant::start(&slice.region_path);
    node.stop();
    fs::remove_dir_all(Path::new(&slice.region_path).parent().unwrap()).unwrap();
    node.restart().unwrap();
    let problem = node.get("a").unwrap().problem;
    assert!(problem.contains("was deleted") && problem.contains(&tenant.pid().to_string()), "{problem}");
    // A new process finds a region that gives nothing.
    assert_eq!(fs::metadata(Path::new(&slice.region_path).join(LIMITS_FILE)).unwrap().len(), 0);
    // Without processes in the slice nothing could be given out twice.
    drop(tenant);
    node.stop();
    fs::remove_dir_all(Path::new(&slice.region_path).parent().unwrap()).unwrap();
    node.restart().unwrap();
    assert_eq!(node.get("a").unwrap().problem, "");
    assert_eq!(limits(Path::new(&slice.region_path)).devices[0].memory_limit_bytes.load(Ordering::Relaxed), GIB);
}
