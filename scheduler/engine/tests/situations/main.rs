//! Single situations, message by message.

mod alternatives;
mod chosen;
mod configuration;
mod devices;
mod ended;
mod namespaces;
mod nodes;
mod refusals;
mod resizes;
mod restarts;
mod settings;
mod several;
mod strays;
mod together;

use aliquot_scheduler_core::placement::BestFit;
use aliquot_scheduler_core::{
    Action, Allowance, Bytes, Claim, DeviceCore, DeviceRequest, DeviceSpec, EventError, Health, MilliCpu, NodeSpec,
    PodGroup, QueueError, QueueSpec, Request, Resource,
};
use aliquot_scheduler_engine::{
    Amounts, Batch, ClaimKey, ClaimRecord, ClaimUid, Command, Decisions, DevicePart, Engine, Generation, Heartbeat,
    InstanceRecord, Lease, MemoryStore, NodeRecord, NodeReport, Observation, Order, Phase, Report, Running, Saved,
    Settings, StepOutcome, Store, View, Whereabouts,
};
use aliquot_scheduler_kit as kit;
use std::sync::Arc;

const GIB: u64 = 1 << 30;

struct Kit {
    engine: Engine,
    store: MemoryStore,
    now_ms: u64,
    sequence: u64,
    view: Option<Arc<View>>,
}

fn settings() -> Settings {
    Settings { lease: Some(Lease { lease_ms: 10_000, margin_ms: 1000, silence_ms: 5000 }), ..Settings::default() }
}

fn decisions() -> Decisions {
    Decisions {
        policy: Box::new(BestFit),
        settings: aliquot_scheduler_core::Settings::default(),
        usage_half_life_ms: 60_000,
    }
}

fn engine(saved: Saved) -> Engine {
    Engine::new(decisions(), settings(), saved)
}

fn node(devices: usize) -> NodeSpec {
    let device = |index| DeviceSpec { uuid: format!("GPU-{index}"), ..kit::device("A") };
    NodeSpec { memory: Bytes::new(512 * GIB), devices: (0..devices).map(device).collect(), ..kit::node("node", 64, 0) }
}

fn claim(name: &str, percent: u32, priority: i32) -> (ClaimUid, Claim) {
    let request = kit::part(percent);
    (name.into(), Claim { name: name.into(), request, priority, preemptible: true, ..Claim::default() })
}

fn amounts(device: usize, percent: u32) -> Amounts {
    let memory = Bytes::new(80 * GIB).thousandths(percent * 10);
    let part = DevicePart { uuid: format!("GPU-{device}"), core: DeviceCore::from_percent(percent), memory };
    Amounts { devices: vec![part], ..Amounts::default() }
}

fn running(name: &str, number: u64, device: usize, percent: u32) -> Running {
    let instance = Generation { term: 1, number };
    Running { claim: name.into(), instance, amounts: amounts(device, percent), since_ms: None }
}

/// The record of an instance that runs on the node.
fn record(number: u64, amounts: Amounts) -> ClaimRecord {
    let instance = InstanceRecord {
        node: "node".into(),
        session: 1,
        generation: Generation { term: 1, number },
        phase: Phase::Running,
        started_ms: 1,
        amounts,
    };
    ClaimRecord { added_ms: 1, instance: Some(instance), ..ClaimRecord::default() }
}

impl Kit {
    /// A live engine, and a node with this number of devices on which these instances run.
    fn new(devices: usize, there: Vec<Running>) -> Self {
        let mut kit = Self::not_live(MemoryStore::default());
        kit.tell(Observation::Synced);
        kit.report(node(devices), 1, Generation { term: 1, number: 0 }, there);
        kit
    }

