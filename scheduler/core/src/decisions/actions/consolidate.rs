//! Consolidate: moves claims so that free room comes together in one place. No claim is evicted for good.

use std::collections::{BTreeMap, BTreeSet};

use crate::decisions::gang::{MakeRoom, Unplaceable, place_unit};
use crate::decisions::placement::{Engine, Policy, still_fits};
use crate::decisions::plan::{Refusal, cause};
use crate::decisions::shares::Shares;
use crate::decisions::unit::Unit;
use crate::state::class::ClassId;
use crate::state::cluster::Cluster;
use crate::state::cluster::limits::{self, Exceeded};
use crate::state::cluster::peer_rules::PeerRules;
use crate::state::statement::Statement;
use crate::vocabulary::claim::{Action, Allocation, ClaimId, NodeId};
use crate::vocabulary::counted;
use crate::vocabulary::step::Step;

use super::context::{ActionResult, Context};
use super::finder::{Finder, could_fit};
use super::frontier::may_run;
use super::least_disruption::{Candidate, Disruption, Question, Seeker, Solution};
use super::leeway::Leeway;
use super::protection::delayed_until_ms;
use super::selection::{Measure, Spares, VictimSelection};
use super::victims::Victim;

/// Places a unit by moving claims of other units. Each moved claim finds another place.
pub(crate) fn consolidate(cluster: &mut Cluster, context: &mut Context<'_>, unit: &Unit) -> ActionResult {
    if context.moves_left == 0 || !enough_is_free(cluster, unit) {
        return Err(Refusal::NothingToTake);
    }
    if let Some(until_ms) = delayed_until_ms(cluster, unit) {
        return Err(Refusal::Delayed { until_ms });
    }
    context.know_movable(cluster);
    let Context { shares, engine, searches, movable, moves_left, .. } = context;
    let own = movable.number_of(unit.queue);
    let takes = |victim: &Victim| {
        let action = if own == Some(victim.queue) { Action::Preempt } else { Action::Reclaim };
        victim.group() != unit.group && victim.is_open_to(action)
    };
    let selection = VictimSelection::new(movable, (0..movable.queues().len()).collect(), takes);
    if selection.is_empty() {
        return Err(Refusal::NothingToTake);
    }
    let mut search = searches.begin(Action::Consolidate, unit.group).ok_or(Refusal::SearchExhausted)?;
    if !could_fit(cluster, &selection, unit, &mut search) {
        searches.end(Action::Consolidate, unit.group, &search, false);
        return Err(Refusal::NothingToTake);
    }
    let measure = Measure::of(&unit.least_charge(cluster));
    let mut room = Moving {
        selection,
        finder: Finder::new(search, unit),
        shares,
        measure,
        unit,
        moves_max: *moves_left,
        moved: BTreeMap::new(),
        bounded: None,
    };
    let because = cause(cluster, Action::Consolidate, unit.group);
    let mut statement = Statement::new(cluster);
    let placed = place_unit(&mut statement, engine, unit, &mut room);
    let (search, bounded) = (room.finder.search.clone(), room.bounded);
    drop(room);
    searches.end(Action::Consolidate, unit.group, &search, placed.is_ok());
    match placed {
        Ok(()) => {}
        Err(Unplaceable::Limit(exceeded)) => return Err(Refusal::Limit(exceeded)),
        Err(_) if search.stopped().is_some() => return Err(Refusal::SearchExhausted),
        Err(_) => return Err(bounded.map_or(Refusal::NothingToTake, Refusal::Limit)),
    }
    let steps = statement.keep(&because);
    let moves = steps.iter().filter(|step| matches!(step, Step::Move { .. })).count();
    *moves_left = moves_left.saturating_sub(u32::try_from(moves).unwrap_or(u32::MAX));
    context.changed(cluster, &steps);
    Ok(steps)
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
            let enough = core >= request.least_core().saturating_mul(members)
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
        core >= request.least_core().saturating_mul(members) && cpu >= request.cpu.get().saturating_mul(members)
    }) && enough_counted_is_free(cluster, unit)
}

/// Like [`enough_is_free`], for counted resources.
fn enough_counted_is_free(cluster: &Cluster, unit: &Unit) -> bool {
    let members = unit.claims.iter().filter_map(|claim| cluster.claim(*claim));
    let wanted = counted::sum(members.map(|claim| &claim.request.counted));
    wanted.iter().all(|(name, wanted)| {
        let free = cluster.nodes().map(|(_, node)| node.counted_free(name));
        free.fold(0, u64::saturating_add) >= *wanted
    })
}

/// Moves claims, within a statement.
struct Moving<'a> {
    selection: VictimSelection<'a>,
    finder: Finder,
    shares: &'a Shares,
    measure: Measure,
    unit: &'a Unit,
    moves_max: u32,
    /// The original places of the claims that have been moved.
    moved: BTreeMap<ClaimId, Allocation>,
    /// The bound of the unit's queue that was in the way where room could be made.
    bounded: Option<Exceeded>,
}

/// All nodes on which room could be made, each with the victims that would have to move.
struct Openings {
    moves_left: usize,
    found: Vec<(Disruption, i64, NodeId, Vec<usize>)>,
}

