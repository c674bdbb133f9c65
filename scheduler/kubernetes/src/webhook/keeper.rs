//! Keeps the certificate of the webhook, which all replicas share by a Secret, and tells the API server whom to trust.
//!
//! Whichever replica looks first makes or renews what is due; the Secret's version lets only one of them do it, and the
//! others find it there. The API server is told of an authority before that signs anything.

use std::fmt::Debug;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use aliquot_api_server::{Client, is_conflict, message};
use k8s_openapi::ByteString;
use k8s_openapi::api::admissionregistration::v1::{
    MutatingWebhookConfiguration, ValidatingWebhookConfiguration, WebhookClientConfig,
};
use k8s_openapi::api::core::v1::Secret;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::api::{Api, PostParams};
use rustls::ServerConfig;
use serde::Serialize;
use serde::de::DeserializeOwned;
use tokio::sync::watch;
use tokio::time::sleep;
use tracing::{info, warn};

use super::certificates::Certificates;
use crate::telemetry::Reviews;

/// The name of the Secret, of the Service by which the API server reaches replicas, and of the configurations.
const NAME: &str = "aliquot-scheduler-webhook";
/// So often a replica looks what is there and what is due.
const LOOK: Duration = Duration::from_secs(30);
/// So often a replica looks until it has a certificate for the first time.
const FIRST_LOOK: Duration = Duration::from_secs(2);
/// Tries to write before others must have written what is due.
const TRIES: u32 = 4;

/// What a replica needs to keep the certificate.
pub(super) struct Keeper {
    secrets: Api<Secret>,
    validating: Api<ValidatingWebhookConfiguration>,
    mutating: Api<MutatingWebhookConfiguration>,
    namespace: String,
}

impl Keeper {
    pub(super) fn new(client: Client, namespace: &str) -> Keeper {
        Keeper {
            secrets: Api::namespaced(client.clone(), namespace),
            validating: Api::all(client.clone()),
            mutating: Api::all(client),
            namespace: namespace.to_owned(),
        }
    }

    /// Looks until there is a certificate.
    pub(super) async fn first(&self, reviews: &Reviews) -> watch::Sender<Arc<ServerConfig>> {
        loop {
            match self.look_and_load(reviews).await {
                Ok(config) => return watch::Sender::new(config),
                Err(why) => warn!(why, "the webhook has no certificate yet; trying again"),
            }
            sleep(FIRST_LOOK).await;
        }
    }

    /// Looks again and again, and has the webhook served with what is there.
    pub(super) async fn keep(&self, current: &watch::Sender<Arc<ServerConfig>>, reviews: &Reviews) {
        loop {
            sleep(LOOK).await;
            match self.look_and_load(reviews).await {
                Ok(config) => _ = current.send_replace(config),
                Err(why) => warn!(why, "the webhook goes on with the certificate that it has; trying again"),
            }
        }
    }

    async fn look_and_load(&self, reviews: &Reviews) -> Result<Arc<ServerConfig>, String> {
        let certificates = self.look(SystemTime::now()).await?;
        reviews.certificate_ends(certificates.end()?);
        certificates.server()
    }

    /// Makes what is missing and renews what is due at this time. Answers what there is then.
    ///
    /// # Errors
    /// The API server does not answer, or no certificate can be made.
    async fn look(&self, now: SystemTime) -> Result<Certificates, String> {
        let certificates = self.certificates(now).await?;
        let bundle = &certificates.bundle;
        // A cluster may have one of them alone.
        self.have_trusted(&self.validating, bundle).await?;
        self.have_trusted(&self.mutating, bundle).await?;
        Ok(certificates)
    }

    async fn certificates(&self, now: SystemTime) -> Result<Certificates, String> {
        let names = self.names();
        for _ in 0..TRIES {
            let found = self.secrets.get_opt(NAME).await.map_err(failed("read the Secret"))?;
            let (due, mut secret) = match found {
                None => (Certificates::new(&names, now)?, Secret::default()),
                Some(secret) => match Certificates::read(secret.data.as_ref().unwrap_or(&Default::default())) {
                    Ok(there) => match there.renewed(&names, now)? {
                        None => return Ok(there),
                        Some(renewed) => (renewed, secret),
                    },
                    Err(why) => {
                        warn!(why, secret = NAME, "the Secret cannot be used; it is made anew");
                        (Certificates::new(&names, now)?, secret)
                    }
                },
            };
            secret.data = Some(due.data());
            let written = match secret.metadata.resource_version {
                Some(_) => self.secrets.replace(NAME, &PostParams::default(), &secret).await,
                None => {
                    secret.metadata = ObjectMeta { name: Some(NAME.into()), ..ObjectMeta::default() };
                    self.secrets.create(&PostParams::default(), &secret).await
                }
            };
            match written {
                Ok(_) => {
                    info!("the certificate of the webhook was renewed");
                    return Ok(due);
                }
                // Another replica was faster.
                Err(error) if is_conflict(&error) => {}
                Err(error) => return Err(failed("write the Secret")(error)),
            }
        }
        Err(format!("the Secret {NAME} was changed by others again and again"))
    }

    /// The names by which the API server reaches the webhook.
    fn names(&self) -> [String; 2] {
        let name = format!("{NAME}.{}.svc", self.namespace);
        [format!("{name}.cluster.local"), name]
    }

    /// Has the API server trust these authorities where it asks this webhook.
    async fn have_trusted<C: Configuration>(&self, configurations: &Api<C>, bundle: &str) -> Result<(), String> {
        let bundle = ByteString(bundle.as_bytes().to_vec());
        let is_ours = |client: &&mut WebhookClientConfig| {
            let service = client.service.as_ref();
            service.is_some_and(|service| service.name == NAME && service.namespace == self.namespace)
        };
        for _ in 0..TRIES {
            let found = configurations.get_opt(NAME).await.map_err(failed("read the webhook configuration"))?;
            let Some(mut configuration) = found else { return Ok(()) };
            let mut is_changed = false;
            for client in configuration.clients().into_iter().filter(is_ours) {
                is_changed |= client.ca_bundle.as_ref() != Some(&bundle);
                client.ca_bundle = Some(bundle.clone());
            }
            if !is_changed {
                return Ok(());
            }
            match configurations.replace(NAME, &PostParams::default(), &configuration).await {
                // Another replica has written the same, or somebody has changed it otherwise.
                Err(error) if is_conflict(&error) => {}
                written => return written.map(drop).map_err(failed("write the webhook configuration")),
            }
        }
        Err(format!("the webhook configuration {NAME} was changed by others again and again"))
    }
}

/// A configuration by which the API server asks webhooks.
trait Configuration: Clone + Debug + Serialize + DeserializeOwned {
    /// Where it asks them.
    fn clients(&mut self) -> Vec<&mut WebhookClientConfig>;
}

impl Configuration for ValidatingWebhookConfiguration {
    fn clients(&mut self) -> Vec<&mut WebhookClientConfig> {
        self.webhooks.iter_mut().flatten().map(|webhook| &mut webhook.client_config).collect()
    }
}

impl Configuration for MutatingWebhookConfiguration {
    fn clients(&mut self) -> Vec<&mut WebhookClientConfig> {
        self.webhooks.iter_mut().flatten().map(|webhook| &mut webhook.client_config).collect()
    }
}

fn failed(what: &str) -> impl FnOnce(kube::Error) -> String {
    move |error| format!("cannot {what} {NAME}: {}", message(&error))
}

#[cfg(test)]
mod tests;
