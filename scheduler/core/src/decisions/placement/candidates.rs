//! Domains and nodes that have room for several tasks, in the order in which to try them.

use std::cmp::Ordering;
use std::collections::BTreeMap;

use crate::decisions::placement::engine::Engine;
use crate::decisions::placement::members::{GroupScope, MemberNodes};
use crate::decisions::placement::policy::Policy;
use crate::state::class::ClassId;
use crate::state::cluster::Cluster;
use crate::state::topology::DomainId;
use crate::vocabulary::claim::NodeId;
use crate::vocabulary::pod_group::GroupPlacement;

/// A place for several tasks, and whether it may have room for all of them.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Roomy<T> {
    /// The id of the domain or of the node.
    pub place: T,
    /// Whether each class by itself fits there as often as wanted. If not, the tasks cannot all fit.
    pub holds_all: bool,
}

/// How much of a place several tasks would fill. It is the wanted number and the number that fits, of the class that
/// would fill the greatest part of its room.
#[derive(Clone, Copy, Debug)]
struct Fill {
    wanted: u64,
    room: u64,
}

impl Fill {
    fn holds_all(self) -> bool {
        self.wanted <= self.room
    }

    /// Compares the parts that are filled: wanted / room. No room at all counts as more than any part.
    fn cmp(self, other: Self) -> Ordering {
        let (left, right) = (u128::from(self.wanted), u128::from(other.wanted));
        (left * u128::from(other.room)).cmp(&(right * u128::from(self.room)))
    }
}

impl<P: Policy> Engine<P> {
    /// The domains of a level within the scope that have room for some of these tasks, in the order in which to try
    /// them. First come the domains that may hold all of the tasks, the tightest first, so that large domains stay
    /// whole. Then come the others, the roomiest first, so that few of them are needed.
    pub fn domains_for(
        &mut self,
        cluster: &Cluster,
        level: usize,
        wanted: &[(ClassId, u32)],
        scope: &GroupScope<'_>,
    ) -> Vec<Roomy<DomainId>> {
        let topology = cluster.topology();
        let fills = topology.domains(level, scope.within).filter_map(|id| {
            let domain = topology.domain(id)?;
            Some((id, self.fill(cluster, wanted, scope, || domain.nodes())?))
        });
        ordered(fills.collect())
    }

    /// Like [`Engine::domains_for`], for the domains that a label of nodes makes, which need not be a level of the
    /// topology. Returns the label's values.
    pub(crate) fn values_for<'a>(
        &mut self,
        cluster: &'a Cluster,
        label: &str,
        wanted: &[(ClassId, u32)],
    ) -> Vec<Roomy<&'a str>> {
        let mut domains: BTreeMap<&str, Vec<NodeId>> = BTreeMap::new();
        for (id, node) in cluster.nodes() {
            if let Some(value) = node.spec().labels.get(label) {
                domains.entry(value).or_default().push(id);
            }
        }
        let (placement, members) = (GroupPlacement::default(), MemberNodes::default());
        let scope = GroupScope { placement: &placement, members: &members, within: None };
        let fills = domains
            .into_iter()
            .filter_map(|(value, nodes)| Some((value, self.fill(cluster, wanted, &scope, || nodes.iter().copied())?)));
        ordered(fills.collect())
    }

    /// The nodes within the scope that have room for all of these tasks, the tightest first. For a group that must be
    /// on one node.
    pub fn nodes_for(
        &mut self,
        cluster: &Cluster,
        wanted: &[(ClassId, u32)],
        scope: &GroupScope<'_>,
    ) -> Vec<Roomy<NodeId>> {
        let fills = scope.nodes(cluster).filter_map(|node| Some((node, self.fill(cluster, wanted, scope, || [node])?)));
        ordered(fills.filter(|(_, fill)| fill.holds_all()).collect())
    }

    /// How much of some nodes these tasks would fill; `None` if there is no room for any of them.
    fn fill<N: IntoIterator<Item = NodeId>>(
        &mut self,
        cluster: &Cluster,
        wanted: &[(ClassId, u32)],
        scope: &GroupScope<'_>,
        nodes: impl Fn() -> N,
    ) -> Option<Fill> {
        let mut most: Option<Fill> = None;
        let mut any = wanted.is_empty();
        for (class, wanted) in wanted {
            let request = cluster.class(*class)?.request();
            let room = self.room_among(cluster, *class, nodes(), |node| scope.most_on(node, request));
            any |= room > 0;
            let fill = Fill { wanted: u64::from(*wanted), room };
            most = Some(most.filter(|most| most.cmp(fill).is_ge()).unwrap_or(fill));
        }
        any.then(|| most.unwrap_or(Fill { wanted: 0, room: 1 }))
    }
}

fn ordered<T: Copy>(mut fills: Vec<(T, Fill)>) -> Vec<Roomy<T>> {
    fills.sort_by(|(_, left), (_, right)| match (left.holds_all(), right.holds_all()) {
        (true, true) => right.cmp(*left),
        (false, false) => left.cmp(*right),
        (left, right) => right.cmp(&left),
    });
    fills.into_iter().map(|(place, fill)| Roomy { place, holds_all: fill.holds_all() }).collect()
}
