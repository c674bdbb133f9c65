//! What a cluster learns from claims that end.

use aliquot_scheduler_core::placement::{
    BestFit, Engine, ExpectedWaste, Mix, NodeChange, Policy, TurnoverWeights, Weights,
};
use aliquot_scheduler_core::{
    Allocation, Claim, ClaimId, Cluster, DeviceAllocation, DeviceCore, DeviceMemory, DeviceRequest, DeviceSpec, Dump,
    Event, MilliCpu, NodeId, NodeSpec, Request, Scheduler, Settings,
};
use aliquot_scheduler_kit::Build;

/// What the end of a claim for one device adds to [`Dump::turnover`].
const DEVICE: u64 = 1000 << 10;

fn request(count: u16, core: u32, cores: u64) -> Request {
    Request {
        cpu: MilliCpu::new(cores * 1000),
        devices: DeviceRequest { count, core: DeviceCore::new(core), memory: DeviceMemory::default() },
        ..Request::default()
    }
}

fn cluster(nodes: usize) -> (Cluster, Vec<NodeId>) {
    let mut cluster = Cluster::new();
    let ids = (0..nodes).map(|number| {
        let spec = NodeSpec {
            name: format!("n{number}"),
            cpu: MilliCpu::new(96_000),
            devices: vec![DeviceSpec::default(); 8],
            ..NodeSpec::default()
        };
        cluster.add_node(spec)
    });
    let ids = ids.collect();
    (cluster, ids)
}

fn add(cluster: &mut Cluster, request: &Request) -> ClaimId {
    cluster.add_claim(Claim { request: request.clone(), ..Claim::default() })
}

/// Starts a claim for whole devices on these devices.
fn run(cluster: &mut Cluster, node: NodeId, devices: std::ops::Range<u16>) -> ClaimId {
    let request = request(u16::try_from(devices.len()).expect("few"), 1000, 1);
    let claim = add(cluster, &request);
    let memory = DeviceSpec::default().memory;
    let devices = devices.map(|device| DeviceAllocation { device, core: request.devices.core, memory }).collect();
    cluster.apply(Event::ClaimPlaced(claim, Allocation { node, devices, alternative: 0 })).expect("there is room");
    claim
}

fn ended(cluster: &Cluster) -> u64 {
    cluster.dump().turnover.ended
}

#[test]
fn only_claims_that_run_and_are_removed_have_ended() {
    let (mut cluster, nodes) = cluster(4);
    let apply = |cluster: &mut Cluster, event| _ = cluster.apply(event).expect("the event is possible");
    let waiting = add(&mut cluster, &request(1, 1000, 1));
    apply(&mut cluster, Event::ClaimRemoved(waiting));
    let [evicted, failed, lost] = [0, 1, 2].map(|device| run(&mut cluster, nodes[0], device..device + 1));
    apply(&mut cluster, Event::ClaimEvicted(evicted));
    apply(&mut cluster, Event::ClaimRemoved(evicted));
    apply(&mut cluster, Event::ClaimFailed(failed));
    apply(&mut cluster, Event::NodeRemoved(nodes[0]));
    apply(&mut cluster, Event::ClaimRemoved(lost));
    assert_eq!(ended(&cluster), 0);
    let runs = run(&mut cluster, nodes[1], 0..4);
    apply(&mut cluster, Event::ClaimRemoved(runs));
    assert_eq!(ended(&cluster), 4 * DEVICE);
}

#[test]
fn a_claim_that_is_withdrawn_while_it_runs_has_ended_once() {
    let (mut cluster, nodes) = cluster(1);
    let runs = run(&mut cluster, nodes[0], 0..4);
    cluster.apply(Event::ClaimWithdrawn(runs)).expect("it is there");
    assert_eq!(ended(&cluster), 4 * DEVICE);
    cluster.apply(Event::ClaimRemoved(runs)).expect("it is there");
    assert_eq!(ended(&cluster), 4 * DEVICE);
}

#[test]
fn a_claim_that_was_placed_and_waits_to_start_has_not_ended_when_it_is_removed() {
    let (mut cluster, _) = cluster(1);
    let mut scheduler = Scheduler::new(Box::new(BestFit), Settings::default());
    let mut add = |priority| {
        let of = Claim { request: request(8, 1000, 1), priority, preemptible: true, ..Claim::default() };
        let claim = cluster.add_claim(of);
        scheduler.cycle(&mut cluster);
        claim
    };
    let (low, high) = (add(0), add(100));
    assert!(cluster.leaving(low).is_some() && cluster.allocation(high).is_some());
    assert_eq!(cluster.started_ms(high), None, "it waits for the other one to leave");
    cluster.apply(Event::ClaimRemoved(high)).expect("it is there");
    cluster.apply(Event::ClaimRemoved(low)).expect("it is there");
    assert_eq!(ended(&cluster), 0);
}

