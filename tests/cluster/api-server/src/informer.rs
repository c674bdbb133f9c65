//! The copy that a controller has of a resource's objects: only changed objects are read again.

use std::collections::BTreeMap;

use serde::de::DeserializeOwned;
use serde_json::Value;

use super::objects::Key;
use super::{Resource, Store};

/// The objects of a resource, by their type, as they were when it was last refreshed.
#[derive(Debug)]
pub struct Informer<T> {
    store: Store,
    resource: &'static Resource,
    /// The version up to which changes are known.
    version: u64,
    objects: BTreeMap<Key, T>,
}

impl<T: DeserializeOwned> Informer<T> {
    /// An informer without any objects yet.
    #[must_use]
    pub fn new(store: Store, resource: &'static Resource) -> Informer<T> {
        Informer { store, resource, version: 0, objects: BTreeMap::new() }
    }

    /// Reads the changes since the last refresh.
    pub fn refresh(&mut self) {
        let server = std::sync::Arc::clone(&self.store.shared);
        let objects = server.objects.lock();
        match objects.since(self.version, self.resource, None) {
            Some(changes) => {
                // Of several changes of one object, only the last state is read.
                let newest: BTreeMap<&Key, Option<&Value>> =
                    changes.map(|(key, change)| (key, change.after.as_deref())).collect();
                for (key, object) in newest {
                    match object {
                        Some(object) => drop(self.objects.insert(key.clone(), typed(object))),
                        None => drop(self.objects.remove(key)),
                    }
                }
            }
            None => {
                let listed = objects.list(self.resource, None);
                self.objects = listed.map(|(key, object)| (key.clone(), typed(object))).collect();
            }
        }
        self.version = objects.version();
    }

    /// All objects, by namespace and name.
    pub fn objects(&self) -> impl Iterator<Item = &T> + Clone {
        self.objects.values()
    }

    /// The object with this name, as of the last refresh.
    #[must_use]
    pub fn get(&self, namespace: &str, name: &str) -> Option<&T> {
        self.objects.get(&Key::new(self.resource, namespace, name))
    }
}

fn typed<T: DeserializeOwned>(object: &Value) -> T {
    T::deserialize(object).expect("what is stored has passed its resource's schema")
}
