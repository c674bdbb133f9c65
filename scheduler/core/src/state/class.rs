//! Classes of interchangeable tasks.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::state::resources::{Charge, Resources};
use crate::vocabulary::peers::{PeerGroup, Peers};
use crate::vocabulary::request::Request;
use crate::vocabulary::slab::{Key, Slab};

/// Names a class of tasks with equal requests.
pub type ClassId = Key<Class>;

/// Tasks with equal requests.
#[derive(Clone, Debug)]
pub struct Class {
    request: Arc<Request>,
    claims: usize,
    charges: Charges,
}

/// What a task of a class is charged, as far as this is known before it is placed.
#[derive(Clone, Debug)]
struct Charges {
    least: Charge,
    most: Charge,
}

impl Charges {
    fn of(request: &Request, resources: &Resources) -> Self {
        Self { least: resources.least_charge(request), most: resources.most_charge(request) }
    }
}

impl Class {
    /// The request that all its tasks have.
    #[must_use]
    pub fn request(&self) -> &Request {
        &self.request
    }

    /// The least that a task is charged wherever it is placed.
    pub(crate) fn least_charge(&self) -> &Charge {
        &self.charges.least
    }

    /// The most that a task is charged wherever it is placed.
    pub(crate) fn most_charge(&self) -> &Charge {
        &self.charges.most
    }

    /// The request, to be kept without a copy.
    pub(crate) fn shared_request(&self) -> &Arc<Request> {
        &self.request
    }
}

/// The classes of all claims in the cluster.
#[derive(Clone, Debug, Default)]
pub(crate) struct Classes {
    classes: Slab<Class>,
    by_request: BTreeMap<Arc<Request>, ClassId>,
    /// For each group: the number of classes whose affinity or spread counts its members.
    counted_on: BTreeMap<PeerGroup, usize>,
}

impl Classes {
    /// Adds a claim to the class of its request.
    pub(crate) fn join(&mut self, request: &Request, resources: &Resources) -> (ClassId, Arc<Request>) {
        if let Some((request, &id)) = self.by_request.get_key_value(request) {
            if let Some(class) = self.classes.get_mut(id) {
                class.claims += 1;
            }
            return (id, Arc::clone(request));
        }
        let request = Arc::new(request.clone());
        for group in request.peers.iter().flat_map(|peers| peers.counted_on()) {
            *self.counted_on.entry(group.clone()).or_default() += 1;
        }
        let charges = Charges::of(&request, resources);
        let id = self.classes.insert(Class { request: Arc::clone(&request), claims: 1, charges });
        self.by_request.insert(Arc::clone(&request), id);
        (id, request)
    }

    /// Takes a claim out of its class. A class without claims is forgotten.
    pub(crate) fn leave(&mut self, id: ClassId) {
        let Some(class) = self.classes.get_mut(id) else { return };
        class.claims -= 1;
        if class.claims == 0
            && let Some(class) = self.classes.remove(id)
        {
            self.by_request.remove(&class.request);
            class.request.peers.iter().for_each(|peers| self.count_no_longer(peers));
        }
    }

    fn count_no_longer(&mut self, peers: &Peers) {
        for group in peers.counted_on() {
            if let Some(classes) = self.counted_on.get_mut(group) {
                *classes -= 1;
                if *classes == 0 {
                    self.counted_on.remove(group);
                }
            }
        }
    }

    /// Counts anew what tasks are charged, after the sizes of devices have changed.
    pub(crate) fn charge_anew(&mut self, resources: &Resources) {
        for id in self.by_request.values() {
            if let Some(class) = self.classes.get_mut(*id) {
                class.charges = Charges::of(&class.request, resources);
            }
        }
    }

    /// Whether an affinity or a spread of any claim counts members of a group.
    pub(crate) fn count_on(&self, group: &PeerGroup) -> bool {
        self.counted_on.contains_key(group)
    }

    pub(crate) fn get(&self, id: ClassId) -> Option<&Class> {
        self.classes.get(id)
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = (ClassId, &Class)> {
        self.classes.iter()
    }
}
