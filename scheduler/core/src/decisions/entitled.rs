//! Which of a queue's placed units are within its fair share, and which are within its guaranteed part.
//!
//! These sets decide which queues may reclaim, from which units, and which queue goes first. With several measures, one
//! action could undo another one. Reclaim and preemption only raise the sets, in an order that has an end, so cycles
//! come to rest.

mod accepted;
mod placed_unit;

use std::collections::{BTreeMap, BTreeSet};
use std::ops::ControlFlow;

use crate::decisions::demanded::each_demanded;
use crate::decisions::shares::{Right, Shares};
use crate::decisions::unit::{Rank, Unit};
use crate::state::cluster::Cluster;
use crate::state::resources::{Amounts, Charge};
use crate::vocabulary::claim::ClaimId;
use crate::vocabulary::pod_group::GroupId;
use crate::vocabulary::queue_spec::QueueId;

use accepted::{Accepted, fits};
pub(crate) use placed_unit::PlacedUnit;
use placed_unit::Verdict;

/// A unit that is evicted as a whole, and whether it is within its queue's fair share.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Standing {
    /// Its group.
    pub group: GroupId,
    /// The members that the group needs, or one member beyond those.
    pub claims: Vec<ClaimId>,
    /// Whether it is one member beyond those that the group needs.
    pub is_elastic: bool,
    /// Whether it is within its queue's fair share. Otherwise it is borrowed, and queues below their fair share may
    /// take it back.
    pub is_entitled: bool,
    /// Whether it is within its queue's quota, and those above it: no queue of another division may take it.
    pub is_guaranteed: bool,
    /// Whether it is within what its queue's quota makes certain among the queues of its division: none of those may
    /// take it. A queue below no division has no such units.
    pub is_certain_among_siblings: bool,
}

/// The placed units of a leaf queue in their fixed order. Each is either *entitled* or *borrowed*, and either
/// *guaranteed* or not.
///
/// Units are judged in the order of rank. A unit is entitled if it stays, together with the entitled units before it,
/// within the queue's fair share of every resource that it takes. Otherwise it is borrowed, and the next unit is
/// judged. A member beyond its group's core is borrowed if the core is borrowed: evicting the core takes the member
/// along, and no queue may lose by that what it is entitled to. The fair shares of the queues below one parent add up
/// to at most the parent's share, so a unit that is entitled in a leaf queue is entitled at every level.
///
/// The queue's quota, and the quotas above it, make a certain amount available against queues of other divisions. Its
/// own quota makes another amount certain among the queues of its division. For each of the two: add up everything that
/// the queue wants, placed or pending, in the order of rank. The guaranteed units are those before the first one with
/// which this sum exceeds the certain amount. Here, unlike for the fair share, no unit is skipped. Otherwise a unit
/// beyond the quota could evict a unit of its own queue that is within it. That unit would then take its place back
/// from another queue, and so on in a circle.
///
/// These sets make scheduling end:
///
/// - Reclaim by the guarantee takes units of other divisions that are not guaranteed, for a unit that is guaranteed.
///   The guaranteed set of the unit's queue rises in the order of rank, and no other queue's guaranteed set changes.
/// - Reclaim among siblings does the same with what is certain among them.
/// - Reclaim by the fair share takes only units that are borrowed and not guaranteed, for a unit that is entitled. No
///   guaranteed set falls, the entitled set of the unit's queue rises, and no other queue's entitled set changes.
/// - Reclaim that also takes units of the unit's own queue takes only those of later rank, and takes guaranteed ones
///   only for a unit that is guaranteed in the same way. So the sets of the unit's queue still rise at the unit's rank.
/// - Preemption takes only units of later rank. If the unit would itself be borrowed, it takes only borrowed ones. If
///   the unit would not be guaranteed, it takes none that are guaranteed. The set rises at the unit's rank, and changes
///   otherwise only after it.
/// - All other actions only add.
///
/// In a division whose quota makes at least as much certain as those of its queues, what is certain among siblings is
/// guaranteed, too; in any other division, what is guaranteed is certain among siblings ([`Shares`] sees to it). So
/// reclaim by one of the two rights can lower only the larger one of a queue's two sets. First look at the sets that
/// are certain among siblings in divisions of the first kind, then at the guaranteed ones, and then at those that are
/// certain among siblings in the others: of these, the first that change can only rise. As long as all of them stay the
/// same, the entitled sets can only rise. And there are finitely many of these sets.
#[derive(Clone, Debug)]
pub(crate) struct Entitled {
    units: BTreeMap<Rank, PlacedUnit>,
    /// In the order of [`RIGHTS`]. A queue below no division lacks the last.
    accepted: Vec<Accepted>,
}

