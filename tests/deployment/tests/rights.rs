//! `rbac.yaml` allows exactly the manager's calls of the API server.

use std::collections::BTreeSet;
use std::sync::Arc;

use aliquot_deployment::{object, objects};
use aliquot_harness::{Node, SimulatedGpu, wait};
use aliquot_test_cluster::{CLAIMS, Cluster, DEVICE_CLASSES, NAMESPACE, PODS, Paper, SLICES};
use k8s_openapi::api::rbac::v1::ClusterRole;
use k8s_openapi::api::resource::v1::ResourceSlice;
use serde_json::{Value, json};

/// Group, resource and verb.
type Right = (String, String, String);

fn allowed(mode: &str) -> BTreeSet<Right> {
    let role: ClusterRole = object(mode, &format!("aliquot-manager-{mode}"));
    let mut rights = BTreeSet::new();
    for rule in role.rules.unwrap() {
        for group in rule.api_groups.iter().flatten() {
            for resource in rule.resources.iter().flatten() {
                rights.extend(rule.verbs.iter().map(|verb| (group.clone(), resource.clone(), verb.clone())));
            }
        }
    }
    rights
}

/// The rights that were used in requests by HTTP.
fn used_in(cluster: &Cluster) -> BTreeSet<Right> {
    let calls = cluster.api_server().calls().into_iter();
    calls.map(|call| (call.group.to_owned(), call.resource, call.verb.to_owned())).collect()
}

fn claim(name: &str, config: &Value) -> Value {
    json!({
        "apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaim", "metadata": {"name": name},
        "spec": {"devices": {
            "requests": [{"name": "gpu", "exactly": {
                "deviceClassName": "gpu.aliquot.dev", "capacity": {"requests": {"core": "30", "memory": "64Mi"}},
            }}],
            "config": config,
        }},
    })
}

fn pod(claim: &str) -> Value {
    json!({
        "containers": [{"name": "main", "image": "any", "resources": {"claims": [{"name": "gpu"}]}}],
        "resourceClaims": [{"name": "gpu", "resourceClaimName": claim}],
    })
}

/// The names of the driver's resource slices.
fn published(cluster: &Cluster) -> Vec<String> {
    let slices = cluster.store().list::<ResourceSlice>(&SLICES);
    slices.into_iter().filter_map(|slice| slice.metadata.name).collect()
}

#[test]
fn the_driver_has_exactly_the_rights_that_it_uses() {
    let gpu = SimulatedGpu::new();
    let cdi = tempfile::tempdir().unwrap();
    let cluster = Cluster::start(Arc::new(Paper::new(cdi.path().into())));
    for class in objects("dra").into_iter().filter(|object| object.kind() == "DeviceClass") {
        cluster.create(&DEVICE_CLASSES, class.content);
    }
    let settings = format!("cdi_dir = {:?}\n{}", cdi.path(), cluster.manager_settings("dra"));
    let mut node = Node::with(&gpu, &settings);
    wait::until_true("the devices are published", || published(&cluster).len() == 1);

    // A claim that succeeds, and one that fails twice: the second failure is counted in the same event.
    cluster.create(&CLAIMS, claim("good", &json!([])));
    cluster.create_pod("good", &pod("good"));
    cluster.wait_for_phase("good", "Running");
    let config = json!([{"opaque": {"driver": "gpu.aliquot.dev", "parameters": {
        "apiVersion": "gpu.aliquot.dev/v1alpha1", "kind": "SliceConfig", "coreLimitPercent": 20,
    }}}]);
    cluster.create(&CLAIMS, claim("bad", &config));
    cluster.create_pod("bad", &pod("bad"));
    cluster.wait_for_error("bad", "coreLimitPercent");
    let used = |verb: &str, resource: &str| {
        cluster.api_server().calls().iter().any(|call| call.verb == verb && call.resource == resource)
    };
    wait::until_true("the event is counted", || used("patch", "events"));
    wait::until_true("the claim's status tells of its devices", || used("patch", "resourceclaims/status"));

    // The published devices are not those of the node any more, and there is a resource slice too many.
    node.stop();
    let before = published(&cluster).remove(0);
    let mut slice: Value = cluster.store().get(&SLICES, "", &before).unwrap();
    slice["spec"]["pool"]["generation"] = 7.into();
    slice["spec"]["devices"] = json!([]);
    cluster.store().update(&SLICES, &slice, false).unwrap();
    slice["metadata"] = json!({"name": format!("{before}-left-over")});
    cluster.create(&SLICES, slice);
    node.restart();
    wait::until_true("the devices are published anew", || {
        published(&cluster) == [before.clone()] && used("update", "resourceslices")
    });
    // As a kubelet does that starts.
    cluster.store().delete(&SLICES, "", &before, false).unwrap();
    wait::until_true("the devices are published again", || published(&cluster).len() == 1);
    for name in ["good", "bad"] {
        cluster.delete_pod(name);
        cluster.store().delete(&CLAIMS, NAMESPACE, name, false).unwrap();
    }

    let mut allowed = allowed("dra");
    // The API server itself asks for this right when the status of a claim's devices changes.
    let of_status = ("resource.k8s.io".into(), "resourceclaims/driver".into(), "associated-node:patch".into());
    assert!(allowed.remove(&of_status), "{allowed:?}");
    assert_eq!(allowed, used_in(&cluster));
}

#[test]
fn the_plugin_has_exactly_the_rights_that_it_uses() {
    let gpu = SimulatedGpu::new();
    let cdi = tempfile::tempdir().unwrap();
    let cluster = Cluster::start(Arc::new(Paper::new(cdi.path().into())));
    let settings = format!(
        "cdi_dir = {:?}\n{}[kubernetes.device_plugin]\nroom_grace_seconds = 0\n",
        cdi.path(),
        cluster.manager_settings("device-plugin")
    );
    let _node = Node::with(&gpu, &settings);
    let core = "aliquot.dev/gpu-core";
    wait::until_true("the units are on offer", || cluster.kubelet().capacity(core) == Some((100, 100)));
    let of_set = |name: &str, percent: &str, annotations: &Value| {
        let owner =
            json!({"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "set", "uid": "u", "controller": true});
        let limits = json!({"limits": {core: percent}});
        json!({
            "apiVersion": "v1", "kind": "Pod",
            "metadata": {"name": name, "ownerReferences": [owner], "annotations": annotations},
            "spec": {"containers": [{"name": "main", "image": "any", "resources": limits}]},
        })
    };
    cluster.create(&PODS, of_set("good", "30", &json!({})));
    cluster.wait_for_phase("good", "Running");
    // A request that can never be given is refused again and again, and the refusals are counted. A pod that waits for
    // room is evicted.
    cluster.create(&PODS, of_set("bad", "10", &json!({"aliquot.dev/gpu-core-limit": "none"})));
    cluster.wait_for_error("bad", "gpu-core-limit");
    wait::until_true("the event is counted", || {
        used_in(&cluster).contains(&(String::new(), "events".into(), "patch".into()))
    });
    let elsewhere = json!({"aliquot.dev/devices": "main=GPU-elsewhere/100/1"});
    cluster.create(&PODS, of_set("waits", "10", &elsewhere));
    wait::until_true("the pod is evicted", || cluster.pod("waits").is_none());
    cluster.delete_pod("bad");
    cluster.delete_pod("good");
    assert_eq!(allowed("device-plugin"), used_in(&cluster));
}
