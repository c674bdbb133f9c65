//! Pods of other schedulers. Such a scheduler chooses a node, and then asks that the pod be bound there with its parts
//! of devices.
//!
//! Such a pod is foreign until its scheduler asks. Then it is a claim that the engine places on that node at once or
//! refuses. The answer says that the pod is bound, or why this request will never bind it. A pod that was bound in this
//! way is ours from then on, like a pod that names this scheduler.

use aliquot_scheduler_core::{Claim, Constraints, NodeOperator, NodeRequirement, NodeTerm, Request, Toleration};

use super::device_claims::Claimed;
use super::{Means, Mirror};
use crate::placement::NODE_NAME;
use crate::pod::PodFacts;

/// What another scheduler hears at once when it asks that a pod be bound.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Choice {
    /// The pod is bound there.
    Bound,
    /// The answer comes later.
    Waits,
    /// Why the pod cannot be bound.
    Refused(String),
    /// There is no such pod, or it was not seen yet.
    Unknown,
}

impl Mirror {
    /// Another scheduler has chosen a node for a pod, and asks that it be bound.
    pub(crate) fn choose(&mut self, uid: &str, full_name: &str, node: &str) -> Choice {
        let Some(known) = self.pods.get_mut(uid).filter(|known| !known.is_gone) else { return Choice::Unknown };
        let facts = &known.facts;
        if facts.full_name() != full_name {
            return Choice::Refused(format!(
                "the pod with the UID {uid} is {}, and not {full_name}",
                facts.full_name()
            ));
        }
        match (&facts.node, &known.chosen) {
            (Some(bound), _) if bound == node && facts.generation.is_some() => return Choice::Bound,
            (Some(bound), _) => return Choice::Refused(format!("the pod is bound to node {bound} already")),
            (None, Some(chosen)) if chosen == node => return Choice::Waits,
            (None, Some(chosen)) => return Choice::Refused(format!("the pod is just being bound to node {chosen}")),
            (None, None) => {}
        }
        if let Some(why) = self.refusal(uid) {
            return Choice::Refused(why);
        }
        if !self.nodes.contains_key(node) {
            return Choice::Refused(format!("there is no node {node}, or the scheduler has not seen it yet"));
        }
        if let Some(known) = self.pods.get_mut(uid) {
            known.chosen = Some(node.to_owned());
            let facts = known.facts.clone();
            self.changed_pods.insert(uid.to_owned());
            self.turn_changed(&facts);
        }
        Choice::Waits
    }

    /// Why a pod is not bound for any scheduler that asks; `None`: it can be.
    fn refusal(&self, uid: &str) -> Option<String> {
        let facts = &self.pods.get(uid)?.facts;
        if facts.scheduler == self.own_name {
            return Some(format!("the pod names the scheduler {:?}, which binds it by itself", self.own_name));
        }
        let is_over = [
            (facts.has_ended, "the pod has ended"),
            (facts.is_leaving, "the pod is being deleted"),
            (facts.is_gated, "the pod has scheduling gates"),
        ];
        is_over.into_iter().find(|(is_so, _)| *is_so).map(|(_, why)| why.to_owned())
    }

    /// The engine does not place a pod on the node that was chosen for it.
    pub(crate) fn choice_refused(&mut self, uid: &str, why: String) {
        if !self.room_refused(uid, &why) {
            self.answer_choice(uid, Err(why));
        }
    }

    /// The other scheduler no longer waits for a pod to be bound. Returns whether its request was withdrawn: a binding
    /// that is on its way goes on.
    pub(crate) fn give_up_choice(&mut self, uid: &str) -> bool {
        let is_on_its_way = self.pods.get(uid).is_some_and(|known| known.binding_to.is_some());
        if !is_on_its_way {
            self.answer_choice(uid, Err("the scheduler could not begin to bind the pod".to_owned()));
        }
        !is_on_its_way
    }

    /// Takes the answers to requests to bind pods, by the UIDs of the pods.
    pub(crate) fn take_answers(&mut self) -> Vec<(String, Result<(), String>)> {
        std::mem::take(&mut self.answers)
    }

