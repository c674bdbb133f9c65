//! Nodes: what they have beside what foreign pods hold, and what runs there.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use aliquot_api_server::Inventory;
use aliquot_dialects::{NodeFacts as WordsOfNode, Spoken};
use aliquot_scheduler_core::{Peers, Taint};
use aliquot_scheduler_engine::{ClaimUid, Generation, NodeName, NodeReport, Observation, Running};
use tracing::warn;

use super::{KnownNode, Mirror};
use crate::devices::Reading;
use crate::node::NodeFacts;
use crate::placement;
use crate::resources::Amounts;

/// What pods hold of a node.
#[derive(Debug, Default)]
pub(crate) struct Held {
    /// By pods that are not in the books, and by pods in the books that have grown since they were started.
    pub(crate) by_foreign: Amounts,
    /// What pods in the books have given back of the CPU and memory that they were started with.
    pub(crate) given_back: Amounts,
    /// By pods that are in the books, including pods that are being bound.
    pub(crate) by_ours: Amounts,
    /// By pods that are in the books, bytes of the memory of each device.
    pub(crate) device_bytes: BTreeMap<String, u64>,
    /// The rules and groups of pods that are not in the books, or are about to end. They still bear on where others may
    /// be.
    pub(crate) peers: Vec<Arc<Peers>>,
    running: Vec<Running>,
    /// A pod that uses devices without a record of which ones.
    user_of_devices: Option<String>,
}

impl Mirror {
    pub(crate) fn node(&mut self, facts: NodeFacts) {
        let known = self.nodes.get(&facts.name);
        if known.is_some_and(|known| known.facts.uid != facts.uid) {
            self.node_gone(&facts.name);
        }
        let name = facts.name.clone();
        let mut has_other_labels = false;
        let before = self.nodes.get(&name).map(|known| known.facts.taints.clone()).unwrap_or_default();
        self.exchange_taints(&before, &facts.taints);
        match self.nodes.get_mut(&name) {
            Some(known) if known.facts == facts => return,
            Some(known) => {
                has_other_labels = known.facts.labels != facts.labels;
                self.is_to_read |= known.facts.inventory != facts.inventory
                    || self.device_claims.has_other_resources(&known.facts, &facts);
                known.facts = facts;
            }
            None => {
                self.session += 1;
                let is_awaited = |pod: &super::KnownPod| pod.binding_to.as_ref() == Some(&name);
                let awaited = self.pods.iter().filter(|(_, pod)| is_awaited(pod)).map(|(uid, _)| uid.clone());
                let known = KnownNode {
                    facts,
                    awaited: awaited.collect(),
                    session: self.session,
                    last: Generation { term: self.term, number: 0 },
                    unsettled: BTreeSet::new(),
                    told: None,
                    withheld: None,
                    is_to_report: true,
                };
                self.nodes.insert(name.clone(), known);
                self.pods_of_node_changed(&name);
                self.claims_of_node_changed(&name);
                self.is_to_read = true;
            }
        }
        if has_other_labels {
            self.forget_places(&name);
        }
        self.elastic_gpus_of_node_changed(&name);
        self.changed_nodes.insert(name);
    }

    pub(crate) fn node_gone(&mut self, name: &str) {
        if self.nodes.contains_key(name) {
            self.end_holders_on(name);
            self.elastic_gpus_of_node_changed(name);
        }
        let Some(known) = self.nodes.remove(name) else { return };
        self.exchange_taints(&known.facts.taints, &[]);
        let of_node = |instance: &super::Instance| instance.node == name;
        let there = self.pods.iter().filter(|(_, pod)| pod.instance.as_ref().is_some_and(of_node));
        for uid in there.map(|(uid, _)| uid.clone()).collect::<Vec<String>>() {
            self.end_claim(&uid);
            if let Some(pod) = self.pods.get_mut(&uid) {
                pod.instance = None;
            }
            self.changed_pods.insert(uid);
        }
        if known.told.is_some() {
            self.told.push(Observation::NodeGone(NodeName::from(name)));
        }
        self.changed_nodes.remove(name);
        self.forget_places(name);
        self.is_to_read = true;
    }

