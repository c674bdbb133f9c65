//! Gangs between decision and start: other claims have yet to leave, and members are lost meanwhile. A gang starts with
//! as many members as it needs, or not at all.

use aliquot_scheduler_core::{Claim, ClaimId, Event, Health, NodeId, NodeSpec, Outcome, PodGroup, SubGroup};

use crate::kit::{Kit, gang, node, train, whole};

/// Nodes with one device each, on all of which a claim of low priority runs, and a gang that has been given their
/// places. The gang needs `min_members`, has one member for each node, and waits for the claims that leave.
struct Setting {
    kit: Kit,
    low: Vec<ClaimId>,
    members: Vec<ClaimId>,
}

impl Setting {
    fn new(nodes: usize, min_members: u32) -> Self {
        Self::of_group(nodes, PodGroup { priority: 100, ..gang("gang", "default", min_members) })
    }

    fn of_group(nodes: usize, group: PodGroup) -> Self {
        let mut kit = Kit::of_nodes(nodes, 1);
        let low = kit.claims(nodes, &train("default", whole(1)));
        kit.converge();
        let members = kit.gang(group, nodes, &whole(1));
        kit.cycle();
        assert!(members.iter().all(|member| kit.cluster.allocation(*member).is_some()), "each has a place");
        assert_eq!(kit.running(&members), 0, "no claim has left yet");
        Self { kit, low, members }
    }

    /// Lets the claim that leaves a member's place be gone.
    fn free_place_of(&mut self, member: usize) {
        let node = self.node_of(member);
        let leaving = |claim: &ClaimId| self.kit.cluster.leaving(*claim).is_some_and(|at| at.node == node);
        let there = self.low.iter().copied().find(leaving).expect("a claim leaves it");
        self.kit.event(Event::ClaimGone(there));
    }

    fn node_of(&self, member: usize) -> NodeId {
        self.kit.cluster.allocation(self.members[member]).expect("it is placed").node
    }

    fn placed(&self) -> usize {
        self.members.iter().filter(|member| self.kit.cluster.allocation(**member).is_some()).count()
    }

    fn running(&self) -> usize {
        self.kit.running(&self.members)
    }

    /// An event that takes one of two members away takes both away, in their order. They come back together.
    fn both_wait_again(mut self, event: Event) {
        let Outcome::Claims { mut displaced, ready } = self.kit.event(event) else { panic!("claims are displaced") };
        displaced.sort_unstable();
        assert_eq!((displaced, ready), (self.members.clone(), vec![]));
        self.kit.let_go();
        assert_eq!(self.running(), 0, "room is free, but one alone does not start");
        // A claim that has failed is tried again later.
        self.kit.advance(10_000);
        self.kit.node(node("spare", 2));
        self.kit.converge();
        assert_eq!(self.running(), 2);
    }
}

#[test]
fn a_gang_does_not_start_without_a_member_whose_node_is_gone() {
    let setting = Setting::new(2, 2);
    let event = Event::NodeRemoved(setting.node_of(1));
    setting.both_wait_again(event);
}

#[test]
fn a_gang_does_not_start_without_a_member_that_fails() {
    let setting = Setting::new(2, 2);
    let event = Event::ClaimFailed(setting.members[0]);
    setting.both_wait_again(event);
}

#[test]
fn a_gang_does_not_start_without_a_member_that_somebody_has_evicted() {
    let setting = Setting::new(2, 2);
    let event = Event::ClaimEvicted(setting.members[0]);
    setting.both_wait_again(event);
}

#[test]
fn a_gang_does_not_start_on_a_device_that_has_failed() {
    let setting = Setting::new(2, 2);
    let node = setting.node_of(0);
    setting.both_wait_again(Event::DeviceHealthChanged { node, device: 0, health: Health::Unhealthy });
}

#[test]
fn a_gang_does_not_start_on_a_node_that_is_cordoned() {
    let setting = Setting::new(2, 2);
    let node = setting.node_of(1);
    let spec = NodeSpec::from(setting.kit.cluster.node(node).expect("it is there").spec());
    setting.both_wait_again(Event::NodeRelabelled(node, NodeSpec { cordoned: true, ..spec }));
}

