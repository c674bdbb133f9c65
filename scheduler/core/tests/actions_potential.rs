//! Scheduling ends: without new events it comes to rest, and every eviction on the way is a step up that is never
//! undone.

use std::cmp::{Ordering, Reverse};
use std::collections::BTreeMap;

use aliquot_scheduler_core::placement::BestFit;
use aliquot_scheduler_core::{
    Allowance, Bytes, Claim, Cluster, DeviceCore, DeviceMemory, DeviceRequest, DeviceSpec, Event, MilliCpu, NodeSpec,
    PodGroup, QueueId, QueueSpec, Request, Resource, Scheduler, Settings, SubGroup,
};
use proptest::collection::vec;
use proptest::prelude::*;

/// More cycles than any of these small clusters needs.
const CYCLES_MAX: usize = 60;

#[derive(Clone, Debug)]
struct World {
    nodes: Vec<(u8, bool)>,
    queues: Vec<(u8, u8, Option<u8>, i32)>,
    waves: Vec<Vec<Arrival>>,
    settings: (u64, u32),
}

#[derive(Clone, Debug)]
struct Arrival {
    queue: usize,
    priority: i32,
    preemptible: bool,
    request: Request,
    shape: Shape,
    removes: Option<usize>,
}

#[derive(Clone, Debug)]
enum Shape {
    Single,
    Gang { members: u8, min: u8 },
    Sorts { heads: u8, workers: u8 },
}

fn request() -> impl Strategy<Value = Request> {
    let devices = prop_oneof![
        4 => (1u16..4).prop_map(DeviceRequest::whole),
        3 => (1u16..3, 1u32..10, 1u32..10).prop_map(|(count, core, memory)| DeviceRequest {
            count,
            core: DeviceCore::from_percent(core * 10),
            memory: DeviceMemory::Thousandths(memory * 100),
        }),
        1 => Just(DeviceRequest { count: 0, ..DeviceRequest::default() }),
    ];
    (devices, 0u64..8, any::<bool>()).prop_map(|(devices, cores, model)| {
        let mut request = Request { cpu: MilliCpu::new(cores * 1000), devices, ..Request::default() };
        if model {
            request.constraints.models.insert("A".into());
        }
        request
    })
}

fn arrival() -> impl Strategy<Value = Arrival> {
    let shape = prop_oneof![
        3 => Just(Shape::Single),
        2 => (1u8..5, 0u8..4).prop_map(|(members, min)| Shape::Gang { members, min }),
        1 => (1u8..2, 1u8..4).prop_map(|(heads, workers)| Shape::Sorts { heads, workers }),
    ];
    let priority = prop_oneof![Just(50), Just(75), Just(125)];
    (any::<usize>(), priority, 0u8..8, request(), shape, proptest::option::weighted(0.2, any::<usize>())).prop_map(
        |(queue, priority, fixed, request, shape, removes)| Arrival {
            queue,
            priority,
            preemptible: fixed > 0,
            request,
            shape,
            removes,
        },
    )
}

fn world() -> impl Strategy<Value = World> {
    (
        vec((1u8..5, any::<bool>()), 1..5),
        vec((0u8..6, 1u8..4, proptest::option::weighted(0.3, 2u8..9), -1i32..2), 1..6),
        vec(vec(arrival(), 1..12), 1..5),
        (prop_oneof![Just(1000u64), Just(2000), Just(1_000_000)], 0u32..3),
    )
        .prop_map(|(nodes, queues, waves, settings)| World { nodes, queues, waves, settings })
}

