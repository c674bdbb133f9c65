//! The offers of GPUs in MIG mode.

use aliquot_node::Node;

use super::*;
use crate::device_plugin::test_node::{TestNode, device, partitionable};

fn view(node: &TestNode, own: &[Partition]) -> View {
    View { devices: node.devices().borrow().clone(), own: own.iter().cloned().collect() }
}

fn partition(profile: &str, start: u32, size: u32) -> Partition {
    Partition { gpu_uuid: device(0, 40).uuid, profile: profile.into(), placement: Placement { start, size } }
}

fn offered(view: &View) -> Vec<String> {
    view.offers().iter().map(|offer| format!("{} {}", offer.profile.name, offer.placement)).collect()
}

#[test]
fn every_profile_is_offered_at_each_of_its_places() {
    let node = TestNode::new(vec![partitionable(0), device(1, 80)]);
    let view = view(&node, &[]);
    let expected =
        ["1g.10gb 0:1", "1g.10gb 1:1", "1g.10gb 2:1", "1g.10gb 3:1", "2g.20gb 0:2", "2g.20gb 2:2", "4g.40gb 0:4"];
    assert_eq!(offered(&view), expected);
    for offer in view.offers() {
        let name = offer.name().unwrap();
        let found = partition_of(&view.devices, &name).unwrap();
        assert_eq!(found.partition(), offer.partition(), "{name}");
    }
    assert!(partition_of(&view.devices, "gpu-00000000-0000-0000-0000-000000000000-1g-10gb-4").is_none());
    let shared: Vec<u32> = view.shared().map(|device| device.index).collect();
    assert_eq!(shared, [1]);
}

#[test]
fn what_an_administrator_made_is_a_device_and_its_place_is_not_offered() {
    let node = TestNode::new(vec![partitionable(0)]);
    node.create_instance(&partition("1g.10gb", 1, 1)).unwrap();
    let view = view(&node, &[]);
    assert_eq!(offered(&view), ["1g.10gb 0:1", "1g.10gb 2:1", "1g.10gb 3:1", "2g.20gb 2:2"]);
    assert_eq!(view.shared().count(), 1);
}

#[test]
fn what_was_made_for_a_claim_stays_offered_and_is_no_device_to_share() {
    let node = TestNode::new(vec![partitionable(0)]);
    let own = partition("2g.20gb", 2, 2);
    node.create_instance(&own).unwrap();
    let view = view(&node, &[own]);
    assert_eq!(view.offers().len(), 7);
    assert_eq!(view.shared().count(), 0);
}

#[test]
fn counters_of_places_that_overlap_exclude_each_other_and_those_of_others_do_not() {
    let node = TestNode::new(vec![partitionable(0)]);
    let view = view(&node, &[]);
    let offers = view.offers();
    let sets = counter_sets(&offers);
    let [set] = sets.as_slice() else { panic!("{sets:?}") };
    assert_eq!(set.counters.len(), 5);
    let amount = |counters: &BTreeMap<String, Counter>, name: &str| {
        counters.get(name).map_or(0, |counter| counter.value.0.parse::<u32>().unwrap())
    };
    for one in &offers {
        for other in &offers {
            let (first, second) = (one.consumption().unwrap(), other.consumption().unwrap());
            assert_eq!(first.counter_set, set.name);
            let fits = set.counters.keys().all(|name| {
                amount(&first.counters, name) + amount(&second.counters, name) <= amount(&set.counters, name)
            });
            assert_eq!(fits, !one.placement.overlaps(other.placement), "{one:?} {other:?}");
        }
    }
}

#[test]
fn names_of_profiles_that_differ_in_a_sign_differ() {
    let gpu = partitionable(0);
    let profile =
        |name: &str| MigProfile { name: name.into(), ..gpu.partitioning.as_ref().unwrap().profiles[0].clone() };
    let name =
        |profile: &MigProfile| Offer { gpu: &gpu, profile, placement: Placement { start: 6, size: 1 } }.name().unwrap();
    let names = ["1g.24gb", "1g.24gb+me", "1g.24gb-me", "1g.24gb+me.all"].map(|text| name(&profile(text)));
    let gpu_name = device_name(&gpu.uuid).unwrap();
    let expected = ["1g-24gb-6", "1g-24gb-with-me-6", "1g-24gb-without-me-6", "1g-24gb-with-me-all-6"];
    assert_eq!(names, expected.map(|end| format!("{gpu_name}-{end}")));
}
