//! What users do.

use aliquot_test_api_server::{
    BUDGETS, NAMESPACES, NODES, POD_GROUPS, PODS, PRIORITY_CLASSES, QUEUES, SCHEDULING_POLICIES, VOLUME_CLAIMS, VOLUMES,
};
use serde_json::{Value, json};

use crate::kit::Cluster;

#[test]
fn a_bound_pod_carries_its_part() {
    let (cluster, _scheduler) = Cluster::with_one_gpu();
    cluster.pod("a", 30, json!({}));
    cluster.wait_until_bound(&["a"]);
    let pod = cluster.get("a");
    let part = format!("main=GPU-n-0/300/{}", (80_u64 << 30) * 3 / 10);
    assert_eq!(pod["metadata"]["annotations"]["aliquot.dev/devices"], part);
    let condition = &pod["status"]["conditions"][0];
    assert_eq!((&condition["type"], &condition["status"]), (&json!("PodScheduled"), &json!("True")));
}

#[test]
fn a_pod_that_waits_says_why() {
    let (cluster, _scheduler) = Cluster::with_one_gpu();
    cluster.pod("a", 60, json!({}));
    cluster.wait_until_bound(&["a"]);
    cluster.pod("b", 60, json!({}));
    // More nodes would help, so an autoscaler is to see it. Programs tell by the first word what it waits for.
    let message = cluster.wait_until_it_waits("b", "Unschedulable", "no-room: ");
    assert!(message.contains("600 thousandths") || message.contains("60 %"), "{message}");
    cluster.wait_until("the event about b", |cluster| {
        cluster.events_about("b").iter().any(|event| event.starts_with("\"FailedScheduling\": \"no-room: "))
    });
    cluster.objects.delete(&PODS, "default", "a");
    cluster.wait_until_bound(&["b"]);
}

#[test]
fn a_pod_that_cannot_be_scheduled_as_it_is_says_so() {
    let (cluster, _scheduler) = Cluster::with_one_gpu();
    cluster.pod("a", 30, json!({"spec": {"resourceClaims": [{"name": "gpu", "resourceClaimName": "gpu"}]}}));
    cluster.wait_until("a says why it waits", |cluster| cluster.why_waiting("a").is_some());
    let (reason, message) = cluster.why_waiting("a").unwrap();
    assert_eq!(reason, "NotSupported");
    assert!(message.starts_with("not-supported: there is no ResourceClaim \"gpu\""), "{message}");
}

#[test]
fn pods_of_other_schedulers_are_left_alone() {
    let (cluster, _scheduler) = Cluster::with_one_gpu();
    cluster.pod("other", 30, json!({"spec": {"schedulerName": "default-scheduler"}}));
    cluster.pod("a", 30, json!({}));
    cluster.wait_until_bound(&["a"]);
    assert!(cluster.why_waiting("other").is_none());
}

