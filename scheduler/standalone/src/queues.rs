//! The queues, as administrators have defined them.

use std::collections::{BTreeMap, BTreeSet};

use aliquot_proto::scheduler::v1 as wire;
use aliquot_scheduler_core::{Allowance, DEFAULT_QUEUE, QueueSpec, Resource};
use aliquot_scheduler_engine::Observation;
use aliquot_scheduler_store::Change;
use serde::{Deserialize, Serialize};

/// The kind of the records in which queues are saved.
pub(crate) const QUEUES: &str = "queue";

/// All queues that administrators have made or changed, by name, and the default queue.
#[derive(Debug, Default)]
pub(crate) struct Queues(BTreeMap<String, QueueSpec>);

/// A queue as it is saved, with the settings of users.
#[derive(Serialize, Deserialize, Debug, Default)]
#[serde(default)]
struct Record {
    parent: Option<String>,
    quota_gpu_millis: Option<u64>,
    limit_gpu_millis: Option<u64>,
    weight: u64,
    // Records of older versions lack what follows.
    #[serde(skip_serializing_if = "is_default")]
    priority: i32,
    #[serde(skip_serializing_if = "is_default")]
    preempt_min_runtime_ms: Option<u64>,
    #[serde(skip_serializing_if = "is_default")]
    reclaim_min_runtime_ms: Option<u64>,
    #[serde(skip_serializing_if = "is_default")]
    cpu_millis: Bounds,
    #[serde(skip_serializing_if = "is_default")]
    memory_bytes: Bounds,
}

/// The quota and the limit of a resource; `None`: none.
#[derive(Clone, Copy, PartialEq, Eq, Serialize, Deserialize, Debug, Default)]
#[serde(default)]
struct Bounds {
    quota: Option<u64>,
    limit: Option<u64>,
}

fn is_default<T: Default + PartialEq>(value: &T) -> bool {
    *value == T::default()
}

impl Queues {
    /// The queues from their saved records.
    ///
    /// # Errors
    /// If a record cannot be read: its name, and the reason.
    pub(crate) fn load(records: Vec<(String, String)>) -> Result<Self, String> {
        let read = records.into_iter().map(|(name, value)| {
            let record = serde_json::from_str(&value).map_err(|error| format!("queue {name}: {error}"))?;
            Ok((name.clone(), to_spec(name, record)))
        });
        let mut queues = read.collect::<Result<BTreeMap<_, _>, String>>()?;
        // A default quota of everything would let one tenant keep all others out. So without an administrator's word
        // the quota is zero.
        queues.entry(DEFAULT_QUEUE.to_owned()).or_insert_with(|| to_spec(DEFAULT_QUEUE.to_owned(), Record::default()));
        Ok(Self(queues))
    }

    /// All queues as administrators have defined them, each after its parent.
    pub(crate) fn specs(&self) -> impl Iterator<Item = &QueueSpec> {
        let depth = |spec: &QueueSpec| {
            std::iter::successors(spec.parent.as_ref(), |name| self.0.get(*name)?.parent.as_ref())
                .take(self.0.len())
                .count()
        };
        let mut specs: Vec<&QueueSpec> = self.0.values().collect();
        specs.sort_by_key(|spec| depth(spec));
        specs.into_iter()
    }

    /// All queues for the engine, each after its parent. A queue names each resource that any queue names: otherwise its
    /// weight would not count when that resource is divided. A resource of which queues have only limits is not divided:
    /// every queue may have all of it, up to its limit.
    pub(crate) fn for_engine(&self) -> impl Iterator<Item = QueueSpec> {
        let named: BTreeSet<&Resource> = self.0.values().flat_map(|spec| spec.allowances.keys()).collect();
        let has_quota = |spec: &QueueSpec, resource: &Resource| {
            spec.allowances.get(resource).is_some_and(|allowance| allowance.quota != Some(0))
        };
        let is_divided = |resource: &Resource| {
            *resource == Resource::DeviceCore || self.0.values().any(|spec| has_quota(spec, resource))
        };
        let named: Vec<(&Resource, bool)> = named.into_iter().map(|of| (of, is_divided(of))).collect();
        self.specs().map(move |spec| {
            let mut spec = spec.clone();
            let weight = spec.allowances.get(&Resource::DeviceCore).map_or(1, |allowance| allowance.weight);
            for (resource, is_divided) in &named {
                let unnamed = Allowance { weight, ..Allowance::UNNAMED };
                let allowance = spec.allowances.entry((*resource).clone()).or_insert(unnamed);
                if !is_divided {
                    allowance.quota = None;
                }
            }
            spec
        })
    }

