//! Tells the API server which authorities to trust where it asks the webhook.

use std::fmt::Debug;
use std::sync::Arc;

use aliquot_api_server::{Client, is_conflict};
use k8s_openapi::ByteString;
use k8s_openapi::api::admissionregistration::v1::{
    MutatingWebhookConfiguration, ValidatingWebhookConfiguration, WebhookClientConfig,
};
use kube::api::{Api, PostParams};
use rustls::ServerConfig;
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::certificates::{Certificates, Purpose, TRIES, failed};
use crate::telemetry::Status;

/// The name of the Secret, of the Service by which the API server reaches replicas, and of the configurations.
const NAME: &str = "aliquot-scheduler-webhook";

/// The certificates of the webhook.
pub(super) struct Trust {
    validating: Api<ValidatingWebhookConfiguration>,
    mutating: Api<MutatingWebhookConfiguration>,
    namespace: String,
    status: Arc<Status>,
}

impl Trust {
    pub(super) fn new(client: Client, namespace: &str, status: Arc<Status>) -> Trust {
        let (validating, mutating) = (Api::all(client.clone()), Api::all(client));
        Trust { validating, mutating, namespace: namespace.to_owned(), status }
    }

    /// Has the API server trust these authorities where it asks this webhook.
    async fn in_configuration<C: Configuration>(&self, configurations: &Api<C>, bundle: &str) -> Result<(), String> {
        let bundle = ByteString(bundle.as_bytes().to_vec());
        let is_ours = |client: &&mut WebhookClientConfig| {
            let service = client.service.as_ref();
            service.is_some_and(|service| service.name == NAME && service.namespace == self.namespace)
        };
        for _ in 0..TRIES {
            let found = configurations.get_opt(NAME).await.map_err(failed("read the webhook configuration", NAME))?;
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
                // Another replica has written the same, or an administrator has changed something else of it.
                Err(error) if is_conflict(&error) => {}
                written => return written.map(drop).map_err(failed("write the webhook configuration", NAME)),
            }
        }
        Err(format!("the webhook configuration {NAME} was changed by others again and again"))
    }
}

impl Purpose for Trust {
    const NAME: &'static str = NAME;
    type Served = Arc<ServerConfig>;

    async fn have_trusted(&self, bundle: &str) -> Result<(), String> {
        // A cluster may have one of them alone.
        self.in_configuration(&self.validating, bundle).await?;
        self.in_configuration(&self.mutating, bundle).await
    }

    fn served(&self, certificates: Certificates) -> Result<Arc<ServerConfig>, String> {
        self.status.reviews().certificate_ends(certificates.end()?);
        certificates.server()
    }
}

/// A configuration by which the API server asks webhooks.
trait Configuration: Clone + Debug + Serialize + DeserializeOwned + Send + Sync + 'static {
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

#[cfg(test)]
mod tests;