#[test]
fn a_disruption_budget_protects_a_pod_until_it_allows() {
    let (cluster, _scheduler) = Cluster::with_one_gpu();
    cluster.pod("train", 100, json!({"metadata": {"labels": {"app": "train"}}, "spec": {"priority": 50}}));
    let budget = json!({
        "apiVersion": "policy/v1", "kind": "PodDisruptionBudget", "metadata": {"name": "train"},
        "spec": {"minAvailable": 1, "selector": {"matchLabels": {"app": "train"}}},
    });
    cluster.objects.create(&BUDGETS, "default", budget);
    cluster.wait_until_bound(&["train"]);
    let status = json!({"status": {"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]}});
    cluster.objects.merge_status(&PODS, "default", "train", &status);
    cluster.pod("serve", 100, json!({"spec": {"priority": 90}}));
    let message = cluster.wait_until_it_waits("serve", "Unschedulable", "fair-share: ");
    assert!(message.contains("1 are protected by disruption budget \"train\""), "{message}");
    assert_eq!(cluster.bound().len(), 1);
    assert!(cluster.get("train")["metadata"]["deletionTimestamp"].is_null());
    let status = json!({"status": {
        "disruptionsAllowed": 1, "currentHealthy": 2, "desiredHealthy": 1, "expectedPods": 2, "observedGeneration": 1,
    }});
    cluster.objects.merge_status(&BUDGETS, "default", "train", &status);
    cluster.wait_until_bound(&["serve"]);
}

#[test]
fn a_pod_names_the_node_that_is_kept_for_it() {
    let (cluster, _scheduler) = Cluster::with_one_gpu();
    // Something holds up the end of the pod that is evicted.
    let held = json!({"metadata": {"finalizers": ["aliquot.dev/test"]}, "spec": {"priority": 50}});
    cluster.pod("low", 100, held);
    cluster.wait_until_bound(&["low"]);
    cluster.pod("serve", 100, json!({"spec": {"priority": 90}}));
    let nominated = |cluster: &Cluster| cluster.get("serve")["status"]["nominatedNodeName"].clone();
    cluster.wait_until("serve names its node", |cluster| nominated(cluster) == "n");
    let (reason, message) = cluster.why_waiting("serve").unwrap();
    assert!(reason == "Waiting" && message.contains("node n is kept"), "{reason}: {message}");
    cluster.objects.delete(&NODES, "", "n");
    cluster.wait_until("serve names no node", |cluster| nominated(cluster).is_null());
}

#[test]
fn a_gang_waits_until_all_of_it_has_room() {
    let (cluster, _scheduler) = Cluster::with_one_gpu();
    let annotations = json!({"aliquot.dev/gang": "g", "aliquot.dev/gang-size": "3"});
    for name in ["a", "b", "c"] {
        cluster.pod(name, 100, json!({"metadata": {"annotations": annotations}}));
    }
    cluster.wait_until("a says why it waits", |cluster| cluster.why_waiting("a").is_some());
    assert!(cluster.bound().is_empty());
    cluster.node("m", 2);
    cluster.wait_until_bound(&["a", "b", "c"]);
}

#[test]
fn the_class_of_a_pod_group_counts_for_its_pods() {
    let (cluster, _scheduler) = Cluster::with_one_gpu();
    let class = json!({
        "apiVersion": "scheduling.k8s.io/v1", "kind": "PriorityClass", "metadata": {"name": "urgent-groups"}, "value": 90,
    });
    cluster.objects.create(&PRIORITY_CLASSES, "", class);
    cluster.pod("low", 100, json!({"spec": {"priority": 50}}));
    cluster.wait_until_bound(&["low"]);
    let group = json!({
        "apiVersion": "scheduling.k8s.io/v1alpha2", "kind": "PodGroup", "metadata": {"name": "g"},
        "spec": {"schedulingPolicy": {"gang": {"minCount": 1}}, "priorityClassName": "urgent-groups"},
    });
    cluster.objects.create(&POD_GROUPS, "default", group);
    let group = cluster.objects.get(&POD_GROUPS, "default", "g");
    if cluster.objects.is_real() && group["spec"]["priorityClassName"].is_null() {
        return eprintln!("not tested: the feature WorkloadAwarePreemption of the API server is off");
    }
    cluster.pod("a", 100, json!({"spec": {"schedulingGroup": {"podGroupName": "g"}}}));
    cluster.wait_until("a is bound in the place of low", |cluster| cluster.bound().contains_key("a"));
    cluster.objects.delete(&PRIORITY_CLASSES, "", "urgent-groups");
}

#[test]
fn queues_limit_what_a_namespace_holds() {
    let mut cluster = Cluster::start();
    cluster.node("n", 1);
    let queue = json!({
        "apiVersion": "aliquot.dev/v1alpha1", "kind": "Queue", "metadata": {"name": "small"},
        "spec": {"resources": {"gpu": {"quota": 0.5, "limit": 0.5}}},
    });
    cluster.objects.create(&QUEUES, "", queue);
    let labels = json!({"aliquot.dev/queue": "small"});
    let namespace = json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "default", "labels": labels}});
    cluster.objects.replace(&NAMESPACES, "", namespace);
    let _scheduler = cluster.scheduler();
    cluster.pod("large", 60, json!({}));
    // More nodes would not help.
    let message = cluster.wait_until_it_waits("large", "Waiting", "quota: ");
    assert!(message.contains("\"small\""), "{message}");
    cluster.pod("a", 40, json!({}));
    cluster.wait_until_bound(&["a"]);
}

