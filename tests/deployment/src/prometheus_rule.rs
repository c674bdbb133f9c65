//! The Prometheus operator's PrometheusRule, as far as the manifests use it: `monitoring.coreos.com/v1`.

use std::collections::BTreeMap;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use serde::{Deserialize, Serialize};

/// The API of the kind.
pub const API_VERSION: &str = "monitoring.coreos.com/v1";
/// The kind of object by which the operator finds alerts.
pub const KIND: &str = "PrometheusRule";

/// An object with alerts.
#[derive(Clone, Debug, Deserialize, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct PrometheusRule {
    /// The API, as the file says it.
    pub api_version: String,
    /// The kind, as the file says it.
    pub kind: String,
    /// Name, namespace and labels.
    pub metadata: ObjectMeta,
    /// The alerts: this is also a rules file of Prometheus.
    pub spec: PrometheusRuleSpec,
}

/// A rules file of Prometheus.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub struct PrometheusRuleSpec {
    /// Alerts that are evaluated together.
    pub groups: Vec<RuleGroup>,
}

/// Alerts that are evaluated together.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub struct RuleGroup {
    /// The name of the group.
    pub name: String,
    /// What is evaluated, in this order.
    pub rules: Vec<Alert>,
}

/// A rule that makes alerts.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub struct Alert {
    /// The label `alertname` of the alerts.
    pub alert: String,
    /// The expression in PromQL of which each result is an alert.
    pub expr: String,
    /// How long the expression must have a result.
    #[serde(rename = "for")]
    pub for_: String,
    /// Further labels of the alerts.
    pub labels: BTreeMap<String, String>,
    /// Texts for people, as templates.
    pub annotations: BTreeMap<String, String>,
}
