//! Tries one action for all pending groups, in the order of turns.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Bound;

use crate::decisions::gang::{FreeRoom, Unplaceable, place_unit};
use crate::decisions::holds::Holds;
use crate::decisions::placement::Policy;
use crate::decisions::plan::{Plan, Refusal, cause};
use crate::decisions::signature::Signature;
use crate::decisions::turns::{Candidates, Next, Turns};
use crate::decisions::unit::Unit;
use crate::state::class::ClassId;
use crate::state::cluster::Cluster;
use crate::state::group::Group;
use crate::state::queue::Turn;
use crate::state::resources::Charge;
use crate::state::statement::Statement;
use crate::vocabulary::beside::Beside;
use crate::vocabulary::claim::Action;
use crate::vocabulary::queue_spec::{QueueId, QueueSpec};
use crate::vocabulary::step::Step;

use super::consolidate::consolidate;
use super::context::Context;
use super::preempt::preempt;
use super::protection::MinRuntime;
use super::reclaim::reclaim;
use super::waiting::{Waiting, fails_to_start};

/// The state of a pass.
#[derive(Debug, Default)]
struct Tried {
    /// For each queue, by the turn of the group that is to be tried next: the place in [`Waiting`] that the group is
    /// first at.
    firsts: Beside<BTreeMap<Turn, usize>, QueueSpec>,
    /// By that place: why its first group was refused, and with it all groups behind it.
    refusals: Vec<Option<Refusal>>,
    /// Refused moves are refused to units of all queues alike. The exception is a unit that may move units of its own
    /// queue sooner than those of other queues: for it, the queue is part of the key.
    no_moves: BTreeMap<(Option<QueueId>, Signature), Refusal>,
    /// The classes that have found no free room since the last change.
    no_room: BTreeSet<ClassId>,
    /// Whether any unit was moved or evicted. Evictions may have left more room than was needed.
    has_evicted: bool,
}

impl Tried {
    /// Adds the first group at a place to those that are to be tried, in its turn.
    fn add(&mut self, cluster: &Cluster, waiting: &Waiting, place: usize) {
        let Some(alike) = waiting.alike.get(place) else { return };
        let turn = waiting.first(place).and_then(|group| cluster.turn(group));
        if let Some(turn) = turn {
            self.firsts.of(alike.queue).insert(turn, place);
        }
    }

    /// If a queue's group with this turn is to be tried: its noted turn, and the place that it is first at. A group's
    /// turn changes only in whether its core is what is pending, so both such turns are looked up.
    fn find(&self, queue: QueueId, turn: Turn) -> Option<(Turn, usize)> {
        let firsts = self.firsts.get(queue)?;
        let turns = [turn, Turn { elastic: !turn.elastic, ..turn }];
        turns.into_iter().find_map(|turn| Some((turn, *firsts.get(&turn)?)))
    }

    /// Notes why the first group at a place was refused.
    fn refuse(&mut self, place: usize, refusal: Refusal) {
        if self.refusals.len() <= place {
            self.refusals.resize(place + 1, None);
        }
        self.refusals[place] = Some(refusal);
    }

    /// Goes on to the next group at the same place. Returns the number of the finished group in the list of pending
    /// groups.
    fn go_on(&mut self, cluster: &Cluster, waiting: &mut Waiting, next: &Next) -> Option<usize> {
        let (turn, place) = self.find(next.queue, next.turn)?;
        self.firsts.get_mut(next.queue)?.remove(&turn);
        let number = waiting.pop(place);
        self.add(cluster, waiting, place);
        number
    }

    /// Follows changes to groups that are still to be tried: a group whose core was evicted has another turn.
    fn follow(&mut self, cluster: &Cluster, steps: &[Step]) {
        for group in steps.iter().filter_map(|step| cluster.group_of(step.claim())) {
            let Some((queue, now)) = cluster.group(group).map(Group::queue).zip(cluster.turn(group)) else { continue };
            let Some((before, place)) = self.find(queue, now).filter(|(before, _)| *before != now) else { continue };
            if let Some(firsts) = self.firsts.get_mut(queue) {
                firsts.remove(&before);
                firsts.insert(now, place);
            }
        }
    }
}

