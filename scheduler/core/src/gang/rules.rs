//! Units whose members may not be just anywhere: in one domain of a topology level, on one node, or spread.

use std::collections::{BTreeMap, BTreeSet};

use super::{MakeRoom, Unplaceable, demanding_first, place_within_bounds};
use crate::claim::{ClaimId, NodeId};
use crate::class::ClassId;
use crate::cluster::Cluster;
use crate::group::{GroupId, GroupPlacement, PlacementStrategy};
use crate::placement::{Engine, GroupScope, MemberNodes, Policy, room};
use crate::queue::QueueId;
use crate::statement::Statement;
use crate::topology::DomainId;
use crate::unit::Unit;

/// A group's rules about where its members may be.
pub(super) struct Rules {
    group: GroupId,
    queue: QueueId,
    preemptible: bool,
    spread: GroupPlacement,
    /// By sub-group, the level in one domain of which its members must be.
    levels: Vec<Option<String>>,
}

/// What placing needs at every step.
struct Trial<'a, 's> {
    statement: &'a mut Statement<'s>,
    engine: &'a mut Engine<Box<dyn Policy>>,
    room: &'a mut dyn MakeRoom,
}

impl Rules {
    /// The rules of a unit's group, if it has any.
    pub(super) fn of(cluster: &Cluster, unit: &Unit) -> Option<Self> {
        let spec = cluster.group(unit.group)?.spec();
        let levels: Vec<Option<String>> = spec.sub_groups.iter().map(|sub| sub.required_level.clone()).collect();
        let has_any = spec.spread != GroupPlacement::default() || levels.iter().any(Option::is_some);
        let (group, queue, preemptible) = (unit.group, unit.queue, spec.preemptible);
        has_any.then(|| Self { group, queue, preemptible, spread: spec.spread.clone(), levels })
    }

    /// Places the unit's members; what was placed before it failed is still there.
    pub(super) fn place(
        &self,
        statement: &mut Statement<'_>,
        engine: &mut Engine<Box<dyn Policy>>,
        unit: &Unit,
        room: &mut dyn MakeRoom,
    ) -> Result<(), Unplaceable> {
        let mut trial = Trial { statement, engine, room };
        let start = trial.statement.checkpoint();
        let mut last = match unit.claims.first() {
            Some(claim) => Unplaceable::Topology { claim: *claim },
            None => return Ok(()),
        };
        for scope in self.scopes(&mut trial, unit) {
            match self.place_within(&mut trial, &unit.claims, scope) {
                Ok(()) => return Ok(()),
                Err(obstacle) => last = obstacle,
            }
            trial.statement.rollback(start);
        }
        Err(last)
    }

    /// The domains in which to try the unit, one after another; `None` is the whole cluster.
    fn scopes(&self, trial: &mut Trial<'_, '_>, unit: &Unit) -> Vec<Option<DomainId>> {
        let required = match &self.spread.required_level {
            None => vec![None],
            Some(label) => self.domains(trial, label, &unit.claims, None, None).into_iter().map(Some).collect(),
        };
        let Some(label) = &self.spread.preferred_level else { return required };
        let domains = |within: &Option<DomainId>| self.domains(trial, label, &unit.claims, None, *within);
        let preferred: Vec<Option<DomainId>> = required.iter().flat_map(domains).map(Some).collect();
        preferred.into_iter().chain(required).collect()
    }

