//! The manifests of the webhook agree with each other and with the scheduler.

use std::collections::{BTreeMap, BTreeSet};

use aliquot_deployment::{directory, documents, object, scheduler_with};
use aliquot_dialects::{Dialect, NodeFacts};
use aliquot_test_api_server::conditions::{evaluate, value};
use cel::Value as CelValue;
use k8s_openapi::api::admissionregistration::v1::{
    MutatingWebhook, MutatingWebhookConfiguration, ValidatingWebhook, ValidatingWebhookConfiguration,
};
use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::api::core::v1::Service;
use k8s_openapi::api::rbac::v1::{ClusterRole, Role};
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;
use serde_json::{Value, json};

const COMPONENT: &str = "components/webhook";
const NAME: &str = "aliquot-scheduler-webhook";

fn mutating() -> Vec<MutatingWebhook> {
    object::<MutatingWebhookConfiguration>(COMPONENT, NAME).webhooks.unwrap()
}

fn validating() -> Vec<ValidatingWebhook> {
    object::<ValidatingWebhookConfiguration>(COMPONENT, NAME).webhooks.unwrap()
}

/// All webhooks, as JSON.
fn webhooks() -> Vec<Value> {
    mutating().iter().map(|of| json!(of)).chain(validating().iter().map(|of| json!(of))).collect()
}

#[test]
fn the_api_server_asks_where_the_scheduler_answers() {
    let service: Service = object(COMPONENT, NAME);
    let spec = service.spec.unwrap();
    let port = spec.ports.unwrap().remove(0);
    assert_eq!(port.target_port, Some(IntOrString::String("webhook".into())));
    let deployment: Deployment = object("scheduler", "aliquot-scheduler");
    assert_eq!(spec.selector, deployment.spec.selector.match_labels);
    let scheduler = scheduler_with("webhook").spec.template.spec.unwrap().containers.remove(0);
    let of_pod = scheduler.ports.unwrap().into_iter().find(|port| port.name.as_deref() == Some("webhook")).unwrap();
    assert!(scheduler.args.unwrap().contains(&format!("--webhook-address=0.0.0.0:{}", of_pod.container_port)));
    for webhook in webhooks() {
        let asked = &webhook["clientConfig"]["service"];
        assert_eq!((&asked["name"], &asked["namespace"]), (&json!(NAME), &json!("aliquot-system")));
        assert_eq!(asked["port"], port.port);
        assert!(["/schedule", "/default", "/validate"].contains(&asked["path"].as_str().unwrap()), "{asked}");
    }
}

#[test]
fn a_scheduler_that_is_down_stops_nobody() {
    for webhook in webhooks() {
        assert_eq!(webhook["failurePolicy"], "Ignore", "{}", webhook["name"]);
        assert_eq!(webhook["sideEffects"], "None", "{}", webhook["name"]);
        assert!(webhook["timeoutSeconds"].as_i64().unwrap() <= 5);
        if webhook["rules"][0]["scope"] == "Namespaced" {
            let expressions = webhook["namespaceSelector"]["matchExpressions"].as_array().unwrap();
            let spared = expressions.iter().find(|of| of["operator"] == "NotIn").unwrap();
            assert_eq!(spared["key"], "kubernetes.io/metadata.name");
            assert_eq!(spared["values"], json!(["kube-system", "kube-public", "kube-node-lease", "aliquot-system"]));
        }
    }
}

#[test]
fn pods_are_reviewed_that_name_the_scheduler_or_use_our_words() {
    let conditions: BTreeSet<String> = webhooks()
        .iter()
        .flat_map(|webhook| webhook["matchConditions"].as_array().cloned().unwrap_or_default())
        .map(|condition| condition["expression"].as_str().unwrap().to_owned())
        .collect();
    let [condition] = Vec::from_iter(conditions).try_into().expect("what is filled in and what is judged is the same");
    let is_reviewed = |pod: &Value| evaluate(&condition, [("object", value(pod))]) == Ok(CelValue::Bool(true));
    let pod = |scheduler: &str, annotation: &str, field: &str, resource: &str| {
        let annotations = BTreeMap::from([(annotation, "1")]);
        let resources = json!({field: BTreeMap::from([(resource, "1")])});
        json!({
            "metadata": {"annotations": annotations},
            "spec": {"schedulerName": scheduler, "containers": [{"name": "side"}, {"name": "main", "resources": resources}]},
        })
    };
    assert!(is_reviewed(&pod("aliquot", "note", "limits", "cpu")));
    assert!(!is_reviewed(&pod("default-scheduler", "note", "limits", "cpu")));
    assert!(!is_reviewed(&pod("default-scheduler", "note", "limits", "nvidia.com/gpu")));
    assert!(!is_reviewed(&pod("default-scheduler", "notaliquot.dev/x", "limits", "cpu")));
    let facts = NodeFacts { whole_devices: true, ..NodeFacts::default() };
    for resource in Dialect::Own.advertised(&facts).into_iter().map(|of| of.resource) {
        for field in ["limits", "requests"] {
            assert!(is_reviewed(&pod("default-scheduler", "note", field, resource)), "{field} {resource}");
        }
    }
    for annotation in ["aliquot.dev/gpu-core-limt", "gpu.aliquot.dev/x"] {
        assert!(is_reviewed(&pod("default-scheduler", annotation, "limits", "cpu")), "{annotation}");
    }
    let init = json!([{"name": "init", "resources": {"limits": {"aliquot.dev/gpu-core": "0"}}}]);
    let with_init = json!({"metadata": {}, "spec": {"containers": [{"name": "main"}], "initContainers": init}});
    assert!(is_reviewed(&with_init));
    assert!(!is_reviewed(&json!({"metadata": {}, "spec": {"containers": [{"name": "main"}]}})));
}

#[test]
fn rights_are_to_the_webhook_s_own_objects_alone() {
    let role: Role = object(COMPONENT, NAME);
    let cluster_role: ClusterRole = object(COMPONENT, NAME);
    for rule in role.rules.unwrap().into_iter().chain(cluster_role.rules.unwrap()) {
        // A right to create objects cannot be limited to names.
        let makes = rule.verbs == ["create"];
        assert_eq!(rule.resource_names, (!makes).then(|| vec![NAME.to_owned()]), "{:?}", rule.resources);
    }
}

#[test]
fn the_component_names_all_of_its_files() {
    let kustomization = documents(&directory().join(COMPONENT).join("kustomization.yaml")).remove(0);
    let named: BTreeSet<&str> =
        kustomization["resources"].as_array().unwrap().iter().filter_map(Value::as_str).collect();
    assert_eq!(named, BTreeSet::from(["configurations.yaml", "rbac.yaml", "service.yaml"]));
    assert!(named.iter().all(|file| directory().join(COMPONENT).join(file).exists()));
}
