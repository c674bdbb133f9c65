//! Units of groups with placement rules: in one domain of a topology level, on one node, or spread.

use std::collections::{BTreeMap, BTreeSet};
use std::vec::IntoIter;

use super::member::{MakeRoom, Spent, Unplaceable, demanding_first, place_besides, place_within_bounds};
use crate::decisions::placement::{Engine, GroupScope, MemberNodes, Policy, room};
use crate::decisions::unit::Unit;
use crate::state::class::ClassId;
use crate::state::cluster::Cluster;
use crate::state::statement::{Savepoint, Statement};
use crate::state::topology::{Domain, DomainId};
use crate::vocabulary::claim::{ClaimId, NodeId};
use crate::vocabulary::pod_group::{GroupId, GroupPlacement, PlacementStrategy, SubGroup};
use crate::vocabulary::queue_spec::QueueId;

/// How often, for one unit in one scope, a placed sub-group may go on to its next domain to leave room for others.
const WAYS_MAX: u32 = 64;

/// A group's rules about where its members may be.
pub(super) struct Rules {
    group: GroupId,
    queue: QueueId,
    preemptible: bool,
    spread: GroupPlacement,
    /// By sub-group, where its members must be, and should be.
    levels: Vec<Levels>,
}

/// The levels in one domain of which members must be, and should be.
#[derive(Clone, Default)]
struct Levels {
    required: Option<String>,
    preferred: Option<String>,
}

/// Where to try members: in a domain; `None` stands for the whole cluster.
type Scope = Option<DomainId>;

/// What every step of placing needs.
struct Placing<'a, 's> {
    statement: &'a mut Statement<'s>,
    engine: &'a mut Engine<Box<dyn Policy>>,
    room: &'a mut dyn MakeRoom,
}

/// The members of a sub-group that must be, or should be, in one domain of a level.
struct Part {
    /// The number of the sub-group.
    sub_group: usize,
    claims: Vec<ClaimId>,
    /// One of them.
    first: ClaimId,
    wanted: Vec<(ClassId, u32)>,
    /// Where they could be before any other part was placed. Left empty if there is no other part.
    choices: Vec<Scope>,
}

impl Part {
    /// Whether it has the same places to choose from as another part, and takes the same there.
    fn is_like(&self, other: &Self) -> bool {
        (&self.choices, &self.wanted) == (&other.choices, &other.wanted)
    }
}

impl Levels {
    fn has_any(&self) -> bool {
        self.required.is_some() || self.preferred.is_some()
    }

    /// The preferred level, and the levels around it that are within the required one and this domain, from the inside
    /// out.
    fn preferred(&self, cluster: &Cluster, within: Scope) -> Vec<String> {
        let topology = cluster.topology();
        let number = |label: &Option<String>| label.as_ref().and_then(|label| topology.level(label));
        let Some(preferred) = number(&self.preferred) else { return Vec::new() };
        let around = within.and_then(|id| topology.domain(id)).map(Domain::level);
        let outermost = number(&self.required).max(around).map_or(0, |level| level + 1);
        let labels = topology.levels().iter().take(preferred + 1).skip(outermost.min(preferred));
        labels.rev().cloned().collect()
    }
}

impl Rules {
    /// The rules of a unit's group, if it has any.
    pub(super) fn of(cluster: &Cluster, unit: &Unit) -> Option<Self> {
        let spec = cluster.group(unit.group)?.spec();
        // On one node all are near each other.
        let may_prefer = spec.spread.strategy != PlacementStrategy::SingleNode;
        let of = |sub: &SubGroup| Levels {
            required: sub.required_level.clone(),
            preferred: sub.preferred_level.clone().filter(|_| may_prefer),
        };
        let levels: Vec<Levels> = spec.sub_groups.iter().map(of).collect();
        let has_any = spec.spread != GroupPlacement::default() || levels.iter().any(Levels::has_any);
        let (group, queue, preemptible) = (unit.group, unit.queue, spec.preemptible);
        has_any.then(|| Self { group, queue, preemptible, spread: spec.spread.clone(), levels })
    }

    /// The same rules without what sub-groups prefer; `None`: they prefer nothing.
    fn without_preferences(&self) -> Option<Self> {
        let Self { group, queue, preemptible, spread, levels } = self;
        let without = |of: &Levels| Levels { required: of.required.clone(), preferred: None };
        levels.iter().any(|of| of.preferred.is_some()).then(|| Self {
            group: *group,
            queue: *queue,
            preemptible: *preemptible,
            spread: spread.clone(),
            levels: levels.iter().map(without).collect(),
        })
    }

