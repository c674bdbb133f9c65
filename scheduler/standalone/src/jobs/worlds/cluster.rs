//! A book, the real engine, and nodes of which some refuse every start.

use aliquot_proto::scheduler::v1 as wire;
use aliquot_scheduler_core::placement::BestFit;
use aliquot_scheduler_core::{MilliCpu, NodeSpec};
use aliquot_scheduler_engine::{
    AtOnce, Backend, Command, Decisions, Engine, Observation, Order, Saved, Settings, StepOutcome,
};

use crate::jobs::book::{Book, Effects, Ended, StartOrder};
use crate::jobs::run::{Fault, Instance};
use crate::jobs::{ClaimName, Job, JobSpec, NODE_LABEL, Task};

/// The CPU of each node, and of each member of the job.
const CPU_MILLIS: u64 = 1000;

/// A cluster with one job.
pub(super) struct Cluster {
    pub(super) book: Book,
    engine: Engine,
    nodes: AtOnce,
    refusing: &'static [&'static str],
    now_ms: u64,
    /// The nodes that were sent a start, in order.
    pub(super) tried: Vec<String>,
}

impl Cluster {
    /// Nodes with room for one member each, and a job of this number of members.
    pub(super) fn new(names: &[&str], refusing: &'static [&'static str], gang: u32) -> Self {
        let decisions = Decisions {
            policy: Box::new(BestFit),
            settings: aliquot_scheduler_core::Settings::default(),
            usage_half_life_ms: 60_000,
        };
        let settings = Settings { lease: None, ..Settings::default() };
        let engine = Engine::new(decisions, settings, Saved::default());
        let (book, nodes, tried) = Default::default();
        let mut cluster = Self { book, engine, nodes, refusing, now_ms: 1, tried };
        cluster.tell(Observation::Synced);
        for name in names {
            let cpu = MilliCpu::new(CPU_MILLIS);
            let labels = [(NODE_LABEL.to_owned(), (*name).to_owned())].into();
            let report = cluster.nodes.join(NodeSpec { name: (*name).into(), labels, cpu, ..NodeSpec::default() });
            cluster.tell(report);
        }
        let spec = wire::JobSpec { command: vec!["true".into()], gang, cpu_millis: CPU_MILLIS, ..Default::default() };
        let spec = JobSpec::read(spec).expect("a sound job");
        let (user, local_user, request_id) = ("u".into(), String::new(), String::new());
        let job = Job { id: 1, spec, uid: 1000, local_user, user, is_remote: false, submitted_ms: 0, request_id };
        cluster.act(|book, now_ms, effects| book.submit(now_ms, job, effects).expect("it can be submitted"));
        cluster
    }

    pub(super) fn task(&self) -> &Task {
        self.book.task(1, 0).expect("the job has a task")
    }

    /// The nodes where the members are, or were last.
    pub(super) fn places(&self) -> Vec<&str> {
        self.task().members.iter().filter_map(|member| Some(member.place.as_ref()?.node.as_str())).collect()
    }

    /// Lets time pass until nodes were sent this number of starts. It does not pass for ever.
    pub(super) fn run_until_tried(&mut self, times: usize) {
        for _ in 0..10_000 {
            if self.tried.len() >= times {
                return;
            }
            self.step();
        }
        panic!("only {:?} were tried", self.tried);
    }

    /// Lets time pass to the next moment at which something is due.
    pub(super) fn step(&mut self) {
        let due_ms = [self.engine.next_ms(), self.book.next_ms()].into_iter().flatten().min();
        self.now_ms = due_ms.unwrap_or(0).max(self.now_ms + 1);
        self.act(Book::tick);
        for command in self.engine.poll(self.now_ms).commands {
            let Command { node, session, order } = command;
            match order {
                Order::Start { claim, generation, amounts, deadline_ms, term } => {
                    let claim = ClaimName::parse(claim.as_str()).expect("a claim of the book");
                    let order = StartOrder { node, session, claim, generation, amounts, deadline_ms, term };
                    self.act(|book, now_ms, effects| book.start(now_ms, order, effects));
                }
                Order::Resize { .. } => panic!("no job is resized"),
                order => self.carry_out(Command { node, session, order }),
            }
        }
    }

    fn act(&mut self, act: impl FnOnce(&mut Book, u64, &mut Effects)) {
        let mut effects = Effects::default();
        act(&mut self.book, self.now_ms, &mut effects);
        effects.observations.into_iter().for_each(|observation| self.tell(observation));
        effects.starts.into_iter().for_each(|order| self.send(order));
    }

    fn tell(&mut self, observation: Observation) {
        // Nobody waits for the answer. A claim that is just starting cannot ask for something else at once.
        _ = self.engine.handle(self.now_ms, observation);
    }

    fn send(&mut self, order: StartOrder) {
        self.tried.push(order.node.to_string());
        if self.refusing.contains(&order.node.as_str()) {
            return self.act(|book, now_ms, effects| book.not_sent(now_ms, &order, "no user", Fault::Node, effects));
        }
        let StartOrder { node, session, claim, generation, amounts, deadline_ms, term } = order;
        let order = Order::Start { claim: claim.to_string().into(), generation, amounts, deadline_ms, term };
        self.carry_out(Command { node, session, order });
    }

    /// A node carries out a command; the book and then the engine hear its answer.
    fn carry_out(&mut self, command: Command) {
        self.nodes.carry_out(command);
        for answer in self.nodes.take_answers() {
            if let Observation::Outcome(report) = &answer
                && let Some(claim) = ClaimName::parse(report.claim.as_str())
            {
                let of = Instance { node: report.node.as_str(), claim, generation: report.instance };
                self.act(|book, now_ms, effects| match report.outcome {
                    StepOutcome::Started => _ = book.started(now_ms, of, effects),
                    StepOutcome::Gone => book.ended(now_ms, of, Ended::Displaced, effects),
                    _ => {}
                });
            }
            self.tell(answer);
        }
    }
}
