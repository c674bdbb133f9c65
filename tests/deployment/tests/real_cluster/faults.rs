//! Devices that go bad, and are well again. On a simulated GPU only, because a test must not break a real one.

use aliquot_harness::{SimulatedGpu, wait};
use serde_json::{Value, json};

use super::Tests;
use super::holder::{HELD_BYTES, Holder};
use super::manager::Mode;
use super::objects::holds;

/// A critical error of the device: it has fallen off the bus.
const XID_OFF_THE_BUS: u32 = 79;

impl Tests<'_> {
    /// A pod that runs on a device which no longer answers runs on. A new pod gets another device, or waits until this
    /// one is well. After a critical error a device is given to no pod until it has answered for a while. The two
    /// devices of this test recover at the same time.
    pub(crate) fn devices_that_go_bad_are_given_to_nobody_until_they_are_well(&self) {
        let Some(gpu) = self.gpu else {
            println!("not run: devices that go bad, because they are real ones");
            return;
        };
        let before = Holder::start(self, "before");
        let lost = self.device_of(gpu, before.name);
        gpu.machine().set_lost(lost, true);
        self.wait_for_health(gpu, lost, false);
        // Each pod asks for so much that a device has room for one. The simulated devices of all nodes are the same, so
        // each node has lost one of its two. The last pod has room on a lost device alone.
        let nodes = self.cluster.nodes().len();
        let names: Vec<String> = (0..=nodes).map(|number| format!("one-of-{number}")).collect();
        names.iter().for_each(|name| self.namespace.apply(&self.asks(name, &holds(HELD_BYTES), 60, 64)));
        let waiting = self.all_but_one_run(&names);
        for name in names.iter().filter(|name| *name != waiting) {
            assert_ne!(self.device_of(gpu, name), lost);
        }
        let reason = self.why_it_waits(waiting);
        before.has_the_same_container(self);
        self.told_in_the_pod_s_status(before.name, "Unhealthy");

        gpu.machine().set_lost(lost, false);
        let other = (0..self.devices).find(|&index| index != lost).expect("a second device");
        gpu.machine().report_xid(other, XID_OFF_THE_BUS);
        self.wait_for_health(gpu, other, false);
        self.wait_for_health(gpu, lost, true);
        self.namespace.wait_for_output(waiting, "held");
        assert_eq!(self.device_of(gpu, waiting), lost);
        before.runs_on(self);
        self.told_in_the_pod_s_status(before.name, "Healthy");
        println!("ok: a device was lost: who ran there ran on, another pod waited until it was back: {reason}");
        self.wait_for_health(gpu, other, true);
        println!("ok: a device with a critical error was not given out, and recovered");
        names.iter().for_each(|name| self.begin_to_remove(name));
        before.end(self);
        self.manager.have_no_slices("their slices are gone");
    }

    /// The index of the device that the pod has a part of.
    fn device_of(&self, gpu: &SimulatedGpu, pod: &str) -> usize {
        let uuid = self.slice_of(pod)["parts"][0]["device_uuid"].take();
        (0..self.devices).find(|&index| uuid == gpu.uuid(index).as_str()).expect("one of the machine's devices")
    }

    /// Waits until the API server and Prometheus are told that the device is well, or is not.
    fn wait_for_health(&self, gpu: &SimulatedGpu, index: usize, is_healthy: bool) {
        let device = format!("device=\"{}\"", gpu.uuid(index));
        // Whether the metrics show this device as expected, and the number of devices that they show as well.
        let told = || {
            let metrics = self.manager.metrics();
            let lines: Vec<&str> = metrics.lines().filter(|line| line.starts_with("aliquot_device_healthy{")).collect();
            let value = format!(" {}", u8::from(is_healthy));
            let of_device: Vec<&&str> = lines.iter().filter(|line| line.contains(&device)).collect();
            let is_as_expected = !of_device.is_empty() && of_device.iter().all(|line| line.ends_with(&value));
            (is_as_expected, lines.iter().filter(|line| line.ends_with(" 1")).count())
        };
        wait::until_true("Prometheus is told of the device's health", || told().0);
        // Without taints, a device that is not well is not published.
        let has_taints = self.mode == Mode::Claims && self.cluster.has_feature("DRADeviceTaints");
        wait::until_true("the API server is told of the device's health", || match has_taints {
            true => self.tainted(&gpu.uuid(index)).iter().all(|&is_tainted| is_tainted != is_healthy),
            // The other device may recover meanwhile.
            false => self.manager.published() == told().1,
        });
    }

    /// Whether the device is published with a taint that keeps pods away, for each node.
    fn tainted(&self, uuid: &str) -> Vec<bool> {
        let slices = self.cluster.list("resourceslices", None);
        let devices = slices.iter().filter_map(|slice| slice["spec"]["devices"].as_array()).flatten();
        let of_uuid: Vec<&Value> = devices.filter(|device| device["attributes"]["uuid"]["string"] == uuid).collect();
        assert!(!of_uuid.is_empty(), "the device is published, whether it is well or not");
        let taint = json!([{"key": "gpu.aliquot.dev/unhealthy", "effect": "NoSchedule"}]);
        let is_tainted = |device: &Value| {
            let told: Vec<Value> = device["taints"].as_array().into_iter().flatten().map(untimed).collect();
            assert_eq!(device["attributes"]["healthy"]["bool"], told.is_empty(), "{device:#}");
            !told.is_empty() && json!(told) == taint
        };
        of_uuid.into_iter().map(is_tainted).collect()
    }

    /// Waits until all of these pods but one run. Returns that one.
    pub(crate) fn all_but_one_run<'n>(&self, names: &'n [String]) -> &'n str {
        let waits = |name: &&String| self.namespace.get("pod", name)["status"]["phase"] != "Running";
        wait::until("all but one run", || {
            let waiting: Vec<&String> = names.iter().filter(waits).collect();
            if let [one] = waiting[..] { Some(one.as_str()) } else { None }
        })
    }

    /// Waits until the pod's status says this of its devices' health. Kubelet writes it for each container.
    fn told_in_the_pod_s_status(&self, pod: &str, health: &str) {
        if !self.cluster.has_feature("ResourceHealthStatus") {
            println!("not run: health in the pod's status, because the feature ResourceHealthStatus is off");
            return;
        }
        if self.mode == Mode::Claims && self.cluster.is_before(36) {
            println!("not run: health in the pod's status, because kubelet tells it only of claims of templates");
            return;
        }
        wait::until_true("kubelet tells of the device's health in the pod's status", || {
            let status = self.namespace.get("pod", pod)["status"]["containerStatuses"][0].take();
            let resources = status["allocatedResourcesStatus"].as_array().cloned().unwrap_or_default();
            let all = resources.iter().filter_map(|resource| resource["resources"].as_array()).flatten();
            let told: Vec<&Value> = all.map(|device| &device["health"]).collect();
            told.contains(&&health.into())
        });
    }
}

/// A taint without the time at which it was added, which the API server writes.
fn untimed(taint: &Value) -> Value {
    let mut taint = taint.clone();
    taint.as_object_mut().expect("a taint has fields").remove("timeAdded");
    taint
}