impl World {
    /// Two divisions, and queues below them or at the top of the tree.
    fn build(&self) -> (Cluster, Vec<String>) {
        let mut cluster = Cluster::new();
        for (number, (devices, is_large)) in self.nodes.iter().enumerate() {
            let (model, mib) = if *is_large { ("A", 80_000) } else { ("B", 24_000) };
            let device = DeviceSpec { model: model.into(), memory: Bytes::from_mib(mib), ..DeviceSpec::default() };
            apply(
                &mut cluster,
                Event::NodeAdded(NodeSpec {
                    name: format!("node-{number}"),
                    cpu: MilliCpu::new(16_000),
                    devices: vec![device; usize::from(*devices)],
                    ..NodeSpec::default()
                }),
            );
        }
        for parent in ["left", "right"] {
            let quota = Allowance { quota: Some(4000), weight: 1, ..Allowance::default() };
            let allowances = BTreeMap::from([(Resource::DeviceCore, quota)]);
            apply(
                &mut cluster,
                Event::QueueAdded(QueueSpec { name: parent.into(), allowances, ..QueueSpec::default() }),
            );
        }
        let mut names = Vec::new();
        for (number, (quota, weight, limit, priority)) in self.queues.iter().enumerate() {
            let of = |unit: u64| Allowance {
                quota: Some(u64::from(*quota) * unit),
                limit: limit.map(|limit| u64::from(limit) * unit),
                weight: u64::from(*weight),
                priority: None,
            };
            let mut allowances = BTreeMap::from([(Resource::DeviceCore, of(1000))]);
            if number % 2 == 1 {
                allowances.insert(Resource::DeviceMemory, of(Bytes::from_mib(40_000).get()));
            }
            let parent = [Some("left"), Some("right"), None][number % 3].map(Into::into);
            let name = format!("queue-{number}");
            let spec =
                QueueSpec { name: name.clone(), parent, priority: *priority, allowances, ..QueueSpec::default() };
            apply(&mut cluster, Event::QueueAdded(spec));
            names.push(name);
        }
        (cluster, names)
    }
}

fn apply(cluster: &mut Cluster, event: Event) {
    cluster.apply(event).expect("a good event");
}

fn arrive(cluster: &mut Cluster, queues: &[String], arrival: &Arrival, count: &mut u32) {
    if let Some(removes) = arrival.removes {
        let claims: Vec<_> = cluster.claims().map(|(id, ..)| id).collect();
        if let Some(claim) = removes.checked_rem(claims.len()).and_then(|number| claims.get(number)) {
            apply(cluster, Event::ClaimRemoved(*claim));
        }
    }
    *count += 1;
    let queue = queues[arrival.queue % queues.len()].clone();
    let claim = Claim {
        request: arrival.request.clone(),
        queue: queue.clone(),
        priority: arrival.priority,
        preemptible: arrival.preemptible,
        ..Claim::default()
    };
    let group = PodGroup {
        name: format!("group-{count}"),
        queue,
        priority: arrival.priority,
        preemptible: arrival.preemptible,
        ..PodGroup::default()
    };
    let member = Claim { pod_group: Some(group.name.clone()), ..claim.clone() };
    match &arrival.shape {
        Shape::Single => apply(cluster, Event::ClaimAdded(claim)),
        Shape::Gang { members, min } => {
            apply(cluster, Event::PodGroupAdded(PodGroup { min_members: u32::from(*min.min(members)), ..group }));
            (0..*members).for_each(|_| apply(cluster, Event::ClaimAdded(member.clone())));
        }
        Shape::Sorts { heads, workers } => {
            let sort =
                |name: &str, min: u8| SubGroup { name: name.into(), min_members: min.into(), ..SubGroup::default() };
            let sub_groups = vec![sort("head", *heads), sort("worker", *workers)];
            let min_members = u32::from(heads + workers);
            apply(cluster, Event::PodGroupAdded(PodGroup { min_members, sub_groups, ..group }));
            let small = Request { cpu: MilliCpu::new(1000), ..Request::default() };
            let head = Claim { sub_group: Some("head".into()), request: small, ..member.clone() };
            (0..*heads).for_each(|_| apply(cluster, Event::ClaimAdded(head.clone())));
            let worker = Claim { sub_group: Some("worker".into()), ..member };
            (0..=*workers).for_each(|_| apply(cluster, Event::ClaimAdded(worker.clone())));
        }
    }
}

/// A unit's position in the order of its queue.
type Place = (Reverse<i32>, bool, u64, u64);

/// Units, each with the number of its members.
type Units = BTreeMap<Place, usize>;

/// For each queue: the units that are guaranteed against all, those that are guaranteed, those that are certain among
/// siblings, too, the entitled ones, and the borrowed ones. Earlier sets count more: a unit can lose its entitlement
/// because a unit of another queue becomes guaranteed, but not the other way round.
type Potential = [Vec<(QueueId, Units)>; 5];

