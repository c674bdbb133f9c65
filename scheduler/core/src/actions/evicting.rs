//! Room that is made by evictions.

use std::cmp::Reverse;
use std::collections::BTreeSet;

use crate::claim::{Allocation, ClaimId, NodeId};
use crate::cluster::Cluster;
use crate::gang::{FreeRoom, MakeRoom, place_unit};
use crate::group::GroupId;
use crate::limits::{self, Exceeded};
use crate::placement::{Engine, Policy};
use crate::queue::QueueId;
use crate::resource::Charge;
use crate::shares::Shares;
use crate::statement::{Checkpoint, Statement};
use crate::unit::Unit;

use super::finder::Finder;
use super::least_disruption::{Disruption, Solution, goes};
use super::victims::{Victim, Victims};

/// Evicts, within a statement, as few as possible for each task.
pub(super) struct Evicting<'a> {
    pub(super) victims: Victims<'a>,
    pub(super) finder: Finder<'a>,
    pub(super) bounds: Bounds<'a>,
}

/// How much may be taken, and of whom.
pub(super) struct Bounds<'a> {
    /// What may be evicted, by the finder's measure, if it is more than one unit.
    pub(super) amount_max: u64,
    /// If victims are taken from other queues: what the unit takes. Of each queue only as much is taken as it has too
    /// much of one of these resources.
    pub(super) reclaims: Option<(&'a Shares, Charge)>,
    /// Whether something was not taken because it would have been too much.
    pub(super) too_disruptive: bool,
}

impl Bounds<'_> {
    /// Whether these may be evicted after what is evicted already.
    fn allow(
        &mut self,
        cluster: &Cluster,
        victims: &Victims<'_>,
        before: (usize, u64),
        amount: u64,
        set: &[usize],
    ) -> bool {
        if !self.leaves_shares(cluster, victims, set) {
            return false;
        }
        let within = before.0 + set.len() <= 1 || before.1.saturating_add(amount) <= self.amount_max;
        self.too_disruptive |= !within;
        within
    }

    /// Whether each victim's queue has, when it is the victim's turn to go, too much of something that the victim holds
    /// and that is needed.
    fn leaves_shares(&self, cluster: &Cluster, victims: &Victims<'_>, set: &[usize]) -> bool {
        let Some((shares, needs)) = &self.reclaims else { return true };
        let mut gone: Vec<usize> = Vec::with_capacity(set.len());
        for number in set {
            let Some(victim) = victims.all.get(*number) else { return false };
            let Some(queue) = victims.queues.get(victim.queue) else { return false };
            let Some(state) = cluster.queue(*queue) else { return false };
            let before = gone.iter().filter_map(|number| victims.all.get(*number));
            let before: Vec<_> = before.filter(|other| other.queue == victim.queue).collect();
            let has_too_much = |(resource, _): (usize, u64)| {
                let taken = before.iter().map(|other| other.holds(resource)).fold(0, u64::saturating_add);
                let held = state.allocated().get(resource).saturating_sub(taken);
                victim.holds(resource) > 0 && held > shares.fair_share(*queue, resource)
            };
            if !needs.parts().any(has_too_much) {
                return false;
            }
            gone.push(*number);
        }
        true
    }
}

