//! Tasks that arrive at random.

use aliquot_scheduler_core::NodeSpec;

use crate::random::Random;
use crate::trace::Task;

/// The unit of time: this many ticks are the mean duration of a task.
pub(super) const DURATION_TICKS: u64 = 1 << 40;

/// An endless series of tasks drawn from a trace.
pub(super) struct Workload<'a> {
    tasks: &'a [Task],
    random: Random,
    /// The mean time between arrivals.
    gap_ticks: f64,
    now: f64,
}

/// The arrival of a task.
pub(super) struct Arrival<'a> {
    pub(super) at: u64,
    pub(super) task: &'a Task,
    /// How long the task will run, in ticks.
    pub(super) duration: u64,
}

impl<'a> Workload<'a> {
    /// Arrivals that ask for this percentage of the nodes' device time. At least one task must ask for some.
    pub(super) fn new(nodes: &[NodeSpec], tasks: &'a [Task], load_percent: u32, seed: u64) -> Self {
        let there: usize = nodes.iter().map(|node| node.devices.len() * 1000).sum();
        let asked: u64 = tasks.iter().map(|task| task.request.total_core()).sum();
        let mean_asked = asked as f64 / tasks.len() as f64;
        // Little's law: the number of running tasks is the arrival rate times the mean duration.
        let arrivals = there as f64 * f64::from(load_percent) / 100.0 / mean_asked;
        Self { tasks, random: Random::new(seed), gap_ticks: DURATION_TICKS as f64 / arrivals, now: 0.0 }
    }
}

impl<'a> Iterator for Workload<'a> {
    type Item = Arrival<'a>;

    fn next(&mut self) -> Option<Arrival<'a>> {
        self.now += self.random.exponential() * self.gap_ticks;
        let task = self.random.pick(self.tasks);
        let duration = (self.random.exponential() * DURATION_TICKS as f64) as u64;
        Some(Arrival { at: self.now as u64, task, duration })
    }
}
