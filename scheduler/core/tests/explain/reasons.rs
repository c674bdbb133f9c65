//! Each test is about one reason, or tier: what is found, and how it reads.

use std::collections::BTreeMap;

use aliquot_scheduler_core::explain::{Exclusion, Protection, Reason, Shortage, Tier};
use aliquot_scheduler_core::placement::BestFit;
use aliquot_scheduler_core::{
    Allowance, Bytes, Claim, DeviceMemory, DeviceRequest, DeviceSpec, Event, GroupPlacement, MilliCpu, NamespaceSpec,
    NodeSpec, PlacementStrategy, PodGroup, QueueSpec, Request, Resource, Scheduler, Settings, Taint,
};

use crate::setting::{GIB, Setting, cores, limit, node, part, quota, whole};

#[test]
fn a_gang_that_is_not_complete_says_how_many_members_are_missing() {
    let mut setting = Setting::with_nodes(1, 8);
    let gang = PodGroup { name: "gang".into(), min_members: 4, ..PodGroup::default() };
    let (_, members) = setting.add_group(gang, 3, &whole(1));
    let plan = setting.cycle();
    let (reason, text) = setting.reason(members[0]);
    assert_eq!(reason, Reason::MembersMissing { members: 3, missing: 1 });
    assert_eq!(plan.pending[0].reason(&setting.cluster), reason);
    assert_eq!(
        text,
        "the pod group has 3 members and needs 1 more that must be placed together; add them, or lower the minimum"
    );
    assert_eq!(setting.suggestions(members[0]), ["let 3 members of the pod group start together instead of 4"]);
}

#[test]
fn a_queue_at_its_limit_says_what_it_holds_and_what_limit_would_be_enough() {
    let mut setting = Setting::with_nodes(1, 8);
    setting.add_queue("top", None, limit(150));
    setting.add_queue("team", Some("top"), limit(800));
    setting.add_in("team", "first", whole(1));
    let second = setting.add_in("team", "second", whole(1));
    let plan = setting.cycle();
    let (reason, text) = setting.reason(second);
    let Reason::QueueLimit(bound) = &reason else { panic!("{reason:?}") };
    assert_eq!((bound.queue.as_str(), &bound.resource), ("top", &Resource::DeviceCore));
    assert_eq!((bound.held, bound.asked, bound.bound, bound.excess()), (1000, 1000, 1500, 500));
    assert_eq!(reason.tier(), Tier::Quota);
    assert_eq!(plan.pending[0].reason(&setting.cluster), reason);
    assert_eq!(
        text,
        "queue \"top\" holds 100 % gpu-core of its limit of 150 % gpu-core, and 100 % gpu-core more are asked for, \
         50 % gpu-core too much; wait until claims in it end, ask for less, raise the limit to 200 % gpu-core"
    );
}

#[test]
fn who_asks_for_more_than_the_whole_limit_is_not_told_to_wait() {
    let mut setting = Setting::with_nodes(1, 8);
    setting.add_queue("team", None, limit(150));
    let waits = setting.add_in("team", "waits", whole(2));
    setting.cycle();
    let (_, text) = setting.reason(waits);
    assert!(text.ends_with("50 % gpu-core too much; ask for less, raise the limit to 200 % gpu-core"), "{text}");
}

#[test]
fn a_namespace_at_its_limit_is_named_as_such() {
    let mut setting = Setting::with_nodes(1, 8);
    let spec = NamespaceSpec {
        name: "team".into(),
        limit: BTreeMap::from([(Resource::DeviceCore, 1500)]),
        ..NamespaceSpec::default()
    };
    setting.cluster.apply(Event::NamespaceChanged(spec)).expect("a good namespace");
    let of_team = |name: &str| Claim {
        name: name.into(),
        namespace: "team".into(),
        request: whole(1),
        preemptible: true,
        ..Claim::default()
    };
    setting.add_claim(of_team("first"));
    let second = setting.add_claim(of_team("second"));
    setting.cycle();
    let (reason, text) = setting.reason(second);
    assert!(matches!(reason, Reason::NamespaceLimit(_)) && reason.tier() == Tier::Namespace, "{reason:?}");
    assert!(text.starts_with("namespace \"team\" holds 100 % gpu-core of its limit of 150 % gpu-core"), "{text}");
    let raise = "raise the limit of namespace \"team\" to 200 % gpu-core (now 150 % gpu-core)";
    let changes = setting.explain(second).changes;
    let raise = changes.iter().find(|change| change.to_string() == raise).expect("the limit can be raised");
    assert!(setting.helps(second, raise));
}

