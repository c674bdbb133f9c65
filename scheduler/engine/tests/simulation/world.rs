//! A world in virtual time: users, nodes, a network that loses, delays, repeats, reorders and cuts, and an engine that
//! crashes at any moment and starts anew from its store.

// Other crates include this file by its path, so the paths of its parts are given.
#[path = "world/checks.rs"]
mod checks;
#[path = "world/users.rs"]
mod users;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use aliquot_scheduler_core::placement::BestFit;
use aliquot_scheduler_core::{Bytes, Claim, DeviceSpec, NodeSpec, PodGroup, QueueSpec};
use aliquot_scheduler_engine::{
    ClaimUid, Command, Decisions, Engine, Generation, Lease, NodeName, Observation, Order, Ready, Settings, Store, View,
};
use aliquot_scheduler_kit as kit;

use super::node::{Node, Troubles};
use super::random::Random;

const GIB: u64 = 1 << 30;
/// How often nodes look at their instances, and users and faults may act.
const TICK_MS: u64 = 100;
/// How often nodes send a heartbeat, and how often a full report.
const HEARTBEAT_MS: u64 = 1000;
const REPORT_MS: u64 = 5000;
/// When the faults end.
const FAULTS_MS: u64 = 30_000;
/// When everything must have come to rest, and for how long it must stay so.
const REST_MS: u64 = 140_000;
const QUIET_MS: u64 = 15_000;

/// How the engine learns that instances are gone.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Kind {
    /// Nodes hold leases, and nothing else tells what runs on them.
    Leases,
    /// Nodes hold no leases; a witness that is always right says which nodes are gone.
    Witness,
}

/// A message under way.
#[derive(Clone, Debug)]
enum Message {
    ToNode(usize, Command),
    ToEngine(usize, Observation),
}

/// Carries messages between the engine and the nodes.
pub(crate) trait Wire {
    /// What arrives at the node of a command.
    fn carry_to_node(&mut self, now_ms: u64, command: Command) -> Command;
    /// What arrives at the engine of a node's message; `None`: nothing arrives.
    fn carry_to_engine(&mut self, observation: Observation) -> Option<Observation>;
    /// Whether nodes can be told to resize instances.
    fn can_resize(&self) -> bool {
        true
    }
    /// The uid of the claim with this number.
    fn uid(&self, number: u64) -> ClaimUid {
        ClaimUid::from(format!("claim-{number}"))
    }
}

pub(crate) struct World {
    kind: Kind,
    random: Random,
    now_ms: u64,
    engine: Option<Engine>,
    /// When a crashed engine starts again.
    starts_ms: u64,
    store: Box<dyn Store>,
    wire: Box<dyn Wire>,
    view: Option<Arc<View>>,
    nodes: Vec<Node>,
    /// How fast each node's clock is, in thousandths above the true speed, and what it showed at the beginning.
    clocks: Vec<(u64, u64)>,
    cut: BTreeSet<usize>,
    network: BTreeMap<(u64, u64), Message>,
    messages: u64,
    groups: Vec<PodGroup>,
    wanted: BTreeMap<ClaimUid, Claim>,
    submitted: u64,
    /// When the last command other than a renewal was sent.
    last_step_ms: u64,
    /// When the faults of this world end.
    faults_ms: u64,
    pub(crate) starts: u64,
    pub(crate) stops: u64,
    pub(crate) resizes: u64,
    pub(crate) crashes: u64,
    pub(crate) lapses: u64,
}

fn settings(kind: Kind) -> Settings {
    Settings {
        start_deadline_ms: 1500,
        stop_deadline_ms: 1500,
        stop_deadline_max_ms: 4000,
        idle_cycle_ms: 2000,
        memory_every_ms: 5000,
        lease: (kind == Kind::Leases).then_some(Lease { lease_ms: 4000, margin_ms: 500, silence_ms: 2500 }),
        ..Settings::default()
    }
}

fn decisions() -> Decisions {
    Decisions {
        policy: Box::new(BestFit),
        settings: aliquot_scheduler_core::Settings { hold_after_ms: Some(5000), ..Default::default() },
        usage_half_life_ms: 60_000,
    }
}

fn node_spec(number: usize, devices: u64) -> NodeSpec {
    let device = |index| DeviceSpec { uuid: format!("GPU-{number}-{index}"), ..kit::device("A") };
    NodeSpec {
        memory: Bytes::new(512 * GIB),
        devices: (0..devices).map(device).collect(),
        ..kit::node(&format!("node-{number}"), 64, 0)
    }
}

