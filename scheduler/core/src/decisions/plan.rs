//! What a cycle decides.

use std::collections::{BTreeMap, BTreeSet};

use crate::decisions::gang::Unplaceable;
use crate::decisions::shares::Shares;
use crate::state::cluster::Cluster;
use crate::state::cluster::limits::Exceeded;
use crate::vocabulary::claim::{Action, Allocation, ClaimId, Displacement};
use crate::vocabulary::pod_group::GroupId;
use crate::vocabulary::queue_spec::QueueId;
use crate::vocabulary::step::Step;

/// What is to be done, and what waits and why.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Plan {
    /// At most one for each claim, in the order in which they were decided; evictions stand before what they make room
    /// for.
    pub steps: Vec<PlannedStep>,
    /// The groups of which something waits, in the order in which it was their turn.
    pub pending: Vec<Pending>,
}

/// What the steps of a plan do to one claim.
struct OfClaim {
    /// Where it was placed before.
    before: Option<Allocation>,
    /// The first step that evicts it, and the last, by their numbers.
    evicted: Option<(usize, usize)>,
    /// The last step that places it.
    placed: usize,
}

impl Plan {
    /// Leaves of all that was done to a claim only what it comes to: who was placed and evicted again was never placed,
    /// and who is again where he was never had to leave. Then the plan is final.
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
            // Where the step stands, whose doing it is, and what it is.
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

/// One step, and what it is for.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct PlannedStep {
    /// The step.
    pub step: Step,
    /// Which action decided it.
    pub action: Action,
    /// The group that it is done for; `None`: for nobody in particular.
    pub for_group: Option<GroupId>,
}

/// A group of which something waits.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Pending {
    /// The group.
    pub group: GroupId,
    /// The leaf queue that it waits in.
    pub(crate) queue: QueueId,
    /// Single claims of one number wait in the same queue for the same; `None`: it is like no other.
    pub(crate) alike: Option<usize>,
    /// What is in its way.
    pub(crate) obstacle: Obstacle,
    /// Why nobody makes way for it; `None`: nobody was asked to.
    pub(crate) refusal: Option<Refusal>,
}

/// What is in the way of a group's next unit, as a cycle has found it. It holds numbers; [`Pending::reason`] makes
/// words of them when somebody asks. So fifty thousand waiting claims cost a cycle nothing, as few reasons are read.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Obstacle {
    /// So many members have yet to be added.
    MembersMissing(u32),
    /// A member could not be started lately, and is not tried again before this.
    RetriedAt(u64),
    /// It cannot be placed.
    Unplaceable(Unplaceable),
}

/// Why an action does not place a unit.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Refusal {
    /// All that may be taken for it would not make enough room.
    NothingToTake,
    /// Its queue would be above its fair share of a resource, and takes nothing back.
    AboveFairShare {
        /// The number of the resource.
        resource: usize,
        /// The share.
        fair_share: u64,
    },
    /// It would pass a limit.
    Limit(Exceeded),
    /// There would be room, but too much would be evicted for it: see
    /// [`Settings::disruption_per_mille`](crate::Settings::disruption_per_mille).
    TooDisruptive,
    /// Its group waits until then before others are evicted for it.
    Delayed {
        /// Until when.
        until_ms: u64,
    },
    /// The search was ended before it had seen everything; it goes on in the next cycle.
    SearchExhausted,
}

impl Refusal {
    /// A queue would be above its fair share of the resource of this number.
    pub(crate) fn above(shares: &Shares, queue: QueueId, resource: usize) -> Self {
        Self::AboveFairShare { resource, fair_share: shares.fair_share(queue, resource) }
    }

    /// Of several actions' refusals the one that says most about what would have to change.
    pub(crate) fn more_telling(self, other: Self) -> Self {
        let telling = |refusal: &Self| match refusal {
            Self::NothingToTake => 0,
            Self::AboveFairShare { .. } => 1,
            Self::Limit(_) => 2,
            Self::TooDisruptive => 3,
            Self::Delayed { .. } => 4,
            Self::SearchExhausted => 5,
        };
        if telling(&other) > telling(&self) { other } else { self }
    }
}

/// Why somebody is evicted for a group.
pub(crate) fn cause(cluster: &Cluster, action: Action, group: GroupId) -> Displacement {
    Displacement {
        action,
        by: Some(group),
        by_name: cluster.group_name(group),
        at_ms: cluster.now_ms(),
        shares: Vec::new(),
    }
}
