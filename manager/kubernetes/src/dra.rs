//! The DRA driver `gpu.aliquot.dev`: a claim's allocation says which device and how much of it was decided, and the
//! claim's containers get exactly that as a slice. Made for Kubernetes 1.34 and later, whose kubelets speak version 1
//! with drivers.
//!
//! * One claim is one slice, named by the claim's UID, unless containers have different requests of it: then it is a
//!   slice for each set of requests that a container has ([`pods`]). Pods that share a claim share its slices.
//! * What may be allocated is told by resource slices ([`resource_slices`]), kept up to date by the [`publisher`].
//! * MIG instances that could be made are among it ([`partitions`]); those of a claim are made and destroyed with its
//!   slice ([`instances`]).
//! * What was allocated becomes a slice by [`allocation`], with what the claim's and its class's parameters say
//!   ([`slice_config`]).
//! * [`claims`] carries it out, with a record of each claim ([`checkpoint`]); what kubelet has forgotten finds
//!   [`stale`].

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use aliquot_proto::kubelet::dra::dra_plugin_server::DraPluginServer;
use aliquot_proto::kubelet::dra_health::dra_resource_health_server::DraResourceHealthServer;
use aliquot_proto::kubelet::registration::registration_server::RegistrationServer;
use kube::Client;
use tokio::net::UnixListener;
use tokio::sync::watch;
use tokio_stream::wrappers::UnixListenerStream;
use tonic::transport::Server;
use tonic::transport::server::Router;
use tracing::{error, info};

mod allocation;
mod checkpoint;
mod claims;
mod instances;
mod locks;
mod names;
mod partitions;
mod pods;
mod pool;
mod publisher;
mod registration;
mod resource_slices;
mod server;
mod slice_config;
mod stale;
mod status;

use checkpoint::Checkpoint;
pub use checkpoint::CheckpointError;
use claims::Claims;
pub use names::{DRIVER, device_name};
use publisher::Publisher;
use registration::Registrar;
use server::Driver;
pub use slice_config::{SliceConfigError, check_parameters};

use crate::events::Events;
use crate::node::Node;
use crate::pod_resources::Has;
use crate::unix_socket::{SocketError, SocketFile};

/// The driver's own directory in kubelet's directory of plugins has this socket.
const ENDPOINT_FILE: &str = "dra.sock";
/// Kubelet connects to the path of this socket as if it were a host's name, percent-encoded. HTTP/2 servers that read
/// the name as an authority refuse percent signs in a host, but not before an `@`: there they belong to a user.
const REGISTRATION_FILE: &str = "gpu.aliquot.dev@reg.sock";
/// Between two looks whether the sockets are still there.
const SOCKET_INTERVAL: Duration = Duration::from_secs(5);

/// What the driver is told before it starts.
#[derive(Clone, Debug)]
pub struct Settings {
    /// The node's name in the cluster, which is its pool's as well.
    pub node_name: String,
    /// Kubelet's directory, `/var/lib/kubelet`. The driver must see it at the same path as kubelet does.
    pub kubelet_dir: PathBuf,
    /// What the driver must remember.
    pub state_dir: PathBuf,
    /// Another one in each life of the machine.
    pub boot_id: String,
}

impl Settings {
    fn endpoint(&self) -> PathBuf {
        self.kubelet_dir.join("plugins").join(DRIVER).join(ENDPOINT_FILE)
    }

    fn registration_socket(&self) -> PathBuf {
        self.kubelet_dir.join("plugins_registry").join(REGISTRATION_FILE)
    }
}

