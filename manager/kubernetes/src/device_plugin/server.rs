//! Kubelet's requests about one resource.

use std::pin::Pin;
use std::sync::Arc;

use aliquot_node::Node;
use aliquot_proto::kubelet::device_plugin as proto;
use proto::device_plugin_server::DevicePlugin;
use tokio::sync::{Notify, watch};
use tokio_stream::wrappers::WatchStream;
use tokio_stream::{Stream, StreamExt};
use tonic::{Request, Response, Status};
use tracing::warn;

use super::given::{Given, Ids};
use super::listeners::Listeners;
use super::preferred::preferred;
use super::prepare::Preparer;
use super::resource::Resource;
use super::unit_id::CdiName;
use super::units::Unit;

const HEALTHY: &str = "Healthy";
pub(crate) const UNHEALTHY: &str = "Unhealthy";

/// The units of a resource, in the form for kubelet.
pub(super) type Units = Arc<Vec<Unit>>;

/// The plugin of one resource.
pub(super) struct Server {
    pub(super) resource: Resource,
    pub(super) node: Arc<dyn Node>,
    pub(super) units: watch::Receiver<Units>,
    pub(super) preparer: Arc<Preparer>,
    /// Notified when slices have changed.
    pub(super) changed: Arc<Notify>,
    /// The streams of kubelet, or of relays for it.
    pub(super) listeners: Listeners,
    /// Set if kubelet itself is served. A relay keeps such notes itself until the container starts, and then tells the
    /// plugin.
    pub(super) given: Option<Given>,
}

/// The options of the plugin.
pub(crate) fn options() -> proto::DevicePluginOptions {
    proto::DevicePluginOptions { pre_start_required: true, get_preferred_allocation_available: true }
}

#[tonic::async_trait]
impl DevicePlugin for Server {
    type ListAndWatchStream = Pin<Box<dyn Stream<Item = Result<proto::ListAndWatchResponse, Status>> + Send>>;

    async fn get_device_plugin_options(
        &self,
        _: Request<proto::Empty>,
    ) -> Result<Response<proto::DevicePluginOptions>, Status> {
        Ok(Response::new(options()))
    }

    async fn list_and_watch(&self, _: Request<proto::Empty>) -> Result<Response<Self::ListAndWatchStream>, Status> {
        let listener = self.listeners.listen();
        let answers = WatchStream::new(self.units.clone()).map(move |units| {
            let _alive = &listener;
            Ok(proto::ListAndWatchResponse { devices: units.iter().map(device).collect() })
        });
        Ok(Response::new(Box::pin(answers)))
    }

    async fn get_preferred_allocation(
        &self,
        request: Request<proto::PreferredAllocationRequest>,
    ) -> Result<Response<proto::PreferredAllocationResponse>, Status> {
        let devices = self.node.devices().borrow().clone();
        let prefer = |request: proto::ContainerPreferredAllocationRequest| {
            let size = usize::try_from(request.allocation_size).unwrap_or(0);
            let (available, must) = (&request.available_device_ids, &request.must_include_device_ids);
            let device_ids = preferred(&self.resource, &devices, available, must, size);
            proto::ContainerPreferredAllocationResponse { device_ids }
        };
        let container_responses: Vec<_> = request.into_inner().container_requests.into_iter().map(prefer).collect();
        let ids = container_responses.iter().flat_map(|answer| answer.device_ids.iter().cloned()).collect();
        self.preparer.admission_begins(&self.resource, ids).await;
        Ok(Response::new(proto::PreferredAllocationResponse { container_responses }))
    }

    async fn allocate(
        &self,
        request: Request<proto::AllocateRequest>,
    ) -> Result<Response<proto::AllocateResponse>, Status> {
        let mut container_responses = Vec::new();
        for container in request.into_inner().container_requests {
            let ids: Ids = container.device_ids.into_iter().collect();
            let name = CdiName::of_units(&self.resource.name, &ids);
            match &self.given {
                Some(given) => given.note(ids),
                None => self.preparer.retire(&name).await?,
            }
            let cdi_devices = vec![proto::CdiDevice { name: name.as_str().to_owned() }];
            container_responses
                .push(proto::ContainerAllocateResponse { cdi_devices, ..proto::ContainerAllocateResponse::default() });
        }
        Ok(Response::new(proto::AllocateResponse { container_responses }))
    }

    async fn pre_start_container(
        &self,
        request: Request<proto::PreStartContainerRequest>,
    ) -> Result<Response<proto::PreStartContainerResponse>, Status> {
        let ids: Ids = request.into_inner().device_ids.into_iter().collect();
        if let Some(given) = &self.given {
            for units in given.among(&ids) {
                self.preparer.retire(&CdiName::of_units(&self.resource.name, &units)).await?;
                given.forget(&units);
            }
        }
        let outcome = self.preparer.prepare(&self.resource, &ids).await.inspect_err(|error| {
            warn!(resource = self.resource.name, "a container cannot start: {error}");
        });
        // A refusal for want of room changes the offer, too.
        self.changed.notify_one();
        outcome?;
        Ok(Response::new(proto::PreStartContainerResponse {}))
    }
}

fn device(unit: &Unit) -> proto::Device {
    let health = if unit.is_healthy { HEALTHY } else { UNHEALTHY };
    let nodes = unit.numa_node.map(|node| proto::NumaNode { id: node.into() });
    let topology = nodes.map(|node| proto::TopologyInfo { nodes: vec![node] });
    proto::Device { id: unit.id.clone(), health: health.to_owned(), topology }
}
