//! Claims that have ended and have not stopped yet.

use super::*;

#[test]
fn no_other_claim_makes_way_for_room_that_an_ended_claim_is_leaving() {
    let mut kit = Kit::new(2, Vec::new());
    let first = kit.runs("first", 100, 50);
    kit.runs("second", 100, 50);
    kit.tell(Observation::ClaimEnded("first".into()));
    assert_eq!(stops(&kit.pass(100)), [("first", first)]);
    kit.want("important", 100, 90);
    assert_eq!(kit.pass(1000), [], "it waits for the first claim to be gone");
    kit.outcome("first", first, first, StepOutcome::Gone);
    assert_eq!(kit.start().0.as_str(), "important");
    assert_eq!(kit.phase("second"), Some(Phase::Running));
}

#[test]
fn an_ended_claim_is_stopped_after_a_restart_and_holds_its_room_until_then() {
    let mut kit = Kit::new(1, Vec::new());
    let first = kit.runs("first", 100, 50);
    kit.tell(Observation::ClaimEnded("first".into()));
    kit.pass(100);
    let mut kit = kit.restart();
    let (uid, next) = claim("next", 100, 50);
    kit.tell(Observation::Claim(uid, Box::new(next)));
    kit.tell(Observation::Synced);
    kit.report(
        node(1),
        1,
        first,
        vec![Running { claim: "first".into(), instance: first, amounts: amounts(0, 100), since_ms: None }],
    );
    assert_eq!(stops(&kit.pass(100)), [("first", first)]);
    kit.outcome("first", first, first, StepOutcome::Gone);
    assert_eq!(kit.start().0.as_str(), "next");
}

#[test]
fn a_stop_that_was_not_heard_is_repeated_when_its_node_is_back() {
    let mut kit = Kit::new(1, Vec::new());
    let first = kit.runs("first", 100, 50);
    kit.tell(Observation::ClaimEnded("first".into()));
    kit.pass(100);
    let mut kit = kit.restart();
    kit.tell(Observation::Synced);
    // The engine starts before its nodes report.
    kit.pass(1000);
    kit.report(
        node(1),
        1,
        first,
        vec![Running { claim: "first".into(), instance: first, amounts: amounts(0, 100), since_ms: None }],
    );
    assert_eq!(stops(&kit.pass(100)), [("first", first)]);
    kit.outcome("first", first, first, StepOutcome::Gone);
    assert_eq!(kit.phase("first"), None);
}
