//! Random users of parts, beside other pods, nodes that come and go, and changes of the leader.

use super::super::random::Dice;
use super::*;
use crate::elastic::ElasticGpu;

const WORLDS: u64 = 60;
const STEPS: usize = 60;

/// A cluster with the objects of claims and parts.
struct Parts {
    world: World,
    claims: BTreeMap<String, Value>,
    gpus: BTreeMap<String, Value>,
    made: u64,
}

impl Parts {
    fn show_all(&mut self) {
        class(&mut self.world, json!({}));
        for claim in self.claims.values() {
            self.world.mirror.elastic_gpu_claim(typed(claim));
        }
        for gpu in self.gpus.values() {
            self.world.mirror.elastic_gpu(typed::<ElasticGpu>(gpu));
        }
        self.world.mirror.elastic_gpu_claims_are(Access::Read);
    }

    /// Another leader begins with what the API server knows.
    fn change_leader(&mut self) {
        let world = &mut self.world;
        world.term += 1;
        world.writes.clear();
        world.mirror = Mirror::new("aliquot", world.term, &[]);
        world.engine = engine(world.policy.fork(), world.term, world.learned.clone());
        self.show_all();
        let world = &mut self.world;
        world.nodes.clone().into_iter().for_each(|(name, node)| world.make_node(&name, node));
        world.pods.clone().keys().for_each(|name| world.show(name));
        world.hear();
        world.engine.handle(world.now_ms, Observation::Synced).unwrap();
        world.poll();
    }

    fn claim(&mut self, name: &str) {
        self.made += 1;
        let claim = json!({
            "apiVersion": "aliquot.dev/v1alpha1", "kind": "ElasticGPUClaim",
            "metadata": {"namespace": "default", "name": name, "uid": format!("uid-{}", self.made)},
            "spec": {"elasticGPUClassName": "fast", "resources": {"requests": {"core": 30}}},
        });
        self.world.mirror.elastic_gpu_claim(typed(&claim));
        self.claims.insert(name.into(), claim);
    }

