//! Pods with resource claims.

use std::collections::BTreeMap;

use k8s_openapi::api::resource::v1::{DeviceClass, ResourceSlice};
use serde_json::{Value, json};

use super::{Binding, World, Write, typed};
use crate::dra::{ClaimFacts, DRIVER};
use crate::mirror::Reservation;

/// Bytes of each device.
const BYTES: u64 = 80 << 30;

impl World {
    /// A leader that begins sees all that the API server has of devices and claims.
    pub(super) fn show_device_claims(&mut self) {
        let expression = r#"device.driver == "gpu.aliquot.dev""#;
        let class = json!({"metadata": {"name": DRIVER}, "spec": {"selectors": [{"cel": {"expression": expression}}]}});
        self.mirror.device_class(typed::<DeviceClass>(&class));
        for slice in self.slices.values() {
            self.mirror.resource_slice(typed::<ResourceSlice>(slice));
        }
        for claim in self.claims.values() {
            self.mirror.resource_claim(ClaimFacts::of(typed(claim)).unwrap());
        }
        self.mirror.resource_claims_served();
    }

    /// A node whose devices are given out by claims.
    pub(super) fn node_with_driver(&mut self, name: &str, devices: usize) {
        self.node(name, 0);
        self.publish(name, devices, json!({}));
    }

    /// The devices of a node from now on. `more` is merged into each.
    pub(super) fn publish(&mut self, name: &str, devices: usize, more: Value) {
        let device = |number: usize| {
            let capacity = |value: &str| {
                json!({"value": value, "requestPolicy": {"default": value, "validRange": {
                "min": "1", "step": "1"}}})
            };
            let mut device = json!({
                "name": format!("gpu-{number}"), "allowMultipleAllocations": true,
                "attributes": {"productName": {"string": "H100"}},
                "capacity": {"core": capacity("100"), "memory": capacity("80Gi")},
            });
            json_patch::merge(&mut device, &more);
            device
        };
        let devices: Vec<Value> = (0..devices).map(device).collect();
        self.made += 1;
        let slice = json!({"metadata": {"name": name}, "spec": {
            "driver": DRIVER, "nodeName": name, "devices": devices,
            "pool": {"name": name, "generation": self.made, "resourceSliceCount": 1},
        }});
        self.mirror.resource_slice(typed::<ResourceSlice>(&slice));
        self.slices.insert(name.into(), slice);
    }

    /// A claim for so many percent of a GPU. `more` is merged into its request.
    pub(super) fn claim(&mut self, name: &str, percent: u32, owner: Option<&str>, more: Value) {
        let capacity = json!({"requests": {"core": percent.to_string(), "memory": "1Gi"}});
        let mut exactly = json!({"deviceClassName": DRIVER, "capacity": capacity});
        json_patch::merge(&mut exactly, &more);
        self.made += 1;
        let owners =
            owner.map(|uid| json!({"apiVersion": "v1", "kind": "Pod", "name": "p", "uid": uid, "controller": true}));
        let claim = json!({
            "metadata": {
                "name": name, "namespace": "default", "uid": format!("claim-{}", self.made),
                "ownerReferences": owners.into_iter().collect::<Vec<Value>>(),
            },
            "spec": {"devices": {"requests": [{"name": "gpu", "exactly": exactly}]}},
        });
        self.claims.insert(name.into(), claim);
        self.change_claim(name, |_| ());
    }

    /// A pod that uses a claim of this name. `more` is merged into it.
    pub(super) fn pod_with_claim(&mut self, name: &str, claim: &str, more: Value) {
        let mut pod = json!({"spec": {"resourceClaims": [{"name": "gpu", "resourceClaimName": claim}]}});
        json_patch::merge(&mut pod, &more);
        self.pod(name, 0, pod);
    }

