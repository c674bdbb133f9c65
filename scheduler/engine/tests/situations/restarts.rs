//! What is told while the engine is not live yet.

use super::*;

fn want_again(kit: &mut Kit, name: &str, percent: u32) {
    let (uid, of) = claim(name, percent, 50);
    kit.tell(Observation::Claim(uid, Box::new(of)));
}

#[test]
fn what_ran_on_a_node_that_is_gone_does_not_run_on_another_one_of_its_name() {
    let mut kit = Kit::new(1, Vec::new());
    let before = kit.runs("claim", 100, 50);
    let mut kit = kit.restart();
    want_again(&mut kit, "claim", 100);
    kit.tell(Observation::NodeGone("node".into()));
    kit.report(node(1), 1, Generation::default(), Vec::new());
    kit.tell(Observation::Synced);
    let (_, after) = kit.start();
    assert!(after > before);
}
