//! Free room is given out: to which claims, how much, and where.

use std::collections::{BTreeMap, BTreeSet};

use aliquot_scheduler_core::{
    Allowance, Bytes, Claim, Constraints, DeviceCore, DeviceMemory, DeviceRequest, DeviceSpec, Event, Health, MilliCpu,
    NodeSpec, Request, Resource, Taint, Texts, Toleration,
};

use crate::kit::{Kit, build, cores, gang, limited, node, part, quota, train, whole};

#[test]
fn a_limit_of_a_queue_or_of_one_above_it_holds_although_there_is_room() {
    let mut kit = Kit::of_nodes(2, 4);
    kit.queue("division", limited(0, 3));
    kit.queue("division/narrow", limited(0, 1));
    kit.queue("division/wide", limited(0, 8));
    let narrow = kit.claims(3, &train("narrow", whole(1)));
    let wide = kit.claims(3, &train("wide", whole(1)));
    kit.converge();
    assert_eq!((kit.running(&narrow), kit.running(&wide)), (1, 2));
}

#[test]
fn a_queue_with_a_limit_of_nothing_stands_still() {
    let mut kit = Kit::of_nodes(1, 4);
    kit.queue("closed", limited(0, 0));
    let claims = kit.claims(2, &train("closed", whole(1)));
    kit.converge();
    assert_eq!(kit.running(&claims), 0);
}

#[test]
fn who_may_be_evicted_borrows_beyond_the_quota_and_who_may_not_does_not() {
    let mut kit = Kit::of_nodes(1, 4);
    kit.queue("division", quota(2));
    kit.queue("division/a", quota(1));
    kit.queue("division/b", quota(2));
    let (fixed_a, fixed_b) = (kit.claims(2, &build("a", whole(1))), kit.claims(4, &build("b", whole(1))));
    let loose = kit.claims(2, &train("a", whole(1)));
    kit.converge();
    // One claim is within a's own quota, and one more within the rest of the division's quota of two.
    assert_eq!((kit.running(&fixed_a), kit.running(&fixed_b), kit.running(&loose)), (1, 1, 2));
}

#[test]
fn bounds_of_cpu_hold_for_claims_without_devices() {
    let mut kit = Kit::of_nodes(1, 0);
    let cpu = |quota: u64, limit: u64| {
        let allowance = Allowance { quota: Some(quota * 1000), limit: Some(limit * 1000), weight: 1, priority: None };
        BTreeMap::from([(Resource::Cpu, allowance)])
    };
    kit.queue_of("division", cpu(6, 10), |_| {});
    kit.queue_of("division/team", cpu(4, 100), |_| {});
    let fixed = kit.claims(3, &build("team", cores(2)));
    let loose = kit.claims(5, &train("team", cores(2)));
    kit.converge();
    assert_eq!((kit.running(&fixed), kit.running(&loose)), (2, 3), "4 cores of quota, 10 of the division's limit");
}

#[test]
fn a_bound_on_one_model_leaves_the_others_alone() {
    let mut kit = Kit::new();
    for (name, model) in [("a", "A"), ("b", "B")] {
        let device = DeviceSpec { model: model.into(), ..DeviceSpec::default() };
        kit.node(NodeSpec { devices: vec![device; 2], ..node(name, 0) });
    }
    let bound = Allowance { limit: Some(1000), ..quota(0) };
    kit.queue_of("team", BTreeMap::from([(Resource::ModelCore("A".into()), bound)]), |_| {});
    let claims = kit.claims(4, &train("team", whole(1)));
    kit.converge();
    let on_a = claims.iter().filter(|claim| kit.node_of(**claim) == Some("a")).count();
    assert_eq!((kit.running(&claims), on_a), (3, 1));
}

#[test]
fn a_part_of_a_small_device_fits_a_bound_on_memory_that_one_of_a_large_device_does_not() {
    let mut kit = Kit::new();
    for (name, model, gib) in [("large", "A", 80), ("small", "B", 16)] {
        let device = DeviceSpec { model: model.into(), memory: Bytes::from_mib(gib << 10), ..DeviceSpec::default() };
        kit.node(NodeSpec { devices: vec![device], ..node(name, 0) });
    }
    let bound = Allowance { limit: Some(20 << 30), ..quota(0) };
    kit.queue_of("team", BTreeMap::from([(Resource::DeviceMemory, bound)]), |_| {});
    let claim = kit.claim(train("team", part(50)));
    kit.converge();
    assert_eq!(kit.node_of(claim), Some("small"));
}