    /// The domains of a level, within another one, in which members can be placed that must be in one: those of a
    /// sub-group, or all. If some of them run already, where those are.
    fn domains(
        &self,
        trial: &mut Trial<'_, '_>,
        label: &str,
        claims: &[ClaimId],
        sub_group: Option<&str>,
        within: Option<DomainId>,
    ) -> Vec<DomainId> {
        let cluster = trial.statement.cluster();
        let Some(level) = cluster.topology().level(label) else { return Vec::new() };
        if let Some(node) = self.anchor(cluster, claims, sub_group) {
            return cluster.topology().domain_of(node, level).into_iter().collect();
        }
        let members = MemberNodes::of(cluster, self.group);
        let scope = GroupScope { placement: &self.spread, members: &members, within };
        let wanted = wanted(cluster, claims);
        let roomy = trial.engine.domains_for(cluster, level, &wanted, &scope);
        if !trial.room.may_evict() {
            return roomy.into_iter().filter(|domain| domain.holds_all).map(|domain| domain.place).collect();
        }
        // Where nothing is free at all, something may be made free. How much is looked at is bounded by the search's
        // budget.
        let roomy: Vec<DomainId> = roomy.into_iter().map(|domain| domain.place).collect();
        let known: BTreeSet<DomainId> = roomy.iter().copied().collect();
        let others = cluster.topology().domains(level, within).filter(|id| !known.contains(id));
        roomy.iter().copied().chain(others).collect()
    }

    /// The node of a member that runs and must be in the same domain as these claims: one of the sub-group, or any.
    fn anchor(&self, cluster: &Cluster, claims: &[ClaimId], sub_group: Option<&str>) -> Option<NodeId> {
        let of = |claim: &ClaimId| cluster.claim(*claim).and_then(|claim| claim.sub_group.as_deref());
        let with = |member: &ClaimId| sub_group.is_none() || of(member) == sub_group;
        let group = cluster.group(self.group)?;
        let placed = group.members().filter(|member| !claims.contains(member) && with(member));
        placed.filter_map(|member| cluster.allocation(member)).map(|allocation| allocation.node).next()
    }

    fn place_within(
        &self,
        trial: &mut Trial<'_, '_>,
        claims: &[ClaimId],
        within: Option<DomainId>,
    ) -> Result<(), Unplaceable> {
        let mut rest = Vec::new();
        let mut by_level: BTreeMap<usize, Vec<ClaimId>> = BTreeMap::new();
        for claim in claims {
            match self.sub_group_with_level(trial.statement.cluster(), *claim) {
                Some(sub_group) => by_level.entry(sub_group).or_default().push(*claim),
                None => rest.push(*claim),
            }
        }
        for (sub_group, claims) in by_level {
            let Some(label) = self.levels.get(sub_group).and_then(Option::as_deref) else { continue };
            self.place_in_one(trial, label, &claims, within)?;
        }
        match self.spread.strategy {
            PlacementStrategy::SingleNode => self.place_on_one_node(trial, &rest, within),
            _ => self.place_each(trial, &rest, within, None),
        }
    }

    fn sub_group_with_level(&self, cluster: &Cluster, claim: ClaimId) -> Option<usize> {
        let name = cluster.claim(claim)?.sub_group.as_deref()?;
        let number = cluster.group(self.group)?.sub_group(Some(name))?;
        self.levels.get(number)?.as_ref().map(|_| number)
    }

    /// Places members of a sub-group in one domain of its level.
    fn place_in_one(
        &self,
        trial: &mut Trial<'_, '_>,
        label: &str,
        claims: &[ClaimId],
        within: Option<DomainId>,
    ) -> Result<(), Unplaceable> {
        let start = trial.statement.checkpoint();
        let mut last = claims.first().map(|claim| Unplaceable::Topology { claim: *claim });
        let first = claims.first().and_then(|claim| trial.statement.cluster().claim(*claim));
        let sub_group = first.and_then(|claim| claim.sub_group.clone());
        for domain in self.domains(trial, label, claims, sub_group.as_deref(), within) {
            match self.place_each(trial, claims, Some(domain), None) {
                Ok(()) => return Ok(()),
                Err(obstacle) => last = Some(obstacle),
            }
            trial.statement.rollback(start);
        }
        last.map_or(Ok(()), Err)
    }

