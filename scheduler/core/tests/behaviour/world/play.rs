//! Applies a list of events to a world, and checks its laws after each.

use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind};

use aliquot_scheduler_core::placement::{
    BestFit, Engine, ExpectedWaste, Mix, Policy, Random as RandomPolicy, Spread, Weights,
};
use aliquot_scheduler_core::{
    Action, Allowance, Bytes, Claim, ClaimId, Cluster, DeviceSpec, Displacement, DisruptionBudget, Event, GroupId,
    GroupPlacement, Health, MilliCpu, NodeId, NodeSpec, Outcome, Plan, PlannedStep, PodGroup, QueueSpec, Request,
    Resource, Scheduler, Settings, Statement, SubGroup,
};

use super::happenings::{Bounded, Happening, Loss, Shape, Terms};
use crate::kit::Kit;
use crate::laws;
use crate::random::Random;

/// The queues of a world, with the leaves last.
pub(crate) const QUEUES: [(&str, Option<&str>); 7] = [
    ("left", None),
    ("deep", None),
    ("deep-1", Some("deep")),
    ("left-a", Some("left")),
    ("left-b", Some("left")),
    ("deep-1-a", Some("deep-1")),
    ("right", None),
];
const LEAVES: [&str; 6] = ["left-a", "left-b", "deep-1-a", "right", "default", SOMETIMES];
/// A queue below "left" that exists only at times.
const SOMETIMES: &str = "left-c";

/// More cycles without news than any world needs to come to rest.
const CYCLES_MAX: u32 = 60;

/// The law that was broken, or the error that occurred.
#[derive(Debug)]
#[expect(dead_code, reason = "it is read by people, as it is printed")]
pub(crate) struct Broken(String);

/// Lets everything happen, and then lets the world come to rest.
pub(crate) fn play(seed: u64, happenings: &[Happening]) -> Result<(), Broken> {
    let hook = std::panic::take_hook();
    std::panic::set_hook(Box::new(|_| {}));
    let played = catch_unwind(AssertUnwindSafe(|| {
        let mut world = World::new(seed);
        happenings.iter().try_for_each(|happening| world.happens(happening))?;
        world.come_to_rest()
    }));
    std::panic::set_hook(hook);
    let panicked = |panic: Box<dyn std::any::Any + Send>| {
        let text = panic.downcast_ref::<String>().map(String::as_str).or(panic.downcast_ref::<&str>().copied());
        Err(text.unwrap_or("a panic without words").to_owned())
    };
    played.unwrap_or_else(panicked).map_err(Broken)
}

/// The number of policies that seeds use in turn; one of them is random.
const POLICIES: u64 = 4;
const RANDOM: u64 = 2;

fn policy(seed: u64) -> Box<dyn Policy> {
    match seed % POLICIES {
        0 => Box::new(BestFit),
        1 => Box::new(Spread),
        RANDOM => Box::new(RandomPolicy::new(seed)),
        _ => Box::new(ExpectedWaste::new(&Mix::default(), Weights::default())),
    }
}

struct World {
    seed: u64,
    kit: Kit,
    nodes: u32,
    gangs: Vec<(GroupId, String)>,
    /// The engine for decisions outside the scheduler.
    engine: Engine<BestFit>,
}

impl World {
    fn new(seed: u64) -> Self {
        let mut random = Random::new(!seed);
        let settings = Settings {
            usage_weight: random.one_of(&[0, 0, 1000]),
            disruption_per_mille: random.one_of(&[1000, 2000, 5000]),
            search_budget: random.one_of(&[20, 100_000]),
            moves_per_cycle: random.one_of(&[2, 16]),
            hold_after_ms: random.one_of(&[None, Some(0), Some(60_000)]),
            ..Settings::default()
        };
        let mut kit = Kit::with(policy(seed), settings);
        kit.event(Event::TopologyChanged(vec!["rack".into()]));
        for (name, parent) in QUEUES {
            let runtime_ms = |random: &mut Random| random.one_of(&[None, None, Some(0), Some(20_000)]);
            kit.event(Event::QueueAdded(QueueSpec {
                name: name.into(),
                parent: parent.map(str::to_owned),
                priority: random.one_of(&[0, 0, 1]),
                preempt_min_runtime_ms: runtime_ms(&mut random),
                reclaim_min_runtime_ms: runtime_ms(&mut random),
                ..QueueSpec::default()
            }));
        }
        Self { seed, kit, nodes: 0, gangs: Vec::new(), engine: Engine::new(BestFit) }
    }

