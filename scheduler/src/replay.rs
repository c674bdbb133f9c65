//! Replays a trace with a policy: tasks arrive one by one, are placed at once or dropped, and never end.
//!
//! The policy is asked directly here, without cycles and without the live engine: the published experiment compares
//! policies, and `--timings` tells how long one decision of the policy takes. On 1 000 nodes, with one claim at a time,
//! the engine takes about 100 times as long as the policy alone, because of cycles and views (`BENCHMARKS.md`, the
//! scheduler's engine).

use std::time::{Duration, Instant};

use aliquot_scheduler_core::placement::{Engine, Fragmentation, Mix, NodeChange, Policy};
use aliquot_scheduler_core::{Allocation, Claim, Cluster, Event, NodeSpec, Outcome, PriorityClass, Request};
use anyhow::{Context, Result, bail, ensure};
use serde::Serialize;

use crate::curve::{Curve, Point};
use crate::snapshot::NAMESPACE;
use crate::sort::Sort;
use crate::trace::Task;

/// The results of a replay.
#[derive(Clone, Debug, Serialize)]
pub struct Summary {
    /// Number of nodes in the cluster.
    pub nodes: usize,
    /// Number of devices on all nodes together.
    pub devices: usize,
    /// Number of tasks that arrived.
    pub arrived: usize,
    /// Number of tasks that were placed.
    pub placed: usize,
    /// The allocated device time when the arrived demand is 100 % of the devices, in percent.
    pub allocated_at_100: Option<f64>,
    /// The same when the arrived demand is 130 %.
    pub allocated_at_130: Option<f64>,
    /// The arrived demand when the first task could not be placed, in percent.
    pub first_unplaced_at: Option<f64>,
    /// Tasks that were not placed before 100 % of demand had arrived.
    pub unplaced_at_100: Unplaced,
    /// Tasks that were not placed in the whole replay.
    pub unplaced: Unplaced,
    /// Allocated device time, by arrived demand.
    pub allocated: Vec<Point>,
    /// Fragmentation by FGD's measure, by arrived demand, at each whole percent.
    pub fragmented: Vec<Point>,
}

/// Tasks that were not placed, by their requests.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize)]
pub struct Unplaced {
    /// All tasks that were not placed.
    pub total: usize,
    /// Tasks that ask for no device.
    pub cpu_only: usize,
    /// Tasks for a part of a device.
    pub shared: usize,
    /// Tasks for one whole device.
    pub one_device: usize,
    /// Tasks for several devices.
    pub several_devices: usize,
}

impl Unplaced {
    fn count(&mut self, request: &Request) {
        self.total += 1;
        match Sort::of(request) {
            Sort::CpuOnly => self.cpu_only += 1,
            Sort::Shared => self.shared += 1,
            Sort::OneDevice => self.one_device += 1,
            Sort::SeveralDevices => self.several_devices += 1,
        }
    }
}

/// The results of a replay, with each placement.
#[derive(Debug)]
pub struct Replay {
    /// The results of the replay.
    pub summary: Summary,
    /// The place of each task: the node's index in the list, and the task's allocation there.
    pub placements: Vec<Option<(usize, Allocation)>>,
    /// How long each decision took.
    pub decisions: Vec<Duration>,
}

/// The cluster at the end of a replay: placed tasks run, and dropped tasks are pending.
///
/// # Errors
/// If the placements are not those of these tasks on these nodes.
pub fn end_of(nodes: &[NodeSpec], tasks: &[Task], placements: &[Option<(usize, Allocation)>]) -> Result<Cluster> {
    let mut cluster = Cluster::new();
    let mut ids = Vec::with_capacity(nodes.len());
    for node in nodes {
        let Outcome::Node(id) = cluster.apply(Event::NodeAdded(node.clone()))? else { bail!("a node got no id") };
        ids.push(id);
    }
    for (task, placement) in tasks.iter().zip(placements) {
        let claim = Claim {
            name: task.name.clone(),
            namespace: NAMESPACE.to_owned(),
            request: task.request.clone(),
            priority: PriorityClass::Train.value(),
            preemptible: true,
            ..Claim::default()
        };
        let Outcome::Claim(claim) = cluster.apply(Event::ClaimAdded(claim))? else { bail!("a claim got no id") };
        if let Some((node, allocation)) = placement {
            let node = *ids.get(*node).context("a placement names a node that is not there")?;
            cluster.apply(Event::ClaimPlaced(claim, Allocation { node, ..allocation.clone() }))?;
        }
    }
    Ok(cluster)
}

