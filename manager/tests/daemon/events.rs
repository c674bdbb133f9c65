//! The manager's events and its history of usage, listed afterwards and streamed.

use std::fs::OpenOptions;
use std::path::Path;
use std::time::Duration;

use aliquot_abi::region::LEDGER_FILE;
use aliquot_proto::node::v1 as proto;
use proto::EventKind as Kind;
use tonic::Code;

use crate::node::{GIB, Node, eventually, part, refused, uuid};
use crate::tenant::Tenant;

fn events(node: &Node) -> Vec<proto::Event> {
    let request = proto::ListEventsRequest::default();
    node.runtime.block_on(node.client().list_events(request)).unwrap().into_inner().events
}

fn kinds_of(node: &Node, slice: &str) -> Vec<Kind> {
    events(node).iter().filter(|event| event.slice == slice).map(proto::Event::kind).collect()
}

/// Waits for an event of this kind in the slice.
fn await_event(node: &Node, slice: &str, kind: Kind) -> proto::Event {
    let found = || events(node).into_iter().find(|event| event.slice == slice && event.kind() == kind);
    eventually(kind.as_str_name(), found)
}

#[test]
fn the_events_of_a_slice_are_in_order() {
    let node = Node::start();
    let slice = node.create("a", vec![part(30, GIB)]).unwrap();
    node.resize("a", vec![part(40, GIB)]).unwrap();
    let mut tenant = Tenant::start(&slice.region_path);
    let attached = await_event(&node, "a", Kind::ProcessAttached);
    assert_eq!(attached.pid, tenant.pid());
    tenant.tell("reserve 2000000000");
    let refused = await_event(&node, "a", Kind::MemoryRefused);
    assert_eq!(refused.device_uuid, uuid(0));
    tenant.kill();
    assert_eq!(await_event(&node, "a", Kind::ProcessEnded).pid, tenant.pid());
    node.remove("a", false).unwrap();
    assert_eq!(
        kinds_of(&node, "a"),
        [
            Kind::SliceMade,
            Kind::SliceChanged,
            Kind::ProcessAttached,
            Kind::MemoryRefused,
            Kind::ProcessEnded,
            Kind::SliceRemoved
        ]
    );
    let all = events(&node);
    assert_eq!(all[0].kind(), Kind::ManagerStarted);
    assert_eq!(all.iter().filter(|event| event.kind() == Kind::DeviceFound).count(), 2);
    assert!(all.iter().map(|event| event.sequence).eq(1..=all.len() as u64), "{all:?}");
    let changed = all.iter().find(|event| event.kind() == Kind::SliceChanged).unwrap();
    assert!(changed.message.contains("was changed: share 30 % → 40 % of GPU-"), "{changed:?}");
}

#[test]
fn a_refusal_just_before_the_end_of_a_slice_is_an_event() {
    let node = Node::start();
    let slice = node.create("a", vec![part(30, GIB)]).unwrap();
    let mut tenant = Tenant::start(&slice.region_path);
    await_event(&node, "a", Kind::ProcessAttached);
    tenant.tell("reserve 2000000000");
    node.remove("a", true).unwrap();
    let kinds = kinds_of(&node, "a");
    assert_eq!(kinds[2..], [Kind::MemoryRefused, Kind::SliceRemoved], "{kinds:?}");
}

#[test]
fn a_follower_gets_new_events_and_can_resume_after_a_number() {
    let node = Node::start();
    node.create("before", vec![part(10, GIB)]).unwrap();
    let follow = |request: proto::WatchEventsRequest| {
        node.runtime.block_on(node.client().watch_events(request)).unwrap().into_inner()
    };
    let next = |stream: &mut tonic::Streaming<proto::Event>| node.runtime.block_on(stream.message()).unwrap().unwrap();
    let from_now = Some(prost_types::Duration::default());
    let mut new = follow(proto::WatchEventsRequest { since: from_now, after_sequence: 0 });
    let mut all = follow(proto::WatchEventsRequest::default());
    assert_eq!(next(&mut all).sequence, 1);
    node.create("after", vec![part(10, GIB)]).unwrap();
    let made = next(&mut new);
    assert_eq!((made.kind(), made.slice.as_str()), (Kind::SliceMade, "after"));
    let mut again = follow(proto::WatchEventsRequest { since: None, after_sequence: made.sequence - 1 });
    assert_eq!(next(&mut again), made);
    node.remove("after", false).unwrap();
    assert_eq!(next(&mut new).kind(), Kind::SliceRemoved);
    assert_eq!(next(&mut again).kind(), Kind::SliceRemoved);
}

