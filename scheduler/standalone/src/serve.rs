//! Starts all parts of a scheduler, and stops them.

use std::fs::{self, DirBuilder, Permissions};
use std::io;
use std::net::SocketAddr;
use std::os::unix::fs::{DirBuilderExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::mpsc;
use std::thread;

use aliquot_proto::agent::v1::agents_server::AgentsServer;
use aliquot_proto::scheduler::v1::FILE_DESCRIPTOR_SET;
use aliquot_proto::scheduler::v1::scheduler_server::SchedulerServer;
use aliquot_proto::stream::v1::{CONNECTION_WINDOW_BYTES, STREAM_WINDOW_BYTES};
use aliquot_scheduler_engine::{Decisions, Engine, Lease, Settings, Shown, Snapshots, Store};
use aliquot_scheduler_store::{Database, Leadership, StoreError};
use parking_lot::RwLock;
use tokio::net::{TcpListener, UnixListener};
use tokio::sync::{broadcast, watch};
use tokio_stream::wrappers::UnixListenerStream;
use tonic::transport::{Certificate, Identity, Server as Transport, ServerTlsConfig};
use tower::layer::util::Stack;
use tracing::{error, info};

use crate::accounts::Accounts;
use crate::agents::AgentService;
use crate::audit::Audit;
use crate::backend::Nodes;
use crate::callers::Callers;
use crate::certificates::{self, Authority, CertificateError};
use crate::clock::{Clock, latest_ms};
use crate::config::Config;
use crate::connections::{Connections, NoteCallers};
use crate::controller::{Controller, ControllerError, Inbox, Seen, next_id};
use crate::gate::{Gate, Gatekeeper};
use crate::grants::Grants;
use crate::jobs::{Book, JOBS, TASKS};
use crate::limits::Limiter;
use crate::membership::{Addresses, Invitation, Inviter, LoadError, Membership, TOKEN_VALID_MS};
use crate::metrics::{Counters, Metrics};
use crate::queues::{QUEUES, Queues};
use crate::registrar::Registrar;
use crate::secrets::Secrets;
use crate::sessions::Sessions;
use crate::streams::Streams;
use crate::users::UserService;

/// How many changes a watcher may be behind before it must look at everything again.
const WATCHED: usize = 4096;
/// Time between two checks that a node is still connected, and how long its answer may take.
const KEEPALIVE: std::time::Duration = std::time::Duration::from_secs(5);

/// The most calls on one connection at a time. The connection of a standby scheduler carries the calls of all its
/// users.
const CALLS_MAX: u32 = 2048;
// A stream that is not read must not block the others.
const _: () = assert!(CALLS_MAX as u64 * STREAM_WINDOW_BYTES as u64 <= CONNECTION_WINDOW_BYTES as u64);

/// Why a scheduler does not start, or has ended.
#[derive(Debug, thiserror::Error)]
pub enum ServeError {
    /// A value of the configuration is wrong.
    #[error("{0}")]
    Config(String),
    /// The store cannot be opened, read or written.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// The engine cannot continue from the saved records.
    #[error(transparent)]
    Engine(#[from] aliquot_scheduler_engine::StoreError),
    /// This scheduler's lease has ended, and another one may lead.
    #[error("this scheduler is no longer the leader; restart it, and it stands by")]
    LeaseLost,
    /// A record in the store cannot be read.
    #[error("the scheduler's store has a record that cannot be read: {0}; restore a backup")]
    Record(String),
    /// The saved nodes, users or secrets cannot be read.
    #[error(transparent)]
    Membership(#[from] LoadError),
    /// Certificates cannot be made or read.
    #[error(transparent)]
    Certificate(#[from] CertificateError),
    /// A directory or a socket cannot be made.
    #[error("{what}: {error}")]
    Io {
        /// The directory or socket.
        what: String,
        /// The error of the operating system.
        error: io::Error,
    },
    /// TLS or gRPC cannot be started.
    #[error("cannot serve: {0}")]
    Transport(#[from] tonic::transport::Error),
}

impl From<ControllerError> for ServeError {
    fn from(error: ControllerError) -> Self {
        match error {
            ControllerError::Store(error) => Self::Store(error),
            ControllerError::NotRestored(why) => Self::Record(why),
        }
    }
}

pub(crate) fn io_error(what: impl Into<String>) -> impl FnOnce(io::Error) -> ServeError {
    let what = what.into();
    move |error| ServeError::Io { what, error }
}

/// A running scheduler, until it is dropped or [stopped](Server::stop).
#[derive(Debug)]
pub struct Server {
    runtime: tokio::runtime::Runtime,
    stop: watch::Sender<bool>,
    /// Receives the error if the scheduler ends by itself.
    failed: mpsc::Receiver<ServeError>,
    controller: mpsc::Sender<Inbox>,
    threads: Vec<thread::JoinHandle<()>>,
    listens: SocketAddr,
    invitation: Option<Invitation>,
    socket: PathBuf,
    leadership: Leadership,
}

/// The state from which a scheduler starts. While it exists, no other scheduler leads the cluster.
#[derive(Debug)]
pub struct State {
    database: Database,
    /// Signs certificates; `None`: the certificates come from elsewhere.
    authority: Option<Authority>,
    identity: certificates::Identity,
}

impl State {
    /// Opens the state in the state directory, for a scheduler that shares it with no other.
    ///
    /// # Errors
    /// If the state cannot be opened.
    pub fn open(config: &Config) -> Result<Self, ServeError> {
        config.check().map_err(ServeError::Config)?;
        make_private(&config.state_dir)?;
        let database = Database::open(&config.state_dir.join("scheduler.db"))?;
        Self::of(config, database, |_| Ok(Authority::open(&config.state_dir)?))
    }

    /// Opens the state in a database that other schedulers share, for the leader.
    pub(crate) fn shared(config: &Config, database: Database) -> Result<Self, ServeError> {
        Self::of(config, database, Authority::shared)
    }

    fn of(
        config: &Config,
        database: Database,
        authority: impl FnOnce(&Database) -> Result<Authority, ServeError>,
    ) -> Result<Self, ServeError> {
        let authority = if config.tls.is_none() { Some(authority(&database)?) } else { None };
        let identity = certificates::identity(config.tls.as_ref(), authority.as_ref())?;
        Ok(Self { database, authority, identity })
    }
}

impl Server {
    /// Starts a scheduler. It serves calls when this returns. `snapshots` writes what it knows for administrators.
    ///
    /// # Errors
    /// If anything that it needs is missing or fails.
    pub fn start(
        config: &Config,
        decisions: Decisions,
        snapshots: Snapshots,
        state: State,
    ) -> Result<Self, ServeError> {
        let State { database, authority, identity } = state;
        let (authority, leadership) = (authority.map(Arc::new), database.leadership().clone());
        let membership = Arc::new(Membership::load(database.clone())?);
        let accounts = Arc::new(Accounts::load(database.clone())?);
        let key_file = config.secrets_key.clone().unwrap_or_else(|| config.state_dir.join("secrets.key"));
        // Schedulers that share a database must share one key, so none of them makes its own.
        let secrets = Arc::new(Secrets::load(database.clone(), key_file, config.postgresql.is_none())?);
        let own = nix::unistd::Uid::effective().as_raw();
        let grants = Grants::new(&config.users, config.default_role, &config.administrators, own);
        let callers = Callers::new(grants.map_err(ServeError::Config)?, accounts, authority.is_some());
        let audit_file = config.audit.file.clone().unwrap_or_else(|| config.state_dir.join("audit.jsonl"));
        let audit = Audit::start(audit_file, &config.audit).map_err(io_error("cannot start a thread"))?;
        let book = Book::load(database.records(JOBS)?, database.records(TASKS)?).map_err(ServeError::Record)?;
        let next_id = next_id(&database, &book)?;
        let queues = Queues::load(database.records(QUEUES)?).map_err(ServeError::Record)?;
        let mut store = database.engine_store();
        let saved = store.load()?;
        let clock = Arc::new(Clock::new(latest_ms(&saved)));
        let settings = Settings {
            start_deadline_ms: config.start_deadline_ms,
            lease: Some(Lease {
                lease_ms: config.lease_ms,
                margin_ms: config.lease_ms / 10,
                silence_ms: config.silence_ms,
            }),
            ..Settings::default()
        };
        let engine = Engine::new(decisions, settings, saved);
        let term = engine.term();

        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(2)
            .enable_all()
            .build()
            .map_err(io_error("cannot start threads"))?;
        let (stop, stopped) = watch::channel(false);
        let (fail, failed) = mpsc::channel();
        let (to_engine, of_engine) = mpsc::channel();
        let (to_controller, of_controller) = mpsc::channel();
        let (shown, sessions, streams) = (Shown::default(), Sessions::default(), Streams::default());
        let seen = Seen {
            book: Arc::new(RwLock::new(book)),
            queues: Arc::new(RwLock::new(queues)),
            touched: broadcast::channel(WATCHED).0,
        };
        let (tcp, listens, unix) = runtime.block_on(listen(config))?;
        let metrics = runtime.block_on(listen_for_metrics(config))?;
        let addresses = Addresses { own: address(config, listens), leadership: leadership.clone() };
        let counters = Counters { audit_lost: audit.lost.clone(), ..Counters::default() };

        let connections = Connections::new(config.limits, counters.connections_refused.clone());
        let mut threads = Vec::new();
        threads.push({
            let mut nodes = Nodes {
                sessions: sessions.clone(),
                controller: to_controller.clone(),
                clock: Arc::clone(&clock),
                leadership: leadership.clone(),
            };
            let (shown, clock, fail) = (shown.clone(), Arc::clone(&clock), fail.clone());
            spawn("engine", move || {
                let done = aliquot_scheduler_engine::run(engine, &mut store, &mut nodes, &shown, &of_engine, || {
                    clock.now_ms()
                });
                if let Err(error) = done {
                    _ = fail.send(error.into());
                }
            })?
        });
        threads.push({
            let mut controller = Controller {
                database: database.clone(),
                seen: seen.clone(),
                engine: to_engine.clone(),
                own: to_controller.clone(),
                shown: shown.clone(),
                sessions: sessions.clone(),
                clock: Arc::clone(&clock),
                leaving: Default::default(),
                there: Default::default(),
                looked: (0, 0),
                next_id,
                counters: counters.clone(),
                secrets: Arc::clone(&secrets),
                term,
                ahead: Default::default(),
            };
            let fail = fail.clone();
            spawn("controller", move || {
                controller.begin();
                if let Err(error) = controller.run(&of_controller) {
                    _ = fail.send(error.into());
                }
            })?
        });

        let inviter = authority.as_ref().map(|authority| Inviter {
            membership: Arc::clone(&membership),
            authority_pem: authority.pem.clone(),
            addresses: addresses.clone(),
        });
        let registrar = Registrar {
            callers: callers.clone(),
            authority: authority.clone(),
            authority_pem: identity.authority_pem.clone(),
            addresses,
            configured: config.users.clone(),
        };
        let keeper = Arc::new(Gatekeeper {
            callers,
            limiter: Limiter::new(config.limits),
            audit: audit.clone(),
            clock: Arc::clone(&clock),
            throttled: counters.throttled.clone(),
        });
        let agents = AgentService {
            authority,
            membership: Arc::clone(&membership),
            sessions: sessions.clone(),
            streams: streams.clone(),
            controller: to_controller.clone(),
            clock: Arc::clone(&clock),
            audit,
            limiter: keeper.limiter.clone(),
        };
        if let Some(listener) = metrics {
            let metrics = Metrics { counters, seen: seen.clone(), shown: shown.clone(), sessions: sessions.clone() };
            runtime.spawn(aliquot_telemetry::serve(listener, Arc::new(metrics)));
        }
        let is_first_start = membership.is_empty();
        let users = UserService {
            seen,
            shown,
            sessions,
            streams,
            controller: to_controller.clone(),
            engine: to_engine,
            database,
            membership,
            inviter: inviter.clone(),
            clock: Arc::clone(&clock),
            registrar: Arc::new(registrar),
            secrets,
            snapshots,
            queue_changes: Arc::default(),
        };
        let users = Gate { service: SchedulerServer::new(users), keeper };
        // Users of other machines call there, and so do standby schedulers on behalf of their users.
        let for_nodes = for_nodes(&identity)?.add_service(AgentsServer::new(agents)).add_service(users.clone());
        serve(&runtime, for_nodes.serve_with_incoming_shutdown(connections.of(tcp), ended(stopped.clone())), &fail);
        let reflection = tonic_reflection::server::Builder::configure()
            .register_encoded_file_descriptor_set(FILE_DESCRIPTOR_SET)
            .build_v1()
            .map_err(|error| ServeError::Config(error.to_string()))?;
        let (health, health_service) = tonic_health::server::health_reporter();
        runtime.block_on(health.set_serving::<SchedulerServer<UserService>>());
        let for_users = transport().add_service(users).add_service(health_service).add_service(reflection);
        serve(&runtime, for_users.serve_with_incoming_shutdown(UnixListenerStream::new(unix), ended(stopped)), &fail);
        info!(%listens, socket = %config.socket.display(), "the scheduler serves");
        let socket = config.socket.clone();
        let invitation = match inviter.filter(|_| is_first_start) {
            Some(inviter) => Some(inviter.invite(clock.now_ms(), TOKEN_VALID_MS, 1, false)?),
            None => None,
        };
        let controller = to_controller;
        Ok(Self { runtime, stop, failed, controller, threads, listens, invitation, socket, leadership })
    }

    /// The address on which it listens for nodes.
    #[must_use]
    pub fn listens(&self) -> SocketAddr {
        self.listens
    }

    /// The invitation for the first node, if no node has joined or was invited before.
    #[must_use]
    pub fn invitation(&self) -> Option<&Invitation> {
        self.invitation.as_ref()
    }

    /// Waits for a message on `asked`, which ends the scheduler, or for an error that ends it.
    ///
    /// # Errors
    /// The error that ended the scheduler.
    pub fn run(self, asked: &mpsc::Receiver<()>) -> Result<(), ServeError> {
        loop {
            let failed = self.failed.try_recv().ok();
            if !self.leadership.holds() {
                // The error may come from a write that was given up when the lease ended.
                let error = failed.map(tracing::field::display);
                error!(error, "another scheduler may lead now, so this one ends");
                self.abandon();
                return Err(ServeError::LeaseLost);
            }
            if let Some(error) = failed {
                error!(%error, "the scheduler cannot go on");
                self.stop();
                return Err(error);
            }
            match asked.recv_timeout(std::time::Duration::from_millis(100)) {
                Ok(()) | Err(mpsc::RecvTimeoutError::Disconnected) => {
                    self.stop();
                    return Ok(());
                }
                Err(mpsc::RecvTimeoutError::Timeout) => {}
            }
        }
    }

    /// Ends the scheduler without waiting: a database that cannot be reached may block its threads for long.
    fn abandon(self) {
        _ = fs::remove_file(&self.socket);
        self.runtime.shutdown_background();
    }

    /// Ends the scheduler. Jobs on nodes go on.
    pub fn stop(self) {
        let Self { runtime, stop, controller, threads, socket, .. } = self;
        // The socket is removed while the store is still locked, so that it cannot be the socket of the next scheduler.
        _ = fs::remove_file(socket);
        _ = stop.send(true);
        _ = controller.send(Inbox::Stopped);
        runtime.shutdown_timeout(std::time::Duration::from_secs(2));
        for thread in threads {
            _ = thread.join();
        }
    }
}

/// A transport on which a stream that is not read does not block the others.
fn transport() -> Transport {
    Transport::builder()
        .initial_stream_window_size(STREAM_WINDOW_BYTES)
        .initial_connection_window_size(CONNECTION_WINDOW_BYTES)
        .max_concurrent_streams(CALLS_MAX)
}

/// A transport for callers from other machines.
pub(crate) fn for_nodes(
    identity: &certificates::Identity,
) -> Result<Transport<Stack<NoteCallers, tower::layer::util::Identity>>, ServeError> {
    let tls = ServerTlsConfig::new()
        .identity(Identity::from_pem(&identity.certificate_pem, &identity.key_pem))
        .client_ca_root(Certificate::from_pem(&identity.authority_pem))
        // A joining node has no certificate yet. Every other call requires one.
        .client_auth_optional(true);
    let transport = transport().tls_config(tls)?;
    let transport = transport.http2_keepalive_interval(Some(KEEPALIVE)).http2_keepalive_timeout(Some(KEEPALIVE));
    Ok(transport.layer(NoteCallers))
}

pub(crate) async fn ended(mut stopped: watch::Receiver<bool>) {
    _ = stopped.wait_for(|stopped| *stopped).await;
}

pub(crate) fn serve(
    runtime: &tokio::runtime::Runtime,
    server: impl Future<Output = Result<(), tonic::transport::Error>> + Send + 'static,
    fail: &mpsc::Sender<ServeError>,
) {
    let fail = fail.clone();
    runtime.spawn(async move {
        if let Err(error) = server.await {
            _ = fail.send(error.into());
        }
    });
}

pub(crate) fn spawn(name: &str, body: impl FnOnce() + Send + 'static) -> Result<thread::JoinHandle<()>, ServeError> {
    thread::Builder::new().name(name.to_owned()).spawn(body).map_err(io_error("cannot start a thread"))
}

pub(crate) async fn listen(config: &Config) -> Result<(TcpListener, SocketAddr, UnixListener), ServeError> {
    let tcp = TcpListener::bind(config.listen).await;
    let tcp = tcp.map_err(io_error(format!("cannot listen on {}", config.listen)))?;
    let listens = tcp.local_addr().map_err(io_error("cannot listen"))?;
    let dir = config.socket.parent().unwrap_or(Path::new("/"));
    DirBuilder::new()
        .recursive(true)
        .mode(0o755)
        .create(dir)
        .map_err(io_error(format!("cannot make {}", dir.display())))?;
    if std::os::unix::net::UnixStream::connect(&config.socket).is_ok() {
        let what = format!("cannot serve on {}", config.socket.display());
        return Err(io_error(what)(io::Error::other("another scheduler serves there; name another socket")));
    }
    match fs::remove_file(&config.socket) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => {
            return Err(io_error(format!("cannot replace {}", config.socket.display()))(error));
        }
        _ => {}
    }
    let failed = || io_error(format!("cannot serve on {}", config.socket.display()));
    let unix = UnixListener::bind(&config.socket).map_err(failed())?;
    // Every user of this machine may connect; the kernel tells which user calls.
    fs::set_permissions(&config.socket, Permissions::from_mode(0o666)).map_err(failed())?;
    Ok((tcp, listens, unix))
}

async fn listen_for_metrics(config: &Config) -> Result<Option<TcpListener>, ServeError> {
    let Some(address) = config.metrics_address else { return Ok(None) };
    let listener = TcpListener::bind(address).await;
    let listener = listener.map_err(io_error(format!("cannot serve metrics on {address}")))?;
    // Port 0 means any free port.
    let address = listener.local_addr().unwrap_or(address);
    info!(%address, "serving metrics");
    Ok(Some(listener))
}

pub(crate) fn address(config: &Config, listens: SocketAddr) -> String {
    if !config.address.is_empty() {
        return config.address.clone();
    }
    if !listens.ip().is_unspecified() {
        return listens.to_string();
    }
    let host = nix::unistd::gethostname().ok().and_then(|name| name.into_string().ok());
    format!("{}:{}", host.unwrap_or_else(|| "localhost".to_owned()), listens.port())
}

fn make_private(dir: &Path) -> Result<(), ServeError> {
    DirBuilder::new()
        .recursive(true)
        .mode(0o700)
        .create(dir)
        .map_err(io_error(format!("cannot make {}", dir.display())))
}
