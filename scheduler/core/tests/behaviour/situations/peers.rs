//! Affinity, anti-affinity and topology spread: where a task may be because of the places of others.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use aliquot_scheduler_core::{
    Affinity, AntiAffinity, Claim, ClaimId, Event, NodeOperator, NodeRequirement, NodeSpec, NodeTerm, Peers, Request,
    Step, TopologySpread,
};

use crate::kit::{Kit, build, evicted, gang, node, part, spread, train, whole};

fn member_of(groups: &[&str]) -> Peers {
    Peers { member_of: groups.iter().map(|name| (*name).into()).collect(), ..Peers::default() }
}

fn avoiding(group: &str, key: &str, peers: Peers) -> Peers {
    Peers { anti_affinity: BTreeSet::from([AntiAffinity { group: group.into(), topology_key: key.into() }]), ..peers }
}

fn near(group: &str, key: &str, peers: Peers) -> Peers {
    let topology_keys = BTreeSet::from([key.to_owned()]);
    Peers { affinity: Some(Affinity { group: group.into(), topology_keys }), ..peers }
}

fn spreading(group: &str, key: &str, max_skew: u32) -> Peers {
    Peers { spread: BTreeSet::from([spread(group, key, max_skew)]), ..member_of(&[group]) }
}

fn with(request: Request, peers: Peers) -> Request {
    Request { peers: Some(Arc::new(peers)), ..request }
}

/// Nodes named after their zone and number, such as `a0`, with this many devices.
fn zones(zones: &[(&str, usize)], devices: usize) -> Kit {
    let mut kit = Kit::new();
    for (zone, nodes) in zones {
        for number in 0..*nodes {
            kit.node(in_zone(&format!("{zone}{number}"), zone, devices));
        }
    }
    kit
}

fn in_zone(name: &str, zone: &str, devices: usize) -> NodeSpec {
    let labels = [("host", name), ("zone", zone)].map(|(key, value)| (key.to_owned(), value.to_owned()));
    NodeSpec { labels: labels.into(), ..node(name, devices) }
}

/// How many of these claims are placed in each zone.
fn in_zones(kit: &Kit, claims: &[ClaimId]) -> BTreeMap<String, usize> {
    let mut zones = BTreeMap::new();
    for name in claims.iter().filter_map(|claim| kit.node_of(*claim)) {
        *zones.entry(name[..1].to_owned()).or_default() += 1;
    }
    zones
}

#[test]
fn claims_that_avoid_each_other_are_one_to_a_host() {
    let mut kit = zones(&[("a", 3)], 4);
    let alone = avoiding("web", "host", member_of(&["web"]));
    let claims = kit.claims(4, &train("default", with(part(20), alone)));
    kit.converge();
    let nodes: BTreeSet<&str> = claims.iter().filter_map(|claim| kit.node_of(*claim)).collect();
    assert_eq!((nodes.len(), kit.running(&claims)), (3, 3));
    // Other claims go anywhere. A member without rules of its own is kept away, too.
    let other = kit.claim(train("default", part(20)));
    let member = kit.claim(train("default", with(part(20), member_of(&["web"]))));
    kit.converge();
    assert_eq!((kit.running(&[other]), kit.running(&[member])), (1, 0));
    // One claim leaves, and makes room for one.
    kit.remove(claims[0]);
    kit.converge();
    assert_eq!(kit.running(&[claims[3], member]), 1);
}

