//! The answers of the engine and of policies on random clusters.

use aliquot_scheduler_core::placement::{
    BestFit, Bid, Binpack, DotProduct, Engine, ExpectedWaste, Fragmentation, FragmentationGradient, GpuClustering,
    GpuPacking, Mix, NodeChange, Policy, Spread, Weights, fits,
};
use aliquot_scheduler_core::{
    Bytes, ClaimId, Cluster, DeviceCore, DeviceRequest, DeviceSpec, Event, Health, MilliCpu, NodeId, NodeSpec, Request,
};
use aliquot_scheduler_kit::Build;
use proptest::collection::vec;
use proptest::prelude::*;

use crate::cases::{add, node, place, request};

const MODELS: [&str; 3] = ["A", "B", "C"];

/// The kinds of tasks in the random tests: shares, whole devices, memory-bound tasks, several devices, CPU only.
fn requests() -> Vec<Request> {
    vec![
        request(4, 0, 0, 0, &[]),
        request(2, 1, 470, 4000, &[]),
        request(3, 1, 810, 1000, &[]),
        request(1, 1, 160, 9000, &[]),
        request(8, 1, 1000, 16_000, &["A"]),
        request(6, 1, 300, 5000, &["B", "C"]),
        request(16, 2, 1000, 16_000, &[]),
        request(30, 4, 1000, 16_000, &[]),
        request(60, 8, 1000, 16_000, &["C"]),
        request(2, 3, 250, 3000, &[]),
    ]
}

fn policies(mix: &Mix) -> Vec<Box<dyn Policy>> {
    vec![
        Box::new(ExpectedWaste::new(mix, Weights::default())),
        Box::new(FragmentationGradient::new(mix)),
        Box::new(BestFit),
        Box::new(DotProduct),
        Box::new(GpuPacking),
        Box::new(GpuClustering),
        Box::new(Binpack),
        Box::new(Spread),
    ]
}

/// Looks at every node that is `open`. Returns the node with the least cost, of equal ones the first, and that cost.
fn scan(
    cluster: &Cluster,
    policy: &impl Policy,
    request: &Request,
    open: impl Fn(NodeId) -> bool,
) -> Option<(i64, NodeId)> {
    let open = cluster.nodes().filter(|(id, _)| open(*id) && !cluster.is_held(*id));
    let total = |(id, node): (NodeId, _)| {
        let bid: Bid = policy.bid(id, node, request);
        (i64::from(bid.cost) + i64::from(policy.surcharge(bid.forgone)), id)
    };
    open.filter(|(_, node)| fits(node, request).is_ok()).map(total).min()
}

#[derive(Clone, Debug)]
enum Move {
    Place(usize),
    Remove(usize),
    Health { node: usize, device: u16, healthy: bool },
    Cordon { node: usize, cordoned: bool },
    Hold { node: usize, held: bool },
    RemoveNode(usize),
    AddNode { cpu: u64, devices: usize, model: usize },
}

fn moves() -> impl Strategy<Value = Move> {
    prop_oneof![
        12 => (0usize..10).prop_map(Move::Place),
        4 => any::<usize>().prop_map(Move::Remove),
        1 => (any::<usize>(), 0u16..8, any::<bool>())
            .prop_map(|(node, device, healthy)| Move::Health { node, device, healthy }),
        1 => (any::<usize>(), any::<bool>()).prop_map(|(node, cordoned)| Move::Cordon { node, cordoned }),
        1 => (any::<usize>(), any::<bool>()).prop_map(|(node, held)| Move::Hold { node, held }),
        1 => any::<usize>().prop_map(Move::RemoveNode),
        1 => (8u64..100, 0usize..9, 0usize..3).prop_map(|(cpu, devices, model)| Move::AddNode { cpu, devices, model }),
    ]
}

