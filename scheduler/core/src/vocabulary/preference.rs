//! Nodes that a task prefers: the preferred terms of Kubernetes' node affinity.

use crate::vocabulary::node_term::NodeTerm;
use crate::vocabulary::texts::Texts;

/// A term, and how strongly nodes that match it are preferred.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Preference {
    /// From 1 to 100 in Kubernetes; with 0 it has no effect.
    pub weight: u8,
    /// The labels of preferred nodes match this.
    pub term: NodeTerm,
}

/// Nodes that a task prefers: those with the greatest sum of weights. This counts before a placement policy.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct Preferences(pub Vec<Preference>);

impl Preferences {
    /// The distance of a node that matches no term from one that matches all terms. Bids are kept for each distance.
    /// kube-scheduler tells 100 distances apart.
    pub const FARTHEST: u32 = 127;

    /// The distance of a node with these labels from one that matches all terms: the missed part of the sum of all
    /// weights, from 0 to [`Preferences::FARTHEST`]. Different sums of weights have different distances if the sum of
    /// all weights is at most that.
    #[must_use]
    pub fn distance(&self, labels: &Texts) -> u32 {
        let sum = |of: &dyn Fn(&Preference) -> bool| -> u64 {
            self.0.iter().filter(|preference| of(preference)).map(|preference| u64::from(preference.weight)).sum()
        };
        let all = sum(&|_| true);
        let missed = sum(&|preference| !preference.term.matches(labels));
        let distance = (missed * u64::from(Self::FARTHEST)).div_ceil(all.max(1));
        u32::try_from(distance).unwrap_or(Self::FARTHEST)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;
    use crate::vocabulary::node_term::{NodeOperator, NodeRequirement};

    fn labels(zone: &str) -> Texts {
        Texts::from([("zone".to_owned(), zone.to_owned())])
    }

    fn zone(weight: u8, zone: &str) -> Preference {
        let operator = NodeOperator::In(BTreeSet::from([zone.to_owned()]));
        let requirements = BTreeSet::from([NodeRequirement { key: "zone".to_owned(), operator }]);
        Preference { weight, term: NodeTerm { requirements } }
    }

    #[test]
    fn the_greatest_sum_of_weights_is_the_best() {
        let preferences = Preferences(vec![zone(80, "a"), zone(20, "b"), zone(20, "b")]);
        assert_eq!(["a", "b", "c"].map(|name| preferences.distance(&labels(name))), [43, 85, 127]);
        // A term without requirements matches no node.
        let no_op = Preference { weight: 100, term: NodeTerm::default() };
        let preferences = Preferences(vec![zone(1, "a"), no_op]);
        assert_eq!(["a", "b"].map(|name| preferences.distance(&labels(name))), [126, 127]);
        assert_eq!(Preferences(vec![zone(0, "a")]).distance(&labels("b")), 0, "it says nothing");
    }

    #[test]
    fn many_terms_keep_their_order() {
        let mut many: Vec<Preference> = (0..1000).map(|_| zone(100, "b")).collect();
        many.push(zone(1, "a"));
        let preferences = Preferences(many);
        assert_eq!(preferences.distance(&labels("b")), 1);
        assert_eq!(preferences.distance(&labels("c")), Preferences::FARTHEST);
    }
}
