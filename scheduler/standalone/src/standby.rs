//! Several schedulers that share a database: one leads, and the others stand by until the leader ends.
//!
//! A standby scheduler tells nodes where the leader is. The users of its machine need not know which scheduler leads:
//! it hands their calls on to the leader, with the user's number, which the kernel of its machine has told. It also
//! hands on the calls of users of other machines, with their certificates.

use std::fs;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender};
use std::time::Duration;

use aliquot_proto::agent::v1::LEADER;
use aliquot_proto::scheduler::v1::scheduler_server::SERVICE_NAME as SERVICE_FOR_USERS;
use aliquot_proto::stream::v1::{CONNECTION_WINDOW_BYTES, STREAM_WINDOW_BYTES};
use aliquot_scheduler_store::{Candidate, Database, Standing, StoreError};
use axum::Router;
use axum::body::Body;
use axum::extract::Request;
use axum::http::Response;
use parking_lot::Mutex;
use prometheus_client::metrics::counter::Counter;
use tokio::runtime::Runtime;
use tokio::sync::watch;
use tokio::time::timeout;
use tokio_stream::wrappers::UnixListenerStream;
use tonic::Status;
use tonic::metadata::MetadataMap;
use tonic::service::Routes;
use tonic::transport::{Certificate, Channel, ClientTlsConfig, Endpoint, Server as Transport};
use tower::ServiceExt;
use tracing::{error, info, warn};

use crate::callers::hand_on;
use crate::certificates::{self, AUTHORITY, Authority, Identity, SERVER_NAME};
use crate::config::Config;
use crate::connections::Connections;
use crate::serve::{self, ServeError, State, io_error};

/// How many times in the length of a lease a standby scheduler looks at the lease.
const LOOKS: u32 = 10;
/// The longest time for connecting to the leader.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(3);
/// A connection to a leader that is frozen or cut off ends after the interval and the timeout together.
const KEEPALIVE_INTERVAL: Duration = Duration::from_secs(3);
const KEEPALIVE_TIMEOUT: Duration = Duration::from_secs(4);
/// The longest time until the leader begins to answer a user's call.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(20);
/// Time between two checks whether the program must end.
const TURN: Duration = Duration::from_millis(100);

impl State {
    /// Waits until this scheduler leads, and answers the state from which it starts; `None`: it was asked to end
    /// before. Calls `stands_by` if it does not lead at once.
    ///
    /// # Errors
    /// If it can never lead.
    pub fn wait(config: &Config, stands_by: impl FnOnce(), asked: &Receiver<()>) -> Result<Option<Self>, ServeError> {
        config.check().map_err(ServeError::Config)?;
        let Some(postgresql) = &config.postgresql else { return Self::open(config).map(Some) };
        let settings = postgresql.read().map_err(ServeError::Config)?;
        let candidate = Candidate::new(&settings, serve::address(config, config.listen))?;
        let (tell, told) = mpsc::channel();
        // The thread ends when `_stop` is dropped.
        let (_stop, stopped) = mpsc::channel();
        let standing = Stander { candidate, needs_authority: config.tls.is_none(), pause: settings.lease / LOOKS };
        serve::spawn("standby", move || standing.run(&tell, &stopped))?;
        let (mut serving, mut stands_by) = (None::<Serving>, Some(stands_by));
        loop {
            match told.recv_timeout(TURN) {
                Ok(News::Leads(database)) => {
                    drop(serving);
                    info!("this scheduler leads");
                    return Self::shared(config, database).map(Some);
                }
                Ok(News::Follows { leader, authority }) => {
                    if let Some(serving) = &serving {
                        serving.follow(leader);
                    } else {
                        let identity = certificates::identity(config.tls.as_ref(), authority.as_deref())?;
                        serving = Some(Serving::start(config, identity, leader)?);
                    }
                }
                Ok(News::Failed(error)) => return Err(error.into()),
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => return Ok(None),
            }
            if serving.is_some()
                && let Some(stands_by) = stands_by.take()
            {
                stands_by();
            }
            if !matches!(asked.try_recv(), Err(mpsc::TryRecvError::Empty)) {
                return Ok(None);
            }
        }
    }
}

