//! Claims that were withdrawn and have not stopped yet.

use aliquot_scheduler_core::{
    Claim, DumpedClaim, DumpedPlace, Event, EventError, Outcome, PodGroup, Resource, RestoreReason, Scheduler,
    Settings, Step, placement::BestFit,
};

use crate::kit::{Kit, build, gang, part, quota, train, whole};

#[test]
fn nobody_is_evicted_for_room_that_a_withdrawn_claim_is_leaving() {
    let mut kit = Kit::of_nodes(1, 2);
    let running = kit.claims(2, &train("default", whole(1)));
    kit.converge();
    kit.event(Event::ClaimWithdrawn(running[0]));
    let important = kit.claim(build("default", whole(1)));
    let steps: Vec<Step> = kit.cycle().steps.into_iter().map(|planned| planned.step).collect();
    assert!(
        matches!(&steps[..], [Step::Place { claim, starts_after, .. }]
            if *claim == important && *starts_after == [running[0]]),
        "it takes the room of the withdrawn claim: {steps:?}"
    );
    let gone = kit.event(Event::ClaimRemoved(running[0]));
    assert_eq!(gone, Outcome::Claims { displaced: vec![], ready: vec![important] });
    assert_eq!(kit.running(&[running[1], important]), 2);
}

#[test]
fn a_withdrawn_claim_counts_in_no_share_and_no_demand() {
    let mut kit = Kit::of_nodes(1, 4);
    kit.queue("left", quota(0));
    kit.queue("right", quota(0));
    let withdrawn = kit.claims(4, &train("left", whole(1)));
    kit.converge();
    withdrawn.iter().for_each(|claim| _ = kit.event(Event::ClaimWithdrawn(*claim)));
    kit.claims(4, &train("right", whole(1)));
    let plan = kit.cycle();
    let reports = kit.scheduler.queue_reports(&kit.cluster, &plan);
    let of = |queue: &str| {
        let report = reports.iter().find(|report| report.queue == queue)?;
        let time = report.resources.iter().find(|of| of.resource == Resource::DeviceCore)?;
        Some((time.held, time.fair_share))
    };
    assert_eq!((of("left"), of("right")), (Some((0, Some(0))), Some((4000, Some(4000)))));
}

#[test]
fn a_withdrawn_claim_waits_for_nothing_and_says_so() {
    let mut kit = Kit::of_nodes(1, 1);
    let running = kit.claim(Claim { name: "old".into(), ..train("default", whole(1)) });
    let waiting = kit.claim(train("default", whole(1)));
    kit.converge();
    let explained = |kit: &Kit| kit.scheduler.explain(&kit.cluster, running).map(|found| found.to_string());
    kit.event(Event::ClaimWithdrawn(running));
    kit.event(Event::ClaimWithdrawn(running));
    let text =
        "\"old\" waits for nothing.\n  - it was withdrawn, and holds its room on node \"node-0\" until it is gone.";
    assert_eq!(explained(&kit).as_deref(), Ok(text));
    kit.event(Event::ClaimWithdrawn(waiting));
    assert_eq!(kit.cycle().pending, [], "neither waits");
    kit.let_go();
    assert!(explained(&kit).is_ok_and(|text| text.contains("holds no room any more")));
    let again = kit.try_event(Event::ClaimResized(running, part(50)));
    assert_eq!(again, Err(EventError::Withdrawn(running)));
    let at = aliquot_scheduler_core::Allocation {
        node: kit.cluster.node_named("node-0").expect("a node"),
        devices: vec![],
        alternative: 0,
    };
    assert_eq!(kit.try_event(Event::ClaimPlaced(running, at)), Err(EventError::Withdrawn(running)));
}

#[test]
fn a_gang_without_a_withdrawn_member_waits_for_another_one() {
    let mut kit = Kit::of_nodes(1, 3);
    let group = PodGroup { staleness_grace_ms: Some(1000), ..gang("gang", "default", 2) };
    let members = kit.gang(group, 2, &whole(1));
    kit.converge();
    kit.event(Event::ClaimWithdrawn(members[0]));
    let other = kit.claim(Claim { pod_group: Some("gang".into()), ..train("", whole(1)) });
    kit.converge();
    assert_eq!((kit.running(&[members[1]]), kit.running(&[other])), (1, 1));
    kit.event(Event::ClaimWithdrawn(other));
    kit.advance(2000);
    kit.converge();
    assert_eq!(kit.running(&members), 0, "what is left of the gang does no work");
}

#[test]
fn a_withdrawn_claim_is_in_a_dump_and_cannot_be_placed_there() {
    let mut kit = Kit::of_nodes(1, 1);
    let running = kit.claim(train("default", whole(1)));
    kit.converge();
    kit.event(Event::ClaimWithdrawn(running));
    kit.claim(train("default", whole(1)));
    kit.cycle();
    let dump = kit.scheduler.dump(&kit.cluster);
    let restore = |dump| Scheduler::restore(Box::new(BestFit), Settings::default(), dump);
    let (mut scheduler, mut cluster) = restore(dump.clone()).unwrap_or_else(|error| panic!("{error}"));
    assert_eq!(scheduler.dump(&cluster), dump);
    assert_eq!(scheduler.cycle(&mut cluster), kit.cycle());
    let mut wrong = dump;
    let place = Some(DumpedPlace { node: 0, devices: vec![0], ..DumpedPlace::default() });
    wrong.claims[0] = DumpedClaim { place, leaving: None, ..wrong.claims[0].clone() };
    let error = restore(wrong).map(|_| ()).expect_err("a withdrawn claim has no place");
    assert_eq!(error.reason, RestoreReason::WithdrawnAndPlaced);
}
