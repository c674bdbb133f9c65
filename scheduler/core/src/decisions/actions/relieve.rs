//! Relieves nodes that run more than they have: claims were seen running there that were not placed there, or the node
//! has become smaller. All claims there get less than was promised, so the least important ones are evicted.

use std::cmp::Reverse;

use crate::decisions::plan::cause;
use crate::state::cluster::Cluster;
use crate::state::node::Node;
use crate::state::statement::Statement;
use crate::vocabulary::claim::{Action, ClaimId, NodeId};
use crate::vocabulary::pod_group::GroupId;
use crate::vocabulary::step::Step;

/// Evicts claims from each node of which more is held than it has, until this is no longer so. The lowest priority goes
/// first, and of equal priorities the claim that started last. A started claim that may not be evicted stays. A claim
/// whose node has refused to evict it stays for a while.
pub(crate) fn relieve(cluster: &mut Cluster) -> Vec<(GroupId, Vec<Step>)> {
    let nodes: Vec<NodeId> = cluster.over_committed().collect();
    let mut evicted = Vec::new();
    for node in nodes {
        for claim in candidates(cluster, node) {
            if !holds_too_much(cluster, node, claim) {
                continue;
            }
            let Some((group, mut victims)) = unit_of(cluster, claim) else { continue };
            if victims.iter().any(|victim| cluster.left_alone_ms(*victim).is_some()) {
                continue;
            }
            victims.retain(|victim| may_go(cluster, *victim));
            evicted.extend(evict(cluster, group, &victims).map(|steps| (group, steps)));
        }
    }
    evicted
}

/// The claims on a node that may be evicted, in the order in which they go.
fn candidates(cluster: &Cluster, node: NodeId) -> Vec<ClaimId> {
    let there = cluster.node(node).into_iter().flat_map(Node::claims);
    let ranked = there.filter_map(|claim| {
        let spec = cluster.group(cluster.group_of(claim)?)?.spec();
        let started_ms = cluster.started_ms(claim).unwrap_or(u64::MAX);
        may_go(cluster, claim).then_some((spec.priority, Reverse(started_ms), Reverse(claim)))
    });
    let mut ranked: Vec<_> = ranked.collect();
    ranked.sort_unstable();
    ranked.into_iter().map(|(.., Reverse(claim))| claim).collect()
}

/// A claim that has not started may always go: it loses no work.
fn may_go(cluster: &Cluster, claim: ClaimId) -> bool {
    let group = cluster.group_of(claim).and_then(|group| cluster.group(group));
    cluster.started_ms(claim).is_none() || group.is_some_and(|group| group.spec().preemptible)
}

fn holds_too_much(cluster: &Cluster, node: NodeId, claim: ClaimId) -> bool {
    let (Some(node), Some(of), Some(at)) = (cluster.node(node), cluster.claim(claim), cluster.allocation(claim)) else {
        return false;
    };
    node.holds_over_committed(&of.request, at)
}

/// The claims that are evicted together with a claim: if its group needs it, all members that the group needs.
fn unit_of(cluster: &Cluster, claim: ClaimId) -> Option<(GroupId, Vec<ClaimId>)> {
    let id = cluster.group_of(claim)?;
    let (needed, _) = cluster.group(id)?.placed_parts();
    Some((id, if needed.contains(&claim) { needed } else { vec![claim] }))
}

fn evict(cluster: &mut Cluster, group: GroupId, victims: &[ClaimId]) -> Option<Vec<Step>> {
    let mut because = cause(cluster, Action::Relieve, group);
    because.by = None;
    let mut statement = Statement::new(cluster);
    for claim in victims {
        let of = statement.cluster().claim(*claim)?;
        let spare = |budget: &String| statement.cluster().spare_of_budget(&of.namespace, budget);
        if of.disruption_budget.as_ref().is_some_and(|budget| spare(budget) == 0) {
            return None;
        }
        statement.evict(*claim).ok()?;
    }
    Some(statement.keep(&because))
}
