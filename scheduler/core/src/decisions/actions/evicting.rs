//! Makes room by evictions.

use std::collections::{BTreeMap, BTreeSet};

use crate::decisions::gang::{FreeRoom, MakeRoom, place_unit};
use crate::decisions::placement::{Engine, Policy};
use crate::decisions::plan::Refusal;
use crate::decisions::queue_share::share;
use crate::decisions::unit::Unit;
use crate::state::cluster::Cluster;
use crate::state::cluster::limits::{self, Exceeded};
use crate::state::cluster::peer_rules::PeerRules;
use crate::state::statement::{Savepoint, Statement};
use crate::vocabulary::claim::{Action, Allocation, ClaimId, NodeId};
use crate::vocabulary::pod_group::GroupId;
use crate::vocabulary::queue_spec::QueueId;
use crate::vocabulary::share::Share;

use super::bounds::{Bounds, Taken};
use super::finder::Finder;
use super::frontier::{Frontiers, Purpose};
use super::least_disruption::{Candidate, Disruption, Question, Seeker, Solution};
use super::selection::{QueueOrder, Spares, VictimSelection};
use super::takes::Takes;
use super::victims::Victim;

/// Evicts as few units as possible for each task, within a statement.
pub(super) struct Evicting<'a> {
    pub(super) selection: VictimSelection<'a>,
    pub(super) takes: &'a Takes,
    pub(super) frontiers: &'a mut Frontiers,
    pub(super) finder: Finder,
    pub(super) bounds: Bounds<'a>,
    /// The victims that were evicted at any time, even if they were put back.
    pub(super) evicted: BTreeSet<usize>,
    /// Those of them that had to go for the share of the unit's queue. Some may return in the end, so they do not count
    /// in the bounds of the search.
    pub(super) for_share: BTreeSet<usize>,
    /// What queues held before anything was taken from them.
    pub(super) before: BTreeMap<QueueId, Option<Share>>,
}

