//! The pending groups of a cycle, and which of them are alike.

use std::collections::{BTreeMap, VecDeque};

use crate::decisions::gang::Unplaceable;
use crate::decisions::plan::{Obstacle, Pending, Refusal};
use crate::decisions::signature::Signature;
use crate::decisions::unit::Unit;
use crate::state::cluster::Cluster;
use crate::state::queue::Single;
use crate::vocabulary::beside::Beside;
use crate::vocabulary::pod_group::GroupId;
use crate::vocabulary::queue_spec::{QueueId, QueueSpec};

/// The pending groups, in the order of turns. Groups for which others may make way are alike if they wait in the same
/// queue and need the same. If the first of these is refused, all of them would be.
#[derive(Debug, Default)]
pub(crate) struct Waiting {
    pending: Vec<Pending>,
    /// The groups that are alike, by place.
    pub(super) alike: Vec<Alike>,
    /// By queue, the place of what next units need and whether they may be evicted: a quota bounds those that may not.
    known: Beside<BTreeMap<(Signature, bool), usize>, QueueSpec>,
}

/// Groups of a queue whose next units need the same.
#[derive(Debug)]
pub(super) struct Alike {
    pub(super) queue: QueueId,
    /// The numbers in `pending` of the groups that may be tried.
    numbers: VecDeque<usize>,
    /// Why no claim makes way for them.
    refusal: Option<Refusal>,
}

impl Waiting {
    /// With room for this many groups.
    pub(crate) fn with_room(groups: usize) -> Self {
        Self { pending: Vec::with_capacity(groups), ..Self::default() }
    }

    /// Adds a group that can be tried only by its next unit.
    pub(crate) fn add(&mut self, cluster: &Cluster, queue: QueueId, group: GroupId, obstacle: Obstacle) {
        let number = self.pending.len();
        self.pending.push(Pending { group, queue, alike: None, obstacle, refusal: None });
        if !may_try(obstacle) {
            return;
        }
        let Ok(Some(unit)) = Unit::next(cluster, group) else { return };
        if let Some(refusal) = fails_to_start(cluster, &unit) {
            return self.refuse(number, refusal);
        }
        match unit.sorts(cluster).nth(1) {
            None => {
                let place = self.place(queue, (Signature::of(cluster, &unit), unit.is_preemptible(cluster)));
                self.join(place, number);
            }
            // A group with members of several sorts is like no other.
            Some(_) => self.join_new(queue, number),
        }
    }

    /// The place of the single claims of a sort.
    pub(crate) fn place_of(&mut self, queue: QueueId, single: Single) -> usize {
        self.place(queue, (Signature::One(single.class), single.preemptible))
    }

    /// Adds a single claim, which waits at this place.
    pub(crate) fn add_single(&mut self, place: usize, queue: QueueId, group: GroupId, obstacle: Obstacle) {
        let number = self.pending.len();
        self.pending.push(Pending { group, queue, alike: Some(place), obstacle, refusal: None });
        if may_try(obstacle) {
            self.join(place, number);
        }
    }

    /// The place of groups that are alike. If there is none yet, it is added.
    fn place(&mut self, queue: QueueId, sort: (Signature, bool)) -> usize {
        let place = *self.known.of(queue).entry(sort).or_insert(self.alike.len());
        if place == self.alike.len() {
            self.alike.push(Alike { queue, numbers: VecDeque::new(), refusal: None });
        }
        place
    }

    fn join(&mut self, place: usize, number: usize) {
        self.alike.get_mut(place).into_iter().for_each(|alike| alike.numbers.push_back(number));
    }

    fn join_new(&mut self, queue: QueueId, number: usize) {
        self.alike.push(Alike { queue, numbers: VecDeque::from([number]), refusal: None });
    }

    /// Gives a placed group a place of its own: what it could use beyond its core is not what the groups behind it
    /// need. Returns the place.
    pub(super) fn separate(&mut self, queue: QueueId, number: usize) -> usize {
        self.join_new(queue, number);
        self.alike.len() - 1
    }

    /// The first group at a place.
    pub(super) fn first(&self, place: usize) -> Option<GroupId> {
        let number = self.alike.get(place)?.numbers.front()?;
        self.pending.get(*number).map(|pending| pending.group)
    }

    /// Takes the first group at a place out. Returns its number in `pending`.
    pub(super) fn pop(&mut self, place: usize) -> Option<usize> {
        let alike = self.alike.get_mut(place)?;
        let (number, refusal) = (alike.numbers.pop_front()?, alike.refusal);
        refusal.into_iter().for_each(|refusal| self.refuse(number, refusal));
        Some(number)
    }

    /// Notes why no claim makes way for a pending group.
    pub(super) fn refuse(&mut self, number: usize, refusal: Refusal) {
        self.pending.get_mut(number).into_iter().for_each(|pending| add(&mut pending.refusal, refusal));
    }

    /// Notes the same refusal for all groups that are now at a place.
    pub(super) fn refuse_alike(&mut self, place: usize, refusal: Refusal) {
        self.alike.get_mut(place).into_iter().for_each(|alike| add(&mut alike.refusal, refusal));
    }

    /// All pending groups, with why no claim makes way for them.
    pub(crate) fn finish(self) -> Vec<Pending> {
        let Self { mut pending, alike, .. } = self;
        for Alike { numbers, refusal, .. } in alike {
            let Some(refusal) = refusal else { continue };
            for number in numbers {
                pending.get_mut(number).into_iter().for_each(|pending| add(&mut pending.refusal, refusal));
            }
        }
        pending
    }
}

/// Adds a refusal to earlier ones.
fn add(refusals: &mut Option<Refusal>, refusal: Refusal) {
    *refusals = Some(refusals.map_or(refusal, |before| before.more_telling(refusal)));
}

/// Why no other claim makes way for a unit with a member that has failed to start; `None`: others may make way.
pub(crate) fn fails_to_start(cluster: &Cluster, unit: &Unit) -> Option<Refusal> {
    let until_ms = unit.claims.iter().map(|claim| cluster.may_displace_from_ms(*claim)).max()?;
    (until_ms > cluster.now_ms()).then_some(Refusal::FailedToStart { until_ms })
}

fn may_try(obstacle: Obstacle) -> bool {
    match obstacle {
        Obstacle::Unplaceable(Unplaceable::Limit(exceeded)) => !exceeded.is_quota && exceeded.kept == 0,
        Obstacle::Unplaceable(_) => true,
        Obstacle::MembersMissing(_) | Obstacle::RetriedAt(_) => false,
    }
}
