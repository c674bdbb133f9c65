//! Errors that once occurred, or could have.

use std::collections::BTreeMap;
use std::sync::Arc;

use aliquot_scheduler_core::placement::BestFit;
use aliquot_scheduler_core::{
    Allowance, Bytes, Claim, ClaimBounds, ClaimId, Cluster, DeviceCore, DeviceMemory, DeviceRequest, DisruptionBudget,
    Event, FurtherRequest, FurtherRequests, GroupPlacement, LimitRange, MilliCpu, NamespaceSpec, NodeSpec, Plan,
    PodGroup, QueueSpec, Request, Resource, Scheduler, Settings, SubGroup, Texts,
};
use aliquot_scheduler_kit::{Build, device, node};

use crate::setting::{INFERENCE, TRAIN, World, build, evicted, group, moved, part, wants};

#[test]
fn an_elastic_member_that_fits_nowhere_does_not_keep_the_others_from_running() {
    let mut w = World::new(&[2]);
    w.apply(Event::PodGroupAdded(group("g", "", TRAIN, 0)));
    let _ = w.claim(Claim { pod_group: Some("g".into()), ..wants("", 0, 64) });
    let small = w.claim(Claim { pod_group: Some("g".into()), ..wants("", 0, 1) });
    for _ in 0..5 {
        w.cycle();
    }
    assert!(w.runs(small));
}

#[test]
fn a_member_that_may_go_anywhere_leaves_the_only_place_of_another_member_free() {
    let mut cluster = Cluster::new();
    for model in ["A", "B"] {
        cluster.add_node(NodeSpec { devices: vec![device(model)], ..node(model, 64, 0) });
    }
    let mut w = World { cluster, scheduler: Scheduler::new(Box::new(BestFit), Settings::default()) };
    w.apply(Event::PodGroupAdded(group("g", "", TRAIN, 2)));
    let any = w.claim(Claim { pod_group: Some("g".into()), ..wants("", 0, 1) });
    let mut only = Claim { pod_group: Some("g".into()), ..wants("", 0, 1) };
    only.request.constraints.models.insert("A".into());
    let only = w.claim(only);
    for _ in 0..5 {
        w.cycle();
    }
    assert_eq!(w.running(&[any, only]), 2);
}

#[test]
fn moves_keep_a_disruption_budget_too() {
    let mut w = World::new(&[2, 2, 2, 2]);
    let zone = |mut claim: Claim, zone: &str| {
        claim.request.constraints.labels.insert("zone".into(), zone.into());
        claim
    };
    for n in 0..4 {
        let labels = Texts::from([("zone".into(), if n < 2 { "a" } else { "b" }.into())]);
        let id = w.id(n);
        w.apply(Event::NodeRelabelled(id, NodeSpec { labels, ..NodeSpec::default() }));
    }
    w.apply(Event::BudgetChanged(DisruptionBudget { name: "b".into(), namespace: String::new(), min_available: 1 }));
    let mut vs = Vec::new();
    for (n, z) in [(0, "a"), (2, "b")] {
        let v = w.claim(zone(Claim { disruption_budget: Some("b".into()), ..wants("", TRAIN, 1) }, z));
        w.run_on(v, n, 0);
        vs.push(v);
    }
    for n in [1, 3] {
        let f = w.claim(build("", 1));
        w.run_on(f, n, 0);
    }
    let u1 = w.claim(zone(wants("", TRAIN, 2), "a"));
    let u2 = w.claim(zone(wants("", TRAIN, 2), "b"));
    let plan = w.scheduler.cycle(&mut w.cluster);
    let there = vs.iter().filter(|v| w.cluster.started_ms(**v).is_some()).count();
    assert!(
        there >= 1,
        "of two claims one must be there, but both are between two places: moved {:?}, placed {} {}",
        moved(&plan),
        w.runs(u1),
        w.runs(u2)
    );
}

