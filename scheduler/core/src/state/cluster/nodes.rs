//! Nodes that come, change and go.

use std::sync::Arc;

use super::Cluster;
use super::leaving::Freed;
use crate::state::change_log::ChangedNode;
use crate::state::node::Node;
use crate::state::topology::Topology;
use crate::vocabulary::claim::{Allocation, ClaimId, NodeId};
use crate::vocabulary::event::{EventError, Outcome};
use crate::vocabulary::known_node::KnownNode;
use crate::vocabulary::spec::{DeviceSpec, Health, NodeSpec};

impl Cluster {
    pub(super) fn node_mut(&mut self, id: NodeId) -> Result<&mut Node, EventError> {
        self.nodes.get_mut(id.index()).and_then(Option::as_mut).ok_or(EventError::NoSuchNode(id))
    }

    /// Notes that a node has changed, for readers that keep something about every node.
    pub(super) fn note(&mut self, node: NodeId, spec: bool) {
        self.changes.push(ChangedNode { node, spec }, self.nodes.len());
    }

    /// Notes that more than a node's free amounts has changed.
    pub(super) fn note_spec(&mut self, node: NodeId) {
        self.specs_changed += 1;
        self.totals.take();
        self.note(node, true);
    }

    pub(super) fn add_node(&mut self, spec: NodeSpec) -> Result<NodeId, EventError> {
        if self.by_name.contains_key(&spec.name) {
            return Err(EventError::NodeExists(spec.name));
        }
        let id = NodeId(u32::try_from(self.nodes.len()).expect("fewer than 2^32 nodes"));
        Arc::make_mut(&mut self.by_name).insert(spec.name.clone(), id);
        let (spec, news) = self.join_node(id, spec);
        self.nodes.push(Some(Node::new(spec)));
        if news {
            self.recount_requested();
        }
        self.note_spec(id);
        Ok(id)
    }

    /// Takes in a node's specification. Returns it as it is kept, and whether the least or the greatest memory of a
    /// model's devices has changed.
    pub(super) fn join_node(&mut self, id: NodeId, spec: NodeSpec) -> (KnownNode, bool) {
        let mut models = Vec::with_capacity(spec.devices.len());
        let mut news = false;
        for device in &spec.devices {
            let (model, is_new) = self.resources.learn_device(&device.model, device.memory);
            models.push(model);
            news |= is_new;
        }
        Topology::learn(&mut self.topology, id, Some(&spec.labels));
        self.note_foreign(id, &spec.foreign, true);
        (self.node_parts.join(spec, &models), news)
    }

    /// Takes out a node's specification. Returns whether the least or the greatest memory of a model's devices has
    /// changed.
    pub(super) fn leave_node(&mut self, id: NodeId, spec: &KnownNode) -> bool {
        self.note_foreign(id, &spec.foreign, false);
        let mut news = false;
        for device in spec.devices.iter() {
            news |= self.resources.forget_device(&device.model, device.memory);
        }
        self.node_parts.leave(spec);
        news
    }

    /// Changes what a node says of itself beside its amounts. Returns the claims that are pending again because they
    /// cannot start there any more.
    pub(super) fn relabel(&mut self, id: NodeId, spec: &NodeSpec) -> Result<Vec<ClaimId>, EventError> {
        let node = self.nodes.get_mut(id.index()).and_then(Option::as_mut).ok_or(EventError::NoSuchNode(id))?;
        let has_other_labels = node.spec().labels != spec.labels;
        node.relabel(spec, &mut self.node_parts);
        Topology::learn(&mut self.topology, id, Some(&spec.labels));
        self.note_spec(id);
        let mut displaced = self.lose(self.no_longer_admitted(id))?;
        if has_other_labels {
            displaced.extend(self.lose_what_is_kept_apart()?);
        }
        Ok(displaced)
    }

    /// Removes a node: claims that were placed there are pending again, and claims that were leaving it are gone.
    pub(super) fn remove_node(&mut self, id: NodeId) -> Result<Outcome, EventError> {
        let there: Vec<ClaimId> = self.node(id).ok_or(EventError::NoSuchNode(id))?.claims().collect();
        let displaced = self.lose(there)?;
        if let Some(node) = self.nodes.get_mut(id.index()).and_then(Option::take) {
            Arc::make_mut(&mut self.by_name).remove(&node.spec().name);
            if self.leave_node(id, node.spec()) {
                self.recount_requested();
            }
        }
        self.held.remove(&id);
        self.over_committed.remove(&id);
        Topology::learn(&mut self.topology, id, None);
        self.note_spec(id);
        // What was on the node counts no more for the claims that can start now.
        let mut freed = Freed { displaced, ready: Vec::new() };
        for claim in self.leaving.get(&id).cloned().unwrap_or_default() {
            freed.add(self.gone(claim)?);
        }
        Ok(freed.into())
    }

    pub(super) fn set_topology(&mut self, levels: Vec<String>) -> Result<(), EventError> {
        let twice = levels.iter().enumerate().find(|(index, level)| levels[..*index].contains(level));
        if let Some((_, level)) = twice {
            return Err(EventError::LevelTwice(level.clone()));
        }
        let nodes = (0..).map(NodeId).zip(self.nodes.iter());
        Arc::make_mut(&mut self.topology)
            .set_levels(levels, nodes.filter_map(|(id, node)| Some((id, &node.as_ref()?.spec().labels))));
        self.specs_changed += 1;
        Ok(())
    }

