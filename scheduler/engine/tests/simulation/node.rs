//! A simulated node beside the engine: its instances, its lease, and its answers. It carries out any command; it is the
//! engine's task that nothing is given twice.

use std::collections::BTreeMap;

use aliquot_scheduler_core::NodeSpec;
use aliquot_scheduler_engine::{
    Amounts, ClaimUid, Command, Generation, Heartbeat, NodeName, NodeReport, Observation, Order, Report, Running,
    StepOutcome,
};

use super::random::Random;

/// An instance of a claim on the simulated node.
#[derive(Clone, Debug)]
pub(crate) struct Container {
    pub(crate) amounts: Amounts,
    /// When the container will have started, and when it will have stopped.
    pub(crate) starts_ms: Option<u64>,
    pub(crate) stops_ms: Option<u64>,
    /// The generation of the last resize that the node received for it.
    resized: Generation,
}

/// How often the node fails.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Troubles {
    pub(crate) refuses_per_mille: u64,
    pub(crate) fails_per_mille: u64,
    pub(crate) forgets_per_mille: u64,
}

#[derive(Clone, Debug)]
pub(crate) struct Node {
    pub(crate) spec: NodeSpec,
    pub(crate) session: u64,
    sequence: u64,
    handled: Generation,
    /// Whether the instances stop when the lease ends.
    has_leases: bool,
    lease_until_ms: u64,
    /// The send times of heartbeats that have no answer yet.
    sent_ms: BTreeMap<u64, u64>,
    pub(crate) containers: BTreeMap<(ClaimUid, Generation), Container>,
    pub(crate) troubles: Troubles,
}

impl Node {
    pub(crate) fn new(spec: NodeSpec, has_leases: bool) -> Self {
        Self {
            spec,
            session: 1,
            sequence: 0,
            handled: Generation::default(),
            has_leases,
            lease_until_ms: 0,
            sent_ms: BTreeMap::new(),
            containers: BTreeMap::new(),
            troubles: Troubles::default(),
        }
    }

    pub(crate) fn name(&self) -> NodeName {
        self.spec.name.as_str().into()
    }

    fn has_lease(&self, now_ms: u64) -> bool {
        !self.has_leases || now_ms < self.lease_until_ms
    }

    fn next_sequence(&mut self) -> u64 {
        self.sequence += 1;
        self.sequence
    }

    /// A full report of the node.
    pub(crate) fn report(&mut self, now_ms: u64) -> Observation {
        let sequence = self.next_sequence();
        self.sent_ms.insert(sequence, now_ms);
        let running = self.containers.iter().map(|((claim, instance), container)| Running {
            claim: claim.clone(),
            instance: *instance,
            amounts: container.amounts.clone(),
            since_ms: None,
        });
        Observation::Node(Box::new(NodeReport {
            spec: self.spec.clone(),
            session: self.session,
            sequence,
            handled: self.handled,
            running: running.collect(),
        }))
    }

    pub(crate) fn heartbeat(&mut self, now_ms: u64) -> Observation {
        let sequence = self.next_sequence();
        self.sent_ms.insert(sequence, now_ms);
        Observation::Heartbeat(Heartbeat { node: self.name(), session: self.session, sequence })
    }

    fn answer(
        &mut self,
        claim: &ClaimUid,
        instance: Generation,
        generation: Generation,
        outcome: StepOutcome,
    ) -> Observation {
        Observation::Outcome(Report {
            node: self.name(),
            session: self.session,
            sequence: self.next_sequence(),
            claim: claim.clone(),
            instance,
            generation,
            outcome,
        })
    }

