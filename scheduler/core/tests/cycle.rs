//! The plans of cycles in small situations.

use std::collections::BTreeMap;

use aliquot_scheduler_core::placement::BestFit;
use aliquot_scheduler_core::{
    Allowance, Bytes, Claim, ClaimBounds, ClaimId, Cluster, DeviceCore, DeviceMemory, DeviceRequest, DeviceSpec, Event,
    GroupPlacement, LimitRange, MilliCpu, NamespaceSpec, NodeSpec, PlacementStrategy, PodGroup, Request, Resource,
    Scheduler, Settings, SubGroup,
};
use aliquot_scheduler_kit::{self as kit, Build, placed};

fn cluster(nodes: usize, devices: usize) -> Cluster {
    let mut cluster = Cluster::new();
    for number in 0..nodes {
        cluster.add_node(kit::node(&format!("node-{number}"), 64, devices));
    }
    cluster
}

fn add_queue(cluster: &mut Cluster, name: &str, allowance: Allowance) {
    cluster.add_queue(kit::queue(name, allowance));
}

fn add(cluster: &mut Cluster, queue: &str, priority: i32, devices: u16) -> ClaimId {
    cluster.add_claim(Claim {
        request: kit::whole(devices),
        queue: queue.into(),
        priority,
        preemptible: true,
        ..Claim::default()
    })
}

fn scheduler() -> Scheduler {
    Scheduler::new(Box::new(BestFit), Settings::default())
}

#[test]
fn queues_of_equal_weight_take_turns_however_many_claims_each_has() {
    let mut cluster = cluster(2, 4);
    let even = Allowance { quota: Some(0), weight: 1, ..Allowance::default() };
    add_queue(&mut cluster, "many", even);
    add_queue(&mut cluster, "few", even);
    let many: Vec<ClaimId> = (0..20).map(|_| add(&mut cluster, "many", 50, 1)).collect();
    let few: Vec<ClaimId> = (0..4).map(|_| add(&mut cluster, "few", 50, 1)).collect();
    let plan = scheduler().cycle(&mut cluster);
    assert_eq!((placed(&cluster, &many), placed(&cluster, &few)), (4, 4));
    assert_eq!((plan.steps.len(), plan.pending.len()), (8, 16));
}

#[test]
fn a_limit_holds_although_there_is_room() {
    let mut cluster = cluster(2, 4);
    add_queue(&mut cluster, "limited", Allowance { quota: Some(0), limit: Some(3000), weight: 1, priority: None });
    let claims: Vec<ClaimId> = (0..6).map(|_| add(&mut cluster, "limited", 50, 1)).collect();
    scheduler().cycle(&mut cluster);
    assert_eq!(placed(&cluster, &claims), 3);
}

#[test]
fn claims_that_cannot_be_evicted_stay_within_the_quota() {
    let mut cluster = cluster(2, 4);
    add_queue(&mut cluster, "team", Allowance { quota: Some(2000), limit: None, weight: 1, priority: None });
    let fixed: Vec<ClaimId> = (0..4)
        .map(|_| {
            let request = Request { devices: DeviceRequest::whole(1), ..Request::default() };
            let claim = Claim { request, queue: "team".into(), preemptible: false, ..Claim::default() };
            cluster.add_claim(claim)
        })
        .collect();
    let others: Vec<ClaimId> = (0..4).map(|_| add(&mut cluster, "team", 50, 1)).collect();
    scheduler().cycle(&mut cluster);
    assert_eq!((placed(&cluster, &fixed), placed(&cluster, &others)), (2, 4));
}

#[test]
fn a_gang_is_placed_as_a_whole_or_not_at_all_and_grows_afterwards() {
    let mut cluster = cluster(2, 4);
    let group = PodGroup { name: "gang".into(), min_members: 6, ..PodGroup::default() };
    cluster.apply(Event::PodGroupAdded(group)).expect("a new group");
    let member = |cluster: &mut Cluster| {
        let request = Request { devices: DeviceRequest::whole(1), ..Request::default() };
        let claim = Claim { request, pod_group: Some("gang".into()), ..Claim::default() };
        cluster.add_claim(claim)
    };
    let mut members: Vec<ClaimId> = (0..5).map(|_| member(&mut cluster)).collect();
    let mut scheduler = scheduler();
    let early = scheduler.cycle(&mut cluster);
    assert_eq!((placed(&cluster, &members), early.pending.len()), (0, 1), "a member is missing");
    let in_the_way = add(&mut cluster, "", 100, 3);
    scheduler.cycle(&mut cluster);
    assert_eq!(placed(&cluster, &[in_the_way]), 1);
    members.push(member(&mut cluster));
    scheduler.cycle(&mut cluster);
    assert_eq!(placed(&cluster, &members), 0, "there are five devices for six members");
    cluster.apply(Event::ClaimRemoved(in_the_way)).expect("it is there");
    members.extend([member(&mut cluster), member(&mut cluster), member(&mut cluster)]);
    scheduler.cycle(&mut cluster);
    assert_eq!(placed(&cluster, &members), 8, "all six, and two of the three others");
}

