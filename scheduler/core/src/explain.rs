//! Why a claim waits, which changes would let it be placed, and why it was evicted.
//!
//! There are two depths. A cycle reports for every pending group what it has found out anyway
//! ([`Pending::reason`](crate::Pending::reason)). Asked about one claim, [`Scheduler::explain`] looks at everything
//! that is in the claim's way, and tries changes in a copy of the state. A change that it suggests does let the claim
//! be placed, unless a claim with an earlier turn takes the room.

mod change;
mod fairness;
mod history;
mod nearest;
mod obstacles;
mod on_node;
mod pending;
mod pieces;
mod queue_report;
mod reason;
mod reasons;
mod room;
mod sentence;
mod shortage;
mod trial;

use std::fmt::{self, Display, Formatter};

pub use crate::vocabulary::protection::Protection;
pub use crate::vocabulary::share::Share;
pub use change::Change;
pub use history::{Eviction, evictions};
pub use on_node::NodeObstacle;
pub use queue_report::{QueueReport, ResourceReport};
pub use reason::{Bound, Holder, Reason, Tier};
pub use reasons::Reasons;
pub use shortage::{Exclusion, Nearest, NodeCount, Shortage};

use crate::decisions::actions::{Context, actions, fails_to_start, make_way};
use crate::decisions::plan::Refusal;
use crate::decisions::scheduler::Scheduler;
use crate::decisions::shares::Shares;
use crate::decisions::unit::Unit;
use crate::state::cluster::Cluster;
use crate::vocabulary::claim::ClaimId;
use crate::vocabulary::event::EventError;
use crate::vocabulary::pod_group::GroupId;
use crate::vocabulary::step::Step;
use trial::Trial;

/// Everything that is known about why a claim waits or was evicted.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Explanation {
    /// The claim's name.
    pub name: String,
    /// Its pod group, or the group that was made for it alone.
    pub group: GroupId,
    /// The node that it is placed on; `None`: it is pending.
    pub node: Option<String>,
    /// What is in the way of the members that its pod group needs placed next, the most basic reason first. If a
    /// pending claim has no reason here, the next cycle places it.
    pub reasons: Vec<Reason>,
    /// Single changes, the smallest first. Each of them alone would let those members be placed.
    pub changes: Vec<Change>,
    /// The members whose requests the changes are about; see [`Change::events`].
    pub members: Vec<ClaimId>,
    /// Why it was last evicted, then why the claim that it was evicted for had been evicted, and so on.
    pub evictions: Vec<Eviction>,
}

impl Scheduler {
    /// Explains why a claim waits or was evicted. The state stays unchanged.
    ///
    /// # Errors
    /// If there is no such claim.
    pub fn explain(&self, cluster: &Cluster, claim: ClaimId) -> Result<Explanation, EventError> {
        let unknown = EventError::NoSuchClaim(claim);
        let (Some(of), Some(group)) = (cluster.claim(claim), cluster.group_of(claim)) else { return Err(unknown) };
        let node = cluster.allocation(claim).and_then(|allocation| cluster.node(allocation.node));
        let mut explanation = Explanation {
            name: of.name.to_string(),
            group,
            node: node.map(|node| node.spec().name.clone()),
            reasons: Vec::new(),
            changes: Vec::new(),
            members: Vec::new(),
            evictions: evictions(cluster, claim),
        };
        if cluster.is_withdrawn(claim) {
            let leaving = cluster.leaving(claim).and_then(|from| cluster.node(from.node));
            explanation.reasons.push(Reason::Withdrawn { leaving: leaving.map(|node| node.spec().name.clone()) });
            return Ok(explanation);
        }
        match explanation.node {
            Some(_) => {
                explanation.reasons.extend(starts_after(cluster, claim));
                explanation.reasons.extend(eviction_refused(cluster, claim));
            }
            None => self.explain_waiting(cluster, claim, &mut explanation),
        }
        Ok(explanation)
    }

