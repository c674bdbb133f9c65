//! Which of a queue's placed units are within its fair share, and which within what is certain of it.
//!
//! These sets decide who may reclaim, from whom, and who goes first. With several measures each action could undo
//! another one. Reclaim and preemption only raise the sets, in an order that has an end: so cycles come to rest.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::ControlFlow;

use crate::decisions::demanded::{ClassCharges, each_demanded};
use crate::decisions::shares::{Right, Shares};
use crate::decisions::unit::{Rank, Unit};
use crate::state::cluster::Cluster;
use crate::state::group::Group;
use crate::state::resources::{Amounts, Charge};
use crate::vocabulary::claim::ClaimId;
use crate::vocabulary::pod_group::GroupId;
use crate::vocabulary::queue_spec::QueueId;
use crate::vocabulary::step::Step;

/// A unit that is placed.
#[derive(Clone, Debug)]
pub(crate) struct PlacedUnit {
    pub(crate) unit: Unit,
    /// What it takes.
    pub(crate) charge: Charge,
    /// Whether its group has all it needs. What is left of a gang does no work, and is entitled to nothing until it is
    /// whole.
    is_whole: bool,
    /// Whether it is within its queue's fair share; otherwise it is borrowed.
    pub(crate) entitled: bool,
    /// Whether it is within what its queue's quota makes certain.
    pub(crate) guaranteed: bool,
}

/// What is evicted as a whole, and whether it is within its queue's fair share.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Standing {
    /// Its group.
    pub group: GroupId,
    /// The members that the group needs, or one member beyond those.
    pub claims: Vec<ClaimId>,
    /// Whether it is one member beyond those that the group needs.
    pub is_elastic: bool,
    /// Whether it is within its queue's fair share; otherwise it is borrowed, and queues that have less than theirs may
    /// take it back.
    pub is_entitled: bool,
    /// Whether it is within its queue's quota: no other queue may take it.
    pub is_guaranteed: bool,
}

/// The placed units of a leaf queue in their fixed order, each either *entitled* or *borrowed*, and either *guaranteed*
/// or not.
///
/// In the order of rank a unit is entitled if, with the entitled ones before it, it stays within the queue's fair share
/// of every resource that it takes; otherwise it is borrowed, and the next one is looked at. A member beyond its
/// group's core is borrowed if the core is: evicting the core takes it along, and no queue may lose by that what it is
/// entitled to. The fair shares of queues below one parent add up to at most the parent's, so what is entitled in a
/// leaf is so at every level.
///
/// The guaranteed units are those before the first one in the order of rank with which all that the queue wants, placed
/// or waiting, is more than its quota, and those above it, make certain. None is passed over, as is one for the fair
/// share: otherwise a unit beyond the quota could evict, within its queue, one within it, which would then take its
/// place back from another queue, and so on in a circle.
///
/// These sets are what makes scheduling end. Reclaim by the guarantee takes what is not guaranteed, for a unit that is:
/// the guaranteed set of its queue rises in the order of rank, and no other queue's changes. Reclaim by the fair share
/// takes only what is borrowed and not guaranteed, for a unit that is entitled: no guaranteed set falls, the entitled
/// set of its queue rises, and no other queue's changes. Preemption takes only units of later rank, and if the unit that
/// it is for would itself be borrowed, only borrowed ones, and if it would not be guaranteed, none that are: where it
/// stands in the order the set rises, and changes only come after it. All other actions only add. The guaranteed sets
/// of all queues can only rise, and as long as they stay, so do the entitled sets; and there are finitely many of them.
#[derive(Clone, Debug)]
pub(crate) struct Entitled {
    units: Vec<PlacedUnit>,
    fair: Vec<u64>,
    guaranteed: Vec<u64>,
    /// The first unit that is not guaranteed; `None`: all are.
    guaranteed_before: Option<Rank>,
}

impl Entitled {
    /// The units of a queue as they are placed now.
    pub(crate) fn of(cluster: &Cluster, shares: &Shares, queue: QueueId) -> Self {
        let groups = cluster.queue(queue).into_iter().flat_map(|queue| queue.placed());
        let units = groups.flat_map(|turn| placed(cluster, turn.group)).collect();
        let fair = shares.get(queue).iter().map(|entitlement| entitlement.fair_share).collect();
        let guaranteed = shares.guaranteed(queue).to_vec();
        let guaranteed_before = first_beyond(cluster, queue, &guaranteed);
        let mut entitled = Self { units, fair, guaranteed, guaranteed_before };
        entitled.classify();
        entitled
    }

    /// Takes in that members of these groups were placed or evicted.
    fn update(&mut self, cluster: &Cluster, groups: &BTreeSet<GroupId>) {
        self.units.retain(|placed| !groups.contains(&placed.unit.group));
        self.units.extend(groups.iter().flat_map(|group| placed(cluster, *group)));
        self.classify();
    }

