//! Pods with extended resources for which a device class stands, where managers run as DRA drivers.

use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};

use aliquot_test_api_server::{CLAIMS, DEVICE_CLASSES, Fault};
use serde_json::{Value, json};

use crate::kit::Cluster;

/// The example: a class that stands for a resource, and a pod that asks for it.
fn example() -> [Value; 2] {
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR"));
    let path = path.join("../../deploy/kubernetes/examples/scheduler/extended-resource.yaml");
    let example = std::fs::read_to_string(path).unwrap();
    serde_saphyr::from_multiple::<Value>(&example).unwrap().try_into().expect("two objects")
}

/// The claims that were made for extended resources.
fn made(cluster: &Cluster) -> Vec<Value> {
    let is_made =
        |claim: &Value| claim["metadata"]["annotations"]["resource.kubernetes.io/extended-resource-claim"] == "true";
    cluster.objects.list(&CLAIMS).into_iter().filter(is_made).collect()
}

#[test]
fn a_pod_that_asks_for_units_gets_a_claim_of_its_own() {
    let mut cluster = Cluster::start();
    let [class, pod] = example();
    cluster.node_with_driver("n", &["H100"]);
    let leader = cluster.scheduler();
    cluster.pod("train", 0, json!({"spec": pod["spec"]}));
    cluster.wait_until("it says what is missing", |cluster| cluster.why_waiting("train").is_some());
    cluster.objects.create(&DEVICE_CLASSES, "", class);
    cluster.wait_until_bound(&["train"]);
    let [claim] = <[Value; 1]>::try_from(made(&cluster)).unwrap();
    let bound = cluster.get("train");
    let owner = &claim["metadata"]["ownerReferences"][0];
    assert_eq!((&owner["uid"], &owner["controller"]), (&bound["metadata"]["uid"], &json!(true)));
    assert_eq!(claim["metadata"]["finalizers"], json!(["resource.kubernetes.io/delete-protection"]));
    assert_eq!(claim["status"]["reservedFor"][0]["uid"], bound["metadata"]["uid"]);
    let result = &claim["status"]["allocation"]["devices"]["results"][0];
    assert_eq!((&result["device"], &result["request"]), (&json!("gpu-0"), &json!("container-0-request-0")));
    let status = &bound["status"]["extendedResourceClaimStatus"];
    assert_eq!(status["resourceClaimName"], claim["metadata"]["name"]);
    let mapping = json!({
        "containerName": "train", "resourceName": "example.com/gpu", "requestName": "container-0-request-0",
    });
    assert_eq!(status["requestMappings"], json!([mapping]));
    // The next leader knows what it has.
    leader.kill();
    let _next = cluster.scheduler();
    cluster.pod("more", 0, json!({"spec": pod["spec"]}));
    cluster.wait_until("the other one waits", |cluster| {
        cluster.why_waiting("more").is_some_and(|(reason, _)| reason == "Unschedulable")
    });
    assert_eq!(made(&cluster).len(), 1);
}

#[test]
fn a_claim_is_deleted_if_its_pod_is_not_bound() {
    let mut cluster = Cluster::with_faults();
    let [class, pod] = example();
    cluster.objects.create(&DEVICE_CLASSES, "", class);
    cluster.node_with_driver("n", &["H100"]);
    let first = AtomicBool::new(true);
    cluster.server().set_fault(move |_, path| match path.ends_with("/train/binding") {
        true if first.swap(false, Ordering::SeqCst) => Fault::Refused,
        _ => Fault::None,
    });
    let _scheduler = cluster.scheduler();
    cluster.pod("train", 0, json!({"spec": pod["spec"]}));
    cluster.wait_until_bound(&["train"]);
    let deleted = cluster.server().calls();
    let deleted = deleted.iter().filter(|call| (call.verb, call.resource.as_str()) == ("delete", "resourceclaims"));
    assert_eq!((deleted.count(), made(&cluster).len()), (1, 1));
}

#[test]
fn another_leader_deletes_the_claim_of_a_pod_that_was_not_bound() {
    let mut cluster = Cluster::with_faults();
    let [class, pod] = example();
    cluster.objects.create(&DEVICE_CLASSES, "", class);
    cluster.node_with_driver("n", &["H100"]);
    cluster.server().set_fault(|_, path| match path.ends_with("/train/binding") {
        true => Fault::Refused,
        false => Fault::None,
    });
    let leader = cluster.scheduler();
    cluster.pod("train", 0, json!({"spec": pod["spec"]}));
    cluster.wait_until("the claim is allocated", |cluster| {
        made(cluster).iter().any(|claim| claim["status"]["allocation"].is_object())
    });
    leader.kill();
    cluster.outdate_bindings_of("train");
    cluster.server().set_fault(|_, _| Fault::None);
    assert!(cluster.bound().is_empty());
    let _next = cluster.scheduler();
    cluster.wait_until_bound(&["train"]);
    let [claim] = <[Value; 1]>::try_from(made(&cluster)).unwrap();
    assert_eq!(
        cluster.get("train")["status"]["extendedResourceClaimStatus"]["resourceClaimName"],
        claim["metadata"]["name"]
    );
}
