//! The scheduler's replicas, and pods that name the scheduler: see `deploy/kubernetes/scheduler`.

use std::collections::BTreeMap;
use std::process::Command;

use aliquot_harness::{artifacts, run, wait};
use serde_json::{Value, json};

use super::Tests;
use super::cluster::Cluster;
use super::holder::HELD_BYTES;
use super::manager::{Mode, NAMESPACE};
use super::objects::holds;

pub(crate) const DEPLOYMENT: &str = "deployment/aliquot-scheduler";

/// The scheduler's replicas, or objects that are added to them. Dropping this removes them, unless the test fails.
pub(crate) struct Scheduler<'a> {
    cluster: &'a Cluster,
    objects: Value,
}

impl Drop for Scheduler<'_> {
    fn drop(&mut self) {
        // After a failure they are kept, so that a developer can look at them.
        if !std::thread::panicking() {
            let delete = ["delete", "--ignore-not-found", "--filename=-"];
            self.cluster.kubectl(&delete, &self.objects.to_string());
        }
    }
}

impl Tests<'_> {
    /// Deploys the scheduler with these components laid over it, and waits until its replicas serve.
    pub(crate) fn deploy_scheduler(&self, components: &[&str]) -> Scheduler<'_> {
        let mut objects = self.cluster.kustomized(&["scheduler"], components);
        objects.iter_mut().for_each(|object| self.manager.adapt(object));
        self.cluster.apply(&objects);
        self.wait_for_scheduler();
        let objects = json!({"apiVersion": "v1", "kind": "List", "items": objects});
        Scheduler { cluster: self.cluster, objects }
    }

    pub(crate) fn wait_for_scheduler(&self) {
        let arguments = ["rollout", "status", DEPLOYMENT, "--namespace", NAMESPACE, "--timeout=180s"];
        self.cluster.kubectl(&arguments, "");
    }

    /// Has the managers report to the scheduler, by a component that is laid over both, and waits until both serve.
    pub(crate) fn have_managers_report(&self) -> Scheduler<'_> {
        let mut objects = self.cluster.kustomized(&[self.mode.directory(), "scheduler"], &["reports"]);
        objects.iter_mut().for_each(|object| self.manager.adapt(object));
        self.cluster.apply(&objects);
        self.wait_for_scheduler();
        self.manager.wait();
        objects.retain(|object| object["metadata"]["name"] == "aliquot-scheduler-reports");
        let objects = json!({"apiVersion": "v1", "kind": "List", "items": objects});
        Scheduler { cluster: self.cluster, objects }
    }

    /// A pod for the scheduler that asks for so much of a device, and holds memory when it runs.
    pub(crate) fn scheduled(&self, name: &str, core: u64, more: &Value) {
        let mut objects = self.asks(name, &holds(HELD_BYTES), core, 64);
        for pod in objects.iter_mut().filter(|object| object["kind"] == "Pod") {
            pod["spec"]["schedulerName"] = "aliquot".into();
            // With 0 the API server forgets a pod before kubelet has ended it, and kubelet refuses the next one.
            pod["spec"]["terminationGracePeriodSeconds"] = 1.into();
            json_patch::merge(pod, more);
        }
        self.namespace.apply(&objects);
    }

    /// Removes all pods of the namespace, and their claims if they have some.
    pub(crate) fn clear(&self) {
        self.namespace.delete_all("pod");
        if self.mode == Mode::Claims {
            self.namespace.delete_all("resourceclaim");
        }
    }

    /// The percent of each device's time that running slices have, as the managers report it, by manager and device.
    pub(crate) fn given(&self) -> BTreeMap<[String; 2], u64> {
        let mut given = BTreeMap::new();
        for slice in self.manager.slices() {
            for part in slice["parts"].as_array().unwrap() {
                let device = [&slice["manager"], &part["device_uuid"]].map(|name| name.as_str().unwrap().to_owned());
                *given.entry(device).or_default() += part["core_request_percent"].as_u64().unwrap();
            }
        }
        given
    }

    /// Whether all devices are given out, and none twice.
    pub(crate) fn all_is_given(&self) -> bool {
        let given = self.given();
        assert!(given.values().all(|percent| *percent <= 100), "{given:?}");
        given.len() == self.devices && given.values().all(|percent| *percent == 100)
    }

    /// Waits until the pod says that it waits, for this reason, and returns the message.
    pub(crate) fn waits_with(&self, name: &str, reason: &str) -> String {
        wait::until("the pod says why it waits", || {
            let pod = self.namespace.get("pod", name);
            let conditions = pod["status"]["conditions"].as_array()?.clone();
            let condition = conditions.into_iter().find(|of| of["type"] == "PodScheduled")?;
            let is_said = condition["status"] == "False" && condition["reason"] == reason;
            is_said.then(|| condition["message"].as_str().unwrap_or_default().to_owned())
        })
    }

    /// Kills the replica that leads without giving it time to end, as when its node fails.
    pub(crate) fn kill_leader(&self) {
        let lease = ["get", "lease", "aliquot-scheduler", "--namespace", NAMESPACE, "--output=json"];
        let lease: Value = serde_json::from_str(&self.cluster.kubectl(&lease, "")).unwrap();
        let holder = lease["spec"]["holderIdentity"].as_str().unwrap();
        let pods = self.cluster.list("pods", Some(NAMESPACE));
        let names = pods.iter().filter_map(|pod| pod["metadata"]["name"].as_str());
        let leader = names.into_iter().find(|name| holder.starts_with(name)).expect("the leader is a pod");
        let kill = ["delete", "pod", leader, "--namespace", NAMESPACE, "--grace-period=0", "--force"];
        self.cluster.kubectl(&kill, "");
    }

    /// Runs the plugin of kubectl with these arguments in the namespace, and returns its output.
    pub(crate) fn plugin(&self, arguments: &[&str]) -> String {
        let mut plugin = Command::new(artifacts::kubectl_plugin());
        plugin.args(arguments).args(["--namespace", self.namespace.name()]);
        run(&mut plugin).success().stdout
    }
}
