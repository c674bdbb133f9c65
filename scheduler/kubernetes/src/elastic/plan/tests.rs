use std::collections::BTreeMap;

use serde_json::{Value, json};

use super::*;
use crate::elastic::ElasticGpuClassDefinition;

/// Claims, parts, and the pods that use them.
#[derive(Default)]
struct World {
    known: Known,
    uses: BTreeMap<Name, Use>,
    /// Devices that nodes do not have any more.
    gone: Vec<String>,
    deleted: Vec<String>,
}

impl World {
    /// A world with a class, and a claim of it for 30 % and 8 GiB.
    fn with_claim() -> World {
        let mut world = World::default();
        world.class(json!({"models": ["H100"]}));
        world.claim(json!({}));
        world
    }

    fn class(&mut self, spec: Value) {
        let class: ElasticGpuClassDefinition = serde_json::from_value(spec).unwrap();
        self.known.classes.insert("fast".into(), class);
    }

    /// Merges `more` into the claim, which is made first if there is none.
    fn claim(&mut self, more: Value) {
        let before = self.known.claims.get(&name());
        let mut claim = before.map_or_else(
            || {
                json!({
                    "apiVersion": "aliquot.dev/v1alpha1", "kind": "ElasticGPUClaim",
                    "metadata": {"namespace": "ns", "name": "part", "uid": "u", "resourceVersion": "7"},
                    "spec": {
                        "elasticGPUClassName": "fast",
                        "resources": {"requests": {"core": 30, "memory": "8Gi"}},
                    },
                })
            },
            |before| serde_json::to_value(before).unwrap(),
        );
        json_patch::merge(&mut claim, &more);
        self.known.claims.insert(name(), serde_json::from_value(claim).unwrap());
    }

    /// A bound pod uses the claim, and has the part that the claim asks for.
    fn used(&mut self) {
        let given = Given {
            node: "n".into(),
            device: "GPU-1".into(),
            model: "NVIDIA H100".into(),
            core_percent: 30,
            memory_bytes: 8 << 30,
        };
        self.uses.insert(name(), Use { pod: "ns/a".into(), given: Some(given) });
    }

    fn plan(&self) -> Vec<Step> {
        let now = Timestamp::from_second(1).unwrap();
        let is_there = |_: &str, device: &str| !self.gone.iter().any(|gone| gone == device);
        plan(&self.known, &name(), self.known.gpus.values(), self.uses.get(&name()), is_there, now)
    }

    /// Carries out what is planned until the plan is empty.
    fn reconcile(&mut self) {
        for _ in 0..10 {
            let steps = self.plan();
            if steps.is_empty() {
                return;
            }
            for step in steps {
                match step {
                    Step::Make(gpu) => {
                        let made = ElasticGpu {
                            metadata: ObjectMeta { uid: Some("gpu-uid".into()), ..gpu.metadata.clone() },
                            // Some API servers begin with an empty status.
                            status: Some(ElasticGpuStatus::default()),
                            ..*gpu
                        };
                        assert!(self.known.gpus.insert(made.name_any(), made).is_none(), "it is made twice");
                    }
                    Step::Delete { gpu, uid } => {
                        assert_eq!(uid, "gpu-uid");
                        self.known.gpus.remove(&gpu).expect("it is there");
                        self.deleted.push(gpu);
                    }
                    Step::Finalizers { claim, resource_version, finalizers } => {
                        assert_eq!(resource_version, "7");
                        let metadata = &mut self.known.claims.get_mut(&claim).unwrap().metadata;
                        let is_gone = metadata.deletion_timestamp.is_some() && finalizers.is_empty();
                        metadata.finalizers = Some(finalizers);
                        if is_gone {
                            self.known.claims.remove(&claim);
                        }
                    }
                    Step::SayOfClaim(claim, status) => {
                        self.known.claims.get_mut(&claim).unwrap().status = Some(*status);
                    }
                    Step::SayOfGpu(gpu, status) => self.known.gpus.get_mut(&gpu).unwrap().status = Some(status),
                }
            }
        }
        panic!("it does not come to rest: {:?}", self.plan());
    }