#[test]
fn who_may_not_be_evicted_and_would_pass_a_quota_is_told_so() {
    let mut setting = Setting::with_nodes(1, 8);
    setting.add_queue("team", None, quota(100));
    let fixed = |name: &str| Claim { name: name.into(), queue: "team".into(), request: whole(1), ..Claim::default() };
    setting.add_claim(fixed("first"));
    let second = setting.add_claim(fixed("second"));
    setting.cycle();
    let (reason, text) = setting.reason(second);
    let Reason::NonPreemptibleOverQuota(bound) = &reason else { panic!("{reason:?}") };
    assert_eq!((bound.held, bound.asked, bound.bound), (1000, 1000, 1000));
    assert!(text.ends_with("raise the quota to 200 % gpu-core, or make the claim preemptible"), "{text}");
}

#[test]
fn a_queue_above_its_fair_share_is_told_that_nobody_is_evicted_for_it() {
    let mut setting = Setting::with_nodes(1, 2);
    setting.add_queue("a", None, quota(100));
    setting.add_queue("b", None, quota(100));
    setting.add_in("a", "a-0", whole(1));
    setting.add_in("b", "b-0", whole(1));
    let more = setting.add_in("b", "b-1", whole(1));
    setting.cycle();
    let (reason, text) = setting.reason(more);
    let Reason::AboveFairShare(share) = &reason else { panic!("{reason:?}") };
    assert_eq!((share.queue.as_str(), share.held, share.asked, share.fair_share), ("b", 1000, 1000, 1000));
    assert!(
        text.starts_with("nothing that is free fits, and queue \"b\" holds 100 % gpu-core of its fair share"),
        "{text}"
    );
    // The lack of room is reported as well, in a later tier.
    assert!(setting.explain(more).reasons.iter().any(|reason| reason.tier() == Tier::Device));
}

#[test]
fn the_resource_beyond_the_share_is_named() {
    let mut setting = Setting::with_nodes(1, 1);
    let small = DeviceSpec { memory: Bytes::new(20 * GIB), ..aliquot_scheduler_kit::device("A") };
    setting.add_node(NodeSpec { devices: vec![small], ..node("small", "A", 0) });
    let of_memory = Allowance { quota: Some(30 * GIB), weight: 0, ..Allowance::default() };
    let allowances = BTreeMap::from([(Resource::DeviceMemory, of_memory)]);
    let queue = QueueSpec { name: "team".into(), allowances, ..QueueSpec::default() };
    setting.cluster.apply(Event::QueueAdded(queue)).expect("a new queue");
    let with_cpu = |request| Request { cpu: MilliCpu::new(1000), ..request };
    setting.add("others", with_cpu(part(100, 15)));
    let low = setting.add_in("team", "low", with_cpu(part(50, 10)));
    setting.cycle();
    assert!(setting.cluster.allocation(low).is_some());
    let mut request = with_cpu(part(50, 0));
    request.devices.memory = DeviceMemory::Thousandths(1000);
    let claim = Claim { name: "high".into(), queue: "team".into(), priority: 100, request, ..Claim::default() };
    let high = setting.add_claim(Claim { preemptible: true, ..claim });
    let plan = setting.cycle();
    let Reason::AboveFairShare(share) = setting.reason(high).0 else { panic!("{}", setting.explain(high)) };
    assert_eq!((&share.resource, share.fair_share), (&Resource::DeviceMemory, 30 * GIB));
    assert_eq!(plan.pending[0].reason(&setting.cluster), Reason::AboveFairShare(share));
}

