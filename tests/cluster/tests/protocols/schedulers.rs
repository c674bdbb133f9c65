//! The parts of the API server that schedulers use: bindings, evictions and leases.

use aliquot_test_api_server::{BUDGETS, Fault, LEASES};
use aliquot_test_cluster::{NAMESPACE, PODS};
use k8s_openapi::api::core::v1::Pod;
use kube::api::{EvictParams, PostParams};
use kube::{Api, Error};
use serde_json::{Value, json};

use crate::clients::{client, run};
use crate::stage::Stage;

/// Makes a pod that the cluster's own scheduler ignores.
fn create(stage: &Stage, name: &str, labels: &Value) -> Value {
    let pod = json!({
        "apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, "labels": labels},
        "spec": {
            "schedulerName": "another", "terminationGracePeriodSeconds": 0,
            "containers": [{"name": "main", "image": "none"}],
        },
    });
    stage.cluster.create(&PODS, pod)
}

fn binding(pod: &Value, metadata: Value) -> Value {
    let mut binding = json!({
        "apiVersion": "v1", "kind": "Binding", "metadata": {"name": pod["metadata"]["name"]},
        "target": {"apiVersion": "v1", "kind": "Node", "name": "elsewhere"},
    });
    for (key, value) in metadata.as_object().unwrap() {
        binding["metadata"][key] = value.clone();
    }
    binding
}

async fn bind(pods: &Api<Pod>, name: &str, binding: &Value) -> Result<Value, Error> {
    pods.create_subresource("binding", name, &PostParams::default(), binding).await
}