#[test]
fn what_is_borrowed_cannot_be_declared_not_to_be_given_back() {
    let mut w = World::new(&[8]);
    w.queue("red", 4);
    w.queue("blue", 4);
    let id = w.cluster.add_group(group("g", "red", TRAIN, 8));
    for _ in 0..8 {
        w.claim(Claim { pod_group: Some("g".into()), ..wants("", 0, 1) });
    }
    w.cycle();
    assert_eq!(w.devices_of("red"), 8);
    let changed =
        w.cluster.apply(Event::PodGroupChanged(id, PodGroup { preemptible: false, ..group("g", "red", TRAIN, 8) }));
    let b = w.add("blue", TRAIN, 4);
    for _ in 0..5 {
        w.cycle();
    }
    assert!(changed.is_err() || w.runs(b), "8 devices with a quota of 4 are held for ever");
}

#[test]
fn a_claim_cannot_be_resized_beyond_its_namespaces_bounds() {
    let mut w = World::new(&[4]);
    let limit_range = LimitRange {
        device_core: ClaimBounds { maximum: Some(500), ..ClaimBounds::default() },
        ..LimitRange::default()
    };
    w.apply(Event::NamespaceChanged(NamespaceSpec { name: "team".into(), limit_range, ..NamespaceSpec::default() }));
    let c = w.claim(Claim { namespace: "team".into(), ..part("", TRAIN, 40) });
    let r = w.cluster.apply(Event::ClaimResized(c, part("", TRAIN, 100).request));
    assert!(r.is_err());
}

/// The queue of a withdrawn claim could be removed, and then a dump of the cluster could not be restored.
#[test]
fn a_queue_stays_as_long_as_a_withdrawn_claim_is_in_it() {
    let mut w = World::new(&[1]);
    w.queue("q", 1);
    let claim = w.add("q", TRAIN, 1);
    w.apply(Event::ClaimWithdrawn(claim));
    assert!(w.cluster.apply(Event::QueueRemoved("q".into())).is_err());
    let dump = w.scheduler.dump(&w.cluster);
    assert!(Scheduler::restore(Box::new(BestFit), Settings::default(), dump).is_ok());
    w.apply(Event::ClaimRemoved(claim));
    w.apply(Event::QueueRemoved("q".into()));
}

/// A member that waited only so that its gang starts together was taken out of its place and put back by one plan. It
/// then waited for no claim, and nothing started it.
#[test]
fn a_member_that_is_put_back_into_its_place_starts() {
    let mut w = World::new(&[1, 0]);
    let x = w.add("", TRAIN, 1);
    w.cycle();
    assert!(w.runs(x));
    w.apply(Event::PodGroupAdded(group("g", "", INFERENCE, 1)));
    let member = |devices| Claim { pod_group: Some("g".into()), ..wants("", 0, devices) };
    let (first, second) = (w.claim(member(1)), w.claim(member(1)));
    let mut elsewhere = member(0);
    elsewhere.request.constraints.labels.insert("host".into(), "node-1".into());
    let elsewhere = w.claim(elsewhere);
    // The evicted claim takes its time.
    w.scheduler.cycle(&mut w.cluster);
    assert!(w.runs(first) && !w.runs(second));
    assert_eq!(w.cluster.starts_after(elsewhere), [x], "the gang starts together");
    let urgent = w.add("", INFERENCE + 1, 1);
    w.scheduler.cycle(&mut w.cluster);
    assert!(w.runs(urgent) && !w.runs(first));
    assert_eq!(w.cluster.allocation(elsewhere).map(|at| at.node), Some(w.id(1)));
    w.apply(Event::ClaimGone(x));
    assert!(w.cluster.started_ms(elsewhere).is_some(), "it waits for {:?}", w.cluster.starts_after(elsewhere));
}

