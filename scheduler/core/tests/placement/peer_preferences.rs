//! `PreferNoSchedule` taints and preferred peers, and how these weigh against each other.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use aliquot_scheduler_core::placement::{BestFit, Engine};
use aliquot_scheduler_core::{
    Cluster, Event, NodeOperator, NodeRequirement, NodeSpec, NodeTerm, PeerPreference, Peers, Preference, Preferences,
    Request, Taint, TaintEffect, Toleration, TopologySpread,
};
use aliquot_scheduler_kit::{Build, part, spread};

use crate::cases::{add, node, place};

const DISLIKED: TaintEffect = TaintEffect::PreferNoSchedule;

/// Nodes in these zones, each a host of its own.
fn zones(zones: &[&str]) -> (Cluster, Engine<BestFit>) {
    let mut cluster = Cluster::new();
    zones.iter().enumerate().for_each(|(number, zone)| {
        cluster.add_node(spec(number, zone, 0));
    });
    (cluster, Engine::new(BestFit))
}

/// A node with this many `PreferNoSchedule` taints.
fn spec(number: usize, zone: &str, taints: usize) -> NodeSpec {
    let name = format!("n{number}");
    let labels = BTreeMap::from([("zone".to_owned(), zone.to_owned()), ("host".to_owned(), name.clone())]);
    let taint = |number| Taint { key: format!("t{number}"), value: String::new(), effect: DISLIKED };
    NodeSpec { labels: labels.into(), taints: (0..taints).map(taint).collect(), ..node(&name, 96, 1, "A") }
}

fn taint(cluster: &mut Cluster, number: usize, zone: &str, taints: usize) {
    let id = cluster.node_named(&format!("n{number}")).expect("it is there");
    cluster.event(Event::NodeChanged(id, spec(number, zone, taints)));
}

fn with(request: Request, peers: Peers) -> Request {
    Request { peers: Some(Arc::new(peers)), ..request }
}

fn member_of(group: &str) -> Peers {
    Peers { member_of: BTreeSet::from([group.into()]), ..Peers::default() }
}

fn wishing(wishes: &[(&str, &str, i32)]) -> Peers {
    let wish = |(group, key, weight): &(&str, &str, i32)| PeerPreference {
        group: (*group).into(),
        topology_key: (*key).to_owned(),
        weight: *weight,
    };
    Peers { preferences: wishes.iter().map(wish).collect(), ..Peers::default() }
}

fn at(cluster: &mut Cluster, engine: &mut Engine<BestFit>, request: &Request) -> Option<usize> {
    place(cluster, engine, request).map(|at| at.node.index())
}

/// The node where a task would be placed. The task does not stay placed.
fn would_be_at(cluster: &mut Cluster, engine: &mut Engine<BestFit>, request: &Request) -> Option<usize> {
    let claim = add(cluster, request);
    let class = cluster.class_of(claim).expect("it was added");
    engine.place(cluster, class).map(|at| at.node.index())
}

/// Puts a member of a group on a host. It takes this many percent of a device.
fn put(cluster: &mut Cluster, engine: &mut Engine<BestFit>, group: &str, host: &str, percent: u32) {
    let mut request = with(part(percent), member_of(group));
    request.constraints.labels = BTreeMap::from([("host".to_owned(), host.to_owned())]);
    at(cluster, engine, &request).expect("it has room");
}

#[test]
fn a_node_with_more_taints_that_only_ask_is_taken_later() {
    let (mut cluster, mut engine) = zones(&["a", "b", "c"]);
    taint(&mut cluster, 0, "a", 2);
    taint(&mut cluster, 1, "b", 1);
    let mut next = |request: &Request| at(&mut cluster, &mut engine, request);
    let task = part(60);
    assert_eq!([next(&task), next(&task), next(&task), next(&task)], [Some(2), Some(1), Some(0), None]);
    // A task that tolerates the taints sees no difference: the policy takes the first of equal nodes.
    let mut tolerant = part(30);
    tolerant.constraints.tolerations = BTreeSet::from([Toleration { effect: Some(DISLIKED), ..Toleration::default() }]);
    assert_eq!(next(&tolerant), Some(0));
}

#[test]
fn a_taint_that_comes_or_goes_is_seen() {
    let (mut cluster, mut engine) = zones(&["a", "b"]);
    let task = part(10);
    assert_eq!(at(&mut cluster, &mut engine, &task), Some(0));
    taint(&mut cluster, 0, "a", 1);
    assert_eq!(at(&mut cluster, &mut engine, &task), Some(1));
    taint(&mut cluster, 0, "a", 0);
    taint(&mut cluster, 1, "b", 1);
    assert_eq!(at(&mut cluster, &mut engine, &task), Some(0));
}

