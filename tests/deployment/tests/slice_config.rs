//! The admission policy for the driver's parameters can be evaluated, and refuses the same parameters as the driver
//! does when a pod starts.

use std::collections::{BTreeSet, HashMap};

use aliquot_deployment::{object, objects};
use aliquot_kubernetes::dra::{DRIVER, SliceConfig};
use aliquot_test_api_server::conditions::{self, value};
use cel::Value as CelValue;
use k8s_openapi::api::admissionregistration::v1::ValidatingAdmissionPolicy;
use serde_json::{Value, json};

/// The policy, to be evaluated.
struct Policy {
    variables: Vec<(String, String)>,
    /// Expressions, each with the message for objects for which it is false.
    validations: Vec<(String, String)>,
}

impl Policy {
    fn read() -> Policy {
        let policy: ValidatingAdmissionPolicy = object("dra", "aliquot-slice-config");
        let spec = policy.spec.unwrap();
        let variables = spec.variables.unwrap().into_iter().map(|variable| (variable.name, variable.expression));
        let validations = spec.validations.unwrap().into_iter();
        let said = |text: Option<String>| text.expect("each validation says by an expression what is wrong");
        Policy {
            variables: variables.collect(),
            validations: validations.map(|it| (it.expression, said(it.message_expression))).collect(),
        }
    }

    /// The message by which the policy refuses `object`; `None`: it admits the object.
    fn refusal(&self, object: &Value) -> Option<String> {
        let evaluate = |expression: &str, variables: &HashMap<String, CelValue>| {
            let given = [("object", value(object)), ("variables", variables.clone().into())];
            conditions::evaluate(expression, given).unwrap_or_else(|error| panic!("{error}"))
        };
        let mut variables: HashMap<String, CelValue> = HashMap::new();
        for (name, expression) in &self.variables {
            variables.insert(name.clone(), evaluate(expression, &variables));
        }
        let refused = self.validations.iter().find(|(expression, _)| {
            let outcome = evaluate(expression, &variables);
            assert!(matches!(outcome, CelValue::Bool(_)), "{expression}: {outcome:?}");
            outcome == CelValue::Bool(false)
        })?;
        match evaluate(&refused.1, &variables) {
            CelValue::String(text) => Some(text.to_string()),
            other => panic!("{}: {other:?}", refused.1),
        }
    }
}

fn with(fields: Value) -> Value {
    let mut parameters = json!({"apiVersion": "gpu.aliquot.dev/v1alpha1", "kind": "SliceConfig"});
    parameters.as_object_mut().unwrap().extend(fields.as_object().unwrap().clone());
    parameters
}

/// A claim, a template and a class with these parameters for a driver.
fn carriers(driver: &str, parameters: &Value) -> [Value; 3] {
    let config = json!([{"opaque": {"driver": driver, "parameters": parameters}}]);
    [
        json!({"kind": "ResourceClaim", "spec": {"devices": {"config": config}}}),
        json!({"kind": "ResourceClaimTemplate", "spec": {"spec": {"devices": {"config": config}}}}),
        json!({"kind": "DeviceClass", "spec": {"config": config}}),
    ]
}

#[test]
fn what_the_driver_understands_is_admitted() {
    let policy = Policy::read();
    for fields in [
        json!({}),
        json!({"coreLimitPercent": 80, "priorityClass": "batch", "auditPolicy": "stop", "hostMemoryLimit": "4Gi"}),
        json!({"coreLimitPercent": 1}),
        json!({"coreLimitPercent": 100}),
        json!({"coreLimitPercent": null, "priorityClass": null, "auditPolicy": null, "hostMemoryLimit": null}),
        json!({"priorityClass": "latency-critical"}),
        json!({"priorityClass": "standard", "auditPolicy": "report"}),
        json!({"hostMemoryLimit": "0"}),
        json!({"hostMemoryLimit": "1.5Gi"}),
        json!({"hostMemoryLimit": "+3e2"}),
        json!({"hostMemoryLimit": "2000m"}),
        json!({"hostMemoryLimit": ".5k"}),
    ] {
        let parameters = with(fields);
        assert_eq!(
            SliceConfig::parse(&parameters).map(drop).map_err(|error| error.to_string()),
            Ok(()),
            "{parameters}"
        );
        for object in carriers(DRIVER, &parameters) {
            assert_eq!(policy.refusal(&object), None, "{object}");
        }
    }
}

