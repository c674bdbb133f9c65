//! Searches that are too long for one cycle.

use std::collections::BTreeMap;

use aliquot_scheduler_core::placement::BestFit;
use aliquot_scheduler_core::{
    Allowance, Claim, ClaimId, DisruptionBudget, Event, QueueSpec, Resource, Scheduler, Settings,
};

use crate::setting::{TRAIN, World, build, group, wants};

/// Thirty nodes of two devices. Both devices can be had only on the last node, and each search sees only a few nodes.
fn only_the_last_node_can_be_made_free() -> World {
    let mut w = World::with(&[2; 30], Settings { search_budget: 4, ..Settings::default() });
    w.queue_with("red", None, Allowance { quota: Some(0), weight: 0, ..Allowance::default() });
    for node in 0..30 {
        let other = if node < 29 { build("default", 1) } else { wants("red", TRAIN, 1) };
        for (device, claim) in (0..).zip([wants("red", TRAIN, 1), other]) {
            let claim = w.claim(claim);
            w.run_on(claim, node, device);
        }
    }
    w
}

#[test]
fn a_node_with_more_victims_than_a_search_may_look_at_does_not_end_it_for_ever() {
    let mut w = World::with(&[2, 1], Settings { search_budget: 2, ..Settings::default() });
    w.queue("red", 1);
    w.queue_with("blue", None, Allowance { quota: Some(0), weight: 0, ..Allowance::default() });
    let blue: Vec<_> = (0..3).map(|_| w.add("blue", TRAIN, 1)).collect();
    w.run_on(blue[0], 0, 0);
    w.run_on(blue[1], 0, 1);
    w.run_on(blue[2], 1, 0);
    let red = w.add("red", TRAIN, 1);
    w.cycle();
    assert!(w.runs(red));
}

#[test]
fn a_gang_is_found_room_by_a_search_that_may_look_at_less_than_one_node() {
    let mut w = World::with(&[4, 4], Settings { search_budget: 1, ..Settings::default() });
    w.queue("red", 8);
    w.queue_with("blue", None, Allowance { quota: Some(0), weight: 0, ..Allowance::default() });
    let _ = (0..8).map(|_| w.add("blue", TRAIN, 1)).collect::<Vec<_>>();
    w.cycle();
    let gang = w.gang(group("g", "red", TRAIN, 2), 2, 4);
    let cycles = (1..20).find(|_| {
        w.cycle();
        w.running(&gang) == 2
    });
    assert!(cycles.is_some(), "each time it is cut short it may look at twice as much");
}

#[test]
fn what_a_cycle_looks_at_is_bounded_and_nobody_is_passed_over_for_ever() {
    // The first unit of twenty queues cannot be helped, and that of the last queue can. A cycle has looks for a few of
    // them.
    let settings = Settings { search_budget: 200, search_budget_per_cycle: 500, ..Settings::default() };
    let mut w = World::with(&[2; 60], settings);
    w.queue_with("blue", None, Allowance { quota: Some(0), weight: 0, ..Allowance::default() });
    for node in 0..60 {
        let stays = w.claim(build("default", 1));
        w.run_on(stays, node, 0);
        let blue = w.add("blue", TRAIN, 1);
        w.run_on(blue, node, 1);
    }
    for number in 0..20 {
        let name = format!("red-{number}");
        w.apply(Event::QueueAdded(QueueSpec {
            name: name.clone(),
            priority: 1,
            allowances: BTreeMap::from([(
                Resource::DeviceCore,
                Allowance { quota: Some(2000), weight: 1, ..Allowance::default() },
            )]),
            ..QueueSpec::default()
        }));
        w.add(&name, TRAIN, 2);
    }
    w.queue("green", 1);
    let green = w.add("green", TRAIN, 1);
    let plan = w.cycle();
    assert!(!w.runs(green), "others go first, and use up what there is");
    assert!(plan.steps.is_empty());
    let told = w.scheduler.explain(&w.cluster, green).expect("it waits").to_string();
    assert!(!told.contains("too little search time"), "by itself it would be found room: {told}");
    let cycles = (2..30).find(|_| {
        w.cycle();
        w.runs(green)
    });
    assert!(cycles.is_some(), "its turn comes");
}

