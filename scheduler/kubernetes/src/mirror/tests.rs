//! The mirror and the engine together, with a pretended API server that does at once what it is told.

mod attached;
mod budgets;
mod chosen;
mod device_claims;
mod elastic_gpus;
mod figures;
mod gangs;
mod nodes;
mod owners;
mod peers;
mod policies;
mod random;
mod reported;
mod resizing;
mod several_requests;
mod situations;
mod suspended;
mod volumes;

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use aliquot_api_server::{INVENTORY, Inventory, InventoryDevice};
use aliquot_dialects::{DECISION, Decision, GENERATION, NodeFacts as WordsOfNode, Spoken};
use aliquot_scheduler_core::placement::{BestFit, Policy};
use aliquot_scheduler_core::{EventError, QueueError};
use aliquot_scheduler_engine::{ClaimUid, Decisions, Engine, Memory, Observation, Saved, Settings, View, Whereabouts};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use serde_json::{Value, json};

use super::{Access, Binding, Eviction, GroupSaid, Mirror, NamespaceFacts, Readiness, Suspended, Write};
use crate::budget::BudgetFacts;
use crate::gang::{GangFacts, GangKind};
use crate::node::NodeFacts;
use crate::pod::PodFacts;
use crate::queue::QueueDefinition;
use crate::scheduling_policy::PolicyFacts;
use crate::serve::START_DEADLINE_MS;
use crate::workload::{Workload, WorkloadKind};

const GIB: u64 = 1 << 30;
const DEVICE_BYTES: u64 = 80 * GIB;

/// When pods that are being deleted were to leave.
const LEAVES: &str = "2026-01-01T00:00:00Z";

/// A kind of object that these clusters do not have.
const NOT_SERVED: GangKind = GangKind::LeaderWorkerSet;

/// A cluster, and the leader that schedules it.
struct World {
    pods: BTreeMap<String, Value>,
    nodes: BTreeMap<String, Value>,
    queues: BTreeMap<String, QueueDefinition>,
    policies: BTreeMap<String, PolicyFacts>,
    /// Objects that say which pods start together.
    gangs: BTreeMap<(GangKind, String), Value>,
    /// What drivers publish, by node.
    slices: BTreeMap<String, Value>,
    claims: BTreeMap<String, Value>,
    /// PersistentVolumeClaims for which volumes can be made.
    volume_claims: BTreeMap<String, Value>,
    /// PodDisruptionBudgets, by name.
    budgets: BTreeMap<String, Value>,
    /// Workloads that a leader has suspended, with the pods that they will make again.
    suspended: BTreeMap<Workload, (Suspended, Vec<Value>)>,
    mirror: Mirror,
    policy: Box<dyn Policy>,
    engine: Engine,
    view: Option<std::sync::Arc<View>>,
    /// What the engine has learned, as it was saved last.
    learned: Memory,
    term: u64,
    now_ms: u64,
    made: u64,
    /// Writes that wait to be carried out.
    writes: Vec<Write>,
    /// Bindings of pods whose devices are not ready.
    unready: Vec<Binding>,
    /// What watches have not told yet of pods, in order. `None`: they tell everything at once.
    late: Option<VecDeque<News>>,
    /// Evicted pods that have not ended yet, by UID. `None`: pods end at once.
    ending: Option<BTreeSet<String>>,
    /// What was bound and evicted, in order.
    log: Vec<String>,
    /// What kube-scheduler was told about pods that it has asked to be bound, by UID.
    answers: BTreeMap<String, Result<(), String>>,
}

/// What a watch tells of a pod.
enum News {
    Is(Value),
    Gone(String),
}

impl World {
    fn new() -> World {
        World::with(Box::new(BestFit))
    }

    fn with(policy: Box<dyn Policy>) -> World {
        let mut world = World {
            pods: BTreeMap::new(),
            nodes: BTreeMap::new(),
            queues: BTreeMap::new(),
            policies: BTreeMap::new(),
            gangs: BTreeMap::new(),
            slices: BTreeMap::new(),
            claims: BTreeMap::new(),
            volume_claims: BTreeMap::new(),
            budgets: BTreeMap::new(),
            suspended: BTreeMap::new(),
            mirror: Mirror::new("aliquot", 0, &[]),
            engine: engine(policy.fork(), 0, Memory::default()),
            policy,
            view: None,
            learned: Memory::default(),
            term: 0,
            now_ms: 1_000_000,
            made: 0,
            writes: Vec::new(),
            unready: Vec::new(),
            late: None,
            ending: None,
            log: Vec::new(),
            answers: BTreeMap::new(),
        };
        world.change_leader();
        world
    }

