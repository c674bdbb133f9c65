//! A node manager that grants each request, and remembers it.

use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::sync::{Arc, Mutex};

use aliquot_proto::node::v1::node_manager_server::{NodeManager, NodeManagerServer};
use aliquot_proto::node::v1::*;
use tokio::net::UnixListener;
use tokio::runtime::Runtime;
use tokio_stream::Stream;
use tokio_stream::wrappers::UnixListenerStream;
use tonic::transport::Server;
use tonic::{Request, Response, Status};

/// The UUID of the only device.
pub(crate) const DEVICE: &str = "GPU-00000000-0000-0000-0000-000000000001";

#[derive(Default)]
pub(crate) struct Asked {
    pub(crate) made: Vec<CreateSliceRequest>,
    pub(crate) removed: Vec<String>,
    /// Why it makes no slice, if it refuses.
    pub(crate) refuses: Option<String>,
    /// Whether it answers no request for a slice.
    pub(crate) is_silent: bool,
}

pub(crate) struct FakeManager {
    socket: PathBuf,
    asked: Arc<Mutex<Asked>>,
    _runtime: Runtime,
}

struct Service(Arc<Mutex<Asked>>);

impl FakeManager {
    pub(crate) fn start(dir: &Path) -> FakeManager {
        let socket = dir.join("manager.sock");
        let runtime =
            tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().expect("a runtime");
        let listener = runtime.block_on(async { UnixListener::bind(&socket) }).expect("a socket");
        let asked = Arc::<Mutex<Asked>>::default();
        let service = NodeManagerServer::new(Service(Arc::clone(&asked)));
        runtime.spawn(Server::builder().add_service(service).serve_with_incoming(UnixListenerStream::new(listener)));
        FakeManager { socket, asked, _runtime: runtime }
    }

    pub(crate) fn socket(&self) -> &Path {
        &self.socket
    }

    pub(crate) fn asked<T>(&self, look: impl FnOnce(&mut Asked) -> T) -> T {
        look(&mut self.asked.lock().expect("what was asked"))
    }
}

type Answer<T> = Result<Response<T>, Status>;

fn never<T>() -> Answer<T> {
    Err(Status::unimplemented("the agent does not need it"))
}

#[tonic::async_trait]
impl NodeManager for Service {
    async fn get_node(&self, _: Request<GetNodeRequest>) -> Answer<Node> {
        let device = Device {
            uuid: DEVICE.into(),
            memory_bytes: 1 << 30,
            health: DeviceHealth::Healthy.into(),
            numa_node: -1,
            ..Device::default()
        };
        Ok(Response::new(Node { name: "host".into(), devices: vec![device], ..Node::default() }))
    }

    async fn create_slice(&self, request: Request<CreateSliceRequest>) -> Answer<Slice> {
        let request = request.into_inner();
        let is_silent = {
            let mut asked = self.0.lock().expect("what was asked");
            if let Some(why) = &asked.refuses {
                return Err(Status::resource_exhausted(why.clone()));
            }
            asked.made.push(request.clone());
            asked.is_silent
        };
        if is_silent {
            std::future::pending::<()>().await;
        }
        let Ok(shim_path) = std::env::current_exe().map(|path| path.with_file_name("no-shim.so")) else {
            return never();
        };
        Ok(Response::new(Slice {
            name: request.name,
            parts: request.parts,
            shim_path: shim_path.display().to_string(),
            ..Slice::default()
        }))
    }

    async fn remove_slice(&self, request: Request<RemoveSliceRequest>) -> Answer<RemoveSliceResponse> {
        self.0.lock().expect("what was asked").removed.push(request.into_inner().name);
        Ok(Response::new(RemoveSliceResponse {}))
    }

    async fn get_usage(&self, _: Request<GetUsageRequest>) -> Answer<GetUsageResponse> {
        Ok(Response::new(GetUsageResponse::default()))
    }

    async fn resize_slice(&self, _: Request<ResizeSliceRequest>) -> Answer<Slice> {
        never()
    }

    async fn get_slice(&self, _: Request<GetSliceRequest>) -> Answer<Slice> {
        never()
    }

    async fn list_slices(&self, _: Request<ListSlicesRequest>) -> Answer<ListSlicesResponse> {
        never()
    }

    type WatchUsageStream = Pin<Box<dyn Stream<Item = Result<GetUsageResponse, Status>> + Send>>;

    async fn watch_usage(&self, _: Request<WatchUsageRequest>) -> Answer<Self::WatchUsageStream> {
        never()
    }

    async fn get_usage_history(&self, _: Request<GetUsageHistoryRequest>) -> Answer<GetUsageHistoryResponse> {
        never()
    }

    async fn list_findings(&self, _: Request<ListFindingsRequest>) -> Answer<ListFindingsResponse> {
        never()
    }

    async fn list_events(&self, _: Request<ListEventsRequest>) -> Answer<ListEventsResponse> {
        never()
    }

    type WatchEventsStream = Pin<Box<dyn Stream<Item = Result<Event, Status>> + Send>>;

    async fn watch_events(&self, _: Request<WatchEventsRequest>) -> Answer<Self::WatchEventsStream> {
        never()
    }
}
