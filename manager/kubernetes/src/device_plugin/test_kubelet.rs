//! Kubelet's part in the plugin's own tests: sockets in a directory, the plugins registered there, and the units of
//! containers.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use aliquot_proto::kubelet::{device_plugin as plugin, pod_resources as who};
use hyper_util::rt::TokioIo;
use plugin::device_plugin_client::DevicePluginClient;
use plugin::registration_server::{Registration, RegistrationServer};
use tokio::net::{UnixListener, UnixStream};
use tokio::task::{JoinHandle, JoinSet};
use tokio_stream::wrappers::UnixListenerStream;
use tonic::transport::{Channel, Endpoint, Server};
use tonic::{Request, Response, Status};
use who::pod_resources_lister_server::{PodResourcesLister, PodResourcesListerServer};

/// The state of kubelet.
#[derive(Default)]
struct Known {
    /// The sockets of plugins by resource, in this run.
    registered: BTreeMap<String, String>,
    /// How often a plugin has registered, by resource.
    registrations: BTreeMap<String, usize>,
    /// Units by pod and resource.
    units: BTreeMap<String, BTreeMap<String, Vec<String>>>,
    /// How often `PodResources` was asked.
    lists: usize,
    /// How many of the next questions are rejected as too many.
    rejected: usize,
    /// How long it takes to answer.
    answer_delay: Duration,
    /// Work to do during the next question.
    meanwhile: Option<Box<dyn FnOnce() + Send>>,
    /// Work to do at every question.
    at_questions: Option<Box<dyn FnMut() + Send>>,
    /// The tasks that listen to the plugins, in this run.
    listening: JoinSet<()>,
}

/// The state that all parts of a kubelet share.
#[derive(Clone, Default)]
pub(crate) struct Shared(Arc<Mutex<Known>>);

impl Shared {
    /// Gives these units to the container `main` of a pod.
    pub(crate) fn give(&self, pod: &str, resource: &str, ids: &[String]) {
        let mut known = self.0.lock().unwrap();
        known.units.entry(pod.into()).or_default().insert(resource.into(), ids.to_vec());
    }
}

#[derive(Clone)]
struct Service {
    plugins_dir: PathBuf,
    known: Shared,
}

/// A kubelet that can be restarted.
pub(crate) struct TestKubelet {
    dir: PathBuf,
    known: Shared,
    serving: Vec<JoinHandle<()>>,
}

impl TestKubelet {
    pub(crate) fn start(dir: &Path) -> TestKubelet {
        let mut kubelet = TestKubelet { dir: dir.into(), known: Shared::default(), serving: Vec::new() };
        kubelet.serve();
        kubelet
    }

    fn serve(&mut self) {
        let listen = |path: &str| {
            let path = self.dir.join(path);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            let _ = std::fs::remove_file(&path);
            UnixListenerStream::new(UnixListener::bind(path).unwrap())
        };
        let (registration, lister) = (listen("device-plugins/kubelet.sock"), listen("pod-resources/kubelet.sock"));
        let service = Service { plugins_dir: self.dir.join("device-plugins"), known: self.known() };
        let registration =
            Server::builder().add_service(RegistrationServer::new(service.clone())).serve_with_incoming(registration);
        let lister = Server::builder().add_service(PodResourcesListerServer::new(service)).serve_with_incoming(lister);
        self.serving =
            vec![tokio::spawn(async { registration.await.unwrap() }), tokio::spawn(async { lister.await.unwrap() })];
    }

    /// Ends, empties the directory as kubelet does, and starts again.
    pub(crate) fn restart(&mut self) {
        self.serving.drain(..).for_each(|task| task.abort());
        let mut known = self.known.0.lock().unwrap();
        known.registered.clear();
        known.listening.abort_all();
        drop(known);
        std::fs::remove_dir_all(self.dir.join("device-plugins")).unwrap();
        self.serve();
    }

    /// The plugin of a resource, once it is registered.
    pub(crate) async fn plugin(&self, resource: &str) -> DevicePluginClient<Channel> {
        let endpoint = loop {
            let endpoint = self.known.0.lock().unwrap().registered.get(resource).cloned();
            match endpoint {
                Some(endpoint) => break endpoint,
                None => tokio::time::sleep(Duration::from_millis(10)).await,
            }
        };
        connect(self.dir.join("device-plugins").join(endpoint)).await.unwrap()
    }

    /// How often a plugin of a resource has registered.
    pub(crate) fn registrations(&self, resource: &str) -> usize {
        self.known.0.lock().unwrap().registrations.get(resource).copied().unwrap_or_default()
    }

    /// Stops listening to all plugins.
    pub(crate) fn disconnect(&self) {
        self.known.0.lock().unwrap().listening.abort_all();
    }

    /// The shared state, for code that changes it elsewhere.
    pub(crate) fn known(&self) -> Shared {
        self.known.clone()
    }

    /// Gives these units to the container `main` of a pod.
    pub(crate) fn give(&self, pod: &str, resource: &str, ids: &[String]) {
        self.known.give(pod, resource, ids);
    }

    /// The units that a pod has, by resource.
    pub(crate) fn units(&self, pod: &str) -> BTreeMap<String, Vec<String>> {
        self.known.0.lock().unwrap().units.get(pod).cloned().unwrap_or_default()
    }

