//! Pods: each has a worker that starts it, watches it, and cleans up after it.

use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use k8s_openapi::api::core::v1::{Container, Node, Pod};
use serde_json::json;

use super::devices::DeviceManager;
use super::{Shared, claims, devices};
use crate::pod::{
    all_containers_of, containers_of, init_containers_of, is_sidecar, is_terminal, name_of, phase_of, uid_of,
};
use crate::runtime::{ContainerSpec, ContainerState};
use aliquot_test_api_server::{CORE_EVENTS, Informer, NODES, PODS};

/// The interval of looks at a pod's containers.
const LOOK: Duration = Duration::from_millis(50);
/// Changes within this time are handled together.
const TOGETHER: Duration = Duration::from_millis(30);

/// The workers of pods, by UID.
#[derive(Debug, Default)]
pub(super) struct PodWorkers {
    workers: Mutex<BTreeMap<String, Worker>>,
}

/// The state of a pod's worker.
#[derive(Debug)]
struct Worker {
    /// The pod as the API server last reported it.
    pod: Pod,
    /// Whether its containers must end.
    ending: bool,
    /// Whether all its containers have ended for good.
    ended: bool,
    /// Whether the worker is done. The entry stays until the API server reports that the pod is gone, so that no new
    /// worker begins.
    is_done: bool,
    /// The present error of the pod.
    error: Option<String>,
}

impl Worker {
    fn update(&mut self, pod: &Pod, ending: bool) {
        self.ending |= ending;
        if self.pod.metadata.resource_version != pod.metadata.resource_version {
            self.pod = pod.clone();
        }
    }
}

impl PodWorkers {
    /// Takes in the present pods. Returns those that need a worker.
    fn take_up(&self, pods: &Informer<Pod>, node_name: &str) -> Vec<Pod> {
        let ours = pods
            .objects()
            .filter(|pod| pod.spec.as_ref().and_then(|spec| spec.node_name.as_deref()) == Some(node_name));
        let mut workers = self.lock();
        let (mut seen, mut new) = (BTreeSet::new(), Vec::new());
        for pod in ours {
            let uid = uid_of(pod);
            let ending = pod.metadata.deletion_timestamp.is_some();
            seen.insert(uid.clone());
            match workers.entry(uid) {
                Entry::Occupied(worker) => worker.into_mut().update(pod, ending),
                Entry::Vacant(place) => {
                    let ended = is_terminal(pod);
                    place.insert(Worker { pod: pod.clone(), ending, ended, is_done: false, error: None });
                    new.push(pod.clone());
                }
            }
        }
        workers.retain(|uid, worker| seen.contains(uid) || !worker.is_done);
        // A pod that is gone was deleted by force, or while no kubelet ran.
        for (uid, worker) in workers.iter_mut() {
            worker.ending |= !seen.contains(uid);
        }
        new
    }

    /// The pods that have not ended.
    pub(super) fn active(&self) -> Vec<Pod> {
        self.lock().values().filter(|worker| !worker.ended).map(|worker| worker.pod.clone()).collect()
    }

    pub(super) fn error(&self, uid: &str) -> Option<String> {
        self.lock().get(uid)?.error.clone()
    }

    fn set_error(&self, uid: &str, error: Option<String>) {
        if let Some(worker) = self.lock().get_mut(uid) {
            worker.error = error;
        }
    }

    fn is_ending(&self, uid: &str) -> bool {
        self.lock().get(uid).is_none_or(|worker| worker.ending)
    }

    fn end(&self, uid: &str) {
        if let Some(worker) = self.lock().get_mut(uid) {
            worker.ended = true;
        }
    }

