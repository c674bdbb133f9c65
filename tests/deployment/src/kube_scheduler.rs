//! Kube-scheduler's configuration, as far as it is about extenders: `kubescheduler.config.k8s.io/v1`.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use serde_json::Value;

/// The API of the configuration.
pub const API_VERSION: &str = "kubescheduler.config.k8s.io/v1";
/// The kind of the configuration.
pub const KIND: &str = "KubeSchedulerConfiguration";

/// Kube-scheduler's configuration file, as far as the example uses it.
#[derive(Clone, Debug, Deserialize, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct KubeSchedulerConfiguration {
    /// The API, as the file says it.
    pub api_version: String,
    /// The kind, as the file says it.
    pub kind: String,
    /// How it reaches the API server.
    pub client_connection: BTreeMap<String, Value>,
    /// The extenders that it asks about pods.
    pub extenders: Vec<Extender>,
}

/// A service that kube-scheduler asks about pods.
#[derive(Clone, Debug, Deserialize, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Extender {
    /// The beginning of the addresses of all verbs.
    pub url_prefix: String,
    /// The path, below the prefix, that says which nodes a pod can be on.
    pub filter_verb: String,
    /// The path that says which of these nodes suit best.
    pub prioritize_verb: String,
    /// The path that says on which nodes evictions would help.
    pub preempt_verb: String,
    /// The path, below the prefix, that binds a pod.
    pub bind_verb: String,
    /// The factor by which its scores are multiplied.
    pub weight: i64,
    /// Whether the extender speaks TLS.
    #[serde(rename = "enableHTTPS")]
    pub enable_https: bool,
    /// The certificates with which it connects.
    pub tls_config: TlsConfig,
    /// How long kube-scheduler waits for an answer.
    pub http_timeout: String,
    /// Whether the extender knows the nodes itself, so that requests have only their names.
    pub node_cache_capable: bool,
    /// Whether pods are scheduled without it while it does not answer.
    pub ignorable: bool,
    /// The resources of pods that it is asked about.
    pub managed_resources: Vec<ManagedResource>,
}

/// How kube-scheduler and an extender identify each other.
#[derive(Clone, Debug, Deserialize, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct TlsConfig {
    /// The name in the extender's certificate.
    pub server_name: String,
    /// The authority that has signed it.
    pub ca_file: String,
    /// The certificate by which kube-scheduler proves its identity.
    pub cert_file: String,
    /// The key of that certificate.
    pub key_file: String,
}

/// A resource that an extender manages.
#[derive(Clone, Debug, Deserialize, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct ManagedResource {
    /// The name of the resource.
    pub name: String,
    /// Whether kube-scheduler leaves it out of its own counting.
    pub ignored_by_scheduler: bool,
}
