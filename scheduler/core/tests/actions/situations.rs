//! Which claims make way for which others, in small situations.

use std::collections::BTreeMap;

use aliquot_scheduler_core::explain::Reason;
use aliquot_scheduler_core::{
    Action, Allowance, Claim, ClaimId, DisruptionBudget, Event, MilliCpu, PodGroup, QueueSpec, Resource, Settings, Step,
};

use crate::setting::{INFERENCE, TRAIN, World, build, evicted, group, part, wants};

#[test]
fn a_queue_takes_back_its_share_from_one_that_has_borrowed_it() {
    let mut world = World::new(&[4, 4]);
    world.queue("red", 4);
    world.queue("blue", 4);
    let red: Vec<ClaimId> = (0..8).map(|_| world.add("red", TRAIN, 1)).collect();
    world.cycle();
    assert_eq!(world.running(&red), 8);
    let blue: Vec<ClaimId> = (0..6).map(|_| world.add("blue", TRAIN, 1)).collect();
    let plan = world.cycle();
    assert_eq!((world.running(&red), world.running(&blue)), (4, 4));
    assert_eq!(evicted(&plan), red[4..].iter().rev().copied().collect::<Vec<_>>(), "those that came last go first");
    assert!(
        plan.steps
            .iter()
            .filter(|step| matches!(step.step, Step::Evict { .. }))
            .all(|step| step.action == Action::Reclaim)
    );
    let again = world.cycle();
    assert_eq!(again.steps, [], "no queue takes it back");
}

#[test]
fn reclaim_goes_on_to_the_fair_share_and_does_not_stop_at_the_quota() {
    let mut world = World::new(&[8]);
    world.queue("red", 1);
    world.queue("blue", 1);
    let red: Vec<ClaimId> = (0..8).map(|_| world.add("red", TRAIN, 1)).collect();
    world.cycle();
    let blue: Vec<ClaimId> = (0..8).map(|_| world.add("blue", TRAIN, 1)).collect();
    world.cycle();
    assert_eq!((world.running(&red), world.running(&blue)), (4, 4));
}

#[test]
fn parts_of_devices_are_reclaimed_to_the_exact_share() {
    let mut world = World::new(&[2]);
    world.queue("red", 0);
    world.queue("blue", 0);
    let red: Vec<ClaimId> = (0..8).map(|_| world.claim(part("red", TRAIN, 25))).collect();
    world.cycle();
    assert_eq!(world.running(&red), 8);
    let blue: Vec<ClaimId> = (0..4).map(|_| world.claim(part("blue", TRAIN, 50))).collect();
    world.cycle();
    assert_eq!((world.running(&red), world.running(&blue)), (4, 2));
}

#[test]
fn nobody_is_evicted_for_a_queue_that_is_above_its_share() {
    let mut world = World::new(&[4]);
    world.queue("red", 2);
    world.queue("blue", 2);
    let red: Vec<ClaimId> = (0..4).map(|_| world.add("red", TRAIN, 1)).collect();
    world.cycle();
    let blue = world.add("blue", TRAIN, 3);
    let plan = world.cycle();
    assert_eq!((world.running(&red), world.runs(blue), plan.steps.len()), (4, false, 0));
}

#[test]
fn one_large_request_does_not_evict_what_frees_nothing_for_it() {
    // One node of eight devices, and many small nodes on which a request for eight devices can never run.
    let mut nodes = vec![8];
    nodes.extend([2; 40]);
    let mut world = World::new(&nodes);
    world.queue("red", 0);
    world.queue_with("blue", None, Allowance { quota: Some(48_000), weight: 1, ..Allowance::default() });
    let red: Vec<ClaimId> = (0..88).map(|_| world.add("red", TRAIN, 1)).collect();
    world.cycle();
    assert_eq!(world.running(&red), 88);
    let large: Vec<ClaimId> = (0..6).map(|_| world.add("blue", TRAIN, 8)).collect();
    let plan = world.cycle();
    assert_eq!((world.running(&large), evicted(&plan).len()), (1, 8));
}

