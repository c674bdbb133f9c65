//! A scheduler that sends the messages of a test, and gives leases by itself.

use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};
use std::sync::mpsc::{self, Receiver, Sender};
use std::sync::{Arc, Mutex};
use std::time::{Duration, SystemTime};

use aliquot_proto::agent::v1::agents_server::{Agents, AgentsServer};
use aliquot_proto::agent::v1::node_message::Message as Said;
use aliquot_proto::agent::v1::scheduler_message::Message;
use aliquot_proto::agent::v1::{
    Acknowledge, AskReport, Ended, Generation, JoinRequest, JoinResponse, LogChunk, NodeMessage, Outcome, Process,
    ReadLog, Renew, RenewCertificateRequest, Report, SchedulerMessage, SendLogResponse, Start, Stop, outcome,
};
use aliquot_proto::stream::v1::{FromJob, FromUser};
use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use rcgen::{BasicConstraints, CertificateParams, CertificateSigningRequestParams, IsCa, Issuer, KeyPair};
use tokio::net::TcpListener;
use tokio::runtime::Runtime;
use tokio_stream::wrappers::{ReceiverStream, TcpListenerStream};
use tokio_stream::{Stream, StreamExt};
use tonic::transport::{Certificate, Identity, Server, ServerTlsConfig};
use tonic::{Code, Request, Response, Status, Streaming};

/// The longest time that a test waits for anything.
const DEADLINE: Duration = Duration::from_secs(60);
/// The secret of the token that works.
const SECRET: &str = "sesame";

type ToNode = tokio::sync::mpsc::Sender<Result<SchedulerMessage, Status>>;

pub(crate) struct Scheduler {
    runtime: Runtime,
    address: SocketAddr,
    authority: String,
    shared: Arc<Shared>,
    said: Receiver<NodeMessage>,
    logs: Receiver<(String, Result<String, Code>)>,
    /// The session of the newest message.
    pub(crate) session: u64,
}

struct Shared {
    issuer: Issuer<'static, KeyPair>,
    authority: String,
    /// The length of the leases; 0 if none are given.
    lease_ms: AtomicU64,
    /// When the certificates for tokens begin, in seconds from now; 0 stands for other certificates.
    certificates_begin_s: AtomicI64,
    renewals: AtomicU64,
    node: Mutex<Option<ToNode>>,
    said: Sender<NodeMessage>,
    logs: Sender<(String, Result<String, Code>)>,
}

struct Service(Arc<Shared>);

impl Scheduler {
    /// A scheduler that answers each sign of life with a lease of this length.
    pub(crate) fn start(lease_ms: u64) -> Scheduler {
        let key = KeyPair::generate().expect("a key");
        let mut params = CertificateParams::default();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let authority = params.self_signed(&key).expect("a certificate").pem();
        let issuer = Issuer::new(params, key);
        let key = KeyPair::generate().expect("a key");
        let own = CertificateParams::new(["scheduler.aliquot.internal".to_owned()]).expect("a name");
        let own = own.signed_by(&key, &issuer).expect("a certificate");
        let tls = ServerTlsConfig::new()
            .identity(Identity::from_pem(own.pem(), key.serialize_pem()))
            .client_ca_root(Certificate::from_pem(&authority))
            .client_auth_optional(true);
        let (said_to, said) = mpsc::channel();
        let (logs_to, logs) = mpsc::channel();
        let shared = Arc::new(Shared {
            issuer,
            authority: authority.clone(),
            lease_ms: lease_ms.into(),
            certificates_begin_s: AtomicI64::default(),
            renewals: AtomicU64::default(),
            node: Mutex::default(),
            said: said_to,
            logs: logs_to,
        });
        let runtime =
            tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().expect("a runtime");
        let listener = runtime.block_on(TcpListener::bind("127.0.0.1:0")).expect("a port");
        let address = listener.local_addr().expect("an address");
        let service = AgentsServer::new(Service(Arc::clone(&shared)));
        let server = Server::builder().tls_config(tls).expect("TLS").add_service(service);
        runtime.spawn(server.serve_with_incoming(TcpListenerStream::new(listener)));
        Scheduler { runtime, address, authority, shared, said, logs, session: 0 }
    }

