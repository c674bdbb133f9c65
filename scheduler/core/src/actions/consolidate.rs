//! Consolidate: claims are moved so that what is free is in one place. Nobody is evicted for good.

use std::collections::BTreeMap;

use crate::claim::{Action, Allocation, ClaimId, NodeId};
use crate::class::ClassId;
use crate::cluster::Cluster;
use crate::gang::{MakeRoom, Unplaceable, place_unit};
use crate::group::{Group, GroupPlacement};
use crate::placement::{Engine, Policy};
use crate::queue::Queue;
use crate::scheduler::cause;
use crate::statement::{Statement, Step};
use crate::unit::Unit;

use super::context::{Context, Outcome, Refusal};
use super::finder::{Finder, could_fit, may_run};
use super::least_disruption::{Disruption, Solution};
use super::protection::{Protection, delayed_until_ms};
use super::search::Search;
use super::victims::{Measure, Victims};

/// Places a unit by moving claims of others, all of which find another place.
pub(crate) fn consolidate(cluster: &mut Cluster, context: &mut Context<'_>, unit: &Unit) -> Outcome {
    if context.moves_left == 0 || !enough_is_free(cluster, unit) {
        return Err(Refusal::NothingToTake);
    }
    if let Some(until_ms) = delayed_until_ms(cluster, unit) {
        return Err(Refusal::Delayed { until_ms });
    }
    let Context { shares, settings, engine, memory, moves_left, entitled } = context;
    let order = cluster.queues().parents_first();
    let holds = |queue: &Queue| !queue.placed().is_empty();
    let queues: Vec<_> = order.into_iter().filter(|queue| cluster.queue(*queue).is_some_and(holds)).collect();
    for queue in &queues {
        entitled.know(cluster, shares, *queue);
    }
    let mut victims = Victims::default();
    for queue in queues {
        let action = if queue == unit.queue { Action::Preempt } else { Action::Reclaim };
        let protection = Protection::of(cluster, queue, action);
        let units = entitled.get(queue).into_iter().flat_map(|entitled| entitled.last_first());
        for placed in units.filter(|placed| placed.unit.group != unit.group && placed.unit.claims.len() == 1) {
            let group = cluster.group(placed.unit.group);
            // What is left of a gang would start nowhere else.
            let may_move = |group: &Group| {
                group.has_minimum() && !has_rules(group) && !protection.protects(cluster, group, &placed.unit)
            };
            if group.is_some_and(may_move) {
                victims.add_alone(cluster, queue, placed);
            }
        }
    }
    victims.index();
    if victims.is_empty() || !could_fit(cluster, &victims, unit) {
        return Err(Refusal::NothingToTake);
    }
    let measure = Measure::of(&unit.least_charge(cluster));
    let search = Search::new(settings.search_budget, memory.start(Action::Consolidate, unit.group));
    let finder = Finder::new(search, shares, measure, unit);
    let mut room = Moving { victims, finder, moves_max: *moves_left, moved: BTreeMap::new() };
    let because = cause(cluster, Action::Consolidate, unit.group);
    let mut statement = Statement::new(cluster);
    let placed = place_unit(&mut statement, engine, unit, &mut room);
    let stopped = room.finder.search.stopped().filter(|_| placed.is_err());
    memory.note(Action::Consolidate, unit.group, stopped);
    match placed {
        Ok(()) => {}
        Err(Unplaceable::Limit(exceeded)) => return Err(Refusal::Limit(exceeded)),
        Err(_) if stopped.is_some() => return Err(Refusal::SearchExhausted),
        Err(_) => return Err(Refusal::NothingToTake),
    }
    let steps = statement.keep(&because);
    let moves = steps.iter().filter(|step| matches!(step, Step::Move { .. })).count();
    *moves_left = moves_left.saturating_sub(u32::try_from(moves).unwrap_or(u32::MAX));
    entitled.changed(cluster, &steps);
    Ok(steps)
}

/// Whether a group says where its members may be, relative to each other. They stay together where they are.
fn has_rules(group: &Group) -> bool {
    let spec = group.spec();
    let required = spec.sub_groups.iter().any(|sub_group| sub_group.required_level.is_some());
    required || spec.spread != GroupPlacement::default()
}

/// Whether as much is free as a unit asks for, however scattered.
fn enough_is_free(cluster: &Cluster, unit: &Unit) -> bool {
    let mut classes: BTreeMap<ClassId, u64> = BTreeMap::new();
    let members = unit.claims.iter().filter_map(|claim| cluster.class_of(*claim));
    members.for_each(|class| *classes.entry(class).or_default() += 1);
    classes.into_iter().all(|(class, members)| {
        let Some(request) = cluster.class(class).map(|class| class.request()) else { return false };
        let (mut core, mut cpu) = (0, 0_u64);
        for (id, node) in cluster.nodes() {
            let enough = core >= request.devices.total_core().saturating_mul(members)
                && cpu >= request.cpu.get().saturating_mul(members);
            if enough {
                return true;
            }
            if may_run(cluster, id, request) && !cluster.is_held(id) {
                let healthy = node.devices().iter().filter(|device| device.is_healthy());
                core += healthy.map(|device| u64::from(device.core_free().get())).sum::<u64>();
                cpu = cpu.saturating_add(node.cpu_free().get());
            }
        }
        core >= request.devices.total_core().saturating_mul(members) && cpu >= request.cpu.get().saturating_mul(members)
    })
}

