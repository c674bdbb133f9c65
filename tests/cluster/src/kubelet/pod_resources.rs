//! The PodResources service: the devices and claims of each container.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

use aliquot_proto::kubelet::pod_resources::pod_resources_lister_server::{
    PodResourcesLister, PodResourcesListerServer,
};
use aliquot_proto::kubelet::pod_resources::{
    AllocatableResourcesRequest, AllocatableResourcesResponse, CdiDevice, ClaimResource, ContainerDevices,
    ContainerResources, DynamicResource, GetPodResourcesRequest, GetPodResourcesResponse, ListPodResourcesRequest,
    ListPodResourcesResponse, NumaNode, PodResources, TopologyInfo,
};
use k8s_openapi::api::core::v1::{Container, Pod};
use tonic::transport::Server;
use tonic::{Request, Response, Status};

use super::Shared;
use super::claims::KnownClaim;
use crate::pod::{containers_of, init_containers_of, is_sidecar, name_of, uid_of};
use crate::socket;

/// The limit of calls in each second, for all clients together, and how many may come at once. These are the real
/// kubelet's limits: a plugin that asks too often must fail.
const CALLS_PER_SECOND: f64 = 100.0;
const BURST: f64 = 10.0;

/// Serves the devices and claims of containers.
pub(super) fn serve(shared: Arc<Shared>) {
    let incoming = socket::listen(&shared.settings.directory.join("pod-resources/kubelet.sock"));
    let limit = Mutex::new((BURST, Instant::now()));
    let server = Server::builder().add_service(PodResourcesListerServer::new(Service { shared, limit }));
    tokio::spawn(server.serve_with_incoming(incoming));
}

struct Service {
    shared: Arc<Shared>,
    /// The remaining calls, and the time of this count.
    limit: Mutex<(f64, Instant)>,
}

impl Service {
    fn admit(&self) -> Result<(), Status> {
        let mut limit = self.limit.lock().unwrap_or_else(PoisonError::into_inner);
        let (left, at) = *limit;
        let left = (left + at.elapsed().as_secs_f64() * CALLS_PER_SECOND).min(BURST);
        *limit = (left - if left < 1.0 { 0.0 } else { 1.0 }, Instant::now());
        if left < 1.0 { Err(Status::resource_exhausted("rejected by rate limit")) } else { Ok(()) }
    }

    async fn of_pod(&self, pod: &Pod) -> PodResources {
        let mut containers = Vec::new();
        // Init containers that end before the others start are not listed, although they have devices.
        let sidecars = init_containers_of(pod).iter().filter(|container| is_sidecar(container));
        for container in sidecars.chain(containers_of(pod)) {
            containers.push(self.of_container(pod, container).await);
        }
        let (namespace, name) = name_of(pod);
        PodResources { name, namespace, containers }
    }

    async fn of_container(&self, pod: &Pod, container: &Container) -> ContainerResources {
        let mut devices = Vec::new();
        for (resource, given) in self.shared.devices.with_topology(&uid_of(pod), &container.name) {
            // One entry for each pair of a device and one of its NUMA nodes.
            for (id, nodes) in given {
                let entry = |topology| ContainerDevices {
                    resource_name: resource.clone(),
                    device_ids: vec![id.clone()],
                    topology,
                };
                if nodes.is_empty() {
                    devices.push(entry(None));
                }
                let nodes = nodes.into_iter();
                devices.extend(nodes.map(|id| entry(Some(TopologyInfo { nodes: vec![NumaNode { id }] }))));
            }
        }
        let claims = self.shared.claims.of_container(pod, container).await;
        let dynamic_resources = claims.into_iter().map(dynamic_resource).collect();
        let name = container.name.clone();
        ContainerResources { name, devices, cpu_ids: Vec::new(), memory: Vec::new(), dynamic_resources }
    }
}

fn dynamic_resource(claim: KnownClaim) -> DynamicResource {
    let mut claim_resources = Vec::new();
    for (driver, devices) in claim.devices {
        claim_resources.extend(devices.into_iter().map(|device| ClaimResource {
            cdi_devices: device.cdi_devices.into_iter().map(|name| CdiDevice { name }).collect(),
            driver_name: driver.clone(),
            pool_name: device.pool,
            device_name: device.device,
            share_id: device.share_id,
        }));
    }
    DynamicResource { claim_name: claim.name, claim_namespace: claim.namespace, claim_resources }
}

#[tonic::async_trait]
impl PodResourcesLister for Service {
    async fn list(
        &self,
        _request: Request<ListPodResourcesRequest>,
    ) -> Result<Response<ListPodResourcesResponse>, Status> {
        self.admit()?;
        let mut pod_resources = Vec::new();
        for pod in self.shared.pods.active() {
            pod_resources.push(self.of_pod(&pod).await);
        }
        Ok(Response::new(ListPodResourcesResponse { pod_resources }))
    }

    async fn get_allocatable_resources(
        &self,
        _request: Request<AllocatableResourcesRequest>,
    ) -> Result<Response<AllocatableResourcesResponse>, Status> {
        Err(Status::unimplemented("no plugin has a use for this"))
    }

    async fn get(&self, request: Request<GetPodResourcesRequest>) -> Result<Response<GetPodResourcesResponse>, Status> {
        self.admit()?;
        let GetPodResourcesRequest { pod_name, pod_namespace } = request.into_inner();
        let named =
            self.shared.pods.active().into_iter().find(|pod| name_of(pod) == (pod_namespace.clone(), pod_name.clone()));
        let pod =
            named.ok_or_else(|| Status::unknown(format!("pod {pod_name} in namespace {pod_namespace} not found")))?;
        Ok(Response::new(GetPodResourcesResponse { pod_resources: Some(self.of_pod(&pod).await) }))
    }
}