    /// A pod with a claim of its own, made from a template.
    pub(super) fn pod_with_part(&mut self, name: &str, percent: u32, more: Value) {
        let claim = format!("{name}-gpu");
        let mut pod = json!({
            "spec": {"resourceClaims": [{"name": "gpu", "resourceClaimTemplateName": "t"}]},
            "status": {"resourceClaimStatuses": [{"name": "gpu", "resourceClaimName": claim}]},
        });
        json_patch::merge(&mut pod, &more);
        self.pod(name, 0, pod);
        let uid = self.pods[name]["metadata"]["uid"].as_str().unwrap().to_owned();
        self.claim(&claim, percent, Some(&uid), json!({}));
    }

    pub(super) fn change_claim(&mut self, name: &str, change: impl FnOnce(&mut Value)) {
        self.made += 1;
        let claim = self.claims.get_mut(name).unwrap();
        change(claim);
        claim["metadata"]["resourceVersion"] = self.made.to_string().into();
        self.mirror.resource_claim(ClaimFacts::of(typed(claim)).unwrap());
    }

    /// Writes what a binding says of claims; says whether nothing of it was too late.
    pub(super) fn reserve(&mut self, binding: &Binding) -> bool {
        for Reservation { claim, allocation } in &binding.reservations {
            let known = self.claims.get(&claim.name).map(|known| &known["metadata"]["resourceVersion"]);
            if known != Some(&json!(claim.resource_version)) {
                return false;
            }
            let users = Reservation::users_with(&claim.reserved_for, &binding.name, &binding.uid);
            self.change_claim(&claim.name, |claim| {
                if let Some(allocation) = allocation {
                    claim["status"]["allocation"] = json!(allocation);
                }
                claim["status"]["reservedFor"] = json!(users);
            });
        }
        true
    }

    /// Takes back what was written for a pod that was not bound.
    pub(super) fn give_back(&mut self, binding: &Binding) {
        for Reservation { claim, .. } in &binding.reservations {
            if self.claims.contains_key(&claim.name) {
                self.end_use(&claim.name, &binding.uid);
            }
        }
    }

    pub(super) fn give_back_left_over(&mut self) {
        for of in self.mirror.left_over_claims() {
            self.log.push(format!("{} given back", of.claim.name));
            self.end_use(&of.claim.name, &of.pod_uid);
        }
    }

    /// A user of a claim is gone, and with the last one what is allocated.
    fn end_use(&mut self, claim: &str, uid: &str) {
        self.change_claim(claim, |claim| {
            let status = claim["status"].as_object_mut().unwrap();
            let users = status.get_mut("reservedFor").and_then(Value::as_array_mut);
            let is_last = users.is_none_or(|users| {
                users.retain(|user| user["uid"] != uid);
                users.is_empty()
            });
            if is_last {
                status.clear();
            }
        });
    }

    /// What Kubernetes' controller of claims does.
    pub(super) fn collect_claims(&mut self) {
        let there: Vec<Value> = self.pods.values().map(|pod| pod["metadata"]["uid"].clone()).collect();
        let users = |claim: &Value| claim["status"]["reservedFor"].as_array().cloned().unwrap_or_default();
        let all = self.claims.iter().flat_map(|(name, claim)| {
            let gone = users(claim).into_iter().filter(|user| !there.contains(&user["uid"]));
            gone.map(|user| (name.clone(), user["uid"].as_str().unwrap().to_owned()))
        });
        for (name, uid) in all.collect::<Vec<_>>() {
            self.end_use(&name, &uid);
        }
    }

    /// What is allocated of each device: percent of its time, and bytes.
    fn allocated(&self) -> BTreeMap<String, (u64, u64)> {
        let mut allocated: BTreeMap<String, (u64, u64)> = BTreeMap::new();
        for claim in self.claims.values() {
            for result in claim["status"]["allocation"]["devices"]["results"].as_array().into_iter().flatten() {
                let amount = |name: &str| result["consumedCapacity"][name].as_str().unwrap().parse::<u64>().unwrap();
                let device = format!("{}/{}", result["pool"].as_str().unwrap(), result["device"].as_str().unwrap());
                let of = allocated.entry(device).or_default();
                *of = (of.0 + amount("core"), of.1 + amount("memory"));
            }
        }
        allocated
    }

