//! Reports of plans and pending claims, with names: as text, and as JSON.

use std::fmt::{self, Display, Formatter};

use aliquot_scheduler_core::explain::Tier;
use aliquot_scheduler_core::{
    Action, Allocation, ClaimId, Cluster, DeviceSpec, GroupId, Plan, PlannedStep, Step as CoreStep,
};
use serde::Serialize;

use crate::session::{Converged, Session};
use crate::snapshot::full_name;

/// The number of entries in a report for which changes that would help are looked for.
const EXPLAINED: usize = 10;

/// A place on a node.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct Place {
    /// The name of the node.
    pub node: String,
    /// The indexes of the GPUs there.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub gpus: Vec<u16>,
    /// The index of the claim's alternative; left out if it is 0, the first one.
    #[serde(skip_serializing_if = "is_first")]
    pub alternative: u16,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "for serde")]
fn is_first(alternative: &u16) -> bool {
    *alternative == 0
}

/// A step of a plan.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct Step {
    /// The name of the claim.
    pub claim: String,
    /// The place that the claim had, if it was placed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub from: Option<Place>,
    /// The place that the claim gets, if it is placed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub to: Option<Place>,
    /// The action that decided the step.
    pub action: &'static str,
    /// The claim or group that needs this step, unless it is the claim itself.
    #[serde(rename = "for", skip_serializing_if = "Option::is_none")]
    pub for_whom: Option<String>,
    /// The claims that must have left before it starts.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub starts_after: Vec<String>,
    /// The shares of the queues when the claim was evicted, with their fair shares.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub because: Vec<String>,
}

/// A pod group with pending claims; or single claims of a queue with the same request and the same reason.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct WaitingClaims {
    /// The pod group's name, or that of the first claim.
    pub name: String,
    /// Whether this is a pod group.
    pub is_pod_group: bool,
    /// The name of the queue.
    pub queue: String,
    /// The names of the pending claims.
    pub claims: Vec<String>,
    /// The kind of the obstacle.
    pub tier: &'static str,
    /// The obstacle in words.
    pub reason: String,
    /// Single changes that would let it be placed, the smallest first. They are looked for only for the first pending
    /// entries.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub changes: Vec<String>,
}

/// The allocated part of the GPUs' time and memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
pub struct GpuUse {
    /// The time of all GPUs, in thousandths of a GPU.
    pub core_milli: u64,
    /// The allocated time, in thousandths of a GPU.
    pub core_allocated_milli: u64,
    /// The memory of all GPUs, in bytes.
    pub memory_bytes: u64,
    /// The allocated memory, in bytes.
    pub memory_allocated_bytes: u64,
}

/// The results of running a snapshot.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct Report {
    /// The steps of each cycle; the last cycle changed nothing and is left out.
    pub cycles: Vec<Vec<Step>>,
    /// The pending claims, with the reasons why they wait.
    pub waiting: Vec<WaitingClaims>,
    /// Number of claims that are placed.
    pub placed: usize,
    /// How much of the GPUs is allocated.
    pub gpus: GpuUse,
    /// Whether further cycles would change nothing.
    pub is_settled: bool,
}

pub(crate) fn claim_name(cluster: &Cluster, id: ClaimId) -> String {
    cluster.claim(id).map(|claim| full_name(&claim.namespace, &claim.name)).unwrap_or_default()
}

/// The name of a pod group, or of the claim that the group stands for.
pub(crate) fn group_name(cluster: &Cluster, id: GroupId) -> String {
    let Some(group) = cluster.group(id) else { return String::new() };
    match group.is_declared() {
        true => full_name(&group.spec().namespace, &group.spec().name),
        false => group.members().next().map(|claim| claim_name(cluster, claim)).unwrap_or_default(),
    }
}

fn action_name(action: Action) -> &'static str {
    match action {
        Action::Allocate => "allocate",
        Action::Consolidate => "consolidate",
        Action::Reclaim => "reclaim",
        Action::Preempt => "preempt",
        Action::StaleGang => "stale-gang",
        Action::Relieve => "relieve",
    }
}

