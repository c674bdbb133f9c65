//! Domains, and the order in which a gang tries them.

use std::collections::BTreeMap;

use aliquot_scheduler_core::placement::{Binpack, Engine, GroupScope, MemberNodes, Roomy};
use aliquot_scheduler_core::{
    ClassId, Cluster, DomainId, Event, EventError, GroupPlacement, NodeId, NodeSpec, Request, Texts,
};
use aliquot_scheduler_kit::Build;
use proptest::collection::vec;
use proptest::prelude::*;

use crate::cases::{add, node, place, request};

const LEVELS: [&str; 3] = ["zone", "block", "rack"];

fn at(spec: NodeSpec, labels: &[(&str, &str)]) -> NodeSpec {
    let labels = labels.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned()));
    NodeSpec { labels: labels.collect(), ..spec }
}

fn set_levels(cluster: &mut Cluster, levels: &[&str]) -> Result<(), EventError> {
    let levels = levels.iter().map(|level| (*level).to_owned()).collect();
    cluster.apply(Event::TopologyChanged(levels)).map(|_| ())
}

fn class(cluster: &mut Cluster, request: &Request) -> ClassId {
    let claim = add(cluster, request);
    cluster.class_of(claim).expect("the claim was added")
}

/// The values and nodes of all domains of a level.
fn domains(cluster: &Cluster, level: usize, within: Option<DomainId>) -> Vec<(Vec<String>, Vec<NodeId>)> {
    let topology = cluster.topology();
    let domains = topology.domains(level, within).filter_map(|id| topology.domain(id));
    domains.map(|domain| (domain.values().to_vec(), domain.nodes().collect())).collect()
}

/// Racks r1 (two nodes with 4 devices), r2 (one with 8), r3 (one with 2), r1 and r2 in zone a.
fn racks() -> (Cluster, [NodeId; 4]) {
    let mut cluster = Cluster::new();
    set_levels(&mut cluster, &["zone", "rack"]).expect("two different levels");
    let mut add = |name: &str, devices, zone, rack| {
        cluster.add_node(at(node(name, 96, devices, "A"), &[("zone", zone), ("rack", rack)]))
    };
    let nodes = [add("n1", 4, "a", "r1"), add("n2", 4, "a", "r1"), add("n3", 8, "a", "r2"), add("n4", 2, "b", "r3")];
    (cluster, nodes)
}

fn scope<'a>(placement: &'a GroupPlacement, members: &'a MemberNodes, within: Option<DomainId>) -> GroupScope<'a> {
    GroupScope { placement, members, within }
}

/// The racks to try for these tasks, by name, and whether each may hold all of them.
fn racks_for(cluster: &Cluster, wanted: &[(ClassId, u32)], within: Option<DomainId>) -> Vec<(String, bool)> {
    let (placement, members) = (GroupPlacement::default(), MemberNodes::default());
    let mut engine = Engine::new(Binpack);
    let domains = engine.domains_for(cluster, 1, wanted, &scope(&placement, &members, within));
    let name = |Roomy { place, holds_all }: Roomy<DomainId>| {
        let domain = cluster.topology().domain(place)?;
        Some((domain.values().last()?.clone(), holds_all))
    };
    domains.into_iter().filter_map(name).collect()
}

fn named(expected: &[(&str, bool)]) -> Vec<(String, bool)> {
    expected.iter().map(|(name, holds_all)| ((*name).to_owned(), *holds_all)).collect()
}

#[test]
fn nodes_with_the_same_labels_form_domains_within_domains() {
    let (cluster, [n1, n2, n3, n4]) = racks();
    let values = |values: &[&str]| values.iter().map(|value| (*value).to_owned()).collect::<Vec<_>>();
    assert_eq!(domains(&cluster, 0, None), [(values(&["a"]), vec![n1, n2, n3]), (values(&["b"]), vec![n4])]);
    let zone_a = cluster.topology().domain_of(n3, 0);
    assert_eq!(domains(&cluster, 1, zone_a), [(values(&["a", "r1"]), vec![n1, n2]), (values(&["a", "r2"]), vec![n3])]);
    assert_eq!(domains(&cluster, 2, None), []);
    assert_eq!(cluster.topology().level("rack"), Some(1));
}

#[test]
fn a_node_that_lacks_a_label_is_in_no_domain_further_in() {
    let mut cluster = Cluster::new();
    set_levels(&mut cluster, &["zone", "rack"]).expect("two different levels");
    let n = cluster.add_node(at(node("n", 1, 0, "A"), &[("rack", "r")]));
    assert_eq!(cluster.topology().domain_of(n, 0), None);
    assert_eq!(cluster.topology().domain_of(n, 1), None);
    assert_eq!(domains(&cluster, 1, None), []);
}

#[test]
fn a_level_that_is_named_twice_is_refused() {
    let (mut cluster, _) = racks();
    assert_eq!(set_levels(&mut cluster, &["rack", "rack"]), Err(EventError::LevelTwice("rack".into())));
    assert_eq!(cluster.topology().levels(), ["zone", "rack"], "and the topology is as before");
}

