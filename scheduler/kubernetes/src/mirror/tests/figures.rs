//! How many pods are scheduled in a second, and how long one takes, without what the API server takes.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use aliquot_scheduler_core::placement::{ExpectedWaste, Mix, Weights};
use serde_json::json;

use super::World;

/// Nodes, and pods that come at once.
const SIZES: [(usize, usize); 3] = [(100, 1000), (1000, 5000), (5000, 5000)];
/// Pods that come one by one after that.
const ONE_BY_ONE: usize = 1000;

#[test]
#[ignore = "a benchmark: cargo test --release -p aliquot-kubernetes-scheduler --lib figures -- --ignored --nocapture"]
fn pods_in_a_second() {
    for (nodes, pods) in SIZES {
        let mut world = World::with(Box::new(ExpectedWaste::new(&Mix::of([]), Weights::default())));
        for node in 0..nodes {
            world.node(&format!("n{node}"), 8);
        }
        world.reconcile();
        let mut came = BTreeMap::new();
        let mut waits = Vec::new();
        let began = Instant::now();
        for pod in 0..pods {
            come(&mut world, pod, &mut came);
        }
        while world.log.len() < pods {
            bind_all(&mut world, &came, &mut waits);
        }
        let in_a_second = pods as f64 / began.elapsed().as_secs_f64();
        let (median, p99) = median_and_p99(&mut waits);
        println!(
            "{nodes} nodes, {pods} pods at once: {in_a_second:.0} pods a second, {median:.1?} (median), {p99:.1?} (p99)"
        );
        // There is room for some more only where others have left.
        (0..pods).for_each(|pod| world.delete(&format!("p{pod}")));
        world.reconcile();
        world.log.clear();
        waits.clear();
        for pod in pods..pods + ONE_BY_ONE.min(pods) {
            come(&mut world, pod, &mut came);
            let before = world.log.len();
            while world.log.len() == before {
                bind_all(&mut world, &came, &mut waits);
            }
        }
        let (median, p99) = median_and_p99(&mut waits);
        println!("{nodes} nodes, one by one, from seen to bound: {median:.1?} (median), {p99:.1?} (p99)");
    }
}

/// A pod comes, and is seen.
fn come(world: &mut World, pod: usize, came: &mut BTreeMap<String, Instant>) {
    let (name, percent) = (format!("p{pod}"), [10, 25, 50, 100][pod % 4]);
    came.insert(name.clone(), Instant::now());
    world.pod(&name, percent, json!({}));
    world.hear();
}

/// The engine decides, and what it has decided is done.
fn bind_all(world: &mut World, came: &BTreeMap<String, Instant>, waits: &mut Vec<Duration>) {
    world.now_ms += 50;
    world.hear();
    world.poll();
    for write in std::mem::take(&mut world.writes) {
        let before = world.log.len();
        world.carry_out(write);
        let bound = world.log[before..].iter().filter_map(|line| Some(came[line.split_once(" to ")?.0].elapsed()));
        waits.extend(bound);
        world.hear();
    }
}

fn median_and_p99(waits: &mut [Duration]) -> (Duration, Duration) {
    waits.sort_unstable();
    (waits[waits.len() / 2], waits[waits.len() * 99 / 100])
}
