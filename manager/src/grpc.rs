//! The node manager's API over gRPC. The contract defines what the messages mean; this module turns them into requests
//! to the [`Manager`], and its answers into messages.

use std::sync::Arc;
use std::time::Duration;

use aliquot_node::aside;
use aliquot_proto::node::v1 as proto;
use aliquot_proto::node::v1::node_manager_server::NodeManager;
use tokio::sync::{Semaphore, mpsc, watch};
use tokio_stream::wrappers::ReceiverStream;
use tonic::transport::server::UdsConnectInfo;
use tonic::{Request, Response, Status};

use crate::live::LiveSlice;
use crate::manager::Manager;
use crate::measure::{self, Now};
use crate::slices::{CreateRequest, ResizeRequest};

mod convert;
mod owner;
mod status;

use status::{internal, no_such_slice};

/// The shortest interval of a usage stream.
const WATCH_INTERVAL_MIN: Duration = Duration::from_millis(100);
const WATCH_INTERVAL_DEFAULT: Duration = Duration::from_secs(1);
/// No stream lives for longer than this. A clock cannot count as far as a request's interval can reach.
const WATCH_INTERVAL_MAX: Duration = Duration::from_secs(100 * 365 * 86_400);
/// Events buffered for the reader of a stream.
const EVENTS_AHEAD: usize = 64;
/// Operations that run at the same time, at most: each has a thread.
const OPERATIONS_MAX: u32 = 256;

/// The service of the node's contract.
#[derive(Clone)]
pub(crate) struct Service {
    manager: Arc<Manager>,
    /// True once the manager is to end: endless streams end then.
    ending: watch::Receiver<bool>,
    places: Arc<Semaphore>,
}

impl Service {
    /// The service of `manager`, until `ending` is true.
    #[must_use]
    pub(crate) fn new(manager: Arc<Manager>, ending: watch::Receiver<bool>) -> Service {
        Service { manager, ending, places: Arc::new(Semaphore::new(OPERATIONS_MAX as usize)) }
    }

    /// Waits until no operation runs any more.
    pub(crate) async fn finish(&self) {
        // The semaphore is never closed.
        _ = self.places.acquire_many(OPERATIONS_MAX).await;
    }

    /// Runs work that writes files or waits for threads, in a place where it does not block the server.
    async fn blocking<T: Send + 'static>(
        &self,
        work: impl FnOnce(&Manager) -> Result<T, Status> + Send + 'static,
    ) -> Result<T, Status> {
        let manager = Arc::clone(&self.manager);
        let place = Arc::clone(&self.places).acquire_owned().await.map_err(internal)?;
        let done = aside(move || {
            let _place = place;
            work(&manager)
        });
        done.await.map_err(|error| Status::unavailable(format!("the manager gets no thread: {error}; try again")))?
    }
}

/// The duration `name` of a request; `None` if it is not set. The library's own conversion overflows with the least
/// number of seconds.
fn span(name: &str, duration: Option<prost_types::Duration>) -> Result<Option<Duration>, Status> {
    let Some(duration) = duration.map(|duration| duration.normalized()) else { return Ok(None) };
    match (u64::try_from(duration.seconds), u32::try_from(duration.nanos)) {
        (Ok(seconds), Ok(nanos)) => Ok(Some(Duration::new(seconds, nanos))),
        _ => {
            let prost_types::Duration { seconds, nanos } = duration;
            Err(Status::invalid_argument(format!("{name} must not be negative: it is {seconds} s and {nanos} ns")))
        }
    }
}

fn all_known(manager: &Manager, names: &[String]) -> Result<(), Status> {
    names.iter().find(|name| !manager.has(name)).map_or(Ok(()), |name| Err(no_such_slice(name)))
}

/// The slices of `names` that are at work; all of them if `names` is empty.
fn at_work(manager: &Manager, names: &[String]) -> Result<Vec<Arc<LiveSlice>>, Status> {
    all_known(manager, names)?;
    let mut slices = manager.live().all();
    slices.retain(|live| names.is_empty() || names.contains(&live.name));
    Ok(slices)
}