fn tier_name(tier: Tier) -> &'static str {
    match tier {
        Tier::Members => "members",
        Tier::Namespace => "namespace",
        Tier::Quota => "quota",
        Tier::FairShare => "fair-share",
        Tier::Topology => "topology",
        Tier::Device => "device",
        Tier::Model => "model",
        Tier::Size => "size",
        Tier::Search => "search",
        Tier::Waiting => "waiting",
    }
}

impl Place {
    pub(crate) fn of(cluster: &Cluster, allocation: &Allocation) -> Self {
        Self {
            node: cluster.node(allocation.node).map(|node| node.spec().name.clone()).unwrap_or_default(),
            gpus: allocation.devices.iter().map(|part| part.device).collect(),
            alternative: allocation.alternative,
        }
    }
}

impl Step {
    /// Whether the claim is evicted and placed nowhere else.
    #[must_use]
    pub fn is_eviction(&self) -> bool {
        self.to.is_none()
    }

    /// The steps of a plan, in its order.
    pub(crate) fn all(cluster: &Cluster, plan: &Plan) -> Vec<Self> {
        plan.steps.iter().map(|step| Self::of(cluster, step)).collect()
    }

    fn of(cluster: &Cluster, planned: &PlannedStep) -> Self {
        let place = |allocation: &Allocation| Some(Place::of(cluster, allocation));
        let (from, to, starts_after) = match &planned.step {
            CoreStep::Evict { from, .. } => (place(from), None, &[][..]),
            CoreStep::Move { from, to, starts_after, .. } => (place(from), place(to), &starts_after[..]),
            CoreStep::Place { to, starts_after, .. } => (None, place(to), &starts_after[..]),
        };
        let claim = planned.step.claim();
        let for_other = planned.for_group.filter(|group| cluster.group_of(claim) != Some(*group));
        let displaced = cluster.displaced(claim).filter(|_| from.is_some());
        Self {
            claim: claim_name(cluster, claim),
            from,
            to,
            action: action_name(planned.action),
            for_whom: for_other.map(|group| group_name(cluster, group)),
            starts_after: starts_after.iter().map(|id| claim_name(cluster, *id)).collect(),
            because: displaced.iter().flat_map(|displaced| &displaced.shares).map(ToString::to_string).collect(),
        }
    }
}

impl WaitingClaims {
    /// All pending claims, in the order in which the first claim of each entry had its turn.
    pub(crate) fn all(session: &Session) -> Vec<Self> {
        let (cluster, plan) = (session.cluster(), session.view().plan());
        let reasons = plan.reasons(cluster);
        let mut all: Vec<Self> = Vec::new();
        // For each reason, the index of the entry for the single claims that wait for it.
        let mut singles: Vec<Option<usize>> = vec![None; reasons.distinct().len()];
        for (pending, number) in plan.pending.iter().zip(reasons.numbers()) {
            let (Some(group), Some(reason)) = (cluster.group(pending.group), reasons.distinct().get(*number)) else {
                continue;
            };
            let mut waiting = group.members().filter(|claim| cluster.allocation(*claim).is_none()).peekable();
            let place = singles.get_mut(*number).filter(|_| !group.is_declared());
            if let Some(entry) = place.as_ref().and_then(|place| all.get_mut((**place)?)) {
                entry.claims.extend(waiting.map(|claim| claim_name(cluster, claim)));
                continue;
            }
            let explained = waiting.peek().filter(|_| all.len() < EXPLAINED);
            let explanation = explained.and_then(|claim| session.scheduler().explain(cluster, *claim).ok());
            let queue = cluster.queue(group.queue());
            if let Some(place) = place {
                *place = Some(all.len());
            }
            all.push(Self {
                name: group_name(cluster, pending.group),
                is_pod_group: group.is_declared(),
                queue: queue.map(|queue| queue.spec().name.clone()).unwrap_or_default(),
                claims: waiting.map(|claim| claim_name(cluster, claim)).collect(),
                tier: tier_name(reason.tier()),
                // An explanation is more exact than the reason of the last cycle.
                reason: explanation.as_ref().and_then(|known| known.reasons.first()).unwrap_or(reason).to_string(),
                changes: explanation.iter().flat_map(|known| &known.changes).map(ToString::to_string).collect(),
            });
        }
        all
    }
}