#[test]
fn no_more_is_evicted_than_the_settings_allow() {
    let tight = Settings { disruption_per_mille: 1000, ..Settings::default() };
    for (settings, runs) in [(tight, false), (Settings { disruption_per_mille: 2000, ..tight }, true)] {
        let mut world = World::with(&[4], settings);
        world.queue("red", 0);
        world.queue("blue", 4);
        let pairs = [world.add("red", TRAIN, 2), world.add("red", TRAIN, 2)];
        world.cycle();
        assert_eq!(world.running(&pairs), 2);
        // For three devices both pairs have to go, so four devices are lost.
        let blue = world.add("blue", TRAIN, 3);
        let plan = world.cycle();
        assert_eq!(world.runs(blue), runs);
        let is_told = plan.pending.iter().any(|pending| pending.reason(&world.cluster) == Reason::TooDisruptive);
        assert_eq!(is_told, !runs, "and not that no claim of its queue could make way");
    }
}

#[test]
fn one_unit_may_be_evicted_however_large_it_is() {
    let mut world = World::with(&[8], Settings { disruption_per_mille: 0, ..Settings::default() });
    world.queue("red", 0);
    world.queue("blue", 8);
    let red = world.add("red", TRAIN, 8);
    world.cycle();
    let blue = world.add("blue", TRAIN, 1);
    world.cycle();
    assert_eq!((world.runs(red), world.runs(blue)), (false, true));
}

#[test]
fn a_disruption_budget_is_never_broken_even_by_several_evictions_at_once() {
    let mut world = World::new(&[4]);
    world.queue("red", 0);
    world.queue("blue", 4);
    world.apply(Event::BudgetChanged(DisruptionBudget {
        name: "serving".into(),
        min_available: 2,
        ..Default::default()
    }));
    let served = Claim { disruption_budget: Some("serving".into()), ..wants("red", TRAIN, 1) };
    let red: Vec<ClaimId> = (0..4).map(|_| world.claim(served.clone())).collect();
    world.cycle();
    let blue: Vec<ClaimId> = (0..4).map(|_| world.add("blue", TRAIN, 1)).collect();
    world.cycle();
    world.cycle();
    assert_eq!((world.running(&red), world.running(&blue)), (2, 2));
    let pair = world.add("blue", INFERENCE, 3);
    world.cycle();
    assert!(!world.runs(pair) && world.running(&red) == 2);
}

#[test]
fn what_may_not_be_evicted_stays() {
    let mut world = World::new(&[4]);
    world.queue("red", 4);
    world.queue("blue", 0);
    let fixed = Claim { preemptible: false, ..wants("red", TRAIN, 1) };
    let red: Vec<ClaimId> = (0..4).map(|_| world.claim(fixed.clone())).collect();
    world.cycle();
    assert_eq!(world.running(&red), 4);
    // Its queue loses its quota. What runs there is now above the share, and still stays.
    let allowances =
        BTreeMap::from([(Resource::DeviceCore, Allowance { quota: Some(0), weight: 1, ..Allowance::default() })]);
    world.apply(Event::QueueChanged(QueueSpec { name: "red".into(), allowances, ..QueueSpec::default() }));
    let blue = world.add("blue", TRAIN, 1);
    let high = world.add("red", INFERENCE, 1);
    world.cycle();
    assert_eq!((world.running(&red), world.runs(blue), world.runs(high)), (4, false, false));
}

#[test]
fn a_claim_runs_as_long_as_it_was_promised_before_it_is_reclaimed() {
    let mut world = World::new(&[2]);
    let allowance = Allowance { quota: Some(0), weight: 1, ..Allowance::default() };
    let parent = QueueSpec { name: "division".into(), reclaim_min_runtime_ms: Some(60_000), ..QueueSpec::default() };
    world.apply(Event::QueueAdded(parent));
    world.queue_with("red", Some("division"), allowance);
    world.queue("blue", 2);
    let own = Claim { min_runtime_ms: 90_000, ..wants("red", TRAIN, 1) };
    let red = [world.claim(own), world.add("red", TRAIN, 1)];
    world.cycle();
    let blue = [world.add("blue", TRAIN, 1), world.add("blue", TRAIN, 1)];
    for (now_ms, running) in [(59_999, 0), (60_000, 1), (89_999, 1), (90_000, 2)] {
        world.apply(Event::TimeAdvanced(now_ms));
        world.cycle();
        assert_eq!((world.running(&blue), world.running(&red)), (running, 2 - running), "at {now_ms} ms");
    }
}