    /// Applies an event that may contradict the state. If it is refused, the state must be unchanged.
    fn may(&mut self, event: Event) {
        let before = seen(&self.kit.cluster);
        if self.kit.try_event(event).is_err() {
            let after = seen(&self.kit.cluster);
            assert_eq!(before, after, "an event that was refused has changed something");
        }
    }

    fn happens(&mut self, happening: &Happening) -> Result<(), String> {
        match happening {
            Happening::NodeComes { devices, model, rack } => self.add_node(*devices, model, *rack),
            Happening::NodeFails(node) => self.on_node(*node, Event::NodeRemoved),
            Happening::NodeCordoned(node, cordoned) => {
                self.on_spec(*node, Event::NodeRelabelled, |spec| spec.cordoned = *cordoned)
            }
            Happening::DeviceHealth { node, device, healthy } => {
                let health = if *healthy { Health::Healthy } else { Health::Unhealthy };
                self.on_node(*node, |node| Event::DeviceHealthChanged { node, device: *device, health });
            }
            Happening::ClaimComes { request, terms, min_runtime_ms, budget } => {
                let budget = budget.map(budget_name);
                let claim = Claim {
                    request: request.clone(),
                    queue: nth(&LEAVES, terms.queue).unwrap_or_default().to_owned(),
                    priority: terms.priority,
                    preemptible: terms.preemptible,
                    min_runtime_ms: *min_runtime_ms,
                    disruption_budget: budget,
                    ..Claim::default()
                };
                self.may(Event::ClaimAdded(claim));
            }
            Happening::GangComes { request, terms, shape } => self.add_gang(request, *terms, *shape),
            Happening::MemberComes { gang, request } => {
                if let Some((_, name)) = nth(&self.gangs, *gang) {
                    let claim = Claim { request: request.clone(), pod_group: Some(name), ..Claim::default() };
                    self.kit.claim(claim);
                }
            }
            Happening::ClaimGoes(claim) => self.on_claim(*claim, Event::ClaimRemoved),
            Happening::ClaimWithdrawn(claim) => self.on_claim(*claim, Event::ClaimWithdrawn),
            Happening::ClaimSilent(claim) => self.on_claim(*claim, Event::ClaimSilent),
            Happening::ClaimFails(claim) => self.on_claim(*claim, Event::ClaimFailed),
            Happening::ContainerDies(claim) => self.on_claim(*claim, Event::ClaimEvicted),
            Happening::LostBeforeStart { claim, loss } => self.lose_before_start(*claim, *loss),
            Happening::ClaimResized(claim, request) => {
                self.on_claim(*claim, |claim| Event::ClaimResized(claim, request.clone()));
            }
            Happening::ClaimPeers(claim, peers) => {
                self.on_claim(*claim, |claim| Event::ClaimPeersChanged(claim, peers.clone()));
            }
            Happening::ClaimBudget(claim, budget) => {
                let budget = budget.map(budget_name);
                self.on_claim(*claim, |claim| Event::ClaimBudgetChanged(claim, budget.clone()));
            }
            Happening::NodeForeign(node, foreign) => {
                self.on_spec(*node, Event::NodeChanged, |spec| spec.foreign.clone_from(foreign));
            }
            Happening::StoppingIsGone(number) => {
                let stopping: Vec<ClaimId> = self.kit.machines.stopping().collect();
                nth(&stopping, *number).into_iter().for_each(|claim| _ = self.kit.event(Event::ClaimGone(claim)));
            }
            Happening::StoppingIsRefused(number) => {
                let stopping: Vec<ClaimId> = self.kit.machines.stopping().collect();
                nth(&stopping, *number).into_iter().for_each(|claim| self.may(Event::EvictionRefused(claim)));
            }
            Happening::EverythingStoppingIsGone => self.kit.let_go(),
            Happening::QueueChanges { queue, allowance, of } => {
                let Some((name, _)) = nth(&QUEUES, *queue) else { return Ok(()) };
                let id = self.kit.cluster.queue_named(name).and_then(|id| self.kit.cluster.queue(id));
                let Some(mut spec) = id.map(|queue| queue.spec().clone()) else { return Ok(()) };
                let (resource, scale) = match of {
                    Bounded::Core => (Resource::DeviceCore, 1),
                    Bounded::Model => (Resource::ModelCore("A".into()), 1),
                    Bounded::Memory => (Resource::DeviceMemory, 20 << 20),
                };
                let scaled = |amount: u64| amount.saturating_mul(scale);
                let (quota, limit) = (allowance.quota.map(scaled), allowance.limit.map(scaled));
                spec.allowances = BTreeMap::from([(resource, Allowance { quota, limit, ..*allowance })]);
                self.kit.event(Event::QueueChanged(spec));
            }
            Happening::QueueComesOrGoes => match self.kit.cluster.queue_named(SOMETIMES) {
                Some(_) => self.may(Event::QueueRemoved(SOMETIMES.into())),
                None => {
                    let spec =
                        QueueSpec { name: SOMETIMES.into(), parent: Some("left".into()), ..QueueSpec::default() };
                    self.may(Event::QueueAdded(spec));
                }
            },
            Happening::TopologyChanges(levels) => {
                self.may(Event::TopologyChanged(levels.iter().map(|level| (*level).to_owned()).collect()));
            }
            Happening::GangChanges { gang, min_members, priority, preemptible } => {
                let Some((id, _)) = nth(&self.gangs, *gang) else { return Ok(()) };
                let Some(spec) = self.kit.cluster.group(id).map(|group| group.spec().clone()) else { return Ok(()) };
                let (min_members, priority, preemptible) = (*min_members, *priority, *preemptible);
                self.may(Event::PodGroupChanged(id, PodGroup { min_members, priority, preemptible, ..spec }));
            }
            Happening::BudgetChanges { budget, min_available } => {
                let name = budget_name(*budget);
                match min_available {
                    Some(min_available) => {
                        let budget =
                            DisruptionBudget { name, min_available: *min_available, ..DisruptionBudget::default() };
                        self.kit.event(Event::BudgetChanged(budget));
                    }
                    None => self.may(Event::BudgetRemoved(String::new(), name)),
                }
            }
            Happening::TimePasses { ms } => self.kit.advance(*ms),
            Happening::Statement { evicted, placed } => self.decide(evicted, placed)?,
            Happening::Cycle => _ = self.kit.try_cycle()?,
            Happening::CycleTwice => self.cycle_twice()?,
        }
        Ok(())
    }

