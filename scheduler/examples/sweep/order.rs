//! Arrival orders in the manner of the published experiment.

use aliquot_scheduler::random::Random;
use aliquot_scheduler::trace::Task;
use aliquot_scheduler_core::NodeSpec;

/// Demand that arrives in all, in percent of the devices.
const DEMAND_PERCENT: u64 = 130;

/// The nodes in a random order, and the tasks in another one: each once, then drawn again until demand is 130 % of
/// capacity; if demand is more than that, tasks taken out at random.
pub(crate) fn arrivals(nodes: &[NodeSpec], tasks: &[Task], seed: u64) -> (Vec<NodeSpec>, Vec<Task>) {
    let mut random = Random::new(seed);
    let mut nodes = nodes.to_vec();
    random.shuffle(&mut nodes);
    let mut order: Vec<&Task> = tasks.iter().collect();
    random.shuffle(&mut order);
    let capacity: u64 = nodes.iter().map(|node| node.devices.len() as u64 * 1000).sum();
    let target = capacity * DEMAND_PERCENT / 100;
    let demand = |task: &Task| task.request.devices.total_core();
    let mut arrived: u64 = order.iter().map(|task| demand(task)).sum();
    while arrived < target {
        let task = random.pick(tasks);
        arrived += demand(task);
        order.push(task);
    }
    while arrived > target {
        let task = order.remove(random.below(order.len()));
        arrived -= demand(task);
    }
    (nodes, order.into_iter().cloned().collect())
}
