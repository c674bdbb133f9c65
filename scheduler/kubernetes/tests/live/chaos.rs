//! Random faults: answers that are lost, refused writes, broken watches, lost nodes, and replicas that die.
//!
//! ```sh
//! ALIQUOT_TEST_CHAOS=SEED,STEPS cargo test --release -p aliquot-kubernetes-scheduler --test live chaos -- --nocapture
//! ```

use std::collections::BTreeMap;
use std::sync::Mutex;
use std::thread::sleep;
use std::time::Duration;

use aliquot_test_api_server::{Fault, LEASES, NODES, PODS};
use fastrand::Rng;
use serde_json::{Value, json};

use crate::kit::{Cluster, Scheduler};

/// The seed and the number of steps without `ALIQUOT_TEST_CHAOS`.
const SEED_AND_STEPS: (u64, usize) = (1, 100);
const NODES_AND_DEVICES: [(&str, usize); 2] = [("n0", 2), ("n1", 2)];
const GANG: usize = 3;
/// Gangs at a time, at most. All of them find room when nothing else is there.
const GANGS: usize = 2;

struct World {
    cluster: Cluster,
    dice: Rng,
    /// Each with the name by which the lease knows it.
    replicas: Vec<(String, Scheduler)>,
    singles: Vec<String>,
    gangs: Vec<String>,
    made: usize,
    /// UIDs of pods that were seen bound, with their nodes.
    bound: BTreeMap<String, String>,
    /// How often each thing was done.
    done: BTreeMap<&'static str, usize>,
}

impl World {
    fn new(seed: u64) -> World {
        let mut cluster = Cluster::with_faults();
        for (node, devices) in NODES_AND_DEVICES {
            cluster.node(node, devices);
        }
        let replicas = vec![start_a_replica(&mut cluster), start_a_replica(&mut cluster)];
        let (singles, gangs, bound, done) = Default::default();
        World { cluster, dice: Rng::with_seed(seed), replicas, singles, gangs, made: 0, bound, done }
    }

    fn step(&mut self) {
        let what = match self.dice.usize(..100) {
            0..40 => self.make_a_pod(),
            40..50 => self.make_a_gang(),
            50..70 => self.delete_some(),
            70..80 => self.break_watches(),
            80..86 => self.kill_a_replica(),
            86..90 => self.lose_a_node(),
            _ => self.change_faults(),
        };
        *self.done.entry(what).or_default() += 1;
        sleep(Duration::from_millis(self.dice.usize(..60) as u64));
        self.check();
    }

