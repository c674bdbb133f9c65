//! Reasons as sentences.

use std::fmt::{self, Display, Formatter};

use crate::explain::reason::{Bound, Holder, Reason};
use crate::explain::shortage::{Nearest, NodeCount, Shortage};
use crate::vocabulary::amount::{Amount, Count, Listed, Span, Times};
use crate::vocabulary::namespace::NamespaceSpec;
use crate::vocabulary::protection::Protection;
use crate::vocabulary::share::Share;

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
            Self::NothingToPreempt { queue, protected, evictable } => write!(
                f,
                "nothing that is free fits, and of what has a lower priority in {} {}",
                Owner(queue),
                WhatStays { protected, evictable: *evictable },
            ),
            Self::Topology { level, wanted, best: Some((domain, fitting)) } => write!(
                f,
                "no one {level:?} has room for {}; {domain:?} has for {fitting}, more than any other",
                Count((*wanted).into(), "member"),
            ),
            Self::Topology { level, wanted, best: None } => {
                write!(f, "no one {level:?} has room for {}", Count((*wanted).into(), "member"))
            }
            Self::NoSuchLevel { level, levels } if levels.is_empty() => write!(
                f,
                "its members must be in one {level:?}, but the cluster has no topology; set one with that level, or \
                 leave the level out"
            ),
            Self::NoSuchLevel { level, levels } => write!(
                f,
                "its members must be in one {level:?}, which is no level of the cluster's topology (now {}); name one \
                 of its levels, or add this one",
                Quoted(levels),
            ),
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
            Self::TooManyWays => write!(
                f,
                "there are more ways to put its sub-groups into domains than are tried; ask for a wider level, or for fewer \
                 sub-groups with a level of their own"
            ),
            Self::RetriedLater { failures, left_ms } => write!(
                f,
                "it could not be started {} where it was placed, and is tried again in {}; see why its node refused it",
                Times(*failures),
                Span(*left_ms),
            ),
            Self::OftenFailedToStart { failures, left_ms } => write!(
                f,
                "nothing that is free fits, and it could not be started {} where it was placed, so for {} nobody is moved \
                 or evicted for it; see why its node refused it",
                Times(*failures),
                Span(*left_ms),
            ),
            Self::PreemptionDelayed { left_ms } => {
                write!(f, "others can be evicted for it, but it waits {} before that", Span(*left_ms))
            }
            Self::NodesHeld { nodes } => {
                write!(f, "where there is room is kept for claims that have waited longer: {}", Quoted(nodes))
            }
            Self::TooDisruptive => write!(
                f,
                "nothing that is free fits, and to make room far more would have to be evicted than it asks for; wait, \
                 or ask for less"
            ),
            Self::RoomIsMade { making_way } => {
                let names: Vec<String> = making_way.iter().map(|(_, name)| name.clone()).collect();
                write!(f, "the next cycle makes room for it: {} must make way", Quoted(&names))
            }
            Self::EvictionRefused { refusals, left_ms } => write!(
                f,
                "it was to be evicted and its node refused, {} so far; it is left alone for {}",
                Count((*refusals).into(), "time"),
                Span(*left_ms)
            ),
            Self::Withdrawn { leaving: Some(node) } => {
                write!(f, "it was withdrawn, and holds its room on node {node:?} until it is gone")
            }
            Self::Withdrawn { leaving: None } => write!(f, "it was withdrawn, and holds no room any more"),
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

/// How many of the members that must be placed together find room.
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
    if bound.kept > 0 {
        return write!(
            f,
            "{} holds {} of its {kind} of {}{whose}, and {} are kept for claims that have waited longer; \
             {} more are asked for; wait, or raise the {kind} to {}",
            Owner(&bound.queue),
            amount(bound.held),
            amount(bound.bound),
            amount(bound.kept),
            amount(bound.asked),
            amount(bound.needed()),
        );
    }
    // If it does not fit into the whole bound, waiting does not help.
    let wait = if bound.asked > bound.bound { "" } else { "wait until claims in it end, " };
    write!(
        f,
        "{} holds {} of its {kind} of {}{whose}, and {} more are asked for, {} too much; {wait}ask for less, raise the \
         {kind} to {}",
        Owner(&bound.queue),
        amount(bound.held),
        amount(bound.bound),
        amount(bound.asked),
        amount(bound.excess()),
        amount(bound.needed()),
    )
}

/// A queue, or the namespace whose quota the queue is.
pub(crate) struct Owner<'a>(pub(crate) &'a str);

impl Display for Owner<'_> {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        match NamespaceSpec::of_queue(self.0) {
            Some(namespace) => write!(f, "namespace {namespace:?}"),
            None => write!(f, "queue {:?}", self.0),
        }
    }
}

impl Display for Share {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let (held, fair_share) = (Amount(&self.resource, self.held), Amount(&self.resource, self.fair_share));
        write!(f, "{} held {held} of its fair share of {fair_share}", Owner(&self.queue))
    }
}

impl Display for Holder {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let amounts = [self.held, self.fair_share].map(|amount| Amount(&self.resource, amount).to_string());
        write!(f, "{} holds {} with a fair share of {}", Owner(&self.queue), amounts[0], amounts[1])?;
        match self.protected.is_empty() && self.evictable == 0 {
            true => Ok(()),
            false => {
                let stays = WhatStays { protected: &self.protected, evictable: self.evictable };
                write!(f, " (of what is above it {stays})")
            }
        }
    }
}

/// How many units are protected by what, and how many could go, but are not enough.
struct WhatStays<'a> {
    protected: &'a [(Protection, u32)],
    evictable: u32,
}

impl Display for WhatStays<'_> {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let protected = self.protected.iter().map(|(protection, units)| format!("{units} {protection}"));
        let evictable = (self.evictable > 0).then(|| format!("{} may be evicted, which is not enough", self.evictable));
        Listed(&protected.chain(evictable).collect::<Vec<String>>()).fmt(f)
    }
}

impl Display for Protection {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        match self {
            Self::NonPreemptible => write!(f, "may not be evicted"),
            Self::MinRuntime { left_ms } => write!(f, "must run {} longer first", Span(*left_ms)),
            Self::EvictionRefused { left_ms } => {
                write!(f, "are left alone for {} because their node refused to evict them", Span(*left_ms))
            }
            Self::DisruptionBudget { name } => write!(f, "are protected by disruption budget {name:?}"),
        }
    }
}

/// Names in quotes. If there are many, only the first ones.
pub(crate) struct Quoted<'a>(pub(crate) &'a [String]);

/// The most names that are written out.
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
