//! A cluster that is dumped and restored is the same cluster.

use std::collections::BTreeMap;

use aliquot_scheduler_core::{
    Action, Allocation, Allowance, Bytes, Claim, ClaimId, Cluster, Constraints, DeviceAllocation, DeviceCore,
    DeviceMemory, DeviceRequest, DeviceSpec, Displacement, DisruptionBudget, Dump, DumpEntry, DumpedClaim, DumpedNode,
    DumpedPlace, DumpedUsage, Event, GroupId, MilliCpu, NodeId, NodeSpec, Outcome, PodGroup, QueueSpec, Request,
    Resource, RestoreReason, Statement, SubGroup,
};
use proptest::collection::vec;
use proptest::prelude::*;

/// Something that happens; numbers are taken modulo what there is.
#[derive(Clone, Debug)]
enum Happening {
    NodeAdded {
        devices: u8,
        memory_gib: u64,
        model: u8,
    },
    NodeRemoved(usize),
    Held(usize, bool),
    Health(usize, u8, bool),
    QueueAdded {
        name: u8,
        parent: u8,
        quota: u64,
        model: u8,
    },
    QueueRemoved(u8),
    Budget(u8, u32),
    GroupAdded {
        name: u8,
        queue: u8,
        min_members: u32,
        priority: i32,
        preemptible: bool,
    },
    GroupRemoved(usize),
    ClaimAdded {
        queue: u8,
        group: Option<u8>,
        core: u32,
        memory: u32,
        models: u8,
        preemptible: bool,
    },
    ClaimRemoved(usize),
    ClaimResized(usize, u32),
    Started {
        claim: usize,
        node: usize,
        device: u16,
    },
    Stopped(usize),
    /// A plan that evicts and places.
    Planned {
        evicted: Vec<usize>,
        placed: Vec<(usize, usize, u16)>,
    },
    Gone(usize),
    Later(u64),
}

fn happening() -> impl Strategy<Value = Happening> {
    use Happening::*;
    let places = (any::<usize>(), any::<usize>(), 0u16..4);
    prop_oneof![
        3 => (0u8..4, 1u64..80, 0u8..3)
            .prop_map(|(devices, memory_gib, model)| NodeAdded { devices, memory_gib, model }),
        1 => any::<usize>().prop_map(NodeRemoved),
        1 => (any::<usize>(), any::<bool>()).prop_map(|(node, held)| Held(node, held)),
        1 => (any::<usize>(), 0u8..4, any::<bool>()).prop_map(|(node, device, healthy)| Health(node, device, healthy)),
        3 => (0u8..6, 0u8..8, 0u64..8000, 0u8..4)
            .prop_map(|(name, parent, quota, model)| QueueAdded { name, parent, quota, model }),
        1 => (0u8..6).prop_map(QueueRemoved),
        1 => (0u8..3, 0u32..4).prop_map(|(name, min_available)| Budget(name, min_available)),
        3 => (0u8..4, 0u8..8, 0u32..4, 0i32..3, any::<bool>()).prop_map(
            |(name, queue, min_members, priority, preemptible)| GroupAdded { name, queue, min_members, priority, preemptible }
        ),
        1 => any::<usize>().prop_map(GroupRemoved),
        12 => (0u8..8, prop::option::of(0u8..4), 1u32..1001, 0u32..1001, 0u8..4, any::<bool>()).prop_map(
            |(queue, group, core, memory, models, preemptible)| {
                ClaimAdded { queue, group, core, memory, models, preemptible }
            }
        ),
        2 => any::<usize>().prop_map(ClaimRemoved),
        1 => (any::<usize>(), 1u32..1001).prop_map(|(claim, core)| ClaimResized(claim, core)),
        8 => places.clone().prop_map(|(claim, node, device)| Started { claim, node, device }),
        1 => any::<usize>().prop_map(Stopped),
        6 => (vec(any::<usize>(), 0..3), vec(places, 0..4)).prop_map(|(evicted, placed)| Planned { evicted, placed }),
        2 => any::<usize>().prop_map(Gone),
        4 => (0u64..100_000_000).prop_map(Later),
    ]
}

fn nth<T: Copy>(items: &[T], number: usize) -> Option<T> {
    items.get(number.checked_rem(items.len())?).copied()
}

fn queue_name(number: u8) -> String {
    if number > 5 { String::new() } else { format!("q{number}") }
}

fn allocation(cluster: &Cluster, claim: ClaimId, node: NodeId, device: u16) -> Option<Allocation> {
    let wanted = cluster.claim(claim)?.request.devices;
    let memory = cluster.node(node)?.devices().get(usize::from(device))?.memory();
    let part = DeviceAllocation { device, core: wanted.core, memory: wanted.memory.on(memory) };
    Some(Allocation { node, devices: vec![part] })
}

#[derive(Default)]
struct World {
    cluster: Cluster,
    /// Ids in the order of adding; those that are gone stay and name nothing.
    nodes: Vec<NodeId>,
    claims: Vec<ClaimId>,
    groups: Vec<GroupId>,
}