    fn allocate_by_hand(&mut self, claim: &str, node: &str, device: &str, core: u32, memory: u64) {
        let consumed = json!({"core": core.to_string(), "memory": memory.to_string()});
        let result =
            json!({"request": "gpu", "driver": DRIVER, "pool": node, "device": device, "consumedCapacity": consumed});
        let field = json!({"key": "metadata.name", "operator": "In", "values": [node]});
        let selector = json!({"nodeSelectorTerms": [{"matchFields": [field]}]});
        self.change_claim(claim, |claim| {
            claim["status"]["allocation"] = json!({"devices": {"results": [result]}, "nodeSelector": selector});
        });
    }
}

#[test]
fn a_device_is_shared_by_what_claims_ask_for() {
    let mut world = World::new();
    world.node_with_driver("n", 1);
    for name in ["a", "b", "c", "d"] {
        world.pod_with_part(name, 25, json!({}));
    }
    world.reconcile();
    world.pod_with_part("e", 25, json!({}));
    world.reconcile();
    assert_eq!(world.names_of_bound(), ["a", "b", "c", "d"]);
    assert_eq!(world.allocated(), BTreeMap::from([("n/gpu-0".to_owned(), (100, 4 << 30))]));
    assert!(world.why_waiting("e").contains("25 % gpu-core"), "{}", world.why_waiting("e"));
    // Who is gone has its part until it is given back.
    world.delete("a");
    world.reconcile();
    assert!(!world.bound().contains_key("e"));
    world.collect_claims();
    world.reconcile();
    assert_eq!(world.names_of_bound(), ["b", "c", "d", "e"]);
}

#[test]
fn the_devices_of_a_claim_match_as_it_wants() {
    let mut world = World::new();
    world.node_with_driver("n", 4);
    let mut slice = world.slices["n"].clone();
    for (device, root) in slice["spec"]["devices"].as_array_mut().unwrap().iter_mut().zip(["a", "b", "c", "b"]) {
        device["attributes"]["resource.kubernetes.io/pcieRoot"] = json!({"string": root});
    }
    slice["spec"]["pool"]["generation"] = 1_000.into();
    world.mirror.resource_slice(typed::<ResourceSlice>(&slice));
    for name in ["near", "far"] {
        world.claim(name, 100, None, json!({"count": 2}));
        let constraint = json!([{"matchAttribute": "resource.kubernetes.io/pcieRoot"}]);
        world.change_claim(name, |claim| claim["spec"]["devices"]["constraints"] = constraint);
        world.pod_with_claim(name, name, json!({}));
        world.reconcile();
    }
    assert_eq!(world.names_of_bound(), ["near"]);
    assert_eq!(world.allocated().into_keys().collect::<Vec<_>>(), ["n/gpu-1", "n/gpu-3"]);
    assert!(world.why_waiting("far").contains("linked"), "{}", world.why_waiting("far"));
}

/// The file is what a manager reads: the device's share in whole units, and the parameters of the class before those of
/// the claim.
#[test]
fn an_allocation_is_as_managers_expect_it() {
    let mut world = World::new();
    world.node_with_driver("n", 1);
    let parameters = |fields: Value| {
        let mut parameters = json!({"apiVersion": "gpu.aliquot.dev/v1alpha1", "kind": "SliceConfig"});
        json_patch::merge(&mut parameters, &fields);
        json!({"driver": DRIVER, "parameters": parameters})
    };
    let class = json!({"metadata": {"name": "batch"}, "spec": {"config": [
        {"opaque": parameters(json!({"priorityClass": "batch", "coreLimitPercent": 100}))},
    ]}});
    world.mirror.device_class(typed::<DeviceClass>(&class));
    let request = json!({"deviceClassName": "batch", "capacity": {"requests": {"core": "24500m", "memory": "2Gi"}}});
    world.claim("c", 25, None, request);
    let config = json!([{"requests": ["gpu"], "opaque": parameters(json!({"coreLimitPercent": 60}))}]);
    world.change_claim("c", |claim| claim["spec"]["devices"]["config"] = config);
    world.pod_with_claim("a", "c", json!({}));
    world.reconcile();
    let file = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/claims/allocation.json");
    let expected: Value = serde_json::from_str(&std::fs::read_to_string(file).unwrap()).unwrap();
    assert_eq!(world.claims["c"]["status"]["allocation"], expected);
}

