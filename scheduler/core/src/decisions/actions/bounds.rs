//! The bounds for one unit: how much may be taken, from which units, and where.

use crate::decisions::entitled::Entitled;
use crate::decisions::plan::Refusal;
use crate::decisions::shares::{Guarantees, Right, Shares};
use crate::decisions::unit::Unit;
use crate::state::cluster::{Cluster, limits};
use crate::state::resources::Charge;
use crate::vocabulary::claim::Action;
use crate::vocabulary::queue_spec::QueueId;

use super::least_disruption::Candidate;
use super::selection::{Measure, VictimSelection};
use super::victims::Victim;

/// What a trial has taken already.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Taken {
    pub(super) victims: usize,
    /// The amount that was taken, in the search's measure.
    pub(super) amount: u64,
    /// Whether any victim is within its queue's fair share.
    pub(super) entitled: bool,
    /// The guarantees that victims of the unit's own queue are within. What other queues' victims are within does not
    /// bear on the unit.
    pub(super) guaranteed: Guarantees,
}

/// The bounds of one attempt.
pub(super) struct Bounds<'a> {
    pub(super) action: Action,
    /// The right by which the unit takes.
    pub(super) right: Right,
    pub(super) unit: &'a Unit,
    /// Whether the unit's own members may be evicted.
    pub(super) preemptible: bool,
    /// The placed units of the unit's queue.
    pub(super) own: &'a Entitled,
    pub(super) shares: &'a Shares,
    pub(super) measure: Measure,
    /// The least charge of the unit.
    pub(super) least: Charge,
    /// The resources that the unit may take, by number.
    pub(super) needs: &'a [usize],
    /// The most that may be evicted, in the measure, if it is more than one unit.
    pub(super) amount_max: u64,
    /// What spared units of the unit's own queue hold. It does not count when the queue's share is judged.
    pub(super) spared: Charge,
    /// Why a set of victims was not taken although it would have made room.
    pub(super) refusal: Option<Refusal>,
}

