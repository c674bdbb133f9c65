//! The manager as a Kubernetes node: implements what [`aliquot_kubernetes`] needs, and starts the one adapter that the
//! configuration names.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use aliquot_kubernetes::device_plugin::Serves;
use aliquot_kubernetes::dra::{DraDriver, Settings};
use aliquot_kubernetes::node::{
    AuditPolicy, Consumer, CreateError, Device, Devices, Node, NodeError, Part, Partition, PriorityClass, Slice,
    SliceRequest,
};
use aliquot_kubernetes::pod_resources::{Has, PodResources, keep_consumers};
use aliquot_kubernetes::{Client, ConnectError, device_plugin, dra, health};
use tokio::sync::watch;

use crate::config::{self, KubernetesConfig, KubernetesMode, MigMode};
use crate::inventory::DeviceUuid;
use crate::manager::{CreateSliceError, Manager, RemoveSliceError, SliceView};
use crate::procfs;
use crate::slices::{self, CreateRequest, PartRequest, Published, RemoveError};

mod devices;
mod difference;

use difference::difference;

/// Why the manager's Kubernetes side does not start.
#[derive(Debug, thiserror::Error)]
pub enum KubernetesError {
    /// The address or credentials of the API server are unknown.
    #[error(transparent)]
    Connect(#[from] ConnectError),
    /// The DRA driver cannot start.
    #[error(transparent)]
    Dra(#[from] dra::StartError),
}

/// The adapter that the configuration names, ready to serve.
pub(crate) struct Kubernetes {
    node: Arc<ManagedNode>,
    node_name: String,
    client: Client,
    adapter: Adapter,
    pod_resources: Arc<PodResources>,
}

/// The way in which pods get slices.
enum Adapter {
    Dra(Box<DraDriver>),
    DevicePlugin { config: device_plugin::Config, serves: Serves },
}

impl Kubernetes {
    /// Prepares the adapter. Sends no request to the API server yet.
    pub(crate) async fn open(config: &KubernetesConfig, manager: Arc<Manager>) -> Result<Kubernetes, KubernetesError> {
        let client = aliquot_kubernetes::connect(config.kubeconfig.as_deref()).await?;
        let node = Arc::new(ManagedNode::new(manager, config.mig == MigMode::Dynamic));
        let adapter = match config.mode {
            KubernetesMode::Dra => {
                let settings = Settings {
                    node_name: config.node_name.clone(),
                    kubelet_dir: config.kubelet_dir.clone(),
                    state_dir: config.state_dir.clone(),
                    boot_id: procfs::boot_id(),
                    meeting: config.relay.then(|| config.meeting.clone()),
                };
                let driver = DraDriver::open(settings, Arc::clone(&node) as Arc<dyn Node>, client.clone())?;
                Adapter::Dra(Box::new(driver))
            }
            KubernetesMode::DevicePlugin => Adapter::DevicePlugin {
                config: config.device_plugin.clone(),
                serves: if config.relay {
                    Serves::Relays(config.meeting.clone())
                } else {
                    Serves::Kubelet(config.kubelet_dir.clone())
                },
            },
        };
        let pod_resources = Arc::new(PodResources::new(&config.kubelet_dir));
        Ok(Kubernetes { node, node_name: config.node_name.clone(), client, adapter, pod_resources })
    }

    /// Serves until `end` is true.
    pub(crate) async fn run(self, end: watch::Receiver<bool>) {
        let Kubernetes { node, node_name, client, adapter, pod_resources } = self;
        let told = Arc::clone(&node) as Arc<dyn Node>;
        let has: Has = match &adapter {
            Adapter::Dra(driver) => driver.has(),
            // What a container has of a device plugin is a slice of its own.
            Adapter::DevicePlugin { .. } => Arc::new(|_, _| true),
        };
        let consumers = until(end.clone(), keep_consumers(Arc::clone(&told), Arc::clone(&pod_resources), has));
        let cluster = Arc::new(device_plugin::ApiServer::new(client.clone(), node_name.clone()));
        let health = until(end.clone(), health::tell(Arc::clone(&told), client, node_name));
        let adapter = async {
            match adapter {
                Adapter::Dra(driver) => {
                    // Removes slices from a time when the node used the device plugin.
                    let grace = Duration::from_secs(device_plugin::Settings::default().gone_grace_seconds);
                    let left_over = until(end.clone(), device_plugin::clear_up(told, cluster, pod_resources, grace));
                    tokio::join!(driver.run(end.clone()), left_over);
                }
                Adapter::DevicePlugin { config, serves } => {
                    let plugin = device_plugin::run(config, serves, told, cluster, pod_resources);
                    until(end.clone(), plugin).await;
                }
            }
        };
        tokio::join!(adapter, consumers, health, node.follow_devices(end.clone()));
    }
}

/// Does `work` until it ends or `end` is true.
async fn until(mut end: watch::Receiver<bool>, work: impl Future<Output = ()>) {
    tokio::select! {
        () = work => {}
        // An error means that the sender is gone; the work ends then too.
        _ = end.wait_for(|end| *end) => {}
    }
}

/// The manager, as the adapters see it.
struct ManagedNode {
    manager: Arc<Manager>,
    devices: watch::Sender<Arc<Devices>>,
    /// Whether the adapters may partition GPUs in MIG mode.
    may_partition: bool,
}

impl ManagedNode {
    fn new(manager: Arc<Manager>, may_partition: bool) -> ManagedNode {
        let known = devices::told(&manager.devices().known(), may_partition);
        ManagedNode { manager, devices: watch::Sender::new(Arc::new(known)), may_partition }
    }

    /// Publishes the devices as they are known now, if something about them has changed.
    fn tell(&self) {
        self.devices.send_if_modified(|told| {
            // Read within this closure, which runs for one caller at a time: so no older state replaces a newer one.
            let now = devices::told(&self.manager.devices().known(), self.may_partition);
            let is_new = **told != now;
            if is_new {
                *told = Arc::new(now);
            }
            is_new
        });
    }

    /// Publishes the devices whenever they have changed, until `end` is true.
    async fn follow_devices(&self, mut end: watch::Receiver<bool>) {
        let mut known = self.manager.devices().watch();
        loop {
            known.mark_unchanged();
            self.tell();
            tokio::select! {
                changed = known.changed() => if changed.is_err() { return },
                // An error means that the sender is gone; the loop ends then too.
                _ = end.wait_for(|end| *end) => return,
            }
        }
    }
}

impl Node for ManagedNode {
    fn devices(&self) -> watch::Receiver<Arc<Devices>> {
        self.devices.subscribe()
    }

    fn look(&self) -> Result<(), NodeError> {
        let outcome = self.manager.devices().look();
        self.tell();
        outcome.map_err(|error| NodeError(error.0))
    }

    fn create_instance(&self, partition: &Partition) -> Result<Device, NodeError> {
        let outcome = self.manager.devices().create_instance(partition);
        self.tell();
        let made = outcome.map_err(|error| NodeError(error.0))?;
        Ok(devices::device(&made, self.may_partition))
    }

    fn destroy_instance(&self, partition: &Partition) -> Result<(), NodeError> {
        let outcome = self.manager.devices().destroy_instance(partition);
        self.tell();
        outcome.map_err(|error| NodeError(error.0))
    }

    fn create(&self, request: &SliceRequest) -> Result<Slice, CreateError> {
        match self.manager.create(create_request(request)) {
            Ok(view) => Ok(slice(view)),
            Err(CreateSliceError::Refused(refused)) => {
                let found = matches!(refused, slices::CreateError::Exists { .. }).then(|| self.get(&request.name));
                match found.flatten() {
                    Some(found) => match difference(request, &found.content) {
                        None => Ok(found),
                        Some(difference) => Err(CreateError::Differs { name: request.name.clone(), difference }),
                    },
                    None if refused.can_pass() => Err(CreateError::Unavailable(refused.to_string())),
                    None => Err(CreateError::Invalid(refused.to_string())),
                }
            }
            Err(CreateSliceError::Failed(failed)) => Err(NodeError(failed.to_string()).into()),
        }
    }

    fn remove(&self, name: &str) -> Result<(), NodeError> {
        match self.manager.remove(name, true) {
            Ok(()) | Err(RemoveSliceError::Refused(RemoveError::NotFound { .. })) => Ok(()),
            Err(error) => Err(NodeError(error.to_string())),
        }
    }

    fn get(&self, name: &str) -> Option<Slice> {
        self.manager.get(name).map(slice)
    }

    fn list(&self) -> Vec<Slice> {
        self.manager.list().into_iter().map(slice).collect()
    }

    fn set_consumers(&self, name: &str, consumers: &BTreeSet<Consumer>) {
        if let Some(live) = self.manager.live().get(name) {
            live.set_consumers(consumers.clone());
        }
    }
}

fn create_request(request: &SliceRequest) -> CreateRequest {
    let part = |part: &Part| PartRequest {
        device: Some(DeviceUuid::new(&*part.device_uuid)),
        core_request_percent: part.core_request_percent,
        core_limit_percent: part.core_limit_percent,
        memory_limit_bytes: part.memory_limit_bytes,
    };
    CreateRequest {
        name: request.name.clone(),
        parts: request.parts.iter().map(part).collect(),
        host_memory_limit_bytes: request.host_memory_limit_bytes,
        priority_class: request.priority_class.map(|class| match class {
            PriorityClass::LatencyCritical => slices::PriorityClass::LatencyCritical,
            PriorityClass::Standard => slices::PriorityClass::Standard,
            PriorityClass::Batch => slices::PriorityClass::Batch,
        }),
        audit_policy: request.audit_policy.map(|policy| match policy {
            AuditPolicy::Report => config::AuditPolicy::Report,
            AuditPolicy::Stop => config::AuditPolicy::Stop,
        }),
        published: Published { aliases: request.aliases.clone(), environment: request.environment.clone() },
        description: request.description.clone(),
        owner: None,
        // Containers need no right to the directories above their mounts.
        users: BTreeSet::new(),
    }
}

fn slice(view: SliceView) -> Slice {
    let part = |part: slices::Part| Part {
        device_uuid: part.device.to_string(),
        core_request_percent: part.core_request_percent,
        core_limit_percent: part.core_limit_percent,
        memory_limit_bytes: part.memory_limit_bytes,
    };
    let content = SliceRequest {
        parts: view.slice.parts.into_iter().map(part).collect(),
        priority_class: Some(match view.slice.priority_class {
            slices::PriorityClass::LatencyCritical => PriorityClass::LatencyCritical,
            slices::PriorityClass::Standard => PriorityClass::Standard,
            slices::PriorityClass::Batch => PriorityClass::Batch,
        }),
        host_memory_limit_bytes: view.slice.host_memory_limit_bytes,
        audit_policy: view.slice.audit_policy.map(|policy| match policy {
            config::AuditPolicy::Report => AuditPolicy::Report,
            config::AuditPolicy::Stop => AuditPolicy::Stop,
        }),
        description: view.slice.description,
        aliases: view.slice.published.aliases,
        environment: view.slice.published.environment,
        name: view.slice.name,
    };
    Slice {
        content,
        // The configuration ensures that slices are published.
        cdi_device: view.cdi_device.unwrap_or_default(),
        processes: view.processes,
        consumers: view.consumers.as_ref().clone(),
    }
}
