//! What one pod at a time may have: a volume, or a part of a device that is claimed. The pod that has it comes first. Those
//! that wait for it come one after the other, the oldest first, but nobody waits for a pod that something else keeps from
//! being scheduled.

use std::collections::BTreeSet;

use super::{KnownPod, Mirror, elastic_gpus};
use crate::pod::PodFacts;

impl Mirror {
    /// Checks that none of the other pods that name a thing has it. If it is `in_turn`, also that none is to have it first.
    ///
    /// # Errors
    /// Which pod has it.
    pub(super) fn check_is_free<'a>(
        &self,
        facts: &PodFacts,
        others: impl Iterator<Item = &'a KnownPod>,
        in_turn: bool,
    ) -> Result<(), String> {
        let has_it = |pod: &&KnownPod| pod.facts.node.is_some() || pod.instance.is_some();
        let (have_it, others): (Vec<&KnownPod>, Vec<&KnownPod>) = others.partition(has_it);
        if let Some(pod) = have_it.first() {
            return Err(format!("pod {} has it", pod.facts.full_name()));
        }
        if !in_turn {
            return Ok(());
        }
        let turn = |of: &PodFacts| (of.created_ms, of.uid.clone());
        let waits = |pod: &&KnownPod| {
            let is_ours = pod.facts.scheduler == self.own_name || pod.chosen.is_some();
            is_ours && !pod.facts.is_leaving && !pod.facts.is_gated
        };
        let before = others.into_iter().filter(waits).filter(|pod| turn(&pod.facts) < turn(facts));
        let mut before: Vec<&KnownPod> = before.collect();
        before.sort_unstable_by_key(|pod| turn(&pod.facts));
        // The pod of another scheduler gets an answer at once.
        let comes_first = |pod: &&KnownPod| pod.chosen.is_some() || self.could_have_its_turn(&pod.facts);
        match before.into_iter().find(comes_first) {
            Some(first) => Err(format!("pod {} is to have it first", first.facts.full_name())),
            None => Ok(()),
        }
    }

    /// Whether a pod could have what it asks for if those before it left it what one pod at a time may have.
    fn could_have_its_turn(&self, facts: &PodFacts) -> bool {
        facts.check_undecided().is_ok() && self.request_in(facts, false).is_ok()
    }

    /// Whether a pod names something that one pod at a time may have.
    pub(super) fn takes_turns(&self, facts: &PodFacts) -> bool {
        self.uses_volume_for_one_pod(facts) || elastic_gpus::names_of(facts).next().is_some()
    }

    /// Something of a pod has changed that decides whose turn it is. The others that wait are looked at again.
    pub(super) fn turn_changed(&mut self, facts: &PodFacts) {
        let mut others = self.others_that_wait_for_volumes_of(facts);
        others.extend(self.others_that_wait_for_elastic_gpus_of(facts));
        self.turned.extend(others);
    }

    /// The pods whose turn may have changed since this was asked last.
    pub(super) fn take_turned_in_line(&mut self) -> BTreeSet<String> {
        std::mem::take(&mut self.turned)
    }
}