    /// A restored scheduler decides the same. But a dump does not include the state of random numbers.
    fn cycle_twice(&mut self) -> Result<(), String> {
        if self.seed % POLICIES == RANDOM {
            return self.kit.try_cycle().map(|_| ());
        }
        let dump = |kit: &Kit| kit.scheduler.dump(&kit.cluster);
        let restored = Scheduler::restore(policy(self.seed), self.kit.settings, dump(&self.kit));
        let (mut scheduler, mut cluster) = restored.map_err(|error| error.to_string())?;
        if scheduler.dump(&cluster) != dump(&self.kit) {
            return Err("what was restored is not what was dumped".into());
        }
        let plan = scheduler.cycle(&mut cluster);
        let own = self.kit.try_cycle()?;
        if plan.steps.len() != own.steps.len() {
            return Err(format!("a restored scheduler decides {:?} and not {:?}", plan.steps, own.steps));
        }
        let (restored, own) = (scheduler.dump(&cluster), dump(&self.kit));
        if restored == own {
            return Ok(());
        }
        let (restored, own) = (format!("{restored:#?}"), format!("{own:#?}"));
        let differing = restored.lines().zip(own.lines()).find(|(restored, own)| restored != own);
        Err(format!("after a cycle a restored scheduler and its cluster differ: {differing:?}"))
    }

