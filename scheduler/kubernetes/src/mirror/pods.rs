//! Pods: those that wait become claims, and those that are bound instances.

use std::collections::BTreeSet;

use aliquot_scheduler_core::{Bytes, Claim, Constraints, DeviceCore, MilliCpu, Request};
use aliquot_scheduler_engine::{Amounts, ClaimUid, DevicePart, Generation, NodeName, Observation, StepOutcome};

use super::chosen::only_on;
use super::device_claims::HeldClaim;
use super::gangs::sub_group_of;
use super::precedence::Precedence;
use super::reported::attribute_of;
use super::{Instance, KnownPod, Means, Mirror, Told, attached, elastic_gpus, volumes};
use crate::devices::{self, Ask};
use crate::peers::PeerRules;
use crate::placement;
use crate::pod::PodFacts;
use crate::resources;

impl Mirror {
    pub(crate) fn pod(&mut self, mut facts: PodFacts) {
        let uid = facts.uid.clone();
        if let Some(known) = self.pods.get(&uid) {
            if facts.node.is_none() && known.facts.node.is_some() {
                // This version is older than the answer to the pod's binding. A binding is never taken back.
                facts.node.clone_from(&known.facts.node);
                facts.generation = known.facts.generation;
                facts.decision.clone_from(&known.facts.decision);
            }
            if known.facts.node.is_some() && known.facts.generation.is_some() {
                elastic_gpus::keep_names(&known.facts.words, &mut facts.words);
            }
            if known.facts == facts {
                return;
            }
        }
        self.unlist(&uid);
        self.exchange_nomination(&uid, Some(&facts));
        self.note_ports(&uid, Some(&facts));
        if let Some(node) = facts.holds_room_on() {
            self.on_node.entry(node.to_owned()).or_default().insert(uid.clone());
            self.changed_nodes.insert(node.to_owned());
        }
        let gangs = |of: &PodFacts| (of.gang.clone(), of.apart_from.clone());
        let regrouped = self.pods.get(&uid).filter(|known| gangs(&known.facts) != gangs(&facts));
        if let Some(before) = regrouped.map(|known| known.facts.clone()) {
            self.unlist_in_gang(&before);
        }
        let owner_changed = self.pods.get(&uid).filter(|known| known.facts.owner != facts.owner);
        if let Some(before) = owner_changed.map(|known| known.facts.clone()) {
            self.unlist_with_owner(&before);
        }
        self.list_in_gang(&facts);
        self.list_with_owner(&facts);
        self.list_in_claims(&facts);
        self.list_in_elastic_gpu_claims(&facts);
        self.list_in_volume_claims(&facts);
        let has_ended_on = facts.node.clone().filter(|_| facts.has_ended);
        match self.pods.get_mut(&uid) {
            Some(known) => known.facts = facts,
            None => {
                let known = KnownPod {
                    facts,
                    claim: None,
                    problem: None,
                    instance: None,
                    rules: PeerRules::default(),
                    peers: None,
                    binding_to: None,
                    chosen: None,
                    is_gone: false,
                };
                self.pods.insert(uid.clone(), known);
            }
        }
        if let Some(node) = has_ended_on.filter(|_| self.lingers(&uid)) {
            self.on_node.entry(node).or_default().insert(uid.clone());
        }
        self.learn_peers(&uid);
        self.changed_pods.insert(uid);
    }

    pub(crate) fn pod_gone(&mut self, uid: &str) {
        self.end_claim(uid);
        self.answer_choice(uid, Err("the pod was deleted".to_owned()));
        if self.lingers(uid) {
            // The pod is forgotten when its devices are not allocated any more.
            if let Some(known) = self.pods.get_mut(uid) {
                (known.is_gone, known.facts.is_leaving) = (true, true);
                let facts = known.facts.clone();
                self.users_of_volumes_changed(&facts);
            }
            return;
        }
        self.forget_pod(uid);
    }

