//! Watches the objects of the API server that the mirror shows.

mod device_claims;
mod elastic_gpus;
mod family;
mod follow;
mod gangs;
mod owners;
mod served;
mod suspended;
mod volumes;

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use aliquot_api_server::Client;
use k8s_openapi::api::core::v1::{Namespace, Node};
use k8s_openapi::api::policy::v1::PodDisruptionBudget;
use k8s_openapi::api::scheduling::v1::PriorityClass;
use kube::ResourceExt;
use kube::api::{Api, ApiResource, DynamicObject, GroupVersionKind};
use kube::core::PartialObjectMeta;
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::sleep;
use tracing::warn;

use crate::budget::BudgetFacts;
use crate::kai_queue;
use crate::mirror::{Access, Mirror, NamespaceFacts, QueueSaid};
use crate::node::NodeFacts;
use crate::pod::{PodFacts, SeenPod};
use crate::queue::Queue;
use crate::scheduling_policy::SchedulingPolicy;
use crate::serve::Shared;

use family::Family;
use follow::{Sight, follow};
pub(crate) use follow::{WATCH_SECONDS, is_absent, said};
use volumes::{CsiDrivers, CsiNodes, StorageCapacities, StorageClasses, VolumeAttachments, VolumeClaims, Volumes};

/// The pause before a resource is watched again that the API server did not have for a moment.
const AGAIN: Duration = Duration::from_secs(5);

struct Pods;

impl Sight for Pods {
    type Object = SeenPod;

    fn name(&self) -> String {
        "pods".into()
    }

    fn key(&self, pod: &SeenPod) -> Option<String> {
        pod.uid()
    }

    fn show(&self, pod: SeenPod, own_name: &str, mirror: &mut Mirror) {
        if let Some(facts) = PodFacts::of(pod, own_name) {
            mirror.pod(facts);
        }
    }

    fn gone(&self, key: &str, mirror: &mut Mirror) {
        mirror.pod_gone(key);
    }

    fn shown(&self, mirror: &Mirror) -> BTreeSet<String> {
        mirror.pod_uids()
    }
}

struct Nodes;

impl Sight for Nodes {
    type Object = Node;

    fn name(&self) -> String {
        "nodes".into()
    }

    fn key(&self, node: &Node) -> Option<String> {
        node.metadata.name.clone()
    }

    fn show(&self, node: Node, _: &str, mirror: &mut Mirror) {
        if let Some(facts) = NodeFacts::of(node) {
            mirror.node(facts);
        }
    }

    fn gone(&self, key: &str, mirror: &mut Mirror) {
        mirror.node_gone(key);
    }

    fn shown(&self, mirror: &Mirror) -> BTreeSet<String> {
        mirror.node_names()
    }
}

/// Only their metadata counts.
struct Namespaces;

impl Sight for Namespaces {
    type Object = PartialObjectMeta<Namespace>;

    fn name(&self) -> String {
        "namespaces".into()
    }

    fn key(&self, namespace: &Self::Object) -> Option<String> {
        namespace.metadata.name.clone()
    }

    fn show(&self, namespace: Self::Object, _: &str, mirror: &mut Mirror) {
        let facts = NamespaceFacts::of(namespace.labels().clone(), namespace.annotations());
        mirror.namespace(&namespace.name_any(), Some(facts));
    }

    fn gone(&self, key: &str, mirror: &mut Mirror) {
        mirror.namespace(key, None);
    }

    fn shown(&self, mirror: &Mirror) -> BTreeSet<String> {
        mirror.namespace_names()
    }
}

struct Queues;

impl Sight for Queues {
    type Object = Queue;

    fn name(&self) -> String {
        "queues".into()
    }

    fn key(&self, queue: &Queue) -> Option<String> {
        queue.metadata.name.clone()
    }

    fn show(&self, queue: Queue, _: &str, mirror: &mut Mirror) {
        let said = QueueSaid { generation: queue.metadata.generation.unwrap_or(0), status: queue.status.clone() };
        mirror.queue(&queue.name_any(), &queue.spec);
        mirror.queue_says(&queue.name_any(), said);
    }

    fn gone(&self, key: &str, mirror: &mut Mirror) {
        mirror.queue_gone(key);
    }

    fn shown(&self, mirror: &Mirror) -> BTreeSet<String> {
        mirror.queue_names()
    }
}

/// KAI's queues. A field that cannot be read makes no queue: pods that name it wait, as for one that there is not.
struct QueuesOfKai;

impl QueuesOfKai {
    const GROUP: &str = "scheduling.run.ai";
    const VERSION: &str = "v2";
    const PLURAL: &str = "queues";
}

impl Sight for QueuesOfKai {
    type Object = DynamicObject;

    fn name(&self) -> String {
        format!("{}.{}", QueuesOfKai::PLURAL, QueuesOfKai::GROUP)
    }

    fn key(&self, queue: &DynamicObject) -> Option<String> {
        queue.metadata.name.clone()
    }

    fn show(&self, queue: DynamicObject, _: &str, mirror: &mut Mirror) {
        let name = queue.name_any();
        match kai_queue::definition(&queue.data) {
            Ok(definition) => mirror.queue_of_kai(&name, &definition),
            Err(error) => {
                warn!(queue = name, error, "KAI's queue cannot be read");
                mirror.queue_of_kai_gone(&name);
            }
        }
    }

    fn gone(&self, key: &str, mirror: &mut Mirror) {
        mirror.queue_of_kai_gone(key);
    }

    fn shown(&self, mirror: &Mirror) -> BTreeSet<String> {
        mirror.names_of_queues_of_kai()
    }
}

