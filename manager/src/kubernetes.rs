//! The manager on Kubernetes: starts the one adapter that the configuration names.

use std::sync::Arc;
use std::time::Duration;

use aliquot_kubernetes::device_plugin::Serves;
use aliquot_kubernetes::dra::{DraDriver, Settings};
use aliquot_kubernetes::pod_resources::{Parts, PodResources, keep_consumers};
use aliquot_kubernetes::{Client, ConnectError, device_plugin, dra, health, reports};
use aliquot_node::{Consumer, Node};
use tokio::sync::watch;

use crate::config::{KubernetesConfig, KubernetesMode, MigMode};
use crate::manager::Manager;
use crate::node::ManagedNode;
use crate::procfs;

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
    reports: Option<reports::Settings>,
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
        let pod_resources = Arc::new(PodResources::new(&config.kubelet_dir));
        let adapter = match config.mode {
            KubernetesMode::Dra => {
                let settings = Settings {
                    node_name: config.node_name.clone(),
                    kubelet_dir: config.kubelet_dir.clone(),
                    state_dir: config.state_dir.clone(),
                    boot_id: procfs::boot_id(),
                    meeting: config.relay.then(|| config.meeting.clone()),
                };
                let told = Arc::clone(&node) as Arc<dyn Node>;
                let driver = DraDriver::open(settings, told, client.clone(), Arc::clone(&pod_resources))?;
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
        let (node_name, reports) = (config.node_name.clone(), config.reports.clone());
        Ok(Kubernetes { node, node_name, client, adapter, pod_resources, reports })
    }

    /// Serves until `end` is true.
    pub(crate) async fn run(self, end: watch::Receiver<bool>) {
        let Kubernetes { node, node_name, client, adapter, pod_resources, reports } = self;
        let told = Arc::clone(&node) as Arc<dyn Node>;
        let parts: Arc<dyn Parts> = match &adapter {
            Adapter::Dra(driver) => driver.parts(),
            // A container of the device plugin gets a slice of its own, so it has the slice that kubelet names.
            Adapter::DevicePlugin { .. } => Arc::new(|_: &str, _: &Consumer| true),
        };
        let consumers = until(end.clone(), keep_consumers(Arc::clone(&told), Arc::clone(&pod_resources), parts));
        let cluster = Arc::new(device_plugin::ApiServer::new(client.clone(), node_name.clone()));
        let health = until(end.clone(), health::tell(Arc::clone(&told), client, node_name));
        let reporting = reports.map(|settings| until(end.clone(), reports::report(settings, Arc::clone(&told))));
        let reporting = async {
            if let Some(reporting) = reporting {
                reporting.await;
            }
        };
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
        tokio::join!(adapter, consumers, health, reporting, node.follow_devices(end.clone()));
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
