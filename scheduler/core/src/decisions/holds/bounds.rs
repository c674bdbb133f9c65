//! What is kept of a queue's bounds for a unit that has waited long for them, so that smaller claims do not for ever
//! take what others in the queue give back.
//!
//! A queue at its limit has something to give each time one of its claims ends. Small claims could always take it, and a
//! large unit would never find enough. So what the unit asks for is kept for it if it is the first unit that waits for
//! the queue's bound, and if it has waited for that longer than
//! [`Settings::hold_after_ms`](crate::Settings::hold_after_ms). Units of its queue with a later rank are refused if they
//! would then be beyond the bound. So are units of other queues below the queue with the bound, but only while the unit
//! would be within the fair share of its own queue.
//!
//! That ends when the unit is placed, or when the queue has come no nearer to having room for as long as that. This wait
//! doubles each time: how long a claim runs is not known. It does not end when another unit is the first: what is kept
//! decides who is refused, and that changes fair shares and turns, so the first one could change with each cycle.

use std::collections::{BTreeMap, BTreeSet};

use crate::decisions::gang::Unplaceable;
use crate::decisions::plan::{Obstacle, Pending};
use crate::decisions::unit::Unit;
use crate::state::cluster::Cluster;
use crate::state::cluster::limits::{self, Exceeded};
use crate::state::group::Group;
use crate::state::resources::Charge;
use crate::vocabulary::pod_group::GroupId;
use crate::vocabulary::queue_spec::QueueId;

/// The groups that wait for a queue's bounds, and what is kept for them.
#[derive(Clone, Debug, Default)]
pub(crate) struct KeptBounds {
    waits: BTreeMap<GroupId, BoundWait>,
    /// What is kept of each queue's bounds: follows from the waits.
    kept: BTreeMap<QueueId, Kept>,
}

/// The wait of a group for its queue's bounds.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(crate) struct BoundWait {
    /// Since when it waits, or since when nothing more is kept for it, in milliseconds.
    pub(crate) since_ms: u64,
    /// How often something was kept for it in vain.
    pub(crate) times: u32,
    /// `None`: nothing is kept for it.
    pub(crate) keeping: Option<Keeping>,
}

/// What is kept for a group of which queues, and how near these come to having room for it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Keeping {
    /// The queues of whose bounds it is kept.
    pub(crate) queues: BTreeSet<QueueId>,
    /// By how much those bounds would be exceeded with the group, in thousandths of them; the least so far.
    pub(crate) excess_per_mille: u64,
    /// Since when it has been that much, in milliseconds.
    pub(crate) since_ms: u64,
    /// Whether the group's next unit would be within the fair share of its queue.
    pub(crate) is_entitled: bool,
}

/// What is kept of the bounds of one queue.
#[derive(Clone, Debug)]
struct Kept {
    unit: Unit,
    charge: Charge,
    preemptible: bool,
    is_entitled: bool,
}

impl Kept {
    /// Whether it is kept from this unit.
    fn is_kept_from(&self, unit: &Unit) -> bool {
        match self.unit.queue == unit.queue {
            true => self.unit.rank < unit.rank,
            false => self.is_entitled,
        }
    }
}

impl BoundWait {
    /// Begins, goes on, or ends to keep something. `now`: what would be kept if that began now.
    fn go_on(&mut self, now: Keeping, after_ms: u64) {
        let now_ms = now.since_ms;
        let wait_ms = after_ms.max(1).saturating_mul(2_u64.saturating_pow(self.times));
        let has_lasted = |since_ms: u64| now_ms.saturating_sub(since_ms) >= wait_ms;
        let before = self.keeping.take();
        if now.queues.is_empty() || (before.is_none() && !has_lasted(self.since_ms)) {
            return;
        }
        match before.filter(|before| before.excess_per_mille <= now.excess_per_mille) {
            // It has come nearer, or begins.
            None => self.keeping = Some(now),
            Some(before) if has_lasted(before.since_ms) => {
                (self.since_ms, self.times) = (now_ms, self.times.saturating_add(1));
            }
            Some(Keeping { excess_per_mille, since_ms, .. }) => {
                self.keeping = Some(Keeping { excess_per_mille, since_ms, ..now });
            }
        }
    }
}

impl KeptBounds {
    /// The bound that a unit would exceed because of what is kept for another group.
    pub(crate) fn exceeded(&self, cluster: &Cluster, unit: &Unit) -> Option<Exceeded> {
        if self.kept.is_empty() {
            return None;
        }
        let (charge, preemptible) = (unit.least_charge(cluster), unit.is_preemptible(cluster));
        cluster.queues().path(unit.queue).find_map(|(queue, _)| {
            let kept = self.kept.get(&queue).filter(|kept| kept.unit.group != unit.group && kept.is_kept_from(unit))?;
            // The cycle may have placed that group already.
            cluster.group(kept.unit.group).filter(|group| group.has_waiting())?;
            let amount = |resource, is_quota: bool| match is_quota && kept.preemptible {
                true => 0,
                false => kept.charge.get(resource),
            };
            limits::exceeded_by_kept(cluster, queue, &charge, preemptible, amount).next()
        })
    }

