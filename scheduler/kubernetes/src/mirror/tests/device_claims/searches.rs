//! Claims whose devices are found only after very many trials.

use std::collections::BTreeSet;

use aliquot_scheduler_core::GroupId;
use aliquot_telemetry::waiting_by_reason;
use serde_json::{Value, json};

use super::super::World;
use super::NIC;
use super::both_drivers::{ROOT, of_root, percent};
use crate::mirror::AboutDevices;

/// Cards in rows and columns: a square of them, and before the end of the list no `size + 1` cards with different rows and
/// columns. For a square of 5 it takes more trials to find these than a count of places makes, for one of 7 more than a
/// search for a pod that has a node.
fn cards(size: u64) -> Vec<Value> {
    let square = (0..size).flat_map(|row| (0..size).map(move |column| (row, column)));
    let all = square.chain([(size, 0), (size - 1, size)]);
    let card = |(row, column): (u64, u64)| {
        let attributes =
            json!({"row": {"int": row}, "column": {"int": column}, ROOT: {"string": format!("{row}-{column}")}});
        json!({"name": format!("nic-{row}-{column}"), "attributes": attributes})
    };
    all.map(card).collect()
}

fn distinct(attribute: &str) -> Value {
    json!({"requests": ["nic"], "distinctAttribute": format!("{NIC}/{attribute}")})
}

impl World {
    fn node_with_cards(&mut self, node: &str, cards: &[Value]) {
        self.node(node, 0);
        self.pool_of_nics(&format!("{node}-nics"), json!({"nodeName": node}), cards.into());
    }

    /// A pod that asks for so many cards with different rows and columns, and for what these requests and constraints say.
    fn pod_with_distinct_cards(&mut self, name: &str, count: u64, before: &[Value], more: &[Value]) {
        let nic = json!({"name": "nic", "exactly": {"deviceClassName": NIC, "count": count}});
        let requests: Vec<Value> = before.iter().cloned().chain([nic]).collect();
        let constraints: Vec<Value> = [distinct("row"), distinct("column")].into_iter().chain(more.to_vec()).collect();
        self.claim_of_nics(name, requests.into(), constraints.into());
        self.pod_with_claim(name, name, json!({}));
    }

    fn said_of_devices(&self, pod: &str) -> String {
        self.mirror.about_devices(&self.uid(pod), &mut AboutDevices::default()).join("; ")
    }

    fn is_searched(&self, pod: &str) -> bool {
        self.mirror.waiting(&self.uid(pod)).is_some_and(|waiting| waiting.is_searched)
    }

    fn look(&mut self) {
        self.hear();
        self.poll();
    }
}

#[test]
fn a_pod_gets_devices_that_are_found_late() {
    for size in [5, 6, 7] {
        let mut world = World::new();
        world.node_with_cards("n", &cards(size));
        world.pod_with_distinct_cards("a", size + 1, &[], &[]);
        world.reconcile();
        assert_eq!(world.names_of_bound(), ["a"], "{size}: {}", world.why_waiting("a"));
        assert!(!world.mirror.has_searches() && world.mirror.knows_right_places());
    }
}

#[test]
fn a_pod_is_told_that_its_devices_are_searched() {
    let mut world = World::new();
    for node in ["n", "m", "o"] {
        world.node_with_cards(node, &cards(7));
    }
    world.pod_with_distinct_cards("a", 8, &[], &[]);
    world.look();
    let why = world.said_of_devices("a");
    assert!(why.contains("not known yet whether node m and 2 other nodes can give"), "{why}");
    assert!(world.is_searched("a"));
    world.reconcile();
    assert_eq!(world.names_of_bound(), ["a"], "{}", world.why_waiting("a"));
}

