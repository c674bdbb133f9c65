//! Observations that come before the engine is live.

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

#[test]
fn a_node_that_has_not_reported_since_the_start_is_asked_to() {
    let mut kit = Kit::new(1, Vec::new());
    let instance = kit.runs("claim", 100, 50);
    let mut kit = kit.restart();
    want_again(&mut kit, "claim", 100);
    // This is acknowledged, and its sender does not repeat it.
    kit.outcome("claim", instance, instance, StepOutcome::Gone);
    kit.tell(Observation::Synced);
    let is_asked = |kit: &mut Kit| {
        kit.sequence += 1;
        let (node, sequence) = ("node".into(), kit.sequence);
        kit.tell(Observation::Heartbeat(Heartbeat { node, session: 1, sequence }));
        let commands = kit.engine.poll(kit.now_ms).commands;
        commands.iter().any(|command| matches!(command.order, Order::Report { .. }))
    };
    assert!(is_asked(&mut kit));
    kit.report(node(1), 1, instance, Vec::new());
    assert!(!is_asked(&mut kit));
    kit.now_ms += 2000;
    assert!(kit.start().1 > instance);
}

#[test]
fn a_parked_claim_of_which_something_ran_is_saved_without_it() {
    let mut kit = Kit::new(1, Vec::new());
    kit.tell(Observation::Queue(QueueSpec { name: "team".into(), ..QueueSpec::default() }));
    let (uid, of) = claim("claim", 100, 50);
    let wanted = Observation::Claim(uid, Box::new(Claim { queue: "team".into(), ..of }));
    kit.tell(wanted.clone());
    let (_, instance) = kit.start();
    kit.pass(100);
    let mut kit = kit.restart();
    kit.tell(wanted);
    kit.tell(Observation::Synced);
    assert_eq!(stops(&kit.pass(100)), [("claim", instance)]);
    let saved = kit.store.load().expect("it is in memory").claims;
    let holders = saved.iter().filter(|(_, record)| record.instance.is_some()).map(|(key, _)| key.stray);
    assert_eq!(holders.collect::<Vec<_>>(), [Some(instance)], "the stray alone has it");
}

#[test]
fn what_is_still_as_it_was_saved_is_not_saved_again() {
    let mut kit = Kit::new(3, Vec::new());
    for name in ["one", "two", "unwanted"] {
        kit.runs(name, 100, 50);
    }
    kit.want("waits", 100, 50);
    kit.pass(100);
    let mut kit = kit.restart();
    for name in ["one", "two", "waits"] {
        want_again(&mut kit, name, 100);
    }
    want_again(&mut kit, "new", 100);
    kit.tell(Observation::Synced);
    let saved = kit.engine.poll(kit.now_ms).save.expect("something is new").claims;
    let is_there =
        |(key, record): &(ClaimKey, Option<ClaimRecord>)| (key.uid.to_string(), key.stray.is_some(), record.is_some());
    let mut saved: Vec<(String, bool, bool)> = saved.iter().map(is_there).collect();
    saved.sort_unstable();
    let of = |name: &str, is_stray, is_there| (name.to_owned(), is_stray, is_there);
    assert_eq!(saved, [of("new", false, true), of("unwanted", false, false), of("unwanted", true, true)]);
}