    /// An engine that is not live yet, and has saved records of these claims on a node with so many devices.
    fn saved(devices: usize, claims: Vec<(ClaimKey, ClaimRecord)>) -> Self {
        let mut store = MemoryStore::default();
        let term = store.load().expect("it is in memory").term;
        let claims = claims.into_iter().map(|(key, record)| (key, Some(record))).collect();
        let there = NodeRecord { spec: node(devices), session: 1, has_lapsed: false, lease_ms: 0 };
        let batch = Batch { term, claims, nodes: vec![("node".into(), Some(there))], memory: None };
        store.save(&batch).expect("it is in memory");
        Self::not_live(store)
    }

    fn not_live(mut store: MemoryStore) -> Self {
        let saved = store.load().expect("it is in memory");
        Self { engine: engine(saved), store, now_ms: 1000, sequence: 0, view: None }
    }

    fn try_tell(&mut self, observation: Observation) -> Result<(), EventError> {
        let told = self.engine.handle(self.now_ms, observation);
        self.engine.check().unwrap_or_else(|wrong| panic!("{wrong}"));
        told
    }

    fn tell(&mut self, observation: Observation) {
        self.try_tell(observation).unwrap_or_else(|error| panic!("{error}"));
    }

    fn report(&mut self, spec: NodeSpec, session: u64, handled: Generation, running: Vec<Running>) {
        self.sequence += 1;
        let sequence = self.sequence;
        self.tell(Observation::Node(Box::new(NodeReport { spec, session, sequence, handled, running })));
    }

    fn want(&mut self, name: &str, percent: u32, priority: i32) {
        let (uid, claim) = claim(name, percent, priority);
        self.tell(Observation::Claim(uid, Box::new(claim)));
    }

    fn outcome(&mut self, name: &str, instance: Generation, generation: Generation, outcome: StepOutcome) {
        self.sequence += 1;
        let (node, sequence) = ("node".into(), self.sequence);
        let claim = name.into();
        self.tell(Observation::Outcome(Report { node, session: 1, sequence, claim, instance, generation, outcome }));
    }

    /// Lets time pass; answers the starts and stops in it.
    fn pass(&mut self, ms: u64) -> Vec<Command> {
        let end_ms = self.now_ms + ms;
        let mut commands = Vec::new();
        loop {
            let turn = self.engine.poll(self.now_ms);
            self.engine.check().unwrap_or_else(|wrong| panic!("{wrong}"));
            if let Some(batch) = turn.save {
                self.store.save(&batch).unwrap_or_else(|error| panic!("{error}"));
            }
            commands.extend(turn.commands);
            self.view = turn.view.or(self.view.take());
            match self.engine.next_ms() {
                Some(next_ms) if next_ms <= end_ms => self.now_ms = self.now_ms.max(next_ms),
                _ => break,
            }
        }
        self.now_ms = end_ms;
        commands
            .retain(|command| matches!(command.order, Order::Start { .. } | Order::Stop { .. } | Order::Resize { .. }));
        commands
    }

    /// The only start within the next moments.
    fn start(&mut self) -> (ClaimUid, Generation) {
        match &self.pass(100)[..] {
            [Command { order: Order::Start { claim, generation, .. }, .. }] => (claim.clone(), *generation),
            other => panic!("not one start: {other:?}"),
        }
    }

    /// Starts a claim and confirms it; answers its generation.
    fn runs(&mut self, name: &str, percent: u32, priority: i32) -> Generation {
        self.want(name, percent, priority);
        let (_, generation) = self.start();
        self.outcome(name, generation, generation, StepOutcome::Started);
        self.pass(100);
        generation
    }

    fn whereabouts(&self, name: &str) -> Option<Whereabouts> {
        self.view.as_ref().expect("readers see something").claim(&name.into()).map(|claim| claim.whereabouts)
    }

    fn phase(&self, name: &str) -> Option<Phase> {
        match self.whereabouts(name)? {
            Whereabouts::There { phase, .. } => Some(phase),
            _ => None,
        }
    }

    /// The engine ends, and another one continues from the store.
    fn restart(self) -> Self {
        self.restart_with(settings())
    }

    fn restart_with(self, settings: Settings) -> Self {
        let Self { mut store, now_ms, sequence, .. } = self;
        let saved = store.load().expect("it is in memory");
        let engine = Engine::new(decisions(), settings, saved);
        Self { engine, store, now_ms, sequence, view: None }
    }
}

