//! Evictions that a node refuses.

use super::*;

/// The only stop within the next moments: its claim, instance and generation.
fn stop(kit: &mut Kit) -> (ClaimUid, Generation, Generation) {
    match &kit.pass(100)[..] {
        [Command { order: Order::Stop { claim, instance, generation, .. }, .. }] => {
            (claim.clone(), *instance, *generation)
        }
        other => panic!("not one stop: {other:?}"),
    }
}

#[test]
fn another_claim_makes_way_for_one_whose_node_refuses_to_evict_it() {
    let mut kit = Kit::new(2, Vec::new());
    kit.runs("first", 100, 50);
    kit.runs("second", 100, 50);
    kit.want("important", 100, 90);
    let (victim, instance, command) = stop(&mut kit);
    kit.outcome(victim.as_str(), instance, command, StepOutcome::Refused("its budget is spent".into()));
    let (other, instance, _) = stop(&mut kit);
    assert_ne!(victim, other);
    assert_eq!(kit.phase(victim.as_str()), Some(Phase::Running));
    let seen = kit.view.as_ref().and_then(|view| view.claim(&victim));
    assert_eq!(seen.and_then(|of| of.complaint).as_deref(), Some("its budget is spent"));
    let explained = kit.view.as_ref().and_then(|view| view.explain(&victim)).map(|found| found.to_string());
    assert!(explained.is_some_and(|text| text.contains("its node refused")));
    kit.outcome(other.as_str(), instance, instance, StepOutcome::Gone);
    assert_eq!(kit.start().0.as_str(), "important");
}

#[test]
fn a_refused_claim_is_chosen_again_later_also_after_a_restart() {
    let mut kit = Kit::new(1, Vec::new());
    let first = kit.runs("first", 100, 50);
    kit.want("important", 100, 90);
    let (victim, instance, command) = stop(&mut kit);
    assert_eq!(victim.as_str(), "first");
    for _ in 0..2 {
        kit.outcome("first", instance, command, StepOutcome::Refused("not now".into()));
    }
    assert_eq!(kit.pass(1000), [], "it is left alone");
    let mut kit = kit.restart();
    for (name, priority) in [("first", 50), ("important", 90)] {
        let (uid, claim) = claim(name, 100, priority);
        kit.tell(Observation::Claim(uid, Box::new(claim)));
    }
    kit.tell(Observation::Synced);
    kit.report(
        node(1),
        1,
        command,
        vec![Running { claim: "first".into(), instance: first, amounts: amounts(0, 100), since_ms: None }],
    );
    assert_eq!(kit.pass(1000), [], "it is still left alone");
    assert_eq!(stops(&kit.pass(5000)), [("first", first)]);
}
