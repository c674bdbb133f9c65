//! Pods that the scheduler places: see `deploy/kubernetes/scheduler`.

use std::collections::BTreeMap;

use aliquot_deployment::directory;
use aliquot_harness::wait;
use serde_json::{Value, json};

use super::Tests;
use super::cluster::Cluster;
use super::holder::HELD_BYTES;
use super::manager::NAMESPACE;
use super::objects::holds;

const DEPLOYMENT: &str = "deployment/aliquot-scheduler";

/// The scheduler's replicas, for as long as this is kept.
pub(crate) struct Scheduler<'a> {
    cluster: &'a Cluster,
    objects: Value,
}

impl Drop for Scheduler<'_> {
    fn drop(&mut self) {
        // What failed is looked at by whoever runs this.
        if !std::thread::panicking() {
            let delete = ["delete", "--ignore-not-found", "--filename=-"];
            self.cluster.kubectl(&delete, &self.objects.to_string());
        }
    }
}

impl Tests<'_> {
    pub(crate) fn deploy_scheduler(&self) -> Scheduler<'_> {
        let directory = directory().join("scheduler");
        let rendered = self.cluster.kubectl(&["kustomize", &directory.to_string_lossy()], "");
        let mut objects: Vec<Value> = serde_saphyr::from_multiple(&rendered).unwrap();
        for object in objects.iter_mut().filter(|object| object["kind"] == "Deployment") {
            let container = &mut object["spec"]["template"]["spec"]["containers"][0];
            container["image"] = self.manager.image().reference().into();
            container["imagePullPolicy"] = "Never".into();
        }
        self.cluster.apply(&objects);
        let arguments = ["rollout", "status", DEPLOYMENT, "--namespace", NAMESPACE, "--timeout=180s"];
        self.cluster.kubectl(&arguments, "");
        let objects = json!({"apiVersion": "v1", "kind": "List", "items": objects});
        Scheduler { cluster: self.cluster, objects }
    }

    /// A pod for the scheduler that asks for so much of a device, and holds memory when it runs.
    fn scheduled(&self, name: &str, core: u64, more: &Value) {
        let mut objects = self.asks(name, &holds(HELD_BYTES), core, 64);
        for object in &mut objects {
            object["spec"]["schedulerName"] = "aliquot".into();
            // With 0 the API server forgets a pod before kubelet has ended it, and kubelet refuses the next one.
            object["spec"]["terminationGracePeriodSeconds"] = 1.into();
            json_patch::merge(object, more);
        }
        self.namespace.apply(&objects);
    }

    /// The percent of each device's time that running slices have, as the managers say.
    fn given(&self) -> BTreeMap<String, u64> {
        let mut given = BTreeMap::new();
        for slice in self.manager.slices() {
            for part in slice["parts"].as_array().unwrap() {
                *given.entry(part["device_uuid"].as_str().unwrap().to_owned()).or_default() +=
                    part["core_request_percent"].as_u64().unwrap();
            }
        }
        given
    }

    fn waits_with(&self, name: &str, reason: &str) -> String {
        wait::until("the pod says why it waits", || {
            let pod = self.namespace.get("pod", name);
            let conditions = pod["status"]["conditions"].as_array()?.clone();
            let condition = conditions.into_iter().find(|of| of["type"] == "PodScheduled")?;
            let is_said = condition["status"] == "False" && condition["reason"] == reason;
            is_said.then(|| condition["message"].as_str().unwrap_or_default().to_owned())
        })
    }

    pub(crate) fn halves_fill_all_devices_and_one_more_waits(&self) {
        let names: Vec<String> = (0..2 * self.devices).map(|number| format!("half-{number}")).collect();
        names.iter().for_each(|name| self.scheduled(name, 50, &json!({})));
        names.iter().for_each(|name| self.namespace.wait_for_output(name, "held"));
        let given = self.given();
        assert!(given.len() == self.devices && given.values().all(|percent| *percent == 100), "{given:?}");
        for name in &names {
            let pod = self.namespace.get("pod", name);
            let decision = pod["metadata"]["annotations"]["aliquot.dev/devices"].as_str().unwrap().to_owned();
            let slice = self.slice_of(name);
            let device = slice["parts"][0]["device_uuid"].as_str().unwrap();
            assert!(decision.contains(device), "decided {decision}, and has {device}");
        }
        self.scheduled("one-more", 50, &json!({}));
        let why = self.waits_with("one-more", "Unschedulable");
        println!("ok: one more waits: {why}");
        self.namespace.delete("pod", &names[0]);
        self.namespace.wait_for_output("one-more", "held");
        println!("ok: halves fill all devices, each on the one that was decided");
        self.namespace.delete_all("pod");
    }

    pub(crate) fn a_gang_starts_when_all_of_it_has_room(&self) {
        self.scheduled("in-the-way", 10, &json!({}));
        self.namespace.wait_for_output("in-the-way", "held");
        let size = self.devices.to_string();
        let gang = json!({"metadata": {"annotations": {"aliquot.dev/gang": "g", "aliquot.dev/gang-size": size}}});
        let names: Vec<String> = (0..self.devices).map(|number| format!("member-{number}")).collect();
        names.iter().for_each(|name| self.scheduled(name, 100, &gang));
        names.iter().for_each(|name| _ = self.waits_with(name, "Unschedulable"));
        self.namespace.delete("pod", "in-the-way");
        names.iter().for_each(|name| self.namespace.wait_for_output(name, "held"));
        println!("ok: a gang of {size} started when all of it had room");
        self.namespace.delete_all("pod");
    }

    pub(crate) fn another_replica_goes_on_when_the_leader_is_killed(&self) {
        let lease = ["get", "lease", "aliquot-scheduler", "--namespace", NAMESPACE, "--output=json"];
        let lease: Value = serde_json::from_str(&self.cluster.kubectl(&lease, "")).unwrap();
        let holder = lease["spec"]["holderIdentity"].as_str().unwrap();
        let pods = self.cluster.list("pods", Some(NAMESPACE));
        let names = pods.iter().filter_map(|pod| pod["metadata"]["name"].as_str());
        let leader = names.into_iter().find(|name| holder.starts_with(name)).expect("the leader is a pod");
        let names: Vec<String> = (0..4 * self.devices).map(|number| format!("quarter-{number}")).collect();
        for (number, name) in names.iter().enumerate() {
            self.scheduled(name, 25, &json!({}));
            if number == names.len() / 2 {
                let kill = ["delete", "pod", leader, "--namespace", NAMESPACE, "--grace-period=0", "--force"];
                self.cluster.kubectl(&kill, "");
            }
        }
        names.iter().for_each(|name| self.namespace.wait_for_output(name, "held"));
        let given = self.given();
        assert!(given.len() == self.devices && given.values().all(|percent| *percent == 100), "{given:?}");
        println!("ok: the leader was killed among {} pods, and each has its part", names.len());
        self.namespace.delete_all("pod");
    }

    pub(crate) fn the_urgent_gets_the_room_of_others(&self) {
        let names: Vec<String> = (0..self.devices).map(|number| format!("train-{number}")).collect();
        let class = |name: &str| json!({"spec": {"priorityClassName": name}});
        names.iter().for_each(|name| self.scheduled(name, 100, &class("train")));
        names.iter().for_each(|name| self.namespace.wait_for_output(name, "held"));
        self.scheduled("urgent", 100, &class("inference"));
        self.namespace.wait_for_output("urgent", "held");
        // Its containers have ended before its object is gone.
        wait::until_true("one was evicted", || self.namespace.list("pods").len() == self.devices);
        println!("ok: an urgent pod had the room of another one");
        self.namespace.delete_all("pod");
    }
}
