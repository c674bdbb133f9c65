//! How device plugins register, and how their devices are followed.

use std::collections::BTreeMap;
use std::fs;
use std::sync::Arc;
use std::time::Duration;

use aliquot_proto::kubelet::device_plugin::device_plugin_client::DevicePluginClient;
use aliquot_proto::kubelet::device_plugin::registration_server::{Registration, RegistrationServer};
use aliquot_proto::kubelet::device_plugin::{Device, DevicePluginOptions, Empty, RegisterRequest};
use tonic::transport::{Channel, Server};
use tonic::{Request, Response, Status};

use super::{Endpoint, HEALTHY, Shared, allocation};
use crate::socket;

const VERSION: &str = "v1beta1";
const MAX_ID: usize = 63;
const DIAL: Duration = Duration::from_secs(10);

/// Serves registrations. What was in the directory before is gone: plugins see by that that they must register again.
pub(in super::super) fn serve(shared: Shared) {
    let directory = shared.settings.directory.join("device-plugins");
    for entry in fs::read_dir(&directory).into_iter().flatten().flatten() {
        if entry.path() != shared.devices.checkpoint.path() && !entry.path().is_dir() {
            let _ = fs::remove_file(entry.path());
        }
    }
    let incoming = socket::listen(&directory.join("kubelet.sock"));
    let server = Server::builder().add_service(RegistrationServer::new(Service { shared }));
    tokio::spawn(server.serve_with_incoming(incoming));
}

struct Service {
    shared: Shared,
}

#[tonic::async_trait]
impl Registration for Service {
    async fn register(&self, request: Request<RegisterRequest>) -> Result<Response<Empty>, Status> {
        let request = request.into_inner();
        match register(&self.shared, &request).await {
            Ok(()) => Ok(Response::new(Empty {})),
            Err(reason) => {
                self.shared.complain(format!("device plugin for {:?}: {reason}", request.resource_name));
                Err(Status::unknown(reason))
            }
        }
    }
}

async fn register(shared: &Shared, request: &RegisterRequest) -> Result<(), String> {
    if request.version != VERSION {
        return Err(format!(
            "requested API version {:?} is not supported by kubelet. Supported: {VERSION}",
            request.version
        ));
    }
    if !is_extended_resource(&request.resource_name) {
        return Err(format!("the ResourceName {:?} is invalid", request.resource_name));
    }
    if request.endpoint.is_empty() || request.endpoint.contains('/') {
        return Err(format!("endpoint {:?} must be the name of a socket in kubelet's directory", request.endpoint));
    }
    let socket = shared.settings.directory.join("device-plugins").join(&request.endpoint);
    let connected = socket::connect(&socket, DIAL).await;
    let channel = connected.map_err(|error| format!("failed to connect to {}: {error}", socket.display()))?;
    let mut client = DevicePluginClient::new(channel);
    // Options that the registration does not carry are asked for.
    let options = match request.options {
        Some(options) => options,
        None => client.get_device_plugin_options(Empty {}).await.map_err(|status| status.to_string())?.into_inner(),
    };
    let generation = add(shared, &request.resource_name, client.clone(), options);
    tokio::spawn(follow(Arc::clone(shared), request.resource_name.clone(), generation, client));
    Ok(())
}

fn add(shared: &Shared, resource: &str, client: DevicePluginClient<Channel>, options: DevicePluginOptions) -> u64 {
    let mut state = shared.devices.lock();
    state.generation += 1;
    let generation = state.generation;
    // Who registers again takes over the devices of who did before.
    let devices = state.endpoints.remove(resource).map(|endpoint| endpoint.devices).unwrap_or_default();
    state.endpoints.insert(resource.to_owned(), Endpoint { generation, client, options, devices });
    state.known.insert(resource.to_owned());
    allocation::write(&shared.devices.checkpoint, &state);
    generation
}

/// Keeps a plugin's devices as it tells them, until it is gone or another one has taken its place.
async fn follow(shared: Shared, resource: String, generation: u64, mut client: DevicePluginClient<Channel>) {
    if let Ok(stream) = client.list_and_watch(Empty {}).await {
        let mut stream = stream.into_inner();
        while let Ok(Some(update)) = stream.message().await {
            let devices = match by_id(update.devices) {
                Ok(devices) => devices,
                Err(reason) => {
                    shared.complain(format!("device plugin for {resource:?}: {reason}"));
                    break;
                }
            };
            if !change(&shared, &resource, generation, |known| *known = devices) {
                return;
            }
        }
    }
    change(&shared, &resource, generation, |known| {
        known.values_mut().for_each(|device| device.health = "Unhealthy".to_owned());
    });
}

/// Changes the devices of a resource, and tells of it. Whether who registered as number `generation` is still the one
/// who serves it.
fn change(
    shared: &Shared,
    resource: &str,
    generation: u64,
    change: impl FnOnce(&mut BTreeMap<String, Device>),
) -> bool {
    let mut is_current = false;
    shared.publish_resources(|devices| {
        let mut state = devices.lock();
        let endpoint = state.endpoints.get_mut(resource).filter(|endpoint| endpoint.generation == generation);
        is_current = endpoint.map(|endpoint| change(&mut endpoint.devices)).is_some();
    });
    is_current
}

fn by_id(devices: Vec<Device>) -> Result<BTreeMap<String, Device>, String> {
    let mut by_id = BTreeMap::new();
    for device in devices {
        let id = device.id.clone();
        if id.is_empty() || id.len() > MAX_ID {
            return Err(format!("device id {id:?} must have 1 to {MAX_ID} characters"));
        }
        if ![HEALTHY, "Unhealthy"].contains(&device.health.as_str()) {
            return Err(format!("device {id:?} is {:?}, which is neither Healthy nor Unhealthy", device.health));
        }
        if by_id.insert(id.clone(), device).is_some() {
            return Err(format!("two devices have the id {id:?}"));
        }
    }
    Ok(by_id)
}

/// A name with a domain that is not Kubernetes' own.
fn is_extended_resource(name: &str) -> bool {
    let Some((domain, resource)) = name.split_once('/') else { return false };
    let is_word = |text: &str| {
        let edge = |c: char| c.is_ascii_alphanumeric();
        !text.is_empty()
            && text.len() <= 63
            && text.starts_with(edge)
            && text.ends_with(edge)
            && text.chars().all(|c| edge(c) || "-_.".contains(c))
    };
    let native = domain == "kubernetes.io" || domain.ends_with(".kubernetes.io");
    // With the prefix that quotas put in front it must still be a name.
    !native && !name.starts_with("requests.") && is_word(domain) && domain.len() <= 54 && is_word(resource)
}

#[cfg(test)]
mod tests {
    use super::is_extended_resource;

    #[test]
    fn resources_have_a_domain_that_is_not_kubernetes_own() {
        for name in
            ["aliquot.dev/gpu-core", "nvidia.com/gpu", "tke.cloud.tencent.com/qgpu-core", "a.b/gpu-core.percentage"]
        {
            assert!(is_extended_resource(name), "{name}");
        }
        for name in ["gpu", "kubernetes.io/gpu", "a.kubernetes.io/gpu", "requests.a/b", "a/", "/b", "a/b/c", "a b/c"] {
            assert!(!is_extended_resource(name), "{name}");
        }
    }
}
