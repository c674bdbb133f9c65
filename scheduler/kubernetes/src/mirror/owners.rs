//! Owners of pods: what they say counts for their pods.

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};

use super::{Access, Mirror};
use crate::kai_words::{KaiWords, Preemptibility};
use crate::owner::{OwnerFacts, OwnerKind, OwnerWords};
use crate::pod::PodFacts;

/// A kind, a namespace and a name in it.
type Key = (OwnerKind, String, String);

/// What is known of owners.
#[derive(Debug, Default)]
pub(super) struct Owners {
    /// Whether all objects of a kind are known, and if not, why.
    access: BTreeMap<OwnerKind, Access>,
    objects: BTreeMap<Key, OwnerFacts>,
    /// The UIDs of the pods of each owner, whether it is known or not.
    pods: BTreeMap<Key, BTreeSet<String>>,
}

impl Mirror {
    pub(crate) fn owner(&mut self, kind: OwnerKind, namespace: &str, name: &str, facts: OwnerFacts) {
        let key = (kind, namespace.to_owned(), name.to_owned());
        if self.owners.objects.get(&key) != Some(&facts) {
            self.pods_of_owner_changed(&key);
            self.owners.objects.insert(key, facts);
        }
    }

    pub(crate) fn owner_gone(&mut self, kind: OwnerKind, namespace: &str, name: &str) {
        let key = (kind, namespace.to_owned(), name.to_owned());
        if self.owners.objects.remove(&key).is_some() {
            self.pods_of_owner_changed(&key);
        }
    }

    /// Tells whether all owners of a kind are known. Without the right to read them, their words do not count.
    pub(crate) fn owners_are(&mut self, kind: OwnerKind, access: Access) {
        if self.owners.access.insert(kind, access).unwrap_or_default() != access {
            let of_kind = self.owners.pods.iter().filter(|((of, ..), _)| *of == kind);
            self.changed_pods.extend(of_kind.flat_map(|(_, pods)| pods.iter().cloned()));
        }
    }

    /// The namespaces and names of the owners of a kind that are known.
    pub(crate) fn owner_names(&self, kind: OwnerKind) -> impl Iterator<Item = (&str, &str)> {
        let of_kind = self.owners.objects.keys().filter(move |(of, ..)| *of == kind);
        of_kind.map(|(_, namespace, name)| (namespace.as_str(), name.as_str()))
    }

    fn pods_of_owner_changed(&mut self, key: &Key) {
        self.changed_pods.extend(self.owners.pods.get(key).into_iter().flatten().cloned());
    }

    pub(super) fn list_with_owner(&mut self, facts: &PodFacts) {
        if let Some(key) = key_of(facts) {
            self.owners.pods.entry(key).or_default().insert(facts.uid.clone());
        }
    }

    pub(super) fn unlist_with_owner(&mut self, facts: &PodFacts) {
        let Some(key) = key_of(facts) else { return };
        if let Some(pods) = self.owners.pods.get_mut(&key) {
            pods.remove(&facts.uid);
            if pods.is_empty() {
                self.owners.pods.remove(&key);
            }
        }
    }

    fn owner_of(&self, facts: &PodFacts) -> Option<&OwnerFacts> {
        let of = self.owners.objects.get(&key_of(facts)?)?;
        let uid = facts.owner.as_ref()?.uid.as_ref();
        // An object that was made anew says nothing of the pods of the one before it.
        uid.is_none_or(|uid| *uid == of.uid).then_some(of)
    }

    fn words_of_owner(&self, facts: &PodFacts) -> Option<&OwnerWords> {
        self.owner_of(facts)?.words.as_deref()
    }

    /// Checks that the owner of a pod is known, with what it says. The watch of pods can be faster than that of owners.
    ///
    /// # Errors
    /// The owner is not there, or not there yet.
    pub(super) fn check_owner(&self, facts: &PodFacts) -> Result<(), String> {
        // A pod of a Deployment names its ReplicaSet, which can have such a name by chance.
        let Some(owner) = facts.owner.as_ref().filter(|owner| owner.uid.is_some()) else { return Ok(()) };
        let is_there = key_of(facts).is_some_and(|key| self.owners.objects.contains_key(&key));
        if is_there || self.owners.access.get(&owner.kind) != Some(&Access::Read) {
            return Ok(());
        }
        Err(format!("its owner {} does not exist; Kubernetes deletes such pods", owner.kind.full_name(&owner.name)))
    }

    /// The queue that the owner of a pod names.
    pub(super) fn queue_of_owner(&self, facts: &PodFacts) -> Option<String> {
        self.words_of_owner(facts)?.queue.clone()
    }

    /// What is said of a pod in KAI's words: by its owner, and where that says nothing, by itself.
    pub(super) fn kai_words_of<'a>(&'a self, facts: &'a PodFacts) -> Cow<'a, KaiWords> {
        match self.words_of_owner(facts) {
            Some(of_owner) => Cow::Owned(of_owner.kai.clone().or(facts.kai_words())),
            None => Cow::Borrowed(facts.kai_words()),
        }
    }

    /// The priority classes that labels of a pod's owner and of the pod name. The first one that exists counts.
    pub(super) fn labelled_classes<'a>(&'a self, facts: &'a PodFacts) -> impl Iterator<Item = &'a str> {
        let of_owner = self.words_of_owner(facts).and_then(|words| words.kai.class.as_deref());
        of_owner.into_iter().chain(facts.kai_words().class.as_deref())
    }

    /// Which pods of a pod's group may be evicted for others, as its owner says or, where that does not, the pod.
    pub(super) fn said_preemptibility(&self, facts: &PodFacts) -> Option<Preemptibility> {
        self.words_of_owner(facts).and_then(|words| words.preemptibility).or(facts.preemptibility)
    }

    /// Whether a pod may be evicted for others if it starts by itself with this priority.
    pub(super) fn is_preemptible_at(&self, facts: &PodFacts, priority: i32) -> bool {
        Preemptibility::lets_one_go(self.said_preemptibility(facts), priority)
    }
}

fn key_of(facts: &PodFacts) -> Option<Key> {
    let owner = facts.owner.as_ref()?;
    Some((owner.kind, facts.namespace.clone(), owner.name.clone()))
}
