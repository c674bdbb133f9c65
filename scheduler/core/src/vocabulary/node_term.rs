//! Requirements on a node's labels beyond single values: the terms of Kubernetes' node affinity.

use std::collections::BTreeSet;
use std::fmt::{self, Display, Formatter};

use crate::vocabulary::texts::Texts;

/// Requirements that a node must all meet. A term without requirements matches no node, as in Kubernetes.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct NodeTerm {
    /// What the node must meet.
    pub requirements: BTreeSet<NodeRequirement>,
}

impl NodeTerm {
    /// Whether a node with these labels meets it.
    #[must_use]
    pub fn matches(&self, labels: &Texts) -> bool {
        let holds = |requirement: &NodeRequirement| requirement.holds(labels.get(&requirement.key));
        !self.requirements.is_empty() && self.requirements.iter().all(holds)
    }
}

/// A requirement on one label.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct NodeRequirement {
    /// The name of the label.
    pub key: String,
    /// What the label must be.
    pub operator: NodeOperator,
}

impl NodeRequirement {
    /// Whether the requirement holds for this value of the label; `None`: the node has no such label.
    #[must_use]
    pub fn holds(&self, value: Option<&str>) -> bool {
        let number = || value.and_then(|value| value.parse::<i64>().ok());
        match &self.operator {
            NodeOperator::In(values) => value.is_some_and(|value| values.contains(value)),
            NodeOperator::NotIn(values) => value.is_none_or(|value| !values.contains(value)),
            NodeOperator::Exists => value.is_some(),
            NodeOperator::DoesNotExist => value.is_none(),
            NodeOperator::GreaterThan(bound) => number().is_some_and(|number| number > *bound),
            NodeOperator::LessThan(bound) => number().is_some_and(|number| number < *bound),
        }
    }
}

/// The conditions that a label can be asked to meet.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum NodeOperator {
    /// The label is there, with one of these values.
    In(BTreeSet<String>),
    /// The label has none of these values, or is not there.
    NotIn(BTreeSet<String>),
    /// The label is there, with any value.
    Exists,
    /// The label is not there.
    DoesNotExist,
    /// The label is a decimal integer greater than this.
    GreaterThan(i64),
    /// The label is a decimal integer less than this.
    LessThan(i64),
}

impl Display for NodeTerm {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let parts: Vec<String> = self.requirements.iter().map(NodeRequirement::to_string).collect();
        match parts.is_empty() {
            true => f.write_str("an empty term"),
            false => f.write_str(&parts.join(" and ")),
        }
    }
}

/// Written like a label selector of Kubernetes.
impl Display for NodeRequirement {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let key = &self.key;
        let joined = |values: &BTreeSet<String>| values.iter().map(String::as_str).collect::<Vec<_>>().join(", ");
        match &self.operator {
            NodeOperator::In(values) => write!(f, "{key} in ({})", joined(values)),
            NodeOperator::NotIn(values) => write!(f, "{key} notin ({})", joined(values)),
            NodeOperator::Exists => f.write_str(key),
            NodeOperator::DoesNotExist => write!(f, "!{key}"),
            NodeOperator::GreaterThan(bound) => write!(f, "{key} > {bound}"),
            NodeOperator::LessThan(bound) => write!(f, "{key} < {bound}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn values<const N: usize>(values: [&str; N]) -> BTreeSet<String> {
        values.map(str::to_owned).into()
    }

    fn with(value: Option<&str>) -> Texts {
        value.map(|value| ("key".to_owned(), value.to_owned())).into_iter().collect()
    }

    fn requirement(operator: NodeOperator) -> NodeRequirement {
        NodeRequirement { key: "key".to_owned(), operator }
    }

    #[test]
    fn operators_hold_as_in_kubernetes() {
        let labels = [None, Some(""), Some("a"), Some("4"), Some("-6"), Some("5"), Some("4.5"), Some("0x9")];
        let rows = [
            (NodeOperator::In(values(["a", "5"])), "..a..5.."),
            (NodeOperator::In(values([])), "........"),
            (NodeOperator::NotIn(values(["a", "5"])), "xx.xx.xx"),
            (NodeOperator::NotIn(values([])), "xxxxxxxx"),
            (NodeOperator::Exists, ".xxxxxxx"),
            (NodeOperator::DoesNotExist, "x......."),
            (NodeOperator::GreaterThan(4), ".....x.."),
            (NodeOperator::LessThan(5), "...xx..."),
        ];
        for (operator, expected) in rows {
            let requirement = requirement(operator);
            for (value, expected) in labels.iter().zip(expected.chars()) {
                assert_eq!(requirement.holds(*value), expected != '.', "{requirement} of {value:?}");
            }
        }
    }

    #[test]
    fn a_term_matches_where_all_its_requirements_hold() {
        let term = |operators: &[NodeOperator]| NodeTerm {
            requirements: operators.iter().cloned().map(requirement).collect(),
        };
        let between = term(&[NodeOperator::GreaterThan(3), NodeOperator::LessThan(5)]);
        assert!(between.matches(&with(Some("4"))));
        assert!(!between.matches(&with(Some("3"))) && !between.matches(&with(Some("5"))));
        assert!(!NodeTerm::default().matches(&with(Some("4"))), "an empty term matches nothing");
        assert_eq!(between.to_string(), "key > 3 and key < 5");
    }
}
