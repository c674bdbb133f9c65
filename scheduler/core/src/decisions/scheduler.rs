//! One cycle: makes a plan for the pending claims.

mod chosen;
mod dump;

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Bound;

use crate::decisions::actions::{Context, SearchMemory, Waiting, actions, evict_stale, pass, relieve};
use crate::decisions::entitled::{Entitled, PlacedUnit, Standing};
use crate::decisions::gang::{FreeRoom, MakeRoom, Unplaceable, place_unit, without_room};
use crate::decisions::holds::Holds;
use crate::decisions::placement::{Engine, Policy};
use crate::decisions::plan::{Obstacle, Pending, Plan, PlannedStep, cause};
use crate::decisions::settings::Settings;
use crate::decisions::shares::{Right, Shares};
use crate::decisions::signature::Failures;
use crate::decisions::turns::{Candidates, Turns};
use crate::decisions::unit::Unit;
use crate::state::cluster::Cluster;
use crate::state::group::Group;
use crate::state::queue::{Single, Turn};
use crate::state::resources::Charge;
use crate::state::statement::Statement;
use crate::vocabulary::beside::Beside;
use crate::vocabulary::claim::{Action, ClaimId};
use crate::vocabulary::pod_group::GroupId;
use crate::vocabulary::queue_spec::{QueueId, QueueSpec};
use crate::vocabulary::step::Step;

/// How many sorts of the first units of a queue may have nodes kept for them, one unit at a time. More than one, as the
/// very first may fit nowhere. Of single claims that are alike, as many are candidates.
const HOLD_CANDIDATES: usize = 8;

/// Decides which claims are placed on which nodes.
///
/// A scheduler belongs to one cluster's history, like its [`Engine`].
pub struct Scheduler {
    pub(crate) engine: Engine<Box<dyn Policy>>,
    pub(crate) settings: Settings,
    pub(crate) holds: Holds,
    pub(crate) memory: SearchMemory,
}

impl std::fmt::Debug for Scheduler {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Scheduler").field("settings", &self.settings).finish_non_exhaustive()
    }
}

impl Scheduler {
    /// A scheduler that has not seen a cluster yet.
    #[must_use]
    pub fn new(policy: Box<dyn Policy>, settings: Settings) -> Self {
        Self { engine: Engine::new(policy), settings, holds: Holds::default(), memory: SearchMemory::default() }
    }

    /// A scheduler with the same knowledge, for use with a copy of the cluster.
    #[must_use]
    pub fn fork(&self) -> Self {
        Self {
            engine: self.engine.fork(),
            settings: self.settings,
            holds: self.holds.clone(),
            memory: self.memory.clone(),
        }
    }

    /// Decides what to do now. The plan is already entered in the cluster's books. The caller carries it out, and
    /// reports the results by events.
    pub fn cycle(&mut self, cluster: &mut Cluster) -> Plan {
        cluster.note_usage();
        self.holds.release_gone(cluster);
        if self.settings.counts_mix
            && let Some(mix) = cluster.new_mix()
        {
            self.engine.expect(&mix);
        }
        let shares = Shares::of(cluster, self.settings.usage_weight);
        let mut plan = Plan::default();
        for (group, steps) in relieve(cluster) {
            plan.add(cluster, steps, Action::Relieve, group);
        }
        let waiting = self.allocate(cluster, &shares, &mut plan);
        self.make_way(cluster, &shares, waiting, &mut plan);
        plan.make_final(cluster);
        self.hold(cluster, &shares, &plan);
        plan
    }

    /// The placed units of a queue, in the order in which they count against the queue's fair share.
    #[must_use]
    pub fn standings(&self, cluster: &Cluster, queue: QueueId) -> Vec<Standing> {
        let shares = Shares::of(cluster, self.settings.usage_weight);
        let standing = |placed: &PlacedUnit| Standing {
            group: placed.unit.group,
            claims: placed.unit.claims.clone(),
            is_elastic: placed.unit.elastic,
            is_entitled: placed.is(Right::FairShare),
            is_guaranteed: placed.is(Right::Guarantee),
            is_certain_among_siblings: placed.is(Right::AmongSiblings),
        };
        Entitled::of(cluster, &shares, queue).units().map(standing).collect()
    }

