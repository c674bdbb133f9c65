//! Simulates a cluster in which tasks arrive and end at random, at a rate that asks for a given part of the devices.
//!
//! Tasks are drawn from a trace and arrive as a Poisson process. Each runs for a time drawn from the exponential
//! distribution, with the same mean for all. The workload depends on the seed alone: every policy gets the same tasks
//! at the same times. Tasks that arrive after a warm-up are counted, by what becomes of them.
//!
//! Only the core decides here, without the live engine, because policies are compared with hundreds of thousands of
//! tasks for each figure. The live engine runs another cycle after each cycle that has placed something; here that
//! would only take time.

mod free;
mod tally;
mod workload;

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap};

use aliquot_scheduler_core::placement::{Engine, Mix, Policy};
use aliquot_scheduler_core::{Claim, ClaimId, Cluster, Event, NodeSpec, Outcome, Scheduler, Settings, Step};
use anyhow::{Context, Result, bail, ensure};
use clap::ValueEnum;
use serde::Serialize;

use crate::policy::PolicyName;
use crate::trace::Task;
pub use free::FreeAtLoss;
use free::FreeSums;
use tally::Tally;
pub use tally::{Counts, Report, Waits};
use workload::{DURATION_TICKS, Workload};

/// The mean time for which a task runs, on the cluster's clock: an hour. Settings in real time are to be seen in
/// proportion to this, such as how long a claim waits before nodes are kept for it.
const DURATION_MS: u64 = 3_600_000;

/// The treatment of a task that does not fit when it arrives.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, ValueEnum, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Mode {
    /// The task is lost.
    #[default]
    Loss,
    /// The task waits. A later task that fits may start before it.
    Queue,
}

/// The parameters of a simulation.
#[derive(Clone, Copy, Debug)]
pub struct Play {
    /// The offered load: the device time that tasks request, in percent of the capacity.
    pub load_percent: u32,
    /// The treatment of tasks that do not fit.
    pub mode: Mode,
    /// The policy that chooses the devices of each task.
    pub policy: PolicyName,
    /// Whether running tasks are moved to make room.
    pub consolidate: bool,
    /// The seed of the random numbers.
    pub seed: u64,
    /// The number of tasks that arrive before any is counted.
    pub warm_up: u64,
    /// The number of tasks that are counted.
    pub count: u64,
}

/// Simulates tasks drawn from `tasks` on `nodes`.
///
/// # Errors
/// If two nodes have the same name, none has a device, or no task asks for one.
pub fn play(nodes: &[NodeSpec], tasks: &[Task], play: &Play) -> Result<Report> {
    let devices: usize = nodes.iter().map(|node| node.devices.len()).sum();
    ensure!(
        devices > 0,
        "no node has a device, and the load is a percentage of the devices' time; list nodes with devices"
    );
    ensure!(
        tasks.iter().any(|task| task.request.total_core() > 0),
        "no task requests device time, and the load is measured in device time; list tasks that request some"
    );
    ensure!(play.load_percent > 0, "the load is 0 %, so that no task ever arrives; give 1 or more");
    ensure!(play.count > 0, "the number of counted tasks is 0; give 1 or more");
    let workload = Workload::new(nodes, tasks, play.load_percent, play.seed);
    Run::new(nodes, tasks, play)?.play(workload, play)
}

/// A cluster, with the tasks that run on it.
struct Run {
    cluster: Cluster,
    decider: Decider,
    mode: Mode,
    now: u64,
    /// The times at which tasks end, in order. The second number is the number of the task's arrival.
    ends: BinaryHeap<Reverse<(u64, u64)>>,
    /// Running and waiting tasks, by the number of their arrival.
    there: BTreeMap<u64, There>,
    /// The same numbers by claim.
    numbers: BTreeMap<ClaimId, u64>,
    /// The number of waiting tasks.
    waiting: usize,
    tally: Tally,
}

/// The part of the core that places tasks.
enum Decider {
    /// One decision for each arriving task. If no task waits and no task is moved, a cycle would decide the same, but
    /// take ten times as long.
    Engine(Engine<Box<dyn Policy>>),
    /// Cycles, as in a live scheduler.
    Scheduler(Box<Scheduler>),
}

struct There {
    claim: ClaimId,
    came: u64,
    duration: u64,
    runs: bool,
}

impl Run {
    fn new(nodes: &[NodeSpec], tasks: &[Task], play: &Play) -> Result<Self> {
        let mut cluster = Cluster::new();
        for node in nodes {
            cluster.apply(Event::NodeAdded(node.clone()))?;
        }
        let mix = Mix::of(tasks.iter().map(|task| &task.request));
        let policy = play.policy.make(&mix, play.seed);
        let moves_per_cycle = if play.consolidate { Settings::default().moves_per_cycle } else { 0 };
        let settings = Settings { counts_mix: false, moves_per_cycle, ..Settings::default() };
        let decider = match (play.mode, play.consolidate) {
            (Mode::Loss, false) => Decider::Engine(Engine::new(policy)),
            _ => Decider::Scheduler(Box::new(Scheduler::new(policy, settings))),
        };
        Ok(Self {
            cluster,
            decider,
            mode: play.mode,
            now: 0,
            ends: BinaryHeap::new(),
            there: BTreeMap::new(),
            numbers: BTreeMap::new(),
            waiting: 0,
            tally: Tally::new(nodes, play),
        })
    }