fn usage_of(manager: &Manager, names: &[String]) -> Result<proto::GetUsageResponse, Status> {
    let (slices, inventory, now) = (at_work(manager, names)?, manager.devices().known().inventory, Now::read());
    let usage = measure::usage(&slices, &inventory, now);
    Ok(convert::usage::usage(now.time, usage, &manager.audit().findings()))
}

#[tonic::async_trait]
impl NodeManager for Service {
    async fn get_node(&self, _: Request<proto::GetNodeRequest>) -> Result<Response<proto::Node>, Status> {
        self.blocking(|manager| Ok(Response::new(convert::node(manager)))).await
    }

    async fn create_slice(
        &self,
        request: Request<proto::CreateSliceRequest>,
    ) -> Result<Response<proto::Slice>, Status> {
        let peer = request.extensions().get::<UdsConnectInfo>().and_then(|info| info.peer_cred);
        let request = request.into_inner();
        let owner = owner::verified(request.owner_pid, peer)?;
        let users = owner::users(request.allowed_uids.into_iter().chain(peer.map(|peer| peer.uid())));
        let parts = request.parts.into_iter().map(convert::part_request).collect();
        let request = CreateRequest {
            name: request.name,
            parts,
            host_memory_limit_bytes: request.host_memory_limit_bytes,
            qos_class: convert::qos_class(request.priority_class)?,
            description: request.description,
            owner,
            users,
            ..CreateRequest::default()
        };
        self.blocking(move |manager| Ok(Response::new(convert::slice(manager.create(request)?)))).await
    }

    async fn resize_slice(
        &self,
        request: Request<proto::ResizeSliceRequest>,
    ) -> Result<Response<proto::Slice>, Status> {
        let proto::ResizeSliceRequest { name, parts, host_memory_limit_bytes, priority_class, allowed_uids } =
            request.into_inner();
        let parts = parts.into_iter().map(convert::part_request).collect();
        let qos_class = convert::qos_class(priority_class)?;
        let request = ResizeRequest { parts, host_memory_limit_bytes, qos_class, users: owner::users(allowed_uids) };
        self.blocking(move |manager| Ok(Response::new(convert::slice(manager.resize(&name, &request)?)))).await
    }

    async fn remove_slice(
        &self,
        request: Request<proto::RemoveSliceRequest>,
    ) -> Result<Response<proto::RemoveSliceResponse>, Status> {
        let proto::RemoveSliceRequest { name, force } = request.into_inner();
        self.blocking(move |manager| {
            manager.remove(&name, force)?;
            Ok(Response::new(proto::RemoveSliceResponse {}))
        })
        .await
    }

    async fn get_slice(&self, request: Request<proto::GetSliceRequest>) -> Result<Response<proto::Slice>, Status> {
        let name = request.into_inner().name;
        let get = move |manager: &Manager| manager.get(&name).ok_or_else(|| no_such_slice(&name));
        self.blocking(move |manager| Ok(Response::new(convert::slice(get(manager)?)))).await
    }

    async fn list_slices(
        &self,
        _: Request<proto::ListSlicesRequest>,
    ) -> Result<Response<proto::ListSlicesResponse>, Status> {
        let list = |manager: &Manager| manager.list().into_iter().map(convert::slice).collect();
        self.blocking(move |manager| Ok(Response::new(proto::ListSlicesResponse { slices: list(manager) }))).await
    }

    async fn get_usage(
        &self,
        request: Request<proto::GetUsageRequest>,
    ) -> Result<Response<proto::GetUsageResponse>, Status> {
        let names = request.into_inner().slices;
        self.blocking(move |manager| Ok(Response::new(usage_of(manager, &names)?))).await
    }

    async fn list_findings(
        &self,
        request: Request<proto::ListFindingsRequest>,
    ) -> Result<Response<proto::ListFindingsResponse>, Status> {
        let names = request.into_inner().slices;
        let list = move |manager: &Manager| {
            all_known(manager, &names)?;
            Ok(Response::new(convert::findings(manager.audit(), &names)))
        };
        self.blocking(list).await
    }

