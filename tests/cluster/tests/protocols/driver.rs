//! A DRA driver for tests.

use std::collections::HashMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

use aliquot_proto::kubelet::dra::dra_plugin_server::{DraPlugin, DraPluginServer};
use aliquot_proto::kubelet::dra::{
    Claim, Device, NodePrepareResourceResponse, NodePrepareResourcesRequest, NodePrepareResourcesResponse,
    NodeUnprepareResourceResponse, NodeUnprepareResourcesRequest, NodeUnprepareResourcesResponse,
};
use aliquot_proto::kubelet::dra_health::dra_resource_health_server::{DraResourceHealth, DraResourceHealthServer};
use aliquot_proto::kubelet::dra_health::{NodeWatchResourcesRequest, NodeWatchResourcesResponse};
use aliquot_proto::kubelet::registration::registration_server::{Registration, RegistrationServer};
use aliquot_proto::kubelet::registration::{InfoRequest, PluginInfo, RegistrationStatus, RegistrationStatusResponse};
use tokio::net::UnixListener;
use tokio::runtime::Runtime;
use tokio_stream::wrappers::{ReceiverStream, UnixListenerStream};
use tonic::transport::Server;
use tonic::{Request, Response, Status};

use crate::stage::{self, DRIVER, Stage};

/// How the driver behaves.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Behaviour {
    Good,
    /// Every claim fails with this reason.
    Refuses(String),
    /// Claims are missing in the answer.
    Skips,
    /// The driver offers only services of this version.
    Speaks(String),
}

/// A driver that serves calls. When this is dropped, it stops and leaves its socket behind, as if it were killed.
pub(crate) struct Driver {
    service: Service,
    socket: PathBuf,
    runtime: Option<Runtime>,
}

#[derive(Clone)]
struct Service {
    cdi: PathBuf,
    behaviour: Arc<Mutex<Behaviour>>,
    calls: Arc<Mutex<Vec<String>>>,
    registrations: Arc<Mutex<Vec<RegistrationStatus>>>,
}

impl Driver {
    pub(crate) fn start(stage: &Stage, behaviour: Behaviour) -> Driver {
        Driver::start_at("test@reg.sock", stage, behaviour)
    }

    /// The same, with this name for its socket.
    pub(crate) fn start_at(socket: &str, stage: &Stage, behaviour: Behaviour) -> Driver {
        let service = Service {
            cdi: stage.cdi_directory(),
            behaviour: Arc::new(Mutex::new(behaviour)),
            calls: Arc::default(),
            registrations: Arc::default(),
        };
        let socket = stage.cluster.kubelet_dir().join("plugins_registry").join(socket);
        let mut driver = Driver { service, socket, runtime: None };
        driver.serve();
        driver
    }

    /// Starts to serve, again if it was stopped.
    pub(crate) fn serve(&mut self) {
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
        let _ = fs::remove_file(&self.socket);
        let _guard = runtime.enter();
        let incoming = UnixListenerStream::new(UnixListener::bind(&self.socket).unwrap());
        let server = Server::builder()
            .add_service(RegistrationServer::new(self.service.clone()))
            .add_service(DraPluginServer::new(self.service.clone()))
            .add_service(DraResourceHealthServer::new(self.service.clone()));
        runtime.spawn(server.serve_with_incoming(incoming));
        self.runtime = Some(runtime);
    }

    /// Stops as if it were killed.
    pub(crate) fn kill(&mut self) {
        self.runtime.take().unwrap().shutdown_background();
    }

    /// Stops, and removes its socket.
    pub(crate) fn stop(&mut self) {
        self.kill();
        fs::remove_file(&self.socket).unwrap();
    }

    pub(crate) fn behave(&self, behaviour: Behaviour) {
        *self.service.behaviour.lock().unwrap() = behaviour;
    }

    /// The calls that kubelet has made: a word for each call, and the names of its claims.
    pub(crate) fn calls(&self) -> Vec<String> {
        self.service.calls.lock().unwrap().clone()
    }

