//! A quick look at where moves could make room at all. It is much cheaper than the search for the claims to move.

use std::collections::BTreeMap;

use crate::decisions::placement::{Engine, Policy};
use crate::state::class::ClassId;
use crate::state::cluster::Cluster;
use crate::vocabulary::claim::{ClaimId, NodeId};
use crate::vocabulary::counted;
use crate::vocabulary::request::Request;

/// The most classes for which the engine is asked whether there is room anywhere. For others, there is assumed to be
/// room.
const CLASSES_MAX: usize = 64;

/// Knows for which classes of movable claims there is room elsewhere.
///
/// A moved claim goes to another node, or to other devices of the same node. A claim without room elsewhere can only do
/// the latter. So moves can make room for a task on a node only if this holds for each resource: free there + held
/// there by claims with room elsewhere ≥ what the task asks for.
#[derive(Debug, Default)]
pub(super) struct Leeway {
    has_room: BTreeMap<ClassId, bool>,
    /// Whether there is room for any class at all. In a full cluster there is none, and no claim needs to be looked at.
    any_has_room: Option<bool>,
}

impl Leeway {
    /// Whether moves of `movable`, the movable victims on a node, could make room for a task there.
    pub(super) fn is_enough(
        &mut self,
        cluster: &Cluster,
        engine: &mut Engine<Box<dyn Policy>>,
        id: NodeId,
        mut movable: impl Iterator<Item = ClaimId>,
        request: &Request,
    ) -> bool {
        let Some(node) = cluster.node(id) else { return false };
        let mut core: u64 = node.devices().iter().map(|device| u64::from(device.core_free().get())).sum();
        let (mut cpu, mut memory) = (node.cpu_free().get(), node.memory_free().get());
        let names = request.counted.keys();
        let mut counted: Vec<(&String, u64)> = names.map(|name| (name, node.counted_free(name))).collect();
        loop {
            let has_counted = counted.iter().all(|(name, amount)| *amount >= counted::amount(&request.counted, name));
            let has_rest = core >= request.least_core() && cpu >= request.cpu.get() && memory >= request.memory.get();
            if has_counted && has_rest {
                return true;
            }
            if !self.any_has_room(cluster, engine) {
                return false;
            }
            let Some(claim) = movable.next() else { return false };
            let at = cluster.allocation(claim).filter(|at| at.node == id);
            let Some((class, at)) = cluster.class_of(claim).zip(at) else { continue };
            if !self.has_room(cluster, engine, class) {
                continue;
            }
            let Some(held) = cluster.class(class).map(|class| class.request()) else { continue };
            core += at.devices.iter().map(|part| u64::from(part.core.get())).sum::<u64>();
            cpu = cpu.saturating_add(held.cpu.get());
            memory = memory.saturating_add(held.memory.get());
            for (name, amount) in &mut counted {
                *amount = amount.saturating_add(counted::amount(&held.counted, name));
            }
        }
    }

    fn any_has_room(&mut self, cluster: &Cluster, engine: &mut Engine<Box<dyn Policy>>) -> bool {
        if let Some(known) = self.any_has_room {
            return known;
        }
        let classes: Vec<ClassId> = cluster.classes().map(|(id, _)| id).take(CLASSES_MAX + 1).collect();
        let any = classes.len() > CLASSES_MAX || classes.iter().any(|class| self.has_room(cluster, engine, *class));
        self.any_has_room = Some(any);
        any
    }

    fn has_room(&mut self, cluster: &Cluster, engine: &mut Engine<Box<dyn Policy>>, class: ClassId) -> bool {
        if let Some(known) = self.has_room.get(&class) {
            return *known;
        }
        // At its present place, a claim with rules about peers may itself be what closes other places to it.
        let has_peers = cluster.class(class).is_some_and(|class| class.request().peers.is_some());
        if has_peers || self.has_room.len() >= CLASSES_MAX {
            return true;
        }
        let has_room = engine.has_room(cluster, class);
        self.has_room.insert(class, has_room);
        has_room
    }
}