    /// Places pending claims in free room. Returns the claims that stay pending.
    fn allocate(&mut self, cluster: &mut Cluster, shares: &Shares, plan: &mut Plan) -> Waiting {
        let failures = Failures::with_holders(self.holds.holders());
        let mut hopeful = Hopeful { failures, waiting: Waiting::with_room(waiting_groups(cluster)) };
        let mut turns = Turns::new(cluster, shares, &mut hopeful);
        while let Some(next) = turns.next() {
            let Ok(Some(unit)) = hopeful.failures.next(cluster, next.turn.group) else {
                // Since this unit was found to be the next of its queue, a similar one has failed. So the queue's next
                // unit is looked for again.
                turns.advance(next, cluster, shares, &mut hopeful);
                continue;
            };
            let kept = || self.holds.bounds.exceeded(cluster, &unit).map(Unplaceable::Limit);
            let hopeless =
                || hopeful.failures.is_hopeless(cluster, &unit).then(|| without_room(cluster, &unit)).flatten();
            let placed = match kept().or_else(hopeless) {
                Some(obstacle) => Err(obstacle),
                None => {
                    self.holds.open(cluster, unit.group);
                    let placed = self.try_unit(cluster, &unit, Action::Allocate, &mut FreeRoom);
                    self.holds.close(cluster, unit.group);
                    placed
                }
            };
            // The group is looked at again: by then the failure is known, and another member may fit.
            match placed {
                Ok(steps) => plan.add(cluster, steps, Action::Allocate, unit.group),
                Err(obstacle) => hopeful.failures.note(cluster, &unit, obstacle),
            }
            turns.advance(next, cluster, shares, &mut hopeful);
        }
        hopeful.waiting
    }

    /// Moves and evicts claims for the units that found no room.
    fn make_way(&mut self, cluster: &mut Cluster, shares: &Shares, mut waiting: Waiting, plan: &mut Plan) {
        let mut context = Context::new(cluster, shares, &self.settings, &mut self.engine, &mut self.memory);
        let placed_before = plan.steps.len();
        for action in actions(context.engine.policy()) {
            pass(action, cluster, &mut context, &self.holds, plan, &mut waiting);
        }
        plan.pending = waiting.finish();
        let placed: BTreeSet<GroupId> = plan.steps[placed_before..].iter().filter_map(|step| step.for_group).collect();
        let waits = |group: GroupId| cluster.group(group).is_some_and(Group::has_waiting);
        if !placed.is_empty() {
            plan.pending.retain(|pending| !placed.contains(&pending.group) || waits(pending.group));
        }
        for (group, steps) in evict_stale(cluster, &mut context) {
            plan.add(cluster, steps, Action::StaleGang, group);
        }
        context.finish(cluster);
        plan.add_displaced(cluster);
    }

    /// Keeps nodes for units that have long been among the first of their queue and find no room, and parts of a queue's
    /// bounds for those that have long waited for them.
    fn hold(&mut self, cluster: &mut Cluster, shares: &Shares, plan: &Plan) {
        let mut seen: Beside<SeenSorts, QueueSpec> = Beside::default();
        let mut blocked = Vec::new();
        for pending in &plan.pending {
            let Obstacle::Unplaceable(unplaceable) = pending.obstacle else { continue };
            let is_holder = self.holds.of(pending.group).next().is_some();
            // A unit for which nodes are kept can find there that a bound is in its way: the bound of a model. If it lost
            // them for that, it would find no room again, and get them back, in turns with another unit.
            if matches!(unplaceable, Unplaceable::Limit(_)) && !is_holder {
                continue;
            }
            let seen = seen.of(pending.queue);
            if !is_holder && !seen.has_room_for(pending) {
                continue;
            }
            let Ok(Some(unit)) = Unit::next(cluster, pending.group) else { continue };
            if matches!(unplaceable, Unplaceable::Topology { .. }) && !Holds::is_bound(cluster, &unit) {
                continue;
            }
            // What fits nowhere may not keep out those behind it.
            if !self.holds.waits_in_vain(cluster, &unit, self.settings.hold_after_ms) {
                seen.note(pending);
                blocked.push(unit);
            }
        }
        let nodes = cluster.nodes().count() as u64 * u64::from(self.settings.held_nodes_per_mille) / 1000;
        let nodes_max = usize::try_from(nodes).unwrap_or(usize::MAX).max(1);
        // A group may be among the first again when others before it are gone.
        let placed: BTreeSet<GroupId> =
            plan.steps.iter().filter_map(|planned| cluster.group_of(planned.step.claim())).collect();
        let waits = |group: &GroupId| cluster.group(*group).is_some_and(Group::has_waiting) && !placed.contains(group);
        let waiting: BTreeSet<GroupId> = self.holds.blocked().map(|(group, _)| group).filter(waits).collect();
        self.holds.update_bounds(cluster, shares, &plan.pending, &placed, self.settings.hold_after_ms);
        self.holds.update(cluster, shares, &blocked, &waiting, self.settings.hold_after_ms, nodes_max);
    }