#[test]
fn within_a_queue_priority_goes_first_and_then_age() {
    let mut kit = Kit::of_nodes(1, 2);
    let old = kit.claim(train("default", whole(1)));
    let young = kit.claim(train("default", whole(1)));
    let important = kit.claim(Claim { priority: 75, ..train("default", whole(1)) });
    kit.converge();
    assert_eq!((kit.running(&[important, old]), kit.running(&[young])), (2, 0));
}

/// A node with this many devices, but CPU for only one task.
fn node_for_one(devices: usize) -> NodeSpec {
    NodeSpec { cpu: MilliCpu::new(1000), ..node("for-one", devices) }
}

/// A request for devices, and for the CPU of one task.
fn with_cpu(devices: u16) -> Request {
    Request { cpu: MilliCpu::new(1000), ..whole(devices) }
}

#[test]
fn of_queues_within_their_shares_the_one_of_higher_priority_goes_first() {
    let mut kit = Kit::new();
    kit.node(node_for_one(2));
    kit.queue("old", quota(1));
    let allowances = BTreeMap::from([(Resource::DeviceCore, quota(1))]);
    kit.queue_of("important", allowances, |spec| spec.priority = 1);
    let claims = ["old", "important"].map(|queue| kit.claim(train(queue, with_cpu(1))));
    kit.cycle();
    assert_eq!(claims.map(|claim| kit.running(&[claim])), [0, 1]);
}

#[test]
fn of_queues_within_their_shares_the_one_within_its_quota_goes_first() {
    let mut kit = Kit::new();
    kit.node(node_for_one(2));
    kit.queue("borrows", quota(0));
    kit.queue("owns", quota(1));
    let claims = ["borrows", "owns"].map(|queue| kit.claim(train(queue, with_cpu(1))));
    kit.cycle();
    assert_eq!(claims.map(|claim| kit.running(&[claim])), [0, 1]);
}

#[test]
fn of_queues_within_their_quotas_the_one_that_would_hold_the_smaller_part_of_it_goes_first() {
    let mut kit = Kit::new();
    kit.node(node_for_one(4));
    let claims = [("more", 2), ("less", 1)].map(|(queue, devices)| {
        kit.queue(queue, quota(2));
        kit.claim(train(queue, with_cpu(devices)))
    });
    kit.cycle();
    assert_eq!(claims.map(|claim| kit.running(&[claim])), [0, 1]);
}

#[test]
fn of_queues_that_would_hold_equal_parts_the_one_that_holds_less_goes_first() {
    let mut kit = Kit::new();
    kit.node(node("first", 1));
    ["holds", "empty"].into_iter().for_each(|queue| kit.queue(queue, quota(2)));
    kit.claim(train("holds", whole(1)));
    kit.cycle();
    kit.node(node_for_one(3));
    let claims = [("holds", 1), ("empty", 2)].map(|(queue, devices)| kit.claim(train(queue, with_cpu(devices))));
    kit.cycle();
    assert_eq!(claims.map(|claim| kit.running(&[claim])), [0, 1]);
}

#[test]
fn queues_take_turns_by_what_they_hold_as_the_cycle_goes_on() {
    let mut kit = Kit::of_nodes(1, 6);
    let mut claims = Vec::new();
    for name in ["a", "b", "c"] {
        kit.queue(name, quota(0));
        claims.push(kit.claims(4, &train(name, whole(1))));
    }
    kit.cycle();
    assert_eq!(claims.iter().map(|claims| kit.running(claims)).collect::<Vec<_>>(), [2, 2, 2]);
}

#[test]
fn the_division_that_holds_the_smaller_part_of_its_share_goes_first() {
    let mut kit = Kit::of_nodes(1, 8);
    for (division, devices) in [("large", 6), ("small", 2)] {
        kit.queue(division, quota(devices));
        kit.queue(&format!("{division}/{division}-team"), quota(devices));
    }
    let large = kit.claims(8, &train("large-team", whole(1)));
    let small = kit.claims(8, &train("small-team", whole(1)));
    kit.cycle();
    assert_eq!((kit.running(&large), kit.running(&small)), (6, 2));
}

#[test]
fn claims_wait_in_leaves_of_any_depth() {
    let mut kit = Kit::of_nodes(1, 1);
    for path in ["one", "one/two", "two/three", "three/four"] {
        kit.queue(path, quota(1));
    }
    let claim = kit.claim(train("four", whole(1)));
    kit.converge();
    assert_eq!(kit.running(&[claim]), 1);
}

