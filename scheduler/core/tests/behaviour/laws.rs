//! Laws that must hold at all times, and for each plan. Everything is counted anew from the claims' allocations; the
//! scheduler's books are not trusted.

mod evictions;

use std::collections::{BTreeMap, BTreeSet};

use aliquot_scheduler_core::explain::Reason;
use aliquot_scheduler_core::placement;
use aliquot_scheduler_core::{
    ClaimId, Cluster, DEFAULT_QUEUE, DeviceCore, DeviceRequest, Event, Group, GroupId, KnownClaim, KnownDevice, Node,
    NodeId, Plan, Queue, QueueId, Request, Resource, Scheduler, Settings, Step,
};

use crate::machines::Machines;
use crate::peers;
use evictions::{budgets_hold, disruption_is_bounded, victims_are_fair_game};

type Verdict = Result<(), String>;

/// The names of everything that was declared to a cluster.
#[derive(Clone, Debug)]
pub(crate) struct Declared {
    pub(crate) queues: BTreeSet<String>,
    pub(crate) budgets: BTreeMap<(String, String), u32>,
}

impl Default for Declared {
    fn default() -> Self {
        Self { queues: BTreeSet::from([DEFAULT_QUEUE.to_owned()]), budgets: BTreeMap::new() }
    }
}

impl Declared {
    /// Takes in an accepted event.
    pub(crate) fn note(&mut self, event: &Event) {
        match event {
            Event::QueueAdded(spec) => _ = self.queues.insert(spec.name.clone()),
            Event::QueueRemoved(name) => _ = self.queues.remove(name),
            Event::BudgetChanged(budget) => {
                _ = self.budgets.insert((budget.namespace.clone(), budget.name.clone()), budget.min_available);
            }
            Event::BudgetRemoved(namespace, name) => _ = self.budgets.remove(&(namespace.clone(), name.clone())),
            _ => {}
        }
    }
}

/// The laws that hold between two events.
pub(crate) fn of_state(cluster: &Cluster, machines: &Machines, declared: &Declared) -> Verdict {
    nothing_is_given_out_twice(cluster)?;
    queues_books_are_right(cluster, declared)?;
    machines.agree(cluster)
}

/// The laws that hold for a plan, between the states before and after its cycle.
pub(crate) fn of_plan(
    before: &Cluster,
    after: &Cluster,
    plan: &Plan,
    settings: &Settings,
    declared: &Declared,
) -> Verdict {
    steps_are_what_changed(before, after, plan)?;
    who_was_withdrawn_is_left_alone(before, plan)?;
    bounds_hold(before, after, plan)?;
    gangs_are_whole(before, after, plan)?;
    places_are_allowed(before, after, plan)?;
    peers::are_heeded(before, after, plan)?;
    victims_are_fair_game(before, plan)?;
    budgets_hold(before, after, declared)?;
    disruption_is_bounded(before, plan, settings)?;
    holds_are_bounded(before, after, plan, settings)?;
    everybody_is_placed_or_pending(after, plan)
}

/// The law of conservation, for each node and each device: free + held = capacity.
fn nothing_is_given_out_twice(cluster: &Cluster) -> Verdict {
    let mut held: BTreeMap<NodeId, Vec<ClaimId>> = BTreeMap::new();
    for (id, _, allocation) in cluster.claims() {
        let Some(allocation) = allocation else { continue };
        held.entry(allocation.node).or_default().push(id);
    }
    for (id, node) in cluster.nodes() {
        let mut here = held.remove(&id).unwrap_or_default();
        here.sort_unstable();
        require(here == node.claims().collect::<Vec<_>>(), || format!("{}: claims {here:?}", node.spec().name))?;
        let claims = || here.iter().filter_map(|claim| cluster.claim(*claim));
        let cpu: u64 = claims().map(|claim| claim.request.cpu.get()).sum();
        let memory: u64 = claims().map(|claim| claim.request.memory.get()).sum();
        require(node.cpu_free().get() + cpu == node.spec().cpu.get(), || format!("{}: CPU", node.spec().name))?;
        require(node.memory_free().get() + memory == node.spec().memory.get(), || {
            format!("{}: memory", node.spec().name)
        })?;
        let counted: BTreeSet<&String> = claims().flat_map(|claim| claim.request.counted.keys()).collect();
        for name in counted.into_iter().chain(node.spec().counted.keys()) {
            let held: u64 = claims().filter_map(|claim| claim.request.counted.get(name)).sum();
            let has = node.spec().counted.get(name).copied().unwrap_or(0);
            require(node.counted_free(name) + held == has, || format!("{}: {name}", node.spec().name))?;
        }
        for (index, (device, spec)) in node.devices().iter().zip(node.spec().devices.iter()).enumerate() {
            let parts = || here.iter().filter_map(|claim| cluster.allocation(*claim)).flat_map(|at| &at.devices);
            let parts = || parts().filter(|part| usize::from(part.device) == index);
            let core: u32 = parts().map(|part| part.core.get()).sum();
            let memory: u64 = parts().map(|part| part.memory.get()).sum();
            let whole = DeviceCore::WHOLE.get();
            require(
                device.core_free().get() + core == whole && device.memory_free().get() + memory == spec.memory.get(),
                || format!("{}, device {index}", node.spec().name),
            )?;
        }
    }
    require(held.is_empty(), || format!("claims are on nodes that are gone: {held:?}"))
}

