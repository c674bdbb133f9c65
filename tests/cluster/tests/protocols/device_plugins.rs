//! Device plugins: the calls that they get, the order of these, and the effect of their answers.

use aliquot_harness::wait;
use aliquot_proto::kubelet::pod_resources::ListPodResourcesRequest;
use aliquot_proto::kubelet::pod_resources::pod_resources_lister_client::PodResourcesListerClient;
use futures_util::future::join_all;
use serde_json::{Value, json};

use crate::plugin::{Plugin, connect};
use crate::stage::Stage;

const RESOURCE: &str = "example.org/part";

fn pod(count: u32) -> Value {
    json!({
        "restartPolicy": "Never",
        "containers": [{"name": "main", "image": "none", "resources": {"limits": {RESOURCE: count.to_string()}}}],
    })
}

fn wait_for_capacity(stage: &Stage, capacity: (usize, usize)) {
    let what = format!("{capacity:?} of the resource");
    wait::until_true(&what, || stage.cluster.kubelet().capacity(RESOURCE) == Some(capacity));
}

#[test]
fn a_container_gets_what_the_plugin_prefers_and_the_plugin_is_told_before_it_starts() {
    let stage = Stage::new();
    let plugin = Plugin::start(&stage, &["a", "b", "c"]);
    plugin.register("v1beta1", RESOURCE).unwrap();
    wait_for_capacity(&stage, (3, 3));
    stage.publish_cdi("b-c");
    stage.cluster.create_pod("pod", &pod(2));
    let pod = stage.cluster.wait_for_phase("pod", "Running");
    assert_eq!(stage.cluster.output(&pod), "CLAIM=b-c\n");
    let ids = |ids: &[&str]| ids.iter().map(|id| (*id).to_owned()).collect::<Vec<_>>();
    let expected = [("prefer", ids(&["a", "b", "c"])), ("allocate", ids(&["b", "c"])), ("start", ids(&["b", "c"]))];
    assert_eq!(plugin.log(), expected);

    // One entry for each device, as from the real kubelet.
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let listed = runtime.block_on(async {
        let channel = connect(stage.cluster.kubelet_dir().join("pod-resources/kubelet.sock")).await;
        let mut client = PodResourcesListerClient::new(channel);
        let first = client.list(ListPodResourcesRequest {}).await.unwrap().into_inner();
        // The calls are sent at once: one after the other, they might be slow enough to stay below the limit.
        let asked = (0..200).map(|_| {
            let mut client = client.clone();
            async move { client.list(ListPodResourcesRequest {}).await.is_err() }
        });
        (first, join_all(asked).await.contains(&true))
    });
    let (answer, refused) = listed;
    let devices = &answer.pod_resources[0].containers[0].devices;
    assert_eq!(devices.iter().map(|entry| entry.device_ids.clone()).collect::<Vec<_>>(), [ids(&["b"]), ids(&["c"])]);
    assert!(refused, "nobody is refused who asks too often");
    assert_eq!(stage.cluster.kubelet().complaints(), Vec::<String>::new());
}

#[test]
fn bad_registrations_are_refused() {
    let stage = Stage::new();
    let plugin = Plugin::start(&stage, &["a"]);
    for (version, resource) in [("v1", RESOURCE), ("v1beta1", "part"), ("v1beta1", "kubernetes.io/part")] {
        assert!(plugin.register(version, resource).is_err(), "{version} {resource}");
    }
    assert_eq!(stage.cluster.kubelet().complaints().len(), 3);
}

#[test]
fn an_id_that_is_too_long_is_noticed() {
    let stage = Stage::new();
    let plugin = Plugin::start(&stage, &[&"x".repeat(64)]);
    plugin.register("v1beta1", RESOURCE).unwrap();
    wait::until_true("kubelet complains", || {
        stage.cluster.kubelet().complaints().iter().any(|line| line.contains("63"))
    });
}

#[test]
fn devices_that_are_not_healthy_are_not_given_out_and_those_that_recover_are() {
    let stage = Stage::new();
    let plugin = Plugin::start(&stage, &["a", "b"]);
    plugin.register("v1beta1", RESOURCE).unwrap();
    wait_for_capacity(&stage, (2, 2));
    plugin.set_health("a", "Unhealthy");
    wait_for_capacity(&stage, (2, 1));
    stage.cluster.create_pod("pod", &pod(2));
    stage.cluster.wait_for_error("pod", "Insufficient example.org/part");
    stage.publish_cdi("a-b");
    plugin.set_health("a", "Healthy");
    stage.cluster.wait_for_phase("pod", "Running");
}

#[test]
fn a_kubelet_that_starts_again_empties_its_directory_and_keeps_what_containers_have() {
    let mut stage = Stage::new();
    let plugin = Plugin::start(&stage, &["a", "b"]);
    plugin.register("v1beta1", RESOURCE).unwrap();
    wait_for_capacity(&stage, (2, 2));
    stage.publish_cdi("b");
    let pod = stage.cluster.create_pod("pod", &pod(1));
    stage.cluster.wait_for_phase("pod", "Running");
    stage.cluster.kill_kubelet();
    stage.cluster.start_kubelet();
    assert!(!stage.cluster.kubelet_dir().join("device-plugins/test.sock").exists());
    let uid = pod.metadata.uid.unwrap();
    assert_eq!(stage.cluster.kubelet().device_ids(&uid, "main", RESOURCE), ["b"]);
    plugin.serve();
    plugin.register("v1beta1", RESOURCE).unwrap();
    wait_for_capacity(&stage, (2, 2));
    stage.publish_cdi("a");
    stage.cluster.create_pod("other", &self::pod(1));
    stage.cluster.wait_for_phase("other", "Running");
    stage.cluster.delete_pod("pod");
    assert_eq!(stage.cluster.kubelet().device_ids(&uid, "main", RESOURCE), Vec::<String>::new());
}