#[test]
fn a_pod_is_placed_as_its_policy_says() {
    let (cluster, _scheduler) = Cluster::with_one_gpu();
    cluster.pod("a", 40, json!({}));
    cluster.wait_until_bound(&["a"]);
    cluster.pod("b", 40, json!({"metadata": {"labels": {"aliquot.dev/scheduling-policy": "roomy"}}}));
    let waits_for = |cluster: &Cluster, word: &str| cluster.why_waiting("b").is_some_and(|(_, why)| why.contains(word));
    cluster.wait_until("b waits for its policy", |cluster| waits_for(cluster, "no SchedulingPolicy"));
    let policy = json!({
        "apiVersion": "aliquot.dev/v1alpha1", "kind": "SchedulingPolicy", "metadata": {"name": "roomy"},
        "spec": {"memoryPolicy": {"usedPercentMax": 60}},
    });
    cluster.objects.create(&SCHEDULING_POLICIES, "", policy);
    cluster.wait_until("b waits for memory", |cluster| waits_for(cluster, "memory"));
    let roomier = json!({"spec": {"memoryPolicy": {"usedPercentMax": 80}}});
    cluster.objects.merge(&SCHEDULING_POLICIES, "", "roomy", &roomier);
    cluster.wait_until_bound(&["a", "b"]);
}

#[test]
fn a_pod_without_devices_is_scheduled_too() {
    let (cluster, _scheduler) = Cluster::with_one_gpu();
    let containers = json!([{"name": "main", "image": "none"}]);
    cluster.pod("a", 0, json!({"spec": {"containers": containers}}));
    cluster.wait_until_bound(&["a"]);
    assert_eq!(cluster.get("a")["metadata"]["annotations"]["aliquot.dev/devices"], Value::Null);
}

#[test]
fn a_pod_runs_where_its_volume_is() {
    let (cluster, _scheduler) = Cluster::with_one_gpu();
    cluster.node("m", 1);
    let claim = json!({
        "apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": {"name": "data"},
        "spec": {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}, "volumeName": "v"},
    });
    cluster.objects.create(&VOLUME_CLAIMS, "default", claim);
    let volumes = json!([{"name": "data", "persistentVolumeClaim": {"claimName": "data"}}]);
    for name in ["a", "b"] {
        cluster.pod(name, 60, json!({"spec": {"volumes": volumes}}));
    }
    cluster.wait_until("a says that its claim is not bound", |cluster| {
        cluster.why_waiting("a").is_some_and(|(_, message)| message.contains("\"data\" is not bound"))
    });
    let expression = json!({"key": "metadata.name", "operator": "In", "values": ["m"]});
    let volume = json!({
        "apiVersion": "v1", "kind": "PersistentVolume", "metadata": {"name": "v"},
        "spec": {
            "accessModes": ["ReadWriteOnce"], "capacity": {"storage": "1Gi"}, "hostPath": {"path": "/none"},
            "nodeAffinity": {"required": {"nodeSelectorTerms": [{"matchFields": [expression]}]}},
        },
    });
    cluster.objects.create(&VOLUMES, "", volume);
    let status = json!({"status": {"phase": "Bound"}});
    cluster.objects.merge_status(&VOLUME_CLAIMS, "default", "data", &status);
    cluster.wait_until("one pod is bound", |cluster| !cluster.bound().is_empty());
    // The other node has room, too, but not the volume.
    cluster.pod("c", 60, json!({}));
    cluster.wait_until("c is bound", |cluster| cluster.bound().contains_key("c"));
    let bound = cluster.bound();
    assert_eq!((bound.len(), bound["c"].as_str()), (2, "n"), "{bound:?}");
    assert!(bound.get("a").or(bound.get("b")).is_some_and(|node| node == "m"), "{bound:?}");
}

