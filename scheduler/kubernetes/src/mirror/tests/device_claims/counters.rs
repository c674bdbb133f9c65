//! Devices of other drivers that share counters, as the partitions of a GPU do.

use std::collections::BTreeMap;

use serde_json::{Value, json};

use super::super::World;
use super::super::random::Dice;
use super::NIC;

/// A partition that takes so many slots.
fn partition(name: &str, slots: u64, more: Value) -> Value {
    let counters = json!([{"counterSet": "gpu", "counters": {"slots": {"value": slots.to_string()}}}]);
    let mut device = json!({"name": name, "consumesCounters": counters, "attributes": {"slots": {"int": slots}}});
    json_patch::merge(&mut device, &more);
    device
}

/// A request for a partition of so many slots.
fn of_slots(slots: u64) -> Value {
    let expression = format!("device.attributes[{NIC:?}].slots == {slots}");
    json!({"selectors": [{"cel": {"expression": expression}}]})
}

impl World {
    /// A pool whose devices share so many slots.
    fn pool_of_partitions(&mut self, place: Value, slots: u64, partitions: Value) {
        let mut spec =
            json!({"sharedCounters": [{"name": "gpu", "counters": {"slots": {"value": slots.to_string()}}}]});
        json_patch::merge(&mut spec, &place);
        self.pool_of_nics("gpu-nics", spec, partitions);
    }
}

/// A GPU of 7 slots, offered as two partitions of 4 and seven of 1.
fn with_partitions() -> World {
    let mut world = World::new();
    world.node("n", 0);
    let large = (0..2).map(|number| partition(&format!("large-{number}"), 4, json!({})));
    let small = (0..7).map(|number| partition(&format!("small-{number}"), 1, json!({})));
    world.pool_of_partitions(json!({"nodeName": "n"}), 7, large.chain(small).collect());
    world
}

#[test]
fn partitions_are_given_out_while_slots_are_left() {
    let mut world = with_partitions();
    for name in ["a", "b"] {
        world.pod_with_nic(name, of_slots(4));
    }
    world.reconcile();
    let [bound] = world.names_of_bound().try_into().expect("one of them is bound");
    let bound = bound.to_owned();
    // Three slots are left.
    for number in 0..4 {
        world.pod_with_nic(&format!("small-{number}"), of_slots(1));
    }
    world.reconcile();
    assert_eq!(world.bound().len(), 4, "{:?}", world.log);
    let waiting = if bound == "a" { "b" } else { "a" };
    assert!(world.why_waiting(waiting).contains(NIC), "{}", world.why_waiting(waiting));
    // The next leader knows what is left.
    world.change_leader();
    world.reconcile();
    assert_eq!(world.bound().len(), 4);
    world.delete(&bound);
    world.collect_claims();
    world.reconcile();
    assert_eq!(world.bound().len(), 4 - 1 + 1, "4 slots are free again: {:?}", world.log);
    assert!(world.mirror.knows_right_places());
}

#[test]
fn what_others_were_given_counts() {
    let mut world = with_partitions();
    world.claim("theirs", 1, None, json!({}));
    let given = |device: &str| {
        let result = json!({"request": "gpu", "driver": NIC, "pool": "gpu-nics", "device": device});
        json!({"devices": {"results": [result]}})
    };
    world.change_claim("theirs", |claim| claim["status"]["allocation"] = given("large-1"));
    world.pod_with_nic("a", of_slots(4));
    world.reconcile();
    assert!(world.bound().is_empty());
    world.change_claim("theirs", |claim| claim["status"] = json!({}));
    world.reconcile();
    assert_eq!(world.names_of_bound(), ["a"]);
    assert!(world.mirror.has_too_much("default", "a").is_none());
    // Another scheduler gives out a partition at the same moment.
    world.change_claim("theirs", |claim| claim["status"]["allocation"] = given("large-1"));
    world.hear();
    let why = world.mirror.has_too_much("default", "a").expect("8 of 7 slots are given out");
    assert!(why.contains("slots") && why.contains("gpu-nics"), "{why}");
}

/// As a GPU that is divided by MIG or shared by vGPU, and not both at the same time.
#[test]
fn partitions_given_out_together_have_a_group_in_common() {
    let of_groups = |name: &str, slots: u64, groups: &[&str]| {
        let counters = json!({"slots": {"value": "1"}});
        let counters = json!([{"counterSet": "gpu", "counters": counters, "compatibilityGroups": groups}]);
        partition(name, slots, json!({"consumesCounters": counters}))
    };
    let mut world = World::new();
    world.node("n", 0);
    let (mig, both) = ((0..2).map(|of| of_groups(&format!("mig-{of}"), 1, &["mig"])), ["mig", "vgpu"]);
    let others = [of_groups("vgpu", 2, &["vgpu"]), of_groups("both", 3, &both), of_groups("none", 4, &[])];
    world.pool_of_partitions(json!({"nodeName": "n"}), 7, mig.chain(others).collect());
    for (name, slots) in [("mig-a", 1), ("vgpu", 2), ("mig-b", 1), ("none", 4), ("both", 3)] {
        world.pod_with_nic(name, of_slots(slots));
        world.reconcile();
    }
    assert_eq!(world.names_of_bound(), ["both", "mig-a", "mig-b"]);
    world.change_leader();
    world.reconcile();
    assert_eq!(world.bound().len(), 3, "{:?}", world.log);
    for (gone, left) in
        [("mig-a", &["both", "mig-b"][..]), ("mig-b", &["both", "vgpu"]), ("both", &["vgpu"]), ("vgpu", &["none"])]
    {
        world.delete(gone);
        world.collect_claims();
        world.reconcile();
        assert_eq!(world.names_of_bound(), left, "{gone}: {:?}", world.log);
    }
    assert!(world.mirror.knows_right_places());
}

