//! The places of a pod group's members, and where the next one may go.

use std::collections::BTreeMap;

use crate::decisions::placement::engine::{Engine, Placement};
use crate::decisions::placement::policy::Policy;
use crate::state::class::ClassId;
use crate::state::cluster::Cluster;
use crate::state::topology::DomainId;
use crate::vocabulary::claim::{Allocation, NodeId};
use crate::vocabulary::pod_group::{GroupId, GroupPlacement, PlacementStrategy};
use crate::vocabulary::request::Request;

/// The nodes that have members of a group.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct MemberNodes {
    nodes: BTreeMap<NodeId, OnNode>,
}

/// The members of a group on one node, and their devices.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
struct OnNode {
    members: u32,
    devices: u32,
}

impl MemberNodes {
    /// The nodes of a group's placed members.
    #[must_use]
    pub fn of(cluster: &Cluster, group: GroupId) -> Self {
        let mut nodes = Self::default();
        let members = cluster.group(group).into_iter().flat_map(|group| group.members());
        members.filter_map(|member| cluster.allocation(member)).for_each(|allocation| nodes.add(allocation));
        nodes
    }

    /// Adds a member that was placed.
    pub fn add(&mut self, allocation: &Allocation) {
        let on_node = self.nodes.entry(allocation.node).or_default();
        on_node.members += 1;
        on_node.devices += u32::try_from(allocation.devices.len()).unwrap_or(u32::MAX);
    }

    /// Number of members on a node.
    #[must_use]
    pub fn members_on(&self, node: NodeId) -> u32 {
        self.nodes.get(&node).map_or(0, |on_node| on_node.members)
    }

    /// Number of devices of which members on a node hold parts. A device that several members share counts for each of
    /// them.
    #[must_use]
    pub fn devices_on(&self, node: NodeId) -> u32 {
        self.nodes.get(&node).map_or(0, |on_node| on_node.devices)
    }
}

/// The nodes where members of a group may go.
#[derive(Clone, Copy, Debug)]
pub struct GroupScope<'a> {
    /// The group's rules.
    pub placement: &'a GroupPlacement,
    /// The places of the members that are placed already.
    pub members: &'a MemberNodes,
    /// The domain to stay within; `None`: the whole cluster.
    pub within: Option<DomainId>,
}

impl GroupScope<'_> {
    /// How many more members with this request the group's rules allow on a node, whatever is free there. Of
    /// alternatives, the one with the most devices counts.
    #[must_use]
    pub fn most_on(&self, node: NodeId, request: &Request) -> u32 {
        let elsewhere = !self.members.nodes.is_empty() && !self.members.nodes.contains_key(&node);
        if elsewhere && self.placement.strategy == PlacementStrategy::SingleNode {
            return 0;
        }
        let Some(most) = self.placement.max_devices_per_node else { return u32::MAX };
        let left = u32::from(most).saturating_sub(self.members.devices_on(node));
        left.checked_div(u32::from(request.device_count_max())).unwrap_or(u32::MAX)
    }

    /// The nodes of the domain, or all nodes.
    pub(crate) fn nodes<'a>(&self, cluster: &'a Cluster) -> Box<dyn Iterator<Item = NodeId> + 'a> {
        match self.within {
            Some(domain) => {
                let domain = cluster.topology().domain(domain);
                Box::new(domain.into_iter().flat_map(|domain| domain.nodes()))
            }
            None => Box::new(cluster.nodes().map(|(id, _)| id)),
        }
    }

    fn is_open(&self) -> bool {
        self.within.is_none()
            && self.placement.strategy == PlacementStrategy::BestFit
            && self.placement.max_devices_per_node.is_none()
    }
}

impl<P: Policy> Engine<P> {
    /// The best place for one more member of a group; `None` if the group's rules and the free room leave none.
    pub fn place_member(&mut self, cluster: &Cluster, class: ClassId, scope: &GroupScope<'_>) -> Option<Placement> {
        if scope.is_open() {
            return self.place(cluster, class);
        }
        self.place_member_on(cluster, class, scope, |_| true)
    }

    /// Like [`Engine::place_member`], but only on nodes that are `open` to the member.
    pub(crate) fn place_member_on(
        &mut self,
        cluster: &Cluster,
        class: ClassId,
        scope: &GroupScope<'_>,
        open: impl Fn(NodeId) -> bool,
    ) -> Option<Placement> {
        let request = cluster.class(class)?.request();
        let nodes = scope.nodes(cluster).filter(|node| scope.most_on(*node, request) > 0 && open(*node));
        let spread = scope.placement.strategy == PlacementStrategy::SpreadEvenly;
        self.place_ranked(cluster, class, nodes, |node| if spread { scope.members.members_on(node) } else { 0 })
    }
}
