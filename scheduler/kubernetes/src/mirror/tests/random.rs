//! Random clusters, users, faults and leaders.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use serde_json::{Value, json};

use super::chosen::KUBE;
use super::{Binding, DEVICE_BYTES, World, Write};
use crate::gang::GangKind;
use crate::queue::{QueueDefinition, QueueResource, QueueResources};

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

/// Steps of each world.
const STEPS: usize = 60;

/// The worlds that are played: a hundred, or as many as `ALIQUOT_WORLDS` says.
fn seeds() -> std::ops::RangeInclusive<u64> {
    let worlds = std::env::var("ALIQUOT_WORLDS").map_or(100, |text| text.parse().expect("ALIQUOT_WORLDS is a number"));
    1..=worlds
}

#[test]
fn no_device_is_overcommitted_and_no_gang_half_bound() {
    for seed in seeds() {
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
    for seed in seeds() {
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
    let mut game = Game::new(seed, beside_kube);
    (0..STEPS).for_each(|_| game.step());
    game.come_to_rest()
}

/// A world, and what happens to it.
struct Game {
    seed: u64,
    dice: Dice,
    world: World,
    beside_kube: bool,
    made: u64,
    nodes: u64,
    /// PodGroups that come later than their pods.
    groups: Vec<String>,
    /// Nodes that are gone for good, whose pods are still there.
    lost: Vec<String>,
    /// Bindings that the API server has carried out, without an answer so far.
    unanswered: Vec<Binding>,
}

impl Game {
    fn new(seed: u64, beside_kube: bool) -> Game {
        let (mut dice, mut world) = (Dice::of(seed), World::new());
        for node in 0..3 {
            world.node(&format!("n{node}"), 1 + usize::try_from(dice.below(2)).unwrap());
        }
        // In half of the worlds watches are late, in half of them pods take time to end, and in half there are queues.
        world.late = (dice.below(2) == 0).then(VecDeque::new);
        world.ending = (dice.below(2) == 0).then(BTreeSet::new);
        if dice.below(2) == 0 {
            for (name, quota) in [("q0", 1.0), ("q1", 2.0)] {
                let gpu = QueueResource { quota, ..QueueResource::default() };
                let resources = QueueResources { gpu: Some(gpu), ..QueueResources::default() };
                let queue = QueueDefinition { resources, ..QueueDefinition::default() };
                world.mirror.queue(name, &queue);
                world.queues.insert(name.into(), queue);
            }
        }
        let (groups, lost, unanswered) = (Vec::new(), Vec::new(), Vec::new());
        Game { seed, dice, world, beside_kube, made: 0, nodes: 3, groups, lost, unanswered }
    }

    fn one_of<T: Clone>(&mut self, all: &[T]) -> Option<T> {
        let end = u64::try_from(all.len()).unwrap();
        (end > 0).then(|| all[usize::try_from(self.dice.below(end)).unwrap()].clone())
    }

    fn step(&mut self) {
        self.made += 1;
        match self.dice.below(17) {
            0..=4 => self.make_pod(),
            5 => self.make_gang(),
            16 => self.make_job(),
            6 | 7 => self.delete(),
            8 => {
                self.world.log.push("new leader".into());
                self.unanswered.clear();
                self.world.change_leader();
            }
            9 => {
                self.world.log.push("node n0 flaps".into());
                if let Some(node) = self.world.nodes.get("n0").cloned() {
                    self.world.remove_node("n0");
                    self.world.hear();
                    self.world.make_node("n0", node);
                }
            }
            10 => self.groups.drain(..).for_each(|gang| make_group(&mut self.world, &gang)),
            11 => self.lose_a_node(),
            12 => self.resize(),
            13 => {
                let bound: Vec<String> = self.world.bound().into_keys().map(str::to_owned).collect();
                bound.iter().for_each(|name| self.world.runs(name, true));
            }
            14 => {
                let allowed = u32::try_from(self.dice.below(3)).unwrap();
                self.world.budget("guard", "guarded", allowed);
            }
            _ => {}
        }
        if self.beside_kube {
            (0..3).for_each(|_| choose(&mut self.world, &mut self.dice));
        }
        self.end_some();
        self.answer_some();
        let told = usize::try_from(self.dice.below(4)).unwrap();
        self.world.catch_up(told);
        // Now and then an hour passes.
        let longest_ms = if self.dice.below(20) == 0 { 3_600_000 } else { 3000 };
        self.world.now_ms += self.dice.below(longest_ms);
        self.world.hear();
        self.world.poll();
        self.write();
        self.world.resume();
    }

    fn make_pod(&mut self) {
        let percent = self.one_of(&[20, 30, 50, 100]).unwrap();
        let mut pod = json!({"spec": {"priority": self.one_of(&[0, 50, 125])}});
        if self.dice.below(3) == 0 {
            json_patch::merge(&mut pod, &alone());
        }
        if self.dice.below(6) == 0 {
            json_patch::merge(&mut pod, &json!({"metadata": {"labels": {"protected": "true"}}}));
        }
        if self.dice.below(4) == 0 {
            json_patch::merge(&mut pod, &json!({"metadata": {"labels": {"app": "guarded"}}}));
        }
        let queue = self.one_of(&["q0", "q1"]).unwrap();
        if self.world.queues.contains_key(queue) {
            json_patch::merge(&mut pod, &json!({"metadata": {"labels": {"aliquot.dev/queue": queue}}}));
        }
        if self.beside_kube && self.dice.below(2) == 0 {
            pod["spec"]["schedulerName"] = KUBE.into();
        }
        self.world.pod(&format!("p{:02}", self.made), percent, pod);
    }

    fn make_gang(&mut self) {
        let gang = format!("g{}", self.made);
        let more = if self.dice.below(2) == 0 {
            let annotations = json!({"aliquot.dev/gang": gang, "aliquot.dev/gang-size": "3"});
            json!({"metadata": {"annotations": annotations}, "spec": {"priority": 50}})
        } else {
            self.groups.push(gang.clone());
            json!({"spec": {"priority": 50, "schedulingGroup": {"podGroupName": gang}}})
        };
        for member in 0..3 {
            self.world.pod(&format!("g{:02}-{member}", self.made), 50, more.clone());
        }
    }

    /// A gang of a Job, which can be suspended.
    fn make_job(&mut self) {
        let gang = format!("j{:02}", self.made);
        let owner = json!({"apiVersion": "batch/v1", "kind": "Job", "name": gang, "uid": gang, "controller": true});
        let annotations = json!({"aliquot.dev/gang": gang, "aliquot.dev/gang-size": "3"});
        let more = json!({
            "metadata": {"annotations": annotations, "ownerReferences": [owner]},
            "spec": {"priority": self.one_of(&[0, 50])},
        });
        for member in 0..3 {
            self.world.pod(&format!("{gang}-{member}"), 50, more.clone());
        }
    }

    /// A user deletes a pod, or all of a gang.
    fn delete(&mut self) {
        let names: Vec<String> = self.world.pods.keys().cloned().collect();
        let Some(name) = self.one_of(&names) else { return };
        let group = name.split('-').next().unwrap().to_owned();
        for name in names.iter().filter(|name| name.split('-').next() == Some(&group)) {
            self.world.log.push(format!("{name} deleted"));
            self.world.delete(name);
        }
    }

    /// A node goes for good, and another one comes.
    fn lose_a_node(&mut self) {
        let names: Vec<String> = self.world.nodes.keys().cloned().collect();
        if let Some(name) = self.one_of(&names) {
            self.world.log.push(format!("node {name} is gone"));
            self.world.remove_node(&name);
            self.lost.push(name);
            self.world.node(&format!("n{}", self.nodes), 1 + usize::try_from(self.dice.below(2)).unwrap());
            self.nodes += 1;
        }
    }

    /// The pods of lost nodes end, one after the other, and so do evicted ones.
    fn end_some(&mut self) {
        let world = &mut self.world;
        let uid = |pod: &Value| pod["metadata"]["uid"].as_str().unwrap().to_owned();
        let is_over = |pod: &Value| {
            let is_on = |node: &String| pod["spec"]["nodeName"] == node.as_str();
            self.lost.iter().any(is_on) || world.ending.as_ref().is_some_and(|ending| ending.contains(&uid(pod)))
        };
        let over: Vec<String> =
            world.pods.iter().filter(|(_, pod)| is_over(pod)).map(|(name, _)| name.clone()).collect();
        for name in over {
            if self.dice.below(3) == 0 {
                let uid = uid(&world.pods[&name]);
                world.ending.iter_mut().for_each(|ending| _ = ending.remove(&uid));
                world.log.push(format!("{name} ends"));
                world.replace(&name);
            }
        }
    }

    /// A running pod asks for more or less than before.
    fn resize(&mut self) {
        let names: Vec<String> = self.world.bound().into_keys().map(str::to_owned).collect();
        if let Some(name) = self.one_of(&names) {
            let cpu = self.one_of(&["1", "2", "5", "20"]).unwrap();
            let pod = self.world.pods.get_mut(&name).unwrap();
            pod["spec"]["containers"][0]["resources"]["requests"]["cpu"] = cpu.into();
            self.world.show(&name);
        }
    }

    /// The API server says what became of bindings.
    fn answer_some(&mut self) {
        for binding in std::mem::take(&mut self.unanswered) {
            if self.dice.below(3) > 0 {
                self.unanswered.push(binding);
                continue;
            }
            let pod = self.world.pods.get(&binding.name).filter(|pod| pod["metadata"]["uid"] == binding.uid.as_str());
            let is_bound = pod.is_some_and(|pod| pod["spec"]["nodeName"] == binding.node.as_str());
            let outcome = if is_bound { Ok(()) } else { Err("it is gone".to_owned()) };
            self.world.end_binding(&binding, outcome);
        }
    }

    /// Writes come late, in another order, are refused, or have no answer at first.
    fn write(&mut self) {
        for write in std::mem::take(&mut self.world.writes) {
            let is_under_way = self.unanswered.iter().any(|binding| binding.uid == write.uid());
            match (self.dice.below(10), write) {
                (0..=1, write) => self.world.writes.insert(0, write),
                (_, write) if is_under_way => self.world.writes.push(write),
                (2, Write::Bind(binding)) => {
                    self.world.mirror.bound(&binding, Err("the API server is out of order".into()));
                }
                (3..=4, Write::Bind(binding)) if self.world.reserve(&binding) => {
                    match self.world.write_binding(&binding) {
                        Ok(()) => {
                            self.world.show(&binding.name);
                            self.unanswered.push(binding);
                        }
                        Err(why) => self.world.end_binding(&binding, Err(why)),
                    };
                }
                (_, write) => self.world.carry_out(write),
            }
            check(&self.world, self.seed);
        }
    }

    /// Faults end, and time passes.
    fn come_to_rest(mut self) -> World {
        self.groups.iter().for_each(|gang| make_group(&mut self.world, gang));
        while !self.unanswered.is_empty() {
            self.answer_some();
        }
        self.world.catch_up(usize::MAX);
        self.world.late = None;
        for round in 0..60 {
            // Pods can be evicted as late as in the last round: whoever was left alone for a while is chosen again.
            let is_quiet = self.world.ending.as_ref().is_none_or(BTreeSet::is_empty);
            if round >= 20 && is_quiet {
                break;
            }
            (0..5).for_each(|_| self.end_some());
            self.world.reconcile();
            self.world.now_ms += 60_000;
        }
        self.world.reconcile();
        check(&self.world, self.seed);
        let (stay, told) = (self.world.stay_by_budget(), self.world.stay_as_told());
        assert_eq!(stay, told, "seed {}: {:#?}", self.seed, self.world.log);
        let suspended: Vec<_> = self.world.suspended.keys().collect();
        assert!(suspended.is_empty(), "seed {}: {suspended:?} {:#?}", self.seed, self.world.log);
        self.world
    }
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
