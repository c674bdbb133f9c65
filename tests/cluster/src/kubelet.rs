//! A kubelet: it registers plugins, prepares claims, allocates devices, serves PodResources, and starts containers.

mod checkpoint;
mod claims;
mod devices;
mod plugins;
mod pod_resources;
mod pods;
mod settings;

use std::collections::BTreeMap;
use std::fs;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use tokio::runtime::Runtime;

pub use settings::{Settings, Timing};

use crate::runtime::ContainerRuntime;
use aliquot_test_api_server::Store;
use claims::ClaimManager;
use devices::DeviceManager;
use plugins::Plugins;
use pods::PodWorkers;

/// A running kubelet. When it is dropped, it ends as if it were killed: its containers keep running, and its sockets
/// stay.
#[derive(Debug)]
pub struct Kubelet {
    shared: Arc<Shared>,
    runtime: Option<Runtime>,
}

/// The time of a call to a driver.
#[derive(Clone, Copy, Debug)]
pub struct DriverCall {
    /// When kubelet sent the call.
    pub began: Instant,
    /// When the driver's answer came.
    pub ended: Instant,
}

impl DriverCall {
    /// A call that began then and ends now.
    fn since(began: Instant) -> DriverCall {
        DriverCall { began, ended: Instant::now() }
    }
}

/// The state that the kubelet's parts share.
struct Shared {
    settings: Settings,
    store: Store,
    containers: Arc<dyn ContainerRuntime>,
    plugins: Plugins,
    claims: ClaimManager,
    devices: DeviceManager,
    pods: PodWorkers,
    /// Violations of protocols by plugins that no answer reports to them.
    complaints: Mutex<Vec<String>>,
    /// The successful calls to a driver, by method.
    calls: Mutex<BTreeMap<&'static str, Vec<DriverCall>>>,
}

impl std::fmt::Debug for Shared {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Shared").field("settings", &self.settings).finish_non_exhaustive()
    }
}

impl Kubelet {
    /// Starts a kubelet, which continues from the state of an earlier one in this directory.
    ///
    /// # Panics
    /// If its directory cannot be used.
    #[must_use]
    pub fn start(settings: Settings, store: Store, containers: Arc<dyn ContainerRuntime>) -> Kubelet {
        for directory in ["plugins_registry", "plugins", "device-plugins", "pod-resources"] {
            fs::create_dir_all(settings.directory.join(directory)).expect("kubelet's directory");
        }
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build();
        let runtime = runtime.expect("threads for the kubelet");
        let shared = Arc::new(Shared {
            claims: ClaimManager::open(settings.directory.join("dra_manager_state")),
            devices: DeviceManager::open(settings.directory.join("device-plugins/kubelet_internal_checkpoint")),
            plugins: Plugins::default(),
            pods: PodWorkers::default(),
            complaints: Mutex::default(),
            calls: Mutex::default(),
            settings,
            store,
            containers,
        });
        {
            let _guard = runtime.enter();
            // The order matters: a client that finds the second socket also finds the first.
            pod_resources::serve(Arc::clone(&shared));
            devices::serve(Arc::clone(&shared));
            runtime.spawn(plugins::watch(Arc::clone(&shared)));
            runtime.spawn(pods::watch(Arc::clone(&shared)));
        }
        Kubelet { shared, runtime: Some(runtime) }
    }

    /// The kubelet's directory, which replaces `/var/lib/kubelet`.
    #[must_use]
    pub fn directory(&self) -> PathBuf {
        self.shared.settings.directory.clone()
    }

    /// Whether this DRA driver is registered.
    #[must_use]
    pub fn has_driver(&self, name: &str) -> bool {
        self.shared.plugins.driver(name).is_ok()
    }

    /// The health of a driver's devices, by pool and device, as its stream last reported it.
    #[must_use]
    pub fn device_health(&self) -> BTreeMap<(String, String), bool> {
        self.shared.plugins.health()
    }

    /// The units of `resource` as a node's status would have them: all, and those that can be allocated.
    #[must_use]
    pub fn capacity(&self, resource: &str) -> Option<(usize, usize)> {
        self.shared.devices.capacity(resource)
    }

    /// Whether any unit of any resource can be allocated.
    #[must_use]
    pub fn has_units(&self) -> bool {
        self.shared.devices.has_units()
    }

    /// The ids that a container has of `resource`.
    #[must_use]
    pub fn device_ids(&self, pod_uid: &str, container: &str, resource: &str) -> Vec<String> {
        self.shared.devices.ids(pod_uid, container, resource)
    }

    /// The pod's present error, which is also the text of its last event.
    #[must_use]
    pub fn pod_error(&self, pod_uid: &str) -> Option<String> {
        self.shared.pods.error(pod_uid)
    }

    /// Violations of protocols by plugins.
    #[must_use]
    pub fn complaints(&self) -> Vec<String> {
        self.shared.complaints.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// The successful calls of `method`.
    #[must_use]
    pub fn calls(&self, method: &str) -> Vec<DriverCall> {
        let calls = self.shared.calls.lock().unwrap_or_else(PoisonError::into_inner);
        calls.get(method).cloned().unwrap_or_default()
    }
}

impl Drop for Kubelet {
    fn drop(&mut self) {
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_timeout(Duration::from_secs(10));
        }
    }
}

impl Shared {
    fn complain(&self, complaint: String) {
        self.complaints.lock().unwrap_or_else(PoisonError::into_inner).push(complaint);
    }

    fn note_call(&self, method: &'static str, call: DriverCall) {
        let mut calls = self.calls.lock().unwrap_or_else(PoisonError::into_inner);
        calls.entry(method).or_default().push(call);
    }
}
