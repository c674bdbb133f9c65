//! A world without faults, for the checks that every backend must pass.

use std::sync::Arc;

use aliquot_scheduler_core::{Claim, NodeSpec};
use aliquot_scheduler_engine::conformance::{CHECKS, Rig};
use aliquot_scheduler_engine::{ClaimUid, Generation, NodeName, Observation, View};

use super::world::{Kind, World};

impl Rig for World {
    fn uid(&self, number: u64) -> ClaimUid {
        self.uid(number)
    }

    fn add_node(&mut self, spec: NodeSpec) {
        self.join(spec);
    }

    fn want(&mut self, uid: &ClaimUid, claim: &Claim) {
        self.submit_as(uid.clone(), claim.clone()).unwrap_or_else(|wrong| panic!("{wrong}"));
    }

    fn end(&mut self, uid: &ClaimUid) {
        self.withdraw(uid).unwrap_or_else(|wrong| panic!("{wrong}"));
    }

    fn pass(&mut self, ms: u64) {
        self.pass_calmly(ms).unwrap_or_else(|wrong| panic!("{wrong}"));
    }

    fn patience_ms(&self) -> u64 {
        20_000
    }

    fn view(&self) -> Arc<View> {
        self.shown().expect("readers see something")
    }

    fn running(&self) -> Vec<(ClaimUid, NodeName, Generation)> {
        self.containers()
    }

    fn die(&mut self, uid: &ClaimUid) {
        self.kill(uid);
    }

    fn restart(&mut self) {
        // The restart is shorter than a lease, so that instances go on.
        self.crash_for(500);
    }

    fn cut(&mut self, node: &NodeName, is_cut: bool) {
        self.set_cut(node, is_cut);
        if is_cut {
            let lost = Observation::NodeLost(node.clone());
            self.tell(lost).unwrap_or_else(|wrong| panic!("{wrong}"));
        }
    }
}

fn conforms(kind: Kind) {
    for (what, check) in CHECKS {
        let mut world = World::calm(kind);
        check(&mut world).unwrap_or_else(|wrong| panic!("{what} ({kind:?}): {wrong}"));
    }
}

#[test]
fn a_backend_of_nodes_that_hold_leases_conforms() {
    conforms(Kind::Leases);
}

#[test]
fn a_backend_of_nodes_without_leases_conforms() {
    conforms(Kind::Witness);
}
