//! Which claims displace which others within a queue.

use std::collections::BTreeMap;

use aliquot_scheduler_core::{Action, Allowance, Bytes, Claim, MilliCpu, NodeSpec, PodGroup, Request, Resource};

use crate::kit::{Kit, build, evicted, gang, limited, node, part, quota, train, whole};

#[test]
fn a_claim_of_higher_priority_displaces_as_few_as_it_needs() {
    let mut kit = Kit::of_nodes(1, 3);
    kit.queue("team", quota(3));
    let running = kit.claims(3, &train("team", whole(1)));
    kit.converge();
    let important = kit.claim(build("team", whole(1)));
    let steps = kit.converge();
    assert_eq!(evicted(&steps), [running[2]], "the youngest");
    assert!(steps.iter().all(|(action, _)| *action == Action::Preempt));
    assert_eq!(kit.running(&[important]), 1);
}

#[test]
fn equal_priority_displaces_nobody() {
    let mut kit = Kit::of_nodes(1, 1);
    let first = kit.claim(train("default", whole(1)));
    kit.converge();
    let second = kit.claim(train("default", whole(1)));
    assert!(kit.converge().is_empty());
    assert_eq!((kit.running(&[first]), kit.running(&[second])), (1, 0));
}

#[test]
fn priority_counts_within_a_queue_only() {
    let mut kit = Kit::of_nodes(1, 2);
    kit.queue("a", quota(1));
    kit.queue("b", quota(1));
    let (own, theirs) = (kit.claim(build("a", whole(1))), kit.claim(train("b", whole(1))));
    kit.converge();
    let important = kit.claim(Claim { priority: 1000, ..train("a", whole(1)) });
    assert!(kit.converge().is_empty());
    assert_eq!((kit.running(&[own, theirs]), kit.running(&[important])), (2, 0));
}

#[test]
fn nobody_is_displaced_where_that_would_not_help() {
    let mut kit = Kit::of_nodes(2, 4);
    let small = kit.claims(8, &train("default", whole(1)));
    kit.converge();
    let too_large = kit.claim(Claim { priority: 125, ..train("default", whole(5)) });
    let other_model = kit.claim(Claim {
        priority: 125,
        ..train("default", {
            let mut request = whole(1);
            request.constraints.models.insert("B".into());
            request
        })
    });
    assert!(kit.converge().is_empty());
    assert_eq!((kit.running(&small), kit.running(&[too_large, other_model])), (8, 0));
}

#[test]
fn a_claim_that_stays_displaces_nobody_beyond_its_queues_quota() {
    let mut kit = Kit::of_nodes(1, 4);
    kit.queue("team", quota(3));
    let running = kit.claims(4, &train("team", whole(1)));
    kit.converge();
    let fixed = kit.claims(4, &build("team", whole(1)));
    kit.converge();
    assert_eq!((kit.running(&fixed), kit.running(&running)), (3, 1));
}

#[test]
fn a_queue_at_its_limit_makes_room_for_its_own_important_claims() {
    let mut kit = Kit::of_nodes(1, 4);
    kit.queue("team", limited(2, 2));
    let running = kit.claims(2, &train("team", whole(1)));
    kit.converge();
    let important = kit.claim(Claim { priority: 100, ..train("team", whole(1)) });
    kit.converge();
    assert_eq!((kit.running(&running), kit.running(&[important])), (1, 1), "two other devices stay free");
}

#[test]
fn the_lowest_priority_is_displaced_first() {
    let mut kit = Kit::of_nodes(1, 3);
    let of = |priority| Claim { priority, ..train("default", whole(1)) };
    let (low, lowest, middle) = (kit.claim(of(50)), kit.claim(of(10)), kit.claim(of(75)));
    kit.converge();
    kit.claim(of(100));
    assert_eq!(evicted(&kit.converge()), [lowest]);
    kit.claim(of(100));
    assert_eq!(evicted(&kit.converge()), [low]);
    assert_eq!(kit.running(&[middle]), 1);
}

#[test]
fn of_two_nodes_that_is_emptied_which_costs_less() {
    let mut kit = Kit::of_nodes(2, 4);
    let big = kit.claim(train("default", whole(4)));
    let small = kit.claims(3, &train("default", whole(1)));
    kit.converge();
    let important = kit.claim(Claim { priority: 100, ..train("default", whole(2)) });
    let steps = kit.converge();
    assert_eq!(evicted(&steps).len(), 1, "one of the small ones beside a free device: {steps:?}");
    assert_eq!((kit.running(&[big, important]), kit.running(&small)), (2, 2));
}

#[test]
fn what_is_borrowed_since_somebody_was_placed_in_the_same_cycle_may_be_displaced() {
    let mut kit = Kit::of_nodes(1, 4);
    let alone = Allowance { weight: 0, ..quota(1) };
    kit.queue_of("team", BTreeMap::from([(Resource::DeviceCore, alone)]), |_| {});
    let running = kit.claims(4, &train("team", whole(1)));
    kit.converge();
    // The first takes the team's share. So the second, which borrows, may take what was within the share before.
    let first = kit.claim(Claim { priority: 100, ..train("team", whole(1)) });
    let second = kit.claim(Claim { priority: 75, ..train("team", whole(3)) });
    kit.cycle();
    kit.let_go();
    assert_eq!((kit.running(&running), kit.running(&[first, second])), (0, 2));
}