/// News from the thread that looks at the lease.
enum News {
    Leads(Database),
    Follows {
        leader: String,
        /// The authority that the schedulers share; it comes with the first news.
        authority: Option<Box<Authority>>,
    },
    Failed(StoreError),
}

/// The state of the thread that looks at the lease.
struct Stander {
    candidate: Candidate,
    /// Whether the authority in the database is needed and not known yet.
    needs_authority: bool,
    pause: Duration,
}

impl Stander {
    fn run(mut self, tell: &Sender<News>, stopped: &Receiver<()>) {
        let mut trouble = String::new();
        loop {
            let news = match self.look() {
                Ok(news) => {
                    trouble.clear();
                    news
                }
                Err(error @ StoreError::Unreachable { .. }) => {
                    let text = error.to_string();
                    if text != trouble {
                        warn!("{text}");
                        trouble = text;
                    }
                    None
                }
                Err(error) => Some(News::Failed(error)),
            };
            let is_last = matches!(news, Some(News::Leads(_) | News::Failed(_)));
            // When the program ends, the receiver is gone.
            if news.is_some_and(|news| tell.send(news).is_err()) || is_last {
                return;
            }
            if stopped.recv_timeout(self.pause) != Err(RecvTimeoutError::Timeout) {
                return;
            }
        }
    }

    fn look(&mut self) -> Result<Option<News>, StoreError> {
        let leader = match self.candidate.stand()? {
            Standing::Leads(database) => return Ok(Some(News::Leads(database))),
            Standing::Follows { leader } => leader,
        };
        let mut authority = None;
        if self.needs_authority {
            // The very first leader makes it.
            authority = match Authority::of_records(self.candidate.records(AUTHORITY)?) {
                Ok(authority) => authority.map(Box::new),
                Err(error) => {
                    error!(%error, "the authority of the cluster cannot be used");
                    None
                }
            };
            if authority.is_none() {
                return Ok(None);
            }
            self.needs_authority = false;
        }
        Ok(Some(News::Follows { leader, authority }))
    }
}

/// A standby scheduler that serves calls, until it is dropped.
struct Serving {
    /// `None` only while this is being dropped.
    runtime: Option<Runtime>,
    stop: watch::Sender<bool>,
    leader: Arc<Leader>,
    socket: PathBuf,
}

impl Drop for Serving {
    fn drop(&mut self) {
        _ = fs::remove_file(&self.socket);
        _ = self.stop.send(true);
        if let Some(runtime) = self.runtime.take() {
            // After this its sockets are free.
            runtime.shutdown_timeout(Duration::from_secs(1));
        }
    }
}

impl Serving {
    fn start(config: &Config, identity: Identity, address: String) -> Result<Self, ServeError> {
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(1)
            .enable_all()
            .build()
            .map_err(io_error("cannot start threads"))?;
        let (tcp, listens, unix) = runtime.block_on(serve::listen(config))?;
        let (stop, stopped) = watch::channel(false);
        let mut transport = serve::for_nodes(&identity)?;
        let incoming = Connections::new(config.limits, Counter::default()).of(tcp);
        info!(%listens, socket = %config.socket.display(), leader = address, "the scheduler stands by");
        let leader = Arc::new(Leader { identity, now: Mutex::new(Called { address, channel: None }) });
        let (of_nodes, of_users) = (Arc::clone(&leader), Arc::clone(&leader));
        // Users of other machines call there too.
        let for_nodes = Router::new().fallback(move |request: Request| {
            let leader = Arc::clone(&of_nodes);
            async move {
                if request.uri().path().strip_prefix('/').is_some_and(|path| path.starts_with(SERVICE_FOR_USERS)) {
                    return leader.answer(request).await.unwrap_or_else(Status::into_http);
                }
                leader.not_me().into_http::<Body>()
            }
        });
        let for_users = Router::new().fallback(move |request: Request| {
            let leader = Arc::clone(&of_users);
            async move { leader.answer(request).await.unwrap_or_else(Status::into_http) }
        });
        let failed = |done: Result<(), tonic::transport::Error>| {
            if let Err(error) = done {
                error!(%error, "the scheduler that stands by cannot serve");
            }
        };
        let nodes = transport.add_routes(Routes::from(for_nodes));
        let ended = serve::ended(stopped.clone());
        runtime.spawn(async move {
            failed(nodes.serve_with_incoming_shutdown(incoming, ended).await);
        });
        let users = Transport::builder().add_routes(Routes::from(for_users));
        let ended = serve::ended(stopped);
        runtime.spawn(async move {
            failed(users.serve_with_incoming_shutdown(UnixListenerStream::new(unix), ended).await);
        });
        Ok(Self { runtime: Some(runtime), stop, leader, socket: config.socket.clone() })
    }

