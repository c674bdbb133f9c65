//! A cluster that is restored from its dump is the same cluster.

use std::collections::BTreeMap;

use aliquot_scheduler_core::placement::BestFit;
use aliquot_scheduler_core::{
    Action, Allocation, Allowance, Bytes, Claim, ClaimId, Cluster, Constraints, DeviceAllocation, DeviceCore,
    DeviceMemory, DeviceRequest, DeviceSpec, Displacement, DisruptionBudget, Dump, DumpEntry, DumpedClaim, DumpedNode,
    DumpedPlace, DumpedUsage, Event, GroupId, GroupPlacement, MilliCpu, NodeId, NodeSpec, Outcome, Plan, PlannedStep,
    PodGroup, QueueSpec, Request, Resource, RestoreReason, Scheduler, Settings, Statement, Step, SubGroup, Texts,
};
use proptest::collection::vec;
use proptest::prelude::*;

/// Something that happens. Numbers are taken modulo the count of the existing things.
#[derive(Clone, Debug)]
enum Happening {
    NodeAdded {
        devices: u8,
        memory_gib: u64,
        model: u8,
    },
    NodeRemoved(usize),
    Health(usize, u8, bool),
    Topology(bool),
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
    Failed(usize),
    /// A plan that evicts and places these claims.
    Planned {
        evicted: Vec<usize>,
        placed: Vec<(usize, usize, u16)>,
    },
    Gone(usize),
    Later(u64),
    Cycle,
}

