//! Creating, changing and removing slices over the API.

use std::fs;
use std::path::Path;
use std::sync::atomic::Ordering;

use aliquot_proto::node::v1::{self as proto, PriorityClass};
use tokio_stream::StreamExt;
use tonic::Code;

use crate::node::{GIB, Node, part, refused, uuid};
use crate::tenant::{Tenant, limits};

#[test]
fn a_slice_is_made_listed_changed_and_removed() {
    let node = Node::start();
    let slice = node.create("train-1", vec![part(30, 4 * GIB)]).unwrap();
    assert_eq!(slice.parts[0].device_uuid, uuid(0));
    assert_eq!((slice.parts[0].core_limit_percent, slice.parts[0].memory_limit_bytes), (30, 4 * GIB));
    assert_eq!(slice.cdi_device, "aliquot.dev/slice=train-1");
    assert_eq!((slice.processes, slice.problem.as_str()), (0, ""));
    assert!(Path::new(&slice.shim_path).starts_with(&slice.region_path) && Path::new(&slice.shim_path).exists());
    assert!(node.cdi_file("train-1").exists());
    assert_eq!(node.list(), std::slice::from_ref(&slice));
    assert_eq!(node.get("train-1").unwrap(), slice);
    let device = &node.node().devices[0];
    assert_eq!((device.core_requested_percent, device.memory_given_bytes), (30, 4 * GIB));
    assert_eq!(device.slices, ["train-1"]);

    let limits = limits(Path::new(&slice.region_path));
    let resized = node.resize("train-1", vec![part(50, 8 * GIB)]).unwrap();
    assert_eq!((resized.id, resized.parts[0].core_limit_percent), (slice.id, 50));
    assert_eq!(limits.devices[0].memory_limit_bytes.load(Ordering::Relaxed), 8 * GIB);
    assert_eq!(limits.devices[0].core_limit_percent.load(Ordering::Relaxed), 50);

    node.remove("train-1", false).unwrap();
    assert!(node.list().is_empty() && node.regions().is_empty() && !node.cdi_file("train-1").exists());
    // A process that still maps the limits gets nothing more.
    assert_eq!(limits.devices[0].memory_limit_bytes.load(Ordering::Relaxed), 0);
}

#[test]
fn host_memory_has_a_limit_that_holds_is_changed_and_outlives_the_manager() {
    let mut node = Node::start();
    let request = proto::CreateSliceRequest {
        name: "a".into(),
        parts: vec![part(30, GIB)],
        host_memory_limit_bytes: 1000,
        ..proto::CreateSliceRequest::default()
    };
    let slice = node.create_by(request).unwrap();
    assert_eq!(slice.host_memory_limit_bytes, 1000);
    let mut tenant = Tenant::start(&slice.region_path);
    assert_eq!(tenant.tell("reserve-host 900"), "Ok(())");
    assert_eq!(tenant.tell("reserve-host 101"), "Err(OverLimit)");
    let host = |node: &Node| {
        let host = node.usage("a").host_memory.unwrap();
        (host.limit_bytes, host.used_bytes, host.peak_bytes, host.refused)
    };
    assert_eq!(host(&node), (1000, 900, 900, 1));
    assert_eq!(crate::metrics::value(&node, "aliquot_slice_host_memory_used_bytes{slice=\"a\"}"), 900.0);
    let change = |node: &Node, bytes| {
        node.resize_by(proto::ResizeSliceRequest {
            name: "a".into(),
            host_memory_limit_bytes: Some(bytes),
            ..proto::ResizeSliceRequest::default()
        })
    };
    assert_eq!(change(&node, 2000).unwrap().host_memory_limit_bytes, 2000);
    assert_eq!(tenant.tell("reserve-host 101"), "Ok(())");
    // A change of another setting does not affect it.
    node.resize("a", vec![part(40, 0)]).unwrap();
    node.restart().unwrap();
    assert_eq!((node.get("a").unwrap().host_memory_limit_bytes, host(&node)), (2000, (2000, 1001, 1001, 1)));
    assert_eq!(node.usage("a").processes[0].host_memory_used_bytes, 1001);
    assert_eq!(tenant.tell("reserve-host 1000"), "Err(OverLimit)");
    assert_eq!(change(&node, 0).unwrap().host_memory_limit_bytes, 0);
    assert_eq!(tenant.tell("reserve-host 1000000"), "Ok(())");
    refused(change(&node, u64::MAX), Code::InvalidArgument, "host-memory is");
    tenant.kill();
    crate::node::eventually("nothing is in use", || (host(&node).1 == 0).then_some(()));
    // A process that still maps the region of a removed slice gets nothing more.
    let limits = limits(Path::new(&slice.region_path));
    node.remove("a", true).unwrap();
    assert_eq!(limits.host_memory_limit_bytes.load(Ordering::Relaxed), 1);
}

