//! Claims that the pods of a PodGroup share.

use std::thread;
use std::time::Duration;

use aliquot_test_api_server::{CLAIMS, Fault, POD_GROUPS, PODS};
use serde_json::{Value, json};

use crate::claims::with_devices;
use crate::kit::Cluster;

impl Cluster {
    /// A PodGroup of which so many pods start together, with a claim for so many percent of a GPU. Kubernetes' controller
    /// makes the claim from the template.
    fn group_with_claim(&self, name: &str, least: u32, core: &str) {
        let claims = json!([{"name": "gpu", "resourceClaimTemplateName": "part"}]);
        let group = json!({
            "apiVersion": "scheduling.k8s.io/v1alpha2", "kind": "PodGroup", "metadata": {"name": name},
            "spec": {"schedulingPolicy": {"gang": {"minCount": least}}, "resourceClaims": claims},
        });
        self.objects.create(&POD_GROUPS, "default", group);
        let owner = json!({
            "apiVersion": "scheduling.k8s.io/v1alpha2", "kind": "PodGroup", "name": name, "uid": self.uid_of_group(name),
            "controller": true,
        });
        let annotations = json!({"resource.kubernetes.io/pod-claim-name": "gpu"});
        let metadata = json!({"name": format!("{name}-gpu-x"), "ownerReferences": [owner], "annotations": annotations});
        let claim = self.make_claim(metadata, core, json!({}));
        let status = json!({"status": {"resourceClaimStatuses": [{"name": "gpu", "resourceClaimName": claim}]}});
        self.objects.merge_status(&POD_GROUPS, "default", name, &status);
    }

    fn condition_of_group(&self, name: &str) -> Option<Value> {
        let group = self.objects.get(&POD_GROUPS, "default", name);
        let conditions = group["status"]["conditions"].as_array()?.clone();
        conditions.into_iter().find(|of| of["type"] == "PodGroupScheduled")
    }

    /// Whether a PodGroup says that it has started.
    pub(crate) fn has_started(&self, group: &str) -> bool {
        self.condition_of_group(group).is_some_and(|of| of["status"] == "True" && of["reason"] == "Scheduled")
    }

    fn uid_of_group(&self, name: &str) -> Value {
        self.objects.get(&POD_GROUPS, "default", name)["metadata"]["uid"].clone()
    }

    /// A pod of a PodGroup, with the group's claim.
    fn member(&self, name: &str, group: &str) {
        let named = json!([{"name": "gpu", "resourceClaimTemplateName": "part"}]);
        let in_group = json!({"podGroupName": group});
        self.pod_with_claim(name, "", json!({"spec": {"resourceClaims": named, "schedulingGroup": in_group}}));
        let claim = format!("{group}-gpu-x");
        let status = json!({"status": {"resourceClaimStatuses": [{"name": "gpu", "resourceClaimName": claim}]}});
        self.objects.merge_status(&PODS, "default", name, &status);
    }
}

#[test]
fn a_gang_shares_a_claim_that_is_reserved_for_its_group() {
    let (cluster, scheduler) = with_devices(&["H100"]);
    cluster.node_with_driver("m", &["H100"]);
    cluster.group_with_claim("g", 3, "60");
    cluster.member("a", "g");
    cluster.member("b", "g");
    cluster.wait_until("a waits for one more", |cluster| {
        cluster.why_waiting("a").is_some_and(|(_, text)| text.contains("needs 1 more"))
    });
    cluster.member("c", "g");
    cluster.wait_until_bound(&["a", "b", "c"]);
    let nodes = cluster.bound();
    assert!(nodes.values().all(|node| *node == nodes["a"]), "{nodes:?}");
    let is_reserved_for_the_group = |cluster: &Cluster| {
        let claim = cluster.objects.get(&CLAIMS, "default", "g-gpu-x");
        let group = json!({
            "apiGroup": "scheduling.k8s.io", "resource": "podgroups", "name": "g", "uid": cluster.uid_of_group("g"),
        });
        claim["status"]["reservedFor"] == json!([group])
    };
    assert!(is_reserved_for_the_group(&cluster));
    assert_eq!(cluster.allocated("g-gpu-x").len(), 1);
    // The next leader finds all of it, and a later pod joins.
    scheduler.stop();
    let mut cluster = cluster;
    let _next = cluster.scheduler();
    cluster.objects.delete(&PODS, "default", "a");
    cluster.collect_claims();
    cluster.member("d", "g");
    cluster.wait_until_bound(&["b", "c", "d"]);
    assert_eq!(cluster.bound()["d"], nodes["a"]);
    assert!(is_reserved_for_the_group(&cluster));
    cluster.pod_with_template("other", "60", json!({}));
    cluster.wait_until_bound(&["b", "c", "d", "other"]);
    assert_ne!(cluster.bound()["other"], nodes["a"]);
}

