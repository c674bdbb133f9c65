//! Queues, and which of them pods are in.

use std::collections::{BTreeMap, BTreeSet};

use aliquot_api_server::queue_of;
use aliquot_scheduler_core::{DEFAULT_QUEUE, QueueSpec};
use aliquot_scheduler_engine::Observation;

use super::Mirror;
use crate::pod::PodFacts;
use crate::queue::{Fault, QueueDefinition, QueueResource, QueueResources, QueueStatus};

/// What an object says of a queue beside its definition.
#[derive(Clone, Debug, Default)]
pub(crate) struct QueueSaid {
    pub(crate) generation: i64,
    pub(crate) status: Option<QueueStatus>,
}

/// What is known of a queue's object beside its definition.
#[derive(Debug, Default)]
pub(super) struct QueueObject {
    said: QueueSaid,
    number_fault: Option<Fault>,
    /// Why the books have not taken it as it is defined.
    refused: Option<String>,
}

/// A queue that was deleted, as long as anything is in it or waits for it.
#[derive(Debug)]
pub(super) struct DeletedQueue {
    /// What it is in the books until it is gone from there.
    spec: QueueSpec,
    /// Whether the books have kept it.
    stays: bool,
}

/// What a namespace says of its pods.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct NamespaceFacts {
    /// They name the policy of pods that name none, and selectors match them.
    pub(super) labels: BTreeMap<String, String>,
    queue: Option<String>,
}

impl NamespaceFacts {
    pub(crate) fn of(labels: BTreeMap<String, String>, annotations: &BTreeMap<String, String>) -> NamespaceFacts {
        let queue = queue_of(&labels, annotations).cloned();
        NamespaceFacts { labels, queue }
    }
}

impl Mirror {
    pub(crate) fn queue(&mut self, name: &str, definition: &QueueDefinition) {
        let spec = definition.spec(name);
        self.has_changed_queues |= self.queues.get(name) != Some(&spec);
        self.queues.insert(name.to_owned(), spec);
        self.queue_objects.entry(name.to_owned()).or_default().number_fault = definition.number_fault();
    }

    /// Takes in what the object of a queue says beside its definition.
    pub(crate) fn queue_says(&mut self, name: &str, said: QueueSaid) {
        if let Some(known) = self.queue_objects.get_mut(name) {
            known.said = said;
        }
    }

    /// A queue of KAI's. If we have one of the same name, ours counts.
    pub(crate) fn queue_of_kai(&mut self, name: &str, definition: &QueueDefinition) {
        let spec = definition.spec(name);
        self.has_changed_queues |= self.queues_of_kai.get(name) != Some(&spec);
        self.queues_of_kai.insert(name.to_owned(), spec);
    }

    pub(crate) fn queue_of_kai_gone(&mut self, name: &str) {
        self.has_changed_queues |= self.queues_of_kai.remove(name).is_some();
    }

    pub(crate) fn names_of_queues_of_kai(&self) -> BTreeSet<String> {
        self.queues_of_kai.keys().cloned().collect()
    }

    /// The queue that counts of those with this name.
    fn queue_named(&self, name: &str) -> Option<&QueueSpec> {
        self.queues.get(name).or_else(|| self.queues_of_kai.get(name))
    }

    pub(crate) fn queue_gone(&mut self, name: &str) {
        self.has_changed_queues |= self.queues.remove(name).is_some();
        self.queue_objects.remove(name);
    }

    /// Notes whether the books have taken a queue as it is defined. `refused`: why not.
    pub(crate) fn queue_taken(&mut self, name: &str, refused: Option<String>) {
        if let Some(known) = self.queue_objects.get_mut(name) {
            known.refused = refused;
        }
    }

    /// All queues of ours that are defined, with what their status says and what is wrong with them.
    pub(crate) fn defined_queues(&self) -> impl Iterator<Item = (&str, &QueueSaid, Option<Fault>)> {
        self.queue_objects.iter().map(|(name, known)| (name.as_str(), &known.said, self.fault_of(name, known)))
    }

