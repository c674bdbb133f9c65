//! A cluster whose node has simulated GPUs and a manager.

use std::fs;
use std::sync::Arc;

use aliquot_harness::{EXACT_MEMORY, HostProgram, Image, MIB, Node, Process, SimulatedGpu, wait};
use aliquot_proto::node::v1::Slice;
use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::api::resource::v1::{DeviceRequestAllocationResult, ResourceClaim, ResourceSlice};
use rustix::process::Signal;
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::cluster::{Cluster, NAMESPACE};
use crate::runtime::{ContainerRuntime, Paper, Podman};
use aliquot_test_api_server::{CLAIMS, DEVICE_CLASSES, PODS, SLICES};

/// The DRA driver, and the device class for all of its devices.
pub const DRIVER: &str = "gpu.aliquot.dev";

/// All of it together. What depends on other parts is dropped before them.
pub struct World {
    /// The cluster.
    pub cluster: Cluster,
    /// The manager on its node.
    pub node: Node,
    /// What containers are made of, if they really run.
    pub image: Option<Image>,
    /// The node's GPUs.
    pub gpu: SimulatedGpu,
    _cdi: Option<TempDir>,
}

/// What a claim asks for of each device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Share {
    /// Its time.
    pub core_percent: u32,
    /// Its memory.
    pub memory_bytes: u64,
}

impl World {
    /// A node with `devices` GPUs whose containers are only written down.
    #[must_use]
    pub fn on_paper(mode: &str, devices: usize) -> World {
        World::on_paper_with(mode, &"[[device]]\n".repeat(devices), "")
    }

    /// The same on a machine of this description, with further lines in the manager's configuration.
    #[must_use]
    pub fn on_paper_with(mode: &str, machine: &str, settings: &str) -> World {
        let cdi = tempfile::Builder::new().prefix("aliquot-cdi-").tempdir().expect("a temporary directory");
        let gpu = SimulatedGpu::with(machine);
        let cluster = Cluster::start(Arc::new(Paper::new(cdi.path().to_owned())));
        let settings = format!("cdi_dir = {:?}\n{}{settings}", cdi.path(), cluster.manager_settings(mode));
        let node = Node::with(&gpu, &settings);
        World { cluster, node, image: None, gpu, _cdi: Some(cdi) }.with_class()
    }

