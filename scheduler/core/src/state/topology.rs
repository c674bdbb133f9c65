//! Where nodes are: domains within domains, such as zones, blocks and racks, defined by the nodes' labels.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Bound;
use std::sync::Arc;

use crate::vocabulary::claim::NodeId;
use crate::vocabulary::slab::{Key, Slab};
use crate::vocabulary::texts::Texts;

/// Names a domain as long as nodes are in it.
pub type DomainId = Key<Domain>;

/// The levels of a cluster's topology, and the domains that its nodes form.
#[derive(Clone, Debug, Default)]
pub struct Topology {
    /// Labels, the outermost level first.
    levels: Vec<String>,
    domains: Slab<Domain>,
    /// For each level, its domains by their values.
    by_values: Vec<BTreeMap<Vec<String>, DomainId>>,
    /// The innermost domain of each node that is in any.
    innermost: BTreeMap<NodeId, DomainId>,
}

/// Nodes that have the same values of the labels of a level and of all levels outside it.
#[derive(Clone, Debug)]
pub struct Domain {
    values: Vec<String>,
    nodes: BTreeSet<NodeId>,
}

impl Domain {
    /// The number of its level; 0 is the outermost.
    #[must_use]
    pub fn level(&self) -> usize {
        self.values.len().saturating_sub(1)
    }

    /// The values of the levels' labels, from the outermost level to its own.
    #[must_use]
    pub fn values(&self) -> &[String] {
        &self.values
    }

    /// Its nodes, in the order in which they were added.
    pub fn nodes(&self) -> impl Iterator<Item = NodeId> + '_ {
        self.nodes.iter().copied()
    }
}

impl Topology {
    /// The labels that make the levels, the outermost first.
    #[must_use]
    pub fn levels(&self) -> &[String] {
        &self.levels
    }

    /// The number of the level that a label makes.
    #[must_use]
    pub fn level(&self, label: &str) -> Option<usize> {
        self.levels.iter().position(|level| level == label)
    }

    /// A domain; `None` once no node is in it.
    #[must_use]
    pub fn domain(&self, id: DomainId) -> Option<&Domain> {
        self.domains.get(id)
    }

    /// The domain of a level that a node is in. A node that lacks the label of a level is in no domain of this level,
    /// nor of any level further in.
    #[must_use]
    pub fn domain_of(&self, node: NodeId, level: usize) -> Option<DomainId> {
        let innermost = self.domains.get(*self.innermost.get(&node)?)?;
        self.by_values.get(level)?.get(innermost.values.get(..=level)?).copied()
    }

    /// The domains of a level, in the order of their values. If a domain is given, only those within it.
    pub fn domains(&self, level: usize, within: Option<DomainId>) -> impl Iterator<Item = DomainId> + '_ {
        // A domain without nodes has no domains within it.
        let prefix = within.map_or(Some(&[][..]), |id| Some(self.domains.get(id)?.values()));
        let of_level = prefix.zip(self.by_values.get(level));
        of_level.into_iter().flat_map(|(prefix, domains)| {
            let from = domains.range::<[String], _>((Bound::Included(prefix), Bound::Unbounded));
            from.take_while(|(values, _)| values.starts_with(prefix)).map(|(_, id)| *id)
        })
    }

    /// Replaces the levels, and makes their domains. The labels of the levels must differ. Each node comes with its
    /// labels.
    pub(crate) fn set_levels<'a>(&mut self, levels: Vec<String>, nodes: impl Iterator<Item = (NodeId, &'a Texts)>) {
        let known: Vec<NodeId> = self.innermost.keys().copied().collect();
        known.into_iter().for_each(|id| self.move_node(id, None));
        self.by_values = vec![BTreeMap::new(); levels.len()];
        self.levels = levels;
        nodes.for_each(|(id, labels)| self.move_node(id, Some(labels)));
    }

    /// Takes in a node's labels; `None`: the node was removed. A topology that others share is copied only if the node
    /// goes to other domains.
    pub(crate) fn learn(topology: &mut Arc<Self>, id: NodeId, labels: Option<&Texts>) {
        if !topology.values_of(labels).eq(topology.innermost_values(id).iter().map(String::as_str)) {
            Arc::make_mut(topology).move_node(id, labels);
        }
    }

    /// The values that labels have for the levels, from the outermost to the first level whose label is missing.
    fn values_of<'a>(&'a self, labels: Option<&'a Texts>) -> impl Iterator<Item = &'a str> {
        self.levels.iter().map_while(move |level| labels?.get(level))
    }

    /// The values of a node's innermost domain; none if it is in no domain.
    fn innermost_values(&self, id: NodeId) -> &[String] {
        let domain = self.innermost.get(&id).and_then(|domain| self.domains.get(*domain));
        domain.map_or(&[], Domain::values)
    }

    /// Moves a node to the domains that its labels name; `None`: to none.
    fn move_node(&mut self, id: NodeId, labels: Option<&Texts>) {
        let values: Vec<String> = self.values_of(labels).map(str::to_owned).collect();
        let old = self.innermost_values(id).to_vec();
        self.innermost.remove(&id);
        for count in 1..=old.len() {
            self.leave(id, &old[..count]);
        }
        for count in 1..=values.len() {
            let innermost = self.join(id, &values[..count]);
            self.innermost.insert(id, innermost);
        }
    }

    fn join(&mut self, node: NodeId, values: &[String]) -> DomainId {
        let by_values = &mut self.by_values[values.len() - 1];
        let known = by_values.get(values).copied();
        let id = known.unwrap_or_else(|| {
            let id = self.domains.insert(Domain { values: values.to_vec(), nodes: BTreeSet::new() });
            by_values.insert(values.to_vec(), id);
            id
        });
        if let Some(domain) = self.domains.get_mut(id) {
            domain.nodes.insert(node);
        }
        id
    }

    fn leave(&mut self, node: NodeId, values: &[String]) {
        let by_values = &mut self.by_values[values.len() - 1];
        let Some(id) = by_values.get(values).copied() else { return };
        let Some(domain) = self.domains.get_mut(id) else { return };
        domain.nodes.remove(&node);
        if domain.nodes.is_empty() {
            self.domains.remove(id);
            by_values.remove(values);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn labels_that_move_no_node_leave_a_shared_topology_alone() {
        let labels = |zone: &str, rack: &str| {
            Texts::from([("zone", zone), ("rack", rack)].map(|(key, text)| (key.to_owned(), text.to_owned())))
        };
        let mut topology: Arc<Topology> = Arc::default();
        Arc::make_mut(&mut topology).set_levels(vec!["zone".to_owned()], std::iter::empty());
        Topology::learn(&mut topology, NodeId(0), Some(&labels("a", "1")));
        let copy = Arc::clone(&topology);
        Topology::learn(&mut topology, NodeId(0), Some(&labels("a", "2")));
        Topology::learn(&mut topology, NodeId(1), Some(&Texts::default()));
        Topology::learn(&mut topology, NodeId(2), None);
        assert!(Arc::ptr_eq(&topology, &copy));
        let zone = |topology: &Topology| {
            let domain = topology.domain_of(NodeId(0), 0).and_then(|id| topology.domain(id));
            domain.map(|domain| domain.values().to_vec())
        };
        Topology::learn(&mut topology, NodeId(0), Some(&labels("b", "2")));
        assert_eq!([&*copy, &*topology].map(zone), ["a", "b"].map(|zone| Some(vec![zone.to_owned()])));
        Topology::learn(&mut topology, NodeId(0), None);
        assert_eq!(zone(&topology), None);
    }
}