    /// Carries out a command; answers the node's messages about it.
    pub(crate) fn obey(&mut self, now_ms: u64, command: &Command, random: &mut Random) -> Vec<Observation> {
        let is_for_this_session = command.session == self.session;
        match &command.order {
            Order::Report { .. } => vec![self.report(now_ms)],
            Order::EndSession { .. } => {
                if is_for_this_session {
                    self.reboot();
                }
                Vec::new()
            }
            Order::Renew { sequence, lease_ms, .. } => {
                if let (true, Some(sent_ms)) = (is_for_this_session, self.sent_ms.get(sequence).copied()) {
                    self.sent_ms = self.sent_ms.split_off(sequence);
                    self.lease_until_ms = self.lease_until_ms.max(sent_ms + lease_ms);
                }
                Vec::new()
            }
            Order::Start { claim, generation, amounts, .. } => {
                let key = (claim.clone(), *generation);
                if let Some(container) = self.containers.get(&key) {
                    let runs = container.starts_ms.is_none() && container.stops_ms.is_none();
                    return if runs {
                        vec![self.answer(claim, *generation, *generation, StepOutcome::Started)]
                    } else {
                        Vec::new()
                    };
                }
                let may = is_for_this_session && self.has_lease(now_ms) && *generation > self.handled;
                if is_for_this_session {
                    self.handled = self.handled.max(*generation);
                }
                if !may || random.chance(self.troubles.refuses_per_mille) {
                    let refused = StepOutcome::Refused("not as it is here now".into());
                    return vec![self.answer(claim, *generation, *generation, refused)];
                }
                if random.chance(self.troubles.forgets_per_mille) {
                    return vec![self.answer(claim, *generation, *generation, StepOutcome::Unknown)];
                }
                let container = Container {
                    amounts: amounts.clone(),
                    starts_ms: Some(now_ms + random.below(300)),
                    stops_ms: None,
                    resized: *generation,
                };
                self.containers.insert(key, container);
                Vec::new()
            }
            Order::Resize { claim, instance, generation, amounts, .. } => {
                let Some(container) = self.containers.get_mut(&(claim.clone(), *instance)) else { return Vec::new() };
                if !is_for_this_session || *generation <= container.resized {
                    return Vec::new();
                }
                container.resized = *generation;
                if random.chance(self.troubles.refuses_per_mille) || container.stops_ms.is_some() {
                    let refused = StepOutcome::Refused("not now".into());
                    return vec![self.answer(claim, *instance, *generation, refused)];
                }
                container.amounts = amounts.clone();
                vec![self.answer(claim, *instance, *generation, StepOutcome::Started)]
            }
            Order::Stop { claim, instance, generation, .. } => {
                if is_for_this_session {
                    self.handled = self.handled.max(*generation);
                }
                let key = (claim.clone(), *instance);
                if !self.containers.contains_key(&key) {
                    // In another session it is unknown what will run then.
                    let outcome = if is_for_this_session { StepOutcome::Gone } else { StepOutcome::Unknown };
                    return vec![self.answer(claim, *instance, *generation, outcome)];
                }
                if random.chance(self.troubles.refuses_per_mille) {
                    let refused = StepOutcome::Refused("not now".into());
                    return vec![self.answer(claim, *instance, *generation, refused)];
                }
                let stops_ms = now_ms + random.below(800);
                if let Some(container) = self.containers.get_mut(&key) {
                    container.stops_ms.get_or_insert(stops_ms);
                }
                Vec::new()
            }
        }
    }

    /// Runs what happens on the node by itself up to now.
    pub(crate) fn live(&mut self, now_ms: u64, random: &mut Random) -> Vec<Observation> {
        let mut said = Vec::new();
        if self.lease_until_ms > 0 && !self.has_lease(now_ms) {
            self.reboot();
            return said;
        }
        for ((claim, instance), mut container) in std::mem::take(&mut self.containers) {
            if container.stops_ms.is_some_and(|at_ms| at_ms <= now_ms) {
                said.push(self.answer(&claim, instance, instance, StepOutcome::Gone));
                continue;
            }
            if container.starts_ms.take_if(|at_ms| *at_ms <= now_ms).is_some() {
                if random.chance(self.troubles.fails_per_mille) {
                    let failed = StepOutcome::Failed("it crashed".into());
                    said.push(self.answer(&claim, instance, instance, failed));
                    continue;
                }
                said.push(self.answer(&claim, instance, instance, StepOutcome::Started));
            }
            self.containers.insert((claim, instance), container);
        }
        said
    }

    /// The node begins anew, without instances.
    pub(crate) fn reboot(&mut self) {
        self.containers.clear();
        self.restart();
        self.lease_until_ms = 0;
    }

    /// The node's manager starts anew; its containers go on.
    pub(crate) fn restart(&mut self) {
        self.session += 1;
        self.sequence = 0;
        self.sent_ms.clear();
    }

    /// A container ends by itself.
    pub(crate) fn lose_one(&mut self, number: u64) -> Option<Observation> {
        let count = u64::try_from(self.containers.len()).ok()?;
        let index = usize::try_from(number.checked_rem(count)?).ok()?;
        let key = self.containers.keys().nth(index)?.clone();
        self.containers.remove(&key);
        Some(self.answer(&key.0, key.1, key.1, StepOutcome::Gone))
    }
}
