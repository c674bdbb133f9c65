//! Why a claim was evicted: the chain of causes.

use std::collections::BTreeSet;
use std::fmt::{self, Display, Formatter};

use crate::state::cluster::Cluster;
use crate::vocabulary::amount::Span;
use crate::vocabulary::claim::{Action, ClaimId};
use crate::vocabulary::share::Share;

/// The most evictions that are followed back.
const EVICTIONS_MAX: usize = 16;

/// One eviction.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Eviction {
    /// The name of the claim that was evicted.
    pub name: String,
    /// The action that evicted it.
    pub action: Action,
    /// The name of the group that needed the room; empty: no particular group.
    pub by: String,
    /// When it was evicted, in milliseconds.
    pub at_ms: u64,
    /// How long ago that is, in milliseconds.
    pub ago_ms: u64,
    /// What the queues held then, with their fair shares: first the queue of the group that needed the room, then the
    /// queues that lost claims.
    pub shares: Vec<Share>,
}

/// Why a claim was last evicted, then why the group that it was evicted for had been evicted before that, and so on.
#[must_use]
pub fn evictions(cluster: &Cluster, claim: ClaimId) -> Vec<Eviction> {
    let mut evictions = Vec::new();
    let mut seen: BTreeSet<_> = cluster.group_of(claim).into_iter().collect();
    let mut evicted = Some(claim);
    while let Some((claim, cause)) = evicted.and_then(|claim| Some((claim, cluster.displaced(claim)?))) {
        evictions.push(Eviction {
            name: cluster.claim(claim).map(|claim| claim.name.to_string()).unwrap_or_default(),
            action: cause.action,
            by: cause.by_name.clone(),
            at_ms: cause.at_ms,
            ago_ms: cluster.now_ms().saturating_sub(cause.at_ms),
            shares: cause.shares.clone(),
        });
        // A group that was met before cannot be the cause of an earlier eviction.
        let by = cause.by.filter(|by| evictions.len() < EVICTIONS_MAX && seen.insert(*by));
        let members = by.and_then(|by| cluster.group(by)).into_iter().flat_map(|group| group.members());
        let before = members.filter_map(|member| Some((cluster.displaced(member)?.at_ms, member)));
        evicted = before.filter(|(at_ms, _)| *at_ms <= cause.at_ms).max_by_key(|(at_ms, _)| *at_ms).map(|(_, id)| id);
    }
    evictions
}

impl Eviction {
    /// What was done and why, without the time and the claim, such as `evicted for "b", which has a higher priority`.
    #[must_use]
    pub fn cause(&self) -> String {
        format!("{} {}{}", self.done(), self.why(), self.shares())
    }

    fn done(&self) -> &'static str {
        match self.action {
            Action::Consolidate => "moved",
            _ => "evicted",
        }
    }

    fn why(&self) -> String {
        let by = &self.by;
        match self.action {
            Action::Consolidate => format!("to make room in one place for {by:?}"),
            Action::Reclaim => format!("for {by:?}, whose queue took back its fair share"),
            Action::Preempt => format!("for {by:?}, which has a higher priority"),
            Action::Relieve => "because its node ran more than it has".to_owned(),
            Action::StaleGang => "because its pod group had too few members".to_owned(),
            Action::Allocate => format!("for {by:?}"),
        }
    }

    fn shares(&self) -> String {
        let shares = self.shares.iter().enumerate();
        shares.map(|(index, share)| format!("{}{share}", if index == 0 { ": " } else { ", " })).collect()
    }
}

impl Display for Eviction {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let (name, ago) = (&self.name, Span(self.ago_ms));
        write!(f, "{name:?} was {} {ago} ago {}{}", self.done(), self.why(), self.shares())
    }
}
