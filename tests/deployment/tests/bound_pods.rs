//! The admission policy for the scheduler's annotations on pods that it binds.

use std::collections::HashMap;

use aliquot_deployment::object;
use aliquot_test_api_server::conditions::{evaluate, value};
use cel::Value as CelValue;
use k8s_openapi::api::admissionregistration::v1::ValidatingAdmissionPolicy;
use serde_json::{Value, json};

/// Whether a user may change the pod `before` into `after`, or create `after` if there is none before.
fn is_admitted(before: &Value, after: &Value) -> bool {
    let policy: ValidatingAdmissionPolicy = object("scheduler", "aliquot-scheduler-pods");
    let spec = policy.spec.unwrap();
    let evaluate = |expression: &str, variables: &HashMap<String, CelValue>| {
        let variables = variables.clone().into();
        evaluate(expression, [("object", value(after)), ("oldObject", value(before)), ("variables", variables)])
            .unwrap_or_else(|error| panic!("{error}"))
    };
    let mut variables = HashMap::new();
    for variable in spec.variables.unwrap() {
        variables.insert(variable.name, evaluate(&variable.expression, &variables));
    }
    spec.validations.unwrap().iter().all(|it| evaluate(&it.expression, &variables) == CelValue::Bool(true))
}

fn annotated(annotations: &Value) -> Value {
    json!({"metadata": {"name": "p", "annotations": annotations}})
}

#[test]
fn a_binding_s_annotations_are_the_scheduler_s_alone() {
    let (generation, devices) = ("aliquot.dev/generation", "aliquot.dev/devices");
    let bound = annotated(&json!({generation: "1.2", devices: "main=GPU-1/300/1", "a": "b"}));
    let without_devices = annotated(&json!({generation: "1.2"}));
    for before in [&Value::Null, &json!({"metadata": {"name": "p"}}), &annotated(&json!({devices: "x"}))] {
        assert!(!is_admitted(before, &bound), "{before}");
        assert!(!is_admitted(before, &without_devices), "{before}");
    }
    let moved = annotated(&json!({generation: "1.2", devices: "main=GPU-2/300/1", "a": "b"}));
    let taken = annotated(&json!({"a": "b"}));
    let renumbered = annotated(&json!({generation: "1.3", devices: "main=GPU-1/300/1", "a": "b"}));
    for after in [&moved, &taken, &renumbered, &without_devices] {
        assert!(!is_admitted(&bound, after), "{after}");
    }
}

#[test]
fn pods_of_the_scheduler_bring_no_decision() {
    let of_ours = |annotations: &Value| {
        let mut pod = annotated(annotations);
        pod["spec"] = json!({"schedulerName": "aliquot"});
        pod
    };
    let (forged, plain) = (of_ours(&json!({"aliquot.dev/devices": "main=GPU-1/300/1"})), of_ours(&json!({"a": "b"})));
    assert!(!is_admitted(&Value::Null, &forged) && !is_admitted(&plain, &forged));
    assert!(is_admitted(&Value::Null, &plain));
}

#[test]
fn everything_else_of_pods_is_free() {
    let generation = json!({"aliquot.dev/generation": "1.2", "a": "b"});
    let other = json!({"aliquot.dev/generation": "1.2", "a": "c", "d": "e"});
    assert!(is_admitted(&annotated(&generation), &annotated(&other)));
    // Another scheduler may decide on devices, too.
    assert!(is_admitted(&Value::Null, &annotated(&json!({"aliquot.dev/devices": "main=GPU-1/300/1"}))));
    assert!(is_admitted(&Value::Null, &json!({"metadata": {"name": "p"}})));
    assert!(is_admitted(&json!({"metadata": {"name": "p"}}), &annotated(&json!({"a": "b"}))));
}

#[test]
fn a_bound_pod_keeps_the_claims_that_it_names() {
    let (main, side) = ("elastic-gpu-claim.aliquot.dev/main", "elastic-gpu-claim.aliquot.dev/side");
    let generation = "aliquot.dev/generation";
    let bound = annotated(&json!({generation: "1.2", main: "part"}));
    for after in [
        json!({generation: "1.2", main: "other"}),
        json!({generation: "1.2"}),
        json!({generation: "1.2", main: "part", side: "other"}),
        json!({generation: "1.2", side: "part"}),
    ] {
        assert!(!is_admitted(&bound, &annotated(&after)), "{after}");
    }
    assert!(is_admitted(&bound, &annotated(&json!({generation: "1.2", main: "part", "a": "b"}))));
    let (waiting, renamed) = (annotated(&json!({main: "part"})), annotated(&json!({main: "other"})));
    assert!(is_admitted(&waiting, &renamed) && is_admitted(&Value::Null, &waiting));
}
