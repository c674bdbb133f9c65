//! Reports to the cluster's scheduler: the use of slices, and the state of the node's devices.
//!
//! The manager dials the replicas of the scheduler one after another, until it finds the one that leads. Nothing on the
//! node waits for a report. While no scheduler answers, pods get slices as they would without a scheduler of ours.

mod identity;
mod message;

use std::convert::Infallible;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use aliquot_node::{Devices, Node, blocking};
use aliquot_proto::reports::v1::reports_client::ReportsClient;
use aliquot_proto::reports::v1::{MESSAGE_BYTES_MAX, NodeReport};
use tokio::net::lookup_host;
use tokio::sync::{mpsc, watch};
use tokio::time::{sleep, timeout};
use tokio_stream::wrappers::ReceiverStream;
use tonic::transport::Channel;
use tonic::{Code, Status};
use tracing::{info, warn};

pub use aliquot_proto::reports::v1::AUDIENCE;
use identity::{CALL_TIMEOUT, Identity};
use message::report_of;

/// Minimum time between two reports, whatever the scheduler asks for.
const PAUSE_MIN: Duration = Duration::from_millis(500);
const PAUSE_MAX: Duration = Duration::from_secs(60);
/// Time between two tries, at first and after many failures. It is short, because a new leader must soon learn of the
/// nodes.
const RETRY_MIN: Duration = Duration::from_millis(500);
const RETRY_MAX: Duration = Duration::from_secs(8);

/// The addresses for reports, and the credentials of both sides.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settings {
    /// The replicas of the scheduler, each as `HOST:PORT`. All addresses of a host are tried.
    pub schedulers: Vec<String>,
    /// The host that the scheduler's certificate is for.
    pub server_name: String,
    /// The directory with the token of the manager's service account (`token`) and the scheduler's authority
    /// (`ca.crt`).
    pub dir: PathBuf,
    /// The node's name in the cluster.
    pub node_name: String,
}