#[test]
fn parts_of_a_device_share_it_up_to_the_last_percent_and_no_further() {
    let mut kit = Kit::of_nodes(1, 1);
    let claims = kit.claims(4, &train("default", part(30)));
    let last = kit.claims(2, &train("default", part(10)));
    kit.converge();
    assert_eq!((kit.running(&claims), kit.running(&last)), (3, 1));
}

#[test]
fn time_and_memory_of_a_device_run_out_each_by_itself() {
    let mut kit = Kit::of_nodes(1, 1);
    let gib = |count: u64| DeviceMemory::Bytes(Bytes::from_mib(count << 10));
    let ask = |percent: u32, memory| {
        let devices = DeviceRequest { count: 1, core: DeviceCore::from_percent(percent), memory };
        train("default", Request { devices, ..Request::default() })
    };
    let large = kit.claim(ask(10, gib(60)));
    let no_memory_left = kit.claim(ask(10, gib(21)));
    let busy = kit.claim(ask(80, gib(1)));
    let no_time_left = kit.claim(ask(11, gib(1)));
    let both_fit = kit.claim(ask(10, gib(19)));
    kit.converge();
    assert_eq!(kit.running(&[large, busy, both_fit]), 3);
    assert_eq!(kit.running(&[no_memory_left, no_time_left]), 0);
}

#[test]
fn a_gang_that_does_not_fit_leaves_the_room_to_who_does() {
    let mut kit = Kit::of_nodes(2, 2);
    let gang = kit.gang(gang("gang", "default", 5), 5, &whole(1));
    let singles = kit.claims(3, &Claim { priority: 10, ..train("default", whole(1)) });
    kit.cycle();
    assert_eq!((kit.running(&gang), kit.running(&singles)), (0, 3));
}

#[test]
fn a_gang_above_its_queues_limit_is_not_placed_in_part() {
    let mut kit = Kit::of_nodes(1, 8);
    kit.queue("team", limited(0, 3));
    let gang = kit.gang(gang("gang", "team", 4), 4, &whole(1));
    let single = kit.claim(train("team", whole(1)));
    kit.converge();
    assert_eq!((kit.running(&gang), kit.running(&[single])), (0, 1));
}

#[test]
fn constraints_cordons_and_health_are_respected() {
    let mut kit = Kit::new();
    let taint = Taint { key: "reserved".into(), ..Taint::default() };
    kit.node(NodeSpec { taints: vec![taint.clone()], ..node("tainted", 1) });
    kit.node(NodeSpec { cordoned: true, ..node("cordoned", 1) });
    kit.node(NodeSpec { labels: Texts::from([("zone".into(), "east".into())]), ..node("east", 1) });
    let sick = kit.node(node("sick", 1));
    kit.event(Event::DeviceHealthChanged { node: sick, device: 0, health: Health::Unhealthy });
    let on = |constraints| train("default", Request { constraints, ..whole(1) });
    let anywhere = kit.claims(2, &on(Constraints::default()));
    let tolerations = BTreeSet::from([Toleration::of(&taint)]);
    let tolerant = kit.claim(on(Constraints { tolerations, ..Constraints::default() }));
    let west = kit
        .claim(on(Constraints { labels: BTreeMap::from([("zone".into(), "west".into())]), ..Constraints::default() }));
    let other_model = kit.claim(on(Constraints { models: BTreeSet::from(["B".into()]), ..Constraints::default() }));
    kit.converge();
    assert_eq!((kit.node_of(anywhere[0]), kit.node_of(anywhere[1])), (Some("east"), None));
    assert_eq!(kit.node_of(tolerant), Some("tainted"));
    assert_eq!(kit.running(&[west, other_model]), 0);
    kit.event(Event::DeviceHealthChanged { node: sick, device: 0, health: Health::Healthy });
    kit.converge();
    assert_eq!(kit.node_of(anywhere[1]), Some("sick"), "a device that is well again is given out again");
}

#[test]
fn a_claim_whose_queue_is_blocked_does_not_hold_up_other_queues() {
    let mut kit = Kit::of_nodes(1, 2);
    kit.queue("blocked", limited(2, 0));
    kit.queue("open", quota(0));
    let blocked = kit.claims(2, &Claim { priority: 125, ..train("blocked", whole(1)) });
    let open = kit.claims(2, &train("open", whole(1)));
    kit.cycle();
    assert_eq!((kit.running(&blocked), kit.running(&open)), (0, 2));
}