    fn delete_claim(&mut self) {
        self.claim(json!({"metadata": {"deletionTimestamp": "2026-01-01T00:00:00Z"}}));
    }

    /// The phase, the reason and the sentence in the claim's status.
    fn said(&self) -> (ElasticGpuClaimPhase, &str, &str) {
        let status = self.known.claims[&name()].status.as_ref().unwrap();
        let [condition] = status.conditions.as_slice() else { panic!("{status:?}") };
        assert_eq!(condition.status == "True", status.phase == ElasticGpuClaimPhase::Bound);
        (status.phase, &condition.reason, &condition.message)
    }

    fn gpu(&self) -> &ElasticGpu {
        &self.known.gpus["egpu-u"]
    }
}

fn name() -> Name {
    ("ns".into(), "part".into())
}

#[test]
fn a_claim_waits_for_its_first_pod_and_is_bound_then() {
    let mut world = World::with_claim();
    world.reconcile();
    assert_eq!((world.said().0, world.said().1), (ElasticGpuClaimPhase::Pending, "WaitForFirstConsumer"));
    assert_eq!(world.known.claims[&name()].finalizers(), [PROTECTION]);
    world.used();
    world.reconcile();
    assert_eq!(world.said(), (ElasticGpuClaimPhase::Bound, "Bound", "pod ns/a has it"));
    let status = world.known.claims[&name()].status.clone().unwrap();
    assert_eq!(status.elastic_gpu.as_deref(), Some("egpu-u"));
    assert_eq!(status.capacity, Some(ElasticGpuCapacity { core: 30, memory_bytes: 8 << 30 }));
    let spec = serde_json::to_value(&world.gpu().spec).unwrap();
    let expected = json!({
        "capacity": {"core": 30, "memoryBytes": 8_u64 << 30}, "nodeName": "n", "device": "GPU-1", "model": "NVIDIA H100",
        "claimRef": {"namespace": "ns", "name": "part", "uid": "u"}, "elasticGPUClassName": "fast",
        "reclaimPolicy": "Delete",
    });
    assert_eq!(spec, expected);
    assert_eq!(world.gpu().status.as_ref().unwrap().phase, ElasticGpuPhase::Bound);
}

#[test]
fn a_claim_is_not_called_bound_before_its_part_is_made() {
    let mut world = World::with_claim();
    world.reconcile();
    world.used();
    let steps = world.plan();
    assert!(matches!(steps.as_slice(), [Step::Make(_)]), "{steps:?}");
    // It was not made, and its pod ends.
    world.uses.clear();
    world.reconcile();
    assert_eq!(world.said().1, "WaitForFirstConsumer");
}

#[test]
fn a_bound_claim_stays_bound_without_pod_and_class() {
    let mut world = World::with_claim();
    world.used();
    world.reconcile();
    world.uses.clear();
    world.known.classes.clear();
    world.reconcile();
    assert_eq!(world.said(), (ElasticGpuClaimPhase::Bound, "Bound", ""));
    assert_eq!(world.gpu().status.as_ref().unwrap().phase, ElasticGpuPhase::Bound);
}

#[test]
fn what_is_missing_is_the_claims_condition() {
    let mut world = World::with_claim();
    world.claim(json!({"spec": {"resources": {"requests": {"core": null, "memory": null}}}}));
    world.reconcile();
    assert_eq!((world.said().0, world.said().1), (ElasticGpuClaimPhase::Pending, "NoAmount"));
    world.class(json!({"defaultRequests": {"core": 10}}));
    world.reconcile();
    assert_eq!(world.said().1, "WaitForFirstConsumer");
    world.known.classes.clear();
    world.reconcile();
    assert!(world.said().1 == "ClassNotFound" && world.said().2.contains("\"fast\""), "{:?}", world.said());
}

