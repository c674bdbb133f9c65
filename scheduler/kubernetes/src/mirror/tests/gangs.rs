//! Pods that start together or not at all.

use serde_json::json;

use super::World;

fn of_gang(name: &str, size: u32) -> serde_json::Value {
    json!({"metadata": {"annotations": {"aliquot.dev/gang": name, "aliquot.dev/gang-size": size.to_string()}}})
}

#[test]
fn a_gang_is_bound_whole_or_not_at_all() {
    let mut world = World::new();
    world.node("n", 2);
    for name in ["a", "b", "c"] {
        world.pod(name, 100, of_gang("g", 3));
    }
    world.settle();
    assert!(world.bound().is_empty(), "{:?}", world.log);
    world.node("m", 1);
    world.settle();
    assert_eq!(world.names_of_bound(), ["a", "b", "c"]);
}

#[test]
fn a_gang_waits_for_its_members() {
    let mut world = World::new();
    world.node("n", 2);
    world.pod("a", 100, of_gang("g", 2));
    world.settle();
    assert!(world.bound().is_empty());
    assert!(world.why_waiting("a").contains("1 member"), "{}", world.why_waiting("a"));
    world.pod("b", 100, of_gang("g", 2));
    world.settle();
    assert_eq!(world.names_of_bound(), ["a", "b"]);
}

#[test]
fn half_a_gang_that_a_leader_has_bound_becomes_whole() {
    let mut world = World::new();
    world.node("n", 2);
    world.pod("a", 100, of_gang("g", 2));
    world.pod("b", 100, of_gang("g", 2));
    // The leader dies between the two bindings.
    world.wait_for_writes();
    assert_eq!(world.writes.len(), 2);
    let first = world.writes.remove(0);
    world.carry_out(first);
    world.change_leader();
    world.pod("other", 100, json!({}));
    world.settle();
    assert_eq!(world.names_of_bound(), ["a", "b"], "{:?}", world.log);
}

#[test]
fn a_gang_goes_on_without_those_that_have_succeeded() {
    let mut world = World::new();
    world.node("n", 2);
    world.pod("a", 100, of_gang("g", 2));
    world.pod("b", 100, of_gang("g", 2));
    world.settle();
    world.pods.get_mut("a").unwrap()["status"] = json!({"phase": "Succeeded"});
    world.show("a");
    world.settle();
    world.now_ms += 3_600_000;
    world.settle();
    assert_eq!(world.log, ["a to n", "b to n"]);
}

#[test]
fn what_is_left_of_a_gang_is_evicted_after_a_while() {
    let mut world = World::new();
    world.node("n", 2);
    world.pod("a", 100, of_gang("g", 2));
    world.pod("b", 100, of_gang("g", 2));
    world.settle();
    world.delete("a");
    world.settle();
    assert_eq!(world.names_of_bound(), ["b"]);
    world.now_ms += 60_000;
    world.settle();
    assert!(world.bound().is_empty());
    assert!(world.why_waiting("b").contains("1 member"), "{}", world.why_waiting("b"));
}

#[test]
fn a_failed_member_is_replaced_beside_those_that_succeeded() {
    let mut world = World::new();
    world.node("n", 2);
    world.pod("a", 100, of_gang("g", 2));
    world.pod("b", 100, of_gang("g", 2));
    world.settle();
    for (name, phase) in [("a", "Succeeded"), ("b", "Failed")] {
        world.pods.get_mut(name).unwrap()["status"] = json!({"phase": phase});
        world.show(name);
        world.settle();
    }
    world.pod("b2", 100, of_gang("g", 2));
    world.settle();
    assert_eq!(world.log, ["a to n", "b to n", "b2 to n"]);
    // A gang of that name that begins anew is whole again.
    for name in ["a", "b", "b2"] {
        world.delete(name);
    }
    world.settle();
    world.pod("c", 100, of_gang("g", 2));
    world.settle();
    assert!(world.bound().is_empty());
    world.pod("d", 100, of_gang("g", 2));
    world.settle();
    assert_eq!(world.names_of_bound(), ["c", "d"]);
}
