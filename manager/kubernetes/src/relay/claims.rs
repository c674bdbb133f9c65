//! Relays the DRA driver: claims wait for the next manager.

use std::path::PathBuf;
use std::time::Duration;

use aliquot_proto::kubelet::dra::dra_plugin_client::DraPluginClient;
use aliquot_proto::kubelet::dra::dra_plugin_server::DraPlugin;
use aliquot_proto::kubelet::dra::{
    NodePrepareResourcesRequest, NodePrepareResourcesResponse, NodeUnprepareResourcesRequest,
    NodeUnprepareResourcesResponse,
};
use aliquot_proto::kubelet::dra_health::dra_resource_health_client::DraResourceHealthClient;
use aliquot_proto::kubelet::dra_health::dra_resource_health_server::DraResourceHealth;
use aliquot_proto::kubelet::dra_health::{NodeWatchResourcesRequest, NodeWatchResourcesResponse};
use tokio::net::UnixStream;
use tokio::sync::{mpsc, watch};
use tokio::time::{Instant, sleep};
use tokio_stream::wrappers::ReceiverStream;
use tonic::transport::Channel;
use tonic::{Request, Response, Status};
use tracing::warn;

use super::ask::{PAUSE, ask};
use crate::dra::{Sockets, keep_serving};
use crate::unix_socket::channel;

/// The time for a request. Kubelet gives up after 45 s, and asks again at its next look at the pod.
const PATIENCE: Duration = Duration::from_secs(40);
/// Time between two checks whether the manager still serves.
const LOOK_INTERVAL: Duration = Duration::from_secs(1);

/// Relays until `end` is true. While no manager has served for `absence_max`, the driver is withdrawn from kubelet:
/// otherwise kubelet would keep the node's devices on offer.
pub(super) async fn relay(manager: PathBuf, sockets: &Sockets, absence_max: Duration, mut end: watch::Receiver<bool>) {
    sockets.clear_up();
    let driver = Relayed { manager: channel(manager.clone()), end: end.clone() };
    while !*end.borrow() {
        let came = async {
            while !is_there(&manager).await {
                sleep(PAUSE).await
            }
        };
        tokio::select! {
            () = came => {}
            // An error means that the sender is gone, which is the end as well.
            _ = end.wait_for(|end| *end) => return,
        }
        match sockets.listen() {
            Ok(listening) => tokio::select! {
                () = keep_serving(sockets, &driver, listening, end.clone()) => {}
                () = gone(&manager, absence_max) => {
                    warn!("the manager has been away for long: kubelet has no driver any more");
                }
            },
            Err(error) => {
                warn!(%error, "cannot serve kubelet, will try again");
                sleep(PAUSE).await;
            }
        }
    }
}

async fn is_there(manager: &PathBuf) -> bool {
    UnixStream::connect(manager).await.is_ok()
}

/// Returns when no manager has served for `absence_max`.
async fn gone(manager: &PathBuf, absence_max: Duration) {
    let mut seen = Instant::now();
    while seen.elapsed() < absence_max {
        sleep(LOOK_INTERVAL).await;
        if is_there(manager).await {
            seen = Instant::now();
        }
    }
}

/// The driver, as kubelet sees it.
#[derive(Clone)]
struct Relayed {
    manager: Channel,
    /// True once this must end: streams that would go on for ever end then.
    end: watch::Receiver<bool>,
}

#[tonic::async_trait]
impl DraPlugin for Relayed {
    async fn node_prepare_resources(
        &self,
        request: Request<NodePrepareResourcesRequest>,
    ) -> Result<Response<NodePrepareResourcesResponse>, Status> {
        let (manager, request) = (DraPluginClient::new(self.manager.clone()), request.into_inner());
        ask(Instant::now() + PATIENCE, || {
            let (mut manager, request) = (manager.clone(), request.clone());
            async move { manager.node_prepare_resources(request).await }
        })
        .await
    }

    async fn node_unprepare_resources(
        &self,
        request: Request<NodeUnprepareResourcesRequest>,
    ) -> Result<Response<NodeUnprepareResourcesResponse>, Status> {
        let (manager, request) = (DraPluginClient::new(self.manager.clone()), request.into_inner());
        ask(Instant::now() + PATIENCE, || {
            let (mut manager, request) = (manager.clone(), request.clone());
            async move { manager.node_unprepare_resources(request).await }
        })
        .await
    }
}

#[tonic::async_trait]
impl DraResourceHealth for Relayed {
    type NodeWatchResourcesStream = ReceiverStream<Result<NodeWatchResourcesResponse, Status>>;

    /// Passes on the manager's stream. It ends with the manager; kubelet asks again five seconds later.
    async fn node_watch_resources(
        &self,
        request: Request<NodeWatchResourcesRequest>,
    ) -> Result<Response<Self::NodeWatchResourcesStream>, Status> {
        let mut manager = DraResourceHealthClient::new(self.manager.clone());
        let mut told = manager.node_watch_resources(request.into_inner()).await?.into_inner();
        let mut end = self.end.clone();
        let (answers, stream) = mpsc::channel(1);
        tokio::spawn(async move {
            loop {
                let health = tokio::select! {
                    health = told.message() => health,
                    // An error means that the sender is gone, which is the end as well.
                    _ = end.wait_for(|end| *end) => return,
                    () = answers.closed() => return,
                };
                let Some(health) = health.transpose() else { return };
                if answers.send(health).await.is_err() {
                    return;
                }
            }
        });
        Ok(Response::new(ReceiverStream::new(stream)))
    }
}
