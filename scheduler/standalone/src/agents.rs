//! The API for nodes, `aliquot/agent/v1/agent.proto`.

use std::sync::Arc;
use std::sync::mpsc::Sender;

use aliquot_proto::agent::v1::agents_server::Agents;
use aliquot_proto::agent::v1::{
    JoinRequest, JoinResponse, LogChunk, NodeMessage, RenewCertificateRequest, SchedulerMessage, SendLogResponse,
};
use aliquot_proto::stream::v1::{FromJob, FromUser};
use aliquot_scheduler_store::StoreError;
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tokio_stream::{Stream, StreamExt};
use tonic::{Request, Response, Status, Streaming};
use tracing::{info, warn};

use crate::audit::{Audit, Line};
use crate::callers::{peer_certificate, remote_address};
use crate::certificates::{Authority, CertificateError, Subject, node_of, user_of};
use crate::clock::Clock;
use crate::controller::Inbox;
use crate::limits::Limiter;
use crate::membership::{Denied, Membership};
use crate::sessions::Sessions;
use crate::streams::{Answer, Streams};

/// Frames of one stream that may wait until the connection takes them.
const FRAMES_MAX: usize = 2;

/// The server's side of the API for nodes.
#[derive(Debug)]
pub(crate) struct AgentService {
    /// Signs certificates; `None`: the certificates come from elsewhere, and are trusted by their authority alone.
    pub(crate) authority: Option<Arc<Authority>>,
    pub(crate) membership: Arc<Membership>,
    pub(crate) sessions: Sessions,
    pub(crate) streams: Streams,
    pub(crate) controller: Sender<Inbox>,
    pub(crate) clock: Arc<Clock>,
    pub(crate) audit: Audit,
    pub(crate) limiter: Limiter,
}

