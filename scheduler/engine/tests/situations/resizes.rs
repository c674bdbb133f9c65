//! Claims that are resized while they run.

use super::*;

fn resize(kit: &mut Kit, name: &str, percent: u32) -> Result<(), EventError> {
    let (uid, claim) = claim(name, percent, 50);
    kit.try_tell(Observation::ClaimResized(uid, Box::new(claim.request)))
}

/// The only command within the next moments, which must be a resize: its generation and amounts.
fn told(kit: &mut Kit) -> (Generation, Amounts) {
    match &kit.pass(100)[..] {
        [Command { order: Order::Resize { generation, amounts, .. }, .. }] => (*generation, amounts.clone()),
        other => panic!("not one resize: {other:?}"),
    }
}

/// What the books hold for a claim.
fn held(kit: &Kit, name: &str) -> Option<Amounts> {
    match kit.whereabouts(name)? {
        Whereabouts::There { amounts, .. } => Some(amounts),
        _ => None,
    }
}

fn is_resizing(kit: &Kit, name: &str) -> bool {
    kit.view.as_ref().and_then(|view| view.claim(&name.into())).is_some_and(|of| of.is_resizing)
}

#[test]
fn the_larger_amounts_are_held_until_the_node_has_confirmed() {
    for (from, to) in [(25, 75), (75, 25)] {
        let mut kit = Kit::new(1, Vec::new());
        let instance = kit.runs("claim", from, 50);
        assert_eq!(resize(&mut kit, "claim", to), Ok(()));
        let (command, amounts_told) = told(&mut kit);
        assert_eq!(amounts_told, amounts(0, to));
        assert_eq!((held(&kit, "claim"), is_resizing(&kit, "claim")), (Some(amounts(0, 75)), true));
        kit.want("half", 50, 50);
        assert_eq!(kit.pass(100), [], "there is no room for it yet");
        for _ in 0..2 {
            kit.outcome("claim", instance, command, StepOutcome::Started);
        }
        let started = kit.pass(100);
        assert_eq!((held(&kit, "claim"), is_resizing(&kit, "claim")), (Some(amounts(0, to)), false));
        assert_eq!(started.len(), usize::from(to == 25), "{started:?}");
    }
}

#[test]
fn the_larger_number_of_what_is_only_counted_is_held_meanwhile() {
    let asks = |pods: &[(&str, u64)]| {
        let (uid, mut of) = claim("claim", 50, 50);
        of.request.counted = pods.iter().map(|(name, amount)| ((*name).to_owned(), *amount)).collect();
        (uid, of)
    };
    let mut kit = Kit::new(1, Vec::new());
    let counted = asks(&[("pods", 3), ("hca", 1)]).1.request.counted;
    kit.report(NodeSpec { counted, ..node(1) }, 1, Generation { term: 1, number: 0 }, vec![]);
    let (uid, of) = asks(&[("pods", 2), ("hca", 1)]);
    kit.tell(Observation::Claim(uid, Box::new(of)));
    let (_, instance) = kit.start();
    kit.outcome("claim", instance, instance, StepOutcome::Started);
    let (uid, of) = asks(&[("pods", 3)]);
    assert_eq!(kit.try_tell(Observation::ClaimResized(uid, Box::new(of.request.clone()))), Ok(()));
    let (command, told) = told(&mut kit);
    assert_eq!(told.counted, of.request.counted);
    let larger = asks(&[("pods", 3), ("hca", 1)]).1.request.counted;
    assert_eq!(held(&kit, "claim").map(|amounts| amounts.counted), Some(larger));
    kit.outcome("claim", instance, command, StepOutcome::Started);
    kit.pass(100);
    assert_eq!(held(&kit, "claim").map(|amounts| amounts.counted), Some(of.request.counted));
}

#[test]
fn a_refused_resize_leaves_the_claim_what_it_had_and_gives_the_rest_back() {
    let mut kit = Kit::new(1, Vec::new());
    let instance = kit.runs("claim", 25, 50);
    assert_eq!(resize(&mut kit, "claim", 75), Ok(()));
    let (command, _) = told(&mut kit);
    kit.want("half", 50, 50);
    for _ in 0..2 {
        kit.outcome("claim", instance, command, StepOutcome::Refused("the driver cannot".into()));
    }
    assert_eq!(kit.start().0.as_str(), "half");
    assert_eq!(held(&kit, "claim"), Some(amounts(0, 25)));
    let complaint = kit.view.as_ref().and_then(|view| view.claim(&"claim".into())?.complaint);
    assert_eq!(complaint.as_deref(), Some("the driver cannot"));
}