#[test]
fn who_may_take_several_models_is_told_what_it_asks_for() {
    let mut setting = Setting::with_nodes(1, 4);
    setting.add_node(node("other", "B", 1));
    let of_model = |devices: u64| Allowance { quota: Some(devices * 1000), ..Allowance::default() };
    for (name, devices) in [("a", 3), ("b", 1)] {
        let allowances = BTreeMap::from([(Resource::ModelCore("A".into()), of_model(devices))]);
        let queue = QueueSpec { name: name.into(), allowances, ..QueueSpec::default() };
        setting.cluster.apply(Event::QueueAdded(queue)).expect("a new queue");
    }
    setting.add_in("b", "b-0", whole(2));
    setting.cycle();
    let mut either = whole(4);
    either.constraints.models = ["A", "B"].map(str::to_owned).into();
    let more = setting.add_in("a", "a-0", either);
    setting.cycle();
    let (reason, text) = setting.reason(more);
    let Reason::AboveFairShare(share) = &reason else { panic!("{reason:?}") };
    assert_eq!((share.held, share.asked, share.fair_share), (0, 4000, 3000), "{text}");
}

#[test]
fn who_is_within_his_fair_share_is_told_why_nothing_can_be_taken_back() {
    let mut setting = Setting::with_nodes(1, 3);
    setting.add_queue("rich", None, quota(100));
    setting.add_queue("poor", None, quota(100));
    let borrowed = |name: &str, min_runtime_ms: u64| Claim {
        name: name.into(),
        queue: "rich".into(),
        request: whole(1),
        preemptible: true,
        min_runtime_ms,
        ..Claim::default()
    };
    setting.add_claim(borrowed("first", 0));
    setting.add_claim(borrowed("second", 60_000));
    setting.add_claim(borrowed("third", 90_000));
    setting.cycle();
    setting.cluster.apply(Event::TimeAdvanced(10_000)).expect("time goes on");
    let waits = setting.add_in("poor", "waits", whole(1));
    setting.cycle();
    let (reason, text) = setting.reason(waits);
    let Reason::NothingToReclaim { own, holders } = &reason else { panic!("{reason:?}") };
    assert_eq!((own.held, own.asked, own.fair_share), (0, 1000, 1000));
    let [rich] = holders.as_slice() else { panic!("{holders:?}") };
    assert_eq!((rich.held, rich.fair_share, rich.evictable), (3000, 1000, 0));
    assert_eq!(rich.protected, [(Protection::MinRuntime { left_ms: 50_000 }, 2)]);
    assert!(text.contains("queue \"rich\" holds 300 % gpu-core with a fair share of 100 % gpu-core"), "{text}");
    assert!(text.contains("2 must run 50 s longer first"), "{text}");
}

#[test]
fn a_gang_that_fits_into_no_rack_is_told_which_one_has_most_room() {
    let mut setting = Setting::new();
    setting.cluster.apply(Event::TopologyChanged(vec!["rack".into()])).expect("levels");
    for (name, rack, devices) in [("node-0", "r1", 2), ("node-1", "r2", 3)] {
        let mut spec = node(name, "A", devices);
        spec.labels.insert("rack".into(), rack.into());
        setting.add_node(spec);
    }
    let spread = GroupPlacement { required_level: Some("rack".into()), ..GroupPlacement::default() };
    let gang = PodGroup { name: "gang".into(), min_members: 4, spread, ..PodGroup::default() };
    let (_, members) = setting.add_group(gang, 4, &whole(1));
    setting.cycle();
    let (reason, text) = setting.reason(members[0]);
    assert_eq!(reason, Reason::Topology { level: "rack".into(), wanted: 4, best: Some(("r2".into(), 3)) });
    assert_eq!(text, "no one \"rack\" has room for 4 members; \"r2\" has for 3, more than any other");
}

#[test]
fn a_gang_whose_topology_level_is_gone_is_told_which_levels_there_are() {
    let mut setting = Setting::with_nodes(1, 4);
    let spread = GroupPlacement { required_level: Some("rack".into()), ..GroupPlacement::default() };
    let gang = PodGroup { name: "gang".into(), min_members: 2, spread, ..PodGroup::default() };
    let (_, members) = setting.add_group(gang, 2, &whole(1));
    let plan = setting.cycle();
    let (reason, text) = setting.reason(members[0]);
    assert_eq!(reason, Reason::NoSuchLevel { level: "rack".into(), levels: Vec::new() });
    assert!(text.contains("the cluster has no topology; set one with that level"), "{text}");
    assert_eq!(plan.pending[0].reason(&setting.cluster), reason, "the cycle says so, too");
    assert!(!reason.calls_for_nodes(), "more nodes do not help");
    setting.cluster.apply(Event::TopologyChanged(vec!["zone".into(), "host".into()])).expect("levels");
    setting.cycle();
    let (_, text) = setting.reason(members[0]);
    assert!(text.contains("no level of the cluster's topology (now \"zone\" and \"host\")"), "{text}");
}