    /// The units of a resource that pods have.
    pub(crate) fn taken(&self, resource: &str) -> BTreeSet<String> {
        let known = self.known.0.lock().unwrap();
        known.units.values().filter_map(|units| units.get(resource)).flatten().cloned().collect()
    }

    /// Makes kubelet forget a pod and its units.
    pub(crate) fn forget(&self, pod: &str) {
        self.known.0.lock().unwrap().units.remove(pod);
    }

    /// Rejects the next questions, as kubelet does when it is asked too often.
    pub(crate) fn reject(&self, questions: usize) {
        self.known.0.lock().unwrap().rejected = questions;
    }

    /// Delays each answer of `PodResources`.
    pub(crate) fn answer_after(&self, delay: Duration) {
        self.known.0.lock().unwrap().answer_delay = delay;
    }

    /// Does `work` during the next question of `PodResources`, after the state was read.
    pub(crate) fn meanwhile(&self, work: impl FnOnce() + Send + 'static) {
        self.known.0.lock().unwrap().meanwhile = Some(Box::new(work));
    }

    /// Does `work` at every question of `PodResources`, before the state is read. If only one client asks, it has then
    /// finished its work on the last answer.
    pub(crate) fn at_questions(&self, work: impl FnMut() + Send + 'static) {
        self.known.0.lock().unwrap().at_questions = Some(Box::new(work));
    }

    /// How often `PodResources` was asked.
    pub(crate) fn lists(&self) -> usize {
        self.known.0.lock().unwrap().lists
    }
}

impl Drop for TestKubelet {
    fn drop(&mut self) {
        self.serving.drain(..).for_each(|task| task.abort());
    }
}

async fn connect(path: PathBuf) -> Result<DevicePluginClient<Channel>, tonic::transport::Error> {
    let connector = tower::service_fn(move |_| {
        let path = path.clone();
        async move { std::io::Result::Ok(TokioIo::new(UnixStream::connect(path).await?)) }
    });
    let endpoint = Endpoint::from_static("http://localhost");
    endpoint.connect_with_connector(connector).await.map(DevicePluginClient::new)
}

/// Listens to a plugin until it ends: a plugin without a listener registers again.
async fn listen(path: PathBuf) {
    let Ok(mut plugin) = connect(path).await else { return };
    let Ok(units) = plugin.list_and_watch(plugin::Empty {}).await else { return };
    let mut units = units.into_inner();
    while let Ok(Some(_)) = units.message().await {}
}

#[tonic::async_trait]
impl Registration for Service {
    async fn register(&self, request: Request<plugin::RegisterRequest>) -> Result<Response<plugin::Empty>, Status> {
        let request = request.into_inner();
        let options = request.options.unwrap_or_default();
        let is_right = request.version == "v1beta1"
            && options.pre_start_required
            && options.get_preferred_allocation_available
            && !request.endpoint.contains('/');
        if !is_right {
            return Err(Status::invalid_argument("not as kubelet wants it"));
        }
        let path = self.plugins_dir.join(&request.endpoint);
        let mut known = self.known.0.lock().unwrap();
        *known.registrations.entry(request.resource_name.clone()).or_default() += 1;
        known.registered.insert(request.resource_name, request.endpoint);
        known.listening.spawn(listen(path));
        Ok(Response::new(plugin::Empty {}))
    }
}

#[tonic::async_trait]
impl PodResourcesLister for Service {
    async fn list(
        &self,
        _: Request<who::ListPodResourcesRequest>,
    ) -> Result<Response<who::ListPodResourcesResponse>, Status> {
        let delay = self.known.0.lock().unwrap().answer_delay;
        if !delay.is_zero() {
            tokio::time::sleep(delay).await;
        }
        let mut known = self.known.0.lock().unwrap();
        known.lists += 1;
        if let Some(work) = &mut known.at_questions {
            work();
        }
        if known.rejected > 0 {
            known.rejected -= 1;
            return Err(Status::resource_exhausted("rejected by rate limit"));
        }
        let devices = |(resource, ids): (&String, &Vec<String>)| {
            // The units are split in half, because kubelet splits them by NUMA node.
            let (first, second) = ids.split_at(ids.len() / 2);
            [first, second].map(|ids| who::ContainerDevices {
                resource_name: resource.clone(),
                device_ids: ids.to_vec(),
                topology: None,
            })
        };
        let pod_resources = known.units.iter().map(|(pod, units)| who::PodResources {
            name: pod.clone(),
            namespace: "default".into(),
            containers: vec![who::ContainerResources {
                name: "main".into(),
                devices: units.iter().flat_map(devices).collect(),
                ..who::ContainerResources::default()
            }],
        });
        let answer = who::ListPodResourcesResponse { pod_resources: pod_resources.collect() };
        let meanwhile = known.meanwhile.take();
        drop(known);
        meanwhile.into_iter().for_each(|work| work());
        Ok(Response::new(answer))
    }

    async fn get_allocatable_resources(
        &self,
        _: Request<who::AllocatableResourcesRequest>,
    ) -> Result<Response<who::AllocatableResourcesResponse>, Status> {
        Err(Status::unimplemented("not needed"))
    }

    async fn get(
        &self,
        _: Request<who::GetPodResourcesRequest>,
    ) -> Result<Response<who::GetPodResourcesResponse>, Status> {
        Err(Status::unimplemented("not needed"))
    }
}