/// Moves claims, within a statement.
struct Moving<'a> {
    victims: Victims<'a>,
    finder: Finder<'a>,
    moves_max: u32,
    /// Where claims were that have been moved.
    moved: BTreeMap<ClaimId, Allocation>,
}

/// Where room could be made, and who would have to move.
type Opening = (Disruption, i64, NodeId, Vec<usize>);

impl Moving<'_> {
    /// How many more claims may be moved.
    fn moves_left(&self, cluster: &Cluster) -> usize {
        let moved = self.moved.iter().filter(|(claim, from)| cluster.allocation(**claim) != Some(*from)).count();
        usize::try_from(self.moves_max).unwrap_or(usize::MAX).saturating_sub(moved)
    }

    /// All nodes on which room could be made, the best first.
    fn openings(
        &mut self,
        cluster: &Cluster,
        engine: &Engine<Box<dyn Policy>>,
        claim: ClaimId,
        among: Option<&[NodeId]>,
    ) -> Vec<Opening> {
        let Some(request) = cluster.claim(claim).map(|claim| &claim.request) else { return Vec::new() };
        let moves_left = self.moves_left(cluster);
        let mut openings = Vec::new();
        let mut allowed = |_: &Disruption, set: &[usize]| set.len() <= moves_left;
        let mut found = |id: NodeId, Solution { disruption, victims, node }: Solution| {
            openings.push((disruption, engine.cost_if(id, &node, request), id, victims));
            moves_left
        };
        self.finder.each_node(cluster, &self.victims, request, among, &mut allowed, &mut found);
        openings.sort_unstable();
        openings
    }

    /// Moves those who are in the way of a claim on a node; where the claim can go then. Nothing is changed if somebody
    /// finds no other place.
    fn make_way(
        &mut self,
        statement: &mut Statement<'_>,
        engine: &mut Engine<Box<dyn Policy>>,
        claim: ClaimId,
        node: NodeId,
        victims: &[usize],
    ) -> Option<Allocation> {
        let start = statement.checkpoint();
        let allocation = self.try_way(statement, engine, claim, node, victims);
        if allocation.is_none() {
            statement.rollback(start);
        }
        allocation
    }

    fn try_way(
        &mut self,
        statement: &mut Statement<'_>,
        engine: &mut Engine<Box<dyn Policy>>,
        claim: ClaimId,
        node: NodeId,
        victims: &[usize],
    ) -> Option<Allocation> {
        let mut homeless = Vec::with_capacity(victims.len());
        for victim in victims.iter().filter_map(|victim| self.victims.all.get(*victim)) {
            for claim in victim.claims() {
                let from = statement.cluster().allocation(claim)?.clone();
                let charge = statement.cluster().charge(claim)?;
                statement.evict(claim).ok()?;
                self.moved.entry(claim).or_insert(from);
                homeless.push((claim, charge));
            }
        }
        let class = statement.cluster().class_of(claim)?;
        let allocation = engine.place_among(statement.cluster(), class, [node])?;
        statement.place(claim, allocation.clone()).ok()?;
        // Who needs most has the fewest places to choose from.
        homeless.sort_by_key(|(_, charge)| std::cmp::Reverse((charge.device_core(), charge.cpu())));
        for (claim, charge) in homeless {
            let class = statement.cluster().class_of(claim)?;
            let to = engine.place(statement.cluster(), class)?;
            // It must count as before: what it is entitled to does not change by a move.
            if statement.cluster().charge_at(claim, &to)? != charge {
                return None;
            }
            statement.place(claim, to).ok()?;
        }
        // Its place is kept free until whoever asked for it takes it.
        statement.evict(claim).ok()?;
        Some(allocation)
    }
}

impl MakeRoom for Moving<'_> {
    fn may_evict(&self) -> bool {
        true
    }

    fn make_room(
        &mut self,
        statement: &mut Statement<'_>,
        engine: &mut Engine<Box<dyn Policy>>,
        claim: ClaimId,
        among: Option<&[NodeId]>,
    ) -> Option<Allocation> {
        for (_, _, node, victims) in self.openings(statement.cluster(), engine, claim, among) {
            if !self.finder.search.spend(victims.len()) {
                self.finder.search.stop(node);
                return None;
            }
            if let Some(allocation) = self.make_way(statement, engine, claim, node, &victims) {
                return Some(allocation);
            }
        }
        None
    }
}
