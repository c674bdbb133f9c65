//! Kubelet's requests to the driver: to prepare claims, to unprepare them, and to watch the devices' health.

use std::collections::{BTreeSet, HashMap};
use std::pin::Pin;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use aliquot_proto::kubelet::dra::dra_plugin_server::DraPlugin;
use aliquot_proto::kubelet::dra::{
    Claim, Device, NodePrepareResourceResponse, NodePrepareResourcesRequest, NodePrepareResourcesResponse,
    NodeUnprepareResourceResponse, NodeUnprepareResourcesRequest, NodeUnprepareResourcesResponse,
};
use aliquot_proto::kubelet::dra_health::dra_resource_health_server::DraResourceHealth;
use aliquot_proto::kubelet::dra_health::{
    DeviceHealth, DeviceIdentifier, HealthStatus, NodeWatchResourcesRequest, NodeWatchResourcesResponse,
};
use tokio::sync::{mpsc, watch};
use tokio::task::JoinSet;
use tokio_stream::Stream;
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Request, Response, Status};
use tracing::warn;

use super::claims::{ClaimError, ClaimName, Claims, Prepared};
use super::names::device_name;
use super::partitions::View;

/// Maximum time between two reports of the health, so that kubelet does not take silence for a problem.
const HEALTH_INTERVAL: Duration = Duration::from_secs(30);
/// Time without a report after which kubelet calls the health unknown.
const HEALTH_TIMEOUT: Duration = Duration::from_secs(100);

/// The services that kubelet calls.
#[derive(Clone)]
pub(super) struct Driver {
    claims: Arc<Claims>,
    /// True once the driver must end: streams that would go on for ever end then.
    end: watch::Receiver<bool>,
}

impl Driver {
    /// The services for these claims, until `end` is true.
    #[must_use]
    pub(super) fn new(claims: Arc<Claims>, end: watch::Receiver<bool>) -> Driver {
        Driver { claims, end }
    }
}

impl From<Claim> for ClaimName {
    fn from(Claim { namespace, name, uid }: Claim) -> ClaimName {
        ClaimName { namespace, name, uid }
    }
}

fn answer(outcome: Result<Vec<Prepared>, ClaimError>) -> NodePrepareResourceResponse {
    match outcome {
        Err(error) => NodePrepareResourceResponse { devices: Vec::new(), error: error.to_string() },
        Ok(slices) => NodePrepareResourceResponse {
            devices: slices.into_iter().flat_map(devices).collect(),
            error: String::new(),
        },
    }
}

/// The devices for kubelet's answer. A container gets the CDI devices of the requests that it has.
fn devices(Prepared { devices, cdi_device }: Prepared) -> impl Iterator<Item = Device> {
    devices.into_iter().map(move |device| Device {
        request_names: vec![device.request],
        pool_name: device.pool,
        device_name: device.device,
        cdi_device_ids: vec![cdi_device.clone()],
        share_id: device.share_id,
    })
}

#[tonic::async_trait]
impl DraPlugin for Driver {
    async fn node_prepare_resources(
        &self,
        request: Request<NodePrepareResourcesRequest>,
    ) -> Result<Response<NodePrepareResourcesResponse>, Status> {
        let together: Arc<BTreeSet<ClaimName>> =
            Arc::new(request.into_inner().claims.into_iter().map(ClaimName::from).collect());
        let mut tasks = JoinSet::new();
        for claim in together.iter().cloned() {
            let (claims, together) = (Arc::clone(&self.claims), Arc::clone(&together));
            tasks.spawn(async move {
                let outcome = claims.prepare(&claim, &together).await;
                (claim.uid, answer(outcome))
            });
        }
        // A panic in one of them has ended the process.
        let claims: HashMap<String, NodePrepareResourceResponse> = tasks.join_all().await.into_iter().collect();
        Ok(Response::new(NodePrepareResourcesResponse { claims }))
    }