#[test]
fn a_volume_is_made_on_the_node_before_the_pod_is_bound() {
    let (cluster, _scheduler) = Cluster::with_one_gpu();
    cluster.claim_for_node("data");
    let volumes = json!([{"name": "data", "persistentVolumeClaim": {"claimName": "data"}}]);
    cluster.pod("a", 60, json!({"spec": {"volumes": volumes}}));
    let selected = |cluster: &Cluster| {
        let claim = cluster.objects.get(&VOLUME_CLAIMS, "default", "data");
        claim["metadata"]["annotations"]["volume.kubernetes.io/selected-node"].as_str().map(str::to_owned)
    };
    cluster.wait_until("a volume is asked for", |cluster| selected(cluster).as_deref() == Some("n"));
    // What it will have is taken already, although it is not bound.
    cluster.pod("b", 60, json!({}));
    cluster.wait_until("b says why it waits", |cluster| cluster.why_waiting("b").is_some());
    assert!(cluster.bound().is_empty());
    // It cannot be made this time.
    let none = json!({"metadata": {"annotations": {"volume.kubernetes.io/selected-node": null}}});
    cluster.objects.merge(&VOLUME_CLAIMS, "default", "data", &none);
    cluster.objects.delete(&PODS, "default", "b");
    cluster.wait_until("a volume is asked for again", |cluster| selected(cluster).as_deref() == Some("n"));
    let spec = json!({
        "accessModes": ["ReadWriteOnce"], "capacity": {"storage": "1Gi"}, "hostPath": {"path": "/none"},
    });
    let volume = json!({"apiVersion": "v1", "kind": "PersistentVolume", "metadata": {"name": "v"}, "spec": spec});
    cluster.objects.create(&VOLUMES, "", volume);
    let bound = json!({"spec": {"volumeName": "v"}});
    cluster.objects.merge(&VOLUME_CLAIMS, "default", "data", &bound);
    let status = json!({"status": {"phase": "Bound"}});
    cluster.objects.merge_status(&VOLUME_CLAIMS, "default", "data", &status);
    cluster.wait_until_bound(&["a"]);
}

#[test]
fn nobody_is_told_to_tolerate_a_node_that_is_not_ready() {
    let mut cluster = Cluster::start();
    cluster.node("n", 1);
    let taint = json!({"key": "node.kubernetes.io/not-ready", "effect": "NoSchedule"});
    cluster.objects.merge(&NODES, "", "n", &json!({"spec": {"taints": [taint]}}));
    let _scheduler = cluster.scheduler();
    cluster.pod("a", 30, json!({}));
    cluster.wait_until("a says why it waits", |cluster| cluster.why_waiting("a").is_some());
    let (_, message) = cluster.why_waiting("a").unwrap();
    assert!(message.contains("not-ready") && !message.contains("tolerate the taint"), "{message}");
}

#[test]
fn a_pod_group_starts_together() {
    let (cluster, _scheduler) = Cluster::with_one_gpu();
    for name in ["a", "b"] {
        cluster.pod(name, 100, json!({"spec": {"schedulingGroup": {"podGroupName": "g"}}}));
    }
    cluster.wait_until("a says that its group is not there", |cluster| {
        cluster.why_waiting("a").is_some_and(|(_, message)| message.contains("does not exist"))
    });
    let group = json!({
        "apiVersion": "scheduling.k8s.io/v1alpha2", "kind": "PodGroup", "metadata": {"name": "g"},
        "spec": {"schedulingPolicy": {"gang": {"minCount": 2}}},
    });
    cluster.objects.create(&POD_GROUPS, "default", group);
    cluster.wait_until("a says that there is not room for both", |cluster| {
        cluster.why_waiting("a").is_some_and(|(_, message)| !message.contains("does not exist"))
    });
    assert!(cluster.bound().is_empty());
    cluster.node("m", 1);
    cluster.wait_until_bound(&["a", "b"]);
}