    /// A node with `devices` GPUs whose containers podman runs, with `programs` in their image.
    #[must_use]
    pub fn with_containers(mode: &str, devices: usize, programs: &[&str]) -> World {
        // Containers' programs take their slices' memory to the byte.
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

    /// Waits until the driver is registered and has published so many devices.
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

    /// Makes a claim of this specification.
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

    /// What such a pod is.
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

    /// The claim as it is now.
    #[must_use]
    pub fn claim_now(&self, name: &str) -> ResourceClaim {
        self.cluster.store().get(&CLAIMS, NAMESPACE, name).expect("the claim is there")
    }

    /// What the claim was given.
    #[must_use]
    pub fn results(&self, claim: &str) -> Vec<DeviceRequestAllocationResult> {
        let status = self.claim_now(claim).status.unwrap_or_default();
        status.allocation.and_then(|allocation| allocation.devices?.results).unwrap_or_default()
    }

    /// The claim's slice.
    #[must_use]
    pub fn slice_of(&self, claim: &str) -> Option<Slice> {
        let name = self.slice_name(claim);
        self.slices().into_iter().find(|slice| slice.name == name)
    }

    /// What the claim's slice is called.
    fn slice_name(&self, claim: &str) -> String {
        format!("claim-{}", self.claim_now(claim).metadata.uid.expect("a claim has a uid"))
    }

    /// All slices of the node.
    #[must_use]
    pub fn slices(&self) -> Vec<Slice> {
        self.node.client().slices().expect("the manager answers")
    }

    /// What is wrong with the slices of these pods: each uses the claim of its own name, which asks for this share. Waits
    /// until all run.
    #[track_caller]
    pub fn wrong_identities(&self, pods: &[(String, Share)]) -> Vec<String> {
        let running: Vec<Pod> = pods.iter().map(|(name, _)| self.cluster.wait_for_phase(name, "Running")).collect();
        let slices = self.slices();
        let checked = running.iter().zip(pods).map(|(pod, (name, share))| self.identity(pod, name, *share, &slices));
        checked.filter_map(Result::err).collect()
    }

    /// Whether the claim's slice is what was given to the claim, and its pod's container has got it.
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

    /// Fails the test unless the claim's slice is what was given to the claim, and its pod's container has got it.
    ///
    /// # Panics
    /// If it is not.
    #[track_caller]
    pub fn assert_identity(&self, pod: &Pod, claim: &str, share: Share) {
        if let Err(wrong) = self.identity(pod, claim, share, &self.slices()) {
            panic!("{wrong}");
        }
    }

    /// Fails the test if kubelet has seen the manager do what no plugin may do.
    #[track_caller]
    pub fn assert_no_complaints(&self) {
        assert_eq!(self.cluster.kubelet().complaints(), Vec::<String>::new(), "{}", self.node.log());
    }

    /// Waits until `is_done`, which is called again and again, or `killer` ([`Node::kill_at_step`]) has killed the
    /// manager, which is then started again. Returns whether it was killed. `what` says what was awaited.
    pub fn until_done_or_killed(
        &mut self,
        mut killer: Process,
        what: &str,
        mut is_done: impl FnMut(&World) -> bool,
    ) -> bool {
        let killed = wait::until(&format!("{what}, or the manager is dead"), || {
            let is_done = is_done(self);
            if killer.has_ended() { Some(true) } else { is_done.then_some(false) }
        });
        drop(killer);
        if killed {
            self.kill_manager();
            self.node.restart();
        }
        killed
    }

    /// Starts a relay for a pod with this UID, and waits until it has registered so many plugins with kubelet.
    #[must_use]
    pub fn relay(&self, pod_uid: &str, plugins: usize) -> Process {
        let relay = self.node.relay(pod_uid);
        wait::until_true("the relay is registered", || {
            let log = relay.output() + &relay.errors();
            log.matches("registered with kubelet").count() + log.matches("has registered the driver").count() >= plugins
        });
        relay
    }

    /// Replaces the manager and its relay as a rollout does that starts the new pod first. `meanwhile` is called
    /// whenever something has changed.
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

    /// Kills the manager, and waits until kubelet has noticed that nobody serves units any more: what it says of them
    /// later is of the next manager.
    pub fn kill_manager(&mut self) {
        self.node.kill();
        wait::until_true("kubelet has no units", || !self.cluster.kubelet().has_units());
    }

    /// Whether the pod runs now.
    #[must_use]
    pub fn is_running(&self, pod: &str) -> bool {
        self.cluster.pod(pod).and_then(|pod| pod.status?.phase).as_deref() == Some("Running")
    }

    /// Waits until no slice is left, nor anything of it.
    #[track_caller]
    pub fn wait_until_empty(&self) {
        wait::until_true("no slice is left", || self.slices().is_empty());
        let regions = fs::read_dir(self.node.runtime_dir().join("slices")).into_iter().flatten().count();
        assert_eq!(regions, 0, "regions are left");
    }

    /// Deletes all pods, waits until they are gone, and deletes all claims.
    #[track_caller]
    pub fn delete_everything(&self) {
        let store = self.cluster.store();
        for pod in store.list::<Pod>(&PODS) {
            store.delete(&PODS, NAMESPACE, &pod.metadata.name.expect("a pod has a name"), false).expect("it is there");
        }
        wait::until_true("all pods are gone", || store.count(&PODS) == 0);
        for claim in store.list::<ResourceClaim>(&CLAIMS) {
            // One that was made for a pod may go by itself.
            let _ = store.delete(&CLAIMS, NAMESPACE, &claim.metadata.name.expect("a claim has a name"), false);
        }
        wait::until_true("all claims are gone", || store.count(&CLAIMS) == 0);
    }
}

/// A request for a share of so many devices each.
#[must_use]
pub fn request(share: Share, count: u32) -> Value {
    json!({
        "deviceClassName": DRIVER, "count": count,
        "capacity": {"requests": {
            "core": share.core_percent.to_string(), "memory": share.memory_bytes.to_string(),
        }},
    })
}

/// So many percent of a device's time and mebibytes of its memory.
#[must_use]
pub fn share(core_percent: u32, memory_mib: u64) -> Share {
    Share { core_percent, memory_bytes: memory_mib * MIB }
}