#[test]
fn a_task_goes_where_most_speaks_for_it() {
    let (mut cluster, mut engine) = zones(&["a", "a", "b", "b"]);
    for (host, percent) in [("n0", 40), ("n2", 10), ("n3", 70)] {
        put(&mut cluster, &mut engine, "db", host, percent);
    }
    let mut next = |wishes| would_be_at(&mut cluster, &mut engine, &with(part(5), wishing(wishes)));
    // Two members are in zone b, one is in zone a, and none is on n1. Of equal nodes, the fullest is taken.
    assert_eq!(next(&[("db", "zone", 1)]), Some(3));
    assert_eq!(next(&[("db", "zone", -1)]), Some(0));
    assert_eq!(next(&[("db", "zone", -1), ("db", "host", -1)]), Some(1));
    // With the greater weight, zone b goes first, though its hosts have members.
    assert_eq!(next(&[("db", "zone", 10), ("db", "host", -1)]), Some(3));
    assert_eq!(next(&[("nobody", "zone", 100)]), Some(3), "the group has no member");
    assert_eq!(next(&[("db", "no-such-label", 100)]), Some(3));
}

#[test]
fn what_others_wish_counts_where_they_are() {
    let (mut cluster, mut engine) = zones(&["a", "b", "c"]);
    let mut holder = with(part(5), wishing(&[("web", "zone", -50)]));
    holder.constraints.labels = BTreeMap::from([("zone".to_owned(), "a".to_owned())]);
    at(&mut cluster, &mut engine, &holder).expect("it has room");
    let mut friend = with(part(5), wishing(&[("web", "zone", 50)]));
    friend.constraints.labels = BTreeMap::from([("zone".to_owned(), "c".to_owned())]);
    at(&mut cluster, &mut engine, &friend).expect("it has room");
    assert_eq!(at(&mut cluster, &mut engine, &with(part(10), member_of("web"))), Some(2));
    assert_eq!(at(&mut cluster, &mut engine, &with(part(90), member_of("web"))), Some(1));
    assert_eq!(at(&mut cluster, &mut engine, &with(part(90), member_of("web"))), Some(0), "it is only a wish");
    assert_eq!(at(&mut cluster, &mut engine, &part(5)), Some(0), "it does not concern other tasks");
}

#[test]
fn a_spread_prefers_where_fewest_are() {
    let (mut cluster, mut engine) = zones(&["a", "a", "b"]);
    let task = |rules: &[TopologySpread]| {
        let preferred_spread = rules.iter().cloned().collect();
        with(part(20), Peers { preferred_spread, ..member_of("web") })
    };
    let both = task(&[spread("web", "zone", 1), spread("web", "host", 1)]);
    let mut placed = [0_usize; 3];
    for _ in 0..6 {
        placed[at(&mut cluster, &mut engine, &both).expect("it has room")] += 1;
    }
    assert_eq!(placed, [2; 3], "one more in zone a, and one more on n2, are as uneven");
    // A node that is in no domain comes last.
    cluster.add_node(node("elsewhere", 96, 1, "A"));
    let wide = task(&[spread("web", "zone", 1)]);
    let nodes: Vec<Option<usize>> = (0..14).map(|_| at(&mut cluster, &mut engine, &wide)).collect();
    let first = nodes.iter().position(|at| *at == Some(3));
    assert_eq!((first, nodes.iter().flatten().count()), (Some(9), 14), "{nodes:?}");
}

#[test]
fn kinds_of_preferences_weigh_as_in_kube_scheduler() {
    let (mut cluster, mut engine) = zones(&["a", "b"]);
    put(&mut cluster, &mut engine, "db", "n1", 40);
    let in_zone = |zone: &str| {
        let operator = NodeOperator::In(BTreeSet::from([zone.to_owned()]));
        let requirements = BTreeSet::from([NodeRequirement { key: "zone".to_owned(), operator }]);
        Some(Arc::new(Preferences(vec![Preference { weight: 1, term: NodeTerm { requirements } }])))
    };
    let mut next = |cluster: &mut Cluster, request: &Request| would_be_at(cluster, &mut engine, request);
    // Preferred nodes and preferred peers weigh the same, whatever the weights within each. So the policy decides: n1
    // is fuller.
    let near = with(part(1), wishing(&[("db", "zone", 100)]));
    let undecided = Request { preferences: in_zone("a"), ..near.clone() };
    assert_eq!(next(&mut cluster, &undecided), Some(1));
    // A taint weighs more than either of them, and less than both together.
    taint(&mut cluster, 1, "b", 1);
    assert_eq!(next(&mut cluster, &undecided), Some(0));
    assert_eq!(next(&mut cluster, &near), Some(0));
    let both = Request { preferences: in_zone("b"), ..near };
    assert_eq!(next(&mut cluster, &both), Some(1));
}