#[test]
fn within_a_queue_what_is_of_lower_priority_makes_way() {
    let mut world = World::new(&[4]);
    world.queue("red", 4);
    let low: Vec<ClaimId> = (0..4).map(|_| world.add("red", TRAIN, 1)).collect();
    world.cycle();
    let equal = world.add("red", TRAIN, 1);
    assert_eq!(evicted(&world.cycle()), []);
    let high = world.add("red", INFERENCE, 2);
    let plan = world.cycle();
    assert_eq!(evicted(&plan), [low[3], low[2]]);
    assert!(world.runs(high) && !world.runs(equal));
    assert_eq!(world.cycle().steps, []);
}

#[test]
fn a_queue_at_its_limit_makes_way_within_itself() {
    let mut world = World::new(&[8]);
    world.queue_with("red", None, Allowance { quota: Some(4000), limit: Some(4000), weight: 1, priority: None });
    let low: Vec<ClaimId> = (0..4).map(|_| world.add("red", TRAIN, 1)).collect();
    world.cycle();
    let high = world.add("red", INFERENCE, 2);
    let plan = world.cycle();
    assert_eq!(evicted(&plan), [low[3], low[2]]);
    assert!(world.runs(high));
    assert_eq!(world.devices_of("red"), 4);
}

#[test]
fn a_queue_that_keeps_a_sibling_from_their_parents_limit_makes_way() {
    let mut world = World::new(&[8]);
    world.queue_with("division", None, Allowance { quota: Some(4000), limit: Some(4000), weight: 1, priority: None });
    let half = Allowance { quota: Some(2000), weight: 1, ..Allowance::default() };
    world.queue_with("red", Some("division"), half);
    world.queue_with("blue", Some("division"), half);
    let red: Vec<ClaimId> = (0..4).map(|_| world.add("red", TRAIN, 1)).collect();
    world.cycle();
    let blue = [world.add("blue", TRAIN, 1), world.add("blue", TRAIN, 1)];
    world.cycle();
    assert_eq!((world.running(&red), world.running(&blue)), (2, 2));
}

#[test]
fn a_borrowed_claim_of_high_priority_takes_only_what_is_borrowed_too() {
    let mut world = World::new(&[4]);
    world.queue("red", 2);
    world.queue("blue", 2);
    let old: Vec<ClaimId> = (0..4).map(|_| world.add("red", TRAIN, 1)).collect();
    world.cycle();
    // Three devices are more than red's share of two, so only the two devices that red has borrowed could make way.
    let high = world.add("red", INFERENCE, 3);
    let _ = world.add("blue", TRAIN, 4);
    assert_eq!(world.cycle().steps, []);
    assert_eq!((world.running(&old), world.runs(high)), (4, false));
}

#[test]
fn a_gang_loses_its_members_beyond_the_minimum_one_by_one_and_its_core_as_a_whole() {
    let mut world = World::new(&[4]);
    world.queue("red", 0);
    world.queue("blue", 0);
    let elastic = world.gang(group("elastic", "red", TRAIN, 2), 4, 1);
    world.cycle();
    assert_eq!(world.running(&elastic), 4);
    let first = world.add("blue", TRAIN, 1);
    assert_eq!(evicted(&world.cycle()), [elastic[3]]);
    let second = world.add("blue", TRAIN, 1);
    assert_eq!(evicted(&world.cycle()), [elastic[2]]);
    assert_eq!((world.runs(first), world.runs(second), world.running(&elastic)), (true, true, 2));
    // In its own queue, the whole core makes way for a claim of higher priority.
    let high = world.add("red", INFERENCE, 1);
    assert_eq!(evicted(&world.cycle()).len(), 2);
    assert!(world.runs(high));
}

#[test]
fn a_gang_reclaims_all_it_needs_or_nothing() {
    let mut world = World::new(&[4, 4]);
    world.queue("red", 4);
    world.queue("blue", 4);
    let red: Vec<ClaimId> = (0..8).map(|_| world.add("red", TRAIN, 1)).collect();
    world.cycle();
    let too_large = world.gang(group("too-large", "blue", TRAIN, 5), 5, 1);
    assert_eq!(world.cycle().steps, []);
    let gang = world.gang(group("gang", "blue", TRAIN, 4), 4, 1);
    let plan = world.cycle();
    assert_eq!((world.running(&too_large), world.running(&gang), evicted(&plan).len()), (0, 4, 4));
    assert_eq!(world.running(&red), 4);
}

