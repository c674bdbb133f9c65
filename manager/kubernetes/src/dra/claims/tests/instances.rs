//! Claims of MIG instances that are made for them.

use aliquot_node::{Partition, Placement};

use super::*;
use crate::device_plugin::test_node::partitionable;

const OTHER_UID: &str = "3f0c1d2e-0000-4000-8000-000000000002";

fn partition(profile: &str, start: u32, size: u32) -> Partition {
    Partition { gpu_uuid: device(0, 40).uuid, profile: profile.into(), placement: Placement { start, size } }
}

fn claim_of(uid: &str, devices: &[&str]) -> Value {
    let result = |(at, device): (usize, &&str)| {
        let device = format!("{}-{device}", device_name(0));
        json!({"request": format!("r{at}"), "driver": DRIVER, "pool": "node-1", "device": device})
    };
    let results: Vec<Value> = devices.iter().enumerate().map(result).collect();
    json!({
        "apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaim",
        "metadata": {"name": "train", "namespace": "team", "uid": uid},
        "spec": {},
        "status": {"allocation": {"devices": {"results": results}}},
    })
}

fn device_name(number: u32) -> String {
    device(number, 40).uuid.to_lowercase()
}

/// A GPU in MIG mode without instances, and a claim that has these devices of it.
fn world(devices: &[&str]) -> World {
    let server = ApiServer { claim: Some(claim_of(UID, devices)), ..ApiServer::default() };
    let node = TestNode::new(vec![partitionable(0)]);
    World { dir: tempfile::tempdir().unwrap(), node, server: Arc::new(Mutex::new(server)) }
}

/// The existing instances, as profiles and places.
fn instances(world: &World) -> Vec<String> {
    let devices = world.node.devices().borrow().clone();
    let instances = devices.devices.iter().filter_map(|device| device.mig_instance.as_ref());
    instances.map(|instance| format!("{} {}", instance.profile, instance.placement.unwrap())).collect()
}

fn record_of(uid: &str, phase: Phase, boot_id: &str, partitions: &[Partition]) -> Record {
    let uid = ClaimUid::parse(uid).unwrap();
    let device = |partition: &Partition| AllocatedDevice { partition: Some(partition.clone()), ..Default::default() };
    let slice = SliceRequest { name: uid.slice_name(), ..SliceRequest::default() };
    let devices = partitions.iter().map(device).collect();
    Record {
        uid,
        namespace: "team".into(),
        name: "train".into(),
        phase,
        boot_id: boot_id.into(),
        slices: vec![ClaimSlice { slice, devices, ..ClaimSlice::default() }],
    }
}

#[tokio::test]
async fn an_instance_is_made_at_its_place_and_goes_with_its_claim() {
    let world = world(&["2g-20gb-2"]);
    let claims = world.start("boot-1");
    let first = prepare(&claims).await.unwrap();
    assert_eq!(first[0].devices[0].device, format!("{}-2g-20gb-2", device_name(0)));
    assert_eq!(instances(&world), ["2g.20gb 2:2"]);
    let part = world.slice().unwrap().content.parts[0].clone();
    assert_eq!((part.core_request_percent, part.memory_limit_bytes), (100, 20 * GIB));
    assert_eq!(first[0].devices[0].instance_uuid, Some(part.device_uuid));
    // It is the claim's own, so no other claim is offered a part of it.
    assert_eq!((claims.view().shared().count(), claims.view().offers().len()), (0, 7));
    assert_eq!(prepare(&world.start("boot-1")).await.unwrap(), first);
    claims.unprepare(UID).await.unwrap();
    assert_eq!((instances(&world).len(), world.slice(), claims.view().own.len()), (0, None, 0));
    claims.unprepare(UID).await.unwrap();
}

#[tokio::test]
async fn a_claim_can_have_several_instances() {
    let world = world(&["1g-10gb-0", "2g-20gb-2", "1g-10gb-1"]);
    prepare(&world.start("boot-1")).await.unwrap();
    assert_eq!(instances(&world), ["1g.10gb 0:1", "2g.20gb 2:2", "1g.10gb 1:1"]);
    assert_eq!(world.slice().unwrap().content.parts.len(), 3);
}