/// The resource of KAI's queues.
pub(crate) fn queues_of_kai() -> ApiResource {
    let kind = GroupVersionKind::gvk(QueuesOfKai::GROUP, QueuesOfKai::VERSION, "Queue");
    ApiResource::from_gvk_with_plural(&kind, QueuesOfKai::PLURAL)
}

struct SchedulingPolicies;

impl Sight for SchedulingPolicies {
    type Object = SchedulingPolicy;

    fn name(&self) -> String {
        "schedulingpolicies".into()
    }

    fn key(&self, policy: &SchedulingPolicy) -> Option<String> {
        policy.metadata.name.clone()
    }

    fn show(&self, policy: SchedulingPolicy, _: &str, mirror: &mut Mirror) {
        mirror.scheduling_policy(&policy.name_any(), policy.spec.facts());
    }

    fn gone(&self, key: &str, mirror: &mut Mirror) {
        mirror.scheduling_policy_gone(key);
    }

    fn shown(&self, mirror: &Mirror) -> BTreeSet<String> {
        mirror.scheduling_policy_names()
    }
}

struct PriorityClasses;

impl Sight for PriorityClasses {
    type Object = PriorityClass;

    /// Only groups that name a class need it.
    const STARTS_WITHOUT_RIGHT: bool = true;

    fn name(&self) -> String {
        "priorityclasses".into()
    }

    fn key(&self, class: &PriorityClass) -> Option<String> {
        class.metadata.name.clone()
    }

    fn show(&self, class: PriorityClass, _: &str, mirror: &mut Mirror) {
        mirror.priority_class(class);
    }

    fn gone(&self, key: &str, mirror: &mut Mirror) {
        mirror.priority_class_gone(key);
    }

    fn shown(&self, mirror: &Mirror) -> BTreeSet<String> {
        mirror.priority_class_names()
    }

    fn access(&self, access: Access, mirror: &mut Mirror) {
        mirror.priority_classes_are(access);
    }
}

struct Budgets;

impl Sight for Budgets {
    type Object = PodDisruptionBudget;

    /// Without it, the API server refuses the evictions that no budget allows, and others are tried later.
    const STARTS_WITHOUT_RIGHT: bool = true;

    fn name(&self) -> String {
        "poddisruptionbudgets".into()
    }

    fn key(&self, budget: &PodDisruptionBudget) -> Option<String> {
        Some(in_namespace(budget.metadata.namespace.as_deref()?, budget.metadata.name.as_deref()?))
    }

    fn show(&self, budget: PodDisruptionBudget, _: &str, mirror: &mut Mirror) {
        if let Some(facts) = BudgetFacts::of(budget) {
            mirror.budget(facts);
        }
    }

    fn gone(&self, key: &str, mirror: &mut Mirror) {
        mirror.budget_gone(key);
    }

    fn shown(&self, mirror: &Mirror) -> BTreeSet<String> {
        mirror.budget_keys()
    }
}

fn in_namespace(namespace: &str, name: &str) -> String {
    format!("{namespace}/{name}")
}

/// The watches of a leader. They end when this is dropped.
pub(crate) struct Watches {
    _tasks: JoinSet<()>,
    known: Vec<watch::Receiver<Option<Access>>>,
}

impl Watches {
    pub(crate) fn start(client: &Client, shared: &Arc<Shared>) -> Watches {
        let mut tasks = JoinSet::new();
        let mut known = vec![
            always(&mut tasks, Nodes, Api::all(client.clone()), shared),
            always(&mut tasks, Namespaces, Api::all(client.clone()), shared),
            always(&mut tasks, Volumes, Api::all(client.clone()), shared),
            always(&mut tasks, VolumeClaims, Api::all(client.clone()), shared),
            always(&mut tasks, StorageClasses, Api::all(client.clone()), shared),
            always(&mut tasks, CsiNodes, Api::all(client.clone()), shared),
            always(&mut tasks, VolumeAttachments, Api::all(client.clone()), shared),
            always(&mut tasks, CsiDrivers, Api::all(client.clone()), shared),
            always(&mut tasks, StorageCapacities, Api::all(client.clone()), shared),
            always(&mut tasks, Budgets, Api::all(client.clone()), shared),
            always(&mut tasks, PriorityClasses, Api::all(client.clone()), shared),
            always(&mut tasks, Pods, Api::all(client.clone()), shared),
        ];
        let (served, is_served) = watch::channel(None);
        for family in Family::all() {
            let (access, of_family) = watch::channel(None);
            tasks.spawn(family.keep(client.clone(), Arc::clone(shared), is_served.clone(), access));
            known.push(of_family);
        }
        tasks.spawn(served::look(client.clone(), served));
        Watches { _tasks: tasks, known }
    }

    /// Waits until the mirror shows all that the cluster has and the scheduler needs.
    pub(crate) async fn complete(&mut self) {
        for known in &mut self.known {
            // A watch never ends.
            _ = known.wait_for(Option::is_some).await;
        }
    }
}

/// Watches a resource that every cluster has.
fn always<S: Sight>(
    tasks: &mut JoinSet<()>,
    sight: S,
    objects: Api<S::Object>,
    shared: &Arc<Shared>,
) -> watch::Receiver<Option<Access>> {
    let (access, known) = watch::channel(None);
    let (sight, shared) = (Arc::new(sight), Arc::clone(shared));
    tasks.spawn(async move {
        loop {
            follow(Arc::clone(&sight), objects.clone(), Arc::clone(&shared), access.clone()).await;
            warn!(resource = sight.name(), "the API server does not have it; trying again");
            sleep(AGAIN).await;
        }
    });
    known
}