    /// Places the unit's members. If it fails, the members placed before the failure are still placed.
    pub(super) fn place(
        &self,
        statement: &mut Statement<'_>,
        engine: &mut Engine<Box<dyn Policy>>,
        unit: &Unit,
        room: &mut dyn MakeRoom,
    ) -> Result<(), Unplaceable> {
        let mut trial = Placing { statement, engine, room };
        let start = trial.statement.savepoint();
        let mut last = match unit.claims.first() {
            Some(claim) => Unplaceable::Topology { claim: *claim },
            None => return Ok(()),
        };
        let GroupPlacement { required_level, preferred_level, .. } = self.spread.clone();
        let levels = Levels { required: required_level, preferred: preferred_level };
        let simple = self.without_preferences();
        for scope in self.scopes(&mut trial, &levels, &unit.claims, None, None) {
            let mut found = self.place_within(&mut trial, &unit.claims, scope);
            if let (Err(Unplaceable::TooManyWays), Some(simple)) = (&found, &simple) {
                trial.statement.rollback(start);
                found = simple.place_within(&mut trial, &unit.claims, scope);
            }
            match found {
                Ok(()) => return Ok(()),
                // In a domain that was not searched to the end, it is not known whether the unit fits.
                Err(obstacle) if last != Unplaceable::TooManyWays => last = obstacle,
                Err(_) => {}
            }
            trial.statement.rollback(start);
        }
        Err(last)
    }

    /// Where to try members of a sub-group, or all, one place after another. If no domain of the preferred level will
    /// do, the levels around it are tried from the inside out, up to the required one.
    fn scopes(
        &self,
        trial: &mut Placing<'_, '_>,
        levels: &Levels,
        claims: &[ClaimId],
        sub_group: Option<&str>,
        within: Scope,
    ) -> Vec<Scope> {
        let required = match &levels.required {
            None => vec![within],
            Some(label) => self.domains(trial, label, claims, sub_group, within).into_iter().map(Some).collect(),
        };
        let mut scopes = Vec::new();
        for label in levels.preferred(trial.statement.cluster(), within) {
            for within in &required {
                scopes.extend(self.domains(trial, &label, claims, sub_group, *within).into_iter().map(Some));
            }
        }
        scopes.extend(required);
        scopes
    }

    /// The domains of a level, within another domain, in which members can be placed that must be in one domain: the
    /// members of a sub-group, or all. If some of them are placed already: the domain where those are.
    fn domains(
        &self,
        trial: &mut Placing<'_, '_>,
        label: &str,
        claims: &[ClaimId],
        sub_group: Option<&str>,
        within: Scope,
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
        // Domains without free room are tried as well: room may be made there. The search's budget bounds how much is
        // looked at.
        let roomy: Vec<DomainId> = roomy.into_iter().map(|domain| domain.place).collect();
        let known: BTreeSet<DomainId> = roomy.iter().copied().collect();
        let others = cluster.topology().domains(level, within).filter(|id| !known.contains(id));
        roomy.iter().copied().chain(others).collect()
    }

    /// The node of a placed member that must be in the same domain as these claims: one of the sub-group, or any.
    fn anchor(&self, cluster: &Cluster, claims: &[ClaimId], sub_group: Option<&str>) -> Option<NodeId> {
        let of = |claim: &ClaimId| cluster.claim(*claim).and_then(|claim| claim.sub_group.as_deref());
        let with = |member: &ClaimId| sub_group.is_none() || of(member) == sub_group;
        let group = cluster.group(self.group)?;
        let placed = group.members().filter(|member| !claims.contains(member) && with(member));
        placed.filter_map(|member| cluster.allocation(member)).map(|allocation| allocation.node).next()
    }