#[test]
fn a_resize_without_room_is_refused_with_the_reason_and_the_claim_runs_on() {
    let mut kit = Kit::new(1, Vec::new());
    kit.runs("claim", 50, 50);
    kit.runs("other", 50, 50);
    let refused = resize(&mut kit, "claim", 75).expect_err("the device is full");
    assert!(matches!(refused, EventError::NotEnough { .. }), "{refused}");
    assert_eq!((kit.pass(100), held(&kit, "claim")), (vec![], Some(amounts(0, 50))));
    // The claim runs on over a restart at which the user still asks for more.
    let mut kit = kit.restart();
    for (name, percent) in [("claim", 75), ("other", 50)] {
        let (uid, claim) = claim(name, percent, 50);
        kit.tell(Observation::Claim(uid, Box::new(claim)));
    }
    kit.tell(Observation::Synced);
    assert_eq!((kit.pass(100), held(&kit, "claim")), (vec![], Some(amounts(0, 50))));
    let two = Request { devices: DeviceRequest::whole(2), ..Request::default() };
    assert!(kit.try_tell(Observation::ClaimResized("other".into(), Box::new(two))).is_err(), "on the same devices");
}

#[test]
fn a_resize_that_nobody_answers_is_repeated_and_goes_on_after_a_restart() {
    let mut kit = Kit::new(1, Vec::new());
    let instance = kit.runs("claim", 25, 50);
    assert_eq!(resize(&mut kit, "claim", 75), Ok(()));
    let (first, _) = told(&mut kit);
    assert_eq!(resize(&mut kit, "claim", 75), Ok(()), "it is asked for already");
    assert!(resize(&mut kit, "claim", 50).is_err(), "one at a time");
    let mut kit = kit.restart();
    let (uid, of) = claim("claim", 75, 50);
    kit.tell(Observation::Claim(uid, Box::new(of)));
    kit.tell(Observation::Synced);
    let (again, amounts_told) = told(&mut kit);
    assert!(again > first && amounts_told == amounts(0, 75));
    assert_eq!(held(&kit, "claim"), Some(amounts(0, 75)));
    // Only an answer counts: an earlier command that is still under way could change what a report says.
    let running = Running { claim: "claim".into(), instance, amounts: amounts(0, 75), since_ms: None };
    kit.report(node(1), 1, again, vec![running]);
    kit.pass(100);
    assert!(is_resizing(&kit, "claim"));
    kit.outcome("claim", instance, again, StepOutcome::Started);
    kit.pass(100);
    assert!(!is_resizing(&kit, "claim"));
    assert_eq!(kit.phase("claim"), Some(Phase::Running));
}

/// A live engine without leases, so that nothing else is due while a resize has no answer, and a node with one device.
fn without_leases() -> Kit {
    let mut kit = Kit::not_live(MemoryStore::default()).restart_with(Settings { lease: None, ..settings() });
    kit.tell(Observation::Synced);
    kit.report(node(1), 1, Generation::default(), Vec::new());
    kit
}

/// The next time that a resize is sent: its generation.
fn told_again(kit: &mut Kit) -> Generation {
    let next_ms = |kit: &Kit| kit.engine.next_ms().expect("the resize has a deadline");
    for _ in 0..100 {
        let until_ms = next_ms(kit) - kit.now_ms;
        if let [Command { order: Order::Resize { generation, .. }, .. }] = kit.pass(until_ms)[..] {
            return generation;
        }
    }
    panic!("the resize is not sent again");
}

#[test]
fn a_refusal_of_a_repeated_resize_says_nothing_about_the_first() {
    for (has, percent) in [(true, 75), (false, 25)] {
        let mut kit = without_leases();
        let instance = kit.runs("claim", 25, 50);
        assert_eq!(resize(&mut kit, "claim", 75), Ok(()));
        told(&mut kit);
        // The node may have carried the first command out, and its answer was lost.
        let again = told_again(&mut kit);
        kit.outcome("claim", instance, again, StepOutcome::Refused("not now".into()));
        kit.want("other", 50, 50);
        assert_eq!(kit.pass(100), [], "the claim may hold 75 %");
        assert_eq!((held(&kit, "claim"), is_resizing(&kit, "claim")), (Some(amounts(0, 75)), true));
        let running = Running { claim: "claim".into(), instance, amounts: amounts(0, percent), since_ms: None };
        kit.report(node(1), 1, again, vec![running]);
        let started = kit.pass(100);
        assert_eq!((held(&kit, "claim"), is_resizing(&kit, "claim")), (Some(amounts(0, percent)), false));
        assert_eq!(started.len(), usize::from(!has), "{started:?}");
    }
}