    /// The settings of a node that joins with a token for this secret.
    pub(crate) fn settings_with(&self, secret: &str) -> String {
        let quoted = self.authority.replace('\n', "\\n");
        let token = format!(r#"{{"secret":"{secret}","authority":"{quoted}"}}"#);
        format!("scheduler = '{}'\ntoken = 'alq1.{}'\nallow_root = true\n", self.address, URL_SAFE_NO_PAD.encode(token))
    }

    pub(crate) fn settings(&self) -> String {
        self.settings_with(SECRET)
    }

    /// From now on leases have this length; 0 stands for no leases.
    pub(crate) fn give_leases_of(&self, lease_ms: u64) {
        self.shared.lease_ms.store(lease_ms, Ordering::SeqCst);
    }

    /// From now on a node that joins gets a certificate with a thirtieth of its life left.
    pub(crate) fn give_old_certificates(&self) {
        self.shared.certificates_begin_s.store(-29_000, Ordering::SeqCst);
    }

    /// From now on a node that joins gets a certificate that is not valid yet by its clock.
    pub(crate) fn give_early_certificates(&self) {
        self.shared.certificates_begin_s.store(1_000, Ordering::SeqCst);
    }

    /// Waits for the report with which the node begins a connection with a renewed certificate.
    #[track_caller]
    pub(crate) fn report_after_renewal(&mut self) -> Report {
        let shared = Arc::clone(&self.shared);
        self.wait("a report after a renewal", |message| match &message.message {
            Some(Said::Report(report)) if shared.renewals.load(Ordering::SeqCst) > 0 => Some(report.clone()),
            _ => None,
        })
    }

    /// How many certificates were renewed.
    pub(crate) fn renewals(&self) -> u64 {
        self.shared.renewals.load(Ordering::SeqCst)
    }

    /// Waits for the next message for which `wanted` returns something.
    #[track_caller]
    pub(crate) fn wait<T>(&mut self, what: &str, mut wanted: impl FnMut(&NodeMessage) -> Option<T>) -> T {
        loop {
            let message = self.said.recv_timeout(DEADLINE).unwrap_or_else(|_| panic!("the node never said: {what}"));
            self.session = message.session;
            if let Some(found) = wanted(&message) {
                return found;
            }
        }
    }

    #[track_caller]
    pub(crate) fn report(&mut self) -> Report {
        self.wait("a report", |message| match &message.message {
            Some(Said::Report(report)) => Some(report.clone()),
            _ => None,
        })
    }

    /// Waits for a report of a greater session than `session`.
    #[track_caller]
    pub(crate) fn report_after(&mut self, session: u64) -> Report {
        self.wait("a report of a new session", |message| match &message.message {
            Some(Said::Report(report)) if message.session > session => Some(report.clone()),
            _ => None,
        })
    }

    #[track_caller]
    pub(crate) fn outcome(&mut self, number: u64) -> Outcome {
        self.wait("what has become of an instance", |message| match &message.message {
            Some(Said::Outcome(outcome)) if outcome.instance == Some(generation(number)) => Some(outcome.clone()),
            _ => None,
        })
    }

    #[track_caller]
    pub(crate) fn started(&mut self, number: u64) {
        let outcome = self.outcome(number);
        assert!(matches!(outcome.outcome, Some(outcome::Outcome::Started(_))), "{outcome:?}");
    }

    /// Waits for the end of an instance. Its start is reported before, unless it ends at once.
    #[track_caller]
    pub(crate) fn ended(&mut self, number: u64) -> Ended {
        match self.outcome(number).outcome {
            Some(outcome::Outcome::Ended(ended)) => ended,
            Some(outcome::Outcome::Started(_)) => self.ended(number),
            other => panic!("{other:?}"),
        }
    }

    /// The reason why an instance was refused or has failed.
    #[track_caller]
    pub(crate) fn trouble(&mut self, number: u64) -> String {
        match self.outcome(number).outcome {
            Some(outcome::Outcome::Refused(why) | outcome::Outcome::Failed(why)) => why,
            other => panic!("{other:?}"),
        }
    }

    /// The reason why the node refused an instance, so that it may start on another one.
    #[track_caller]
    pub(crate) fn refused(&mut self, number: u64) -> String {
        match self.outcome(number).outcome {
            Some(outcome::Outcome::Refused(why)) => why,
            other => panic!("{other:?}"),
        }
    }

    /// Sends a message to the session of the newest message.
    pub(crate) fn say(&self, message: Message) {
        self.say_to(self.session, message);
    }

    pub(crate) fn say_to(&self, session: u64, message: Message) {
        self.send(SchedulerMessage { session, message: Some(message) });
    }

    /// Sends a message that a reader of this version does not understand.
    pub(crate) fn say_nothing_known(&self) {
        self.send(SchedulerMessage { session: self.session, message: None });
    }

    fn send(&self, message: SchedulerMessage) {
        let node = self.shared.node.lock().expect("the node").clone().expect("a node is connected");
        self.runtime.block_on(node.send(Ok(message))).expect("the node listens");
    }

    pub(crate) fn start_job(&self, number: u64, process: Process) {
        self.say(Message::Start(start(number, process)));
    }

    pub(crate) fn stop_job(&self, instance: u64, number: u64) {
        self.say(Message::Stop(Stop {
            claim: claim(instance),
            instance: Some(generation(instance)),
            generation: Some(generation(number)),
            deadline_ms: 60_000,
        }));
    }

    pub(crate) fn acknowledge(&self, number: u64) {
        self.say(Message::Acknowledge(Acknowledge { claim: claim(number), instance: Some(generation(number)) }));
    }

    pub(crate) fn ask(&self) {
        self.say(Message::Report(AskReport { term: 1 }));
    }

    pub(crate) fn ask_for_log(&self, read: ReadLog) {
        self.say(Message::ReadLog(read));
    }

    /// The whole answer to the question `id` for a log.
    #[track_caller]
    pub(crate) fn log(&self, id: &str) -> String {
        self.answer(id).expect("a whole log")
    }

    /// How the node has broken off its answer to the question `id` for a log.
    #[track_caller]
    pub(crate) fn broken_log(&self, id: &str) -> Code {
        self.answer(id).expect_err("the end of the log comes, too")
    }

    #[track_caller]
    fn answer(&self, id: &str) -> Result<String, Code> {
        let (of, answer) = self.logs.recv_timeout(DEADLINE).expect("a log");
        assert_eq!(of, id);
        answer
    }
}

pub(crate) fn generation(number: u64) -> Generation {
    Generation { term: 1, number }
}

pub(crate) fn claim(number: u64) -> String {
    format!("{number}.0.0.1")
}

pub(crate) fn start(number: u64, process: Process) -> Start {
    Start {
        claim: claim(number),
        generation: Some(generation(number)),
        amounts: Some(Default::default()),
        deadline_ms: 60_000,
        process: Some(process),
        term: 0,
    }
}

/// A job of this user that runs a script.
pub(crate) fn shell(script: &str) -> Process {
    Process {
        command: ["sh", "-c", script].map(str::to_owned).to_vec(),
        uid: nix::unistd::geteuid().as_raw(),
        user: "me".into(),
        work_dir: "/".into(),
        grace_ms: 30_000,
        log: "1.0.0".into(),
        ..Process::default()
    }
}

impl Service {
    fn certificate(&self, request: &str, begins_s: i64) -> Result<Response<JoinResponse>, Status> {
        let mut wanted = CertificateSigningRequestParams::from_pem(request)
            .map_err(|error| Status::invalid_argument(error.to_string()))?;
        if begins_s != 0 {
            let distance = Duration::from_secs(begins_s.unsigned_abs());
            let now = SystemTime::now();
            let begin = if begins_s < 0 { now - distance } else { now + distance };
            wanted.params.not_before = begin.into();
            wanted.params.not_after = (begin + Duration::from_secs(30_000)).into();
        }
        let certificate = wanted.signed_by(&self.0.issuer).expect("a certificate").pem();
        Ok(Response::new(JoinResponse { certificate, authority: self.0.authority.clone() }))
    }
}

#[tonic::async_trait]
impl Agents for Service {
    async fn join(&self, request: Request<JoinRequest>) -> Result<Response<JoinResponse>, Status> {
        let request = request.into_inner();
        if request.secret != SECRET {
            return Err(Status::unauthenticated("the join token is unknown, used up or expired"));
        }
        let begins_s = self.0.certificates_begin_s.load(Ordering::SeqCst);
        self.certificate(&request.certificate_request, begins_s)
    }