/// A claim that takes less in all could grow on a device without room for it, because a smaller claim needs no room.
#[test]
fn a_claim_that_shrinks_in_all_does_not_grow_on_a_full_device() {
    let mut w = World::new(&[2]);
    let percent = |count: u16, core: u32| DeviceRequest {
        count,
        core: DeviceCore::from_percent(core),
        memory: DeviceMemory::Thousandths(100),
    };
    let further = FurtherRequest { name: "further".into(), devices: percent(1, 60), ..FurtherRequest::default() };
    let further = FurtherRequests { requests: vec![further], ..FurtherRequests::default() };
    let asks = Request { devices: percent(1, 100), further: Some(Arc::new(further)), ..Request::default() };
    let c = w.claim(Claim { request: asks, preemptible: true, ..Claim::default() });
    let other = w.claim(part("", TRAIN, 40));
    w.cycle();
    assert!(w.runs(c) && w.runs(other), "all of one device is taken, and 60 + 40 % of the other one");
    let asks = Request { devices: percent(2, 70), ..Request::default() };
    assert!(w.cluster.apply(Event::ClaimResized(c, asks)).is_err());
    assert_eq!(w.cluster.over_committed().count(), 0);
    let held: u32 = w.cluster.allocation(c).into_iter().flat_map(|at| &at.devices).map(|part| part.core.get()).sum();
    assert_eq!(held, 1600);
}

#[test]
fn sub_groups_of_any_size_upset_nothing() {
    let mut w = World::new(&[4]);
    let sub = |name: &str, min_members| SubGroup { name: name.into(), min_members, ..SubGroup::default() };
    let of = |min_members| PodGroup {
        sub_groups: vec![sub("a", min_members), sub("b", min_members)],
        ..group("g", "", TRAIN, 0)
    };
    let refused = w.cluster.apply(Event::PodGroupAdded(of(u32::MAX)));
    assert!(refused.is_err_and(|error| error.to_string().contains("needs 8589934590 members")));
    w.apply(Event::PodGroupAdded(of(500_000)));
    w.claim(Claim { pod_group: Some("g".into()), ..wants("", 0, 1) });
    w.cycle();
}

#[test]
fn requests_as_great_as_can_be_written_leave_the_books_true() {
    let mut w = World::new(&[4]);
    let huge = Claim { request: Request { memory: Bytes::new(u64::MAX), ..Request::default() }, ..Claim::default() };
    let a = w.claim(huge.clone());
    let b = w.claim(huge);
    w.apply(Event::ClaimRemoved(a));
    w.apply(Event::ClaimRemoved(b));
}

#[test]
fn nodes_as_great_as_can_be_written_upset_nothing() {
    let mut cluster = Cluster::new();
    for n in 0..3 {
        cluster.add_node(NodeSpec { cpu: MilliCpu::new(u64::MAX), ..node(&format!("node-{n}"), 0, 1) });
    }
    let mut w = World { cluster, scheduler: Scheduler::new(Box::new(BestFit), Settings::default()) };
    for n in 0..3 {
        let c = w.claim(part("", TRAIN, 50));
        w.run_on(c, n, 0);
    }
    w.add("", TRAIN, 1);
    w.cycle();
}

#[test]
fn a_restored_cluster_evicts_stale_gangs_in_the_same_order() {
    let mut w = World::new(&[4]);
    // Slots of groups: two single claims make way for two gangs, and the later gang gets the earlier slot.
    let a = w.add("", TRAIN, 1);
    let b = w.add("", TRAIN, 1);
    w.apply(Event::ClaimRemoved(a));
    w.apply(Event::ClaimRemoved(b));
    let stale = |name: &str| PodGroup { staleness_grace_ms: Some(10), ..group(name, "", TRAIN, 2) };
    let g = w.gang(stale("first"), 2, 1);
    let h = w.gang(stale("second"), 2, 1);
    w.cycle();
    assert_eq!(w.running(&g) + w.running(&h), 4);
    w.apply(Event::ClaimRemoved(g[0]));
    w.apply(Event::ClaimRemoved(h[0]));
    w.wait(1000);
    let dump = w.scheduler.dump(&w.cluster);
    let (mut s2, mut c2) = Scheduler::restore(Box::new(BestFit), Settings::default(), dump).unwrap();
    let of = |cluster: &Cluster, plan: &Plan| -> Vec<String> {
        plan.steps
            .iter()
            .map(|s| {
                let g = cluster.group_of(s.step.claim()).unwrap();
                cluster.group_name(g)
            })
            .collect()
    };
    let one = w.scheduler.cycle(&mut w.cluster);
    let two = s2.cycle(&mut c2);
    assert_eq!(of(&w.cluster, &one), of(&c2, &two));
}