/// What queues hold: in total, and by claims that may not be evicted.
#[derive(Clone, Default)]
pub(crate) struct Held(BTreeMap<(QueueId, Resource), (u64, u64)>);

impl Held {
    pub(crate) fn of(cluster: &Cluster) -> Self {
        let mut held = Self::default();
        for (id, _, _) in cluster.claims() {
            let Some(group) = group_of(cluster, id) else { continue };
            for (queue, _) in path(cluster, group.queue()) {
                for (resource, amount) in charge(cluster, id) {
                    let (all, fixed) = held.0.entry((queue, resource)).or_default();
                    *all += amount;
                    *fixed += if group.spec().preemptible { 0 } else { amount };
                }
            }
        }
        held
    }

    pub(crate) fn get(&self, queue: QueueId, resource: &Resource) -> (u64, u64) {
        self.0.get(&(queue, resource.clone())).copied().unwrap_or_default()
    }
}

/// What a placed claim takes of each resource.
pub(crate) fn charge(cluster: &Cluster, id: ClaimId) -> BTreeMap<Resource, u64> {
    let mut charge = BTreeMap::new();
    let Some((claim, at)) = cluster.claim(id).zip(cluster.allocation(id)) else { return charge };
    let mut add = |resource, amount| {
        if amount > 0 {
            *charge.entry(resource).or_insert(0) += amount;
        }
    };
    add(Resource::Cpu, claim.request.cpu.get());
    add(Resource::Memory, claim.request.memory.get());
    for part in &at.devices {
        let model = cluster.node(at.node).map(|node| node.spec().devices[usize::from(part.device)].model.clone());
        add(Resource::DeviceCore, u64::from(part.core.get()));
        add(Resource::DeviceMemory, part.memory.get());
        add(Resource::ModelCore(model.unwrap_or_default()), u64::from(part.core.get()));
    }
    charge
}

pub(crate) fn path(cluster: &Cluster, queue: QueueId) -> Vec<(QueueId, &Queue)> {
    let first = cluster.queue(queue).map(|state| (queue, state));
    let above = |(_, queue): &(QueueId, &Queue)| queue.parent().and_then(|id| Some((id, cluster.queue(id)?)));
    std::iter::successors(first, above).collect()
}

pub(crate) fn group_of(cluster: &Cluster, claim: ClaimId) -> Option<&Group> {
    cluster.group(cluster.group_of(claim)?)
}

fn resources(cluster: &Cluster) -> BTreeSet<Resource> {
    let models = cluster.nodes().flat_map(|(_, node)| node.spec().devices.iter());
    let models = models.map(|device| Resource::ModelCore(device.model.clone()));
    [Resource::Cpu, Resource::Memory, Resource::DeviceCore, Resource::DeviceMemory].into_iter().chain(models).collect()
}

fn queues_books_are_right(cluster: &Cluster, declared: &Declared) -> Verdict {
    let placed = cluster.claims().find(|(id, _, at)| at.is_some() && cluster.is_withdrawn(*id));
    require(placed.is_none(), || format!("{placed:?} was withdrawn, but is placed"))?;
    let held = Held::of(cluster);
    let resources = resources(cluster);
    for (name, id) in declared.queues.iter().filter_map(|name| Some((name, cluster.queue_named(name)?))) {
        for resource in &resources {
            let (booked, counted) = (cluster.allocated(id, resource), held.get(id, resource).0);
            require(booked == counted, || format!("queue {name}: {booked} of {resource} booked, {counted} held"))?;
        }
    }
    Ok(())
}