#[test]
fn a_gang_that_cannot_grow_any_more_does_not_stand_before_the_next_gang() {
    let mut world = World::new(&[4]);
    world.queue("red", 0);
    world.queue("blue", 4);
    let old: Vec<ClaimId> = (0..4).map(|_| world.add("red", TRAIN, 1)).collect();
    world.cycle();
    // The third member fits on no node. Each gang needs two devices.
    let first = world.gang(group("first", "blue", TRAIN, 2), 2, 1);
    let huge = Claim { pod_group: Some("first".into()), ..wants("", 0, 64) };
    let huge = world.claim(huge);
    let second = world.gang(group("second", "blue", TRAIN, 2), 2, 1);
    world.cycle();
    assert_eq!((world.running(&first), world.running(&second), world.running(&old)), (2, 2, 0));
    assert!(!world.runs(huge));
}

#[test]
fn who_makes_way_for_one_member_of_a_gang_and_would_not_have_had_to_stays() {
    // The larger member finds room after a pair goes. The smaller one must run where four devices are held at once.
    // When those four are free, there is room for both members.
    let mut world = World::new(&[2, 4]);
    world.queue("red", 0);
    world.queue("blue", 6);
    let pair = world.add("red", TRAIN, 2);
    let four = world.add("red", TRAIN, 4);
    world.run_on(pair, 0, 0);
    world.run_on(four, 1, 0);
    world.apply(Event::PodGroupAdded(group("gang", "blue", TRAIN, 2)));
    let larger = Claim { pod_group: Some("gang".into()), ..wants("", 0, 2) };
    let mut smaller = Claim { pod_group: Some("gang".into()), ..wants("", 0, 1) };
    smaller.request.constraints.labels = BTreeMap::from([("host".into(), "node-1".into())]);
    let gang = [world.claim(larger), world.claim(smaller)];
    world.asks_for_the_rest("blue");
    let plan = world.cycle();
    assert_eq!(world.running(&gang), 2);
    assert_eq!(evicted(&plan), [four]);
    assert!(world.runs(pair));
}

#[test]
fn among_victims_that_do_alike_the_one_of_the_queue_furthest_above_its_share_goes() {
    let mut world = World::new(&[4, 4, 4]);
    for name in ["red", "green", "blue"] {
        world.queue(name, 4);
    }
    let red: Vec<ClaimId> = (0..5).map(|_| world.add("red", TRAIN, 1)).collect();
    world.cycle();
    let green: Vec<ClaimId> = (0..7).map(|_| world.add("green", TRAIN, 1)).collect();
    world.cycle();
    let _ = world.add("blue", TRAIN, 1);
    assert_eq!(evicted(&world.cycle()), [green[6]]);
    let _ = world.add("blue", TRAIN, 2);
    world.cycle();
    assert_eq!((world.running(&red), world.running(&green)), (5, 4));
}

#[test]
fn what_is_left_of_a_gang_is_evicted_after_its_grace_period() {
    let mut world = World::new(&[2, 2]);
    world.queue("red", 4);
    let spec = PodGroup { staleness_grace_ms: Some(60_000), ..group("gang", "red", TRAIN, 3) };
    let gang = world.gang(spec, 3, 1);
    let patient = world.gang(group("patient", "red", TRAIN, 1), 1, 1);
    world.cycle();
    assert_eq!(world.running(&gang), 3);
    world.apply(Event::ClaimRemoved(gang[1]));
    for (now_ms, running) in [(1, 2), (60_000, 2), (60_001, 0)] {
        world.apply(Event::TimeAdvanced(now_ms));
        let plan = world.cycle();
        let left = [gang[0], gang[2]];
        assert_eq!(world.running(&left), running, "at {now_ms} ms");
        assert!(plan.steps.iter().all(|step| step.action == Action::StaleGang));
    }
    assert_eq!(world.running(&patient), 1);
}

#[test]
fn a_group_waits_as_long_as_it_says_before_others_are_evicted_for_it() {
    let mut world = World::new(&[1]);
    world.queue("red", 0);
    world.queue("blue", 1);
    let red = world.add("red", TRAIN, 1);
    world.cycle();
    let patient = PodGroup { preemption_delay_ms: 5000, ..group("patient", "blue", TRAIN, 1) };
    let blue = world.gang(patient, 1, 1);
    for (now_ms, waits) in [(0, true), (4999, true), (5000, false)] {
        world.apply(Event::TimeAdvanced(now_ms));
        world.cycle();
        assert_eq!((world.runs(red), world.runs(blue[0])), (waits, !waits), "at {now_ms} ms");
    }
}

