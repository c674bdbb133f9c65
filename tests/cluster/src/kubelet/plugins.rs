//! Plugins that register through a socket in `plugins_registry`: DRA drivers.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use aliquot_proto::kubelet::dra_health::dra_resource_health_client::DraResourceHealthClient;
use aliquot_proto::kubelet::dra_health::{HealthStatus, NodeWatchResourcesRequest};
use aliquot_proto::kubelet::registration::registration_client::RegistrationClient;
use aliquot_proto::kubelet::registration::{InfoRequest, PluginInfo, RegistrationStatus};
use k8s_openapi::api::resource::v1::ResourceSlice;
use tokio::task::JoinHandle;
use tonic::transport::Channel;

use super::Shared;
use crate::socket::{self, File};
use aliquot_test_api_server::SLICES;

/// The interval of looks at the directory. The real kubelet is notified by the kernel.
const LOOK: Duration = Duration::from_millis(20);
/// Time between two tries to register a plugin, or to reach its health stream.
const RETRY: Duration = Duration::from_millis(200);
/// The service that a DRA driver must offer.
const DRIVER_SERVICE: &str = "v1.DRAPlugin";

#[derive(Debug, Default)]
pub(super) struct Plugins {
    /// The plugins of each driver in the order of their registration: there are two while one replaces the other.
    registered: Mutex<BTreeMap<String, Vec<Driver>>>,
    health: Mutex<BTreeMap<(String, String), bool>>,
}

/// A registered DRA driver.
#[derive(Debug)]
struct Driver {
    /// The socket through which it registered.
    file: File,
    endpoint: PathBuf,
    channel: Channel,
    health: JoinHandle<()>,
}

impl Plugins {
    /// A channel to the driver's plugin that registered last.
    pub(super) fn driver(&self, name: &str) -> Result<Channel, String> {
        let registered = self.registered.lock().unwrap_or_else(PoisonError::into_inner);
        let driver = registered.get(name).and_then(|drivers| drivers.last());
        let driver = driver.ok_or_else(|| format!("DRA driver {name} is not registered"))?;
        Ok(driver.channel.clone())
    }