    /// Another leader begins, with nothing but what the API server knows. Writes that are under way are lost.
    fn change_leader(&mut self) {
        self.term += 1;
        self.writes.clear();
        self.unready.clear();
        self.late.iter_mut().for_each(VecDeque::clear);
        self.mirror = Mirror::new("aliquot", self.term, &["rack".to_owned()]);
        for (name, queue) in &self.queues {
            self.mirror.queue(name, queue);
        }
        for (name, facts) in &self.policies {
            self.mirror.scheduling_policy(name, facts.clone());
        }
        for ((kind, name), object) in &self.gangs {
            show_gang(&mut self.mirror, *kind, name, object);
        }
        for kind in GangKind::ALL.into_iter().filter(|kind| *kind != NOT_SERVED) {
            self.mirror.gangs_are(kind, Access::Read);
        }
        for kind in WorkloadKind::ALL {
            self.mirror.suspendables_are_in(kind, "v1");
            self.mirror.suspendables_are(kind, Access::Read);
        }
        for budget in self.budgets.values() {
            self.mirror.budget(BudgetFacts::of(typed(budget)).unwrap());
        }
        for (suspended, _) in self.suspended.values() {
            self.mirror.suspended(suspended.clone());
        }
        self.show_device_claims();
        for node in self.nodes.values() {
            self.mirror.node(NodeFacts::of(typed(node)).unwrap());
        }
        for pod in self.pods.values() {
            self.mirror.pod(PodFacts::of(typed(pod), "aliquot").unwrap());
        }
        self.engine = engine(self.policy.fork(), self.term, self.learned.clone());
        self.hear();
        self.engine.handle(self.now_ms, Observation::Synced).unwrap();
        self.poll();
    }

    /// The engine hears what is new.
    fn hear(&mut self) {
        let mut refused = Vec::new();
        for observation in self.mirror.reconcile() {
            if let Observation::ClaimOnNode(uid, ..) = &observation {
                let uid = uid.to_string();
                let placed = self.engine.handle(self.now_ms, observation);
                refused.extend(placed.err().map(|why| (uid, why.to_string())));
                continue;
            }
            let removed = match &observation {
                Observation::QueueRemoved(queue) => Some(queue.clone()),
                _ => None,
            };
            match self.engine.handle(self.now_ms, observation) {
                Err(EventError::Queue(QueueError::InUse(_))) if removed.is_some() => {
                    _ = removed.map(|queue| self.mirror.queue_stayed(&queue));
                }
                // A group goes with the last of its members, which may be leaving still.
                Ok(()) | Err(EventError::GroupInUse(_)) => {}
                Err(error) => self.log.push(format!("error: {error}")),
            }
        }
        self.answers.extend(self.mirror.take_answers());
        if !refused.is_empty() {
            for (uid, why) in refused {
                self.mirror.choice_refused(&uid, why);
            }
            self.hear();
        }
    }

    fn poll(&mut self) {
        let ready = self.engine.poll(self.now_ms);
        self.view = ready.view.or(self.view.take());
        self.learned = ready.save.and_then(|batch| batch.memory).unwrap_or(std::mem::take(&mut self.learned));
        let commands = ready.commands.into_iter();
        let writes = commands.filter_map(|command| self.mirror.command(command)).collect();
        self.writes.extend(self.mirror.with_suspensions(writes, self.now_ms));
        if let Some(hopeless) = self.view.as_ref().and_then(|view| self.mirror.newly_hopeless(view)) {
            self.mirror.note_hopeless(hopeless);
        }
        self.hear();
    }

    /// Lets time pass until something is to be written.
    fn wait_for_writes(&mut self) {
        while self.writes.is_empty() {
            self.hear();
            self.poll();
            self.now_ms += 10;
        }
    }

    /// Lets time pass until nothing is to be done. Writes are carried out at once.
    fn reconcile(&mut self) {
        for _ in 0..200 {
            self.mirror.go_on_searching();
            self.hear();
            self.poll();
            for write in std::mem::take(&mut self.writes) {
                self.carry_out(write);
            }
            for binding in std::mem::take(&mut self.unready) {
                self.bind_if_ready(binding);
            }
            self.give_back_left_over();
            self.resume();
            self.now_ms += 50;
        }
        self.hear();
        self.poll();
    }

