//! The objects that tests make in a cluster.

use serde_json::{Value, json};

/// The name of a pod's only container.
pub(crate) const MAIN: &str = "main";

/// A claim's request for a part of one device.
pub(crate) fn device_request(name: &str, core_percent: u64, memory_mib: u64) -> Value {
    json!({"name": name, "exactly": {
        "deviceClassName": "gpu.aliquot.dev",
        "capacity": {"requests": {"core": core_percent.to_string(), "memory": format!("{memory_mib}Mi")}},
    }})
}

pub(crate) fn claim(name: &str, requests: &Value, config: &Value) -> Value {
    json!({
        "apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaim", "metadata": {"name": name},
        "spec": {"devices": {"requests": requests, "config": config}},
    })
}

pub(crate) fn claim_template(name: &str, requests: &Value, config: &Value) -> Value {
    json!({
        "apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaimTemplate", "metadata": {"name": name},
        "spec": {"spec": {"devices": {"requests": requests, "config": config}}},
    })
}

/// A pod with one container, which has the claim that `source` names.
pub(crate) fn pod(name: &str, image: &str, command: &[String], source: &Value) -> Value {
    let mut claim = source.clone();
    claim["name"] = "gpu".into();
    let mut pod = pod_with(name, image, command, &json!({"claims": [{"name": "gpu"}]}));
    pod["spec"]["resourceClaims"] = json!([claim]);
    pod
}

/// A pod with one container, which has these resources.
pub(crate) fn pod_with(name: &str, image: &str, command: &[String], resources: &Value) -> Value {
    json!({
        "apiVersion": "v1", "kind": "Pod", "metadata": {"name": name},
        "spec": {
            "restartPolicy": "Never",
            "terminationGracePeriodSeconds": 0,
            "automountServiceAccountToken": false,
            "enableServiceLinks": false,
            "tolerations": [{"operator": "Exists"}],
            "containers": [container(MAIN, image, command, resources)],
        },
    })
}

/// The metadata that makes a pod a member of a gang.
pub(crate) fn gang(name: &str, size: usize) -> Value {
    json!({"metadata": {"annotations": {"aliquot.dev/gang": name, "aliquot.dev/gang-size": size.to_string()}}})
}

/// Gives the pods among these objects a label.
pub(crate) fn label(objects: &mut [Value], label: &str) {
    for pod in objects.iter_mut().filter(|object| object["kind"] == "Pod") {
        pod["metadata"]["labels"][label] = "true".into();
    }
}

/// A container of a pod, which has these resources.
pub(crate) fn container(name: &str, image: &str, command: &[String], resources: &Value) -> Value {
    json!({"name": name, "image": image, "imagePullPolicy": "Never", "command": command, "resources": resources})
}

/// A command that prints for each device how much memory there is, takes all of it and tries one byte more, and
/// launches a kernel.
pub(crate) fn prints_devices() -> Vec<String> {
    vec!["/bin/devices-linked".into()]
}

/// A command that takes exactly this number of bytes of memory, and prints its view of the device.
pub(crate) fn takes_exactly(bytes: u64) -> Vec<String> {
    vec!["/bin/exact-linked".into(), bytes.to_string()]
}

/// A command that takes so much memory, prints "held", and holds it.
pub(crate) fn holds(bytes: u64) -> Vec<String> {
    vec!["/bin/hold-linked".into(), bytes.to_string()]
}