/// Plays moves with an engine, and checks each decision.
fn play(policy: Box<dyn Policy>, first: &[Move], steps: &[Move]) -> Result<(), TestCaseError> {
    let mut cluster = Cluster::new();
    let mut engine = Engine::new(policy);
    let requests = requests();
    for (number, step) in first.iter().chain(steps).enumerate() {
        let nodes: Vec<NodeId> = cluster.nodes().map(|(id, _)| id).collect();
        let pick = |number: usize| nodes.get(number.checked_rem(nodes.len())?).copied();
        let event = match step {
            Move::Place(kind) => {
                let request = &requests[*kind];
                let claim = add(&mut cluster, request);
                let class = cluster.class_of(claim).expect("the claim was added");
                let placed = engine.place(&cluster, class);
                let expected = scan(&cluster, engine.policy(), request, |_| true);
                let node = expected.map(|(_, node)| node);
                prop_assert_eq!(placed.as_ref().map(|at| at.node), node, "move {}: {:?}", number, request);
                let costs = nodes.iter().filter_map(|id| engine.cost_on(&cluster, class, *id));
                prop_assert_eq!(costs.min(), expected.map(|(cost, _)| cost));
                // Every second node, in an order that must not matter.
                let open = |id: NodeId| id.index() % 2 == number % 2;
                let among = nodes.iter().rev().copied().filter(|id| open(*id));
                let among = engine.place_among(&cluster, class, among).map(|at| at.node);
                let expected = scan(&cluster, engine.policy(), request, open).map(|(_, node)| node);
                prop_assert_eq!(among, expected, "move {} among some: {:?}", number, request);
                Some(match placed {
                    Some(allocation) => Event::ClaimPlaced(claim, allocation),
                    None => Event::ClaimRemoved(claim),
                })
            }
            Move::Remove(number) => {
                let claims: Vec<ClaimId> = cluster.claims().map(|(id, ..)| id).collect();
                number.checked_rem(claims.len()).map(|index| Event::ClaimRemoved(claims[index]))
            }
            Move::Health { node, device, healthy } => pick(*node)
                .filter(|id| cluster.node(*id).is_some_and(|node| node.devices().len() > usize::from(*device)))
                .map(|node| Event::DeviceHealthChanged {
                    node,
                    device: *device,
                    health: if *healthy { Health::Healthy } else { Health::Unhealthy },
                }),
            Move::Cordon { node, cordoned } => pick(*node).map(|id| {
                let spec = NodeSpec::from(cluster.node(id).expect("the node is there").spec());
                Event::NodeRelabelled(id, NodeSpec { cordoned: *cordoned, ..spec })
            }),
            Move::Hold { node, held } => {
                prop_assert!(pick(*node).is_none_or(|id| cluster.set_held(id, *held).is_ok()));
                None
            }
            Move::RemoveNode(node) => pick(*node).map(Event::NodeRemoved),
            Move::AddNode { cpu, devices, model } => {
                Some(Event::NodeAdded(node(&format!("node-{number}"), *cpu, *devices, MODELS[*model])))
            }
        };
        if let Some(event) = event {
            prop_assert!(cluster.apply(event.clone()).is_ok(), "refused: {event:?}");
        }
    }
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    #[test]
    fn an_engine_that_follows_changes_decides_as_a_scan_of_all_nodes(
        nodes in vec((8u64..100, 0usize..9, 0usize..3), 1..40),
        steps in vec(moves(), 1..200),
    ) {
        let requests = requests();
        let mix = Mix::of(&requests);
        let first: Vec<Move> =
            nodes.into_iter().map(|(cpu, devices, model)| Move::AddNode { cpu, devices, model }).collect();
        for policy in policies(&mix) {
            play(policy, &first, &steps)?;
        }
    }
}

/// The measure by its definition, in thousandths of a device, times the number of tasks.
fn fragmentation_by_definition(cluster: &Cluster, id: NodeId, tasks: &[Request]) -> i64 {
    let node = cluster.node(id).expect("the node is there");
    let free: Vec<i64> = node.devices().iter().map(|device| i64::from(device.core_free().get())).collect();
    let unusable = |task: &Request| -> i64 {
        let wanted = i64::from(task.devices.core.get());
        let model = node.spec().devices.first().map_or("", |device| device.model.as_str());
        let admitted = task.constraints.models.is_empty() || task.constraints.models.contains(model);
        let fitting = free.iter().filter(|free| **free >= wanted).count();
        let runs = task.devices.count > 0
            && admitted
            && node.cpu_free() >= task.cpu
            && fitting >= usize::from(task.devices.count);
        match runs {
            true => free.iter().filter(|free| **free < wanted).sum(),
            false => free.iter().sum(),
        }
    };
    tasks.iter().map(unusable).sum()
}

#[test]
fn the_tabulated_measure_is_the_published_one() {
    let tasks: Vec<Request> = vec![
        request(4, 0, 0, 0, &[]),
        request(2, 1, 470, 0, &[]),
        request(2, 1, 470, 0, &[]),
        request(3, 1, 810, 0, &[]),
        request(1, 1, 160, 0, &["B"]),
        request(8, 1, 1000, 0, &["A"]),
        request(16, 2, 1000, 0, &[]),
        request(40, 4, 1000, 0, &[]),
    ];
    let mix = Mix::of(&tasks);
    let mut measure = Fragmentation::new(&mix);
    let mut cluster = Cluster::new();
    let nodes: Vec<NodeId> = [(96, 8, "A"), (64, 4, "B"), (20, 2, "A"), (9, 2, "C"), (64, 0, "C")]
        .into_iter()
        .enumerate()
        .map(|(number, (cpu, devices, model))| cluster.add_node(node(&format!("n{number}"), cpu, devices, model)))
        .collect();
    for id in &nodes {
        measure.learn(NodeChange { id: *id, node: cluster.node(*id), spec: true });
    }
    let mut engine = Engine::new(Spread);
    let mut compared = 0;
    for round in 0..60 {
        let claim = add(&mut cluster, &tasks[round * 5 % tasks.len()]);
        let class = cluster.class_of(claim).expect("the claim was added");
        if let Some(allocation) = engine.place(&cluster, class) {
            cluster.apply(Event::ClaimPlaced(claim, allocation)).expect("the engine places only what fits");
        }
        for id in &nodes {
            let node = cluster.node(*id).expect("the node is there");
            assert_eq!(
                measure.of(*id, node),
                fragmentation_by_definition(&cluster, *id, &tasks),
                "round {round}, {id:?}"
            );
            compared += 1;
        }
    }
    assert_eq!(compared, 300);
}

