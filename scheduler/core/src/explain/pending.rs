//! What a cycle says of what waits: what it has found out anyway, and no search of its own.

use crate::cluster::Cluster;
use crate::explain::reason::{Bound, Reason};
use crate::gang::Unplaceable;
use crate::group::GroupId;
use crate::limits::Exceeded;
use crate::namespace::NamespaceSpec;
use crate::plan::{Obstacle, Pending};
use crate::unit::Unit;

impl Pending {
    /// What is in its way, as far as the cycle that planned this knows. `cluster` is as the cycle left it.
    #[must_use]
    pub fn reason(&self, cluster: &Cluster) -> Reason {
        match self.obstacle {
            Obstacle::MembersMissing(missing) => members_missing(cluster, self.group, missing),
            Obstacle::RetriedAt(retry_at_ms) => retried(cluster, self.group, retry_at_ms),
            Obstacle::Unplaceable(Unplaceable::Limit(exceeded)) => over_bound(cluster, &exceeded),
            Obstacle::Unplaceable(room) => {
                let placed = match room {
                    Unplaceable::NoRoom { placed, .. } => placed,
                    Unplaceable::Topology { .. } | Unplaceable::Limit(_) => 0,
                };
                let wanted = Unit::next(cluster, self.group).ok().flatten().map_or(1, |unit| unit.claims.len());
                let count = |members: usize| u32::try_from(members).unwrap_or(u32::MAX);
                Reason::NoRoom { wanted: count(wanted), fitting: count(placed), nodes: Vec::new(), nearest: None }
            }
        }
    }
}

/// A pod group that is not complete yet.
pub(crate) fn members_missing(cluster: &Cluster, group: GroupId, missing: u32) -> Reason {
    let members = cluster.group(group).map_or(0, |group| group.members().count());
    Reason::MembersMissing { members: u32::try_from(members).unwrap_or(u32::MAX), missing }
}

/// A group with members that could not be started lately.
pub(crate) fn retried(cluster: &Cluster, group: GroupId, retry_at_ms: u64) -> Reason {
    let members = cluster.group(group).into_iter().flat_map(|group| group.members());
    Reason::RetriedLater {
        failures: members.map(|claim| cluster.failures(claim).0).max().unwrap_or(0),
        left_ms: retry_at_ms.saturating_sub(cluster.now_ms()),
    }
}

/// A limit or a quota that would be passed.
pub(crate) fn over_bound(cluster: &Cluster, exceeded: &Exceeded) -> Reason {
    let bound = Bound {
        queue: cluster.queue(exceeded.queue).map(|queue| queue.spec().name.clone()).unwrap_or_default(),
        resource: cluster.resources().resource(exceeded.resource),
        held: exceeded.held,
        asked: exceeded.asked,
        bound: exceeded.bound,
    };
    match (exceeded.is_quota, NamespaceSpec::of_queue(&bound.queue)) {
        (true, _) => Reason::NonPreemptibleOverQuota(bound),
        (false, Some(_)) => Reason::NamespaceLimit(bound),
        (false, None) => Reason::QueueLimit(bound),
    }
}
