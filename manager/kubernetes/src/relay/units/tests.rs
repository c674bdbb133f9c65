use std::sync::{Arc, Mutex as StdMutex};

use tempfile::TempDir;
use tokio::runtime::{Builder, Runtime};
use tonic::{Code, Streaming};

use super::*;
use crate::device_plugin::test_kubelet::TestKubelet;
use crate::unix_socket::SocketFile;

const CORE: &str = "aliquot.dev/gpu-core";
const LONG: Duration = Duration::from_secs(3600);

/// The requests that a manager got, in order.
type Asked = Arc<StdMutex<Vec<String>>>;

/// A manager's plugin of a resource with these healthy units.
struct Manager {
    units: Vec<&'static str>,
    asked: Asked,
}

#[tonic::async_trait]
impl DevicePlugin for Manager {
    type ListAndWatchStream = Pin<Box<dyn Stream<Item = Result<proto::ListAndWatchResponse, Status>> + Send>>;

    async fn get_device_plugin_options(
        &self,
        _: Request<proto::Empty>,
    ) -> Result<Response<proto::DevicePluginOptions>, Status> {
        Ok(Response::new(options()))
    }

    async fn list_and_watch(&self, _: Request<proto::Empty>) -> Result<Response<Self::ListAndWatchStream>, Status> {
        let unit = |id: &&str| proto::Device { id: (*id).into(), health: "Healthy".into(), topology: None };
        let list = proto::ListAndWatchResponse { devices: self.units.iter().map(unit).collect() };
        Ok(Response::new(Box::pin(tokio_stream::once(Ok(list)).chain(tokio_stream::pending()))))
    }

    async fn get_preferred_allocation(
        &self,
        _: Request<proto::PreferredAllocationRequest>,
    ) -> Result<Response<proto::PreferredAllocationResponse>, Status> {
        Err(Status::internal("nothing is preferred"))
    }

    async fn allocate(
        &self,
        request: Request<proto::AllocateRequest>,
    ) -> Result<Response<proto::AllocateResponse>, Status> {
        let ids = &request.into_inner().container_requests[0].device_ids;
        self.asked.lock().unwrap().push(format!("Allocate {ids:?}"));
        if ids == &["bad"] {
            return Err(Status::internal("its old slice cannot be removed"));
        }
        Ok(Response::new(proto::AllocateResponse { container_responses: Vec::new() }))
    }

    async fn pre_start_container(
        &self,
        request: Request<proto::PreStartContainerRequest>,
    ) -> Result<Response<proto::PreStartContainerResponse>, Status> {
        let ids = request.into_inner().device_ids;
        self.asked.lock().unwrap().push(format!("PreStartContainer {ids:?}"));
        if ids == ["bad"] {
            Err(Status::unavailable("no room"))
        } else {
            Ok(Response::new(proto::PreStartContainerResponse {}))
        }
    }
}

struct World {
    kubelet: TestKubelet,
    meeting: Meeting,
    asked: Asked,
    relays: Vec<Running>,
    dir: TempDir,
}

/// Stands for a process: when it is dropped, its connections end.
struct Running(Option<Runtime>);

impl Running {
    fn start(work: impl Future<Output = ()> + Send + 'static) -> Running {
        let runtime = Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
        runtime.spawn(work);
        Running(Some(runtime))
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.0.take().unwrap().shutdown_background();
    }
}

impl World {
    fn new() -> World {
        let dir = tempfile::tempdir().unwrap();
        let (kubelet, meeting) = (TestKubelet::start(dir.path()), Meeting::below(dir.path()));
        World { kubelet, meeting, asked: Asked::default(), relays: Vec::new(), dir }
    }