#[test]
fn foreign_tasks_count_and_keep_away() {
    let mut kit = zones(&[("a", 1), ("b", 1)], 4);
    let foreign = |kit: &mut Kit, node: &str, peers: Vec<Peers>| {
        let id = kit.cluster.node_named(node).expect("it is there");
        let spec = NodeSpec::from(kit.cluster.node(id).expect("it is there").spec());
        kit.event(Event::NodeChanged(id, NodeSpec { foreign: peers.into_iter().map(Arc::new).collect(), ..spec }));
    };
    foreign(&mut kit, "a0", vec![member_of(&["db"])]);
    foreign(&mut kit, "b0", vec![avoiding("web", "zone", Peers::default())]);
    let avoids = kit.claim(train("default", with(part(10), avoiding("db", "host", Peers::default()))));
    let avoided = kit.claim(train("default", with(part(10), member_of(&["web"]))));
    let near = kit.claim(train("default", with(part(10), near("db", "zone", Peers::default()))));
    kit.converge();
    assert_eq!([avoids, avoided, near].map(|claim| kit.node_of(claim)), [Some("b0"), Some("a0"), Some("a0")]);
    // A task that has gone no longer counts.
    foreign(&mut kit, "b0", vec![]);
    let next = kit.claim(train("default", with(whole(4), member_of(&["web"]))));
    kit.converge();
    assert_eq!(kit.running(&[next]), 0, "neither node is empty");
    kit.remove(avoids);
    kit.converge();
    assert_eq!(kit.node_of(next), Some("b0"));
}

#[test]
fn a_claim_goes_where_its_leader_is_and_waits_without() {
    let mut kit = zones(&[("a", 1), ("b", 2)], 2);
    let follower = kit.claim(train("default", with(whole(1), near("leader", "zone", Peers::default()))));
    kit.converge();
    assert_eq!(kit.running(&[follower]), 0);
    // The leader fits only in zone b, and not on the node with the follower.
    let blocked = kit.claim(train("default", whole(2)));
    kit.converge();
    assert_eq!(kit.node_of(blocked), Some("a0"));
    let leader = kit.claim(train("default", with(whole(2), member_of(&["leader"]))));
    kit.converge();
    assert_eq!(in_zones(&kit, &[leader, follower]), BTreeMap::from([("b".to_owned(), 2)]));
}

#[test]
fn the_first_of_those_near_each_other_may_go_anywhere() {
    let mut kit = zones(&[("a", 1), ("b", 1)], 2);
    kit.node(node("nowhere", 8));
    let together = near("job", "zone", member_of(&["job"]));
    let claims = kit.claims(3, &train("default", with(whole(1), together)));
    kit.converge();
    let zones = in_zones(&kit, &claims);
    assert_eq!((zones.len(), zones.values().sum::<usize>()), (1, 2), "{zones:?}: one zone, and not without a zone");
}

#[test]
fn a_gang_that_stays_together_goes_where_all_of_it_fits() {
    // The first member would go to zone a, which best fit fills first, and the others do not fit there.
    let mut kit = zones(&[("a", 1), ("b", 3)], 2);
    kit.claim(train("default", whole(1)));
    kit.converge();
    let together = near("job", "zone", member_of(&["job"]));
    let members = kit.gang(gang("job", "default", 5), 5, &with(whole(1), together));
    kit.converge();
    assert_eq!(in_zones(&kit, &members), BTreeMap::from([("b".to_owned(), 5)]));
}

#[test]
fn workers_of_a_gang_go_where_its_leader_goes() {
    let mut kit = zones(&[("a", 1), ("b", 1), ("c", 1)], 4);
    kit.group(gang("job", "default", 4));
    let claim = |request: Request| Claim { request, pod_group: Some("job".into()), ..Claim::default() };
    // The workers come first, and ask for more.
    let workers = kit.claims(3, &claim(with(whole(1), near("leader", "host", Peers::default()))));
    let leader = kit.claim(claim(with(part(50), member_of(&["leader"]))));
    kit.converge();
    let all = [workers, vec![leader]].concat();
    assert_eq!(kit.running(&all), 4);
    assert_eq!(in_zones(&kit, &all).len(), 1);
}

#[test]
fn a_gang_that_avoids_itself_is_placed_whole_or_not() {
    let mut kit = zones(&[("a", 2)], 4);
    let alone = avoiding("job", "host", member_of(&["job"]));
    let members = kit.gang(gang("job", "default", 3), 3, &with(whole(1), alone));
    kit.converge();
    assert_eq!(kit.running(&members), 0);
    kit.node(in_zone("a2", "a", 4));
    kit.converge();
    assert_eq!(kit.running(&members), 3);
}