/// Why the driver does not start.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// What it remembers.
    #[error(transparent)]
    Checkpoint(#[from] CheckpointError),
    /// Its sockets.
    #[error(transparent)]
    Socket(#[from] SocketError),
}

/// The driver's parts, ready to serve.
pub struct DraDriver {
    settings: Settings,
    client: Client,
    claims: Arc<Claims>,
    sockets: Sockets,
}

/// The two sockets. The driver's own is there before kubelet is told of it.
struct Sockets {
    endpoint: (SocketFile, UnixListener),
    registration: (SocketFile, UnixListener),
}

impl Sockets {
    fn listen(settings: &Settings) -> Result<Sockets, SocketError> {
        Ok(Sockets {
            endpoint: SocketFile::listen(&settings.endpoint())?,
            registration: SocketFile::listen(&settings.registration_socket())?,
        })
    }
}

impl DraDriver {
    /// Reads what the driver remembers, and makes its sockets. It must be called within an asynchronous runtime.
    ///
    /// # Errors
    /// See [`StartError`].
    pub fn open(settings: Settings, node: Arc<dyn Node>, client: Client) -> Result<DraDriver, StartError> {
        let checkpoint = Checkpoint::open(settings.state_dir.join("claims"))?;
        let events = Events::new(client.clone(), DRIVER, settings.node_name.clone());
        let (pool, boot_id) = (settings.node_name.clone(), settings.boot_id.clone());
        let claims = Claims::new(node, client.clone(), events, pool, boot_id, checkpoint)?;
        let sockets = Sockets::listen(&settings)?;
        Ok(DraDriver { settings, client, claims: Arc::new(claims), sockets })
    }

    /// Which containers have which of a claim's slices.
    #[must_use]
    pub fn has(&self) -> Has {
        let claims = Arc::clone(&self.claims);
        Arc::new(move |slice, consumer| claims.has(slice, consumer))
    }

    /// Serves until `end` is true. What is prepared stays prepared.
    pub async fn run(self, end: watch::Receiver<bool>) {
        let DraDriver { settings, client, claims, sockets } = self;
        let publisher = Publisher::new(client.clone(), settings.node_name.clone(), Arc::clone(&claims));
        tokio::join!(
            publisher.run(end.clone()),
            stale::run(Arc::clone(&claims), client, end.clone()),
            serve(&settings, &claims, sockets, end),
        );
    }
}

/// Serves, and again with new sockets if somebody has removed one of them.
async fn serve(settings: &Settings, claims: &Arc<Claims>, mut sockets: Sockets, mut end: watch::Receiver<bool>) {
    loop {
        let outcome = serve_once(settings, claims, sockets, &end).await;
        if *end.borrow() {
            return;
        }
        match outcome {
            Ok(()) => info!("a socket of the driver was removed: it makes new ones"),
            Err(error) => error!(%error, "cannot serve kubelet"),
        }
        sockets = loop {
            match Sockets::listen(settings) {
                Ok(sockets) => break sockets,
                Err(error) => error!(%error, "cannot serve kubelet"),
            }
            tokio::select! {
                () = tokio::time::sleep(SOCKET_INTERVAL) => {}
                _ = end.wait_for(|end| *end) => return,
            }
        };
    }
}

/// Serves until `end` is true, or one of the sockets is not there any more.
async fn serve_once(
    settings: &Settings,
    claims: &Arc<Claims>,
    sockets: Sockets,
    end: &watch::Receiver<bool>,
) -> Result<(), tonic::transport::Error> {
    let Sockets { endpoint: (endpoint_file, endpoint), registration: (registration_file, registration) } = sockets;
    let driver = Driver::new(Arc::clone(claims), end.clone());
    let registrar = Registrar::new(settings.endpoint().to_string_lossy().into_owned());
    let driver = Server::builder()
        .add_service(DraPluginServer::new(driver.clone()))
        .add_service(DraResourceHealthServer::new(driver));
    let registrar = Server::builder().add_service(RegistrationServer::new(registrar));
    let mut ended = end.clone();
    let removed = async {
        while endpoint_file.is_there() && registration_file.is_there() {
            tokio::select! {
                () = tokio::time::sleep(SOCKET_INTERVAL) => {}
                _ = ended.wait_for(|end| *end) => return,
            }
        }
    };
    tokio::select! {
        outcome = serve_on(driver, endpoint, end.clone()) => outcome,
        outcome = serve_on(registrar, registration, end.clone()) => outcome,
        () = removed => Ok(()),
    }
}

async fn serve_on(
    router: Router,
    listener: UnixListener,
    mut end: watch::Receiver<bool>,
) -> Result<(), tonic::transport::Error> {
    let incoming = UnixListenerStream::new(listener);
    let ended = async move {
        // An error says that the sender is gone, which is the end as well.
        let _ = end.wait_for(|end| *end).await;
    };
    router.serve_with_incoming_shutdown(incoming, ended).await
}

#[cfg(test)]
mod tests {
    use tonic::codegen::http::uri::Authority;

    use super::*;

    #[test]
    fn kubelet_s_name_for_the_registration_socket_is_an_authority() {
        let settings = Settings {
            node_name: "node-1".into(),
            kubelet_dir: "/var/lib/kubelet".into(),
            state_dir: "/var/lib/aliquot".into(),
            boot_id: "boot".into(),
        };
        let encoded = settings.registration_socket().to_string_lossy().replace('/', "%2F");
        let authority: Authority = encoded.parse().unwrap();
        assert_eq!(authority.host(), "reg.sock");
        assert!(encoded.contains(DRIVER), "{encoded}");
        // So it would be without the sign.
        assert!(encoded.replace('@', "-").parse::<Authority>().is_err());
    }
}
