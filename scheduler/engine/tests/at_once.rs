//! The checks that every backend must pass, with nodes that carry out each command at once.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use aliquot_scheduler_core::placement::BestFit;
use aliquot_scheduler_core::{Claim, NodeSpec};
use aliquot_scheduler_engine::conformance::{CHECKS, Rig};
use aliquot_scheduler_engine::{
    AtOnce, Backend, ClaimUid, Decisions, Engine, Generation, MemoryStore, NodeName, Observation, Ready, Settings,
    Store, View,
};

/// The interval of the nodes' reports.
const REPORT_MS: u64 = 500;

struct World {
    engine: Engine,
    store: MemoryStore,
    nodes: AtOnce,
    specs: BTreeMap<NodeName, NodeSpec>,
    cut: BTreeSet<NodeName>,
    wanted: Vec<(ClaimUid, Claim)>,
    view: Option<Arc<View>>,
    now_ms: u64,
}

fn engine(store: &mut MemoryStore) -> Engine {
    let decisions = Decisions {
        policy: Box::new(BestFit),
        settings: aliquot_scheduler_core::Settings::default(),
        usage_half_life_ms: 60_000,
    };
    let settings = Settings {
        start_deadline_ms: 1000,
        stop_deadline_ms: 1000,
        stop_deadline_max_ms: 4000,
        lease: None,
        ..Settings::default()
    };
    Engine::new(decisions, settings, store.load().expect("the store is in memory"))
}

impl World {
    fn new() -> Self {
        let mut store = MemoryStore::default();
        let engine = engine(&mut store);
        let (nodes, specs, cut, wanted) = Default::default();
        let mut world = Self { engine, store, nodes, specs, cut, wanted, view: None, now_ms: 1 };
        world.tell(Observation::Synced);
        world
    }

    fn tell(&mut self, observation: Observation) {
        self.engine.handle(self.now_ms, observation).unwrap_or_else(|wrong| panic!("{wrong}"));
        self.turn();
    }

    fn turn(&mut self) {
        let Ready { save, commands, view } = self.engine.poll(self.now_ms);
        save.iter().for_each(|batch| self.store.save(batch).expect("the store is in memory"));
        self.view = view.or(self.view.take());
        for command in commands.into_iter().filter(|command| !self.cut.contains(&command.node)) {
            self.nodes.carry_out(command);
        }
        self.hear();
    }

    fn hear(&mut self) {
        for answer in self.nodes.take_answers() {
            match &answer {
                Observation::Outcome(report) if self.cut.contains(&report.node) => {}
                _ => self.tell(answer),
            }
        }
    }

    fn report(&mut self) {
        for spec in self.specs.values().cloned().collect::<Vec<_>>() {
            if !self.cut.contains(&NodeName::from(spec.name.as_str())) {
                let report = self.nodes.join(spec);
                self.tell(report);
            }
        }
    }
}

impl Rig for World {
    fn uid(&self, number: u64) -> ClaimUid {
        ClaimUid::from(format!("claim-{number}"))
    }

    fn add_node(&mut self, spec: NodeSpec) {
        self.specs.insert(spec.name.as_str().into(), spec);
        self.report();
    }

    fn want(&mut self, uid: &ClaimUid, claim: &Claim) {
        self.wanted.retain(|(known, _)| known != uid);
        self.wanted.push((uid.clone(), claim.clone()));
        self.tell(Observation::Claim(uid.clone(), Box::new(claim.clone())));
    }

    fn end(&mut self, uid: &ClaimUid) {
        self.wanted.retain(|(known, _)| known != uid);
        self.tell(Observation::ClaimEnded(uid.clone()));
    }

    fn pass(&mut self, ms: u64) {
        let end_ms = self.now_ms + ms;
        while self.now_ms < end_ms {
            let report_ms = (self.now_ms / REPORT_MS + 1) * REPORT_MS;
            let next_ms = self.engine.next_ms().unwrap_or(end_ms).max(self.now_ms + 1);
            self.now_ms = next_ms.min(report_ms).min(end_ms);
            if self.now_ms == report_ms {
                self.report();
            }
            self.turn();
        }
    }

    fn patience_ms(&self) -> u64 {
        20_000
    }

    fn view(&self) -> Arc<View> {
        self.view.clone().expect("readers see something")
    }

    fn running(&self) -> Vec<(ClaimUid, NodeName, Generation)> {
        self.nodes.running().map(|(claim, node, instance)| (claim.clone(), node.clone(), instance)).collect()
    }

    fn die(&mut self, uid: &ClaimUid) {
        self.nodes.end(uid);
        self.hear();
    }

    fn restart(&mut self) {
        self.engine = engine(&mut self.store);
        for (uid, claim) in self.wanted.clone() {
            self.tell(Observation::Claim(uid, Box::new(claim)));
        }
        self.tell(Observation::Synced);
        self.report();
    }

    fn cut(&mut self, node: &NodeName, is_cut: bool) {
        if is_cut {
            self.cut.insert(node.clone());
            self.tell(Observation::NodeLost(node.clone()));
        } else {
            self.cut.remove(node);
            self.report();
        }
    }
}

#[test]
fn a_backend_of_nodes_that_act_at_once_conforms() {
    for (what, check) in CHECKS {
        check(&mut World::new()).unwrap_or_else(|wrong| panic!("{what}: {wrong}"));
    }
}