#[test]
fn the_queue_of_a_namespace_goes_only_with_it() {
    let mut w = World::new(&[2]);
    w.apply(Event::NamespaceChanged(NamespaceSpec { name: "team".into(), ..NamespaceSpec::default() }));
    let removed = w.cluster.apply(Event::QueueRemoved("namespace/team".into()));
    let c = w.cluster.apply(Event::ClaimAdded(Claim { namespace: "team".into(), ..wants("", 0, 1) }));
    assert!(removed.is_err() || c.is_ok(), "{c:?}");
    assert!(w.cluster.apply(Event::NamespaceRemoved("team".into())).is_ok() || c.is_ok());
}

#[test]
fn a_claim_that_ran_long_after_a_failure_starts_anew() {
    let mut w = World::new(&[2]);
    let c = w.add("", TRAIN, 1);
    for _ in 0..12 {
        w.cycle();
        assert!(w.runs(c));
        w.wait(86_400_000);
        w.apply(Event::ClaimFailed(c));
        w.wait(400_000);
    }
    w.cycle();
    w.wait(86_400_000);
    w.apply(Event::ClaimFailed(c));
    let (_, retry) = w.cluster.failures(c);
    assert!(retry - w.cluster.now_ms() <= 1000, "{}", retry - w.cluster.now_ms());
}

#[test]
fn two_queues_that_wait_for_the_same_do_not_end_the_cycle_for_all_others() {
    let mut w = World::new(&[4]);
    for queue in ["red", "blue", "green"] {
        w.queue(queue, 1);
    }
    let k = w.claim(build("default", 3));
    w.run_on(k, 0, 0);
    for queue in ["red", "blue"] {
        w.add(queue, TRAIN, 2);
    }
    for queue in ["red", "blue"] {
        w.add(queue, TRAIN, 3);
    }
    let _ = w.add("green", 60, 2);
    let g = w.add("green", TRAIN, 1);
    let plan = w.cycle();
    assert_eq!(plan.pending.len(), 5, "all pending groups are named");
    assert!(w.runs(g));
}

#[test]
fn reclaim_looks_at_more_domains_than_sixteen_before_it_says_that_there_is_nothing() {
    let mut cluster = Cluster::new();
    for n in 0..20 {
        let labels = Texts::from([("rack".into(), format!("{n:02}"))]);
        cluster.add_node(NodeSpec { labels, ..node(&format!("node-{n}"), 64, 2) });
    }
    cluster.apply(Event::TopologyChanged(vec!["rack".into()])).unwrap();
    let mut w = World { cluster, scheduler: Scheduler::new(Box::new(BestFit), Settings::default()) };
    w.queue("red", 4);
    w.queue_with("blue", None, Allowance { quota: Some(0), weight: 0, ..Allowance::default() });
    for n in 0..20 {
        for d in 0..2 {
            let c = if n < 18 { w.claim(build("default", 1)) } else { w.add("blue", TRAIN, 1) };
            w.run_on(c, n, d);
        }
    }
    let spread = GroupPlacement { required_level: Some("rack".into()), ..GroupPlacement::default() };
    let gang = w.gang(PodGroup { spread, ..group("g", "red", TRAIN, 2) }, 2, 1);
    for _ in 0..20 {
        w.cycle();
    }
    assert_eq!(w.running(&gang), 2);
}

#[test]
fn a_claim_that_is_being_moved_is_not_an_easier_victim_than_one_that_runs() {
    // The moved claim could be evicted for good in the next cycle, although another claim, which has run as long and has
    // a lower priority, could be evicted as well.
    let mut w = World::new(&[2, 2, 1]);
    w.queue("red", 1);
    w.queue_with("blue", None, Allowance { quota: Some(0), weight: 0, ..Allowance::default() });
    let m = w.add("blue", 60, 1);
    w.run_on(m, 0, 0);
    let f = w.claim(build("default", 1));
    w.run_on(f, 1, 0);
    let other = w.add("blue", TRAIN, 1);
    w.run_on(other, 2, 0);
    let u = w.claim(build("default", 2));
    let plan = w.scheduler.cycle(&mut w.cluster);
    assert!(w.runs(u));
    assert_eq!(moved(&plan), [m]);
    let r = w.add("red", TRAIN, 1);
    w.scheduler.cycle(&mut w.cluster);
    assert!(w.runs(r));
    assert!(w.runs(m), "of higher priority than the other one; but evicted because it is between two places");
}

