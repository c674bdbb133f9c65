//! What kube-scheduler and its extenders tell each other: `k8s.io/kube-scheduler/extender/v1`. The names of fields are
//! those of the Go types, which define no JSON names.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::Pod;
use serde::{Deserialize, Serialize};
use serde_json::Value;

/// The greatest score that kube-scheduler takes. The least is 0.
pub(super) const SCORE_MAX: i64 = 10;

/// A reason that kube-scheduler shows in events. It uses such a text as a format of Go's, in which `%` begins a verb:
/// "50 % gpu-core" is shown as "50 %!g(MISSING)pu-core". So percent signs are replaced by the word here.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(transparent)]
pub(super) struct Said(String);

/// Asks which nodes a pod can be on, or which suit best.
#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub(super) struct ExtenderArgs {
    pub(super) pod: Pod,
    /// The nodes as a `NodeList`, for extenders that keep none. What is in them is sent back as it came.
    pub(super) nodes: Option<Value>,
    /// The names of the nodes, for extenders that know the nodes themselves.
    pub(super) node_names: Option<Vec<String>>,
}

/// Which nodes a pod can be on.
#[derive(Debug, Default, PartialEq, Serialize)]
#[serde(rename_all = "PascalCase")]
pub(super) struct FilterResult {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) nodes: Option<Value>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) node_names: Option<Vec<String>>,
    /// Nodes that have no room now, each with the reason.
    pub(super) failed_nodes: BTreeMap<String, Said>,
    /// Nodes where no eviction would help.
    pub(super) failed_and_unresolvable_nodes: BTreeMap<String, Said>,
    #[serde(skip_serializing_if = "Said::is_empty")]
    pub(super) error: Said,
}

/// How well a node suits.
#[derive(Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "PascalCase")]
pub(super) struct HostPriority {
    pub(super) host: String,
    pub(super) score: i64,
}

/// Asks that a pod be bound.
#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "PascalCase")]
pub(super) struct BindingArgs {
    pub(super) pod_name: String,
    pub(super) pod_namespace: String,
    #[serde(rename = "PodUID")]
    pub(super) pod_uid: String,
    pub(super) node: String,
}

/// Whether a pod is bound: it is if there is no error.
#[derive(Debug, Serialize)]
#[serde(rename_all = "PascalCase")]
pub(super) struct BindingResult {
    #[serde(skip_serializing_if = "Said::is_empty")]
    pub(super) error: Said,
}

/// Asks on which nodes a pod could be if pods there were evicted. Only one of the two maps is there.
#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub(super) struct PreemptionArgs {
    pub(super) pod: Pod,
    pub(super) node_name_to_victims: Option<BTreeMap<String, Victims>>,
    pub(super) node_name_to_meta_victims: Option<BTreeMap<String, MetaVictims>>,
}

/// Pods of a node that would be evicted.
#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub(super) struct Victims {
    pub(super) pods: Option<Vec<Pod>>,
    #[serde(rename = "NumPDBViolations")]
    pub(super) num_pdb_violations: i64,
}

/// Pods of a node that would be evicted, by their UIDs.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "PascalCase", default)]
pub(super) struct MetaVictims {
    pub(super) pods: Option<Vec<MetaPod>>,
    #[serde(rename = "NumPDBViolations")]
    pub(super) num_pdb_violations: i64,
}

/// A pod that kube-scheduler names by its UID alone.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
pub(super) struct MetaPod {
    #[serde(rename = "UID")]
    pub(super) uid: String,
}

/// On which nodes the pod could be, and which pods must be evicted there.
#[derive(Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "PascalCase")]
pub(super) struct PreemptionResult {
    pub(super) node_name_to_meta_victims: BTreeMap<String, MetaVictims>,
}

/// What was wrong with a request.
#[derive(Debug, Serialize)]
#[serde(rename_all = "PascalCase")]
pub(super) struct Wrong {
    pub(super) error: String,
}

impl Said {
    /// Why a node has no devices for a pod. Kube-scheduler writes before it how many nodes say the same.
    pub(super) fn of_node(why: &str) -> Said {
        Said::from(format!("without devices for the pod ({why})"))
    }

    fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

impl From<String> for Said {
    fn from(text: String) -> Said {
        Said(text.replace(" %", " percent").replace('%', " percent"))
    }
}

impl ExtenderArgs {
    /// The names of the nodes that are asked about.
    ///
    /// # Errors
    /// The names are missing, or not in a form that kube-scheduler uses.
    pub(super) fn names(&self) -> Result<Vec<String>, String> {
        if let Some(names) = &self.node_names {
            return Ok(names.clone());
        }
        let items = match self.nodes.as_ref().map(|nodes| &nodes["items"]) {
            Some(Value::Array(items)) => items,
            // Go writes an empty list as null.
            Some(Value::Null) => return Ok(Vec::new()),
            Some(_) => return Err("Nodes.items is no list of nodes".to_owned()),
            None => return Err("neither NodeNames nor Nodes says which nodes are asked about".to_owned()),
        };
        let name = |node: &Value| node["metadata"]["name"].as_str().map(str::to_owned);
        items.iter().map(name).collect::<Option<_>>().ok_or_else(|| "a node of Nodes has no name".to_owned())
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    /// As Go writes it: fields that are nil are null, and types have no kind.
    const ARGS: &str = r#"{
        "Pod": {
            "metadata": {"name": "a", "namespace": "default", "uid": "1f", "resourceVersion": "7", "creationTimestamp": "2026-11-26T06:00:00Z"},
            "spec": {
                "containers": [{"name": "main", "image": "none", "resources": {
                    "limits": {"aliquot.dev/gpu-core": "50"}, "requests": {"aliquot.dev/gpu-core": "50"}}}],
                "schedulerName": "default-scheduler", "priority": 0, "preemptionPolicy": "PreemptLowerPriority"
            },
            "status": {"phase": "Pending", "qosClass": "BestEffort"}
        },
        "Nodes": null,
        "NodeNames": ["n", "m"]
    }"#;

    #[test]
    fn nodes_are_named_in_either_way() {
        let args: ExtenderArgs = serde_json::from_str(ARGS).unwrap();
        assert_eq!(args.names(), Ok(vec!["n".to_owned(), "m".to_owned()]));
        assert_eq!(args.pod.metadata.uid.as_deref(), Some("1f"));
        let whole = json!({"Pod": {"metadata": {}, "spec": {"containers": null}, "status": {}}, "NodeNames": null, "Nodes": {
            "metadata": {}, "items": [{"metadata": {"name": "n", "creationTimestamp": null}, "spec": {}, "status": {}}],
        }});
        let args: ExtenderArgs = serde_json::from_value(whole).unwrap();
        assert_eq!(args.names(), Ok(vec!["n".to_owned()]));
        for (wrong, expected) in [
            (json!({}), "neither NodeNames nor Nodes"),
            (json!({"Nodes": {"items": "n"}}), "no list of nodes"),
            (json!({"Nodes": {"items": [{"metadata": {}}]}}), "has no name"),
        ] {
            let args: ExtenderArgs = serde_json::from_value(wrong).unwrap();
            assert!(args.names().unwrap_err().contains(expected));
        }
    }

    #[test]
    fn answers_have_the_names_of_gos_fields() {
        let filtered = FilterResult {
            node_names: Some(vec!["n".into()]),
            failed_and_unresolvable_nodes: [("m".to_owned(), Said::from("why".to_owned()))].into(),
            ..FilterResult::default()
        };
        let expected = json!({
            "NodeNames": ["n"], "FailedNodes": {}, "FailedAndUnresolvableNodes": {"m": "why"},
        });
        assert_eq!(serde_json::to_value(filtered).unwrap(), expected);
        let score = HostPriority { host: "n".into(), score: 10 };
        assert_eq!(serde_json::to_value(score).unwrap(), json!({"Host": "n", "Score": 10}));
        assert_eq!(serde_json::to_value(BindingResult { error: Said::default() }).unwrap(), json!({}));
        let victims = MetaVictims { pods: Some(vec![MetaPod { uid: "1f".into() }]), num_pdb_violations: 2 };
        let result = PreemptionResult { node_name_to_meta_victims: [("n".to_owned(), victims)].into() };
        let expected = json!({"NodeNameToMetaVictims": {"n": {"Pods": [{"UID": "1f"}], "NumPDBViolations": 2}}});
        assert_eq!(serde_json::to_value(result).unwrap(), expected);
    }

    #[test]
    fn no_reason_is_a_format_of_gos() {
        let said = |why: &str| serde_json::to_value(Said::of_node(why)).unwrap();
        assert_eq!(
            said("0 of 1 devices have 50 % gpu-core"),
            "without devices for the pod (0 of 1 devices have 50 percent gpu-core)"
        );
        assert_eq!(said("100%d"), "without devices for the pod (100 percentd)");
    }

    #[test]
    fn requests_to_bind_and_to_preempt_are_read() {
        let args = json!({"PodName": "a", "PodNamespace": "default", "PodUID": "1f", "Node": "n"});
        let args: BindingArgs = serde_json::from_value(args).unwrap();
        assert_eq!((args.pod_name.as_str(), args.pod_uid.as_str(), args.node.as_str()), ("a", "1f", "n"));
        assert!(serde_json::from_value::<BindingArgs>(json!({"PodName": "a"})).is_err());
        let args = json!({
            "Pod": {"metadata": {"name": "a"}},
            "NodeNameToVictims": {"n": {"Pods": [{"metadata": {"uid": "2e"}}], "NumPDBViolations": 1}},
            "NodeNameToMetaVictims": null,
        });
        let args: PreemptionArgs = serde_json::from_value(args).unwrap();
        let victims = &args.node_name_to_victims.unwrap()["n"];
        assert_eq!((victims.pods.as_ref().unwrap().len(), victims.num_pdb_violations), (1, 1));
    }
}