#[test]
fn a_priority_class_is_given_changed_and_outlives_the_manager() {
    let mut node = Node::start();
    let class = |node: &Node, name: &str| (node.get(name).unwrap().priority_class(), node.usage(name).priority_class());
    node.create("a", vec![part(30, GIB)]).unwrap();
    assert_eq!(class(&node, "a"), (PriorityClass::Standard, PriorityClass::Standard));
    let request = |number: i32| proto::CreateSliceRequest {
        name: "b".into(),
        parts: vec![part(30, GIB)],
        priority_class: number,
        ..proto::CreateSliceRequest::default()
    };
    refused(node.create_by(request(7)), Code::InvalidArgument, "priority class 7 is not known; use latency-critical");
    let slice = node.create_by(request(PriorityClass::Batch.into())).unwrap();
    assert_eq!(slice.priority_class(), PriorityClass::Batch);
    let change = |class: PriorityClass| proto::ResizeSliceRequest {
        name: "b".into(),
        priority_class: class.into(),
        ..proto::ResizeSliceRequest::default()
    };
    refused(node.resize_by(change(PriorityClass::Unspecified)), Code::InvalidArgument, "a priority class");
    let changed = node.resize_by(change(PriorityClass::LatencyCritical)).unwrap();
    assert_eq!((changed.priority_class(), &changed.parts), (PriorityClass::LatencyCritical, &slice.parts));
    // A change of another setting does not affect it.
    node.resize("b", vec![part(40, 0)]).unwrap();
    node.restart().unwrap();
    assert_eq!(class(&node, "b"), (PriorityClass::LatencyCritical, PriorityClass::LatencyCritical));
}

#[test]
fn a_change_holds_when_it_is_answered_and_warns_of_use_beyond_the_new_limit() {
    let node = Node::start();
    let slice = node.create("a", vec![part(30, GIB)]).unwrap();
    let mut tenant = Tenant::start(&slice.region_path);
    assert_eq!(tenant.tell("reserve 1000"), "Ok(())");
    let limits = limits(Path::new(&slice.region_path));
    let said = node.resize("a", vec![proto::Part { core_limit_percent: 60, ..part(20, 600) }]).unwrap();
    let found = &limits.devices[0];
    assert_eq!(found.core_request_percent.load(Ordering::Relaxed), 20);
    assert_eq!(found.core_limit_percent.load(Ordering::Relaxed), 60);
    assert_eq!(found.memory_limit_bytes.load(Ordering::Relaxed), 600);
    assert_eq!(said.warnings.len(), 1, "{said:?}");
    assert!(said.warnings[0].starts_with("1000 bytes of the memory of device GPU-"), "{said:?}");
    assert!(said.warnings[0].contains("the limit is 600 bytes: nothing is taken away"), "{said:?}");
    assert_eq!(tenant.tell("reserve 1"), "Err(OverLimit)");
    assert_eq!(node.get("a").unwrap().warnings, said.warnings);
    let said = node.resize("a", vec![part(0, 1001)]).unwrap();
    assert_eq!(said.warnings, [""; 0]);
    assert_eq!(tenant.tell("reserve 1"), "Ok(())");
}

#[test]
fn invalid_requests_are_refused_with_a_code_a_value_and_a_remedy() {
    let node = Node::start();
    node.create("a", vec![part(60, 0)]).unwrap();
    node.create("b", vec![part(60, 0)]).unwrap();
    refused(node.create("a", vec![part(1, GIB)]), Code::AlreadyExists, "\"a\" exists");
    refused(node.create("A", vec![part(1, GIB)]), Code::InvalidArgument, "\"A\" is not valid");
    refused(node.create("c", vec![part(0, GIB)]), Code::InvalidArgument, "gpu-core is 0");
    refused(node.create("c", vec![part(10, 90 * GIB)]), Code::InvalidArgument, "gpu-memory is 90 GiB");
    refused(node.create("c", vec![part(50, GIB)]), Code::ResourceExhausted, "only 40 percent are free");
    refused(node.create("c", vec![]), Code::InvalidArgument, "0 devices");
    let unknown = proto::Part { device_uuid: "GPU-1".into(), ..part(1, 0) };
    refused(node.create("c", vec![unknown]), Code::NotFound, "no device GPU-1");
    refused(node.resize("c", vec![part(1, 0)]), Code::NotFound, "no slice named \"c\"");
    refused(node.resize("a", vec![]), Code::InvalidArgument, "nothing to change");
    refused(node.remove("c", false), Code::NotFound, "no slice named \"c\"");
    refused(node.get("c"), Code::NotFound, "no slice named \"c\"");
    let usage = node.runtime.block_on(node.client().get_usage(proto::GetUsageRequest { slices: vec!["c".into()] }));
    refused(usage, Code::NotFound, "no slice named \"c\"");
    assert_eq!(node.list().len(), 2);
}

