//! Nodes that are kept for who has waited long.

use aliquot_scheduler_core::{Event, Health, NodeSpec, Settings};

use crate::setting::{TRAIN, World, build, wants};

fn labelled(world: &World, node: usize, labels: &[(&str, &str)]) -> Event {
    let labels = labels.iter().map(|(key, value)| ((*key).into(), (*value).into())).collect();
    Event::NodeRelabelled(world.id(node), NodeSpec { labels, ..NodeSpec::default() })
}

#[test]
fn a_node_is_kept_no_longer_for_whom_it_does_not_suit_any_more() {
    let mut world = World::with(&[2], Settings { hold_after_ms: Some(1), ..Settings::default() });
    world.queue("q", 2);
    world.queue("others", 0);
    let stays = world.claim(build("others", 1));
    world.run_on(stays, 0, 0);
    let mut large = wants("q", TRAIN, 2);
    large.request.constraints.labels.insert("host".into(), "node-0".into());
    world.claim(large);
    world.cycle();
    world.wait(10);
    world.cycle();
    assert!(world.cluster.is_held(world.id(0)), "it waits for the second device");
    let event = labelled(&world, 0, &[("host", "renamed")]);
    world.apply(event);
    let small = world.add("q", TRAIN, 1);
    world.cycle();
    world.cycle();
    assert!(world.runs(small));
}

#[test]
fn a_node_is_kept_no_longer_when_a_device_has_failed() {
    let mut world = World::with(&[2, 2], Settings { hold_after_ms: Some(1), ..Settings::default() });
    world.queue("q", 2);
    world.queue("others", 0);
    for node in [0, 1] {
        let stays = world.claim(build("others", 1));
        world.run_on(stays, node, 0);
    }
    world.add("q", TRAIN, 2);
    world.cycle();
    world.wait(10);
    world.cycle();
    assert!(world.cluster.is_held(world.id(0)));
    world.apply(Event::DeviceHealthChanged { node: world.id(0), device: 0, health: Health::Unhealthy });
    world.cycle();
    assert!(!world.cluster.is_held(world.id(0)), "two devices are there no more");
    assert!(world.cluster.is_held(world.id(1)), "but here they are");
}