    /// What the engine must be told so that this queue is there, or, with `None`, is gone: the queue itself first, then the
    /// others that change with it.
    pub(crate) fn told(&self, name: &str, spec: Option<&QueueSpec>) -> Vec<Observation> {
        let mut next = Self(self.0.clone());
        match spec {
            Some(spec) => next.set(spec.clone()),
            None => next.remove(name),
        }
        let before: BTreeMap<String, QueueSpec> = self.for_engine().map(|spec| (spec.name.clone(), spec)).collect();
        let (own, others): (Vec<_>, Vec<_>) = next.for_engine().partition(|of| of.name == name);
        let removed = spec.is_none().then(|| Observation::QueueRemoved(name.to_owned()));
        let others = others.into_iter().filter(|of| before.get(&of.name) != Some(of));
        removed.into_iter().chain(own.into_iter().chain(others).map(Observation::Queue)).collect()
    }

    /// Whether a queue of this name exists.
    pub(crate) fn has(&self, name: &str) -> bool {
        self.0.contains_key(name)
    }

    /// The name of a queue, and the names of all queues above it.
    pub(crate) fn path(&self, name: &str) -> Vec<String> {
        let above = |name: &String| self.0.get(name)?.parent.clone();
        std::iter::successors(Some(name.to_owned()), above).take(self.0.len().max(1)).collect()
    }

    /// The names of the queues directly below this one.
    pub(crate) fn below(&self, name: &str) -> Vec<&str> {
        let below = self.0.values().filter(|spec| spec.parent.as_deref() == Some(name));
        below.map(|spec| spec.name.as_str()).collect()
    }

    /// The names of the queue, of all queues above it, and of all queues below it.
    pub(crate) fn around(&self, name: &str) -> Vec<String> {
        let is_below = |other: &&String| *other != name && self.path(other).iter().any(|above| above == name);
        self.path(name).into_iter().chain(self.0.keys().filter(is_below).cloned()).collect()
    }

    /// Reads a queue from a user's request. What the request leaves out stays as it is.
    ///
    /// # Errors
    /// A sentence with the fault.
    pub(crate) fn read(&self, queue: wire::Queue) -> Result<QueueSpec, String> {
        let before = self.0.get(&queue.name).map(Record::of).unwrap_or_default();
        let wire::Queue { name, parent, quota_gpu_millis, limit_gpu_millis, weight, .. } = queue;
        check_names(&name, &parent)?;
        let amounts = |given: Option<wire::QueueAmounts>, before: Bounds| {
            given.map_or(before, |given| Bounds { quota: given.quota, limit: given.limit })
        };
        let rules = queue.rules.unwrap_or(wire::QueueRules {
            priority: before.priority,
            preempt_min_runtime_ms: before.preempt_min_runtime_ms,
            reclaim_min_runtime_ms: before.reclaim_min_runtime_ms,
        });
        let record = Record {
            parent: (!parent.is_empty()).then_some(parent),
            quota_gpu_millis,
            limit_gpu_millis,
            weight: weight.into(),
            priority: rules.priority,
            preempt_min_runtime_ms: rules.preempt_min_runtime_ms,
            reclaim_min_runtime_ms: rules.reclaim_min_runtime_ms,
            cpu_millis: amounts(queue.cpu_millis, before.cpu_millis),
            memory_bytes: amounts(queue.memory_bytes, before.memory_bytes),
        };
        record.check()?;
        Ok(to_spec(name, record))
    }

    pub(crate) fn set(&mut self, spec: QueueSpec) {
        self.0.insert(spec.name.clone(), spec);
    }

    pub(crate) fn remove(&mut self, name: &str) {
        self.0.remove(name);
    }
}