impl World {
    fn happen(&mut self, happening: Happening) {
        use Happening::*;
        let event = match happening {
            NodeAdded { devices, memory_gib, model } => {
                let device = DeviceSpec {
                    model: format!("m{model}"),
                    memory: Bytes::from_mib(memory_gib << 10),
                    ..DeviceSpec::default()
                };
                let spec = NodeSpec {
                    name: format!("n{}", self.nodes.len()),
                    cpu: MilliCpu::new(16_000),
                    devices: vec![device; usize::from(devices)],
                    ..NodeSpec::default()
                };
                Some(Event::NodeAdded(spec))
            }
            NodeRemoved(node) => nth(&self.nodes, node).map(Event::NodeRemoved),
            Held(node, held) => {
                nth(&self.nodes, node).map(|node| self.cluster.set_held(node, held));
                None
            }
            Health(node, device, healthy) => nth(&self.nodes, node).map(|node| Event::DeviceHealthChanged {
                node,
                device: u16::from(device),
                health: if healthy {
                    aliquot_scheduler_core::Health::Healthy
                } else {
                    aliquot_scheduler_core::Health::Unhealthy
                },
            }),
            QueueAdded { name, parent, quota, model } => {
                let allowance = Allowance { quota: Some(quota), weight: 1, ..Allowance::default() };
                let resource = if model == 3 { Resource::DeviceCore } else { Resource::ModelCore(format!("m{model}")) };
                Some(Event::QueueAdded(QueueSpec {
                    name: queue_name(name),
                    parent: (parent < 6).then(|| queue_name(parent)),
                    allowances: BTreeMap::from([(resource, allowance)]),
                    ..QueueSpec::default()
                }))
            }
            QueueRemoved(name) => Some(Event::QueueRemoved(queue_name(name))),
            Budget(name, min_available) => Some(Event::BudgetChanged(DisruptionBudget {
                name: format!("b{name}"),
                namespace: String::new(),
                min_available,
            })),
            GroupAdded { name, queue, min_members, priority, preemptible } => Some(Event::PodGroupAdded(PodGroup {
                name: format!("g{name}"),
                queue: queue_name(queue),
                priority,
                preemptible,
                min_members,
                sub_groups: vec![SubGroup { name: "head".into(), min_members: 1, required_level: None }],
                ..PodGroup::default()
            })),
            GroupRemoved(group) => nth(&self.groups, group).map(Event::PodGroupRemoved),
            ClaimAdded { queue, group, core, memory, models, preemptible } => {
                let number = self.claims.len();
                let constraints = Constraints {
                    models: (0..models).map(|model| format!("m{model}")).collect(),
                    ..Constraints::default()
                };
                let memory = DeviceMemory::Thousandths(memory);
                let devices = DeviceRequest { count: 1, core: DeviceCore::new(core), memory };
                Some(Event::ClaimAdded(Claim {
                    name: format!("c{number}"),
                    request: Request { cpu: MilliCpu::new(100), devices, constraints, ..Request::default() },
                    queue: queue_name(queue),
                    preemptible,
                    pod_group: group.map(|group| format!("g{group}")),
                    sub_group: (number % 2 == 0).then(|| "head".into()),
                    disruption_budget: (number % 3 == 0).then(|| "b0".into()),
                    ..Claim::default()
                }))
            }
            ClaimRemoved(claim) => nth(&self.claims, claim).map(Event::ClaimRemoved),
            ClaimResized(claim, core) => nth(&self.claims, claim).and_then(|claim| {
                let mut request = self.cluster.claim(claim)?.request.clone();
                request.devices.core = DeviceCore::new(core);
                Some(Event::ClaimResized(claim, request))
            }),
            Started { claim, node, device } => {
                nth(&self.claims, claim).zip(nth(&self.nodes, node)).and_then(|(claim, node)| {
                    Some(Event::ClaimPlaced(claim, allocation(&self.cluster, claim, node, device)?))
                })
            }
            Stopped(claim) => nth(&self.claims, claim).map(Event::ClaimEvicted),
            Planned { evicted, placed } => {
                self.plan(&evicted, &placed);
                None
            }
            Gone(claim) => nth(&self.claims, claim).map(Event::ClaimGone),
            Later(milliseconds) => Some(Event::TimeAdvanced(self.cluster.now_ms() + milliseconds)),
        };
        match event.map(|event| self.cluster.apply(event)) {
            Some(Ok(Outcome::Node(id))) => self.nodes.push(id),
            Some(Ok(Outcome::Claim(id))) => self.claims.push(id),
            Some(Ok(Outcome::Group(id))) => self.groups.push(id),
            _ => {}
        }
    }