    fn set_done(&self, uid: &str) {
        if let Some(worker) = self.lock().get_mut(uid) {
            worker.is_done = true;
        }
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<String, Worker>> {
        self.workers.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Starts a worker for each pod that is bound to this node.
pub(super) async fn watch(shared: Arc<Shared>) {
    let mut changes = shared.store.changes();
    let mut pods: Informer<Pod> = Informer::new(shared.store.clone(), &PODS);
    shared.publish_resources(|_| {});
    loop {
        changes.mark_unchanged();
        pods.refresh();
        for pod in shared.pods.take_up(&pods, &shared.settings.node_name) {
            tokio::spawn(run(Arc::clone(&shared), pod));
        }
        if changes.changed().await.is_err() {
            return;
        }
        tokio::time::sleep(TOGETHER).await;
    }
}

/// Starts a pod, watches it, and cleans up after it.
async fn run(shared: Arc<Shared>, pod: Pod) {
    let uid = uid_of(&pod);
    let outcome = match phase_of(&pod) {
        // It had ended before this kubelet was started; an earlier kubelet may not have cleaned up.
        Some("Succeeded") => Ok(true),
        Some("Failed") => Ok(false),
        _ => bring_up_and_watch(&shared, &pod).await,
    };
    // Containers that ended by themselves stay until the pod is deleted.
    if shared.pods.is_ending(&uid) {
        remove_containers(&shared, &pod).await;
    }
    shared.pods.end(&uid);
    let phase = if outcome == Ok(true) { "Succeeded" } else { "Failed" };
    if let Err(reason) = &outcome {
        event(&shared, &pod, "UnexpectedAdmissionError", reason);
    }
    set_phase(&shared, &pod, phase, outcome.as_ref().err().map(String::as_str));
    // The pod's claims are released, however long that takes.
    while let Err(reason) = claims::unprepare(&shared, &pod).await {
        event(&shared, &pod, "FailedUnprepareDynamicResources", &reason);
        shared.pods.set_error(&uid, Some(reason));
        tokio::time::sleep(shared.settings.timing.retry).await;
    }
    shared.devices.release(&uid);
    while !shared.pods.is_ending(&uid) {
        tokio::time::sleep(LOOK).await;
    }
    remove_containers(&shared, &pod).await;
    let (namespace, name) = name_of(&pod);
    let same = shared.store.get::<Pod>(&PODS, &namespace, &name).is_ok_and(|found| uid_of(&found) == uid);
    if same {
        // The pod may have been deleted by force in between.
        let _ = shared.store.delete(&PODS, &namespace, &name, true);
    }
    shared.pods.set_done(&uid);
}

async fn remove_containers(shared: &Shared, pod: &Pod) {
    for container in all_containers_of(pod) {
        blocking(shared, container_id(pod, container), |runtime, id| runtime.remove(id)).await;
    }
}

/// Starts the containers and waits for their end. Answers whether all succeeded; an error if the pod was not admitted.
async fn bring_up_and_watch(shared: &Arc<Shared>, pod: &Pod) -> Result<bool, String> {
    let uid = uid_of(pod);
    if all_running(shared, pod).await {
        // The containers were started by an earlier kubelet.
        return Ok(watch_containers(shared, pod).await);
    }
    devices::allocate(shared, pod).await?;
    while !shared.pods.is_ending(&uid) {
        match start(shared, pod).await {
            Ok(()) => {
                shared.pods.set_error(&uid, None);
                set_phase(shared, pod, "Running", None);
                return Ok(watch_containers(shared, pod).await);
            }
            Err((what, reason)) => {
                // The order matters: a test that sees the error also finds the event.
                event(shared, pod, what, &reason);
                shared.pods.set_error(&uid, Some(reason));
            }
        }
        tokio::time::sleep(shared.settings.timing.retry).await;
    }
    Ok(false)
}

async fn all_running(shared: &Arc<Shared>, pod: &Pod) -> bool {
    for container in containers_of(pod) {
        if state(shared, pod, container).await != ContainerState::Running {
            return false;
        }
    }
    true
}

/// Prepares the pod's claims, and starts those of its containers that do not run yet.
async fn start(shared: &Arc<Shared>, pod: &Pod) -> Result<(), (&'static str, String)> {
    let prepared = claims::prepare(shared, pod).await;
    prepared.map_err(|reason| {
        ("FailedPrepareDynamicResources", format!("Failed to prepare dynamic resources: {reason}"))
    })?;
    for container in all_containers_of(pod) {
        let failed = |reason| ("Failed", format!("Error: {reason}"));
        let ends = init_containers_of(pod).iter().any(|init| init.name == container.name) && !is_sidecar(container);
        match state(shared, pod, container).await {
            ContainerState::Running => {}
            ContainerState::Exited(0) if ends => continue,
            _ => start_container(shared, pod, container).await.map_err(failed)?,
        }
        if ends {
            wait_for_end(shared, pod, container).await.map_err(failed)?;
        }
    }
    Ok(())
}

/// Waits until an init container has succeeded; an error if it failed, or if the pod must end.
async fn wait_for_end(shared: &Arc<Shared>, pod: &Pod, container: &Container) -> Result<(), String> {
    while !shared.pods.is_ending(&uid_of(pod)) {
        match state(shared, pod, container).await {
            ContainerState::Running => tokio::time::sleep(LOOK).await,
            ContainerState::Exited(0) => return Ok(()),
            other => return Err(format!("init container {} is {other:?}", container.name)),
        }
    }
    Err(format!("the pod is to end before init container {} has", container.name))
}

async fn state(shared: &Shared, pod: &Pod, container: &Container) -> ContainerState {
    blocking(shared, container_id(pod, container), |runtime, id| runtime.state(id)).await
}

async fn start_container(shared: &Arc<Shared>, pod: &Pod, container: &Container) -> Result<(), String> {
    let admitted = devices::pre_start(shared, pod, container).await?;
    let mut cdi_devices = shared.claims.cdi_devices(pod, container).await?;
    cdi_devices.extend(admitted.cdi_devices);
    // The runtime accepts each device only once.
    let mut seen = Vec::new();
    cdi_devices.retain(|device| {
        !seen.contains(device) && {
            seen.push(device.clone());
            true
        }
    });
    let mut environment = admitted.environment;
    for variable in container.env.iter().flatten() {
        environment.insert(variable.name.clone(), variable.value.clone().unwrap_or_default());
    }
    let spec = ContainerSpec {
        id: container_id(pod, container),
        image: container.image.clone().unwrap_or_default(),
        command: container.command.iter().chain(&container.args).flatten().cloned().collect(),
        environment,
        mounts: admitted.mounts,
        cdi_devices,
    };
    let containers = Arc::clone(&shared.containers);
    let started = tokio::task::spawn_blocking(move || containers.start(&spec)).await;
    started.unwrap_or_else(|error| Err(error.to_string()))
}

/// Waits until all containers have ended or must end. Answers whether all succeeded.
async fn watch_containers(shared: &Arc<Shared>, pod: &Pod) -> bool {
    let uid = uid_of(pod);
    while !shared.pods.is_ending(&uid) {
        let mut codes = Vec::new();
        for container in containers_of(pod) {
            match state(shared, pod, container).await {
                ContainerState::Running => {}
                ContainerState::Exited(code) => codes.push(code),
                ContainerState::Absent => codes.push(137),
            }
        }
        if codes.len() == containers_of(pod).len() {
            return codes.iter().all(|code| *code == 0);
        }
        tokio::time::sleep(LOOK).await;
    }
    false
}

/// The runtime's name for a container.
fn container_id(pod: &Pod, container: &Container) -> String {
    format!("k8s_{}_{}", container.name, uid_of(pod))
}

async fn blocking<T: Send + 'static>(
    shared: &Shared,
    id: String,
    ask: impl FnOnce(&dyn crate::runtime::ContainerRuntime, &str) -> T + Send + 'static,
) -> T {
    let containers = Arc::clone(&shared.containers);
    let asked = tokio::task::spawn_blocking(move || ask(containers.as_ref(), &id)).await;
    asked.unwrap_or_else(|error| std::panic::resume_unwind(error.into_panic()))
}

fn set_phase(shared: &Shared, pod: &Pod, phase: &str, message: Option<&str>) {
    let (namespace, name) = name_of(pod);
    let mut status = json!({"phase": phase});
    if let Some(message) = message {
        status["message"] = message.into();
        status["reason"] = "UnexpectedAdmissionError".into();
    }
    // The pod may have been deleted.
    let _ = shared.store.merge(&PODS, &namespace, &name, true, &json!({"status": status}));
}

fn event(shared: &Shared, pod: &Pod, reason: &str, message: &str) {
    let (namespace, name) = name_of(pod);
    let event = json!({
        "apiVersion": "v1", "kind": "Event",
        "metadata": {"generateName": format!("{name}.")},
        "involvedObject": {"apiVersion": "v1", "kind": "Pod", "namespace": namespace, "name": name, "uid": uid_of(pod)},
        "reason": reason, "message": message, "type": "Warning",
        "source": {"component": "kubelet", "host": shared.settings.node_name},
    });
    if let Err(failure) = shared.store.create(&CORE_EVENTS, &namespace, event) {
        shared.complain(format!("cannot tell of {reason}: {failure}"));
    }
}

impl Shared {
    /// Changes the state of devices, and writes the amounts of all resources into the node's status. The real kubelet
    /// does this within ten seconds; here both change together for every reader.
    pub(super) fn publish_resources(&self, change: impl FnOnce(&DeviceManager)) {
        let _in_turn = self.devices.in_turn();
        change(&self.devices);
        let allocatable = self.devices.allocatable();
        let quantities: BTreeMap<&String, String> =
            allocatable.iter().map(|(resource, count)| (resource, count.to_string())).collect();
        let patch = json!({"status": {"allocatable": quantities, "capacity": quantities}});
        let name = &self.settings.node_name;
        if self.store.get::<Node>(&NODES, "", name).is_ok()
            && let Err(failure) = self.store.merge(&NODES, "", name, true, &patch)
        {
            self.complain(format!("cannot publish the node's resources: {failure}"));
        }
    }
}
