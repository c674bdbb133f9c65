//! What a cycle reports about pending groups: what it has found out anyway, without a search of its own.

use crate::decisions::gang::Unplaceable;
use crate::decisions::plan::{Obstacle, Pending, Refusal};
use crate::decisions::unit::Unit;
use crate::explain::reason::{Bound, Reason};
use crate::explain::room;
use crate::state::cluster::Cluster;
use crate::state::cluster::limits::Exceeded;
use crate::vocabulary::claim::ClaimId;
use crate::vocabulary::namespace::NamespaceSpec;
use crate::vocabulary::pod_group::{GroupId, PlacementStrategy};
use crate::vocabulary::queue_spec::QueueId;
use crate::vocabulary::share::Share;

impl Pending {
    /// What is in the group's way, as far as the cycle that made this plan knows. `cluster` is as the cycle left it.
    /// This is cheap; [`Scheduler::explain`](crate::Scheduler::explain) looks closer, and says what would change it.
    #[must_use]
    pub fn reason(&self, cluster: &Cluster) -> Reason {
        let unit = Unit::next(cluster, self.group).ok().flatten();
        let wanted = unit.as_ref().map_or(1, |unit| u32::try_from(unit.claims.len()).unwrap_or(u32::MAX));
        let found = match self.obstacle {
            Obstacle::MembersMissing(missing) => return members_missing(cluster, self.group, missing),
            Obstacle::RetriedAt(retry_at_ms) => return retried(cluster, self.group, retry_at_ms),
            Obstacle::Unplaceable(Unplaceable::Limit(exceeded)) => over_bound(cluster, &exceeded),
            Obstacle::Unplaceable(Unplaceable::NoRoom { placed, .. }) => Reason::NoRoom {
                // How many find room is known only of members that ask for the same, and were looked at.
                wanted: unit.as_ref().filter(|unit| is_counted(cluster, unit)).map_or(1, |_| wanted),
                fitting: u32::try_from(placed).unwrap_or(u32::MAX),
                nodes: Vec::new(),
                nearest: None,
            },
            Obstacle::Unplaceable(Unplaceable::Topology { claim }) => {
                topology(cluster, level(cluster, self.group, claim).flatten(), wanted, None)
            }
            Obstacle::Unplaceable(Unplaceable::TooManyWays) => Reason::TooManyWays,
        };
        let refused = self.refusal.zip(unit).and_then(|(refusal, unit)| refused(cluster, &unit, &refusal));
        refused.into_iter().chain([found]).min_by_key(Reason::tier).unwrap_or(Reason::SearchExhausted)
    }

    /// Why the nodes cannot take the group's next members, whatever becomes free there: no node may take one, or none is
    /// large enough. `None`: they can, or something else is in the way. This may look at all nodes. The answer depends
    /// on nothing but them, the request of the member that finds no room, and how many members have the same request.
    #[must_use]
    pub fn why_never(&self, cluster: &Cluster) -> Option<Reason> {
        let Obstacle::Unplaceable(Unplaceable::NoRoom { claim, .. }) = self.obstacle else { return None };
        let unit = Unit::next(cluster, self.group).ok().flatten()?;
        room::why_never(cluster, &cluster.claim(claim)?.request, alike(cluster, &unit, claim))
    }
}

/// Whether the search of a cycle ends with the number of a unit's members that find room: of others than the first that
/// finds none it knows nothing, and nothing of those that this cycle has evicted.
fn is_counted(cluster: &Cluster, unit: &Unit) -> bool {
    let mut classes = unit.claims.iter().map(|claim| cluster.class_of(*claim));
    let first = classes.next();
    let is_evicted = |claim: &ClaimId| cluster.displaced(*claim).is_some_and(|of| of.at_ms == cluster.now_ms());
    classes.all(|class| Some(class) == first) && !unit.claims.iter().any(is_evicted)
}

/// How many members of a unit ask for the same as `member`, with it.
pub(crate) fn alike(cluster: &Cluster, unit: &Unit, member: ClaimId) -> u32 {
    let alike = unit.claims.iter().filter(|other| cluster.class_of(**other) == cluster.class_of(member));
    u32::try_from(alike.count()).unwrap_or(u32::MAX)
}

/// Why no claim makes way for a unit; `None` if there is no claim that could.
pub(crate) fn refused(cluster: &Cluster, unit: &Unit, refusal: &Refusal) -> Option<Reason> {
    Some(match *refusal {
        Refusal::NothingToTake | Refusal::Unsettled => return None,
        Refusal::AboveFairShare { resource, fair_share } => {
            let own = cluster.queue(unit.queue)?;
            let held = own.allocated().get(resource);
            if !is_held_by_others(cluster, unit.queue, resource, held) {
                return None;
            }
            Reason::AboveFairShare(Share {
                queue: own.spec().name.clone(),
                resource: cluster.resources().resource(resource),
                held,
                asked: asked(cluster, unit, resource),
                fair_share,
            })
        }
        Refusal::Limit(exceeded) => over_bound(cluster, &exceeded),
        Refusal::TooDisruptive => Reason::TooDisruptive,
        Refusal::Delayed { until_ms } => {
            Reason::PreemptionDelayed { left_ms: until_ms.saturating_sub(cluster.now_ms()) }
        }
        Refusal::FailedToStart { until_ms } => {
            let (failures, retry_at_ms) = failures(cluster, unit.claims.iter().copied());
            // A wait that is only the one for the next try is told as such.
            if until_ms <= retry_at_ms {
                return None;
            }
            Reason::OftenFailedToStart { failures, left_ms: until_ms.saturating_sub(cluster.now_ms()) }
        }
        Refusal::SearchExhausted => Reason::SearchExhausted,
    })
}

