//! The loop that runs an engine with a real clock.

use std::sync::mpsc;
use std::sync::{Arc, Mutex};

use aliquot_scheduler_core::placement::BestFit;
use aliquot_scheduler_core::{Claim, NodeSpec, PodGroup, Request};
use aliquot_scheduler_engine::{
    Backend, Batch, Command, Decisions, Engine, Generation, MemoryStore, Message, NodeReport, Observation, Order,
    Saved, Settings, Shown, Store, StoreError, run,
};

/// What was done, in order.
type Log = Arc<Mutex<Vec<String>>>;

fn note(log: &Log, what: impl Into<String>) {
    log.lock().expect("nobody panics with the lock").push(what.into());
}

struct Witnessed(MemoryStore, Log);

impl Store for Witnessed {
    fn load(&mut self) -> Result<Saved, StoreError> {
        self.0.load()
    }

    fn save(&mut self, batch: &Batch) -> Result<(), StoreError> {
        if batch.claims.iter().any(|(_, record)| record.as_ref().is_some_and(|record| record.instance.is_some())) {
            note(&self.1, "saved");
        }
        self.0.save(batch)
    }
}

struct Sender(Log);

impl Backend for Sender {
    fn carry_out(&mut self, command: Command) {
        if matches!(command.order, Order::Start { .. }) {
            note(&self.0, "sent");
        }
    }
}

fn engine() -> Engine {
    let decisions = Decisions {
        policy: Box::new(BestFit),
        settings: aliquot_scheduler_core::Settings::default(),
        usage_half_life_ms: 60_000,
    };
    let settings = Settings { cycle_delay_ms: 0, cycle_gap_ms: 0, publish_gap_ms: 0, ..Settings::default() };
    Engine::new(decisions, settings, Saved::default())
}

fn node() -> Observation {
    let spec = NodeSpec { name: "node".into(), ..NodeSpec::default() };
    let (session, sequence, handled) = (1, 1, Generation::default());
    Observation::Node(Box::new(NodeReport { spec, session, sequence, handled, running: Vec::new() }))
}

fn claim() -> Observation {
    let claim = Claim { name: "claim".into(), request: Request::default(), ..Claim::default() };
    Observation::Claim("claim".into(), Box::new(claim))
}

#[test]
fn what_is_sent_and_acknowledged_was_saved_before() {
    let log = Log::default();
    let shown = Shown::default();
    let (sender, inbox) = mpsc::channel();
    let acknowledged = Arc::clone(&log);
    let send = |observation| sender.send(Message { observation, acknowledge: None }).expect("somebody listens");
    send(Observation::Synced);
    send(node());
    let message = Message {
        observation: claim(),
        acknowledge: Some(Box::new(move |done| note(&acknowledged, format!("acknowledged {}", done.is_ok())))),
    };
    sender.send(message).expect("somebody listens");
    drop(sender);
    let mut store = Witnessed(MemoryStore::default(), Arc::clone(&log));
    let done = run(engine(), &mut store, &mut Sender(Arc::clone(&log)), &shown, &inbox, || 1000);
    assert!(done.is_ok(), "{done:?}");
    assert_eq!(*log.lock().expect("nobody panics with the lock"), ["saved", "sent", "acknowledged true"]);
    let view = shown.get().expect("readers see something");
    assert!(view.claim(&"claim".into()).is_some());
}

/// Notes how many starts come together.
struct Counting(Log);

impl Backend for Counting {
    fn carry_out(&mut self, _: Command) {
        note(&self.0, "one alone");
    }

    fn carry_out_all(&mut self, commands: Vec<Command>) {
        let starts = commands.iter().filter(|command| matches!(command.order, Order::Start { .. })).count();
        if starts > 0 {
            note(&self.0, format!("{starts} together"));
        }
    }
}

#[test]
fn a_gang_is_sent_together() {
    let log = Log::default();
    let (sender, inbox) = mpsc::channel();
    let send = |observation| sender.send(Message { observation, acknowledge: None }).expect("somebody listens");
    send(Observation::Synced);
    send(node());
    let group = PodGroup { name: "gang".into(), min_members: 3, ..PodGroup::default() };
    send(Observation::Group(group));
    for name in ["a", "b", "c"] {
        let claim = Claim { name: name.into(), pod_group: Some("gang".into()), ..Claim::default() };
        send(Observation::Claim(name.into(), Box::new(claim)));
    }
    drop(sender);
    let (mut store, mut backend) = (MemoryStore::default(), Counting(Arc::clone(&log)));
    let done = run(engine(), &mut store, &mut backend, &Shown::default(), &inbox, || 1000);
    assert!(done.is_ok(), "{done:?}");
    assert_eq!(*log.lock().expect("nobody panics with the lock"), ["3 together"]);
}

struct Broken;

impl Store for Broken {
    fn load(&mut self) -> Result<Saved, StoreError> {
        Ok(Saved::default())
    }

    fn save(&mut self, _: &Batch) -> Result<(), StoreError> {
        Err(StoreError("the disk is full".into()))
    }
}

#[test]
fn nothing_is_sent_that_cannot_be_saved() {
    let log = Log::default();
    let (sender, inbox) = mpsc::channel();
    for observation in [Observation::Synced, node(), claim()] {
        sender.send(Message { observation, acknowledge: None }).expect("somebody listens");
    }
    let done = run(engine(), &mut Broken, &mut Sender(Arc::clone(&log)), &Shown::default(), &inbox, || 1000);
    assert_eq!(done.map_err(|error| error.to_string()), Err("the scheduler's store: the disk is full".to_owned()));
    assert!(log.lock().expect("nobody panics with the lock").is_empty());
}