/// Why a node does not get a certificate.
#[derive(Debug, thiserror::Error)]
enum IssueError {
    #[error(transparent)]
    Store(#[from] StoreError),
    #[error(transparent)]
    Certificate(#[from] CertificateError),
}

impl From<IssueError> for Status {
    fn from(error: IssueError) -> Self {
        match error {
            IssueError::Store(error) => Self::unavailable(error.to_string()),
            IssueError::Certificate(error) => Self::invalid_argument(error.to_string()),
        }
    }
}

fn not_a_member(node: &str) -> Status {
    Status::unauthenticated(format!(
        "node {node} was removed from the cluster or replaced; to join again, remove cluster/identity.json from its manager's \
         state directory (/var/lib/aliquot), and run: aliquot-manager --join TOKEN"
    ))
}

impl AgentService {
    /// The node that calls, from its certificate.
    fn caller<T>(&self, request: &Request<T>) -> Result<Subject, Status> {
        let certificate = peer_certificate(request.extensions());
        if let Some(user) = certificate.as_ref().and_then(|certificate| user_of(certificate)) {
            return Err(Status::permission_denied(format!("{} is a user, and this call is for nodes", user.name)));
        }
        let subject = certificate.as_ref().and_then(|certificate| node_of(certificate));
        let subject = subject.ok_or_else(|| {
            Status::unauthenticated("the call has no certificate of a node; join first: aliquot-manager --join TOKEN")
        })?;
        if self.authority.is_some() && !self.membership.is_member(&subject.name, &subject.serial) {
            return Err(not_a_member(&subject.name));
        }
        Ok(subject)
    }

    /// Joins a node by its token. The result is durable when this returns.
    fn let_in(&self, request: JoinRequest) -> Result<JoinResponse, Status> {
        let JoinRequest { secret, node, certificate_request } = request;
        let authority = self.authority()?;
        let now_ms = self.clock.now_ms();
        let issue = || {
            let issued = authority.node(&node, &certificate_request)?;
            Ok::<_, IssueError>((issued.pem, issued.serial))
        };
        // This waits for the disk, rarely and shortly.
        let joined = tokio::task::block_in_place(|| self.membership.join(now_ms, &secret, &node, issue))?;
        match joined {
            Ok(certificate) => {
                info!(node, "a node has joined");
                Ok(JoinResponse { certificate, authority: authority.pem.clone() })
            }
            Err(denied) => {
                warn!(node, ?denied, "a node was not let in");
                Err(match denied {
                    Denied::Token(why) => Status::unauthenticated(why),
                    Denied::Name(why) => Status::invalid_argument(why),
                    Denied::Exists(why) => Status::already_exists(why),
                })
            }
        }
    }

    /// Signs a node's next certificate. Answers also the node's name, which is empty if the caller is not known.
    fn renew(&self, request: Request<RenewCertificateRequest>) -> Result<(String, JoinResponse), (String, Status)> {
        let Subject { name, serial, .. } = self.caller(&request).map_err(|status| (String::new(), status))?;
        let signed = || {
            let authority = self.authority()?;
            let issued = authority
                .node(&name, &request.into_inner().certificate_request)
                .map_err(|error| Status::invalid_argument(error.to_string()))?;
            let renewed = tokio::task::block_in_place(|| self.membership.renewed(&name, &serial, issued.serial));
            if !renewed.map_err(|error| Status::unavailable(error.to_string()))? {
                return Err(not_a_member(&name));
            }
            info!(node = name, "a node has a new certificate");
            Ok(JoinResponse { certificate: issued.pem, authority: authority.pem.clone() })
        };
        match signed() {
            Ok(response) => Ok((name, response)),
            Err(status) => Err((name, status)),
        }
    }

    fn authority(&self) -> Result<&Authority, Status> {
        self.authority.as_deref().ok_or_else(|| {
            Status::failed_precondition(
                "this scheduler signs no certificates: its own come from elsewhere, and so must those of the nodes",
            )
        })
    }
}

#[tonic::async_trait]
impl Agents for AgentService {
    async fn join(&self, request: Request<JoinRequest>) -> Result<Response<JoinResponse>, Status> {
        let from = remote_address(request.extensions());
        let request = request.into_inner();
        let object = format!("node {}", request.node);
        let joined = self.let_in(request);
        let now_ms = self.clock.now_ms();
        if joined.is_ok() || self.limiter.notes_stranger(now_ms) {
            let line = Line { known_by: "token", from, call: "Join".to_owned(), ..Line::default() };
            self.audit.note(&line.with(now_ms, Some(&object), joined.as_ref().err())).await;
        }
        joined.map(Response::new)
    }

    async fn renew_certificate(
        &self,
        request: Request<RenewCertificateRequest>,
    ) -> Result<Response<JoinResponse>, Status> {
        let from = remote_address(request.extensions());
        let renewed = self.renew(request);
        let (name, renewed) = match renewed {
            Ok((name, response)) => (name, Ok(response)),
            Err((name, status)) => (name, Err(status)),
        };
        let now_ms = self.clock.now_ms();
        if renewed.is_ok() || self.limiter.notes_stranger(now_ms) {
            let known_by = if name.is_empty() { "unknown" } else { "node" };
            let object = Some(format!("node {name}")).filter(|_| !name.is_empty());
            let line = Line { who: name, known_by, from, call: "RenewCertificate".to_owned(), ..Line::default() };
            self.audit.note(&line.with(now_ms, object.as_deref(), renewed.as_ref().err())).await;
        }
        renewed.map(Response::new)
    }

    type SessionStream = std::pin::Pin<Box<dyn Stream<Item = Result<SchedulerMessage, Status>> + Send>>;

    async fn session(&self, request: Request<Streaming<NodeMessage>>) -> Result<Response<Self::SessionStream>, Status> {
        let Subject { name, .. } = self.caller(&request)?;
        let mut messages = request.into_inner();
        let (number, orders) = self.sessions.connect(&name);
        info!(node = name, "a node is connected");
        // The end of the connection before may not be known yet. Commands that were lost with it are repeated when the node
        // reports.
        _ = self.controller.send(Inbox::NodeLost(name.clone()));
        let (sessions, controller) = (self.sessions.clone(), self.controller.clone());
        tokio::spawn(async move {
            let why = loop {
                match messages.next().await {
                    Some(Ok(message)) => {
                        if controller.send(Inbox::Node { node: name.clone(), connection: number, message }).is_err() {
                            break "the scheduler ends".to_owned();
                        }
                    }
                    Some(Err(status)) => break status.message().to_owned(),
                    None => break "it has ended the call".to_owned(),
                }
            };
            if sessions.disconnect(&name, number) {
                warn!(node = name, why, "a node is not connected any more");
                _ = controller.send(Inbox::NodeLost(name));
            }
        });
        Ok(Response::new(Box::pin(ReceiverStream::new(orders).map(Ok))))
    }

    async fn send_log(&self, request: Request<Streaming<LogChunk>>) -> Result<Response<SendLogResponse>, Status> {
        let Subject { name, .. } = self.caller(&request)?;
        let read_id = request.metadata().get("read-id").and_then(|value| value.to_str().ok()).unwrap_or_default();
        let reader = self.sessions.reader(&name, read_id);
        let reader = reader.ok_or_else(|| Status::cancelled("the reader of this log is gone"))?;
        let mut chunks = request.into_inner();
        loop {
            let chunk = tokio::select! {
                chunk = chunks.next() => chunk,
                () = reader.closed() => return Err(Status::cancelled("the reader of this log is gone")),
            };
            let Some(chunk) = chunk else { break };
            let is_end = chunk.is_err();
            if reader.send(chunk).await.is_err() || is_end {
                return Err(Status::cancelled("the reader of this log is gone"));
            }
        }
        Ok(Response::new(SendLogResponse {}))
    }

    type AnswerStreamStream = std::pin::Pin<Box<dyn Stream<Item = Result<FromUser, Status>> + Send>>;

    async fn answer_stream(
        &self,
        request: Request<Streaming<FromJob>>,
    ) -> Result<Response<Self::AnswerStreamStream>, Status> {
        let Subject { name, .. } = self.caller(&request)?;
        let stream_id = request.metadata().get("stream-id").and_then(|value| value.to_str().ok()).unwrap_or_default();
        let stream_id = stream_id.to_owned();
        let (to_node, frames) = mpsc::channel(FRAMES_MAX);
        let answer = Answer { from_node: Box::pin(request.into_inner()), to_node };
        match self.streams.answered(&name, &stream_id, answer) {
            true => Ok(Response::new(Box::pin(ReceiverStream::new(frames)))),
            false => Err(Status::cancelled("the user of this stream is gone")),
        }
    }
}
