//! A cluster with simulated GPUs and a manager on its node.

use std::fs;
use std::sync::Arc;

use aliquot_harness::{Client, EXACT_MEMORY, HostProgram, Image, MIB, Node, Process, SimulatedGpu, wait};
use aliquot_proto::node::v1::Slice;
use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::api::resource::v1::{DeviceRequestAllocationResult, ResourceClaim, ResourceSlice};
use rustix::process::Signal;
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::cluster::{Cluster, NAMESPACE};
use crate::runtime::{ContainerRuntime, Paper, Podman};
use aliquot_test_api_server::{CLAIMS, DEVICE_CLASSES, PODS, SLICES};

/// The name of the DRA driver, which is also the device class for all its devices.
pub const DRIVER: &str = "gpu.aliquot.dev";

/// A cluster, a manager and GPUs. Parts that depend on others are dropped before them.
pub struct World {
    /// The cluster with its node's kubelet.
    pub cluster: Cluster,
    /// The manager on the cluster's node.
    pub node: Node,
    /// The image of the containers, if they really run.
    pub image: Option<Image>,
    /// The node's simulated GPUs.
    pub gpu: SimulatedGpu,
    _cdi: Option<TempDir>,
}

/// The part of each device that a claim asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Share {
    /// Percent of the device's time.
    pub core_percent: u32,
    /// Bytes of the device's memory.
    pub memory_bytes: u64,
}

impl World {
    /// A node with `devices` GPUs and containers that are only recorded.
    #[must_use]
    pub fn on_paper(mode: &str, devices: usize) -> World {
        World::on_paper_with(mode, &"[[device]]\n".repeat(devices), "")
    }

    /// The same on a machine with this description, with further lines in the manager's configuration.
    #[must_use]
    pub fn on_paper_with(mode: &str, machine: &str, settings: &str) -> World {
        let cdi = tempfile::Builder::new().prefix("aliquot-cdi-").tempdir().expect("a temporary directory");
        let gpu = SimulatedGpu::with(machine);
        let cluster = Cluster::start(Arc::new(Paper::new(cdi.path().to_owned())));
        let settings = format!("cdi_dir = {:?}\n{}{settings}", cdi.path(), cluster.manager_settings(mode));
        let node = Node::with(&gpu, &settings);
        World { cluster, node, image: None, gpu, _cdi: Some(cdi) }.with_class()
    }

    /// A node with `devices` GPUs and containers that podman runs, with `programs` in their image.
    #[must_use]
    pub fn with_containers(mode: &str, devices: usize, programs: &[&str]) -> World {
        // The containers' programs fill their slices' memory to the last byte.
        let gpu = SimulatedGpu::with(&(EXACT_MEMORY.to_owned() + &"[[device]]\n".repeat(devices)));
        let programs: Vec<HostProgram> = programs.iter().map(|name| HostProgram::linked(&gpu, name)).collect();
        let image = Image::with(&programs.iter().collect::<Vec<_>>());
        let runtime: Arc<dyn ContainerRuntime> = Arc::new(Podman::default());
        let cluster = Cluster::start(runtime);
        let node = Node::publishing(&gpu, &cluster.manager_settings(mode));
        World { cluster, node, image: Some(image), gpu, _cdi: None }.with_class()
    }

    fn with_class(self) -> World {
        self.cluster.create(
            &DEVICE_CLASSES,
            json!({
                "apiVersion": "resource.k8s.io/v1", "kind": "DeviceClass", "metadata": {"name": DRIVER},
                "spec": {"selectors": [{"cel": {"expression": format!("device.driver == '{DRIVER}'")}}]},
            }),
        );
        self
    }

    /// Waits until the driver is registered and has published this number of devices.
    pub fn wait_for_driver(&self, devices: usize) {
        wait::until_true("the driver is registered", || self.cluster.kubelet().has_driver(DRIVER));
        wait::until_true("the devices are published", || {
            let slices = self.cluster.store().list::<ResourceSlice>(&SLICES);
            slices.iter().map(|slice| slice.spec.devices.iter().flatten().count()).sum::<usize>() == devices
        });
    }

    /// Makes a claim for one share of one device.
    pub fn claim(&self, name: &str, share: Share) {
        self.claim_of(name, &json!({"requests": [{"name": "gpu", "exactly": request(share, 1)}]}));
    }

    /// Makes a claim with this specification.
    pub fn claim_of(&self, name: &str, devices: &Value) {
        self.cluster.create(
            &CLAIMS,
            json!({
                "apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaim", "metadata": {"name": name},
                "spec": {"devices": devices},
            }),
        );
    }