    fn fault_of(&self, name: &str, known: &QueueObject) -> Option<Fault> {
        let parent = |name: &str| self.queue_named(name)?.parent.clone();
        let is_missing = |parent: &String| *parent != DEFAULT_QUEUE && self.queue_named(parent).is_none();
        if let Some(missing) = parent(name).filter(is_missing) {
            let text = format!("its parent {missing:?} does not exist; create the parent, or create this queue again");
            return Some(Fault { reason: "UnknownParent", text });
        }
        let all = self.queues.len() + self.queues_of_kai.len();
        let mut above = std::iter::successors(parent(name), |above| parent(above)).take(all + 1);
        if above.any(|above| above == name) {
            let text = "it is its own ancestor; delete it, and create it again with another parent".to_owned();
            return Some(Fault { reason: "Cycle", text });
        }
        let refused = known.refused.clone().map(|text| Fault { reason: "Refused", text });
        known.number_fault.clone().or(refused)
    }

    pub(crate) fn queue_names(&self) -> BTreeSet<String> {
        self.queues.keys().cloned().collect()
    }

    /// What a namespace says; `None`: there is no such namespace any more.
    pub(crate) fn namespace(&mut self, name: &str, facts: Option<NamespaceFacts>) {
        let before = match facts.clone() {
            Some(facts) => self.namespaces.insert(name.to_owned(), facts),
            None => self.namespaces.remove(name),
        };
        if before != facts {
            let of_it = self.pods.iter().filter(|(_, pod)| pod.facts.namespace == name);
            self.changed_pods.extend(of_it.map(|(uid, _)| uid.clone()));
            self.find_peers_of_namespace(name);
            self.queues_of_parts_changed();
        }
    }

    pub(crate) fn namespace_names(&self) -> BTreeSet<String> {
        self.namespaces.keys().cloned().collect()
    }

    /// The queue of a namespace's pods that name none; `None`: the default one.
    pub(super) fn queue_of_namespace(&self, name: &str) -> Option<String> {
        self.namespaces.get(name)?.queue.clone()
    }

    /// The queue of a pod; empty: the default one. A pod that is bound already is in the default one if its own is not
    /// there any more, or has others below it: it must be in the books somewhere, or it would be evicted.
    pub(super) fn queue_of(&self, pod: &PodFacts) -> String {
        let named = pod.queue.clone().filter(|queue| !queue.is_empty()).or_else(|| self.queue_of_gang(pod));
        let named = named.or_else(|| self.queue_of_owner(pod));
        let queue = named.or_else(|| self.queue_of_namespace(&pod.namespace)).unwrap_or_default();
        match pod.node.is_some() && !self.takes_claims(&queue) {
            true => String::new(),
            false => queue,
        }
    }

    pub(super) fn takes_claims(&self, queue: &str) -> bool {
        let is_parent = |of: &QueueSpec| of.parent.as_deref() == Some(queue);
        self.told_queues.contains_key(queue) && !self.told_queues.values().any(is_parent)
    }

    /// All queues that the books are to have. If the default queue, for pods that name none, is not defined, it may
    /// have all that there is as long as there are no other queues. From then on it has no quota.
    fn wanted_queues(&self) -> BTreeMap<String, QueueSpec> {
        let mut queues = self.queues_of_kai.clone();
        queues.extend(self.queues.iter().map(|(name, spec)| (name.clone(), spec.clone())));
        if !queues.contains_key(DEFAULT_QUEUE) {
            let resource =
                QueueResource { quota: if queues.is_empty() { -1.0 } else { 0.0 }, ..QueueResource::default() };
            let all = Some(resource);
            let resources = QueueResources { gpu: all, cpu: all, memory: all };
            let definition = QueueDefinition { resources, ..QueueDefinition::default() };
            queues.insert(DEFAULT_QUEUE.to_owned(), definition.spec(DEFAULT_QUEUE));
        }
        queues
    }

