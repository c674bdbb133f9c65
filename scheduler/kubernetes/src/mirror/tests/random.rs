//! Random clusters, users, faults and leaders.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::json;

use super::chosen::KUBE;
use super::{DEVICE_BYTES, World, Write};
use crate::gang::GangKind;

/// Marsaglia's xorshift: <https://www.jstatsoft.org/article/view/v008i14>.
pub(super) struct Dice(u64);

impl Dice {
    pub(super) fn of(seed: u64) -> Dice {
        // The state must not be 0.
        Dice(seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1)
    }

    pub(super) fn below(&mut self, end: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % end
    }
}

/// Worlds that are played, and steps of each.
const WORLDS: u64 = 100;
const STEPS: usize = 60;

#[test]
fn no_device_is_overcommitted_and_no_gang_half_bound() {
    for seed in 1..=WORLDS {
        let world = play(seed, false);
        // Whatever happened, what waits at the end is bound as far as there is room, and gangs are whole.
        let mut bound_of_gang: BTreeMap<String, usize> = BTreeMap::new();
        for (name, pod) in &world.pods {
            let annotated = pod["metadata"]["annotations"]["aliquot.dev/gang"].as_str();
            if let Some(gang) = annotated.or(pod["spec"]["schedulingGroup"]["podGroupName"].as_str()) {
                *bound_of_gang.entry(gang.into()).or_default() +=
                    usize::from(world.bound().contains_key(name.as_str()));
            }
        }
        assert!(
            bound_of_gang.values().all(|bound| [0, 3].contains(bound)),
            "seed {seed}: {bound_of_gang:?} {:#?}",
            world.log
        );
        let log = &world.log;
        assert!(log.iter().all(|line| !line.starts_with("error")), "seed {seed}: {log:#?}");
    }
}

#[test]
fn no_device_is_overcommitted_beside_kube_scheduler() {
    for seed in 1..=WORLDS {
        let mut world = play(seed, true);
        assert!(world.log.iter().all(|line| !line.starts_with("error")), "seed {seed}: {:#?}", world.log);
        // Each scheduler that asked gets an answer, or gives up. Then nothing is left of pods that were not bound.
        for uid in world.mirror.pod_uids() {
            world.mirror.give_up_choice(&uid);
        }
        world.reconcile();
        let is_unbound = |pod: &&serde_json::Value| pod["spec"]["nodeName"].is_null();
        let of_kube = |pod: &&serde_json::Value| pod["spec"]["schedulerName"] == KUBE;
        for pod in world.pods.values().filter(of_kube).filter(is_unbound) {
            let uid = pod["metadata"]["uid"].as_str().unwrap();
            assert!(world.view.as_ref().unwrap().claim(&uid.into()).is_none(), "seed {seed}: {pod} {:#?}", world.log);
        }
    }
}

/// Kube-scheduler asks that one of its pods be bound to any node.
fn choose(world: &mut World, dice: &mut Dice) {
    let waiting: Vec<String> = world
        .pods
        .iter()
        .filter(|(_, pod)| pod["spec"]["schedulerName"] == KUBE && pod["spec"]["nodeName"].is_null())
        .map(|(name, _)| name.clone())
        .collect();
    if !waiting.is_empty() {
        let name = &waiting[usize::try_from(dice.below(waiting.len() as u64)).unwrap()];
        let node = format!("n{}", dice.below(3));
        let choice = world.choose(name, &node);
        world.log.push(format!("{name} for {node}: {choice:?}"));
    }
}