    /// Makes a pod with one container, which uses `claims` and runs `command`.
    pub fn pod(&self, name: &str, claims: &[&str], command: &[&str]) -> Pod {
        self.cluster.create_pod(name, &self.pod_spec(claims, command))
    }

    /// The specification of such a pod.
    #[must_use]
    pub fn pod_spec(&self, claims: &[&str], command: &[&str]) -> Value {
        let named = claims.iter().map(|claim| json!({"name": claim, "resourceClaimName": claim}));
        let used = claims.iter().map(|claim| json!({"name": claim}));
        json!({
            "restartPolicy": "Never", "resourceClaims": named.collect::<Vec<_>>(),
            "containers": [{
                "name": "main", "image": self.image.as_ref().map_or("none", Image::reference), "command": command,
                "resources": {"claims": used.collect::<Vec<_>>()},
            }],
        })
    }

    /// The present state of the claim.
    #[must_use]
    pub fn claim_now(&self, name: &str) -> ResourceClaim {
        self.cluster.store().get(&CLAIMS, NAMESPACE, name).expect("the claim is there")
    }

    /// The devices that were allocated to the claim.
    #[must_use]
    pub fn results(&self, claim: &str) -> Vec<DeviceRequestAllocationResult> {
        let status = self.claim_now(claim).status.unwrap_or_default();
        status.allocation.and_then(|allocation| allocation.devices?.results).unwrap_or_default()
    }

    /// The slice of the claim; `None` if there is none.
    #[must_use]
    pub fn slice_of(&self, claim: &str) -> Option<Slice> {
        let name = self.slice_name(claim);
        self.slices().into_iter().find(|slice| slice.name == name)
    }

    /// The name of the claim's slice.
    fn slice_name(&self, claim: &str) -> String {
        format!("claim-{}", self.claim_now(claim).metadata.uid.expect("a claim has a uid"))
    }

    /// All slices of the node.
    #[must_use]
    pub fn slices(&self) -> Vec<Slice> {
        self.node.client().slices().expect("the manager answers")
    }

    /// Waits until these pods run, and returns the faults of their slices. Each pod uses the claim with its own name,
    /// which asks for this share.
    #[track_caller]
    pub fn wrong_identities(&self, pods: &[(String, Share)]) -> Vec<String> {
        let running: Vec<Pod> = pods.iter().map(|(name, _)| self.cluster.wait_for_phase(name, "Running")).collect();
        let slices = self.slices();
        let checked = running.iter().zip(pods).map(|(pod, (name, share))| self.identity(pod, name, *share, &slices));
        checked.filter_map(Result::err).collect()
    }

    /// Checks that the claim's slice equals the claim's allocation, and that the container of the claim's pod has this
    /// slice.
    fn identity(&self, pod: &Pod, claim: &str, share: Share, slices: &[Slice]) -> Result<(), String> {
        let name = self.slice_name(claim);
        let slice = slices.iter().find(|slice| slice.name == name);
        let slice = slice.ok_or_else(|| format!("claim {claim} has no slice"))?;
        let results = self.results(claim);
        let decided: Vec<(String, Share)> = results.into_iter().map(|result| (result.device, share)).collect();
        let made = slice.parts.iter().map(|part| {
            let share = Share { core_percent: part.core_request_percent, memory_bytes: part.memory_limit_bytes };
            (part.device_uuid.to_lowercase(), share)
        });
        let made: Vec<(String, Share)> = made.collect();
        if made != decided {
            return Err(format!("claim {claim}: {decided:?} was decided, {made:?} was made"));
        }
        let got = self.cluster.output(pod);
        let devices: Vec<&str> = slice.parts.iter().map(|part| part.device_uuid.as_str()).collect();
        let sees = got.contains(&format!("ALIQUOT_DEVICES={}\n", devices.join(",")));
        let region = &slice.region_path;
        let is_in = got.lines().any(|line| line.ends_with(region) || line.contains(&format!("{region}/")));
        if sees && is_in { Ok(()) } else { Err(format!("claim {claim}, {slice:?}: its container has got\n{got}")) }
    }

    /// Fails the test unless the claim's slice equals the claim's allocation, and the container of the claim's pod has this
    /// slice.
    ///
    /// # Panics
    /// If that is not so.
    #[track_caller]
    pub fn assert_identity(&self, pod: &Pod, claim: &str, share: Share) {
        if let Err(wrong) = self.identity(pod, claim, share, &self.slices()) {
            panic!("{wrong}");
        }
    }