#[test]
fn parts_of_a_device_are_displaced_like_whole_ones() {
    let mut kit = Kit::of_nodes(1, 1);
    let parts = kit.claims(4, &train("default", part(25)));
    kit.converge();
    let half = kit.claim(Claim { priority: 100, ..train("default", part(50)) });
    let mut out = evicted(&kit.converge());
    out.sort_unstable();
    assert_eq!(out, parts[2..], "the youngest");
    assert_eq!(kit.running(&[half]), 1);
    let all = kit.claim(Claim { priority: 125, ..train("default", whole(1)) });
    assert_eq!(evicted(&kit.converge()).len(), 3);
    assert_eq!(kit.running(&[all]), 1);
}

#[test]
fn a_gang_displaces_for_all_of_its_members_or_for_none() {
    let mut kit = Kit::of_nodes(2, 2);
    let fixed = kit.claim(Claim { priority: 50, ..build("default", whole(1)) });
    let running = kit.claims(3, &train("default", whole(1)));
    kit.converge();
    let important = |name: &str, members| PodGroup { priority: 100, ..gang(name, "default", members) };
    let too_many = kit.gang(important("four", 4), 4, &whole(1));
    assert!(kit.converge().is_empty());
    let fits = kit.gang(important("three", 3), 3, &whole(1));
    kit.converge();
    assert_eq!((kit.running(&fits), kit.running(&running)), (3, 0));
    assert_eq!((kit.running(&[fixed]), kit.running(&too_many)), (1, 0));
}

#[test]
fn what_a_gang_does_not_need_is_displaced_before_what_it_needs() {
    let mut kit = Kit::of_nodes(1, 4);
    let members = kit.gang(gang("gang", "default", 2), 4, &whole(1));
    kit.converge();
    kit.claim(Claim { priority: 100, ..train("default", whole(2)) });
    assert_eq!(evicted(&kit.converge()).len(), 2);
    assert_eq!(kit.running(&members), 2);
    kit.claim(Claim { priority: 100, ..train("default", whole(1)) });
    assert_eq!(evicted(&kit.converge()).len(), 2, "one alone would be no gang");
}

#[test]
fn a_queue_may_say_how_long_its_claims_run_before_they_are_displaced() {
    let mut kit = Kit::of_nodes(1, 1);
    let allowances = BTreeMap::from([(Resource::DeviceCore, quota(1))]);
    kit.queue_of("team", allowances, |queue| queue.preempt_min_runtime_ms = Some(10_000));
    let running = kit.claim(train("team", whole(1)));
    kit.converge();
    kit.claim(Claim { priority: 100, ..train("team", whole(1)) });
    kit.advance(9_999);
    assert!(kit.converge().is_empty());
    kit.advance(1);
    assert_eq!(evicted(&kit.converge()), [running]);
}

#[test]
fn a_claim_may_say_how_long_it_runs_before_it_is_displaced() {
    let mut kit = Kit::of_nodes(1, 1);
    let running = kit.claim(Claim { min_runtime_ms: 5_000, ..train("default", whole(1)) });
    kit.converge();
    kit.claim(Claim { priority: 100, ..train("default", whole(1)) });
    kit.advance(4_999);
    assert!(kit.converge().is_empty());
    kit.advance(1);
    assert_eq!(evicted(&kit.converge()), [running]);
}

#[test]
fn who_is_on_the_way_out_already_is_not_told_again() {
    let mut kit = Kit::of_nodes(1, 2);
    let running = kit.claims(2, &train("default", whole(1)));
    kit.converge();
    let first = kit.claim(Claim { priority: 100, ..train("default", whole(1)) });
    kit.cycle();
    let second = kit.claim(Claim { priority: 100, ..train("default", whole(1)) });
    kit.cycle();
    assert_eq!(kit.machines.stopping().count(), 2, "each of the two has another one's place");
    kit.let_go();
    assert_eq!((kit.running(&[first, second]), kit.running(&running)), (2, 0));
}

/// What is evicted for a claim is bounded in memory if it asks for nothing more important, and in claims if it asks for
/// counted resources only.
#[test]
fn room_for_claims_without_cpu_and_devices_is_bounded() {
    let one_core = MilliCpu::new(1000);
    let of_memory = |gib: u64| Request { memory: Bytes::from_mib(gib << 10), ..Request::default() };
    let of_licenses = |count: u64| Request { counted: [("license".into(), count)].into(), ..Request::default() };
    for (cpu, request, four, wanted, takes) in [
        (one_core, of_memory(1), of_memory(4), of_memory(2), 2),
        (one_core, of_licenses(1), of_licenses(4), of_licenses(2), 2),
        (MilliCpu::ZERO, of_licenses(1), of_licenses(4), of_licenses(3), 0),
    ] {
        let mut kit = Kit::new();
        kit.node(NodeSpec { memory: four.memory, counted: four.counted, ..node("node", 0) });
        let running = kit.claims(4, &train("default", Request { cpu, ..request }));
        kit.converge();
        assert_eq!(kit.running(&running), 4);
        kit.claim(Claim { priority: 100, ..train("default", wanted) });
        assert_eq!(evicted(&kit.converge()).len(), takes);
    }
}