#[test]
fn what_the_driver_does_not_understand_is_refused_and_named() {
    let policy = Policy::read();
    for (parameters, said) in [
        (json!({}), "the apiVersion \"\""),
        (json!({"apiVersion": "gpu.aliquot.dev/v2", "kind": "SliceConfig"}), "the apiVersion \"gpu.aliquot.dev/v2\""),
        (json!({"apiVersion": 1, "kind": "SliceConfig"}), "the apiVersion \"1\""),
        (with(json!({"kind": "GpuConfig"})), "the kind \"GpuConfig\""),
        (with(json!({"corelimit": 80})), "a field corelimit, which there is not"),
        (with(json!({"coreLimitPercent": 0})), "coreLimitPercent is 0;"),
        (with(json!({"coreLimitPercent": 101})), "coreLimitPercent is 101;"),
        (with(json!({"coreLimitPercent": -1})), "coreLimitPercent is -1;"),
        (with(json!({"coreLimitPercent": 80.5})), "coreLimitPercent is 80.5;"),
        (with(json!({"coreLimitPercent": "80"})), "coreLimitPercent is 80;"),
        (with(json!({"coreLimitPercent": true})), "coreLimitPercent is true;"),
        (with(json!({"priorityClass": "high"})), "priorityClass is high;"),
        (with(json!({"priorityClass": 1})), "priorityClass is 1;"),
        (with(json!({"auditPolicy": "kill"})), "auditPolicy is kill;"),
        (with(json!({"hostMemoryLimit": "4GB"})), "hostMemoryLimit is 4GB;"),
        (with(json!({"hostMemoryLimit": "-1"})), "hostMemoryLimit is -1;"),
        (with(json!({"hostMemoryLimit": "4 Gi"})), "hostMemoryLimit is 4 Gi;"),
        (with(json!({"hostMemoryLimit": ""})), "hostMemoryLimit is ;"),
        (with(json!({"hostMemoryLimit": 4096})), "hostMemoryLimit is 4096;"),
    ] {
        assert!(SliceConfig::parse(&parameters).is_err(), "{parameters}");
        for object in carriers(DRIVER, &parameters) {
            let refusal = policy.refusal(&object).unwrap_or_else(|| panic!("admitted: {object}"));
            assert!(refusal.contains(said), "{object}: {refusal}");
        }
        for object in carriers("gpu.example.com", &parameters) {
            assert_eq!(policy.refusal(&object), None, "{object}");
        }
    }
}

#[test]
fn the_policy_knows_the_fields_and_values_that_the_driver_knows() {
    let texts = |error: String| -> BTreeSet<String> {
        let known = error.split("expected one of ").nth(1).or_else(|| error.split("expected ").nth(1)).unwrap();
        known.split('`').skip(1).step_by(2).map(str::to_owned).collect()
    };
    let known = |parameters: Value| texts(SliceConfig::parse(&parameters).unwrap_err().to_string());
    let policy = Policy::read();
    let listed = |name: &str| -> BTreeSet<String> {
        let (_, expression) = policy.variables.iter().find(|(found, _)| found == name).unwrap();
        let list = expression.rsplit('[').next().unwrap().split(']').next().unwrap();
        list.split('"').skip(1).step_by(2).map(str::to_owned).collect()
    };
    assert_eq!(listed("unknown"), known(with(json!({"x": 1}))));
    assert_eq!(listed("priorityClass"), known(with(json!({"priorityClass": "x"}))));
    assert_eq!(listed("auditPolicy"), known(with(json!({"auditPolicy": "x"}))));
}

#[test]
fn every_class_and_example_is_admitted_and_claims_without_parameters_are() {
    let policy = Policy::read();
    let mut carrying = 0;
    for part in ["dra", "examples/dra"] {
        for object in objects(part) {
            if ["ResourceClaim", "ResourceClaimTemplate", "DeviceClass"].contains(&object.kind()) {
                assert_eq!(policy.refusal(&object.content), None, "{}", object.file.display());
                carrying += usize::from(object.content.to_string().contains("SliceConfig"));
            }
        }
    }
    assert!(carrying >= 2, "{carrying} of the shipped objects have parameters");
    for object in [
        json!({"kind": "ResourceClaim", "spec": {}}),
        json!({"kind": "ResourceClaim", "spec": {"devices": {"requests": []}}}),
        json!({"kind": "ResourceClaimTemplate", "spec": {"spec": {}}}),
        json!({"kind": "DeviceClass", "spec": {}}),
    ] {
        assert_eq!(policy.refusal(&object), None, "{object}");
    }
}
