//! Members that are put into nodes as if no other claim were there.

use std::collections::BTreeMap;

use crate::decisions::placement::{admits, room, tightest};
use crate::state::class::Class;
use crate::state::cluster::Cluster;
use crate::state::node::Node;
use crate::vocabulary::claim::{ClaimId, NodeId};

use super::kind::{DevicesPerNode, Kind, Members, Part};

/// Nodes of a cluster, without any claims but some members of a unit.
#[derive(Clone)]
pub(super) struct Packing<'a> {
    cluster: &'a Cluster,
    /// A claim that stands for all members.
    member: ClaimId,
    /// Whether all members ask for the same. Then it is enough to count them.
    is_one_sort: bool,
    devices_per_node: Option<DevicesPerNode>,
    nodes: BTreeMap<NodeId, Node>,
}

impl<'a> Packing<'a> {
    pub(super) fn new(cluster: &'a Cluster, kind: &Kind, member: ClaimId) -> Self {
        let (is_one_sort, devices_per_node) = (kind.is_one_sort(), kind.devices_per_node.clone());
        Self { cluster, member, is_one_sort, devices_per_node, nodes: BTreeMap::new() }
    }

    /// Whether members were put onto a node.
    pub(super) fn uses(&self, id: NodeId) -> bool {
        self.nodes.contains_key(&id)
    }

    /// Puts as many members as possible onto a node, and takes them out of `wanted`. Returns their numbers by class.
    pub(super) fn fill(&mut self, id: NodeId, wanted: &mut Members) -> Members {
        let Some(node) = self.cluster.node(id) else { return Vec::new() };
        let mut books = self.nodes.remove(&id).unwrap_or_else(|| node.emptied());
        let mut filled = Vec::new();
        for (class, members) in wanted.iter_mut() {
            let request = self.cluster.class(*class).map(Class::request);
            let Some(request) = request.filter(|request| admits(node.spec(), request).is_ok()) else { continue };
            let bound = self.devices_per_node.as_ref();
            let most = bound.map_or(*members, |bound| bound.members_left(id, request).min(*members));
            let mut put = 0;
            if self.is_one_sort {
                put = room(&books, request).min(most);
            } else {
                while put < most
                    && let Some(allocation) = tightest(id, &books, request)
                    && books.take(self.member, request, &allocation).is_ok()
                {
                    put += 1;
                }
            }
            *members -= put;
            self.devices_per_node.iter_mut().for_each(|bound| bound.take(id, request, put));
            filled.extend((put > 0).then_some((*class, put)));
        }
        wanted.retain(|(_, members)| *members > 0);
        if !filled.is_empty() || books.claims().next().is_some() {
            self.nodes.insert(id, books);
        }
        filled
    }

    /// Puts all members of a part into one of the areas that are open to it among these nodes. Returns whether they
    /// find room.
    pub(super) fn put(&mut self, part: &Part, among: &[NodeId]) -> bool {
        part.areas(self.cluster, among).into_iter().any(|area| {
            let (mut trial, mut wanted) = (self.clone(), part.wanted.clone());
            let is_enough = area.into_iter().any(|node| {
                trial.fill(node, &mut wanted);
                wanted.is_empty()
            });
            if is_enough {
                *self = trial;
            }
            is_enough
        })
    }
}

/// Whether nodes have room for all members of a unit after all other claims there have gone.
pub(super) fn is_room_for(cluster: &Cluster, kind: &Kind, member: ClaimId, nodes: &[NodeId]) -> bool {
    let mut packing = Packing::new(cluster, kind, member);
    kind.parts.iter().all(|part| packing.put(part, nodes))
}
