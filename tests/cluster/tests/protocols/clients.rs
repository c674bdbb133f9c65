//! A client over HTTP: its lists, watches, and server-side apply.

use std::fs;

use aliquot_test_cluster::{CLAIMS, NAMESPACE, NODE_NAME, SLICES};
use futures_util::StreamExt;
use k8s_openapi::api::resource::v1::{ResourceClaim, ResourceSlice};
use kube::api::{GetParams, ListParams, Patch, PatchParams, WatchEvent, WatchParams};
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::core::{PartialObjectMeta, Request};
use kube::{Api, Client, Config, Error};
use serde_json::{Value, json};

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

/// What the server answers about a slice, or about all of them, to a client that takes this.
async fn accepted(client: &Client, slice: Option<&str>, accept: &str) -> Result<Value, u16> {
    let request = Request::new("/apis/resource.k8s.io/v1/resourceslices");
    let request = match slice {
        Some(name) => request.get(name, &GetParams::default()),
        None => request.list(&ListParams::default()),
    };
    let mut request = request.unwrap();
    request.headers_mut().insert("accept", accept.parse().unwrap());
    match client.request(request).await {
        Ok(answer) => Ok(answer),
        Err(Error::Api(status)) => Err(status.code),
        Err(error) => panic!("{error}"),
    }
}

#[test]
fn metadata_comes_without_the_rest_of_an_object() {
    let stage = Stage::new();
    let mut elsewhere = slice("slice-1", 1, &json!([shared_device("gpu-0")]));
    elsewhere["spec"]["nodeName"] = "node-2".into();
    stage.cluster.create(&SLICES, elsewhere);
    run(async {
        let client = client(&stage).await;
        const ALL: Option<&str> = None;
        const ONE: Option<&str> = Some("slice-1");
        let partial = |kind: &str| format!("application/json;as={kind};g=meta.k8s.io;v=v1");
        let (one, list) = (partial("PartialObjectMetadata"), partial("PartialObjectMetadataList"));
        let whole = accepted(&client, ONE, "application/json").await.unwrap();
        let metadata =
            json!({"kind": "PartialObjectMetadata", "apiVersion": "meta.k8s.io/v1", "metadata": whole["metadata"]});
        assert_eq!(accepted(&client, ONE, &one).await, Ok(metadata.clone()));
        let listed = accepted(&client, ALL, &list).await.unwrap();
        assert_eq!(listed["kind"], "PartialObjectMetadataList");
        assert_eq!((&listed["apiVersion"], &listed["items"]), (&json!("meta.k8s.io/v1"), &json!([metadata])));
        assert!(listed["metadata"]["resourceVersion"].is_string());
        // A form of lists is none of a single object, and the other way round.
        assert_eq!(accepted(&client, ONE, &list).await, Err(406));
        assert_eq!(accepted(&client, ALL, &one).await, Err(406));
        assert_eq!(accepted(&client, ONE, "application/yaml").await, Err(406));
        assert_eq!(accepted(&client, ONE, &one.replace("v=v1", "v=v2")).await, Err(406));
        let with_choice = format!("{},application/json", one.replace("v=v1", "v=v2"));
        assert_eq!(accepted(&client, ONE, &with_choice).await, Ok(whole));

        let slices: Api<PartialObjectMeta<ResourceSlice>> = Api::all(client);
        let from = slices.list(&ListParams::default()).await.unwrap().metadata.resource_version.unwrap();
        stage.cluster.create(&SLICES, slice("other", 1, &json!([])));
        stage.cluster.store().delete(&SLICES, "", "slice-1", true).unwrap();
        let mut events = Box::pin(slices.watch(&WatchParams::default(), &from).await.unwrap());
        let mut seen = Vec::new();
        let of = |slice: PartialObjectMeta<ResourceSlice>| {
            assert_eq!(slice.types.unwrap().kind, "PartialObjectMetadata");
            slice.metadata.name.unwrap()
        };
        loop {
            match events.next().await.unwrap().unwrap() {
                WatchEvent::Added(slice) => seen.push(format!("added {}", of(slice))),
                WatchEvent::Deleted(slice) => seen.push(format!("deleted {}", of(slice))),
                WatchEvent::Bookmark(bookmark) => {
                    assert_eq!(bookmark.types.kind, "PartialObjectMetadata");
                    assert!(bookmark.metadata.resource_version > from);
                    break;
                }
                other => panic!("{other:?}"),
            }
        }
        assert_eq!(seen, ["added other", "deleted slice-1"]);
        stage.cluster.api_server().compact();
        let mut events = Box::pin(slices.watch(&WatchParams::default(), &from).await.unwrap());
        assert!(matches!(events.next().await.unwrap().unwrap(), WatchEvent::Error(status) if status.code == 410));
        // What is there is told first, and a bookmark ends that.
        let with_initial = WatchParams::default().initial_events();
        let mut events = Box::pin(slices.watch(&with_initial, "0").await.unwrap());
        assert!(
            matches!(events.next().await.unwrap().unwrap(), WatchEvent::Added(slice) if of(slice.clone()) == "other")
        );
        assert!(matches!(events.next().await.unwrap().unwrap(), WatchEvent::Bookmark(bookmark)
            if bookmark.metadata.annotations.contains_key("k8s.io/initial-events-end")));
    });
    let calls = stage.cluster.api_server().calls().into_iter().filter(|call| call.resource == "resourceslices");
    let verbs: Vec<_> = calls.filter(|call| call.metadata_only).map(|call| call.verb).collect();
    assert_eq!(verbs, ["get", "list", "watch"]);
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
