//! Traces with another mix.

use aliquot_scheduler::random::Random;
use aliquot_scheduler::trace::Task;
use aliquot_scheduler_core::placement::fits;
use aliquot_scheduler_core::{Cluster, Event, NodeSpec};
use anyhow::{Context, Result, bail};

/// Changes the mix: `multi30`, `share60`, `cpu200`, `spec20`.
pub(crate) fn change(nodes: &[NodeSpec], tasks: Vec<Task>, change: &str) -> Result<Vec<Task>> {
    let digits = change.find(|c: char| c.is_ascii_digit()).context("a change ends in a percentage")?;
    let (kind, percent) = change.split_at(digits);
    let percent: usize = percent.parse().context("a change ends in a percentage")?;
    let mut random = Random::new(percent as u64 + 777);
    match kind {
        "multi" => Ok(redraw(&tasks, percent, &mut random, |task| task.request.devices.count > 1)),
        "share" => Ok(redraw(&tasks, percent, &mut random, |task| {
            task.request.devices.count == 1 && task.request.devices.total_core() < 1000
        })),
        "cpu" => Ok(more_without_devices(tasks, percent, &mut random)),
        "spec" => restrict(nodes, tasks, percent, &mut random),
        _ => bail!("no change {kind:?}; known are multi, share, cpu and spec"),
    }
}

/// Tasks drawn from the same, so that those that are `of_kind` make up `percent` of the demand for devices.
fn redraw(tasks: &[Task], percent: usize, random: &mut Random, of_kind: impl Fn(&Task) -> bool) -> Vec<Task> {
    let demand = |task: &Task| task.request.devices.total_core();
    let total: u64 = tasks.iter().map(demand).sum();
    let (with, mut drawn): (Vec<Task>, Vec<Task>) = tasks.iter().cloned().partition(|task| demand(task) > 0);
    let (kind, others): (Vec<Task>, Vec<Task>) = with.into_iter().partition(of_kind);
    let mut got = 0;
    for (from, until) in [(kind, total * percent as u64 / 100), (others, total)] {
        while got < until && !from.is_empty() {
            let task = random.pick(&from).clone();
            got += demand(&task);
            drawn.push(task);
        }
    }
    drawn
}

fn more_without_devices(tasks: Vec<Task>, percent: usize, random: &mut Random) -> Vec<Task> {
    let (without, mut drawn): (Vec<Task>, Vec<Task>) =
        tasks.into_iter().partition(|task| task.request.devices.count == 0);
    drawn.extend((0..without.len() * percent / 100).map(|_| random.pick(&without).clone()));
    drawn
}

/// Gives `percent` of the tasks with devices one of the restrictions that the trace has, if they could run so.
fn restrict(nodes: &[NodeSpec], mut tasks: Vec<Task>, percent: usize, random: &mut Random) -> Result<Vec<Task>> {
    let mut empty = Cluster::new();
    for node in nodes {
        empty.apply(Event::NodeAdded(node.clone()))?;
    }
    let constraints: Vec<_> =
        tasks.iter().map(|task| &task.request.constraints).filter(|c| !c.models.is_empty()).cloned().collect();
    if constraints.is_empty() {
        bail!("the trace has no restricted tasks to take restrictions from");
    }
    for task in tasks.iter_mut().filter(|task| task.request.devices.count > 0) {
        task.request.constraints = Default::default();
        if random.below(100) < percent {
            let mut restricted = task.request.clone();
            restricted.constraints = random.pick(&constraints).clone();
            if empty.nodes().any(|(_, node)| fits(node, &restricted).is_ok()) {
                task.request = restricted;
            }
        }
    }
    Ok(tasks)
}