impl World {
    pub(crate) fn new(seed: u64, kind: Kind) -> Self {
        let mut random = Random::new(seed);
        let count = 2 + random.below(3);
        let nodes = (0..count).map(|number| {
            let spec = node_spec(usize::try_from(number).unwrap_or(0), 1 + random.below(3));
            Node::new(spec, kind == Kind::Leases)
        });
        let nodes: Vec<Node> = nodes.collect();
        let clocks = nodes.iter().map(|_| (random.below(10), random.below(100_000))).collect();
        let mut world = Self {
            kind,
            random,
            now_ms: 1000,
            engine: None,
            starts_ms: 0,
            store: super::new_store(),
            wire: super::new_wire(),
            view: None,
            nodes,
            clocks,
            cut: BTreeSet::new(),
            network: BTreeMap::new(),
            messages: 0,
            groups: Vec::new(),
            wanted: BTreeMap::new(),
            submitted: 0,
            last_step_ms: 0,
            faults_ms: FAULTS_MS,
            starts: 0,
            stops: 0,
            resizes: 0,
            crashes: 0,
            lapses: 0,
        };
        let troubles = Troubles {
            refuses_per_mille: world.random.below(150),
            fails_per_mille: world.random.below(150),
            forgets_per_mille: world.random.below(100),
        };
        world.nodes.iter_mut().for_each(|node| node.troubles = troubles);
        world
    }

    /// Runs the world to its end.
    pub(crate) fn play(&mut self) -> Result<(), String> {
        while self.now_ms < REST_MS + QUIET_MS {
            if self.now_ms >= FAULTS_MS {
                self.heal();
            }
            self.tick()?;
            let until_ms = self.now_ms + TICK_MS;
            self.run_until(until_ms)?;
        }
        self.is_at_rest()
    }

    fn has_faults(&self) -> bool {
        self.now_ms < self.faults_ms
    }

    fn heal(&mut self) {
        if self.cut.is_empty() && self.nodes.iter().all(|node| node.troubles.fails_per_mille == 0) {
            return;
        }
        self.cut.clear();
        self.nodes.iter_mut().for_each(|node| node.troubles = Troubles::default());
        if self.kind == Kind::Witness {
            (0..self.nodes.len()).for_each(|node| self.report(node));
        }
    }

    /// Carries messages, and polls the engine when it is due, until this time.
    fn run_until(&mut self, until_ms: u64) -> Result<(), String> {
        loop {
            let message_ms = self.network.first_key_value().map(|((at_ms, _), _)| *at_ms);
            let engine_ms = self.engine.as_ref().and_then(Engine::next_ms).map(|at_ms| at_ms.max(self.now_ms));
            let Some(next_ms) = [message_ms, engine_ms].into_iter().flatten().min().filter(|at_ms| *at_ms < until_ms)
            else {
                self.now_ms = until_ms;
                return Ok(());
            };
            self.now_ms = self.now_ms.max(next_ms);
            while let Some(message) = self.network.first_entry().filter(|first| first.key().0 <= self.now_ms) {
                let message = message.remove();
                self.deliver(message)?;
            }
            self.poll()?;
        }
    }

    fn deliver(&mut self, message: Message) -> Result<(), String> {
        match message {
            Message::ToNode(node, command) => {
                let local_ms = self.local_ms(node);
                let said = self.nodes[node].obey(local_ms, &command, &mut self.random);
                self.check_nodes()?;
                said.into_iter().for_each(|observation| self.send(Message::ToEngine(node, observation)));
            }
            Message::ToEngine(_, observation) => {
                let heard = self.wire.carry_to_engine(observation);
                heard.map_or(Ok(()), |observation| self.tell(observation))?;
            }
        }
        Ok(())
    }

    pub(crate) fn tell(&mut self, observation: Observation) -> Result<(), String> {
        let Some(engine) = &mut self.engine else { return Ok(()) };
        // What administrators or users want may be impossible for now.
        let _ = engine.handle(self.now_ms, observation.clone());
        engine.check().map_err(|wrong| format!("after {observation:?}: {wrong}"))
    }

