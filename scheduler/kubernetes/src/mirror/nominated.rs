//! Pods for which other schedulers have decided on a node, where they have not bound them yet.
//!
//! They count there as if they were bound. There is an exception for pods whose schedulers have found them unschedulable,
//! and which wait until others are evicted for them: if a pod of ours with a higher priority waits, it could have that
//! room, as it could in kube-scheduler.

use std::collections::{BTreeMap, BTreeSet};

use super::{KnownPod, Mirror};
use crate::pod::PodFacts;

/// What is known of such pods, and of our pods that wait.
#[derive(Debug, Default)]
pub(super) struct Nominated {
    /// Their UIDs, by node.
    on: BTreeMap<String, BTreeSet<String>>,
    node_of: BTreeMap<String, String>,
    /// The UIDs of our pods that wait, by priority.
    waiting: BTreeMap<i32, BTreeSet<String>>,
    priority_of: BTreeMap<String, i32>,
    /// The highest priority of our pods that wait, as nodes were told last.
    highest: Option<i32>,
}

impl Nominated {
    fn note_waiting(&mut self, uid: &str, priority: Option<i32>) {
        let before = match priority {
            Some(priority) => self.priority_of.insert(uid.to_owned(), priority),
            None => self.priority_of.remove(uid),
        };
        if before == priority {
            return;
        }
        if let Some(before) = before
            && let Some(waiting) = self.waiting.get_mut(&before)
        {
            waiting.remove(uid);
            if waiting.is_empty() {
                self.waiting.remove(&before);
            }
        }
        if let Some(priority) = priority {
            self.waiting.entry(priority).or_default().insert(uid.to_owned());
        }
    }
}

impl Mirror {
    /// Takes in that a pod has changed, or is gone: its scheduler may want to have it on another node now.
    pub(super) fn exchange_nomination(&mut self, uid: &str, facts: Option<&PodFacts>) {
        let is_to_come = |facts: &&PodFacts| facts.node.is_none() && !facts.has_ended && !facts.is_leaving;
        let of_others = facts.filter(is_to_come).filter(|facts| facts.scheduler != self.own_name);
        let now = of_others.and_then(|facts| facts.nominated.clone());
        let before = match now.clone() {
            Some(node) => self.nominated.node_of.insert(uid.to_owned(), node),
            None => self.nominated.node_of.remove(uid),
        };
        if let Some(node) = before.filter(|before| now.as_ref() != Some(before)) {
            if let Some(there) = self.nominated.on.get_mut(&node) {
                there.remove(uid);
                if there.is_empty() {
                    self.nominated.on.remove(&node);
                }
            }
            self.changed_nodes.insert(node);
        }
        if let Some(node) = now {
            self.nominated.on.entry(node.clone()).or_default().insert(uid.to_owned());
            self.changed_nodes.insert(node);
        }
    }

    /// Notes whether a pod waits for a node of ours.
    pub(super) fn note_waiting(&mut self, uid: &str) {
        let waits = |known: &&KnownPod| known.instance.is_none() && known.facts.node.is_none();
        let claim = self.pods.get(uid).filter(waits).and_then(|known| known.claim.as_ref());
        self.nominated.note_waiting(uid, claim.map(|told| told.claim.priority));
    }

    /// Has nodes told again on which nominated pods count otherwise now.
    pub(super) fn look_at_nominated(&mut self) {
        let highest = self.nominated.waiting.keys().next_back().copied();
        if std::mem::replace(&mut self.nominated.highest, highest) != highest {
            self.changed_nodes.extend(self.nominated.on.keys().cloned());
        }
    }

    /// The nominated pods that count on a node. A pod that asks for devices here counts only when its scheduler asks
    /// for it: it is not to stand in its own way.
    pub(super) fn nominated_that_count(&self, node: &str) -> impl Iterator<Item = &KnownPod> {
        let there = self.nominated.on.get(node).into_iter().flatten().filter_map(|uid| self.pods.get(uid));
        let is_to_count = |pod: &&KnownPod| pod.claim.is_none() && self.reading.asks_for_none(&pod.facts.words);
        let highest = self.nominated.highest;
        let goes_first = move |pod: &&KnownPod| highest.is_none_or(|highest| pod.facts.priority >= highest);
        // A pod that was never found unschedulable is about to be bound.
        there.filter(is_to_count).filter(move |pod| pod.facts.said.is_none() || goes_first(pod))
    }
}