#[test]
fn a_group_that_was_evicted_waits_anew_before_others_are_evicted_for_it() {
    let mut world = World::new(&[1]);
    world.queue("red", 1);
    world.queue_with("blue", None, Allowance { quota: Some(0), weight: 0, ..Allowance::default() });
    let waits = world.gang(PodGroup { preemption_delay_ms: 1000, ..group("g", "red", TRAIN, 1) }, 1, 1);
    world.cycle();
    world.wait(5000);
    let urgent = world.add("red", INFERENCE, 1);
    assert_eq!(evicted(&world.cycle()), waits);
    world.apply(Event::ClaimRemoved(urgent));
    let borrows = world.add("blue", TRAIN, 1);
    world.run_on(borrows, 0, 0);
    world.wait(999);
    assert_eq!(evicted(&world.cycle()), []);
    world.wait(1);
    assert_eq!(evicted(&world.cycle()), [borrows]);
}

#[test]
fn a_quota_of_no_cpu_promises_none_but_lets_what_stays_use_it_for_its_devices() {
    for (quota, cpu, runs) in [(0, 2000, true), (2000, 2000, true), (1999, 2000, false)] {
        let mut world = World::new(&[1]);
        let of = |quota: u64| Allowance { quota: Some(quota), weight: 1, ..Allowance::default() };
        let allowances = BTreeMap::from([(Resource::DeviceCore, of(1000)), (Resource::Cpu, of(quota))]);
        world.apply(Event::QueueAdded(QueueSpec { name: "q".into(), allowances, ..QueueSpec::default() }));
        let mut stays = build("q", 1);
        stays.request.cpu = MilliCpu::new(cpu);
        let stays = world.claim(stays);
        world.cycle();
        assert_eq!(world.runs(stays), runs, "with a quota of {quota}");
    }
}

#[test]
fn an_eviction_remembers_who_it_was_for_and_what_the_queues_held() {
    let mut world = World::new(&[2]);
    world.queue("red", 0);
    world.queue("blue", 2);
    let red = world.add("red", TRAIN, 2);
    world.cycle();
    let blue = world.claim(Claim { name: "urgent".into(), ..wants("blue", TRAIN, 2) });
    world.cycle();
    let cause = world.cluster.displaced(red).expect("red was evicted").clone();
    assert_eq!(
        (cause.action, cause.by, cause.by_name.as_str()),
        (Action::Reclaim, world.cluster.group_of(blue), "urgent")
    );
    let shares: Vec<(&str, u64, u64, u64)> =
        cause.shares.iter().map(|share| (share.queue.as_str(), share.held, share.asked, share.fair_share)).collect();
    assert_eq!(shares, [("blue", 0, 2000, 2000), ("red", 2000, 0, 0)]);
}

#[test]
fn a_queue_gives_no_more_of_a_resource_than_it_has_too_much_of_even_where_it_has_too_much_of_another() {
    let mut world = World::new(&[4, 1]);
    let of = |quota: u64| Allowance { quota: Some(quota), weight: 0, ..Allowance::default() };
    let allowances = BTreeMap::from([(Resource::DeviceCore, of(2000)), (Resource::Cpu, of(2000))]);
    world.apply(Event::QueueAdded(QueueSpec { name: "blue".into(), allowances, ..QueueSpec::default() }));
    world.queue("red", 3);
    let mut claim = |devices: u16, cpu: u64, first: u16| {
        let mut claim = wants("blue", TRAIN, devices);
        claim.request.cpu = MilliCpu::new(cpu);
        let claim = world.claim(claim);
        world.run_on(claim, 0, first);
    };
    // The second of these is too much for the CPU, and the third for the devices.
    [(1, 1000, 0), (1, 2000, 1), (2, 0, 2)].into_iter().for_each(|(devices, cpu, at)| claim(devices, cpu, at));
    let red = world.add("red", TRAIN, 3);
    let plan = world.cycle();
    assert!(plan.steps.is_empty(), "two devices of its four are blue's: {:?}", plan.steps);
    assert!(!world.runs(red));
}
