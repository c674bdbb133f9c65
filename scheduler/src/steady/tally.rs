//! Counts tasks by their outcome.

use std::collections::BTreeMap;

use aliquot_scheduler_core::{NodeSpec, Request};
use serde::Serialize;

use super::free::{FreeAtLoss, FreeSums};
use super::workload::DURATION_TICKS;
use super::{Mode, Play};
use crate::policy::PolicyName;
use crate::sort::Sort;

/// The results, over the counted tasks and the time in which they arrived.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct Report {
    /// How nodes were chosen.
    pub policy: PolicyName,
    /// Device time that tasks asked for, in percent of the devices.
    pub load_percent: u32,
    /// The treatment of tasks that did not fit.
    pub mode: Mode,
    /// The seed of the random numbers.
    pub seed: u64,
    /// The time in which the tasks arrived, in mean durations of a task.
    pub durations: f64,
    /// Mean device time in use over time, in percent.
    pub allocated_device_percent: f64,
    /// Mean CPU in use over time, in percent.
    pub allocated_cpu_percent: f64,
    /// Tasks that were moved.
    pub moves: u64,
    /// The counts of all tasks together.
    pub all: Counts,
    /// Tasks of each sort.
    pub sorts: BTreeMap<Sort, Counts>,
}

/// The counts of one sort of tasks.
#[derive(Clone, PartialEq, Debug, Default, Serialize)]
pub struct Counts {
    /// The number of tasks that arrived.
    pub came: u64,
    /// How many of them were placed.
    pub placed: u64,
    /// How many of them were lost.
    pub lost: u64,
    /// The lost tasks in percent of those that arrived.
    pub lost_percent: f64,
    /// What was free when they were lost; absent where none was lost.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub free_at_loss: Option<FreeAtLoss>,
    /// How long they waited; absent where tasks do not wait.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub waits: Option<Waits>,
}

/// How long tasks waited, in percent of the mean duration of a task. For tasks that still wait, it is how long they
/// have waited so far.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct Waits {
    /// The mean of all waits.
    pub mean: f64,
    /// 99 of 100 tasks waited no longer.
    pub p99: f64,
    /// The longest wait of a task.
    pub max: f64,
    /// Number of tasks that still waited at the end.
    pub still_waiting: u64,
}

pub(super) struct Tally {
    play: Play,
    device_core: u64,
    cpu: u64,
    now: u64,
    counted_from: Option<u64>,
    used_device_core: u64,
    used_cpu: u64,
    /// The used amounts times the time of their use, since counting began.
    device_core_ticks: u128,
    cpu_ticks: u128,
    moves: u64,
    counts: BTreeMap<Sort, Counts>,
    free: BTreeMap<Sort, FreeSums>,
    waits: BTreeMap<Sort, Vec<u64>>,
    left_waiting: BTreeMap<Sort, u64>,
}

impl Tally {
    pub(super) fn new(nodes: &[NodeSpec], play: &Play) -> Self {
        Self {
            play: *play,
            device_core: nodes.iter().map(|node| node.devices.len() as u64 * 1000).sum(),
            cpu: nodes.iter().map(|node| node.cpu.get()).sum(),
            now: 0,
            counted_from: None,
            used_device_core: 0,
            used_cpu: 0,
            device_core_ticks: 0,
            cpu_ticks: 0,
            moves: 0,
            counts: Sort::ALL.map(|sort| (sort, Counts::default())).into(),
            free: BTreeMap::new(),
            waits: BTreeMap::new(),
            left_waiting: BTreeMap::new(),
        }
    }

    fn is_counted(&self, number: u64) -> bool {
        number >= self.play.warm_up
    }

    fn of(&mut self, request: &Request) -> &mut Counts {
        self.counts.entry(Sort::of(request)).or_default()
    }

    pub(super) fn advance(&mut self, now: u64) {
        if self.counted_from.is_some() {
            let elapsed = u128::from(now - self.now);
            self.device_core_ticks += u128::from(self.used_device_core) * elapsed;
            self.cpu_ticks += u128::from(self.used_cpu) * elapsed;
        }
        self.now = now;
    }

