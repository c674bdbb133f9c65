//! The ports of nodes and the volumes that one pod of a node can have. Each node has each of them once, so their number
//! is bounded: every node's amounts contain all of them.

use std::collections::{BTreeMap, BTreeSet};

use super::Mirror;
use crate::one_per_node;
use crate::pod::PodFacts;
use crate::resources::Amounts;

/// How many of them a pod can have, at most.
const OF_A_POD: usize = 100;

/// The ports and volumes, each with how many pods ask for it.
#[derive(Debug, Default)]
pub(super) struct Ports(BTreeMap<String, usize>);

impl Ports {
    pub(super) fn names(&self) -> impl Iterator<Item = &String> {
        self.0.keys()
    }

    /// A pod asks for other ports than before. Returns whether no pod has asked for one of them.
    fn exchange(&mut self, before: &BTreeSet<String>, now: BTreeSet<String>) -> bool {
        for port in before.difference(&now) {
            if let Some(pods) = self.0.get_mut(port) {
                *pods -= 1;
                if *pods == 0 {
                    self.0.remove(port);
                }
            }
        }
        let mut is_new = false;
        for port in now.into_iter().filter(|port| !before.contains(port)) {
            let pods = self.0.entry(port).or_default();
            is_new |= *pods == 0;
            *pods += 1;
        }
        is_new
    }
}

impl Mirror {
    /// Notes the ports and volumes that a pod asks for now; `None`: it is gone. What it asked for before is that of the
    /// known pod.
    pub(super) fn note_ports(&mut self, uid: &str, now: Option<&PodFacts>) {
        let before = self.pods.get(uid).map(|known| self.ports_of(&known.facts)).unwrap_or_default();
        let now = now.map(|facts| self.ports_of(facts)).unwrap_or_default();
        if self.ports.exchange(&before, now) {
            self.changed_nodes.extend(self.nodes.keys().cloned());
        }
    }

    /// Those that count: of pods that are placed here, and of those that may be.
    fn ports_of(&self, facts: &PodFacts) -> BTreeSet<String> {
        let counts = facts.node.is_none() || facts.scheduler == self.own_name;
        let ports: BTreeSet<String> = one_per_node::of_pod(&facts.spec).filter(|_| counts).collect();
        if ports.len() > OF_A_POD { BTreeSet::new() } else { ports }
    }

    /// What a pod that waits asks for beside devices.
    ///
    /// # Errors
    /// An amount cannot be read, or the pod asks for too many ports and volumes.
    pub(super) fn amounts_asked(&self, facts: &PodFacts) -> Result<Amounts, String> {
        match one_per_node::of_pod(&facts.spec).collect::<BTreeSet<_>>().len() {
            ports if ports > OF_A_POD => Err(format!(
                "it asks for {ports} ports of its node (hostPort) or volumes that one pod of a node can have, and Aliquot \
                 supports at most {OF_A_POD} of a pod"
            )),
            _ => self.amounts_of(facts),
        }
    }
}
