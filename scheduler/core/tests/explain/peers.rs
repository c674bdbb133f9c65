//! Reasons if a rule about other claims is in the way.

use std::collections::BTreeSet;
use std::sync::Arc;

use aliquot_scheduler_core::explain::{Change, Reason, Shortage};
use aliquot_scheduler_core::{Affinity, AntiAffinity, ClaimId, NodeSpec, PeerMisfit, Peers, Request, Texts};
use aliquot_scheduler_kit::spread;

use crate::setting::{Setting, cores, node};

fn in_zone(name: &str, zone: &str) -> NodeSpec {
    NodeSpec { labels: Texts::from([("zone".to_owned(), zone.to_owned())]), ..node(name, "A", 1) }
}

/// Three nodes, in the zones a, a and b.
fn zones() -> Setting {
    let mut setting = Setting::new();
    [("a0", "a"), ("a1", "a"), ("b0", "b")].into_iter().for_each(|(name, zone)| setting.add_node(in_zone(name, zone)));
    setting
}

fn member_of(group: &str) -> Peers {
    Peers { member_of: BTreeSet::from([group.into()]), ..Peers::default() }
}

fn avoiding(group: &str, peers: Peers) -> Peers {
    let rule = AntiAffinity { group: group.into(), topology_key: "zone".into() };
    Peers { anti_affinity: BTreeSet::from([rule]), ..peers }
}

fn with(peers: Peers) -> Request {
    Request { peers: Some(Arc::new(peers)), ..cores(1) }
}

/// The rules in the way, each with the number of nodes that it closes.
fn closed(setting: &Setting, claim: ClaimId) -> Vec<(u32, PeerMisfit)> {
    let (reason, _) = setting.reason(claim);
    let Reason::NoRoom { nodes, .. } = &reason else { panic!("{reason:?}") };
    let misfit = |shortage: &Shortage| match shortage {
        Shortage::Peers(misfit) => misfit.clone(),
        other => panic!("{other:?}"),
    };
    nodes.iter().map(|count| (count.nodes, misfit(&count.what))).collect()
}

/// In each zone, a claim that avoids others of its group; and a pending claim that avoids those claims.
fn avoided() -> (Setting, ClaimId) {
    let mut setting = zones();
    for name in ["first", "second"] {
        setting.add(name, with(avoiding("web pods", member_of("web pods"))));
        setting.cycle();
    }
    let waits = setting.add("waits", with(avoiding("web pods", Peers::default())));
    setting.cycle();
    (setting, waits)
}

#[test]
fn an_anti_affinity_is_named_with_its_domain() {
    let (mut setting, waits) = avoided();
    let (group, topology_key) = ("web pods".to_owned(), "zone".to_owned());
    let misfit = PeerMisfit::AntiAffinity { group, topology_key, domain: "a".into() };
    assert_eq!(closed(&setting, waits), [(3, misfit)]);
    let (_, text) = setting.reason(waits);
    let rule = "is in zone=a, with some of those that the anti-affinity avoids: web pods";
    assert_eq!(
        text,
        format!(
            "no node has room now: 3 nodes are closed by a rule: one of them {rule}; nearest is node \"a0\", where it \
             {rule}"
        )
    );
    let changes = setting.explain(waits).changes;
    assert!(changes.contains(&Change::DropPeerRules), "{changes:?}");
    for change in changes {
        let (setting, waits) = avoided();
        assert!(setting.helps(waits, &change), "{change}");
    }
    // A rule of other claims also holds against a claim without rules of its own.
    let member = setting.add("member", with(member_of("web pods")));
    setting.cycle();
    assert!(matches!(closed(&setting, member)[..], [(3, PeerMisfit::AntiAffinityOfOthers { .. })]));
}

#[test]
fn an_affinity_to_nobody_is_named() {
    let mut setting = zones();
    setting.add_node(node("nowhere", "A", 1));
    let topology_keys = BTreeSet::from(["zone".to_owned()]);
    let affinity = Some(Affinity { group: "leaders".into(), topology_keys });
    let waits = setting.add("waits", with(Peers { affinity, ..Peers::default() }));
    setting.cycle();
    let affinity = |domain: &str| PeerMisfit::Affinity {
        group: "leaders".into(),
        topology_key: "zone".into(),
        domain: domain.into(),
    };
    let no_zone = PeerMisfit::NoDomain { topology_key: "zone".into() };
    assert_eq!(closed(&setting, waits), [(3, affinity("a")), (1, no_zone)]);
    assert_eq!(setting.suggestions(waits), ["do not ask for affinity, anti-affinity or topology spread"]);
}

#[test]
fn a_spread_is_named_with_its_counts() {
    let mut setting = zones();
    let spreading = |request: Request, max_skew| {
        let peers = Peers { spread: BTreeSet::from([spread("web pods", "zone", max_skew)]), ..member_of("web pods") };
        Request { peers: Some(Arc::new(peers)), ..request }
    };
    // Zone b is full.
    let mut full = cores(16);
    full.constraints.labels.insert("zone".into(), "b".into());
    setting.add("full", full);
    setting.cycle();
    setting.add("first", spreading(cores(1), 1));
    setting.cycle();
    let waits = setting.add("waits", spreading(cores(1), 1));
    setting.cycle();
    let (reason, text) = setting.reason(waits);
    let Reason::NoRoom { nodes, .. } = &reason else { panic!("{reason:?}") };
    let uneven = Shortage::Peers(PeerMisfit::Spread {
        group: "web pods".into(),
        topology_key: "zone".into(),
        domain: "a".into(),
        members: 1,
        least: 0,
        max_skew: 1,
    });
    assert!(nodes.iter().any(|count| (count.nodes, &count.what) == (2, &uneven)), "{text}");
    assert!(text.contains("zone=a, which has 1 of those to be spread; another domain has 0"), "{text}");
}
