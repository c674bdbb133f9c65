//! Which of a queue's placed units are within its fair share.

use std::collections::BTreeSet;

use crate::cluster::Cluster;
use crate::queue::QueueId;
use crate::resource::{Amounts, Charge};
use crate::shares::Shares;
use crate::unit::{Rank, Unit};

/// The placed units of a leaf queue in their fixed order, each either *entitled* or *borrowed*.
///
/// In the order of rank a unit is entitled if, with the entitled ones before it, it stays within the queue's fair share of every resource
/// that it takes; otherwise it is borrowed, and the next one is looked at. The fair shares of queues below one parent add up to at most
/// the parent's, so what is entitled in a leaf is so at every level.
///
/// This set is what makes scheduling end. Reclaim takes only what is borrowed, for a unit that is entitled: the entitled set of its queue
/// rises in the order of rank, and no other queue's changes. Preemption takes only units of later rank, and if the unit that it is for
/// would itself be borrowed, only borrowed ones: where it stands in the order the set rises, and changes only come after it. All other
/// actions only add. The sets of all queues can only rise, and there are finitely many of them.
#[derive(Clone, Debug)]
pub(crate) struct Entitled {
    units: Vec<(Unit, bool)>,
    fair: Vec<u64>,
}

impl Entitled {
    /// The units of a queue as they are placed now.
    pub(crate) fn of(cluster: &Cluster, shares: &Shares, queue: QueueId) -> Self {
        let groups = cluster.queue(queue).into_iter().flat_map(|queue| queue.placed());
        let mut units: Vec<Unit> = groups.flat_map(|turn| Unit::placed(cluster, turn.group)).collect();
        units.sort_unstable_by_key(|unit| unit.rank);
        let fair = shares.get(queue).iter().map(|entitlement| entitlement.fair_share).collect();
        let mut entitled = Self { units: Vec::with_capacity(units.len()), fair };
        let mut held = Amounts::default();
        for unit in units {
            let charge = unit.charge(cluster);
            let fits = entitled.fits(&held, &charge);
            if fits {
                held.add(&charge);
            }
            entitled.units.push((unit, fits));
        }
        entitled
    }

    fn fits(&self, held: &Amounts, charge: &Charge) -> bool {
        let share = |number: usize| self.fair.get(number).copied().unwrap_or(0);
        charge.parts().all(|(number, amount)| held.get(number).saturating_add(amount) <= share(number))
    }

    /// Whether a unit of this rank that takes `charge` would be entitled, if it were placed.
    pub(crate) fn would_entitle(&self, cluster: &Cluster, rank: Rank, charge: &Charge) -> bool {
        let mut held = Amounts::default();
        let before = self.units.iter().take_while(|(unit, _)| unit.rank < rank).filter(|(_, entitled)| *entitled);
        before.for_each(|(unit, _)| held.add(&unit.charge(cluster)));
        self.fits(&held, charge)
    }

    /// The borrowed units, the last in order first: those that go first.
    pub(crate) fn borrowed(&self) -> impl Iterator<Item = &Unit> {
        self.units.iter().rev().filter(|(_, entitled)| !entitled).map(|(unit, _)| unit)
    }

    /// All units, the last in order first, and whether each is entitled.
    pub(crate) fn last_first(&self) -> impl Iterator<Item = (&Unit, bool)> {
        self.units.iter().rev().map(|(unit, entitled)| (unit, *entitled))
    }

    /// The ranks of the entitled units, in order: what rises as scheduling goes on.
    pub(crate) fn ranks(&self) -> BTreeSet<Rank> {
        self.units.iter().filter(|(_, entitled)| *entitled).map(|(unit, _)| unit.rank).collect()
    }
}