#[test]
fn a_follower_does_not_hold_up_the_end_of_the_manager() {
    let mut node = Node::start();
    let mut stream =
        node.runtime.block_on(node.client().watch_events(proto::WatchEventsRequest::default())).unwrap().into_inner();
    node.stop();
    // The stream first ends with the events that were sent before.
    while let Ok(Some(_)) = node.runtime.block_on(stream.message()) {}
}

#[test]
fn a_restarted_manager_reports_the_slices_it_took_over() {
    let mut node = Node::start();
    node.create("a", vec![part(30, GIB)]).unwrap();
    node.restart().unwrap();
    assert_eq!(kinds_of(&node, "a"), [Kind::SliceTakenOver]);
    assert_eq!(events(&node)[0].sequence, 1);
}

#[test]
fn damage_is_an_event() {
    let node = Node::start();
    let slice = node.create("a", vec![part(30, GIB)]).unwrap();
    let ledger = Path::new(&slice.region_path).join(LEDGER_FILE);
    OpenOptions::new().write(true).open(ledger).unwrap().set_len(0).unwrap();
    let damaged = await_event(&node, "a", Kind::SliceDamaged);
    assert!(damaged.message.starts_with("its region is damaged, it gets nothing more: "), "{damaged:?}");
}

#[test]
fn the_time_that_is_asked_for_must_not_be_negative() {
    let node = Node::start();
    let since = Some(prost_types::Duration { seconds: -1, nanos: 0 });
    let asked = node.runtime.block_on(node.client().list_events(proto::ListEventsRequest { since }));
    refused(asked, Code::InvalidArgument, "negative");
    let request = proto::GetUsageHistoryRequest { since, ..proto::GetUsageHistoryRequest::default() };
    refused(node.runtime.block_on(node.client().get_usage_history(request)), Code::InvalidArgument, "negative");
    let request = proto::GetUsageHistoryRequest { slices: vec!["nobody".into()], ..Default::default() };
    refused(node.runtime.block_on(node.client().get_usage_history(request)), Code::NotFound, "nobody");
}

fn points(node: &Node, slice: &str) -> Vec<proto::UsagePoint> {
    let request = proto::GetUsageHistoryRequest { slices: vec![slice.into()], ..Default::default() };
    let history = node.runtime.block_on(node.client().get_usage_history(request)).unwrap().into_inner();
    history.slices.into_iter().next().unwrap().parts.into_iter().next().unwrap().points
}

#[test]
fn the_history_of_usage_reaches_up_to_now() {
    let node = Node::start();
    let slice = node.create("a", vec![part(30, GIB)]).unwrap();
    eventually("the history has begun", || (!points(&node, "a").is_empty()).then_some(()));
    let mut tenant = Tenant::start(&slice.region_path);
    await_event(&node, "a", Kind::ProcessAttached);
    tenant.tell("throttled 700");
    tenant.tell("reserve 5000");
    let sum = |points: &[proto::UsagePoint], of: fn(&proto::UsagePoint) -> u64| points.iter().map(of).sum::<u64>();
    let told = points(&node, "a");
    assert_eq!(sum(&told, |point| point.throttled_ns), 700);
    assert_eq!(told.iter().map(|point| point.memory_peak_bytes).max(), Some(5000));
    let length = Duration::from_nanos(sum(&told, |point| point.length_ns));
    let begin = std::time::SystemTime::try_from(told[0].begin.unwrap()).unwrap();
    let created = std::time::SystemTime::try_from(slice.created.unwrap()).unwrap();
    assert!(begin + length >= created, "{told:?}");
}