#[test]
fn metrics_count_pods_whose_devices_are_searched() {
    let mut world = World::new();
    world.node_with_cards("n", &cards(7));
    world.pod_with_distinct_cards("a", 8, &[], &[]);
    // A cycle looks at it, and meanwhile the search does not go on.
    world.look();
    world.now_ms += 50;
    world.look();
    let waiting = |world: &World, searched: &BTreeSet<GroupId>| {
        let counted = waiting_by_reason(world.view.as_ref().unwrap(), searched).into_iter();
        counted.filter(|(_, number)| *number > 0).collect::<Vec<_>>()
    };
    assert_eq!(waiting(&world, &BTreeSet::new()), [("no-room", 1)], "what the books say");
    let searched = world.mirror.searched_groups(world.view.as_ref().unwrap());
    assert_eq!(waiting(&world, &searched), [("search", 1)]);
    world.reconcile();
    assert!(world.mirror.searched_groups(world.view.as_ref().unwrap()).is_empty());
    assert_eq!(waiting(&world, &BTreeSet::new()), []);
}

#[test]
fn nodes_that_are_alike_are_searched_once() {
    let mut world = World::new();
    for number in 0..20 {
        world.node_with_cards(&format!("n{number}"), &cards(5));
    }
    for pod in ["a", "b"] {
        world.pod_with_distinct_cards(pod, 6, &[], &[]);
    }
    world.look();
    assert_eq!(world.mirror.searches(), 1);
    world.reconcile();
    assert_eq!(world.names_of_bound(), ["a", "b"]);
}

#[test]
fn a_search_that_finds_nothing_ends() {
    let mut world = World::new();
    let mut all = cards(4);
    // Two rows have cards of one column alone.
    all.pop();
    for (row, column) in [(5, 0), (0, 4), (1, 5)] {
        let attributes = json!({"row": {"int": row}, "column": {"int": column}});
        all.push(json!({"name": format!("nic-{row}-{column}"), "attributes": attributes}));
    }
    world.node_with_cards("n", &all);
    world.pod_with_distinct_cards("a", 6, &[], &[]);
    world.look();
    assert!(world.is_searched("a"), "{}", world.said_of_devices("a"));
    world.reconcile();
    assert!(world.bound().is_empty() && !world.mirror.has_searches() && !world.is_searched("a"));
    let attributes = json!({"row": {"int": 5}, "column": {"int": 1}});
    all.insert(0, json!({"name": "nic-new", "attributes": attributes}));
    world.pool_of_nics("n-nics", json!({"nodeName": "n"}), all.into());
    world.reconcile();
    assert_eq!(world.names_of_bound(), ["a"], "{}", world.why_waiting("a"));
}

#[test]
fn a_search_ends_with_its_pod_and_begins_anew() {
    let mut world = World::new();
    world.node_with_cards("n", &cards(7));
    world.pod_with_distinct_cards("a", 8, &[], &[]);
    world.look();
    assert!(world.mirror.has_searches());
    world.delete("a");
    world.collect_claims();
    world.look();
    world.mirror.go_on_searching();
    assert!(!world.mirror.has_searches());
    world.pod_with_distinct_cards("b", 8, &[], &[]);
    world.reconcile();
    assert_eq!(world.names_of_bound(), ["b"], "{}", world.why_waiting("b"));
}

#[test]
fn cards_that_are_found_late_may_be_beside_a_gpu() {
    let gpu = |count: u64| {
        let mut gpu = percent(40);
        gpu["count"] = count.into();
        json!({"name": "gpu", "exactly": gpu})
    };
    let same = json!({"requests": ["gpu"], "matchAttribute": ROOT});
    let different = json!({"distinctAttribute": ROOT});
    for (case, gpus, constraint) in [("apart", 1, same), ("compared", 2, different)] {
        let mut world = World::new();
        world.node_of_both("n", &[of_root("a"), of_root("b"), of_root("c")], &cards(7));
        world.pod_with_distinct_cards("p", 8, &[gpu(gpus)], &[constraint]);
        world.reconcile();
        assert_eq!(world.names_of_bound(), ["p"], "{case}: {} {:?}", world.why_waiting("p"), world.log);
    }
}