    /// Places members within a domain: first each sub-group that must be, or should be, in one domain of a level, then
    /// the rest. If one finds no room, the one before it goes on to its next domain.
    fn place_within(&self, trial: &mut Placing<'_, '_>, claims: &[ClaimId], within: Scope) -> Result<(), Unplaceable> {
        if self.spread.strategy == PlacementStrategy::SingleNode {
            return self.place_on_one_node(trial, claims, within);
        }
        let (parts, rest) = self.parts(trial, claims, within);
        // The placed parts: for each, the savepoint before it and the places that it has not tried.
        let mut begun: Vec<(Savepoint, IntoIter<Scope>)> = Vec::new();
        let mut first_obstacle = None;
        let mut ways_left = WAYS_MAX;
        loop {
            let obstacle = match parts.get(begun.len()) {
                Some(part) => {
                    let scopes = self.scopes_of(trial, part, within).into_iter();
                    begun.push((trial.statement.savepoint(), scopes));
                    self.go_on(trial, &parts, &mut begun).err()
                }
                None => match self.place_rest(trial, &rest, within) {
                    Ok(()) => return Ok(()),
                    Err(obstacle) => Some(obstacle),
                },
            };
            let Some(obstacle) = obstacle else { continue };
            // The obstacle of the way that is tried first is the one to report.
            let first_obstacle = *first_obstacle.get_or_insert(obstacle);
            // To exchange the domains of parts that are alike would not help.
            if let Some(failed) = parts.get(begun.len()) {
                let others = parts.iter().take(begun.len()).rposition(|part| !part.is_like(failed));
                begun.truncate(others.map_or(0, |last| last + 1));
            }
            loop {
                if begun.is_empty() {
                    return Err(first_obstacle);
                }
                if ways_left == 0 {
                    return Err(Unplaceable::TooManyWays);
                }
                ways_left -= 1;
                if self.go_on(trial, &parts, &mut begun).is_ok() {
                    break;
                }
            }
        }
    }

    /// Places the last begun part in the next domain that takes it. If there is no such domain, the part is taken back.
    fn go_on(
        &self,
        trial: &mut Placing<'_, '_>,
        parts: &[Part],
        begun: &mut Vec<(Savepoint, IntoIter<Scope>)>,
    ) -> Result<(), Unplaceable> {
        let number = begun.len().saturating_sub(1);
        let (Some(part), Some((start, scopes))) = (parts.get(number), begun.last_mut()) else { return Ok(()) };
        let mut last = Unplaceable::Topology { claim: part.first };
        trial.statement.rollback(*start);
        for scope in scopes {
            match self.place_each(trial, &part.claims, scope, None) {
                Ok(()) => return Ok(()),
                Err(obstacle) => last = obstacle,
            }
            trial.statement.rollback(*start);
        }
        begun.pop();
        Err(last)
    }

    /// The members that must be, or should be, in one domain of a level, by sub-group, with the fewest places to choose
    /// from first; and the rest of the members.
    fn parts(&self, trial: &mut Placing<'_, '_>, claims: &[ClaimId], within: Scope) -> (Vec<Part>, Vec<ClaimId>) {
        let mut rest = Vec::new();
        let mut by_sub_group: BTreeMap<usize, Vec<ClaimId>> = BTreeMap::new();
        for claim in claims {
            match self.sub_group_with_level(trial.statement.cluster(), *claim) {
                Some(sub_group) => by_sub_group.entry(sub_group).or_default().push(*claim),
                None => rest.push(*claim),
            }
        }
        let is_alone = by_sub_group.len() == 1;
        let mut parts = Vec::with_capacity(by_sub_group.len());
        for (sub_group, claims) in by_sub_group {
            let Some(first) = claims.first().copied() else { continue };
            let wanted = wanted(trial.statement.cluster(), &claims);
            let mut part = Part { sub_group, claims, first, wanted, choices: Vec::new() };
            if !is_alone {
                part.choices = self.scopes_of(trial, &part, within);
            }
            parts.push(part);
        }
        parts.sort_by_key(|part| part.choices.len());
        (parts, rest)
    }

    /// Where a part can be placed in the present state.
    fn scopes_of(&self, trial: &mut Placing<'_, '_>, part: &Part, within: Scope) -> Vec<Scope> {
        let Some(levels) = self.levels.get(part.sub_group) else { return Vec::new() };
        let first = trial.statement.cluster().claim(part.first);
        let sub_group = first.and_then(|claim| claim.sub_group.clone());
        self.scopes(trial, levels, &part.claims, sub_group.as_deref(), within)
    }

    fn place_rest(&self, trial: &mut Placing<'_, '_>, rest: &[ClaimId], within: Scope) -> Result<(), Unplaceable> {
        let start = trial.statement.savepoint();
        if self.place_in_few(trial, rest, within) {
            return Ok(());
        }
        trial.statement.rollback(start);
        self.place_each(trial, rest, within, None)
    }

