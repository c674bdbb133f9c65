//! The queues, as administrators have defined them.

use std::collections::BTreeMap;

use aliquot_proto::scheduler::v1 as wire;
use aliquot_scheduler_core::{Allowance, DEFAULT_QUEUE, QueueSpec, Resource};
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

    /// All queues, each after its parent.
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

    pub(crate) fn set(&mut self, spec: QueueSpec) {
        self.0.insert(spec.name.clone(), spec);
    }

    pub(crate) fn remove(&mut self, name: &str) {
        self.0.remove(name);
    }
}

/// The change that saves a queue; `None`: the change that removes it.
pub(crate) fn change(name: &str, spec: Option<&QueueSpec>) -> Change {
    let value = spec.and_then(|spec| {
        let wire::Queue { parent, quota_gpu_millis, limit_gpu_millis, weight, .. } = shown(spec);
        let parent = (!parent.is_empty()).then_some(parent);
        serde_json::to_string(&Record { parent, quota_gpu_millis, limit_gpu_millis, weight: weight.into() }).ok()
    });
    Change { kind: QUEUES, key: name.to_owned(), value }
}

/// Reads a queue from a user's request.
///
/// # Errors
/// A sentence with the fault.
pub(crate) fn read(queue: wire::Queue) -> Result<QueueSpec, String> {
    let wire::Queue { name, parent, quota_gpu_millis, limit_gpu_millis, weight, .. } = queue;
    let is_usable = |text: &str| {
        !text.is_empty()
            && text.len() <= 63
            && text.chars().all(|letter| letter.is_ascii_alphanumeric() || matches!(letter, '-' | '_' | '.'))
    };
    for text in std::iter::once(&name).chain(Some(&parent).filter(|parent| !parent.is_empty())) {
        if !is_usable(text) {
            return Err(format!(
                "{text:?} cannot be the name of a queue: write 1 to 63 letters, digits, '-', '_' and '.'"
            ));
        }
    }
    if let (Some(quota), Some(limit)) = (quota_gpu_millis, limit_gpu_millis)
        && quota > limit
    {
        let gpus = |millis: u64| millis as f64 / 1000.0;
        return Err(format!(
            "the quota of {} GPUs is above the limit of {}; raise the limit or lower the quota",
            gpus(quota),
            gpus(limit)
        ));
    }
    let parent = (!parent.is_empty()).then_some(parent);
    Ok(to_spec(name, Record { parent, quota_gpu_millis, limit_gpu_millis, weight: u64::from(weight) }))
}

fn to_spec(name: String, record: Record) -> QueueSpec {
    let Record { parent, quota_gpu_millis, limit_gpu_millis, weight } = record;
    let allowance = Allowance {
        quota: Some(quota_gpu_millis.unwrap_or(0)),
        limit: limit_gpu_millis,
        weight: weight.max(1),
        priority: None,
    };
    QueueSpec { name, parent, allowances: [(Resource::DeviceCore, allowance)].into(), ..QueueSpec::default() }
}

/// A queue for users, without its present usage.
pub(crate) fn shown(spec: &QueueSpec) -> wire::Queue {
    let allowance = spec.allowances.get(&Resource::DeviceCore).copied().unwrap_or(Allowance::UNNAMED);
    wire::Queue {
        name: spec.name.clone(),
        parent: spec.parent.clone().unwrap_or_default(),
        quota_gpu_millis: allowance.quota.filter(|quota| *quota > 0),
        limit_gpu_millis: allowance.limit,
        weight: u32::try_from(allowance.weight).unwrap_or(u32::MAX),
        ..wire::Queue::default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn queue(name: &str, parent: &str) -> wire::Queue {
        wire::Queue { name: name.into(), parent: parent.into(), weight: 1, ..wire::Queue::default() }
    }

    #[test]
    fn a_queue_is_loaded_as_it_was_saved() {
        let wanted =
            wire::Queue { quota_gpu_millis: Some(1500), limit_gpu_millis: Some(4000), ..queue("team-a", "research") };
        let spec = read(wanted.clone()).unwrap();
        let Change { key, value: Some(value), .. } = change("team-a", Some(&spec)) else { panic!("nothing is saved") };
        let queues = Queues::load(vec![(key, value)]).unwrap();
        let loaded = queues.specs().find(|spec| spec.name == "team-a").expect("it was saved");
        assert_eq!(shown(loaded), wanted);
        assert!(queues.specs().any(|spec| spec.name == DEFAULT_QUEUE), "this one is always there");
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
    }
}
