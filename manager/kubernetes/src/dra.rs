//! The DRA driver `gpu.aliquot.dev`: a claim's allocation says which device and how much of it was decided, and the
//! claim's containers get exactly that as a slice. It is made for Kubernetes 1.34 and later, whose kubelets use version
//! 1 of the protocol with drivers.
//!
//! * One claim is one slice, named by the claim's UID, unless containers have different requests of the claim: then
//!   there is one slice for each set of requests that a container has ([`pods`]). Pods that share a claim share its
//!   slices.
//! * Resource slices ([`resource_slices`]) tell what may be allocated; the [`publisher`] keeps them up to date.
//! * They include MIG instances that could be made ([`partitions`]). The instances of a claim are made and destroyed
//!   with its slice ([`instances`]).
//! * [`allocation`] turns an allocation into a slice, with the parameters of the claim and of its class
//!   ([`SliceConfig`]).
//! * [`claims`] carries it out, with a record of each claim ([`prepared_claims`]); [`stale`] finds claims that kubelet
//!   has forgotten.

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

use crate::pod_resources::{Parts, PodResources};
use crate::relay::Meeting;
use crate::unix_socket::SocketError;
use aliquot_api_server::Events;
pub use aliquot_api_server::slice_config::SliceConfig;

/// The settings of the driver.
#[derive(Clone, Debug)]
pub struct Settings {
    /// The node's name in the cluster, which is its pool's as well.
    pub node_name: String,
    /// Kubelet's directory, `/var/lib/kubelet`. The driver must see it at the same path as kubelet does.
    pub kubelet_dir: PathBuf,
    /// Directory for the records of prepared claims.
    pub state_dir: PathBuf,
    /// The id of the present boot of the machine.
    pub boot_id: String,
    /// Where relays find the driver. `None`: the driver registers with kubelet itself.
    pub meeting: Option<Meeting>,
}

/// The reason why the driver does not start.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// Its records cannot be read.
    #[error(transparent)]
    PreparedClaims(#[from] PreparedClaimsError),
    /// Its sockets cannot be served.
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
    /// Reads the driver's records, and makes its sockets. It must be called within an asynchronous runtime.
    /// `pod_resources`: kubelet's list of the node's pods.
    ///
    /// # Errors
    /// See [`StartError`].
    pub fn open(
        settings: Settings,
        node: Arc<dyn Node>,
        client: Client,
        pod_resources: Arc<PodResources>,
    ) -> Result<DraDriver, StartError> {
        let prepared = PreparedClaims::open(settings.state_dir.join("claims"))?;
        let events = Events::new(client.clone(), DRIVER, settings.node_name.clone());
        let (pool, boot_id) = (settings.node_name.clone(), settings.boot_id.clone());
        let claims = Claims::new(node, client.clone(), events, pool, boot_id, prepared, pod_resources)?;
        let sockets = match &settings.meeting {
            None => Sockets::for_kubelet(&settings.kubelet_dir),
            Some(meeting) => Sockets::for_relays(meeting.driver()),
        };
        let listening = sockets.listen()?;
        Ok(DraDriver { settings, client, claims: Arc::new(claims), sockets, listening })
    }

    /// Knows which containers have which of a claim's slices.
    #[must_use]
    pub fn parts(&self) -> Arc<dyn Parts> {
        Arc::clone(&self.claims) as Arc<dyn Parts>
    }

    /// Serves until `end` is true. Prepared claims stay prepared.
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
