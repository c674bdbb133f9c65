//! Places that were decided, and that suit their claims no more before these could start.

use std::collections::BTreeSet;
use std::sync::Arc;

use aliquot_scheduler_core::{
    Affinity, AntiAffinity, ClaimId, Event, NodeId, NodeSpec, Outcome, Peers, PodGroup, Request, Taint,
};

use crate::kit::{Kit, build, gang, node, train, whole};

/// A claim of low priority leaves the only node, where one of high priority waits to start. Then a spare node comes.
struct Setting {
    kit: Kit,
    low: ClaimId,
    high: ClaimId,
    node: NodeId,
}

impl Setting {
    fn new(low: Request, high: Request) -> Self {
        let mut kit = Kit::new();
        let node = kit.node(labelled("first", "a"));
        let low = kit.claim(train("default", low));
        kit.converge();
        let high = kit.claim(build("default", high));
        kit.cycle();
        kit.node(labelled("spare", "b"));
        let setting = Self { kit, low, high, node };
        setting.still_waits();
        setting
    }

    fn spec(&self) -> NodeSpec {
        self.kit.cluster.node(self.node).expect("it is there").spec().into()
    }

    fn still_waits(&self) {
        assert_eq!(self.kit.node_of(self.high), Some("first"));
        assert_eq!(self.kit.running(&[self.high]), 0, "the other claim has not left yet");
    }

    /// An event takes the place away. The claim starts on the spare node, while the other one still leaves.
    fn starts_elsewhere(mut self, event: Event) {
        let outcome = self.kit.event(event.clone());
        assert_eq!(outcome, Outcome::Claims { displaced: vec![self.high], ready: vec![] }, "{event:?}");
        self.kit.cycle();
        assert_eq!(self.kit.node_of(self.high), Some("spare"), "{event:?}");
        assert_eq!(self.kit.running(&[self.high]), 1, "{event:?}");
        assert!(self.kit.cluster.leaving(self.low).is_some());
    }

    /// An event is no reason to give up the place.
    fn stays(mut self, event: Event) {
        self.kit.event(event);
        self.kit.converge();
        assert_eq!((self.kit.node_of(self.high), self.kit.running(&[self.high])), (Some("first"), 1));
    }
}

fn labelled(name: &str, pool: &str) -> NodeSpec {
    let labels = [("host", name), ("pool", pool)].map(|(key, value)| (key.to_owned(), value.to_owned()));
    NodeSpec { labels: labels.into(), ..node(name, 1) }
}

fn member_of(group: &str) -> Peers {
    Peers { member_of: BTreeSet::from([group.into()]), ..Peers::default() }
}

fn avoiding(group: &str) -> Peers {
    let rule = AntiAffinity { group: group.into(), topology_key: "host".into() };
    Peers { anti_affinity: BTreeSet::from([rule]), ..Peers::default() }
}

fn with(peers: Peers) -> Request {
    Request { peers: Some(Arc::new(peers)), ..whole(1) }
}

#[test]
fn a_claim_does_not_start_on_a_node_that_takes_nothing_new() {
    let setting = Setting::new(whole(1), whole(1));
    let cordoned = NodeSpec { cordoned: true, ..setting.spec() };
    let relabelled = Event::NodeRelabelled(setting.node, cordoned.clone());
    setting.starts_elsewhere(relabelled);
    let setting = Setting::new(whole(1), whole(1));
    let changed = Event::NodeChanged(setting.node, NodeSpec { counted: [("x".into(), 1)].into(), ..cordoned });
    setting.starts_elsewhere(changed);
}

#[test]
fn a_claim_does_not_start_on_a_node_with_a_new_taint() {
    let setting = Setting::new(whole(1), whole(1));
    let taint = Taint { key: "broken".into(), ..Taint::default() };
    let event = Event::NodeRelabelled(setting.node, NodeSpec { taints: vec![taint], ..setting.spec() });
    setting.starts_elsewhere(event);
}

#[test]
fn a_claim_does_not_start_on_a_node_that_is_of_another_pool() {
    let mut of_pool = whole(1);
    of_pool.constraints.labels.insert("pool".into(), "a".into());
    let mut setting = Setting::new(whole(1), of_pool);
    setting.kit.node(labelled("third", "a"));
    let event =
        Event::NodeRelabelled(setting.node, NodeSpec { labels: labelled("first", "b").labels, ..setting.spec() });
    setting.kit.event(event);
    setting.kit.cycle();
    assert_eq!(setting.kit.node_of(setting.high), Some("third"));
}

#[test]
fn a_claim_stays_where_only_something_else_changes() {
    let setting = Setting::new(whole(1), whole(1));
    let mut spec = setting.spec();
    spec.labels = [("host", "first"), ("pool", "c")].map(|(key, value)| (key.to_owned(), value.to_owned())).into();
    let event = Event::NodeRelabelled(setting.node, spec);
    setting.stays(event);
}

#[test]
fn a_claim_does_not_start_near_a_task_that_must_be_apart() {
    for (own, other) in [(avoiding("db"), member_of("db")), (member_of("web"), avoiding("web"))] {
        let setting = Setting::new(whole(1), with(own));
        let event = Event::NodeChanged(setting.node, NodeSpec { foreign: vec![Arc::new(other)], ..setting.spec() });
        setting.starts_elsewhere(event);
    }
}

