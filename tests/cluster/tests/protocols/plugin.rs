//! A device plugin for tests.

use std::fs;
use std::path::PathBuf;
use std::sync::{Arc, Mutex};

use aliquot_proto::kubelet::device_plugin::device_plugin_server::{DevicePlugin, DevicePluginServer};
use aliquot_proto::kubelet::device_plugin::registration_client::RegistrationClient;
use aliquot_proto::kubelet::device_plugin::{
    AllocateRequest, AllocateResponse, CdiDevice, ContainerAllocateResponse, ContainerPreferredAllocationResponse,
    Device, DevicePluginOptions, Empty, ListAndWatchResponse, PreStartContainerRequest, PreStartContainerResponse,
    PreferredAllocationRequest, PreferredAllocationResponse, RegisterRequest,
};
use hyper_util::rt::TokioIo;
use tokio::net::{UnixListener, UnixStream};
use tokio::runtime::Runtime;
use tokio::sync::watch;
use tokio_stream::wrappers::{ReceiverStream, UnixListenerStream};
use tonic::transport::{Channel, Endpoint, Server};
use tonic::{Request, Response, Status};

use crate::stage::Stage;

/// A plugin that serves one resource.
pub(crate) struct Plugin {
    service: Service,
    directory: PathBuf,
    runtime: Runtime,
}

/// The options, which kubelet asks for although the registration contains them.
const OPTIONS: DevicePluginOptions =
    DevicePluginOptions { pre_start_required: true, get_preferred_allocation_available: true };

/// A word for the call that kubelet made, and the ids in it.
type Call = (&'static str, Vec<String>);

#[derive(Clone)]
struct Service {
    devices: watch::Sender<Vec<Device>>,
    log: Arc<Mutex<Vec<Call>>>,
}

impl Plugin {
    pub(crate) fn start(stage: &Stage, ids: &[&str]) -> Plugin {
        let devices = ids.iter().map(|id| device(id, "Healthy")).collect();
        let service = Service { devices: watch::Sender::new(devices), log: Arc::default() };
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
        let plugin = Plugin { service, directory: stage.cluster.kubelet_dir().join("device-plugins"), runtime };
        plugin.serve();
        plugin
    }

    /// Starts to serve, again after kubelet has emptied its directory.
    pub(crate) fn serve(&self) {
        let socket = self.directory.join("test.sock");
        let _ = fs::remove_file(&socket);
        let _guard = self.runtime.enter();
        let incoming = UnixListenerStream::new(UnixListener::bind(&socket).unwrap());
        let server = Server::builder().add_service(DevicePluginServer::new(self.service.clone()));
        self.runtime.spawn(server.serve_with_incoming(incoming));
    }

    pub(crate) fn register(&self, version: &str, resource: &str) -> Result<(), Status> {
        let request = RegisterRequest {
            version: version.to_owned(),
            endpoint: "test.sock".to_owned(),
            resource_name: resource.to_owned(),
            options: Some(OPTIONS),
        };
        self.runtime.block_on(async {
            RegistrationClient::new(connect(self.directory.join("kubelet.sock")).await).register(request).await
        })?;
        Ok(())
    }

    pub(crate) fn set_health(&self, id: &str, health: &str) {
        self.service.devices.send_modify(|devices| {
            devices.iter_mut().filter(|device| device.id == id).for_each(|device| device.health = health.to_owned());
        });
    }

    /// The calls that kubelet has made, each with its ids in order.
    pub(crate) fn log(&self) -> Vec<Call> {
        let mut log = self.service.log.lock().unwrap().clone();
        log.iter_mut().for_each(|(_, ids)| ids.sort());
        log
    }
}

pub(crate) async fn connect(socket: PathBuf) -> Channel {
    let connector = tower::service_fn(move |_| {
        let socket = socket.clone();
        async move { UnixStream::connect(socket).await.map(TokioIo::new) }
    });
    Endpoint::from_static("http://localhost").connect_with_connector(connector).await.unwrap()
}

fn device(id: &str, health: &str) -> Device {
    Device { id: id.to_owned(), health: health.to_owned(), topology: None }
}

#[tonic::async_trait]
impl DevicePlugin for Service {
    type ListAndWatchStream = ReceiverStream<Result<ListAndWatchResponse, Status>>;

    async fn get_device_plugin_options(&self, _: Request<Empty>) -> Result<Response<DevicePluginOptions>, Status> {
        Ok(Response::new(OPTIONS))
    }

    async fn list_and_watch(&self, _: Request<Empty>) -> Result<Response<Self::ListAndWatchStream>, Status> {
        let (sender, receiver) = tokio::sync::mpsc::channel(1);
        let mut devices = self.devices.subscribe();
        tokio::spawn(async move {
            loop {
                let devices_now = devices.borrow_and_update().clone();
                if sender.send(Ok(ListAndWatchResponse { devices: devices_now })).await.is_err() {
                    return;
                }
                tokio::select! {
                    changed = devices.changed() => if changed.is_err() { return },
                    () = sender.closed() => return,
                }
            }
        });
        Ok(Response::new(ReceiverStream::new(receiver)))
    }

    async fn get_preferred_allocation(
        &self,
        request: Request<PreferredAllocationRequest>,
    ) -> Result<Response<PreferredAllocationResponse>, Status> {
        let request = request.into_inner().container_requests.remove(0);
        self.log.lock().unwrap().push(("prefer", request.available_device_ids.clone()));
        // The last ids by name are preferred.
        let mut ids = request.available_device_ids;
        ids.sort_by(|a, b| b.cmp(a));
        ids.truncate(request.allocation_size as usize);
        let container_responses = vec![ContainerPreferredAllocationResponse { device_ids: ids }];
        Ok(Response::new(PreferredAllocationResponse { container_responses }))
    }

    async fn allocate(&self, request: Request<AllocateRequest>) -> Result<Response<AllocateResponse>, Status> {
        let mut ids = request.into_inner().container_requests.remove(0).device_ids;
        self.log.lock().unwrap().push(("allocate", ids.clone()));
        ids.sort();
        let cdi_devices = vec![CdiDevice { name: format!("example.org/claim={}", ids.join("-")) }];
        let response = ContainerAllocateResponse { cdi_devices, ..ContainerAllocateResponse::default() };
        Ok(Response::new(AllocateResponse { container_responses: vec![response] }))
    }

    async fn pre_start_container(
        &self,
        request: Request<PreStartContainerRequest>,
    ) -> Result<Response<PreStartContainerResponse>, Status> {
        self.log.lock().unwrap().push(("start", request.into_inner().device_ids));
        Ok(Response::new(PreStartContainerResponse {}))
    }
}
