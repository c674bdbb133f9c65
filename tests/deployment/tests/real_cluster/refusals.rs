//! Refused requests: which part refuses them, and with which words.

use aliquot_harness::wait;
use serde_json::{Value, json};

use super::Tests;
use super::objects::{claim, device_request, pod, prints_devices};

const MANAGER: &str = "system:serviceaccount:aliquot-system:aliquot-manager";

impl Tests<'_> {
    pub(crate) fn bad_claims_are_refused_with_their_reasons(&self) {
        let with = |mut parameters: Value| {
            parameters["apiVersion"] = "gpu.aliquot.dev/v1alpha1".into();
            parameters["kind"] = "SliceConfig".into();
            json!([{"opaque": {"driver": "gpu.aliquot.dev", "parameters": parameters}}])
        };
        let requests = json!([device_request("gpu", 30, 64)]);
        // The API server refuses parameters that are wrong by themselves, by the admission policy.
        let refused = [
            (json!({"coreLimitPercent": 101}), "coreLimitPercent is 101; it must be"),
            (json!({"coreLimitPercent": "80"}), "coreLimitPercent is 80; it must be"),
            (json!({"priorityClass": "urgent"}), "priorityClass is urgent; it must be"),
            (json!({"hostMemoryLimit": "4GB"}), "hostMemoryLimit is 4GB; it must be"),
            (json!({"coreLimit": 50}), "a field coreLimit, which there is not"),
        ];
        for (parameters, words) in refused {
            let claim = claim("refused", &requests, &with(parameters)).to_string();
            let create = ["create", "--dry-run=server", "--filename=-"];
            // A policy is in force a moment after it was made.
            let error = wait::until(words, || self.cluster.try_kubectl(&create, &claim).err());
            assert!(error.contains(words), "{words}: {error}");
            println!("ok: refused: {}", error.trim());
        }
        // The driver refuses parameters that are wrong only together with the request.
        let name = "limit-below-request";
        self.namespace.apply(&[
            claim(name, &requests, &with(json!({"coreLimitPercent": 20}))),
            pod(name, self.image, &prints_devices(), &json!({"resourceClaimName": name})),
        ]);
        let mut pod = pod("two", self.image, &prints_devices(), &json!({"resourceClaimName": "two"}));
        pod["spec"]["resourceClaims"] =
            json!([{"name": "gpu", "resourceClaimName": "two"}, {"name": "other", "resourceClaimName": "other"}]);
        pod["spec"]["containers"][0]["resources"]["claims"] = json!([{"name": "gpu"}, {"name": "other"}]);
        let requests = json!([device_request("gpu", 10, 64)]);
        self.namespace.apply(&[claim("two", &requests, &json!([])), claim("other", &requests, &json!([])), pod]);
        self.expect_refusal(name, &["coreLimitPercent is 20", "30 percent"]);
        self.expect_refusal("two", &["container \"main\"", "\"two\"", "\"other\"", "one slice"]);
        self.namespace.delete("resourceclaim", "other");
        self.manager.have_no_slices("nothing of them is left");
    }

    /// Waits until the pod with the claim is refused with these words, and removes both. Kubelet asks again when the pod
    /// changes, and the event counts. By itself kubelet would ask only at its next regular look at the pod, which is up
    /// to one and a half minutes later.
    fn expect_refusal(&self, name: &str, words: &[&str]) {
        let has_words = |event: &&Value| {
            event["involvedObject"]["kind"] == "ResourceClaim"
                && event["involvedObject"]["name"] == name
                && event["count"].as_u64() >= Some(2)
                && event["message"].as_str().is_some_and(|text| words.iter().all(|word| text.contains(word)))
        };
        let mut looks = 0;
        let event = wait::until(&format!("an event says why {name} is refused"), || {
            looks += 1;
            self.namespace.annotate(name, &format!("aliquot-test/look={looks}"));
            self.namespace.list("events").iter().find(has_words).cloned()
        });
        assert_eq!(event["source"]["component"], "gpu.aliquot.dev", "{event:#}");
        assert_eq!(self.namespace.get("pod", name)["status"]["phase"], "Pending");
        println!("ok: refused: {}", event["message"]);
        self.namespace.delete("pod", name);
        self.namespace.delete("resourceclaim", name);
    }

    /// The admission policy refuses it: the manager's rights alone would allow it.
    pub(crate) fn a_manager_changes_only_its_own_node_s_resource_slices(&self) {
        let publish = |token_node: Option<&str>, driver: &str| {
            let slice = json!({
                "apiVersion": "resource.k8s.io/v1", "kind": "ResourceSlice", "metadata": {"name": "aliquot-test"},
                "spec": {
                    "driver": driver, "nodeName": "node-of-a-test",
                    "pool": {"name": "node-of-a-test", "generation": 1, "resourceSliceCount": 1},
                },
            });
            let user = format!("--as={MANAGER}");
            let node = token_node.map(|node| format!("--as-user-extra=authentication.kubernetes.io/node-name={node}"));
            let create = ["create", "--dry-run=server", "--filename=-", &user];
            let arguments: Vec<&str> = create.into_iter().chain(node.as_deref()).collect();
            self.cluster.try_kubectl(&arguments, &slice.to_string())
        };
        let own = publish(Some("node-of-a-test"), "gpu.aliquot.dev");
        assert!(own.is_ok(), "{own:?}");
        let refused = [
            (publish(Some("another-node"), "gpu.aliquot.dev"), "must not change a resource slice of node"),
            (publish(Some("node-of-a-test"), "gpu.example.com"), "must not change a resource slice of driver"),
            (publish(None, "gpu.aliquot.dev"), "is bound to no node"),
        ];
        for (outcome, words) in refused {
            assert!(outcome.as_ref().is_err_and(|error| error.contains(words)), "{words}: {outcome:?}");
        }
        println!("ok: a manager changes only its own node's resource slices");
    }
}