#[test]
fn a_policy_that_is_told_of_other_work_decides_as_one_made_for_it() {
    let requests = requests();
    let (first, then) = (Mix::of(&requests[..4]), Mix::of(&requests[3..]));
    let mut cluster = Cluster::new();
    for number in 0..30 {
        cluster.add_node(node(
            &format!("n{number}"),
            16 + number * 5 % 90,
            number as usize % 9,
            MODELS[number as usize % 3],
        ));
    }
    let mut engines = [
        (Engine::new(Box::new(ExpectedWaste::new(&first, Weights::default())) as Box<dyn Policy>), true),
        (Engine::new(Box::new(FragmentationGradient::new(&first)) as Box<dyn Policy>), false),
    ];
    for (engine, is_default) in &mut engines {
        for request in requests.iter().cycle().take(40) {
            place(&mut cluster, engine, request);
        }
        engine.expect(&then);
        let mut fresh: Engine<Box<dyn Policy>> = match is_default {
            true => Engine::new(Box::new(ExpectedWaste::new(&then, Weights::default()))),
            false => Engine::new(Box::new(FragmentationGradient::new(&then))),
        };
        for request in &requests {
            let claim = add(&mut cluster, request);
            let class = cluster.class_of(claim).expect("the claim was added");
            for (id, _) in cluster.nodes().collect::<Vec<_>>() {
                assert_eq!(engine.cost_on(&cluster, class, id), fresh.cost_on(&cluster, class, id), "{request:?}");
            }
        }
    }
}

#[test]
fn each_task_goes_where_what_it_needs_most_is_plentiful() {
    // Two nodes of 8 devices: 64 cores and 64 GiB, and 16 cores and 256 GiB.
    let of_memory = |gib: u64, spec| NodeSpec { memory: Bytes::from_mib(gib << 10), ..spec };
    let nodes = [of_memory(64, node("cores", 64, 8, "A")), of_memory(256, node("memory", 16, 8, "A"))];
    let task = |cores, gib: u64| Request { memory: Bytes::from_mib(gib << 10), ..request(cores, 1, 500, 0, &[]) };
    let tasks = [task(8, 8), task(2, 32)];
    let mix = Mix::of(&tasks);
    let placed = |weights| {
        let mut cluster = Cluster::new();
        nodes.iter().for_each(|spec| _ = cluster.add_node(spec.clone()));
        let mut engine = Engine::new(ExpectedWaste::new(&mix, weights));
        (0..16).filter(|number| place(&mut cluster, &mut engine, &tasks[number % 2]).is_some()).count()
    };
    // Eight tasks of either sort fit if none of them is on the wrong node.
    assert_eq!(placed(Weights::default()), 16);
    assert!(placed(Weights { typical_work: 0, ..Weights::default() }) < 16);
}

#[test]
fn the_greatest_amounts_that_can_be_written_upset_no_policy() {
    let most = Request {
        cpu: MilliCpu::new(u64::MAX),
        memory: Bytes::new(u64::MAX),
        devices: DeviceRequest::whole(u16::MAX),
        ..Request::default()
    };
    let requests = [
        most.clone(),
        Request { devices: DeviceRequest::whole(1), ..most.clone() },
        Request { devices: DeviceRequest::share(DeviceCore::new(1)), ..most.clone() },
        Request { devices: DeviceRequest::default(), ..most },
        Request { devices: DeviceRequest::whole(1), ..Request::default() },
        Request::default(),
    ];
    let mut cluster = Cluster::new();
    for devices in [0, 1, 3] {
        let spec = node(&format!("n{devices}"), 1, devices, "A");
        let greatest = |device| DeviceSpec { memory: Bytes::new(u64::MAX), ..device };
        cluster.add_node(NodeSpec {
            cpu: MilliCpu::new(u64::MAX),
            memory: Bytes::new(u64::MAX),
            devices: spec.devices.clone().into_iter().map(greatest).collect(),
            ..spec
        });
    }
    for mix in [Mix::default(), Mix::of(&requests), Mix::counted(requests.iter().map(|of| (of.clone(), 1 << 40)))] {
        for policy in policies(&mix) {
            let mut engine = Engine::new(policy);
            let fits = requests.iter().map(|request| {
                let claim = add(&mut cluster, request);
                let class = cluster.class_of(claim).expect("the claim was added");
                engine.place(&cluster, class).is_some()
            });
            assert_eq!(fits.collect::<Vec<_>>(), [false, true, true, true, true, true]);
        }
    }
}
