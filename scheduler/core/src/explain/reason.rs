//! Why something waits: what is in its way, in tiers.

use std::fmt::{self, Display, Formatter};

use crate::claim::ClaimId;
use crate::explain::amount::{Amount, Count, Listed, Span, Times};
use crate::explain::shortage::{Exclusion, Nearest, NodeCount, Shortage};
use crate::namespace::NamespaceSpec;
use crate::resource::Resource;

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
    /// No domain of a topology level has room for all members that must be in one.
    Topology {
        /// The level.
        level: String,
        /// Members that must find room.
        wanted: u32,
        /// The domain in which most of them do, and how many. `None` in what a cycle says, and where there is no domain.
        best: Option<(String, u32)>,
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
        /// Number of nodes.
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
    /// What is free on nodes and devices.
    Device,
    /// Models, labels and taints.
    Model,
    /// How large nodes are.
    Size,
    /// The search ended too early.
    Search,
    /// Nothing is in its way but time.
    Waiting,
}

/// A bound that would be passed.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Bound {
    /// The queue whose bound it is; a namespace's queue for a namespace.
    pub queue: String,
    /// Of what.
    pub resource: Resource,
    /// What is held there now; where the bound is a quota, by claims that may not be evicted.
    pub held: u64,
    /// What would be added.
    pub asked: u64,
    /// The bound.
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

/// What a queue would hold, and its fair share.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Share {
    /// The queue.
    pub queue: String,
    /// Of what: the resource of which it would be furthest above its share, or nearest to it.
    pub resource: Resource,
    /// What it holds.
    pub held: u64,
    /// What would be added.
    pub asked: u64,
    /// Its fair share.
    pub fair_share: u64,
}

/// A queue that holds more than its fair share.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Holder {
    /// The queue.
    pub queue: String,
    /// Of what.
    pub resource: Resource,
    /// What it holds.
    pub held: u64,
    /// Its fair share.
    pub fair_share: u64,
    /// What keeps its units that are above the share from being evicted, and how many units each.
    pub protected: Vec<(Protection, u32)>,
    /// Units above the share that could be evicted, but do not make enough room, or too many would have to be evicted.
    pub evictable: u32,
}

/// What keeps a unit from being evicted.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Protection {
    /// It may not be evicted at all.
    NonPreemptible,
    /// It has not run long enough yet.
    MinRuntime {
        /// How much longer the first of them is protected, in milliseconds.
        left_ms: u64,
    },
    /// Too few of a disruption budget's claims would be left.
    DisruptionBudget {
        /// The budget.
        name: String,
    },
}

impl Reason {
    /// The tier.
    #[must_use]
    pub fn tier(&self) -> Tier {
        match self {
            Self::MembersMissing { .. } => Tier::Members,
            Self::NamespaceLimit(_) => Tier::Namespace,
            Self::QueueLimit(_) | Self::NonPreemptibleOverQuota(_) => Tier::Quota,
            Self::AboveFairShare(_) | Self::NothingToReclaim { .. } => Tier::FairShare,
            Self::Topology { .. } => Tier::Topology,
            Self::NoRoom { .. } => Tier::Device,
            Self::NoSuchNode { .. } => Tier::Model,
            Self::TooLarge { .. } => Tier::Size,
            Self::SearchExhausted => Tier::Search,
            Self::PreemptionDelayed { .. }
            | Self::RetriedLater { .. }
            | Self::NodesHeld { .. }
            | Self::StartsAfter { .. } => Tier::Waiting,
        }
    }

    /// Whether more nodes like those that there are could help: what an autoscaler asks. Who waits for a quota, for
    /// members or for claims that are leaving already gains nothing by them.
    #[must_use]
    pub fn calls_for_nodes(&self) -> bool {
        matches!(self.tier(), Tier::FairShare | Tier::Topology | Tier::Device)
    }
}