fn stops(commands: &[Command]) -> Vec<(&str, Generation)> {
    let stop = |command: &Command| matches!(command.order, Order::Stop { .. });
    assert!(commands.iter().all(stop), "not only stops: {commands:?}");
    let of = |command| match command {
        &Command { order: Order::Stop { ref claim, instance, .. }, .. } => Some((claim.as_str(), instance)),
        _ => None,
    };
    commands.iter().filter_map(of).collect()
}

#[test]
fn a_report_that_is_older_than_what_was_heard_since_changes_nothing() {
    let mut kit = Kit::new(1, Vec::new());
    let instance = kit.runs("claim", 100, 50);
    let late = NodeReport {
        spec: node(1),
        session: 1,
        sequence: kit.sequence + 1,
        handled: instance,
        running: vec![Running { claim: "claim".into(), instance, amounts: amounts(0, 100), since_ms: None }],
    };
    kit.sequence += 1;
    kit.outcome("claim", instance, instance, StepOutcome::Gone);
    kit.tell(Observation::Node(Box::new(late)));
    kit.pass(10);
    assert_eq!(kit.phase("claim"), None, "it was gone later than it ran");
}

#[test]
fn an_answered_step_leaves_no_deadline_behind() {
    // Nothing else is due in the meantime.
    let settings = Settings { lease: None, memory_every_ms: 1 << 40, idle_cycle_ms: 1 << 41, ..settings() };
    let mut kit = Kit::not_live(MemoryStore::default()).restart_with(settings);
    kit.tell(Observation::Synced);
    kit.report(node(1), 1, Generation::default(), Vec::new());
    kit.pass(100);
    let without_claims = kit.engine.next_ms();
    let instance = kit.runs("claim", 100, 50);
    assert_eq!(kit.engine.next_ms(), without_claims, "it runs");
    kit.tell(Observation::ClaimEnded("claim".into()));
    kit.pass(100);
    assert!(kit.engine.next_ms() < without_claims, "its stop has a deadline");
    kit.outcome("claim", instance, instance, StepOutcome::Gone);
    kit.pass(100);
    assert_eq!(kit.engine.next_ms(), without_claims, "it is gone");
}

#[test]
fn an_outcome_that_is_repeated_or_late_changes_nothing() {
    let mut kit = Kit::new(1, Vec::new());
    let first = kit.runs("claim", 100, 50);
    for _ in 0..2 {
        kit.outcome("claim", first, first, StepOutcome::Gone);
    }
    let (_, second) = {
        kit.now_ms += 1000;
        kit.start()
    };
    assert!(second > first);
    let failures = |kit: &Kit| kit.view.as_ref().and_then(|view| view.claim(&"claim".into())).map(|of| of.failures.0);
    assert_eq!(failures(&kit), Some(1), "it ended once");
    for late in [StepOutcome::Started, StepOutcome::Gone, StepOutcome::Failed(String::new()), StepOutcome::Unknown] {
        kit.outcome("claim", first, first, late);
        assert_eq!(kit.pass(100), []);
        assert_eq!(kit.phase("claim"), Some(Phase::Starting));
    }
    kit.outcome("claim", second, second, StepOutcome::Started);
    kit.outcome("claim", second, second, StepOutcome::Unknown);
    assert_eq!(kit.pass(100), []);
    assert_eq!(kit.phase("claim"), Some(Phase::Running));
}

#[test]
fn what_runs_and_nobody_wants_is_stopped_and_its_room_given_only_then() {
    let mut kit = Kit::new(1, vec![running("stranger", 7, 0, 100)]);
    kit.want("claim", 100, 50);
    let stranger = Generation { term: 1, number: 7 };
    assert_eq!(stops(&kit.pass(100)), [("stranger", stranger)]);
    assert_eq!(kit.pass(1000), [], "its room is not free yet");
    kit.outcome("stranger", stranger, stranger, StepOutcome::Gone);
    assert_eq!(kit.start().0.as_str(), "claim");
}

