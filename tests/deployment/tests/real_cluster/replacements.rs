//! Managers that are killed and replaced while pods arrive.

use std::time::Instant;

use aliquot_harness::{MIB, wait};
use serde_json::Value;

use super::manager::Mode;
use super::objects::{label, takes_exactly};
use super::{PATIENCE, Tests};

/// How often managers are killed and replaced, unless `ALIQUOT_TEST_ROUNDS` says otherwise.
const ROUNDS: usize = 2;

/// The pods that arrive while a node has no manager.
const BURST: usize = 10;

/// The most pods that may be unfinished while managers are replaced. A node that is full of pods has no room for its
/// new manager.
const MOST_UNFINISHED: usize = 40;

/// Pods that arrive one after the other. With units, a pod is bound to its node already: if the units are gone when
/// kubelet admits the pod, it fails for good.
struct Arrivals<'t, 'a> {
    tests: &'t Tests<'a>,
    nodes: Vec<Value>,
    /// The number of pods that have run and are removed.
    past: usize,
    count: usize,
}

impl Tests<'_> {
    pub(crate) fn no_pod_fails_while_managers_are_killed_and_replaced(&self) {
        if self.gpu.is_none() {
            println!("not run: managers that are killed, because they run on other machines");
            return;
        }
        let rounds = std::env::var("ALIQUOT_TEST_ROUNDS").map_or(ROUNDS, |rounds| rounds.parse().expect("a number"));
        let nodes = self.cluster.list("nodes", None).into_iter().map(|mut node| node["metadata"]["name"].take());
        let mut arrivals = Arrivals { tests: self, nodes: nodes.collect(), past: 0, count: 0 };
        for _ in 0..rounds {
            self.manager.kill();
            arrivals.arrive(BURST);
            arrivals.have_run();
            self.manager.wait_until_available();
            self.manager.begin_restart();
            arrivals.arrive_until_restarted();
            arrivals.have_run();
        }
        println!("ok: {} pods arrived while managers were killed {rounds} times and replaced as often", arrivals.count);
        println!("    none failed, and each had its part");
    }
}

impl Arrivals<'_, '_> {
    fn arrive(&mut self, count: usize) {
        let numbers = self.count..self.count + count;
        self.tests.namespace.apply(&numbers.flat_map(|number| self.objects(number)).collect::<Vec<_>>());
        self.count += count;
    }

    /// Has a pod arrive at each look at the managers until all of them are replaced.
    fn arrive_until_restarted(&mut self) {
        let manager = self.tests.manager;
        let end = Instant::now() + PATIENCE;
        while !manager.is_restarted() {
            assert!(Instant::now() < end, "managers not replaced after {PATIENCE:?}: {}", manager.state());
            if self.unfinished() < MOST_UNFINISHED {
                self.arrive(1);
            }
        }
    }

    /// How many of the pods that have arrived have not ended.
    fn unfinished(&self) -> usize {
        let ended = |pod: &&Value| ["Succeeded", "Failed"].iter().any(|phase| pod["status"]["phase"] == *phase);
        let pods = self.tests.namespace.list("pods");
        pods.len() - pods.iter().filter(ended).count()
    }

    fn objects(&self, number: usize) -> Vec<Value> {
        let limit_bytes = self.tests.limit_mib(memory_mib(number)) * MIB;
        let mut objects = self.tests.asks(&name(number), &takes_exactly(limit_bytes), 1, memory_mib(number));
        label(&mut objects, &self.label());
        if self.tests.mode == Mode::Units {
            let pod = objects.last_mut().expect("the pod comes last");
            pod["spec"]["nodeName"] = self.nodes[number % self.nodes.len()].clone();
        }
        objects
    }

    /// The label of the pods that have arrived since the last ones were removed. Those may still end.
    fn label(&self) -> String {
        format!("aliquot-test-arrival-{}", self.past)
    }

    /// Waits until all pods that have arrived have succeeded with their requested parts, and begins to remove them.
    fn have_run(&mut self) {
        let label = self.label();
        let numbers = self.past..self.count;
        let namespace = self.tests.namespace;
        wait::until_true("all pods that arrived have run", || {
            let pods = namespace.list("pods");
            let of_arrivals = pods.iter().filter(|pod| pod["metadata"]["labels"][&label] == "true");
            let phases: Vec<&Value> = of_arrivals
                .inspect(|pod| assert_ne!(pod["status"]["phase"], "Failed", "{pod:#}"))
                .map(|pod| &pod["status"]["phase"])
                .collect();
            phases.len() == numbers.len() && phases.iter().all(|phase| *phase == "Succeeded")
        });
        let said = namespace.logs_of(&label, numbers.len());
        for number in numbers {
            let bytes = self.tests.limit_mib(memory_mib(number)) * MIB;
            let begins = format!("[pod/{}/main] ", name(number));
            let of_pod: Vec<&str> = said.lines().filter_map(|line| line.strip_prefix(&begins)).take(2).collect();
            assert_eq!(of_pod, [format!("free: {bytes}"), "one byte more than all: 2".into()], "{said}");
        }
        namespace.begin_to_delete_all("pod");
        if self.tests.mode == Mode::Claims {
            namespace.begin_to_delete_all("resourceclaim");
        }
        self.past = self.count;
    }
}

fn name(number: usize) -> String {
    format!("arrival-{number}")
}

/// The memory of a pod. With claims each pod asks for another amount, so that an exchange of any two is found.
fn memory_mib(number: usize) -> u64 {
    64 + number as u64 % 100
}