#[test]
fn a_claim_does_not_start_near_one_that_is_avoided_now() {
    let small = |peers: Option<Peers>| Request { peers: peers.map(Arc::new), ..Request::default() };
    let mut setting = Setting::new(whole(1), with(avoiding("db")));
    let mut beside = small(None);
    beside.constraints.labels.insert("host".into(), "first".into());
    let beside = setting.kit.claim(build("default", beside));
    setting.kit.cycle();
    assert_eq!(setting.kit.running(&[beside]), 1);
    setting.starts_elsewhere(Event::ClaimPeersChanged(beside, Some(Arc::new(member_of("db")))));
    // The same by a rule of its own.
    let mut setting = Setting::new(whole(1), with(member_of("web")));
    let mut beside = small(Some(member_of("db")));
    beside.constraints.labels.insert("host".into(), "first".into());
    setting.kit.claim(build("default", beside));
    setting.kit.cycle();
    let event = Event::ClaimPeersChanged(setting.high, Some(Arc::new(avoiding("db"))));
    setting.starts_elsewhere(event);
}

/// A node lists a claim that is leaving among the tasks that are not in the books.
#[test]
fn a_claim_waits_for_one_that_it_avoids_to_be_gone() {
    let setting = Setting::new(with(member_of("db")), with(avoiding("db")));
    let event =
        Event::NodeChanged(setting.node, NodeSpec { foreign: vec![Arc::new(member_of("db"))], ..setting.spec() });
    setting.stays(event);
}

fn near(group: &str) -> Peers {
    let affinity = Affinity { group: group.into(), topology_keys: BTreeSet::from(["host".to_owned()]) };
    Peers { affinity: Some(affinity), ..Peers::default() }
}

/// A claim without devices, on this node.
fn small_on(kit: &mut Kit, host: &str, peers: Peers) -> ClaimId {
    let mut request = Request { peers: Some(Arc::new(peers)), ..Request::default() };
    request.constraints.labels.insert("host".into(), host.into());
    let claim = kit.claim(build("default", request));
    kit.cycle();
    assert_eq!(kit.node_of(claim), Some(host));
    claim
}

/// Adds a node with the devices of one claim, which a claim of high priority waits for beside this other task.
fn waits_beside(kit: &mut Kit, beside: Peers, high: Request) -> (ClaimId, ClaimId, ClaimId) {
    kit.node(labelled("first", "a"));
    let low = kit.claim(train("default", whole(1)));
    kit.converge();
    let beside = small_on(kit, "first", beside);
    let high = kit.claim(build("default", high));
    kit.cycle();
    assert_eq!((kit.node_of(high), kit.running(&[high])), (Some("first"), 0));
    (low, beside, high)
}

#[test]
fn a_claim_does_not_start_where_what_it_must_be_near_has_gone() {
    let mut kit = Kit::new();
    let (low, database, high) = waits_beside(&mut kit, member_of("db"), with(near("db")));
    kit.node(labelled("spare", "b"));
    kit.event(Event::ClaimRemoved(database));
    let outcome = kit.event(Event::ClaimGone(low));
    assert_eq!(outcome, Outcome::Claims { displaced: vec![high], ready: vec![] });
    kit.converge();
    assert_eq!(kit.node_of(high), None, "the task that it must be near is nowhere");
    small_on(&mut kit, "spare", member_of("db"));
    kit.converge();
    assert_eq!((kit.node_of(high), kit.running(&[high])), (Some("spare"), 1));
}

#[test]
fn a_claim_starts_where_the_task_that_it_must_be_near_is_again() {
    let mut kit = Kit::new();
    let (low, database, high) = waits_beside(&mut kit, member_of("db"), with(near("db")));
    kit.event(Event::ClaimRemoved(database));
    small_on(&mut kit, "first", member_of("db"));
    let outcome = kit.event(Event::ClaimGone(low));
    assert_eq!(outcome, Outcome::Claims { displaced: vec![], ready: vec![high] });
}

/// Otherwise a claim that is evicted for it, and then placed elsewhere, would make it give up its place each time.
#[test]
fn the_first_member_of_a_group_that_must_be_near_itself_starts() {
    for has_others in [false, true] {
        let own = Peers { member_of: BTreeSet::from(["db".into()]), ..near("db") };
        let mut setting = Setting::new(whole(1), with(own));
        if has_others {
            small_on(&mut setting.kit, "spare", member_of("db"));
        }
        setting.kit.event(Event::ClaimGone(setting.low));
        assert_eq!((setting.kit.node_of(setting.high), setting.kit.running(&[setting.high])), (Some("first"), 1));
    }
}

/// A member of a gang has to give up its place, so none of them starts.
#[test]
fn a_gang_does_not_start_if_one_member_does_not_suit_its_place() {
    let mut kit = Kit::new();
    kit.node(NodeSpec { labels: labelled("first", "a").labels, ..node("first", 2) });
    let low = kit.claim(train("default", whole(2)));
    kit.converge();
    let database = small_on(&mut kit, "first", member_of("db"));
    let of_gang = PodGroup { priority: 100, preemptible: false, ..gang("gang", "default", 2) };
    let gang = kit.gang(of_gang, 2, &whole(1));
    kit.event(Event::ClaimPeersChanged(gang[0], Some(Arc::new(near("db")))));
    kit.cycle();
    assert!(gang.iter().all(|claim| kit.node_of(*claim) == Some("first")));
    kit.event(Event::ClaimRemoved(database));
    let outcome = kit.event(Event::ClaimGone(low));
    assert_eq!(outcome, Outcome::Claims { displaced: gang, ready: vec![] });
}

#[test]
fn a_claim_does_not_start_on_a_node_without_its_domain_s_label() {
    let own = Peers { member_of: BTreeSet::from(["db".into()]), ..near("db") };
    let mut setting = Setting::new(whole(1), with(own));
    let event = Event::NodeRelabelled(setting.node, NodeSpec { labels: [].into(), ..setting.spec() });
    setting.kit.event(event);
    let outcome = setting.kit.event(Event::ClaimGone(setting.low));
    assert_eq!(outcome, Outcome::Claims { displaced: vec![setting.high], ready: vec![] });
}