#[tokio::test]
async fn containers_of_a_pod_have_instances_of_their_own() {
    let world = world(&["1g-10gb-0", "2g-20gb-2"]);
    let container = |name: &str, request: &str| json!({"name": name, "resources": {"claims": [{"name": "mig", "request": request}]}});
    {
        let mut server = world.server.lock();
        server.claim.as_mut().unwrap()["status"]["reservedFor"] =
            json!([{"resource": "pods", "name": "pod", "uid": "pod-uid"}]);
        server.pod = Some(json!({
            "metadata": {"name": "pod", "uid": "pod-uid"},
            "spec": {
                "containers": [container("small", "r0"), container("large", "r1")],
                "resourceClaims": [{"name": "mig", "resourceClaimName": "train"}],
            },
        }));
    }
    let claims = world.start("boot-1");
    let first = prepare(&claims).await.unwrap();
    assert_eq!(instances(&world), ["1g.10gb 0:1", "2g.20gb 2:2"]);
    let memory = |number: usize| {
        let slice = world.node.get(&format!("claim-{UID}.{number}")).unwrap().content;
        slice.parts.iter().map(|part| part.memory_limit_bytes).collect::<Vec<_>>()
    };
    assert_eq!((memory(0), memory(1)), (vec![10 * GIB], vec![20 * GIB]));
    // If one instance is gone, all are made anew, because others may be in their places by now.
    world.node.destroy_instance(&partition("2g.20gb", 2, 2)).unwrap();
    assert_eq!(prepare(&world.start("boot-1")).await.unwrap().len(), first.len());
    assert_eq!((instances(&world).len(), world.node.list().len()), (2, 2));
    world.start("boot-1").unprepare(UID).await.unwrap();
    assert_eq!((instances(&world).len(), world.node.list().len()), (0, 0));
}

#[tokio::test]
async fn what_a_kill_leaves_between_the_record_and_its_end_is_made_anew_or_removed() {
    let partitions = [partition("1g.10gb", 0, 1), partition("2g.20gb", 2, 2)];
    // Killed after none, one, and both were made; the claim was allocated differently since.
    for made in 0..=2 {
        for is_given_up in [false, true] {
            let world = world(&["4g-40gb-0"]);
            world.prepared().save(&record_of(UID, Phase::Started, "boot-1", &partitions)).unwrap();
            partitions[..made].iter().for_each(|partition| _ = world.node.create_instance(partition).unwrap());
            let claims = world.start("boot-1");
            assert_eq!(claims.view().shared().count(), 0);
            if is_given_up {
                claims.unprepare(UID).await.unwrap();
                assert_eq!(instances(&world), Vec::<String>::new());
            } else {
                prepare(&claims).await.unwrap();
                assert_eq!(instances(&world), ["4g.40gb 0:4"]);
            }
        }
    }
}

#[tokio::test]
async fn a_pod_whose_gpu_is_lost_ends_and_its_place_stays_reserved() {
    let world = world(&["2g-20gb-2"]);
    let claims = world.start("boot-1");
    prepare(&claims).await.unwrap();
    world.node.change(0, |gpu| gpu.problem = Some("it is not listed any more".into()));
    claims.unprepare(UID).await.unwrap();
    assert_eq!((world.slice(), claims.view().own.len()), (None, 1));
    world.server.lock().claim = None;
    let client = client(&world.server);
    let mut suspects = stale::look(&claims, &client, &BTreeSet::new()).await;
    for _ in 0..2 {
        suspects = stale::look(&claims, &client, &suspects).await;
        assert_eq!((suspects.len(), claims.view().own.len()), (1, 1));
    }
    world.node.change(0, |gpu| gpu.problem = None);
    assert_eq!(stale::look(&claims, &client, &suspects).await.len(), 0);
    assert_eq!((instances(&world).len(), claims.view().own.len()), (0, 0));
}

#[tokio::test]
async fn kubelet_asks_again_while_programs_use_an_instance() {
    let world = world(&["2g-20gb-2"]);
    let claims = world.start("boot-1");
    prepare(&claims).await.unwrap();
    world.node.set_uses_instances(true);
    let refused = claims.unprepare(UID).await.unwrap_err().to_string();
    assert!(refused.ends_with("In use by another client"), "{refused}");
    world.node.set_uses_instances(false);
    claims.unprepare(UID).await.unwrap();
    assert_eq!((instances(&world).len(), claims.view().own.len()), (0, 0));
}