    /// Tells all queues if one has changed: parents first, as the books want it. What is known already changes nothing.
    pub(super) fn tell_queues(&mut self) {
        if !self.has_changed_queues {
            return;
        }
        self.has_changed_queues = false;
        let wanted = self.wanted_queues();
        let mut told = BTreeSet::new();
        let mut left: Vec<&QueueSpec> = wanted.values().collect();
        while !left.is_empty() {
            let before = left.len();
            let has_parent = |queue: &QueueSpec| queue.parent.as_ref().is_none_or(|parent| told.contains(parent));
            let (next, later): (Vec<&QueueSpec>, Vec<&QueueSpec>) = left.into_iter().partition(|of| has_parent(of));
            // What is left has a parent that does not exist, and the books say so.
            let (next, later) = if later.len() == before { (later, Vec::new()) } else { (next, later) };
            told.extend(next.iter().map(|queue| queue.name.clone()));
            self.told.extend(next.into_iter().cloned().map(Observation::Queue));
            left = later;
        }
        // Queues go before their parents.
        let mut gone: Vec<String> =
            self.told_queues.keys().filter(|name| !wanted.contains_key(*name)).cloned().collect();
        gone.sort_by_key(|name| std::cmp::Reverse(self.depth(name)));
        for name in gone {
            self.tell_deleted(&name, &wanted);
            self.told.push(Observation::QueueRemoved(name));
        }
        let again: Vec<String> =
            self.deleted_queues.keys().filter(|name| wanted.contains_key(*name)).cloned().collect();
        for name in again {
            self.deleted_queues.remove(&name);
            self.look_at_waiting_in(&name);
        }
        self.told_queues = wanted;
        self.queues_of_parts_changed();
    }

    /// A queue was deleted. What runs in it runs on there, so the books may keep the queue for a while. But its quota
    /// is for others from now on, and what waits in it starts no more. A queue that has others below it is still
    /// theirs.
    fn tell_deleted(&mut self, name: &str, wanted: &BTreeMap<String, QueueSpec>) {
        let Some(spec) = self.told_queues.get(name).filter(|_| !self.deleted_queues.contains_key(name)) else { return };
        let mut spec = spec.clone();
        if !wanted.values().any(|queue| queue.parent.as_deref() == Some(name)) {
            spec.allowances.values_mut().for_each(|allowance| allowance.quota = Some(0));
            self.told.push(Observation::Queue(spec.clone()));
        }
        let waiting: BTreeSet<String> =
            self.pods.values().filter(|pod| pod.facts.node.is_none()).map(|pod| self.queue_of(&pod.facts)).collect();
        self.deleted_queues.retain(|name, _| self.told_queues.contains_key(name) || waiting.contains(name));
        self.deleted_queues.insert(name.to_owned(), DeletedQueue { spec, stays: false });
        self.look_at_waiting_in(name);
    }

    /// Pods that wait in a queue are to be looked at again.
    fn look_at_waiting_in(&mut self, queue: &str) {
        let waits = |pod: &PodFacts| pod.node.is_none() && self.queue_of(pod) == queue;
        let waiting = self.pods.iter().filter(|(_, pod)| waits(&pod.facts)).map(|(uid, _)| uid.clone());
        let waiting: Vec<String> = waiting.collect();
        self.changed_pods.extend(waiting);
    }

    /// # Errors
    /// The queue of a pod that is not bound was deleted.
    pub(super) fn check_queue(&self, pod: &PodFacts) -> Result<(), String> {
        let queue = self.queue_of(pod);
        match self.deleted_queues.contains_key(&queue) {
            true => Err(format!("its queue {queue:?} was deleted; create the queue again, or name another one")),
            false => Ok(()),
        }
    }

    /// The books did not let a queue go, because something is in it still. It is tried again. Returns whether this is
    /// new.
    pub(crate) fn queue_stayed(&mut self, name: &str) -> bool {
        if self.queue_named(name).is_some() {
            return false;
        }
        let Some(deleted) = self.deleted_queues.get_mut(name) else { return false };
        self.told_queues.insert(name.to_owned(), deleted.spec.clone());
        self.has_changed_queues = true;
        !std::mem::replace(&mut deleted.stays, true)
    }

    fn depth(&self, name: &str) -> usize {
        let parent = |name: &str| self.told_queues.get(name).and_then(|queue| queue.parent.clone());
        std::iter::successors(parent(name), |above| parent(above)).take(self.told_queues.len()).count()
    }
}