    fn carry_out(&mut self, write: Write) {
        match write {
            Write::Bind(binding) => match self.reserve(&binding) {
                true => {
                    self.ask_for_volumes(&binding);
                    self.bind_if_ready(binding);
                }
                false => self.end_binding(&binding, Err("a claim has changed".into())),
            },
            Write::Suspend(suspension) => {
                let is_to_evict = |of: &Eviction| self.mirror.is_to_evict(&of.uid, of.instance);
                if !suspension.evictions.iter().any(is_to_evict) {
                    return;
                }
                let workload = &suspension.workload;
                let of = |pod: &Value| PodFacts::of(typed(pod), "aliquot").unwrap().workload.as_ref() == Some(workload);
                let names: Vec<String> =
                    self.pods.iter().filter(|(_, pod)| of(pod)).map(|(name, _)| name.clone()).collect();
                let is_protected = |name: &String| self.pods[name]["metadata"]["labels"]["protected"] == "true";
                if names.iter().any(is_protected) {
                    suspension.evictions.into_iter().for_each(|eviction| self.carry_out(Write::Evict(eviction)));
                    return;
                }
                self.suspend(workload, &names);
            }
            Write::Evict(Eviction { uid, name, instance, generation, .. }) => {
                if !self.mirror.is_to_evict(&uid, instance) {
                    return;
                }
                if self.pods.get(&name).is_none_or(|pod| pod["metadata"]["uid"] != uid.as_str()) {
                    // The pod is gone, and a watch is about to tell so.
                    return;
                }
                if !self.may_be_evicted(&name) {
                    self.log.push(format!("{name} refused"));
                    let why = "Cannot evict pod as it would violate its disruption budget.".into();
                    self.mirror.eviction_refused(&uid, instance, generation, why);
                } else {
                    self.log.push(format!("{name} evicted"));
                    match &mut self.ending {
                        Some(ending) => {
                            ending.insert(uid);
                            self.pods.get_mut(&name).unwrap()["metadata"]["deletionTimestamp"] = LEAVES.into();
                            self.show(&name);
                        }
                        None => self.replace(&name),
                    }
                }
            }
        }
    }

    /// A workload is suspended, and deletes its pods.
    fn suspend(&mut self, workload: &Workload, pods: &[String]) {
        self.log.push(format!("{} suspended", workload.full_name()));
        let suspended = Suspended {
            uid: "workload".into(),
            namespace: "default".into(),
            workload: workload.clone(),
            pods_of: workload.clone(),
            since_ms: self.now_ms,
        };
        self.mirror.suspended(suspended.clone());
        self.suspended.insert(workload.clone(), (suspended, Vec::new()));
        for name in pods {
            let uid = self.pods[name]["metadata"]["uid"].as_str().unwrap().to_owned();
            let is_bound = self.pods[name]["spec"]["nodeName"].is_string();
            match &mut self.ending {
                Some(ending) if is_bound => {
                    ending.insert(uid);
                    self.pods.get_mut(name).unwrap()["metadata"]["deletionTimestamp"] = LEAVES.into();
                    self.show(name);
                }
                _ => self.replace(name),
            }
        }
    }

    /// The leader resumes workloads without pods, and these make their pods again.
    fn resume(&mut self) {
        for (suspended, _) in self.mirror.to_resume(self.now_ms) {
            self.mirror.suspended_no_more("default", &suspended.workload);
            let Some((_, pods)) = self.suspended.remove(&suspended.workload) else { continue };
            self.log.push(format!("{} resumed", suspended.workload.full_name()));
            for pod in pods {
                let name = pod["metadata"]["name"].as_str().unwrap().to_owned();
                self.pods.insert(name.clone(), pod);
                self.show(&name);
            }
        }
    }

    /// A pod ends, and its owner makes another one in its place: at once, or when it is resumed.
    fn replace(&mut self, name: &str) {
        let mut pod = self.pods[name].clone();
        let workload = PodFacts::of(typed(&pod), "aliquot").unwrap().workload;
        self.delete(name);
        self.made += 1;
        pod["metadata"]["uid"] = format!("pod-{}", self.made).into();
        pod["metadata"].as_object_mut().unwrap().remove("deletionTimestamp");
        pod.as_object_mut().unwrap().remove("status");
        pod["spec"]["nodeName"] = Value::Null;
        for key in [GENERATION, DECISION] {
            pod["metadata"]["annotations"].as_object_mut().unwrap().remove(key);
        }
        if let Some((_, pods)) = workload.and_then(|workload| self.suspended.get_mut(&workload)) {
            return pods.push(pod);
        }
        self.pods.insert(name.to_owned(), pod);
        self.show(name);
    }

