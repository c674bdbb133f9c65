//! Nothing is given out twice and nothing is lost, whatever happens.

use std::collections::BTreeMap;
use std::sync::Arc;

use aliquot_scheduler_core::{
    Action, Allocation, Alternative, Alternatives, Bytes, Claim, ClaimId, Cluster, DeviceAllocation, DeviceCore,
    DeviceMemory, DeviceRequest, DeviceSpec, Displacement, Event, FurtherRequest, FurtherRequests, Health, KnownClaim,
    MilliCpu, NodeId, NodeSpec, Outcome, Request, Statement,
};
use aliquot_scheduler_kit::Build;
use proptest::collection::vec;
use proptest::option;
use proptest::prelude::*;

/// The next move of a test. Numbers are taken modulo the count of the existing things.
#[derive(Clone, Debug)]
enum Move {
    AddNode { devices: u8, memory_mib: u64 },
    RemoveNode(usize),
    Health { node: usize, device: u8, healthy: bool },
    Add(Request),
    Remove(usize),
    Place { claim: usize, node: usize, first: u16 },
    Evict(usize),
    Resize { claim: usize, request: Request },
    Trial { moves: Vec<(usize, usize, u16)>, rollback_to: usize, commit: bool },
}

fn request() -> impl Strategy<Value = Request> {
    let memory = prop_oneof![
        (0u64..40_000).prop_map(|mib| DeviceMemory::Bytes(Bytes::from_mib(mib))),
        (0u32..1100).prop_map(DeviceMemory::Thousandths),
    ];
    let amounts = (0u64..40_000, 0u64..60_000, 0u16..4, 0u32..1100, memory);
    let further = option::weighted(0.3, (1u16..3, 1u32..600));
    let others =
        prop_oneof![3 => Just(Vec::new()), 1 => vec((1u16..4, 1u32..1001, option::of((1u16..3, 1u32..600))), 1..3)];
    (amounts, counted(), further, others).prop_map(|((cpu, mib, count, core, memory), counted, further, others)| {
        Request {
            cpu: MilliCpu::new(cpu),
            memory: Bytes::from_mib(mib),
            devices: DeviceRequest { count, core: DeviceCore::new(core), memory },
            further: further.map(|(count, core)| further_request(count, core)),
            alternatives: alternatives(&others),
            counted,
            ..Request::default()
        }
    })
}

/// The number of devices, the time of each, and the same for one further request.
type Other = (u16, u32, Option<(u16, u32)>);

/// Choices after the first one, each with or without a further request.
fn alternatives(others: &[Other]) -> Option<Arc<Alternatives>> {
    let other = |&(count, core, further): &Other| Alternative {
        devices: DeviceRequest { count, core: DeviceCore::new(core), memory: DeviceMemory::Thousandths(core / 2) },
        further: further.map(|(count, core)| further_request(count, core)),
        ..Alternative::default()
    };
    let others: Vec<Alternative> = others.iter().map(other).collect();
    (!others.is_empty()).then(|| Arc::new(Alternatives { others, ..Alternatives::default() }))
}

/// A further request, which may be for the same devices.
fn further_request(count: u16, core: u32) -> Arc<FurtherRequests> {
    let devices = DeviceRequest { count, core: DeviceCore::new(core), memory: DeviceMemory::Thousandths(core / 2) };
    let request = FurtherRequest { name: "further".into(), devices, ..FurtherRequest::default() };
    Arc::new(FurtherRequests { requests: vec![request], ..FurtherRequests::default() })
}

/// Pods, of which a node has four, and at times a resource that no node has.
fn counted() -> impl Strategy<Value = BTreeMap<String, u64>> {
    let of = |name: &str, amount: u64| BTreeMap::from([(name.to_owned(), amount)]);
    prop_oneof![
        4 => Just(BTreeMap::new()),
        8 => (0u64..3).prop_map(move |pods| of("pods", pods)),
        1 => Just(of("hca", 1)),
    ]
}

fn moves() -> impl Strategy<Value = Move> {
    prop_oneof![
        1 => (0u8..6, 1u64..80_000).prop_map(|(devices, memory_mib)| Move::AddNode { devices, memory_mib }),
        1 => any::<usize>().prop_map(Move::RemoveNode),
        1 => (any::<usize>(), 0u8..6, any::<bool>())
            .prop_map(|(node, device, healthy)| Move::Health { node, device, healthy }),
        6 => request().prop_map(Move::Add),
        1 => any::<usize>().prop_map(Move::Remove),
        8 => (any::<usize>(), any::<usize>(), 0u16..5)
            .prop_map(|(claim, node, first)| Move::Place { claim, node, first }),
        2 => any::<usize>().prop_map(Move::Evict),
        2 => (any::<usize>(), request()).prop_map(|(claim, request)| Move::Resize { claim, request }),
        2 => (vec((any::<usize>(), any::<usize>(), 0u16..5), 0..8), 0usize..8, any::<bool>())
            .prop_map(|(moves, rollback_to, commit)| Move::Trial { moves, rollback_to, commit }),
    ]
}

