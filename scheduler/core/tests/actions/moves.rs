//! Claims that are moved to another place, so that a waiting claim gets theirs.

use aliquot_scheduler_core::{
    Allowance, Bytes, Claim, ClaimId, DeviceMemory, DeviceSpec, Event, GroupPlacement, NodeSpec, PodGroup, Settings,
};

use crate::setting::{TRAIN, World, evicted, group, moved, part, wants};

#[test]
fn a_victim_that_fits_elsewhere_is_moved_and_not_evicted() {
    let mut world = World::with(&[2, 2], Settings { moves_per_cycle: 0, ..Settings::default() });
    world.queue("red", 0);
    world.queue("blue", 4);
    let red = [world.add("red", TRAIN, 1), world.add("red", TRAIN, 1)];
    world.run_on(red[0], 0, 0);
    world.run_on(red[1], 1, 0);
    let blue = world.add("blue", TRAIN, 2);
    world.asks_for_the_rest("blue");
    let plan = world.cycle();
    assert!(world.runs(blue));
    assert_eq!((moved(&plan).len(), evicted(&plan).len()), (1, 0));
    assert_eq!(world.running(&red), 2);
}

#[test]
fn a_victim_that_needs_more_elsewhere_is_evicted_and_not_moved() {
    // The claim asks for half of the memory of a device.
    for (gib, evictions) in [(80, 0), (160, 1)] {
        let mut world = World::new(&[1]);
        let device = DeviceSpec { model: "B".into(), memory: Bytes::from_mib(gib << 10), ..DeviceSpec::default() };
        world.apply(Event::NodeAdded(NodeSpec { name: "other".into(), devices: vec![device], ..NodeSpec::default() }));
        world.queue_with("red", None, Allowance { quota: Some(0), weight: 0, ..Allowance::default() });
        world.queue("blue", 1);
        let mut half = part("red", TRAIN, 50);
        half.request.devices.memory = DeviceMemory::Thousandths(500);
        let half = world.claim(half);
        world.run_on(half, 0, 0);
        let mut blue = wants("blue", TRAIN, 1);
        blue.request.constraints.models.insert("A".into());
        let blue = world.claim(blue);
        let plan = world.cycle();
        assert!(world.runs(blue));
        assert_eq!((evicted(&plan).len(), moved(&plan).len()), (evictions, 1 - evictions), "to one of {gib} GiB");
    }
}

#[test]
fn scattered_room_is_brought_together_by_the_fewest_moves() {
    let mut world = World::new(&[4, 4, 4]);
    world.queue("red", 12);
    let small: Vec<ClaimId> = (0..4).map(|_| world.add("red", TRAIN, 1)).collect();
    for (claim, (node, first)) in small.iter().zip([(0, 0), (0, 1), (1, 0), (2, 1)]) {
        world.run_on(*claim, node, first);
    }
    let large = world.add("red", TRAIN, 4);
    let plan = world.cycle();
    assert_eq!((moved(&plan).len(), evicted(&plan).len()), (1, 0));
    assert!(world.runs(large) && world.running(&small) == 4);
    assert_eq!(world.cycle().steps, []);
}

#[test]
fn claims_that_must_stay_are_not_moved() {
    let placement = GroupPlacement { max_devices_per_node: Some(1), ..GroupPlacement::default() };
    let fixed = Claim { preemptible: false, ..wants("red", TRAIN, 1) };
    let young = Claim { min_runtime_ms: 1000, ..wants("red", TRAIN, 1) };
    for case in 0..3 {
        let mut world = World::new(&[2, 2]);
        world.queue("red", 4);
        let claims: Vec<ClaimId> = match case {
            0 => (0..2).map(|_| world.claim(fixed.clone())).collect(),
            1 => (0..2).map(|_| world.claim(young.clone())).collect(),
            _ => world.gang(PodGroup { spread: placement.clone(), ..group("rules", "red", TRAIN, 2) }, 2, 1),
        };
        world.run_on(claims[0], 0, 0);
        world.run_on(claims[1], 1, 0);
        let large = world.add("red", TRAIN, 2);
        assert_eq!((world.cycle().steps.len(), world.runs(large)), (0, false), "case {case}");
    }
}

#[test]
fn a_gang_is_placed_by_moves_too() {
    let mut world = World::new(&[2, 2, 2, 2]);
    world.queue("red", 8);
    let small: Vec<ClaimId> = (0..4).map(|_| world.add("red", TRAIN, 1)).collect();
    for (node, claim) in small.iter().enumerate() {
        world.run_on(*claim, node, 0);
    }
    let gang = world.gang(group("gang", "red", TRAIN, 2), 2, 2);
    let plan = world.cycle();
    assert_eq!((world.running(&gang), world.running(&small)), (2, 4));
    assert_eq!((moved(&plan).len(), evicted(&plan).len()), (2, 0));
}

#[test]
fn no_more_is_moved_in_a_cycle_than_the_settings_allow() {
    let mut world = World::with(&[2, 2, 2, 2], Settings { moves_per_cycle: 1, ..Settings::default() });
    world.queue("red", 8);
    let small: Vec<ClaimId> = (0..4).map(|_| world.add("red", TRAIN, 1)).collect();
    for (node, claim) in small.iter().enumerate() {
        world.run_on(*claim, node, 0);
    }
    let large = [world.add("red", TRAIN, 2), world.add("red", TRAIN, 2)];
    assert_eq!((moved(&world.cycle()).len(), world.running(&large)), (1, 1));
    assert_eq!((moved(&world.cycle()).len(), world.running(&large)), (1, 2));
}