impl Candidates for Tried {
    fn next(&mut self, cluster: &Cluster, queue: QueueId, from: Bound<Turn>) -> Option<(Turn, Charge)> {
        let mut later = self.firsts.get(queue)?.range((from, Bound::Unbounded));
        later.find_map(|(turn, place)| {
            if self.refusals.get(*place).is_some_and(Option::is_some) {
                return None;
            }
            let unit = Unit::next(cluster, turn.group).ok().flatten()?;
            Some((*turn, unit.least_charge(cluster)))
        })
    }
}

/// Tries an action for every unit that found no room, or that is stopped by a limit that others use up. Adds the steps
/// to the plan, and notes refusals.
pub(crate) fn pass(
    action: Action,
    cluster: &mut Cluster,
    context: &mut Context<'_>,
    holds: &Holds,
    plan: &mut Plan,
    waiting: &mut Waiting,
) {
    let mut tried = Tried::default();
    (0..waiting.alike.len()).for_each(|place| tried.add(cluster, waiting, place));
    let shares = context.shares;
    let mut turns = Turns::new(cluster, shares, &mut tried);
    while let Some(next) = turns.next() {
        let place = tried.find(next.queue, next.turn).map(|(_, place)| place);
        let unit = Unit::next(cluster, next.turn.group).ok().flatten();
        let Some((place, unit)) = place.zip(unit) else {
            // Nothing of this group can be tried now; other groups go on.
            turns.advance(next, cluster, shares, &mut tried);
            continue;
        };
        holds.open(cluster, unit.group);
        let (unit, outcome) = attempt(action, cluster, context, holds, &mut tried, unit);
        holds.close(cluster, unit.group);
        match outcome {
            Ok((steps, how)) => {
                tried.has_evicted |= how != Action::Allocate;
                tried.no_room.clear();
                let queues: BTreeSet<QueueId> = steps.iter().filter_map(|step| queue_of(cluster, step)).collect();
                queues.into_iter().for_each(|queue| turns.refresh(queue, cluster, shares));
                let number = tried.go_on(cluster, waiting, &next);
                tried.follow(cluster, &steps);
                plan.add(cluster, steps, how, unit.group);
                let may_grow = cluster.group(unit.group).is_some_and(Group::has_waiting);
                if let Some(number) = number.filter(|_| may_grow) {
                    let place = waiting.separate(unit.queue, number);
                    tried.add(cluster, waiting, place);
                }
            }
            // A group's waiting time concerns only this group, not those that are alike.
            Err(refusal @ Refusal::Delayed { .. }) => {
                let number = tried.go_on(cluster, waiting, &next);
                number.into_iter().for_each(|number| waiting.refuse(number, refusal));
            }
            Err(refusal) => tried.refuse(place, refusal),
        }
        turns.advance(next, cluster, shares, &mut tried);
    }
    for (place, refusal) in tried.refusals.into_iter().enumerate() {
        refusal.into_iter().for_each(|refusal| waiting.refuse_alike(place, refusal));
    }
}

/// Tries a unit and, if it is refused, the units that could be placed instead of it. Returns the placed unit and its
/// steps, or why the first unit was refused.
fn attempt(
    action: Action,
    cluster: &mut Cluster,
    context: &mut Context<'_>,
    holds: &Holds,
    tried: &mut Tried,
    first: Unit,
) -> (Unit, Result<(Vec<Step>, Action), Refusal>) {
    let outcome = match fails_to_start(cluster, &first) {
        Some(refusal) => Err(refusal),
        None => attempt_one(action, cluster, context, holds, tried, &first),
    };
    let mut refused = match outcome {
        Err(refusal) if !matches!(refusal, Refusal::Delayed { .. }) => refusal,
        outcome => return (first, outcome),
    };
    let others: Vec<Unit> =
        first.sorts(cluster).skip(1).filter(|unit| fails_to_start(cluster, unit).is_none()).collect();
    for unit in others {
        match attempt_one(action, cluster, context, holds, tried, &unit) {
            Ok(placed) => return (unit, Ok(placed)),
            Err(Refusal::Delayed { .. }) => {}
            Err(refusal) => refused = refused.more_telling(refusal),
        }
    }
    (first, Err(refused))
}