/// Small claims come as fast as others end, on two nodes of four devices, beside a large claim that needs a whole node.
/// Returns after how many minutes the large claim was placed, if within two hours, and how many small claims ran
/// meanwhile.
fn minutes_until_the_large_one_is_placed(settings: Settings) -> (Option<u64>, usize) {
    let mut cluster = cluster(2, 4);
    let mut scheduler = Scheduler::new(Box::new(BestFit), settings);
    let mut small: Vec<ClaimId> = (0..12).map(|_| add(&mut cluster, "", 50, 1)).collect();
    scheduler.cycle(&mut cluster);
    let large = add(&mut cluster, "", 50, 4);
    let mut ran = placed(&cluster, &small);
    for minute in 1..=120 {
        cluster.apply(Event::TimeAdvanced(minute * 60_000)).expect("time goes on");
        let ended = small.iter().position(|claim| cluster.allocation(*claim).is_some()).expect("some run");
        cluster.apply(Event::ClaimRemoved(small.remove(ended))).expect("it is there");
        small.push(add(&mut cluster, "", 50, 1));
        let before = placed(&cluster, &small);
        scheduler.cycle(&mut cluster);
        ran += placed(&cluster, &small) - before;
        if cluster.allocation(large).is_some() {
            return (Some(minute), ran);
        }
    }
    (None, ran)
}

#[test]
fn small_claims_fill_what_a_large_one_cannot_use_but_do_not_keep_it_waiting_for_ever() {
    let never = minutes_until_the_large_one_is_placed(Settings { hold_after_ms: None, ..Settings::default() });
    assert_eq!(never, (None, 8 + 120), "whatever ends, a small one is there at once");
    let (placed_after, ran) = minutes_until_the_large_one_is_placed(Settings::default());
    // Four older claims start before it. A node is kept for it once it has waited for five minutes and some running
    // claims are not older than it.
    assert!(placed_after.is_some_and(|minute| (10..=18).contains(&minute)), "{placed_after:?}");
    assert!(ran >= 8 + 6, "only {ran} small ones ran meanwhile");
}

/// Six nodes of four devices in three racks of two, the racks in two zones.
fn racks() -> Cluster {
    let mut cluster = Cluster::new();
    cluster.apply(Event::TopologyChanged(vec!["zone".into(), "rack".into()])).expect("different labels");
    for number in 0..6 {
        let device = DeviceSpec { memory: Bytes::from_mib(80 << 10), ..DeviceSpec::default() };
        let labels = [("zone", number / 4), ("rack", number / 2)].map(|(key, value)| (key.into(), format!("{value}")));
        let spec = NodeSpec {
            name: format!("node-{number}"),
            labels: labels.into(),
            cpu: MilliCpu::new(64_000),
            devices: vec![device; 4],
            ..NodeSpec::default()
        };
        cluster.apply(Event::NodeAdded(spec)).expect("a new node");
    }
    cluster
}

fn gang(cluster: &mut Cluster, name: &str, members: u32, devices: u16, spread: GroupPlacement) -> Vec<ClaimId> {
    let group = PodGroup { name: name.into(), min_members: members, spread, ..PodGroup::default() };
    cluster.apply(Event::PodGroupAdded(group)).expect("a new group");
    let member = |_| {
        let request = Request { devices: DeviceRequest::whole(devices), ..Request::default() };
        let claim = Claim { request, pod_group: Some(name.into()), ..Claim::default() };
        cluster.add_claim(claim)
    };
    (0..members).map(member).collect()
}

/// The node name of each claim; empty for a pending one.
fn nodes_of(cluster: &Cluster, claims: &[ClaimId]) -> Vec<String> {
    let name = |claim: &ClaimId| {
        let node = cluster.allocation(*claim).and_then(|allocation| cluster.node(allocation.node));
        node.map_or(String::new(), |node| node.spec().name.clone())
    };
    claims.iter().map(name).collect()
}

