//! Nodes that a task would rather have than others: the preferred terms of Kubernetes' node affinity.

use std::collections::BTreeMap;

use crate::vocabulary::node_term::NodeTerm;

const RANK_MAX: u64 = (1 << Preferences::RANK_BITS) - 1;

/// A term, and how much nodes are preferred that match it.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Preference {
    /// From 1 to 100 in Kubernetes; 0 says nothing.
    pub weight: u8,
    /// What such a node's labels match.
    pub term: NodeTerm,
}

/// What a task would rather have. A node with a greater sum of weights goes before all others that have room, whatever a
/// placement policy says of them.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct Preferences(pub Vec<Preference>);

impl Preferences {
    /// Ranks have so many bits at most: bids are kept for each. Kube-scheduler tells 100 apart.
    pub const RANK_BITS: u32 = 7;

    /// How far a node with these labels is from one that matches all terms, in the unit of weights, or in a greater one if
    /// the sum of all weights is above 127. 0 is the best.
    #[must_use]
    pub fn rank(&self, labels: &BTreeMap<String, String>) -> u16 {
        let sum = |of: &dyn Fn(&Preference) -> bool| -> u64 {
            self.0.iter().filter(|preference| of(preference)).map(|preference| u64::from(preference.weight)).sum()
        };
        let all = sum(&|_| true);
        let missed = sum(&|preference| !preference.term.matches(labels));
        let rank = if all <= RANK_MAX { missed } else { (missed * RANK_MAX).div_ceil(all) };
        u16::try_from(rank).unwrap_or(u16::MAX)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;
    use crate::vocabulary::node_term::{NodeOperator, NodeRequirement};

    fn labels(zone: &str) -> BTreeMap<String, String> {
        BTreeMap::from([("zone".to_owned(), zone.to_owned())])
    }

    fn zone(weight: u8, zone: &str) -> Preference {
        let operator = NodeOperator::In(BTreeSet::from([zone.to_owned()]));
        let requirements = BTreeSet::from([NodeRequirement { key: "zone".to_owned(), operator }]);
        Preference { weight, term: NodeTerm { requirements } }
    }

    #[test]
    fn the_greatest_sum_of_weights_is_the_best() {
        let preferences = Preferences(vec![zone(80, "a"), zone(20, "b"), zone(20, "b")]);
        assert_eq!(["a", "b", "c"].map(|name| preferences.rank(&labels(name))), [40, 80, 120]);
        // A term without requirements matches no node, so it makes no difference.
        let no_op = Preference { weight: 100, term: NodeTerm::default() };
        let preferences = Preferences(vec![zone(1, "a"), no_op]);
        assert_eq!(preferences.rank(&labels("b")) - preferences.rank(&labels("a")), 1);
    }

    #[test]
    fn many_terms_keep_their_order() {
        let mut many: Vec<Preference> = (0..1000).map(|_| zone(100, "b")).collect();
        many.push(zone(1, "a"));
        let preferences = Preferences(many);
        assert_eq!(preferences.rank(&labels("b")), 1);
        assert_eq!(u64::from(preferences.rank(&labels("c"))), RANK_MAX);
    }
}
