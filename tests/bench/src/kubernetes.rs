//! Claims of pods: the time until a claim is prepared, the manager's cost, and whether each of 200 pods that start at
//! once gets its request. The pods' containers are only recorded, not run, so that nothing else is measured.

use aliquot_test_cluster::{Share, World, share};

use crate::manager_cost::rollup_mib;
use crate::statistics::{median, quantile};
use crate::table::{Table, yes_or_no};

const PODS: u64 = 200;
const DEVICES: usize = 4;

/// Measures pods that start one after the other, and all at once.
pub(crate) fn measure() {
    let mut table = Table::new(&[
        "200 pods with a claim each",
        "prepared, median ms",
        "p99 ms",
        "claims a second",
        "given back, median ms",
        "p99 ms",
        "wrong identity",
        "manager's RSS before, MiB",
        "with all pods, MiB",
        "right",
    ]);
    for (what, at_once) in [("one after the other", false), ("at once", true)] {
        let world = World::on_paper("dra", DEVICES);
        world.wait_for_driver(DEVICES);
        let manager = world.node.manager_id();
        let before = rollup_mib(manager, "Rss:");
        let wrong = run(&world, at_once);
        let with_all = rollup_mib(manager, "Rss:");
        world.delete_everything();
        world.wait_until_empty();
        let kubelet = world.cluster.kubelet();
        let ms = |method| -> Vec<f64> {
            kubelet.calls(method).iter().map(|call| (call.ended - call.began).as_secs_f64() * 1e3).collect()
        };
        let (prepared, given_back) = (ms("NodePrepareResources"), ms("NodeUnprepareResources"));
        let prepares = kubelet.calls("NodePrepareResources");
        let began = prepares.iter().map(|call| call.began).min();
        let ended = prepares.iter().map(|call| call.ended).max();
        let per_second = match began.zip(ended).filter(|_| at_once) {
            Some((began, ended)) => format!("{:.0}", prepares.len() as f64 / (ended - began).as_secs_f64()),
            // Each pod waits for the pod before it.
            None => "–".to_owned(),
        };
        table.row(&[
            what.to_owned(),
            format!("{:.2}", median(prepared.clone())),
            format!("{:.2}", quantile(prepared, 0.99)),
            per_second,
            format!("{:.2}", median(given_back.clone())),
            format!("{:.2}", quantile(given_back, 0.99)),
            wrong.to_string(),
            format!("{before:.1}"),
            format!("{with_all:.1}"),
            yes_or_no(wrong == 0),
        ]);
    }
}

/// Starts the pods, all with different requests. Returns the number of pods that got something other than they asked
/// for.
fn run(world: &World, at_once: bool) -> usize {
    let pods: Vec<(String, Share)> =
        (0..PODS).map(|index| (format!("pod-{index}"), share(1 + (index % 2) as u32, 16 + index))).collect();
    for (name, share) in &pods {
        world.claim(name, *share);
    }
    for (name, _) in &pods {
        world.pod(name, &[name], &[]);
        if !at_once {
            world.cluster.wait_for_phase(name, "Running");
        }
    }
    world.wrong_identities(&pods).len()
}
