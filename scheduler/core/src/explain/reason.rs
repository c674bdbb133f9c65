//! Reasons why a group waits, sorted into tiers.

use crate::explain::shortage::{Exclusion, Nearest, NodeCount, Shortage};
use crate::vocabulary::claim::ClaimId;
use crate::vocabulary::protection::Protection;
use crate::vocabulary::resource::Resource;
use crate::vocabulary::share::Share;

/// What is in the way of a group's next members. It holds only names and amounts, and reads as a sentence that says
/// what to do.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Reason {
    /// Members that must be placed together have not been added yet.
    MembersMissing {
        /// Members that have been added.
        members: u32,
        /// Members that must still be added.
        missing: u32,
    },
    /// Its namespace would hold more than it may.
    NamespaceLimit(Bound),
    /// Its queue, or one above it, would hold more than it may.
    QueueLimit(Bound),
    /// It may not be evicted, and claims that may not be evicted would exceed a queue's quota.
    NonPreemptibleOverQuota(Bound),
    /// It does not fit into free room, and it would put its queue above the queue's fair share, so no claim is evicted
    /// for it.
    AboveFairShare(Share),
    /// It does not fit into free room, and nothing can be reclaimed from queues above their fair share.
    NothingToReclaim {
        /// What its own queue would hold.
        own: Share,
        /// The queues above their fair share, the one that is furthest above first.
        holders: Vec<Holder>,
    },
    /// It does not fit into free room, and not enough of what has a lower priority in its queue may be evicted for it.
    NothingToPreempt {
        /// The name of its queue.
        queue: String,
        /// What protects units of a lower priority from eviction, and the number of units for each protection.
        protected: Vec<(Protection, u32)>,
        /// The number of units of a lower priority that could be evicted, but would not make enough room.
        evictable: u32,
    },
    /// Room could be made, but too much would be evicted for it.
    TooDisruptive,
    /// No domain of a topology level has room for all members that must be in one domain.
    Topology {
        /// The level whose domains are too small.
        level: String,
        /// Members that must find room.
        wanted: u32,
        /// The domain in which most members find room, and their number. `None` in a cycle's report, and where there is
        /// no domain.
        best: Option<(String, u32)>,
    },
    /// The topology level in one domain of which members must be together does not exist.
    NoSuchLevel {
        /// The level that the group asks for.
        level: String,
        /// The existing levels, the outermost first.
        levels: Vec<String>,
    },
    /// Some nodes could take it, but have no room now.
    NoRoom {
        /// Members that must find room together.
        wanted: u32,
        /// How many of them would find room.
        fitting: u32,
        /// What the nodes lack for the next member, the most frequent lack first. Empty in a cycle's report: only an
        /// explanation looks at this.
        nodes: Vec<NodeCount<Shortage>>,
        /// The node that lacks least.
        nearest: Option<Nearest>,
    },
    /// No node may take it, whatever is free.
    NoSuchNode {
        /// How many nodes there are.
        nodes: u32,
        /// How many of them each obstacle excludes, the most frequent first. A node can be counted several times.
        excluded: Vec<NodeCount<Exclusion>>,
    },
    /// No node that may take it is large enough, even without any other claim.
    TooLarge {
        /// Members that must find room together.
        wanted: u32,
        /// How many of them would find room without any other claim.
        fitting: u32,
        /// What the empty nodes lack for the next member, the most frequent lack first.
        nodes: Vec<NodeCount<Shortage>>,
        /// The empty node that lacks least.
        nearest: Option<Nearest>,
    },
    /// The search for room ended at its bound without a result; the next cycle continues it.
    SearchExhausted,
    /// There are more ways to assign its group's sub-groups to domains than are tried, and no tried way has room for
    /// all members.
    TooManyWays,
    /// Other claims could be evicted for it, but it must wait a while first.
    PreemptionDelayed {
        /// How much longer, in milliseconds.
        left_ms: u64,
    },
    /// A member failed to start where it was placed. It is tried again later.
    RetriedLater {
        /// How often it failed.
        failures: u32,
        /// How much longer it waits, in milliseconds.
        left_ms: u64,
    },
    /// It does not fit into free room, and a member has failed to start so often that for a while no claim is moved or
    /// evicted for it.
    OftenFailedToStart {
        /// How often it failed.
        failures: u32,
        /// How much longer no claim makes way for it, in milliseconds.
        left_ms: u64,
    },
    /// Nodes are kept for other groups.
    NodesHeld {
        /// The nodes that have room for it but are kept for others, the oldest first.
        nodes: Vec<String>,
    },
    /// The next cycle makes room for it.
    RoomIsMade {
        /// The claims that are evicted or moved: ids and names.
        making_way: Vec<(ClaimId, String)>,
    },
    /// It runs on because its node has refused to evict it. For a while other claims are chosen instead.
    EvictionRefused {
        /// How often the node has refused.
        refusals: u32,
        /// How much longer it is left alone, in milliseconds.
        left_ms: u64,
    },
    /// It was withdrawn, and is never placed again.
    Withdrawn {
        /// The node on which it holds room until it is gone; `None`: it holds none.
        leaving: Option<String>,
    },
    /// It has its place, but other claims have not left that place yet.
    StartsAfter {
        /// The claims that must be gone first: ids and names.
        leaving: Vec<(ClaimId, String)>,
    },
}