/// An allocation on neighbouring devices, which may be impossible.
fn allocation(cluster: &Cluster, claim: ClaimId, node: NodeId, first: u16) -> Option<Allocation> {
    let request = &cluster.claim(claim)?.request;
    // The last number is that of a choice that does not exist.
    let alternative = first % (request.choice_count() + 1);
    let wishes = request.wishes_of(alternative).map(|wish| *wish.devices);
    let part = |wanted: DeviceRequest, device: u16| {
        let memory = cluster.node(node).and_then(|node| node.devices().get(usize::from(device)));
        let memory = wanted.memory.on(memory.map_or(Bytes::ZERO, |device| device.memory()));
        DeviceAllocation { device, core: wanted.core, memory }
    };
    let devices =
        wishes.flat_map(|wanted| (first..first.saturating_add(wanted.count)).map(move |device| part(wanted, device)));
    Some(Allocation { node, devices: devices.collect(), alternative })
}

/// Everything that can be observed of the state.
type Picture = (Vec<String>, Vec<(ClaimId, Request, Option<Allocation>)>);

fn picture(cluster: &Cluster) -> Picture {
    let nodes = cluster.nodes().map(|(id, node)| format!("{id:?} {node:?}")).collect();
    let claims = cluster.claims().map(|(id, claim, at)| (id, Request::clone(&claim.request), at.cloned())).collect();
    (nodes, claims)
}

/// The law of conservation, on each node and each device: free + held = capacity.
fn assert_conserved(cluster: &Cluster) {
    let mut held: BTreeMap<NodeId, Vec<(&KnownClaim, &Allocation)>> = BTreeMap::new();
    for (_, claim, allocation) in cluster.claims() {
        if let Some(allocation) = allocation {
            assert!(cluster.node(allocation.node).is_some(), "a claim is placed on a node that is gone");
            held.entry(allocation.node).or_default().push((claim, allocation));
        }
    }
    for (id, node) in cluster.nodes() {
        let held = held.remove(&id).unwrap_or_default();
        assert_eq!(held.len(), node.claims().count());
        let cpu: MilliCpu = held.iter().map(|(claim, _)| claim.request.cpu).sum();
        assert_eq!(node.cpu_free().checked_add(cpu), Some(node.spec().cpu));
        let memory: Bytes = held.iter().map(|(claim, _)| claim.request.memory).sum();
        assert_eq!(node.memory_free().checked_add(memory), Some(node.spec().memory));
        for name in ["pods", "hca"] {
            let counted = |amounts: &BTreeMap<String, u64>| amounts.get(name).copied().unwrap_or(0);
            let taken: u64 = held.iter().map(|(claim, _)| counted(&claim.request.counted)).sum();
            assert_eq!(node.counted_free(name) + taken, counted(&node.spec().counted));
        }
        for (index, device) in node.devices().iter().enumerate() {
            let parts = || held.iter().flat_map(|(_, at)| &at.devices).filter(|part| usize::from(part.device) == index);
            let core: DeviceCore = parts().map(|part| part.core).sum();
            assert_eq!(device.core_free().checked_add(core), Some(DeviceCore::WHOLE));
            let memory: Bytes = parts().map(|part| part.memory).sum();
            assert_eq!(device.memory_free().checked_add(memory), Some(device.memory()));
        }
        let idle = node.devices().iter().filter(|device| device.is_idle()).count();
        assert_eq!(usize::from(node.idle_devices()), idle);
    }
}

fn nth<T: Copy>(items: &[T], number: usize) -> Option<T> {
    items.get(number.checked_rem(items.len())?).copied()
}

