//! The engine's commands as writes to the API server, and what became of them.

use aliquot_scheduler_engine::{ClaimUid, Command, Generation, NodeName, Observation, Order, Report, StepOutcome};

use super::device_claims::Starting;
use super::{Instance, Mirror, Reservation, Suspension, Unmade};
use crate::{devices, dra};

/// A write to the API server.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Write {
    Bind(Binding),
    Evict(Eviction),
    /// Suspends a workload instead of evicting each of its pods.
    Suspend(Suspension),
}

/// Evicts a pod, if it is still the instance that this is about.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Eviction {
    pub(crate) uid: String,
    pub(crate) namespace: String,
    pub(crate) name: String,
    pub(crate) instance: Generation,
    pub(crate) generation: Generation,
}

/// Binds a pod to a node.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Binding {
    pub(crate) uid: String,
    pub(crate) namespace: String,
    pub(crate) name: String,
    /// The version of the pod on which the decision was based.
    pub(crate) resource_version: String,
    pub(crate) node: String,
    pub(crate) generation: Generation,
    pub(crate) decision: Option<String>,
    /// Claims for which there were no volumes when the node was chosen.
    pub(crate) volume_claims: Vec<String>,
    /// Those of them for which volumes are to be made on the node.
    pub(crate) unmade: Vec<Unmade>,
    /// What is written to claims before the binding.
    pub(crate) reservations: Vec<Reservation>,
}

impl Write {
    /// Writes with the same UID go one after the other: the UID of the pod that is written, for a suspension that of its
    /// first pod.
    pub(crate) fn uid(&self) -> &str {
        match self {
            Write::Bind(Binding { uid, .. }) | Write::Evict(Eviction { uid, .. }) => uid,
            Write::Suspend(suspension) => suspension.evictions.first().map_or("", |first| &first.uid),
        }
    }
}

impl Mirror {
    /// What a command means to the API server; `None`: it is answered already.
    pub(crate) fn command(&mut self, command: Command) -> Option<Write> {
        let Command { node, session, order } = command;
        if self.nodes.get(node.as_str()).is_none_or(|there| there.session != session) {
            // The command is for an earlier node of this name. The engine hears that this one is gone.
            return None;
        }
        match order {
            Order::Start { claim, generation, amounts, .. } => {
                let start = Instance {
                    node: node.to_string(),
                    session,
                    generation,
                    amounts,
                    claims: Vec::new(),
                    kept: Vec::new(),
                    is_bound: false,
                };
                if self.start_part(claim.as_str(), &start) {
                    return None;
                }
                self.start(claim.as_str(), start)
            }
            Order::Stop { claim, instance, generation, .. } => {
                let stop = Instance { generation: instance, ..nothing_on(&node, session) };
                let of_part = self.answer_about_part(claim.as_str(), instance);
                if let Some(answer) = of_part.or_else(|| self.answer_about_holder(claim.as_str())) {
                    self.tell_outcome(claim.as_str(), &stop, generation, answer);
                    return None;
                }
                self.stop(claim.as_str(), &stop, generation)
            }
            Order::Resize { claim, instance, generation, .. } => {
                let of = Instance { generation: instance, ..nothing_on(&node, session) };
                let why = "a bound pod keeps what it has".to_owned();
                self.tell_outcome(claim.as_str(), &of, generation, StepOutcome::Refused(why));
                None
            }
            Order::Report { .. } => {
                self.report(node.as_str());
                None
            }
            // Nodes hold no leases here: kubelet and the API server say what runs.
            Order::Renew { .. } | Order::EndSession { .. } => None,
        }
    }