    /// Binds a pod whose claims are reserved, if its devices are ready.
    fn bind_if_ready(&mut self, binding: Binding) {
        if self.mirror.still_waits(&binding, self.now_ms.cast_signed()).is_some() {
            return self.unready.push(binding);
        }
        match self.mirror.readiness(&binding, self.now_ms.cast_signed(), false) {
            Readiness::Ready => {}
            Readiness::Waits(_) => return self.unready.push(binding),
            Readiness::GivenUp { why, devices } => {
                self.log.push(format!("{} given up", binding.name));
                self.mirror.shun_devices(devices);
                return self.end_binding(&binding, Err(why));
            }
        }
        let outcome = self.write_binding(&binding);
        self.end_binding(&binding, outcome);
    }

    /// What the API server does when it is asked to bind a pod.
    fn write_binding(&mut self, binding: &Binding) -> Result<(), String> {
        let Binding { uid, name, node, generation, decision, .. } = binding;
        let is_free =
            |pod: &&mut Value| pod["spec"]["nodeName"].is_null() && pod["metadata"]["deletionTimestamp"].is_null();
        match self.pods.get_mut(name).filter(is_free) {
            Some(pod) if pod["metadata"]["uid"] == uid.as_str() => {
                pod["spec"]["nodeName"] = node.as_str().into();
                pod["metadata"]["annotations"][GENERATION] = generation.to_string().into();
                if let Some(decision) = decision {
                    pod["metadata"]["annotations"][DECISION] = decision.as_str().into();
                }
                self.log.push(format!("{name} to {node}"));
                Ok(())
            }
            _ => Err("it is not there, or bound".into()),
        }
    }

    fn end_binding(&mut self, binding: &Binding, outcome: Result<(), String>) {
        if outcome.is_err() {
            self.give_back(binding);
        }
        self.mirror.bound(binding, outcome);
        self.show(&binding.name);
    }

    fn node(&mut self, name: &str, devices: usize) {
        let device = |number: usize| InventoryDevice {
            uuid: format!("{name}-{number}"),
            model: "NVIDIA H100".into(),
            memory_bytes: DEVICE_BYTES,
            ..InventoryDevice::default()
        };
        let spoken = Spoken::new([]).unwrap();
        let inventory = Inventory::new((0..devices).map(device).collect(), &spoken, &WordsOfNode::default());
        let inventory = serde_json::to_string(&inventory).unwrap();
        self.made += 1;
        let node = json!({
            "metadata": {"name": name, "uid": format!("node-{}", self.made), "annotations": {INVENTORY: inventory}},
            "status": {
                "allocatable": {"cpu": "16", "memory": "64Gi", "pods": "10", "aliquot.dev/gpu-core": "100"},
                "conditions": [{"type": "Ready", "status": "True"}],
            },
        });
        self.make_node(name, node);
    }

    fn make_node(&mut self, name: &str, node: Value) {
        self.mirror.node(NodeFacts::of(typed(&node)).unwrap());
        self.nodes.insert(name.into(), node);
    }

    /// The namespace of the pods has these labels.
    fn namespace(&mut self, labels: BTreeMap<String, String>) {
        self.mirror.namespace("default", Some(NamespaceFacts::of(labels, &BTreeMap::new())));
    }

    fn remove_node(&mut self, name: &str) {
        self.nodes.remove(name);
        self.mirror.node_gone(name);
    }

    /// A pod that asks for so many percent of a GPU's time. `more` is merged into it.
    fn pod(&mut self, name: &str, percent: u32, more: Value) {
        self.made += 1;
        let limits = match percent {
            0 => json!({}),
            _ => json!({"aliquot.dev/gpu-core": percent.to_string()}),
        };
        let mut pod = json!({
            "metadata": {"name": name, "namespace": "default", "uid": format!("pod-{}", self.made), "annotations": {}},
            "spec": {
                "schedulerName": "aliquot",
                "containers": [{"name": "main", "resources": {"limits": limits, "requests": {"cpu": "1"}}}],
            },
        });
        json_patch::merge(&mut pod, &more);
        self.pods.insert(name.into(), pod);
        self.show(name);
    }

    /// An object that says which pods start together.
    fn gang(&mut self, kind: GangKind, name: &str, spec: Value) {
        self.gang_with(kind, name, json!({}), spec);
    }