#[test]
fn a_gang_that_must_be_on_one_node_is_told_which_one_has_most_room() {
    let mut setting = Setting::with_nodes(2, 2);
    let spread = GroupPlacement { strategy: PlacementStrategy::SingleNode, ..GroupPlacement::default() };
    let gang = PodGroup { name: "gang".into(), min_members: 3, spread, ..PodGroup::default() };
    let (_, members) = setting.add_group(gang, 3, &whole(1));
    setting.cycle();
    let (reason, _) = setting.reason(members[0]);
    assert_eq!(reason, Reason::Topology { level: "node".into(), wanted: 3, best: Some(("node-0".into(), 2)) });
}

#[test]
fn what_nodes_lack_is_counted_and_the_nearest_one_is_named() {
    let mut setting = Setting::with_nodes(3, 1);
    for busy in 0..3 {
        setting.add(&format!("busy-{busy}"), Request { cpu: MilliCpu::new(10_000 - busy * 1000), ..part(60, 10) });
    }
    setting.cycle();
    let waits = setting.add("waits", Request { cpu: MilliCpu::new(7000), ..part(50, 8) });
    let (reason, text) = setting.reason(waits);
    let Reason::NoRoom { wanted: 1, fitting: 0, nodes, nearest: Some(nearest) } = &reason else { panic!("{reason:?}") };
    let devices = |shortage: &Shortage| matches!(shortage, Shortage::Devices { wanted: 1, fitting: 0, .. });
    assert!(nodes[0].nodes == 3 && devices(&nodes[0].what), "{nodes:?}");
    assert_eq!(
        (nodes[1].nodes, &nodes[1].what),
        (1, &Shortage::Cpu { wanted: MilliCpu::new(7000), free: MilliCpu::new(6000) })
    );
    assert!(nearest.node == "node-1" && nearest.lacks.len() == 1, "{nearest:?}");
    assert_eq!(
        text,
        "no node has room now: 3 nodes have too few devices with 50 % gpu-core and 8 GiB of gpu-memory free (1 wanted, \
         at most 0) and 1 node has too little CPU free (7 CPU cores wanted, at most 6 CPU cores); nearest is node \
         \"node-1\", where 0 of the 1 devices that are wanted have 50 % gpu-core and 8 GiB of gpu-memory free"
    );
}

#[test]
fn a_gang_is_told_how_many_of_its_members_find_room() {
    let mut setting = Setting::with_nodes(2, 2);
    let runs = setting.add("runs", whole(1));
    setting.cycle();
    assert!(setting.cluster.allocation(runs).is_some());
    let gang = PodGroup { name: "gang".into(), min_members: 4, ..PodGroup::default() };
    let (_, members) = setting.add_group(gang, 4, &whole(1));
    let plan = setting.cycle();
    let (reason, text) = setting.reason(members[0]);
    assert!(matches!(reason, Reason::NoRoom { wanted: 4, fitting: 3, .. }), "{reason:?}");
    assert!(
        text.starts_with("3 of 4 members that must be placed together find room; for the next no node has"),
        "{text}"
    );
    let known = plan.pending[0].reason(&setting.cluster);
    assert!(matches!(known, Reason::NoRoom { wanted: 4, fitting: 3, nearest: None, .. }), "{known:?}");
}