    fn lose_before_start(&mut self, number: u64, loss: Loss) {
        let cluster = &self.kit.cluster;
        let waiting = cluster.claims().filter_map(|(id, _, at)| Some((id, at?)));
        let waiting = waiting.filter(|(id, _)| cluster.started_ms(*id).is_none());
        let waiting: Vec<(ClaimId, NodeId, u16)> =
            waiting.map(|(id, at)| (id, at.node, at.devices.first().map_or(0, |part| part.device))).collect();
        let Some((claim, node, device)) = nth(&waiting, number) else { return };
        self.may(match loss {
            Loss::Removed => Event::ClaimRemoved(claim),
            Loss::Failed => Event::ClaimFailed(claim),
            Loss::Evicted => Event::ClaimEvicted(claim),
            Loss::NodeGone => Event::NodeRemoved(node),
            Loss::DeviceFailed => Event::DeviceHealthChanged { node, device, health: Health::Unhealthy },
        });
    }

    fn decide(&mut self, evicted: &[u64], placed: &[u64]) -> Result<(), String> {
        let claims: Vec<ClaimId> = self.kit.cluster.claims().map(|(id, ..)| id).collect();
        // The decisions outside the scheduler do not know the rules of gangs.
        let single =
            |cluster: &Cluster, claim| laws::group_of(cluster, claim).is_some_and(|group| !group.is_declared());
        let mut statement = Statement::new(&mut self.kit.cluster);
        for claim in evicted.iter().filter_map(|number| nth(&claims, *number)) {
            // A claim that is not placed cannot be evicted.
            let _ = statement.evict(claim);
        }
        for claim in placed.iter().filter_map(|number| nth(&claims, *number)) {
            if !single(statement.cluster(), claim) {
                continue;
            }
            let at =
                statement.cluster().class_of(claim).and_then(|class| self.engine.place(statement.cluster(), class));
            let _ = at.map(|at| statement.place(claim, at));
        }
        let cause =
            Displacement { action: Action::Preempt, by: None, by_name: String::new(), at_ms: 0, shares: Vec::new() };
        let steps = statement.commit(&cause);
        let planned = |step| PlannedStep { step, action: Action::Preempt, for_group: None };
        let plan = Plan { steps: steps.into_iter().map(planned).collect(), pending: Vec::new() };
        self.kit.machines.carry_out(&self.kit.cluster, &plan)?;
        self.kit.check()
    }

    fn add_node(&mut self, devices: u8, model: &str, rack: u8) {
        self.nodes += 1;
        let device = |model: &str| {
            let memory = Bytes::from_mib(if model == "A" { 20_000 } else { 10_000 });
            DeviceSpec { model: model.into(), memory, ..DeviceSpec::default() }
        };
        let mut all = vec![device(model); usize::from(devices)];
        if self.nodes.is_multiple_of(3) {
            all.iter_mut().skip(1).step_by(2).for_each(|other| *other = device("B"));
        }
        // Some nodes are in no domain by themselves.
        let host = (!self.nodes.is_multiple_of(4)).then(|| self.nodes.to_string());
        self.kit.node(NodeSpec {
            name: format!("node-{}", self.nodes),
            cpu: MilliCpu::new(24_000),
            memory: Bytes::from_mib(64_000),
            labels: [("rack".into(), rack.to_string()), ("zone".into(), "one".into())]
                .into_iter()
                .chain(host.map(|host| ("host".into(), host)))
                .collect(),
            devices: all,
            counted: BTreeMap::from([("slots".into(), 5)]),
            ..NodeSpec::default()
        });
    }