    async fn renew_certificate(
        &self,
        request: Request<RenewCertificateRequest>,
    ) -> Result<Response<JoinResponse>, Status> {
        self.0.renewals.fetch_add(1, Ordering::SeqCst);
        self.certificate(&request.into_inner().certificate_request, 0)
    }

    type SessionStream = Pin<Box<dyn Stream<Item = Result<SchedulerMessage, Status>> + Send>>;

    async fn session(&self, request: Request<Streaming<NodeMessage>>) -> Result<Response<Self::SessionStream>, Status> {
        if request.peer_certs().is_none_or(|certificates| certificates.is_empty()) {
            return Err(Status::unauthenticated("a node needs a certificate"));
        }
        let (to_node, messages) = tokio::sync::mpsc::channel(64);
        *self.0.node.lock().expect("the node") = Some(to_node.clone());
        let (shared, mut said) = (Arc::clone(&self.0), request.into_inner());
        tokio::spawn(async move {
            while let Some(Ok(message)) = said.next().await {
                let lease_ms = shared.lease_ms.load(Ordering::SeqCst);
                if lease_ms > 0 && matches!(message.message, Some(Said::Report(_) | Said::Heartbeat(_))) {
                    let renew = Message::Renew(Renew { sequence: message.sequence, lease_ms, term: 1 });
                    let renew = SchedulerMessage { session: message.session, message: Some(renew) };
                    let _ = to_node.send(Ok(renew)).await;
                }
                // An error means that the test is over.
                let _ = shared.said.send(message);
            }
        });
        Ok(Response::new(Box::pin(ReceiverStream::new(messages))))
    }

    async fn send_log(&self, request: Request<Streaming<LogChunk>>) -> Result<Response<SendLogResponse>, Status> {
        let id = request.metadata().get("read-id").and_then(|id| id.to_str().ok()).unwrap_or_default().to_owned();
        let (mut chunks, mut answer) = (request.into_inner(), Ok(String::new()));
        while let (Some(chunk), Ok(text)) = (chunks.next().await, &mut answer) {
            match chunk {
                Ok(chunk) => *text += &String::from_utf8_lossy(&chunk.data),
                Err(status) => answer = Err(status.code()),
            }
        }
        let _ = self.0.logs.send((id, answer));
        Ok(Response::new(SendLogResponse {}))
    }

    type AnswerStreamStream = Pin<Box<dyn Stream<Item = Result<FromUser, Status>> + Send>>;

    async fn answer_stream(
        &self,
        _: Request<Streaming<FromJob>>,
    ) -> Result<Response<Self::AnswerStreamStream>, Status> {
        Err(Status::cancelled("no test opens a stream here"))
    }
}