#[test]
fn who_is_preempted_for_a_claim_that_cannot_be_started_is_not_preempted_for_it_again_and_again() {
    let mut w = World::new(&[1]);
    w.queue("red", 1);
    let low = w.add("red", TRAIN, 1);
    w.cycle();
    let broken = w.add("red", INFERENCE, 1);
    let mut evictions = 0;
    for _ in 0..100 {
        evictions += evicted(&w.cycle()).iter().filter(|claim| **claim == low).count();
        if w.runs(broken) {
            w.apply(Event::ClaimFailed(broken));
        }
        w.wait(30_000);
    }
    assert!(evictions <= 6, "evicted {evictions} times in 50 minutes for a claim that never starts");
}

/// Two nodes with one device each, one of model A and one of model B. Blue has borrowed both. Red is entitled to one
/// device, but to none of model A.
fn two_models_one_of_which_red_may_not_have() -> World {
    let mut cluster = Cluster::new();
    for model in ["A", "B"] {
        cluster.add_node(NodeSpec { devices: vec![device(model)], ..node(model, 64, 0) });
    }
    let mut w = World { cluster, scheduler: Scheduler::new(Box::new(BestFit), Settings::default()) };
    let one = Allowance { quota: Some(1000), weight: 1, ..Allowance::default() };
    w.queue_with("blue", None, Allowance { quota: Some(0), weight: 0, ..Allowance::default() });
    let first = w.add("blue", TRAIN, 1);
    let second = w.add("blue", TRAIN, 1);
    w.cycle();
    assert_eq!(w.running(&[first, second]), 2);
    w.apply(Event::QueueAdded(QueueSpec {
        name: "red".into(),
        allowances: BTreeMap::from([(Resource::DeviceCore, one)]),
        ..QueueSpec::default()
    }));
    w
}

/// An event that gives red devices of any model, with an allowance for this one model.
fn red_with(model: &str, allowance: Allowance) -> Event {
    let one = Allowance { quota: Some(1000), weight: 1, ..Allowance::default() };
    let allowances = BTreeMap::from([(Resource::DeviceCore, one), (Resource::ModelCore(model.into()), allowance)]);
    Event::QueueChanged(QueueSpec { name: "red".into(), allowances, ..QueueSpec::default() })
}

#[test]
fn reclaim_takes_devices_of_a_model_that_the_queue_may_have() {
    // A claim that may not be evicted is bound by the quota, even if the queue's share is larger.
    for (limit, weight, preemptible) in [(Some(0), 0, true), (None, 0, true), (None, 1, false)] {
        let mut w = two_models_one_of_which_red_may_not_have();
        for model in ["A", "B"] {
            w.apply(red_with(model, Allowance { quota: Some(0), limit, weight, ..Allowance::default() }));
            let red = w.claim(Claim { preemptible, ..wants("red", TRAIN, 1) });
            for _ in 0..5 {
                w.cycle();
            }
            assert!(w.runs(red), "not of model {model}, with a limit of {limit:?}, but of the other one");
            w.apply(Event::ClaimRemoved(red));
            w.cycle();
        }
    }
}

#[test]
fn preemption_takes_devices_of_a_model_that_the_queue_may_have() {
    for model in ["A", "B"] {
        let mut w = two_models_one_of_which_red_may_not_have();
        let blue: Vec<ClaimId> = w.cluster.claims().map(|(id, ..)| id).collect();
        blue.into_iter().for_each(|id| _ = w.apply(Event::ClaimRemoved(id)));
        for _ in 0..2 {
            w.add("red", TRAIN, 1);
        }
        w.cycle();
        // As those claims run, red may hold nothing more of that model.
        w.apply(red_with(model, Allowance { quota: Some(0), limit: Some(0), weight: 0, ..Allowance::default() }));
        let urgent = w.add("red", INFERENCE, 1);
        w.cycle();
        let at = w.cluster.allocation(urgent).and_then(|at| w.cluster.node(at.node)).expect("a claim makes way");
        assert_ne!(at.spec().name, model);
    }
}