    fn delete_claim(&mut self, name: &str) {
        let Some(claim) = self.claims.get_mut(name) else { return };
        claim["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z".into();
        self.world.mirror.elastic_gpu_claim(typed(claim));
    }

    fn part(&mut self, core: u64) {
        self.made += 1;
        let name = format!("static-{}", self.made);
        let gpu = json!({
            "apiVersion": "aliquot.dev/v1alpha1", "kind": "ElasticGPU",
            "metadata": {"name": name, "uid": format!("uid-{}", self.made)},
            "spec": {
                "capacity": {"core": core, "memoryBytes": core * DEVICE_BYTES / 100}, "nodeName": "n",
                "device": format!("n-{}", self.made % 2), "model": "NVIDIA H100", "elasticGPUClassName": "fast",
            },
        });
        self.set_gpu(name, gpu);
    }

    fn set_gpu(&mut self, name: String, gpu: Value) {
        self.world.mirror.elastic_gpu(typed::<ElasticGpu>(&gpu));
        self.gpus.insert(name, gpu);
    }

    /// Carries out the writes that are due.
    fn write(&mut self) {
        for step in steps(&mut self.world) {
            match step {
                Step::Make(gpu) => {
                    self.made += 1;
                    let mut made = serde_json::to_value(&*gpu).unwrap();
                    made["metadata"]["uid"] = format!("uid-{}", self.made).into();
                    self.set_gpu(gpu.metadata.name.unwrap(), made);
                }
                Step::Bind { gpu, claim, .. } => {
                    let mut bound = self.gpus[&gpu].clone();
                    bound["spec"]["claimRef"] = serde_json::to_value(claim).unwrap();
                    self.set_gpu(gpu, bound);
                }
                Step::Delete { gpu, .. } => {
                    self.gpus.remove(&gpu);
                    self.world.mirror.elastic_gpu_gone(&gpu);
                }
                Step::SayOfGpu(gpu, status) => {
                    let mut said = self.gpus[&gpu].clone();
                    said["status"] = serde_json::to_value(status).unwrap();
                    self.set_gpu(gpu, said);
                }
                Step::SayOfClaim((_, name), status) => {
                    if let Some(claim) = self.claims.get_mut(&name) {
                        claim["status"] = serde_json::to_value(*status).unwrap();
                        self.world.mirror.elastic_gpu_claim(typed(claim));
                    }
                }
                Step::Finalizers { claim: (_, name), finalizers, .. } => {
                    let Some(claim) = self.claims.get_mut(&name) else { continue };
                    let is_gone = finalizers.is_empty() && !claim["metadata"]["deletionTimestamp"].is_null();
                    claim["metadata"]["finalizers"] = json!(finalizers);
                    match is_gone {
                        true => {
                            self.claims.remove(&name);
                            self.world.mirror.elastic_gpu_claim_gone("default", &name);
                        }
                        false => self.world.mirror.elastic_gpu_claim(typed(claim)),
                    }
                }
            }
        }
    }

    /// No device is given out twice: neither to pods, nor to parts whose room is reserved.
    fn check(&self, seed: u64) {
        let mut held: BTreeMap<String, u64> = BTreeMap::new();
        let mut reserved: BTreeMap<(String, String), u64> = BTreeMap::new();
        for gpu in self.gpus.values().filter(|gpu| gpu["status"]["reserved"] == true) {
            let device = gpu["spec"]["device"].as_str().unwrap().to_owned();
            *held.entry(device.clone()).or_default() += gpu["spec"]["capacity"]["core"].as_u64().unwrap() * 10;
            if let Some(claim) = gpu["spec"]["claimRef"]["name"].as_str() {
                *reserved.entry((claim.to_owned(), device)).or_default() += 1;
            }
        }
        for pod in self.world.pods.values().filter(|pod| pod["spec"]["nodeName"].is_string()) {
            let annotations = &pod["metadata"]["annotations"];
            let claim = annotations["elastic-gpu-claim.aliquot.dev/main"].as_str().unwrap_or_default();
            let decision: Decision = annotations[DECISION].as_str().unwrap().parse().unwrap();
            for part in decision.containers.into_values().flatten() {
                let is_reserved = reserved.contains_key(&(claim.to_owned(), part.uuid.clone()));
                *held.entry(part.uuid).or_default() += if is_reserved { 0 } else { part.core_thousandths.into() };
            }
        }
        let log = &self.world.log;
        assert!(held.values().all(|core| *core <= 1000), "seed {seed}: {held:?} {log:#?} {:#?}", self.gpus);
        assert!(log.iter().all(|line| !line.starts_with("error")), "seed {seed}: {log:#?}");
    }
}

#[test]
fn no_device_is_given_out_twice_to_pods_and_parts() {
    let mut bound = 0;
    for seed in 1..=WORLDS {
        let mut dice = Dice::of(seed);
        let mut of = Parts { world: World::new(), claims: BTreeMap::new(), gpus: BTreeMap::new(), made: 0 };
        speaking_node(&mut of.world, "n", 2, "NVIDIA H100");
        of.show_all();
        for number in 0..STEPS {
            let name = format!("c{}", dice.below(3));
            match dice.below(12) {
                0 | 1 if !of.claims.contains_key(&name) => of.claim(&name),
                0..=2 => {
                    let claim = json!({"elastic-gpu-claim.aliquot.dev/main": name});
                    claiming(&mut of.world, &format!("p{number:02}"), json!({"metadata": {"annotations": claim}}));
                }
                3 | 4 => of.world.pod(&format!("p{number:02}"), [20, 50, 80][number % 3], json!({})),
                5..=7 => {
                    let names: Vec<String> = of.world.pods.keys().cloned().collect();
                    if let Some(index) = dice.below(1000).checked_rem(names.len() as u64) {
                        of.world.delete(&names[usize::try_from(index).unwrap()]);
                    }
                }
                8 => of.part(30 + dice.below(3) * 20),
                9 => of.delete_claim(&name),
                10 => of.change_leader(),
                _ => {
                    let node = of.world.nodes["n"].clone();
                    of.world.remove_node("n");
                    of.world.hear();
                    of.world.make_node("n", node);
                }
            }
            if dice.below(3) > 0 {
                of.world.reconcile();
            } else {
                of.world.hear();
                of.world.poll();
            }
            of.check(seed);
            if dice.below(2) == 0 {
                of.write();
                of.world.hear();
                of.check(seed);
            }
        }
        bound += of.world.bound().len();
    }
    assert!(bound > 0, "no pod was ever bound");
}
