//! Which containers have which slice of a claim that is several slices. Kubelet says only that a container has the claim.

use std::collections::{BTreeMap, BTreeSet};

use aliquot_node::Consumer;

use crate::dra::pods::Seen;
use crate::dra::prepared_claims::Record;

/// The names of a pod and of one of its containers.
type Container = (String, String);

/// The containers that have each slice of a claim. Empty for a claim that is one slice.
#[derive(Debug, Default)]
pub(super) struct Holding {
    /// By the slice's name.
    slices: BTreeMap<String, Held>,
    /// Pods that came after the claim was divided, and of which it is known what their containers have.
    joined: BTreeSet<String>,
    /// Pods of which kubelet listed a container at the last look.
    listed: BTreeSet<String>,
}

/// A slice of a claim.
#[derive(Debug)]
struct Held {
    requests: BTreeSet<String>,
    containers: BTreeSet<Container>,
}

impl Holding {
    /// What was known when the claim was divided.
    pub(super) fn of(record: &Record) -> Holding {
        let slices = record.slices.iter().filter(|_| record.slices.len() > 1).map(|slice| {
            let held = Held { requests: slice.requests(), containers: slice.containers.clone() };
            (slice.slice.name.clone(), held)
        });
        Holding { slices: slices.collect(), ..Holding::default() }
    }

    /// Whether a container has the slice of this name, or may have it.
    pub(super) fn has(&self, slice: &str, consumer: &Consumer) -> bool {
        let Some(held) = self.slices.get(slice) else { return true };
        held.containers.contains(&container(consumer)) || !self.knows(consumer)
    }

    /// The claim's requests, if the claim is several slices.
    pub(super) fn requests(&self) -> BTreeSet<String> {
        self.slices.values().flat_map(|held| &held.requests).cloned().collect()
    }

    /// The pods with a container whose slices are not known yet. `consumers` are all containers that have the claim. Forgets
    /// pods that were listed before and are no longer: another pod may get such a name. The first pods are listed some time
    /// after the claim was divided.
    pub(super) fn look(&mut self, consumers: &BTreeSet<&Consumer>) -> BTreeSet<String> {
        if self.slices.is_empty() {
            return BTreeSet::new();
        }
        let listed: BTreeSet<String> = consumers.iter().map(|consumer| consumer.pod.clone()).collect();
        let gone = &self.listed - &listed;
        self.joined.retain(|pod| !gone.contains(pod));
        for held in self.slices.values_mut() {
            held.containers.retain(|(pod, _)| !gone.contains(pod));
        }
        self.listed = listed;
        consumers.iter().filter(|consumer| !self.knows(consumer)).map(|consumer| consumer.pod.clone()).collect()
    }

    /// Notes what the containers of a pod have of the claim.
    pub(super) fn join(&mut self, pod: &str, seen: &[Seen]) {
        self.joined.insert(pod.to_owned());
        for seen in seen {
            if let Some(held) = self.slices.values_mut().find(|held| held.requests == seen.requests) {
                held.containers.insert((seen.pod.clone(), seen.container.clone()));
            }
        }
    }

    fn knows(&self, consumer: &Consumer) -> bool {
        let is_in = |held: &Held| held.containers.contains(&container(consumer));
        self.joined.contains(&consumer.pod) || self.slices.values().any(is_in)
    }
}

fn container(consumer: &Consumer) -> Container {
    (consumer.pod.clone(), consumer.container.clone())
}