/// The members that ask for most are placed first. The others find room without them.
#[test]
fn members_behind_one_without_room_are_counted() {
    let mut setting = Setting::with_nodes(1, 2);
    setting.add("runs", whole(1));
    setting.cycle();
    let gang = PodGroup { name: "gang".into(), min_members: 3, ..PodGroup::default() };
    let (_, members) = setting.add_group(gang, 2, &whole(1));
    setting.add_claim(Claim {
        name: "large".into(),
        pod_group: Some("gang".into()),
        request: whole(2),
        ..Claim::default()
    });
    let plan = setting.cycle();
    let (reason, text) = setting.reason(members[0]);
    assert!(matches!(reason, Reason::NoRoom { wanted: 3, fitting: 1, .. }), "{reason:?}");
    assert!(text.starts_with("1 of 3 members that must be placed together find room; for the next no node"), "{text}");
    let smaller = "let 1 member of the pod group start together instead of 3".to_owned();
    let suggested = setting.suggestions(members[0]);
    assert!(suggested.contains(&smaller), "{suggested:?}");
    // A cycle does not look at them.
    assert_eq!(plan.pending[0].reason(&setting.cluster).to_string(), "no node has room now");
}

/// Nothing was sought yet for a gang that the cycle has evicted.
#[test]
fn a_gang_that_was_just_evicted_is_not_counted() {
    let mut setting = Setting::with_nodes(1, 3);
    let gang = PodGroup { name: "gang".into(), min_members: 3, preemptible: true, ..PodGroup::default() };
    setting.add_group(gang, 3, &whole(1));
    setting.cycle();
    let urgent = Claim { name: "urgent".into(), request: whole(1), priority: 90, ..Claim::default() };
    setting.add_claim(urgent);
    let plan = setting.cycle();
    assert_eq!(plan.pending.len(), 1, "{plan:?}");
    assert_eq!(plan.pending[0].reason(&setting.cluster).to_string(), "no node has room now");
    setting.cluster.apply(Event::TimeAdvanced(1)).expect("time goes on");
    let plan = setting.cycle();
    let known = plan.pending[0].reason(&setting.cluster);
    assert!(matches!(known, Reason::NoRoom { wanted: 3, fitting: 2, .. }), "{known:?}");
}

#[test]
fn what_no_node_may_take_is_known_without_an_explanation() {
    let mut setting = Setting::with_nodes(2, 1);
    let mut request = whole(1);
    request.constraints.models.insert("B".into());
    let waits = setting.add("waits", request);
    let plan = setting.cycle();
    let known = plan.pending[0].why_never(&setting.cluster);
    assert_eq!(known, Some(setting.reason(waits).0));
    setting.add("more", whole(3));
    let plan = setting.cycle();
    let of_more = plan.pending.iter().filter(|pending| pending.why_never(&setting.cluster).is_none());
    assert_eq!(of_more.count(), 0, "no node has three devices either");
}

#[test]
fn what_no_node_is_large_enough_for_needs_no_explanation() {
    let mut setting = Setting::with_nodes(2, 1);
    let large = setting.add("large", Request { cpu: MilliCpu::new(1_000_000), ..whole(1) });
    let plan = setting.cycle();
    let known = plan.pending[0].why_never(&setting.cluster);
    assert!(matches!(known, Some(Reason::TooLarge { wanted: 1, fitting: 0, .. })), "{known:?}");
    assert_eq!(known, Some(setting.reason(large).0));

    let mut setting = Setting::with_nodes(2, 1);
    let gang = PodGroup { name: "gang".into(), min_members: 3, ..PodGroup::default() };
    let (_, members) = setting.add_group(gang, 3, &whole(1));
    let plan = setting.cycle();
    let known = plan.pending[0].why_never(&setting.cluster);
    assert!(matches!(known, Some(Reason::TooLarge { wanted: 3, fitting: 2, .. })), "{known:?}");
    assert_eq!(known, Some(setting.reason(members[0]).0));

    // A device that is in use becomes free at some time.
    let mut setting = Setting::with_nodes(1, 1);
    setting.add("first", whole(1));
    setting.add("second", whole(1));
    let plan = setting.cycle();
    assert_eq!((plan.pending.len(), plan.pending[0].why_never(&setting.cluster)), (1, None));
}