/// `beside_kube`: half of the pods are kube-scheduler's.
fn play(seed: u64, beside_kube: bool) -> World {
    let mut dice = Dice::of(seed);
    let mut world = World::new();
    for node in 0..3 {
        world.node(&format!("n{node}"), 1 + usize::try_from(dice.below(2)).unwrap());
    }
    let mut made = 0;
    // PodGroups that come later than their pods.
    let mut groups: Vec<String> = Vec::new();
    for _ in 0..STEPS {
        made += 1;
        match dice.below(12) {
            0..=4 => {
                let percent = [20, 30, 50, 100][usize::try_from(dice.below(4)).unwrap()];
                let priority = [0, 50, 125][usize::try_from(dice.below(3)).unwrap()];
                let mut pod = json!({"spec": {"priority": priority}});
                if dice.below(3) == 0 {
                    json_patch::merge(&mut pod, &alone());
                }
                if beside_kube && dice.below(2) == 0 {
                    pod["spec"]["schedulerName"] = KUBE.into();
                }
                world.pod(&format!("p{made:02}"), percent, pod);
            }
            5 => {
                let gang = format!("g{made}");
                let more = if dice.below(2) == 0 {
                    let annotations = json!({"aliquot.dev/gang": gang, "aliquot.dev/gang-size": "3"});
                    json!({"metadata": {"annotations": annotations}, "spec": {"priority": 50}})
                } else {
                    groups.push(gang.clone());
                    json!({"spec": {"priority": 50, "schedulingGroup": {"podGroupName": gang}}})
                };
                for member in 0..3 {
                    world.pod(&format!("g{made:02}-{member}"), 50, more.clone());
                }
            }
            6 | 7 => {
                // A user deletes a pod, or all of a gang.
                let names: Vec<String> = world.pods.keys().cloned().collect();
                if !names.is_empty() {
                    let name = &names[usize::try_from(dice.below(names.len() as u64)).unwrap()];
                    let group = name.split('-').next().unwrap().to_owned();
                    for name in names.iter().filter(|name| name.split('-').next() == Some(&group)) {
                        world.log.push(format!("{name} deleted"));
                        world.delete(name);
                    }
                }
            }
            8 => {
                world.log.push("new leader".into());
                world.change_leader();
            }
            9 => {
                world.log.push("node n0 flaps".into());
                let node = world.nodes["n0"].clone();
                world.remove_node("n0");
                world.hear();
                world.make_node("n0", node);
            }
            10 => groups.drain(..).for_each(|gang| make_group(&mut world, &gang)),
            _ => {}
        }
        if beside_kube {
            (0..3).for_each(|_| choose(&mut world, &mut dice));
        }
        world.now_ms += dice.below(3000);
        world.hear();
        world.poll();
        // Writes come late, in another order, or are refused.
        for write in std::mem::take(&mut world.writes) {
            match (dice.below(10), write) {
                (0..=1, write) => world.writes.insert(0, write),
                (2, Write::Bind(binding)) => {
                    world.mirror.bound(&binding, Err("the API server is out of order".into()));
                }
                (_, write) => world.carry_out(write),
            }
            check(&world, seed);
        }
    }
    groups.iter().for_each(|gang| make_group(&mut world, gang));
    for _ in 0..20 {
        world.reconcile();
        world.now_ms += 60_000;
    }
    world.reconcile();
    check(&world, seed);
    world
}

fn make_group(world: &mut World, gang: &str) {
    world.gang(GangKind::Native, gang, json!({"schedulingPolicy": {"gang": {"minCount": 3}}}));
}

/// Merged into a pod: each node has at most one such pod.
fn alone() -> serde_json::Value {
    let term = json!({"topologyKey": "metadata.name", "labelSelector": {"matchLabels": {"app": "alone"}}});
    let affinity = json!({"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [term]}});
    json!({"metadata": {"labels": {"app": "alone"}}, "spec": {"affinity": affinity}})
}

fn check(world: &World, seed: u64) {
    let is_alone = |name: &&str| world.pods[*name]["metadata"]["labels"]["app"] == "alone";
    let bound = world.bound();
    let nodes: Vec<&str> = bound.iter().filter(|(name, _)| is_alone(name)).map(|(_, node)| *node).collect();
    let different: BTreeSet<&str> = nodes.iter().copied().collect();
    assert_eq!(different.len(), nodes.len(), "seed {seed}: {bound:?} {:#?}", world.log);
    for (device, (core, bytes)) in world.promised() {
        assert!(core <= 1000 && bytes <= DEVICE_BYTES, "seed {seed}: {device} {core} {bytes}: {:#?}", world.log);
    }
}
