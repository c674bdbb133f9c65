//! The Prometheus operator's PodMonitor, as far as the manifests use it: `monitoring.coreos.com/v1`.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{LabelSelector, ObjectMeta};
use serde::{Deserialize, Serialize};

/// The API of the kind.
pub const API_VERSION: &str = "monitoring.coreos.com/v1";
/// The kind of object by which the operator finds pods with metrics.
pub const KIND: &str = "PodMonitor";

/// Pods of its own namespace whose metrics Prometheus reads.
#[derive(Clone, Debug, Deserialize, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct PodMonitor {
    /// The API, as the file says it.
    pub api_version: String,
    /// The kind, as the file says it.
    pub kind: String,
    /// Name, namespace and labels.
    pub metadata: ObjectMeta,
    /// Which pods, and where their metrics are.
    pub spec: PodMonitorSpec,
}

/// Which pods, and where their metrics are.
#[derive(Clone, Debug, Deserialize, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct PodMonitorSpec {
    /// Selects the pods by their labels.
    pub selector: LabelSelector,
    /// The places of the metrics in each of the pods.
    pub pod_metrics_endpoints: Vec<PodMetricsEndpoint>,
}

/// A place of metrics: `/metrics` of a port.
#[derive(Clone, Debug, Deserialize, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct PodMetricsEndpoint {
    /// The name of a container's port.
    pub port: String,
    /// Whether labels of the metrics take precedence over the labels that Prometheus gives to all of a pod's metrics.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub honor_labels: bool,
    /// Changes of the labels that Prometheus gives to all of a pod's metrics, one after another.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub relabelings: Vec<Relabeling>,
}

/// A change of labels.
#[derive(Clone, Debug, Deserialize, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Relabeling {
    /// The labels whose values are taken.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub source_labels: Vec<String>,
    /// The label that is set.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub target_label: Option<String>,
    /// The expression that names of labels, or values, must match.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub regex: Option<String>,
    /// What is done, if it is not that a label is set.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub action: Option<String>,
}
