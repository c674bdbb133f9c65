//! Relays device plugins: the units of a manager stay on offer while it is away.

use std::collections::BTreeSet;
use std::path::Path;
use std::pin::Pin;
use std::time::Duration;

use aliquot_proto::kubelet::device_plugin as proto;
use proto::device_plugin_client::DevicePluginClient;
use proto::device_plugin_server::DevicePlugin;
use tokio::net::UnixStream;
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::{Instant, interval, sleep, timeout};
use tokio_stream::wrappers::WatchStream;
use tokio_stream::{Stream, StreamExt};
use tonic::transport::Channel;
use tonic::{Request, Response, Status};
use tracing::{info, warn};

use super::Meeting;
use super::ask::{PAUSE, ask, is_away};
use crate::device_plugin::{
    CdiName, Given, Ids, Listeners, MESSAGE_BYTES_MAX, RegisteredPlugin, SOCKET_PREFIX, UNHEALTHY, keep_serving,
    options,
};
use crate::unix_socket::{channel, remove_dead};

/// Time between two checks whether the manager serves another resource.
const LOOK_INTERVAL: Duration = Duration::from_millis(100);
/// A manager that serves one resource serves its others within this time.
const START_MAX: Duration = Duration::from_secs(5);
/// The time for a request whose answer kubelet can do without. Kubelet admits no other pod meanwhile.
const ADMISSION_PATIENCE: Duration = Duration::from_secs(1);
/// The time for a request to start a container. Kubelet gives up after 30 s, and then waits for at least ten seconds.
const START_PATIENCE: Duration = Duration::from_secs(25);

/// The offer to kubelet; `None` before a manager has sent one.
type Offer = Option<proto::ListAndWatchResponse>;

/// Relays every resource that a manager serves, until this is dropped. A manager's offer is withdrawn once the manager
/// has been away for `absence_max`.
pub(super) async fn relay(meeting: &Meeting, plugins_dir: &Path, instance: &str, absence_max: Duration) {
    remove_dead(plugins_dir, SOCKET_PREFIX);
    let (mut known, mut tasks) = (BTreeSet::new(), JoinSet::new());
    let mut ticks = interval(LOOK_INTERVAL);
    loop {
        ticks.tick().await;
        for resource in meeting.resources() {
            if !known.insert(resource.clone()) {
                continue;
            }
            let manager = DevicePluginClient::new(channel(meeting.plugin(&resource)))
                .max_decoding_message_size(MESSAGE_BYTES_MAX);
            let (sender, mut offer) = watch::channel(Offer::None);
            tasks.spawn(follow(meeting.clone(), resource.clone(), manager.clone(), sender, absence_max));
            let listeners = Listeners::default();
            let service = Relayed {
                resource: resource.clone(),
                manager,
                offer: offer.clone(),
                listeners: listeners.clone(),
                untold: Given::default(),
            };
            let plugin =
                RegisteredPlugin { resource, instance: Some(instance.to_owned()), service: service.into(), listeners };
            let dir = plugins_dir.to_owned();
            tasks.spawn(async move {
                // An error means that the task that follows the manager has ended, because this is dropped.
                if offer.wait_for(Option::is_some).await.is_ok() {
                    keep_serving(plugin, dir).await;
                }
            });
        }
    }
}

/// Passes on the offers of the node's managers, one manager after the other.
async fn follow(
    meeting: Meeting,
    resource: String,
    mut manager: DevicePluginClient<Channel>,
    offer: watch::Sender<Offer>,
    absence_max: Duration,
) {
    let mut away_since = None;
    loop {
        if let Ok(stream) = manager.list_and_watch(proto::Empty {}).await {
            let mut stream = stream.into_inner();
            while let Ok(Some(list)) = stream.message().await {
                away_since = None;
                offer.send_replace(Some(list));
            }
            info!(resource, "the manager has ended; what it has offered stays on offer");
        }
        let away_for = away_since.get_or_insert_with(Instant::now).elapsed();
        if away_for >= absence_max && offer.send_if_modified(withdraw) {
            warn!(resource, "the manager has been away for long: nothing is on offer any more");
        }
        let is_dropped = away_for >= START_MAX && has_units(&offer.borrow());
        if is_dropped && serves_another(&meeting, &resource).await && offer.send_if_modified(withdraw) {
            warn!(resource, "the manager no longer serves this resource: nothing is on offer any more");
        }
        sleep(PAUSE).await;
    }
}

/// Whether any unit is healthy.
fn has_units(offer: &Offer) -> bool {
    offer.iter().flat_map(|list| &list.devices).any(|device| device.health != UNHEALTHY)
}