    async fn node_unprepare_resources(
        &self,
        request: Request<NodeUnprepareResourcesRequest>,
    ) -> Result<Response<NodeUnprepareResourcesResponse>, Status> {
        let mut tasks = JoinSet::new();
        for Claim { namespace, name, uid } in request.into_inner().claims {
            let claims = Arc::clone(&self.claims);
            tasks.spawn(async move {
                let outcome = claims.unprepare(&uid).await;
                if let Err(error) = &outcome {
                    warn!(namespace, name, uid, %error, "cannot give up a claim");
                }
                let error = outcome.err().map(|error| error.to_string()).unwrap_or_default();
                (uid, NodeUnprepareResourceResponse { error })
            });
        }
        // A panic in one of them has ended the process.
        let claims: HashMap<String, NodeUnprepareResourceResponse> = tasks.join_all().await.into_iter().collect();
        Ok(Response::new(NodeUnprepareResourcesResponse { claims }))
    }
}

#[tonic::async_trait]
impl DraResourceHealth for Driver {
    type NodeWatchResourcesStream =
        Pin<Box<dyn Stream<Item = Result<NodeWatchResourcesResponse, Status>> + Send + 'static>>;

    async fn node_watch_resources(
        &self,
        _: Request<NodeWatchResourcesRequest>,
    ) -> Result<Response<Self::NodeWatchResourcesStream>, Status> {
        let (mut devices, mut end) = (self.claims.node().devices(), self.end.clone());
        let claims = Arc::clone(&self.claims);
        let (answers, stream) = mpsc::channel(1);
        tokio::spawn(async move {
            loop {
                devices.mark_unchanged();
                let health = health(&claims.view(), claims.pool(), SystemTime::now());
                if answers.send(Ok(health)).await.is_err() {
                    return;
                }
                tokio::select! {
                    changed = devices.changed() => if changed.is_err() { return },
                    () = tokio::time::sleep(HEALTH_INTERVAL) => {}
                    // An error means that the sender is gone, which is the end as well.
                    _ = end.wait_for(|end| *end) => return,
                    () = answers.closed() => return,
                }
            }
        });
        Ok(Response::new(Box::pin(ReceiverStream::new(stream))))
    }
}

/// The health of all devices of the pool.
fn health(view: &View, pool: &str, now: SystemTime) -> NodeWatchResourcesResponse {
    let seconds = now.duration_since(UNIX_EPOCH).map_or(0, |elapsed| elapsed.as_secs());
    let offers = view.offers();
    let shared = view.shared().map(|device| (device_name(&device.uuid), device));
    let named = shared.chain(offers.iter().map(|offer| (offer.name(), offer.gpu)));
    let devices = named.filter_map(|(name, device)| {
        let health = if device.problem.is_some() { HealthStatus::Unhealthy } else { HealthStatus::Healthy };
        Some(DeviceHealth {
            device: Some(DeviceIdentifier { pool_name: pool.into(), device_name: name? }),
            health: health.into(),
            last_updated_time: i64::try_from(seconds).unwrap_or(i64::MAX),
            health_check_timeout_seconds: i64::try_from(HEALTH_TIMEOUT.as_secs()).unwrap_or(i64::MAX),
            message: device.problem.clone().unwrap_or_default(),
        })
    });
    NodeWatchResourcesResponse { devices: devices.collect() }
}

#[cfg(test)]
mod tests {
    use tokio_stream::StreamExt;

    use super::*;
    use crate::dra::claims::tests::World;

    #[tokio::test]
    async fn kubelet_is_told_when_a_device_fails_and_when_it_has_recovered() {
        let world = World::new(30);
        let (stop, end) = watch::channel(false);
        let driver = Driver::new(world.start("boot-1"), end);
        let stream = driver.node_watch_resources(Request::new(NodeWatchResourcesRequest {})).await.unwrap();
        let mut stream = stream.into_inner();
        let problems = [None, Some("the driver reported the critical error XID 79"), None];
        for problem in problems {
            world.node.change(0, |device| device.problem = problem.map(Into::into));
            let told = stream.next().await.unwrap().unwrap().devices.remove(0);
            let expected = if problem.is_some() { HealthStatus::Unhealthy } else { HealthStatus::Healthy };
            assert_eq!((told.health(), told.message.as_str()), (expected, problem.unwrap_or_default()));
            let device = told.device.unwrap();
            assert_eq!((device.pool_name.as_str(), device.device_name.starts_with("gpu-")), ("node-1", true));
        }
        stop.send(true).unwrap();
        assert!(stream.next().await.is_none());
    }
}
