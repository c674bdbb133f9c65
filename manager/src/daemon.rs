//! The manager with its servers: as a daemon, or inside another program.

use std::io;
use std::net::SocketAddr;
use std::os::unix::net::UnixListener;
use std::path::Path;
use std::sync::Arc;
use std::thread::{self, JoinHandle};
use std::time::Duration;

use aliquot_node::aside;
use aliquot_proto::node::v1::FILE_DESCRIPTOR_SET;
use aliquot_proto::node::v1::node_manager_server::NodeManagerServer;
use tokio::net::TcpListener;
use tokio::runtime::Runtime;
use tokio::sync::{mpsc, watch};
use tonic::transport::Server;
use tracing::{debug, error, info, warn};

use crate::config::Config;
use crate::descriptors::Descriptors;
use crate::grpc::Service;
use crate::inventory::DeviceSource;
use crate::kubernetes::{Kubernetes, KubernetesError};
use crate::manager::{Locks, Manager, OpenError, take_directories};
use crate::metrics;
use crate::nvml::Nvml;
use crate::socket::{self, Socket, SocketError};

mod crash;
mod run;
pub use crash::end_at_panics;
pub(crate) use run::End;
pub use run::{RunError, check, run};

/// Time for running operations to finish when the manager ends.
const OPERATION_GRACE: Duration = Duration::from_secs(2);
/// The pause before the removal of a slice without owner is tried again.
const ORPHAN_PAUSE: Duration = Duration::from_secs(1);
/// Time for clients to notice that the manager ends.
const CLIENT_GRACE: Duration = Duration::from_millis(500);

