//! A client over HTTP: its lists, watches, and server-side apply.

use std::fs;

use aliquot_test_cluster::{CLAIMS, NAMESPACE, NODE_NAME, SLICES};
use futures_util::StreamExt;
use k8s_openapi::api::resource::v1::{ResourceClaim, ResourceSlice};
use kube::api::{ListParams, Patch, PatchParams, WatchEvent, WatchParams};
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::{Api, Client, Config, Error};
use serde_json::json;

use crate::driver::{Behaviour, Driver};
use crate::stage::{DRIVER, Stage, part, pod_with, shared_device, slice};

pub(crate) async fn client(stage: &Stage) -> Client {
    let text = fs::read_to_string(stage.cluster.kubeconfig()).unwrap();
    let kubeconfig = Kubeconfig::from_yaml(&text).unwrap();
    let mut config = Config::from_custom_kubeconfig(kubeconfig, &KubeConfigOptions::default()).await.unwrap();
    // The tests must see the first answer.
    config.default_retry = false;
    Client::try_from(config).unwrap()
}

pub(crate) fn run(work: impl Future<Output = ()>) {
    tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(work);
}

#[test]
fn a_watch_tells_what_has_happened_since_the_list_and_ends_when_that_is_forgotten() {
    let stage = Stage::new();
    // The slice is of another node, because kubelet deletes slices of its own node if their driver never came.
    let elsewhere = |name: &str| {
        let mut slice = slice(name, 1, &json!([shared_device("gpu-0")]));
        slice["spec"]["nodeName"] = "node-2".into();
        slice
    };
    stage.cluster.create(&SLICES, elsewhere("slice-1"));
    run(async {
        let slices: Api<ResourceSlice> = Api::all(client(&stage).await);
        let selected = ListParams::default().fields(&format!("spec.nodeName=node-2,spec.driver={DRIVER}"));
        let list = slices.list(&selected).await.unwrap();
        assert_eq!(list.items.len(), 1);
        let from = list.metadata.resource_version.unwrap();
        assert!(slices.list(&ListParams::default().fields("spec.pool.name=x")).await.is_err());

        stage.cluster.create(&SLICES, slice("other", 1, &json!([])));
        stage.cluster.create(&SLICES, elsewhere("slice-2"));
        stage.cluster.store().delete(&SLICES, "", "slice-1", true).unwrap();
        let parameters = WatchParams::default().fields("spec.nodeName=node-2");
        let mut events = Box::pin(slices.watch(&parameters, &from).await.unwrap());
        let mut seen = Vec::new();
        while let Some(event) = events.next().await {
            match event.unwrap() {
                WatchEvent::Added(slice) => seen.push(format!("added {}", slice.metadata.name.unwrap())),
                WatchEvent::Deleted(slice) => seen.push(format!("deleted {}", slice.metadata.name.unwrap())),
                WatchEvent::Bookmark(_) => break,
                other => panic!("{other:?}"),
            }
        }
        assert_eq!(seen, ["added slice-2", "deleted slice-1"]);

        stage.cluster.api_server().compact();
        let mut events = Box::pin(slices.watch(&WatchParams::default(), &from).await.unwrap());
        assert!(matches!(events.next().await.unwrap().unwrap(), WatchEvent::Error(status) if status.code == 410));
    });
}

#[test]
fn a_driver_applies_its_devices_status_and_only_that() {
    let stage = Stage::new();
    let _driver = Driver::start(&stage, Behaviour::Good);
    stage.publish(&json!([shared_device("gpu-0")]));
    stage.claim("claim", &part(30, "1Gi"));
    stage.cluster.create_pod("pod", &pod_with(&["claim"]));
    stage.cluster.wait_for_phase("pod", "Running");
    run(async {
        let claims: Api<ResourceClaim> = Api::namespaced(client(&stage).await, NAMESPACE);
        let claim = claims.get("claim").await.unwrap();
        let result = &claim.status.as_ref().unwrap().allocation.as_ref().unwrap().devices.as_ref().unwrap().results;
        let share = result.as_ref().unwrap()[0].share_id.clone().unwrap();
        let status = |device: &str| {
            json!({
                "apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaim", "metadata": {"name": "claim"},
                "status": {"devices": [{
                    "driver": DRIVER, "pool": NODE_NAME, "device": device, "shareID": share, "data": {"slice": "x"},
                }]},
            })
        };
        let parameters = PatchParams::apply(DRIVER).force();
        let applied = claims.patch_status("claim", &parameters, &Patch::Apply(status("gpu-0"))).await.unwrap();
        let told = applied.status.clone().unwrap();
        assert_eq!(told.devices.unwrap()[0].data.as_ref().unwrap().0, json!({"slice": "x"}));
        assert!(told.allocation.is_some() && told.reserved_for.is_some());
        let refused = claims.patch_status("claim", &parameters, &Patch::Apply(status("gpu-1"))).await.unwrap_err();
        assert!(matches!(refused, Error::Api(status) if status.code == 422));
        let nothing = json!({
            "apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaim", "metadata": {"name": "claim"}, "status": {},
        });
        let applied = claims.patch_status("claim", &parameters, &Patch::Apply(nothing)).await.unwrap();
        assert!(applied.status.unwrap().devices.is_none_or(|devices| devices.is_empty()));
    });
    let calls = stage.cluster.api_server().calls();
    assert!(calls.iter().any(|call| (call.verb, call.resource.as_str()) == ("patch", "resourceclaims/status")));
    let _: ResourceClaim = stage.cluster.store().get(&CLAIMS, NAMESPACE, "claim").unwrap();
}