#[test]
fn a_gang_that_must_be_in_one_rack_waits_for_one_although_there_is_room_in_two() {
    let mut cluster = racks();
    let taken: Vec<ClaimId> = (0..3).map(|_| add(&mut cluster, "", 100, 4)).collect();
    let mut scheduler = scheduler();
    scheduler.cycle(&mut cluster);
    assert_eq!(nodes_of(&cluster, &taken), ["node-0", "node-1", "node-2"]);
    let one_rack = GroupPlacement { required_level: Some("rack".into()), ..GroupPlacement::default() };
    // Rack 0 is full, rack 1 has one node left, and rack 2 has both.
    let first = gang(&mut cluster, "first", 2, 4, one_rack.clone());
    let second = gang(&mut cluster, "second", 2, 2, one_rack.clone());
    let third = gang(&mut cluster, "third", 2, 2, one_rack);
    scheduler.cycle(&mut cluster);
    assert_eq!(nodes_of(&cluster, &first), ["node-4", "node-5"]);
    assert_eq!(nodes_of(&cluster, &second), ["node-3", "node-3"]);
    assert_eq!(nodes_of(&cluster, &third), ["", ""]);
}

#[test]
fn a_preferred_level_gives_way_and_a_required_one_does_not() {
    let mut cluster = racks();
    let wide = GroupPlacement {
        required_level: Some("zone".into()),
        preferred_level: Some("rack".into()),
        ..GroupPlacement::default()
    };
    let mut scheduler = scheduler();
    let fits_in_a_rack = gang(&mut cluster, "narrow", 2, 4, wide.clone());
    scheduler.cycle(&mut cluster);
    assert_eq!(nodes_of(&cluster, &fits_in_a_rack), ["node-4", "node-5"], "the zone that it fills");
    let fits_in_a_zone = gang(&mut cluster, "wide", 3, 4, wide.clone());
    let fits_in_none = gang(&mut cluster, "too wide", 3, 4, wide);
    scheduler.cycle(&mut cluster);
    assert_eq!(nodes_of(&cluster, &fits_in_a_zone), ["node-0", "node-1", "node-2"]);
    assert_eq!(nodes_of(&cluster, &fits_in_none), ["", "", ""]);
}

#[test]
fn a_gang_that_no_rack_can_take_stays_in_one_zone() {
    let at = |zone: &str, rack: &str, devices| {
        let labels = [("zone", zone), ("rack", rack)].map(|(key, value)| (key.to_owned(), value.to_owned()));
        NodeSpec { labels: labels.into_iter().collect(), ..kit::node(rack, 64, devices) }
    };
    let mut cluster = Cluster::new();
    cluster.apply(Event::TopologyChanged(vec!["zone".into(), "rack".into()])).expect("different labels");
    // Best fit alone would take the racks with two devices, one in each zone.
    for (zone, rack, devices) in [("a", "a-0", 2), ("a", "a-1", 3), ("b", "b-0", 2), ("b", "b-1", 3)] {
        cluster.add_node(at(zone, rack, devices));
    }
    let near = GroupPlacement { preferred_level: Some("rack".into()), ..GroupPlacement::default() };
    let pair = gang(&mut cluster, "pair", 2, 2, near.clone());
    let trio = gang(&mut cluster, "trio", 3, 1, near);
    scheduler().cycle(&mut cluster);
    assert_eq!(nodes_of(&cluster, &pair), ["a-0", "a-1"]);
    assert_eq!(nodes_of(&cluster, &trio), ["b-1"; 3], "and one that a rack can take is in one rack");
}

#[test]
fn a_gang_that_no_rack_can_take_is_in_few_of_them() {
    let mut cluster = Cluster::new();
    cluster.apply(Event::TopologyChanged(vec!["rack".into()])).expect("one label");
    for (rack, devices) in [("small", 1), ("middle", 2), ("large", 4)] {
        let labels = [("rack".to_owned(), rack.to_owned())].into_iter().collect();
        cluster.add_node(NodeSpec { labels, ..kit::node(rack, 64, devices) });
    }
    let near = GroupPlacement { preferred_level: Some("rack".into()), ..GroupPlacement::default() };
    let five = gang(&mut cluster, "five", 5, 1, near);
    scheduler().cycle(&mut cluster);
    // Best fit alone would fill the smallest racks first, and be in all three.
    assert_eq!(nodes_of(&cluster, &five), ["large", "large", "large", "large", "small"]);
}

