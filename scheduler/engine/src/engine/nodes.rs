//! Takes in what nodes report about themselves.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use aliquot_scheduler_core::{DeviceSpec, Event, EventError, Health, NodeId, NodeSpec, Outcome};

use super::Engine;
use crate::command::Order;
use crate::entries::{Entry, EntryId, NodeState};
use crate::names::{Generation, NodeName};
use crate::observation::NodeReport;
use crate::store::Phase;

impl Engine {
    /// Takes in a node's report, unless a newer one is known. The running instances count even if the books reject what
    /// the node says about itself; such a node gets nothing new.
    pub(super) fn node_reported(&mut self, report: NodeReport) -> Result<(), EventError> {
        let name = NodeName::from(report.spec.name.as_str());
        let (id, told) = match self.cluster.node_named(name.as_str()) {
            Some(id) => {
                let Some(state) = self.nodes.get(id) else { return Ok(()) };
                if report.session < state.session {
                    return Ok(());
                }
                if report.session == state.session {
                    if self.has_lapsed(id) {
                        self.send(id, Order::EndSession { term: self.generation.term });
                        return Ok(());
                    }
                    if !self.heard(id, report.session, report.sequence) {
                        return Ok(());
                    }
                }
                (id, self.node_is(id, &report.spec))
            }
            None => (self.node_came(&name, &report)?, Ok(())),
        };
        if let Some(state) = self.nodes.get_mut(id).filter(|state| state.session != report.session) {
            state.session = report.session;
            self.unsaved.nodes.insert(id);
        }
        let now_ms = self.now_ms;
        if let Some(state) = self.nodes.get_mut(id) {
            (state.sequence, state.heard_ms) = (report.sequence, now_ms);
            (state.has_reported, state.is_refused) = (true, told.is_err());
        }
        let unheard = self.unheard_stops(id);
        self.repeat_unheard_starts(id, &report);
        self.reconcile(id, &report);
        self.renew(id, report.sequence);
        self.set_up(id, told.is_ok());
        for (entry, command) in unheard {
            let last = self.entries.get(entry).and_then(Entry::instance).map(|instance| instance.command);
            if last == Some(command) {
                self.stop(entry);
            }
        }
        told
    }

    /// Repeats the starts that a node has not handled when its messages come again. It may not have received them: they
    /// were lost with a connection, or the engine ended before it sent them. They go out before all newer commands and
    /// in their order, because the node refuses a start that a later one has overtaken. If the node has received one
    /// already, the repetition changes nothing.
    fn repeat_unheard_starts(&mut self, id: NodeId, report: &NodeReport) {
        let Some(state) = self.nodes.get(id).filter(|state| !state.is_up) else { return };
        let starting = |entry: EntryId| {
            let instance = self.entries.get(entry)?.instance().filter(|instance| instance.phase == Phase::Starting)?;
            let is_unheard = instance.session == report.session && instance.generation > report.handled;
            is_unheard.then_some((instance.generation, entry))
        };
        let unheard: BTreeMap<Generation, EntryId> =
            state.instances.iter().filter_map(|entry| starting(*entry)).collect();
        for entry in unheard.into_values() {
            self.repeat_start(entry);
        }
    }

    /// The stops that were sent to a node while it could not be reached, with the generations of these commands. The
    /// node may not have received them.
    fn unheard_stops(&self, id: NodeId) -> Vec<(EntryId, Generation)> {
        let Some(state) = self.nodes.get(id).filter(|state| !state.is_up) else { return Vec::new() };
        let stopping = |entry: EntryId| {
            let instance = self.entries.get(entry)?.instance().filter(|instance| instance.phase == Phase::Stopping)?;
            Some((entry, instance.command))
        };
        state.instances.iter().filter_map(|entry| stopping(*entry)).collect()
    }

    fn node_came(&mut self, name: &NodeName, report: &NodeReport) -> Result<NodeId, EventError> {
        check_device_names(&report.spec)?;
        let spec = NodeSpec { cordoned: true, ..report.spec.clone() };
        let Outcome::Node(id) = self.apply(Event::NodeAdded(spec))? else {
            return Err(EventError::NodeExists(name.to_string()));
        };
        let state = NodeState {
            name: name.clone(),
            is_cordoned: report.spec.cordoned,
            session: report.session,
            sequence: report.sequence,
            heard_ms: self.now_ms,
            lease_until_ms: None,
            lease_ms: 0,
            is_up: false,
            has_reported: true,
            is_refused: false,
            instances: Arc::default(),
        };
        self.nodes.set(id, Some(state));
        self.unsaved.nodes.insert(id);
        self.unpark();
        Ok(id)
    }

    /// Updates a known node with what it reports of itself.
    fn node_is(&mut self, id: NodeId, reported: &NodeSpec) -> Result<(), EventError> {
        let Some((state, node)) = self.nodes.get(id).zip(self.cluster.node(id)) else { return Ok(()) };
        if state.is_cordoned == reported.cordoned && node.spec().is_as_reported(reported) {
            return Ok(());
        }
        check_device_names(reported)?;
        let known = state.reported(node);
        let spec = merged(&known, reported);
        if known == spec {
            return Ok(());
        }
        let is_cordoned = spec.cordoned;
        let relabels = relabels(&known, &spec);
        let shown = NodeSpec { cordoned: is_cordoned || !state.is_up, ..spec };
        let event = match relabels {
            true => Event::NodeRelabelled(id, shown),
            false => Event::NodeChanged(id, shown),
        };
        self.apply(event)?;
        if let Some(state) = self.nodes.get_mut(id) {
            state.is_cordoned = is_cordoned;
        }
        self.unsaved.nodes.insert(id);
        self.unpark();
        Ok(())
    }
}

/// Checks that no two devices of a node have the same name.
fn check_device_names(spec: &NodeSpec) -> Result<(), EventError> {
    let mut names = BTreeSet::new();
    match spec.devices.iter().find(|device| device.uuid.is_empty() || !names.insert(&device.uuid)) {
        Some(device) => Err(EventError::DeviceNames { node: spec.name.clone(), uuid: device.uuid.clone() }),
        None => Ok(()),
    }
}

/// A node's new specification, with its devices at their known positions. A device that is not reported any more counts
/// as broken; new devices come after the known ones.
fn merged(known: &NodeSpec, reported: &NodeSpec) -> NodeSpec {
    let of = |uuid: &str| reported.devices.iter().find(|device| device.uuid == uuid);
    let kept = known.devices.iter().map(|device| {
        of(&device.uuid).cloned().unwrap_or_else(|| DeviceSpec { health: Health::Unhealthy, ..device.clone() })
    });
    let is_new = |device: &&DeviceSpec| known.devices.iter().all(|known| known.uuid != device.uuid);
    let devices = kept.chain(reported.devices.iter().filter(is_new).cloned()).collect();
    NodeSpec { devices, ..reported.clone() }
}

/// Whether two specifications of a node differ only in labels, taints, attributes and the cordon, or not at all.
fn relabels(known: &NodeSpec, new: &NodeSpec) -> bool {
    let bare = |spec: &NodeSpec| {
        let devices = spec.devices.iter().map(|device| DeviceSpec { attributes: Default::default(), ..device.clone() });
        let devices = devices.collect();
        NodeSpec { labels: Default::default(), taints: Vec::new(), cordoned: false, devices, ..spec.clone() }
    };
    bare(known) == bare(new)
}