const RIGHTS: [Right; 3] = [Right::FairShare, Right::Guarantee, Right::AmongSiblings];

impl Entitled {
    /// The units of a queue as they are placed now.
    pub(crate) fn of(cluster: &Cluster, shares: &Shares, queue: QueueId) -> Self {
        let groups = cluster.queue(queue).into_iter().flat_map(|queue| queue.placed());
        let units = groups.flat_map(|turn| PlacedUnit::of_group(cluster, turn.group));
        let units: BTreeMap<Rank, PlacedUnit> = units.map(|placed| (placed.unit.rank, placed)).collect();
        let fair = shares.get(queue).iter().map(|entitlement| entitlement.fair_share).collect();
        let mut accepted = vec![Accepted::new(Right::FairShare, fair, None)];
        let among_siblings = shares.among_siblings(queue).map(|certain| (Right::AmongSiblings, certain));
        for (right, certain) in [(Right::Guarantee, shares.guaranteed(queue))].into_iter().chain(among_siblings) {
            let before = first_beyond(cluster, queue, certain);
            accepted.push(Accepted::new(right, certain.to_vec(), before));
        }
        let mut entitled = Self { units, accepted };
        if let Some(first) = entitled.units.keys().next().copied() {
            entitled.rights().for_each(|right| _ = entitled.judge_from(right, first));
        }
        entitled
    }

    /// The rights that its units are judged by.
    fn rights(&self) -> impl Iterator<Item = Right> + use<> {
        RIGHTS.into_iter().take(self.accepted.len())
    }

    /// Updates the set after members of these groups were placed or evicted. Returns the ranks of all other units whose
    /// verdict has changed.
    fn update(&mut self, cluster: &Cluster, groups: &BTreeSet<GroupId>) -> BTreeSet<Rank> {
        // By right: the first unit that has to be judged anew. All later units are judged anew with it.
        let mut anew: [Option<Rank>; RIGHTS.len()] = Default::default();
        let mut note = |right: Right, rank: Rank| {
            let first = &mut anew[right as usize];
            *first = Some(first.map_or(rank, |first| first.min(rank)));
        };
        for group in groups {
            let ranks: Vec<Rank> = self.of_group(cluster, *group).map(|placed| placed.unit.rank).collect();
            for placed in ranks.iter().filter_map(|rank| self.units.remove(rank)) {
                for accepted in &mut self.accepted {
                    accepted.leave(&placed);
                    // A unit after this one may have room now.
                    if placed.is(accepted.right) && accepted.any_is_short() {
                        note(accepted.right, placed.unit.rank);
                    }
                }
            }
        }
        for mut placed in groups.iter().flat_map(|group| PlacedUnit::of_group(cluster, *group)) {
            for right in self.rights() {
                placed.verdicts[right as usize] = self.verdict(right, &placed);
                let accepted = &mut self.accepted[right as usize];
                accepted.enter(&placed);
                // A unit after this one may no longer have room.
                if placed.is(right) && !accepted.stays_within(&placed.charge) {
                    note(right, placed.unit.rank);
                }
            }
            self.units.insert(placed.unit.rank, placed);
        }
        let first = RIGHTS.into_iter().zip(anew).filter_map(|(right, first)| Some((right, first?)));
        let changed = first.flat_map(|(right, first)| self.judge_from(right, first)).collect();
        debug_assert!(self.is_as_judged_anew(), "what is kept is what follows from the units");
        changed
    }

    /// The verdict on a unit after the units before it. If the unit itself is among the placed ones, it is not counted.
    fn verdict(&self, right: Right, placed: &PlacedUnit) -> Verdict {
        let rank = placed.unit.rank;
        let accepted = &self.accepted[right as usize];
        accepted.judge(placed, self.core_is_out(right, rank), &self.held_before(right, rank))
    }

