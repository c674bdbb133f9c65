//! Pod groups: the minimum of members is placed all together or not at all, further members one by one.

mod members;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use crate::vocabulary::claim::ClaimId;
use crate::vocabulary::pod_group::{GroupId, GroupPlacement, PodGroup, SubGroup};
use crate::vocabulary::queue_spec::QueueId;
use crate::vocabulary::slab::Slab;

use members::{Member, Members};

/// A pod group in a cluster's state.
#[derive(Clone, Debug)]
pub struct Group {
    /// Groups of single claims with equal settings share one.
    spec: Arc<PodGroup>,
    /// `None`: it was made for a single claim.
    declared: Option<Box<Declared>>,
    queue: QueueId,
    added_ms: u64,
    members: Members,
    placed: u32,
    /// The number of withdrawn members.
    withdrawn: u32,
}

/// What only declared groups have.
#[derive(Clone, Debug)]
struct Declared {
    /// Placed members by sub-group.
    placed_by_sub_group: Box<[u32]>,
    /// Since when some members are placed, but fewer than the minimum; in milliseconds. A single claim is its group's
    /// minimum.
    stale_since_ms: Option<u64>,
}

impl Group {
    /// The group as it was declared, or as the settings of its single claim make it.
    #[must_use]
    pub fn spec(&self) -> &PodGroup {
        &self.spec
    }

    /// The leaf queue that it waits in.
    #[must_use]
    pub fn queue(&self) -> QueueId {
        self.queue
    }

    /// Whether it was declared as a pod group; otherwise it stands for a single claim.
    #[must_use]
    pub fn is_declared(&self) -> bool {
        self.declared.is_some()
    }

    /// When it was added, in milliseconds.
    #[must_use]
    pub fn added_ms(&self) -> u64 {
        self.added_ms
    }

    /// Since when some of its members are placed, but fewer than it needs; in milliseconds.
    #[must_use]
    pub fn stale_since_ms(&self) -> Option<u64> {
        self.declared.as_ref()?.stale_since_ms
    }

