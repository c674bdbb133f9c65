//! Labels of volumes that name zones and regions. Some drivers say by them alone where a volume can be mounted.
//!
//! Source: the plugin `VolumeZone` of kube-scheduler.

use std::collections::{BTreeMap, BTreeSet};

use aliquot_scheduler_core::{NodeOperator, NodeRequirement, NodeTerm};

const ZONE: &str = "topology.kubernetes.io/zone";
const REGION: &str = "topology.kubernetes.io/region";
/// Labels with which kube-scheduler compares those of nodes. For an old one, a node can have the present one.
const LABELS: [(&str, Option<&str>); 4] = [
    (ZONE, None),
    (REGION, None),
    ("failure-domain.beta.kubernetes.io/zone", Some(ZONE)),
    ("failure-domain.beta.kubernetes.io/region", Some(REGION)),
];
/// What is between the zones of a volume that several zones reach.
const BETWEEN: &str = "__";

/// The nodes that a volume's labels allow; empty: all. A node that names neither zone nor region is allowed.
pub(super) fn terms(labels: &BTreeMap<String, String>) -> BTreeSet<NodeTerm> {
    let named = LABELS.iter().filter_map(|(key, present)| Some((*key, *present, values(labels.get(*key)?)?)));
    let mut all: Vec<BTreeSet<NodeRequirement>> = vec![BTreeSet::new()];
    for (key, present, values) in named {
        let one_of = |key: &str| of(key, NodeOperator::In(values.clone()));
        let ways = [vec![one_of(key)], present.map_or(Vec::new(), |present| vec![is_not_there(key), one_of(present)])];
        let ways = ways.iter().filter(|way| !way.is_empty());
        all = ways.flat_map(|way| all.iter().map(move |before| before.iter().chain(way).cloned().collect())).collect();
    }
    if all.iter().all(BTreeSet::is_empty) {
        return BTreeSet::new();
    }
    all.push(LABELS.iter().map(|(key, _)| is_not_there(key)).collect());
    all.into_iter().map(|requirements| NodeTerm { requirements }).collect()
}

/// The values that a label lists; `None`: one of them is empty, and the label says nothing.
fn values(listed: &str) -> Option<BTreeSet<String>> {
    let values: BTreeSet<String> = listed.split(BETWEEN).map(|value| value.trim().to_owned()).collect();
    values.iter().all(|value| !value.is_empty()).then_some(values)
}

fn is_not_there(key: &str) -> NodeRequirement {
    of(key, NodeOperator::DoesNotExist)
}

fn of(key: &str, operator: NodeOperator) -> NodeRequirement {
    NodeRequirement { key: key.to_owned(), operator }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::placement;

    const OLD_ZONE: &str = "failure-domain.beta.kubernetes.io/zone";

    type Pairs<'a> = &'a [(&'a str, &'a str)];

    fn labels(labels: Pairs<'_>) -> BTreeMap<String, String> {
        labels.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect()
    }

    #[test]
    fn zones_are_compared_as_by_kube_scheduler() {
        let rows: [(Pairs<'_>, Pairs<'_>, bool); 14] = [
            (&[], &[(ZONE, "a")], true),
            (&[("zone", "a")], &[(ZONE, "b")], true),
            (&[(ZONE, "a")], &[(ZONE, "a")], true),
            (&[(ZONE, "a")], &[(ZONE, "b")], false),
            (&[(ZONE, "a__b")], &[(ZONE, "b")], true),
            (&[(ZONE, "a__b")], &[(ZONE, "c")], false),
            (&[(ZONE, "a__")], &[(ZONE, "c")], true),
            // In a cluster of one zone, nodes need no labels. But a node with a region alone has no zone.
            (&[(ZONE, "a")], &[("rack", "1")], true),
            (&[(ZONE, "a")], &[(REGION, "r")], false),
            (&[(ZONE, "a"), (REGION, "r")], &[(ZONE, "a"), (REGION, "s")], false),
            (&[(OLD_ZONE, "a")], &[(OLD_ZONE, "a")], true),
            (&[(OLD_ZONE, "a")], &[(ZONE, "a")], true),
            (&[(OLD_ZONE, "a")], &[(OLD_ZONE, "b"), (ZONE, "a")], false),
            (&[(ZONE, "a")], &[(OLD_ZONE, "a")], false),
        ];
        for (volume, node, expected) in rows {
            let terms = terms(&labels(volume));
            assert_eq!(placement::admit(&terms, &labels(node)), expected, "{volume:?} on {node:?}");
        }
    }
}
