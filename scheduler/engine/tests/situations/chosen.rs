//! Claims for which another scheduler has chosen the node.

use super::*;

fn on_node(name: &str, percent: u32) -> Observation {
    let (uid, claim) = claim(name, percent, 0);
    Observation::ClaimOnNode(uid, Box::new(claim), "node".into())
}

fn starts(commands: &[Command]) -> Vec<(String, Amounts)> {
    let start = |command: &Command| match &command.order {
        Order::Start { claim, amounts, .. } => Some((claim.to_string(), amounts.clone())),
        _ => None,
    };
    commands.iter().filter_map(start).collect()
}

fn why(refused: Result<(), EventError>) -> String {
    refused.expect_err("there is no room").to_string()
}

#[test]
fn a_claim_is_placed_at_once_or_refused_and_forgotten() {
    let mut kit = Kit::new(1, Vec::new());
    kit.tell(on_node("a", 50));
    kit.tell(on_node("b", 50));
    let refused = why(kit.try_tell(on_node("c", 50)));
    assert!(refused.starts_with("node \"node\": 0 of the 1 devices"), "{refused}");
    let started = starts(&kit.pass(100));
    assert_eq!(started, [("a".to_owned(), amounts(0, 50)), ("b".to_owned(), amounts(0, 50))]);
    assert!(kit.view.as_ref().is_some_and(|view| view.claim(&"c".into()).is_none()));
    // No claim waits for room: when there is some, it stays free.
    let instance = match kit.view.as_ref().and_then(|view| view.claim(&"a".into())).map(|claim| claim.whereabouts) {
        Some(Whereabouts::There { instance, .. }) => instance,
        other => panic!("{other:?}"),
    };
    kit.outcome("a", instance, instance, StepOutcome::Started);
    kit.tell(Observation::ClaimEnded("a".into()));
    kit.outcome("a", instance, instance, StepOutcome::Gone);
    assert_eq!(starts(&kit.pass(1000)), []);
    kit.tell(on_node("c", 50));
    assert_eq!(starts(&kit.pass(100)), [("c".to_owned(), amounts(0, 50))]);
}

#[test]
fn nobody_makes_way_for_a_claim_on_a_chosen_node() {
    let mut kit = Kit::new(1, Vec::new());
    kit.runs("low", 100, 0);
    let (uid, claim) = claim("high", 100, 100);
    let refused = why(kit.try_tell(Observation::ClaimOnNode(uid, Box::new(claim), "node".into())));
    assert!(refused.contains("devices"), "{refused}");
    assert_eq!(kit.pass(1000), []);
}

#[test]
fn a_queue_limit_holds_for_claims_on_chosen_nodes() {
    let mut kit = Kit::new(1, Vec::new());
    let limit = Allowance { limit: Some(500), ..Allowance::default() };
    let allowances = [(Resource::DeviceCore, limit)].into();
    kit.tell(Observation::Queue(QueueSpec { name: "small".into(), allowances, ..QueueSpec::default() }));
    let in_small = |name: &str| {
        let (uid, of) = claim(name, 40, 0);
        let of = Claim { queue: "small".into(), ..of };
        Observation::ClaimOnNode(uid, Box::new(of), "node".into())
    };
    kit.tell(in_small("a"));
    let refused = why(kit.try_tell(in_small("b")));
    assert!(refused.contains("\"small\""), "{refused}");
}

#[test]
fn a_claim_on_a_node_that_is_not_there_is_refused() {
    let mut kit = Kit::new(1, Vec::new());
    let (uid, of) = claim("a", 50, 0);
    let refused = why(kit.try_tell(Observation::ClaimOnNode(uid.clone(), Box::new(of.clone()), "other".into())));
    assert_eq!(refused, "node \"other\": there is no such node");
    kit.tell(on_node("a", 50));
    // The same claim is told again before the start was answered.
    let refused = why(kit.try_tell(on_node("a", 50)));
    assert!(refused.contains("has not left yet"), "{refused}");
}

#[test]
fn an_engine_that_does_not_know_the_cluster_places_nothing() {
    let mut kit = Kit::not_live(MemoryStore::default());
    let refused = why(kit.try_tell(on_node("a", 50)));
    assert!(refused.contains("does not know the cluster yet"), "{refused}");
}