    fn forget_pod(&mut self, uid: &str) {
        self.instance_gone(uid);
        self.will_not_be_bound(uid, "the pod was deleted");
        self.binding_done(uid);
        self.unlist(uid);
        self.exchange_nomination(uid, None);
        self.note_ports(uid, None);
        self.forget_peers(uid);
        self.forget_kind_of(uid);
        if let Some(known) = self.pods.remove(uid) {
            self.unlist_in_gang(&known.facts);
            self.unlist_with_owner(&known.facts);
            self.unlist_in_claims(&known.facts);
            self.unlist_in_elastic_gpu_claims(&known.facts);
            self.unlist_in_volume_claims(&known.facts);
        }
        self.note_waiting(uid);
        self.changed_pods.remove(uid);
        self.to_report.insert(uid.to_owned());
    }

    pub(crate) fn pod_uids(&self) -> BTreeSet<String> {
        self.pods.keys().cloned().collect()
    }

    /// Takes a pod out of the list of its node.
    fn unlist(&mut self, uid: &str) {
        let Some(known) = self.pods.get(uid) else { return };
        if let Some(node) = known.facts.holds_room_on().map(str::to_owned) {
            self.leave_node(uid, &node);
        }
    }

    pub(super) fn leave_node(&mut self, uid: &str, node: &str) {
        if let Some(there) = self.on_node.get_mut(node) {
            there.remove(uid);
            if there.is_empty() {
                self.on_node.remove(node);
            }
        }
        self.changed_nodes.insert(node.to_owned());
    }

    /// Tells the engine what a pod is now.
    pub(super) fn tell_pod(&mut self, uid: &str) {
        let Some(known) = self.pods.get(uid) else { return };
        let facts = &known.facts;
        let is_ours = match facts.node {
            Some(_) => was_bound_by_us(facts),
            None => facts.scheduler == self.own_name || known.chosen.is_some(),
        };
        if !is_ours || facts.has_ended || known.is_gone {
            let (node, has_ended, is_gone) = (facts.node.clone(), facts.has_ended, known.is_gone);
            self.end_claim(uid);
            self.drop_choice(uid);
            if !self.lingers(uid) {
                self.instance_gone(uid);
                let is_listed = |node: &String| self.on_node.get(node).is_some_and(|there| there.contains(uid));
                if let Some(node) = node.filter(|_| has_ended).filter(is_listed) {
                    self.leave_node(uid, &node);
                }
                if is_gone {
                    self.forget_pod(uid);
                }
            }
            return;
        }
        if let (Some(node), Some(generation)) = (facts.node.clone(), facts.generation) {
            self.tell_bound(uid, &node, generation);
        } else if facts.is_leaving || facts.is_gated {
            self.end_claim(uid);
            self.drop_choice(uid);
        } else if known.binding_to.is_none() {
            // While a binding is on its way nothing is told: the claim would end, and its pod be evicted.
            match known.chosen {
                Some(_) => self.tell_chosen(uid),
                None => self.tell_waiting(uid),
            }
        }
    }

    fn tell_bound(&mut self, uid: &str, node: &str, generation: Generation) {
        let there = self.nodes.get(node).filter(|known| known.awaited.is_empty());
        let Some(session) = there.map(|known| known.session) else { return self.end_claim(uid) };
        let is_told = |instance: &Instance| (instance.node.as_str(), instance.generation) == (node, generation);
        let Some(known) = self.pods.get(uid) else { return };
        let kept = self.kept_for(&known.facts);
        let holds_that = |instance: &Instance| is_told(instance) && instance.kept == kept;
        if !known.instance.as_ref().is_some_and(|instance| holds_that(instance) && instance.is_bound) {
            // A pod that this leader has bound holds what it was started with.
            let started = known.instance.as_ref().filter(|instance| holds_that(instance));
            let started = started.map(|instance| (instance.amounts.clone(), instance.claims.clone()));
            let (amounts, claims) = started.unwrap_or_else(|| {
                let (mut amounts, claims) = self.held_by(&known.facts, &kept);
                // The engine stops what holds something else than its claim asks for.
                let asked = known.claim.as_ref().map(|told| attached::volumes_in(&told.claim.request.counted));
                amounts.counted.extend(asked.unwrap_or_else(|| self.volumes_to_attach(&known.facts)));
                (amounts, claims)
            });
            if known.instance.as_ref().is_some_and(|instance| is_told(instance) && instance.kept != kept) {
                // What it holds itself and what is kept for it change at the same moment.
                self.happens_together();
                self.instance_gone(uid);
                self.end_claim(uid);
            } else if known.instance.as_ref().is_some_and(|instance| !is_told(instance)) {
                // A command of an earlier leader has bound the pod, not the command whose outcome is awaited.
                self.instance_gone(uid);
            }
            // The watch can be faster than the answer to the binding.
            self.settled(node, generation);
            let node_name = node.to_owned();
            let instance = Instance { node: node_name, session, generation, amounts, claims, kept, is_bound: true };
            if let Some(known) = self.pods.get_mut(uid) {
                known.instance = Some(instance);
            }
            self.report(node);
        }
        let Some(known) = self.pods.get(uid) else { return };
        if known.facts.is_leaving {
            self.end_claim(uid);
        } else if known.claim.is_none() {
            let amounts = known.instance.as_ref().map(|instance| instance.amounts.clone()).unwrap_or_default();
            let (of_devices, further) = devices::requests_of(&amounts.devices);
            let request = Request {
                cpu: amounts.cpu,
                memory: amounts.memory,
                devices: of_devices,
                further,
                counted: amounts.counted,
                peers: known.peers.clone(),
                constraints: self.constraints_of_bound(&known.facts, node),
                ..Request::default()
            };
            self.tell_claim(uid, request, Means::default());
        } else {
            self.tell_peers(uid);
            self.tell_budget_of(uid);
            let Some(known) = self.pods.get(uid) else { return };
            let group = self.group_of(&known.facts);
            self.tell_group_again(group, uid);
        }
    }