    /// Its members in the order in which they were added, without those that were withdrawn.
    pub fn members(&self) -> impl Iterator<Item = ClaimId> + '_ {
        self.members.iter().filter(|member| !member.withdrawn).map(|member| member.claim)
    }

    /// The oldest member, withdrawn or not; it stands for a group that was not declared.
    pub(crate) fn first_member(&self) -> Option<ClaimId> {
        self.members.iter().next().map(|member| member.claim)
    }

    /// Number of members that are placed.
    #[must_use]
    pub fn placed_members(&self) -> u32 {
        self.placed
    }

    /// Whether the minimum of members is placed, of the group and of each sub-group.
    #[must_use]
    pub fn has_minimum(&self) -> bool {
        let minimum = |(index, sub_group): (usize, &SubGroup)| self.placed_of(index) >= sub_group.min_members;
        self.placed >= self.spec.min_members && self.spec.sub_groups.iter().enumerate().all(minimum)
    }

    fn placed_of(&self, sub_group: usize) -> u32 {
        let placed = self.declared.as_ref().and_then(|declared| declared.placed_by_sub_group.get(sub_group));
        placed.copied().unwrap_or(0)
    }

    /// Those of some pending members that would together complete the minimum, in the order in which they were added.
    /// `Err` with the number of members that are missing if there are too few.
    pub(crate) fn missing_core_of(&self, among: impl Fn(ClaimId) -> bool) -> Result<Vec<ClaimId>, u32> {
        // Most groups are single claims.
        if !self.is_declared() {
            return Ok(self.waiting().filter(|claim| among(*claim)).collect());
        }
        let missing = |(index, sub): (usize, &SubGroup)| sub.min_members.saturating_sub(self.placed_of(index));
        let wanted = self.spec.sub_groups.iter().enumerate().map(missing).collect();
        let total = self.spec.min_members.saturating_sub(self.placed);
        let (chosen, missing) = self.choose(|member| member.waits() && among(member.claim), wanted, total);
        match missing {
            0 => Ok(chosen.into_iter().collect()),
            _ => Err(missing),
        }
    }

    /// Chooses from some members, in the order in which they were added: as many of each sub-group as `wanted`, and
    /// then any others up to `total`. Also returns how many are missing.
    fn choose(
        &self,
        among: impl Fn(&Member) -> bool,
        mut wanted: Vec<u32>,
        mut total: u32,
    ) -> (BTreeSet<ClaimId>, u32) {
        let mut chosen = BTreeSet::new();
        let candidates = || self.members.iter().filter(|member| among(member));
        for member in candidates() {
            if let Some(wanted) = wanted.get_mut(member.sub_group as usize).filter(|wanted| **wanted > 0) {
                *wanted -= 1;
                total = total.saturating_sub(1);
                chosen.insert(member.claim);
            }
        }
        for member in candidates() {
            if total > 0 && chosen.insert(member.claim) {
                total -= 1;
            }
        }
        let wanted = wanted.into_iter().fold(0, u32::saturating_add);
        (chosen, wanted.max(total))
    }

    /// The placed members that do not run yet and must start together so that the minimum runs; `None` if even all of
    /// them are too few.
    pub(crate) fn starting_core(&self, runs: impl Fn(ClaimId) -> bool) -> Option<Vec<ClaimId>> {
        let mut wanted: Vec<u32> = self.spec.sub_groups.iter().map(|sub_group| sub_group.min_members).collect();
        let mut total = self.spec.min_members;
        for member in self.members.iter().filter(|member| member.placed && runs(member.claim)) {
            total = total.saturating_sub(1);
            if let Some(wanted) = wanted.get_mut(member.sub_group as usize) {
                *wanted = wanted.saturating_sub(1);
            }
        }
        let (chosen, missing) = self.choose(|member| member.placed && !runs(member.claim), wanted, total);
        (missing == 0).then(|| chosen.into_iter().collect())
    }

    /// The pending members, in the order in which they were added.
    pub(crate) fn waiting(&self) -> impl Iterator<Item = ClaimId> + '_ {
        self.members.iter().filter(|member| member.waits()).map(|member| member.claim)
    }

    /// The placed members: those that the minimum needs, and those beyond it. If the minimum is not reached, all count
    /// as needed.
    pub(crate) fn placed_parts(&self) -> (Vec<ClaimId>, Vec<ClaimId>) {
        let placed = || self.members.iter().filter(|member| member.placed).map(|member| member.claim);
        if self.placed_members() <= self.spec.min_members {
            return (placed().collect(), Vec::new());
        }
        let wanted = self.spec.sub_groups.iter().map(|sub_group| sub_group.min_members).collect();
        let (needed, missing) = self.choose(|member| member.placed, wanted, self.spec.min_members);
        let of =
            |is_needed: bool| placed().filter(|claim| (missing > 0 || needed.contains(claim)) == is_needed).collect();
        (of(true), of(false))
    }

    /// All members that are not withdrawn, placed or not: those that the minimum needs, and those beyond it. `None`:
    /// there are too few.
    pub(crate) fn demanded_parts(&self) -> Option<(Vec<ClaimId>, Vec<ClaimId>)> {
        let wanted = self.spec.sub_groups.iter().map(|sub_group| sub_group.min_members).collect();
        let (needed, missing) = self.choose(|member| !member.withdrawn, wanted, self.spec.min_members);
        let of = |is_needed: bool| self.members().filter(|claim| needed.contains(claim) == is_needed).collect();
        (missing == 0).then(|| (of(true), of(false)))
    }

    /// Whether it has fewer members, placed or pending, than it needs.
    pub(crate) fn lacks_members(&self) -> bool {
        let mut members = 0_u32;
        let mut wanted: Vec<u32> = self.spec.sub_groups.iter().map(|sub_group| sub_group.min_members).collect();
        for member in self.members.iter().filter(|member| !member.withdrawn) {
            members += 1;
            if let Some(wanted) = wanted.get_mut(member.sub_group as usize) {
                *wanted = wanted.saturating_sub(1);
            }
        }
        members < self.spec.min_members || wanted.into_iter().any(|wanted| wanted > 0)
    }

    /// The number of a sub-group. Members that name no sub-group have one more than the last number.
    pub(crate) fn sub_group(&self, name: Option<&str>) -> Option<u32> {
        let number = match name {
            Some(name) => self.spec.sub_groups.iter().position(|sub_group| sub_group.name == name)?,
            None => self.spec.sub_groups.len(),
        };
        u32::try_from(number).ok()
    }

    pub(crate) fn join(&mut self, claim: ClaimId, sub_group: u32) {
        self.members.insert(Member { claim, sub_group, placed: false, withdrawn: false });
    }

    pub(crate) fn leave(&mut self, claim: ClaimId) {
        debug_assert!(self.members.get(claim).is_none_or(|member| !member.placed), "evicted before it goes");
        self.withdrawn -= u32::from(self.members.get(claim).is_some_and(|member| member.withdrawn));
        self.members.remove(claim);
    }

    /// Notes that a pending member was withdrawn.
    pub(crate) fn withdraw(&mut self, claim: ClaimId) {
        let Some(member) = self.members.get_mut(claim).filter(|member| member.waits()) else { return };
        member.withdrawn = true;
        self.withdrawn += 1;
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.members.is_empty()
    }

    pub(crate) fn has_waiting(&self) -> bool {
        self.waiting_members() > 0
    }

    /// The number of pending members.
    pub(crate) fn waiting_members(&self) -> usize {
        self.members.len() - self.placed as usize - self.withdrawn as usize
    }

    /// Notes that a member was placed, or that it is no longer placed.
    pub(crate) fn set_placed(&mut self, claim: ClaimId, placed: bool) {
        let Some(member) = self.members.get_mut(claim).filter(|member| member.placed != placed) else { return };
        member.placed = placed;
        // Members that name no sub-group count for the group only.
        let declared = self.declared.as_mut();
        let of_sub_group =
            declared.and_then(|declared| declared.placed_by_sub_group.get_mut(member.sub_group as usize));
        for count in of_sub_group.into_iter().chain([&mut self.placed]) {
            if placed { *count += 1 } else { *count -= 1 }
        }
    }

    /// Sets when it was added.
    pub(crate) fn set_added(&mut self, added_ms: u64) {
        self.added_ms = added_ms;
    }

    /// Notes since when the group has too few members. To be called when a change is final, not in a trial.
    pub(crate) fn note_staleness(&mut self, now_ms: u64) {
        let is_stale = self.placed > 0 && !self.has_minimum();
        if let Some(declared) = &mut self.declared {
            declared.stale_since_ms = is_stale.then(|| declared.stale_since_ms.unwrap_or(now_ms));
        }
    }

    /// Gives the group another configuration with the same sub-groups.
    pub(crate) fn replace_spec(&mut self, spec: PodGroup) {
        self.spec = Arc::new(spec);
    }

    /// Whether it restricts where its members may be relative to each other.
    pub(crate) fn has_rules(&self) -> bool {
        let has_level = |sub: &SubGroup| sub.required_level.is_some() || sub.preferred_level.is_some();
        self.spec.sub_groups.iter().any(has_level) || self.spec.spread != GroupPlacement::default()
    }
}

