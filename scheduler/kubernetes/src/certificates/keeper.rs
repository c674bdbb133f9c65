//! Keeps certificates that all replicas share by a Secret, and has clients trust them.
//!
//! The replica that looks first makes or renews what is due. The Secret's version lets only one replica do so, and the
//! others find the result. Clients are told of an authority before it signs anything.

use std::time::{Duration, SystemTime};

use aliquot_api_server::{Client, is_conflict, message};
use k8s_openapi::api::core::v1::Secret;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::api::{Api, PostParams};
use tokio::sync::watch;
use tokio::time::sleep;
use tracing::{info, warn};

use super::Certificates;

/// Time between two looks of a replica at what is there and what is due.
const LOOK: Duration = Duration::from_secs(30);
/// Time between two looks until a replica has a certificate for the first time.
const FIRST_LOOK: Duration = Duration::from_secs(2);
/// Tries to write, at most. After so many conflicts another replica must have written what is due.
pub(crate) const TRIES: u32 = 4;

/// What certificates are for.
pub(crate) trait Purpose: Send + Sync {
    /// The Secret that they are in. The Service by which clients reach the replicas has the same name.
    const NAME: &'static str;
    /// What the replica serves with.
    type Served: Clone + Send + Sync;

    /// Has clients trust these authorities.
    ///
    /// # Errors
    /// The API server does not answer, or refuses that.
    fn have_trusted(&self, bundle: &str) -> impl Future<Output = Result<(), String>> + Send;

    /// What the replica serves with when these are the certificates.
    ///
    /// # Errors
    /// They cannot be used.
    fn served(&self, certificates: Certificates) -> Result<Self::Served, String>;
}

/// What a replica needs to keep the certificates.
pub(crate) struct Keeper<P> {
    secrets: Api<Secret>,
    /// The host names by which clients reach the replicas.
    host_names: [String; 2],
    purpose: P,
}

impl<P: Purpose> Keeper<P> {
    pub(crate) fn new(client: Client, namespace: &str, purpose: P) -> Keeper<P> {
        let name = format!("{}.{namespace}.svc", P::NAME);
        let host_names = [format!("{name}.cluster.local"), name];
        Keeper { secrets: Api::namespaced(client, namespace), host_names, purpose }
    }

    /// Looks until there is a certificate.
    pub(crate) async fn first(&self) -> watch::Sender<P::Served> {
        loop {
            match self.look_and_load().await {
                Ok(served) => return watch::Sender::new(served),
                Err(why) => warn!(why, name = P::NAME, "there is no certificate to serve with yet; trying again"),
            }
            sleep(FIRST_LOOK).await;
        }
    }

    /// Looks again and again, and has the replica serve with what is there.
    pub(crate) async fn keep(&self, current: &watch::Sender<P::Served>) {
        loop {
            sleep(LOOK).await;
            match self.look_and_load().await {
                Ok(served) => _ = current.send_replace(served),
                Err(why) => warn!(why, name = P::NAME, "the replica goes on with the certificate that it has"),
            }
        }
    }

    async fn look_and_load(&self) -> Result<P::Served, String> {
        self.purpose.served(self.look(SystemTime::now()).await?)
    }

    /// Makes what is missing and renews what is due at this time. Returns the certificates that are there then.
    ///
    /// # Errors
    /// The API server does not answer, or no certificate can be made.
    pub(crate) async fn look(&self, now: SystemTime) -> Result<Certificates, String> {
        let certificates = self.certificates(now).await?;
        self.purpose.have_trusted(&certificates.bundle).await?;
        Ok(certificates)
    }

    async fn certificates(&self, now: SystemTime) -> Result<Certificates, String> {
        let (name, host_names) = (P::NAME, &self.host_names);
        for _ in 0..TRIES {
            let found = self.secrets.get_opt(name).await.map_err(failed("read the Secret", name))?;
            let (due, mut secret) = match found {
                None => (Certificates::new(host_names, now)?, Secret::default()),
                Some(secret) => match Certificates::read(secret.data.as_ref().unwrap_or(&Default::default())) {
                    Ok(there) => match there.renewed(host_names, now)? {
                        None => return Ok(there),
                        Some(renewed) => (renewed, secret),
                    },
                    Err(why) => {
                        warn!(why, secret = name, "the Secret cannot be used; it is made again");
                        (Certificates::new(host_names, now)?, secret)
                    }
                },
            };
            secret.data = Some(due.data());
            let written = match secret.metadata.resource_version {
                Some(_) => self.secrets.replace(name, &PostParams::default(), &secret).await,
                None => {
                    secret.metadata = ObjectMeta { name: Some(name.into()), ..ObjectMeta::default() };
                    self.secrets.create(&PostParams::default(), &secret).await
                }
            };
            match written {
                Ok(_) => {
                    info!(secret = name, "the certificate was renewed");
                    return Ok(due);
                }
                // Another replica was faster.
                Err(error) if is_conflict(&error) => {}
                Err(error) => return Err(failed("write the Secret", name)(error)),
            }
        }
        Err(format!("the Secret {name} was changed by others again and again"))
    }
}

/// Makes a message: what could not be done, with the object of this name, and why.
pub(crate) fn failed(what: &str, name: &str) -> impl FnOnce(kube::Error) -> String {
    move |error| format!("cannot {what} {name}: {}", message(&error))
}
