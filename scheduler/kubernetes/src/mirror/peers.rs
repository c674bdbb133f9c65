//! Which pods are members of the groups that rules of pods are about.
//!
//! A group is there for as long as a rule of any pod names it. A pod's membership is found out when the pod, the labels
//! of its namespace, or the groups change, and kept with the pod.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use aliquot_scheduler_core::{PeerGroup, Peers};
use aliquot_scheduler_engine::{ClaimUid, Observation};

use super::{KnownPod, Mirror};
use crate::peers::{PeerRules, Seen, Selection};
use crate::pod::PodFacts;

/// What rules of pods are about.
#[derive(Debug, Default)]
pub(super) struct Selections {
    /// Each with its group, and how many pods have a rule about it.
    known: BTreeMap<Selection, (PeerGroup, usize)>,
}

impl Selections {
    /// Counts one more pod with a rule about this selection. Returns whether it is the first.
    fn add(&mut self, selection: &Selection) -> bool {
        let new = || (selection.group(), 0);
        let (_, pods) = self.known.entry(selection.clone()).or_insert_with(new);
        *pods += 1;
        *pods == 1
    }

    /// Counts one pod less with a rule about this selection. Returns its group, if that was the last pod.
    fn remove(&mut self, selection: &Selection) -> Option<PeerGroup> {
        let (group, pods) = self.known.get_mut(selection)?;
        *pods -= 1;
        let gone = (*pods == 0).then(|| group.clone());
        if gone.is_some() {
            self.known.remove(selection);
        }
        gone
    }

    fn groups_of(&self, pod: Seen<'_>) -> BTreeSet<PeerGroup> {
        let groups = self.known.iter().filter(|(selection, _)| selection.matches(pod));
        groups.map(|(_, (group, _))| group.clone()).collect()
    }
}

impl Mirror {
    /// Takes in a new or changed pod: the pods that its rules are about, and the groups that it is a member of.
    pub(super) fn learn_peers(&mut self, uid: &str) {
        let Some(known) = self.pods.get(uid) else { return };
        let rules = self.rules_in_force(&known.facts);
        self.exchange_rules(uid, rules);
        self.find_peers(uid);
    }

    /// Takes in that a pod is gone: it has no rules any more.
    pub(super) fn forget_peers(&mut self, uid: &str) {
        self.exchange_rules(uid, PeerRules::default());
    }

    /// Finds the groups of a namespace's pods again, because the labels of the namespace have changed.
    pub(super) fn find_peers_of_namespace(&mut self, name: &str) {
        let of_it = self.pods.iter().filter(|(_, pod)| pod.facts.namespace == name).map(|(uid, _)| uid.clone());
        of_it.collect::<Vec<String>>().iter().for_each(|uid| self.find_peers(uid));
    }

    /// Tells the engine the rules and groups of a claim, if they have changed since the claim was told.
    pub(super) fn tell_peers(&mut self, uid: &str) {
        let Some(KnownPod { claim: Some(told), peers, .. }) = self.pods.get_mut(uid) else { return };
        if told.claim.request.peers != *peers {
            told.claim.request.peers.clone_from(peers);
            self.told.push(Observation::ClaimPeers(ClaimUid::from(uid), peers.clone()));
        }
    }

    /// The rules of a pod that are in force. Of a pod of another scheduler, these are only the rules that last when it
    /// is bound.
    fn rules_in_force(&self, facts: &PodFacts) -> PeerRules {
        let rules = facts.peer_rules.as_ref().ok().filter(|_| !facts.has_ended);
        let rules = rules.cloned().unwrap_or_default();
        if facts.scheduler == self.own_name { rules } else { rules.when_bound() }
    }

    fn exchange_rules(&mut self, uid: &str, rules: PeerRules) {
        let Some(known) = self.pods.get_mut(uid) else { return };
        if known.rules == rules {
            return;
        }
        let before = std::mem::replace(&mut known.rules, rules.clone());
        let selections = &mut self.selections;
        let new: Vec<&Selection> =
            rules.selections().into_iter().filter(|selection| selections.add(selection)).collect();
        let gone: BTreeSet<PeerGroup> =
            before.selections().into_iter().filter_map(|selection| selections.remove(selection)).collect();
        if new.is_empty() && gone.is_empty() {
            return;
        }
        let is_concerned = |pod: &KnownPod| {
            let is_member = |peers: &Arc<Peers>| !peers.member_of.is_disjoint(&gone);
            let seen = self.seen(&pod.facts);
            pod.peers.as_ref().is_some_and(is_member) || new.iter().any(|selection| selection.matches(seen))
        };
        let concerned = self.pods.iter().filter(|(_, pod)| is_concerned(pod)).map(|(uid, _)| uid.clone());
        concerned.collect::<Vec<String>>().iter().for_each(|uid| self.find_peers(uid));
    }

    fn seen<'a>(&'a self, facts: &'a PodFacts) -> Seen<'a> {
        static NONE: BTreeMap<String, String> = BTreeMap::new();
        Seen {
            labels: &facts.labels,
            namespace: &facts.namespace,
            labels_of_namespace: self.namespaces.get(&facts.namespace).map_or(&NONE, |of| &of.labels),
            is_leaving: facts.is_leaving,
        }
    }

    fn find_peers(&mut self, uid: &str) {
        let Some(known) = self.pods.get(uid) else { return };
        let peers = known.rules.peers(self.selections.groups_of(self.seen(&known.facts)));
        let peers = (!peers.is_empty()).then(|| Arc::new(peers));
        let Some(known) = self.pods.get_mut(uid).filter(|known| known.peers != peers) else { return };
        known.peers = peers;
        self.changed_pods.insert(uid.to_owned());
        let nodes = known.facts.holds_room_on().into_iter().chain(known.facts.nominated.as_deref());
        self.changed_nodes.extend(nodes.map(str::to_owned));
    }
}
