//! Devices that were given out twice, quotas that counted something other than what was held, and room that was not
//! seen.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use aliquot_scheduler_core::placement::{self, BestFit, Bid, Misfit, Policy};
use aliquot_scheduler_core::{
    Alignment, Allowance, Bytes, Claim, Cluster, DeviceCore, DeviceMemory, DeviceRequest, DeviceSpec, Event, Node,
    NodeId, NodeSpec, PlacementRules, Request, Resource, Scheduler, Settings,
};
use aliquot_scheduler_kit::Build;

use crate::kit::{Kit, node, part, quota, train, whole};

fn memory(count: u16, mib: u64) -> Request {
    let devices =
        DeviceRequest { count, core: DeviceCore::from_percent(1), memory: DeviceMemory::Bytes(Bytes::from_mib(mib)) };
    Request { devices, ..Request::default() }
}

/// A card of 46,068 MiB took 24 tasks of 2,000 MiB: amounts were rounded to parts of a card and then added up. Here
/// bytes are added up.
#[test]
fn tasks_of_2000_mib_beyond_what_a_card_of_46068_mib_has() {
    let mut kit = Kit::new();
    let card = DeviceSpec { memory: Bytes::from_mib(46_068), ..DeviceSpec::default() };
    kit.node(NodeSpec { devices: vec![card], ..node("l40s", 0) });
    let claims = kit.claims(24, &train("default", memory(1, 2000)));
    kit.converge();
    assert_eq!(kit.running(&claims), 23);
}

/// Memory on several devices was counted only once.
#[test]
fn memory_on_several_devices_that_exceeds_the_quota() {
    let mut kit = Kit::of_nodes(1, 4);
    let limit = Allowance { limit: Some(40_000 << 20), ..quota(0) };
    kit.queue_of("team", BTreeMap::from([(Resource::DeviceMemory, limit)]), |_| {});
    let (too_much, fits) = (kit.claim(train("team", memory(3, 15_000))), kit.claim(train("team", memory(4, 10_000))));
    kit.converge();
    assert_eq!((kit.running(&[too_much]), kit.running(&[fits])), (0, 1));
}

/// A part of 0.5 was half of the memory and any amount of time. Here time and memory are two amounts, and of each a
/// node promises no more than it has. The node enforces them.
#[test]
fn half_a_device_that_is_half_of_its_memory_but_all_of_its_time() {
    let mut kit = Kit::of_nodes(1, 1);
    let ask = |core, memory| Request {
        devices: DeviceRequest {
            count: 1,
            core: DeviceCore::from_percent(core),
            memory: DeviceMemory::Thousandths(memory),
        },
        ..Request::default()
    };
    let (first, second) = (kit.claim(train("default", ask(100, 500))), kit.claim(train("default", ask(1, 500))));
    kit.converge();
    assert_eq!((kit.running(&[first]), kit.running(&[second])), (1, 0), "no time is left");
}

/// Quotas knew only devices as such. Here a queue may be bound by model, and for each resource separately.
#[test]
fn no_quota_by_kind_of_device() {
    let mut kit = Kit::new();
    for (name, model) in [("new", "H100"), ("old", "T4")] {
        let device = DeviceSpec { model: model.into(), ..DeviceSpec::default() };
        kit.node(NodeSpec { devices: vec![device; 4], ..node(name, 0) });
    }
    let bound = Allowance { limit: Some(1500), ..quota(0) };
    kit.queue_of("students", BTreeMap::from([(Resource::ModelCore("H100".into()), bound)]), |_| {});
    let on = |model: &str| {
        let mut request = part(50);
        request.constraints.models.insert(model.into());
        train("students", request)
    };
    let (new, old) = (kit.claims(4, &on("H100")), kit.claims(4, &on("T4")));
    kit.converge();
    assert_eq!((kit.running(&new), kit.running(&old)), (3, 4));
}

/// Cards of different sizes on a node were treated as if each had an equal part of the node's memory.
#[test]
fn cards_of_different_sizes_taken_for_equal_ones() {
    let mut kit = Kit::new();
    let card = |mib| DeviceSpec { memory: Bytes::from_mib(mib), ..DeviceSpec::default() };
    kit.node(NodeSpec { devices: vec![card(8_000), card(24_000)], ..node("mixed", 0) });
    let large = kit.claims(2, &train("default", memory(1, 16_000)));
    kit.converge();
    assert_eq!(kit.running(&large), 1, "32,000 MiB together, but only one card has 16,000");
    let at = kit.cluster.allocation(large[0]).or(kit.cluster.allocation(large[1])).expect("one is placed");
    assert_eq!(at.devices[0].device, 1);
    let half = kit.claim(train("default", part(50)));
    kit.converge();
    let at = kit.cluster.allocation(half).expect("half of the small card is free");
    assert_eq!((at.devices[0].device, at.devices[0].memory), (0, Bytes::from_mib(4_000)));
}

