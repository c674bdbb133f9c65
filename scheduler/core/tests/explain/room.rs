//! Reasons about nodes, racks, and the claims that hold them.

use aliquot_scheduler_core::explain::{Protection, Reason, Shortage};
use aliquot_scheduler_core::{
    Allowance, Claim, DisruptionBudget, Event, GroupPlacement, MilliCpu, PlacementStrategy, PodGroup, Request, SubGroup,
};

use crate::setting::{Setting, cores, node, quota, whole};

#[test]
fn who_is_guarded_by_a_budget_with_nothing_to_spare_is_told_apart_from_who_could_go() {
    for (min_available, evictable, protected) in [(2, 2, 0), (3, 0, 2)] {
        let mut setting = Setting::with_nodes(1, 4);
        setting.add_queue("rich", None, quota(100));
        setting.add_queue("poor", None, quota(200));
        setting.add_queue("content", None, quota(100));
        setting.add_in("content", "within its share", whole(1));
        let budget = DisruptionBudget { name: "budget".into(), min_available, ..DisruptionBudget::default() };
        setting.cluster.apply(Event::BudgetChanged(budget)).expect("a budget");
        for _ in 0..3 {
            setting.add_claim(Claim {
                queue: "rich".into(),
                request: whole(1),
                preemptible: true,
                disruption_budget: Some("budget".into()),
                ..Claim::default()
            });
        }
        setting.cycle();
        let waits = setting.add_in("poor", "waits", whole(2));
        setting.cycle();
        let (reason, _) = setting.reason(waits);
        let Reason::NothingToReclaim { holders, .. } = &reason else { panic!("{reason:?}") };
        let [rich] = holders.as_slice() else { panic!("{holders:?}") };
        let by_budget: u32 = rich.protected.iter().map(|(_, units)| *units).sum();
        assert_eq!((rich.evictable, by_budget), (evictable, protected));
        let is_named = |(by, _): &(Protection, u32)| *by == Protection::DisruptionBudget { name: "budget".into() };
        assert!(rich.protected.iter().all(is_named));
    }
}

#[test]
fn a_rack_that_has_room_for_the_member_that_finds_none_is_not_called_too_small_for_it() {
    let mut setting = Setting::new();
    setting.cluster.apply(Event::TopologyChanged(vec!["rack".into()])).expect("levels");
    let mut spec = node("node-0", "A", 3);
    spec.labels.insert("rack".into(), "r".into());
    setting.add_node(spec);
    let sub_group = |name: &str| SubGroup { name: name.into(), min_members: 1, ..SubGroup::default() };
    let spread = GroupPlacement { required_level: Some("rack".into()), ..GroupPlacement::default() };
    let sub_groups = vec![sub_group("head"), sub_group("worker")];
    let gang = PodGroup { name: "gang".into(), sub_groups, spread, ..PodGroup::default() };
    setting.cluster.apply(Event::PodGroupAdded(gang)).expect("a new group");
    let mut member = |name: &str, cpu: u64| {
        setting.add_claim(Claim {
            pod_group: Some("gang".into()),
            sub_group: Some(name.into()),
            request: Request { cpu: MilliCpu::new(cpu), ..whole(2) },
            ..Claim::default()
        })
    };
    let (head, _) = (member("head", 1000), member("worker", 2000));
    setting.cycle();
    let reasons = setting.explain(head).reasons;
    assert!(matches!(reasons.as_slice(), [Reason::NoRoom { wanted: 2, fitting: 1, .. }]), "{reasons:?}");
}

#[test]
fn of_nodes_that_lack_the_same_the_most_that_one_has_is_told() {
    let mut setting = Setting::with_nodes(2, 0);
    setting.add("busy", cores(8));
    setting.add("busier", cores(10));
    setting.cycle();
    let waits = setting.add("waits", cores(9));
    let (reason, _) = setting.reason(waits);
    let Reason::NoRoom { nodes, .. } = &reason else { panic!("{reason:?}") };
    let [counted] = nodes.as_slice() else { panic!("{nodes:?}") };
    let (wanted, free) = (MilliCpu::new(9000), MilliCpu::new(8000));
    assert_eq!((counted.nodes, &counted.what), (2, &Shortage::Cpu { wanted, free }));
}

#[test]
fn of_nodes_that_are_kept_for_others_it_is_not_said_that_they_have_most_room() {
    let mut setting = Setting::with_nodes(1, 2);
    setting.add_node(node("kept", "A", 3));
    let kept = setting.cluster.node_named("kept").expect("a node");
    setting.cluster.set_held(kept, true).expect("a node");
    let spread = GroupPlacement { strategy: PlacementStrategy::SingleNode, ..GroupPlacement::default() };
    let gang = PodGroup { name: "gang".into(), min_members: 4, spread, ..PodGroup::default() };
    let (_, members) = setting.add_group(gang, 4, &whole(1));
    setting.cycle();
    let (reason, _) = setting.reason(members[0]);
    assert_eq!(reason, Reason::Topology { level: "node".into(), wanted: 4, best: Some(("node-0".into(), 2)) });
}

#[test]
fn of_a_claim_that_only_its_queues_limit_stops_nothing_is_said_about_who_could_make_way() {
    let mut setting = Setting::with_nodes(1, 3);
    setting.add("others", whole(1));
    setting.add_queue("team", None, Allowance { limit: Some(1000), ..quota(100) });
    setting.add_claim(Claim { queue: "team".into(), request: whole(1), ..Claim::default() });
    setting.cycle();
    let waits = setting.add_in("team", "waits", whole(1));
    setting.cycle();
    let reasons = setting.explain(waits).reasons;
    assert!(matches!(reasons.as_slice(), [Reason::QueueLimit(_)]), "{reasons:?}");
}

#[test]
fn what_protects_claims_of_a_lower_priority_is_said() {
    let mut setting = Setting::with_nodes(1, 3);
    let budget = DisruptionBudget { name: "budget".into(), min_available: 1, ..DisruptionBudget::default() };
    setting.cluster.apply(Event::BudgetChanged(budget)).expect("a budget");
    let claim = |priority: i32, preemptible: bool, budget: Option<&str>| Claim {
        request: whole(1),
        priority,
        preemptible,
        disruption_budget: budget.map(str::to_owned),
        ..Claim::default()
    };
    setting.add_claim(claim(10, true, Some("budget")));
    setting.add_claim(claim(10, false, None));
    setting.add_claim(claim(10, true, None));
    setting.cycle();
    let waits = setting.add_claim(Claim { request: whole(2), ..claim(20, true, None) });
    setting.cycle();
    let (reason, text) = setting.reason(waits);
    let Reason::NothingToPreempt { protected, evictable: 1, .. } = &reason else { panic!("{reason:?}") };
    let by_budget = Protection::DisruptionBudget { name: "budget".into() };
    assert_eq!(protected.as_slice(), [(Protection::NonPreemptible, 1), (by_budget, 1)]);
    assert!(text.contains("1 may not be evicted, 1 are protected by disruption budget \"budget\""), "{text}");
    // With the other claims of a lower priority, it only needs to wait for room.
    let waits_too = setting.add_claim(claim(5, true, None));
    setting.cycle();
    assert!(matches!(setting.reason(waits_too).0, Reason::NoRoom { .. }));
}
