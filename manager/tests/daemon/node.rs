//! A manager with directories of its own, and devices that the test defines.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use aliquot_manager::config::{CdiConfig, CdiSettings, Config};
use aliquot_manager::daemon::{Daemon, StartError};
use aliquot_manager::inventory::{
    Device, DeviceProcess, DeviceSource, DeviceUuid, Health, Inventory, SharingMode, SourceError, UtilisationSample,
};
use aliquot_node::Partition;
use aliquot_proto::node::v1 as proto;
use aliquot_proto::node::v1::node_manager_client::NodeManagerClient;
use hyper_util::rt::TokioIo;
use tokio::net::UnixStream;
use tokio::runtime::Runtime;
use tonic::transport::{Channel, Endpoint};
use tonic::{Code, Status};

pub(crate) const GIB: u64 = 1 << 30;

/// The time limit for something that should be immediate, generous for a busy machine.
const PATIENCE: Duration = Duration::from_secs(60);

/// Polls until `look` returns a value. `what` describes the value in the message of a failure.
pub(crate) fn eventually<T>(what: &str, mut look: impl FnMut() -> Option<T>) -> T {
    let begun = Instant::now();
    loop {
        if let Some(found) = look() {
            return found;
        }
        assert!(begun.elapsed() < PATIENCE, "never: {what}");
        std::thread::sleep(Duration::from_millis(2));
    }
}

/// The questions that the manager asked the driver, and the processes that the driver lists on each device.
#[derive(Clone, Default)]
pub(crate) struct Driver {
    /// "processes" and "utilisation", in the order of the questions about the first device.
    pub(crate) asked: Arc<Mutex<Vec<&'static str>>>,
    pub(crate) processes: Arc<Mutex<Vec<DeviceProcess>>>,
    /// Whether it answers no question about the devices.
    pub(crate) is_silent: Arc<AtomicBool>,
    /// Whether the devices have nodes in `/dev`.
    pub(crate) has_nodes: bool,
}

/// Devices that are always healthy.
struct TestDevices(u32, Driver);

impl TestDevices {
    fn note(&self, device: &DeviceUuid, question: &'static str) {
        if device.as_str() == uuid(0) {
            self.1.asked.lock().unwrap().push(question);
        }
    }
}

impl DeviceSource for TestDevices {
    fn inventory(&mut self) -> Result<Inventory, SourceError> {
        if self.1.is_silent.load(Ordering::Relaxed) {
            return Err(SourceError("the driver is not there yet".into()));
        }
        let device = |index| Device {
            uuid: DeviceUuid::new(uuid(index)),
            index,
            model: "Test GPU".into(),
            memory_bytes: 80 * GIB,
            pci_bus_id: format!("00000000:0{index}:00.0"),
            minor: self.1.has_nodes.then_some(index),
            numa_node: None,
            nvlink_peers: Vec::new(),
            compute_capability: Some((9, 0)),
            mig_enabled: false,
            partitioning: None,
            mig_instance: None,
            tells_utilisation: true,
            sharing: SharingMode::Time,
            health: Health::Healthy,
        };
        let devices = (0..self.0).map(device).collect();
        Ok(Inventory { driver_version: "580.1".into(), cuda_version: "13.0".into(), devices })
    }

    fn processes(&mut self, device: &DeviceUuid) -> Result<Vec<DeviceProcess>, SourceError> {
        self.note(device, "processes");
        Ok(self.1.processes.lock().unwrap().clone())
    }

    fn utilisation(&mut self, device: &DeviceUuid, _: u64) -> Result<Vec<UtilisationSample>, SourceError> {
        self.note(device, "utilisation");
        Ok(Vec::new())
    }

    fn create_instance(&mut self, partition: &Partition) -> Result<(), SourceError> {
        Err(SourceError(format!("{partition}: the GPU is not in MIG mode")))
    }

    fn destroy_instance(&mut self, _: &Partition) -> Result<(), SourceError> {
        Ok(())
    }
}

/// The UUID of device number `index`.
pub(crate) fn uuid(index: u32) -> String {
    format!("GPU-00000000-0000-0000-0000-{index:012x}")
}

/// A part on any device.
pub(crate) fn part(core: u32, memory_bytes: u64) -> proto::Part {
    proto::Part { core_request_percent: core, memory_limit_bytes: memory_bytes, ..proto::Part::default() }
}

/// A client of the manager on `socket`.
pub(crate) fn connect(runtime: &Runtime, socket: &Path) -> NodeManagerClient<Channel> {
    let socket = socket.to_owned();
    let connector = tower::service_fn(move |_| {
        let socket = socket.clone();
        async move { UnixStream::connect(socket).await.map(TokioIo::new) }
    });
    let endpoint = Endpoint::from_static("http://localhost");
    // The channel spawns its tasks on the runtime that is entered.
    let _entered = runtime.enter();
    NodeManagerClient::new(endpoint.connect_with_connector_lazy(connector))
}