/// Devices behind a switch were treated as unconnected. The node reports how its devices are connected; the guarantee
/// here is that this decides.
#[test]
fn devices_on_one_switch_that_are_not_seen_as_connected() {
    let mut kit = Kit::new();
    let device = |nvlink| DeviceSpec { nvlink_group: nvlink, ..DeviceSpec::default() };
    kit.node(NodeSpec { devices: vec![device(None), device(Some(0)), device(None), device(Some(0))], ..node("n", 0) });
    let rules = PlacementRules { nvlink: Alignment::Required, ..PlacementRules::default() };
    let pair = kit.claim(train("default", Request { rules, ..whole(2) }));
    kit.converge();
    let at = kit.cluster.allocation(pair).expect("two devices are connected");
    assert_eq!(at.devices.iter().map(|part| part.device).collect::<Vec<_>>(), [1, 3]);
}

/// Autoscalers could not ask whether a claim would fit on a machine that is yet to be bought. Here the filter is a pure
/// function of a node, which need not be part of a cluster.
#[test]
fn nobody_can_ask_about_a_node_that_does_not_exist_yet() {
    let mut templates = Cluster::new();
    let (small, large) = (templates.add_node(node("small", 4)), templates.add_node(node("large", 8)));
    let eight = whole(8);
    let fits = |id| placement::fits(templates.node(id).expect("it was added"), &eight);
    assert!(matches!(fits(small), Err(Misfit::Models { admitted: 4, .. })), "{:?}", fits(small));
    assert_eq!(fits(large), Ok(()));
}

/// An allocation that only the scheduler remembered blocked eight devices for good. Here what a claim holds ends with
/// the claim, in whatever way it ends, and the state can be built again from the reports of nodes and users.
#[test]
fn a_stale_allocation_that_blocks_devices() {
    let mut kit = Kit::of_nodes(1, 8);
    let claim = kit.claim(train("default", whole(8)));
    kit.converge();
    let at = kit.cluster.allocation(claim).cloned().expect("it fits");
    // A new state, built from the node's report of what runs there.
    let mut fresh = Kit::of_nodes(1, 8);
    let known = fresh.claim(train("default", whole(8)));
    fresh.event(Event::ClaimPlaced(known, at));
    assert_eq!(fresh.running(&[known]), 1);
    for end in [Event::ClaimRemoved, Event::ClaimEvicted, Event::ClaimFailed] {
        let mut kit = Kit::of_nodes(1, 8);
        let claim = kit.claim(train("default", whole(8)));
        kit.converge();
        kit.event(end(claim));
        let next = kit.claim(Claim { priority: 1000, ..train("default", whole(8)) });
        kit.converge();
        assert_eq!(kit.running(&[next]), 1, "after {:?}", end(claim));
    }
}

/// Each cycle copied the whole cluster: 2.2 of 2.5 seconds. Here a cycle without news looks at nothing. What an engine
/// knows of nodes is kept, and changes only with the nodes that change. The test counts the policy's bids, each of
/// which is made for one node.
#[test]
fn every_cycle_copies_the_whole_cluster() {
    #[derive(Clone, Debug)]
    struct Counted(Arc<AtomicUsize>);
    impl Policy for Counted {
        fn bid(&self, id: NodeId, node: &Node, request: &Request) -> Bid {
            self.0.fetch_add(1, Ordering::Relaxed);
            BestFit.bid(id, node, request)
        }
    }
    let bids = Arc::new(AtomicUsize::new(0));
    let mut kit = Kit::of_nodes(200, 2);
    kit.scheduler = Scheduler::new(Box::new(Counted(Arc::clone(&bids))), Settings::default());
    let filled = kit.claims(390, &train("default", whole(1)));
    kit.cycle();
    assert_eq!(kit.running(&filled), 390);
    bids.store(0, Ordering::Relaxed);
    kit.claim(train("default", whole(1)));
    kit.cycle();
    assert!(bids.load(Ordering::Relaxed) <= 4, "{} bids for one claim of a known sort", bids.load(Ordering::Relaxed));
}