#[test]
fn what_is_wanted_and_seen_running_is_not_started_again() {
    let mut kit = Kit::not_live(MemoryStore::default());
    let (uid, of) = claim("claim", 50, 50);
    kit.tell(Observation::Claim(uid, Box::new(of)));
    kit.report(node(1), 1, Generation::default(), vec![running("claim", 3, 0, 50)]);
    kit.tell(Observation::Synced);
    assert_eq!(kit.pass(100), []);
    assert_eq!(kit.phase("claim"), Some(Phase::Running));
}

#[test]
fn a_report_of_what_is_known_saves_and_commands_nothing() {
    let mut kit = Kit::new(1, Vec::new());
    let instance = kit.runs("claim", 100, 50);
    let own = Running { claim: "claim".into(), instance, amounts: amounts(0, 100), since_ms: None };
    kit.report(node(1), 1, instance, vec![own]);
    let turn = kit.engine.poll(kit.now_ms);
    assert_eq!(turn.save, None);
    assert!(turn.commands.iter().all(|command| matches!(command.order, Order::Renew { .. })), "{:?}", turn.commands);
}

#[test]
fn a_second_instance_of_a_claim_is_stopped() {
    let mut kit = Kit::new(2, Vec::new());
    let first = kit.runs("claim", 100, 50);
    let own = Running { claim: "claim".into(), instance: first, amounts: amounts(0, 100), since_ms: None };
    kit.report(node(2), 1, first, vec![own, running("claim", 90, 1, 100)]);
    assert_eq!(stops(&kit.pass(100)), [("claim", Generation { term: 1, number: 90 })]);
    assert_eq!(kit.phase("claim"), Some(Phase::Running));
}

#[test]
fn a_node_that_runs_more_than_it_has_is_relieved_of_who_matters_least() {
    let mut kit = Kit::not_live(MemoryStore::default());
    for (name, priority) in [("one", 50), ("two", 10), ("three", 30)] {
        let (uid, of) = claim(name, 50, priority);
        kit.tell(Observation::Claim(uid, Box::new(of)));
    }
    let there = [("one", 1), ("two", 2), ("three", 3)].map(|(name, number)| running(name, number, 0, 50));
    kit.report(node(1), 1, Generation::default(), there.into());
    kit.tell(Observation::Synced);
    let second = Generation { term: 1, number: 2 };
    assert_eq!(stops(&kit.pass(100)), [("two", second)]);
    kit.outcome("two", second, second, StepOutcome::Gone);
    assert_eq!(kit.pass(100), []);
    let view = kit.view.clone().expect("readers see something");
    let evicted = view.claim_id(&"two".into()).and_then(|id| view.cluster().displaced(id)).map(|why| why.action);
    assert_eq!(evicted, Some(Action::Relieve));
}

#[test]
fn a_device_that_is_not_reported_any_more_is_unhealthy_and_keeps_its_place() {
    let mut kit = Kit::new(2, Vec::new());
    let mut changed = node(3);
    changed.devices.remove(0);
    kit.report(changed, 1, Generation::default(), Vec::new());
    kit.pass(100);
    let view = kit.view.clone().expect("readers see something");
    let id = view.cluster().node_named("node").expect("it is there");
    let devices = &view.cluster().node(id).expect("it is there").spec().devices;
    let devices: Vec<(&str, Health)> = devices.iter().map(|device| (&*device.uuid, device.health)).collect();
    assert_eq!(devices, [("GPU-0", Health::Unhealthy), ("GPU-1", Health::Healthy), ("GPU-2", Health::Healthy)]);
}

