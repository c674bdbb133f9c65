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
        plan(&self.known, &name(), self.uses.get(&name()), is_there, now)
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
                        assert!(self.known.gpu(&made.name_any()).is_none(), "it is made twice");
                        self.known.rooms.insert(made.name_any(), Room::Kept);
                        self.known.show_gpu(made.name_any(), made);
                    }
                    Step::Delete { gpu, uid } => {
                        assert_eq!(uid, "gpu-uid");
                        self.known.forget_gpu(&gpu).expect("it is there");
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
                    Step::SayOfGpu(gpu, status) => self.change_gpu(&gpu, |of| of.status = Some(status)),
                    Step::Bind { gpu, claim, .. } => self.change_gpu(&gpu, |of| of.spec.claim_ref = Some(claim)),
                }
            }
        }
        panic!("it does not come to rest: {:?}", self.plan());
    }

    fn change_gpu(&mut self, name: &str, change: impl FnOnce(&mut ElasticGpu)) {
        let mut gpu = self.known.forget_gpu(name).unwrap();
        change(&mut gpu);
        self.known.show_gpu(name.to_owned(), gpu);
    }

    /// A part that an administrator makes, and that has its room already.
    fn made(&mut self, name: &str, more: Value) {
        let mut gpu = json!({
            "apiVersion": "aliquot.dev/v1alpha1", "kind": "ElasticGPU",
            "metadata": {"name": name, "uid": "gpu-uid", "resourceVersion": "9"},
            "spec": {
                "capacity": {"core": 40, "memoryBytes": 9_u64 << 30}, "nodeName": "n", "device": "GPU-1",
                "model": "NVIDIA H100", "elasticGPUClassName": "fast",
            },
        });
        json_patch::merge(&mut gpu, &more);
        self.known.rooms.insert(name.to_owned(), Room::Kept);
        self.known.show_gpu(name.to_owned(), serde_json::from_value(gpu).unwrap());
    }

    /// What is said of a part: its phase, and the sentence.
    fn said_of(&self, name: &str) -> (ElasticGpuPhase, &str) {
        let status = self.known.gpu(name).unwrap().status.as_ref().unwrap();
        (status.phase, &status.message)
    }

    /// Decides matches as the mirror does.
    fn match_parts(&mut self) {
        let matches = self.known.matched(|name| self.uses.contains_key(name));
        self.known.set_matches(matches);
    }

    /// All that is written about the part that has no claim.
    fn reconcile_part(&mut self, name: &str) {
        let subject = (String::new(), name.to_owned());
        let steps = plan(&self.known, &subject, None, |_, _| true, Timestamp::from_second(1).unwrap());
        for step in steps {
            let Step::SayOfGpu(gpu, status) = step else { panic!("{step:?}") };
            self.change_gpu(&gpu, |of| of.status = Some(status));
        }
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
        self.known.gpu("egpu-u").unwrap()
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
    assert_eq!(world.known.gpus().map(|(name, _)| name).collect::<Vec<_>>(), ["egpu-other"]);
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
    world.known.forget_gpu("egpu-u");
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
    assert_eq!(world.known.gpus().count(), 0);
}

#[test]
fn a_part_that_was_made_before_is_bound_to_a_claim_of_its_class() {
    let mut world = World::with_claim();
    world.made("large", json!({"spec": {"capacity": {"core": 90}}}));
    world.made("fits", json!({}));
    world.made("small", json!({"spec": {"capacity": {"core": 20}}}));
    world.made("other-class", json!({"spec": {"elasticGPUClassName": "slow"}}));
    world.made("other-model", json!({"spec": {"model": "NVIDIA A100"}}));
    world.reconcile_part("fits");
    assert_eq!(world.said_of("fits"), (ElasticGpuPhase::Available, ""));
    world.match_parts();
    assert_eq!(world.known.matches, [("fits".to_owned(), name())].into());
    world.reconcile();
    assert_eq!(world.said().0, ElasticGpuClaimPhase::Bound);
    assert_eq!(world.said_of("fits").0, ElasticGpuPhase::Bound);
    // The part's claim is forced away. It is not given to another claim of the name.
    world.match_parts();
    world.claim(json!({"metadata": {"uid": "other"}, "status": null}));
    world.match_parts();
    assert_eq!(world.known.matches, [("large".to_owned(), name())].into());
}

#[test]
fn a_part_that_names_a_claim_is_for_no_other() {
    let mut world = World::with_claim();
    world.made("named", json!({"spec": {"claimRef": {"namespace": "ns", "name": "later"}}}));
    world.match_parts();
    assert!(world.known.matches.is_empty());
    let named = json!({"spec": {"claimRef": {"namespace": "ns", "name": "part"}}});
    world.made("mine", named.clone());
    world.made("a-smaller-one", json!({}));
    world.match_parts();
    assert_eq!(world.known.matches, [("mine".to_owned(), name())].into());
    world.reconcile();
    assert_eq!(world.said_of("mine").0, ElasticGpuPhase::Bound);
    // A second one for the same claim.
    world.made("second", named);
    world.match_parts();
    world.reconcile();
    assert!(world.said_of("second").1.contains("is bound to another part"), "{:?}", world.said_of("second"));
}

#[test]
fn a_claim_that_a_pod_is_bound_with_gets_no_other_part() {
    let mut world = World::with_claim();
    world.made("fits", json!({}));
    world.uses.insert(name(), Use { pod: "ns/a".into(), given: None });
    world.match_parts();
    assert!(world.known.matches.is_empty());
}

#[test]
fn an_object_that_has_the_name_of_a_part_is_said() {
    let mut world = World::with_claim();
    world.used();
    let other = json!({"spec": {"claimRef": {"namespace": "ns", "name": "other", "uid": "x"}}});
    world.made("egpu-u", other);
    world.reconcile();
    let said = world.said();
    assert!((said.0, said.1) == (ElasticGpuClaimPhase::Pending, "NameTaken"), "{said:?}");
    assert!(said.2.contains("delete that ElasticGPU"), "{said:?}");
    world.known.forget_gpu("egpu-u");
    world.reconcile();
    assert_eq!(world.said().0, ElasticGpuClaimPhase::Bound);
}

#[test]
fn a_part_without_room_has_failed_and_says_why() {
    let mut world = World::with_claim();
    world.made("fits", json!({}));
    world.known.rooms.insert("fits".into(), Room::None("the device is full".into()));
    world.reconcile_part("fits");
    assert_eq!(world.said_of("fits"), (ElasticGpuPhase::Failed, "the device is full"));
    world.match_parts();
    assert!(world.known.matches.is_empty());
}