    fn make_a_pod(&mut self) -> &'static str {
        self.made += 1;
        let (name, percent) = (format!("p{}", self.made), [10, 25, 50, 100][self.dice.usize(..4)]);
        self.cluster.pod(&name, percent, json!({}));
        self.singles.push(name);
        "a pod is made"
    }

    fn make_a_gang(&mut self) -> &'static str {
        if self.gangs.len() < GANGS {
            self.made += 1;
            let gang = format!("g{}", self.made);
            let annotations = json!({"aliquot.dev/gang": gang, "aliquot.dev/gang-size": GANG.to_string()});
            for member in members(&gang) {
                self.cluster.pod(&member, 50, json!({"metadata": {"annotations": annotations}}));
            }
            self.gangs.push(gang);
        }
        "a gang is made"
    }

    fn delete_some(&mut self) -> &'static str {
        if self.dice.usize(..5) == 0 {
            if !self.gangs.is_empty() {
                let gang = self.gangs.swap_remove(self.dice.usize(..self.gangs.len()));
                members(&gang).for_each(|member| self.delete(&member));
            }
            return "a gang is deleted";
        }
        if !self.singles.is_empty() {
            let single = self.singles.swap_remove(self.dice.usize(..self.singles.len()));
            self.delete(&single);
        }
        "a pod is deleted"
    }

    /// An eviction may have deleted it already.
    fn delete(&self, pod: &str) {
        _ = self.cluster.server().store().delete(&PODS, "default", pod, true);
    }

    fn break_watches(&mut self) -> &'static str {
        self.cluster.server().end_watches();
        if self.dice.usize(..2) == 0 {
            // What has changed since is not to be had any more: all is listed again.
            self.cluster.server().compact();
        }
        "watches break"
    }

    /// Waits until another one leads, if it led.
    fn kill_a_replica(&mut self) -> &'static str {
        let (name, replica) = self.replicas.swap_remove(self.dice.usize(..self.replicas.len()));
        replica.kill();
        self.replicas.push(start_a_replica(&mut self.cluster));
        self.cluster.server().set_fault(|_, _| Fault::None);
        let led = self.cluster.holder() == Some(name);
        if led {
            // The next leader need not wait until the lease of the dead one is over.
            let nobody = json!({"spec": {"holderIdentity": null}});
            self.cluster.objects.merge(&LEASES, "aliquot-system", "aliquot-scheduler", &nobody);
        }
        let alive: Vec<Option<String>> = self.replicas.iter().map(|(name, _)| Some(name.clone())).collect();
        self.cluster.wait_until("a living replica leads", |cluster| alive.contains(&cluster.holder()));
        if led { "the leader dies" } else { "a replica dies" }
    }

    /// Its pods are deleted, as Kubernetes does after a while, and it comes back.
    fn lose_a_node(&mut self) -> &'static str {
        let (node, devices) = NODES_AND_DEVICES[self.dice.usize(..NODES_AND_DEVICES.len())];
        self.cluster.objects.delete(&NODES, "", node);
        let there = self.cluster.bound().into_iter().filter(|(_, of)| of == node).map(|(pod, _)| pod);
        // A gang that has lost members would be evicted a minute later.
        for pod in there {
            match self.gangs.iter().position(|gang| members(gang).any(|member| member == pod)) {
                Some(gang) => members(&self.gangs.swap_remove(gang)).for_each(|member| self.delete(&member)),
                None => {
                    self.singles.retain(|single| *single != pod);
                    self.delete(&pod);
                }
            }
        }
        self.cluster.node(node, devices);
        "a node is lost"
    }

    fn change_faults(&mut self) -> &'static str {
        let (of_writes, of_reads) = ([0, 5, 20, 40][self.dice.usize(..4)], [0, 0, 5][self.dice.usize(..3)]);
        let dice = Mutex::new(self.dice.fork());
        self.cluster.server().set_fault(move |method, _| {
            let mut dice = dice.lock().unwrap();
            let percent = if method == "GET" { of_reads } else { of_writes };
            match dice.usize(..100) < percent {
                true if method != "GET" && dice.usize(..2) == 0 => Fault::AnswerLost,
                true => Fault::Refused,
                false => Fault::None,
            }
        });
        "faults change"
    }

    /// Checks that no device is given out more than once, and that no pod is bound again.
    fn check(&mut self) {
        let mut given_out: BTreeMap<String, u32> = BTreeMap::new();
        let pods = self.cluster.objects.list(&PODS);
        for pod in &pods {
            let Some(node) = pod["spec"]["nodeName"].as_str() else { continue };
            let uid = pod["metadata"]["uid"].as_str().unwrap().to_owned();
            assert_eq!(self.bound.entry(uid).or_insert_with(|| node.to_owned()), node);
            for (device, thousandths) in parts(pod) {
                *given_out.entry(device).or_default() += thousandths;
            }
        }
        assert!(given_out.values().all(|of| *of <= 1000), "{given_out:?} {:?} {}", self.done, json!(pods));
    }

    /// There are no faults any more, and there is room for all that remains.
    fn come_to_rest(mut self) {
        self.cluster.server().set_fault(|_, _| Fault::None);
        for single in std::mem::take(&mut self.singles) {
            self.delete(&single);
        }
        let of_gangs: Vec<String> = self.gangs.iter().flat_map(|gang| members(gang)).collect();
        // Exactly what is left.
        let devices: usize = NODES_AND_DEVICES.iter().map(|(_, devices)| devices).sum();
        let halves = 2 * devices - of_gangs.len();
        let fillers: Vec<String> = (0..halves).map(|number| format!("z{number}")).collect();
        fillers.iter().for_each(|name| self.cluster.pod(name, 50, json!({})));
        let mut expected: Vec<&str> = of_gangs.iter().chain(&fillers).map(String::as_str).collect();
        expected.sort_unstable();
        self.cluster.wait_until_bound(&expected);
        self.check();
        println!("pods that were bound: {}; {:?}", self.bound.len(), self.done);
        assert!(self.bound.len() > self.made / 8, "{:?}", self.done);
    }
}

fn start_a_replica(cluster: &mut Cluster) -> (String, Scheduler) {
    let replica = cluster.scheduler();
    (cluster.last_identity(), replica)
}

fn members(gang: &str) -> impl Iterator<Item = String> {
    (0..GANG).map(move |member| format!("{gang}-{member}"))
}

/// The parts of devices that a pod was bound with, in thousandths.
fn parts(pod: &Value) -> Vec<(String, u32)> {
    let decision = pod["metadata"]["annotations"]["aliquot.dev/devices"].as_str().expect("a bound pod has a decision");
    let parts = decision.strip_prefix("main=").unwrap().split(',').map(|part| part.split('/').collect::<Vec<_>>());
    parts.map(|part| (part[0].to_owned(), part[1].parse().unwrap())).collect()
}

#[test]
fn random_faults_overcommit_no_device_and_leave_nothing_behind() {
    let (seed, steps) = match std::env::var("ALIQUOT_TEST_CHAOS") {
        Ok(text) => {
            let (seed, steps) = text.split_once(',').expect("ALIQUOT_TEST_CHAOS is SEED,STEPS");
            (seed.parse().unwrap(), steps.parse().unwrap())
        }
        Err(_) => SEED_AND_STEPS,
    };
    let mut world = World::new(seed);
    (0..steps).for_each(|_| world.step());
    world.come_to_rest();
}
