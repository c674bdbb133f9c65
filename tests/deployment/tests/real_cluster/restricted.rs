//! Namespaces that allow little: pods of the standard `restricted`, and no more than a quota.

use aliquot_harness::wait;
use serde_json::{Value, json};

use super::Tests;
use super::holder::HELD_BYTES;
use super::manager::Mode;
use super::objects::holds;

impl Tests<'_> {
    pub(crate) fn a_pod_without_any_rights_has_its_part_within_a_quota(&self) {
        let namespace = self.cluster.namespace("aliquot-restricted");
        let enforce = "pod-security.kubernetes.io/enforce=restricted";
        self.cluster.kubectl(&["label", "namespace", namespace.name(), enforce], "");
        let hard = match self.mode {
            Mode::Claims => json!({
                "count/resourceclaims.resource.k8s.io": "1", "gpu.aliquot.dev.deviceclass.resource.k8s.io/devices": "1",
            }),
            Mode::Units => json!({"requests.aliquot.dev/gpu-core": "30", "requests.aliquot.dev/gpu-memory": "1"}),
        };
        let metadata = json!({"name": "gpus"});
        namespace.apply(&[json!({
            "apiVersion": "v1", "kind": "ResourceQuota", "metadata": metadata, "spec": {"hard": hard},
        })]);
        wait::until_true("the quota is counted", || namespace.get("resourcequota", "gpus")["status"]["hard"] == hard);

        let asks = |name: &str| {
            let mut objects = self.asks(name, &holds(HELD_BYTES), 30, 64);
            objects.iter_mut().filter(|object| object["kind"] == "Pod").for_each(restrict);
            objects
        };
        // Both are enforced: a pod as in other tests is refused, and so is one that asks for more than is left of the
        // quota.
        let like_others = self.asks("like-others", &holds(HELD_BYTES), 30, 64).pop().expect("the pod comes last");
        let error = namespace.try_apply(&[like_others]).unwrap_err();
        assert!(error.contains("violates PodSecurity"), "{error}");
        namespace.apply(&asks("restricted"));
        namespace.wait_for_output("restricted", "held");
        let slice = wait::until("the manager knows the process", || {
            let slice = self.slice_of("restricted");
            (slice["parts"][0]["memory_used_bytes"] == HELD_BYTES).then_some(slice)
        });
        let error = namespace.try_apply(&asks("one-more")).unwrap_err();
        assert!(error.contains("exceeded quota: gpus"), "{error}");
        println!("ok: a pod of the standard restricted had its part, and another one exceeded the quota");
        drop(namespace);
        let slice = slice["name"].as_str().expect("a slice has a name");
        wait::until_true("its slice is gone", || self.manager.slice(slice).is_none());
    }
}

/// Removes from a pod everything that the standard does not allow.
fn restrict(pod: &mut Value) {
    pod["spec"]["securityContext"] = json!({
        "runAsNonRoot": true, "runAsUser": 65534, "seccompProfile": {"type": "RuntimeDefault"},
    });
    pod["spec"]["containers"][0]["securityContext"] = json!({
        "allowPrivilegeEscalation": false, "capabilities": {"drop": ["ALL"]}, "readOnlyRootFilesystem": true,
    });
}