    pub(super) fn came(&mut self, number: u64, request: &Request) {
        if self.is_counted(number) {
            self.counted_from.get_or_insert(self.now);
            self.of(request).came += 1;
        }
    }

    /// Counts a lost task. `free` says what is free; it takes a look at each node, and only counted tasks need it.
    pub(super) fn lost(&mut self, number: u64, request: &Request, free: impl FnOnce() -> FreeSums) {
        if self.is_counted(number) {
            self.of(request).lost += 1;
            self.free.entry(Sort::of(request)).or_default().add(free());
        }
    }

    pub(super) fn began(&mut self, number: u64, request: &Request, waited: u64) {
        self.used_device_core += request.total_core();
        self.used_cpu += request.cpu.get();
        if self.is_counted(number) {
            self.of(request).placed += 1;
            self.waits.entry(Sort::of(request)).or_default().push(waited);
        }
    }

    pub(super) fn ended(&mut self, request: &Request) {
        self.used_device_core -= request.total_core();
        self.used_cpu -= request.cpu.get();
    }

    pub(super) fn moved(&mut self, tasks: usize) {
        if self.counted_from.is_some() {
            self.moves += tasks as u64;
        }
    }

    /// Counts a task that still waits at the end, also one that arrived before the count began: if it were left out, it
    /// would look as if it had not waited.
    pub(super) fn left_waiting(&mut self, request: &Request, came: u64) {
        let sort = Sort::of(request);
        *self.left_waiting.entry(sort).or_default() += 1;
        self.waits.entry(sort).or_default().push(self.now - came);
    }

    pub(super) fn report(mut self) -> Report {
        let elapsed = self.now - self.counted_from.unwrap_or(self.now);
        let percent_of = |used: u128, there: u64| 100.0 * used as f64 / (there as f64 * elapsed as f64).max(1.0);
        let (mut all, mut free) = (Counts::default(), FreeSums::default());
        for (sort, counts) in &mut self.counts {
            let of_sort = self.free.get(sort).copied().unwrap_or_default();
            free.add(of_sort);
            counts.free_at_loss = of_sort.mean();
            all.came += counts.came;
            all.placed += counts.placed;
            all.lost += counts.lost;
            counts.lost_percent = lost_percent(counts);
        }
        all.lost_percent = lost_percent(&all);
        all.free_at_loss = free.mean();
        if self.play.mode == Mode::Queue {
            for (sort, counts) in &mut self.counts {
                let still_waiting = self.left_waiting.get(sort).copied().unwrap_or(0);
                counts.waits = waits(self.waits.get(sort).cloned().unwrap_or_default(), still_waiting);
            }
            all.waits = waits(self.waits.values().flatten().copied().collect(), self.left_waiting.values().sum());
        }
        Report {
            policy: self.play.policy,
            load_percent: self.play.load_percent,
            mode: self.play.mode,
            seed: self.play.seed,
            durations: elapsed as f64 / DURATION_TICKS as f64,
            allocated_device_percent: percent_of(self.device_core_ticks, self.device_core),
            allocated_cpu_percent: percent_of(self.cpu_ticks, self.cpu),
            moves: self.moves,
            all,
            sorts: self.counts,
        }
    }
}

fn lost_percent(counts: &Counts) -> f64 {
    100.0 * counts.lost as f64 / counts.came.max(1) as f64
}

fn waits(mut waited: Vec<u64>, still_waiting: u64) -> Option<Waits> {
    waited.sort_unstable();
    let percent = |ticks: u64| 100.0 * ticks as f64 / DURATION_TICKS as f64;
    let last = waited.last().copied()?;
    let p99 = waited.get(waited.len() * 99 / 100).copied().unwrap_or(last);
    let sum: f64 = waited.iter().map(|ticks| percent(*ticks)).sum();
    Some(Waits { mean: sum / waited.len() as f64, p99: percent(p99), max: percent(last), still_waiting })
}