/// How basic a reason is. Of several reasons, the one with the first tier is the one to report.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Tier {
    /// The group does not have all its members yet.
    Members,
    /// The quota of the namespace.
    Namespace,
    /// The limit or quota of a queue.
    Quota,
    /// Fair shares, and what may be evicted for a claim.
    FairShare,
    /// Rules about where members may be, relative to each other.
    Topology,
    /// The search for room ended too early.
    Search,
    /// Only time is in its way: there is room, or room is being made. This tier stands before a lack of room. Otherwise
    /// an autoscaler would add nodes for claims that the next cycle places.
    Waiting,
    /// Free amounts on nodes and devices.
    Device,
    /// Models, labels and taints.
    Model,
    /// The size of nodes.
    Size,
}

/// A bound that would be exceeded. All amounts are in the resource's unit.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Bound {
    /// The queue that has the bound; for a namespace, the queue that holds its quota.
    pub queue: String,
    /// The resource that the bound is of.
    pub resource: Resource,
    /// What is held there now; for a quota, only by claims that may not be evicted.
    pub held: u64,
    /// How much would be added.
    pub asked: u64,
    /// How much is kept for a group that has waited longer. 0: the bound would be exceeded without that.
    pub kept: u64,
    /// The most that may be held there.
    pub bound: u64,
}

impl Bound {
    /// By how much the bound would be exceeded.
    #[must_use]
    pub fn excess(&self) -> u64 {
        self.needed().saturating_sub(self.bound)
    }

    /// The least bound that would not be exceeded.
    #[must_use]
    pub fn needed(&self) -> u64 {
        self.held.saturating_add(self.kept).saturating_add(self.asked)
    }
}

/// A queue that holds more than its fair share.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Holder {
    /// The name of the queue.
    pub queue: String,
    /// The resource of which it holds too much.
    pub resource: Resource,
    /// What it holds of the resource.
    pub held: u64,
    /// Its fair share of the resource.
    pub fair_share: u64,
    /// What protects its units above the share from eviction, and the number of units for each protection.
    pub protected: Vec<(Protection, u32)>,
    /// The number of units above the share that could be evicted, but would not make enough room, or only too many of
    /// them would.
    pub evictable: u32,
}

impl Reason {
    /// How basic this reason is.
    #[must_use]
    pub fn tier(&self) -> Tier {
        match self {
            Self::MembersMissing { .. } => Tier::Members,
            Self::NamespaceLimit(_) => Tier::Namespace,
            Self::QueueLimit(_) | Self::NonPreemptibleOverQuota(_) => Tier::Quota,
            Self::AboveFairShare(_)
            | Self::NothingToReclaim { .. }
            | Self::NothingToPreempt { .. }
            | Self::TooDisruptive
            | Self::OftenFailedToStart { .. } => Tier::FairShare,
            Self::Topology { .. } | Self::NoSuchLevel { .. } => Tier::Topology,
            Self::NoRoom { .. } => Tier::Device,
            Self::NoSuchNode { .. } => Tier::Model,
            Self::TooLarge { .. } => Tier::Size,
            Self::SearchExhausted | Self::TooManyWays => Tier::Search,
            Self::PreemptionDelayed { .. }
            | Self::RetriedLater { .. }
            | Self::NodesHeld { .. }
            | Self::RoomIsMade { .. }
            | Self::EvictionRefused { .. }
            | Self::Withdrawn { .. }
            | Self::StartsAfter { .. } => Tier::Waiting,
        }
    }

    /// Whether more nodes like the existing ones could help, for an autoscaler. More nodes do not help a group that
    /// waits for a quota, for members, or for claims that are already leaving.
    #[must_use]
    pub fn calls_for_nodes(&self) -> bool {
        match self {
            Self::NoSuchLevel { .. } => false,
            // Where the present nodes could hold some of the members, more such nodes could hold the others.
            Self::TooLarge { fitting, .. } => *fitting > 0,
            _ => matches!(self.tier(), Tier::FairShare | Tier::Topology | Tier::Device),
        }
    }
}
