//! Where the members of peer groups are, and where the tasks are that avoid them or have wishes about them.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::vocabulary::claim::NodeId;
use crate::vocabulary::peers::{AntiAffinity, PeerGroup, PeerPreference, Peers};

/// The number of tasks on each node; nodes with none are left out.
type OnNodes = BTreeMap<NodeId, u32>;

/// The tasks with peers on each node. Tasks without peers are in no book.
#[derive(Clone, Debug, Default)]
pub(crate) struct PeerBooks {
    /// For each group, its members.
    members: BTreeMap<PeerGroup, Arc<OnNodes>>,
    /// For each rule, the tasks that have it.
    avoiding: BTreeMap<AntiAffinity, Arc<OnNodes>>,
    /// For each wish, the tasks that have it.
    wishing: BTreeMap<PeerPreference, Arc<OnNodes>>,
}

impl PeerBooks {
    /// Notes that a task is on a node, or that it is gone.
    pub(crate) fn note(&mut self, node: NodeId, peers: &Peers, is_there: bool) {
        peers.member_of.iter().for_each(|group| count(&mut self.members, group, node, is_there));
        peers.anti_affinity.iter().for_each(|rule| count(&mut self.avoiding, rule, node, is_there));
        peers.preferences.iter().for_each(|wish| count(&mut self.wishing, wish, node, is_there));
    }

    /// The nodes with members of a group, and the number of members on each.
    pub(crate) fn members(&self, group: &PeerGroup) -> impl Iterator<Item = (NodeId, u32)> {
        let nodes = self.members.get(group).into_iter().flat_map(|nodes| nodes.iter());
        nodes.map(|(node, members)| (*node, *members))
    }

    /// The anti-affinity rules of placed tasks about a group, and the number of tasks with each rule on each node.
    pub(crate) fn avoiding(&self, group: &PeerGroup) -> impl Iterator<Item = (&AntiAffinity, &OnNodes)> {
        let first = AntiAffinity { group: group.clone(), topology_key: String::new() };
        let rules = self.avoiding.range(first..).take_while(move |(rule, _)| rule.group == *group);
        rules.map(|(rule, nodes)| (rule, &**nodes))
    }

    /// The wishes of placed tasks about a group, and the number of tasks with each wish on each node.
    pub(crate) fn wishing(&self, group: &PeerGroup) -> impl Iterator<Item = (&PeerPreference, &OnNodes)> {
        let first = PeerPreference { group: group.clone(), topology_key: String::new(), weight: i32::MIN };
        let wishes = self.wishing.range(first..).take_while(move |(wish, _)| wish.group == *group);
        wishes.map(|(wish, nodes)| (wish, &**nodes))
    }
}

fn count<K: Ord + Clone>(books: &mut BTreeMap<K, Arc<OnNodes>>, key: &K, node: NodeId, is_there: bool) {
    if is_there {
        let nodes = books.entry(key.clone()).or_default();
        *Arc::make_mut(nodes).entry(node).or_default() += 1;
        return;
    }
    let Some(nodes) = books.get_mut(key) else { return };
    let on_nodes = Arc::make_mut(nodes);
    if let Some(there) = on_nodes.get_mut(&node) {
        *there -= 1;
        if *there == 0 {
            on_nodes.remove(&node);
        }
    }
    if on_nodes.is_empty() {
        books.remove(key);
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn what_has_left_is_forgotten() {
        let rule = |key: &str| AntiAffinity { group: "g".into(), topology_key: key.into() };
        let wish = |group: &str, weight| PeerPreference { group: group.into(), topology_key: "zone".into(), weight };
        let other = AntiAffinity { group: "h".into(), topology_key: "zone".into() };
        let peers = Peers {
            member_of: BTreeSet::from(["g".into()]),
            anti_affinity: BTreeSet::from([rule("host"), rule("zone"), other]),
            preferences: BTreeSet::from([wish("g", -3), wish("g", 3), wish("h", 1)]),
            ..Peers::default()
        };
        let mut books = PeerBooks::default();
        let group = PeerGroup::from("g");
        let members = |books: &PeerBooks| books.members(&"g".into()).collect::<Vec<_>>();
        books.note(NodeId(1), &peers, true);
        let copy = books.clone();
        books.note(NodeId(1), &peers, true);
        books.note(NodeId(2), &peers, true);
        assert_eq!(members(&books), [(NodeId(1), 2), (NodeId(2), 1)]);
        assert_eq!(members(&copy), [(NodeId(1), 1)]);
        let keys: Vec<&str> = books.avoiding(&group).map(|(rule, _)| rule.topology_key.as_str()).collect();
        assert_eq!(keys, ["host", "zone"]);
        let weights: Vec<i32> = books.wishing(&group).map(|(wish, _)| wish.weight).collect();
        assert_eq!(weights, [-3, 3]);
        for node in [1, 2, 1] {
            books.note(NodeId(node), &peers, false);
        }
        assert!(members(&books).is_empty());
        assert!(books.members.is_empty() && books.avoiding.is_empty() && books.wishing.is_empty());
    }
}
