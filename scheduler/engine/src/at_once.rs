//! Simulated nodes that carry out each command at once.

use std::collections::BTreeMap;

use aliquot_scheduler_core::NodeSpec;

use crate::command::{Amounts, Backend, Command, Order};
use crate::names::{ClaimUid, Generation, NodeName};
use crate::observation::{NodeReport, Observation, Report, Running, StepOutcome};

/// A backend with simulated nodes that carry out each command at once and always succeed. It is used to replay
/// snapshots and to simulate changes of a cluster.
///
/// The nodes hold no leases, so the engine must not give any. A node takes its session from its first command.
#[derive(Debug, Default)]
pub struct AtOnce {
    nodes: BTreeMap<NodeName, SimulatedNode>,
    answers: Vec<Observation>,
}

#[derive(Debug, Default)]
struct SimulatedNode {
    /// What the node reports of itself; `None`: it never reports.
    spec: Option<NodeSpec>,
    session: u64,
    sequence: u64,
    handled: Generation,
    instances: BTreeMap<(ClaimUid, Generation), Instance>,
}

#[derive(Debug)]
struct Instance {
    amounts: Amounts,
    /// The generation of the last command that resized the instance; at first, that of its start.
    resized: Generation,
}

impl AtOnce {
    /// Adds a node, and answers its first report.
    pub fn join(&mut self, spec: NodeSpec) -> Observation {
        let name = NodeName::from(spec.name.as_str());
        let node = self.nodes.entry(name).or_insert_with(|| SimulatedNode { session: 1, ..SimulatedNode::default() });
        node.report(spec)
    }

    /// The nodes' answers since the last call, in the order of the commands.
    pub fn take_answers(&mut self) -> Vec<Observation> {
        std::mem::take(&mut self.answers)
    }

    /// All instances that run, with their nodes.
    pub fn running(&self) -> impl Iterator<Item = (&ClaimUid, &NodeName, Generation)> {
        self.nodes
            .iter()
            .flat_map(|(name, node)| node.instances.keys().map(move |(claim, instance)| (claim, name, *instance)))
    }

    /// Ends the instance of a claim, as if it had ended by itself.
    pub fn end(&mut self, claim: &ClaimUid) {
        for (name, node) in &mut self.nodes {
            let ended: Vec<Generation> =
                node.instances.keys().filter(|(of, _)| of == claim).map(|(_, instance)| *instance).collect();
            for instance in ended {
                node.instances.remove(&(claim.clone(), instance));
                let gone = node.answer(name, claim.clone(), instance, instance, StepOutcome::Gone);
                self.answers.push(gone);
            }
        }
    }
}

impl Backend for AtOnce {
    fn carry_out(&mut self, command: Command) {
        let Command { node: name, session, order } = command;
        let new = || SimulatedNode { session, ..SimulatedNode::default() };
        let node = self.nodes.entry(name.clone()).or_insert_with(new);
        if session == node.session {
            self.answers.extend(node.carry_out(&name, order));
        }
    }
}

impl SimulatedNode {
    fn carry_out(&mut self, name: &NodeName, order: Order) -> Option<Observation> {
        let (claim, instance, generation, outcome) = match order {
            Order::Start { claim, generation, amounts, .. } => {
                (claim.clone(), generation, generation, self.start(claim, generation, amounts))
            }
            Order::Resize { claim, instance, generation, amounts, .. } => {
                let there = self.instances.get_mut(&(claim.clone(), instance));
                let there = there.filter(|there| there.resized < generation)?;
                *there = Instance { amounts, resized: generation };
                (claim, instance, generation, StepOutcome::Started)
            }
            Order::Stop { claim, instance, generation, .. } => {
                self.handled = self.handled.max(generation);
                self.instances.remove(&(claim.clone(), instance));
                (claim, instance, generation, StepOutcome::Gone)
            }
            Order::Report { .. } => return self.spec.clone().map(|spec| self.report(spec)),
            // These orders are about leases.
            Order::Renew { .. } | Order::EndSession { .. } => return None,
        };
        Some(self.answer(name, claim, instance, generation, outcome))
    }

    fn start(&mut self, claim: ClaimUid, generation: Generation, amounts: Amounts) -> StepOutcome {
        let key = (claim, generation);
        if self.instances.contains_key(&key) {
            return StepOutcome::Started;
        }
        if generation <= self.handled {
            return StepOutcome::Refused("a later command was handled before".into());
        }
        self.handled = generation;
        self.instances.insert(key, Instance { amounts, resized: generation });
        StepOutcome::Started
    }

    fn next_sequence(&mut self) -> u64 {
        self.sequence += 1;
        self.sequence
    }

    fn report(&mut self, spec: NodeSpec) -> Observation {
        self.spec = Some(spec.clone());
        let running = self.instances.iter().map(|((claim, instance), there)| Running {
            claim: claim.clone(),
            instance: *instance,
            amounts: there.amounts.clone(),
            since_ms: None,
        });
        let running = running.collect();
        let (session, sequence, handled) = (self.session, self.next_sequence(), self.handled);
        Observation::Node(Box::new(NodeReport { spec, session, sequence, handled, running }))
    }

    fn answer(
        &mut self,
        name: &NodeName,
        claim: ClaimUid,
        instance: Generation,
        generation: Generation,
        outcome: StepOutcome,
    ) -> Observation {
        let (node, session, sequence) = (name.clone(), self.session, self.next_sequence());
        Observation::Outcome(Report { node, session, sequence, claim, instance, generation, outcome })
    }
}
