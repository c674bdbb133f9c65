//! What queues ask for but could never hold takes no share from others.

use aliquot_scheduler_core::{Allowance, Event, PodGroup};

use crate::setting::{TRAIN, World, build, group};

/// Twelve devices and three equal queues without a quota. The last one runs eight claims, and the second one four.
/// Returns how many devices the second queue has after the first one has asked in vain, and the second one for more.
fn second_gets(asks_in_vain: impl FnOnce(&mut World)) -> u64 {
    let mut world = World::new(&[12]);
    let equal = Allowance { quota: Some(0), weight: 1, ..Allowance::default() };
    ["first", "second", "third"].into_iter().for_each(|queue| world.queue_with(queue, None, equal));
    for (device, queue) in (0..12).zip([["third"; 8].as_slice(), &["second"; 4]].concat()) {
        let runs = world.add(queue, TRAIN, 1);
        world.run_on(runs, 0, device);
    }
    asks_in_vain(&mut world);
    (0..8).for_each(|_| _ = world.add("second", TRAIN, 1));
    (0..4).for_each(|_| _ = world.cycle());
    assert_eq!(world.devices_of("second") + world.devices_of("third"), 12);
    world.devices_of("second")
}

#[test]
fn a_gang_that_lacks_members_asks_for_nothing_yet() {
    let members = |members| second_gets(|world| _ = world.gang(group("g", "first", TRAIN, 6), members, 2));
    assert_eq!((members(5), members(6)), (6, 4));
}

#[test]
fn what_may_not_be_evicted_asks_for_no_more_than_the_quota() {
    let asks = |world: &mut World| (0..6).for_each(|_| _ = world.claim(build("first", 1)));
    assert_eq!(second_gets(asks), 6);
}

#[test]
fn what_a_gang_asks_for_counts_when_it_may_be_evicted_after_all() {
    let asks = |preemptible| {
        second_gets(|world| {
            let fixed = PodGroup { preemptible: false, ..group("g", "first", TRAIN, 6) };
            world.gang(fixed.clone(), 6, 1);
            let id = world.cluster.group_named("", "g").expect("a group");
            world.apply(Event::PodGroupChanged(id, PodGroup { preemptible, ..fixed }));
        })
    };
    assert_eq!((asks(false), asks(true)), (6, 4));
}
