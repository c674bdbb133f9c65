//! GPUs in MIG mode that are divided as claims need it.

use std::collections::BTreeSet;

use aliquot_dialects::quantity;
use aliquot_harness::wait;
use serde_json::{Value, json};

use super::Tests;
use super::holder::{HELD_BYTES, Holder};
use super::objects::{claim_template, holds, pod};

/// A MIG profile, and the memory of its instances.
struct Profile {
    name: String,
    memory_bytes: u64,
}

/// A node with GPUs in MIG mode.
struct Divided {
    node: String,
    gpus: usize,
    largest: Profile,
    smallest: Profile,
}

impl Tests<'_> {
    pub(crate) fn an_instance_is_made_for_a_claim_and_destroyed_with_it(&self) {
        let Some(Divided { node, gpus, largest, smallest }) = self.divided() else {
            println!("not run: instances made for claims, because no GPU is in MIG mode");
            return;
        };
        self.start("whole", &node, &largest, gpus);
        let whole = Holder::of(self, "whole");
        self.has_instances("whole", &largest, gpus);
        self.instances_there_are(gpus);

        for name in ["small", "small-too"] {
            self.start(name, &node, &smallest, 1);
            self.waits_for_room(name);
        }
        self.manager.restart();
        whole.runs_on(self);
        println!("ok: an instance {} was made for a claim; two that asked for {} waited", largest.name, smallest.name);

        self.namespace.delete("pod", "whole");
        let uuids = ["small", "small-too"].map(|name| {
            Holder::of(self, name);
            self.has_instances(name, &smallest, 1)
        });
        assert!(uuids[0].is_disjoint(&uuids[1]), "both have {:?}", uuids[0]);
        self.instances_there_are(2);
        println!("ok: when it was destroyed, two instances {} were made in its place", smallest.name);
        for name in ["small", "small-too"] {
            self.namespace.delete("pod", name);
        }
        self.manager.have_no_slices("their slices are gone");
        self.instances_there_are(0);
        println!("ok: no instance is left");
    }

    /// A node that offers instances which are made when they are given to a claim. Until then they are devices that
    /// exclude each other.
    fn divided(&self) -> Option<Divided> {
        let is_ours = |slice: &Value| slice["spec"]["driver"] == "gpu.aliquot.dev";
        let slices: Vec<Value> = self.cluster.list("resourceslices", None).into_iter().filter(is_ours).collect();
        let devices = |slice: &Value| slice["spec"]["devices"].as_array().cloned().unwrap_or_default();
        let is_offered = |device: &Value| !device["consumesCounters"].is_null();
        let node = slices.iter().find(|slice| devices(slice).iter().any(is_offered))?["spec"]["nodeName"].clone();
        let of_node = slices.iter().filter(|slice| slice["spec"]["nodeName"] == node).flat_map(devices);
        let offered: Vec<Value> = of_node.filter(is_offered).collect();
        let profiles = || offered.iter().filter_map(profile);
        let parents: BTreeSet<String> =
            offered.iter().map(|device| device["attributes"]["parentUUID"]["string"].to_string()).collect();
        Some(Divided {
            node: node.as_str()?.to_owned(),
            gpus: parents.len(),
            largest: profiles().max_by_key(|profile| profile.memory_bytes)?,
            smallest: profiles().min_by_key(|profile| profile.memory_bytes)?,
        })
    }

    /// A pod on a node with a claim of its own for so many instances of this profile.
    fn start(&self, name: &str, node: &str, profile: &Profile, count: usize) {
        let is_it = format!("device.attributes[\"gpu.aliquot.dev\"].migProfile == {:?}", profile.name);
        let requests = json!([{"name": "instances", "exactly": {
            "deviceClassName": "mig.gpu.aliquot.dev", "selectors": [{"cel": {"expression": is_it}}],
            "allocationMode": "ExactCount", "count": count,
        }}]);
        let claims = json!({"resourceClaimTemplateName": name});
        let mut pod = pod(name, self.image, &holds(HELD_BYTES), &claims);
        let there = json!([{"matchFields": [{"key": "metadata.name", "operator": "In", "values": [node]}]}]);
        pod["spec"]["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"] =
            json!({"nodeSelectorTerms": there});
        self.namespace.apply(&[claim_template(name, &requests, &json!([])), pod]);
    }

    /// The UUIDs of the instances that the pod has: so many of this profile, each as a whole.
    fn has_instances(&self, pod: &str, profile: &Profile, count: usize) -> BTreeSet<String> {
        let slice = self.slice_of(pod);
        let parts = slice["parts"].as_array().unwrap();
        let is_whole = |part: &Value| {
            part["core_request_percent"] == 100
                && part["memory_limit_bytes"].as_u64().is_some_and(|bytes| bytes >= profile.memory_bytes)
        };
        assert!(parts.len() == count && parts.iter().all(is_whole), "{slice:#}");
        parts.iter().filter_map(|part| part["device_uuid"].as_str().map(str::to_owned)).collect()
    }

    fn waits_for_room(&self, pod: &str) {
        let reason = self.why_it_waits(pod);
        assert_eq!(self.namespace.get("pod", pod)["status"]["phase"], "Pending");
        println!("ok: {pod} waits: {reason}");
    }

    /// Checks how many instances there really are, on a simulated machine, where that can be seen.
    fn instances_there_are(&self, count: usize) {
        let Some(gpu) = self.gpu else { return };
        wait::until_true(&format!("there are {count} instances"), || {
            (0..gpu.config().devices.len()).filter(|&device| gpu.machine().has_gpu_instance(device)).count() == count
        });
    }
}

fn profile(device: &Value) -> Option<Profile> {
    let name = device["attributes"]["migProfile"]["string"].as_str()?.to_owned();
    let memory_bytes = quantity::whole(device["capacity"]["memory"]["value"].as_str()?).ok()?;
    Some(Profile { name, memory_bytes })
}
