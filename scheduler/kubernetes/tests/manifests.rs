//! The manifests of the scheduler, compared with the program.

use std::collections::BTreeSet;
use std::path::PathBuf;

use aliquot_kubernetes_scheduler::{ElasticGpu, ElasticGpuClaim, ElasticGpuClass, Queue, SchedulingPolicy};
use aliquot_scheduler_core::PriorityClass;
use kube::CustomResourceExt;
use serde_json::Value;

fn documents(file: &str) -> Vec<Value> {
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../deploy/kubernetes/scheduler").join(file);
    let text = std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    serde_saphyr::from_multiple(&text).unwrap()
}

#[test]
fn the_shipped_schemas_are_those_of_the_program() {
    for (file, definition) in [
        ("queues.yaml", Queue::crd()),
        ("scheduling-policies.yaml", SchedulingPolicy::crd()),
        ("elastic-gpu-classes.yaml", ElasticGpuClass::crd()),
        ("elastic-gpu-claims.yaml", ElasticGpuClaim::crd()),
        ("elastic-gpus.yaml", ElasticGpu::crd()),
    ] {
        let expected = serde_json::to_value(definition).unwrap();
        let shipped = documents(file).remove(0);
        let text = serde_saphyr::to_string(&expected).unwrap();
        assert_eq!(shipped, expected, "deploy/kubernetes/scheduler/{file} must be:\n{text}");
    }
}

#[test]
fn the_shipped_priorities_are_those_of_the_program() {
    let shipped = documents("priority-classes.yaml");
    let named =
        |class: &Value| (class["metadata"]["name"].as_str().unwrap().to_owned(), class["value"].as_i64().unwrap());
    let shipped: BTreeSet<(String, i64)> = shipped.iter().map(named).collect();
    // Kubernetes has the others itself.
    let own = PriorityClass::ALL.into_iter().filter(|class| !class.name().starts_with("system-"));
    let expected = own.map(|class| (class.name().to_owned(), i64::from(class.value()))).collect();
    assert_eq!(shipped, expected);
}