fn happening() -> impl Strategy<Value = Happening> {
    use Happening::*;
    let places = (any::<usize>(), any::<usize>(), 0u16..4);
    prop_oneof![
        3 => (0u8..4, 1u64..80, 0u8..3)
            .prop_map(|(devices, memory_gib, model)| NodeAdded { devices, memory_gib, model }),
        1 => any::<usize>().prop_map(NodeRemoved),
        1 => (any::<usize>(), 0u8..4, any::<bool>()).prop_map(|(node, device, healthy)| Health(node, device, healthy)),
        1 => any::<bool>().prop_map(Topology),
        3 => (0u8..6, 0u8..8, 0u64..8000, 0u8..4)
            .prop_map(|(name, parent, quota, model)| QueueAdded { name, parent, quota, model }),
        1 => (0u8..6).prop_map(QueueRemoved),
        1 => (0u8..3, 0u32..4).prop_map(|(name, min_available)| Budget(name, min_available)),
        3 => (0u8..4, 0u8..8, 0u32..4, 0i32..3, any::<bool>()).prop_map(
            |(name, queue, min_members, priority, preemptible)| {
                GroupAdded { name, queue, min_members, priority, preemptible }
            }
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
        1 => any::<usize>().prop_map(Failed),
        6 => (vec(any::<usize>(), 0..3), vec(places, 0..4)).prop_map(|(evicted, placed)| Planned { evicted, placed }),
        2 => any::<usize>().prop_map(Gone),
        4 => (0u64..1_000_000).prop_map(Later),
        4 => Just(Cycle),
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
    Some(Allocation { node, devices: vec![part], alternative: 0 })
}

struct World {
    scheduler: Scheduler,
    cluster: Cluster,
    /// Ids in the order of adding. The ids of things that are gone stay in the list and name nothing.
    nodes: Vec<NodeId>,
    claims: Vec<ClaimId>,
    groups: Vec<GroupId>,
}

fn settings() -> Settings {
    Settings {
        search_budget: 3,
        search_budget_per_cycle: 10,
        hold_after_ms: Some(1000),
        held_nodes_per_mille: 500,
        ..Settings::default()
    }
}

impl World {
    fn new() -> Self {
        let scheduler = Scheduler::new(Box::new(BestFit), settings());
        Self { scheduler, cluster: Cluster::new(), nodes: Vec::new(), claims: Vec::new(), groups: Vec::new() }
    }

    /// The same world, restored from its dump. Ids of things that are gone are forgotten in both worlds.
    fn restored(&mut self) -> Self {
        let dump = self.scheduler.dump(&self.cluster);
        let (scheduler, cluster) =
            Scheduler::restore(Box::new(BestFit), settings(), dump).expect("a dump describes a possible state");
        self.nodes.retain(|id| self.cluster.node(*id).is_some());
        self.claims.retain(|id| self.cluster.claim(*id).is_some());
        self.groups.retain(|id| self.cluster.group(*id).is_some());
        let mut claims: Vec<ClaimId> = cluster.claims().map(|(id, ..)| id).collect();
        claims.sort_unstable();
        let declared = cluster.groups().filter(|(_, group)| group.is_declared());
        let mut groups: Vec<GroupId> = declared.map(|(id, _)| id).collect();
        groups.sort_unstable();
        Self { scheduler, nodes: cluster.nodes().map(|(id, _)| id).collect(), claims, groups, cluster }
    }

    /// A plan with names in place of ids.
    fn named(&self, plan: &Plan) -> Vec<String> {
        let name = |id: ClaimId| self.cluster.claim(id).map_or("", |claim| &claim.name);
        let members = |id: GroupId| -> Vec<&str> {
            self.cluster.group(id).into_iter().flat_map(|group| group.members()).map(name).collect()
        };
        let step = |planned: &PlannedStep| {
            let group = planned.for_group.map(members);
            let (what, at, after): (&str, Vec<&Allocation>, &[ClaimId]) = match &planned.step {
                Step::Evict { from, .. } => ("evict", vec![from], &[]),
                Step::Move { from, to, starts_after, .. } => ("move", vec![from, to], starts_after),
                Step::Place { to, starts_after, .. } => ("place", vec![to], starts_after),
            };
            let at: Vec<(&str, &[DeviceAllocation])> = at
                .into_iter()
                .map(|at| (self.cluster.node(at.node).map_or("", |node| &node.spec().name), at.devices.as_slice()))
                .collect();
            let after: Vec<&str> = after.iter().map(|id| name(*id)).collect();
            format!("{:?} {what} {} {at:?} after {after:?} for {group:?}", planned.action, name(planned.step.claim()))
        };
        let waits = plan.pending.iter().map(|pending| format!("{:?} waits", members(pending.group)));
        plan.steps.iter().map(step).chain(waits).collect()
    }

    /// Lets something happen. Returns the plan if it is a cycle.
    fn happen(&mut self, happening: Happening) -> Vec<String> {
        use Happening::*;
        let event = match happening {
            NodeAdded { devices, memory_gib, model } => {
                let device = DeviceSpec {
                    model: format!("m{model}"),
                    memory: Bytes::from_mib(memory_gib << 10),
                    ..DeviceSpec::default()
                };
                let label = |key: &str, of: usize| (key.to_owned(), (self.nodes.len() % of).to_string());
                let spec = NodeSpec {
                    name: format!("n{}", self.nodes.len()),
                    labels: Texts::from([label("zone", 2), label("rack", 4)]),
                    cpu: MilliCpu::new(16_000),
                    devices: vec![device; usize::from(devices)],
                    ..NodeSpec::default()
                };
                Some(Event::NodeAdded(spec))
            }
            NodeRemoved(node) => nth(&self.nodes, node).map(Event::NodeRemoved),
            Health(node, device, healthy) => nth(&self.nodes, node).map(|node| Event::DeviceHealthChanged {
                node,
                device: u16::from(device),
                health: if healthy {
                    aliquot_scheduler_core::Health::Healthy
                } else {
                    aliquot_scheduler_core::Health::Unhealthy
                },
            }),
            Topology(racks) => {
                let levels = ["zone", "rack"].into_iter().take(if racks { 2 } else { 1 });
                Some(Event::TopologyChanged(levels.map(str::to_owned).collect()))
            }
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
                spread: GroupPlacement {
                    required_level: (name == 0).then(|| "zone".into()),
                    preferred_level: (name == 1).then(|| "rack".into()),
                    ..GroupPlacement::default()
                },
                sub_groups: vec![SubGroup {
                    name: "head".into(),
                    min_members: 1,
                    required_level: None,
                    preferred_level: (name == 0).then(|| "rack".into()),
                }],
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
                    sub_group: number.is_multiple_of(2).then(|| "head".into()),
                    disruption_budget: number.is_multiple_of(3).then(|| "b0".into()),
                    ..Claim::default()
                }))
            }
            ClaimRemoved(claim) => nth(&self.claims, claim).map(Event::ClaimRemoved),
            ClaimResized(claim, core) => nth(&self.claims, claim).and_then(|claim| {
                let mut request = Request::clone(&self.cluster.claim(claim)?.request);
                request.devices.core = DeviceCore::new(core);
                Some(Event::ClaimResized(claim, request))
            }),
            Started { claim, node, device } => {
                nth(&self.claims, claim).zip(nth(&self.nodes, node)).and_then(|(claim, node)| {
                    Some(Event::ClaimPlaced(claim, allocation(&self.cluster, claim, node, device)?))
                })
            }
            Stopped(claim) => nth(&self.claims, claim).map(Event::ClaimEvicted),
            Failed(claim) => nth(&self.claims, claim).map(Event::ClaimFailed),
            Planned { evicted, placed } => {
                self.plan(&evicted, &placed);
                None
            }
            Gone(claim) => nth(&self.claims, claim).map(Event::ClaimGone),
            Cycle => {
                let plan = self.scheduler.cycle(&mut self.cluster);
                return self.named(&plan);
            }
            Later(milliseconds) => Some(Event::TimeAdvanced(self.cluster.now_ms() + milliseconds)),
        };
        match event.map(|event| self.cluster.apply(event)) {
            Some(Ok(Outcome::Node(id))) => self.nodes.push(id),
            Some(Ok(Outcome::Claim(id))) => self.claims.push(id),
            Some(Ok(Outcome::Group(id))) => self.groups.push(id),
            _ => {}
        }
        Vec::new()
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
        let _ = statement.commit(&Displacement {
            action: Action::Preempt,
            by,
            by_name: "somebody".into(),
            at_ms,
            shares: Vec::new(),
        });
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(128))]

    #[test]
    fn what_is_restored_from_a_dump_has_the_same_dump_and_plans_the_same(
        before in vec(happening(), 1..100),
        after in vec(happening(), 1..30),
    ) {
        let mut world = World::new();
        for happening in before {
            world.happen(happening);
        }
        let mut restored = world.restored();
        prop_assert_eq!(restored.scheduler.dump(&restored.cluster), world.scheduler.dump(&world.cluster));
        for happening in after {
            prop_assert_eq!(restored.happen(happening.clone()), world.happen(happening));
        }
        prop_assert_eq!(restored.scheduler.dump(&restored.cluster), world.scheduler.dump(&world.cluster));
    }
}

