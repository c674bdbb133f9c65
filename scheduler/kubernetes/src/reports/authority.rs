//! Writes the authorities whose certificates managers trust into a `ConfigMap`, which the managers mount.

use std::collections::BTreeMap;
use std::sync::Arc;

use aliquot_api_server::{Client, is_conflict};
use k8s_openapi::api::core::v1::ConfigMap;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::api::{Api, PostParams};

use super::Served;
use crate::certificates::{Certificates, Purpose, TRIES, failed};

/// The name of the Secret, the Service and the `ConfigMap`.
const NAME: &str = "aliquot-scheduler-reports";
/// The field of the `ConfigMap`.
const BUNDLE: &str = "ca.crt";

/// The certificates with which managers are served.
pub(super) struct Authority {
    config_maps: Api<ConfigMap>,
}

impl Authority {
    pub(super) fn new(client: Client, namespace: &str) -> Authority {
        Authority { config_maps: Api::namespaced(client, namespace) }
    }
}

impl Purpose for Authority {
    const NAME: &'static str = NAME;
    type Served = Served;

    async fn have_trusted(&self, bundle: &str) -> Result<(), String> {
        let data = Some(BTreeMap::from([(BUNDLE.to_owned(), bundle.to_owned())]));
        for _ in 0..TRIES {
            let found = self.config_maps.get_opt(NAME).await.map_err(failed("read the ConfigMap", NAME))?;
            let written = match found {
                Some(there) if there.data == data => return Ok(()),
                Some(there) => {
                    let config_map = ConfigMap { data: data.clone(), ..there };
                    self.config_maps.replace(NAME, &PostParams::default(), &config_map).await
                }
                None => {
                    let metadata = ObjectMeta { name: Some(NAME.to_owned()), ..ObjectMeta::default() };
                    let config_map = ConfigMap { metadata, data: data.clone(), ..ConfigMap::default() };
                    self.config_maps.create(&PostParams::default(), &config_map).await
                }
            };
            match written {
                // Another replica has written the same.
                Err(error) if is_conflict(&error) => {}
                written => return written.map(drop).map_err(failed("write the ConfigMap", NAME)),
            }
        }
        Err(format!("the ConfigMap {NAME} was changed by others again and again"))
    }

    fn served(&self, certificates: Certificates) -> Result<Served, String> {
        Ok(Served { config: certificates.server_for_clients()?, certificates: Arc::new(certificates) })
    }
}