#[test]
fn constraints_that_no_node_meets_are_counted_one_by_one() {
    let mut setting = Setting::with_nodes(3, 1);
    let mut tainted = node("tainted", "B", 1);
    let taint = Taint { key: "team".into(), value: "x".into(), ..Taint::default() };
    tainted.taints.push(taint.clone());
    setting.add_node(tainted);
    let mut cordoned = node("cordoned", "B", 1);
    cordoned.cordoned = true;
    setting.add_node(cordoned);
    let mut request = whole(1);
    request.constraints.models.insert("B".into());
    let waits = setting.add("waits", request);
    setting.cycle();
    let (reason, text) = setting.reason(waits);
    let Reason::NoSuchNode { nodes: 5, excluded } = &reason else { panic!("{reason:?}") };
    let counts: Vec<(u32, &Exclusion)> = excluded.iter().map(|excluded| (excluded.nodes, &excluded.what)).collect();
    let models = Exclusion::Devices { request: None, wanted: 1, models: vec!["B".into()], attributes: Vec::new() };
    assert_eq!(counts, [(3, &models), (1, &Exclusion::Cordoned), (1, &Exclusion::Taint(taint))]);
    assert_eq!(reason.tier(), Tier::Model);
    assert_eq!(
        text,
        "none of 5 nodes may take it: 3 nodes have fewer than 1 device of model B, 1 node is cordoned and 1 node has \
         the taint team=x:NoSchedule, which is not tolerated"
    );
    assert_eq!(
        setting.suggestions(waits),
        ["allow devices of model A too", "tolerate the taint team=x:NoSchedule", "uncordon node \"cordoned\""]
    );
}

#[test]
fn attributes_that_no_device_has_are_told_with_the_model() {
    let mut setting = Setting::with_nodes(2, 1);
    let mut request = whole(1);
    request.constraints.models.insert("A".into());
    request.constraints.attributes.insert("architecture".into(), "hopper".into());
    let waits = setting.add("waits", request);
    setting.cycle();
    let (reason, text) = setting.reason(waits);
    assert_eq!(reason.tier(), Tier::Model);
    assert_eq!(
        text,
        "none of 2 nodes may take it: 2 nodes have fewer than 1 device of model A with architecture=hopper"
    );
    assert_eq!(setting.suggestions(waits), ["do not ask for devices with architecture=hopper"]);
}

#[test]
fn what_is_too_large_for_every_node_is_told_so_and_is_no_matter_of_what_is_free() {
    let mut setting = Setting::with_nodes(2, 1);
    let waits = setting.add("waits", cores(17));
    setting.cycle();
    let (reason, text) = setting.reason(waits);
    assert!(matches!(reason, Reason::TooLarge { wanted: 1, fitting: 0, .. }), "{reason:?}");
    assert!(!reason.calls_for_nodes());
    assert_eq!(
        text,
        "no node is large enough, even if nothing else were there: 2 nodes have too little CPU free (17 CPU cores \
         wanted, at most 16 CPU cores); nearest is node \"node-0\", where 16 CPU cores are free and 17 CPU cores wanted"
    );
}

#[test]
fn a_gang_that_the_whole_cluster_could_not_hold_is_too_large() {
    let mut setting = Setting::with_nodes(2, 2);
    let gang = PodGroup { name: "gang".into(), min_members: 5, ..PodGroup::default() };
    let (_, members) = setting.add_group(gang, 5, &whole(1));
    setting.cycle();
    let (reason, _) = setting.reason(members[0]);
    assert!(matches!(reason, Reason::TooLarge { wanted: 5, fitting: 4, .. }), "{reason:?}");
    assert!(reason.calls_for_nodes(), "a third node would hold the fifth member");
}

#[test]
fn a_claim_that_waits_for_others_to_leave_names_them() {
    let mut setting = Setting::with_nodes(1, 1);
    let old = setting.add("old", whole(1));
    setting.cycle();
    let new = setting.add("new", whole(1));
    let cause = aliquot_scheduler_core::Displacement {
        action: aliquot_scheduler_core::Action::Preempt,
        by: setting.cluster.group_of(new),
        by_name: "new".into(),
        at_ms: 0,
        shares: Vec::new(),
    };
    let room = setting.cluster.allocation(old).cloned().expect("it is placed");
    let mut statement = aliquot_scheduler_core::Statement::new(&mut setting.cluster);
    statement.evict(old).expect("it is placed");
    statement.place(new, room).expect("there is room");
    let _ = statement.commit(&cause);
    let (reason, text) = setting.reason(new);
    assert_eq!(reason, Reason::StartsAfter { leaving: vec![(old, "old".into())] });
    assert_eq!(text, "it has its place, and starts when those that are being evicted there are gone: \"old\"");
    // A claim that waits for that needs no new node.
    assert!(!reason.calls_for_nodes());
}