#[test]
fn a_claim_does_not_start_on_a_device_that_has_failed() {
    let mut setting = Setting::of_group(1, PodGroup { priority: 100, ..gang("alone", "default", 1) });
    let node = setting.node_of(0);
    setting.kit.event(Event::DeviceHealthChanged { node, device: 0, health: Health::Unhealthy });
    assert_eq!(setting.placed(), 0);
}

#[test]
fn what_runs_on_a_device_that_has_failed_is_for_others_to_end() {
    let mut kit = Kit::of_nodes(1, 1);
    let claims = kit.claims(1, &train("default", whole(1)));
    kit.converge();
    let node = kit.cluster.node_named("node-0").expect("it is there");
    kit.event(Event::DeviceHealthChanged { node, device: 0, health: Health::Unhealthy });
    assert_eq!(kit.running(&claims), 1);
}

#[test]
fn a_gang_does_not_start_without_a_member_that_was_removed() {
    let mut setting = Setting::new(2, 2);
    let outcome = setting.kit.event(Event::ClaimRemoved(setting.members[1]));
    assert_eq!(outcome, Outcome::Claims { displaced: vec![setting.members[0]], ready: vec![] });
    setting.kit.let_go();
    assert_eq!(setting.running(), 0);
    let member = Claim { request: whole(1), pod_group: Some("gang".into()), ..Claim::default() };
    setting.members[1] = setting.kit.claim(member);
    setting.kit.converge();
    assert_eq!(setting.running(), 2);
}

#[test]
fn a_gang_that_needs_more_than_was_decided_waits_again() {
    let mut setting = Setting::new(2, 2);
    let group = setting.kit.cluster.group_of(setting.members[0]).expect("it is a gang's member");
    let more = PodGroup { priority: 100, ..gang("gang", "default", 3) };
    setting.kit.event(Event::PodGroupChanged(group, more));
    assert_eq!(setting.placed(), 0);
}

#[test]
fn members_that_become_necessary_start_with_the_others() {
    let mut setting = Setting::new(3, 2);
    let group = setting.kit.cluster.group_of(setting.members[0]).expect("it is a gang's member");
    let more = PodGroup { priority: 100, ..gang("gang", "default", 3) };
    setting.kit.event(Event::PodGroupChanged(group, more));
    setting.free_place_of(0);
    setting.free_place_of(1);
    assert_eq!(setting.running(), 0);
    setting.free_place_of(2);
    assert_eq!(setting.running(), 3);
}

#[test]
fn a_gang_starts_without_a_member_that_it_can_do_without() {
    let mut setting = Setting::new(3, 2);
    let node = setting.node_of(2);
    setting.kit.event(Event::NodeRemoved(node));
    assert_eq!(setting.placed(), 2, "the others keep their places");
    setting.free_place_of(0);
    assert_eq!(setting.running(), 0);
    setting.free_place_of(1);
    assert_eq!(setting.running(), 2);
}

#[test]
fn a_member_beyond_the_minimum_takes_the_place_of_one_that_is_lost() {
    let mut setting = Setting::new(3, 2);
    let node = setting.node_of(0);
    setting.kit.event(Event::NodeRemoved(node));
    assert_eq!(setting.placed(), 2);
    setting.free_place_of(1);
    assert_eq!(setting.running(), 0, "alone it would be too few");
    setting.free_place_of(2);
    assert_eq!(setting.running(), 2);
}

#[test]
fn members_beyond_the_minimum_start_when_they_can_but_not_before_it() {
    let mut setting = Setting::new(4, 2);
    setting.free_place_of(3);
    assert_eq!(setting.running(), 0);
    setting.free_place_of(0);
    setting.free_place_of(1);
    assert_eq!(setting.running(), 3, "the minimum, and the member with a free place");
    setting.free_place_of(2);
    assert_eq!(setting.running(), 4);
}

