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
//!   ([`SliceConfig`]).
//! * [`claims`] carries it out, with a record of each claim ([`prepared_claims`]); what kubelet has forgotten finds
//!   [`stale`].

use std::path::PathBuf;
use std::sync::Arc;

use kube::Client;
use tokio::sync::watch;

mod allocation;
mod claims;
mod instances;
mod locks;
mod names;
mod partitions;
mod pods;
mod pool;
mod prepared_claims;
mod publisher;
mod registration;
mod resource_slices;
mod server;
mod sockets;
mod stale;
mod status;

use claims::Claims;
pub use names::{DRIVER, device_name};
use prepared_claims::PreparedClaims;
pub use prepared_claims::PreparedClaimsError;
use publisher::Publisher;
use server::Driver;
pub(crate) use sockets::{Sockets, keep_serving};

use aliquot_node::Node;

use crate::pod_resources::Has;
use crate::relay::Meeting;
use crate::unix_socket::SocketError;
use aliquot_api_server::Events;
pub use aliquot_api_server::slice_config::SliceConfig;

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
    /// Where relays find the driver; `None`: kubelet is told of the driver itself.
    pub meeting: Option<Meeting>,
}

/// Why the driver does not start.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// What it remembers.
    #[error(transparent)]
    PreparedClaims(#[from] PreparedClaimsError),
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
    listening: sockets::Listening,
}

impl DraDriver {
    /// Reads what the driver remembers, and makes its sockets. It must be called within an asynchronous runtime.
    ///
    /// # Errors
    /// See [`StartError`].
    pub fn open(settings: Settings, node: Arc<dyn Node>, client: Client) -> Result<DraDriver, StartError> {
        let prepared = PreparedClaims::open(settings.state_dir.join("claims"))?;
        let events = Events::new(client.clone(), DRIVER, settings.node_name.clone());
        let (pool, boot_id) = (settings.node_name.clone(), settings.boot_id.clone());
        let claims = Claims::new(node, client.clone(), events, pool, boot_id, prepared)?;
        let sockets = match &settings.meeting {
            None => Sockets::for_kubelet(&settings.kubelet_dir),
            Some(meeting) => Sockets::for_relays(meeting.driver()),
        };
        let listening = sockets.listen()?;
        Ok(DraDriver { settings, client, claims: Arc::new(claims), sockets, listening })
    }

    /// Which containers have which of a claim's slices.
    #[must_use]
    pub fn has(&self) -> Has {
        let claims = Arc::clone(&self.claims);
        Arc::new(move |slice, consumer| claims.has(slice, consumer))
    }

    /// Serves until `end` is true. What is prepared stays prepared.
    pub async fn run(self, end: watch::Receiver<bool>) {
        let DraDriver { settings, client, claims, sockets, listening } = self;
        let publisher = Publisher::new(client.clone(), settings.node_name, Arc::clone(&claims));
        let driver = Driver::new(Arc::clone(&claims), end.clone());
        tokio::join!(
            publisher.run(end.clone()),
            stale::run(Arc::clone(&claims), client, end.clone()),
            keep_serving(&sockets, &driver, listening, end),
        );
    }
}
