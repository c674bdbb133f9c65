//! Tasks that come at random.

use aliquot_scheduler_core::NodeSpec;

use crate::random::Random;
use crate::trace::Task;

/// Time is counted in this part of the mean duration of a task.
pub(super) const DURATION_TICKS: u64 = 1 << 40;

/// Endless arrivals of tasks drawn from a trace.
pub(super) struct Workload<'a> {
    tasks: &'a [Task],
    random: Random,
    /// The mean time between arrivals.
    gap_ticks: f64,
    now: f64,
}

/// A task comes.
pub(super) struct Arrival<'a> {
    pub(super) at: u64,
    pub(super) task: &'a Task,
    /// How long it will run.
    pub(super) duration: u64,
}

impl<'a> Workload<'a> {
    /// Arrivals that ask for so many percent of the nodes' device time. Some task must ask for some.
    pub(super) fn new(nodes: &[NodeSpec], tasks: &'a [Task], load_percent: u32, seed: u64) -> Self {
        let there: usize = nodes.iter().map(|node| node.devices.len() * 1000).sum();
        let asked: u64 = tasks.iter().map(|task| task.request.total_core()).sum();
        let mean_asked = asked as f64 / tasks.len() as f64;
        // By Little's law, tasks that are there are arrivals in the mean time that each stays.
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
