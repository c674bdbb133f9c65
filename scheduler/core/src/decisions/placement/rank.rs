//! The rank of a node for a task, which counts before the placement policy's cost: first an earlier choice among
//! alternatives, then a preferred node.
//!
//! Preferences of several kinds are weighed against each other by the default weights of kube-scheduler's plugins. Each
//! kind says how far a node is from the best, from 0 to [`Preferences::FARTHEST`]. In kube-scheduler, the best and the
//! farthest depend on which nodes have room. Here they do not, so the distance of one node can be computed by itself,
//! and kept.

use crate::state::node::Node;
use crate::vocabulary::preference::Preferences;
use crate::vocabulary::request::Request;

/// The least rank is the best. 0 for the first choice on a node that is as the task prefers it.
pub(crate) type Rank = u32;

/// A cost with its surcharge has fewer bits than this. Together with the bits of a rank it fits into one number.
const COST_BITS: u32 = 34;

/// The weighted sum of all distances has fewer bits than this.
const DISTANCE_BITS: u32 = 11;

/// The weights of the kinds of preferences: taints, labels of nodes, and each of the two parts of
/// [`distance_of_peers`].
const TAINT_WEIGHT: u32 = 3;
const LABEL_WEIGHT: u32 = 2;
const PEER_WEIGHT: u32 = 2;

/// Up to this many taints, each makes a node farther; further taints make no difference.
const TAINTS_MAX: u32 = 3;

const _: () = assert!(
    Preferences::FARTHEST * (TAINT_WEIGHT * TAINTS_MAX + LABEL_WEIGHT + 2 * PEER_WEIGHT) < 1 << DISTANCE_BITS,
    "no distance is as much as another choice"
);

/// The rank of a choice on a node, without the part that depends on the places of other tasks.
pub(crate) fn rank(of_choice: u16, request: &Request, node: &Node) -> Rank {
    let by_labels = request.preferences.as_ref().map_or(0, |preferences| preferences.distance(&node.spec().labels));
    let taints = if node.has_disliked_taint() { request.constraints.disliked_taints(node.spec()) } else { 0 };
    let taints = u32::try_from(taints).unwrap_or(TAINTS_MAX).min(TAINTS_MAX);
    let distance = TAINT_WEIGHT * Preferences::FARTHEST * taints + LABEL_WEIGHT * by_labels;
    (Rank::from(of_choice) << DISTANCE_BITS) + distance
}

/// The part of a rank that depends on the places of other tasks. `near` is the node's distance from the best for being
/// near others, `even` that for an even spread; each is at most [`Preferences::FARTHEST`].
pub(crate) fn distance_of_peers(near: u32, even: u32) -> Rank {
    PEER_WEIGHT * (near + even)
}

/// What a rank adds to the cost. One rank adds more than any difference between costs of a policy.
pub(crate) fn surcharge(rank: Rank) -> i64 {
    i64::from(rank) << COST_BITS
}