    fn poll(&mut self) -> Result<(), String> {
        let Some(engine) = &mut self.engine else { return Ok(()) };
        let Ready { save, commands, view } = engine.poll(self.now_ms);
        engine.check().map_err(|wrong| format!("after a poll: {wrong}"))?;
        let faults = self.has_faults();
        if faults && self.random.chance(2) {
            self.crash();
            return Ok(());
        }
        if let Some(batch) = save {
            self.store.save(&batch).map_err(|error| error.to_string())?;
        }
        for command in commands {
            if faults && self.random.chance(2) {
                self.crash();
                return Ok(());
            }
            self.carry_out(command);
        }
        if let Some(view) = view {
            for uid in self.wanted.keys() {
                if view.claim(uid).is_none() {
                    return Err(format!("{uid} is wanted, and readers do not see it"));
                }
            }
            self.view = Some(view);
        }
        Ok(())
    }

    fn carry_out(&mut self, command: Command) {
        match command.order {
            Order::Start { .. } => self.starts += 1,
            Order::Stop { .. } => self.stops += 1,
            Order::Resize { .. } => self.resizes += 1,
            Order::Renew { .. } | Order::Report { .. } | Order::EndSession { .. } => {}
        }
        if !matches!(command.order, Order::Renew { .. }) {
            self.last_step_ms = self.now_ms;
        }
        let Some(node) = self.nodes.iter().position(|node| node.name() == command.node) else { return };
        let command = self.wire.carry_to_node(self.now_ms, command);
        self.send(Message::ToNode(node, command));
    }

    fn crash(&mut self) {
        let down_ms = self.random.below(6000);
        self.crash_for(down_ms);
    }

    /// The engine stops at once, and starts again after this time.
    pub(crate) fn crash_for(&mut self, down_ms: u64) {
        self.crashes += 1;
        self.engine = None;
        self.starts_ms = self.now_ms + down_ms;
    }

    /// Puts a message on the network, which may lose, delay and repeat it.
    fn send(&mut self, message: Message) {
        let (Message::ToNode(node, _) | Message::ToEngine(node, _)) = &message;
        let faults = self.has_faults();
        if self.cut.contains(node) || (faults && self.random.chance(60)) {
            return;
        }
        let copies = if faults && self.random.chance(60) { 2 } else { 1 };
        for _ in 0..copies {
            let is_slow = faults && self.random.chance(60);
            // A network without faults keeps the order: a node refuses a start that a later one has overtaken, and such
            // a start would be tried again only after minutes.
            let delay_ms = if faults { 1 + self.random.below(if is_slow { 9000 } else { 40 }) } else { 20 };
            self.messages += 1;
            self.network.insert((self.now_ms + delay_ms, self.messages), message.clone());
        }
    }

    fn local_ms(&self, node: usize) -> u64 {
        let (fast_per_mille, began_ms) = self.clocks[node];
        began_ms + self.now_ms + self.now_ms * fast_per_mille / 1000
    }

    fn report(&mut self, node: usize) {
        let local_ms = self.local_ms(node);
        let report = self.nodes[node].report(local_ms);
        self.send(Message::ToEngine(node, report));
    }

    /// Runs what happens by itself: nodes, users and faults.
    fn tick(&mut self) -> Result<(), String> {
        for node in 0..self.nodes.len() {
            let local_ms = self.local_ms(node);
            let session = self.nodes[node].session;
            let said = self.nodes[node].live(local_ms, &mut self.random);
            self.lapses += u64::from(self.nodes[node].session != session);
            said.into_iter().for_each(|observation| self.send(Message::ToEngine(node, observation)));
            let phase_ms = u64::try_from(node).unwrap_or(0) * TICK_MS;
            let since_ms = self.now_ms + phase_ms;
            if since_ms % REPORT_MS < TICK_MS {
                self.report(node);
            } else if since_ms % HEARTBEAT_MS < TICK_MS {
                let heartbeat = self.nodes[node].heartbeat(local_ms);
                self.send(Message::ToEngine(node, heartbeat));
            }
        }
        self.check_nodes()?;
        if self.engine.is_none() && self.starts_ms <= self.now_ms {
            self.start_engine()?;
        }
        if self.has_faults() {
            self.something_happens()?;
        }
        Ok(())
    }

    fn start_engine(&mut self) -> Result<(), String> {
        let saved = self.store.load().map_err(|error| error.to_string())?;
        self.engine = Some(Engine::new(decisions(), settings(self.kind), saved));
        let mut told = vec![Observation::Queue(queue("left")), Observation::Queue(queue("right"))];
        told.extend(self.groups.iter().cloned().map(Observation::Group));
        let claims = self.wanted.iter().map(|(uid, claim)| Observation::Claim(uid.clone(), Box::new(claim.clone())));
        told.extend(claims);
        // No order is promised.
        for index in (1..told.len()).rev() {
            let other = usize::try_from(self.random.below(index as u64 + 1)).unwrap_or(0);
            told.swap(index, other);
        }
        told.into_iter().try_for_each(|observation| self.tell(observation))?;
        self.tell(Observation::Synced)?;
        if self.kind == Kind::Witness {
            (0..self.nodes.len()).for_each(|node| self.report(node));
        }
        Ok(())
    }