#[test]
fn amounts_that_no_schema_lets_through_are_said_too() {
    let cores = [-1, 0, 101].map(|core| json!({"core": core}));
    let memories = ["much", "-1Gi", "0", "", "1e30"].map(|memory| json!({"memory": memory}));
    for wrong in cores.into_iter().chain(memories) {
        let mut world = World::with_claim();
        world.claim(json!({"spec": {"resources": {"requests": {"core": null, "memory": null}}}}));
        world.claim(json!({"spec": {"resources": {"requests": wrong}}}));
        world.reconcile();
        assert_eq!(world.said().1, "NoAmount", "{wrong}");
    }
}

#[test]
fn a_claim_that_is_used_is_not_deleted_before_its_pod_ends() {
    let mut world = World::with_claim();
    world.used();
    world.reconcile();
    world.delete_claim();
    world.reconcile();
    assert!(world.known.claims.contains_key(&name()) && world.deleted.is_empty());
    world.uses.clear();
    world.reconcile();
    assert!(world.known.claims.is_empty());
    assert_eq!(world.deleted, ["egpu-u"]);
}

#[test]
fn others_finalizers_are_kept() {
    let mut world = World::with_claim();
    world.claim(json!({"metadata": {"finalizers": ["example.com/mine"]}}));
    world.reconcile();
    assert_eq!(world.known.claims[&name()].finalizers(), ["example.com/mine", PROTECTION]);
    world.delete_claim();
    world.reconcile();
    assert_eq!(world.known.claims[&name()].finalizers(), ["example.com/mine"]);
}

#[test]
fn a_part_that_is_retained_is_released_and_stays() {
    let mut world = World::with_claim();
    world.class(json!({"reclaimPolicy": "Retain"}));
    world.used();
    world.reconcile();
    world.uses.clear();
    world.delete_claim();
    world.reconcile();
    assert!(world.known.claims.is_empty());
    assert_eq!(world.gpu().status.as_ref().unwrap().phase, ElasticGpuPhase::Released);
    // A later claim of the same name is another one.
    world.claim(json!({"metadata": {"uid": "other"}}));
    world.reconcile();
    assert_eq!(world.said().1, "WaitForFirstConsumer");
    assert_eq!(world.gpu().status.as_ref().unwrap().phase, ElasticGpuPhase::Released);
}

#[test]
fn the_user_of_a_later_claim_does_not_hold_the_earlier_part() {
    let mut world = World::with_claim();
    world.used();
    world.reconcile();
    // The claim was forced away, and another one of its name was made.
    world.claim(json!({"metadata": {"uid": "other", "finalizers": null}, "status": null}));
    world.reconcile();
    assert_eq!(world.deleted, ["egpu-u"]);
    assert_eq!(world.said().0, ElasticGpuClaimPhase::Bound);
    assert_eq!(world.known.gpus.keys().collect::<Vec<_>>(), ["egpu-other"]);
}

#[test]
fn a_claim_has_lost_a_part_whose_device_is_gone() {
    let mut world = World::with_claim();
    world.used();
    world.reconcile();
    world.uses.clear();
    world.gone.push("GPU-1".into());
    world.reconcile();
    assert!(world.said().0 == ElasticGpuClaimPhase::Lost && world.said().2.contains("GPU-1"), "{:?}", world.said());
    assert_eq!(world.gpu().status.as_ref().unwrap().phase, ElasticGpuPhase::Failed);
    // The node comes back with its device.
    world.gone.clear();
    world.reconcile();
    assert_eq!(world.said().0, ElasticGpuClaimPhase::Bound);
    world.known.gpus.clear();
    world.reconcile();
    let said = world.said();
    assert!(said.0 == ElasticGpuClaimPhase::Lost && said.2.contains("\"egpu-u\" was deleted"), "{said:?}");
}

#[test]
fn a_pod_whose_part_is_not_known_binds_nothing() {
    let mut world = World::with_claim();
    world.uses.insert(name(), Use { pod: "ns/a".into(), given: None });
    world.reconcile();
    assert_eq!(world.said().0, ElasticGpuClaimPhase::Pending);
    assert!(world.known.gpus.is_empty());
}