#[test]
fn a_claim_that_could_not_be_started_says_when_it_is_tried_again() {
    let mut setting = Setting::with_nodes(1, 1);
    let claim = setting.add("claim", whole(1));
    setting.cycle();
    setting.cluster.apply(Event::ClaimFailed(claim)).expect("it was placed");
    let (reason, text) = setting.reason(claim);
    assert_eq!(reason, Reason::RetriedLater { failures: 1, left_ms: 1000 });
    assert!(text.starts_with("it could not be started once where it was placed, and is tried again in 1 s"), "{text}");
}

#[test]
fn room_on_nodes_that_are_kept_for_others_is_told() {
    let mut setting = Setting::with_nodes(1, 1);
    let node = setting.cluster.node_named("node-0").expect("a node");
    setting.cluster.set_held(node, true).expect("a node");
    let waits = setting.add("waits", whole(1));
    setting.cycle();
    let (reason, _) = setting.reason(waits);
    assert_eq!(reason, Reason::NodesHeld { nodes: vec!["node-0".into()] });
}

#[test]
fn several_things_in_the_way_are_all_told_the_most_basic_first() {
    let mut setting = Setting::with_nodes(1, 1);
    setting.add_queue("team", None, limit(150));
    setting.add_in("team", "runs", part(80, 20));
    let waits = setting.add_in("team", "waits", part(90, 30));
    setting.cycle();
    let tiers: Vec<Tier> = setting.explain(waits).reasons.iter().map(Reason::tier).collect();
    assert_eq!(tiers, [Tier::Quota, Tier::Device]);
    // Only a change that removes both obstacles helps; no other single change does.
    assert_eq!(setting.suggestions(waits), ["wait until \"runs\" ends"]);
}

#[test]
fn equal_claims_of_a_queue_wait_for_one_reason() {
    let mut setting = Setting::with_nodes(1, 1);
    setting.add_queue("red", None, limit(100));
    setting.add_queue("blue", None, limit(100));
    for number in 0..300 {
        let queue = ["red", "blue", "default"][number % 3];
        setting.add_in(queue, &format!("claim-{number}"), whole(1));
    }
    let plan = setting.cycle();
    let reasons = plan.reasons(&setting.cluster);
    assert_eq!((plan.steps.len(), plan.pending.len(), reasons.numbers().len()), (1, 299, 299));
    assert!(reasons.distinct().len() <= 3, "{:?}", reasons.distinct());
    assert!((0..299).all(|turn| reasons.of(turn) == Some(&plan.pending[turn].reason(&setting.cluster))));
}

#[test]
fn nothing_in_the_way_is_told_as_well() {
    let mut setting = Setting::with_nodes(1, 1);
    let claim = setting.add("claim", part(50, 10));
    assert_eq!(
        setting.explain(claim).to_string(),
        "\"claim\" waits; nothing is in its way, and the next cycle places it."
    );
    setting.cycle();
    assert_eq!(setting.explain(claim).to_string(), "\"claim\" runs on node \"node-0\".");
}

#[test]
fn memory_of_a_device_is_told_in_bytes_and_parts_as_it_was_asked_for() {
    let mut setting = Setting::with_nodes(1, 1);
    setting.add("runs", part(10, 30));
    setting.cycle();
    let third = DeviceRequest { memory: DeviceMemory::Thousandths(333), ..part(10, 0).devices };
    let waits = setting.add("waits", Request { devices: third, memory: Bytes::new(GIB), ..Request::default() });
    let (_, text) = setting.reason(waits);
    assert!(text.contains("with 10 % gpu-core and 33.3 % of the gpu-memory free"), "{text}");
}

