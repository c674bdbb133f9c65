//! The possible requests of pods by claims.

use std::time::Instant;

use aliquot_harness::MIB;
use serde_json::json;

use super::Tests;
use super::objects::{claim, claim_template, device_request, holds, pod, prints_devices};

impl Tests<'_> {
    pub(crate) fn a_pod_of_a_template_has_its_part(&self) {
        let started = Instant::now();
        self.namespace.apply(&[
            claim_template("part", &json!([device_request("gpu", 30, 64)]), &json!([])),
            pod("part", self.image, &prints_devices(), &json!({"resourceClaimTemplateName": "part"})),
        ]);
        let said = self.namespace.output("part");
        assert!(said.starts_with(&format!("device 0: total {}, free", 64 * MIB)), "{said}");
        assert_eq!(said.lines().count(), 1, "{said}");
        assert!(said.contains("all 0, then 2, launch 0"), "{said}");
        println!("ok: a pod of a template had its part, and had ended after {:?}", started.elapsed());
        self.namespace.delete("pod", "part");
    }

    pub(crate) fn two_pods_share_a_claim(&self) {
        self.namespace.apply(&[
            claim("shared", &json!([device_request("gpu", 40, 64)]), &json!([])),
            pod("holder", self.image, &holds(16 * MIB), &json!({"resourceClaimName": "shared"})),
        ]);
        self.namespace.wait_for_output("holder", "held");
        self.namespace.apply(&[pod("second", self.image, &prints_devices(), &json!({"resourceClaimName": "shared"}))]);
        let said = self.namespace.output("second");
        assert!(said.starts_with(&format!("device 0: total {}, free {}, all 2,", 64 * MIB, 48 * MIB)), "{said}");
        let status = self.namespace.get("resourceclaim", "shared");
        let device = &status["status"]["devices"][0];
        assert_eq!(device["driver"], "gpu.aliquot.dev", "{status:#}");
        assert_eq!(device["conditions"][0]["status"], "True", "{status:#}");
        println!("ok: two pods shared a claim, whose status is {}", device["data"]);
        for pod in ["holder", "second"] {
            self.namespace.delete("pod", pod);
        }
        self.namespace.delete("resourceclaim", "shared");
    }

    pub(crate) fn a_container_has_several_devices(&self) {
        if self.devices < 2 {
            println!("not run: several devices, because there is only one");
            return;
        }
        let mut request = device_request("gpus", 25, 32);
        request["exactly"]["count"] = 2.into();
        let mut template = claim_template("several", &json!([request]), &json!([]));
        template["spec"]["spec"]["devices"]["constraints"] =
            json!([{"requests": ["gpus"], "distinctAttribute": "gpu.aliquot.dev/uuid"}]);
        let claims = json!({"resourceClaimTemplateName": "several"});
        self.namespace.apply(&[template, pod("several", self.image, &prints_devices(), &claims)]);
        let said = self.namespace.output("several");
        let lines: Vec<&str> = said.lines().collect();
        assert_eq!(lines.len(), 2, "{said}");
        assert!(lines.iter().all(|line| line.contains(&format!("total {}, ", 32 * MIB))), "{said}");
        println!("ok: a container had parts of two devices");
        self.namespace.delete("pod", "several");
    }

    pub(crate) fn the_first_that_fits_is_taken(&self) {
        let mut impossible = device_request("more-than-there-is", 50, 1 << 30)["exactly"].take();
        impossible["name"] = "more-than-there-is".into();
        let mut possible = device_request("fits", 50, 48)["exactly"].take();
        possible["name"] = "fits".into();
        let requests = json!([{"name": "gpu", "firstAvailable": [impossible, possible]}]);
        let claims = json!({"resourceClaimTemplateName": "prioritised"});
        self.namespace.apply(&[
            claim_template("prioritised", &requests, &json!([])),
            pod("prioritised", self.image, &prints_devices(), &claims),
        ]);
        let said = self.namespace.output("prioritised");
        assert!(said.starts_with(&format!("device 0: total {}, ", 48 * MIB)), "{said}");
        println!("ok: of a prioritised list the first that fits was taken");
        self.namespace.delete("pod", "prioritised");
    }
}
