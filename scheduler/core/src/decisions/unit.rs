//! Units: what is placed or evicted as a whole.

use std::cmp::Reverse;
use std::collections::BTreeSet;
use std::ops::RangeInclusive;

use crate::state::class::ClassId;
use crate::state::cluster::Cluster;
use crate::state::group::Group;
use crate::state::resources::Charge;
use crate::vocabulary::claim::ClaimId;
use crate::vocabulary::pod_group::GroupId;
use crate::vocabulary::queue_spec::QueueId;

/// A unit's position in the fixed order of its leaf queue; the least goes first. What a group needs comes before what
/// it could use beyond that. The rank does not depend on what is placed.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) struct Rank {
    pub(crate) priority: Reverse<i32>,
    pub(crate) elastic: bool,
    /// The group's number in the order in which groups were added.
    pub(crate) group: u64,
    member: u64,
}

impl Rank {
    /// The rank of a group's core, by the group's priority and number. If `beyond` is given, the rank of the member
    /// beyond the core with this claim number.
    pub(crate) fn new(priority: i32, group: u64, beyond: Option<u64>) -> Self {
        Self { priority: Reverse(priority), elastic: beyond.is_some(), group, member: beyond.unwrap_or(0) }
    }

    /// The rank of the core of the same group.
    pub(crate) fn core(self) -> Self {
        Self { elastic: false, member: 0, ..self }
    }

    /// The ranks of all members beyond the core of the same group.
    pub(crate) fn beyond(self) -> RangeInclusive<Self> {
        let beyond = |member| Self { elastic: true, member, ..self };
        beyond(0)..=beyond(u64::MAX)
    }

    /// The least rank that units of the same priority can have.
    pub(crate) fn first_of_priority(self) -> Self {
        Self { elastic: false, group: 0, member: 0, ..self }
    }
}

/// The core of a pod group, or one member beyond it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Unit {
    pub(crate) rank: Rank,
    pub(crate) group: GroupId,
    pub(crate) queue: QueueId,
    /// Its members, in the order in which they were added.
    pub(crate) claims: Vec<ClaimId>,
    pub(crate) elastic: bool,
}

impl Unit {
    fn new(cluster: &Cluster, id: GroupId, claims: Vec<ClaimId>, elastic: bool) -> Option<Self> {
        let group = cluster.group(id)?;
        let beyond = match elastic {
            true => Some(cluster.sequence(*claims.first()?)?),
            false => None,
        };
        let rank = Rank::new(group.spec().priority, id.number(), beyond);
        Some(Self { rank, group: id, queue: group.queue(), claims, elastic })
    }

    /// The next unit that a group wants placed; `Err` with the number of missing members if there are too few. If a
    /// group has its minimum, its further members are placed one by one. A member that has failed to start does not
    /// keep back others that would do instead of it.
    pub(crate) fn next(cluster: &Cluster, id: GroupId) -> Result<Option<Self>, u32> {
        let Some(group) = cluster.group(id) else { return Ok(None) };
        if group.has_minimum() {
            let first = |among: &dyn Fn(ClaimId) -> bool| group.waiting().find(|claim| among(*claim)).ok_or(());
            let claim = among_sound(cluster, group, first).ok();
            return Ok(claim.and_then(|claim| Self::beyond(cluster, id, claim)));
        }
        let claims = among_sound(cluster, group, |among| group.missing_core_of(among))?;
        Ok(Self::new(cluster, id, claims, false))
    }

    /// A member beyond a group's core.
    pub(crate) fn beyond(cluster: &Cluster, group: GroupId, claim: ClaimId) -> Option<Self> {
        Self::new(cluster, group, vec![claim], true)
    }

    /// A core of other members that could be placed instead of this one, without members of these classes.
    pub(crate) fn core_without(&self, cluster: &Cluster, classes: &BTreeSet<ClassId>) -> Option<Self> {
        let group = cluster.group(self.group).filter(|group| !self.elastic && group.is_declared())?;
        let is_other = |claim| cluster.class_of(claim).is_some_and(|class| !classes.contains(&class));
        let others = |among: &dyn Fn(ClaimId) -> bool| group.missing_core_of(|claim| is_other(claim) && among(claim));
        Self::new(cluster, self.group, among_sound(cluster, group, others).ok()?, false)
    }

