//! A blocking client of the node manager's API.

use std::path::Path;
use std::time::Duration;

use aliquot_proto::node::v1::node_manager_client::NodeManagerClient;
use aliquot_proto::node::v1::{
    CreateSliceRequest, GetNodeRequest, GetUsageRequest, ListFindingsRequest, ListFindingsResponse, ListSlicesRequest,
    Node, RemoveSliceRequest, ResizeSliceRequest, Slice, SliceUsage,
};
use hyper_util::rt::TokioIo;
use tokio::net::UnixStream;
use tokio::runtime::Runtime;
use tonic::Status;
use tonic::transport::{Channel, Endpoint};

/// A connection to a node manager. Each call blocks until the manager has answered.
pub struct Client {
    runtime: Runtime,
    api: NodeManagerClient<Channel>,
}

impl Client {
    /// Connects to the manager at `socket`; `None` if none listens there.
    #[must_use]
    pub fn connect(socket: &Path) -> Option<Client> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
        let socket = socket.to_owned();
        let connector = tower::service_fn(move |_| {
            let socket = socket.clone();
            async move { UnixStream::connect(socket).await.map(TokioIo::new) }
        });
        // The address only fills the authority header; the connector ignores it.
        let endpoint = Endpoint::from_static("http://localhost").timeout(Duration::from_secs(30));
        let channel = runtime.block_on(endpoint.connect_with_connector(connector)).ok()?;
        Some(Client { runtime, api: NodeManagerClient::new(channel) })
    }

    /// `GetNode`.
    ///
    /// # Errors
    /// The manager's answer.
    pub fn node(&mut self) -> Result<Node, Status> {
        Ok(self.runtime.block_on(self.api.get_node(GetNodeRequest {}))?.into_inner())
    }

    /// `CreateSlice`.
    ///
    /// # Errors
    /// The manager's answer.
    pub fn create(&mut self, request: CreateSliceRequest) -> Result<Slice, Status> {
        Ok(self.runtime.block_on(self.api.create_slice(request))?.into_inner())
    }

    /// `ResizeSlice`.
    ///
    /// # Errors
    /// The manager's answer.
    pub fn resize(&mut self, request: ResizeSliceRequest) -> Result<Slice, Status> {
        Ok(self.runtime.block_on(self.api.resize_slice(request))?.into_inner())
    }

    /// `RemoveSlice`.
    ///
    /// # Errors
    /// The manager's answer.
    pub fn remove(&mut self, name: &str, force: bool) -> Result<(), Status> {
        let request = RemoveSliceRequest { name: name.to_owned(), force };
        self.runtime.block_on(self.api.remove_slice(request))?;
        Ok(())
    }

    /// `ListSlices`.
    ///
    /// # Errors
    /// The manager's answer.
    pub fn slices(&mut self) -> Result<Vec<Slice>, Status> {
        Ok(self.runtime.block_on(self.api.list_slices(ListSlicesRequest {}))?.into_inner().slices)
    }

    /// `ListFindings` of all slices and outside of them.
    ///
    /// # Errors
    /// The manager's answer.
    pub fn findings(&mut self) -> Result<ListFindingsResponse, Status> {
        Ok(self.runtime.block_on(self.api.list_findings(ListFindingsRequest::default()))?.into_inner())
    }

    /// `GetUsage` of the slice `name`.
    ///
    /// # Errors
    /// The manager's answer; `NotFound` if it does not know the slice.
    pub fn usage(&mut self, name: &str) -> Result<SliceUsage, Status> {
        let request = GetUsageRequest { slices: vec![name.to_owned()] };
        let usage = self.runtime.block_on(self.api.get_usage(request))?.into_inner();
        usage.slices.into_iter().next().ok_or_else(|| Status::not_found(format!("no usage of slice {name}")))
    }
}