/// The reason why no report is accepted.
#[derive(Debug, thiserror::Error)]
enum ReportError {
    #[error("cannot use {}: {source}", path.display())]
    File { path: PathBuf, source: std::io::Error },
    #[error("cannot make a key: {0}")]
    Key(#[from] rcgen::Error),
    #[error("cannot find an address of the scheduler {scheduler}: {why}")]
    Address { scheduler: String, why: String },
    #[error("the scheduler at {address} cannot be reached: {why}")]
    Unreached { address: SocketAddr, why: String },
    #[error("the scheduler at {address} says: {}", status.message())]
    Refused { address: SocketAddr, status: Box<Status> },
    #[error("the scheduler at {address} has not taken a report for {} s", CALL_TIMEOUT.as_secs())]
    Silent { address: SocketAddr },
}

impl ReportError {
    /// Whether another replica leads, or none does.
    fn is_standing_by(&self) -> bool {
        matches!(self, ReportError::Refused { status, .. } if status.code() == Code::FailedPrecondition)
    }
}

/// Reports until this is dropped.
pub async fn report(settings: Settings, node: Arc<dyn Node>) {
    let (mut identity, mut pause, mut told) = (None, RETRY_MIN, String::new());
    loop {
        let mut was_taken = false;
        if let Err(error) = report_to_any(&settings, &node, &mut identity, &mut was_taken).await {
            let text = error.to_string();
            // The same error is logged only once.
            if was_taken || text != told {
                warn!("no reports to the scheduler for now, will try again: {text}");
                told = text;
            }
        }
        if was_taken {
            pause = RETRY_MIN;
        }
        sleep(pause).await;
        pause = RETRY_MAX.min(pause * 2);
    }
}

/// Tries all replicas once. Returns when none of them takes reports any more.
async fn report_to_any(
    settings: &Settings,
    node: &Arc<dyn Node>,
    identity: &mut Option<Identity>,
    was_taken: &mut bool,
) -> Result<(), ReportError> {
    let (mut addresses, mut failure) = (Vec::new(), None);
    for scheduler in &settings.schedulers {
        match lookup_host(scheduler).await {
            Ok(found) => addresses.extend(found),
            Err(error) => {
                failure = Some(ReportError::Address { scheduler: scheduler.clone(), why: error.to_string() });
            }
        }
    }
    for address in addresses {
        match report_to(settings, address, node, identity, was_taken).await {
            // The certificate must be replaced, and the next one is used at once.
            Ok(()) => return Ok(()),
            // That a replica stands by explains nothing if another one fails.
            Err(error) if error.is_standing_by() && failure.is_some() => {}
            Err(error) => failure = Some(error),
        }
    }
    let why = "the name has none".to_owned();
    Err(failure.unwrap_or_else(|| ReportError::Address { scheduler: settings.schedulers.join(","), why }))
}

/// Reports to one replica as long as it takes reports, or until the certificate must be replaced.
async fn report_to(
    settings: &Settings,
    address: SocketAddr,
    node: &Arc<dyn Node>,
    identity: &mut Option<Identity>,
    was_taken: &mut bool,
) -> Result<(), ReportError> {
    let current = match identity.take().filter(|identity| !identity.is_due()) {
        Some(current) => current,
        None => Identity::join(settings, address).await?,
    };
    let channel = match current.connect(settings, address).await {
        Ok(channel) => channel,
        Err(error) => {
            *identity = Some(current);
            return Err(error);
        }
    };
    let (due_in, mut is_known) = (current.due_in(), false);
    tokio::select! {
        ended = converse(channel, address, node, &mut is_known) => {
            let Err(error) = ended;
            *was_taken |= is_known;
            // Otherwise the certificate is dropped, because it may be the cause: the scheduler's authority may have
            // changed.
            if is_known || error.is_standing_by() {
                *identity = Some(current);
            }
            Err(error)
        }
        () = sleep(due_in) => {
            *was_taken |= is_known;
            Ok(())
        }
    }
}

/// Sends one report after another.
async fn converse(
    channel: Channel,
    address: SocketAddr,
    node: &Arc<dyn Node>,
    was_taken: &mut bool,
) -> Result<Infallible, ReportError> {
    let refused = |status: Status| ReportError::Refused { address, status: Box::new(status) };
    let silent = |_| ReportError::Silent { address };
    let (reports, to_send) = mpsc::channel(1);
    let mut client = ReportsClient::new(channel).max_encoding_message_size(MESSAGE_BYTES_MAX);
    let mut devices = node.devices();
    // The call begins with the first report.
    send(&reports, node, &mut devices).await;
    let call = timeout(CALL_TIMEOUT, client.report(ReceiverStream::new(to_send))).await.map_err(silent)?;
    let mut answers = call.map_err(refused)?.into_inner();
    loop {
        let answer = timeout(CALL_TIMEOUT, answers.message()).await.map_err(silent)?.map_err(refused)?;
        let answer = answer.ok_or_else(|| refused(Status::unavailable("it has ended the call")))?;
        if !*was_taken {
            info!(%address, "the scheduler takes this node's reports");
            *was_taken = true;
        }
        let pause = Duration::from_millis(answer.next_ms).clamp(PAUSE_MIN, PAUSE_MAX);
        tokio::select! {
            () = sleep(pause) => {}
            // An error means that the node is gone; then this ends as well.
            Ok(()) = devices.changed() => {}
        }
        send(&reports, node, &mut devices).await;
    }
}

/// Sends a report of the present state.
async fn send(reports: &mpsc::Sender<NodeReport>, node: &Arc<dyn Node>, devices: &mut watch::Receiver<Arc<Devices>>) {
    let known = Arc::clone(&devices.borrow_and_update());
    let usage = blocking(node, Node::usage).await;
    // If the call has ended, its answer says why.
    _ = reports.send(report_of(&known, usage)).await;
}
