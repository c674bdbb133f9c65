//! The checks that every backend must pass, on the engine's own simulated nodes: all their messages and commands are
//! translated to the agents' contract, encoded as bytes, and translated back.

#[path = "../../../engine/tests/simulation/node.rs"]
mod node;
#[path = "../../../engine/tests/simulation/random.rs"]
mod random;
#[path = "../../../engine/tests/simulation/rig.rs"]
mod rig;
#[path = "../../../engine/tests/simulation/world.rs"]
mod world;

use std::collections::BTreeMap;
use std::sync::mpsc::{Receiver, channel};

use aliquot_proto::agent::v1::outcome::Outcome as What;
use aliquot_scheduler_core::{DeviceSpec, Health, NodeSpec};
use aliquot_scheduler_engine::{
    ClaimUid, MemoryStore, NodeName, NodeReport, Observation, Report, Running, StepOutcome, Store,
};
use prost::Message as _;
use tokio::sync::mpsc;

use super::*;
use world::{Kind, Wire, World};

/// The engine's tests run many more worlds; here only the contract is new.
const WORLDS: u64 = 40;

fn new_store() -> Box<dyn Store> {
    Box::new(MemoryStore::default())
}

fn new_wire() -> Box<dyn Wire> {
    let (sender, inbox) = channel();
    let nodes = Nodes {
        sessions: Sessions::default(),
        controller: sender,
        clock: Arc::new(Clock::new(0)),
        leadership: Leadership::default(),
    };
    Box::new(Contract { nodes, inbox, connections: BTreeMap::new() })
}

/// The backend, with its messages to the controller and to each node.
struct Contract {
    nodes: Nodes,
    inbox: Receiver<Inbox>,
    connections: BTreeMap<NodeName, mpsc::Receiver<wire_types::SchedulerMessage>>,
}

impl Wire for Contract {
    fn can_resize(&self) -> bool {
        false
    }

    fn uid(&self, number: u64) -> ClaimUid {
        ClaimName { job: number, index: 0, rank: 0, attempt: 1 }.to_string().into()
    }

    fn carry_to_node(&mut self, now_ms: u64, command: Command) -> Command {
        let node = command.node.clone();
        let sessions = self.nodes.sessions.clone();
        let connection = self.connections.entry(node.clone()).or_insert_with(|| sessions.connect(node.as_str()).1);
        self.nodes.carry_out(command);
        // The controller's part: it adds the program, and keeps the order of starts and stops.
        let sent = match self.inbox.try_recv() {
            Ok(Inbox::Start(order)) => start_message(&order, wire_types::Process::default(), now_ms),
            Ok(Inbox::Stop { node: to, message }) if to == node => message,
            Ok(other) => panic!("the controller gets {other:?}"),
            Err(_) => connection.try_recv().expect("each command is sent to the controller or to the node"),
        };
        let sent = wire_types::SchedulerMessage::decode(&*sent.encode_to_vec()).expect("a message");
        Command { node, session: sent.session, order: order(now_ms, sent.message.expect("it says something")) }
    }

    fn carry_to_engine(&mut self, observation: Observation) -> Option<Observation> {
        match observation {
            Observation::Node(report) => {
                let NodeReport { spec, session, sequence, handled, running } = *report;
                let running =
                    running.iter().map(|Running { claim, instance, amounts, since_ms: _ }| wire_types::Running {
                        claim: claim.to_string(),
                        instance: Some(wire::to_generation(*instance)),
                        amounts: Some(wire::to_amounts(amounts)),
                    });
                let said = wire_types::Report {
                    spec: Some(node_spec(&spec)),
                    handled: Some(wire::to_generation(handled)),
                    running: running.collect(),
                };
                let said = wire_types::Report::decode(&*said.encode_to_vec()).expect("a report");
                Some(Observation::Node(Box::new(wire::report(&spec.name, session, sequence, said))))
            }
            Observation::Outcome(report) => {
                let what = match &report.outcome {
                    StepOutcome::Started => What::Started(wire_types::Started::default()),
                    StepOutcome::Refused(why) => What::Refused(why.clone()),
                    StepOutcome::Failed(why) => What::Failed(why.clone()),
                    StepOutcome::Gone => What::Ended(wire_types::Ended::default()),
                    // The contract cannot express it: an agent that does not know sends nothing.
                    StepOutcome::Unknown => return None,
                };
                Some(Observation::Outcome(Report { outcome: wire::step_outcome(&what), ..report }))
            }
            other => Some(other),
        }
    }
}

/// Runs worlds with all faults: messages are lost, repeated and late, nodes fail, and the engine crashes.
#[test]
fn worlds_come_to_rest_whose_messages_are_in_the_contract() {
    let (mut steps, mut crashes) = (0, 0);
    for seed in 0..WORLDS {
        let mut world = World::new(seed, Kind::Leases);
        world.play().unwrap_or_else(|broken| panic!("world {seed}: {broken}"));
        steps += world.starts + world.stops + world.lapses;
        crashes += world.crashes;
        assert_eq!(world.resizes, 0, "nobody can ask for one");
    }
    assert!(steps > 0 && crashes > 0, "worlds in which nothing happens prove nothing");
}

fn order(now_ms: u64, message: Message) -> Order {
    match message {
        Message::Start(wire_types::Start { claim, generation, amounts, deadline_ms, term, .. }) => Order::Start {
            claim: claim.into(),
            generation: wire::generation(generation),
            amounts: wire::amounts(amounts.expect("what it may use")),
            deadline_ms: now_ms + deadline_ms,
            term,
        },
        Message::Stop(wire_types::Stop { claim, instance, generation, deadline_ms }) => Order::Stop {
            claim: claim.into(),
            instance: wire::generation(instance),
            generation: wire::generation(generation),
            deadline_ms: now_ms + deadline_ms,
        },
        Message::Renew(wire_types::Renew { sequence, lease_ms, term }) => Order::Renew { sequence, lease_ms, term },
        Message::EndSession(wire_types::EndSession { term }) => Order::EndSession { term },
        Message::Report(wire_types::AskReport { term }) => Order::Report { term },
        other => panic!("no command of the engine is {other:?}"),
    }
}

fn node_spec(spec: &NodeSpec) -> wire_types::NodeSpec {
    let device = |device: &DeviceSpec| wire_types::Device {
        uuid: device.uuid.clone(),
        model: device.model.clone(),
        memory_bytes: device.memory.get(),
        healthy: device.health == Health::Healthy,
        ..wire_types::Device::default()
    };
    wire_types::NodeSpec {
        cpu_millis: spec.cpu.get(),
        memory_bytes: spec.memory.get(),
        devices: spec.devices.iter().map(device).collect(),
        ..wire_types::NodeSpec::default()
    }
}