#[test]
fn claims_are_spread_evenly_over_zones() {
    let mut kit = zones(&[("a", 1), ("b", 1), ("c", 1)], 4);
    // Zone c has room for one claim.
    let blocked = kit.claim(train("default", whole(3)));
    kit.converge();
    let full = kit.node_of(blocked).expect("it is placed")[..1].to_owned();
    let claims = kit.claims(7, &train("default", with(whole(1), spreading("web", "zone", 1))));
    kit.converge();
    let zones = in_zones(&kit, &claims);
    assert_eq!(zones.get(&full), Some(&1));
    assert_eq!(zones.values().sum::<usize>(), 5, "{zones:?}: a third one would be too many beside one");
}

#[test]
fn a_spread_counts_only_the_nodes_that_it_says() {
    let mut kit = zones(&[("a", 1), ("b", 1)], 4);
    let mut unlike = in_zone("c0", "c", 0);
    unlike.labels.insert("kind".into(), "cpu".into());
    kit.node(unlike);
    // Zone c has no devices, so it stays empty, and still counts.
    let claims = kit.claims(4, &train("default", with(whole(1), spreading("web", "zone", 1))));
    kit.converge();
    assert_eq!(kit.running(&claims), 2);
    let mut rule = spread("job", "zone", 1);
    let expression = NodeRequirement { key: "kind".into(), operator: NodeOperator::DoesNotExist };
    rule.node_terms = BTreeSet::from([NodeTerm { requirements: BTreeSet::from([expression]) }]);
    let peers = Peers { spread: BTreeSet::from([rule.clone()]), ..member_of(&["job"]) };
    let claims = kit.claims(4, &train("default", with(whole(1), peers)));
    kit.converge();
    assert_eq!(in_zones(&kit, &claims), BTreeMap::from([("a".to_owned(), 2), ("b".to_owned(), 2)]));
    // With fewer domains than wanted, the least number of members is taken to be 0.
    let wanted = TopologySpread { group: "few".into(), min_domains: 3, ..rule };
    let peers = Peers { spread: BTreeSet::from([wanted]), ..member_of(&["few"]) };
    let claims = kit.claims(4, &train("default", with(part(10), peers)));
    kit.converge();
    assert_eq!(kit.running(&claims), 2);
}

#[test]
fn who_is_in_the_way_by_a_rule_is_evicted_and_gone_first() {
    let mut kit = zones(&[("a", 2)], 4);
    let alone = avoiding("web", "zone", member_of(&["web"]));
    let first = kit.claim(train("default", with(part(10), alone.clone())));
    kit.converge();
    let important = kit.claim(build("default", with(part(10), alone)));
    let plan = kit.cycle();
    let steps: Vec<_> = plan.steps.iter().map(|planned| (planned.action, planned.step.clone())).collect();
    assert_eq!(evicted(&steps), [first]);
    assert_eq!(kit.cluster.starts_after(important), [first], "until then two would be in the zone");
    assert_eq!(kit.running(&[important]), 0);
    kit.event(Event::ClaimGone(first));
    assert_eq!(kit.running(&[important]), 1);
}

#[test]
fn who_leaves_by_itself_is_waited_for_in_all_the_domain() {
    let mut kit = zones(&[("a", 2)], 1);
    let alone = avoiding("web", "zone", member_of(&["web"]));
    let first = kit.claim(train("default", with(whole(1), alone.clone())));
    kit.converge();
    let second = kit.claim(train("default", with(whole(1), alone)));
    kit.event(Event::ClaimWithdrawn(first));
    kit.cycle();
    assert_ne!(kit.node_of(second), None);
    assert_eq!(kit.cluster.starts_after(second), [first]);
    kit.event(Event::ClaimGone(first));
    assert_eq!(kit.running(&[second]), 1);
}