    fn plan(&mut self, evicted: &[usize], placed: &[(usize, usize, u16)]) {
        let by = placed.first().and_then(|(claim, ..)| self.cluster.group_of(nth(&self.claims, *claim)?));
        let at_ms = self.cluster.now_ms();
        let mut statement = Statement::new(&mut self.cluster);
        for claim in evicted.iter().filter_map(|claim| nth(&self.claims, *claim)) {
            let _ = statement.evict(claim);
        }
        for (claim, node, device) in placed {
            let Some((claim, node)) = nth(&self.claims, *claim).zip(nth(&self.nodes, *node)) else { continue };
            if let Some(at) = allocation(statement.cluster(), claim, node, *device) {
                let _ = statement.place(claim, at);
            }
        }
        let _ = statement.commit(&Displacement { action: Action::Preempt, by, by_name: "somebody".into(), at_ms });
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(256))]

    #[test]
    fn what_is_restored_from_a_dump_has_the_same_dump(happenings in vec(happening(), 1..150)) {
        let mut world = World::default();
        happenings.into_iter().for_each(|happening| world.happen(happening));
        let dump = world.cluster.dump();
        let restored = Cluster::restore(dump.clone()).expect("a dump describes a possible state");
        prop_assert_eq!(restored.dump(), dump);
    }

    #[test]
    fn a_restored_cluster_goes_on_as_the_first_would_have(
        before in vec(happening(), 1..100),
        after in vec(happening(), 1..50),
    ) {
        let mut world = World::default();
        before.into_iter().for_each(|happening| world.happen(happening));
        let cluster = Cluster::restore(world.cluster.dump()).expect("a dump describes a possible state");
        // Who is left, oldest first, so that both are told the same.
        world.nodes.retain(|id| world.cluster.node(*id).is_some());
        world.claims.retain(|id| world.cluster.claim(*id).is_some());
        world.groups.retain(|id| world.cluster.group(*id).is_some());
        let mut claims: Vec<ClaimId> = cluster.claims().map(|(id, ..)| id).collect();
        claims.sort_unstable();
        let mut groups: Vec<GroupId> =
            cluster.groups().filter(|(_, group)| group.is_declared()).map(|(id, _)| id).collect();
        groups.sort_unstable();
        let mut other = World { nodes: cluster.nodes().map(|(id, _)| id).collect(), claims, groups, cluster };
        for happening in after {
            world.happen(happening.clone());
            other.happen(happening);
        }
        prop_assert_eq!(other.cluster.dump(), world.cluster.dump());
    }
}

fn one_node() -> Dump {
    let spec = NodeSpec { name: "n".into(), devices: vec![DeviceSpec::default()], ..NodeSpec::default() };
    Dump { now_ms: 10, nodes: vec![DumpedNode { spec, held: false }], ..Dump::default() }
}

fn half() -> DumpedClaim {
    let request = Request { devices: DeviceRequest::share(DeviceCore::from_percent(60)), ..Request::default() };
    let claim = Claim { name: "c".into(), request, ..Claim::default() };
    DumpedClaim { claim, place: Some(DumpedPlace { node: 0, devices: vec![0] }), ..DumpedClaim::default() }
}

/// What is wrong with a dump of one node and these claims.
fn refused(claims: Vec<DumpedClaim>) -> (DumpEntry, RestoreReason) {
    let error = Cluster::restore(Dump { claims, ..one_node() }).expect_err("there is no such cluster");
    (error.entry, error.reason)
}

#[test]
fn a_dump_that_contradicts_itself_is_refused_with_the_entry_that_does() {
    let (entry, reason) = refused(vec![half(), half()]);
    assert_eq!(entry, DumpEntry::Claim(1));
    assert!(reason.to_string().contains("node \"n\""), "{reason}");

    let elsewhere = DumpedClaim { place: Some(DumpedPlace { node: 3, devices: vec![0] }), ..half() };
    assert_eq!(refused(vec![elsewhere]).1, RestoreReason::NoSuchEntry(DumpEntry::Node(3)));

    let waiting = DumpedClaim { starts_after: vec![1], ..half() };
    let other = DumpedClaim { place: None, ..half() };
    assert_eq!(refused(vec![waiting.clone(), other]), (DumpEntry::Claim(0), RestoreReason::NotLeaving("c".into())));
    assert_eq!(refused(vec![waiting]).1, RestoreReason::NoSuchEntry(DumpEntry::Claim(1)));

    let late = DumpedClaim { started_ms: Some(11), ..half() };
    let future = RestoreReason::InTheFuture { what: "when it started", at_ms: 11, now_ms: 10 };
    assert_eq!(refused(vec![late]).1, future);

    let nowhere = DumpedClaim { place: None, started_ms: Some(1), ..half() };
    assert!(matches!(refused(vec![nowhere]).1, RestoreReason::NotPlaced(_)));
}

#[test]
fn usage_of_any_size_does_not_overflow() {
    let most = DumpedUsage { until_ms: 10, integrals: vec![(Resource::DeviceCore, u128::MAX)] };
    let dump = Dump { capacity: most, claims: vec![half()], ..one_node() };
    let mut cluster = Cluster::restore(dump).expect("a dump describes a possible state");
    assert_eq!(cluster.apply(Event::TimeAdvanced(u64::MAX)), Ok(Outcome::Done));
    let _ = cluster.dump();
}
