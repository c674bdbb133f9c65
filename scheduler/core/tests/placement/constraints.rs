//! Nodes that labels, taints and counted resources allow for a task.

use std::collections::{BTreeMap, BTreeSet};

use aliquot_scheduler_core::placement::{BestFit, Engine, Misfit, fits, room};
use aliquot_scheduler_core::{
    Cluster, Event, Node, NodeId, NodeOperator, NodeRequirement, NodeSpec, NodeTerm, Request, Taint, TaintEffect,
    Toleration,
};
use aliquot_scheduler_kit::Build;

use crate::cases::{node, place, request};

fn labelled(name: &str, labels: &[(&str, &str)]) -> NodeSpec {
    let labels = labels.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect();
    NodeSpec { labels, ..node(name, 16, 1, "A") }
}

fn requirement(key: &str, operator: NodeOperator) -> NodeRequirement {
    NodeRequirement { key: key.into(), operator }
}

fn term<const N: usize>(requirements: [NodeRequirement; N]) -> NodeTerm {
    NodeTerm { requirements: requirements.into() }
}

fn one_of<const N: usize>(values: [&str; N]) -> NodeOperator {
    NodeOperator::In(values.map(str::to_owned).into())
}

fn on_terms<const N: usize>(terms: [NodeTerm; N]) -> Request {
    let mut request = request(1, 0, 0, 0, &[]);
    request.constraints.node_terms = terms.into();
    request
}

/// The names of the nodes on which a request fits.
fn fitting(cluster: &Cluster, request: &Request) -> Vec<String> {
    let nodes = cluster.nodes().filter(|(_, node)| fits(node, request).is_ok());
    nodes.map(|(_, node)| node.spec().name.clone()).collect()
}

fn books(cluster: &Cluster, id: NodeId) -> &Node {
    cluster.node(id).expect("a node of the test")
}

#[test]
fn a_task_goes_where_all_requirements_of_one_term_hold() {
    let mut cluster = Cluster::new();
    cluster.add_node(labelled("bare", &[]));
    cluster.add_node(labelled("east", &[("zone", "east"), ("cores", "8")]));
    cluster.add_node(labelled("west", &[("zone", "west"), ("cores", "64")]));
    cluster.add_node(labelled("spot", &[("zone", "east"), ("spot", "")]));
    let east = || requirement("zone", one_of(["east"]));
    let no_spot = || requirement("spot", NodeOperator::DoesNotExist);
    let large = || requirement("cores", NodeOperator::GreaterThan(8));
    let cases = [
        (on_terms([]), "bare east west spot"),
        (on_terms([term([east()])]), "east spot"),
        (on_terms([term([east(), no_spot()])]), "east"),
        (on_terms([term([east(), no_spot()]), term([large()])]), "east west"),
        (on_terms([NodeTerm::default()]), ""),
        (on_terms([NodeTerm::default(), term([large()])]), "west"),
    ];
    for (request, expected) in cases {
        assert_eq!(fitting(&cluster, &request).join(" "), expected, "{request:?}");
    }
    // The node must have the requested labels in addition to matching a term.
    let mut both = on_terms([term([east()])]);
    both.constraints.labels.insert("spot".into(), String::new());
    assert_eq!(fitting(&cluster, &both), ["spot"]);
}

#[test]
fn an_engine_follows_labels_that_make_a_term_match() {
    let mut cluster = Cluster::new();
    let id = cluster.add_node(labelled("n", &[("zone", "west")]));
    let mut engine = Engine::new(BestFit);
    let request = on_terms([term([requirement("zone", one_of(["east"]))])]);
    assert_eq!(place(&mut cluster, &mut engine, &request), None);
    assert_eq!(fits(books(&cluster, id), &request), Err(Misfit::NodeTerms));
    cluster.event(Event::NodeRelabelled(id, labelled("n", &[("zone", "east")])));
    assert!(place(&mut cluster, &mut engine, &request).is_some());
}

#[test]
fn a_taint_keeps_away_whoever_does_not_tolerate_its_effect() {
    let mut cluster = Cluster::new();
    let taint = |effect| Taint { key: "team".into(), value: "x".into(), effect };
    let effects = [TaintEffect::NoSchedule, TaintEffect::NoExecute];
    let both = NodeSpec { taints: effects.map(taint).into(), ..node("both", 16, 1, "A") };
    let id = cluster.add_node(both);
    let tolerating = |tolerations: BTreeSet<Toleration>| {
        let mut request = request(1, 0, 0, 0, &[]);
        request.constraints.tolerations = tolerations;
        request
    };
    let [schedule, execute] = effects.map(|effect| Toleration::of(&taint(effect)));
    let any = Toleration { key: Some("team".into()), ..Toleration::default() };
    let of_schedule = tolerating([schedule.clone()].into());
    let fit = fits(books(&cluster, id), &of_schedule);
    assert_eq!(fit, Err(Misfit::Taint(&taint(TaintEffect::NoExecute))), "it has this one, too");
    for tolerations in [[schedule, execute].into(), [any].into()] {
        assert_eq!(fits(books(&cluster, id), &tolerating(tolerations)), Ok(()));
    }
}

#[test]
fn what_keeps_a_task_away_is_named() {
    let mut cluster = Cluster::new();
    let mut spec = labelled("n", &[("zone", "west")]);
    spec.counted = BTreeMap::from([("pods".to_owned(), 5), ("hca".to_owned(), 1)]);
    let id = cluster.add_node(spec);
    let mut elsewhere = request(1, 0, 0, 0, &[]);
    elsewhere.constraints.labels.insert("zone".into(), "east".into());
    assert_eq!(fits(books(&cluster, id), &elsewhere), Err(Misfit::Label { key: "zone", value: "east" }));
    let asks = |pods: u64, hca: u64| Request {
        counted: BTreeMap::from([("pods".to_owned(), pods), ("hca".to_owned(), hca)]),
        ..request(1, 0, 0, 0, &[])
    };
    let too_many = asks(6, 0);
    assert_eq!(fits(books(&cluster, id), &too_many), Err(Misfit::Counted { name: "pods", wanted: 6, free: 5 }));
    let rooms = [asks(0, 0), asks(1, 0), asks(2, 0), asks(1, 1), asks(6, 0)].map(|of| room(books(&cluster, id), &of));
    assert_eq!(rooms, [16, 5, 2, 1, 0]);
    let mut engine = Engine::new(BestFit);
    assert!(place(&mut cluster, &mut engine, &asks(3, 1)).is_some());
    let second = asks(1, 1);
    assert_eq!(fits(books(&cluster, id), &second), Err(Misfit::Counted { name: "hca", wanted: 1, free: 0 }));
    assert_eq!((books(&cluster, id).counted_free("pods"), books(&cluster, id).counted_free("huge")), (2, 0));
}