    /// Notes the present leader's address, which may be a new one.
    fn follow(&self, address: String) {
        let mut now = self.leader.now.lock();
        if now.address != address {
            info!(leader = address, "another scheduler leads now");
            *now = Called { address, channel: None };
        }
    }
}

/// The scheduler that leads, as the target of calls.
struct Leader {
    /// The certificate with which this scheduler calls it.
    identity: Identity,
    now: Mutex<Called>,
}

struct Called {
    /// The address of the leader as HOST:PORT.
    address: String,
    /// The connection, made at the first call of a user.
    channel: Option<Channel>,
}

impl Leader {
    /// The error that tells a node where the leader is.
    fn not_me(&self) -> Status {
        let address = self.now.lock().address.clone();
        let mut metadata = MetadataMap::new();
        if let Ok(value) = address.parse() {
            metadata.insert(LEADER, value);
        }
        let why = format!("this scheduler stands by; the leader is {address}");
        Status::with_metadata(tonic::Code::Unavailable, why, metadata)
    }

    fn channel(&self) -> Result<(String, Channel), Status> {
        let mut now = self.now.lock();
        let Called { address, channel } = &mut *now;
        if let Some(channel) = channel {
            return Ok((address.clone(), channel.clone()));
        }
        let Identity { certificate_pem, key_pem, authority_pem } = &self.identity;
        let tls = ClientTlsConfig::new()
            .ca_certificate(Certificate::from_pem(authority_pem))
            .identity(tonic::transport::Identity::from_pem(certificate_pem, key_pem))
            .domain_name(SERVER_NAME);
        let endpoint =
            Endpoint::from_shared(format!("https://{address}")).and_then(|endpoint| endpoint.tls_config(tls));
        let endpoint = endpoint.map_err(|error| not_reached(address, &error))?;
        let endpoint = endpoint
            .connect_timeout(CONNECT_TIMEOUT)
            .tcp_nodelay(true)
            .initial_stream_window_size(STREAM_WINDOW_BYTES)
            .initial_connection_window_size(CONNECTION_WINDOW_BYTES)
            .http2_keep_alive_interval(KEEPALIVE_INTERVAL)
            .keep_alive_timeout(KEEPALIVE_TIMEOUT);
        Ok((address.clone(), channel.insert(endpoint.connect_lazy()).clone()))
    }

    /// Hands a user's call on to the leader.
    async fn answer(&self, request: Request) -> Result<Response<Body>, Status> {
        let (mut parts, body) = request.into_parts();
        hand_on(&mut parts)?;
        let (address, channel) = self.channel()?;
        parts.extensions.clear();
        let call = axum::http::Request::from_parts(parts, tonic::body::Body::new(body));
        // The endpoint's own limit covers only TCP. A frozen leader accepts the connection and sends nothing.
        let answer = timeout(ANSWER_TIMEOUT, channel.oneshot(call)).await;
        let answer = answer.map_err(|_| away(&address, &format!("no answer within {} s", ANSWER_TIMEOUT.as_secs())))?;
        Ok(answer.map_err(|error| not_reached(&address, &error))?.map(Body::new))
    }
}

fn not_reached(address: &str, error: &tonic::transport::Error) -> Status {
    let cause = std::error::Error::source(error).map(|cause| format!(": {cause}")).unwrap_or_default();
    away(address, &format!("{error}{cause}"))
}

fn away(address: &str, why: &str) -> Status {
    Status::unavailable(format!(
        "this scheduler stands by, and the leader {address} cannot be reached ({why}); try again in a moment"
    ))
}