    /// What a bound pod holds, beside the parts that are kept for it. Its decision or its claim says which devices,
    /// whatever its words would mean today.
    fn held_by(&self, facts: &PodFacts, kept: &[DevicePart]) -> (Amounts, Vec<HeldClaim>) {
        let of_node = self.amounts_of(facts).unwrap_or_default();
        let decided = facts.decision.as_ref().and_then(|decision| decision.as_ref().ok());
        let parts = decided.into_iter().flat_map(|decision| decision.containers.values().flatten());
        let (claims, claimed) = self.held_by_claims_of(facts);
        let mut decided = devices::decided(parts);
        for part in kept {
            if let Some(place) = decided.iter().position(|of| of == part) {
                decided.remove(place);
            }
        }
        let amounts = Amounts {
            cpu: MilliCpu::new(of_node.cpu_millis),
            memory: Bytes::new(of_node.memory_bytes),
            devices: if claims.is_empty() { decided } else { claimed },
            // A pod that another leader has bound asks for what it has, and for nothing else.
            alternative: 0,
            counted: of_node.counted,
        };
        (amounts, claims)
    }

    /// Where a pod that another leader has bound could run in place of its node. It is moved only there. What claims ask of
    /// nodes is not looked for: a pod with claims stays where it is.
    fn constraints_of_bound(&self, facts: &PodFacts, node: &str) -> Constraints {
        let has_claims =
            volumes::claims_of(facts).next().is_some() || !facts.claims.is_empty() || !self.kept_for(facts).is_empty();
        match placement::constraints(&facts.spec, &self.taints) {
            Ok(mut constraints) if !has_claims => {
                let declare = placement::declare(&facts.needed_features);
                constraints.node_terms = placement::both(constraints.node_terms, &declare);
                constraints
            }
            _ => Constraints { node_terms: [only_on(node)].into(), ..Constraints::default() },
        }
    }

    fn tell_waiting(&mut self, uid: &str) {
        self.learn_drivers(uid);
        let Some(known) = self.pods.get(uid) else { return };
        let takes_turns = self.takes_turns(&known.facts);
        let before = (known.claim.is_some(), known.problem.clone());
        let found = known.facts.check_undecided().and_then(|()| self.request_of(&known.facts));
        if takes_turns && before != (found.is_ok(), found.as_ref().err().cloned()) {
            let facts = known.facts.clone();
            self.turn_changed(&facts);
            // The claim of the pod whose turn it is no more ends at the same moment.
            self.happens_together();
        }
        match found {
            Ok((request, means)) => self.tell_claim(uid, request, means),
            Err(problem) => {
                self.end_claim(uid);
                if let Some(known) = self.pods.get_mut(uid) {
                    known.problem = Some(problem);
                }
            }
        }
    }

    pub(super) fn request_of(&self, facts: &PodFacts) -> Result<(Request, Means), String> {
        self.request_in(facts, true)
    }