    /// Places members on one node, that of the members that run if there are any.
    fn place_on_one_node(
        &self,
        trial: &mut Trial<'_, '_>,
        claims: &[ClaimId],
        within: Option<DomainId>,
    ) -> Result<(), Unplaceable> {
        let Some(first) = claims.first() else { return Ok(()) };
        let cluster = trial.statement.cluster();
        let members = MemberNodes::of(cluster, self.group);
        let scope = GroupScope { placement: &self.spread, members: &members, within };
        let wanted = wanted(cluster, claims);
        let mut nodes: Vec<NodeId> =
            trial.engine.nodes_for(cluster, &wanted, &scope).into_iter().map(|node| node.place).collect();
        if trial.room.may_evict() {
            let large_enough = |node: &NodeId| {
                cluster.node(*node).map(|node| node.emptied()).is_some_and(|node| {
                    let fits = |(class, count): &(ClassId, u32)| {
                        cluster.class(*class).is_some_and(|class| room(&node, class.request()) >= *count)
                    };
                    wanted.iter().all(fits)
                })
            };
            let known: BTreeSet<NodeId> = nodes.iter().copied().collect();
            nodes.extend(scope.nodes(cluster).filter(|node| !known.contains(node)).filter(large_enough));
        }
        let start = trial.statement.checkpoint();
        let mut last = Unplaceable::Topology { claim: *first };
        for node in nodes {
            match self.place_each(trial, claims, within, Some(node)) {
                Ok(()) => return Ok(()),
                Err(limit @ Unplaceable::Limit(_)) => last = limit,
                Err(_) => {}
            }
            trial.statement.rollback(start);
        }
        Err(last)
    }

    /// Places members one after another, within a domain, or on one node of it.
    fn place_each(
        &self,
        trial: &mut Trial<'_, '_>,
        claims: &[ClaimId],
        within: Option<DomainId>,
        only: Option<NodeId>,
    ) -> Result<(), Unplaceable> {
        let mut members = MemberNodes::of(trial.statement.cluster(), self.group);
        for (placed, claim) in demanding_first(trial.statement.cluster(), trial.engine, claims).into_iter().enumerate()
        {
            let no_room = Unplaceable::NoRoom { claim, placed };
            let cluster = trial.statement.cluster();
            let class = cluster.class_of(claim).ok_or(no_room)?;
            let scope = GroupScope { placement: &self.spread, members: &members, within };
            let engine = &mut *trial.engine;
            let open = |node: NodeId, spent: &[usize]| cluster.node(node).is_some_and(|node| !node.has_model_of(spent));
            let free = place_within_bounds(cluster, self.queue, claim, self.preemptible, |spent| match only {
                Some(node) => engine.place_among(cluster, class, [node].into_iter().filter(|node| open(*node, spent))),
                None if spent.is_empty() => engine.place_member(cluster, class, &scope),
                None => engine.place_member_on(cluster, class, &scope, |node| open(node, spent)),
            });
            let allocation = match free {
                Ok(None) | Err(_) if trial.room.may_evict() => {
                    let request = cluster.class(class).ok_or(no_room)?.request();
                    let open = scope.nodes(cluster).filter(|node| only.is_none_or(|only| only == *node));
                    let among: Vec<NodeId> = open.filter(|node| scope.most_on(*node, request) > 0).collect();
                    let found = trial.room.make_room(trial.statement, trial.engine, claim, Some(&among));
                    found.map_or(free, |found| Ok(Some(found)))
                }
                free => free,
            };
            let allocation = allocation?.ok_or(no_room)?;
            members.add(&allocation);
            trial.statement.place(claim, allocation).map_err(|_| no_room)?;
        }
        Ok(())
    }
}

/// How many of each class some claims are.
fn wanted(cluster: &Cluster, claims: &[ClaimId]) -> Vec<(ClassId, u32)> {
    let mut wanted: BTreeMap<ClassId, u32> = BTreeMap::new();
    for class in claims.iter().filter_map(|claim| cluster.class_of(*claim)) {
        *wanted.entry(class).or_default() += 1;
    }
    wanted.into_iter().collect()
}