/// The settings of a single claim that its own group takes over.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) struct SingleSort {
    pub(crate) priority: i32,
    pub(crate) preemptible: bool,
    pub(crate) min_runtime_ms: u64,
}

impl SingleSort {
    fn of(spec: &PodGroup) -> Self {
        Self { priority: spec.priority, preemptible: spec.preemptible, min_runtime_ms: spec.min_runtime_ms }
    }

    fn spec(self) -> PodGroup {
        let Self { priority, preemptible, min_runtime_ms } = self;
        PodGroup { priority, preemptible, min_runtime_ms, min_members: 1, ..PodGroup::default() }
    }
}

/// The groups of a cluster.
#[derive(Clone, Debug, Default)]
pub(crate) struct Groups {
    groups: Slab<Group, PodGroup>,
    /// The specifications of groups of single claims, and how many groups share each.
    singles: BTreeMap<SingleSort, (Arc<PodGroup>, usize)>,
    /// Declared groups by namespace and name.
    by_name: Arc<BTreeMap<(String, String), GroupId>>,
}

impl Groups {
    pub(crate) fn get(&self, id: GroupId) -> Option<&Group> {
        self.groups.get(id)
    }

    pub(crate) fn get_mut(&mut self, id: GroupId) -> Option<&mut Group> {
        self.groups.get_mut(id)
    }

    pub(crate) fn named(&self, namespace: &str, name: &str) -> Option<GroupId> {
        self.by_name.get(&(namespace.to_owned(), name.to_owned())).copied()
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = (GroupId, &Group)> {
        self.groups.iter()
    }

    /// The groups that were declared.
    pub(crate) fn declared(&self) -> impl Iterator<Item = &Group> {
        self.by_name.values().filter_map(|id| self.groups.get(*id))
    }

    /// Adds a group.
    pub(crate) fn add(&mut self, spec: PodGroup, queue: QueueId, now_ms: u64) -> GroupId {
        let name = (spec.namespace.clone(), spec.name.clone());
        let placed_by_sub_group = vec![0; spec.sub_groups.len()].into();
        let declared = Box::new(Declared { placed_by_sub_group, stale_since_ms: None });
        let id = self.insert(Arc::new(spec), Some(declared), queue, now_ms);
        Arc::make_mut(&mut self.by_name).insert(name, id);
        id
    }

    /// Adds a group for a single claim.
    pub(crate) fn add_single(&mut self, sort: SingleSort, queue: QueueId, now_ms: u64) -> GroupId {
        let new = || (Arc::new(sort.spec()), 0);
        let (spec, count) = self.singles.entry(sort).or_insert_with(new);
        *count += 1;
        let spec = Arc::clone(spec);
        self.insert(spec, None, queue, now_ms)
    }

    fn insert(
        &mut self,
        spec: Arc<PodGroup>,
        declared: Option<Box<Declared>>,
        queue: QueueId,
        added_ms: u64,
    ) -> GroupId {
        let members = Members::default();
        self.groups.insert(Group { spec, declared, queue, added_ms, members, placed: 0, withdrawn: 0 })
    }

    pub(crate) fn remove(&mut self, id: GroupId) {
        let Some(group) = self.groups.remove(id) else { return };
        if group.is_declared() {
            Arc::make_mut(&mut self.by_name).remove(&(group.spec.namespace.clone(), group.spec.name.clone()));
            return;
        }
        let sort = SingleSort::of(&group.spec);
        let left = self.singles.get_mut(&sort).map(|(_, count)| {
            *count -= 1;
            *count
        });
        if left == Some(0) {
            self.singles.remove(&sort);
        }
    }
}