    pub(super) fn health(&self) -> BTreeMap<(String, String), bool> {
        self.health.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

/// Registers each plugin that appears in the directory, and removes it when its socket is gone.
pub(super) async fn watch(shared: Arc<Shared>) {
    let directory = shared.settings.directory.join("plugins_registry");
    // A driver that does not come back in time has left its published slices behind.
    tokio::spawn(wipe_later(Arc::clone(&shared), None));
    let mut known: BTreeMap<File, Option<String>> = BTreeMap::new();
    let mut last_try: BTreeMap<File, tokio::time::Instant> = BTreeMap::new();
    loop {
        let present = socket::sockets_in(&directory);
        let gone: Vec<File> = known.keys().filter(|file| !present.contains(file)).cloned().collect();
        for file in gone {
            if let Some(Some(name)) = known.remove(&file) {
                deregister(&shared, &name, &file);
            }
        }
        for file in present {
            let waits = last_try.get(&file).is_some_and(|tried| tried.elapsed() < RETRY);
            if known.contains_key(&file) || waits {
                continue;
            }
            last_try.insert(file.clone(), tokio::time::Instant::now());
            match register(&shared, &file).await {
                Ok(name) => drop(known.insert(file, Some(name))),
                // It is tried again: as with the real kubelet, only kubelet's log has the reason.
                Err(Refusal::Unreachable) => {}
                Err(Refusal::Refused(reason)) => {
                    shared.complain(format!("plugin at {}: {reason}", file.path.display()));
                    known.insert(file, None);
                }
            }
        }
        tokio::time::sleep(LOOK).await;
    }
}

/// Why a plugin cannot be registered.
enum Refusal {
    /// It does not answer in time.
    Unreachable,
    /// Its registration is not valid.
    Refused(String),
}

async fn register(shared: &Arc<Shared>, file: &File) -> Result<String, Refusal> {
    let within = shared.settings.timing.registration;
    let unreachable = |_| Refusal::Unreachable;
    let endpoint = socket::registration_authority(&file.path).map_err(Refusal::Refused)?;
    let channel = socket::connect_as(endpoint, &file.path, within).await.map_err(|_| Refusal::Unreachable)?;
    let mut client = RegistrationClient::new(channel);
    let info = tokio::time::timeout(within, client.get_info(InfoRequest {})).await.map_err(unreachable)?;
    let info = info.map_err(|_| Refusal::Unreachable)?.into_inner();
    let name = info.name.clone();
    // If the plugin names no endpoint, its endpoint is the same socket.
    let endpoint = if info.endpoint.is_empty() { file.path.clone() } else { PathBuf::from(&info.endpoint) };
    let registered = validate(&info, &endpoint);
    if registered.is_ok() {
        add(shared, &name, &endpoint, file).await?;
    }
    let status = RegistrationStatus {
        plugin_registered: registered.is_ok(),
        error: registered.as_ref().err().cloned().unwrap_or_default(),
    };
    let notified = tokio::time::timeout(within, client.notify_registration_status(status)).await;
    registered.map_err(Refusal::Refused)?;
    match notified {
        Ok(Ok(_)) => Ok(name),
        // A plugin that does not accept the answer is not registered.
        _ => {
            deregister(shared, &name, file);
            Err(Refusal::Unreachable)
        }
    }
}

fn validate(info: &PluginInfo, endpoint: &Path) -> Result<(), String> {
    if info.r#type != "DRAPlugin" {
        return Err(format!("no handler registered for plugin type: {:?}", info.r#type));
    }
    if info.name.is_empty() || !endpoint.is_absolute() {
        return Err(format!("name {:?} and endpoint {endpoint:?} must be given", info.name));
    }
    if info.supported_versions.iter().any(|version| version == DRIVER_SERVICE) {
        return Ok(());
    }
    let given = &info.supported_versions;
    Err(format!(
        "none of services supported by the plugin ({given:?}) are supported by the kubelet ({DRIVER_SERVICE:?})"
    ))
}

async fn add(shared: &Arc<Shared>, name: &str, endpoint: &Path, file: &File) -> Result<(), Refusal> {
    let connected = socket::connect(endpoint, shared.settings.timing.registration).await;
    // The plugin may have been killed since it sent its information.
    let channel = connected.map_err(|_| Refusal::Unreachable)?;
    let health = tokio::spawn(watch_health(Arc::clone(shared), name.to_owned(), channel.clone()));
    let driver = Driver { file: file.clone(), endpoint: endpoint.to_owned(), channel, health };
    let mut registered = shared.plugins.registered.lock().unwrap_or_else(PoisonError::into_inner);
    let drivers = registered.entry(name.to_owned()).or_default();
    if drivers.iter().any(|other| other.endpoint == driver.endpoint) {
        driver.health.abort();
        return Err(Refusal::Refused(format!("endpoint {} already registered for {name}", endpoint.display())));
    }
    drivers.push(driver);
    Ok(())
}

/// Forgets the plugin that registered through this socket.
fn deregister(shared: &Arc<Shared>, name: &str, file: &File) {
    let mut registered = shared.plugins.registered.lock().unwrap_or_else(PoisonError::into_inner);
    let Some(drivers) = registered.get_mut(name) else { return };
    drivers.extract_if(.., |driver| driver.file == *file).for_each(|driver| driver.health.abort());
    if drivers.is_empty() {
        registered.remove(name);
        tokio::spawn(wipe_later(Arc::clone(shared), Some(name.to_owned())));
    }
}

/// Deletes the published slices of one driver or of all, except those of drivers that are registered by then.
async fn wipe_later(shared: Arc<Shared>, driver: Option<String>) {
    tokio::time::sleep(shared.settings.timing.wipe).await;
    for slice in shared.store.list::<ResourceSlice>(&SLICES) {
        let ours = slice.spec.node_name.as_deref() == Some(shared.settings.node_name.as_str());
        let meant = driver.as_ref().is_none_or(|driver| *driver == slice.spec.driver);
        if ours && meant && shared.plugins.driver(&slice.spec.driver).is_err() {
            // Another client may have deleted it already.
            let _ = shared.store.delete(&SLICES, "", slice.metadata.name.as_deref().unwrap_or_default(), true);
        }
    }
}

/// Follows a driver's reports about the health of its devices.
async fn watch_health(shared: Arc<Shared>, driver: String, channel: Channel) {
    loop {
        let mut client = DraResourceHealthClient::new(channel.clone());
        match client.node_watch_resources(NodeWatchResourcesRequest {}).await {
            Ok(stream) => {
                let mut stream = stream.into_inner();
                while let Ok(Some(update)) = stream.message().await {
                    let devices = update.devices.into_iter().filter_map(|device| {
                        let healthy = device.health() == HealthStatus::Healthy;
                        device.device.map(|device| ((device.pool_name, device.device_name), healthy))
                    });
                    *shared.plugins.health.lock().unwrap_or_else(PoisonError::into_inner) = devices.collect();
                }
            }
            Err(status) if status.code() == tonic::Code::Unimplemented => {
                shared.complain(format!("driver {driver} serves no health stream: {}", status.message()));
                return;
            }
            Err(_) => {}
        }
        tokio::time::sleep(RETRY).await;
    }
}
