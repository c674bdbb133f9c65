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

/// Fields whose names CEL reserves are written with underscores in rules, as the API server expects: `__namespace__`. With
/// the plain name the API server refuses the whole definition, and says that the rule costs too much.
#[test]
fn no_rule_names_a_field_by_a_word_that_cel_reserves() {
    // The list of the documentation of CustomResourceDefinitions.
    let reserved = [
        "true",
        "false",
        "null",
        "in",
        "as",
        "break",
        "const",
        "continue",
        "else",
        "for",
        "function",
        "if",
        "import",
        "let",
        "loop",
        "package",
        "namespace",
        "return",
    ];
    let is_in_word = |letter: char| letter.is_ascii_alphanumeric() || letter == '_';
    for definition in
        [Queue::crd(), SchedulingPolicy::crd(), ElasticGpuClass::crd(), ElasticGpuClaim::crd(), ElasticGpu::crd()]
    {
        let text = serde_json::to_string(&definition).unwrap();
        for rule in text.split("\"rule\":\"").skip(1).filter_map(|rest| rest.split('"').next()) {
            let fields = rule.split('.').skip(1).filter_map(|rest| rest.split(|letter| !is_in_word(letter)).next());
            let wrong: Vec<&str> = fields.filter(|field| reserved.contains(field)).collect();
            assert!(wrong.is_empty(), "{wrong:?} in {rule:?}");
        }
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
