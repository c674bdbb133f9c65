//! Why something waits: what is in its way, in tiers.

use crate::explain::shortage::{Exclusion, Nearest, NodeCount, Shortage};
use crate::vocabulary::claim::ClaimId;
use crate::vocabulary::protection::Protection;
use crate::vocabulary::resource::Resource;
use crate::vocabulary::share::Share;

/// What is in the way of a group's next members. It holds names and amounts only, and reads as a sentence that says
/// what to do.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Reason {
    /// Members that must be placed together have not been added yet.
    MembersMissing {
        /// Members that there are.
        members: u32,
        /// Members that must still be added.
        missing: u32,
    },
    /// Its namespace would hold more than it may.
    NamespaceLimit(Bound),
    /// Its queue, or one above it, would hold more than it may.
    QueueLimit(Bound),
    /// It may not be evicted, and what may not be evicted would pass a queue's quota.
    NonPreemptibleOverQuota(Bound),
    /// Nothing that is free fits, and its queue would be above its fair share, so nobody else is evicted for it.
    AboveFairShare(Share),
    /// Nothing that is free fits, and from those who hold more than their fair share nothing can be taken.
    NothingToReclaim {
        /// What its own queue would hold.
        own: Share,
        /// The queues above their fair share, the one that is furthest above first.
        holders: Vec<Holder>,
    },
    /// Room could be made, but too much would be evicted for it.
    TooDisruptive,
    /// No domain of a topology level has room for all members that must be in one.
    Topology {
        /// The level whose domains are too small.
        level: String,
        /// Members that must find room.
        wanted: u32,
        /// The domain in which most of them do, and how many. `None` in what a cycle says, and where there is no
        /// domain.
        best: Option<(String, u32)>,
    },
    /// The level in one domain of which members must be together is not one of the topology's.
    NoSuchLevel {
        /// The level that the group asks for.
        level: String,
        /// The levels that there are, the outermost first.
        levels: Vec<String>,
    },
    /// There are nodes that could take it, but now there is no room.
    NoRoom {
        /// Members that must find room together.
        wanted: u32,
        /// So many of them would.
        fitting: u32,
        /// What the nodes lack for the next one, what most of them lack first. Empty in what a cycle says: only who
        /// explains looks.
        nodes: Vec<NodeCount<Shortage>>,
        /// The node that lacks least.
        nearest: Option<Nearest>,
    },
    /// There is no node that may take it, whatever is free.
    NoSuchNode {
        /// How many nodes there are.
        nodes: u32,
        /// How many of them each thing excludes, the one that excludes most first. A node can be counted several times.
        excluded: Vec<NodeCount<Exclusion>>,
    },
    /// No node that may take it is large enough, even if nothing else were there.
    TooLarge {
        /// Members that must find room together.
        wanted: u32,
        /// So many of them would, if nothing else were there.
        fitting: u32,
        /// What the empty nodes lack for the next one, what most of them lack first.
        nodes: Vec<NodeCount<Shortage>>,
        /// The empty node that lacks least.
        nearest: Option<Nearest>,
    },
    /// Whether room can be made was not found out in the time for it; the next cycle goes on.
    SearchExhausted,
    /// There are more ways to put its group's sub-groups into domains than are tried, and none of those that were tried
    /// leads to room for all.
    TooManyWays,
    /// Others could be evicted for it, but it waits a while first.
    PreemptionDelayed {
        /// How much longer, in milliseconds.
        left_ms: u64,
    },
    /// A member could not be started where it was placed, and is tried again later.
    RetriedLater {
        /// How often that was so.
        failures: u32,
        /// How much longer it waits, in milliseconds.
        left_ms: u64,
    },
    /// Nodes are kept for others.
    NodesHeld {
        /// Nodes that have room for it and are kept, the oldest first.
        nodes: Vec<String>,
    },
    /// The next cycle makes room for it.
    RoomIsMade {
        /// Who is evicted or moved: ids and names.
        making_way: Vec<(ClaimId, String)>,
    },
    /// It runs on because its node has refused to evict it, and others are chosen for a while.
    EvictionRefused {
        /// How often that was so.
        refusals: u32,
        /// How much longer it is left alone, in milliseconds.
        left_ms: u64,
    },
    /// Nobody wants it any more. It is placed nowhere again.
    Withdrawn {
        /// The node on which it holds room until it is gone; `None`: it holds none.
        leaving: Option<String>,
    },
    /// It has its place, but others have not left it yet.
    StartsAfter {
        /// Who must be gone: ids and names.
        leaving: Vec<(ClaimId, String)>,
    },
}

/// How basic a reason is: of several the first tier is the one to name.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Tier {
    /// It is not complete yet.
    Members,
    /// The namespace's quota.
    Namespace,
    /// A queue's limit or quota.
    Quota,
    /// Fair shares.
    FairShare,
    /// Where members may be, relative to each other.
    Topology,
    /// The search for room that can be made ended too early.
    Search,
    /// Nothing is in its way but time: there is room, or some is made. This tier stands before a lack of room, because
    /// an autoscaler would otherwise add nodes for claims that the next cycle places.
    Waiting,
    /// What is free on nodes and devices.
    Device,
    /// Models, labels and taints.
    Model,
    /// How large nodes are.
    Size,
}

/// A bound that would be passed.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Bound {
    /// The queue whose bound it is; a namespace's queue for a namespace.
    pub queue: String,
    /// The resource that the bound is of.
    pub resource: Resource,
    /// What is held there now; where the bound is a quota, by claims that may not be evicted.
    pub held: u64,
    /// What would be added.
    pub asked: u64,
    /// The most that may be held of it there.
    pub bound: u64,
}

impl Bound {
    /// By how much it would be passed.
    #[must_use]
    pub fn excess(&self) -> u64 {
        self.needed().saturating_sub(self.bound)
    }

    /// The bound with which it would not be.
    #[must_use]
    pub fn needed(&self) -> u64 {
        self.held.saturating_add(self.asked)
    }
}

/// A queue that holds more than its fair share.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Holder {
    /// The name of the queue.
    pub queue: String,
    /// The resource that it holds too much of.
    pub resource: Resource,
    /// What it holds of the resource.
    pub held: u64,
    /// Its fair share of the resource.
    pub fair_share: u64,
    /// What keeps its units that are above the share from being evicted, and how many units each.
    pub protected: Vec<(Protection, u32)>,
    /// Units above the share that could be evicted, but do not make enough room, or too many would have to be evicted.
    pub evictable: u32,
}

impl Reason {
    /// The tier.
    #[must_use]
    pub fn tier(&self) -> Tier {
        match self {
            Self::MembersMissing { .. } => Tier::Members,
            Self::NamespaceLimit(_) => Tier::Namespace,
            Self::QueueLimit(_) | Self::NonPreemptibleOverQuota(_) => Tier::Quota,
            Self::AboveFairShare(_) | Self::NothingToReclaim { .. } | Self::TooDisruptive => Tier::FairShare,
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

    /// Whether more nodes like those that there are could help: what an autoscaler asks. Who waits for a quota, for
    /// members or for claims that are leaving already gains nothing by them.
    #[must_use]
    pub fn calls_for_nodes(&self) -> bool {
        !matches!(self, Self::NoSuchLevel { .. })
            && matches!(self.tier(), Tier::FairShare | Tier::Topology | Tier::Device)
    }
}
