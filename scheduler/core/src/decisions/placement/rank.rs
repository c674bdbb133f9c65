//! What a task wants of its node before a placement policy is asked: an earlier choice of its alternatives, and then a node
//! that it prefers.

use crate::vocabulary::preference::Preferences;
use crate::vocabulary::request::Request;
use crate::vocabulary::spec::NodeSpec;

/// The least is the best. 0 for tasks without alternatives and preferences.
pub(crate) type Rank = u32;

/// A cost with what is added for what is forgone has less bits. Together with those of ranks they fit into a number.
const COST_BITS: u32 = 34;

/// Of a choice with this rank, on a node.
pub(crate) fn rank(of_choice: u16, request: &Request, node: &NodeSpec) -> Rank {
    let of_node = request.preferences.as_ref().map_or(0, |preferences| preferences.rank(&node.labels));
    Rank::from(of_choice) << Preferences::RANK_BITS | Rank::from(of_node)
}

/// What a rank adds to costs: more than any difference between those of a policy.
pub(crate) fn surcharge(rank: Rank) -> i64 {
    i64::from(rank) << COST_BITS
}