    fn add_gang(&mut self, request: &Request, terms: Terms, shape: Shape) {
        let name = format!("gang-{}", self.gangs.len());
        let sub_group = |name: &str, min_members| SubGroup { name: name.into(), min_members, ..SubGroup::default() };
        let sub_groups = shape.workers.map(|workers| vec![sub_group("head", 1), sub_group("worker", workers)]);
        let group = PodGroup {
            name: name.clone(),
            queue: nth(&LEAVES, terms.queue).unwrap_or_default().to_owned(),
            priority: terms.priority,
            preemptible: terms.preemptible,
            preemption_delay_ms: terms.delay_ms,
            staleness_grace_ms: shape.grace_ms,
            min_members: shape.min_members,
            min_runtime_ms: shape.min_runtime_ms,
            sub_groups: sub_groups.unwrap_or_default(),
            spread: GroupPlacement {
                required_level: shape.one_rack.then(|| "rack".to_owned()),
                ..GroupPlacement::default()
            },
            ..PodGroup::default()
        };
        // The group's queue may not exist.
        let Ok(Outcome::Group(id)) = self.kit.try_event(Event::PodGroupAdded(group)) else { return };
        self.gangs.push((id, name.clone()));
        for member in 0..shape.members {
            let sub_group = shape.workers.map(|_| if member == 0 { "head" } else { "worker" }.to_owned());
            let claim =
                Claim { request: request.clone(), pod_group: Some(name.clone()), sub_group, ..Claim::default() };
            self.kit.claim(claim);
        }
    }

    fn on_node(&mut self, number: u64, event: impl FnOnce(NodeId) -> Event) {
        let nodes: Vec<NodeId> = self.kit.cluster.nodes().map(|(id, _)| id).collect();
        if let Some(node) = nth(&nodes, number) {
            self.may(event(node));
        }
    }

    fn on_spec(
        &mut self,
        number: u64,
        event: impl FnOnce(NodeId, NodeSpec) -> Event,
        change: impl FnOnce(&mut NodeSpec),
    ) {
        let nodes: Vec<(NodeId, NodeSpec)> =
            self.kit.cluster.nodes().map(|(id, node)| (id, node.spec().into())).collect();
        if let Some((node, mut spec)) = nth(&nodes, number) {
            change(&mut spec);
            self.may(event(node, spec));
        }
    }

    fn on_claim(&mut self, number: u64, event: impl FnOnce(ClaimId) -> Event) {
        let claims: Vec<ClaimId> = self.kit.cluster.claims().map(|(id, ..)| id).collect();
        if let Some(claim) = nth(&claims, number) {
            self.may(event(claim));
        }
    }

    /// When nothing happens any more, cycles soon change nothing, and no claim waits for free room. After a while, no
    /// claim waits for time to pass, either.
    fn come_to_rest(&mut self) -> Result<(), String> {
        for pause_ms in [0, 1_000_000, 1_000_000] {
            self.kit.advance(pause_ms);
            let mut cycles = 0;
            loop {
                let kept_before = (self.kit.kept_nodes(), self.kit.keepers());
                let plan = self.kit.try_cycle()?;
                self.kit.let_go();
                // What is kept no longer is given out by the next cycle.
                if plan.steps.is_empty() && kept_before == (self.kit.kept_nodes(), self.kit.keepers()) {
                    break;
                }
                cycles += 1;
                if cycles > CYCLES_MAX {
                    return Err(format!("no rest after {CYCLES_MAX} cycles without news; still: {:?}", plan.steps));
                }
            }
        }
        laws::nobody_waits_for_what_is_free(&self.kit.cluster, &self.kit.scheduler)
    }
}

/// The claims and their places, without class numbers: a request that is changed and put back has another class number.
fn seen(cluster: &Cluster) -> String {
    let claims = cluster.claims().map(|(id, claim, at)| (id, Claim::from(claim), at));
    format!("{:?}", claims.collect::<Vec<_>>())
}

fn nth<T: Clone>(items: &[T], number: u64) -> Option<T> {
    let index = number.checked_rem(items.len() as u64)?;
    items.get(usize::try_from(index).ok()?).cloned()
}

fn budget_name(number: u64) -> String {
    format!("budget-{number}")
}