/// What a unit asks for of a resource. A unit that may take several models may take all of it of each of them.
fn asked(cluster: &Cluster, unit: &Unit, resource: usize) -> u64 {
    let classes = unit.claims.iter().filter_map(|claim| cluster.class(cluster.class_of(*claim)?));
    let most = classes.map(|class| class.most_charge().get(resource)).fold(0, u64::saturating_add);
    match unit.least_charge(cluster).get(resource) {
        0 => most,
        least => least,
    }
}

/// Whether queues other than this one hold some of a resource, of which this queue holds `own`. If they hold none, the
/// sizes of fair shares do not matter.
fn is_held_by_others(cluster: &Cluster, queue: QueueId, resource: usize, own: u64) -> bool {
    let mut root = None;
    for (id, above) in cluster.queues().path(queue) {
        if above.allocated().get(resource) > own {
            return true;
        }
        root = Some(id);
    }
    let others = cluster.queues().roots().iter().filter(|other| Some(**other) != root);
    others.filter_map(|other| cluster.queue(*other)).any(|other| other.allocated().get(resource) > 0)
}

/// The topology level in one domain of which a member must be with others. `Some(None)`: they must be on one node.
pub(crate) fn level(cluster: &Cluster, group: GroupId, member: ClaimId) -> Option<Option<&str>> {
    let spec = cluster.group(group)?.spec();
    let sub_group = cluster.claim(member)?.sub_group.as_deref();
    let of_sub_group = spec.sub_groups.iter().find(|sub| Some(sub.name.as_str()) == sub_group);
    let level = of_sub_group.and_then(|sub| sub.required_level.as_deref()).or(spec.spread.required_level.as_deref());
    (level.is_some() || spec.spread.strategy == PlacementStrategy::SingleNode).then_some(level)
}

/// The reason that no domain of a level has room for all `wanted` members together, or no node, if there is no level.
pub(crate) fn topology(cluster: &Cluster, level: Option<&str>, wanted: u32, best: Option<(String, u32)>) -> Reason {
    let topology = cluster.topology();
    match level {
        Some(level) if topology.level(level).is_none() => {
            Reason::NoSuchLevel { level: level.to_owned(), levels: topology.levels().to_vec() }
        }
        _ => Reason::Topology { level: level.unwrap_or("node").to_owned(), wanted, best },
    }
}

/// The reason that a pod group is not complete yet.
pub(crate) fn members_missing(cluster: &Cluster, group: GroupId, missing: u32) -> Reason {
    let members = cluster.group(group).map_or(0, |group| group.members().count());
    Reason::MembersMissing { members: u32::try_from(members).unwrap_or(u32::MAX), missing }
}

/// The reason that members of a group have lately failed to start.
pub(crate) fn retried(cluster: &Cluster, group: GroupId, retry_at_ms: u64) -> Reason {
    let members = cluster.group(group).into_iter().flat_map(|group| group.members());
    let (failures, _) = failures(cluster, members);
    Reason::RetriedLater { failures, left_ms: retry_at_ms.saturating_sub(cluster.now_ms()) }
}

/// How often any of these claims has failed to start at most, and the time from which all of them are tried again, in
/// milliseconds.
pub(crate) fn failures(cluster: &Cluster, claims: impl Iterator<Item = ClaimId>) -> (u32, u64) {
    let each = claims.map(|claim| cluster.failures(claim));
    each.fold((0, 0), |(most, latest), (failures, retry_at_ms)| (most.max(failures), latest.max(retry_at_ms)))
}

/// The reason that a limit or a quota would be exceeded.
pub(crate) fn over_bound(cluster: &Cluster, exceeded: &Exceeded) -> Reason {
    let bound = Bound {
        queue: cluster.queue(exceeded.queue).map(|queue| queue.spec().name.clone()).unwrap_or_default(),
        resource: cluster.resources().resource(exceeded.resource),
        held: exceeded.held,
        asked: exceeded.asked,
        kept: exceeded.kept,
        bound: exceeded.bound,
    };
    match (exceeded.is_quota, NamespaceSpec::of_queue(&bound.queue)) {
        (true, _) => Reason::NonPreemptibleOverQuota(bound),
        (false, Some(_)) => Reason::NamespaceLimit(bound),
        (false, None) => Reason::QueueLimit(bound),
    }
}