    /// A node has other taints than before. Pods that compare numbers may tolerate new ones of them.
    fn exchange_taints(&mut self, before: &[Taint], now: &[Taint]) {
        if before != now && self.taints.exchange(before, now) {
            let compare = self.pods.iter().filter(|(_, pod)| placement::compares_taints(&pod.facts.spec));
            self.changed_pods.extend(compare.map(|(uid, _)| uid.clone()));
        }
    }

    pub(crate) fn node_names(&self) -> BTreeSet<String> {
        self.nodes.keys().cloned().collect()
    }

    pub(super) fn pods_of_node_changed(&mut self, name: &str) {
        self.changed_pods.extend(self.on_node.get(name).into_iter().flatten().cloned());
    }

    /// Reads the inventories of all nodes again if some have changed: requests may mean something else now.
    pub(super) fn read_inventories(&mut self) {
        if !std::mem::take(&mut self.is_to_read) {
            return;
        }
        let reading = self.read();
        if reading != self.reading {
            self.reading = reading;
            self.all_changed();
        }
    }

    /// A request means the same on all nodes: what most of the inventories say that it means.
    fn read(&self) -> Reading {
        let has_claimed_devices = self.reading.has_claimed_devices;
        let mut readings: Vec<(Spoken, WordsOfNode, usize)> = Vec::new();
        let (mut models, mut memory_bytes) = (BTreeSet::new(), BTreeSet::new());
        for inventory in self.nodes.values().filter_map(|node| node.facts.inventory.as_ref()?.as_ref().ok()) {
            models.extend(inventory.devices.iter().map(|device| device.model.clone()));
            memory_bytes.extend(inventory.devices.iter().map(|device| device.memory_bytes));
            let Ok((spoken, facts)) = inventory.reading() else { continue };
            match readings.iter_mut().find(|(known, of, _)| *known == spoken && *of == facts) {
                Some((.., count)) => *count += 1,
                None => readings.push((spoken, facts, 1)),
            }
        }
        let most = readings.iter().map(|(.., count)| *count).max();
        match readings.into_iter().find(|(.., count)| Some(*count) == most) {
            Some((spoken, facts, _)) => {
                let classes = self.classes_of_resources(&spoken);
                Reading { spoken, facts, models, memory_bytes, has_claimed_devices, classes }
            }
            None => {
                let own = Reading::default();
                let classes = self.classes_of_resources(&own.spoken);
                Reading { models, memory_bytes, has_claimed_devices, classes, ..own }
            }
        }
    }

    fn is_read_alike(&self, inventory: &Inventory) -> bool {
        inventory.reading().is_ok_and(|(spoken, facts)| spoken == self.reading.spoken && facts == self.reading.facts)
    }

    /// What pods hold of a node.
    fn held_on(&self, name: &str) -> Held {
        let mut held = Held::default();
        for pod in self.nominated_that_count(name) {
            held.by_foreign.add(&self.amounts_of(&pod.facts).unwrap_or_default());
            held.peers.extend(pod.peers.clone());
        }
        for uid in self.on_node.get(name).into_iter().flatten() {
            let Some(pod) = self.pods.get(uid) else { continue };
            // The books count the peers of claims themselves. A pod that is gone is here only because devices are still
            // allocated to it.
            let is_foreign_peer = !pod.is_gone && (pod.instance.is_none() || pod.facts.is_leaving);
            held.peers.extend(pod.peers.clone().filter(|_| is_foreign_peer));
            let Some(instance) = pod.instance.as_ref().filter(|instance| instance.node == name) else {
                held.by_foreign.add(&self.amounts_of(&pod.facts).unwrap_or_default());
                if !self.reading.asks_for_none(&pod.facts.words) {
                    held.user_of_devices = Some(pod.facts.full_name());
                }
                continue;
            };
            let in_books = Amounts::of_instance(&instance.amounts);
            // A running pod can be resized in place. For this leader's books it stays as it was started.
            if let Ok(now) = self.amounts_of(&pod.facts) {
                held.by_foreign.add(&now.cpu_and_memory_beyond(&in_books));
                held.given_back.add(&in_books.cpu_and_memory_beyond(&now));
            }
            held.by_ours.add(&in_books);
            for part in instance.amounts.devices.iter().chain(&instance.kept) {
                *held.device_bytes.entry(part.uuid.clone()).or_default() += part.memory.get();
            }
            if instance.is_bound {
                held.running.push(Running {
                    claim: ClaimUid::from(uid.as_str()),
                    instance: instance.generation,
                    amounts: instance.amounts.clone(),
                    since_ms: pod.facts.started_ms,
                });
            }
        }
        held.running.extend(self.held_by_claims(name));
        held.running.extend(self.reported_parts(name));
        held
    }