    async fn get_usage_history(
        &self,
        request: Request<proto::GetUsageHistoryRequest>,
    ) -> Result<Response<proto::GetUsageHistoryResponse>, Status> {
        let proto::GetUsageHistoryRequest { slices: names, since, points_max } = request.into_inner();
        let since = span("since", since)?;
        let points_max = if points_max == 0 { usize::MAX } else { points_max as usize };
        let history = move |manager: &Manager| {
            let (slices, inventory) = (at_work(manager, &names)?, manager.devices().known().inventory);
            let now = Now::read();
            let history = slices.iter().map(|live| measure::history_of(live, &inventory, now, since, points_max));
            Ok(Response::new(convert::usage::history(now.time, history.collect())))
        };
        self.blocking(history).await
    }

    async fn list_events(
        &self,
        request: Request<proto::ListEventsRequest>,
    ) -> Result<Response<proto::ListEventsResponse>, Status> {
        let since = span("since", request.into_inner().since)?;
        let list = move |manager: &Manager| {
            let events = manager.events();
            let first = since.map_or(0, |since| events.last_before(since));
            let events = events.after(first, usize::MAX).into_iter().map(Into::into).collect();
            Ok(Response::new(proto::ListEventsResponse { events }))
        };
        self.blocking(list).await
    }

    type WatchEventsStream = ReceiverStream<Result<proto::Event, Status>>;

    async fn watch_events(
        &self,
        request: Request<proto::WatchEventsRequest>,
    ) -> Result<Response<Self::WatchEventsStream>, Status> {
        let proto::WatchEventsRequest { since, after_sequence } = request.into_inner();
        let since = span("since", since)?;
        let events = Arc::clone(self.manager.events());
        let mut told = match after_sequence {
            0 => since.map_or(0, |since| events.last_before(since)),
            sequence => sequence,
        };
        let (mut newest, mut ending) = (events.newest(), self.ending.clone());
        let (updates, stream) = mpsc::channel(EVENTS_AHEAD);
        tokio::spawn(async move {
            loop {
                // A slow reader gets further events only after it has read the earlier ones, as far as they are still
                // kept.
                for event in events.after(told, EVENTS_AHEAD) {
                    told = event.sequence;
                    if updates.send(Ok(event.into())).await.is_err() {
                        return;
                    }
                }
                tokio::select! {
                    _ = newest.wait_for(|newest| *newest > told) => {}
                    _ = ending.wait_for(|ending| *ending) => return,
                    () = updates.closed() => return,
                }
            }
        });
        Ok(Response::new(ReceiverStream::new(stream)))
    }

    type WatchUsageStream = ReceiverStream<Result<proto::GetUsageResponse, Status>>;

    async fn watch_usage(
        &self,
        request: Request<proto::WatchUsageRequest>,
    ) -> Result<Response<Self::WatchUsageStream>, Status> {
        let proto::WatchUsageRequest { slices: names, interval } = request.into_inner();
        let interval = span("interval", interval)?.unwrap_or(WATCH_INTERVAL_DEFAULT);
        if interval < WATCH_INTERVAL_MIN {
            return Err(Status::invalid_argument(format!("interval must be at least 100 ms: it is {interval:?}")));
        }
        let mut ticks = tokio::time::interval(interval.min(WATCH_INTERVAL_MAX));
        ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        let (service, mut ending) = (self.clone(), self.ending.clone());
        let (updates, stream) = mpsc::channel(1);
        tokio::spawn(async move {
            loop {
                tokio::select! {
                    _ = ticks.tick() => {}
                    // An error means that the sender is gone; the stream ends then too.
                    _ = ending.wait_for(|ending| *ending) => return,
                    () = updates.closed() => return,
                }
                let names = names.clone();
                let usage = service.blocking(move |manager| usage_of(manager, &names)).await;
                let failed = usage.is_err();
                if updates.send(usage).await.is_err() || failed {
                    return;
                }
            }
        });
        Ok(Response::new(ReceiverStream::new(stream)))
    }
}
