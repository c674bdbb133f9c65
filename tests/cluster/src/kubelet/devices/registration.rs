//! The registration of device plugins, and the stream of their devices.

use std::collections::BTreeMap;
use std::fs;
use std::sync::Arc;
use std::time::Duration;

use aliquot_proto::kubelet::device_plugin::device_plugin_client::DevicePluginClient;
use aliquot_proto::kubelet::device_plugin::registration_server::{Registration, RegistrationServer};
use aliquot_proto::kubelet::device_plugin::{Device, Empty, RegisterRequest};
use tokio::sync::Notify;
use tonic::transport::{Channel, Server};
use tonic::{Request, Response, Status};

use super::{Endpoint, HEALTHY, Shared, allocation};
use crate::socket;

const VERSION: &str = "v1beta1";
const MAX_ID: usize = 63;
const DIAL: Duration = Duration::from_secs(10);

/// Serves registrations. The directory is emptied first: this tells plugins that they must register again.
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
        let checked = check(&self.shared, &request).await;
        let socket = checked.map_err(|reason| {
            self.shared.complain(format!("device plugin for {:?}: {reason}", request.resource_name));
            Status::unknown(reason)
        })?;
        connect(&self.shared, &request.resource_name, DevicePluginClient::new(socket)).await?;
        Ok(Response::new(Empty {}))
    }
}

/// Checks a registration, and connects to its plugin.
async fn check(shared: &Shared, request: &RegisterRequest) -> Result<Channel, String> {
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
    connected.map_err(|error| format!("failed to connect to {}: {error}", socket.display()))
}

/// Behaves like a kubelet without Kubernetes PR 135437: a client is noted as the resource's before it is asked for its
/// options. If it does not answer, the resource has no client, but keeps the endpoint and the devices of the client
/// before.
async fn connect(shared: &Shared, resource: &str, mut client: DevicePluginClient<Channel>) -> Result<(), Status> {
    let disconnected = Arc::new(Notify::new());
    shared.devices.lock().clients.insert(resource.to_owned(), Arc::clone(&disconnected));
    let options = match client.get_device_plugin_options(Empty {}).await {
        Ok(options) => options.into_inner(),
        Err(status) => {
            shared.devices.lock().clients.remove(resource);
            return Err(Status::unknown(format!("failed to get device plugin options: {status}")));
        }
    };
    let mut state = shared.devices.lock();
    // A new registration takes over the devices of the one before it.
    let devices = state.endpoints.remove(resource).map(|endpoint| endpoint.devices).unwrap_or_default();
    state.endpoints.insert(resource.to_owned(), Endpoint { client: client.clone(), options, devices });
    state.known.insert(resource.to_owned());
    allocation::write(&shared.devices.checkpoint, &state);
    drop(state);
    tokio::spawn(run(Arc::clone(shared), resource.to_owned(), client, disconnected));
    Ok(())
}

/// Follows a resource's devices as this plugin reports them, until it is gone or was disconnected. Then the resource's
/// newest client is disconnected, whichever it is, and all devices are unhealthy.
async fn run(shared: Shared, resource: String, client: DevicePluginClient<Channel>, disconnected: Arc<Notify>) {
    tokio::select! {
        () = follow(&shared, &resource, client) => {}
        () = disconnected.notified() => {}
    }
    let newest = shared.devices.lock().clients.remove(&resource);
    let Some(newest) = newest else { return };
    newest.notify_one();
    change(&shared, &resource, |known| {
        known.values_mut().for_each(|device| device.health = "Unhealthy".to_owned());
    });
}

async fn follow(shared: &Shared, resource: &str, mut client: DevicePluginClient<Channel>) {
    let Ok(stream) = client.list_and_watch(Empty {}).await else { return };
    let mut stream = stream.into_inner();
    while let Ok(Some(update)) = stream.message().await {
        match by_id(update.devices) {
            Ok(devices) => change(shared, resource, |known| *known = devices),
            Err(reason) => return shared.complain(format!("device plugin for {resource:?}: {reason}")),
        }
    }
}

/// Changes the devices of a resource, and updates the node's status.
fn change(shared: &Shared, resource: &str, change: impl FnOnce(&mut BTreeMap<String, Device>)) {
    shared.publish_resources(|devices| {
        if let Some(endpoint) = devices.lock().endpoints.get_mut(resource) {
            change(&mut endpoint.devices);
        }
    });
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

/// Whether this is a name with a domain that does not belong to Kubernetes.
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
    // It must still be a valid name with the prefix that quotas add.
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