    /// What a pod asks for. `in_turn`: it must be its turn to have what one pod at a time may have.
    pub(super) fn request_in(&self, facts: &PodFacts, in_turn: bool) -> Result<(Request, Means), String> {
        self.check_owner(facts)?;
        self.check_queue(facts)?;
        self.gang_of(facts)?;
        facts.peer_rules.as_ref().map_err(String::clone)?;
        let mut amounts = self.amounts_asked(facts)?;
        let mut constraints = placement::constraints(&facts.spec, &self.taints)?;
        let declare = placement::declare(&facts.needed_features);
        constraints.node_terms = placement::both(constraints.node_terms, &declare);
        let volume_claims = self.constrain_by_volumes(facts, &mut constraints, in_turn)?;
        let claimed = self.constrain_by_claims(facts, &mut constraints)?;
        self.constrain_by_elastic_gpus(facts, &mut constraints, in_turn)?;
        amounts.counted.extend(claimed.place.iter().map(|place| (place.clone(), 1)));
        amounts.counted.extend(self.volumes_to_attach(facts));
        let means = Means { volume_claims, claimed, ..Means::default() };
        let (mut request, means) = self.with_devices(facts, amounts, constraints, means)?;
        self.keep_near_first(facts, &means.claimed, &mut request)?;
        // A kube-scheduler that asks about devices weighs what is preferred by itself.
        let preferences = placement::preferences(&facts.spec)?;
        request.preferences = self.prefer_where_volumes_can_be_made(facts, &means.volume_claims, preferences);
        self.check_devices_per_node(facts, request.device_count_max())?;
        Ok((request, means))
    }

    /// Adds what a pod asks for of devices, and how its policy wants them.
    ///
    /// # Errors
    /// Why such a pod gets no devices anywhere.
    pub(super) fn with_devices(
        &self,
        facts: &PodFacts,
        amounts: resources::Amounts,
        constraints: Constraints,
        means: Means,
    ) -> Result<(Request, Means), String> {
        let policy = self.policy_of(facts)?;
        let rules = policy.map(|policy| policy.rules).unwrap_or_default();
        let enforced = policy.and_then(|policy| attribute_of(policy.enforcement));
        let asks = self.reading.asks(&facts.words, |claim| self.asked_by_claim(facts, claim))?;
        if let Some(ask) = asks.first().filter(|_| means.claimed.has_ours) {
            return Err(format!(
                "container {:?} asks for devices, and the pod has resource claims for such devices, or a device class stands for other \
                 resources of it; ask in one of these ways",
                ask.container
            ));
        }
        resources::check_devices_of_init(&facts.spec, asks.iter().map(|ask| ask.container.as_str()))?;
        // The room of some parts is kept already.
        let part = |ask: &Ask| {
            let part = ask.kept.as_ref()?;
            let (uuid, core) = (part.device.clone(), DeviceCore::from_percent(part.core_percent));
            Some((ask.container.clone(), DevicePart { uuid, core, memory: Bytes::new(part.memory_bytes) }))
        };
        let kept = asks.iter().filter_map(part).collect();
        let asks: Vec<Ask> = asks.into_iter().filter(|ask| ask.kept.is_none()).collect();
        let containers = asks.iter().map(|ask| (ask.container.clone(), usize::from(ask.devices.count))).collect();
        let mut request = Request {
            cpu: MilliCpu::new(amounts.cpu_millis),
            memory: Bytes::new(amounts.memory_bytes),
            constraints,
            rules,
            counted: amounts.counted,
            peers: self.pods.get(&facts.uid).and_then(|known| known.peers.clone()),
            ..Request::default()
        };
        let wanted = if asks.is_empty() { means.claimed.devices.clone() } else { self.reading.wanted(&asks)? };
        wanted.add_to(&mut request);
        if let Some(attribute) = enforced.filter(|_| request.device_count_max() > 0) {
            request.change_device_constraints(|_, attributes| {
                attributes.insert(attribute.to_owned(), "true".to_owned());
            });
        }
        request.validate().map_err(|error| error.to_string())?;
        Ok((request, Means { containers, kept, ..means }))
    }