#[test]
fn counters_that_several_nodes_share_are_counted_once() {
    let mut world = World::new();
    for node in ["n", "m"] {
        world.node(node, 0);
    }
    let on = |name: &str, node: &str| partition(name, 2, json!({"nodeName": node}));
    let partitions = json!([on("n-0", "n"), on("n-1", "n"), on("m-0", "m"), on("m-1", "m")]);
    world.pool_of_partitions(json!({"perDeviceNodeSelection": true}), 5, partitions);
    for name in ["a", "b", "c", "d"] {
        world.pod_with_nic(name, json!({}));
    }
    world.reconcile();
    assert_eq!(world.bound().len(), 2, "{:?}", world.log);
    assert!(world.mirror.knows_right_places());
}

#[test]
fn a_counter_below_what_is_allocated_holds_back_only_its_takers() {
    let mut world = World::new();
    world.node("n", 0);
    let of_other_set = json!([{"counterSet": "other", "counters": {"slots": {"value": "3"}}}]);
    let other = partition("other", 3, json!({"consumesCounters": of_other_set}));
    let partitions = json!([partition("large", 4, json!({})), partition("small", 1, json!({})), other]);
    let pool = |world: &mut World, slots: &str| {
        let set = |name: &str, slots: &str| json!({"name": name, "counters": {"slots": {"value": slots}}});
        let spec = json!({"nodeName": "n", "sharedCounters": [set("gpu", slots), set("other", "3")]});
        world.pool_of_nics("gpu-nics", spec, partitions.clone());
    };
    pool(&mut world, "5");
    world.pod_with_nic("large", of_slots(4));
    world.reconcile();
    // The driver has lost two of the slots, and one of them is in use.
    pool(&mut world, "3");
    for (name, slots) in [("small", 1), ("other", 3)] {
        world.pod_with_nic(name, of_slots(slots));
        world.reconcile();
    }
    assert_eq!(world.names_of_bound(), ["large", "other"]);
    world.delete("large");
    world.collect_claims();
    world.reconcile();
    assert_eq!(world.names_of_bound(), ["other", "small"]);
    assert!(world.mirror.knows_right_places());
}

#[test]
fn a_pool_with_wrong_counters_is_not_given_out() {
    let mut world = World::new();
    world.node("n", 0);
    let of_other_set = json!([{"counterSet": "other", "counters": {"slots": {"value": "1"}}}]);
    let wrong = partition("wrong", 1, json!({"consumesCounters": of_other_set}));
    world.pool_of_partitions(json!({"nodeName": "n"}), 7, json!([partition("right", 1, json!({})), wrong]));
    world.pod_with_nic("a", json!({}));
    world.reconcile();
    assert!(world.bound().is_empty());
    world.pool_of_partitions(json!({"nodeName": "n"}), 7, json!([partition("right", 1, json!({}))]));
    world.reconcile();
    assert_eq!(world.names_of_bound(), ["a"]);
}

/// Whatever comes and goes, the slots of no pool are given out twice, and a partition is given out whenever it can be.
#[test]
fn random_partitions_never_take_more_than_there_is() {
    for seed in 1..30_u64 {
        let mut dice = Dice::of(seed);
        let mut world = World::new();
        world.node("n", 0);
        let sizes: BTreeMap<String, u64> = (0..6).map(|number| (format!("p{number}"), 1 + dice.below(4))).collect();
        let partitions = sizes.iter().map(|(name, slots)| partition(name, *slots, json!({}))).collect();
        let slots = 4 + dice.below(5);
        world.pool_of_partitions(json!({"nodeName": "n"}), slots, partitions);
        for step in 0..30 {
            world.step_at_random(&mut dice, step, |dice| of_slots(1 + dice.below(4)));
            assert!(world.mirror.knows_right_places(), "seed {seed}, step {step}");
            let given: Vec<String> = world.cards_given_out();
            let given: Vec<&str> = given.iter().filter_map(|card| card.rsplit('/').next()).collect();
            let taken: u64 = given.iter().map(|name| sizes[*name]).sum();
            assert!(taken <= slots, "seed {seed}, step {step}: {taken} of {slots} slots");
            // A pod that waits asks for a size of which no partition is free, or for which no slots are left.
            for name in world.pods.keys().filter(|name| !world.bound().contains_key(name.as_str())) {
                let request = &world.claims[name]["spec"]["devices"]["requests"][0]["exactly"];
                let fits = |(partition, size): (&String, &u64)| {
                    let selector = request["selectors"] == of_slots(*size)["selectors"];
                    selector && !given.contains(&partition.as_str()) && taken + size <= slots
                };
                assert!(!sizes.iter().any(fits), "seed {seed}, step {step}: {name} waits, {given:?} of {sizes:?}");
            }
        }
    }
}