/// Replays `tasks` on `nodes`. Fragmentation is measured for the mix `measure`; without it, it is not measured.
///
/// # Errors
/// If two nodes have the same name, none has a device, or the policy places a task where it does not fit.
pub fn replay(nodes: &[NodeSpec], tasks: &[Task], policy: impl Policy, measure: Option<&Mix>) -> Result<Replay> {
    let mut cluster = Cluster::new();
    for node in nodes {
        cluster.apply(Event::NodeAdded(node.clone()))?;
    }
    let mut measure = measure.map(Fragmentation::new);
    if let Some(measure) = &mut measure {
        cluster.nodes().for_each(|(id, node)| measure.learn(NodeChange { id, node: Some(node), spec: true }));
    }
    let devices: usize = nodes.iter().map(|node| node.devices.len()).sum();
    ensure!(devices > 0, "no node has a device, and placements are measured in devices' time; list nodes with devices");
    let capacity = devices as f64 * 1000.0;
    let percent = |thousandths: u64| 100.0 * thousandths as f64 / capacity;

    let mut engine = Engine::new(policy);
    let mut placements = Vec::with_capacity(tasks.len());
    let mut decisions = Vec::with_capacity(tasks.len());
    let (mut allocated, mut fragmented) = (Curve::default(), Curve::default());
    let (mut unplaced, mut unplaced_at_100, mut first_unplaced_at) = (Unplaced::default(), Unplaced::default(), None);
    let (mut arrived, mut used, mut measured) = (0, 0, None);
    for task in tasks {
        let demand = task.request.total_core();
        arrived += demand;
        let claim = Claim { request: task.request.clone(), ..Claim::default() };
        let Outcome::Claim(claim) = cluster.apply(Event::ClaimAdded(claim))? else { bail!("a claim got no id") };
        let began = Instant::now();
        let placement = cluster.class_of(claim).and_then(|class| engine.place(&cluster, class));
        decisions.push(began.elapsed());
        if let Some(allocation) = placement {
            cluster.apply(Event::ClaimPlaced(claim, allocation.clone()))?;
            used += demand;
            placements.push(Some((allocation.node.index(), allocation)));
        } else {
            cluster.apply(Event::ClaimRemoved(claim))?;
            first_unplaced_at.get_or_insert(percent(arrived));
            unplaced.count(&task.request);
            if percent(arrived) <= 100.0 {
                unplaced_at_100.count(&task.request);
            }
            placements.push(None);
        }
        allocated.note(percent(arrived), percent(used));
        let whole_percent = percent(arrived).floor();
        if let Some(measure) = &measure
            && measured.is_none_or(|measured| measured < whole_percent)
        {
            measured = Some(whole_percent);
            let sum: i64 = cluster.nodes().map(|(id, node)| measure.of(id, node)).sum();
            fragmented.note(whole_percent, 100.0 * sum as f64 / measure.tasks() as f64 / capacity);
        }
    }
    let summary = Summary {
        nodes: nodes.len(),
        devices,
        arrived: tasks.len(),
        placed: placements.iter().flatten().count(),
        allocated_at_100: allocated.at(100),
        allocated_at_130: allocated.at(130),
        first_unplaced_at,
        unplaced_at_100,
        unplaced,
        allocated: allocated.points(),
        fragmented: fragmented.points(),
    };
    Ok(Replay { summary, placements, decisions })
}