    fn play(mut self, workload: Workload<'_>, play: &Play) -> Result<Report> {
        for (number, arrival) in (0..play.warm_up.saturating_add(play.count)).zip(workload) {
            while let Some(Reverse((ends, number))) = self.ends.peek().copied().filter(|end| end.0.0 <= arrival.at) {
                self.ends.pop();
                self.advance(ends)?;
                self.end(number)?;
            }
            self.advance(arrival.at)?;
            self.tally.came(number, &arrival.task.request);
            self.come(number, arrival.task, arrival.duration)?;
        }
        for there in self.there.values().filter(|there| !there.runs) {
            let request = self.cluster.claim(there.claim).map(|claim| &claim.request);
            self.tally.left_waiting(request.context("a claim that waits is gone")?, there.came);
        }
        Ok(self.tally.report())
    }

    fn advance(&mut self, now: u64) -> Result<()> {
        self.now = now;
        self.tally.advance(now);
        let now_ms = u128::from(now) * u128::from(DURATION_MS) / u128::from(DURATION_TICKS);
        self.cluster.apply(Event::TimeAdvanced(u64::try_from(now_ms)?))?;
        Ok(())
    }

    fn come(&mut self, number: u64, task: &Task, duration: u64) -> Result<()> {
        let claim = Claim { request: task.request.clone(), preemptible: true, ..Claim::default() };
        let Outcome::Claim(claim) = self.cluster.apply(Event::ClaimAdded(claim))? else { bail!("a claim got no id") };
        self.there.insert(number, There { claim, came: self.now, duration, runs: false });
        self.numbers.insert(claim, number);
        self.waiting += 1;
        self.decide(claim)?;
        if self.mode == Mode::Loss && self.there.get(&number).is_some_and(|there| !there.runs) {
            self.tally.lost(number, &task.request, || FreeSums::of_loss(&self.cluster, &task.request));
            self.waiting -= 1;
            self.remove(number)?;
        }
        Ok(())
    }

    fn end(&mut self, number: u64) -> Result<()> {
        let claim = self.there.get(&number).and_then(|there| self.cluster.claim(there.claim));
        self.tally.ended(&claim.context("a claim that runs is gone")?.request);
        self.remove(number)?;
        if self.waiting > 0 { self.run_cycles() } else { Ok(()) }
    }

    fn remove(&mut self, number: u64) -> Result<()> {
        let there = self.there.remove(&number).context("a task ends twice")?;
        self.numbers.remove(&there.claim);
        self.cluster.apply(Event::ClaimRemoved(there.claim))?;
        Ok(())
    }

    /// Decides where a new claim goes.
    fn decide(&mut self, claim: ClaimId) -> Result<()> {
        let Decider::Engine(engine) = &mut self.decider else { return self.run_cycles() };
        let class = self.cluster.class_of(claim).context("a claim has no class")?;
        match engine.place(&self.cluster, class) {
            Some(allocation) => {
                self.cluster.apply(Event::ClaimPlaced(claim, allocation))?;
                self.begin(claim)
            }
            None => Ok(()),
        }
    }

    /// Runs cycles until no task is moved any more. Moves take no time.
    fn run_cycles(&mut self) -> Result<()> {
        loop {
            let Decider::Scheduler(scheduler) = &mut self.decider else { return Ok(()) };
            let plan = scheduler.cycle(&mut self.cluster);
            let mut moved = Vec::new();
            for planned in &plan.steps {
                match &planned.step {
                    Step::Place { claim, .. } => self.begin(*claim)?,
                    Step::Move { claim, .. } => moved.push(*claim),
                    Step::Evict { .. } => bail!("a task was evicted although all are of one queue and priority"),
                }
            }
            for claim in &moved {
                self.cluster.apply(Event::ClaimGone(*claim))?;
            }
            self.tally.moved(moved.len());
            if moved.is_empty() {
                return Ok(());
            }
        }
    }

    fn begin(&mut self, claim: ClaimId) -> Result<()> {
        let number = *self.numbers.get(&claim).context("a claim was placed that is not there")?;
        let there = self.there.get_mut(&number).context("a claim was placed that is not there")?;
        there.runs = true;
        self.waiting -= 1;
        self.ends.push(Reverse((self.now.saturating_add(there.duration), number)));
        let request = &self.cluster.claim(claim).context("a claim was placed that is not there")?.request;
        self.tally.began(number, request, self.now - there.came);
        Ok(())
    }
}
