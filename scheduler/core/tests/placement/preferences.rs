//! Nodes that tasks prefer.

use std::collections::BTreeSet;
use std::sync::Arc;

use aliquot_scheduler_core::placement::{BestFit, Engine, fits};
use aliquot_scheduler_core::{
    Cluster, Event, NodeId, NodeOperator, NodeRequirement, NodeSpec, NodeTerm, Preference, Preferences, Request, Texts,
};
use aliquot_scheduler_kit::{Build, first_of, part, whole};
use proptest::collection::vec;
use proptest::prelude::*;

use crate::cases::{add, node, place};

const ZONES: [&str; 3] = ["a", "b", "c"];

fn in_zone(name: &str, devices: usize, zone: &str) -> NodeSpec {
    NodeSpec { labels: Texts::from([("zone".into(), zone.into())]), ..node(name, 96, devices, "A") }
}

fn preferring(request: Request, zones: &[(u8, &str)]) -> Request {
    let preference = |(weight, zone): &(u8, &str)| {
        let operator = NodeOperator::In(BTreeSet::from([(*zone).to_owned()]));
        let requirements = BTreeSet::from([NodeRequirement { key: "zone".into(), operator }]);
        Preference { weight: *weight, term: NodeTerm { requirements } }
    };
    let preferences = Some(Arc::new(Preferences(zones.iter().map(preference).collect())));
    Request { preferences, ..request }
}

fn cluster(nodes: &[(usize, &str)]) -> Cluster {
    let mut cluster = Cluster::new();
    for (number, (devices, zone)) in nodes.iter().enumerate() {
        cluster.add_node(in_zone(&format!("n{number}"), *devices, zone));
    }
    cluster
}

#[test]
fn a_preferred_node_goes_before_a_cheaper_one() {
    let mut cluster = cluster(&[(1, "a"), (1, "b")]);
    let mut engine = Engine::new(BestFit);
    let holder = preferring(part(50), &[(1, "b")]);
    let mut at = |request: &Request| place(&mut cluster, &mut engine, request).map(|at| at.node.index());
    assert_eq!(at(&holder), Some(1));
    // Best fit puts it beside the other task.
    assert_eq!(at(&part(10)), Some(1));
    let task = preferring(part(40), &[(80, "a"), (20, "b")]);
    assert_eq!([at(&task), at(&task), at(&task), at(&task)], [Some(0), Some(0), Some(1), None]);
}

#[test]
fn an_earlier_choice_goes_before_a_preferred_node() {
    let mut cluster = cluster(&[(1, "a"), (2, "b")]);
    let mut engine = Engine::new(BestFit);
    let task = preferring(first_of(&[whole(2), part(40)]), &[(100, "a")]);
    let mut at = || place(&mut cluster, &mut engine, &task).map(|at| (at.node.index(), at.alternative));
    assert_eq!([at(), at()], [Some((1, 0)), Some((0, 1))]);
}

#[test]
fn a_node_that_gets_other_labels_is_ranked_anew() {
    let mut cluster = cluster(&[(1, "a"), (1, "b")]);
    let mut engine = Engine::new(BestFit);
    let task = preferring(part(10), &[(5, "c")]);
    let mut at = |cluster: &mut Cluster| place(cluster, &mut engine, &task).map(|at| at.node.index());
    assert_eq!(at(&mut cluster), Some(0));
    let changed = cluster.node_named("n1").expect("it is there");
    cluster.event(Event::NodeChanged(changed, in_zone("n1", 1, "c")));
    assert_eq!(at(&mut cluster), Some(1));
}

proptest! {
    /// Of the nodes with room, one with the greatest sum of weights is taken, whatever was placed before.
    #[test]
    fn no_node_with_room_is_preferred_to_the_one_that_is_taken(
        nodes in vec((0usize..3, prop::sample::select(ZONES.to_vec())), 1..6),
        tasks in vec((1u32..=10, vec((0u8..4, prop::sample::select(ZONES.to_vec())), 0..3)), 1..12),
    ) {
        let mut cluster = cluster(&nodes);
        let mut engine = Engine::new(BestFit);
        for (tenths, zones) in tasks {
            let task = preferring(part(tenths * 10), &zones);
            let weight = |id: NodeId| -> u32 {
                let of_zone = zones.iter().filter(|(_, zone)| *zone == nodes[id.index()].1);
                of_zone.map(|(weight, _)| u32::from(*weight)).sum()
            };
            let best = cluster.nodes().filter(|(_, node)| fits(node, &task).is_ok()).map(|(id, _)| weight(id)).max();
            let class = { let claim = add(&mut cluster, &task); cluster.class_of(claim).expect("it was added") };
            let found = engine.place(&cluster, class);
            prop_assert_eq!(found.as_ref().map(|at| weight(at.node)), best);
            let count = cluster.nodes().filter(|(_, node)| fits(node, &task).is_ok()).count();
            prop_assert_eq!(engine.choices(&cluster, class), count);
            place(&mut cluster, &mut engine, &task);
        }
    }
}