    fn something_happens(&mut self) -> Result<(), String> {
        let node = usize::try_from(self.random.below(self.nodes.len() as u64)).unwrap_or(0);
        match self.random.below(200) {
            0..=11 => self.submit()?,
            12..=15 => self.submit_gang()?,
            16..=20 => {
                let index = usize::try_from(self.random.below(self.wanted.len() as u64)).unwrap_or(0);
                if let Some(uid) = self.wanted.keys().nth(index).cloned() {
                    self.withdraw(&uid)?;
                }
            }
            21..=22 => {
                let number = self.random.next();
                if let Some(gone) = self.nodes[node].lose_one(number) {
                    self.send(Message::ToEngine(node, gone));
                }
            }
            23..=24 => {
                self.cut.insert(node);
                if self.kind == Kind::Witness && self.random.chance(500) {
                    let lost = Observation::NodeLost(self.nodes[node].name());
                    self.tell(lost)?;
                }
            }
            25..=28 => {
                self.cut.remove(&node);
                if self.kind == Kind::Witness {
                    self.report(node);
                }
            }
            32..=36 if self.wire.can_resize() => self.resize()?,
            29 => self.nodes[node].reboot(),
            30 => self.nodes[node].restart(),
            31 if self.kind == Kind::Witness => {
                // The machine is broken for good, and a new one with the same name replaces it.
                self.nodes[node].reboot();
                let gone = Observation::NodeGone(self.nodes[node].name());
                self.network.retain(|_, message| {
                    let (Message::ToNode(of, _) | Message::ToEngine(of, _)) = message;
                    *of != node
                });
                self.tell(gone)?;
                self.report(node);
            }
            _ => {}
        }
        self.check_nodes()
    }

    /// A world without nodes and faults.
    pub(crate) fn calm(kind: Kind) -> Self {
        let mut world = Self::new(0, kind);
        world.nodes.clear();
        world.clocks.clear();
        world.faults_ms = 0;
        world
    }

    pub(crate) fn join(&mut self, spec: NodeSpec) {
        self.nodes.push(Node::new(spec, self.kind == Kind::Leases));
        self.clocks.push((5, 7));
        self.report(self.nodes.len() - 1);
    }

    pub(crate) fn pass_calmly(&mut self, ms: u64) -> Result<(), String> {
        let end_ms = self.now_ms + ms;
        while self.now_ms < end_ms {
            self.tick()?;
            self.run_until(self.now_ms + TICK_MS)?;
        }
        Ok(())
    }

    pub(crate) fn uid(&self, number: u64) -> ClaimUid {
        self.wire.uid(number)
    }

    pub(crate) fn shown(&self) -> Option<Arc<View>> {
        self.view.clone()
    }

    /// The instances that run, as the nodes say.
    pub(crate) fn containers(&self) -> Vec<(ClaimUid, NodeName, Generation)> {
        let of = |node: &Node| {
            let name = node.name();
            node.containers
                .keys()
                .map(move |(uid, instance)| (uid.clone(), name.clone(), *instance))
                .collect::<Vec<_>>()
        };
        self.nodes.iter().flat_map(of).collect()
    }

    pub(crate) fn kill(&mut self, uid: &ClaimUid) {
        for node in 0..self.nodes.len() {
            let number = self.nodes[node].containers.keys().position(|(claim, _)| claim == uid);
            let gone = number.and_then(|number| self.nodes[node].lose_one(number as u64));
            gone.into_iter().for_each(|gone| self.send(Message::ToEngine(node, gone)));
        }
    }

    pub(crate) fn set_cut(&mut self, name: &NodeName, is_cut: bool) {
        let Some(node) = self.nodes.iter().position(|node| node.name() == *name) else { return };
        if is_cut {
            self.cut.insert(node)
        } else {
            self.cut.remove(&node)
        };
        self.report(node);
    }
}

fn queue(name: &str) -> QueueSpec {
    QueueSpec { name: name.into(), ..QueueSpec::default() }
}