/// Whether a manager serves now, and serves another resource.
async fn serves_another(meeting: &Meeting, resource: &str) -> bool {
    for other in meeting.resources().iter().filter(|other| *other != resource) {
        if UnixStream::connect(meeting.plugin(other)).await.is_ok() {
            return true;
        }
    }
    false
}

/// Makes all units of the offer unhealthy. Returns whether any was healthy.
fn withdraw(offer: &mut Offer) -> bool {
    let devices = offer.iter_mut().flat_map(|list| &mut list.devices).filter(|device| device.health != UNHEALTHY);
    devices.map(|device| device.health = UNHEALTHY.to_owned()).count() > 0
}

/// The plugin of one resource, as kubelet sees it.
struct Relayed {
    resource: String,
    manager: DevicePluginClient<Channel>,
    offer: watch::Receiver<Offer>,
    listeners: Listeners,
    /// Units that the manager was not told of. It is told before it is asked to start their container.
    untold: Given,
}

impl Relayed {
    /// The answer to kubelet for these units: a function of their ids.
    fn allocated(&self, request: &proto::AllocateRequest) -> proto::AllocateResponse {
        let allocated = |container: &proto::ContainerAllocateRequest| {
            let name = CdiName::of_units(&self.resource, &container.device_ids.iter().cloned().collect());
            proto::ContainerAllocateResponse {
                cdi_devices: vec![proto::CdiDevice { name: name.as_str().to_owned() }],
                ..proto::ContainerAllocateResponse::default()
            }
        };
        proto::AllocateResponse { container_responses: request.container_requests.iter().map(allocated).collect() }
    }

    /// Tells the manager which units were given to a container that has some of these.
    async fn catch_up(&self, ids: &Ids, end: Instant) -> Result<(), Status> {
        for units in self.untold.among(ids) {
            let device_ids = units.iter().cloned().collect();
            let container_requests = vec![proto::ContainerAllocateRequest { device_ids }];
            let request = proto::AllocateRequest { container_requests };
            ask(end, || {
                let (mut manager, request) = (self.manager.clone(), request.clone());
                async move { manager.allocate(request).await }
            })
            .await?;
            self.untold.forget(&units);
        }
        Ok(())
    }
}

#[tonic::async_trait]
impl DevicePlugin for Relayed {
    type ListAndWatchStream = Pin<Box<dyn Stream<Item = Result<proto::ListAndWatchResponse, Status>> + Send>>;

    async fn get_device_plugin_options(
        &self,
        _: Request<proto::Empty>,
    ) -> Result<Response<proto::DevicePluginOptions>, Status> {
        Ok(Response::new(options()))
    }

    async fn list_and_watch(&self, _: Request<proto::Empty>) -> Result<Response<Self::ListAndWatchStream>, Status> {
        let listener = self.listeners.listen();
        let answers = WatchStream::new(self.offer.clone()).map(move |offer| {
            let _alive = &listener;
            Ok(offer.unwrap_or_default())
        });
        Ok(Response::new(Box::pin(answers)))
    }

    async fn get_preferred_allocation(
        &self,
        request: Request<proto::PreferredAllocationRequest>,
    ) -> Result<Response<proto::PreferredAllocationResponse>, Status> {
        let (mut manager, request) = (self.manager.clone(), request.into_inner());
        // Without a preference kubelet chooses by itself.
        let containers = request.container_requests.len();
        let none = proto::PreferredAllocationResponse {
            container_responses: vec![proto::ContainerPreferredAllocationResponse::default(); containers],
        };
        match timeout(ADMISSION_PATIENCE, manager.get_preferred_allocation(request)).await {
            Ok(Err(status)) if !is_away(&status) => Err(status),
            Ok(Ok(answer)) => Ok(answer),
            Ok(Err(_)) | Err(_) => Ok(Response::new(none)),
        }
    }

    /// Answers at once, see [`Given`].
    async fn allocate(
        &self,
        request: Request<proto::AllocateRequest>,
    ) -> Result<Response<proto::AllocateResponse>, Status> {
        let request = request.into_inner();
        for container in &request.container_requests {
            self.untold.note(container.device_ids.iter().cloned().collect());
        }
        Ok(Response::new(self.allocated(&request)))
    }

    async fn pre_start_container(
        &self,
        request: Request<proto::PreStartContainerRequest>,
    ) -> Result<Response<proto::PreStartContainerResponse>, Status> {
        let request = request.into_inner();
        let end = Instant::now() + START_PATIENCE;
        self.catch_up(&request.device_ids.iter().cloned().collect(), end).await?;
        ask(end, || {
            let (mut manager, request) = (self.manager.clone(), request.clone());
            async move { manager.pre_start_container(request).await }
        })
        .await
    }
}

#[cfg(test)]
mod tests;
