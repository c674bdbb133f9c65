//! Stale gangs: the rest of a gang that has lost members does no work. It makes way if the members do not come back in
//! time.

use crate::decisions::plan::cause;
use crate::state::cluster::Cluster;
use crate::state::group::Group;
use crate::state::statement::Statement;
use crate::vocabulary::claim::{Action, ClaimId};
use crate::vocabulary::pod_group::GroupId;
use crate::vocabulary::step::Step;

use super::context::Context;

/// Evicts all members of each gang that has run with too few members for longer than its grace period. A gang with
/// members that a disruption budget protects stays. A gang with a member that a node has refused to evict stays for a
/// while.
pub(crate) fn evict_stale(cluster: &mut Cluster, context: &mut Context<'_>) -> Vec<(GroupId, Vec<Step>)> {
    let now_ms = cluster.now_ms();
    let is_stale = |group: &Group| {
        let since_ms = group.stale_since_ms().filter(|_| group.placed_members() > 0 && !group.has_minimum());
        let grace_ms = group.spec().staleness_grace_ms;
        since_ms.zip(grace_ms).is_some_and(|(since_ms, grace_ms)| now_ms.saturating_sub(since_ms) > grace_ms)
    };
    let mut stale: Vec<GroupId> = cluster.groups().filter(|(_, group)| is_stale(group)).map(|(id, _)| id).collect();
    // In the order in which groups were added, not of their slots.
    stale.sort_unstable();
    let mut evicted = Vec::new();
    for id in stale {
        if let Some(steps) = evict_all(cluster, id) {
            context.changed(cluster, &steps);
            evicted.push((id, steps));
        }
    }
    evicted
}

fn evict_all(cluster: &mut Cluster, id: GroupId) -> Option<Vec<Step>> {
    let mut because = cause(cluster, Action::StaleGang, id);
    because.by = None;
    let placed: Vec<ClaimId> =
        cluster.group(id)?.members().filter(|claim| cluster.allocation(*claim).is_some()).collect();
    if placed.iter().any(|claim| cluster.left_alone_ms(*claim).is_some()) {
        return None;
    }
    let mut statement = Statement::new(cluster);
    for claim in placed {
        let of = statement.cluster().claim(claim)?;
        let spare = |budget: &String| statement.cluster().spare_of_budget(&of.namespace, budget);
        if of.disruption_budget.as_ref().is_some_and(|budget| spare(budget) == 0) {
            return None;
        }
        statement.evict(claim).ok()?;
    }
    Some(statement.keep(&because))
}