#[test]
fn a_free_device_of_a_model_that_a_queue_may_not_have_does_not_keep_it_from_reclaiming_another() {
    let mut w = two_models_one_of_which_red_may_not_have();
    w.apply(red_with("A", Allowance { quota: Some(0), limit: Some(0), weight: 0, ..Allowance::default() }));
    let of_a = w.cluster.claims().find(|(.., at)| at.is_some_and(|at| at.node == w.cluster.node_named("A").unwrap()));
    let of_a = of_a.map(|(id, ..)| id).expect("blue has a device of model A");
    w.apply(Event::ClaimRemoved(of_a));
    let red = w.add("red", TRAIN, 1);
    w.cycle();
    assert!(w.runs(red));
}

#[test]
fn two_members_of_one_disruption_budget_are_not_moved_at_once_for_two_members_of_a_gang() {
    let mut w = World::new(&[2, 2, 2, 2]);
    w.apply(Event::BudgetChanged(DisruptionBudget { name: "b".into(), namespace: String::new(), min_available: 1 }));
    let kept = Claim { disruption_budget: Some("b".into()), ..wants("", TRAIN, 1) };
    let kept: Vec<_> = (0..2).map(|_| w.claim(kept.clone())).collect();
    let fixed: Vec<_> = (0..2).map(|_| w.claim(build("", 1))).collect();
    for number in 0..2 {
        w.run_on(kept[number], number, 0);
        w.run_on(fixed[number], number + 2, 0);
    }
    let gang = w.gang(group("g", "", TRAIN, 2), 2, 2);
    let plan = w.scheduler.cycle(&mut w.cluster);
    assert_eq!(moved(&plan), [], "of two one must be there at any time");
    assert_eq!(w.running(&gang), 0);
}

#[test]
fn a_claim_moves_to_a_node_that_has_the_same_models_in_another_order() {
    let mut w = World::new(&[]);
    for (name, models) in [("node-0", ["A", "B", "A", "A"]), ("node-1", ["B", "A", "A", "A"])] {
        w.cluster.add_node(NodeSpec { devices: models.map(device).into(), ..node(name, 64, 0) });
    }
    w.queue("q", 8);
    let small = w.add("q", TRAIN, 2);
    w.run_on(small, 0, 0);
    let stays = w.claim(build("q", 2));
    w.run_on(stays, 1, 2);
    let large = w.add("q", TRAIN, 4);
    assert_eq!(moved(&w.cycle()), [small], "each has a device of either model free");
    assert!(w.runs(large));
}

#[test]
fn a_claim_that_is_being_moved_is_moved_no_further_before_it_has_started() {
    let mut w = World::new(&[2, 3, 2]);
    w.queue("red", 8);
    let m = w.add("red", TRAIN, 1);
    w.run_on(m, 0, 0);
    let others: Vec<_> = (0..4).map(|_| w.claim(build("default", 1))).collect();
    for (claim, (node, device)) in others.iter().zip([(1, 0), (1, 1), (2, 0), (2, 1)]) {
        w.run_on(*claim, node, device);
    }
    w.claim(build("default", 2));
    assert_eq!(moved(&w.scheduler.cycle(&mut w.cluster)), [m]);
    // Now the new node of the claim has room for two more devices, if the claim moved on to the next node.
    w.apply(Event::ClaimRemoved(others[0]));
    w.apply(Event::ClaimRemoved(others[2]));
    let waits = w.claim(build("default", 2));
    assert_eq!(moved(&w.scheduler.cycle(&mut w.cluster)), []);
    w.apply(Event::ClaimGone(m));
    assert_eq!(moved(&w.scheduler.cycle(&mut w.cluster)), [m], "it has started");
    assert!(w.runs(waits));
}
