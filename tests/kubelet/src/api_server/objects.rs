//! The objects, their versions, and what has happened to them.

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Mutex, MutexGuard, PoisonError};

use serde_json::Value;
use tokio::sync::watch;

use super::resource::Resource;

/// Changes that watches can still ask for.
const HISTORY: usize = 10_000;

/// Where an object is kept: group and plural name of its resource, namespace, name.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Key {
    group: &'static str,
    plural: &'static str,
    /// Empty for what lies in no namespace.
    pub(super) namespace: String,
    pub(super) name: String,
}

impl Key {
    pub(super) fn new(resource: &Resource, namespace: &str, name: &str) -> Key {
        let (group, plural) = (resource.group, resource.plural);
        Key { group, plural, namespace: namespace.to_owned(), name: name.to_owned() }
    }

    fn is_of(&self, resource: &Resource, namespace: Option<&str>) -> bool {
        (self.group, self.plural) == (resource.group, resource.plural)
            && namespace.is_none_or(|namespace| namespace == self.namespace)
    }
}

/// One change of one object.
#[derive(Clone, Debug)]
pub(super) struct Change {
    pub(super) version: u64,
    /// As it was, `None` if it was not there.
    pub(super) before: Option<Value>,
    /// As it is, `None` if it was deleted.
    pub(super) after: Option<Value>,
}

/// All objects, under one lock.
pub(super) struct Objects {
    state: Mutex<State>,
    /// The newest version.
    changed: watch::Sender<u64>,
}

/// What the lock protects.
pub(super) struct State {
    version: u64,
    objects: BTreeMap<Key, Value>,
    history: VecDeque<(Key, Change)>,
    /// Changes up to this version are forgotten.
    compacted: u64,
}

impl Objects {
    pub(super) fn new() -> Objects {
        let state = State { version: 1, objects: BTreeMap::new(), history: VecDeque::new(), compacted: 1 };
        Objects { state: Mutex::new(state), changed: watch::Sender::new(1) }
    }

    pub(super) fn lock(&self) -> Locked<'_> {
        Locked { state: self.state.lock().unwrap_or_else(PoisonError::into_inner), changed: &self.changed }
    }

    /// Tells of each change.
    pub(super) fn subscribe(&self) -> watch::Receiver<u64> {
        self.changed.subscribe()
    }

    /// Forgets all changes so far, as the real store does after some minutes.
    pub(super) fn compact(&self) {
        let mut locked = self.lock();
        locked.state.history.clear();
        locked.state.compacted = locked.state.version;
    }
}

/// The objects, locked.
pub(super) struct Locked<'a> {
    state: MutexGuard<'a, State>,
    changed: &'a watch::Sender<u64>,
}

impl Locked<'_> {
    pub(super) fn version(&self) -> u64 {
        self.state.version
    }

    pub(super) fn get(&self, key: &Key) -> Option<&Value> {
        self.state.objects.get(key)
    }

    /// The objects of a resource, by namespace and name.
    pub(super) fn list(&self, resource: &Resource, namespace: Option<&str>) -> Vec<&Value> {
        let objects = self.state.objects.iter();
        objects.filter(|(key, _)| key.is_of(resource, namespace)).map(|(_, object)| object).collect()
    }

    /// What has happened after `version`, or `None` if that is no longer known.
    pub(super) fn since(&self, version: u64, resource: &Resource, namespace: Option<&str>) -> Option<Vec<Change>> {
        if version < self.state.compacted {
            return None;
        }
        let newer = self.state.history.iter().filter(|(_, change)| change.version > version);
        Some(newer.filter(|(key, _)| key.is_of(resource, namespace)).map(|(_, change)| change.clone()).collect())
    }

    /// Puts `object` in its place, or takes away what is there, and gives the change a version.
    pub(super) fn set(&mut self, key: Key, object: Option<Value>) -> Option<Value> {
        let state = &mut *self.state;
        state.version += 1;
        let version = state.version;
        let stamped = |mut object: Value| {
            object["metadata"]["resourceVersion"] = version.to_string().into();
            object
        };
        let object = object.map(stamped);
        let before = match &object {
            Some(object) => state.objects.insert(key.clone(), object.clone()),
            // The last state of what is deleted has the version of its deletion.
            None => state.objects.remove(&key).map(stamped),
        };
        state.history.push_back((key, Change { version, before, after: object.clone() }));
        if state.history.len() > HISTORY
            && let Some((_, oldest)) = state.history.pop_front()
        {
            state.compacted = oldest.version;
        }
        self.changed.send_replace(version);
        object
    }
}