    /// The waits, by group.
    pub(crate) fn waits(&self) -> impl Iterator<Item = (GroupId, &BoundWait)> {
        self.waits.iter().map(|(group, wait)| (*group, wait))
    }

    /// Notes the wait of a group as it was in another scheduler.
    pub(crate) fn restore(&mut self, cluster: &Cluster, group: GroupId, wait: BoundWait) {
        self.waits.insert(group, wait);
        self.keep(cluster);
    }

    /// Forgets groups that are gone or have no pending members. What is kept for the others is what they ask for now.
    pub(crate) fn release_gone(&mut self, cluster: &Cluster) {
        self.waits.retain(|group, _| cluster.group(*group).is_some_and(Group::has_waiting));
        self.keep(cluster);
    }

    /// Notes which units are the first to wait for their queues' bounds. Keeps what they ask for if they have waited for
    /// `after_ms`. `pending`: the pending groups in the order of turns. `placed`: the groups of which this cycle has
    /// placed members. `would_fit`: whether a unit would fit on an otherwise empty cluster. `is_entitled`: whether it
    /// would be within the fair share of its queue.
    pub(crate) fn update(
        &mut self,
        cluster: &Cluster,
        pending: &[Pending],
        placed: &BTreeSet<GroupId>,
        after_ms: Option<u64>,
        mut would_fit: impl FnMut(&Unit) -> bool,
        mut is_entitled: impl FnMut(&Unit) -> bool,
    ) {
        let Some(after_ms) = after_ms else {
            *self = Self::default();
            return;
        };
        self.waits.retain(|group, _| !placed.contains(group));
        let now_ms = cluster.now_ms();
        // The queues of which the first unit that waits for their bounds is known.
        let mut met: BTreeSet<QueueId> = BTreeSet::new();
        let keeps = |waits: &BTreeMap<GroupId, BoundWait>, pending: &Pending| {
            waits.get(&pending.group).is_some_and(|wait| wait.keeping.is_some())
        };
        let (keepers, others): (Vec<&Pending>, Vec<&Pending>) =
            pending.iter().partition(|pending| keeps(&self.waits, pending));
        for pending in keepers.into_iter().chain(others) {
            // A unit that is refused only because of what is kept for another one is not the first.
            let limit = match pending.obstacle {
                Obstacle::Unplaceable(Unplaceable::Limit(exceeded)) if exceeded.kept == 0 => Some(exceeded),
                _ => None,
            };
            let is_first = limit.is_some_and(|exceeded| !met.contains(&exceeded.queue));
            if !is_first && !keeps(&self.waits, pending) {
                continue;
            }
            let unit = match pending.obstacle {
                Obstacle::MembersMissing(_) => None,
                _ => Unit::next(cluster, pending.group).ok().flatten(),
            };
            let Some(unit) = unit.filter(|unit| may_end(cluster, unit) && would_fit(unit)) else {
                self.waits.remove(&pending.group);
                continue;
            };
            let wait = self.waits.entry(pending.group).or_insert(BoundWait { since_ms: now_ms, ..Default::default() });
            let mut queues: BTreeSet<QueueId> = limit.map(|exceeded| exceeded.queue).into_iter().collect();
            queues.extend(wait.keeping.iter().flat_map(|keeping| &keeping.queues));
            queues.retain(|queue| !met.contains(queue));
            met.extend(&queues);
            let (excess_per_mille, is_entitled) = (excess_per_mille(cluster, &unit), is_entitled(&unit));
            wait.go_on(Keeping { queues, excess_per_mille, since_ms: now_ms, is_entitled }, after_ms);
        }
        self.keep(cluster);
    }

    /// Keeps what the waits say.
    fn keep(&mut self, cluster: &Cluster) {
        self.kept.clear();
        for (group, wait) in &self.waits {
            let Some((keeping, unit)) = wait.keeping.as_ref().zip(Unit::next(cluster, *group).ok().flatten()) else {
                continue;
            };
            let (charge, preemptible) = (unit.least_charge(cluster), unit.is_preemptible(cluster));
            let kept = Kept { unit, charge, preemptible, is_entitled: keeping.is_entitled };
            self.kept.extend(keeping.queues.iter().map(|queue| (*queue, kept.clone())));
        }
    }
}

/// Whether the wait of a unit for its queue's bounds can end at all: it asks for no more than each of them.
fn may_end(cluster: &Cluster, unit: &Unit) -> bool {
    exceeded(cluster, unit).iter().all(|exceeded| exceeded.asked <= exceeded.bound)
}

/// By how much a unit would exceed its queue's bounds, in thousandths of them, in all.
fn excess_per_mille(cluster: &Cluster, unit: &Unit) -> u64 {
    let of = |exceeded: &Exceeded| {
        let excess = u128::from(exceeded.needed().saturating_sub(exceeded.bound));
        u64::try_from(excess * 1000 / u128::from(exceeded.bound.max(1))).unwrap_or(u64::MAX)
    };
    exceeded(cluster, unit).iter().map(of).fold(0, u64::saturating_add)
}

fn exceeded(cluster: &Cluster, unit: &Unit) -> Vec<Exceeded> {
    let (charge, preemptible) = (unit.least_charge(cluster), unit.is_preemptible(cluster));
    limits::exceeded(cluster, unit.queue, &charge, preemptible, false).collect()
}