#[test]
fn a_refusal_after_a_restart_says_nothing_about_a_resize_before() {
    let mut kit = without_leases();
    let instance = kit.runs("claim", 25, 50);
    assert_eq!(resize(&mut kit, "claim", 75), Ok(()));
    told(&mut kit);
    let mut kit = kit.restart_with(Settings { lease: None, ..settings() });
    let (uid, of) = claim("claim", 75, 50);
    kit.tell(Observation::Claim(uid, Box::new(of)));
    kit.tell(Observation::Synced);
    let (again, _) = told(&mut kit);
    kit.outcome("claim", instance, again, StepOutcome::Refused("not now".into()));
    kit.pass(100);
    assert_eq!((held(&kit, "claim"), is_resizing(&kit, "claim")), (Some(amounts(0, 75)), true));
    // A refused resize whose report does not come is sent again.
    let third = told_again(&mut kit);
    kit.outcome("claim", instance, third, StepOutcome::Started);
    kit.pass(100);
    assert_eq!((held(&kit, "claim"), is_resizing(&kit, "claim")), (Some(amounts(0, 75)), false));
}

#[test]
fn a_report_from_before_a_restart_does_not_confirm_a_resize() {
    let mut kit = Kit::new(1, Vec::new());
    let instance = kit.runs("claim", 25, 50);
    let before = NodeReport {
        spec: node(1),
        session: 1,
        sequence: kit.sequence + 1,
        handled: instance,
        running: vec![Running { claim: "claim".into(), instance, amounts: amounts(0, 25), since_ms: None }],
    };
    kit.sequence += 1;
    assert_eq!(resize(&mut kit, "claim", 75), Ok(()));
    let (command, _) = told(&mut kit);
    kit.outcome("claim", instance, command, StepOutcome::Started);
    kit.pass(100);
    let mut kit = kit.restart();
    let (uid, of) = claim("claim", 75, 50);
    kit.tell(Observation::Claim(uid, Box::new(of)));
    kit.tell(Observation::Synced);
    kit.pass(100);
    assert_eq!(resize(&mut kit, "claim", 25), Ok(()));
    told(&mut kit);
    kit.tell(Observation::Node(Box::new(before)));
    kit.want("other", 50, 50);
    assert_eq!(kit.pass(100), [], "the claim still holds 75 %");
    assert_eq!((held(&kit, "claim"), is_resizing(&kit, "claim")), (Some(amounts(0, 75)), true));
}

#[test]
fn a_claim_that_ends_while_it_is_resized_starts_again_with_what_it_asks_for() {
    let mut kit = Kit::new(1, Vec::new());
    let instance = kit.runs("claim", 75, 50);
    assert_eq!(resize(&mut kit, "claim", 25), Ok(()));
    told(&mut kit);
    kit.outcome("claim", instance, instance, StepOutcome::Gone);
    kit.now_ms += 1000;
    match &kit.pass(100)[..] {
        [Command { order: Order::Start { amounts: told, .. }, .. }] => assert_eq!(*told, amounts(0, 25)),
        other => panic!("not one start: {other:?}"),
    }
}

#[test]
fn a_claim_that_waits_for_room_starts_with_its_newest_request() {
    let mut kit = Kit::new(1, Vec::new());
    let victim = kit.runs("victim", 100, 50);
    kit.want("claim", 50, 100);
    assert_eq!(stops(&kit.pass(100)), [("victim", victim)], "the claim waits for the victim");
    assert_eq!(resize(&mut kit, "claim", 75), Ok(()));
    kit.outcome("victim", victim, victim, StepOutcome::Gone);
    match &kit.pass(100)[..] {
        [Command { order: Order::Start { claim, amounts: told, .. }, .. }] => {
            assert_eq!((claim.as_str(), told), ("claim", &amounts(0, 75)));
        }
        other => panic!("not one start: {other:?}"),
    }
}

#[test]
fn a_start_that_fails_is_repeated_with_the_newest_request() {
    let mut kit = Kit::new(1, Vec::new());
    kit.want("claim", 50, 50);
    let (_, instance) = kit.start();
    for percent in [60, 75] {
        // A claim that starts is resized when it runs.
        assert!(resize(&mut kit, "claim", percent).is_err());
    }
    kit.outcome("claim", instance, instance, StepOutcome::Failed("it asks for more by now".into()));
    kit.now_ms += 1000;
    match &kit.pass(100)[..] {
        [Command { order: Order::Start { amounts: told, .. }, .. }] => assert_eq!(*told, amounts(0, 75)),
        other => panic!("not one start: {other:?}"),
    }
}