#[test]
fn members_are_spread_or_kept_on_one_node_as_the_group_says() {
    let mut cluster = racks();
    let strategy = |strategy: PlacementStrategy| GroupPlacement { strategy, ..GroupPlacement::default() };
    let spread = gang(&mut cluster, "spread", 8, 1, strategy(PlacementStrategy::SpreadEvenly));
    let together = gang(&mut cluster, "together", 3, 1, strategy(PlacementStrategy::SingleNode));
    let few = GroupPlacement { max_devices_per_node: Some(2), ..GroupPlacement::default() };
    let few = gang(&mut cluster, "few", 3, 1, few);
    scheduler().cycle(&mut cluster);
    let per_node = |claims: &[ClaimId]| {
        let mut counts = BTreeMap::new();
        nodes_of(&cluster, claims).into_iter().for_each(|node| *counts.entry(node).or_insert(0) += 1);
        let mut counts: Vec<i32> = counts.into_values().collect();
        counts.sort_unstable();
        counts
    };
    assert_eq!(per_node(&spread), [1, 1, 1, 1, 2, 2]);
    assert_eq!(per_node(&together), [3]);
    assert!(per_node(&few).iter().all(|devices| *devices <= 2));
    assert_eq!(placed(&cluster, &few), 3);
}

#[test]
fn sub_groups_are_each_in_a_domain_of_their_own_and_all_come_together() {
    let mut cluster = racks();
    let rack = |name: &str, min_members| SubGroup {
        name: name.into(),
        min_members,
        required_level: Some("rack".into()),
        ..SubGroup::default()
    };
    let group = PodGroup {
        name: "job".into(),
        min_members: 5,
        sub_groups: vec![rack("left", 2), rack("right", 2)],
        ..PodGroup::default()
    };
    cluster.apply(Event::PodGroupAdded(group)).expect("a new group");
    let mut member = |sub_group: Option<&str>, devices| {
        let request = Request { devices: DeviceRequest::whole(devices), ..Request::default() };
        let sub_group = sub_group.map(str::to_owned);
        let claim = Claim { request, pod_group: Some("job".into()), sub_group, ..Claim::default() };
        cluster.add_claim(claim)
    };
    let head = member(None, 1);
    let left = [member(Some("left"), 4), member(Some("left"), 4)];
    let mut right = vec![member(Some("right"), 3)];
    let mut scheduler = scheduler();
    scheduler.cycle(&mut cluster);
    assert_eq!(placed(&cluster, &[head, left[0], left[1], right[0]]), 0, "one of the right is missing");
    let request = Request { devices: DeviceRequest::whole(3), ..Request::default() };
    let last = Claim { request, pod_group: Some("job".into()), sub_group: Some("right".into()), ..Claim::default() };
    right.push(cluster.add_claim(last));
    scheduler.cycle(&mut cluster);
    let rack = |claims: &[ClaimId]| {
        let rack = |node: &String| {
            let node = cluster.node_named(node).and_then(|node| cluster.node(node))?;
            node.spec().labels.get("rack").map(str::to_owned)
        };
        let racks: Vec<Option<String>> = nodes_of(&cluster, claims).iter().map(rack).collect();
        assert!(racks.windows(2).all(|pair| pair[0] == pair[1]), "{racks:?}");
        racks[0].clone().expect("it is placed")
    };
    assert_ne!(rack(&left), rack(&right));
    assert_eq!(placed(&cluster, &[head]), 1);
}

/// The part that must be in one rack would be placed best on the small node, which has no room for the rest.
#[test]
fn a_gang_on_one_node_is_where_all_of_its_parts_fit() {
    let mut cluster = Cluster::new();
    cluster.apply(Event::TopologyChanged(vec!["rack".into()])).expect("one label");
    for (name, rack, devices) in [("bare", None, 8), ("small", Some("a"), 2), ("large", Some("a"), 4)] {
        let labels = rack.map(|rack| ("rack".to_owned(), rack.to_owned())).into_iter().collect();
        cluster.add_node(NodeSpec { labels, ..kit::node(name, 64, devices) });
    }
    let sub_group = |name: &str, min_members, required_level: Option<&str>| SubGroup {
        name: name.into(),
        min_members,
        required_level: required_level.map(str::to_owned),
        ..SubGroup::default()
    };
    let group = |name: &str, level| PodGroup {
        name: name.into(),
        min_members: 4,
        sub_groups: vec![sub_group("near", 2, Some(level)), sub_group("any", 2, None)],
        spread: GroupPlacement { strategy: PlacementStrategy::SingleNode, ..GroupPlacement::default() },
        ..PodGroup::default()
    };
    let members = |cluster: &mut Cluster, of: &str| {
        ["near", "near", "any", "any"].map(|sub_group| {
            let request = Request { devices: DeviceRequest::whole(1), ..Request::default() };
            let sub_group = Some(sub_group.into());
            cluster.add_claim(Claim { request, pod_group: Some(of.into()), sub_group, ..Claim::default() })
        })
    };
    cluster.apply(Event::PodGroupAdded(group("job", "rack"))).expect("a new group");
    cluster.apply(Event::PodGroupAdded(group("nowhere", "row"))).expect("a new group");
    let (job, nowhere) = (members(&mut cluster, "job"), members(&mut cluster, "nowhere"));
    scheduler().cycle(&mut cluster);
    assert_eq!(nodes_of(&cluster, &job), ["large"; 4]);
    assert_eq!(nodes_of(&cluster, &nowhere), [""; 4], "no node is in a row");
}

