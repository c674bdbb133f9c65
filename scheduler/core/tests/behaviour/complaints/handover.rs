//! Places that change hands: claims that were started before their place was free, given to two claims, or never looked
//! at again.

use aliquot_scheduler_core::{Claim, ClaimId, DeviceCore, DeviceRequest, Event, EventError, Outcome, Request};

use crate::kit::{Kit, build, evicted, gang, limited, node, part, quota, train, whole};

/// A claim that failed to start was tried again and again. Here it waits longer each time, other claims get its place
/// meanwhile, and the number of failures can be seen.
#[test]
fn a_claim_that_cannot_be_started_is_tried_for_ever() {
    let mut kit = Kit::of_nodes(1, 1);
    let broken = kit.claim(Claim { priority: 100, ..train("default", whole(1)) });
    let mut tries = 0;
    for _ in 0..600 {
        kit.cycle();
        if kit.running(&[broken]) == 1 {
            tries += 1;
            kit.event(Event::ClaimFailed(broken));
        }
        kit.advance(1000);
    }
    assert!((5..=12).contains(&tries), "{tries} tries in ten minutes");
    assert_eq!(kit.cluster.failures(broken).0, tries);
    let other = kit.claim(train("default", whole(1)));
    kit.cycle();
    assert_eq!(kit.running(&[other]), 1);
}

/// A lock on a node was left behind, and nothing was placed there for minutes. Here there is no lock: many claims for
/// one node are placed in one cycle, and a failure ends with its event.
#[test]
fn claims_for_one_node_that_are_started_one_at_a_time() {
    let mut kit = Kit::of_nodes(1, 8);
    let claims = kit.claims(80, &train("default", part(10)));
    kit.cycle();
    assert_eq!(kit.running(&claims), 80);
    kit.event(Event::ClaimFailed(claims[0]));
    let next = kit.claim(train("default", part(10)));
    kit.cycle();
    assert_eq!(kit.running(&[next]), 1);
}

/// Of two claims that asked for the same amount at the same time, one was given the other's device. Here a plan names
/// the claim, and its devices by number, so equal claims are told apart.
#[test]
fn equal_claims_that_are_given_each_others_devices() {
    let mut kit = Kit::of_nodes(1, 2);
    let claims = kit.claims(4, &train("default", part(50)));
    let plan = kit.cycle();
    for planned in &plan.steps {
        let claim = planned.step.claim();
        let at = kit.cluster.allocation(claim).expect("it was placed");
        assert!(matches!(&planned.step, aliquot_scheduler_core::Step::Place { to, .. } if to == at));
    }
    assert_eq!(plan.steps.len(), claims.len());
}

/// A device was given to the next container while the killed one still used it. Here a claim is not started before all
/// claims that hold its place have gone, in whatever order the events come.
#[test]
fn a_device_that_is_handed_on_before_it_is_free() {
    let mut kit = Kit::of_nodes(1, 1);
    let halves = kit.claims(2, &train("default", part(50)));
    kit.converge();
    let next = kit.claim(Claim { priority: 100, ..train("default", whole(1)) });
    kit.cycle();
    assert_eq!((kit.machines.stopping().count(), kit.running(&[next])), (2, 0));
    assert_eq!(kit.event(Event::ClaimGone(halves[1])), Outcome::Claims { displaced: vec![], ready: vec![] });
    assert_eq!(kit.event(Event::ClaimRemoved(halves[0])), Outcome::Claims { displaced: vec![], ready: vec![next] });
    assert_eq!(kit.running(&[next]), 1);
}

/// A claim was removed while it waited for its place, and others went on waiting for it.
#[test]
fn a_place_that_is_kept_for_a_claim_that_is_gone() {
    let mut kit = Kit::of_nodes(1, 1);
    let first = kit.claim(train("default", whole(1)));
    kit.converge();
    let second = kit.claim(Claim { priority: 75, ..train("default", whole(1)) });
    kit.cycle();
    let third = kit.claim(train("default", whole(1)));
    kit.remove(second);
    kit.cycle();
    assert_eq!(kit.running(&[first, third]), 0, "the first is still on its way out");
    kit.event(Event::ClaimGone(first));
    assert_eq!(kit.running(&[first, third]), 1);
}

/// A gang's member waits on another node for a claim to leave; that node fails. The member is told of it.
#[test]
fn a_claim_that_waits_for_a_node_that_is_gone() {
    let mut kit = Kit::of_nodes(2, 1);
    let low = kit.claims(2, &train("default", whole(1)));
    kit.converge();
    let mut group = gang("gang", "default", 2);
    group.priority = 100;
    let members = kit.gang(group, 2, &whole(1));
    kit.cycle();
    let (at_first, at_second): (Vec<ClaimId>, Vec<ClaimId>) =
        members.iter().partition(|claim| kit.node_of(**claim) == Some("node-0"));
    let gone = low.iter().copied().find(|claim| {
        let leaving = kit.cluster.leaving(*claim).map(|at| at.node);
        leaving == kit.cluster.node_named("node-0")
    });
    kit.event(Event::ClaimGone(gone.expect("one of them was there")));
    assert_eq!(kit.running(&members), 0, "a gang starts together");
    let failed = kit.cluster.node_named("node-1").expect("it is there");
    let outcome = kit.event(Event::NodeRemoved(failed));
    let displaced = at_second.into_iter().chain(at_first).collect();
    assert_eq!(outcome, Outcome::Claims { displaced, ready: vec![] }, "too few members are left, and they wait again");
    kit.converge();
    assert_eq!(kit.running(&members), 0);
    kit.node(node("node-2", 1));
    kit.converge();
    assert_eq!(kit.running(&members), 2);
}

