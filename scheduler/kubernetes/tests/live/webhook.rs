//! The webhook as it is deployed: the API server for tests has objects reviewed by replicas.

use std::collections::BTreeSet;
use std::path::PathBuf;

use aliquot_api_server::{Client, connect};
use aliquot_dialects::Dialect;
use aliquot_test_api_server::{
    CLAIMS, MUTATING_WEBHOOKS, NAMESPACES, PODS, QUEUES, Resource, SECRETS, VALIDATING_WEBHOOKS,
};
use kube::client::Body;
use serde_json::{Value, json};
use tokio::runtime::Runtime;

use crate::kit::{Cluster, Extras, Scheduler};
use crate::rights::{allowed, used};

/// The Service, the Secret and both configurations.
const NAME: &str = "aliquot-scheduler-webhook";

/// A cluster with the manifests of the webhook, and a user of it.
struct World {
    cluster: Cluster,
    scheduler: Option<Scheduler>,
    client: Client,
    runtime: Runtime,
}

/// What the API server answers: the object, or why there is none; and its warnings.
struct Answer {
    made: Result<Value, String>,
    warnings: Vec<String>,
}

impl World {
    fn start() -> World {
        let mut cluster = Cluster::with_faults();
        cluster.node("n", 4);
        let path = PathBuf::from(env!("CARGO_MANIFEST_DIR"))
            .join("../../deploy/kubernetes/components/webhook/configurations.yaml");
        let configurations: Vec<Value> = serde_saphyr::from_multiple(&std::fs::read_to_string(path).unwrap()).unwrap();
        for (configuration, resource) in configurations.into_iter().zip([&MUTATING_WEBHOOKS, &VALIDATING_WEBHOOKS]) {
            cluster.objects.create(resource, "", configuration);
        }
        let scheduler = cluster.scheduler_with(Extras { webhook: true, ..Extras::default() });
        cluster.server().serve_at("aliquot-system", NAME, 443, scheduler.webhook_address);
        let is_trusted = |cluster: &Cluster| {
            [&MUTATING_WEBHOOKS, &VALIDATING_WEBHOOKS].into_iter().all(|resource| {
                let webhooks = cluster.objects.get(resource, "", NAME)["webhooks"].as_array().unwrap().clone();
                webhooks.iter().all(|webhook| webhook["clientConfig"]["caBundle"].is_string())
            })
        };
        cluster.wait_until("the API server knows whom to trust", is_trusted);
        let runtime = Runtime::new().unwrap();
        let client = runtime.block_on(connect(Some(&cluster.kubeconfig()))).unwrap();
        World { cluster, scheduler: Some(scheduler), client, runtime }
    }

    /// Makes an object as users do.
    fn make(&self, resource: &Resource, namespace: &str, object: &Value) -> Answer {
        let group = if resource.group.is_empty() { "api".to_owned() } else { format!("apis/{}", resource.group) };
        let path = format!("/{group}/{}/namespaces/{namespace}/{}", resource.version, resource.plural);
        let request = axum::http::Request::post(path).header("content-type", "application/json");
        let request = request.body(Body::from(object.to_string().into_bytes())).unwrap();
        self.runtime.block_on(async {
            let response = self.client.send(request).await.unwrap();
            let warnings = response.headers().get_all("warning").iter();
            let warnings = warnings.map(|warning| warning.to_str().unwrap().to_owned()).collect();
            let is_made = response.status().is_success();
            let body = response.into_body().collect_bytes().await.unwrap();
            let object: Value = serde_json::from_slice(&body).unwrap();
            let message = object["message"].as_str().unwrap_or_default().to_owned();
            Answer { made: if is_made { Ok(object) } else { Err(message) }, warnings }
        })
    }