#[test]
fn a_search_that_was_cut_short_goes_on_in_a_restored_scheduler_where_it_was() {
    let settings = Settings { search_budget: 6, search_budget_per_cycle: 12, ..Settings::default() };
    let mut w = World::with(&[1; 10], settings);
    w.queue("red", 0);
    w.queue("blue", 10);
    let protected = DisruptionBudget { name: "all".into(), min_available: 9, ..DisruptionBudget::default() };
    w.apply(Event::BudgetChanged(protected));
    for node in 0..10 {
        let budget = (node < 9).then(|| "all".to_owned());
        let red = w.claim(Claim { disruption_budget: budget, ..wants("red", TRAIN, 1) });
        w.run_on(red, node, 0);
    }
    let _ = w.add("blue", TRAIN, 1);
    w.asks_for_the_rest("blue");
    w.cycle();
    let dump = w.scheduler.dump(&w.cluster);
    assert!(!dump.searches.is_empty());
    let (scheduler, cluster) = Scheduler::restore(Box::new(BestFit), settings, dump.clone()).expect("a possible state");
    let mut restored = World { cluster, scheduler };
    assert_eq!(restored.scheduler.dump(&restored.cluster), dump);
    for _ in 0..5 {
        assert_eq!(restored.cycle().steps.len(), w.cycle().steps.len());
        assert_eq!(restored.scheduler.dump(&restored.cluster), w.scheduler.dump(&w.cluster));
    }
}

#[test]
fn a_search_that_was_not_asked_for_in_a_cycle_goes_on_where_it_was() {
    let world = || {
        let mut w = only_the_last_node_can_be_made_free();
        w.queue("blue", 2);
        let blue = w.claim(build("blue", 2));
        (w, blue)
    };
    let (mut w, blue) = world();
    let cycles = (1..20).find(|_| {
        w.cycle();
        w.runs(blue)
    });
    let cycles = cycles.unwrap_or_else(|| panic!("{}", w.scheduler.explain(&w.cluster, blue).unwrap()));
    assert!(cycles > 2, "its search is cut short");
    let (mut w, blue) = world();
    (1..cycles).for_each(|_| _ = w.cycle());
    let quota_of = |w: &mut World, devices: u64| {
        let allowance = Allowance { quota: Some(devices * 1000), weight: 1, ..Allowance::default() };
        let allowances = BTreeMap::from([(Resource::DeviceCore, allowance)]);
        w.apply(Event::QueueChanged(QueueSpec { name: "blue".into(), allowances, ..QueueSpec::default() }));
    };
    quota_of(&mut w, 0);
    w.cycle();
    quota_of(&mut w, 2);
    assert!(!w.runs(blue));
    w.cycle();
    assert!(w.runs(blue));
}

#[test]
fn a_search_that_is_cut_short_goes_on_whatever_comes_of_other_members_of_its_gang() {
    let mut w = only_the_last_node_can_be_made_free();
    w.queue("blue", 6);
    // The member that asks for three devices fits nowhere, and the search for every way with it comes to its end.
    w.gang(group("g", "blue", TRAIN, 2), 0, 0);
    let member = |devices| Claim { pod_group: Some("g".into()), ..wants("", 0, devices) };
    let members = [2, 1, 3].map(|devices| w.claim(member(devices)));
    let cycles = (1..20).find(|_| {
        w.cycle();
        w.running(&members) == 2
    });
    assert!(cycles.is_some_and(|cycles| cycles > 1), "{}", w.scheduler.explain(&w.cluster, members[0]).unwrap());
    assert!(w.runs(members[0]) && w.runs(members[1]));
}

#[test]
fn a_search_that_is_cut_short_goes_on_in_the_next_cycle() {
    // Nine nodes on which no claim may be evicted, and a tenth. Three nodes are looked at in the first cycle, then
    // twice as many.
    let mut world = World::with(&[1; 10], Settings { search_budget: 6, ..Settings::default() });
    world.queue("red", 0);
    world.queue("blue", 10);
    world.apply(Event::BudgetChanged(DisruptionBudget { name: "all".into(), min_available: 9, ..Default::default() }));
    let kept = Claim { disruption_budget: Some("all".into()), ..wants("red", TRAIN, 1) };
    let red: Vec<ClaimId> = (0..9).map(|_| world.claim(kept.clone())).collect();
    for (node, claim) in red.iter().enumerate() {
        world.run_on(*claim, node, 0);
    }
    let last = world.add("red", TRAIN, 1);
    world.run_on(last, 9, 0);
    let blue = world.add("blue", TRAIN, 1);
    world.asks_for_the_rest("blue");
    let cycles = (1..20).find(|_| {
        world.cycle();
        world.runs(blue)
    });
    assert_eq!(cycles, Some(3));
    assert_eq!((world.runs(last), world.running(&red)), (false, 9));
}