/// Room became free, but claims that had been refused were never looked at again. Here nothing that could be out of
/// date is remembered from one cycle to the next: nodes, devices, limits and freed room are seen in the next cycle.
#[test]
fn capacity_that_comes_back_and_nobody_is_asked_again() {
    let mut kit = Kit::new();
    kit.queue("team", limited(0, 1));
    let claims = kit.claims(4, &train("team", whole(1)));
    kit.converge();
    assert_eq!(kit.running(&claims), 0);
    kit.node(node("late", 2));
    kit.converge();
    assert_eq!(kit.running(&claims), 1);
    let spec = kit.cluster.queue_named("team").and_then(|id| kit.cluster.queue(id)).map(|queue| queue.spec().clone());
    let mut spec = spec.expect("it was added");
    spec.allowances.values_mut().for_each(|allowance| allowance.limit = Some(3000));
    kit.event(Event::QueueChanged(spec));
    kit.converge();
    assert_eq!(kit.running(&claims), 2);
    kit.node(node("later", 2));
    kit.converge();
    assert_eq!(kit.running(&claims), 3);
    kit.remove(claims[0]);
    kit.converge();
    assert_eq!(kit.running(&claims[1..]), 3);
}

/// A claim could grow beyond its device, or beyond its queue's bounds, because only new claims were checked.
#[test]
fn a_claim_that_grows_past_its_device_or_its_queues_limit() {
    let mut kit = Kit::of_nodes(1, 2);
    kit.queue("team", limited(0, 1));
    let other = kit.claim(train("default", part(40)));
    let claim = kit.claim(train("team", part(50)));
    kit.converge();
    let grow = |kit: &mut Kit, claim, request: &Request| kit.try_event(Event::ClaimResized(claim, request.clone()));
    let two_halves = Request {
        devices: DeviceRequest { count: 1, core: DeviceCore::from_percent(61), ..part(61).devices },
        ..Request::default()
    };
    let shared = kit.cluster.allocation(other).map(|at| at.devices[0].device)
        == kit.cluster.allocation(claim).map(|at| at.devices[0].device);
    assert!(shared, "best fit puts both on one device");
    assert!(matches!(grow(&mut kit, claim, &two_halves), Err(EventError::NotEnough { .. })));
    assert_eq!(kit.cluster.claim(claim).map(|claim| &*claim.request), Some(&part(50)));
    assert!(grow(&mut kit, claim, &part(60)).is_ok());
    let second = kit.claim(train("team", part(40)));
    kit.converge();
    assert_eq!(kit.running(&[second]), 1);
    assert!(grow(&mut kit, second, &part(41)).is_err(), "the queue's limit is one device");
}

/// A running claim grew into room that another claim was still leaving.
#[test]
fn a_claim_that_grows_into_what_is_not_free_yet() {
    let mut kit = Kit::of_nodes(1, 1);
    kit.queue("owner", quota(1));
    kit.queue("guest", quota(0));
    let guests = kit.claims(2, &train("guest", part(50)));
    kit.converge();
    let back = kit.claim(train("owner", part(30)));
    let out = evicted(&kit.cycle().steps.into_iter().map(|planned| (planned.action, planned.step)).collect::<Vec<_>>());
    assert_eq!(out.len(), 1);
    let stays = guests.iter().copied().find(|claim| *claim != out[0]).expect("one of two stays");
    assert!(kit.try_event(Event::ClaimResized(stays, part(70))).is_err(), "half the device is still in use");
    kit.let_go();
    assert!(kit.try_event(Event::ClaimResized(stays, part(70))).is_ok());
    assert_eq!(kit.running(&[back, stays]), 2);
}

/// A running claim grew into room that another claim was still leaving, and that was free only for a claim that waits
/// to start.
#[test]
fn a_claim_that_grows_into_what_others_wait_for() {
    let mut kit = Kit::of_nodes(1, 1);
    let first = kit.claim(train("default", part(10)));
    let second = kit.claim(train("default", part(60)));
    let grows = kit.claim(build("default", part(10)));
    kit.converge();
    let waits = kit.claim(Claim { priority: 100, ..train("default", part(30)) });
    kit.cycle();
    assert_eq!(kit.cluster.starts_after(waits), [first]);
    let high = kit.claim(Claim { priority: 125, ..train("default", part(60)) });
    kit.cycle();
    kit.remove(high);
    assert!(kit.cluster.leaving(second).is_some());
    let refused = kit.try_event(Event::ClaimResized(grows, part(30)));
    assert!(matches!(refused, Err(EventError::StillHeld { .. })), "{refused:?}");
    kit.let_go();
    kit.event(Event::ClaimResized(grows, part(30)));
    assert_eq!(kit.running(&[waits, grows]), 2);
}