impl Evicting<'_> {
    /// Those that are evicted in a trial. Members beyond a core that is evicted too are the core's.
    pub(super) fn taken(&self, cluster: &Cluster) -> Vec<usize> {
        let all = || self.victims.all.iter().enumerate().filter(|(_, victim)| victim.is_gone(cluster));
        let cores: BTreeSet<GroupId> =
            all().filter(|(_, victim)| !victim.rank().elastic).map(|(_, victim)| victim.group()).collect();
        let own = |(_, victim): &(usize, &Victim<'_>)| !victim.rank().elastic || !cores.contains(&victim.group());
        all().filter(own).map(|(number, _)| number).collect()
    }

    /// How many victims are evicted in a trial, and how much they held.
    fn disrupted(&self, cluster: &Cluster) -> (usize, u64) {
        let taken = self.taken(cluster);
        let victims = taken.iter().filter_map(|number| self.victims.all.get(*number));
        (taken.len(), victims.map(|victim| self.finder.measure.amount(victim)).fold(0, u64::saturating_add))
    }

    /// Evicts what is still placed of a victim.
    pub(super) fn evict(&self, statement: &mut Statement<'_>, victim: usize) {
        for claim in self.victims.all.get(victim).into_iter().flat_map(|victim| victim.claims()) {
            if statement.cluster().allocation(claim).is_some() {
                let evicted = statement.evict(claim);
                debug_assert_eq!(evicted, Ok(()), "who is placed can be evicted");
            }
        }
    }

    /// Evicts those who stand between the unit and a limit of its queue or of one above it; whether it is within its
    /// limits then.
    pub(super) fn keep_limits(&mut self, statement: &mut Statement<'_>, unit: &Unit) -> Result<(), Exceeded> {
        let least = unit.least_charge(statement.cluster());
        let preemptible = unit.is_preemptible(statement.cluster());
        loop {
            let cluster = statement.cluster();
            let Err(exceeded) = limits::check(cluster, unit.queue, &least, preemptible, false) else { return Ok(()) };
            if exceeded.is_quota {
                return Err(exceeded);
            }
            let next = self.next_below(cluster, exceeded);
            let next = next.filter(|_| self.finder.search.spend(self.victims.all.len()));
            self.evict(statement, next.ok_or(exceeded)?);
        }
    }

    /// The first to go of those who hold something of what a limit is passed of.
    fn next_below(&mut self, cluster: &Cluster, exceeded: Exceeded) -> Option<usize> {
        let victims = &self.victims;
        let below = |queue: &QueueId| cluster.queues().path(*queue).any(|(id, _)| id == exceeded.queue);
        let below: Vec<bool> = victims.queues.iter().map(below).collect();
        let order = victims.order_of_queues(cluster, self.finder.shares);
        let disrupted = self.disrupted(cluster);
        let spare = victims.spare(cluster);
        let useful = victims.all.iter().enumerate().filter(|(_, victim)| {
            below.get(victim.queue) == Some(&true) && victim.holds(exceeded.resource) > 0 && !victim.is_gone(cluster)
        });
        let mut useful: Vec<usize> = useful.map(|(number, _)| number).collect();
        useful.sort_by_cached_key(|number| goes(victims, &order, *number));
        useful.into_iter().find(|number| {
            let amount = victims.all.get(*number).map_or(0, |victim| self.finder.measure.amount(victim));
            victims.take_from(&mut spare.clone(), *number)
                && self.bounds.allow(cluster, victims, disrupted, amount, &[*number])
        })
    }

    /// The least disruption that makes room for a task, and on which node.
    fn least(
        &mut self,
        cluster: &Cluster,
        engine: &Engine<Box<dyn Policy>>,
        claim: ClaimId,
        among: Option<&[NodeId]>,
    ) -> Option<(NodeId, Vec<usize>)> {
        let request = &cluster.claim(claim)?.request;
        let mut best: Option<(Disruption, i64, NodeId, Vec<usize>)> = None;
        let mut found = |id: NodeId, solution: Solution| {
            let Solution { disruption, victims, node } = solution;
            if best.as_ref().is_none_or(|(best, ..)| disruption <= *best) {
                let cost = engine.cost_if(id, &node, request);
                let key = (&disruption, cost, id);
                if best.as_ref().is_none_or(|(least, cost, id, _)| key < (least, *cost, *id)) {
                    best = Some((disruption, cost, id, victims));
                }
            }
            best.as_ref().map_or(usize::MAX, |(best, ..)| best.running)
        };
        let disrupted = self.disrupted(cluster);
        let Self { victims, finder, bounds } = self;
        let mut allowed =
            |disruption: &Disruption, set: &[usize]| bounds.allow(cluster, victims, disrupted, disruption.amount, set);
        finder.each_node(cluster, victims, request, among, &mut allowed, &mut found);
        best.map(|(.., id, victims)| (id, victims))
    }

    /// Lets stay, one after another, who need not have gone: those first who go last. A gang's members are given room
    /// one by one, and what is evicted for a later one may do for an earlier one as well.
    pub(super) fn spare_whom_it_can(
        &mut self,
        statement: &mut Statement<'_>,
        engine: &mut Engine<Box<dyn Policy>>,
        unit: &Unit,
        start: Checkpoint,
    ) {
        let mut taken = self.taken(statement.cluster());
        if taken.len() < 2 {
            return;
        }
        let order = self.victims.order_of_queues(statement.cluster(), self.finder.shares);
        let mut last_first = taken.clone();
        last_first.sort_by_cached_key(|number| Reverse(goes(&self.victims, &order, *number)));
        let mut places = places(statement.cluster(), unit);
        for spared in last_first {
            if !self.finder.search.spend(unit.claims.len() + taken.len()) {
                break;
            }
            statement.rollback(start);
            let others: Vec<usize> = taken.iter().copied().filter(|victim| *victim != spared).collect();
            others.iter().for_each(|victim| self.evict(statement, *victim));
            if place_unit(statement, engine, unit, &mut FreeRoom).is_ok() {
                taken = others;
                places = self::places(statement.cluster(), unit);
            }
        }
        statement.rollback(start);
        taken.iter().for_each(|victim| self.evict(statement, *victim));
        for (claim, allocation) in places {
            let placed = statement.place(claim, allocation);
            debug_assert_eq!(placed, Ok(()), "what was tried is possible");
        }
    }
}

/// Where a unit's members are.
fn places(cluster: &Cluster, unit: &Unit) -> Vec<(ClaimId, Allocation)> {
    unit.claims.iter().filter_map(|claim| Some((*claim, cluster.allocation(*claim)?.clone()))).collect()
}

impl MakeRoom for Evicting<'_> {
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
        let (node, victims) = self.least(statement.cluster(), engine, claim, among)?;
        victims.into_iter().for_each(|victim| self.evict(statement, victim));
        let class = statement.cluster().class_of(claim)?;
        engine.place_among(statement.cluster(), class, [node])
    }
}