impl Seeker for Openings {
    fn kept_back(&self, left: u32) -> u32 {
        // To find the openings of some nodes costs as much as to try them, so half of the budget is kept for trying.
        left / 2
    }

    fn cares_for(&self, _: &Disruption) -> bool {
        true
    }

    fn allows(&mut self, candidate: &Candidate<'_>) -> bool {
        candidate.set.len() <= self.moves_left
    }

    fn found(&mut self, node: NodeId, Solution { disruption, victims, cost }: Solution) {
        self.found.push((disruption, cost, node, victims));
    }

    fn has_found(&self) -> bool {
        !self.found.is_empty()
    }
}

impl Moving<'_> {
    /// The nodes on which moves could make room, as far as a quick look shows.
    fn promising(
        &mut self,
        cluster: &Cluster,
        engine: &mut Engine<Box<dyn Policy>>,
        claim: ClaimId,
        among: Option<&[NodeId]>,
    ) -> Option<Vec<NodeId>> {
        let request = &cluster.claim(claim)?.request;
        let among: Option<BTreeSet<NodeId>> = among.map(|among| among.iter().copied().collect());
        let (mut leeway, mut looks) = (Leeway::default(), 0);
        let nodes = self.selection.nodes(None).filter(|(id, _)| among.as_ref().is_none_or(|among| among.contains(id)));
        let nodes = nodes.filter(|(id, here)| {
            looks += 1;
            let victims = here.iter().filter_map(|victim| self.selection.get(*victim));
            leeway.is_enough(cluster, engine, *id, victims.flat_map(Victim::claims), request)
        });
        let nodes = nodes.map(|(id, _)| id).collect();
        self.finder.search.note(looks);
        Some(nodes)
    }

    /// Those of these nodes on which room could be made, the best first.
    fn openings(
        &mut self,
        cluster: &Cluster,
        engine: &Engine<Box<dyn Policy>>,
        claim: ClaimId,
        among: &[NodeId],
    ) -> Vec<(NodeId, Vec<usize>)> {
        let Some(request) = cluster.claim(claim).map(|claim| &claim.request) else { return Vec::new() };
        if among.is_empty() {
            self.finder.pass_over_member();
            return Vec::new();
        }
        let moves_max = usize::try_from(self.moves_max).unwrap_or(usize::MAX);
        let moved = self.moved.iter().filter(|(claim, from)| cluster.allocation(**claim) != Some(*from));
        let moves_left = moves_max.saturating_sub(moved.count());
        let Self { selection, finder, .. } = self;
        let order = selection.order_of_queues(cluster, self.shares);
        let spares = Spares::new(cluster, selection.victims());
        let (measure, order, rules) = (self.measure, &order, PeerRules::of(cluster, request));
        let mut question = Question { cluster, selection, request, engine, measure, order, spares, rules };
        let mut openings = Openings { moves_left, found: Vec::new() };
        finder.each_node(&mut question, Some(among), &mut openings);
        openings.found.sort_unstable();
        openings.found.into_iter().map(|(.., node, victims)| (node, victims)).collect()
    }

    /// Moves the claims that are in the way of a claim on a node, and returns the place of that claim. If one of them
    /// finds no other place, nothing is changed.
    fn make_way(
        &mut self,
        statement: &mut Statement<'_>,
        engine: &mut Engine<Box<dyn Policy>>,
        claim: ClaimId,
        node: NodeId,
        victims: &[usize],
    ) -> Option<Allocation> {
        let start = statement.savepoint();
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
        for victim in victims.iter().filter_map(|victim| self.selection.get(*victim)) {
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
        let charge = statement.cluster().charge_at(claim, &allocation)?;
        let preemptible = self.unit.is_preemptible(statement.cluster());
        let within = limits::check(statement.cluster(), self.unit.queue, &charge, preemptible, false);
        within.map_err(|exceeded| self.bounded = Some(exceeded)).ok()?;
        statement.place(claim, allocation.clone()).ok()?;
        // A claim that needs more has fewer places to choose from, so it goes first.
        homeless.sort_by_key(|(_, charge)| std::cmp::Reverse((charge.device_core(), charge.cpu())));
        for (claim, charge) in homeless {
            let class = statement.cluster().class_of(claim)?;
            let to = engine.place(statement.cluster(), class)?;
            // A move must not change the charge, because what a claim is entitled to must not change by it.
            if statement.cluster().charge_at(claim, &to)? != charge {
                return None;
            }
            statement.place(claim, to).ok()?;
        }
        // The place is kept free until the caller takes it for the claim.
        statement.evict(claim).ok()?;
        // Claims that were moved may be on these devices again, and use more of their memory than the claim tolerates.
        let request = &statement.cluster().claim(claim)?.request;
        let books = statement.cluster().node(node)?;
        still_fits(books, request, &allocation.devices).then_some(allocation)
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
        let promising = self.promising(statement.cluster(), engine, claim, among)?;
        for (node, victims) in self.openings(statement.cluster(), engine, claim, &promising) {
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