impl Display for Reason {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        match self {
            Self::MembersMissing { members, missing } => write!(
                f,
                "the pod group has {} and needs {} more that must be placed together; add them, or lower the minimum",
                Count((*members).into(), "member"),
                missing,
            ),
            Self::NamespaceLimit(bound) | Self::QueueLimit(bound) => passes(f, "limit", "", bound),
            Self::NonPreemptibleOverQuota(bound) => {
                passes(f, "quota", " for claims that may not be evicted", bound)?;
                write!(f, ", or make the claim preemptible")
            }
            Self::AboveFairShare(share) => write!(
                f,
                "nothing that is free fits, and {} holds {} of its fair share of {}: {} more would be above \
                 it, so nobody is evicted for this; wait, or raise the queue's quota or weight",
                Owner(&share.queue),
                Amount(&share.resource, share.held),
                Amount(&share.resource, share.fair_share),
                Amount(&share.resource, share.asked),
            ),
            Self::NothingToReclaim { own, holders } => {
                write!(
                    f,
                    "nothing that is free fits; {} stays within its fair share with this ({} and {} of {}), but \
                     from those above theirs nothing can be taken now: {}",
                    Owner(&own.queue),
                    Amount(&own.resource, own.held),
                    Amount(&own.resource, own.asked),
                    Amount(&own.resource, own.fair_share),
                    Listed(holders),
                )
            }
            Self::Topology { level, wanted, best: Some((domain, fitting)) } => write!(
                f,
                "no one {level:?} has room for {}; {domain:?} has for {fitting}, more than any other",
                Count((*wanted).into(), "member"),
            ),
            Self::Topology { level, wanted, best: None } => {
                write!(f, "no one {level:?} has room for {}", Count((*wanted).into(), "member"))
            }
            Self::NoRoom { wanted, fitting, nodes, nearest } => {
                let so_far = Fitting { wanted: *wanted, fitting: *fitting };
                no_room(f, "no node has room now", &so_far, nodes, nearest.as_ref())
            }
            Self::TooLarge { wanted, fitting, nodes, nearest } => {
                let so_far = Fitting { wanted: *wanted, fitting: *fitting };
                no_room(f, "no node is large enough, even if nothing else were there", &so_far, nodes, nearest.as_ref())
            }
            Self::NoSuchNode { nodes: 0, .. } => write!(f, "there is no node; add one"),
            Self::NoSuchNode { nodes, excluded } => {
                write!(f, "none of {} may take it: {}", Count((*nodes).into(), "node"), Listed(excluded),)
            }
            Self::SearchExhausted => {
                write!(
                    f,
                    "whether room can be made for it was not found out in the time for that; the next cycle goes on"
                )
            }
            Self::RetriedLater { failures, left_ms } => write!(
                f,
                "it could not be started {} where it was placed, and is tried again in {}; see why its node refused it",
                Times(*failures),
                Span(*left_ms),
            ),
            Self::PreemptionDelayed { left_ms } => {
                write!(f, "others can be evicted for it, but it waits {} before that", Span(*left_ms))
            }
            Self::NodesHeld { nodes } => {
                write!(f, "where there is room is kept for claims that have waited longer: {}", Quoted(nodes))
            }
            Self::StartsAfter { leaving } => {
                let names: Vec<String> = leaving.iter().map(|(_, name)| name.clone()).collect();
                write!(
                    f,
                    "it has its place, and starts when those that are being evicted there are gone: {}",
                    Quoted(&names)
                )
            }
        }
    }
}

/// So many members of those that must be placed together find room.
struct Fitting {
    wanted: u32,
    fitting: u32,
}

fn no_room(
    f: &mut Formatter<'_>,
    what: &str,
    Fitting { wanted, fitting }: &Fitting,
    nodes: &[NodeCount<Shortage>],
    nearest: Option<&Nearest>,
) -> fmt::Result {
    match wanted {
        0 | 1 => f.write_str(what)?,
        _ => write!(f, "{fitting} of {wanted} members that must be placed together find room; for the next {what}")?,
    }
    if !nodes.is_empty() {
        write!(f, ": {}", Listed(nodes))?;
    }
    match nearest {
        Some(Nearest { node, lacks }) => {
            let lacks: Vec<String> = lacks.iter().map(Shortage::on_one).collect();
            write!(f, "; nearest is node {node:?}, where {}", Listed(&lacks))
        }
        None => Ok(()),
    }
}

fn passes(f: &mut Formatter<'_>, kind: &str, whose: &str, bound: &Bound) -> fmt::Result {
    let amount = |amount: u64| Amount(&bound.resource, amount).to_string();
    write!(
        f,
        "{} holds {} of its {kind} of {}{whose}, and {} more are asked for, {} too much; wait until \
         claims in it end, ask for less, raise the {kind} to {}",
        Owner(&bound.queue),
        amount(bound.held),
        amount(bound.bound),
        amount(bound.asked),
        amount(bound.excess()),
        amount(bound.needed()),
    )
}

/// A queue, or the namespace that a queue stands for.
pub(crate) struct Owner<'a>(pub(crate) &'a str);

impl Display for Owner<'_> {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        match NamespaceSpec::of_queue(self.0) {
            Some(namespace) => write!(f, "namespace {namespace:?}"),
            None => write!(f, "queue {:?}", self.0),
        }
    }
}

impl Display for Holder {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let amounts = [self.held, self.fair_share].map(|amount| Amount(&self.resource, amount).to_string());
        write!(f, "{} holds {} with a fair share of {}", Owner(&self.queue), amounts[0], amounts[1])?;
        let protected = self.protected.iter().map(|(protection, units)| format!("{units} {protection}"));
        let evictable = (self.evictable > 0).then(|| format!("{} may be evicted, which is not enough", self.evictable));
        let parts: Vec<String> = protected.chain(evictable).collect();
        match parts.is_empty() {
            true => Ok(()),
            false => write!(f, " (of what is above it {})", Listed(&parts)),
        }
    }
}

impl Display for Protection {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        match self {
            Self::NonPreemptible => write!(f, "may not be evicted"),
            Self::MinRuntime { left_ms } => write!(f, "must run {} longer first", Span(*left_ms)),
            Self::DisruptionBudget { name } => write!(f, "are protected by disruption budget {name:?}"),
        }
    }
}

/// Names in quotes, the first ones if there are many.
pub(crate) struct Quoted<'a>(pub(crate) &'a [String]);

/// Names that are written out.
const NAMES_MAX: usize = 5;

impl Display for Quoted<'_> {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let mut parts: Vec<String> = self.0.iter().take(NAMES_MAX).map(|name| format!("{name:?}")).collect();
        if self.0.len() > NAMES_MAX {
            parts.push(format!("{} more", self.0.len() - NAMES_MAX));
        }
        Listed(&parts).fmt(f)
    }
}
