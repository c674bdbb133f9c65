//! Owners of pods: what they say counts for their pods.

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};

use super::{Access, Mirror};
use crate::gang::GangFacts;
use crate::kai_words::{KaiWords, Preemptibility};
use crate::owner::{Owner, OwnerFacts, OwnerKind, OwnerWords};
use crate::pod::PodFacts;

/// A kind, a namespace and a name in it.
type Key = (OwnerKind, String, String);

/// So many owners stand above each other, at most.
const LEVELS_MAX: usize = 4;

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
        let (kind, namespace, name) = key;
        if kind.is_above_others() {
            let is_it = |above: &Option<Owner>| above.as_ref().is_some_and(|of| (of.kind, &of.name) == (*kind, name));
            let below = |((_, of, _), facts): &(&Key, &OwnerFacts)| of == namespace && is_it(&facts.above);
            let below = self.owners.objects.iter().filter(below).filter_map(|(key, _)| self.owners.pods.get(key));
            let of_gangs = self.pods_of_gangs(namespace, |of_gang| is_it(&of_gang.above));
            let pods: BTreeSet<String> = below.flatten().chain(of_gangs).cloned().collect();
            self.changed_pods.extend(pods);
        }
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

    fn owner_named(&self, namespace: &str, owner: &Owner) -> Option<&OwnerFacts> {
        let of = self.owners.objects.get(&(owner.kind, namespace.to_owned(), owner.name.clone()))?;
        // An object that was made anew says nothing of the pods of the one before it.
        owner.uid.as_ref().is_none_or(|uid| *uid == of.uid).then_some(of)
    }

    /// What an owner and those above it say, the nearest first.
    pub(super) fn words_from<'a>(
        &'a self,
        namespace: &'a str,
        owner: Option<&Owner>,
    ) -> impl Iterator<Item = &'a OwnerWords> {
        let first = owner.and_then(|owner| self.owner_named(namespace, owner));
        let above = |of: &&OwnerFacts| self.owner_named(namespace, of.above.as_ref()?);
        std::iter::successors(first, above).take(LEVELS_MAX).filter_map(|of| of.words.as_deref())
    }

    fn words_of_owners<'a>(&'a self, facts: &'a PodFacts) -> impl Iterator<Item = &'a OwnerWords> {
        self.words_from(&facts.namespace, facts.owner.as_ref())
    }

    /// What an object says of the pods that start together, and what those above it say where it says nothing.
    pub(super) fn with_words_above(&self, namespace: &str, of_gang: GangFacts) -> GangFacts {
        let above = of_gang.above.clone();
        self.words_from(namespace, above.as_ref()).fold(of_gang, |of_gang, words| GangFacts {
            queue: of_gang.queue.clone().or_else(|| words.queue.clone()),
            preemptibility: of_gang.preemptibility.or(words.preemptibility),
            ..of_gang.or_in_words(&words.kai)
        })
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

    /// The queue that the owner of a pod names, or one above it.
    pub(super) fn queue_of_owner(&self, facts: &PodFacts) -> Option<String> {
        self.words_of_owners(facts).find_map(|words| words.queue.clone())
    }

    /// What is said of a pod in KAI's words: by its owners, and where these say nothing, by itself.
    pub(super) fn kai_words_of<'a>(&'a self, facts: &'a PodFacts) -> Cow<'a, KaiWords> {
        let mut of_owners = self.words_of_owners(facts).map(|words| &words.kai);
        match of_owners.next() {
            Some(first) => Cow::Owned(of_owners.fold(first.clone(), KaiWords::or).or(facts.kai_words())),
            None => Cow::Borrowed(facts.kai_words()),
        }
    }

    /// The priority classes that labels of a pod's owners and of the pod name. The first one that exists counts.
    pub(super) fn labelled_classes<'a>(&'a self, facts: &'a PodFacts) -> impl Iterator<Item = &'a str> {
        let of_owners = self.words_of_owners(facts).filter_map(|words| words.kai.class.as_deref());
        of_owners.chain(facts.kai_words().class.as_deref())
    }

    /// Which pods of a pod's group may be evicted for others, as its owner says or, where that does not, the pod.
    pub(super) fn said_preemptibility(&self, facts: &PodFacts) -> Option<Preemptibility> {
        self.words_of_owners(facts).find_map(|words| words.preemptibility).or(facts.preemptibility)
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