    pub(super) fn tell_claim(&mut self, uid: &str, request: Request, means: Means) {
        let Some(known) = self.pods.get(uid) else { return };
        let (facts, is_bound) = (&known.facts, known.instance.is_some());
        let group = self.group_of(facts);
        let Precedence { priority, .. } = self.own_precedence(facts);
        let claim = Claim {
            name: facts.full_name(),
            request,
            namespace: facts.namespace.clone(),
            queue: self.queue_of(facts),
            priority: group.as_ref().map_or(priority, |group| group.priority),
            preemptible: group
                .as_ref()
                .map_or_else(|| self.is_preemptible_at(facts, priority), |group| group.preemptible),
            immovable: is_immovable(facts, &means) || known.claim.as_ref().is_some_and(|told| told.claim.immovable),
            min_runtime_ms: self.policy_of(facts).ok().flatten().map_or(0, |policy| policy.min_runtime_ms),
            sub_group: group.as_ref().and_then(|group| sub_group_of(facts, group)),
            pod_group: group.as_ref().map(|group| group.name.clone()),
            disruption_budget: self.budget_of(facts),
        };
        if known.claim.as_ref().is_some_and(|told| told.claim == claim)
            || known.instance.is_some() && known.claim.is_some()
        {
            if let Some(told) = self.pods.get_mut(uid).and_then(|known| known.claim.as_mut()) {
                told.means = means;
            }
            return self.tell_group_again(group, uid);
        }
        let is_resized = known
            .claim
            .as_ref()
            .is_some_and(|told| Claim { request: claim.request.clone(), ..told.claim.clone() } == claim);
        if !is_resized {
            self.end_claim(uid);
        }
        if let Some(group) = group {
            self.tell_group(group, uid);
        }
        if let (Some(gang), false) = (&claim.pod_group, is_resized) {
            self.count_in_gang(&claim.namespace, gang, uid);
        }
        let name = ClaimUid::from(uid);
        let chosen = self.pods.get(uid).and_then(|known| known.chosen.as_deref()).map(NodeName::from);
        self.told.push(match chosen.filter(|_| !is_bound) {
            _ if is_resized => Observation::ClaimResized(name, Box::new(claim.request.clone())),
            Some(node) => Observation::ClaimOnNode(name, Box::new(claim.clone()), node),
            None => Observation::Claim(name, Box::new(claim.clone())),
        });
        if !is_resized {
            self.claims_told += 1;
            self.count_in_budget(&claim.namespace, claim.disruption_budget.as_deref(), true);
        }
        let newest = self.claims_told;
        if let Some(known) = self.pods.get_mut(uid) {
            let number = known.claim.as_ref().map_or(newest, |told| told.number);
            (known.claim, known.problem) = (Some(Told { claim, means, number }), None);
        }
    }

    /// Ends the claim of a pod that is not to be placed any more, or that is not this scheduler's.
    pub(super) fn end_claim(&mut self, uid: &str) {
        let Some(known) = self.pods.get_mut(uid) else { return };
        known.problem = None;
        let Some(told) = known.claim.take() else { return };
        self.told.push(Observation::ClaimEnded(ClaimUid::from(uid)));
        self.count_in_budget(&told.claim.namespace, told.claim.disruption_budget.as_deref(), false);
        if let Some(gang) = told.claim.pod_group {
            self.uncount_in_gang(told.claim.namespace, gang, uid);
        }
    }

    /// Tells the engine that a pod's instance is gone.
    fn instance_gone(&mut self, uid: &str) {
        let Some(instance) = self.pods.get_mut(uid).and_then(|known| known.instance.take()) else { return };
        self.settled(&instance.node, instance.generation);
        self.tell_outcome(uid, &instance, instance.generation, StepOutcome::Gone);
    }
}

/// Whether a pod is never evicted only to run elsewhere. Nobody makes another pod in place of one without a controller.
/// Volumes that are made for a pod on its node, and claims that other pods can use beside it, keep the next pod there.
/// Its request, which is of the time before the start, does not say so.
fn is_immovable(facts: &PodFacts, means: &Means) -> bool {
    let is_of_group = !means.claimed.leads.is_empty() || !means.claimed.follows.is_empty();
    let can_be_shared = is_of_group || facts.claims.iter().any(|of| !of.is_made_for_it);
    facts.controller.is_none() || can_be_shared || !means.volume_claims.is_empty()
}

fn was_bound_by_us(facts: &PodFacts) -> bool {
    facts.generation.is_some() && !matches!(facts.decision, Some(Err(_)))
}
