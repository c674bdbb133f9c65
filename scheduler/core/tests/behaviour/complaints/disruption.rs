//! Evictions that were too many, needless, in vain, or without end.

use aliquot_scheduler_core::placement::BestFit;
use aliquot_scheduler_core::{
    Allowance, Bytes, Claim, DeviceCore, DeviceMemory, DeviceRequest, DisruptionBudget, Event, PodGroup, Request,
    Scheduler, Settings,
};

use crate::kit::{Kit, evicted, gang, node, part, quota, train, whole};

/// Reclaim deleted pods beyond their disruption budget, several at a time. Here budgets hold in every plan, for all
/// actions, and also for several evictions in one plan.
#[test]
fn reclaim_that_ignores_disruption_budgets() {
    let mut kit = Kit::of_nodes(2, 4);
    kit.queue("owner", quota(8));
    kit.queue("guest", quota(0));
    let budget = DisruptionBudget { name: "quorum".into(), min_available: 5, ..DisruptionBudget::default() };
    kit.event(Event::BudgetChanged(budget));
    let protected = Claim { disruption_budget: Some("quorum".into()), ..train("guest", whole(1)) };
    let running = kit.claims(8, &protected);
    kit.converge();
    let gang = kit.gang(gang("all", "owner", 4), 4, &whole(1));
    assert!(kit.converge().is_empty(), "four would have to go, three may");
    let singles = kit.claims(4, &train("owner", whole(1)));
    kit.converge();
    assert_eq!((kit.running(&running), kit.running(&singles), kit.running(&gang)), (5, 3, 0));
}

/// Reclaim stopped at the quota, though the queue's fair share was larger; or it was given up although it was possible.
/// Here the same number decides what a queue may take back and what is taken from it.
#[test]
fn reclaim_that_stops_at_the_quota_or_is_given_up_too_early() {
    let mut kit = Kit::of_nodes(1, 8);
    kit.queue("a", quota(1));
    kit.queue("b", quota(1));
    let running = kit.claims(8, &train("b", whole(1)));
    kit.converge();
    let back = kit.claims(8, &train("a", whole(1)));
    kit.converge();
    assert_eq!((kit.running(&back), kit.running(&running)), (4, 4), "one is deserved, and half of the rest");
    kit.claims(8, &train("b", whole(1)));
    assert!(kit.converge().is_empty(), "and the other way round there is nothing to take");
}

/// A request for 48 devices evicted 376. Here only claims that are in the way are evicted, and no more device time than
/// the settings allow.
#[test]
fn a_request_for_48_devices_that_evicts_376() {
    let mut kit = Kit::of_nodes(47, 8);
    kit.queue("owner", quota(60));
    kit.queue("guest", quota(0));
    let running = kit.claims(376, &train("guest", whole(1)));
    kit.converge();
    assert_eq!(kit.running(&running), 376);
    let large = kit.gang(gang("large", "owner", 6), 6, &whole(8));
    let steps = kit.converge();
    assert_eq!((kit.running(&large), evicted(&steps).len()), (6, 48));
}

/// The same on machines that are full of parts: here only the parts that share one device are evicted.
#[test]
fn evictions_that_free_nothing_of_use() {
    let mut kit = Kit::of_nodes(4, 2);
    kit.queue("owner", quota(2));
    kit.queue("guest", quota(0));
    let parts = kit.claims(16, &train("guest", part(50)));
    kit.converge();
    assert_eq!(kit.running(&parts), 16);
    kit.claim(train("owner", whole(1)));
    assert_eq!(evicted(&kit.converge()).len(), 2, "the two that share one device");
}

#[test]
fn a_plan_that_would_evict_far_more_than_is_asked_for_is_not_made() {
    let mut kit = Kit::with(Box::new(BestFit), Settings { disruption_per_mille: 2000, ..Settings::default() });
    kit.node(node("only", 8));
    kit.queue("owner", quota(4));
    kit.queue("guest", quota(0));
    // Each device is shared by claims on all devices: to free one device, all claims would have to go.
    let spread = Request {
        devices: DeviceRequest { count: 8, core: DeviceCore::from_percent(25), memory: DeviceMemory::default() },
        ..Request::default()
    };
    let running = kit.claims(4, &train("guest", spread));
    kit.converge();
    assert_eq!(kit.running(&running), 4);
    kit.claim(train("owner", whole(1)));
    assert!(kit.converge().is_empty(), "eight devices for one");
    assert_eq!(kit.running(&running), 4);
}