    fn classify(&mut self) {
        // Nearly in order already: the stable sort merges what is.
        self.units.sort_by_key(|placed| placed.unit.rank);
        for right in [Right::FairShare, Right::Guarantee] {
            let mut held = Amounts::default();
            let mut cores_beyond = BTreeSet::new();
            for index in 0..self.units.len() {
                let placed = &self.units[index];
                let rank = placed.unit.rank;
                let without_core = rank.elastic && cores_beyond.contains(&rank.group);
                let is_within = placed.is_whole && !without_core && self.fits(right, rank, &held, &placed.charge);
                if is_within {
                    held.add(&placed.charge);
                } else if !rank.elastic {
                    cores_beyond.insert(rank.group);
                }
                match right {
                    Right::FairShare => self.units[index].entitled = is_within,
                    Right::Guarantee => self.units[index].guaranteed = is_within,
                }
            }
        }
    }

    /// Whether a unit of this rank that takes `charge` would be entitled, or guaranteed, if it were placed. What is
    /// placed of a core already counts with the rest of it.
    pub(crate) fn would_be(&self, right: Right, rank: Rank, charge: &Charge) -> bool {
        let mut held = Amounts::default();
        for placed in self.units.iter().take_while(|placed| placed.unit.rank <= rank) {
            if placed.is(right) || placed.unit.rank == rank {
                held.add(&placed.charge);
            } else if rank.elastic && placed.unit.rank.is_core_of(rank) {
                return false;
            }
        }
        self.fits(right, rank, &held, charge)
    }

    fn fits(&self, right: Right, rank: Rank, held: &Amounts, charge: &Charge) -> bool {
        let (within, reaches) = match right {
            Right::FairShare => (&self.fair, true),
            Right::Guarantee => (&self.guaranteed, self.guaranteed_before.is_none_or(|before| rank < before)),
        };
        reaches && fits(within, held, charge)
    }

    /// All units, the last in order first.
    pub(crate) fn last_first(&self) -> impl Iterator<Item = &PlacedUnit> {
        self.units.iter().rev()
    }

    /// All units, in order.
    pub(crate) fn units(&self) -> &[PlacedUnit] {
        &self.units
    }
}

impl PlacedUnit {
    /// Its members, each by itself.
    pub(crate) fn members(&self, cluster: &Cluster) -> impl Iterator<Item = Self> {
        let members = self.unit.claims.iter().filter_map(|claim| Some((*claim, cluster.charge(*claim)?)));
        members.map(|(claim, charge)| Self {
            unit: Unit { claims: vec![claim], ..self.unit.clone() },
            charge,
            ..self.clone()
        })
    }

    /// Whether it is within what its queue has a right to.
    pub(crate) fn is(&self, right: Right) -> bool {
        match right {
            Right::FairShare => self.entitled,
            Right::Guarantee => self.guaranteed,
        }
    }
}

/// The first unit, placed or waiting, with which a queue would have more than `guaranteed`.
fn first_beyond(cluster: &Cluster, queue: QueueId, guaranteed: &[u64]) -> Option<Rank> {
    let mut wanted = Amounts::default();
    let beyond = each_demanded(cluster, &mut ClassCharges::default(), queue, |rank, charge| {
        if !fits(guaranteed, &wanted, charge) {
            return ControlFlow::Break(rank);
        }
        wanted.add(charge);
        ControlFlow::Continue(())
    });
    beyond.break_value()
}

fn placed(cluster: &Cluster, group: GroupId) -> impl Iterator<Item = PlacedUnit> {
    let is_whole = cluster.group(group).is_some_and(Group::has_minimum);
    let units = Unit::placed(cluster, group).into_iter();
    units.map(move |unit| PlacedUnit {
        charge: unit.charge(cluster),
        unit,
        is_whole,
        entitled: false,
        guaranteed: false,
    })
}

fn fits(fair: &[u64], held: &Amounts, charge: &Charge) -> bool {
    let share = |number: usize| fair.get(number).copied().unwrap_or(0);
    charge.parts().all(|(number, amount)| held.get(number).saturating_add(amount) <= share(number))
}

/// The sets of the queues that were asked for, kept true as claims are placed and evicted. Made anew each cycle: fair
/// shares change with what happens.
#[derive(Clone, Debug, Default)]
pub(crate) struct EntitledSets {
    by_queue: BTreeMap<QueueId, Entitled>,
}

impl EntitledSets {
    /// Makes sure that a queue's set is there.
    pub(crate) fn know(&mut self, cluster: &Cluster, shares: &Shares, queue: QueueId) -> &Entitled {
        self.by_queue.entry(queue).or_insert_with(|| Entitled::of(cluster, shares, queue))
    }

    /// Takes in steps that have been made final.
    pub(crate) fn changed(&mut self, cluster: &Cluster, steps: &[Step]) {
        let mut groups: BTreeMap<QueueId, BTreeSet<GroupId>> = BTreeMap::new();
        for group in steps.iter().filter_map(|step| cluster.group_of(step.claim())) {
            if let Some(queue) = cluster.group(group).map(Group::queue) {
                groups.entry(queue).or_default().insert(group);
            }
        }
        for (queue, groups) in groups {
            if let Some(entitled) = self.by_queue.get_mut(&queue) {
                entitled.update(cluster, &groups);
            }
        }
    }
}