    /// Answers the request to bind a pod, if there is one.
    pub(super) fn answer_choice(&mut self, uid: &str, outcome: Result<(), String>) {
        let Some(known) = self.pods.get_mut(uid) else { return };
        if known.chosen.take().is_some() {
            let facts = known.facts.clone();
            self.answers.push((uid.to_owned(), outcome));
            self.changed_pods.insert(uid.to_owned());
            self.turn_changed(&facts);
        }
    }

    /// Refuses the request to bind a pod which has changed so that the request does not hold any more, unless a binding
    /// is on its way.
    pub(super) fn drop_choice(&mut self, uid: &str) {
        let Some(known) = self.pods.get(uid).filter(|known| known.binding_to.is_none()) else { return };
        let why = match known.facts.node.as_ref() {
            _ if known.is_gone => "the pod was deleted".to_owned(),
            Some(node) => format!("another scheduler has bound the pod to node {node}"),
            None => self.refusal(uid).unwrap_or_else(|| "the pod is not to be bound any more".to_owned()),
        };
        self.answer_choice(uid, Err(why));
    }

    /// Tells the engine of a pod whose node was chosen.
    pub(super) fn tell_chosen(&mut self, uid: &str) {
        let Some(known) = self.pods.get(uid).filter(|known| known.claim.is_none()) else { return };
        let Some(node) = known.chosen.clone() else { return };
        let request = known.facts.check_undecided().and_then(|()| self.request_of_chosen(&known.facts, Some(&node)));
        match request {
            Ok((request, means)) => self.tell_claim(uid, request, means),
            Err(why) => self.answer_choice(uid, Err(why)),
        }
    }

    /// What a pod asks for if another scheduler chooses its node. That scheduler heeds where the pod may run, so only
    /// amounts count here, and what the pod says of devices. `node`: the node that was chosen.
    ///
    /// # Errors
    /// Why such a pod gets no devices anywhere.
    pub(super) fn request_of_chosen(&self, facts: &PodFacts, node: Option<&str>) -> Result<(Request, Means), String> {
        let mut amounts = self.amounts_asked(facts)?;
        let anywhere = Toleration { key: None, value: None, effect: None };
        let mut constraints = Constraints { tolerations: [anywhere].into(), ..Constraints::default() };
        match node {
            Some(node) => constraints.node_terms = [only_on(node)].into(),
            // The books know a pod's ports and volumes once the pod is seen. Until then the other scheduler counts
            // them.
            None => amounts.counted.retain(|name, _| !crate::one_per_node::is_one_per_node(name)),
        }
        self.constrain_by_elastic_gpus(facts, &mut constraints, true)?;
        // Its claims are not read: it counts only that there are some.
        let claimed = Claimed { has_ours: !facts.claims.is_empty(), ..Claimed::default() };
        self.with_devices(facts, amounts, constraints, Means { claimed, ..Means::default() })
    }

    /// The claim that a pod would be if another scheduler chose a node for it; `None`: it asks for no device here.
    ///
    /// # Errors
    /// Why such a pod gets no devices anywhere.
    pub(crate) fn claim_of_chosen(&self, facts: &PodFacts) -> Result<Option<Claim>, String> {
        let (request, means) = self.request_of_chosen(facts, None)?;
        let claim = Claim {
            name: facts.full_name(),
            namespace: facts.namespace.clone(),
            queue: self.queue_of(facts),
            priority: facts.priority,
            preemptible: self.is_preemptible_at(facts, facts.priority),
            request,
            ..Claim::default()
        };
        Ok((claim.request.devices.count > 0 || !means.kept.is_empty()).then_some(claim))
    }
}

pub(super) fn only_on(node: &str) -> NodeTerm {
    let operator = NodeOperator::In([node.to_owned()].into());
    NodeTerm { requirements: [NodeRequirement { key: NODE_NAME.to_owned(), operator }].into() }
}
