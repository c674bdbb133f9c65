//! What-if simulations: a snapshot is run without and with changes, and the difference is reported.

use std::collections::BTreeMap;
use std::fmt::{self, Display, Formatter};

use aliquot_scheduler_core::Resource;
use anyhow::{Context, Result, ensure};
use serde::Serialize;

use crate::policy::PolicyName;
use crate::report::{GpuUse, Percent, Place, Step, WaitingClaims, claim_name};
use crate::session::{CYCLES_MAX, Session};
use crate::snapshot::File;

/// The changes of a simulation.
#[derive(Clone, Debug, Default)]
pub struct Changes {
    /// Nodes, queues, pod groups and claims to add.
    pub add: Vec<File>,
    /// Nodes to add that are like an existing one: its name, and how many.
    pub add_nodes: Vec<(String, u32)>,
    /// The names of nodes to remove.
    pub remove_nodes: Vec<String>,
    /// New values for queues: `QUEUE.quota.RESOURCE=AMOUNT`, or with `limit` or `weight`.
    pub set: Vec<String>,
    /// The policy to use instead.
    pub policy: Option<PolicyName>,
}

impl Changes {
    /// Whether nothing is changed.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        let Self { add, add_nodes, remove_nodes, set, policy } = self;
        add.is_empty() && add_nodes.is_empty() && remove_nodes.is_empty() && set.is_empty() && policy.is_none()
    }

    fn make(&self, mut snapshot: File) -> Result<Session> {
        for addition in &self.add {
            snapshot.add(addition.clone())?;
        }
        for (node, count) in &self.add_nodes {
            snapshot.add_nodes_like(node, *count)?;
        }
        for setting in &self.set {
            snapshot.set_allowance(setting).with_context(|| format!("--set {setting}"))?;
        }
        if let Some(policy) = self.policy {
            snapshot.set_policy(policy);
        }
        let mut session = Session::new(&snapshot)?;
        for name in &self.remove_nodes {
            ensure!(session.cluster().node_named(name).is_some(), "there is no node {name:?} to remove");
            session.remove_node(name)?;
        }
        Ok(session)
    }
}

/// The results of one of the two runs.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct Summary {
    /// Number of claims that are placed.
    pub placed: usize,
    /// Number of claims that wait.
    pub waiting: usize,
    /// How much of the GPUs is allocated.
    pub gpus: GpuUse,
}

/// The GPU time that a queue holds, and its fair share, both in thousandths of a GPU.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize)]
pub struct QueueUse {
    /// The time that the queue holds.
    pub held_milli: u64,
    /// The queue's fair share; left out if no queue names GPU time of any model.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub fair_share_milli: Option<u64>,
    /// The time of each GPU model that queues name: what the queue holds, and its fair share.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub models: BTreeMap<String, ModelUse>,
}

/// The time of a GPU model that a queue holds, and its fair share, both in thousandths of a GPU.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize)]
pub struct ModelUse {
    /// The time that the queue holds.
    pub held_milli: u64,
    /// The queue's fair share.
    pub fair_share_milli: u64,
}

/// The amounts of a queue without and with the changes.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize)]
pub struct QueueChange {
    /// The amounts without the changes.
    pub before: QueueUse,
    /// The amounts with the changes.
    pub after: QueueUse,
}

/// A claim that is placed in only one of the two runs, or in different places.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct Difference {
    /// The name of the claim.
    pub claim: String,
    /// Its place without the changes, if it has one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub before: Option<Place>,
    /// Its place with the changes, if it has one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub after: Option<Place>,
    /// The step that evicts it with the changes, if there is one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub eviction: Option<Step>,
}

/// The difference that the changes make.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct Simulation {
    /// The results without the changes.
    pub before: Summary,
    /// The results with the changes.
    pub after: Summary,
    /// All queues by name.
    pub queues: BTreeMap<String, QueueChange>,
    /// Claims that only the changed cluster places.
    pub placed: Vec<Difference>,
    /// Claims that only the unchanged cluster places.
    pub displaced: Vec<Difference>,
    /// Claims that have another place with the changes.
    pub elsewhere: Vec<Difference>,
    /// The pending claims with the changes.
    pub waiting: Vec<WaitingClaims>,
}

/// The results of one run.
struct Outcome {
    summary: Summary,
    queues: BTreeMap<String, QueueUse>,
    places: Vec<(String, Option<Place>)>,
    evictions: BTreeMap<String, Step>,
    waiting: Vec<WaitingClaims>,
}

/// Runs a snapshot without and with changes, each until nothing changes any more. If `until_ms` is given, both then run
/// on until that time.
///
/// # Errors
/// If the snapshot or a change is wrong.
pub fn simulate(snapshot: &File, changes: &Changes, until_ms: Option<u64>) -> Result<Simulation> {
    let before = run(Session::new(snapshot)?, until_ms)?;
    let after = run(changes.make(snapshot.clone())?, until_ms)?;
    Ok(compare(before, after))
}