#[test]
fn nobody_is_evicted_whom_an_affinity_needs() {
    let mut kit = zones(&[("a", 1), ("b", 1)], 2);
    let leader = kit.claim(train("default", with(whole(1), member_of(&["leader"]))));
    kit.converge();
    let other = kit.claim(train("default", whole(1)));
    kit.converge();
    assert_eq!(kit.node_of(leader), kit.node_of(other));
    let follower = kit.claim(build("default", with(whole(1), near("leader", "host", Peers::default()))));
    let steps = kit.converge();
    assert_eq!(kit.node_of(follower), kit.node_of(leader));
    assert!(steps.iter().all(|(_, step)| step.claim() != leader), "{steps:?}");
}

#[test]
fn a_move_breaks_no_rule() {
    let scattered = |peers: [Option<Peers>; 2]| {
        let mut kit = zones(&[("a", 1), ("b", 1)], 2);
        let request = |peers: &Option<Peers>| match peers {
            Some(peers) => with(whole(1), peers.clone()),
            None => whole(1),
        };
        let claims: Vec<ClaimId> = peers.iter().map(|of| kit.claim(train("default", request(of)))).collect();
        kit.converge();
        (kit, claims)
    };
    let large = |kit: &mut Kit| {
        let large = kit.claim(train("default", whole(2)));
        kit.converge();
        kit.running(&[large])
    };
    // Two claims that avoid each other stay apart, so nothing can be moved together.
    let alone = avoiding("web", "host", member_of(&["web"]));
    let (mut kit, claims) = scattered([Some(alone.clone()), Some(alone)]);
    assert_eq!((kit.running(&claims), large(&mut kit)), (2, 0));
    // A claim that is avoided by a task elsewhere can be moved to a place without such a task.
    let (mut kit, claims) = scattered([Some(avoiding("db", "host", member_of(&["web"]))), None]);
    let filler = kit.claim(train("default", whole(2)));
    kit.converge();
    kit.remove(filler);
    kit.converge();
    assert_eq!((kit.running(&claims), large(&mut kit)), (2, 1));
}

#[test]
fn who_others_are_near_is_not_moved() {
    let mut kit = zones(&[("a", 1), ("b", 1)], 3);
    let leader = kit.claim(train("default", with(whole(1), member_of(&["leader"]))));
    kit.converge();
    let follower = kit.claim(train("default", with(whole(1), near("leader", "host", Peers::default()))));
    kit.converge();
    let elsewhere = kit.claim(build("default", whole(2)));
    kit.converge();
    assert_ne!(kit.node_of(elsewhere), kit.node_of(leader));
    kit.remove(follower);
    // The leader would have to make room, and a pending claim needs the leader at its place.
    let large = kit.claim(train("default", whole(3)));
    let waits = kit.claim(train("default", with(whole(3), near("leader", "zone", Peers::default()))));
    let steps = kit.converge();
    assert!(steps.iter().all(|(_, step)| !matches!(step, Step::Move { claim, .. } if *claim == leader)), "{steps:?}");
    assert_eq!(kit.running(&[large, waits]), 0);
    kit.remove(waits);
    kit.converge();
    assert_eq!(kit.running(&[large]), 1);
}

#[test]
fn a_claim_that_changes_what_it_is_counts_at_once() {
    let mut kit = zones(&[("a", 1)], 4);
    let running = kit.claim(train("default", part(10)));
    let waits = kit.claim(train("default", with(part(10), near("leader", "host", Peers::default()))));
    kit.converge();
    assert_eq!(kit.running(&[running, waits]), 1);
    kit.event(Event::ClaimPeersChanged(running, Some(Arc::new(member_of(&["leader"])))));
    kit.converge();
    assert_eq!(kit.running(&[running, waits]), 2);
    kit.event(Event::ClaimPeersChanged(running, None));
    let late = kit.claim(train("default", with(part(10), near("leader", "host", Peers::default()))));
    kit.converge();
    assert_eq!((kit.running(&[running, waits]), kit.running(&[late])), (2, 0), "a placed claim stays");
}
