//! Extended resources that a device class stands for.

use std::collections::BTreeSet;

use aliquot_harness::{MIB, wait};
use serde_json::{Value, json};

use super::Tests;
use super::objects::{container, holds, pod_with};

const RESOURCE: &str = "test.aliquot.dev/gpu";
const CLASS: &str = "aliquot-test-whole";

impl Tests<'_> {
    /// Each node has a pod with a container for each device. One more pod waits until one of these pods ends.
    pub(crate) fn a_class_gives_devices_by_their_number(&self) {
        if !self.cluster.has_feature("DRAExtendedResource") {
            println!("not run: resources of a device class, because the feature DRAExtendedResource is off");
            return;
        }
        self.cluster.apply(&[json!({
            "apiVersion": "resource.k8s.io/v1", "kind": "DeviceClass", "metadata": {"name": CLASS},
            "spec": {
                "extendedResourceName": RESOURCE,
                "selectors": [{"cel": {"expression": "device.driver == 'gpu.aliquot.dev'"}}],
            },
        })]);
        let nodes = self.cluster.nodes().len();
        let of_a_node = self.devices / nodes;
        let names: Vec<String> = (0..nodes).map(|number| format!("one-each-{number}")).collect();
        for name in &names {
            self.namespace.apply(&[self.of_class(name, &vec![1; of_a_node])]);
        }
        for name in &names {
            self.namespace.wait_for_output(name, "held");
        }
        wait::until_true("each container has a device of its own", || {
            let slices = self.manager.slices();
            let holders: BTreeSet<[String; 2]> = slices.iter().map(holder).collect();
            let devices = self.given();
            holders.len() == self.devices && devices.len() == self.devices && devices.values().all(|core| *core == 100)
        });
        let claims = self.namespace.list("resourceclaim");
        assert_eq!(claims.len(), nodes, "one claim for each pod: {claims:#?}");

        self.namespace.apply(&[self.of_class("all", &[of_a_node])]);
        let why = self.waits_with("all", "Unschedulable");
        println!("ok: each of {} containers had a device of its own, and another pod waits: {why}", self.devices);
        self.namespace.delete("pod", &names[0]);
        self.namespace.wait_for_output("all", "held");
        self.namespace.delete_all("pod");
        wait::until_true("the claims are gone with their pods", || self.namespace.list("resourceclaim").is_empty());
        println!("ok: one container had all of a node then, and nothing is left");
        self.cluster.kubectl(&["delete", "deviceclass", CLASS], "");
    }

    /// A pod with one container for each entry of `devices`, which has so many devices of the class.
    fn of_class(&self, name: &str, devices: &[usize]) -> Value {
        let resources = |count: usize| json!({"limits": {RESOURCE: count.to_string()}});
        let mut pod = pod_with(name, self.image, &holds(16 * MIB), &resources(devices[0]));
        let others = devices.iter().enumerate().skip(1).map(|(number, count)| {
            container(&format!("other-{number}"), self.image, &holds(16 * MIB), &resources(*count))
        });
        pod["spec"]["containers"].as_array_mut().unwrap().extend(others);
        pod["spec"]["schedulerName"] = "aliquot".into();
        pod["spec"]["terminationGracePeriodSeconds"] = 1.into();
        pod
    }
}

/// The pod and the container that a slice belongs to.
fn holder(slice: &Value) -> [String; 2] {
    ["pod", "container"].map(|name| slice["consumers"][0][name].as_str().unwrap_or_default().to_owned())
}
