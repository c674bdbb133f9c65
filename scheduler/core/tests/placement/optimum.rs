//! How near the default policy comes to the optimum, on instances that are small enough to compute it.
//!
//! The optimum knows in advance which claims will come; the policy decides about each claim when it comes. Neither
//! refuses a claim that fits. If that were allowed, more would be possible, but no scheduler may do so.

use std::collections::BTreeMap;

use aliquot_scheduler_core::placement::{Binpack, Engine, ExpectedWaste, Mix, Policy, Weights};
use aliquot_scheduler_core::{Cluster, NodeId, NodeSpec, Request};
use aliquot_scheduler_kit::Build;
use proptest::collection::vec;
use proptest::prelude::*;
use proptest::strategy::ValueTree;
use proptest::test_runner::TestRunner;

use crate::cases::{node, place, request};
use crate::packings::Books;

/// Nodes, and claims in the order in which they come.
type Instance = (Vec<NodeSpec>, Vec<Request>);

/// The sums over a number of instances.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
struct Tally {
    instances: u64,
    /// The number of instances in which as much was placed as is possible.
    optimal: u64,
    /// Device time over all instances, in thousandths of a device.
    placed: u64,
    possible: u64,
    /// The possible device time if claims that fit could be refused.
    possible_refusing: u64,
}

impl Tally {
    fn optimal_per_mille(&self) -> u64 {
        1000 * self.optimal / self.instances
    }

    fn placed_per_mille(&self) -> u64 {
        1000 * self.placed / self.possible
    }
}

/// Plays one instance after another, and checks each decision against separate books.
fn play(instances: &[Instance], policy: impl Fn(&Mix) -> Box<dyn Policy>) -> Tally {
    let mut tally = Tally::default();
    for (nodes, requests) in instances {
        let mut cluster = Cluster::new();
        let ids: Vec<NodeId> = nodes.iter().map(|node| cluster.add_node(node.clone())).collect();
        let mut engine = Engine::new(policy(&Mix::of(requests)));
        let empty = Books::of(nodes);
        let mut books = empty.clone();
        let mut placed = 0;
        for request in requests {
            match place(&mut cluster, &mut engine, request) {
                Some(allocation) => {
                    let node = ids.iter().position(|id| *id == allocation.node).expect("one of the nodes");
                    let devices = allocation.devices.iter().map(|part| usize::from(part.device)).collect();
                    books = books.take(request, &(node, devices)).expect("nothing is placed where it does not fit");
                    placed += request.devices.total_core();
                }
                None => {
                    assert!(books.placements(request).is_empty(), "a claim that fits is refused: {request:?}");
                }
            }
        }
        let possible = empty.most_device_core(requests, false);
        assert!(placed <= possible);
        tally.instances += 1;
        tally.optimal += u64::from(placed == possible);
        tally.placed += placed;
        tally.possible += possible;
        tally.possible_refusing += empty.most_device_core(requests, true);
    }
    tally
}

fn default_policy(mix: &Mix) -> Box<dyn Policy> {
    Box::new(ExpectedWaste::new(mix, Weights::default()))
}

/// This many instances, always the same ones.
fn instances(number: usize, strategy: impl Strategy<Value = Instance>) -> Vec<Instance> {
    let mut runner = TestRunner::deterministic();
    (0..number).map(|_| strategy.new_tree(&mut runner).expect("a strategy without filters").current()).collect()
}

fn nodes(devices: Vec<(u64, usize)>) -> Vec<NodeSpec> {
    let numbered = devices.into_iter().enumerate();
    numbered.map(|(number, (cpu, devices))| node(&format!("n{number}"), cpu, devices, "A")).collect()
}

#[test]
fn what_is_only_counted_is_a_bound_like_any_other() {
    let task = (1u64..4, 0u16..2, 0u64..3).prop_map(|(cpu, devices, pods)| Request {
        counted: BTreeMap::from([("pods".to_owned(), pods)]),
        ..request(cpu, devices, 300, 0, &[])
    });
    let nodes = vec((24u64..25, 1usize..3), 1..4).prop_map(|devices| {
        let with_pods = |(number, node)| NodeSpec { counted: BTreeMap::from([("pods".to_owned(), number)]), ..node };
        (1..).zip(nodes(devices)).map(with_pods).collect()
    });
    // Each decision is compared with separate books.
    let tally = play(&instances(200, (nodes, vec(task, 3..7))), default_policy);
    assert!(tally.placed < tally.possible_refusing, "pods have run out: {tally:?}");
}

#[test]
fn on_three_small_nodes_the_default_policy_places_nearly_what_is_possible() {
    let task = prop_oneof![
        3 => (1u64..8, 15u32..90, 0u64..12_000).prop_map(|(cpu, part, mib)| request(cpu, 1, part * 10, mib, &[])),
        2 => (1u64..12).prop_map(|cpu| request(cpu, 1, 1000, 16_000, &[])),
        1 => (4u64..24).prop_map(|cpu| request(cpu, 2, 1000, 16_000, &[])),
        1 => (1u64..16).prop_map(|cpu| request(cpu, 0, 0, 0, &[])),
    ];
    let strategy = (vec((16u64..48, 1usize..3), 1..4).prop_map(nodes), vec(task, 3..7));
    let tally = play(&instances(500, strategy), default_policy);
    // Measured: 996 of 1000, of the instances and of the possible device time; 921 of 1000 of what could be placed by
    // refusing claims that fit.
    assert!(tally.optimal_per_mille() >= 950, "{tally:?}");
    assert!(tally.placed_per_mille() >= 980, "{tally:?}");
    assert!(tally.placed * 100 >= tally.possible_refusing * 88, "{tally:?}");
}

#[test]
fn parts_of_several_devices_are_placed_nearly_as_well_as_is_possible() {
    let task = prop_oneof![
        (2u16..4, 20u32..70).prop_map(|(count, part)| request(1, count, part * 10, 0, &[])),
        (2u16..4).prop_map(|count| request(1, count, 500, 0, &[])),
        (20u32..90).prop_map(|part| request(1, 1, part * 10, 0, &[])),
    ];
    let strategy = (vec((96u64..97, 2usize..6), 1..2).prop_map(nodes), vec(task, 4..8));
    let instances = instances(500, strategy);
    let tally = play(&instances, default_policy);
    let tightest = play(&instances, |_| Box::new(Binpack));
    // Measured: 872 and 967 of 1000; with the tightest devices 834 and 953.
    assert!(tally.optimal_per_mille() >= 820, "{tally:?}");
    assert!(tally.placed_per_mille() >= 950, "{tally:?}");
    assert!(tally.optimal > tightest.optimal, "{tally:?} and the tightest devices {tightest:?}");
}

#[test]
fn parts_of_memory_are_placed_nearly_as_well_as_is_possible() {
    let sizes = [3_000, 5_000, 6_000, 7_000, 9_000, 10_000, 11_000, 13_000];
    let task = (0..sizes.len()).prop_map(move |index| request(1, 1, 50, sizes[index], &[]));
    let strategy = (vec((96u64..97, 1usize..3), 2..4).prop_map(nodes), vec(task, 6..10));
    let instances = instances(500, strategy);
    let tally = play(&instances, default_policy);
    let tightest = play(&instances, |_| Box::new(Binpack));
    // Measured: 898 and 983 of 1000; with the tightest devices 844 and 975.
    assert!(tally.optimal_per_mille() >= 860, "{tally:?}");
    assert!(tally.placed_per_mille() >= 970, "{tally:?}");
    assert!(tally.optimal > tightest.optimal, "{tally:?} and the tightest devices {tightest:?}");
}