fn code<T: std::fmt::Debug>(answer: Result<T, Error>) -> u16 {
    match answer {
        Err(Error::Api(status)) => status.code,
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_binding_writes_its_annotations_with_the_node() {
    let stage = Stage::new();
    run(async {
        let pods: Api<Pod> = Api::namespaced(client(&stage).await, NAMESPACE);
        let pod = create(&stage, "pod", &json!({}));
        let annotations = json!({"annotations": {"example.com/a": "b"}});
        for (metadata, expected) in [
            (json!({"uid": "another"}), 409),
            (json!({"resourceVersion": "1"}), 409),
            (json!({"uid": pod["metadata"]["uid"], "resourceVersion": pod["metadata"]["resourceVersion"]}), 201),
            (annotations.clone(), 409),
        ] {
            let mut metadata = metadata;
            metadata["annotations"] = annotations["annotations"].clone();
            let answer = bind(&pods, "pod", &binding(&pod, metadata)).await;
            match expected {
                201 => assert_eq!(answer.unwrap()["status"], "Success"),
                expected => assert_eq!(code(answer), expected),
            }
        }
        let bound: Value = stage.cluster.store().get(&PODS, NAMESPACE, "pod").unwrap();
        assert_eq!(bound["spec"]["nodeName"], "elsewhere");
        assert_eq!(bound["metadata"]["annotations"]["example.com/a"], "b");
        assert_eq!(bound["status"]["conditions"][0]["status"], "True");
        assert_eq!(code(bind(&pods, "none", &binding(&json!({}), json!({}))).await), 404);
    });
}

#[test]
fn a_budget_is_asked_before_an_eviction() {
    let stage = Stage::new();
    run(async {
        let pods: Api<Pod> = Api::namespaced(client(&stage).await, NAMESPACE);
        for name in ["a", "b"] {
            let pod = create(&stage, name, &json!({"app": "x"}));
            bind(&pods, name, &binding(&pod, json!({}))).await.unwrap();
            report(&stage, name, true);
        }
        let pending = create(&stage, "pending", &json!({"app": "x"}));
        bind(&pods, "pending", &binding(&pending, json!({}))).await.unwrap();
        let in_list = json!({"key": "app", "operator": "In", "values": ["x", "y"]});
        let budget = |name: &str, selector: &Value| {
            let spec = json!({"minAvailable": 1, "selector": selector});
            json!({"apiVersion": "policy/v1", "kind": "PodDisruptionBudget", "metadata": {"name": name}, "spec": spec})
        };
        stage.cluster.create(&BUDGETS, budget("of-others", &json!({"matchLabels": {"app": "y"}})));
        stage.cluster.create(&BUDGETS, budget("of-nobody", &Value::Null));
        stage.cluster.create(&BUDGETS, budget("of-them", &json!({"matchExpressions": [in_list]})));
        let evict = async |name: &str| pods.evict(name, &EvictParams::default()).await;
        assert_eq!(code(evict("a").await), 429);
        // A budget does not protect a pod that does not run.
        evict("pending").await.unwrap();
        let status = json!({"status": {
            "disruptionsAllowed": 1, "currentHealthy": 2, "desiredHealthy": 1, "expectedPods": 2,
        }});
        stage.cluster.store().merge(&BUDGETS, NAMESPACE, "of-them", true, &status).unwrap();
        evict("a").await.unwrap();
        assert_eq!(code(evict("a").await), 404);
        assert_eq!(code(evict("b").await), 429);
        // A running pod that is not ready may be evicted, and this does not reduce the budget.
        let unready = create(&stage, "unready", &json!({"app": "x"}));
        bind(&pods, "unready", &binding(&unready, json!({}))).await.unwrap();
        report(&stage, "unready", false);
        evict("unready").await.unwrap();
        // Two budgets for one pod: the real server refuses, because it does not know which of them counts.
        stage.cluster.store().merge(&BUDGETS, NAMESPACE, "of-them", true, &status).unwrap();
        stage.cluster.create(&BUDGETS, budget("of-all", &json!({})));
        assert_eq!(code(evict("b").await), 500);
        let budget: Value = stage.cluster.store().get(&BUDGETS, NAMESPACE, "of-them").unwrap();
        assert_eq!(budget["status"]["disruptionsAllowed"], 1);
    });
}

/// Reports that a bound pod runs, and whether it is ready.
fn report(stage: &Stage, name: &str, is_ready: bool) {
    let ready = if is_ready { "True" } else { "False" };
    let status = json!({"status": {"phase": "Running", "conditions": [{"type": "Ready", "status": ready}]}});
    stage.cluster.store().merge(&PODS, NAMESPACE, name, true, &status).unwrap();
}

#[test]
fn a_lease_is_replaced_only_by_who_has_read_it() {
    let stage = Stage::new();
    let lease = json!({
        "apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": {"name": "l"},
        "spec": {"holderIdentity": "a"},
    });
    let mut read = stage.cluster.create(&LEASES, lease.clone());
    let store = stage.cluster.store();
    let mut unread = lease;
    unread["metadata"]["namespace"] = NAMESPACE.into();
    assert!(store.update(&LEASES, &unread, false).unwrap_err().to_string().contains("must be specified"));
    read["spec"]["holderIdentity"] = "b".into();
    store.update(&LEASES, &read, false).unwrap();
    assert_eq!(store.update(&LEASES, &read, false).unwrap_err().reason, "Conflict");
}

#[test]
fn an_answer_can_be_lost_after_the_deed() {
    let stage = Stage::new();
    run(async {
        let pods: Api<Pod> = Api::namespaced(client(&stage).await, NAMESPACE);
        for (name, fault) in [("refused", Fault::Refused), ("lost", Fault::AnswerLost)] {
            let pod = create(&stage, name, &json!({}));
            let ending = format!("/{name}/binding");
            let choose = move |_: &str, path: &str| if path.ends_with(&ending) { fault } else { Fault::None };
            stage.cluster.api_server().set_fault(choose);
            assert_eq!(code(bind(&pods, name, &binding(&pod, json!({}))).await), 503);
            let is_bound = pods.get(name).await.unwrap().spec.unwrap().node_name.is_some();
            assert_eq!(is_bound, fault == Fault::AnswerLost);
        }
    });
}