fn attempt_one(
    action: Action,
    cluster: &mut Cluster,
    context: &mut Context<'_>,
    holds: &Holds,
    tried: &mut Tried,
    unit: &Unit,
) -> Result<(Vec<Step>, Action), Refusal> {
    if let Some(exceeded) = holds.bounds.exceeded(cluster, unit) {
        return Err(Refusal::Limit(exceeded));
    }
    // Room that the evictions for an earlier unit have left over is free to use.
    let left_over = if tried.has_evicted { take_free(cluster, context, holds, tried, unit) } else { None };
    if let Some(steps) = left_over {
        return Ok((steps, Action::Allocate));
    }
    if action != Action::Consolidate {
        return make_way(action, cluster, context, unit);
    }
    let protection = |action: Action| MinRuntime::of(cluster, unit.queue, action);
    let own = (protection(Action::Preempt) != protection(Action::Reclaim)).then_some(unit.queue);
    let sought = (own, Signature::of(cluster, unit));
    // Failures of others say nothing about nodes that are kept for this group.
    let is_holder = holds.of(unit.group).next().is_some();
    if let Some(refusal) = tried.no_moves.get(&sought).filter(|_| !is_holder) {
        return Err(*refusal);
    }
    let outcome = make_way(action, cluster, context, unit);
    // Limits concern one queue, and waiting times one group, so these refusals are not noted for others.
    if let Err(refusal @ (Refusal::NothingToTake | Refusal::SearchExhausted)) = outcome {
        tried.no_moves.insert(sought, refusal);
    }
    outcome
}

/// The actions that make room, in the order in which they are tried. A policy that spreads claims would undo moves that
/// bring free room together.
pub(crate) fn actions(policy: &dyn Policy) -> impl Iterator<Item = Action> + use<> {
    let consolidates = !policy.spreads();
    consolidates.then_some(Action::Consolidate).into_iter().chain([Action::Reclaim, Action::Preempt])
}

/// Places a unit by an action that moves or evicts others. Returns the action that placed it.
pub(crate) fn make_way(
    action: Action,
    cluster: &mut Cluster,
    context: &mut Context<'_>,
    unit: &Unit,
) -> Result<(Vec<Step>, Action), Refusal> {
    let steps = match action {
        Action::Consolidate => consolidate(cluster, context, unit),
        Action::Reclaim => reclaim(cluster, context, unit),
        _ => return preempt(cluster, context, unit),
    };
    Ok((steps?, action))
}

/// Places a unit in free room, without moves or evictions.
fn take_free(
    cluster: &mut Cluster,
    context: &mut Context<'_>,
    holds: &Holds,
    tried: &mut Tried,
    unit: &Unit,
) -> Option<Vec<Step>> {
    // Failures of others say nothing about nodes that are kept for this group.
    let is_holder = holds.of(unit.group).next().is_some();
    let class = match Signature::of(cluster, unit) {
        Signature::One(class) if !is_holder => Some(class),
        _ => None,
    };
    if class.is_some_and(|class| tried.no_room.contains(&class)) {
        return None;
    }
    let mut statement = Statement::new(cluster);
    match place_unit(&mut statement, context.engine, unit, &mut FreeRoom) {
        Ok(()) => {}
        Err(failure) => {
            tried.no_room.extend(class.filter(|_| matches!(failure, Unplaceable::NoRoom { .. })));
            return None;
        }
    }
    let because = cause(statement.cluster(), Action::Allocate, unit.group);
    let steps = statement.keep(&because);
    context.changed(cluster, &steps);
    Some(steps)
}

fn queue_of(cluster: &Cluster, step: &Step) -> Option<QueueId> {
    cluster.group_of(step.claim()).and_then(|group| cluster.group(group)).map(Group::queue)
}
