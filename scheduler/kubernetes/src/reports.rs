//! What the nodes' managers report: what slices use, and how devices are (`aliquot/reports/v1/reports.proto`).
//!
//! ```text
//!  manager ── Join, with its token ──► any replica ── TokenReview ──► API server
//!          ◄── certificate for its node ──┘
//!          ── Report, by that certificate ──► the leader ──► known ──► mirror, questions, metrics
//! ```
//!
//! A report is about the node that the certificate names, so no manager can report about another node. A node that has
//! missed three reports counts like one that never reports: only what the API server says of it is known.

mod authority;
mod connections;
mod identity;
mod known;
mod meter;

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use aliquot_api_server::Client;
use aliquot_proto::reports::v1::reports_server::{Reports, ReportsServer};
use aliquot_proto::reports::v1::{JoinRequest, JoinResponse, MESSAGE_BYTES_MAX, NodeReport, Taken};
use rustls::ServerConfig;
use tokio::net::TcpListener;
use tokio::sync::{mpsc, watch};
use tokio::time::{interval, sleep, timeout};
use tokio_stream::wrappers::ReceiverStream;
use tonic::transport::Server;
use tonic::{Code, Request, Response, Status as Refusal, Streaming};
use tracing::{debug, info, warn};

use crate::certificates::{Certificates, Keeper};
use crate::serve::Shared;
use crate::telemetry::{Leading, Status};
use crate::tls::TlsListener;

use authority::Authority;
use connections::{Caller, Connections};
use identity::Reviewer;
pub(crate) use known::{Known, PartUse};
pub(crate) use meter::{Meter, count};

/// Managers are asked for a report so often.
const INTERVAL: Duration = Duration::from_secs(5);
/// Time between two looks for nodes that have become silent.
const LOOK: Duration = Duration::from_secs(1);
/// Time between two reports of a node, at least: each change in a report leads to new decisions.
const PAUSE: Duration = Duration::from_millis(200);
/// A call in which nothing has come for so long is ended.
const SILENCE: Duration = Duration::from_secs(30);
/// A certificate of a manager is valid for so long: as long as the token that it has joined with.
const CERTIFICATE_LIFE: Duration = Duration::from_secs(3600);
/// A dead connection is noticed after an interval and a timeout.
const KEEPALIVE: Duration = Duration::from_secs(10);
/// A manager needs one call at a time, and a second one while it begins anew.
const CALLS_PER_CONNECTION: u32 = 4;

/// What a replica serves managers with.
#[derive(Clone)]
pub(crate) struct Served {
    config: Arc<ServerConfig>,
    certificates: Arc<Certificates>,
}

/// Serves until its runtime ends. `namespace` is the scheduler's own, and that of the managers.
pub(crate) async fn serve(listener: TcpListener, client: Client, namespace: String, status: Arc<Status>) {
    let keeper = Keeper::new(client.clone(), &namespace, Authority::new(client.clone(), &namespace));
    let served = keeper.first().await;
    let desk = Desk { reviewer: Reviewer::new(client, &namespace), served: served.clone(), status };
    let service = ReportsServer::new(desk).max_decoding_message_size(MESSAGE_BYTES_MAX);
    let current = served.clone();
    let listener = TlsListener::new(listener, move || Arc::clone(&current.borrow().config));
    let server = Server::builder()
        .http2_keepalive_interval(Some(KEEPALIVE))
        .http2_keepalive_timeout(Some(KEEPALIVE))
        .max_concurrent_streams(CALLS_PER_CONNECTION)
        .add_service(service)
        .serve_with_incoming(Connections::default().of(listener));
    tokio::join!(
        async {
            if let Err(error) = server.await {
                warn!(%error, "managers cannot report any more");
            }
        },
        keeper.keep(&served),
    );
}

/// Notes which nodes become silent, for as long as this replica leads.
pub(crate) async fn notice_silence(shared: &Shared) {
    let mut looks = interval(LOOK);
    loop {
        looks.tick().await;
        shared.reports.forget_silent(|node| {
            warn!(node, "the node's manager no longer reports: only the API server's data about its devices counts");
            shared.change(|mirror| mirror.manager_says(node, None));
        });
    }
}

/// Answers the calls of managers, on every replica.
struct Desk {
    reviewer: Reviewer,
    served: watch::Sender<Served>,
    status: Arc<Status>,
}

impl Desk {
    /// The leader that this replica is now.
    fn leading(&self) -> Result<Leading, Refusal> {
        self.status.leading().ok_or_else(|| Refusal::failed_precondition("this replica stands by"))
    }
}

#[tonic::async_trait]
impl Reports for Desk {
    async fn join(&self, request: Request<JoinRequest>) -> Result<Response<JoinResponse>, Refusal> {
        let JoinRequest { token, node, certificate_request } = request.into_inner();
        if let Err(refusal) = self.reviewer.check(token, &node).await {
            // Unknown clients must not be able to fill the log.
            match refusal.code() {
                Code::PermissionDenied => warn!(why = refusal.message(), "a certificate for reports is refused"),
                _ => debug!(why = refusal.message(), "a certificate for reports is refused"),
            }
            return Err(refusal);
        }
        let certificates = Arc::clone(&self.served.borrow().certificates);
        let certificate = certificates.for_client(&node, &certificate_request, CERTIFICATE_LIFE, SystemTime::now());
        let certificate = certificate.map_err(Refusal::invalid_argument)?;
        Ok(Response::new(JoinResponse { certificate }))
    }

    type ReportStream = ReceiverStream<Result<Taken, Refusal>>;

    async fn report(&self, request: Request<Streaming<NodeReport>>) -> Result<Response<Self::ReportStream>, Refusal> {
        let node = request.extensions().get::<Caller>().and_then(|caller| caller.node.clone());
        let node =
            node.ok_or_else(|| Refusal::unauthenticated("the call has no certificate of a manager; join first"))?;
        let leading = self.leading()?;
        let call = leading.shared.reports.begin(&node);
        let (status, mut reports) = (Arc::clone(&self.status), request.into_inner());
        let (answers, to_send) = mpsc::channel(1);
        info!(node, "the node's manager reports");
        tokio::spawn(async move {
            let why = loop {
                let report = match timeout(SILENCE, reports.message()).await {
                    Ok(Ok(Some(report))) => report,
                    Ok(Ok(None)) => break "it has ended the call".to_owned(),
                    Ok(Err(refusal)) => break refusal.message().to_owned(),
                    Err(_) => break format!("it has said nothing for {} s", SILENCE.as_secs()),
                };
                let leads = status.leading().is_some_and(|now| now.term == leading.term);
                let shared = &leading.shared;
                let tell = |said| shared.change(|mirror| mirror.manager_says(&node, Some(said)));
                let is_taken = leads && shared.reports.take(&node, call, report, tell);
                let answer = match (leads, is_taken) {
                    (false, _) => Err(Refusal::failed_precondition("this replica is no longer the leader")),
                    (true, false) => Err(Refusal::aborted("the node's manager has begun another call")),
                    (true, true) => Ok(Taken { next_ms: u64::try_from(INTERVAL.as_millis()).unwrap_or(u64::MAX) }),
                };
                let is_end = answer.is_err();
                if answers.send(answer).await.is_err() || is_end {
                    break "the call is over".to_owned();
                }
                sleep(PAUSE).await;
            };
            info!(node, why, "a call of the node's manager has ended");
        });
        Ok(Response::new(ReceiverStream::new(to_send)))
    }
}