#[test]
fn room_that_the_next_cycle_makes_is_told_with_who_makes_way() {
    let mut setting = Setting::with_nodes(1, 1);
    let unimportant = setting.add("unimportant", whole(1));
    setting.cycle();
    let request = whole(1);
    let important = setting.add_claim(Claim { name: "important".into(), priority: 100, request, ..Claim::default() });
    let (reason, text) = setting.reason(important);
    assert_eq!(reason, Reason::RoomIsMade { making_way: vec![(unimportant, "unimportant".into())] });
    assert_eq!(text, "the next cycle makes room for it: \"unimportant\" must make way");
    assert!(setting.explain(important).changes.is_empty(), "nothing has to be changed");
    assert!(!reason.calls_for_nodes());
    setting.cycle();
    assert!(setting.cluster.allocation(important).is_some());
    let displaced = setting.explain(unimportant);
    assert_eq!(displaced.evictions[0].by, "important");
    assert!(matches!(displaced.reasons[0], Reason::NoRoom { .. }), "{displaced}");
}

#[test]
fn a_group_that_waits_before_others_are_evicted_for_it_says_how_long() {
    let mut setting = Setting::with_nodes(1, 1);
    setting.add("unimportant", whole(1));
    setting.cycle();
    let gang = PodGroup {
        name: "patient".into(),
        priority: 100,
        min_members: 1,
        preemption_delay_ms: 30_000,
        ..PodGroup::default()
    };
    let (_, members) = setting.add_group(gang, 1, &whole(1));
    let plan = setting.cycle();
    let (reason, text) = setting.reason(members[0]);
    assert_eq!(reason, Reason::PreemptionDelayed { left_ms: 30_000 });
    assert_eq!(plan.pending[0].reason(&setting.cluster), reason);
    assert_eq!(text, "others can be evicted for it, but it waits 30 s before that");
    // Until then, a new node would be one too many.
    assert!(!reason.calls_for_nodes());
}

#[test]
fn what_would_cost_far_more_than_is_asked_for_is_told_so() {
    let mut setting = Setting::with_nodes(1, 4);
    let gang = PodGroup { name: "large".into(), min_members: 4, preemptible: true, ..PodGroup::default() };
    let (_, large) = setting.add_group(gang, 4, &whole(1));
    setting.cycle();
    assert!(setting.cluster.allocation(large[0]).is_some());
    let request = part(10, 1);
    let small = setting.add_claim(Claim { name: "small".into(), priority: 100, request, ..Claim::default() });
    let (reason, _) = setting.reason(small);
    // One unit may always be evicted, however large it is.
    assert!(matches!(reason, Reason::RoomIsMade { .. }), "{reason}");

    let mut setting = Setting::with_nodes(1, 1);
    for number in 0..3 {
        let request = Request { cpu: MilliCpu::new(5000), ..part(33, 1) };
        setting.add(&format!("runs-{number}"), request);
    }
    setting.cycle();
    let request = Request { cpu: MilliCpu::new(16_000), ..part(1, 1) };
    let small = setting.add_claim(Claim { name: "small".into(), priority: 100, request, ..Claim::default() });
    let plan = setting.cycle();
    let (reason, text) = setting.reason(small);
    assert_eq!(reason, Reason::TooDisruptive);
    assert_eq!(plan.pending[0].reason(&setting.cluster), reason);
    assert!(text.contains("far more would have to be evicted than it asks for"), "{text}");
}

#[test]
fn a_search_that_was_cut_short_is_not_told_as_a_lack_of_room() {
    let settings = Settings { search_budget: 1, hold_after_ms: None, ..Settings::default() };
    let mut setting = Setting::with_nodes(8, 1);
    setting.scheduler = Scheduler::new(Box::new(BestFit), settings);
    for number in 0..8 {
        setting.add(&format!("runs-{number}"), whole(1));
    }
    setting.cycle();
    let gang = PodGroup { name: "gang".into(), priority: 100, min_members: 8, ..PodGroup::default() };
    let (_, members) = setting.add_group(gang, 8, &whole(1));
    let plan = setting.cycle();
    let reason = plan.pending[0].reason(&setting.cluster);
    assert_eq!((&reason, reason.tier()), (&Reason::SearchExhausted, Tier::Search));
    assert_eq!(setting.reason(members[0]).0, reason);
}