impl Evicting<'_> {
    /// The victims that are evicted in a trial. Members beyond a core that is evicted, too, count as part of the core.
    pub(super) fn taken(&self, cluster: &Cluster) -> Vec<usize> {
        let victims = self.evicted.iter().filter_map(|number| Some((*number, self.selection.get(*number)?)));
        let gone: Vec<(usize, &Victim)> = victims.filter(|(_, victim)| victim.is_gone(cluster)).collect();
        let cores = gone.iter().filter(|(_, victim)| !victim.rank().elastic);
        let cores: BTreeSet<GroupId> = cores.map(|(_, victim)| victim.group()).collect();
        let own = |victim: &Victim| !victim.rank().elastic || !cores.contains(&victim.group());
        gone.iter().filter(|(_, victim)| own(victim)).map(|(number, _)| *number).collect()
    }

    /// The sum of what these victims hold.
    pub(super) fn sum(&self, taken: &[usize]) -> Taken {
        let victims = || taken.iter().filter_map(|number| self.selection.get(*number));
        let amounts = victims().map(|victim| self.bounds.measure.of_victim(victim));
        Taken {
            victims: taken.len(),
            amount: amounts.fold(0, u64::saturating_add),
            entitled: victims().any(|victim| victim.entitled),
            guaranteed: self.selection.guarantees_of(self.bounds.unit.queue, victims()),
        }
    }

    /// Whether all of these victims are of the unit's own queue.
    pub(super) fn is_own(&self, victims: &[usize]) -> bool {
        let queue = self.bounds.unit.queue;
        victims
            .iter()
            .filter_map(|number| self.selection.get(*number))
            .all(|of| self.selection.queue(of) == Some(queue))
    }

    /// The order in which queues now give units.
    pub(super) fn order(&self, cluster: &Cluster) -> QueueOrder {
        self.selection.order_of_queues(cluster, self.bounds.shares)
    }

    /// Evicts the part of a victim that is still placed.
    pub(super) fn evict(&mut self, statement: &mut Statement<'_>, number: usize) {
        let Some(victim) = self.selection.get(number) else { return };
        self.evicted.insert(number);
        if let Some(queue) = self.selection.queue(victim) {
            let bounds = &self.bounds;
            let held = || share(statement.cluster(), bounds.shares, queue, None, bounds.asked_of());
            self.before.entry(queue).or_insert_with(held);
        }
        for claim in victim.claims() {
            if statement.cluster().allocation(claim).is_some() {
                let evicted = statement.evict(claim);
                debug_assert_eq!(evicted, Ok(()), "a placed claim can be evicted");
            }
        }
    }

    /// Evicts units that keep the unit from staying within a limit of its queue or of a queue above it. Returns whether
    /// the unit is within all limits then.
    pub(super) fn keep_limits(&mut self, statement: &mut Statement<'_>) -> Result<(), Exceeded> {
        loop {
            let (cluster, bounds) = (statement.cluster(), &self.bounds);
            let passed = limits::check(cluster, bounds.unit.queue, &bounds.least, bounds.preemptible, false);
            let Err(exceeded) = passed else { return Ok(()) };
            if exceeded.is_quota {
                return Err(exceeded);
            }
            let next = self.next_below(cluster, exceeded.queue, exceeded.resource);
            self.evict(statement, next.ok_or(exceeded)?);
        }
    }

    /// Evicts units of the unit's own queue until the queue stays within its fair share with the unit.
    pub(super) fn keep_share(&mut self, statement: &mut Statement<'_>) -> Result<(), Refusal> {
        let (shares, queue) = (self.bounds.shares, self.bounds.unit.queue);
        let is_above = |bounds: &Bounds<'_>| shares.exceeded(statement.cluster(), queue, &bounds.least).is_some();
        // Without units of the own queue, reclaim is only tried within the share.
        if self.bounds.action != Action::Reclaim || !is_above(&self.bounds) {
            return Ok(());
        }
        let own = self.selection.all().filter(|number| self.is_own(&[*number]));
        let mut own: Vec<usize> = own.collect();
        self.finder.search.note(own.len());
        while let Some(resource) = shares.exceeded(statement.cluster(), queue, &self.bounds.least) {
            // The last one in rank goes first. What cannot go now cannot go later either.
            let holds =
                |number: &usize| self.selection.get(*number).is_some_and(|victim| victim.charge.get(resource) > 0);
            let place = own.iter().rposition(holds).ok_or(Refusal::above(shares, queue, resource))?;
            let next = own.remove(place);
            let Some(victim) = self.selection.get(next) else { continue };
            let cluster = statement.cluster();
            let may_go = Spares::new(cluster, self.selection.victims()).allow(victim, std::iter::empty());
            if may_go && !victim.is_gone(cluster) {
                self.for_share.insert(next);
                self.evict(statement, next);
            }
        }
        Ok(())
    }

    /// The first victim to go in a queue, or in a queue below it, that holds some of a resource.
    fn next_below(&mut self, cluster: &Cluster, queue: QueueId, resource: usize) -> Option<usize> {
        let selection = &self.selection;
        let below = |of: &QueueId| cluster.queues().path(*of).any(|(id, _)| id == queue);
        let below: Vec<bool> = selection.victims().queues().iter().map(below).collect();
        let order = self.order(cluster);
        let taken = self.sum(&self.taken(cluster));
        let is_useful = |victim: &Victim| {
            below.get(victim.queue) == Some(&true) && victim.charge.get(resource) > 0 && !victim.is_gone(cluster)
        };
        let useful = selection.all().filter(|number| selection.get(*number).is_some_and(is_useful));
        let mut useful: Vec<usize> = useful.collect();
        if !self.finder.search.spend(useful.len()) {
            return None;
        }
        useful.sort_by_cached_key(|number| selection.goes(&order, *number));
        let mut spares = Spares::new(cluster, selection.victims());
        let bounds = &mut self.bounds;
        useful.into_iter().find(|number| {
            let Some(victim) = selection.get(*number) else { return false };
            spares.allow(victim, std::iter::empty())
                && bounds.leaves_shares(cluster, selection, &[*number])
                && bounds.is_bounded(taken, 1, bounds.measure.of_victim(victim))
        })
    }

    /// The least disruption that makes room for a task, and its node.
    fn least(
        &mut self,
        cluster: &Cluster,
        engine: &Engine<Box<dyn Policy>>,
        claim: ClaimId,
        among: Option<&[NodeId]>,
    ) -> Option<(NodeId, Vec<usize>)> {
        let order = self.order(cluster);
        let mut before = self.taken(cluster);
        before.retain(|number| !self.for_share.contains(number));
        let before = self.sum(&before);
        let Self { selection, takes, frontiers, finder, bounds, .. } = self;
        let purpose = Purpose { class: cluster.class_of(claim)?, measure: bounds.measure, takes: takes.clone() };
        let request = &cluster.claim(claim)?.request;
        let mut question = Question {
            cluster,
            selection,
            request,
            engine,
            measure: bounds.measure,
            order: &order,
            spares: Spares::new(cluster, selection.victims()),
            rules: PeerRules::of(cluster, request),
        };
        let mut seeker = Least { cluster, selection, bounds, before, best: None };
        match among {
            Some(_) => finder.each_node(&mut question, among, &mut seeker),
            // A frontier is worth its cost only if units of the same kind use it, too.
            None if takes.is_of_one_unit() => finder.each_node(&mut question, None, &mut seeker),
            None => {
                let frontier = frontiers.get(cluster, selection, &purpose);
                finder.each_promising_node(&mut question, frontier, &mut seeker);
            }
        }
        seeker.best.map(|(.., id, victims)| (id, victims))
    }

    /// Puts back, one after another, victims that need not have gone, in reverse order of eviction. Room for a gang's
    /// members is made one by one, and what is evicted for a later member may be enough for an earlier one as well.
    /// Units of the unit's own queue that had to go only for the queue's share also stay if their room is not needed:
    /// free room is open to all.
    pub(super) fn spare_whom_it_can(
        &mut self,
        statement: &mut Statement<'_>,
        engine: &mut Engine<Box<dyn Policy>>,
        start: Savepoint,
    ) {
        let unit = self.bounds.unit;
        let mut taken = self.taken(statement.cluster());
        if taken.len() < 2 {
            return;
        }
        let order = self.order(statement.cluster());
        taken.sort_by_cached_key(|number| self.selection.goes(&order, *number));
        let mut places = places(statement.cluster(), unit);
        for spared in taken.clone().into_iter().rev() {
            if !self.finder.search.spend(unit.claims.len() + taken.len()) {
                break;
            }
            statement.rollback(start);
            let others: Vec<usize> = taken.iter().copied().filter(|victim| *victim != spared).collect();
            others.iter().for_each(|victim| self.evict(statement, *victim));
            let spared_before = self.bounds.spared.clone();
            if let Some(victim) = self.selection.get(spared).filter(|_| self.is_own(&[spared])) {
                self.bounds.spared.add(&victim.charge);
            }
            if place_unit(statement, engine, unit, &mut FreeRoom).is_ok()
                && self.bounds.judge(statement.cluster(), self.sum(&others)).is_ok()
            {
                taken = others;
                places = self::places(statement.cluster(), unit);
            } else {
                self.bounds.spared = spared_before;
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

/// The places of a unit's members.
fn places(cluster: &Cluster, unit: &Unit) -> Vec<(ClaimId, Allocation)> {
    unit.claims.iter().filter_map(|claim| Some((*claim, cluster.allocation(*claim)?.clone()))).collect()
}

/// Finds the least disruption over all nodes.
struct Least<'a, 'b> {
    cluster: &'a Cluster,
    selection: &'a VictimSelection<'a>,
    bounds: &'a mut Bounds<'b>,
    before: Taken,
    best: Option<(Disruption, i64, NodeId, Vec<usize>)>,
}

impl Seeker for Least<'_, '_> {
    fn kept_back(&self, _: u32) -> u32 {
        0
    }

    fn cares_for(&self, disruption: &Disruption) -> bool {
        self.best.as_ref().is_none_or(|(best, ..)| disruption <= best)
    }

    fn allows(&mut self, candidate: &Candidate<'_>) -> bool {
        self.bounds.allow(self.cluster, self.selection, self.before, candidate)
    }

    fn found(&mut self, node: NodeId, solution: Solution) {
        let key = (&solution.disruption, solution.cost, node);
        if self.best.as_ref().is_none_or(|(least, cost, id, _)| key < (least, *cost, *id)) {
            self.best = Some((solution.disruption, solution.cost, node, solution.victims));
        }
    }

    fn has_found(&self) -> bool {
        self.best.is_some()
    }
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