#[test]
fn a_namespace_with_a_quota_is_a_queue_and_bounds_what_each_claim_asks_for() {
    let mut cluster = cluster(2, 4);
    let bounds = ClaimBounds { default: Some(500), minimum: None, maximum: Some(2000) };
    let namespace = NamespaceSpec {
        name: "lab".into(),
        limit: BTreeMap::from([(Resource::DeviceCore, 2500)]),
        limit_range: LimitRange { device_core: bounds, ..LimitRange::default() },
        ..NamespaceSpec::default()
    };
    cluster.apply(Event::NamespaceChanged(namespace)).expect("a good namespace");
    let claim = |core: u32, count: u16| {
        let devices = DeviceRequest { count, core: DeviceCore::new(core), memory: DeviceMemory::Bytes(Bytes::new(1)) };
        let request = Request { devices, ..Request::default() };
        Claim { request, namespace: "lab".into(), preemptible: true, ..Claim::default() }
    };
    let refused = cluster.apply(Event::ClaimAdded(claim(1000, 3))).expect_err("three devices are too many");
    assert_eq!(
        refused.to_string(),
        "the claim asks for 300 % gpu-core, the most that namespace \"lab\" allows a claim is 200 % gpu-core; ask for less"
    );
    let mut add = |core, count| cluster.add_claim(claim(core, count));
    let claims = [add(0, 1), add(1000, 2), add(500, 1)];
    assert_eq!(cluster.claim(claims[0]).map(|claim| claim.request.devices.core), Some(DeviceCore::new(500)));
    let plan = scheduler().cycle(&mut cluster);
    assert_eq!(placed(&cluster, &claims), 2, "3000 thousandths are asked for, 2500 are the limit");
    assert_eq!(plan.pending.len(), 1);
    let queue = cluster.queue_named("namespace/lab").expect("the namespace's queue");
    assert_eq!(cluster.allocated(queue, &Resource::DeviceCore), 2500);
    let in_use = cluster.apply(Event::NamespaceRemoved("lab".into())).expect_err("claims are in it");
    assert!(in_use.to_string().contains("remove them first"), "{in_use}");
}

/// Adds a group that must be on one node. Each member has a sub-group of its own, which must be in one rack.
fn one_node_gang(cluster: &mut Cluster, members: &[(&str, u16)], max_devices_per_node: Option<u16>) -> Vec<ClaimId> {
    let sub_group = |(name, _): &(&str, u16)| SubGroup {
        name: (*name).into(),
        min_members: 1,
        required_level: Some("rack".into()),
        ..SubGroup::default()
    };
    let group = PodGroup {
        name: "job".into(),
        min_members: 2,
        sub_groups: members.iter().map(sub_group).collect(),
        spread: GroupPlacement {
            strategy: PlacementStrategy::SingleNode,
            max_devices_per_node,
            ..GroupPlacement::default()
        },
        ..PodGroup::default()
    };
    cluster.apply(Event::PodGroupAdded(group)).expect("a new group");
    let mut add = |(sub_group, devices): &(&str, u16)| {
        let (pod_group, sub_group) = (Some("job".into()), Some((*sub_group).into()));
        let request = kit::whole(*devices);
        cluster.add_claim(Claim { request, pod_group, sub_group, ..Claim::default() })
    };
    members.iter().map(&mut add).collect()
}

#[test]
fn members_on_one_node_stay_within_their_devices_per_node() {
    for (most, expected) in [(4, 0), (5, 2)] {
        let mut cluster = Cluster::new();
        cluster.apply(Event::TopologyChanged(vec!["rack".into()])).expect("one label");
        let labels = [("rack".to_owned(), "a".to_owned())].into_iter().collect();
        cluster.add_node(NodeSpec { labels, ..kit::node("node", 64, 8) });
        let gang = one_node_gang(&mut cluster, &[("left", 2), ("right", 3)], Some(most));
        scheduler().cycle(&mut cluster);
        assert_eq!(placed(&cluster, &gang), expected, "at most {most} devices on a node");
    }
}