    fn start(&mut self, uid: &str, mut start: Instance) -> Option<Write> {
        let known = self.pods.get(uid);
        let Some((known, told)) = known.and_then(|known| Some((known, known.claim.as_ref()?))) else {
            self.tell_outcome(uid, &start, start.generation, StepOutcome::Gone);
            return None;
        };
        // Its scheduler has chosen another node since.
        if known.chosen.as_ref().is_some_and(|node| *node != start.node) {
            self.tell_outcome(uid, &start, start.generation, StepOutcome::Gone);
            return None;
        }
        if let Some(instance) = &known.instance {
            if instance.generation == start.generation {
                // The command was repeated. It is answered when the pod is bound.
                return None;
            }
            let why = "the pod is bound already".to_owned();
            self.tell_outcome(uid, &start, start.generation, StepOutcome::Failed(why));
            return None;
        }
        if self.nodes.get(&start.node).is_some_and(|node| node.facts.is_cordoned) {
            let why = format!("node {} takes nothing new any more", start.node);
            self.answer_choice(uid, Err(why.clone()));
            self.tell_outcome(uid, &start, start.generation, StepOutcome::Failed(why));
            return None;
        }
        let facts = &known.facts;
        let starting = match self.reservations(facts, &told.means, &start) {
            Ok(starting) => starting,
            Err(refusal) => {
                self.note_refusal(uid, &refusal);
                let why = refusal.why;
                self.answer_choice(uid, Err(why.clone()));
                self.tell_outcome(uid, &start, start.generation, StepOutcome::Failed(why));
                return None;
            }
        };
        let Starting { reservations, held, others } = starting;
        start.claims = held;
        start.kept = told.means.kept.iter().map(|(_, part)| part.clone()).collect();
        let decision = devices::decision(&told.means.containers, &start.amounts.devices, &told.means.kept);
        let allocations = reservations.iter().filter_map(|of| of.allocation.as_ref());
        let must_be_ready = allocations.into_iter().any(dra::must_be_ready)
            || !told.means.claimed.follows.is_empty()
            || !told.means.volume_claims.is_empty();
        let mut binding = Binding {
            uid: uid.to_owned(),
            namespace: facts.namespace.clone(),
            name: facts.name.clone(),
            resource_version: facts.resource_version.clone(),
            node: start.node.clone(),
            generation: start.generation,
            decision: decision.map(|decision| decision.to_string()),
            volume_claims: told.means.volume_claims.clone(),
            unmade: Vec::new(),
            reservations,
        };
        binding.unmade = self.begin_making(&binding);
        if let Some(node) = self.nodes.get_mut(&start.node) {
            node.last = node.last.max(start.generation);
            node.unsettled.insert(start.generation);
        }
        self.on_node.entry(start.node.clone()).or_default().insert(uid.to_owned());
        self.promise(uid, others);
        let known = self.pods.get_mut(uid)?;
        (known.binding_to, known.instance) = (Some(start.node.clone()), Some(start));
        self.note_turns(uid);
        self.awaits_devices(&binding, must_be_ready);
        self.elastic_gpu_claims_of_pod_are_due(uid);
        Some(Write::Bind(binding))
    }

    fn stop(&mut self, uid: &str, stop: &Instance, generation: Generation) -> Option<Write> {
        self.give_up_waiting(uid, stop.generation);
        let known = self
            .pods
            .get(uid)
            .filter(|known| known.instance.as_ref().is_some_and(|instance| instance.generation == stop.generation));
        let Some(known) = known else {
            self.tell_outcome(uid, stop, generation, StepOutcome::Gone);
            return None;
        };
        // The pod is being deleted or has ended already.
        (!known.facts.is_leaving && !known.facts.has_ended).then(|| {
            Write::Evict(Eviction {
                uid: uid.to_owned(),
                namespace: known.facts.namespace.clone(),
                name: known.facts.name.clone(),
                instance: stop.generation,
                generation,
            })
        })
    }

    /// Whether an eviction is still to be made: its pod is bound by this instance, and stays.
    pub(crate) fn is_to_evict(&self, uid: &str, instance: Generation) -> bool {
        self.pods.get(uid).is_some_and(|known| {
            let is_there = known.instance.as_ref().is_some_and(|of| of.generation == instance && of.is_bound);
            is_there && !known.facts.is_leaving
        })
    }