    /// Tells the engine of a node if it has changed, or if what runs there must be heard.
    pub(super) fn tell_node(&mut self, name: &str) {
        if self.nodes.get(name).is_none_or(|node| !node.awaited.is_empty()) {
            return;
        }
        self.count_places(name);
        let Some(node) = self.nodes.get(name) else { return };
        let held = self.held_on(name);
        let is_read_alike = match &node.facts.inventory {
            Some(Ok(inventory)) => self.is_read_alike(inventory),
            _ => true,
        };
        let withheld = why_withheld(&node.facts.inventory, held.user_of_devices.as_deref(), is_read_alike);
        let may_give_out = held.user_of_devices.is_none() && is_read_alike;
        let is_counted = |resource: &str| !self.reading.is_of_devices(resource);
        let claimed = self.claimed_devices(name);
        let spec = match node.facts.spec(&held, self.ports.names(), is_counted, may_give_out, claimed) {
            Ok(mut spec) => {
                self.add_what_is_said(name, &mut spec.devices);
                for (place, free) in self.places_on(name) {
                    let taken = held.by_ours.counted.get(&place).copied().unwrap_or_default();
                    spec.counted.insert(place, taken.saturating_add(free));
                }
                for (volumes, free) in self.attachable_on(name) {
                    let taken = held.by_ours.counted.get(&volumes).copied().unwrap_or_default();
                    spec.counted.insert(volumes, taken.saturating_add(free));
                }
                spec
            }
            Err(error) => return warn!(node = name, error, "the node object cannot be read"),
        };
        if let Some(why) = withheld.as_ref().filter(|_| node.withheld != withheld) {
            warn!(node = name, why, "none of the node's devices is given out");
        }
        let is_known = node.told.as_ref() == Some(&spec) && !node.is_to_report;
        let Some(node) = self.nodes.get_mut(name) else { return };
        node.withheld = withheld;
        if is_known {
            return;
        }
        let handled = match node.unsettled.first() {
            Some(first) => Generation { number: first.number.saturating_sub(1), ..*first },
            None => node.last,
        };
        let session = node.session;
        let (sequence, running) = (self.next_sequence(), held.running);
        let report = NodeReport { spec: spec.clone(), session, sequence, handled, running };
        if let Some(node) = self.nodes.get_mut(name) {
            (node.told, node.is_to_report) = (Some(spec), false);
        }
        self.told.push(Observation::Node(Box::new(report)));
    }

    /// What a pod holds beside devices.
    pub(super) fn amounts_of(&self, pod: &crate::pod::PodFacts) -> Result<Amounts, String> {
        Amounts::of_pod(&pod.spec, |resource| !self.reading.is_of_devices(resource))
    }

    /// Has the engine told again what runs on a node.
    pub(super) fn report(&mut self, name: &str) {
        if let Some(node) = self.nodes.get_mut(name) {
            node.is_to_report = true;
            self.changed_nodes.insert(name.to_owned());
        }
    }
}

fn why_withheld(
    inventory: &Option<Result<Inventory, String>>,
    uses_devices: Option<&str>,
    is_read_alike: bool,
) -> Option<String> {
    if let Some(Err(error)) = inventory {
        return Some(format!("its inventory cannot be read: {error}"));
    }
    if let Some(pod) = uses_devices {
        return Some(format!("pod {pod}, which another scheduler has bound, uses devices there"));
    }
    (!is_read_alike).then(|| "it reads requests otherwise than most nodes do".to_owned())
}