    /// The amounts that units before a rank hold within a right.
    fn held_before(&self, right: Right, rank: Rank) -> Amounts {
        let is_of_level =
            |later: &&PlacedUnit| (later.unit.rank.priority, later.unit.rank.elastic) == (rank.priority, rank.elastic);
        let later = self.units.range(rank..).map(|(_, placed)| placed).take_while(is_of_level);
        self.accepted[right as usize].before(rank, later)
    }

    /// Whether a unit is beyond a placed core that is not within a right.
    fn core_is_out(&self, right: Right, rank: Rank) -> bool {
        rank.elastic && self.units.get(&rank.core()).is_some_and(|core| !core.is(right))
    }

    /// Judges anew all units from a rank on by a right. Returns the ranks of those whose verdict has changed.
    fn judge_from(&mut self, right: Right, first: Rank) -> Vec<Rank> {
        let accepted = &mut self.accepted[right as usize];
        self.units.range(first..).for_each(|(_, placed)| accepted.leave(placed));
        let cores = self.units.range(first.first_of_priority()..first).map(|(_, placed)| placed);
        let out = cores.filter(|core| !core.unit.elastic && !core.is(right));
        let mut cores_out: BTreeSet<u64> = out.map(|core| core.unit.rank.group).collect();
        let mut changed = Vec::new();
        for (rank, placed) in self.units.range_mut(first..) {
            let core_is_out = rank.elastic && cores_out.contains(&rank.group);
            let verdict = accepted.judge(placed, core_is_out, accepted.total());
            if std::mem::replace(&mut placed.verdicts[right as usize], verdict) != verdict {
                changed.push(*rank);
            }
            if verdict != Verdict::Within && !rank.elastic {
                cores_out.insert(rank.group);
            }
            accepted.enter(placed);
        }
        changed
    }

    /// Whether all kept values are the same as if the set were made anew.
    fn is_as_judged_anew(&self) -> bool {
        let accepted = self.accepted.iter().map(Accepted::emptied).collect();
        let mut anew = Self { units: self.units.clone(), accepted };
        anew.units.values_mut().for_each(|placed| placed.verdicts = PlacedUnit::UNJUDGED);
        if let Some(first) = self.units.keys().next() {
            self.rights().for_each(|right| _ = anew.judge_from(right, *first));
        }
        anew.units == self.units && self.accepted.iter().zip(&anew.accepted).all(|(one, other)| one.agrees(other))
    }

    /// Whether a unit of this rank that takes `charge` would be entitled, or guaranteed, if it were placed. The placed
    /// part of a core counts together with the rest of it.
    pub(crate) fn would_be(&self, right: Right, rank: Rank, charge: &Charge) -> bool {
        let Some(accepted) = self.accepted.get(right as usize) else { return false };
        if !accepted.reaches(rank) || self.core_is_out(right, rank) {
            return false;
        }
        let same = self.units.get(&rank);
        let mut with_same = charge.clone();
        same.into_iter().for_each(|same| with_same.add(&same.charge));
        // If there is room after all units, there is room before some of them.
        if accepted.allows(accepted.total(), &with_same) {
            return true;
        }
        let mut held = self.held_before(right, rank);
        same.into_iter().for_each(|same| held.add(&same.charge));
        accepted.allows(&held, charge)
    }

    /// The first resource of which the queue would have too much, by a right, if a unit of this rank took `charge`.
    pub(crate) fn exceeded(&self, right: Right, rank: Rank, charge: &Charge) -> Option<usize> {
        let mut held = self.held_before(right, rank);
        self.units.get(&rank).into_iter().for_each(|same| held.add(&same.charge));
        self.accepted.get(right as usize)?.exceeded(&held, charge)
    }

    /// The units of lower priority that are borrowed, or would be if a unit of this rank that takes `charge` were
    /// placed.
    pub(crate) fn displaced_by(&self, rank: Rank, charge: &Charge) -> BTreeSet<Rank> {
        let right = Right::FairShare;
        let accepted = &self.accepted[right as usize];
        let mut held = self.held_before(right, rank);
        held.add(charge);
        let (mut cores_out, mut displaced) = (BTreeSet::new(), BTreeSet::new());
        for (of, placed) in self.units.range(rank..) {
            if *of == rank {
                held.add(&placed.charge);
                continue;
            }
            let core_is_out = match of.core() > rank {
                true => of.elastic && cores_out.contains(&of.group),
                false => self.core_is_out(right, *of),
            };
            if accepted.judge(placed, core_is_out, &held) == Verdict::Within {
                held.add(&placed.charge);
                continue;
            }
            if !of.elastic {
                cores_out.insert(of.group);
            }
            if of.priority > rank.priority {
                displaced.insert(*of);
            }
        }
        displaced
    }