impl Record {
    fn of(spec: &QueueSpec) -> Self {
        let allowance = |resource| spec.allowances.get(&resource).copied().unwrap_or(Allowance::UNNAMED);
        let bounds = |resource| {
            let Allowance { quota, limit, .. } = allowance(resource);
            Bounds { quota: quota.filter(|quota| *quota > 0), limit }
        };
        let gpu = bounds(Resource::DeviceCore);
        Self {
            parent: spec.parent.clone(),
            quota_gpu_millis: gpu.quota,
            limit_gpu_millis: gpu.limit,
            weight: allowance(Resource::DeviceCore).weight,
            priority: spec.priority,
            preempt_min_runtime_ms: spec.preempt_min_runtime_ms,
            reclaim_min_runtime_ms: spec.reclaim_min_runtime_ms,
            cpu_millis: bounds(Resource::Cpu),
            memory_bytes: bounds(Resource::Memory),
        }
    }

    fn check(&self) -> Result<(), String> {
        let thousandths = |millis: u64| (millis as f64 / 1000.0).to_string();
        let gpu = Bounds { quota: self.quota_gpu_millis, limit: self.limit_gpu_millis };
        check_bounds(gpu, "GPUs", thousandths)?;
        check_bounds(self.cpu_millis, "CPUs", thousandths)?;
        check_bounds(self.memory_bytes, "bytes of memory", |bytes| bytes.to_string())
    }
}

fn check_bounds(bounds: Bounds, of: &str, text: impl Fn(u64) -> String) -> Result<(), String> {
    match (bounds.quota, bounds.limit) {
        (Some(quota), Some(limit)) if quota > limit => Err(format!(
            "the quota of {} {of} is above the limit of {}; raise the limit or lower the quota",
            text(quota),
            text(limit)
        )),
        _ => Ok(()),
    }
}

fn check_names(name: &str, parent: &str) -> Result<(), String> {
    let is_usable = |text: &str| {
        !text.is_empty()
            && text.len() <= 63
            && text.chars().all(|letter| letter.is_ascii_alphanumeric() || matches!(letter, '-' | '_' | '.'))
    };
    let mut names = std::iter::once(name).chain(Some(parent).filter(|parent| !parent.is_empty()));
    match names.find(|text| !is_usable(text)) {
        None => Ok(()),
        Some(text) => {
            Err(format!("{text:?} cannot be the name of a queue: write 1 to 63 letters, digits, '-', '_' and '.'"))
        }
    }
}

/// The change that saves a queue; `None`: the change that removes it.
pub(crate) fn change(name: &str, spec: Option<&QueueSpec>) -> Change {
    let value = spec.and_then(|spec| serde_json::to_string(&Record::of(spec)).ok());
    Change { kind: QUEUES, key: name.to_owned(), value }
}

fn to_spec(name: String, record: Record) -> QueueSpec {
    let allowance = |bounds: Bounds| Allowance {
        quota: Some(bounds.quota.unwrap_or(0)),
        limit: bounds.limit,
        weight: record.weight.max(1),
        priority: None,
    };
    let gpu = Bounds { quota: record.quota_gpu_millis, limit: record.limit_gpu_millis };
    let others = [(Resource::Cpu, record.cpu_millis), (Resource::Memory, record.memory_bytes)];
    let others = others.into_iter().filter(|(_, bounds)| *bounds != Bounds::default());
    let allowances = others.chain([(Resource::DeviceCore, gpu)]);
    QueueSpec {
        name,
        allowances: allowances.map(|(resource, bounds)| (resource, allowance(bounds))).collect(),
        parent: record.parent,
        priority: record.priority,
        preempt_min_runtime_ms: record.preempt_min_runtime_ms,
        reclaim_min_runtime_ms: record.reclaim_min_runtime_ms,
    }
}