    fn explain_waiting(&self, cluster: &Cluster, claim: ClaimId, explanation: &mut Explanation) {
        let group = explanation.group;
        let mut copy = cluster.clone();
        self.holds.open(&mut copy, group);
        let mut trial = Trial::new(copy, self.engine.fork(), group);
        let (first, blocked) = match Unit::next(cluster, group) {
            Err(missing) => {
                explanation.reasons.push(pending::members_missing(cluster, group, missing));
                (None, None)
            }
            Ok(None) => return,
            Ok(Some(unit)) => {
                if let Some(exceeded) = self.holds.bounds.exceeded(cluster, &unit) {
                    explanation.reasons.push(pending::over_bound(cluster, &exceeded));
                    return;
                }
                let shares = Shares::of(cluster, self.settings.usage_weight);
                let refusal = match trial.admits() {
                    true => None,
                    false => match self.make_way_in(trial.cluster().clone(), &shares, &unit) {
                        Ok(making_way) => {
                            explanation.reasons.push(Reason::RoomIsMade { making_way });
                            return;
                        }
                        Err(refusal) => refusal,
                    },
                };
                let found = obstacles::find(&mut trial, &shares, &unit, refusal);
                explanation.reasons = found.reasons;
                if found.first.is_none() {
                    return;
                }
                let waits = unit.claims.contains(&claim).then_some(claim);
                (found.first, found.blocked.or(waits).or(unit.claims.first().copied()))
            }
        };
        let class = blocked.and_then(|blocked| cluster.class_of(blocked));
        let members = cluster.group(group).into_iter().flat_map(|group| group.members());
        let waiting = members.filter(|member| cluster.allocation(*member).is_none());
        explanation.members = waiting.filter(|member| class.is_some() && cluster.class_of(*member) == class).collect();
        let request = blocked.and_then(|blocked| cluster.claim(blocked)).map(|claim| &*claim.request);
        let search = nearest::ChangeSearch { trial: &mut trial, group, members: &explanation.members, request };
        explanation.changes = search.run(first);
    }

    /// The claims that make way for a unit in a copy of the state, by any action, or why no claim does.
    fn make_way_in(
        &self,
        mut cluster: Cluster,
        shares: &Shares,
        unit: &Unit,
    ) -> Result<Vec<(ClaimId, String)>, Option<Refusal>> {
        if let Some(refusal) = fails_to_start(&cluster, unit) {
            return Err(Some(refusal));
        }
        let (mut engine, mut memory) = (self.engine.fork(), self.memory.clone());
        let mut context = Context::new(&cluster, shares, &self.settings, &mut engine, &mut memory);
        let mut refused: Option<Refusal> = None;
        for action in actions(context.engine.policy()) {
            match make_way(action, &mut cluster, &mut context, unit) {
                Ok((steps, _)) => {
                    let others = steps.iter().filter(|step| !matches!(step, Step::Place { .. })).map(Step::claim);
                    return Ok(others.map(|claim| named(&cluster, claim)).collect());
                }
                Err(refusal) => {
                    refused = Some(refused.map_or(refusal, |before| before.more_telling(refusal)));
                }
            }
        }
        Err(refused)
    }
}

/// For a claim that has its place: the claims that it waits for.
fn starts_after(cluster: &Cluster, claim: ClaimId) -> Option<Reason> {
    let leaving: Vec<(ClaimId, String)> =
        cluster.starts_after(claim).iter().map(|other| named(cluster, *other)).collect();
    (!leaving.is_empty()).then_some(Reason::StartsAfter { leaving })
}

/// For a running claim: whether its node has lately refused to evict it.
fn eviction_refused(cluster: &Cluster, claim: ClaimId) -> Option<Reason> {
    let left_ms = cluster.left_alone_ms(claim)?;
    let refusals = cluster.last_eviction(claim)?.refusals;
    cluster.started_ms(claim).map(|_| Reason::EvictionRefused { refusals, left_ms })
}

fn named(cluster: &Cluster, claim: ClaimId) -> (ClaimId, String) {
    (claim, cluster.claim(claim).map(|claim| claim.name.to_string()).unwrap_or_default())
}

impl Display for Explanation {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        match (&self.node, self.reasons.as_slice()) {
            (Some(node), [] | [Reason::EvictionRefused { .. }]) => write!(f, "{:?} runs on node {node:?}.", self.name)?,
            (Some(node), _) => write!(f, "{:?} is placed on node {node:?}.", self.name)?,
            (None, []) => write!(f, "{:?} waits; nothing is in its way, and the next cycle places it.", self.name)?,
            (None, [Reason::Withdrawn { .. }]) => write!(f, "{:?} waits for nothing.", self.name)?,
            (None, _) => write!(f, "{:?} waits.", self.name)?,
        }
        for reason in &self.reasons {
            write!(f, "\n  - {reason}.")?;
        }
        if !self.changes.is_empty() {
            write!(f, "\nAny one of these would let it be placed, unless an earlier claim takes the room:")?;
            for change in &self.changes {
                write!(f, "\n  - {change}")?;
            }
        }
        for (index, eviction) in self.evictions.iter().enumerate() {
            write!(f, "\n{}{eviction}.", if index == 0 { "" } else { "Before that, " })?;
        }
        Ok(())
    }
}
