//! The objects, their versions, and the history of their changes.

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use serde_json::Value;
use tokio::sync::watch;

use super::resource::Resource;

/// The number of changes that are kept for watches.
const HISTORY: usize = 10_000;

/// The key of an object: group and plural name of its resource, namespace, name.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Key {
    group: &'static str,
    plural: &'static str,
    /// The namespace; empty for objects without one.
    pub(crate) namespace: String,
    pub(crate) name: String,
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
    /// The object before the change; `None` if it did not exist.
    pub(super) before: Option<Arc<Value>>,
    /// The object after the change; `None` if it was deleted.
    pub(super) after: Option<Arc<Value>>,
}

/// All objects, under one lock.
pub(super) struct Objects {
    state: Mutex<State>,
    /// Sends the newest version.
    changed: watch::Sender<u64>,
}

/// The state that the lock protects.
pub(super) struct State {
    version: u64,
    objects: BTreeMap<Key, Arc<Value>>,
    history: VecDeque<(Key, Change)>,
    /// The version up to which changes are forgotten.
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

    /// A receiver that is told of each change.
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

/// The objects, while their lock is held.
pub(super) struct Locked<'a> {
    state: MutexGuard<'a, State>,
    changed: &'a watch::Sender<u64>,
}

impl Locked<'_> {
    pub(super) fn version(&self) -> u64 {
        self.state.version
    }

    pub(super) fn get(&self, key: &Key) -> Option<&Value> {
        self.state.objects.get(key).map(AsRef::as_ref)
    }

    /// The objects of a resource, by namespace and name.
    pub(super) fn list<'l>(
        &'l self,
        resource: &'l Resource,
        namespace: Option<&'l str>,
    ) -> impl Iterator<Item = (&'l Key, &'l Arc<Value>)> {
        let first = Key::new(resource, namespace.unwrap_or_default(), "");
        let from_there = self.state.objects.range(first..);
        from_there.take_while(move |(key, _)| key.is_of(resource, namespace))
    }

    /// The changes after `version`; `None` if the history does not reach back so far.
    pub(super) fn since<'l>(
        &'l self,
        version: u64,
        resource: &'l Resource,
        namespace: Option<&'l str>,
    ) -> Option<impl Iterator<Item = &'l (Key, Change)>> {
        if version < self.state.compacted {
            return None;
        }
        let history = &self.state.history;
        let newer = history.range(history.partition_point(|(_, change)| change.version <= version)..);
        Some(newer.filter(move |(key, _)| key.is_of(resource, namespace)))
    }

    /// Stores `object` under its key, and gives it a version.
    pub(super) fn put(&mut self, key: Key, object: Value) -> Arc<Value> {
        let object = self.stamped(object);
        let before = self.state.objects.insert(key.clone(), Arc::clone(&object));
        self.note(key, before, Some(Arc::clone(&object)));
        object
    }

    /// Removes the object with this key.
    pub(super) fn remove(&mut self, key: Key) {
        let removed = self.state.objects.remove(&key).map(Arc::unwrap_or_clone);
        // The last state of a deleted object has the version of its deletion.
        let before = removed.map(|object| self.stamped(object));
        self.note(key, before, None);
    }

    /// `object` with the version of this change.
    fn stamped(&self, mut object: Value) -> Arc<Value> {
        object["metadata"]["resourceVersion"] = (self.state.version + 1).to_string().into();
        Arc::new(object)
    }

    fn note(&mut self, key: Key, before: Option<Arc<Value>>, after: Option<Arc<Value>>) {
        let state = &mut *self.state;
        state.version += 1;
        let version = state.version;
        state.history.push_back((key, Change { version, before, after }));
        if state.history.len() > HISTORY
            && let Some((_, oldest)) = state.history.pop_front()
        {
            state.compacted = oldest.version;
        }
        self.changed.send_replace(version);
    }
}