fn run(mut session: Session, until_ms: Option<u64>) -> Result<Outcome> {
    let mut converged = session.converge(CYCLES_MAX);
    let mut steps: Vec<Step> = converged.cycles.drain(..).flatten().collect();
    if let Some(until_ms) = until_ms {
        session.advance(until_ms)?;
        converged = session.converge(CYCLES_MAX);
        steps.extend(converged.cycles.drain(..).flatten());
    }
    let cluster = session.cluster();
    let mut claims: Vec<_> = cluster.claims().map(|(id, _, at)| (id, at.map(|at| Place::of(cluster, at)))).collect();
    claims.sort_unstable_by_key(|(id, _)| *id);
    let placed = claims.iter().filter(|(_, place)| place.is_some()).count();
    let withdrawn = claims.iter().filter(|(id, _)| cluster.is_withdrawn(*id)).count();
    let mut queues = BTreeMap::new();
    for report in session.view().queues() {
        let mut time = QueueUse::default();
        for of in report.resources {
            match (of.resource, of.fair_share) {
                (Resource::DeviceCore, share) => (time.held_milli, time.fair_share_milli) = (of.held, share),
                (Resource::ModelCore(model), Some(fair_share_milli)) => {
                    time.models.insert(model, ModelUse { held_milli: of.held, fair_share_milli });
                }
                _ => {}
            }
        }
        queues.insert(report.queue, time);
    }
    Ok(Outcome {
        summary: Summary { placed, waiting: claims.len() - placed - withdrawn, gpus: GpuUse::of(cluster) },
        queues,
        places: claims.into_iter().map(|(id, place)| (claim_name(cluster, id), place)).collect(),
        evictions: steps.into_iter().filter(Step::is_eviction).map(|step| (step.claim.clone(), step)).collect(),
        waiting: session.waiting(),
    })
}

fn compare(before: Outcome, mut after: Outcome) -> Simulation {
    let places: BTreeMap<String, Option<Place>> = before.places.into_iter().collect();
    let (mut placed, mut displaced, mut elsewhere) = (Vec::new(), Vec::new(), Vec::new());
    for (claim, now) in after.places {
        let then = places.get(&claim).cloned().flatten();
        let list = match (&then, &now) {
            (None, None) => continue,
            (Some(then), Some(now)) if then == now => continue,
            (None, Some(_)) => &mut placed,
            (Some(_), None) => &mut displaced,
            (Some(_), Some(_)) => &mut elsewhere,
        };
        let eviction = after.evictions.remove(&claim).filter(|_| now.is_none());
        list.push(Difference { claim, before: then, after: now, eviction });
    }
    let mut queues: BTreeMap<String, QueueChange> = BTreeMap::new();
    for (queue, used) in before.queues {
        queues.entry(queue).or_default().before = used;
    }
    for (queue, used) in after.queues {
        queues.entry(queue).or_default().after = used;
    }
    Simulation {
        before: before.summary,
        after: after.summary,
        queues,
        placed,
        displaced,
        elsewhere,
        waiting: after.waiting,
    }
}

impl Display for Summary {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        write!(f, "{} placed, {} waiting; {}", self.placed, self.waiting, self.gpus)
    }
}

impl Display for QueueUse {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let models = self.models.iter().map(|(model, of)| (format!(" of {model}"), of.held_milli, of.fair_share_milli));
        let any_model = self.fair_share_milli.map(|share| (String::new(), self.held_milli, share));
        let shares = any_model.into_iter().chain(models).map(|(of, held_milli, share_milli)| {
            format!("{} gpu-core{of} of a fair share of {}", Percent(held_milli), Percent(share_milli))
        });
        match shares.collect::<Vec<_>>().join(", ") {
            // Nothing is shared out.
            shares if shares.is_empty() => write!(f, "{} gpu-core", Percent(self.held_milli)),
            shares => f.write_str(&shares),
        }
    }
}

impl Display for Difference {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        f.write_str(&self.claim)?;
        match (&self.before, &self.after) {
            (None, Some(after)) => write!(f, " on {after}"),
            (Some(before), Some(after)) => write!(f, " on {after} instead of {before}"),
            (Some(before), None) => write!(f, ", now on {before}"),
            (None, None) => Ok(()),
        }?;
        self.eviction.as_ref().map_or(Ok(()), |eviction| write!(f, ": {eviction}"))
    }
}

impl Display for Simulation {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        writeln!(f, "now:  {}", self.before)?;
        writeln!(f, "then: {}", self.after)?;
        for (queue, QueueChange { before, after }) in self.queues.iter().filter(|(_, of)| of.before != of.after) {
            writeln!(f, "queue {queue}: {before}, then {after}")?;
        }
        for (title, list) in [
            ("would be placed:", &self.placed),
            ("would not be placed any more:", &self.displaced),
            ("would be elsewhere:", &self.elsewhere),
        ] {
            if !list.is_empty() {
                writeln!(f, "{title}")?;
                list.iter().try_for_each(|difference| writeln!(f, "  {difference}"))?;
            }
        }
        if !self.waiting.is_empty() {
            writeln!(f, "would wait:")?;
            self.waiting.iter().try_for_each(|waiting| writeln!(f, "  {waiting}"))?;
        }
        Ok(())
    }
}