#[test]
fn a_pod_that_has_ended_has_its_part_until_it_is_given_back() {
    let mut world = World::new();
    world.node_with_driver("n", 1);
    world.pod_with_part("a", 100, json!({}));
    world.reconcile();
    world.pods.get_mut("a").unwrap()["status"]["phase"] = "Succeeded".into();
    world.show("a");
    world.pod_with_part("b", 100, json!({}));
    world.reconcile();
    assert_eq!(world.log, ["a to n"]);
    let uid = world.pods["a"]["metadata"]["uid"].as_str().unwrap().to_owned();
    world.end_use("a-gpu", &uid);
    world.reconcile();
    assert_eq!(world.log, ["a to n", "b to n"]);
}

#[test]
fn a_pod_that_is_gone_is_no_peer_while_it_has_its_part() {
    let mut world = World::new();
    world.node_with_driver("n", 1);
    let labels = json!({"app": "web"});
    world.pod_with_part("a", 50, json!({"metadata": {"labels": labels}}));
    world.reconcile();
    world.delete("a");
    let term = json!({"topologyKey": "metadata.name", "labelSelector": {"matchLabels": labels}});
    let near = json!({"podAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [term]}});
    world.pod_with_part("b", 50, json!({"spec": {"affinity": near}}));
    world.reconcile();
    assert_eq!(world.allocated(), BTreeMap::from([("n/gpu-0".to_owned(), (50, 1 << 30))]));
    assert!(world.why_waiting("b").contains("affinity"), "{}", world.why_waiting("b"));
}

#[test]
fn a_shared_claim_is_taken_once_and_keeps_its_users_together() {
    let mut world = World::new();
    world.node_with_driver("n", 1);
    world.node_with_driver("m", 1);
    world.claim("shared", 60, None, json!({}));
    for name in ["a", "b", "c"] {
        world.pod_with_claim(name, "shared", json!({}));
    }
    world.reconcile();
    let nodes: Vec<&str> = world.bound().into_values().collect();
    assert!(nodes.len() == 3 && nodes.iter().all(|node| *node == nodes[0]), "{nodes:?}");
    assert_eq!(world.allocated().into_values().collect::<Vec<_>>(), [(60, 1 << 30)]);
    // Also when the first of them is gone, and for the next leader.
    for _ in 0..2 {
        world.delete("a");
        world.collect_claims();
        world.pod_with_part("x", 60, json!({}));
        world.pod_with_part("y", 60, json!({}));
        world.reconcile();
        assert_eq!(world.bound().len(), 3, "{:?}", world.bound());
        world.delete("x");
        world.delete("y");
        world.collect_claims();
        world.change_leader();
    }
}

#[test]
fn who_shares_a_claim_is_not_evicted_by_a_fast_watch() {
    let mut world = World::new();
    world.node_with_driver("n", 1);
    world.claim("shared", 60, None, json!({}));
    world.pod_with_claim("a", "shared", json!({}));
    world.wait_for_writes();
    let Some(Write::Bind(binding)) = world.writes.pop() else { panic!("a is to be bound") };
    assert!(world.reserve(&binding));
    let pod = world.pods.get_mut("a").unwrap();
    pod["spec"]["nodeName"] = "n".into();
    pod["metadata"]["annotations"]["aliquot.dev/generation"] = binding.generation.to_string().into();
    // The watch shows that it is bound, and then the answer to the binding arrives.
    world.show("a");
    world.hear();
    world.poll();
    world.mirror.bound(&binding, Ok(()));
    world.pod_with_claim("b", "shared", json!({}));
    world.reconcile();
    assert_eq!((world.names_of_bound(), world.log.clone()), (vec!["a", "b"], vec!["b to n".to_owned()]));
}

#[test]
fn what_others_have_allocated_is_taken_off_exactly() {
    let mut world = World::new();
    world.node_with_driver("n", 1);
    world.claim("theirs", 1, None, json!({}));
    world.allocate_by_hand("theirs", "n", "gpu-0", 41, BYTES - (2 << 30));
    world.pod_with_part("a", 60, json!({}));
    world.reconcile();
    assert!(world.bound().is_empty());
    world.pod_with_part("b", 59, json!({}));
    world.reconcile();
    assert_eq!(world.names_of_bound(), ["b"]);
    world.pod_with_part("c", 1, json!({}));
    world.reconcile();
    assert_eq!(world.names_of_bound(), ["b"]);
    world.change_claim("theirs", |claim| claim["status"] = json!({}));
    world.reconcile();
    assert_eq!(world.names_of_bound(), ["b", "c"]);
}

#[test]
fn a_device_that_was_given_out_twice_is_seen() {
    let mut world = World::new();
    world.node_with_driver("n", 1);
    world.pod_with_part("a", 60, json!({}));
    world.reconcile();
    // More than there is: another scheduler did not know of it.
    world.claim("theirs", 1, None, json!({}));
    world.allocate_by_hand("theirs", "n", "gpu-0", 60, 1 << 30);
    world.hear();
    assert!(world.mirror.has_too_much("default", "a-gpu").is_some());
    // Only ours can be evicted.
    world.reconcile();
    assert_eq!(world.log, ["a to n", "a evicted"]);
    world.collect_claims();
    world.hear();
    assert!(world.mirror.has_too_much("default", "theirs").is_none());
}

#[test]
fn a_tainted_device_is_given_to_who_tolerates_it() {
    let mut world = World::new();
    world.node_with_driver("n", 1);
    let taint = json!({"taints": [{"key": "gpu.aliquot.dev/unhealthy", "effect": "NoSchedule"}]});
    world.publish("n", 1, taint);
    world.pod_with_part("a", 50, json!({}));
    world.claim("brave", 50, None, json!({"tolerations": [{"operator": "Exists"}]}));
    world.pod_with_claim("b", "brave", json!({}));
    world.reconcile();
    assert_eq!(world.names_of_bound(), ["b"]);
    world.publish("n", 1, json!({}));
    world.reconcile();
    assert_eq!(world.names_of_bound(), ["a", "b"]);
}

#[test]
fn several_devices_of_one_request_are_different_ones() {
    let mut world = World::new();
    world.node_with_driver("n", 2);
    world.claim("two", 60, None, json!({"count": 2}));
    world.pod_with_claim("a", "two", json!({}));
    world.claim("again", 60, None, json!({"count": 2}));
    world.pod_with_claim("b", "again", json!({}));
    world.reconcile();
    assert_eq!(world.names_of_bound(), ["a"]);
    assert_eq!(world.allocated().into_values().collect::<Vec<_>>(), [(60, 1 << 30), (60, 1 << 30)]);
}

#[test]
fn an_allocation_without_a_binding_is_given_back_by_the_next() {
    let mut world = World::new();
    world.node_with_driver("n", 1);
    world.pod_with_part("a", 60, json!({}));
    world.wait_for_writes();
    let Some(Write::Bind(binding)) = world.writes.pop() else { panic!("a is to be bound") };
    assert!(world.reserve(&binding));
    world.change_leader();
    world.pod_with_part("b", 60, json!({}));
    world.reconcile();
    assert_eq!(world.log[0], "a-gpu given back");
    assert_eq!(world.bound().len(), 1);
    assert_eq!(world.allocated().into_values().collect::<Vec<_>>(), [(60, 1 << 30)]);
}

#[test]
fn a_gang_with_claims_is_bound_as_a_whole() {
    let mut world = World::new();
    world.node_with_driver("n", 1);
    let gang = json!({"metadata": {"annotations": {"aliquot.dev/gang": "g", "aliquot.dev/gang-size": "2"}}});
    world.pod_with_part("a", 60, gang.clone());
    world.pod_with_part("b", 60, gang);
    world.reconcile();
    assert!(world.bound().is_empty() && world.allocated().is_empty());
    world.node_with_driver("m", 1);
    world.reconcile();
    assert_eq!(world.names_of_bound(), ["a", "b"]);
}

#[test]
fn what_keeps_a_claim_from_being_allocated_is_named() {
    let mut world = World::new();
    world.node_with_driver("n", 1);
    world.claim("colour", 50, None, json!({"selectors": [{"cel": {"expression": "device.colour == 1"}}]}));
    world.claim("class", 50, None, json!({"deviceClassName": "none"}));
    world.claim("all", 50, None, json!({"allocationMode": "All"}));
    world.claim("foreign", 50, None, json!({}));
    for name in ["colour", "class", "all", "missing"] {
        world.pod_with_claim(name, name, json!({}));
    }
    let template = json!({"resourceClaims": [{"name": "gpu", "resourceClaimTemplateName": "t"}]});
    world.pod("unmade", 0, json!({"spec": template}));
    let status = json!({"resourceClaimStatuses": [{"name": "gpu", "resourceClaimName": "foreign"}]});
    world.pod("other", 0, json!({"spec": template, "status": status}));
    let two = json!([{"name": "x", "resourceClaimName": "x"}, {"name": "y", "resourceClaimName": "y"}]);
    world.claim("x", 50, None, json!({}));
    world.claim("y", 50, None, json!({}));
    let both = json!([{"name": "main", "resources": {"claims": [{"name": "x"}, {"name": "y"}]}}]);
    world.pod_with_claim("several", "x", json!({"spec": {"resourceClaims": two, "containers": both}}));
    world.claim_of_several("overlap", &[("a", 10), ("b", 10)], json!([]));
    let some = json!([
        {"name": "main", "resources": {"claims": [{"name": "gpu"}]}},
        {"name": "side", "resources": {"claims": [{"name": "gpu", "request": "b"}]}},
    ]);
    world.pod_with_claim("overlap", "overlap", json!({"spec": {"containers": some}}));
    world.claim("z", 50, None, json!({}));
    world.pod("mixed", 30, json!({"spec": {"resourceClaims": [{"name": "z", "resourceClaimName": "z"}]}}));
    world.reconcile();
    for (name, text) in [
        ("colour", "device.colour == 1"),
        ("class", "there is no DeviceClass \"none\""),
        ("all", "allocationMode \"All\""),
        ("missing", "there is no ResourceClaim \"missing\""),
        ("unmade", "has not been made yet"),
        ("other", "it was not made for this pod"),
        ("several", "container \"main\" has the claims \"x\" and \"y\""),
        ("overlap", "containers \"main\" and \"side\" have some requests of the claim \"gpu\" in common"),
        ("mixed", "in one of both ways"),
    ] {
        assert!(world.why_waiting(name).contains(text), "{name}: {}", world.why_waiting(name));
    }
    assert!(world.bound().is_empty());
}

#[test]
fn units_are_not_given_out_by_a_driver() {
    let mut world = World::new();
    world.node_with_driver("n", 1);
    world.pod("units", 30, json!({}));
    world.reconcile();
    assert!(world.bound().is_empty());
    world.node("p", 1);
    world.reconcile();
    assert_eq!(world.bound()["units"], "p");
}

/// Whatever happens in whichever order, no device is given out twice, and nothing is left.
#[test]
fn random_changes_never_give_a_device_out_twice() {
    for seed in 0..40_u64 {
        let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15).wrapping_add(1);
        let mut random = |below: u64| {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            state % below
        };
        let mut world = World::new();
        for node in ["n", "m"] {
            world.node_with_driver(node, 2);
        }
        world.claim("shared", 30, None, json!({}));
        for step in 0..60 {
            match random(10) {
                9 => {
                    let (name, claim) = (format!("m{step}"), format!("m{step}-gpus"));
                    world.claim_of_several(&claim, &[("a", 40), ("b", 70)], json!([]));
                    world.pod_with_claim(&name, &claim, json!({}));
                }
                0..=2 => {
                    let name = format!("p{step}");
                    world.pod_with_part(&name, [20, 50, 100][random(3) as usize], json!({}));
                }
                3 => world.pod_with_claim(&format!("s{step}"), "shared", json!({})),
                4 => {
                    let names: Vec<String> = world.pods.keys().cloned().collect();
                    if let Some(name) = names.get(random(names.len().max(1) as u64) as usize) {
                        world.delete(name);
                    }
                }
                5 => world.collect_claims(),
                6 => world.change_leader(),
                7 => {
                    // A leader dies with a claim allocated, and its pod not bound.
                    world.hear();
                    world.poll();
                    if let Some(Write::Bind(binding)) = world.writes.pop() {
                        world.reserve(&binding);
                    }
                    world.change_leader();
                }
                _ => world.reconcile(),
            }
            for (device, (core, memory)) in world.allocated() {
                assert!(core <= 100 && memory <= BYTES, "seed {seed}, step {step}: {device} {core} {memory}");
            }
        }
        let errors: Vec<&String> = world.log.iter().filter(|line| line.starts_with("error")).collect();
        assert!(errors.is_empty(), "seed {seed}: {errors:?}");
        for name in world.pods.keys().cloned().collect::<Vec<String>>() {
            world.delete(&name);
        }
        world.collect_claims();
        world.reconcile();
        // All is free again.
        for number in 0..4 {
            world.pod_with_part(&format!("whole{number}"), 100, json!({}));
        }
        world.reconcile();
        assert_eq!(world.bound().len(), 4, "seed {seed}: {:?}", world.log);
    }
}

#[test]
fn what_other_schedulers_claims_lack_is_told() {
    let mut world = World::new();
    world.node_with_driver("n", 1);
    world.node_with_driver("m", 2);
    let theirs = || json!({"spec": {"schedulerName": "default-scheduler"}});
    let told = |world: &mut World| {
        world.reconcile();
        world.mirror.shortages().into_iter().map(|of| (of.name, of.text)).collect::<Vec<_>>()
    };
    world.claim("small", 25, None, json!({"capacity": {"requests": {"core": "25", "memory": "70Gi"}}}));
    world.allocate_by_hand("small", "n", "gpu-0", 25, 70 << 30);
    for (claim, device) in [("x", "gpu-0"), ("y", "gpu-1")] {
        world.claim(claim, 60, None, json!({}));
        world.allocate_by_hand(claim, "m", device, 60, 1 << 30);
    }
    world.claim("c", 50, None, json!({"capacity": {"requests": {"core": "50", "memory": "20Gi"}}}));
    assert_eq!(told(&mut world), [], "nobody waits for it");
    world.pod_with_claim("a", "c", theirs());
    let asks = "the claim asks for core 50 and memory 20Gi of a device of DeviceClass \"gpu.aliquot.dev\", and no node has \
                that free; nearest: ";
    let free = "m/gpu-0 has core 40 and memory 79Gi free, m/gpu-1 has core 40 and memory 79Gi free, n/gpu-0 has core 75 \
                and memory 10Gi free";
    assert_eq!(told(&mut world), [("c".to_owned(), format!("{asks}{free}"))]);
    // Two devices of one node are needed, and it has one.
    world.change_claim("x", |claim| claim["status"] = json!({}));
    assert_eq!(told(&mut world), []);
    world.change_claim("c", |claim| claim["spec"]["devices"]["requests"][0]["exactly"]["count"] = 2.into());
    let [(_, text)] = told(&mut world).try_into().expect("one claim");
    assert!(text.ends_with("and no node has that free; nearest is m, where 1 of the 2 are free"), "{text}");
    // More than any device has.
    let much = json!({"requests": {"core": "100", "memory": "900Gi"}});
    world.change_claim("c", |claim| claim["spec"]["devices"]["requests"][0]["exactly"]["capacity"] = much);
    let [(_, text)] = told(&mut world).try_into().expect("one claim");
    assert!(text.starts_with("no node has a device of DeviceClass \"gpu.aliquot.dev\""), "{text}");
    // Pods of this scheduler are told by their own conditions, and gates and other drivers' devices are not its matter.
    world.delete("a");
    world.pod_with_claim("ours", "c", json!({}));
    let gate = json!({"spec": {"schedulerName": "default-scheduler", "schedulingGates": [{"name": "later"}]}});
    world.pod_with_claim("gated", "c", gate);
    assert_eq!(told(&mut world), []);
}