    /// Fails the test if kubelet has seen a violation of a protocol by the manager.
    #[track_caller]
    pub fn assert_no_complaints(&self) {
        assert_eq!(self.cluster.kubelet().complaints(), Vec::<String>::new(), "{}", self.node.log());
    }

    /// Calls `is_done` again and again until it is true or `killer` ([`Node::kill_at_step`]) has killed the manager,
    /// which is then started again. Returns whether it was killed. `what` describes the awaited state.
    pub fn until_done_or_killed(
        &mut self,
        mut killer: Process,
        what: &str,
        mut is_done: impl FnMut(&World) -> bool,
    ) -> bool {
        let has_killed = wait::until(&format!("{what}, or the manager is dead"), || {
            let is_done = is_done(self);
            if killer.has_ended() { Some(true) } else { is_done.then_some(false) }
        });
        drop(killer);
        // The manager may also have been killed after the last look.
        let answers = Client::connect(&self.node.socket()).is_some_and(|mut client| client.node().is_ok());
        let killed = has_killed || !answers;
        if killed {
            self.kill_manager();
            self.node.restart();
        }
        killed
    }

    /// Starts a relay for a pod with this UID, and waits until it has registered this number of plugins with kubelet.
    #[must_use]
    pub fn relay(&self, pod_uid: &str, plugins: usize) -> Process {
        let relay = self.node.relay(pod_uid);
        wait::until_true("the relay is registered", || {
            let log = relay.output() + &relay.errors();
            log.matches("registered with kubelet").count() + log.matches("has registered the driver").count() >= plugins
        });
        relay
    }

    /// Replaces the manager and its relay like a rollout that starts the new pod first. `meanwhile` is called after
    /// each change.
    pub fn roll_out(&mut self, old: &mut Process, pod_uid: &str, plugins: usize, mut meanwhile: impl FnMut(&World)) {
        let new = self.relay(pod_uid, plugins);
        meanwhile(self);
        let next = self.node.stand_by();
        meanwhile(self);
        let old = std::mem::replace(old, new);
        old.signal(Signal::TERM);
        assert!(old.wait().success().stdout.is_empty(), "a relay says what it does as a log");
        meanwhile(self);
        self.node.hand_over(next);
        meanwhile(self);
    }

    /// Kills the manager, and waits until kubelet has noticed that no plugin serves units any more. Later reports of
    /// kubelet come from the next manager.
    pub fn kill_manager(&mut self) {
        self.node.kill();
        wait::until_true("kubelet has no units", || !self.cluster.kubelet().has_units());
    }

    /// Whether the pod runs now.
    #[must_use]
    pub fn is_running(&self, pod: &str) -> bool {
        self.cluster.pod(pod).and_then(|pod| pod.status?.phase).as_deref() == Some("Running")
    }

    /// Waits until no slice and no part of one is left.
    #[track_caller]
    pub fn wait_until_empty(&self) {
        wait::until_true("no slice is left", || self.slices().is_empty());
        // The manager forgets a slice before it has deleted the files of its region.
        let slices = self.node.runtime_dir().join("slices");
        wait::until_true("no region is left", || fs::read_dir(&slices).into_iter().flatten().next().is_none());
    }

    /// Deletes all pods, waits until they are gone, and deletes all claims.
    #[track_caller]
    pub fn delete_everything(&self) {
        let store = self.cluster.store();
        for pod in store.list::<Pod>(&PODS) {
            // A pod that was being deleted may be gone by now.
            let _ = store.delete(&PODS, NAMESPACE, &pod.metadata.name.expect("a pod has a name"), false);
        }
        wait::until_true("all pods are gone", || store.count(&PODS) == 0);
        for claim in store.list::<ResourceClaim>(&CLAIMS) {
            // A claim that was made for a pod may be deleted without this.
            let _ = store.delete(&CLAIMS, NAMESPACE, &claim.metadata.name.expect("a claim has a name"), false);
        }
        wait::until_true("all claims are gone", || store.count(&CLAIMS) == 0);
    }
}

/// A request for this share of each of `count` devices.
#[must_use]
pub fn request(share: Share, count: u32) -> Value {
    json!({
        "deviceClassName": DRIVER, "count": count,
        "capacity": {"requests": {
            "core": share.core_percent.to_string(), "memory": share.memory_bytes.to_string(),
        }},
    })
}

/// A share with this percentage of a device's time, and this amount of memory in mebibytes.
#[must_use]
pub fn share(core_percent: u32, memory_mib: u64) -> Share {
    Share { core_percent, memory_bytes: memory_mib * MIB }
}
