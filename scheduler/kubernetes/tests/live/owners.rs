//! What the owners of pods say in labels and annotations.

use aliquot_test_api_server::{DEPLOYMENTS, JOBS, QUEUES};
use serde_json::{Value, json};

use crate::kit::Cluster;
use crate::kubectl::ask;

const QUEUE: &str = "kai.scheduler/queue";

fn template() -> Value {
    let spec = json!({"containers": [{"name": "main", "image": "none"}]});
    json!({"metadata": {"labels": {"app": "web"}}, "spec": spec})
}

impl Cluster {
    fn queue(&self, name: &str, gpus: f64) {
        let spec = json!({"resources": {"gpu": {"quota": gpus, "limit": gpus}}});
        let metadata = json!({"name": name});
        let queue = json!({"apiVersion": "aliquot.dev/v1alpha1", "kind": "Queue", "metadata": metadata, "spec": spec});
        self.objects.create(&QUEUES, "", queue);
    }

    fn running_in(&self, queue: &str) -> Value {
        self.objects.get(&QUEUES, "", queue)["status"]["running"].clone()
    }

    /// A pod as the controller of a Deployment's ReplicaSet makes it.
    fn pod_of_deployment(&self, name: &str, deployment: &str) {
        let set = format!("{deployment}-5c8f");
        let owner = json!({"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": set, "uid": "r", "controller": true});
        let labels = json!({"app": "web", "pod-template-hash": "5c8f"});
        self.pod(name, 50, json!({"metadata": {"ownerReferences": [owner], "labels": labels}}));
    }
}

#[test]
fn pods_are_in_the_queue_that_their_owner_names() {
    let mut cluster = Cluster::start();
    cluster.node("n", 4);
    for (name, gpus) in [("inference", 0.5), ("training", 1.0), ("later", 0.5)] {
        cluster.queue(name, gpus);
    }
    let spec = json!({"selector": {"matchLabels": {"app": "web"}}, "template": template()});
    let metadata = json!({"name": "web", "labels": {QUEUE: "inference"}});
    let deployment = json!({"apiVersion": "apps/v1", "kind": "Deployment", "metadata": metadata, "spec": spec});
    cluster.objects.create(&DEPLOYMENTS, "default", deployment.clone());
    cluster.job("train");
    let labelled = json!({"metadata": {"labels": {QUEUE: "training"}}});
    cluster.objects.merge(&JOBS, "default", "train", &labelled);
    let scheduler = cluster.scheduler();
    cluster.make_pod_of(1, &scheduler);
    cluster.pod_of_deployment("web-5c8f-x", "web");
    cluster.pod_of_job("train-x", "train", json!({}));
    cluster.wait_until_bound(&["train-x", "web-5c8f-x"]);
    cluster.wait_until("both queues hold what their pods have", |cluster| {
        cluster.running_in("inference") == 1 && cluster.running_in("training") == 1
    });
    let file = cluster.kubeconfig().with_file_name("deployment.yaml");
    std::fs::write(&file, deployment.to_string()).unwrap();
    cluster.wait_until("it answers", |cluster| ask(cluster, &["queues"]).is_ok());
    let asked = ask(&cluster, &["what-if", "-f", file.to_str().unwrap()]).unwrap();
    assert!(asked.text.contains("(queue inference)"), "{}", asked.text);
    let moved = json!({"metadata": {"labels": {QUEUE: "later"}}});
    cluster.objects.merge(&DEPLOYMENTS, "default", "web", &moved);
    cluster.pod_of_deployment("web-5c8f-y", "web");
    cluster.wait_until_bound(&["train-x", "web-5c8f-x", "web-5c8f-y"]);
    cluster.wait_until("a later pod is in the later queue", |cluster| cluster.running_in("later") == 1);
}