fn one_node() -> Dump {
    let spec = NodeSpec { name: "n".into(), devices: vec![DeviceSpec::default()], ..NodeSpec::default() };
    Dump { now_ms: 10, nodes: vec![DumpedNode { spec, held: false }], ..Dump::default() }
}

fn half() -> DumpedClaim {
    let request = Request { devices: DeviceRequest::share(DeviceCore::from_percent(60)), ..Request::default() };
    let claim = Claim { name: "c".into(), request, ..Claim::default() };
    DumpedClaim {
        claim: claim.into(),
        place: Some(DumpedPlace { node: 0, devices: vec![0], ..DumpedPlace::default() }),
        ..DumpedClaim::default()
    }
}

/// Why a dump of one node and these claims is refused: the entry, and the reason.
fn refused(claims: Vec<DumpedClaim>) -> (DumpEntry, RestoreReason) {
    let error = Cluster::restore(Dump { claims, ..one_node() }).expect_err("there is no such cluster");
    (error.entry, error.reason)
}

#[test]
fn a_dump_that_contradicts_itself_is_refused_with_the_entry_that_does() {
    let (entry, reason) = refused(vec![half(), half()]);
    assert_eq!(entry, DumpEntry::Claim(1));
    assert!(reason.to_string().contains("node \"n\""), "{reason}");

    let elsewhere =
        DumpedClaim { place: Some(DumpedPlace { node: 3, devices: vec![0], ..DumpedPlace::default() }), ..half() };
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