impl Bounds<'_> {
    /// The resources of which the unit asks for something, or for one of which it does: which model it gets is not
    /// known yet.
    pub(super) fn asked_of(&self) -> impl Iterator<Item = usize> {
        self.least.parts().map(|(resource, _)| resource).chain(self.needs.iter().copied())
    }

    /// Whether these victims may be evicted in addition to those that are evicted already, and whether the task may
    /// then be placed in their room.
    pub(super) fn allow(
        &mut self,
        cluster: &Cluster,
        selection: &VictimSelection<'_>,
        before: Taken,
        candidate: &Candidate<'_>,
    ) -> bool {
        self.takes_from_others(selection, before, candidate.set)
            && self.leaves_shares(cluster, selection, candidate.set)
            && self.is_bounded(before, candidate.set.len(), candidate.disruption.amount)
            && self.keeps_limits(cluster, selection, candidate)
            && self.keeps_fair_share(cluster, selection, before, candidate)
    }

    /// Whether reclaim for a single claim takes anything from another queue: what the own queue can give alone is a
    /// matter of preemption.
    fn takes_from_others(&self, selection: &VictimSelection<'_>, before: Taken, set: &[usize]) -> bool {
        let is_others = |victim: &Victim| selection.queue(victim) != Some(self.unit.queue);
        let mut victims = set.iter().filter_map(|number| selection.get(*number));
        self.action != Action::Reclaim || before.victims > 0 || self.unit.claims.len() > 1 || victims.any(is_others)
    }

    /// Whether each victim of another queue is one that its queue can give: when the victim's turn to go comes, its
    /// queue holds too much of a needed resource that the victim holds.
    pub(super) fn leaves_shares(&self, cluster: &Cluster, selection: &VictimSelection<'_>, set: &[usize]) -> bool {
        if self.action != Action::Reclaim {
            return true;
        }
        set.iter().enumerate().all(|(place, number)| {
            let Some(victim) = selection.get(*number) else { return false };
            let Some(queue) = selection.queue(victim) else { return false };
            if queue == self.unit.queue {
                return true;
            }
            let Some(state) = cluster.queue(queue) else { return false };
            let gone = set.iter().take(place).filter_map(|number| selection.get(*number));
            let gone = gone.filter(|other| other.queue == victim.queue);
            self.needs.iter().any(|resource| {
                let taken = gone.clone().map(|other| other.charge.get(*resource)).fold(0, u64::saturating_add);
                let held = state.allocated().get(*resource).saturating_sub(taken);
                victim.charge.get(*resource) > 0 && held > self.shares.by_right(self.right, queue, *resource)
            })
        })
    }

    /// Whether no more is evicted than the settings allow.
    pub(super) fn is_bounded(&mut self, before: Taken, victims: usize, amount: u64) -> bool {
        let amount = before.amount.saturating_add(amount);
        let is_bounded = before.victims + victims <= 1 || amount <= self.amount_max;
        if !is_bounded {
            self.refuse(Refusal::TooDisruptive);
        }
        is_bounded
    }

    /// Whether the unit's queue, and all queues above it, may hold the task's exact charge there, once the victims have
    /// gone.
    fn keeps_limits(&mut self, cluster: &Cluster, selection: &VictimSelection<'_>, candidate: &Candidate<'_>) -> bool {
        let victims = || candidate.set.iter().filter_map(|number| selection.get(*number));
        let freed = |queue: QueueId, resource: usize| {
            let below = |victim: &&Victim| {
                let of = selection.queue(victim);
                of.is_some_and(|of| cluster.queues().path(of).any(|(above, _)| above == queue))
            };
            let freed = victims().filter(below).map(|victim| victim.charge.get(resource));
            freed.fold(0, u64::saturating_add)
        };
        let mut passed = limits::exceeded(cluster, self.unit.queue, candidate.charge, self.preemptible, false);
        // Victims may all be evicted, so they hold nothing that a quota bounds.
        let passed = passed.find(|exceeded| {
            let freed = if exceeded.is_quota { 0 } else { freed(exceeded.queue, exceeded.resource) };
            exceeded.held.saturating_sub(freed).saturating_add(exceeded.asked) > exceeded.bound
        });
        if let Some(exceeded) = passed {
            self.refuse(Refusal::Limit(exceeded));
        }
        passed.is_none()
    }

    /// Whether the unit would be entitled with the task's exact charge there, if it must be entitled to take these
    /// victims.
    fn keeps_fair_share(
        &mut self,
        cluster: &Cluster,
        selection: &VictimSelection<'_>,
        before: Taken,
        candidate: &Candidate<'_>,
    ) -> bool {
        let mut charge = self.unit.charge(cluster);
        charge.add(candidate.charge);
        let victims = || candidate.set.iter().filter_map(|number| selection.get(*number));
        let is_own = |victim: &&Victim| selection.queue(victim) == Some(self.unit.queue);
        let held = |number: usize| {
            let held = cluster.queue(self.unit.queue).map_or(0, |queue| queue.allocated().get(number));
            let freed = victims().filter(is_own).map(|victim| victim.charge.get(number));
            let freed = freed.fold(0, u64::saturating_add);
            held.saturating_sub(freed).saturating_add(candidate.charge.get(number))
        };
        let taken = Taken {
            entitled: before.entitled || victims().any(|victim| victim.entitled),
            guaranteed: selection.guarantees_of(self.unit.queue, victims()).with(before.guaranteed),
            ..before
        };
        let refusal = self.above_share(&charge, held, taken);
        if let Some(refusal) = refusal {
            self.refuse(refusal);
        }
        refusal.is_none()
    }

    /// Whether the unit, as a trial has placed it, may take from the evicted units.
    pub(super) fn judge(&self, cluster: &Cluster, taken: Taken) -> Result<(), Refusal> {
        let held = |number: usize| {
            let held = cluster.queue(self.unit.queue).map_or(0, |queue| queue.allocated().get(number));
            held.saturating_sub(self.spared.get(number))
        };
        self.above_share(&self.unit.charge(cluster), held, taken).map_or(Ok(()), Err)
    }

    /// Why a unit may not take these victims. The unit takes `charge`, and its queue then holds `held`.
    fn above_share(&self, charge: &Charge, held: impl Fn(usize) -> u64, taken: Taken) -> Option<Refusal> {
        let reclaims = self.action == Action::Reclaim;
        let must_be_entitled = reclaims || taken.entitled;
        let by_right = Guarantees::of(|right| reclaims && self.right == right);
        let must_be_guaranteed = taken.guaranteed.with(by_right);
        let queue = self.unit.queue;
        let above = |number: &usize| held(*number) > self.shares.fair_share(queue, *number);
        let resources = || charge.parts().map(|(number, _)| number);
        // In preemption, a unit of high priority takes the place of others of its queue, whatever the queue holds.
        if let Some(resource) = resources().find(|number| reclaims && above(number)) {
            return Some(Refusal::above(self.shares, queue, resource));
        }
        let mut rights = must_be_entitled.then_some(Right::FairShare).into_iter().chain(must_be_guaranteed.rights());
        let lacking = rights.find(|right| !self.own.would_be(*right, self.unit.rank, charge))?;
        Some(lacks(self.own, self.shares, lacking, self.unit, charge))
    }

    fn refuse(&mut self, refusal: Refusal) {
        self.refusal = Some(self.refusal.map_or(refusal, |before| before.more_telling(refusal)));
    }
}

/// The refusal of a unit that would not be within a right of its queue if it took `charge`. It names a resource that is
/// divided among queues, and of which there is too little by the right, if it lacks only amounts.
pub(super) fn lacks(own: &Entitled, shares: &Shares, right: Right, unit: &Unit, charge: &Charge) -> Refusal {
    let is_divided = |number: &usize| shares.fair_share(unit.queue, *number) < u64::MAX;
    let exceeded = own.exceeded(right, unit.rank, charge).filter(is_divided);
    let divided = || charge.parts().map(|(number, _)| number).find(is_divided);
    let resource = exceeded.or_else(divided);
    resource.map_or(Refusal::NothingToTake, |resource| Refusal::above(shares, unit.queue, resource))
}