#[test]
fn a_claim_whose_queue_is_not_there_waits_for_it() {
    let mut kit = Kit::new(1, Vec::new());
    let (uid, of) = claim("claim", 100, 50);
    let of = Claim { queue: "team".into(), ..of };
    let unknown = EventError::Queue(QueueError::Unknown("team".into()));
    assert_eq!(kit.try_tell(Observation::Claim(uid, Box::new(of))), Err(unknown.clone()));
    assert_eq!(kit.pass(100), []);
    assert_eq!(kit.whereabouts("claim"), Some(Whereabouts::Refused(unknown)));
    kit.tell(Observation::Queue(QueueSpec { name: "team".into(), ..QueueSpec::default() }));
    assert_eq!(kit.start().0.as_str(), "claim");
}

#[test]
fn a_gang_whose_queue_is_not_there_waits_for_it() {
    let mut kit = Kit::new(1, Vec::new());
    let group = PodGroup { name: "gang".into(), queue: "team".into(), min_members: 1, ..PodGroup::default() };
    let (uid, of) = claim("claim", 100, 50);
    let of = Claim { queue: "team".into(), pod_group: Some("gang".into()), ..of };
    let unknown = EventError::Queue(QueueError::Unknown("team".into()));
    assert_eq!(kit.try_tell(Observation::Group(group)), Err(unknown.clone()));
    assert_eq!(kit.try_tell(Observation::Claim(uid, Box::new(of))), Err(unknown.clone()));
    assert_eq!(kit.pass(100), []);
    assert_eq!(kit.whereabouts("claim"), Some(Whereabouts::Refused(unknown)));
    kit.tell(Observation::Queue(QueueSpec { name: "team".into(), ..QueueSpec::default() }));
    assert_eq!(kit.start().0.as_str(), "claim");
}

#[test]
fn a_start_that_nobody_answers_has_failed_and_is_stopped_until_it_is_known_to_be_gone() {
    let mut kit = Kit::new(1, Vec::new());
    kit.want("claim", 100, 50);
    let (_, instance) = kit.start();
    let mut seen = Vec::new();
    for _ in 0..4 {
        // The node is connected all the time; only its answers are lost.
        for _ in 0..30 {
            kit.sequence += 1;
            let (node, sequence) = ("node".into(), kit.sequence);
            kit.tell(Observation::Heartbeat(Heartbeat { node, session: 1, sequence }));
            let commands = kit.pass(1000);
            seen.extend(stops(&commands).iter().map(|(_, of)| (kit.now_ms, *of)));
        }
    }
    assert!(seen.iter().all(|(_, of)| *of == instance) && seen.len() == 2, "{seen:?}");
    assert!(seen[1].0 - seen[0].0 >= settings().stop_deadline_ms);
    assert_eq!(kit.phase("claim"), Some(Phase::Stopping));
    kit.outcome("claim", instance, instance, StepOutcome::Gone);
    assert!(kit.start().1 > instance);
}

#[test]
fn a_claim_is_placed_anew_only_when_its_nodes_lease_has_lapsed() {
    let mut kit = Kit::new(1, Vec::new());
    let first = kit.runs("claim", 100, 50);
    let began_ms = kit.now_ms;
    let other = NodeSpec { name: "other".into(), devices: vec![], ..node(0) };
    let other = NodeSpec { devices: vec![DeviceSpec { uuid: "GPU-9".into(), ..node(1).devices.remove(0) }], ..other };
    let mut starts = Vec::new();
    for sequence in 1..20 {
        let report = NodeReport {
            spec: other.clone(),
            session: 1,
            sequence,
            handled: Generation::default(),
            running: Vec::new(),
        };
        kit.tell(Observation::Node(Box::new(report)));
        starts.extend(kit.pass(1000).into_iter().map(|command| (kit.now_ms, command)));
        if !starts.is_empty() {
            break;
        }
    }
    let [(at_ms, Command { node, order: Order::Start { generation, .. }, .. })] = &starts[..] else {
        panic!("not one start: {starts:?}")
    };
    let lease = settings().lease.expect("there are leases");
    assert!(*generation > first && node.as_str() == "other");
    assert!(at_ms - began_ms >= lease.lease_ms, "after {} ms", at_ms - began_ms);
}