    fn make_pod(&self, namespace: &str, name: &str, spec: &Value, labels: &Value) -> Answer {
        let metadata = json!({"name": name, "labels": labels});
        let pod = json!({"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec});
        self.make(&PODS, namespace, &pod)
    }
}

/// A pod of this scheduler with these resources.
fn spec(scheduler: &str, resources: &Value) -> Value {
    json!({"schedulerName": scheduler, "containers": [{"name": "main", "image": "none", "resources": resources}]})
}

#[test]
fn what_could_never_start_is_refused_when_it_is_made() {
    // A replica that has lost its lease on a slow machine counts from zero again.
    assert!((0..5).any(|_| refusals_are_counted()), "the replica never kept its lease");
}

fn refusals_are_counted() -> bool {
    let world = World::start();
    let too_much = json!({"limits": {"aliquot.dev/gpu-core": "150"}});
    let refused = world.make_pod("default", "bad", &spec("aliquot", &too_much), &json!({})).made.unwrap_err();
    assert_eq!(
        refused,
        "admission webhook \"pods.aliquot.dev\" denied the request: container \"main\": aliquot.dev/gpu-core is \"150\"; \
         it must be at most 100, or a multiple of 100 for several whole devices"
    );
    // Kube-scheduler's pods are judged where they use Aliquot's own words, and not where they use others'.
    assert!(world.make_pod("default", "bad", &spec("default-scheduler", &too_much), &json!({})).made.is_err());
    let of_others = json!({"limits": {"nvidia.com/gpu": "0"}});
    assert!(world.make_pod("default", "others", &spec("default-scheduler", &of_others), &json!({})).made.is_ok());
    // The cluster's own namespaces are never reviewed.
    assert!(world.make_pod("kube-system", "system", &spec("aliquot", &too_much), &json!({})).made.is_ok());

    let parameters = json!({"apiVersion": "gpu.aliquot.dev/v1alpha1", "kind": "SliceConfig", "coreLimitPercent": 101});
    let config = json!([{"opaque": {"driver": "gpu.aliquot.dev", "parameters": parameters}}]);
    let requests = json!([{"name": "gpu", "exactly": {"deviceClassName": "gpu.aliquot.dev"}}]);
    let claim = json!({
        "apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaim", "metadata": {"name": "bad"},
        "spec": {"devices": {"requests": requests, "config": config}},
    });
    let refused = world.make(&CLAIMS, "default", &claim).made.unwrap_err();
    assert!(refused.contains("config 0: in the parameters for gpu.aliquot.dev, coreLimitPercent is 101"), "{refused}");

    let scheduler = world.scheduler.as_ref().unwrap();
    let is_counted = scheduler.counts(&[
        ("admissions_total{webhook=\"validate\",outcome=\"refused\",reason=\"value\"}", 2.0),
        ("admissions_total{webhook=\"validate\",outcome=\"refused\",reason=\"slice-config\"}", 1.0),
    ]);
    let is_over = |name: &str, least: f64| scheduler.metric(name).is_some_and(|value| value >= least);
    let is_told = is_over("webhook_certificate_end_seconds", 1.7e9) && is_over("admission_seconds_count", 3.0);
    assert!(!is_counted || is_told, "{}", scheduler.ask("/metrics").1);
    is_counted
}

#[test]
fn what_is_left_out_is_filled_in_and_the_pod_starts() {
    let world = World::start();
    let labels = json!({"aliquot.dev/scheduler": "aliquot"});
    let namespace = json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "default", "labels": labels}});
    world.cluster.objects.create(&NAMESPACES, "", namespace);
    let requested = json!({"requests": {"aliquot.dev/gpu-core": "50"}});
    let pod = world.make_pod("default", "filled", &spec("default-scheduler", &requested), &json!({})).made.unwrap();
    assert_eq!(pod["spec"]["schedulerName"], "aliquot");
    assert_eq!(pod["spec"]["containers"][0]["resources"]["limits"], requested["requests"]);
    world.cluster.wait_until_bound(&["filled"]);
    // The scheduler that it names is gone.
    let left = world.make_pod("default", "left", &spec("kai-scheduler", &json!({})), &json!({})).made.unwrap();
    assert_eq!(left["spec"]["schedulerName"], "aliquot");
    world.cluster.wait_until_bound(&["filled", "left"]);
    // A pod without devices stays with kube-scheduler.
    let plain = world.make_pod("default", "plain", &spec("default-scheduler", &json!({})), &json!({})).made.unwrap();
    assert_eq!(plain["spec"]["schedulerName"], "default-scheduler");
    // In other namespaces pods say themselves whose they are.
    let amounts = json!({"limits": {"nvidia.com/gpumem": "1024"}});
    let elsewhere = world.make_pod("other", "hami", &spec("aliquot", &amounts), &json!({})).made.unwrap();
    let limits = &elsewhere["spec"]["containers"][0]["resources"]["limits"];
    assert_eq!(*limits, json!({"nvidia.com/gpumem": "1024", "nvidia.com/gpu": "1"}));
    let without = world.make_pod("other", "free", &spec("default-scheduler", &requested), &json!({})).made.unwrap();
    assert_eq!(without["spec"]["schedulerName"], "default-scheduler");
}