    /// Places members in free room of few domains of the preferred level, if one domain was not enough for them.
    /// Returns whether all found room; if not, some of them may be placed.
    fn place_in_few(&self, trial: &mut Placing<'_, '_>, claims: &[ClaimId], within: Scope) -> bool {
        let topology = trial.statement.cluster().topology();
        let level = self.spread.preferred_level.as_ref().and_then(|label| topology.level(label));
        let outer = within.map(|id| topology.domain(id).map_or(usize::MAX, Domain::level));
        let Some(level) = level.filter(|level| outer.is_none_or(|outer| outer < *level)) else { return false };
        if claims.len() < 2 || trial.room.may_evict() || self.spread.strategy != PlacementStrategy::BestFit {
            return false;
        }
        let mut left = demanding_first(trial.statement.cluster(), trial.engine, claims);
        while !left.is_empty() {
            let cluster = trial.statement.cluster();
            let members = MemberNodes::of(cluster, self.group);
            let scope = GroupScope { placement: &self.spread, members: &members, within };
            let domains = trial.engine.domains_for(cluster, level, &wanted(cluster, &left), &scope);
            let Some(domain) = domains.first().map(|domain| domain.place) else { return false };
            let before = left.len();
            left.retain(|claim| self.place_each(trial, &[*claim], Some(domain), None).is_err());
            if left.len() == before {
                return false;
            }
        }
        true
    }

    fn sub_group_with_level(&self, cluster: &Cluster, claim: ClaimId) -> Option<usize> {
        let name = cluster.claim(claim)?.sub_group.as_deref()?;
        let number = cluster.group(self.group)?.sub_group(Some(name))? as usize;
        self.levels.get(number)?.has_any().then_some(number)
    }

    /// Places members on one node: the node of the placed members, if there are any. All of a node is in one domain of
    /// each level, so it need only be in a domain of each level that a sub-group requires.
    fn place_on_one_node(
        &self,
        trial: &mut Placing<'_, '_>,
        claims: &[ClaimId],
        within: Scope,
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
        let required: BTreeSet<Option<usize>> = claims
            .iter()
            .filter_map(|claim| self.levels.get(self.sub_group_with_level(cluster, *claim)?)?.required.as_ref())
            .map(|label| cluster.topology().level(label))
            .collect();
        let is_in_domain = |node: &NodeId, level: &Option<usize>| {
            level.is_some_and(|level| cluster.topology().domain_of(*node, level).is_some())
        };
        nodes.retain(|node| required.iter().all(|level| is_in_domain(node, level)));
        let start = trial.statement.savepoint();
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

    /// Places members one after another, within a domain or on one node of it.
    fn place_each(
        &self,
        trial: &mut Placing<'_, '_>,
        claims: &[ClaimId],
        within: Scope,
        only: Option<NodeId>,
    ) -> Result<(), Unplaceable> {
        let mut members = MemberNodes::of(trial.statement.cluster(), self.group);
        for (placed, claim) in demanding_first(trial.statement.cluster(), trial.engine, claims).into_iter().enumerate()
        {
            let no_room = Unplaceable::NoRoom { claim, placed };
            let cluster = trial.statement.cluster();
            let class = cluster.class_of(claim).ok_or(no_room)?;
            let request = cluster.class(class).ok_or(no_room)?.request();
            let scope = GroupScope { placement: &self.spread, members: &members, within };
            let allowed = |node: &NodeId| only.is_none_or(|only| only == *node) && scope.most_on(*node, request) > 0;
            let engine = &mut *trial.engine;
            let open =
                |node: NodeId, spent: &Spent| cluster.node(node).is_some_and(|node| !node.has_model_of(&spent.models));
            let free = place_within_bounds(cluster, self.queue, claim, self.preemptible, |spent| match only {
                // The kept bids are for all choices together. So nodes are asked about the choices that are left. Of
                // several nodes with room the cheapest is taken, whatever the spread rule says.
                _ if !spent.choices.is_empty() => {
                    let nodes: BTreeSet<NodeId> = scope.nodes(cluster).filter(allowed).collect();
                    place_besides(cluster, engine, class, spent, |node| nodes.contains(&node))
                }
                Some(node) => {
                    let node = Some(node).filter(|node| allowed(node) && open(*node, spent));
                    engine.place_among(cluster, class, node)
                }
                None if spent.is_nothing() => engine.place_member(cluster, class, &scope),
                None => engine.place_member_on(cluster, class, &scope, |node| open(node, spent)),
            });
            let allocation = match free {
                Ok(None) | Err(_) if trial.room.may_evict() => {
                    let among: Vec<NodeId> = scope.nodes(cluster).filter(allowed).collect();
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

/// The number of claims of each class.
fn wanted(cluster: &Cluster, claims: &[ClaimId]) -> Vec<(ClassId, u32)> {
    let mut wanted: BTreeMap<ClassId, u32> = BTreeMap::new();
    for class in claims.iter().filter_map(|claim| cluster.class_of(*claim)) {
        *wanted.entry(class).or_default() += 1;
    }
    wanted.into_iter().collect()
}
