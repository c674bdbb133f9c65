//! One action for all that waits, in the order of turns.

use std::collections::{BTreeMap, BTreeSet};

use crate::claim::Action;
use crate::cluster::Cluster;
use crate::gang::{FreeRoom, Unplaceable, place_unit};
use crate::group::{Group, GroupId};
use crate::holds::Holds;
use crate::plan::{Obstacle, Pending, Plan};
use crate::queue::{QueueId, Turn};
use crate::resource::Charge;
use crate::scheduler::cause;
use crate::signature::Signature;
use crate::statement::{Statement, Step};
use crate::turns::Turns;
use crate::unit::Unit;

use super::consolidate::consolidate;
use super::context::{Context, Outcome, Refusal};
use super::preempt::preempt;
use super::reclaim::reclaim;

/// What a pass knows of the groups that wait.
#[derive(Debug, Default)]
struct Known {
    /// The groups that may be tried, and why they were refused.
    refusals: BTreeMap<GroupId, Option<Refusal>>,
    /// What was refused: units that come later in the same queue and need the same would be refused as well. Moves are
    /// refused to all queues alike.
    refused: BTreeMap<(Option<QueueId>, Signature), Refusal>,
    is_for_all_queues: bool,
}

impl Known {
    /// What the next unit of a group takes at least; `None` if it need not be tried.
    fn look(&mut self, cluster: &Cluster, turn: &Turn) -> Option<Charge> {
        if !self.refusals.contains_key(&turn.group) {
            return None;
        }
        let unit = Unit::next(cluster, turn.group).ok().flatten()?;
        if !self.refused.is_empty()
            && let Some(signature) = Signature::of(cluster, &unit)
            && let Some(refusal) = self.refused.get(&(self.queue(&unit), signature))
        {
            self.refusals.insert(turn.group, Some(*refusal));
            return None;
        }
        Some(unit.least_charge(cluster))
    }

    fn queue(&self, unit: &Unit) -> Option<QueueId> {
        (!self.is_for_all_queues).then_some(unit.queue)
    }

    fn note(&mut self, cluster: &Cluster, unit: &Unit, refusal: Refusal) {
        self.refusals.insert(unit.group, Some(refusal));
        // How long a group waits is its own affair.
        if let Some(signature) = Signature::of(cluster, unit).filter(|_| !matches!(refusal, Refusal::Delayed { .. })) {
            self.refused.insert((self.queue(unit), signature), refusal);
        }
    }
}

/// Tries an action for every unit that found no room, or stands before a limit that others fill; enters into the plan
/// what is done and who is refused.
pub(crate) fn pass(action: Action, cluster: &mut Cluster, context: &mut Context<'_>, holds: &Holds, plan: &mut Plan) {
    let mut known = Known { is_for_all_queues: action == Action::Consolidate, ..Known::default() };
    let open = plan.pending.iter().filter(|pending| may_try(pending));
    known.refusals.extend(open.map(|pending| (pending.group, None)));
    if known.refusals.is_empty() {
        return;
    }
    let shares = context.shares;
    let mut has_evicted = false;
    let mut turns = Turns::new(cluster, shares, |turn| known.look(cluster, turn));
    while let Some(next) = turns.next() {
        let Ok(Some(unit)) = Unit::next(cluster, next.turn.group) else { break };
        holds.open(cluster, unit.group);
        // Room that an earlier unit has left over costs nobody anything.
        let left_over = if has_evicted { take_free(cluster, context, &unit) } else { None };
        let is_free = left_over.is_some();
        let outcome = left_over.map_or_else(|| make_way(action, cluster, context, &unit), Ok);
        holds.close(cluster, unit.group);
        let is_placed = outcome.is_ok();
        match outcome {
            Ok(steps) => {
                has_evicted |= !is_free;
                let queues: BTreeSet<QueueId> = steps.iter().filter_map(|step| queue_of(cluster, step)).collect();
                queues.into_iter().for_each(|queue| turns.refresh(queue, cluster, shares));
                plan.add(steps, if is_free { Action::Allocate } else { action }, unit.group);
            }
            Err(refusal) => known.note(cluster, &unit, refusal),
        }
        turns.advance(next, is_placed, cluster, shares, |turn| known.look(cluster, turn));
    }
    plan.pending.retain(|pending| cluster.group(pending.group).is_some_and(|group| group.has_waiting()));
    for pending in &mut plan.pending {
        let refusal = known.refusals.get(&pending.group).copied().flatten();
        pending.refusal = match (pending.refusal, refusal) {
            (Some(before), Some(now)) => Some(before.more_telling(now)),
            (before, now) => before.or(now),
        };
    }
}

/// Places a unit by an action that has others make way.
pub(crate) fn make_way(action: Action, cluster: &mut Cluster, context: &mut Context<'_>, unit: &Unit) -> Outcome {
    match action {
        Action::Consolidate => consolidate(cluster, context, unit),
        Action::Reclaim => reclaim(cluster, context, unit),
        _ => preempt(cluster, context, unit),
    }
}

/// Places a unit where there is room without anybody making way.
fn take_free(cluster: &mut Cluster, context: &mut Context<'_>, unit: &Unit) -> Option<Vec<Step>> {
    let because = cause(cluster, Action::Allocate, unit.group);
    let mut statement = Statement::new(cluster);
    place_unit(&mut statement, context.engine, unit, &mut FreeRoom).ok()?;
    let steps = statement.commit(&because);
    context.entitled.changed(cluster, &steps);
    Some(steps)
}

fn queue_of(cluster: &Cluster, step: &Step) -> Option<QueueId> {
    cluster.group_of(step.claim()).and_then(|group| cluster.group(group)).map(Group::queue)
}

fn may_try(pending: &Pending) -> bool {
    match pending.obstacle {
        Obstacle::Unplaceable(Unplaceable::Limit(exceeded)) => !exceeded.is_quota,
        Obstacle::Unplaceable(_) => true,
        Obstacle::MembersMissing(_) | Obstacle::RetriedAt(_) => false,
    }
}