/// The names of the parts of the potential.
const PARTS: [&str; 5] = ["guaranteed against all", "guaranteed", "certain", "entitled", "borrowed"];

fn potential(scheduler: &Scheduler, cluster: &Cluster, queues: &[String]) -> Potential {
    let mut potential = Potential::default();
    for name in queues {
        let queue = cluster.queue_named(name).expect("a queue of the world");
        let mut of_queue: [Units; PARTS.len()] = Default::default();
        let is_below = cluster.queue(queue).is_some_and(|queue| queue.parent().is_some());
        for standing in scheduler.standings(cluster, queue) {
            let group = cluster.group(standing.group).expect("a group that is placed");
            let member = if standing.is_elastic { cluster.sequence(standing.claims[0]).expect("a claim") } else { 0 };
            let place = (Reverse(group.spec().priority), standing.is_elastic, standing.group.number(), member);
            // A queue at the top has no siblings in a division.
            let among = if is_below { standing.is_certain_among_siblings } else { standing.is_guaranteed };
            let (guaranteed, entitled) = (standing.is_guaranteed, standing.is_entitled);
            let parts = [guaranteed && among, guaranteed, guaranteed || among, entitled, !entitled];
            for (units, _) in of_queue.iter_mut().zip(parts).filter(|(_, is_of)| *is_of) {
                units.insert(place, standing.claims.len());
            }
        }
        potential.iter_mut().zip(of_queue).for_each(|(all, units)| all.push((queue, units)));
    }
    potential
}

/// Which of two sets is higher: at the first position in which they differ, the set that has a unit there, or the
/// larger unit.
fn compare(left: &Units, right: &Units) -> Ordering {
    let places = left.keys().chain(right.keys()).collect::<std::collections::BTreeSet<_>>();
    let at = |set: &Units, place: &Place| set.get(place).copied().unwrap_or(0);
    places
        .into_iter()
        .map(|place| at(left, place).cmp(&at(right, place)))
        .find(|order| order.is_ne())
        .unwrap_or(Ordering::Equal)
}

/// Runs cycles until nothing changes, and checks that the potential rises with each cycle that evicts.
fn come_to_rest(scheduler: &mut Scheduler, cluster: &mut Cluster, queues: &[String], gone_at_once: bool) {
    let mut before = potential(scheduler, cluster, queues);
    for _ in 0..CYCLES_MAX {
        let plan = scheduler.cycle(cluster);
        let after = potential(scheduler, cluster, queues);
        let mut rises = false;
        for (part, (old, new)) in PARTS.iter().zip(before.iter().zip(&after)) {
            for ((_, old), (_, new)) in old.iter().zip(new) {
                let order = compare(new, old);
                assert!(order.is_ge(), "what is {part} has fallen for nothing: {old:?} to {new:?} by {:?}", plan.steps);
                rises |= order.is_gt();
            }
            if rises {
                break;
            }
        }
        assert!(rises || plan.steps.is_empty(), "nothing has risen by {:?}", plan.steps);
        if plan.steps.is_empty() {
            return;
        }
        for step in plan.steps.iter().filter(|_| gone_at_once) {
            if cluster.leaving(step.step.claim()).is_some() {
                apply(cluster, Event::ClaimGone(step.step.claim()));
            }
        }
        before = after;
    }
    panic!("no rest after {CYCLES_MAX} cycles");
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn without_new_events_scheduling_comes_to_rest_and_each_eviction_is_a_step_up(
        world in world(),
        gone_at_once in any::<bool>(),
    ) {
        let (mut cluster, queues) = world.build();
        let (disruption_per_mille, moves) = world.settings;
        let settings = Settings { disruption_per_mille, moves_per_cycle: moves * 8, ..Settings::default() };
        let mut scheduler = Scheduler::new(Box::new(BestFit), settings);
        let mut count = 0;
        for wave in &world.waves {
            wave.iter().for_each(|arrival| arrive(&mut cluster, &queues, arrival, &mut count));
            come_to_rest(&mut scheduler, &mut cluster, &queues, gone_at_once);
        }
    }
}