/// No step is about a withdrawn claim.
fn who_was_withdrawn_is_left_alone(before: &Cluster, plan: &Plan) -> Verdict {
    let mut steps = plan.steps.iter().map(|planned| &planned.step);
    match steps.find(|step| before.is_withdrawn(step.claim())) {
        Some(step) => Err(format!("this claim was withdrawn: {step:?}")),
        None => Ok(()),
    }
}

/// A cycle changes exactly what its plan says, and the plan has at most one step for each claim.
fn steps_are_what_changed(before: &Cluster, after: &Cluster, plan: &Plan) -> Verdict {
    let claims: BTreeSet<ClaimId> = plan.steps.iter().map(|planned| planned.step.claim()).collect();
    require(claims.len() == plan.steps.len(), || format!("two steps for one claim: {:?}", plan.steps))?;
    let idle = plan.steps.iter().find(|planned| matches!(&planned.step, Step::Move { from, to, .. } if from == to));
    require(idle.is_none(), || format!("moved to where it was: {idle:?}"))?;
    let mut at: BTreeMap<ClaimId, _> = before.claims().filter_map(|(id, _, at)| Some((id, at?.clone()))).collect();
    for planned in &plan.steps {
        match &planned.step {
            Step::Evict { claim, from } => {
                require(at.remove(claim).as_ref() == Some(from), || format!("{claim:?} is evicted from elsewhere"))?;
            }
            Step::Move { claim, from, to, .. } => {
                let was = at.insert(*claim, to.clone());
                require(was.as_ref() == Some(from), || format!("{claim:?} is moved from elsewhere"))?;
            }
            Step::Place { claim, to, .. } => {
                require(at.insert(*claim, to.clone()).is_none(), || format!("{claim:?} is placed twice"))?;
            }
        }
    }
    let now: BTreeMap<ClaimId, _> = after.claims().filter_map(|(id, _, at)| Some((id, at?.clone()))).collect();
    let ids = |cluster: &Cluster| cluster.claims().map(|(id, ..)| id).collect::<Vec<_>>();
    require(ids(before) == ids(after), || "a cycle has lost a claim".into())?;
    require(at == now, || "the state after a cycle is not what its steps lead to".into())
}

/// By what a cycle places, no queue exceeds a limit, and its claims that may not be evicted do not exceed its quota.
fn bounds_hold(before: &Cluster, after: &Cluster, plan: &Plan) -> Verdict {
    let (was, is) = (Held::of(before), Held::of(after));
    for id in plan.steps.iter().filter_map(|planned| planned.step.placed()) {
        // A moved claim takes nothing more.
        if before.allocation(id).is_some() {
            continue;
        }
        let Some(group) = group_of(after, id) else { continue };
        for (queue, state) in path(after, group.queue()) {
            for resource in charge(after, id).into_keys() {
                let Some(allowance) = state.spec().allowances.get(&resource) else { continue };
                let (all, fixed) = is.get(queue, &resource);
                require(allowance.limit.is_none_or(|limit| all <= limit), || {
                    let had = was.get(queue, &resource).0;
                    format!(
                        "queue {}: {had} of {resource} become {all}, limit {:?}",
                        state.spec().name,
                        allowance.limit
                    )
                })?;
                let quota = allowance.quota.filter(|_| !group.spec().preemptible);
                require(quota.is_none_or(|quota| fixed <= quota), || {
                    format!("queue {}: {fixed} of {resource} that stays, quota {quota:?}", state.spec().name)
                })?;
            }
        }
    }
    Ok(())
}

/// The number of placed members of a group, and whether all its minimums are reached.
pub(crate) fn members_placed(cluster: &Cluster, id: GroupId) -> (u32, bool) {
    let Some(group) = cluster.group(id) else { return (0, true) };
    let placed: Vec<&KnownClaim> = group
        .members()
        .filter(|claim| cluster.allocation(*claim).is_some())
        .filter_map(|claim| cluster.claim(claim))
        .collect();
    let count = |name: &str| placed.iter().filter(|claim| claim.sub_group.as_deref() == Some(name)).count();
    let spec = group.spec();
    let sub_groups = spec.sub_groups.iter().all(|sub| count(&sub.name) >= sub.min_members as usize);
    let number = u32::try_from(placed.len()).unwrap_or(u32::MAX);
    (number, number >= spec.min_members && sub_groups)
}

