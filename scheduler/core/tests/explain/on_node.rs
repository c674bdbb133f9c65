//! Obstacles that keep a task from one node, and placement outside of cycles.

use aliquot_scheduler_core::explain::NodeObstacle;
use aliquot_scheduler_core::{NodeId, Request};

use crate::setting::{Setting, cores, node, quota, whole};

/// Three nodes: one with its device taken, one with its device free, and one without devices.
fn three_nodes() -> (Setting, [NodeId; 3]) {
    let mut setting = Setting::with_nodes(2, 1);
    setting.add_node(node("bare", "A", 0));
    let first = setting.add("first", whole(1));
    setting.cycle();
    let full = setting.cluster.allocation(first).expect("it is placed").node;
    let id = |name: &str| setting.cluster.node_named(name).expect("it is there");
    let free = ["node-0", "node-1"].map(id).into_iter().find(|node| *node != full).expect("one is free");
    let bare = id("bare");
    (setting, [full, free, bare])
}

#[test]
fn what_lasts_is_told_apart_from_what_is_only_full() {
    let (setting, [full, free, bare]) = three_nodes();
    let of = |request: &Request, node: NodeId| NodeObstacle::of(&setting.cluster, request, node);
    let one = whole(1);
    assert_eq!(of(&one, free), None);
    let obstacle = of(&one, full).expect("its device is taken");
    assert!(matches!(obstacle, NodeObstacle::Full(_)) && !obstacle.is_lasting());
    assert!(obstacle.to_string().starts_with("0 of the 1 devices that are wanted"), "{obstacle}");
    let obstacle = of(&one, bare).expect("it has no device");
    assert!(matches!(obstacle, NodeObstacle::Excluded(_)) && obstacle.is_lasting());
    assert_eq!(obstacle.to_string(), "the node has fewer than 1 device");
    let obstacle = of(&cores(17), free).expect("it has 16 cores");
    assert!(matches!(obstacle, NodeObstacle::TooSmall(_)) && obstacle.is_lasting());
    assert!(obstacle.to_string().starts_with("the empty node is too small: "), "{obstacle}");
}

#[test]
fn a_cost_is_known_exactly_where_nothing_is_in_the_way() {
    let (mut setting, nodes) = three_nodes();
    for request in [whole(1), whole(2), cores(1), cores(17)] {
        let claim = setting.add("asked", request.clone());
        let costs = setting.scheduler.costs_on(&setting.cluster, claim, nodes);
        let fitting = nodes.map(|node| NodeObstacle::of(&setting.cluster, &request, node).is_none());
        assert_eq!(costs.iter().map(Option::is_some).collect::<Vec<bool>>(), fitting, "{request:?}");
    }
}

#[test]
fn what_is_placed_at_once_evicts_nobody_and_keeps_to_bounds() {
    let (mut setting, _) = three_nodes();
    let fits = setting.add("fits", whole(1));
    assert!(setting.scheduler.place_now(&mut setting.cluster, fits));
    assert!(setting.cluster.started_ms(fits).is_some());
    assert!(!setting.scheduler.place_now(&mut setting.cluster, fits), "it is placed already");
    let late = setting.add("late", whole(1));
    assert!(!setting.scheduler.place_now(&mut setting.cluster, late));
    assert_eq!(setting.scheduler.bounds_passed(&setting.cluster, late), []);
    assert!(setting.cluster.allocation(late).is_none());
    // A claim that may not be evicted must stay within the quota.
    let mut setting = Setting::with_nodes(1, 2);
    setting.add_queue("small", None, quota(100));
    let of_small = |name: &str| aliquot_scheduler_core::Claim {
        name: name.into(),
        queue: "small".into(),
        request: whole(1),
        ..Default::default()
    };
    let (first, second) = (setting.add_claim(of_small("first")), setting.add_claim(of_small("second")));
    assert!(setting.scheduler.place_now(&mut setting.cluster, first));
    assert!(!setting.scheduler.place_now(&mut setting.cluster, second));
    assert_eq!(setting.scheduler.bounds_passed(&setting.cluster, second).len(), 1);
}
