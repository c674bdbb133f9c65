//! The machines beside the books: what really runs where. They notice a claim that is started before there is room for
//! it, however right the books look.

use std::collections::BTreeMap;

use aliquot_scheduler_core::{
    Allocation, ClaimId, Cluster, Event, KnownClaim, NodeId, NodeSpec, Outcome, Plan, Request, Step,
};

/// The used CPU and memory of a machine, and the used time and memory of each device.
type Used = (u64, u64, Vec<(u64, u64)>);

#[derive(Clone, Debug, Default)]
pub(crate) struct Machines {
    nodes: BTreeMap<NodeId, NodeSpec>,
    /// At most one container for each claim.
    containers: BTreeMap<ClaimId, Container>,
    /// Claims that were placed but have not been told to start.
    waiting: BTreeMap<ClaimId, Allocation>,
}

#[derive(Clone, Debug)]
struct Container {
    request: Request,
    at: Allocation,
    /// Whether it was told to go. It is still there.
    stopping: bool,
}

impl Machines {
    /// The claims that were told to go and are still there.
    pub(crate) fn stopping(&self) -> impl Iterator<Item = ClaimId> + '_ {
        self.containers.iter().filter(|(_, container)| container.stopping).map(|(claim, _)| *claim)
    }

    pub(crate) fn runs(&self, claim: ClaimId) -> bool {
        self.containers.get(&claim).is_some_and(|container| !container.stopping)
    }

    /// Carries out a plan.
    pub(crate) fn carry_out(&mut self, cluster: &Cluster, plan: &Plan) -> Result<(), String> {
        for planned in &plan.steps {
            if let Step::Evict { claim, from } | Step::Move { claim, from, .. } = &planned.step {
                self.stop(*claim, from)?;
            }
            if let Step::Place { claim, to, .. } | Step::Move { claim, to, .. } = &planned.step {
                self.waiting.insert(*claim, to.clone());
            }
        }
        let at_once = plan.steps.iter().filter_map(|planned| match &planned.step {
            Step::Place { claim, starts_after, .. } | Step::Move { claim, starts_after, .. } => {
                starts_after.is_empty().then_some(*claim)
            }
            Step::Evict { .. } => None,
        });
        self.start_all(cluster, &at_once.collect::<Vec<_>>())
    }

    /// Follows an event that happened to the machines, or that was told to them.
    pub(crate) fn observe(&mut self, cluster: &Cluster, event: &Event, outcome: &Outcome) -> Result<(), String> {
        match event {
            Event::NodeAdded(spec) => {
                if let Outcome::Node(id) = outcome {
                    self.nodes.insert(*id, spec.clone());
                }
            }
            Event::NodeRemoved(node) => {
                self.nodes.remove(node);
                let lost: Vec<ClaimId> =
                    self.containers.iter().filter(|(_, own)| own.at.node == *node).map(|(claim, _)| *claim).collect();
                lost.into_iter().for_each(|claim| self.lose(claim));
            }
            Event::ClaimRemoved(claim) => {
                self.waiting.remove(claim);
                self.lose(*claim);
            }
            Event::ClaimGone(claim) => self.lose(*claim),
            // A claim that had not started yet is not lost: its old container may still be there.
            Event::ClaimEvicted(claim) | Event::ClaimFailed(claim) => match self.waiting.remove(claim) {
                Some(_) => {}
                None => self.lose(*claim),
            },
            Event::ClaimSilent(claim) | Event::ClaimWithdrawn(claim) => {
                self.waiting.remove(claim);
                if let Some(container) = self.containers.get_mut(claim) {
                    container.stopping = true;
                }
            }
            Event::EvictionRefused(claim) => {
                self.waiting.remove(claim);
                if let Some(container) = self.containers.get_mut(claim) {
                    container.stopping = false;
                }
            }
            Event::ClaimPlaced(claim, at) => self.start(cluster, *claim, at)?,
            Event::ClaimResized(claim, request) => {
                let at = cluster.allocation(*claim).cloned();
                if let (Some(at), Some(container)) = (at, self.containers.get_mut(claim)) {
                    (container.at, container.request) = (at, request.clone());
                }
            }
            _ => {}
        }
        let Outcome::Claims { displaced, ready } = outcome else { return self.check_room() };
        displaced.iter().for_each(|claim| _ = self.waiting.remove(claim));
        self.start_all(cluster, ready)
    }

    fn lose(&mut self, claim: ClaimId) {
        self.containers.remove(&claim);
    }

    /// Starts claims that waited, all of them together.
    fn start_all(&mut self, cluster: &Cluster, ready: &[ClaimId]) -> Result<(), String> {
        for claim in ready {
            let to = self.waiting.remove(claim).ok_or(format!("{claim:?} is to start, but does not wait"))?;
            self.start(cluster, *claim, &to)?;
        }
        ready.iter().try_for_each(|claim| self.starts_with_its_gang(cluster, *claim))
    }

    /// Checks that when a member of a gang starts, as many members run as the gang needs.
    fn starts_with_its_gang(&self, cluster: &Cluster, claim: ClaimId) -> Result<(), String> {
        let Some(group) = cluster.group_of(claim).and_then(|group| cluster.group(group)) else { return Ok(()) };
        let running: Vec<&KnownClaim> =
            group.members().filter(|member| self.runs(*member)).filter_map(|member| cluster.claim(member)).collect();
        let of = |name: &str| running.iter().filter(|claim| claim.sub_group.as_deref() == Some(name)).count();
        let spec = group.spec();
        let enough = running.len() >= spec.min_members as usize
            && spec.sub_groups.iter().all(|sub_group| of(&sub_group.name) >= sub_group.min_members as usize);
        match enough {
            true => Ok(()),
            false => Err(format!("{claim:?} starts, and then {} members run of {spec:?}", running.len())),
        }
    }

    fn stop(&mut self, claim: ClaimId, from: &Allocation) -> Result<(), String> {
        if self.waiting.remove(&claim).is_some() {
            return Ok(());
        }
        match self.containers.get_mut(&claim).filter(|container| !container.stopping && container.at == *from) {
            Some(container) => container.stopping = true,
            None => return Err(format!("{claim:?} is evicted from where it does not run")),
        }
        Ok(())
    }

    fn start(&mut self, cluster: &Cluster, claim: ClaimId, at: &Allocation) -> Result<(), String> {
        let request = cluster.claim(claim).map(|claim| Request::clone(&claim.request)).unwrap_or_default();
        if self.containers.insert(claim, Container { request, at: at.clone(), stopping: false }).is_some() {
            return Err(format!("{claim:?} is started although it is still running elsewhere"));
        }
        self.check_room()
    }

    /// Checks that no machine runs more than it has.
    fn check_room(&self) -> Result<(), String> {
        let mut used: BTreeMap<NodeId, Used> = BTreeMap::new();
        for container in self.containers.values() {
            let Some(spec) = self.nodes.get(&container.at.node) else { return Err("runs on no node".into()) };
            let (cpu, memory, devices) = used.entry(container.at.node).or_default();
            *cpu += container.request.cpu.get();
            *memory += container.request.memory.get();
            devices.resize(spec.devices.len(), (0, 0));
            for part in &container.at.devices {
                let (core, memory) = &mut devices[usize::from(part.device)];
                *core += u64::from(part.core.get());
                *memory += part.memory.get();
            }
        }
        for (id, (cpu, memory, devices)) in used {
            let spec = &self.nodes[&id];
            let over =
                devices.iter().zip(&spec.devices).position(|(used, spec)| used.0 > 1000 || used.1 > spec.memory.get());
            let here = self.containers.values().filter(|container| container.at.node == id);
            let mut counted: BTreeMap<&String, u64> = BTreeMap::new();
            for (name, amount) in here.flat_map(|container| &container.request.counted) {
                *counted.entry(name).or_default() += amount;
            }
            let counted_over = counted.iter().any(|(name, used)| *used > spec.counted.get(*name).copied().unwrap_or(0));
            if cpu > spec.cpu.get() || memory > spec.memory.get() || counted_over || over.is_some() {
                return Err(format!(
                    "{} really runs more than it has, device {over:?}: {:?}",
                    spec.name, self.containers
                ));
            }
        }
        Ok(())
    }

    /// Checks that the cluster's state agrees with the machines about each claim.
    pub(crate) fn agree(&self, cluster: &Cluster) -> Result<(), String> {
        for (id, _, placed) in cluster.claims() {
            let container = self.containers.get(&id);
            let running = container.filter(|container| !container.stopping).map(|container| &container.at);
            let stopping = container.filter(|container| container.stopping).map(|container| &container.at);
            let told = cluster.started_ms(id).is_some();
            if told != running.is_some() || (told && running != placed) {
                return Err(format!("{id:?}: runs at {running:?}, is taken to run ({told}) at {placed:?}"));
            }
            if cluster.leaving(id) != stopping {
                return Err(format!("{id:?}: is leaving {stopping:?}, taken to leave {:?}", cluster.leaving(id)));
            }
            let waiting = self.waiting.get(&id);
            if waiting != placed.filter(|_| !told) {
                return Err(format!("{id:?}: waits to start at {waiting:?}, taken to wait at {placed:?}"));
            }
            let after = cluster.starts_after(id);
            let leaves = |other: &ClaimId| self.containers.get(other).is_some_and(|container| container.stopping);
            if after.is_empty() == waiting.is_some() || !after.iter().all(leaves) {
                return Err(format!("{id:?}: placed at {waiting:?}, starts after {after:?}"));
            }
        }
        match self.containers.keys().chain(self.waiting.keys()).find(|claim| cluster.claim(**claim).is_none()) {
            Some(unknown) => Err(format!("{unknown:?} runs and is not known any more")),
            None => Ok(()),
        }
    }
}