    /// All units, in order.
    pub(crate) fn units(&self) -> impl DoubleEndedIterator<Item = &PlacedUnit> {
        self.units.values()
    }

    /// The unit of a rank.
    pub(crate) fn get(&self, rank: Rank) -> Option<&PlacedUnit> {
        self.units.get(&rank)
    }

    /// The units of a group, in order.
    pub(crate) fn of_group(&self, cluster: &Cluster, group: GroupId) -> impl Iterator<Item = &PlacedUnit> {
        let core = cluster.group(group).map(|of| Rank::new(of.spec().priority, group.number(), None));
        let core = core.into_iter();
        let beyond = core.clone().flat_map(move |core| self.units.range(core.beyond()));
        core.filter_map(move |core| self.units.get(&core)).chain(beyond.map(|(_, placed)| placed))
    }
}

/// The first unit, placed or pending, with which the queue would have more than `guaranteed`.
fn first_beyond(cluster: &Cluster, queue: QueueId, guaranteed: &[u64]) -> Option<Rank> {
    let mut wanted = Amounts::default();
    let beyond = each_demanded(cluster, queue, |rank, _, charge| {
        if !fits(guaranteed, &wanted, charge) {
            return ControlFlow::Break(rank);
        }
        wanted.add(charge);
        ControlFlow::Continue(())
    });
    beyond.break_value()
}

/// The sets of the queues that were asked about, updated as claims are placed and evicted. They are made anew in each
/// cycle, because fair shares change between cycles.
#[derive(Clone, Debug, Default)]
pub(crate) struct EntitledSets {
    by_queue: BTreeMap<QueueId, Entitled>,
}

impl EntitledSets {
    /// Makes sure that a queue's set is there.
    pub(crate) fn know(&mut self, cluster: &Cluster, shares: &Shares, queue: QueueId) -> &Entitled {
        self.by_queue.entry(queue).or_insert_with(|| Entitled::of(cluster, shares, queue))
    }

    /// Whether a pending unit that takes `charge` would be entitled if it were placed.
    pub(crate) fn would_be_entitled(
        &mut self,
        cluster: &Cluster,
        shares: &Shares,
        unit: &Unit,
        charge: &Charge,
    ) -> bool {
        // The entitled units before it hold at most what the queue holds. So its set need not be made, which takes as
        // long as a look at all that the queue has placed. A member beyond a core is borrowed if its core is.
        let stays_within = !unit.elastic && shares.exceeded(cluster, unit.queue, charge).is_none();
        stays_within || self.know(cluster, shares, unit.queue).would_be(Right::FairShare, unit.rank, charge)
    }