    /// Places a unit in a statement of its own, and makes the statement final.
    pub(crate) fn try_unit(
        &mut self,
        cluster: &mut Cluster,
        unit: &Unit,
        action: Action,
        room: &mut dyn MakeRoom,
    ) -> Result<Vec<Step>, Unplaceable> {
        let mut statement = Statement::new(cluster);
        place_unit(&mut statement, &mut self.engine, unit, room)?;
        let cause = cause(statement.cluster(), action, unit.group);
        Ok(statement.keep(&cause))
    }
}

/// The sorts of pending units of a queue that are candidates for kept nodes.
#[derive(Clone, Debug, Default)]
struct SeenSorts {
    /// The number of units that are like no other.
    alone: usize,
    /// For single claims that are alike: how many of them.
    alike: BTreeMap<usize, usize>,
}

impl SeenSorts {
    fn has_room_for(&self, pending: &Pending) -> bool {
        match pending.alike.and_then(|alike| self.alike.get(&alike)) {
            Some(seen) => *seen < HOLD_CANDIDATES,
            None => self.alone + self.alike.len() < HOLD_CANDIDATES,
        }
    }

    fn note(&mut self, pending: &Pending) {
        match pending.alike {
            Some(alike) => *self.alike.entry(alike).or_default() += 1,
            None => self.alone += 1,
        }
    }
}

/// How many sorts of single claims of a queue are remembered between one of its turns and the next.
const SORTS_MAX: usize = 8;

/// The claims that are tried with what is free: all pending ones except those already known to fail.
struct Hopeful {
    failures: Failures,
    /// The claims that were passed over.
    waiting: Waiting,
}

impl Candidates for Hopeful {
    fn next(&mut self, cluster: &Cluster, queue: QueueId, from: Bound<Turn>) -> Option<(Turn, Charge)> {
        let mut later = cluster.queue(queue)?.waiting().range((from, Bound::Unbounded));
        // A queue has few sorts of single claims: those that are known to fail, each with where it waits.
        let mut failed: Vec<(Single, Unplaceable, usize)> = Vec::new();
        later.find_map(|(turn, single)| {
            if let Some(single) = single.filter(|_| !self.failures.is_holder(turn.group)) {
                let mut found = failed.iter().find(|(sort, ..)| *sort == single).copied();
                if found.is_none()
                    && let Some(failure) = self.failures.of_single(queue, single)
                {
                    failed.truncate(SORTS_MAX - 1);
                    failed.push((single, failure, self.waiting.place_of(queue, single)));
                    found = failed.last().copied();
                }
                if let Some((_, failure, place)) = found {
                    self.waiting.add_single(place, queue, turn.group, Obstacle::Unplaceable(failure));
                    return None;
                }
            }
            match self.failures.next(cluster, turn.group) {
                Ok(unit) => Some((*turn, unit?.least_charge(cluster))),
                Err(obstacle) => {
                    self.waiting.add(cluster, queue, turn.group, obstacle);
                    None
                }
            }
        })
    }
}

/// The number of groups with pending members.
fn waiting_groups(cluster: &Cluster) -> usize {
    let queues = cluster.queues().parents_first().into_iter();
    queues.filter_map(|queue| cluster.queue(queue)).map(|queue| queue.waiting().len()).sum()
}

impl Plan {
    /// Adds the claims that are pending again because this cycle has evicted them.
    fn add_displaced(&mut self, cluster: &Cluster) {
        let evicted = self.steps.iter().filter_map(|planned| match planned.step {
            Step::Evict { claim, .. } => Some(claim).filter(|claim| cluster.allocation(*claim).is_none()),
            _ => None,
        });
        let evicted: Vec<(GroupId, ClaimId)> =
            evicted.filter_map(|claim| Some((cluster.group_of(claim)?, claim))).collect();
        let mut unknown: BTreeSet<GroupId> = evicted.iter().map(|(group, _)| *group).collect();
        if unknown.is_empty() {
            return;
        }
        self.pending.iter().for_each(|pending| _ = unknown.remove(&pending.group));
        for (group, claim) in evicted {
            let Some(queue) = cluster.group(group).map(Group::queue).filter(|_| unknown.remove(&group)) else {
                continue;
            };
            let obstacle = Obstacle::Unplaceable(Unplaceable::NoRoom { claim, placed: 0 });
            self.pending.push(Pending { group, queue, alike: None, obstacle, refusal: None });
        }
    }

    pub(crate) fn add(&mut self, cluster: &Cluster, steps: Vec<Step>, action: Action, group: GroupId) {
        self.steps.extend(steps.into_iter().map(|step| {
            let action = match step {
                Step::Place { .. } => action,
                Step::Evict { claim, .. } | Step::Move { claim, .. } => cluster.action_on(claim, action, Some(group)),
            };
            PlannedStep { step, action, for_group: Some(group) }
        }));
    }
}
