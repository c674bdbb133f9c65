//! Pods that the scheduler's webhook reviews: see `deploy/kubernetes/components/webhook`.

use aliquot_harness::wait;
use serde_json::json;

use super::Tests;
use super::holder::HELD_BYTES;
use super::objects::holds;

impl Tests<'_> {
    pub(crate) fn the_webhook_refuses_and_fills_in(&self) {
        for kind in ["mutatingwebhookconfiguration", "validatingwebhookconfiguration"] {
            wait::until_true("the replicas have said by what the API server knows them", || {
                let path = "--output=jsonpath={.webhooks[*].clientConfig.caBundle}";
                !self.cluster.kubectl(&["get", kind, "aliquot-scheduler-webhook", path], "").is_empty()
            });
        }
        // No admission policy knows this word.
        let mut asks = self.asks("mistyped", &holds(HELD_BYTES), 30, 64);
        for pod in asks.iter_mut().filter(|object| object["kind"] == "Pod") {
            pod["spec"]["schedulerName"] = "aliquot".into();
            pod["metadata"]["annotations"] = json!({"aliquot.dev/gagn": "g"});
        }
        let refusal = wait::until("the API server asks the webhook", || {
            let refusal = self.namespace.try_apply(&asks).err();
            if refusal.is_none() {
                self.remove("mistyped");
            }
            refusal
        });
        assert!(refusal.contains("pods.aliquot.dev") && refusal.contains("aliquot.dev/gagn"), "{refusal}");
        println!("ok: refused: {}", refusal.trim());
        self.clear();
        let label = |to: &str| {
            let label = format!("aliquot.dev/scheduler{to}");
            self.cluster.kubectl(&["label", "namespace", self.namespace.name(), &label], "");
        };
        label("=aliquot");
        self.namespace.apply(&self.asks("unnamed", &holds(HELD_BYTES), 30, 64));
        self.namespace.wait_for_output("unnamed", "held");
        assert_eq!(self.namespace.get("pod", "unnamed")["spec"]["schedulerName"], "aliquot");
        println!("ok: a pod of a namespace of the scheduler's was placed by it");
        label("-");
        self.clear();
    }
}