/// Preemption counted pods and whole devices, and did not know parts of devices. It evicted claims that did not help,
/// or none. Here victims are found by the same books, and the same choice of devices, that place the claim afterwards.
#[test]
fn preemption_that_does_not_know_parts_of_devices() {
    let mut kit = Kit::of_nodes(1, 2);
    let memory = |percent: u32, gib: u64| Request {
        devices: DeviceRequest {
            count: 1,
            core: DeviceCore::from_percent(percent),
            memory: DeviceMemory::Bytes(Bytes::from_mib(gib << 10)),
        },
        ..Request::default()
    };
    let much_time = kit.claims(2, &train("default", memory(60, 10)));
    let much_memory = kit.claims(2, &train("default", memory(10, 60)));
    kit.converge();
    assert_eq!(kit.running(&much_time) + kit.running(&much_memory), 4);
    let needs_memory = kit.claim(Claim { priority: 100, ..train("default", memory(10, 70)) });
    let steps = kit.converge();
    assert_eq!(evicted(&steps).len(), 1, "only the claim that holds the memory: {steps:?}");
    assert!(much_memory.contains(&evicted(&steps)[0]));
    assert_eq!(kit.running(&[needs_memory]), 1);
}

/// Two queues, or two schedulers, evicted each other's claims for ever. Here what queues are entitled to does not
/// depend on what is placed, and evictions only raise what is entitled. So with any claims, without news, there is soon
/// nothing left to do.
#[test]
fn claims_that_evict_each_other_for_ever() {
    for (first, second) in [(1, 3), (2, 2), (3, 2), (3, 3), (4, 1)] {
        let mut kit = Kit::of_nodes(2, 4);
        for name in ["a", "b", "c"] {
            kit.queue(name, Allowance { quota: Some(1500), limit: None, weight: 1, priority: None });
        }
        for (queue, devices) in [("a", first), ("b", second), ("c", 2), ("a", second), ("b", first), ("c", 4)] {
            kit.claims(4, &train(queue, whole(devices)));
            kit.claims(4, &Claim { priority: 75, ..train(queue, part(40)) });
            // This call panics if the cluster does not come to rest.
            kit.converge();
        }
        assert!(kit.cycle().steps.is_empty());
    }
}

/// A gang with places for only some of its members waited, and so did claims that could have had those places. Here a
/// gang is one transaction, and a claim that cannot be placed holds nothing.
#[test]
fn a_gang_that_stalls_behind_another() {
    let mut kit = Kit::of_nodes(1, 4);
    let first = kit.gang(gang("first", "default", 3), 3, &whole(1));
    let second = kit.gang(gang("second", "default", 3), 3, &whole(1));
    let third = kit.gang(gang("third", "default", 1), 1, &whole(1));
    kit.cycle();
    assert_eq!((kit.running(&first), kit.running(&second), kit.running(&third)), (3, 0, 1));
}

/// Large claims starve if small ones always fit. Here nodes are kept for the first claim of a queue after it has waited
/// for long.
#[test]
fn a_large_claim_that_small_ones_pass_by_for_ever() {
    let mut kit = Kit::with(Box::new(BestFit), Settings { hold_after_ms: Some(60_000), ..Settings::default() });
    kit.node(node("only", 4));
    let mut small = kit.claims(4, &train("default", whole(1)));
    kit.converge();
    let large = kit.claim(train("default", whole(4)));
    for _ in 0..20 {
        kit.advance(10_000);
        // Each minute the oldest claim ends and another one comes.
        if !small.is_empty() {
            kit.remove(small.remove(0));
        }
        small.push(kit.claim(train("default", whole(1))));
        kit.cycle();
    }
    assert_eq!(kit.running(&[large]), 1);
}

/// An autoscaler added nodes for claims that only waited for room that was being made. Here a claim with a place that
/// is not free yet is placed, and not pending.
#[test]
fn nodes_added_while_room_is_being_made() {
    let mut kit = Kit::of_nodes(1, 1);
    kit.claim(train("default", whole(1)));
    kit.converge();
    let important = kit.claim(Claim { priority: 100, ..train("default", whole(1)) });
    let plan = kit.cycle();
    let group = kit.cluster.group_of(important).expect("it is known");
    assert!(plan.pending.iter().all(|pending| pending.group != group));
    assert_eq!(kit.running(&[important]), 0);
}

/// A job's pods were evicted one by one, and the rest of the job did no work. Here the members that a job needs go
/// together. The plan has a step for each of them, one after another, and the shell can end the whole job instead.
#[test]
fn evictions_that_leave_half_a_job() {
    let mut kit = Kit::of_nodes(1, 4);
    let job = kit.gang(gang("job", "default", 4), 4, &whole(1));
    kit.converge();
    kit.gang(PodGroup { priority: 100, ..gang("small", "default", 1) }, 1, &whole(1));
    let mut out = evicted(&kit.converge());
    out.sort_unstable();
    assert_eq!(out, job);
}

#[test]
fn two_schedulers_make_the_same_plan_of_the_same_state() {
    let build = || {
        let mut kit = Kit::of_nodes(3, 4);
        kit.queue("a", quota(4));
        kit.queue("b", quota(0));
        kit.claims(9, &train("b", whole(1)));
        kit.cycle();
        kit.claims(5, &train("a", part(60)));
        kit
    };
    let (mut first, mut second) = (build(), build());
    assert_eq!(first.cycle(), second.cycle());
    // A new scheduler that starts from the same state decides the same.
    let mut third = build();
    third.scheduler = Scheduler::new(Box::new(BestFit), Settings::default());
    assert_eq!(third.cycle().steps, build().cycle().steps);
}