    pub(super) fn set_health(&mut self, id: NodeId, device: u16, health: Health) -> Result<Outcome, EventError> {
        let node = self.nodes.get_mut(id.index()).and_then(Option::as_mut).ok_or(EventError::NoSuchNode(id))?;
        if !node.set_health(device, health, &mut self.node_parts) {
            return Err(EventError::NoSuchDevice { node: id, device });
        }
        let there: Vec<ClaimId> = node.claims().collect();
        self.note_spec(id);
        if health == Health::Healthy {
            return Ok(Outcome::Done);
        }
        let was_to_start = |claim: &ClaimId| {
            let holds_it = |at: &Allocation| at.devices.iter().any(|part| part.device == device);
            self.started_ms(*claim).is_none() && self.allocation(*claim).is_some_and(holds_it)
        };
        let lost = there.into_iter().filter(was_to_start).collect();
        self.lose(lost).map(Outcome::displaced)
    }

    /// Holds a node, so that an engine places nothing there, or opens it again. A scheduler that keeps nodes of this
    /// cluster decides about those nodes itself.
    ///
    /// # Errors
    /// If there is no such node.
    pub fn set_held(&mut self, id: NodeId, held: bool) -> Result<(), EventError> {
        self.node_mut(id)?;
        let changed = if held { self.held.insert(id) } else { self.held.remove(&id) };
        if changed {
            self.note(id, true);
        }
        Ok(())
    }

    /// The capacity of each resource, by number: of the nodes that are not cordoned, and of their healthy devices.
    pub(crate) fn totals(&self) -> Vec<u64> {
        let mut totals = self.totals.get_or_init(|| self.added_up()).clone();
        // A claim or a queue may since have named a model that no node has.
        totals.resize(self.resources.len(), 0);
        totals
    }

    fn added_up(&self) -> Vec<u64> {
        let mut totals = vec![0_u64; self.resources.len()];
        let mut add = |number: usize, amount: u64| totals[number] = totals[number].saturating_add(amount);
        for (_, node) in self.nodes().filter(|(_, node)| !node.spec().cordoned) {
            add(0, node.spec().cpu.get());
            add(1, node.spec().memory.get());
            for device in node.spec().devices.iter() {
                if device.health != Health::Healthy {
                    continue;
                }
                let core = u64::from(DeviceSpec::CORE.get());
                add(2, core);
                add(3, device.memory.get());
                add(device.model_resource, core);
            }
        }
        totals
    }
}

#[cfg(test)]
mod tests {
    use crate::state::cluster::Cluster;
    use crate::vocabulary::allowance::Allowance;
    use crate::vocabulary::event::{Event, Outcome};
    use crate::vocabulary::quantity::MilliCpu;
    use crate::vocabulary::queue_spec::QueueSpec;
    use crate::vocabulary::resource::Resource;
    use crate::vocabulary::spec::{DeviceSpec, Health, NodeSpec};

    fn node(name: &str, cpu: u64, devices: usize) -> NodeSpec {
        let device = |index| DeviceSpec { uuid: format!("{name}-{index}"), model: "A".into(), ..DeviceSpec::default() };
        let devices = (0..devices).map(device).collect();
        NodeSpec { name: name.into(), cpu: MilliCpu::new(cpu), devices, ..NodeSpec::default() }
    }

    #[test]
    fn totals_follow_every_event_of_nodes() {
        let mut cluster = Cluster::new();
        assert_eq!(cluster.totals()[..3], [0, 0, 0]);
        let Ok(Outcome::Node(first)) = cluster.apply(Event::NodeAdded(node("first", 4, 2))) else {
            panic!("the cluster takes a node");
        };
        assert_eq!(cluster.totals()[..3], [4, 0, 2000]);
        let mut after = |event: Event| {
            cluster.apply(event).expect("the cluster takes the event");
            let totals = cluster.totals();
            assert_eq!(totals[2], totals[4], "all devices are of the first model");
            (totals[0], totals[2], totals.len())
        };
        assert_eq!(after(Event::NodeAdded(node("second", 8, 1))), (12, 3000, 5));
        let broken = |health| Event::DeviceHealthChanged { node: first, device: 1, health };
        assert_eq!(after(broken(Health::Unhealthy)), (12, 2000, 5));
        assert_eq!(after(broken(Health::Healthy)), (12, 3000, 5));
        let cordoned = NodeSpec { cordoned: true, ..node("first", 4, 2) };
        assert_eq!(after(Event::NodeRelabelled(first, cordoned)), (8, 1000, 5));
        assert_eq!(after(Event::NodeChanged(first, node("first", 16, 3))), (24, 4000, 5));
        let quotas = [(Resource::ModelCore("B".into()), Allowance::default())].into();
        let queue = QueueSpec { name: "team".into(), allowances: quotas, ..QueueSpec::default() };
        assert_eq!(after(Event::QueueAdded(queue)), (24, 4000, 6), "a queue names a model that no node has");
        assert_eq!(after(Event::NodeRemoved(first)), (8, 1000, 6));
    }
}
