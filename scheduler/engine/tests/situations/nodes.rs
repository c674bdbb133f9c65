//! What nodes report about themselves.

use super::*;

#[test]
fn a_device_of_which_the_driver_says_another_model_stays_in_use() {
    let mut kit = Kit::new(1, Vec::new());
    let instance = kit.runs("claim", 50, 50);
    let mut renamed = node(1);
    renamed.devices[0].model = "A 80GB".into();
    let own = Running { claim: "claim".into(), instance, amounts: amounts(0, 50), since_ms: None };
    kit.report(renamed, 1, instance, vec![own]);
    kit.runs("other", 50, 50);
    assert_eq!(kit.phase("claim"), Some(Phase::Running));
    let view = kit.view.clone().expect("readers see something");
    let id = view.cluster().node_named("node").expect("it is there");
    assert_eq!(view.cluster().node(id).expect("it is there").spec().devices[0].model, "A 80GB");
}

#[test]
fn a_node_that_is_refused_keeps_its_lease_and_what_it_runs_and_gets_nothing_new() {
    let mut kit = Kit::new(2, Vec::new());
    let gone = kit.runs("gone", 50, 50);
    let kept = kit.runs("kept", 50, 50);
    let mut wrong = node(2);
    wrong.devices[1].uuid.clear();
    let own = Running { claim: "kept".into(), instance: kept, amounts: amounts(0, 50), since_ms: None };
    kit.sequence += 1;
    let (session, sequence, handled, running) = (1, kit.sequence, kept.max(gone), vec![own.clone()]);
    let report = NodeReport { spec: wrong, session, sequence, handled, running };
    assert!(kit.try_tell(Observation::Node(Box::new(report))).is_err());
    let commands = kit.engine.poll(kit.now_ms).commands;
    let is_renewal = |command: &Command| matches!(command.order, Order::Renew { sequence: of, .. } if of == sequence);
    assert!(commands.iter().any(is_renewal), "{commands:?}");
    kit.sequence += 1;
    let (node_name, sequence) = ("node".into(), kit.sequence);
    kit.tell(Observation::Heartbeat(Heartbeat { node: node_name, session: 1, sequence }));
    assert_eq!(kit.pass(2000), [], "nothing new goes there");
    assert_eq!((kit.phase("gone"), kit.phase("kept")), (None, Some(Phase::Running)));
    kit.report(node(2), 1, handled, vec![own]);
    assert_eq!(kit.start().0.as_str(), "gone");
}

#[test]
fn a_claim_that_waits_for_room_on_a_silent_node_is_placed_on_another_one_at_once() {
    let mut kit = Kit::new(1, Vec::new());
    let low = kit.runs("low", 100, 10);
    kit.want("high", 100, 90);
    assert_eq!(stops(&kit.pass(100)), [("low", low)]);
    let mut spec = NodeSpec { name: "other".into(), ..node(1) };
    spec.devices[0].uuid = "GPU-9".into();
    let (session, sequence, handled) = (1, 1, Generation::default());
    let report = NodeReport { spec, session, sequence, handled, running: Vec::new() };
    kit.tell(Observation::Node(Box::new(report)));
    kit.tell(Observation::NodeLost("node".into()));
    let commands = kit.pass(100);
    let starts: Vec<(&str, &str)> = commands
        .iter()
        .filter_map(|command| match &command.order {
            Order::Start { claim, .. } => Some((claim.as_str(), command.node.as_str())),
            _ => None,
        })
        .collect();
    assert_eq!(starts, [("high", "other")]);
}

#[test]
fn what_waits_for_room_does_not_start_on_a_cordoned_node() {
    let mut kit = Kit::new(1, Vec::new());
    let low = kit.runs("low", 100, 10);
    kit.want("high", 100, 90);
    assert_eq!(stops(&kit.pass(100)), [("low", low)]);
    let own = Running { claim: "low".into(), instance: low, amounts: amounts(0, 100), since_ms: None };
    kit.report(NodeSpec { cordoned: true, ..node(1) }, 1, low, vec![own]);
    kit.pass(100);
    assert_eq!(kit.whereabouts("high"), Some(Whereabouts::Waiting));
    kit.outcome("low", low, low, StepOutcome::Gone);
    assert_eq!(kit.pass(2000), [], "nothing new goes there");
    kit.report(node(1), 1, low, Vec::new());
    assert_eq!(kit.start().0.as_str(), "high");
}

#[test]
fn readers_of_an_idle_cluster_see_that_leases_are_renewed() {
    let mut kit = Kit::new(1, Vec::new());
    kit.pass(100);
    let first = kit.view.as_ref().expect("readers see something").version();
    for _ in 0..200 {
        kit.sequence += 1;
        let (node, sequence) = ("node".into(), kit.sequence);
        kit.tell(Observation::Heartbeat(Heartbeat { node, session: 1, sequence }));
        kit.pass(300);
    }
    let view = kit.view.clone().expect("readers see something");
    let node = view.nodes().next().expect("it is there");
    assert!(node.heard_ms + 2000 > kit.now_ms, "heard at {}, now {}", node.heard_ms, kit.now_ms);
    assert!(node.lease_until_ms.is_some_and(|until_ms| until_ms > kit.now_ms), "{node:?}");
    let views = view.version() - first;
    assert!(views <= 75, "{views} views in a minute");
}

#[test]
fn what_is_found_running_runs_since_its_node_says() {
    for (since_ms, started_ms) in [(Some(400), 400), (None, 1000), (Some(5000), 1000)] {
        let mut kit = Kit::not_live(MemoryStore::default());
        kit.want("claim", 100, 50);
        kit.tell(Observation::Synced);
        let there = Running { since_ms, ..running("claim", 1, 0, 100) };
        kit.report(node(1), 1, Generation { term: 1, number: 1 }, vec![there]);
        kit.pass(1);
        let view = kit.view.as_ref().expect("readers see something");
        let claim = view.claim_id(&"claim".into()).expect("it is in the books");
        assert_eq!(view.cluster().started_ms(claim), Some(started_ms), "{since_ms:?}");
    }
}