    /// Updates a queue's set after members of some of its groups were placed or evicted. Returns the ranks of all other
    /// units of the queue whose verdict has changed.
    pub(crate) fn update(&mut self, cluster: &Cluster, queue: QueueId, groups: &BTreeSet<GroupId>) -> BTreeSet<Rank> {
        self.by_queue.get_mut(&queue).map(|entitled| entitled.update(cluster, groups)).unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use proptest::collection::vec;
    use proptest::prelude::*;
    use proptest::sample::Index;

    use super::*;
    use crate::vocabulary::allowance::Allowance;
    use crate::vocabulary::claim::{Allocation, Claim, DeviceAllocation, NodeId};
    use crate::vocabulary::device_request::{DeviceMemory, DeviceRequest};
    use crate::vocabulary::event::{Event, Outcome};
    use crate::vocabulary::pod_group::PodGroup;
    use crate::vocabulary::quantity::{Bytes, DeviceCore};
    use crate::vocabulary::queue_spec::QueueSpec;
    use crate::vocabulary::request::Request;
    use crate::vocabulary::resource::Resource;
    use crate::vocabulary::spec::{DeviceSpec, NodeSpec};

    const DEVICES_MAX: u16 = 3;
    const CLAIMS_MAX: u16 = 24;

    fn request(devices: u16) -> Request {
        let memory = DeviceMemory::Bytes(Bytes::ZERO);
        Request { devices: DeviceRequest { memory, ..DeviceRequest::whole(devices) }, ..Request::default() }
    }

    /// A queue with groups of these priorities and minimums, and with these members, given by their group and number of
    /// devices. No member is placed.
    fn world(groups: &[(i32, u32)], members: &[(Index, u16)], allowance: Allowance) -> (Cluster, Vec<ClaimId>) {
        let mut cluster = Cluster::new();
        let mut apply = |event| cluster.apply(event).unwrap_or_else(|error| panic!("{error}"));
        let devices = vec![DeviceSpec::default(); usize::from(DEVICES_MAX * CLAIMS_MAX)];
        apply(Event::NodeAdded(NodeSpec { devices, ..NodeSpec::default() }));
        let allowances = BTreeMap::from([(Resource::DeviceCore, allowance)]);
        apply(Event::QueueAdded(QueueSpec { name: "team".into(), allowances, ..QueueSpec::default() }));
        for (number, (priority, min_members)) in groups.iter().enumerate() {
            apply(Event::PodGroupAdded(PodGroup {
                name: number.to_string(),
                queue: "team".into(),
                priority: *priority,
                min_members: *min_members,
                ..PodGroup::default()
            }));
        }
        let claims = members.iter().map(|(group, devices)| {
            let pod_group = Some(group.index(groups.len()).to_string());
            match apply(Event::ClaimAdded(Claim { request: request(*devices), pod_group, ..Claim::default() })) {
                Outcome::Claim(claim) => claim,
                other => panic!("not a claim: {other:?}"),
            }
        });
        let claims = claims.collect();
        (cluster, claims)
    }

    proptest! {
        #[test]
        fn what_is_kept_is_what_is_found_anew(
            groups in vec((0i32..3, 0u32..4), 1..7),
            members in vec((any::<Index>(), 1..=DEVICES_MAX), 1..usize::from(CLAIMS_MAX)),
            bounds in (0u64..30, 0u64..50),
            steps in vec(any::<Index>(), 1..60),
        ) {
            let (quota, limit) = (Some(bounds.0 * 1000), Some(bounds.1 * 1000));
            let allowance = Allowance { quota, limit, weight: 1, ..Allowance::default() };
            let (mut cluster, claims) = world(&groups, &members, allowance);
            let queue = cluster.queue_named("team").expect("it was added");
            let shares = Shares::of(&cluster, 0);
            let mut kept = Entitled::of(&cluster, &shares, queue);
            for step in steps {
                let number = step.index(claims.len());
                let claim = claims[number];
                let group = cluster.group_of(claim).expect("it was added");
                if cluster.evict(claim).is_err() {
                    let first = DEVICES_MAX * u16::try_from(number).expect("few claims");
                    let part = |device| DeviceAllocation { device, core: DeviceCore::WHOLE, memory: Bytes::ZERO };
                    let devices = (first..first + members[number].1).map(part).collect();
                    prop_assert_eq!(cluster.place(claim, Allocation { node: NodeId(0), devices, alternative: 0 }), Ok(()));
                }
                let before = kept.clone();
                let others = kept.update(&cluster, &BTreeSet::from([group]));
                let mut sets = EntitledSets::default();
                for unit in (0..groups.len()).filter_map(|number| {
                    let group = cluster.group_named("", &number.to_string())?;
                    Unit::next(&cluster, group).ok().flatten()
                }) {
                    let least = unit.least_charge(&cluster);
                    let would_be = kept.would_be(Right::FairShare, unit.rank, &least);
                    prop_assert_eq!(sets.would_be_entitled(&cluster, &shares, &unit, &least), would_be);
                }
                prop_assert_eq!(&kept.units, &Entitled::of(&cluster, &shares, queue).units);
                for (rank, placed) in before.units.iter().filter(|(_, placed)| placed.unit.group != group) {
                    prop_assert!(others.contains(rank) || kept.get(*rank) == Some(placed), "{rank:?}");
                }
            }
        }
    }
}
