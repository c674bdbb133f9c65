//! What keeps one more task from one node, for callers that choose nodes in another way than by cycles.

use std::fmt::{self, Display, Formatter};

use crate::decisions::scheduler::Scheduler;
use crate::decisions::unit::Unit;
use crate::explain::pending::over_bound;
use crate::explain::reason::Reason;
use crate::explain::room::{exclusions, lacks};
use crate::explain::shortage::{Exclusion, Shortage};
use crate::state::cluster::peer_rules::PeerRules;
use crate::state::cluster::{Cluster, limits};
use crate::vocabulary::claim::{ClaimId, NodeId};
use crate::vocabulary::request::Request;

/// Why one more task cannot be placed on a node now.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum NodeObstacle {
    /// These exclude the task, whatever is free.
    Excluded(Vec<Exclusion>),
    /// The node does not have this even when it is empty.
    TooSmall(Vec<Shortage>),
    /// The node is kept for a group that has waited for long.
    Held,
    /// The node lacks this now.
    Full(Vec<Shortage>),
}

impl NodeObstacle {
    /// What keeps one more task with this request from a node; `None`: it fits there now.
    #[must_use]
    pub fn of(cluster: &Cluster, request: &Request, node: NodeId) -> Option<Self> {
        let books = cluster.node(node)?;
        let excluded: Vec<Exclusion> = exclusions(books, request).collect();
        if !excluded.is_empty() {
            return Some(Self::Excluded(excluded));
        }
        let rules = PeerRules::of(cluster, request);
        let lacking = lacks(books, request, rules.as_ref());
        if lacking.is_empty() {
            return cluster.is_held(node).then_some(Self::Held);
        }
        match lacks(&books.emptied(), request, None) {
            too_small if too_small.is_empty() => Some(Self::Full(lacking)),
            too_small => Some(Self::TooSmall(too_small)),
        }
    }

    /// Whether the obstacle stays even if other claims leave the node.
    #[must_use]
    pub fn is_lasting(&self) -> bool {
        matches!(self, Self::Excluded(_) | Self::TooSmall(_))
    }
}

impl Display for NodeObstacle {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let joined =
            |lacking: &[Shortage]| lacking.iter().map(Shortage::on_one).collect::<Vec<String>>().join(", and ");
        match self {
            Self::Excluded(all) => {
                f.write_str(&all.iter().map(Exclusion::on_one).collect::<Vec<String>>().join(", and "))
            }
            Self::TooSmall(lacking) => write!(f, "the empty node is too small: {}", joined(lacking)),
            Self::Held => f.write_str("the node is kept for a task that has waited for long"),
            Self::Full(lacking) => f.write_str(&joined(lacking)),
        }
    }
}

impl Scheduler {
    /// The bounds of a pending claim's queue, and of the queues above it, that the claim would exceed wherever it is
    /// placed, by itself or with what is kept for others that have waited longer.
    #[must_use]
    pub fn bounds_passed(&self, cluster: &Cluster, claim: ClaimId) -> Vec<Reason> {
        let of = || Some((cluster.class(cluster.class_of(claim)?)?, cluster.group_of(claim)?));
        let Some((class, id)) = of() else { return Vec::new() };
        let Some(group) = cluster.group(id) else { return Vec::new() };
        let (charge, preemptible) = (class.least_charge(), group.spec().preemptible);
        let exceeded = limits::exceeded(cluster, group.queue(), charge, preemptible, false);
        let unit = Unit::next(cluster, id).ok().flatten();
        let kept = unit.and_then(|unit| self.holds.bounds.exceeded(cluster, &unit));
        exceeded.chain(kept).map(|exceeded| over_bound(cluster, &exceeded)).collect()
    }
}