fn play(cluster: &mut Cluster, step: &Move, count: &mut u32) {
    let nodes: Vec<NodeId> = cluster.nodes().map(|(id, _)| id).collect();
    let claims: Vec<ClaimId> = cluster.claims().map(|(id, ..)| id).collect();
    let event = match step {
        Move::AddNode { devices, memory_mib } => {
            *count += 1;
            let device = DeviceSpec { memory: Bytes::from_mib(*memory_mib), ..DeviceSpec::default() };
            Some(Event::NodeAdded(NodeSpec {
                name: format!("node-{count}"),
                cpu: MilliCpu::new(96_000),
                memory: Bytes::from_mib(200_000),
                devices: vec![device; usize::from(*devices)],
                counted: BTreeMap::from([("pods".into(), 4)]),
                ..NodeSpec::default()
            }))
        }
        Move::RemoveNode(node) => nth(&nodes, *node).map(Event::NodeRemoved),
        Move::Health { node, device, healthy } => nth(&nodes, *node).map(|node| Event::DeviceHealthChanged {
            node,
            device: u16::from(*device),
            health: if *healthy { Health::Healthy } else { Health::Unhealthy },
        }),
        Move::Add(request) => Some(Event::ClaimAdded(Claim { request: request.clone(), ..Claim::default() })),
        Move::Remove(claim) => nth(&claims, *claim).map(Event::ClaimRemoved),
        Move::Place { claim, node, first } => nth(&claims, *claim).zip(nth(&nodes, *node)).and_then(|(claim, node)| {
            allocation(cluster, claim, node, *first).map(|allocation| Event::ClaimPlaced(claim, allocation))
        }),
        Move::Evict(claim) => nth(&claims, *claim).map(Event::ClaimEvicted),
        Move::Resize { claim, request } => {
            nth(&claims, *claim).map(|claim| Event::ClaimResized(claim, request.clone()))
        }
        Move::Trial { moves, rollback_to, commit } => {
            trial(cluster, &nodes, &claims, moves, *rollback_to, *commit);
            None
        }
    };
    if let Some(event) = event {
        let before = picture(cluster);
        if cluster.apply(event).is_err() {
            assert_eq!(picture(cluster), before, "an event that was refused has changed something");
        }
    }
}

/// Places and evicts in a statement, rolls back to a savepoint, and then commits or drops the statement.
fn trial(
    cluster: &mut Cluster,
    nodes: &[NodeId],
    claims: &[ClaimId],
    moves: &[(usize, usize, u16)],
    rollback_to: usize,
    commit: bool,
) {
    let before = picture(cluster);
    let mut statement = Statement::new(cluster);
    let mut at_savepoint = None;
    for (number, (claim, node, first)) in moves.iter().enumerate() {
        if number == rollback_to {
            at_savepoint = Some((statement.savepoint(), picture(statement.cluster())));
        }
        let (Some(claim), Some(node)) = (nth(claims, *claim), nth(nodes, *node)) else { continue };
        let placed = allocation(statement.cluster(), claim, node, *first).map(|at| statement.place(claim, at));
        if placed.is_none_or(|placed| placed.is_err()) {
            let _ = statement.evict(claim);
        }
        assert_conserved(statement.cluster());
    }
    if let Some((checkpoint, picture_then)) = at_savepoint {
        statement.rollback(checkpoint);
        assert_eq!(picture(statement.cluster()), picture_then);
    }
    let now = picture(statement.cluster());
    if commit {
        let cause =
            Displacement { action: Action::Preempt, by: None, by_name: String::new(), at_ms: 0, shares: Vec::new() };
        let _ = statement.commit(&cause);
        assert_eq!(picture(cluster), now);
    } else {
        drop(statement);
        assert_eq!(picture(cluster), before);
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(256))]

    #[test]
    fn what_is_free_and_what_is_held_add_up_to_what_there_is(steps in vec(moves(), 1..120)) {
        let mut cluster = Cluster::new();
        let mut count = 0;
        for step in &steps {
            play(&mut cluster, step, &mut count);
            assert_conserved(&cluster);
        }
    }
}

#[test]
fn a_claim_on_a_node_that_goes_away_waits_again() {
    let mut cluster = Cluster::new();
    let node = NodeSpec { name: "n".into(), devices: vec![DeviceSpec::default()], ..NodeSpec::default() };
    let node = cluster.add_node(node);
    let request = Request { devices: DeviceRequest::share(DeviceCore::from_percent(30)), ..Request::default() };
    let claim = Claim { request, ..Claim::default() };
    let claim = cluster.add_claim(claim);
    let at = allocation(&cluster, claim, node, 0).expect("there is such a claim");
    assert_eq!(cluster.apply(Event::ClaimPlaced(claim, at)), Ok(Outcome::Claims { displaced: vec![], ready: vec![] }));
    let gone = Outcome::Claims { displaced: vec![claim], ready: Vec::new() };
    assert_eq!(cluster.apply(Event::NodeRemoved(node)), Ok(gone));
    assert_eq!(cluster.allocation(claim), None);
    assert_conserved(&cluster);
}