#[test]
fn pods_of_kai_start_with_what_their_annotations_say() {
    let world = World::start();
    world.cluster.speaks("n", 4, Dialect::Kai);
    let make = |name: &str, annotations: Value| {
        let metadata = json!({"name": name, "annotations": annotations});
        let pod = json!({"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec("aliquot", &json!({}))});
        world.make(&PODS, "default", &pod).made
    };
    let two = make("two", json!({"gpu-fraction": "0.25", "gpu-fraction-num-devices": "2"})).unwrap();
    assert_eq!(two["spec"]["containers"][0]["resources"]["limits"], json!({"aliquot.dev/kai-gpu": "1"}));
    make("own", json!({"nvidia.com/container.main.gpu-memory.limit": "8Gi"})).unwrap();
    world.cluster.wait_until_bound(&["own", "two"]);
    let decision = |name: &str| world.cluster.get(name)["metadata"]["annotations"]["aliquot.dev/devices"].clone();
    let parts = |name: &str| -> Vec<String> {
        let parts = decision(name).as_str().unwrap().strip_prefix("main=").unwrap().to_owned();
        parts.split(',').map(|part| part.split_once('/').unwrap().1.to_owned()).collect()
    };
    assert_eq!(parts("two"), [format!("250/{}", 20_u64 << 30), format!("250/{}", 20_u64 << 30)]);
    assert_eq!(parts("own"), [format!("100/{}", 8_u64 << 30)]);
    let refused = make("whole", json!({"gpu-fraction": "1"})).unwrap_err();
    assert!(refused.contains("container \"main\": gpu-fraction is \"1\"; it must be a decimal number"), "{refused}");
    // It was made while no replica answered.
    let late = json!({
        "apiVersion": "v1", "kind": "Pod", "metadata": {"name": "late", "annotations": {"gpu-fraction": "0.5"}},
        "spec": spec("aliquot", &json!({})),
    });
    world.cluster.objects.create(&PODS, "default", late);
    world.cluster.wait_until("the pod says what it lacks", |cluster| {
        cluster.why_waiting("late").is_some_and(|(_, why)| why.contains("no effect without aliquot.dev/kai-gpu"))
    });
}

#[test]
fn what_counts_by_its_metadata_is_watched_without_the_rest() {
    let world = World::start();
    let watched = |cluster: &Cluster, metadata_only: bool| -> BTreeSet<String> {
        let calls = cluster.server().calls().into_iter();
        let of_form =
            calls.filter(|call| ["list", "watch"].contains(&call.verb) && call.metadata_only == metadata_only);
        of_form.map(|call| format!("{}.{}", call.resource, call.group)).collect()
    };
    // The labels of namespaces, what the webhook knows by name, owners of pods, and workloads that were suspended.
    let by_name = ["queues.aliquot.dev", "queues.scheduling.run.ai", "schedulingpolicies.aliquot.dev"];
    let kubeflow = ["pytorchjobs", "tfjobs", "mpijobs", "xgboostjobs", "paddlejobs", "jaxjobs"];
    let suspended = ["jobs.batch", "jobsets.jobset.x-k8s.io", "trainjobs.trainer.kubeflow.org"];
    let of_ray = ["rayclusters.ray.io", "rayjobs.ray.io"];
    let owners = ["deployments.apps", "statefulsets.apps"];
    let expected: BTreeSet<String> = kubeflow
        .map(|kind| format!("{kind}.kubeflow.org"))
        .into_iter()
        .chain(
            by_name.into_iter().chain(["namespaces."]).chain(suspended).chain(of_ray).chain(owners).map(str::to_owned),
        )
        .collect();
    // The planner reads queues whole, and some replicas begin to do so after the webhook's watches.
    let read_whole = ["nodes.", "pods.", "queues.aliquot.dev"];
    world.cluster.wait_until("all are watched", |cluster| {
        let whole = watched(cluster, false);
        watched(cluster, true).is_superset(&expected) && read_whole.iter().all(|kind| whole.contains(*kind))
    });
    assert_eq!(watched(&world.cluster, true), expected);
    let whole = watched(&world.cluster, false);
    assert!(!whole.contains("namespaces.") && !whole.contains("jobs.batch"), "{whole:?}");
}

#[test]
fn a_queue_that_is_not_there_is_warned_of_until_it_is() {
    let world = World::start();
    let half = spec("aliquot", &json!({"limits": {"aliquot.dev/gpu-core": "50"}}));
    let labels = json!({"aliquot.dev/queue": "later"});
    let number = std::cell::Cell::new(0);
    let warnings = |labels: &Value| {
        number.set(number.get() + 1);
        let answer = world.make_pod("default", &format!("p{}", number.get()), &half, labels);
        answer.made.unwrap();
        answer.warnings
    };
    let warned = "299 - \"there is no Queue \\\"later\\\": the pod waits until it is made\"";
    // The names are known a moment after the webhook answers.
    world.cluster.wait_until("there is a warning", |_| warnings(&labels) == [warned]);
    assert_eq!(warnings(&json!({"aliquot.dev/queue": "default"})), [""; 0]);
    let queue =
        json!({"apiVersion": "aliquot.dev/v1alpha1", "kind": "Queue", "metadata": {"name": "later"}, "spec": {}});
    world.cluster.objects.create(&QUEUES, "", queue);
    world.cluster.wait_until("there is no warning", |_| warnings(&labels).is_empty());
    // With the kind all queues are gone.
    world.cluster.server().set_absent(&[&QUEUES]);
    world.cluster.wait_until("there is a warning again", |_| warnings(&labels) == [warned]);
}

#[test]
fn without_a_replica_all_pods_are_made() {
    let mut world = World::start();
    world.scheduler.take().unwrap().kill();
    let server = world.cluster.server();
    server.serve_at("aliquot-system", NAME, 443, ([127, 0, 0, 1], 1).into());
    let bad = spec("aliquot", &json!({"limits": {"aliquot.dev/gpu-core": "150"}}));
    world.make_pod("default", "bad", &bad, &json!({})).made.unwrap();
    // It was asked: where the answer is needed, no pod is made.
    let mut configuration = world.cluster.objects.get(&VALIDATING_WEBHOOKS, "", NAME);
    for webhook in configuration["webhooks"].as_array_mut().unwrap() {
        webhook["failurePolicy"] = "Fail".into();
    }
    server.store().update(&VALIDATING_WEBHOOKS, &configuration, false).unwrap();
    let refused = world.make_pod("default", "worse", &bad, &json!({})).made.unwrap_err();
    assert!(refused.starts_with("failed calling webhook \"pods.aliquot.dev\""), "{refused}");
}

#[test]
fn the_webhook_has_exactly_the_rights_that_it_uses() {
    let world = World::start();
    let secret = world.cluster.objects.get(&SECRETS, "aliquot-system", NAME);
    assert!(["ca.crt", "ca.key", "tls.crt", "tls.key"].into_iter().all(|field| secret["data"][field].is_string()));
    let mut allowed_to_webhook = allowed("components/webhook/rbac.yaml");
    // The Secret is renewed after months.
    assert!(allowed_to_webhook.remove(&(String::new(), "secrets".into(), "update".into())));
    let used = used(&world.cluster);
    let beyond: std::collections::BTreeSet<_> = used.difference(&allowed("scheduler/rbac.yaml")).cloned().collect();
    assert_eq!(beyond, allowed_to_webhook);
}