impl GpuUse {
    pub(crate) fn of(cluster: &Cluster) -> Self {
        let mut sum = Self { core_milli: 0, core_allocated_milli: 0, memory_bytes: 0, memory_allocated_bytes: 0 };
        for device in cluster.nodes().flat_map(|(_, node)| node.devices()) {
            let core = u64::from(DeviceSpec::CORE.get());
            sum.core_milli += core;
            sum.core_allocated_milli += core - u64::from(device.core_free().get());
            sum.memory_bytes = sum.memory_bytes.saturating_add(device.memory().get());
            let allocated = device.memory().saturating_sub(device.memory_free());
            sum.memory_allocated_bytes = sum.memory_allocated_bytes.saturating_add(allocated.get());
        }
        sum
    }
}

impl Report {
    /// The report of a session that was run.
    #[must_use]
    pub fn new(session: &Session, converged: Converged) -> Self {
        Self {
            waiting: session.waiting(),
            placed: session.cluster().claims().filter(|(.., allocation)| allocation.is_some()).count(),
            gpus: GpuUse::of(session.cluster()),
            cycles: converged.cycles,
            is_settled: converged.is_converged,
        }
    }
}

impl Display for Place {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        f.write_str(&self.node)?;
        let gpus: Vec<String> = self.gpus.iter().map(ToString::to_string).collect();
        match self.gpus.as_slice() {
            [] => Ok(()),
            [_] => write!(f, " gpu {}", gpus.join(",")),
            _ => write!(f, " gpus {}", gpus.join(",")),
        }?;
        if self.alternative == 0 { Ok(()) } else { write!(f, " as alternative {}", self.alternative) }
    }
}

impl Display for Step {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        match (&self.from, &self.to) {
            (None, Some(to)) => write!(f, "place {} on {to}", self.claim)?,
            (Some(from), Some(to)) => write!(f, "move {} from {from} to {to}", self.claim)?,
            (Some(from), None) => write!(f, "evict {} from {from}", self.claim)?,
            (None, None) => write!(f, "leave {} alone", self.claim)?,
        }
        write!(f, " ({}", self.action)?;
        if let Some(whom) = &self.for_whom {
            write!(f, " for {whom}")?;
        }
        for share in &self.because {
            write!(f, "; {share}")?;
        }
        f.write_str(")")?;
        match self.starts_after.as_slice() {
            [] => Ok(()),
            claims => write!(f, ", once {} has left", claims.join(", ")),
        }
    }
}

impl Display for WaitingClaims {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        match (self.is_pod_group, self.claims.len()) {
            (_, 0 | 1) => write!(f, "{} in queue {}", self.name, self.queue)?,
            (true, claims) => write!(f, "{} in queue {}, {claims} claims", self.name, self.queue)?,
            (false, claims) => write!(f, "{} and {} like it in queue {}", self.name, claims - 1, self.queue)?,
        }
        write!(f, ": {}", self.reason)?;
        for change in &self.changes {
            write!(f, "\n    would help: {change}")?;
        }
        Ok(())
    }
}

impl Display for GpuUse {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let part_of = |part: u64, whole: u64| u128::from(part) * 1000 / u128::from(whole.max(1));
        let percent = |part: u64, whole: u64| Percent(u64::try_from(part_of(part, whole)).unwrap_or(u64::MAX));
        write!(
            f,
            "{} of GPU time and {} of GPU memory allocated",
            percent(self.core_allocated_milli, self.core_milli),
            percent(self.memory_allocated_bytes, self.memory_bytes),
        )
    }
}

/// Thousandths, in percent.
pub(crate) struct Percent(pub(crate) u64);

impl Display for Percent {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{} %", self.0 / 10, self.0 % 10)
    }
}

impl Display for Report {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        for (number, steps) in (1..).zip(&self.cycles) {
            writeln!(f, "cycle {number}:")?;
            steps.iter().try_for_each(|step| writeln!(f, "  {step}"))?;
        }
        if !self.waiting.is_empty() {
            writeln!(f, "waiting:")?;
            self.waiting.iter().try_for_each(|waiting| writeln!(f, "  {waiting}"))?;
        }
        let still = if self.is_settled { "" } else { "; further cycles would change more" };
        let waiting: usize = self.waiting.iter().map(|waiting| waiting.claims.len()).sum();
        write!(f, "{} placed, {waiting} waiting; {}{still}", self.placed, self.gpus)
    }
}