    /// A manager with these units.
    fn manager(&self, units: &[&'static str]) -> Running {
        let service = Arc::new(Manager { units: units.to_vec(), asked: Arc::clone(&self.asked) });
        Running::start(crate::device_plugin::keep_serving_unregistered(service, self.meeting.plugin(CORE)))
    }

    fn relay(&mut self, instance: &'static str, absence_max: Duration) {
        let (meeting, dir) = (self.meeting.clone(), self.dir.path().join("device-plugins"));
        let relay = async move { relay(&meeting, &dir, instance, absence_max).await };
        self.relays.push(Running::start(relay));
    }

    async fn watch(&self) -> Streaming<proto::ListAndWatchResponse> {
        self.kubelet.plugin(CORE).await.list_and_watch(proto::Empty {}).await.unwrap().into_inner()
    }

    /// Waits until `count` plugins have registered for the resource, one after the other.
    async fn registrations(&self, count: usize) {
        while self.kubelet.registrations(CORE) < count {
            sleep(Duration::from_millis(10)).await;
        }
    }
}

/// Waits until these units are on offer.
async fn offered(units: &mut Streaming<proto::ListAndWatchResponse>, ids: &[&str]) {
    loop {
        let list = units.next().await.unwrap().unwrap();
        let healthy = list.devices.iter().filter(|device| device.health == "Healthy");
        if healthy.map(|device| device.id.as_str()).collect::<Vec<_>>() == ids {
            return;
        }
    }
}

fn allocate(id: &str) -> proto::AllocateRequest {
    let container_requests = vec![proto::ContainerAllocateRequest { device_ids: vec![id.into()] }];
    proto::AllocateRequest { container_requests }
}

fn start(id: &str) -> proto::PreStartContainerRequest {
    proto::PreStartContainerRequest { device_ids: vec![id.into()] }
}

#[tokio::test]
async fn what_a_manager_was_not_told_it_is_told_before_a_container_starts() {
    let mut world = World::new();
    let manager = world.manager(&["a", "b"]);
    world.relay("one", LONG);
    let mut plugin = world.kubelet.plugin(CORE).await;
    let mut units = world.watch().await;
    offered(&mut units, &["a", "b"]).await;
    drop(manager);
    let answer = plugin.allocate(allocate("a")).await.unwrap().into_inner();
    let name = CdiName::of_units(CORE, &BTreeSet::from(["a".to_owned()]));
    assert_eq!(answer.container_responses[0].cdi_devices[0].name, name.as_str());
    let preferred = proto::PreferredAllocationRequest {
        container_requests: vec![proto::ContainerPreferredAllocationRequest::default()],
    };
    let preferred = plugin.get_preferred_allocation(preferred).await.unwrap().into_inner();
    assert_eq!(preferred.container_responses, [proto::ContainerPreferredAllocationResponse::default()]);
    let mut other = plugin.clone();
    let waiting = tokio::spawn(async move { other.pre_start_container(start("a")).await });
    let _next = world.manager(&["b", "c"]);
    waiting.await.unwrap().unwrap();
    assert_eq!(*world.asked.lock().unwrap(), ["Allocate [\"a\"]", "PreStartContainer [\"a\"]"]);
    offered(&mut units, &["b", "c"]).await;
    // The manager is not told the same twice.
    plugin.pre_start_container(start("a")).await.unwrap();
    assert_eq!(world.asked.lock().unwrap().len(), 3);
}

#[tokio::test]
async fn a_container_that_waits_for_the_manager_holds_up_no_other_one() {
    let mut world = World::new();
    let manager = world.manager(&["a", "b", "bad"]);
    world.relay("one", LONG);
    let mut plugin = world.kubelet.plugin(CORE).await;
    offered(&mut world.watch().await, &["a", "b", "bad"]).await;
    drop(manager);
    plugin.allocate(allocate("bad")).await.unwrap();
    plugin.allocate(allocate("a")).await.unwrap();
    let mut other = plugin.clone();
    let waiting = tokio::spawn(async move { other.pre_start_container(start("a")).await });
    plugin.allocate(allocate("b")).await.unwrap();
    assert!(!waiting.is_finished(), "the container that waits was waited for");
    let _next = world.manager(&["a", "b", "bad"]);
    // A refusal for one container does not affect another one.
    waiting.await.unwrap().unwrap();
    plugin.pre_start_container(start("b")).await.unwrap();
    assert_eq!(
        plugin.pre_start_container(start("bad")).await.unwrap_err().message(),
        "its old slice cannot be removed"
    );
}

#[tokio::test]
async fn units_that_are_given_out_again_are_told_once() {
    let mut world = World::new();
    let _manager = world.manager(&["a"]);
    world.relay("one", LONG);
    let mut plugin = world.kubelet.plugin(CORE).await;
    offered(&mut world.watch().await, &["a"]).await;
    plugin.allocate(allocate("a")).await.unwrap();
    plugin.allocate(allocate("a")).await.unwrap();
    plugin.pre_start_container(start("a")).await.unwrap();
    assert_eq!(*world.asked.lock().unwrap(), ["Allocate [\"a\"]", "PreStartContainer [\"a\"]"]);
}

#[tokio::test]
async fn kubelet_gets_units_without_a_question_to_the_manager() {
    let mut world = World::new();
    let _manager = world.manager(&["a", "b"]);
    world.relay("one", LONG);
    let mut plugin = world.kubelet.plugin(CORE).await;
    offered(&mut world.watch().await, &["a", "b"]).await;
    plugin.allocate(allocate("a")).await.unwrap();
    assert_eq!(*world.asked.lock().unwrap(), [""; 0]);
    plugin.pre_start_container(start("b")).await.unwrap();
    assert_eq!(*world.asked.lock().unwrap(), ["PreStartContainer [\"b\"]"]);
}

#[tokio::test]
async fn what_the_next_manager_does_not_serve_is_not_on_offer() {
    let mut world = World::new();
    let manager = world.manager(&["a"]);
    world.relay("one", LONG);
    let mut units = world.watch().await;
    offered(&mut units, &["a"]).await;
    drop(manager);
    let service = Arc::new(Manager { units: vec!["a"], asked: Arc::clone(&world.asked) });
    let socket = world.meeting.plugin("nvidia.com/gpu");
    let _next = Running::start(crate::device_plugin::keep_serving_unregistered(service, socket));
    offered(&mut units, &[]).await;
}

#[tokio::test]
async fn a_manager_s_refusal_is_passed_on_and_not_asked_for_again() {
    let mut world = World::new();
    let _manager = world.manager(&["a"]);
    world.relay("one", LONG);
    let mut plugin = world.kubelet.plugin(CORE).await;
    let refusal = plugin.pre_start_container(start("bad")).await.unwrap_err();
    assert_eq!((refusal.code(), refusal.message()), (Code::Unavailable, "no room"));
    assert_eq!(world.asked.lock().unwrap().len(), 1);
}

#[tokio::test]
async fn nothing_is_on_offer_once_the_manager_has_been_away_for_long() {
    let mut world = World::new();
    let manager = world.manager(&["a"]);
    world.relay("one", Duration::ZERO);
    let mut units = world.watch().await;
    offered(&mut units, &["a"]).await;
    drop(manager);
    offered(&mut units, &[]).await;
    let _next = world.manager(&["a"]);
    offered(&mut units, &["a"]).await;
}

#[tokio::test]
async fn who_is_not_listened_to_any_more_registers_again() {
    let mut world = World::new();
    let _manager = world.manager(&["a"]);
    world.relay("one", LONG);
    world.registrations(1).await;
    // This is what kubelets without Kubernetes PR 135437 do when another plugin of the resource ends.
    world.kubelet.disconnect();
    world.registrations(2).await;
}

#[tokio::test]
async fn a_relay_registers_again_when_another_one_ends() {
    let mut world = World::new();
    let _manager = world.manager(&["a"]);
    let other = world.dir.path().join("device-plugins/aliquot-aliquot-dev-gpu-core@two.sock");
    let other = SocketFile::listen(&other).unwrap();
    world.relay("one", LONG);
    world.registrations(1).await;
    drop(other);
    world.registrations(2).await;
}

#[tokio::test]
async fn what_a_relay_that_was_killed_has_left_is_removed() {
    let mut world = World::new();
    let dir = world.dir.path().join("device-plugins");
    let left = dir.join("aliquot-aliquot-dev-gpu-core@before.sock");
    let (file, listener) = SocketFile::listen(&left).unwrap();
    std::mem::forget(file);
    drop(listener);
    let _manager = world.manager(&["a"]);
    world.relay("one", LONG);
    world.registrations(1).await;
    assert!(!left.exists());
}