#[test]
fn a_gang_does_not_start_without_a_sort_of_member() {
    let sub_group = |name: &str, min_members| SubGroup { name: name.into(), min_members, ..SubGroup::default() };
    let mut kit = Kit::of_nodes(3, 1);
    let low = kit.claims(3, &train("default", whole(1)));
    kit.converge();
    let sub_groups = vec![sub_group("head", 1), sub_group("worker", 1)];
    kit.group(PodGroup { priority: 100, sub_groups, ..gang("gang", "default", 2) });
    let member = |sort: &str| Claim {
        request: whole(1),
        pod_group: Some("gang".into()),
        sub_group: Some(sort.into()),
        ..Claim::default()
    };
    let members: Vec<ClaimId> = ["head", "worker", "worker"].iter().map(|sort| kit.claim(member(sort))).collect();
    kit.cycle();
    assert!(low.iter().all(|claim| kit.cluster.leaving(*claim).is_some()));
    kit.event(Event::ClaimFailed(members[0]));
    assert!(members.iter().all(|member| kit.cluster.allocation(*member).is_none()), "workers without a head");
    kit.let_go();
    kit.advance(10_000);
    kit.converge();
    assert_eq!(kit.running(&members), 3);
}

#[test]
fn replacements_do_not_start_for_a_gang_that_has_lost_more_meanwhile() {
    let mut kit = Kit::of_nodes(2, 1);
    let group = PodGroup { priority: 100, ..gang("gang", "default", 2) };
    let members = kit.gang(group, 2, &whole(1));
    kit.converge();
    assert_eq!(kit.running(&members), 2);
    kit.node(node("node-2", 1));
    let low = kit.claims(1, &train("default", whole(1)));
    kit.converge();
    let of = |kit: &Kit, member: usize| kit.cluster.allocation(members[member]).expect("it is placed").node;
    let first = of(&kit, 0);
    kit.event(Event::NodeRemoved(first));
    kit.cycle();
    assert!(kit.cluster.leaving(low[0]).is_some(), "it makes way for the replacement");
    let second = of(&kit, 1);
    kit.event(Event::NodeRemoved(second));
    assert_eq!(kit.cluster.allocation(members[0]), None, "one of two is too few");
    kit.let_go();
    kit.converge();
    assert_eq!(kit.running(&members), 0);
    kit.node(node("node-3", 1));
    kit.converge();
    assert_eq!(kit.running(&members), 2);
}

#[test]
fn a_member_that_joins_a_gang_that_has_yet_to_start_does_not_start_before_it() {
    let mut setting = Setting::new(2, 2);
    setting.kit.node(node("spare", 4));
    let late = Claim { request: whole(3), pod_group: Some("gang".into()), ..Claim::default() };
    let late = setting.kit.claim(late);
    setting.kit.cycle();
    assert!(setting.kit.cluster.allocation(late).is_some(), "there is room for it");
    assert_eq!(setting.kit.running(&[late]), 0);
    setting.kit.let_go();
    assert_eq!((setting.running(), setting.kit.running(&[late])), (2, 1));
}

#[test]
fn a_gang_that_waits_to_start_makes_way_as_a_whole() {
    let mut setting = Setting::new(2, 2);
    let high = setting.kit.claim(Claim { priority: 125, preemptible: false, ..train("default", whole(1)) });
    setting.kit.cycle();
    assert_eq!(setting.placed(), 0);
    setting.kit.let_go();
    assert_eq!((setting.running(), setting.kit.running(&[high])), (0, 1));
}

#[test]
fn a_worker_that_is_replaced_starts_beside_the_head_that_runs() {
    let sub_group = |name: &str| SubGroup { name: name.into(), min_members: 1, ..SubGroup::default() };
    let of_priority = |priority| PodGroup {
        priority,
        sub_groups: vec![sub_group("head"), sub_group("worker")],
        ..gang("gang", "default", 2)
    };
    let mut kit = Kit::of_nodes(2, 1);
    let id = kit.group(of_priority(100));
    let member = |sort: &str| Claim {
        request: whole(1),
        pod_group: Some("gang".into()),
        sub_group: Some(sort.into()),
        ..Claim::default()
    };
    let members: Vec<ClaimId> = ["head", "worker"].iter().map(|sort| kit.claim(member(sort))).collect();
    kit.converge();
    kit.node(node("node-2", 1));
    let low = kit.claim(train("default", whole(1)));
    kit.converge();
    let lost = kit.cluster.allocation(members[1]).expect("it is placed").node;
    kit.event(Event::NodeRemoved(lost));
    kit.cycle();
    assert!(kit.cluster.leaving(low).is_some(), "it makes way for the worker");
    kit.event(Event::PodGroupChanged(id, of_priority(101)));
    assert!(kit.cluster.allocation(members[1]).is_some(), "with the head it is enough");
    kit.let_go();
    assert_eq!(kit.running(&members), 2);
}