    /// The result of each registration, as kubelet has reported it. Kubelet calls the driver before it reports the
    /// registration.
    pub(crate) fn registrations(&self) -> Vec<RegistrationStatus> {
        self.service.registrations.lock().unwrap().clone()
    }
}

impl Drop for Driver {
    fn drop(&mut self) {
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_background();
        }
    }
}

impl Service {
    fn note(&self, what: &str, claims: &[Claim]) {
        let mut names: Vec<&str> = claims.iter().map(|claim| claim.name.as_str()).collect();
        names.sort_unstable();
        self.calls.lock().unwrap().push(format!("{what} {}", names.join(" ")));
    }

    fn behaviour(&self) -> Behaviour {
        self.behaviour.lock().unwrap().clone()
    }
}

#[tonic::async_trait]
impl Registration for Service {
    async fn get_info(&self, _: Request<InfoRequest>) -> Result<Response<PluginInfo>, Status> {
        let version = match self.behaviour() {
            Behaviour::Speaks(version) => version,
            _ => "v1.DRAPlugin".to_owned(),
        };
        let info = PluginInfo {
            r#type: "DRAPlugin".to_owned(),
            name: DRIVER.to_owned(),
            endpoint: String::new(),
            supported_versions: vec![version],
        };
        Ok(Response::new(info))
    }

    async fn notify_registration_status(
        &self,
        status: Request<RegistrationStatus>,
    ) -> Result<Response<RegistrationStatusResponse>, Status> {
        self.registrations.lock().unwrap().push(status.into_inner());
        Ok(Response::new(RegistrationStatusResponse {}))
    }
}

#[tonic::async_trait]
impl DraPlugin for Service {
    async fn node_prepare_resources(
        &self,
        request: Request<NodePrepareResourcesRequest>,
    ) -> Result<Response<NodePrepareResourcesResponse>, Status> {
        let claims = request.into_inner().claims;
        self.note("prepare", &claims);
        let behaviour = self.behaviour();
        let mut answer = HashMap::new();
        for claim in claims.into_iter().filter(|_| behaviour != Behaviour::Skips) {
            let prepared = match &behaviour {
                Behaviour::Refuses(reason) => {
                    NodePrepareResourceResponse { error: reason.clone(), ..NodePrepareResourceResponse::default() }
                }
                _ => {
                    publish(&self.cdi, &claim.uid);
                    let device = Device {
                        request_names: vec!["gpu".to_owned()],
                        pool_name: "node-1".to_owned(),
                        device_name: "gpu-0".to_owned(),
                        cdi_device_ids: vec![format!("example.org/claim={}", claim.uid)],
                        share_id: None,
                    };
                    NodePrepareResourceResponse { devices: vec![device], error: String::new() }
                }
            };
            answer.insert(claim.uid, prepared);
        }
        Ok(Response::new(NodePrepareResourcesResponse { claims: answer }))
    }

    async fn node_unprepare_resources(
        &self,
        request: Request<NodeUnprepareResourcesRequest>,
    ) -> Result<Response<NodeUnprepareResourcesResponse>, Status> {
        let claims = request.into_inner().claims;
        self.note("unprepare", &claims);
        let unprepared = |claim: Claim| (claim.uid, NodeUnprepareResourceResponse { error: String::new() });
        Ok(Response::new(NodeUnprepareResourcesResponse { claims: claims.into_iter().map(unprepared).collect() }))
    }
}

fn publish(directory: &Path, uid: &str) {
    stage::publish_cdi(directory, uid);
}

#[tonic::async_trait]
impl DraResourceHealth for Service {
    type NodeWatchResourcesStream = ReceiverStream<Result<NodeWatchResourcesResponse, Status>>;

    async fn node_watch_resources(
        &self,
        _: Request<NodeWatchResourcesRequest>,
    ) -> Result<Response<Self::NodeWatchResourcesStream>, Status> {
        let (sender, receiver) = tokio::sync::mpsc::channel(1);
        // The stream stays open until the reader is gone.
        tokio::spawn(async move { sender.closed().await });
        Ok(Response::new(ReceiverStream::new(receiver)))
    }
}
