//! What a cycle decides, in small situations.

use std::collections::BTreeMap;

use aliquot_scheduler_core::placement::BestFit;
use aliquot_scheduler_core::{
    Allowance, Bytes, Claim, ClaimId, Cluster, DeviceRequest, DeviceSpec, Event, MilliCpu, NodeSpec, Outcome, PodGroup,
    QueueSpec, Request, Resource, Scheduler, Settings,
};

fn cluster(nodes: usize, devices: usize) -> Cluster {
    let mut cluster = Cluster::new();
    for number in 0..nodes {
        let device = DeviceSpec { model: "A".into(), memory: Bytes::from_mib(80 << 10), ..DeviceSpec::default() };
        let spec = NodeSpec {
            name: format!("node-{number}"),
            cpu: MilliCpu::new(64_000),
            devices: vec![device; devices],
            ..NodeSpec::default()
        };
        cluster.apply(Event::NodeAdded(spec)).expect("a new node");
    }
    cluster
}

fn add_queue(cluster: &mut Cluster, name: &str, allowance: Allowance) {
    let allowances = BTreeMap::from([(Resource::DeviceCore, allowance)]);
    let spec = QueueSpec { name: name.into(), allowances, ..QueueSpec::default() };
    cluster.apply(Event::QueueAdded(spec)).expect("a new queue");
}

fn add(cluster: &mut Cluster, queue: &str, priority: i32, devices: u16) -> ClaimId {
    let request = Request { devices: DeviceRequest::whole(devices), ..Request::default() };
    let claim = Claim { request, queue: queue.into(), priority, preemptible: true, ..Claim::default() };
    claim_id(cluster.apply(Event::ClaimAdded(claim)).expect("a good claim"))
}

fn claim_id(outcome: Outcome) -> ClaimId {
    match outcome {
        Outcome::Claim(id) => id,
        other => panic!("not a claim's id: {other:?}"),
    }
}

fn scheduler() -> Scheduler {
    Scheduler::new(Box::new(BestFit), Settings::default())
}

fn placed(cluster: &Cluster, claims: &[ClaimId]) -> usize {
    claims.iter().filter(|claim| cluster.allocation(**claim).is_some()).count()
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
            claim_id(cluster.apply(Event::ClaimAdded(claim)).expect("a good claim"))
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
        claim_id(cluster.apply(Event::ClaimAdded(claim)).expect("a good claim"))
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

/// Small claims come as fast as others end, on two nodes of four devices, beside a large one that needs a whole node. Says after how
/// many minutes the large one was placed, if ever in two hours, and how many small ones ran meanwhile.
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
    // Four older ones start before it; five minutes later a node is kept for it, whose claims are all gone after eight more.
    assert!(placed_after.is_some_and(|minute| (10..=18).contains(&minute)), "{placed_after:?}");
    assert!(ran >= 8 + 10, "only {ran} small ones ran meanwhile");
}
