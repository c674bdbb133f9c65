//! The plan of a cycle.

use std::collections::{BTreeMap, BTreeSet};

use crate::decisions::gang::Unplaceable;
use crate::decisions::shares::Shares;
use crate::state::cluster::Cluster;
use crate::state::cluster::limits::Exceeded;
use crate::vocabulary::claim::{Action, Allocation, ClaimId, Displacement};
use crate::vocabulary::pod_group::GroupId;
use crate::vocabulary::queue_spec::QueueId;
use crate::vocabulary::step::Step;

/// The steps to carry out, and the groups that stay pending, with reasons.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Plan {
    /// At most one step for each claim, in the order in which the steps were decided. Evictions come before the steps
    /// that they make room for.
    pub steps: Vec<PlannedStep>,
    /// The groups with pending members, in the order of their turns.
    pub pending: Vec<Pending>,
}

/// What the steps of a plan do to one claim together.
struct OfClaim {
    /// The claim's place before the plan.
    before: Option<Allocation>,
    /// The numbers of the first and the last step that evict it.
    evicted: Option<(usize, usize)>,
    /// The number of the last step that places it.
    placed: usize,
}

impl Plan {
    /// Replaces all steps of each claim by their net effect: a claim that was placed and evicted again was never
    /// placed, and a claim that is back at its place never had to leave. Then makes the plan final.
    pub(crate) fn make_final(&mut self, cluster: &mut Cluster) {
        let mut claims: BTreeMap<ClaimId, OfClaim> = BTreeMap::new();
        for (number, planned) in self.steps.iter().enumerate() {
            let (Step::Evict { claim, .. } | Step::Move { claim, .. } | Step::Place { claim, .. }) = &planned.step;
            let before = match &planned.step {
                Step::Evict { from, .. } | Step::Move { from, .. } => Some(from),
                Step::Place { .. } => None,
            };
            let new = || OfClaim { before: before.cloned(), evicted: None, placed: number };
            let of_claim = claims.entry(*claim).or_insert_with(new);
            if before.is_some() {
                of_claim.evicted = Some((of_claim.evicted.map_or(number, |(first, _)| first), number));
            }
            if planned.step.placed().is_some() {
                of_claim.placed = number;
            }
        }
        let touched: BTreeSet<ClaimId> = claims.keys().copied().collect();
        let net = claims.into_iter().filter_map(|(claim, OfClaim { before, evicted, placed })| {
            let now = cluster.allocation(claim).cloned();
            // The number of the remaining step, the number of the step that names its action and group, and the step
            // itself.
            let (first, last) = evicted.unwrap_or((placed, placed));
            match (before, now) {
                (Some(from), Some(to)) if from == to => None,
                (Some(from), Some(to)) => Some((first, last, Step::Move { claim, from, to, starts_after: Vec::new() })),
                (Some(from), None) => Some((first, last, Step::Evict { claim, from })),
                (None, Some(to)) => Some((placed, placed, Step::Place { claim, to, starts_after: Vec::new() })),
                (None, None) => None,
            }
        });
        let mut net: Vec<(usize, usize, Step)> = net.collect();
        net.sort_unstable_by_key(|(number, ..)| *number);
        let net = net.into_iter().filter_map(|(_, by, step)| {
            let PlannedStep { action, for_group, .. } = self.steps.get(by)?;
            Some(PlannedStep { step, action: *action, for_group: *for_group })
        });
        self.steps = net.collect();
        cluster.make_final(&touched, &mut self.steps.iter_mut().map(|planned| &mut planned.step).collect::<Vec<_>>());
    }
}

/// One step, with the action that decided it and the group that it is for.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct PlannedStep {
    /// What is done to the claim.
    pub step: Step,
    /// The action that decided the step.
    pub action: Action,
    /// The group that the step is done for; `None`: no particular group.
    pub for_group: Option<GroupId>,
}

/// A group with pending members.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Pending {
    /// The group's id in the cluster.
    pub group: GroupId,
    /// The leaf queue that it waits in.
    pub(crate) queue: QueueId,
    /// Single claims with the same number wait in the same queue for the same room; `None`: no other claim is like this
    /// one.
    pub(crate) alike: Option<usize>,
    /// What is in the way of its next unit.
    pub(crate) obstacle: Obstacle,
    /// Why no claim makes way for it; `None`: no action was tried for it.
    pub(crate) refusal: Option<Refusal>,
}

impl Pending {
    /// Whether both are single claims that wait in the same queue for the same room, and the cycle has found the same in
    /// their way. Where namespaces and priorities are the same, too, what explains one of them explains the other.
    #[must_use]
    pub fn is_like(&self, other: &Self) -> bool {
        let found = |pending: &Self| (pending.queue, pending.alike, pending.obstacle, pending.refusal);
        self.alike.is_some() && found(self) == found(other)
    }
}

/// What is in the way of a group's next unit, as a cycle has found it. It holds only numbers. [`Pending::reason`] makes
/// words of them when they are asked for. So the reasons of fifty thousand pending claims cost a cycle nothing, as few
/// are read.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Obstacle {
    /// This many members have yet to be added.
    MembersMissing(u32),
    /// A member lately failed to start, and is not tried again before this time, in milliseconds.
    RetriedAt(u64),
    /// The unit cannot be placed, for this reason.
    Unplaceable(Unplaceable),
}

/// Why an action does not place a unit.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Refusal {
    /// Everything that may be taken for it would not make enough room.
    NothingToTake,
    /// It would put its queue above the queue's fair share of a resource, so it may not take anything back.
    AboveFairShare {
        /// The number of the resource.
        resource: usize,
        /// The queue's fair share of the resource.
        fair_share: u64,
    },
    /// It would exceed a limit.
    Limit(Exceeded),
    /// The units that would be evicted for it could take their places back from other queues.
    Unsettled,
    /// There would be room, but too much would be evicted for it; see
    /// [`Settings::disruption_per_mille`](crate::Settings::disruption_per_mille).
    TooDisruptive,
    /// Its group has to wait before other claims are evicted for it.
    Delayed {
        /// The end of the wait, in milliseconds.
        until_ms: u64,
    },
    /// A member has lately failed to start, so no other claim stops for one more try.
    FailedToStart {
        /// The time from which others may make way for it, in milliseconds.
        until_ms: u64,
    },
    /// The search reached its bound before it had seen everything. It goes on in the next cycle.
    SearchExhausted,
}

impl Refusal {
    /// The refusal of a unit that would put its queue above the fair share of the resource with this number.
    pub(crate) fn above(shares: &Shares, queue: QueueId, resource: usize) -> Self {
        Self::AboveFairShare { resource, fair_share: shares.fair_share(queue, resource) }
    }

    /// Of two actions' refusals, the one that says more about what would have to change.
    pub(crate) fn more_telling(self, other: Self) -> Self {
        let telling = |refusal: &Self| match refusal {
            Self::NothingToTake | Self::Unsettled => 0,
            Self::AboveFairShare { .. } => 1,
            Self::Limit(_) => 2,
            Self::TooDisruptive => 3,
            Self::Delayed { .. } => 4,
            Self::FailedToStart { .. } => 5,
            Self::SearchExhausted => 6,
        };
        if telling(&other) > telling(&self) { other } else { self }
    }
}

/// The cause of evictions for a group.
pub(crate) fn cause(cluster: &Cluster, action: Action, group: GroupId) -> Displacement {
    Displacement {
        action,
        by: Some(group),
        by_name: cluster.group_name(group),
        at_ms: cluster.now_ms(),
        shares: Vec::new(),
    }
}