/// Why the manager does not start.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StartError {
    /// A failure of its directories, checkpoint or threads.
    #[error(transparent)]
    Open(#[from] OpenError),
    /// Its socket cannot be served.
    #[error(transparent)]
    Socket(#[from] SocketError),
    /// The address for metrics cannot be bound.
    #[error("cannot serve metrics on {address}: {source}; choose another address with --metrics-address")]
    Metrics {
        /// The address from the configuration.
        address: SocketAddr,
        /// The error that the system gave as the reason.
        source: io::Error,
    },
    /// Its Kubernetes side cannot start.
    #[error(transparent)]
    Kubernetes(#[from] KubernetesError),
    /// Its part in a cluster cannot start.
    #[error(transparent)]
    Cluster(#[from] aliquot_agent::StartError),
    /// The kernel gives no thread.
    #[error("cannot start the servers: {0}")]
    Runtime(#[source] io::Error),
}

/// A manager that serves its socket. It ends when stopped or dropped.
pub struct Daemon {
    config: Config,
    manager: Arc<Manager>,
    ending: watch::Sender<bool>,
    servers: Option<JoinHandle<()>>,
    metrics_address: Option<SocketAddr>,
    /// The node's part in a cluster. It uses the servers, so it ends before them.
    agent: Option<aliquot_agent::Running>,
    _locks: Locks,
}

impl Daemon {
    /// Starts a manager of the devices that NVML shows, in this process, and returns once it serves. It can be called
    /// inside an asynchronous runtime and outside of one.
    ///
    /// # Errors
    /// See [`StartError`]. A node without a driver is no error.
    pub fn start(config: Config) -> Result<Daemon, StartError> {
        let source = Box::new(Nvml::new(config.nvml_library.clone(), config.driver.clone()));
        Daemon::start_with(config, source)
    }

    /// Starts a manager of the devices of `source`, and returns once it serves.
    ///
    /// # Errors
    /// See [`StartError`].
    pub fn start_with(config: Config, source: Box<dyn DeviceSource>) -> Result<Daemon, StartError> {
        let descriptors = Descriptors::raise();
        let locks = take_directories(&config)?;
        let (socket, listener) = Socket::listen(&config.socket)?;
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(2)
            .thread_name("servers")
            .enable_all()
            .build()
            .map_err(StartError::Runtime)?;
        let metrics = config.metrics_address.map(|address| bind_metrics(&runtime, address)).transpose()?;
        let metrics_address = metrics.as_ref().and_then(|listener| listener.local_addr().ok());
        if let Some(address) = metrics_address {
            info!(%address, "serving metrics");
        }
        let (gone, orphans) = mpsc::unbounded_channel();
        let owner_gone = move |slice: &str| {
            // On an error the receiver is gone, because the manager ends.
            let _ = gone.send(slice.to_owned());
        };
        let manager = Arc::new(Manager::open(&config, descriptors, source, owner_gone)?);
        let kubernetes = config.kubernetes.as_ref();
        let kubernetes =
            kubernetes.map(|config| runtime.block_on(Kubernetes::open(config, Arc::clone(&manager)))).transpose()?;
        let (ending, end) = watch::channel(false);
        let inner = Arc::clone(&manager);
        // A separate thread owns the runtime: a runtime must not be dropped inside another one.
        let servers = thread::Builder::new().name("daemon".into()).spawn(move || {
            serve(
                runtime,
                Served { listener, clients_max: descriptors.clients_max(), metrics, kubernetes },
                &inner,
                end,
                orphans,
            );
            drop(socket);
        });
        let servers = servers.map_err(StartError::Runtime)?;
        info!(socket = %config.socket.display(), version = env!("CARGO_PKG_VERSION"), "the node manager serves");
        let agent = config.cluster.clone().map(aliquot_agent::Running::start).transpose()?;
        Ok(Daemon { config, manager, ending, servers: Some(servers), metrics_address, agent, _locks: locks })
    }

    /// The socket on which it serves gRPC.
    #[must_use]
    pub fn socket(&self) -> &Path {
        &self.config.socket
    }

    /// The address on which it serves metrics.
    #[must_use]
    pub fn metrics_address(&self) -> Option<SocketAddr> {
        self.metrics_address
    }

    /// Returns once the manager can work: it waits for the locks that every operation needs.
    fn answer(&self) {
        let _ = self.manager.list();
    }

    /// Stops the manager, and returns when it has ended. Regions and the checkpoint stay, and processes in slices stay
    /// limited. Without a state directory ([`Config::state_dir`]) slices end with the manager.
    pub fn stop(mut self) {
        self.end();
    }

    fn end(&mut self) {
        drop(self.agent.take());
        if let Some(servers) = self.servers.take() {
            self.ending.send_replace(true);
            // A panic in the thread would have ended the whole process.
            let _ = servers.join();
            self.manager.stop();
            info!("the node manager has ended");
        }
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        self.end();
    }
}

fn bind_metrics(runtime: &Runtime, address: SocketAddr) -> Result<TcpListener, StartError> {
    runtime.block_on(TcpListener::bind(address)).map_err(|source| StartError::Metrics { address, source })
}

/// The listening sockets and their services.
struct Served {
    listener: UnixListener,
    clients_max: usize,
    metrics: Option<TcpListener>,
    kubernetes: Option<Kubernetes>,
}

fn serve(
    runtime: Runtime,
    Served { listener, clients_max, metrics, kubernetes }: Served,
    manager: &Arc<Manager>,
    mut end: watch::Receiver<bool>,
    orphans: mpsc::UnboundedReceiver<String>,
) {
    runtime.block_on(async {
        tokio::spawn(remove_orphans(Arc::clone(manager), orphans));
        tokio::spawn(follow_devices(Arc::clone(manager)));
        if let Some(listener) = metrics {
            tokio::spawn(metrics::serve(listener, Arc::clone(manager)));
        }
        if let Some(kubernetes) = kubernetes {
            tokio::spawn(kubernetes.run(end.clone()));
        }
        let service = Service::new(Arc::clone(manager), end.clone());
        let operations = service.clone();
        let mut ended = end.clone();
        let outcome = async {
            let (reporter, health) = tonic_health::server::health_reporter();
            reporter.set_serving::<NodeManagerServer<Service>>().await;
            let reflection = || {
                tonic_reflection::server::Builder::configure()
                    .register_encoded_file_descriptor_set(FILE_DESCRIPTOR_SET)
                    .register_encoded_file_descriptor_set(tonic_health::pb::FILE_DESCRIPTOR_SET)
            };
            let incoming = socket::connections(tokio::net::UnixListener::from_std(listener)?, clients_max);
            Server::builder()
                .add_service(health)
                .add_service(reflection().build_v1()?)
                // Older clients of reflection, among them grpcurl, ask for v1alpha.
                .add_service(reflection().build_v1alpha()?)
                .add_service(NodeManagerServer::new(service))
                .serve_with_incoming_shutdown(incoming, async move {
                    // An error means that the sender is gone; the daemon ends then too.
                    let _ = ended.wait_for(|ended| *ended).await;
                })
                .await?;
            Ok::<_, Box<dyn std::error::Error + Send + Sync>>(())
        };
        let grace = async {
            let _ = end.wait_for(|end| *end).await;
            tokio::time::sleep(CLIENT_GRACE).await;
        };
        tokio::select! {
            outcome = outcome => if let Err(error) = outcome {
                error!(%error, "cannot serve gRPC");
            },
            () = grace => debug!("some clients were still connected when the manager ended"),
        }
        if tokio::time::timeout(OPERATION_GRACE, operations.finish()).await.is_err() {
            debug!("some operations were still running when the manager ended");
        }
    });
    runtime.shutdown_timeout(OPERATION_GRACE);
}

/// Lets the manager follow each look at the devices. Writing files may take its time, so the servers do not wait for
/// it.
async fn follow_devices(manager: Arc<Manager>) {
    let mut known = manager.devices().watch();
    // An error means that the thread has ended, and the manager with it.
    while known.changed().await.is_ok() {
        let manager = Arc::clone(&manager);
        if let Err(error) = aside(move || manager.follow_devices()).await {
            debug!(%error, "no thread follows the devices; the next look brings another");
        }
    }
}

/// Removes the slices whose owners end. A removal may wait for a driver, so the others do not wait for it.
async fn remove_orphans(manager: Arc<Manager>, mut orphans: mpsc::UnboundedReceiver<String>) {
    while let Some(slice) = orphans.recv().await {
        tokio::spawn(remove_orphan(Arc::clone(&manager), slice));
    }
}

async fn remove_orphan(manager: Arc<Manager>, slice: String) {
    info!(slice, "the owner of a slice has ended");
    loop {
        let (manager, name) = (Arc::clone(&manager), slice.clone());
        match aside(move || manager.remove(&name, true)).await {
            Ok(Ok(_)) => return,
            // The slice may be gone already: the owner can remove it before it ends.
            Ok(Err(error)) => return info!(slice, %error, "a slice without owner is not removed"),
            Err(error) => warn!(slice, %error, "no thread removes a slice without owner; trying again"),
        }
        tokio::time::sleep(ORPHAN_PAUSE).await;
    }
}
