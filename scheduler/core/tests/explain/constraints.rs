//! Reasons and suggestions if a node affinity, a taint or a counted resource is in the way.

use std::collections::BTreeMap;

use aliquot_scheduler_core::explain::{Change, Exclusion, Reason, Shortage};
use aliquot_scheduler_core::{
    Claim, ClaimId, NodeOperator, NodeRequirement, NodeSpec, NodeTerm, Request, Taint, TaintEffect, Toleration,
};

use crate::setting::{Setting, cores, node, whole};

fn with_pods(name: &str, pods: u64) -> NodeSpec {
    NodeSpec { counted: BTreeMap::from([("pods".to_owned(), pods)]), ..node(name, "A", 1) }
}

fn pods(pods: u64) -> Request {
    Request { counted: BTreeMap::from([("pods".to_owned(), pods)]), ..cores(1) }
}

/// Two nodes, filled by claims that are placed: `node-0` has 3 free pods of 4, and `node-1` has 1 of 2.
fn crowded(request: Request) -> (Setting, ClaimId) {
    let mut setting = Setting::new();
    setting.add_node(with_pods("node-0", 4));
    setting.add_node(with_pods("node-1", 2));
    for name in ["first", "second"] {
        let request = Request { devices: whole(1).devices, ..pods(1) };
        setting.add_claim(Claim { name: name.into(), request, ..Claim::default() });
    }
    setting.cycle();
    let waits = setting.add("waits", request);
    setting.cycle();
    (setting, waits)
}

#[test]
fn pods_that_are_short_are_told_with_how_many_are_missing() {
    let (setting, waits) = crowded(pods(4));
    let (reason, text) = setting.reason(waits);
    let Reason::NoRoom { nodes, nearest: Some(nearest), .. } = &reason else { panic!("{reason:?}") };
    let short = |free: u64| Shortage::Counted { name: "pods".into(), wanted: 4, free };
    assert_eq!((nodes.len(), nodes[0].nodes, &nodes[0].what), (1, 2, &short(3)));
    assert_eq!((nearest.node.as_str(), &nearest.lacks[..]), ("node-0", &[short(3)][..]));
    assert_eq!(
        text,
        "no node has room now: 2 nodes have not enough pods free (4 wanted, at most 3); nearest is node \"node-0\", \
         where 3 pods are free and 4 wanted"
    );
    assert_eq!(setting.suggestions(waits), ["ask for 3 pods instead of 4", "wait until \"first\" ends"]);
    for change in setting.explain(waits).changes {
        let (setting, waits) = crowded(pods(4));
        assert!(setting.helps(waits, &change), "{change}");
    }
}

#[test]
fn different_things_that_are_short_are_counted_apart() {
    let mut request = pods(4);
    request.counted.insert("hca".into(), 1);
    let (setting, waits) = crowded(request);
    let (reason, text) = setting.reason(waits);
    assert!(matches!(reason, Reason::TooLarge { .. }), "no node has one: {reason:?}");
    assert_eq!(
        text,
        "no node is large enough, even if nothing else were there: 2 nodes have not enough hca free (1 wanted, at most \
         0) and 1 node has not enough pods free (4 wanted, at most 2); nearest is node \"node-0\", where 0 hca are \
         free and 1 wanted"
    );
    assert_eq!(setting.suggestions(waits), [""; 0], "both are in the way");
}

fn requirement(key: &str, operator: NodeOperator) -> NodeRequirement {
    NodeRequirement { key: key.into(), operator }
}

#[test]
fn terms_that_no_node_matches_are_told_and_can_be_dropped() {
    let make = || {
        let mut setting = Setting::with_nodes(2, 1);
        let mut east = node("east", "A", 1);
        east.labels.insert("zone".into(), "east".into());
        east.cordoned = true;
        setting.add_node(east);
        let east = requirement("zone", NodeOperator::In(["east".to_owned()].into()));
        let large = requirement("cores", NodeOperator::GreaterThan(8));
        let mut request = whole(1);
        request.constraints.node_terms =
            [[east.clone()].into(), [east, large].into()].map(|requirements| NodeTerm { requirements }).into();
        let waits = setting.add("waits", request);
        setting.cycle();
        (setting, waits)
    };
    let (setting, waits) = make();
    let (reason, text) = setting.reason(waits);
    let Reason::NoSuchNode { nodes: 3, excluded } = &reason else { panic!("{reason:?}") };
    assert!(matches!(&excluded[0].what, Exclusion::NodeTerms(terms) if terms.len() == 2), "{excluded:?}");
    assert_eq!(
        text,
        "none of 3 nodes may take it: 2 nodes match no term of the node affinity (cores > 8 and zone in (east) or zone \
         in (east)) and 1 node is cordoned"
    );
    assert_eq!(setting.suggestions(waits), ["do not ask for nodes by a node affinity", "uncordon node \"east\""]);
    assert!(setting.helps(waits, &Change::DropNodeTerms));
}

#[test]
fn a_node_with_a_taint_of_two_effects_wants_both_tolerated() {
    let make = || {
        let mut setting = Setting::new();
        let taint = |effect| Taint { key: "team".into(), value: "x".into(), effect };
        let taints = [TaintEffect::NoSchedule, TaintEffect::NoExecute].map(taint).into();
        setting.add_node(NodeSpec { taints, ..node("tainted", "A", 1) });
        let waits = setting.add("waits", whole(1));
        setting.cycle();
        (setting, waits)
    };
    let (setting, waits) = make();
    assert_eq!(
        setting.reason(waits).1,
        "none of 1 node may take it: 1 node has the taint team=x:NoSchedule, which is not tolerated and 1 node has the \
         taint team=x:NoExecute, which is not tolerated"
    );
    let both = Toleration { key: Some("team".into()), value: Some("x".into()), effect: None };
    assert_eq!(setting.explain(waits).changes, [Change::Tolerate(both.clone())]);
    assert_eq!(setting.suggestions(waits), ["tolerate the taint team=x"]);
    assert!(setting.helps(waits, &Change::Tolerate(both)));
}
