//! Pods with resource claims for devices of our driver and of another one together.

use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};

use aliquot_test_api_server::{CLAIMS, Fault, PODS, SLICES};
use serde_json::{Value, json};

use crate::kit::Cluster;

const NIC: &str = "nic.example.com";
const ROOT: &str = "resource.kubernetes.io/pcieRoot";

impl Cluster {
    /// A node with a GPU at root a and one at root b, and a card at root b.
    fn node_with_a_pair(&self, name: &str) {
        self.device_classes();
        self.node_with_driver(name, &["H100", "H100"]);
        self.cards(name, 1);
        for (slice, roots) in [("slice", &["a", "b"][..]), ("nics", &["b"])] {
            let slice = format!("{name}-{slice}");
            let mut devices = self.objects.get(&SLICES, "", &slice)["spec"]["devices"].clone();
            for (device, root) in devices.as_array_mut().unwrap().iter_mut().zip(roots) {
                json_patch::merge(device, &json!({"attributes": {ROOT: {"string": root}}}));
            }
            let pool = json!({"name": pool_of(&slice, name), "generation": 2, "resourceSliceCount": 1});
            self.objects.merge(&SLICES, "", &slice, &json!({"spec": {"devices": devices, "pool": pool}}));
        }
    }

    /// The pod of the example, with a claim made by hand, as Kubernetes' controller makes it.
    fn pod_with_near_card(&self, name: &str) {
        let path = PathBuf::from(env!("CARGO_MANIFEST_DIR"));
        let path = path.join("../../deploy/kubernetes/examples/scheduler/near-card.yaml");
        let example = std::fs::read_to_string(path).unwrap();
        let [template, pod] = serde_saphyr::from_multiple::<Value>(&example).unwrap().try_into().expect("two objects");
        let claim = json!({
            "apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaim", "metadata": {"name": name},
            "spec": template["spec"]["spec"],
        });
        self.objects.create(&CLAIMS, "default", claim);
        let mut spec = pod["spec"].clone();
        spec["resourceClaims"] = json!([{"name": "devices", "resourceClaimName": name}]);
        self.pod(name, 0, json!({"spec": spec}));
    }

    /// What a claim has: request, pool and device.
    fn has(&self, claim: &str) -> Vec<String> {
        let results = self.status_of_claim(claim)["allocation"]["devices"]["results"].clone();
        let text = |of: &Value| of.as_str().unwrap().to_owned();
        let result = |of: &Value| format!("{} {}/{}", text(&of["request"]), text(&of["pool"]), text(&of["device"]));
        results.as_array().into_iter().flatten().map(result).collect()
    }
}

/// The pool of a slice: the cards' has the slice's name, and ours the node's.
fn pool_of<'a>(slice: &'a str, node: &'a str) -> &'a str {
    if slice.ends_with("-nics") { slice } else { node }
}

#[test]
fn a_gpu_and_a_card_of_one_root_are_one_claim() {
    let mut cluster = Cluster::start();
    cluster.node_with_a_pair("n");
    let leader = cluster.scheduler();
    cluster.pod_with_near_card("a");
    cluster.wait_until_bound(&["a"]);
    assert_eq!(cluster.has("a"), ["gpu n/gpu-1", "nic n-nics/nic-0"]);
    let status = cluster.status_of_claim("a");
    let results = &status["allocation"]["devices"]["results"];
    assert_eq!(results[0]["consumedCapacity"], json!({"core": "50", "memory": (8_u64 << 30).to_string()}));
    assert!(results[0]["shareID"].is_string() && results[1]["shareID"].is_null(), "{results}");
    let field = &status["allocation"]["nodeSelector"]["nodeSelectorTerms"][0]["matchFields"][0];
    assert_eq!((&field["values"], &status["reservedFor"][0]["name"]), (&json!(["n"]), &json!("a")));
    // The next leader knows who has the card, and says what the other pod lacks: both GPUs have room.
    leader.kill();
    let _next = cluster.scheduler();
    cluster.pod_with_near_card("b");
    cluster.wait_until("b says what is missing", |cluster| {
        let said = cluster.why_waiting("b");
        said.is_some_and(|(reason, text)| reason == "Unschedulable" && text.contains(NIC) && text.contains(ROOT))
    });
    assert!(cluster.status_of_claim("b")["allocation"].is_null());
    cluster.objects.delete(&PODS, "default", "a");
    cluster.give_back("a");
    cluster.wait_until_bound(&["b"]);
    assert_eq!(cluster.has("b"), ["gpu n/gpu-1", "nic n-nics/nic-0"]);
}

#[test]
fn both_are_given_back_if_the_pod_is_not_bound() {
    let mut cluster = Cluster::with_faults();
    cluster.node_with_a_pair("n");
    let first = AtomicBool::new(true);
    cluster.server().set_fault(move |_, path| match path.ends_with("/a/binding") {
        true if first.swap(false, Ordering::SeqCst) => Fault::Refused,
        _ => Fault::None,
    });
    let _scheduler = cluster.scheduler();
    cluster.pod_with_near_card("a");
    cluster.wait_until_bound(&["a"]);
    assert_eq!(cluster.has("a"), ["gpu n/gpu-1", "nic n-nics/nic-0"]);
}
