//! One action for all that waits, in the order of turns.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

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

/// So often a claim may have failed to start, and others still make way for it.
const FAILURES_MAX: u32 = 3;

/// Those for whom others may make way. Groups whose next units wait in the same queue and need the same stand behind
/// one another, in the order of turns: where the first is refused, so would be the others.
#[derive(Debug, Default)]
pub(crate) struct Waiting {
    /// Their numbers among what the plan says is pending.
    alike: Vec<VecDeque<usize>>,
}

impl Waiting {
    pub(crate) fn of(cluster: &Cluster, pending: &[Pending]) -> Self {
        let mut alike: Vec<VecDeque<usize>> = Vec::new();
        let mut known: BTreeMap<(QueueId, Signature), usize> = BTreeMap::new();
        for (number, pending) in pending.iter().enumerate().filter(|(_, pending)| may_try(pending)) {
            let Ok(Some(unit)) = Unit::next(cluster, pending.group) else { continue };
            // Who cannot be started takes what is free, but nobody else must stop for one more try.
            if unit.claims.iter().any(|claim| cluster.failures(*claim).0 >= FAILURES_MAX) {
                continue;
            }
            let place = Signature::of(cluster, &unit).map(|signature| {
                *known.entry((unit.queue, signature)).or_insert_with(|| {
                    alike.push(VecDeque::new());
                    alike.len() - 1
                })
            });
            match place.and_then(|place| alike.get_mut(place)) {
                Some(alike) => alike.push_back(number),
                // A group with rules of its own is like no other.
                None => alike.push(VecDeque::from([number])),
            }
        }
        Self { alike }
    }
}

/// What a pass tries.
#[derive(Debug, Default)]
struct Tried {
    /// By group that is to be tried: which of [`Waiting::alike`] it is the first of.
    first_of: BTreeMap<GroupId, usize>,
    /// By that number: why the first was refused, and all behind it.
    refusals: BTreeMap<usize, Refusal>,
    /// Moves that were refused are refused to all queues alike.
    no_moves: BTreeMap<Signature, Refusal>,
}

impl Tried {
    /// What the next unit of a group takes at least; `None` if it need not be tried.
    fn look(&self, cluster: &Cluster, turn: &Turn) -> Option<Charge> {
        let place = self.first_of.get(&turn.group)?;
        if self.refusals.contains_key(place) {
            return None;
        }
        let unit = Unit::next(cluster, turn.group).ok().flatten()?;
        Some(unit.least_charge(cluster))
    }

    /// Goes on to whoever is next of those alike. Answers whose turn it was, by number among what is pending.
    fn go_on(&mut self, waiting: &mut Waiting, pending: &[Pending], group: GroupId) -> Option<usize> {
        let place = self.first_of.remove(&group)?;
        let alike = waiting.alike.get_mut(place)?;
        let number = alike.pop_front();
        if let Some(next) = alike.front().and_then(|number| pending.get(*number)) {
            self.first_of.insert(next.group, place);
        }
        number
    }

    /// Lets a group that has been placed grow: what it could use beyond that is not what those behind it need.
    fn grow(&mut self, waiting: &mut Waiting, group: GroupId, number: usize) {
        self.first_of.insert(group, waiting.alike.len());
        waiting.alike.push(VecDeque::from([number]));
    }
}

/// Tries an action for every unit that found no room, or stands before a limit that others fill; enters into the plan
/// what is done and who is refused.
pub(crate) fn pass(
    action: Action,
    cluster: &mut Cluster,
    context: &mut Context<'_>,
    holds: &Holds,
    plan: &mut Plan,
    waiting: &mut Waiting,
) {
    let mut tried = Tried::default();
    let firsts = waiting.alike.iter().enumerate();
    let firsts = firsts.filter_map(|(place, alike)| Some((plan.pending.get(*alike.front()?)?.group, place)));
    tried.first_of.extend(firsts);
    if tried.first_of.is_empty() {
        return;
    }
    let shares = context.shares;
    let mut has_evicted = false;
    let mut turns = Turns::new(cluster, shares, |turn| tried.look(cluster, turn));
    while let Some(next) = turns.next() {
        let Ok(Some(unit)) = Unit::next(cluster, next.turn.group) else { break };
        let signature = Signature::of(cluster, &unit).filter(|_| action == Action::Consolidate);
        let known = signature.as_ref().and_then(|signature| tried.no_moves.get(signature)).copied();
        holds.open(cluster, unit.group);
        // Room that an earlier unit has left over costs nobody anything.
        let left_over = if has_evicted { take_free(cluster, context, &unit) } else { None };
        let is_free = left_over.is_some();
        let outcome = match (left_over, known) {
            (Some(steps), _) => Ok(steps),
            (None, Some(refusal)) => Err(refusal),
            (None, None) => make_way(action, cluster, context, &unit),
        };
        holds.close(cluster, unit.group);
        let is_placed = outcome.is_ok();
        match outcome {
            Ok(steps) => {
                has_evicted |= !is_free;
                let queues: BTreeSet<QueueId> = steps.iter().filter_map(|step| queue_of(cluster, step)).collect();
                queues.into_iter().for_each(|queue| turns.refresh(queue, cluster, shares));
                plan.add(steps, if is_free { Action::Allocate } else { action }, unit.group);
                let number = tried.go_on(waiting, &plan.pending, unit.group);
                let may_grow = cluster.group(unit.group).is_some_and(Group::has_waiting);
                if let Some(number) = number.filter(|_| may_grow) {
                    tried.grow(waiting, unit.group, number);
                }
            }
            // How long a group waits is its own affair.
            Err(refusal @ Refusal::Delayed { .. }) => {
                let number = tried.go_on(waiting, &plan.pending, unit.group);
                if let Some(pending) = number.and_then(|number| plan.pending.get_mut(number)) {
                    pending.refuse(refusal);
                }
            }
            Err(refusal) => {
                tried.first_of.get(&unit.group).map(|place| tried.refusals.insert(*place, refusal));
                signature.map(|signature| tried.no_moves.insert(signature, refusal));
            }
        }
        turns.advance(next, is_placed, cluster, shares, |turn| tried.look(cluster, turn));
    }
    for (place, refusal) in tried.refusals {
        for number in waiting.alike.get(place).into_iter().flatten() {
            if let Some(pending) = plan.pending.get_mut(*number) {
                pending.refuse(refusal);
            }
        }
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
    let steps = statement.keep(&because);
    context.changed(cluster, &steps);
    Some(steps)
}

fn queue_of(cluster: &Cluster, step: &Step) -> Option<QueueId> {
    cluster.group_of(step.claim()).and_then(|group| cluster.group(group)).map(Group::queue)
}

impl Pending {
    fn refuse(&mut self, refusal: Refusal) {
        self.refusal = Some(self.refusal.map_or(refusal, |before| before.more_telling(refusal)));
    }
}

fn may_try(pending: &Pending) -> bool {
    match pending.obstacle {
        Obstacle::Unplaceable(Unplaceable::Limit(exceeded)) => !exceeded.is_quota,
        Obstacle::Unplaceable(_) => true,
        Obstacle::MembersMissing(_) | Obstacle::RetriedAt(_) => false,
    }
}
