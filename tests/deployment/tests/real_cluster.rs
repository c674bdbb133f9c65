//! Everything once more on a real cluster: a real API server, scheduler, kubelet and container runtime. Ignored
//! unless asked for:
//!
//! ```sh
//! KUBECONFIG=... ALIQUOT_TEST_IMPORT='kind load image-archive' \
//!     cargo test -p aliquot-deployment --test real_cluster -- --ignored --nocapture
//! ```
//!
//! | variable | |
//! | --- | --- |
//! | `KUBECONFIG` | the cluster, of Kubernetes 1.36 or later, and an administrator's rights in it; `kubectl` is used |
//! | `ALIQUOT_TEST_IMPORT` | a command that brings an image's archive, its last argument, to the cluster's nodes |
//! | `ALIQUOT_TEST_GPU` | `simulated` where the cluster's only node is this machine and has no GPU |
//!
//! The manager stays deployed; `kubectl delete -k deploy/kubernetes/dra` removes it.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use aliquot_harness::{HostProgram, Image, MIB, SimulatedGpu, wait};
use serde_json::{Value, json};

#[path = "real_cluster/cluster.rs"]
mod cluster;
#[path = "real_cluster/manager.rs"]
mod manager;
#[path = "real_cluster/objects.rs"]
mod objects;

use cluster::{Cluster, Namespace};
use manager::Manager;
use objects::{claim, claim_template, device_request, holds, pod, prints_devices};

/// Pods that start at once.
const PODS: u64 = 20;

#[test]
#[ignore = "needs a real cluster in KUBECONFIG"]
fn pods_of_a_real_cluster_run_in_the_slices_of_their_claims() {
    let cluster = Cluster::of_kubeconfig();
    println!("cluster: {}", cluster.version());
    let gpu = SimulatedGpu::with("[[device]]\nmemory = '8 GiB'\n[[device]]\nmemory = '8 GiB'\n");
    let simulated = std::env::var("ALIQUOT_TEST_GPU").is_ok_and(|gpu| gpu == "simulated");
    let programs = [HostProgram::linked(&gpu, "devices"), HostProgram::linked(&gpu, "hold")];
    let image = Image::with(&programs.each_ref());
    cluster.import(&image);
    let manager = Manager::deploy(&cluster, simulated.then_some(&gpu));
    let devices = manager.devices();
    println!("published: {devices} devices");

    let namespace = cluster.namespace("aliquot-test");
    let tests = Tests { manager: &manager, namespace: &namespace, image: image.reference(), devices };
    tests.a_pod_of_a_template_has_its_part();
    tests.two_pods_share_a_claim();
    tests.a_container_has_several_devices();
    tests.the_first_that_fits_is_taken();
    tests.a_bad_configuration_is_refused_with_its_reason();
    tests.pods_that_start_at_once_have_each_its_own();
    tests.an_upgrade_disturbs_nobody();
    drop(namespace);
    wait::until_true("all slices are gone", || manager.slices().is_empty());
    println!("ok: nothing is left");
}

struct Tests<'a> {
    manager: &'a Manager<'a>,
    namespace: &'a Namespace<'a>,
    image: &'a str,
    devices: usize,
}

impl Tests<'_> {
    fn a_pod_of_a_template_has_its_part(&self) {
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

    fn two_pods_share_a_claim(&self) {
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

    fn a_container_has_several_devices(&self) {
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

    fn the_first_that_fits_is_taken(&self) {
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

    fn a_bad_configuration_is_refused_with_its_reason(&self) {
        let config = json!([{"opaque": {"driver": "gpu.aliquot.dev", "parameters": {
            "apiVersion": "gpu.aliquot.dev/v1alpha1", "kind": "SliceConfig", "coreLimitPercent": 20
        }}}]);
        self.namespace.apply(&[
            claim("bad", &json!([device_request("gpu", 30, 64)]), &config),
            pod("bad", self.image, &prints_devices(), &json!({"resourceClaimName": "bad"})),
        ]);
        let reason = wait::until("an event says why", || {
            let events = self.namespace.list("events");
            let about =
                |event: &&Value| event["message"].as_str().is_some_and(|text| text.contains("coreLimitPercent"));
            events.iter().find(about).map(|event| event["message"].to_string())
        });
        assert!(reason.contains("20") && reason.contains("30"), "{reason}");
        assert_eq!(self.namespace.get("pod", "bad")["status"]["phase"], "Pending");
        println!("ok: a bad configuration is refused: {reason}");
        self.namespace.delete("pod", "bad");
        self.namespace.delete("resourceclaim", "bad");
    }

    fn pods_that_start_at_once_have_each_its_own(&self) {
        let started = Instant::now();
        let memory_mib = |number: u64| 8 + number * 4;
        let objects: Vec<Value> = (0..PODS)
            .flat_map(|number| {
                let (name, requests) =
                    (format!("many-{number}"), json!([device_request("gpu", 5, memory_mib(number))]));
                let claims = json!({"resourceClaimName": name});
                [claim(&name, &requests, &json!([])), pod(&name, self.image, &prints_devices(), &claims)]
            })
            .collect();
        self.namespace.apply(&objects);
        for number in 0..PODS {
            let said = self.namespace.output(&format!("many-{number}"));
            assert!(said.starts_with(&format!("device 0: total {}, ", memory_mib(number) * MIB)), "{number}: {said}");
        }
        println!("ok: {PODS} pods started at once, each in its own slice, and had ended after {:?}", started.elapsed());
        for kind in ["pod", "resourceclaim"] {
            self.namespace.delete_all(kind);
        }
    }

    fn an_upgrade_disturbs_nobody(&self) {
        self.namespace.apply(&[
            claim("kept", &json!([device_request("gpu", 40, 64)]), &json!([])),
            pod("kept", self.image, &holds(16 * MIB), &json!({"resourceClaimName": "kept"})),
        ]);
        self.namespace.wait_for_output("kept", "held");
        let before = self.namespace.get("pod", "kept");
        self.manager.restart();
        let mut used: BTreeMap<String, u64> = BTreeMap::new();
        wait::until_true("the new manager knows the process", || {
            used = self.manager.used_bytes();
            used.values().any(|bytes| *bytes == 16 * MIB)
        });
        let after = self.namespace.get("pod", "kept");
        assert_eq!(before["status"]["containerStatuses"], after["status"]["containerStatuses"]);
        self.namespace.apply(&[pod("late", self.image, &prints_devices(), &json!({"resourceClaimName": "kept"}))]);
        let said = self.namespace.output("late");
        assert!(said.starts_with(&format!("device 0: total {}, free {}", 64 * MIB, 48 * MIB)), "{said}");
        println!("ok: an upgrade of the manager disturbed nobody, and {used:?} is in use");
    }
}

/// Real clusters are slower than what the harness waits for elsewhere.
const PATIENCE: Duration = Duration::from_secs(180);