#[tokio::test]
async fn a_damaged_record_leaves_no_instance_for_ever() {
    let world = world(&["2g-20gb-2"]);
    let first = prepare(&world.start("boot-1")).await.unwrap();
    std::fs::write(world.path().join(format!("claims/{UID}.json")), "{").unwrap();
    let claims = world.start("boot-1");
    // It is still the claim's own, and the claim is still prepared.
    assert_eq!((claims.view().shared().count(), claims.known().len()), (0, 1));
    assert_eq!(prepare(&claims).await.unwrap(), first);
    claims.unprepare(UID).await.unwrap();
    assert_eq!((instances(&world).len(), world.slice(), claims.view().own.len()), (0, None, 0));
}

#[tokio::test]
async fn what_an_administrator_made_is_refused_and_stays() {
    let world = world(&["1g-10gb-0", "1g-10gb-3"]);
    world.node.create_instance(&partition("2g.20gb", 2, 2)).unwrap();
    let claims = world.start("boot-1");
    let refused = prepare(&claims).await.unwrap_err().to_string();
    assert!(refused.contains("MIG instance 1g.10gb at 3:1") && refused.contains("an instance at 2:2"), "{refused}");
    assert_eq!((instances(&world), claims.known().len()), (vec!["2g.20gb 2:2".to_owned()], 0));
    claims.unprepare(UID).await.unwrap();
    assert_eq!(instances(&world), ["2g.20gb 2:2"]);
    assert_eq!(claims.view().shared().count(), 1);
}

#[tokio::test]
async fn after_a_reboot_instances_are_made_anew_and_those_of_others_are_not_touched() {
    let world = world(&["1g-10gb-0"]);
    world.prepared().save(&record_of(UID, Phase::Completed, "boot-1", &[partition("1g.10gb", 0, 1)])).unwrap();
    let other = record_of(OTHER_UID, Phase::Completed, "boot-1", &[partition("2g.20gb", 2, 2)]);
    world.prepared().save(&other).unwrap();
    // An instance that was made in the same place after the reboot.
    world.node.create_instance(&partition("2g.20gb", 2, 2)).unwrap();
    let claims = world.start("boot-2");
    prepare(&claims).await.unwrap();
    assert_eq!(instances(&world), ["2g.20gb 2:2", "1g.10gb 0:1"]);
    claims.unprepare(OTHER_UID).await.unwrap();
    assert_eq!(instances(&world), ["2g.20gb 2:2", "1g.10gb 0:1"]);
}

#[tokio::test]
async fn an_instance_that_somebody_destroyed_is_made_again() {
    let world = world(&["1g-10gb-0"]);
    let claims = world.start("boot-1");
    let first = prepare(&claims).await.unwrap();
    world.node.destroy_instance(&partition("1g.10gb", 0, 1)).unwrap();
    assert_eq!(prepare(&claims).await.unwrap(), first);
    assert_eq!(instances(&world), ["1g.10gb 0:1"]);
}

#[tokio::test]
async fn a_place_is_another_claim_s_until_that_is_given_up() {
    let world = world(&["1g-10gb-3"]);
    // No instance was made for it yet.
    let other = record_of(OTHER_UID, Phase::Started, "boot-1", &[partition("2g.20gb", 2, 2)]);
    world.prepared().save(&other).unwrap();
    let claims = world.start("boot-1");
    let refused = prepare(&claims).await.unwrap_err().to_string();
    assert!(refused.contains(&format!("is still claim {OTHER_UID}'s")), "{refused}");
    claims.unprepare(OTHER_UID).await.unwrap();
    prepare(&claims).await.unwrap();
    assert_eq!(instances(&world), ["1g.10gb 3:1"]);
}

#[tokio::test]
async fn a_slice_that_cannot_be_made_leaves_no_instance() {
    let world = world(&["1g-10gb-0"]);
    world.node.refuse_slices();
    let claims = world.start("boot-1");
    prepare(&claims).await.unwrap_err();
    assert_eq!((instances(&world).len(), claims.known().len()), (0, 0));
    assert_eq!(world.prepared().uids().unwrap(), []);
}