/// After a cycle, a gang has as many members as it needs, or none, or those that events have left of it before. Its
/// members start together.
fn gangs_are_whole(before: &Cluster, after: &Cluster, plan: &Plan) -> Verdict {
    for (id, group) in after.groups() {
        let ((was, was_complete), (is, is_complete)) = (members_placed(before, id), members_placed(after, id));
        let untouched = was > 0 && !was_complete && was == is;
        require(is == 0 || is_complete || untouched, || {
            format!("{:?}: {was} placed ({was_complete}) become {is}, which is not enough", group.spec())
        })?;
        if was == 0 && is > 0 {
            let mut starts: BTreeMap<&[ClaimId], u32> = BTreeMap::new();
            for planned in &plan.steps {
                let Step::Place { claim, starts_after, .. } = &planned.step else { continue };
                if after.group_of(*claim) == Some(id) {
                    *starts.entry(starts_after).or_default() += 1;
                }
            }
            let together = starts.values().max().copied().unwrap_or(0);
            require(together >= group.spec().min_members, || format!("{:?} does not start together", group.spec()))?;
        }
    }
    Ok(())
}

/// Placed claims are where their constraints and their group's rules allow it.
fn places_are_allowed(before: &Cluster, after: &Cluster, plan: &Plan) -> Verdict {
    let mut groups = BTreeSet::new();
    for id in plan.steps.iter().filter_map(|planned| planned.step.placed()) {
        let (Some(claim), Some(at)) = (after.claim(id), after.allocation(id)) else { continue };
        let Some(node) = after.node(at.node) else { return Err(format!("{id:?} is placed on no node")) };
        let spec = node.spec();
        let constraints = &claim.request.constraints;
        require(!spec.cordoned && constraints.admit(spec), || format!("{id:?} must not be on {}", spec.name))?;
        let wishes = claim.request.wishes_of(at.alternative);
        let of_parts = wishes.flat_map(|wish| std::iter::repeat_n(wish, usize::from(wish.devices.count)));
        for (part, wish) in at.devices.iter().zip(of_parts) {
            let (device, state) = (&spec.devices[usize::from(part.device)], &node.devices()[usize::from(part.device)]);
            let allowed = state.is_healthy() && wish.admit_model(&device.model);
            require(allowed, || format!("{id:?} must not have device {} of {}", part.device, spec.name))?;
        }
        groups.extend(after.group_of(id));
    }
    for group in groups.into_iter().filter_map(|id| after.group(id)) {
        let Some(level) = &group.spec().spread.required_level else { continue };
        let domains = |cluster: &Cluster| -> BTreeSet<Option<String>> {
            let nodes = group.members().filter_map(|claim| cluster.node(cluster.allocation(claim)?.node));
            nodes.map(|node| node.spec().labels.get(level).map(str::to_owned)).collect()
        };
        // A node that refuses to evict a member, while another one has started elsewhere, can leave a group apart.
        let (was, is) = (domains(before), domains(after));
        require(is.is_subset(&was) || (is.len() <= 1 && !is.contains(&None)), || {
            format!("group {} is spread over {is:?}", group.spec().name)
        })?;
    }
    Ok(())
}

/// Few nodes are held, and none when no claim is pending. If other nodes fail, those that are held stay.
fn holds_are_bounded(before: &Cluster, after: &Cluster, plan: &Plan, settings: &Settings) -> Verdict {
    let nodes = after.nodes().count();
    let held = after.nodes().filter(|(id, _)| after.is_held(*id)).count();
    let is_more = after.nodes().any(|(id, _)| after.is_held(id) && !before.is_held(id));
    let most = (nodes as u64 * u64::from(settings.held_nodes_per_mille) / 1000).max(nodes as u64 / 4).max(1);
    require(!is_more || held as u64 <= most, || format!("{held} of {nodes} nodes are held"))?;
    require(held == 0 || !plan.pending.is_empty(), || "a node is held, but no group is pending".into())
}

