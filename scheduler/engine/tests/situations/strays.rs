//! Instances that run and that no claim asks for.

use std::collections::{BTreeMap, BTreeSet};

use super::*;

fn part(device: usize, percent: u32) -> DevicePart {
    amounts(device, percent).devices.remove(0)
}

fn stranger(devices: Vec<DevicePart>) -> Running {
    Running { amounts: Amounts { devices, ..Amounts::default() }, ..running("stranger", 7, 0, 100) }
}

/// A stray is stopped, and a claim waits until it is gone.
fn holds_its_room(mut kit: Kit, percent: u32) {
    kit.want("claim", percent, 50);
    let instance = Generation { term: 1, number: 7 };
    // After a restart the stop is sent once more when the node comes, because it may not have received the first one.
    let told: BTreeSet<(String, Generation)> =
        stops(&kit.pass(100)).into_iter().map(|(claim, instance)| (claim.to_owned(), instance)).collect();
    assert_eq!(told, BTreeSet::from([("stranger".to_owned(), instance)]));
    assert_eq!(kit.pass(1000), [], "its room is not free yet");
    kit.outcome("stranger", instance, instance, StepOutcome::Gone);
    assert_eq!(kit.start().0.as_str(), "claim");
}

#[test]
fn a_stray_with_parts_that_differ_holds_its_room() {
    holds_its_room(Kit::new(2, vec![stranger(vec![part(0, 25), part(1, 100)])]), 50);
}

#[test]
fn a_stray_with_several_parts_of_one_device_holds_their_sum() {
    holds_its_room(Kit::new(1, vec![stranger(vec![part(0, 25), part(0, 50)])]), 50);
}

#[test]
fn a_stray_with_a_part_of_an_unknown_device_holds_the_known_ones() {
    holds_its_room(Kit::new(1, vec![stranger(vec![part(0, 100), part(9, 100)])]), 50);
}

#[test]
fn a_stray_with_parts_that_differ_holds_its_room_after_a_restart() {
    let amounts = Amounts { devices: vec![part(0, 25), part(1, 100)], ..Amounts::default() };
    let key = ClaimKey { uid: "stranger".into(), stray: Some(Generation { term: 1, number: 7 }) };
    let mut kit = Kit::saved(2, vec![(key, record(7, amounts))]);
    kit.tell(Observation::Synced);
    kit.report(node(2), 1, Generation::default(), vec![stranger(vec![part(0, 25), part(1, 100)])]);
    holds_its_room(kit, 50);
}

#[test]
fn a_stray_holds_what_is_only_counted_of_its_node() {
    let pods = |pods: u64| BTreeMap::from([("pods".to_owned(), pods)]);
    let mut kit = Kit::new(2, Vec::new());
    let amounts = Amounts { counted: pods(2), ..amounts(0, 50) };
    let stray = Running { amounts, ..running("stranger", 7, 0, 50) };
    let spec = NodeSpec { counted: pods(2), ..node(2) };
    kit.report(spec, 1, Generation { term: 1, number: 7 }, vec![stray]);
    let (uid, mut of) = claim("claim", 50, 50);
    of.request.counted = pods(1);
    kit.tell(Observation::Claim(uid, Box::new(of)));
    let instance = Generation { term: 1, number: 7 };
    assert_eq!(stops(&kit.pass(100)), [("stranger", instance)]);
    assert_eq!(kit.pass(1000), [], "its pods are not free yet");
    kit.outcome("stranger", instance, instance, StepOutcome::Gone);
    let commands = kit.pass(100);
    let [Command { order: Order::Start { amounts, .. }, .. }] = &commands[..] else { panic!("{commands:?}") };
    assert_eq!(amounts.counted, pods(1), "the node is told");
}

#[test]
fn what_holds_other_amounts_of_cpu_and_memory_than_its_claim_asks_for_is_stopped() {
    let cpu = Amounts { cpu: MilliCpu::new(9000), ..amounts(0, 50) };
    let memory = Amounts { memory: Bytes::new(GIB), ..amounts(0, 50) };
    let counted = Amounts { counted: BTreeMap::from([("pods".into(), 1)]), ..amounts(0, 50) };
    for amounts in [cpu, memory, counted] {
        let mut kit = Kit::not_live(MemoryStore::default());
        let (uid, of) = claim("claim", 50, 50);
        kit.tell(Observation::Claim(uid, Box::new(of)));
        let other = Running { amounts, ..running("claim", 3, 0, 50) };
        kit.report(node(1), 1, Generation { term: 1, number: 3 }, vec![other]);
        kit.tell(Observation::Synced);
        let commands = kit.pass(100);
        let instance = Generation { term: 1, number: 3 };
        let is_stop = |command: &Command| matches!(command.order, Order::Stop { instance: of, .. } if of == instance);
        assert!(commands.iter().any(is_stop), "{commands:?}");
    }
}

#[test]
fn a_saved_instance_that_holds_other_amounts_of_cpu_than_its_claim_asks_for_is_stopped() {
    let other = Amounts { cpu: MilliCpu::new(9000), ..amounts(0, 50) };
    let mut kit = Kit::saved(1, vec![(ClaimKey { uid: "claim".into(), stray: None }, record(7, other))]);
    let (uid, mut of) = claim("claim", 50, 50);
    of.request.cpu = MilliCpu::new(1000);
    kit.tell(Observation::Claim(uid, Box::new(of)));
    kit.tell(Observation::Synced);
    let commands = kit.pass(100);
    let is_stop = |command: &Command| matches!(command.order, Order::Stop { .. });
    assert!(commands.iter().any(is_stop), "{commands:?}");
}

#[test]
fn a_claim_is_not_started_while_its_stray_runs() {
    let mut kit = Kit::new(2, Vec::new());
    let first = kit.runs("claim", 100, 50);
    let own = Running { claim: "claim".into(), instance: first, amounts: amounts(0, 100), since_ms: None };
    kit.report(node(2), 1, first, vec![own, running("claim", 90, 1, 100)]);
    let stray = Generation { term: 1, number: 90 };
    assert_eq!(stops(&kit.pass(100)), [("claim", stray)]);
    kit.outcome("claim", first, first, StepOutcome::Gone);
    assert_eq!(kit.pass(4000), [], "its stray is still there");
    kit.outcome("claim", stray, stray, StepOutcome::Gone);
    assert!(kit.start().1 > first);
}

#[test]
fn a_claim_that_is_evicted_before_it_was_started_leaves_at_once() {
    let mut kit = Kit::new(2, vec![running("claim", 7, 0, 50)]);
    kit.want("claim", 100, 50);
    let instance = Generation { term: 1, number: 7 };
    assert_eq!(stops(&kit.pass(100)), [("claim", instance)], "it is not what the claim asks for");
    let request = Request { devices: DeviceRequest::whole(2), ..Request::default() };
    let both = Claim { name: "both".into(), request, priority: 90, ..Claim::default() };
    kit.tell(Observation::Claim("both".into(), Box::new(both)));
    assert_eq!(kit.pass(100), [], "the stray is still there");
    kit.outcome("claim", instance, instance, StepOutcome::Gone);
    assert_eq!(kit.start().0.as_str(), "both");
}
