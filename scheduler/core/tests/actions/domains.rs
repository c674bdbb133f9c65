//! Members of a group that must be in one domain of the topology.

use aliquot_scheduler_core::{Claim, Event, GroupPlacement, NodeSpec, PodGroup, SubGroup};

use crate::setting::{TRAIN, World, group, wants};

fn labelled(world: &World, node: usize, labels: &[(&str, &str)]) -> Event {
    let labels = labels.iter().map(|(key, value)| ((*key).into(), (*value).into())).collect();
    Event::NodeRelabelled(world.id(node), NodeSpec { labels, ..NodeSpec::default() })
}

#[test]
fn sub_groups_of_one_zone_may_each_be_in_a_rack_of_their_own() {
    let mut world = World::new(&[1, 1]);
    for node in [0, 1] {
        let event = labelled(&world, node, &[("zone", "z"), ("rack", ["r0", "r1"][node])]);
        world.apply(event);
    }
    world.apply(Event::TopologyChanged(vec!["zone".into(), "rack".into()]));
    world.queue("q", 2);
    let sub = |name: &str| SubGroup { name: name.into(), min_members: 1, required_level: Some("rack".into()) };
    let spread = GroupPlacement { required_level: Some("zone".into()), ..GroupPlacement::default() };
    let spec = PodGroup { sub_groups: vec![sub("a"), sub("b")], spread, ..group("g", "q", TRAIN, 2) };
    world.apply(Event::PodGroupAdded(spec));
    let member = |name: &str| Claim { pod_group: Some("g".into()), sub_group: Some(name.into()), ..wants("", 0, 1) };
    let claims = [world.claim(member("a")), world.claim(member("b"))];
    world.cycle();
    assert_eq!(world.running(&claims), 2);
}
