//! Pods with resource claims.

mod admin;
mod all_devices;
mod allocation;
mod both_drivers;
mod counters;
mod extended;
mod given_back;
mod other_drivers;
mod others;
mod places;
mod pod_groups;
mod prioritised;
mod problems;
mod random;
mod readiness;
mod searches;
mod shares;
mod taint_rules;

use std::collections::BTreeMap;

use jiff::Timestamp;
use k8s_openapi::api::resource::v1::{DeviceClass, ResourceSlice};
use serde_json::{Value, json};

use super::{Binding, World, typed};
use crate::dra::{ClaimFacts, DRIVER, is_group};
use crate::mirror::{Access, Reservation};
use crate::reservation::as_written;

/// A driver of network cards, which is not ours.
const NIC: &str = "nic.example.com";

/// Bytes of each device.
const BYTES: u64 = 80 << 30;

impl World {
    /// A leader that begins sees all that the API server has of devices and claims.
    pub(super) fn show_device_claims(&mut self) {
        for driver in [DRIVER, NIC] {
            self.class(driver, &format!("device.driver == {driver:?}"));
        }
        for slice in self.slices.values() {
            self.mirror.resource_slice(typed::<ResourceSlice>(slice));
        }
        for claim in self.claims.values() {
            self.mirror.resource_claim(ClaimFacts::of(typed(claim)).unwrap());
        }
        self.mirror.resource_claims_are(Access::Read);
    }

    /// A class of the devices for which an expression holds.
    fn class(&mut self, name: &str, expression: &str) {
        let class = json!({"metadata": {"name": name}, "spec": {"selectors": [{"cel": {"expression": expression}}]}});
        self.mirror.device_class(typed::<DeviceClass>(&class));
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

    /// A pod says that it is in a gang of so many.
    pub(super) fn join_gang(&mut self, pod: &str, gang: &str, size: usize) {
        let annotations = json!({"aliquot.dev/gang": gang, "aliquot.dev/gang-size": size.to_string()});
        self.pods.get_mut(pod).unwrap()["metadata"]["annotations"] = annotations;
        self.show(pod);
    }

    pub(super) fn change_claim(&mut self, name: &str, change: impl FnOnce(&mut Value)) {
        self.made += 1;
        let claim = self.claims.get_mut(name).unwrap();
        change(claim);
        claim["metadata"]["resourceVersion"] = self.made.to_string().into();
        self.mirror.resource_claim(ClaimFacts::of(typed(claim)).unwrap());
    }

    /// Writes what a binding says of claims. Returns whether all of it was in time.
    pub(super) fn reserve(&mut self, binding: &Binding) -> bool {
        let now = Timestamp::from_millisecond(self.now_ms.cast_signed()).unwrap();
        for Reservation { claim, user, allocation, to_make } in &binding.reservations {
            let made = to_make.as_ref().map(|asked| self.make_extended(binding, &claim.name, asked));
            let claim = made.as_ref().unwrap_or(claim);
            let known = self.claims.get(&claim.name).map(|known| &known["metadata"]["resourceVersion"]);
            if known != Some(&json!(claim.resource_version)) {
                return false;
            }
            let users = Reservation::users_with(&claim.reserved_for, user);
            self.change_claim(&claim.name, |claim| {
                if let Some(allocation) = allocation.clone() {
                    claim["status"]["allocation"] = json!(as_written(allocation, now).unwrap());
                }
                claim["status"]["reservedFor"] = json!(users);
            });
        }
        true
    }

    /// Takes back what was written for a pod that was not bound.
    pub(super) fn give_back(&mut self, binding: &Binding) {
        // What a PodGroup has is left over if no pod has it.
        for Reservation { claim, to_make, .. } in binding.reservations.iter().filter(|of| !is_group(&of.user)) {
            if to_make.is_some() {
                self.remove_claim(&claim.name);
            } else if self.claims.contains_key(&claim.name) {
                self.end_use(&claim.name, &binding.uid);
            }
        }
    }

    fn remove_claim(&mut self, name: &str) {
        if self.claims.remove(name).is_some() {
            self.mirror.resource_claim_gone("default", name);
        }
    }

    pub(super) fn give_back_left_over(&mut self) {
        let overdue = self.mirror.newly_overdue(self.now_ms.cast_signed());
        if !overdue.is_empty() {
            self.mirror.note_overdue(overdue);
            self.hear();
        }
        for of in self.mirror.left_over_claims() {
            self.log.push(format!("{} given back", of.claim.name));
            match of.claim.is_of_extended_resources {
                true => self.remove_claim(&of.claim.name),
                false => of.users.iter().for_each(|user| self.end_use(&of.claim.name, user)),
            }
        }
    }

    /// Removes a user from a claim, and with the last user the allocation.
    fn end_use(&mut self, claim: &str, uid: &str) {
        self.change_claim(claim, |claim| {
            // A claim that was never written has no status.
            let Some(status) = claim["status"].as_object_mut() else { return };
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
        let objects = self.pods.values().chain(self.gangs.values());
        let there: Vec<Value> = objects.map(|object| object["metadata"]["uid"].clone()).collect();
        let users = |claim: &Value| claim["status"]["reservedFor"].as_array().cloned().unwrap_or_default();
        let all = self.claims.iter().flat_map(|(name, claim)| {
            let gone = users(claim).into_iter().filter(|user| !there.contains(&user["uid"]));
            gone.map(|user| (name.clone(), user["uid"].as_str().unwrap().to_owned()))
        });
        for (name, uid) in all.collect::<Vec<_>>() {
            self.end_use(&name, &uid);
        }
    }

    /// What is allocated of each device of our driver: percent of its time, and bytes.
    fn allocated(&self) -> BTreeMap<String, (u64, u64)> {
        let mut allocated: BTreeMap<String, (u64, u64)> = BTreeMap::new();
        for claim in self.claims.values() {
            let results = claim["status"]["allocation"]["devices"]["results"].as_array().into_iter().flatten();
            for result in results.filter(|result| result["driver"] == DRIVER) {
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