/// A manager, its directories and a client.
pub(crate) struct Node {
    pub(crate) config: Config,
    pub(crate) runtime: Arc<Runtime>,
    pub(crate) driver: Driver,
    daemon: Option<Daemon>,
    _dir: tempfile::TempDir,
}

impl Node {
    /// A node of two devices whose manager runs.
    pub(crate) fn start() -> Node {
        let mut node = Node::prepare();
        node.restart().unwrap();
        node
    }

    /// A node whose manager does not run yet.
    pub(crate) fn prepare() -> Node {
        let dir = tempfile::tempdir().unwrap();
        let path = |name: &str| dir.path().join(name);
        let config = Config {
            state_dir: Some(path("state")),
            cdi: Some(CdiConfig { dir: path("cdi"), settings: CdiSettings::default() }),
            metrics_address: Some("127.0.0.1:0".parse().unwrap()),
            ..Config::embedded(path("run"))
        };
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
        Node { config, runtime: Arc::new(runtime), driver: Driver::default(), daemon: None, _dir: dir }
    }

    /// Stops the manager if it runs, and starts another one on the same directories.
    pub(crate) fn restart(&mut self) -> Result<(), StartError> {
        self.stop();
        self.daemon = Some(Daemon::start_with(self.config.clone(), Box::new(TestDevices(2, self.driver.clone())))?);
        Ok(())
    }

    /// Stops the manager.
    pub(crate) fn stop(&mut self) {
        if let Some(daemon) = self.daemon.take() {
            daemon.stop();
        }
    }

    pub(crate) fn daemon(&self) -> &Daemon {
        self.daemon.as_ref().unwrap()
    }

    pub(crate) fn checkpoint(&self) -> PathBuf {
        self.config.state_dir.as_ref().unwrap().join("checkpoint.json")
    }

    pub(crate) fn cdi_file(&self, slice: &str) -> PathBuf {
        self.config.cdi.as_ref().unwrap().dir.join(format!("aliquot.dev-slice-{slice}.json"))
    }

    /// The names in the directory of regions.
    pub(crate) fn regions(&self) -> Vec<String> {
        let entries = fs::read_dir(self.config.runtime_dir.join("slices")).unwrap();
        entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect()
    }

    pub(crate) fn client(&self) -> NodeManagerClient<Channel> {
        connect(&self.runtime, &self.config.socket)
    }

    pub(crate) fn create(&self, name: &str, parts: Vec<proto::Part>) -> Result<proto::Slice, Status> {
        let request = proto::CreateSliceRequest { name: name.into(), parts, ..proto::CreateSliceRequest::default() };
        self.create_by(request)
    }

    pub(crate) fn create_by(&self, request: proto::CreateSliceRequest) -> Result<proto::Slice, Status> {
        self.runtime.block_on(self.client().create_slice(request)).map(tonic::Response::into_inner)
    }

    pub(crate) fn resize(&self, name: &str, parts: Vec<proto::Part>) -> Result<proto::Slice, Status> {
        self.resize_by(proto::ResizeSliceRequest { name: name.into(), parts, ..proto::ResizeSliceRequest::default() })
    }

    pub(crate) fn resize_by(&self, request: proto::ResizeSliceRequest) -> Result<proto::Slice, Status> {
        self.runtime.block_on(self.client().resize_slice(request)).map(tonic::Response::into_inner)
    }

    pub(crate) fn remove(&self, name: &str, force: bool) -> Result<(), Status> {
        let request = proto::RemoveSliceRequest { name: name.into(), force };
        self.runtime.block_on(self.client().remove_slice(request)).map(drop)
    }

    pub(crate) fn get(&self, name: &str) -> Result<proto::Slice, Status> {
        let request = proto::GetSliceRequest { name: name.into() };
        self.runtime.block_on(self.client().get_slice(request)).map(tonic::Response::into_inner)
    }

    pub(crate) fn list(&self) -> Vec<proto::Slice> {
        self.runtime.block_on(self.client().list_slices(proto::ListSlicesRequest {})).unwrap().into_inner().slices
    }

    pub(crate) fn usage(&self, name: &str) -> proto::SliceUsage {
        let request = proto::GetUsageRequest { slices: vec![name.into()] };
        let usage = self.runtime.block_on(self.client().get_usage(request)).unwrap().into_inner();
        usage.slices.into_iter().next().unwrap()
    }

    pub(crate) fn node(&self) -> proto::Node {
        self.runtime.block_on(self.client().get_node(proto::GetNodeRequest {})).unwrap().into_inner()
    }
}

/// Asserts that a call failed with this code, and that the message contains `expected`.
#[track_caller]
pub(crate) fn refused<T: std::fmt::Debug>(outcome: Result<T, Status>, code: Code, expected: &str) {
    let status = outcome.unwrap_err();
    assert_eq!(status.code(), code, "{status}");
    assert!(status.message().contains(expected), "{status}");
}