#[test]
fn what_was_learned_is_known_after_a_restore() {
    let (mut cluster, nodes) = cluster(2);
    let claims: Vec<ClaimId> = (0..8).map(|device| run(&mut cluster, nodes[0], device..device + 1)).collect();
    run(&mut cluster, nodes[1], 0..8);
    for claim in claims {
        cluster.apply(Event::ClaimRemoved(claim)).expect("it runs");
    }
    let dump = cluster.dump();
    assert_eq!((dump.turnover.ended, dump.turnover.eighths), (8 * DEVICE, 8));
    let mut restored = Cluster::restore(dump.clone()).expect("a possible state");
    assert_eq!(restored.dump(), dump);
    // What is placed is restored as well: the decay is the same.
    for cluster in [&mut cluster, &mut restored] {
        add(cluster, &request(1, 1000, 1));
    }
    assert!(ended(&cluster) < 8 * DEVICE);
    assert_eq!(restored.dump(), cluster.dump());
}

#[test]
fn a_turnover_that_cannot_be_is_bounded() {
    let mut dump = Dump::default();
    (dump.turnover.ended, dump.turnover.eighths) = (u64::MAX, 200);
    let mut cluster = Cluster::restore(dump).expect("a possible state");
    add(&mut cluster, &request(1, 1000, 1));
    assert_eq!(cluster.dump().turnover.eighths, 8);
}

const NOTHING: TurnoverWeights = TurnoverWeights { deviations: 0, node_left: 0, core_left: 0, scarcity: 0 };

/// The places of many claims. Every `ends`-th claim ends after another one has come.
fn placements(turnover: TurnoverWeights, ends: usize) -> Vec<Option<Allocation>> {
    let requests = [request(1, 470, 4), request(1, 810, 3), request(1, 1000, 11), request(8, 1000, 64)];
    let (mut cluster, _) = cluster(60);
    let weights = Weights { turnover, ..Weights::default() };
    let mut engine = Engine::new(ExpectedWaste::new(&Mix::of(&requests), weights));
    let (mut running, mut placements) = (std::collections::VecDeque::new(), Vec::new());
    for number in 0..3000_usize {
        // Tasks for eight devices are rare.
        let claim = add(&mut cluster, &requests[if number % 40 == 39 { 3 } else { number * 7 % 3 }]);
        let placement = cluster.class_of(claim).and_then(|class| engine.place(&cluster, class));
        match &placement {
            Some(allocation) => {
                cluster.apply(Event::ClaimPlaced(claim, allocation.clone())).expect("there is room");
                running.push_back(claim);
            }
            None => _ = cluster.apply(Event::ClaimRemoved(claim)).expect("it is there"),
        }
        placements.push(placement);
        if ends > 0 && number > 300 && number % ends == 0 {
            let middle = running.len() * (number * 7919 % 97) / 97;
            let gone = running.remove(middle).expect("many run");
            cluster.apply(Event::ClaimRemoved(gone)).expect("it runs");
        }
    }
    placements
}

#[test]
fn where_nothing_ends_turnover_changes_no_decision() {
    assert_eq!(placements(Weights::default().turnover, 0), placements(NOTHING, 0));
}

#[test]
fn where_tasks_end_turnover_changes_decisions() {
    assert_ne!(placements(Weights::default().turnover, 1), placements(NOTHING, 1));
}

#[test]
fn where_enough_has_ended_the_fuller_node_is_cheaper_by_what_is_left_free_of_the_other() {
    let (mut cluster, nodes) = cluster(2);
    run(&mut cluster, nodes[0], 0..2);
    run(&mut cluster, nodes[1], 0..6);
    let one = request(1, 1000, 11);
    let mut policy = ExpectedWaste::new(&Mix::of([&one, &request(8, 1000, 64)]), Weights::default());
    let mut difference = |eighths: u8| {
        let changed = policy.turnover(eighths);
        let [emptier, fuller] = [0, 1].map(|number| {
            let node = cluster.node(nodes[number]).expect("it is there");
            policy.node_changed(NodeChange { id: nodes[number], node: Some(node), spec: true });
            policy.bid(nodes[number], node, &one).cost
        });
        (changed, emptier - fuller)
    };
    let (_, before) = difference(0);
    assert_eq!(difference(3), (false, before), "what has ended is not enough yet");
    // Four more devices are left free. Each costs 60 thousandths of a device, in units of 1/64.
    assert_eq!(difference(4), (true, before + 4 * 60 * 64));
    assert_eq!(difference(8), (false, before + 4 * 60 * 64));
    assert_eq!(difference(0), (true, before));
}