    /// This unit, and the units that others could make way for instead. For a member beyond the core: one member of
    /// each other class, as these are independent of each other. For a core: cores that do without one of its classes.
    /// The order is that of the members, because a restored scheduler numbers classes differently.
    pub(crate) fn sorts<'a>(&'a self, cluster: &'a Cluster) -> impl Iterator<Item = Self> + 'a {
        // Instead of a single claim, nothing else could be placed.
        let is_declared = cluster.group(self.group).is_some_and(Group::is_declared);
        let others = is_declared.then(|| self.other_sorts(cluster));
        std::iter::once_with(|| self.clone()).chain(others.into_iter().flatten())
    }

    fn other_sorts<'a>(&'a self, cluster: &'a Cluster) -> impl Iterator<Item = Self> + 'a {
        let mut seen: BTreeSet<ClassId> = BTreeSet::new();
        let classes = self.claims.iter().filter_map(|claim| cluster.class_of(*claim));
        let classes: Vec<ClassId> = classes.filter(|class| seen.insert(*class)).collect();
        let group = cluster.group(self.group).filter(|_| self.elastic);
        let members = group.into_iter().flat_map(|group| group.waiting());
        let members = members.filter(|claim| cluster.may_displace_from_ms(*claim) <= cluster.now_ms());
        let members = members.filter(move |claim| cluster.class_of(*claim).is_some_and(|class| seen.insert(class)));
        let members = members.filter_map(|claim| Self::beyond(cluster, self.group, claim));
        let cores = classes.into_iter().filter_map(|class| self.core_without(cluster, &BTreeSet::from([class])));
        members.chain(cores)
    }

    /// The placed units of a group: its core, and each member beyond it.
    pub(crate) fn placed(cluster: &Cluster, id: GroupId) -> Vec<Self> {
        let Some(group) = cluster.group(id).filter(|group| group.placed_members() > 0) else { return Vec::new() };
        let (core, beyond) = group.placed_parts();
        let core = (!core.is_empty()).then(|| Self::new(cluster, id, core, false)).flatten();
        core.into_iter().chain(beyond.into_iter().filter_map(|claim| Self::beyond(cluster, id, claim))).collect()
    }

    /// The exact charge of its placed members.
    pub(crate) fn charge(&self, cluster: &Cluster) -> Charge {
        let mut sum = Charge::default();
        self.claims.iter().filter_map(|claim| cluster.charge(*claim)).for_each(|charge| sum.add(&charge));
        sum
    }

    /// The least charge of its members, wherever they are placed.
    pub(crate) fn least_charge(&self, cluster: &Cluster) -> Charge {
        let mut classes = self.claims.iter().filter_map(|claim| cluster.class(cluster.class_of(*claim)?));
        // Most units have one member.
        let mut sum = classes.next().map(|class| class.least_charge().clone()).unwrap_or_default();
        classes.for_each(|class| sum.add(class.least_charge()));
        sum
    }

    /// Whether its members may be evicted.
    pub(crate) fn is_preemptible(&self, cluster: &Cluster) -> bool {
        cluster.group(self.group).is_some_and(|group| group.spec().preemptible)
    }
}

/// Chooses among the pending members of a group: of those for which others may make way, else of those that may be
/// placed in free room now, else of all.
fn among_sound<T, E>(
    cluster: &Cluster,
    group: &Group,
    choose: impl Fn(&dyn Fn(ClaimId) -> bool) -> Result<T, E>,
) -> Result<T, E> {
    // Instead of a single claim, nothing else could be placed.
    if !group.is_declared() {
        return choose(&|_| true);
    }
    let now_ms = cluster.now_ms();
    choose(&|claim| cluster.may_displace_from_ms(claim) <= now_ms)
        .or_else(|_| choose(&|claim| cluster.failures(claim).1 <= now_ms))
        .or_else(|_| choose(&|_| true))
}