/// A queue for users, without its present usage.
pub(crate) fn shown(spec: &QueueSpec) -> wire::Queue {
    let record = Record::of(spec);
    let amounts = |Bounds { quota, limit }| Some(wire::QueueAmounts { quota, limit, ..wire::QueueAmounts::default() });
    wire::Queue {
        name: spec.name.clone(),
        parent: record.parent.unwrap_or_default(),
        quota_gpu_millis: record.quota_gpu_millis,
        limit_gpu_millis: record.limit_gpu_millis,
        weight: u32::try_from(record.weight).unwrap_or(u32::MAX),
        rules: Some(wire::QueueRules {
            priority: record.priority,
            preempt_min_runtime_ms: record.preempt_min_runtime_ms,
            reclaim_min_runtime_ms: record.reclaim_min_runtime_ms,
        }),
        cpu_millis: amounts(record.cpu_millis),
        memory_bytes: amounts(record.memory_bytes),
        ..wire::Queue::default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn queue(name: &str, parent: &str) -> wire::Queue {
        wire::Queue { name: name.into(), parent: parent.into(), weight: 1, ..wire::Queue::default() }
    }

    fn read(queue: wire::Queue) -> Result<QueueSpec, String> {
        Queues::default().read(queue)
    }

    fn bounds(quota: Option<u64>, limit: Option<u64>) -> Option<wire::QueueAmounts> {
        Some(wire::QueueAmounts { quota, limit, ..wire::QueueAmounts::default() })
    }

    fn loaded(name: &str, value: String) -> QueueSpec {
        let queues = Queues::load(vec![(name.to_owned(), value)]).unwrap();
        assert!(queues.specs().any(|spec| spec.name == DEFAULT_QUEUE), "this one is always there");
        queues.specs().find(|spec| spec.name == name).cloned().expect("it was saved")
    }

    fn names(told: &[Observation]) -> Vec<String> {
        let name = |of: &Observation| match of {
            Observation::Queue(spec) => spec.name.clone(),
            Observation::QueueRemoved(name) => format!("without {name}"),
            other => panic!("{other:?}"),
        };
        told.iter().map(name).collect()
    }

    #[test]
    fn a_queue_is_loaded_as_it_was_saved() {
        let rules = |priority, preempt_min_runtime_ms, reclaim_min_runtime_ms| {
            Some(wire::QueueRules { priority, preempt_min_runtime_ms, reclaim_min_runtime_ms })
        };
        let gpus =
            wire::Queue { quota_gpu_millis: Some(1500), limit_gpu_millis: Some(4000), ..queue("team-a", "research") };
        let none = bounds(None, None);
        let plain = wire::Queue { rules: rules(0, None, None), cpu_millis: none, memory_bytes: none, ..gpus.clone() };
        let all = wire::Queue {
            rules: rules(-3, Some(0), Some(600_000)),
            cpu_millis: bounds(Some(8000), Some(16_000)),
            memory_bytes: bounds(None, Some(1 << 36)),
            ..gpus.clone()
        };
        for (asked, expected) in [(gpus, plain), (all.clone(), all)] {
            let spec = read(asked).unwrap();
            let Change { key, value: Some(value), .. } = change("team-a", Some(&spec)) else {
                panic!("nothing is saved")
            };
            assert_eq!(loaded(&key, value), spec);
            assert_eq!(shown(&spec), expected);
        }
    }

    #[test]
    fn the_record_of_an_older_version_is_read() {
        let value = r#"{"parent":"research","quota_gpu_millis":1500,"limit_gpu_millis":null,"weight":2}"#.to_owned();
        let spec = loaded("team-a", value.clone());
        let gpu = Allowance { quota: Some(1500), limit: None, weight: 2, priority: None };
        let expected = QueueSpec {
            name: "team-a".into(),
            parent: Some("research".into()),
            allowances: [(Resource::DeviceCore, gpu)].into(),
            ..QueueSpec::default()
        };
        assert_eq!(spec, expected);
        assert_eq!(change("team-a", Some(&spec)).value, Some(value), "an older version can read it, too");
    }

    #[test]
    fn what_a_request_leaves_out_stays_as_it_is() {
        let rules = wire::QueueRules { priority: 7, preempt_min_runtime_ms: None, reclaim_min_runtime_ms: Some(5) };
        let mut queues = Queues::default();
        let all = wire::Queue { rules: Some(rules), cpu_millis: bounds(Some(1), Some(2)), ..queue("a", "") };
        queues.set(queues.read(all).unwrap());
        // A command line of an older version changes the weight.
        let weight = shown(&queues.read(wire::Queue { weight: 5, ..queue("a", "") }).unwrap());
        assert_eq!((weight.weight, weight.rules, weight.cpu_millis), (5, Some(rules), bounds(Some(1), Some(2))));
        let limit = wire::Queue { cpu_millis: bounds(None, Some(3)), ..queue("a", "") };
        let limit = shown(&queues.read(limit).unwrap());
        assert_eq!((limit.rules, limit.cpu_millis), (Some(rules), bounds(None, Some(3))));
    }

    #[test]
    fn a_weight_counts_for_what_any_queue_names() {
        let mut queues = Queues::default();
        queues.set(read(wire::Queue { weight: 2, ..queue("a", "") }).unwrap());
        queues.set(read(queue("b", "")).unwrap());
        let weights = |queues: &Queues, resource| {
            let specs = queues.for_engine();
            specs.map(|spec| spec.allowances.get(&resource).map(|of| of.weight)).collect::<Vec<_>>()
        };
        assert_eq!(weights(&queues, Resource::Cpu), [None, None]);
        let limited = read(wire::Queue { cpu_millis: bounds(None, Some(3)), ..queue("b", "") }).unwrap();
        assert_eq!(names(&queues.told("b", Some(&limited))), ["b", "a"], "the other's CPU has its weight from now on");
        queues.set(limited.clone());
        assert_eq!(weights(&queues, Resource::Cpu), [Some(2), Some(1)]);
        assert_eq!(weights(&queues, Resource::Memory), [None, None]);
        assert_eq!(names(&queues.told("b", Some(&limited))), ["b"]);
        assert_eq!(names(&queues.told("b", None)), ["without b", "a"]);
        let a = queues.for_engine().next().unwrap();
        assert_eq!(shown(&a), shown(queues.specs().next().unwrap()), "users see what they have set");
    }

    #[test]
    fn a_limit_alone_takes_no_guarantee_from_other_queues() {
        let mut queues = Queues::default();
        let of_cpu = |queues: &Queues| {
            let specs = queues.for_engine();
            specs.map(|spec| spec.allowances[&Resource::Cpu]).map(|of| (of.quota, of.limit)).collect::<Vec<_>>()
        };
        queues.set(read(queue("a", "")).unwrap());
        queues.set(read(wire::Queue { cpu_millis: bounds(None, Some(3)), ..queue("b", "") }).unwrap());
        assert_eq!(of_cpu(&queues), [(None, None), (None, Some(3))]);
        let quota = read(wire::Queue { cpu_millis: bounds(Some(2), None), ..queue("a", "") }).unwrap();
        assert_eq!(names(&queues.told("a", Some(&quota))), ["a", "b"], "CPU is divided from now on");
        queues.set(quota);
        assert_eq!(of_cpu(&queues), [(Some(2), None), (Some(0), Some(3))]);
    }

    #[test]
    fn parents_come_before_their_children() {
        let mut queues = Queues::load(Vec::new()).unwrap();
        for (name, parent) in [("a", "b"), ("b", "c"), ("c", "")] {
            queues.set(read(queue(name, parent)).unwrap());
        }
        let names: Vec<&str> = queues.specs().map(|spec| spec.name.as_str()).collect();
        assert_eq!(names, ["c", "default", "b", "a"]);
        assert_eq!(queues.path("a"), ["a", "b", "c"]);
        assert_eq!(queues.path("no such queue"), ["no such queue"]);
    }

    #[test]
    fn what_is_wrong_with_a_queue_is_named() {
        assert!(read(queue("", "")).unwrap_err().contains("\"\""));
        assert!(read(queue("team a", "")).unwrap_err().contains("\"team a\""));
        assert!(read(queue("a", "b/c")).unwrap_err().contains("\"b/c\""));
        let above = wire::Queue { quota_gpu_millis: Some(2), limit_gpu_millis: Some(1), ..queue("a", "") };
        assert!(read(above).unwrap_err().contains("raise the limit"));
        let above = wire::Queue { quota_gpu_millis: Some(5000), limit_gpu_millis: Some(2700), ..queue("a", "") };
        assert!(read(above).unwrap_err().contains("the quota of 5 GPUs is above the limit of 2.7;"));
        let above = wire::Queue { cpu_millis: bounds(Some(2500), Some(2000)), ..queue("a", "") };
        assert!(read(above).unwrap_err().contains("the quota of 2.5 CPUs is above the limit of 2;"));
        let above = wire::Queue { memory_bytes: bounds(Some(2), Some(1)), ..queue("a", "") };
        assert!(read(above).unwrap_err().contains("the quota of 2 bytes of memory is above the limit of 1;"));
    }
}
