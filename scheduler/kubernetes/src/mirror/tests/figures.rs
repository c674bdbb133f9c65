//! How many pods are scheduled in a second, without what the API server takes.

use std::time::Instant;

use aliquot_scheduler_core::placement::{ExpectedWaste, Mix, Weights};
use serde_json::json;

use super::World;

/// Nodes, and pods that come at once.
const SIZES: [(usize, usize); 3] = [(100, 1000), (1000, 5000), (5000, 5000)];

#[test]
#[ignore = "a benchmark: cargo test --release -p aliquot-kubernetes-scheduler --lib figures -- --ignored --nocapture"]
fn pods_in_a_second() {
    for (nodes, pods) in SIZES {
        let mut world = World::with(Box::new(ExpectedWaste::new(&Mix::of([]), Weights::default())));
        for node in 0..nodes {
            world.node(&format!("n{node}"), 8);
        }
        world.reconcile();
        let began = Instant::now();
        for pod in 0..pods {
            let percent = [10, 25, 50, 100][pod % 4];
            world.pod(&format!("p{pod}"), percent, json!({}));
            world.hear();
        }
        while world.log.len() < pods {
            world.now_ms += 50;
            world.hear();
            world.poll();
            for write in std::mem::take(&mut world.writes) {
                world.carry_out(write);
                world.hear();
            }
        }
        let in_a_second = pods as f64 / began.elapsed().as_secs_f64();
        println!("{nodes} nodes, {pods} pods: {in_a_second:.0} pods a second");
    }
}