#[test]
fn a_slice_in_use_is_removed_by_force_only() {
    let node = Node::start();
    let slice = node.create("a", vec![part(30, GIB)]).unwrap();
    let mut tenant = Tenant::start(&slice.region_path);
    crate::node::eventually("the process is attached", || (node.get("a").unwrap().processes == 1).then_some(()));
    refused(node.remove("a", false), Code::FailedPrecondition, "in use by 1 processes");
    assert_eq!(tenant.tell("reserve 1"), "Ok(())");
    node.remove("a", true).unwrap();
    assert_eq!(tenant.tell("reserve 1"), "Err(OverLimit)");
    assert!(node.regions().is_empty());
}

#[test]
fn durations_out_of_range_are_refused_and_harm_nobody() {
    let node = Node::start();
    let below_zero = [(i64::MIN, 0), (i64::MIN, i32::MIN), (-1, 0), (0, -1), (0, i32::MIN), (1, -1_500_000_000)];
    for (seconds, nanos) in below_zero {
        let interval = Some(prost_types::Duration { seconds, nanos });
        let watch = proto::WatchUsageRequest { slices: vec![], interval };
        refused(
            node.runtime.block_on(node.client().watch_usage(watch)),
            Code::InvalidArgument,
            "interval must not be negative",
        );
        let list = proto::ListEventsRequest { since: interval };
        refused(node.runtime.block_on(node.client().list_events(list)), Code::InvalidArgument, "since must not be");
    }
    for (seconds, nanos) in [(i64::MAX, i32::MAX), (i64::MAX, 0), (1 << 40, 5)] {
        let interval = Some(prost_types::Duration { seconds, nanos });
        let watch = proto::WatchUsageRequest { slices: vec![], interval };
        node.runtime.block_on(async {
            let mut updates = node.client().watch_usage(watch).await.unwrap().into_inner();
            updates.next().await.unwrap().unwrap();
        });
        node.runtime.block_on(node.client().list_events(proto::ListEventsRequest { since: interval })).unwrap();
    }
}

#[test]
fn usage_is_streamed_until_the_caller_stops() {
    let node = Node::start();
    node.create("a", vec![part(30, GIB)]).unwrap();
    let request = |ms: i32| proto::WatchUsageRequest {
        slices: vec!["a".into()],
        interval: Some(prost_types::Duration { seconds: 0, nanos: ms * 1_000_000 }),
    };
    refused(node.runtime.block_on(node.client().watch_usage(request(99))), Code::InvalidArgument, "at least 100 ms");
    node.runtime.block_on(async {
        let mut updates = node.client().watch_usage(request(100)).await.unwrap().into_inner();
        for _ in 0..3 {
            let update = updates.next().await.unwrap().unwrap();
            assert_eq!(update.slices[0].parts[0].memory_limit_bytes, GIB);
        }
        // The stream ends with an error when the slice is gone.
        let remove = proto::RemoveSliceRequest { name: "a".into(), force: false };
        node.client().remove_slice(remove).await.unwrap();
        while let Some(update) = updates.next().await {
            if let Err(status) = update {
                assert_eq!(status.code(), Code::NotFound);
                return;
            }
        }
        panic!("the stream ended without saying why");
    });
}

#[test]
fn the_cdi_device_mounts_the_region_and_leaves_only_the_ledger_writable() {
    let node = Node::start();
    let slice = node.create("a", vec![part(30, GIB)]).unwrap();
    let spec: serde_json::Value = serde_json::from_slice(&fs::read(node.cdi_file("a")).unwrap()).unwrap();
    let edits = &spec["devices"][0]["containerEdits"];
    // These devices have no device nodes by which the container could tell them apart.
    let expected = [format!("ALIQUOT_DEVICES={}", uuid(0)), "NVIDIA_VISIBLE_DEVICES=void".to_owned()];
    let expected = [&expected[..], &[format!("CUDA_VISIBLE_DEVICES={}", uuid(0))]].concat();
    assert_eq!(edits["env"], serde_json::json!(expected));
    let mounts: Vec<_> = edits["mounts"].as_array().unwrap().iter().take(4).collect();
    assert_eq!((&mounts[0]["hostPath"], &mounts[0]["options"][0]), (&slice.region_path.clone().into(), &"ro".into()));
    assert_eq!(mounts[1]["hostPath"], format!("{}/ledger", slice.region_path));
    assert_eq!(mounts[1]["options"][0], "rw");
    let beside_stand_in = Path::new(&slice.stand_in_path).parent().unwrap().to_str().unwrap();
    assert_eq!((&mounts[2]["hostPath"], &mounts[2]["options"][0]), (&beside_stand_in.into(), &"ro".into()));
    assert_eq!((&mounts[3]["containerPath"], &mounts[3]["options"][0]), (&"/etc/ld.so.preload".into(), &"ro".into()));
    let preloaded = fs::read_to_string(mounts[3]["hostPath"].as_str().unwrap()).unwrap();
    assert_eq!(preloaded, format!("{}\n{}\n", slice.shim_path, slice.stand_in_path));
}