/// Each group with pending members is in the plan's list once, except groups that this plan has evicted.
fn everybody_is_placed_or_pending(after: &Cluster, plan: &Plan) -> Verdict {
    let waiting: BTreeSet<GroupId> = after
        .claims()
        .filter(|(id, _, at)| at.is_none() && !after.is_withdrawn(*id))
        .filter_map(|(id, ..)| after.group_of(id))
        .collect();
    let pending: BTreeSet<GroupId> = plan.pending.iter().map(|pending| pending.group).collect();
    let evicted = |step: &Step| matches!(step, Step::Evict { .. }).then(|| after.group_of(step.claim())).flatten();
    let evicted: BTreeSet<GroupId> = plan.steps.iter().filter_map(|planned| evicted(&planned.step)).collect();
    let unsaid: Vec<&GroupId> = waiting.difference(&pending).filter(|group| !evicted.contains(group)).collect();
    require(pending.is_subset(&waiting) && unsaid.is_empty() && pending.len() == plan.pending.len(), || {
        format!("groups {waiting:?} wait, the plan says {pending:?}")
    })
}

/// At rest, no single claim waits for room that is free, that its queue may hold, and that is not kept for a group.
pub(crate) fn nobody_waits_for_what_is_free(cluster: &Cluster, scheduler: &Scheduler) -> Verdict {
    let (held, standing) = (Held::of(cluster), peers::standing(cluster));
    let is_kept = |reason: Reason| match reason {
        Reason::QueueLimit(bound) | Reason::NonPreemptibleOverQuota(bound) => bound.kept > 0,
        _ => false,
    };
    for (id, claim, at) in cluster.claims() {
        let waits = at.is_none() && !cluster.is_withdrawn(id);
        if waits && scheduler.bounds_passed(cluster, id).into_iter().any(is_kept) {
            continue;
        }
        let Some(group) = group_of(cluster, id).filter(|group| waits && !group.is_declared()) else { continue };
        let open = cluster.nodes().filter(|(id, _)| !cluster.is_held(*id));
        let fitting = open.filter(|(_, node)| placement::fits(node, &claim.request).is_ok());
        let fitting = fitting.filter(|(id, _)| peers::allow(cluster, &standing, claim, *id).is_ok());
        // Its exact place is not known, so the test asks whether it could be placed anywhere at its greatest charge.
        let may = |(_, node): &(NodeId, &Node)| {
            let charge = greatest_charge(node, claim);
            path(cluster, group.queue()).into_iter().all(|(queue, state)| {
                charge.iter().all(|(resource, amount)| {
                    let Some(allowance) = state.spec().allowances.get(resource) else { return true };
                    let (all, fixed) = held.get(queue, resource);
                    let quota = allowance.quota.filter(|_| !claim.preemptible);
                    allowance.limit.is_none_or(|limit| all + amount <= limit)
                        && quota.is_none_or(|quota| fixed + amount <= quota)
                })
            })
        };
        let place = fitting.into_iter().find(may);
        require(place.is_none(), || {
            format!("{id:?} waits although there is room for it on {:?}: {claim:?}", place.map(|(_, node)| node.spec()))
        })?;
    }
    Ok(())
}

/// The most that a claim can be charged on a node.
fn greatest_charge(node: &Node, claim: &KnownClaim) -> BTreeMap<Resource, u64> {
    let charges = (0..claim.request.choice_count()).map(|choice| charge_of_choice(node, &claim.request, choice));
    charges.fold(BTreeMap::new(), |mut most, charge| {
        for (resource, amount) in charge {
            let most = most.entry(resource).or_insert(0);
            *most = amount.max(*most);
        }
        most
    })
}

fn charge_of_choice(node: &Node, request: &Request, choice: u16) -> BTreeMap<Resource, u64> {
    let wishes = || request.wishes_of(choice);
    let core = wishes().map(|wish| wish.devices.total_core()).sum();
    let most = |wanted: &DeviceRequest| {
        let each = node.devices().iter().map(|device| wanted.memory.on(device.memory()).get()).max();
        each.unwrap_or(0) * u64::from(wanted.count)
    };
    let is_admitted = |device: &&KnownDevice| wishes().any(|wish| wish.admit_device(device));
    let devices = node.spec().devices.iter().filter(is_admitted);
    let models = devices.map(|device| (Resource::ModelCore(device.model.clone()), core));
    let others = [
        (Resource::Cpu, request.cpu.get()),
        (Resource::Memory, request.memory.get()),
        (Resource::DeviceCore, core),
        (Resource::DeviceMemory, wishes().map(|wish| most(wish.devices)).sum()),
    ];
    others.into_iter().chain(models).collect()
}

fn require(holds: bool, broken: impl FnOnce() -> String) -> Verdict {
    if holds { Ok(()) } else { Err(broken()) }
}