    /// The same with labels and annotations.
    fn gang_with(&mut self, kind: GangKind, name: &str, mut metadata: Value, spec: Value) {
        self.made += 1;
        metadata["uid"] = format!("gang-{}", self.made).into();
        let object = json!({"metadata": metadata, "spec": spec});
        show_gang(&mut self.mirror, kind, name, &object);
        self.gangs.insert((kind, name.into()), object);
    }

    fn show(&mut self, name: &str) {
        if let Some(pod) = self.pods.get(name) {
            self.tell(News::Is(pod.clone()));
        }
    }

    fn tell(&mut self, news: News) {
        match (&mut self.late, news) {
            (Some(late), news) => late.push_back(news),
            (None, News::Is(pod)) => self.mirror.pod(PodFacts::of(typed(&pod), "aliquot").unwrap()),
            (None, News::Gone(uid)) => self.mirror.pod_gone(&uid),
        }
    }

    /// The watches tell the next things of pods, this many.
    fn catch_up(&mut self, count: usize) {
        let Some(mut late) = self.late.take() else { return };
        let rest = late.split_off(count.min(late.len()));
        late.into_iter().for_each(|news| self.tell(news));
        self.late = Some(rest);
    }

    fn delete(&mut self, name: &str) {
        if let Some(pod) = self.pods.remove(name) {
            self.tell(News::Gone(pod["metadata"]["uid"].as_str().unwrap().to_owned()));
        }
    }

    /// The names of bound pods, with their nodes.
    fn bound(&self) -> BTreeMap<&str, &str> {
        let node = |pod: &'static str, of: &Value| of["spec"][pod].as_str().map(str::len).is_some();
        let bound = self.pods.iter().filter(|(_, pod)| node("nodeName", pod));
        bound.map(|(name, pod)| (name.as_str(), pod["spec"]["nodeName"].as_str().unwrap())).collect()
    }

    fn names_of_bound(&self) -> Vec<&str> {
        self.bound().into_keys().collect()
    }

    fn why_waiting(&self, name: &str) -> String {
        let uid = self.pods[name]["metadata"]["uid"].as_str().unwrap();
        if let Some(problem) = self.mirror.waiting(uid).and_then(|waiting| waiting.problem) {
            return problem.to_owned();
        }
        let view = self.view.as_ref().unwrap();
        let uid = ClaimUid::from(uid);
        match view.claim(&uid).map(|claim| claim.whereabouts) {
            Some(Whereabouts::Waiting) => view.explain(&uid).unwrap().to_string(),
            Some(Whereabouts::Refused(why)) => why.to_string(),
            other => format!("{other:?}"),
        }
    }

    /// What is promised of each device: thousandths of its time, and bytes.
    fn promised(&self) -> BTreeMap<String, (u32, u64)> {
        let mut promised: BTreeMap<String, (u32, u64)> = BTreeMap::new();
        for pod in self.pods.values().filter(|pod| pod["spec"]["nodeName"].is_string()) {
            let Some(text) = pod["metadata"]["annotations"][DECISION].as_str() else { continue };
            for part in text.parse::<Decision>().unwrap().containers.into_values().flatten() {
                let of = promised.entry(part.uuid).or_default();
                *of = (of.0 + part.core_thousandths, of.1 + part.memory_bytes);
            }
        }
        promised
    }
}

fn engine(policy: Box<dyn Policy>, term: u64, memory: Memory) -> Engine {
    let settings = aliquot_scheduler_core::Settings::default();
    let decisions = Decisions { policy, settings, usage_half_life_ms: 3_600_000 };
    let saved = Saved { term, memory, ..Saved::default() };
    let settings = Settings { lease: None, start_deadline_ms: START_DEADLINE_MS, ..Settings::default() };
    Engine::new(decisions, settings, saved)
}

fn show_gang(mirror: &mut Mirror, kind: GangKind, name: &str, object: &Value) {
    let metadata: ObjectMeta = typed(&object["metadata"]);
    let uid = object["metadata"]["uid"].as_str().unwrap();
    mirror.gang(kind, "default", name, GangFacts::of(kind, &metadata, &object["spec"]));
    let conditions = serde_json::from_value(object["status"]["conditions"].clone()).unwrap_or_default();
    mirror.gang_says(kind, "default", name, Some(GroupSaid { uid: uid.to_owned(), generation: 0, conditions }));
}

fn typed<T: serde::de::DeserializeOwned>(object: &Value) -> T {
    serde_json::from_value(object.clone()).unwrap()
}