#[test]
fn a_pod_group_says_why_it_waits_and_that_it_has_started() {
    let (cluster, _scheduler) = Cluster::with_one_gpu();
    let group = json!({
        "apiVersion": "scheduling.k8s.io/v1alpha2", "kind": "PodGroup", "metadata": {"name": "g"},
        "spec": {"schedulingPolicy": {"gang": {"minCount": 2}}},
    });
    cluster.objects.create(&POD_GROUPS, "default", group);
    let member = json!({"spec": {"schedulingGroup": {"podGroupName": "g"}}});
    cluster.pod("a", 60, member.clone());
    cluster.pod("b", 60, member.clone());
    cluster.wait_until("the group says which pod lacks room", |cluster| {
        let condition = cluster.condition_of_group("g").unwrap_or_default();
        let message = condition["message"].as_str().unwrap_or_default();
        let is_of_a_pod = ["pod a: ", "pod b: "].iter().any(|pod| message.starts_with(pod));
        condition["status"] == "False" && condition["reason"] == "Unschedulable" && is_of_a_pod
    });
    cluster.wait_until("the event about the group", |cluster| !cluster.events_about("g").is_empty());
    cluster.node("m", 1);
    cluster.wait_until_bound(&["a", "b"]);
    cluster.wait_until("the group has started", |cluster| cluster.has_started("g"));
    // It never takes that back.
    cluster.pod("c", 100, member);
    cluster.wait_until("c waits", |cluster| cluster.why_waiting("c").is_some());
    assert!(cluster.has_started("g"));
}

/// All pods of the group are changed first, which takes longer than a lease lasts if one is changed after the other.
#[test]
fn what_many_pods_were_to_share_is_given_back_by_a_slow_server() {
    let mut cluster = Cluster::with_faults();
    cluster.device_classes();
    cluster.node_with_driver("n", &["H100"]);
    cluster.group_with_claim("g", 100, "60");
    for number in 0..100 {
        cluster.member(&format!("p{number}"), "g");
    }
    let group = json!({
        "apiGroup": "scheduling.k8s.io", "resource": "podgroups", "name": "g", "uid": cluster.uid_of_group("g"),
    });
    let result = json!({"request": "gpu", "driver": "gpu.aliquot.dev", "pool": "gone", "device": "gpu-0",
        "consumedCapacity": {"core": "60", "memory": "2Gi"}});
    let field = json!({"key": "metadata.name", "operator": "In", "values": ["gone"]});
    let allocation = json!({
        "devices": {"results": [result]}, "nodeSelector": {"nodeSelectorTerms": [{"matchFields": [field]}]},
    });
    let status = json!({"status": {"allocation": allocation, "reservedFor": [group]}});
    cluster.objects.merge_status(&CLAIMS, "default", "g-gpu-x", &status);
    cluster.server().set_fault(|method, path| {
        if method == "PATCH" && path.contains("/pods/") && path.ends_with("/status") {
            // The server's other answers do not wait for this one, however few threads it has.
            tokio::task::block_in_place(|| thread::sleep(Duration::from_millis(120)));
        }
        Fault::None
    });
    let _scheduler = cluster.scheduler();
    cluster.wait_until("the claim is allocated where a node is", |cluster| {
        let claim = cluster.objects.get(&CLAIMS, "default", "g-gpu-x");
        claim["status"]["allocation"]["devices"]["results"][0]["pool"] == "n"
    });
}
