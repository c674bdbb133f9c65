//! What a task wants of its node before a placement policy is asked: an earlier choice of its alternatives, and then a node
//! that it prefers.
//!
//! Preferences of several kinds are weighed against each other as kube-scheduler's plugins are by default. Each says how
//! far a node is from the best, from 0 to [`Preferences::FARTHEST`]. Unlike there, what is best and farthest does not
//! depend on which nodes have room: so a distance can be told of one node, and kept.

use crate::vocabulary::known_node::KnownNode;
use crate::vocabulary::preference::Preferences;
use crate::vocabulary::request::Request;

/// The least is the best. 0 for tasks without alternatives, on nodes that are as the tasks prefer them.
pub(crate) type Rank = u32;

/// A cost with what is added for what is forgone has less bits. Together with those of ranks they fit into a number.
const COST_BITS: u32 = 34;

/// The sum of all distances, each with its weight, has less bits.
const DISTANCE_BITS: u32 = 11;

/// What kinds of preferences weigh: taints, labels of nodes, and both that [`distance_of_peers`] has.
const TAINT_WEIGHT: u32 = 3;
const LABEL_WEIGHT: u32 = 2;
const PEER_WEIGHT: u32 = 2;

/// Of so many taints each makes a node farther; further ones make no difference.
const TAINTS_MAX: u32 = 3;

const _: () = assert!(
    Preferences::FARTHEST * (TAINT_WEIGHT * TAINTS_MAX + LABEL_WEIGHT + 2 * PEER_WEIGHT) < 1 << DISTANCE_BITS,
    "no distance is as much as another choice"
);

/// Of a choice with this rank, on a node, as far as that does not depend on where others are.
pub(crate) fn rank(of_choice: u16, request: &Request, node: &KnownNode) -> Rank {
    let by_labels = request.preferences.as_ref().map_or(0, |preferences| preferences.distance(&node.labels));
    let taints = request.constraints.disliked_taints(node);
    let taints = u32::try_from(taints).unwrap_or(TAINTS_MAX).min(TAINTS_MAX);
    let distance = TAINT_WEIGHT * Preferences::FARTHEST * taints + LABEL_WEIGHT * by_labels;
    (Rank::from(of_choice) << DISTANCE_BITS) + distance
}

/// What is added to a rank for where others are: how far the node is from the best for being near to others, and for an
/// even spread, neither of them above [`Preferences::FARTHEST`].
pub(crate) fn distance_of_peers(near: u32, even: u32) -> Rank {
    PEER_WEIGHT * (near + even)
}

/// What a rank adds to costs: more than any difference between those of a policy.
pub(crate) fn surcharge(rank: Rank) -> i64 {
    i64::from(rank) << COST_BITS
}
