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