    /// What became of a binding. `Err` says why the pod is not bound by it, and never will be.
    pub(crate) fn bound(&mut self, binding: &Binding, outcome: Result<(), String>) {
        let Binding { uid, node, generation, decision, .. } = binding;
        if let Err(why) = &outcome {
            self.will_not_be_bound(uid, why);
        } else if let Some(known) = self.pods.get_mut(uid) {
            // The watch reports the same a little later. The pod holds its room until then, even if the node's object
            // has gone and come back in the meantime.
            let facts = &mut known.facts;
            (facts.node, facts.generation) = (Some(node.clone()), Some(*generation));
            facts.decision = decision.as_ref().and_then(|text| text.parse().ok()).map(Ok);
            self.on_node.entry(node.clone()).or_default().insert(uid.clone());
        }
        self.binding_done(uid);
        self.answer_choice(uid, outcome.clone());
        let Some(known) = self.pods.get_mut(uid) else { return };
        self.changed_pods.insert(uid.to_owned());
        let is_this = |instance: &mut Instance| instance.generation == *generation && !instance.is_bound;
        let Some(instance) = known.instance.take_if(is_this) else { return };
        self.settled(&instance.node, *generation);
        if let Err(why) = outcome {
            return self.tell_outcome(uid, &instance, *generation, StepOutcome::Failed(why));
        }
        self.tell_outcome(uid, &instance, *generation, StepOutcome::Started);
        if let Some(known) = self.pods.get_mut(uid) {
            known.instance = Some(Instance { is_bound: true, ..instance });
        }
    }

    /// The API server does not let a pod be evicted, because of a disruption budget or another rule of its own.
    pub(crate) fn eviction_refused(&mut self, uid: &str, instance: Generation, generation: Generation, why: String) {
        let instance_of = |known: &super::KnownPod| {
            let of = known.instance.as_ref().filter(|of| of.generation == instance)?;
            let node = NodeName::from(of.node.as_str());
            Some(Instance { generation: instance, ..nothing_on(&node, of.session) })
        };
        if let Some(of) = self.pods.get(uid).and_then(instance_of) {
            self.tell_outcome(uid, &of, generation, StepOutcome::Refused(why));
        }
    }

    /// No binding of a pod is on its way any more.
    pub(super) fn binding_done(&mut self, uid: &str) {
        let Some(known) = self.pods.get_mut(uid) else { return };
        let Some(node) = known.binding_to.take() else { return };
        self.awaits_devices_no_more(uid);
        self.end_making(uid);
        self.end_promise(uid);
        self.note_turns(uid);
        let Some(known) = self.pods.get(uid) else { return };
        if known.facts.holds_room_on() != Some(&node) {
            self.leave_node(uid, &node);
        }
        if let Some(there) = self.nodes.get_mut(&node)
            && there.awaited.remove(uid)
            && there.awaited.is_empty()
        {
            self.pods_of_node_changed(&node);
            self.changed_nodes.insert(node);
        }
    }

    pub(super) fn settled(&mut self, node: &str, generation: Generation) {
        if let Some(node) = self.nodes.get_mut(node) {
            node.unsettled.remove(&generation);
        }
    }

    pub(super) fn tell_outcome(&mut self, uid: &str, of: &Instance, generation: Generation, outcome: StepOutcome) {
        let report = Report {
            node: NodeName::from(of.node.as_str()),
            session: of.session,
            sequence: self.next_sequence(),
            claim: ClaimUid::from(uid),
            instance: of.generation,
            generation,
            outcome,
        };
        self.told.push(Observation::Outcome(report));
    }
}

fn nothing_on(node: &NodeName, session: u64) -> Instance {
    Instance {
        node: node.to_string(),
        session,
        generation: Generation::default(),
        amounts: Default::default(),
        claims: Vec::new(),
        kept: Vec::new(),
        is_bound: false,
    }
}