#[test]
fn the_tightest_domain_that_may_hold_a_gang_is_tried_first() {
    let (mut cluster, _) = racks();
    let pair = class(&mut cluster, &request(1, 2, 1000, 0, &[]));
    // Rooms for pairs: 4 in r1, 4 in r2, 1 in r3.
    assert_eq!(racks_for(&cluster, &[(pair, 1)], None), named(&[("r3", true), ("r1", true), ("r2", true)]));
    assert_eq!(racks_for(&cluster, &[(pair, 3)], None), named(&[("r1", true), ("r2", true), ("r3", false)]));
    let zone_a = cluster.topology().domains(0, None).next();
    assert_eq!(racks_for(&cluster, &[(pair, 1)], zone_a), named(&[("r1", true), ("r2", true)]));
}

#[test]
fn every_class_of_a_gang_must_have_room() {
    let (mut cluster, _) = racks();
    let eight = class(&mut cluster, &request(1, 8, 1000, 0, &[]));
    let head = class(&mut cluster, &request(60, 0, 0, 0, &[]));
    assert_eq!(racks_for(&cluster, &[(eight, 1)], None), named(&[("r2", true)]));
    // Two heads do not fit into one node's CPU, so they need r1. But no task for eight devices fits there.
    let both = racks_for(&cluster, &[(eight, 1), (head, 2)], None);
    assert!(both.iter().all(|(_, holds_all)| !holds_all), "{both:?}");
}

#[test]
fn domains_that_cannot_hold_all_follow_with_the_roomiest_first() {
    let (mut cluster, _) = racks();
    let one = request(1, 1, 1000, 0, &[]);
    let mut engine = Engine::new(Binpack);
    for _ in 0..3 {
        assert!(place(&mut cluster, &mut engine, &one).is_some());
    }
    let one = class(&mut cluster, &one);
    // r3 is full and one device of r1 is taken.
    assert_eq!(racks_for(&cluster, &[(one, 9)], None), named(&[("r2", false), ("r1", false)]));
}

#[test]
fn held_nodes_have_no_room() {
    let (mut cluster, [_, _, n3, _]) = racks();
    let eight = class(&mut cluster, &request(1, 8, 1000, 0, &[]));
    cluster.set_held(n3, true).expect("the node is there");
    assert_eq!(racks_for(&cluster, &[(eight, 1)], None), []);
}

#[derive(Clone, Debug)]
enum Change {
    Add(Vec<Option<u8>>),
    Relabel(usize, Vec<Option<u8>>),
    Remove(usize),
    Levels(Vec<usize>),
}

fn changes() -> impl Strategy<Value = Change> {
    let labels = || vec(proptest::option::weighted(0.9, 0u8..3), LEVELS.len());
    prop_oneof![
        4 => labels().prop_map(Change::Add),
        3 => (any::<usize>(), labels()).prop_map(|(node, labels)| Change::Relabel(node, labels)),
        2 => any::<usize>().prop_map(Change::Remove),
        1 => proptest::sample::subsequence(vec![0, 1, 2], 0..=3).prop_shuffle().prop_map(Change::Levels),
    ]
}

fn labels(values: &[Option<u8>]) -> Texts {
    let labels = LEVELS.iter().zip(values).filter_map(|(level, value)| Some(((*level).to_owned(), *value.as_ref()?)));
    labels.map(|(level, value)| (level, value.to_string())).collect()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(128))]

    #[test]
    fn domains_follow_every_change_as_if_made_anew(steps in vec(changes(), 1..60)) {
        let mut cluster = Cluster::new();
        let mut levels: Vec<&str> = Vec::new();
        for (number, step) in steps.iter().enumerate() {
            let nodes: Vec<NodeId> = cluster.nodes().map(|(id, _)| id).collect();
            let pick = |node: usize| node.checked_rem(nodes.len()).map(|index| nodes[index]);
            let event = match step {
                Change::Add(values) => {
                    let spec = node(&format!("n{number}"), 1, 0, "A");
                    Some(Event::NodeAdded(NodeSpec { labels: labels(values), ..spec }))
                }
                Change::Relabel(node, values) => pick(*node).map(|id| {
                    let spec = NodeSpec::from(cluster.node(id).expect("the node is there").spec());
                    Event::NodeRelabelled(id, NodeSpec { labels: labels(values), ..spec })
                }),
                Change::Remove(node) => pick(*node).map(Event::NodeRemoved),
                Change::Levels(chosen) => {
                    levels = chosen.iter().map(|level| LEVELS[*level]).collect();
                    Some(Event::TopologyChanged(levels.iter().map(|level| (*level).to_owned()).collect()))
                }
            };
            if let Some(event) = event {
                prop_assert!(cluster.apply(event).is_ok());
            }
            for level in 0..levels.len() {
                let mut expected: BTreeMap<Vec<String>, Vec<NodeId>> = BTreeMap::new();
                for (id, node) in cluster.nodes() {
                    let value = |level: &&str| node.spec().labels.get(level).map(str::to_owned);
                    let values: Option<Vec<String>> = levels[..=level].iter().map(value).collect();
                    values.into_iter().for_each(|values| expected.entry(values).or_default().push(id));
                }
                prop_assert_eq!(domains(&cluster, level, None), expected.into_iter().collect::<Vec<_>>());
                for (id, _) in cluster.nodes() {
                    let domain = cluster.topology().domain_of(id, level).and_then(|id| cluster.topology().domain(id));
                    prop_assert!(domain.is_none_or(|domain| domain.nodes().any(|node| node == id)));
                }
            }
        }
    }
}
