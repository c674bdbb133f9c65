//! What queues are entitled to: worked examples, and the laws that hold for any numbers.

use aliquot_scheduler_core::{Allowance, Demand, DominantShare, Entitlement, QueueDemand, divide, entitlements};
use proptest::collection::vec;
use proptest::prelude::*;

/// Amounts are thousandths of a device.
const DEVICE: u64 = 1000;

fn queue(quota: u64, weight: u64, requested: u64) -> Demand {
    Demand { quota: Some(quota), limit: None, weight, priority: 100, requested, usage_ppm: 0 }
}

#[test]
fn what_nobody_deserves_goes_by_weight() {
    // Ten devices, quotas of 2 and 2; the six that are left are divided 2 to 1.
    let shares = divide(10 * DEVICE, &[queue(2000, 2, 20_000), queue(2000, 1, 20_000)], 0);
    assert_eq!(shares, [6000, 4000]);
}

#[test]
fn a_fraction_is_not_rounded_to_whole_devices() {
    let shares = divide(DEVICE, &[queue(0, 1, 700), queue(0, 1, 700), queue(0, 1, 700)], 0);
    assert_eq!(shares, [334, 333, 333], "what does not divide evenly goes to the older queue");
}

#[test]
fn what_a_queue_does_not_ask_for_goes_to_the_others() {
    let shares = divide(10 * DEVICE, &[queue(4000, 1, 500), queue(4000, 1, 20_000), queue(2000, 1, 2500)], 0);
    assert_eq!(shares, [500, 7000, 2500]);
}

#[test]
fn higher_priority_takes_what_is_left_over_first_but_nobodys_quota() {
    let high = Demand { priority: 200, ..queue(1000, 1, 8000) };
    assert_eq!(divide(10 * DEVICE, &[queue(3000, 5, 9000), high], 0), [3000, 7000]);
}

#[test]
fn a_limit_holds_even_if_there_is_enough() {
    let limited = Demand { limit: Some(1500), ..queue(1000, 9, 8000) };
    assert_eq!(divide(10 * DEVICE, &[limited, queue(0, 1, 8000)], 0), [1500, 8000]);
}

#[test]
fn without_weight_a_queue_gets_its_quota_and_no_more() {
    assert_eq!(divide(10 * DEVICE, &[queue(1000, 0, 8000), queue(1000, 1, 3000)], 0), [1000, 3000]);
}

#[test]
fn quotas_that_do_not_fit_are_cut_in_proportion() {
    assert_eq!(divide(6 * DEVICE, &[queue(8000, 1, 9000), queue(4000, 1, 9000)], 0), [4000, 2000]);
}

#[test]
fn who_has_used_more_lately_gets_less_of_what_is_left() {
    let used = |ppm: u64| Demand { usage_ppm: ppm, ..queue(0, 1, 20_000) };
    // Equal weights: with 75 and 25 % of the usage, 0.5 - 0.25 against 0.5 + 0.25.
    assert_eq!(divide(8 * DEVICE, &[used(750_000), used(250_000)], 1000), [2000, 6000]);
    assert_eq!(divide(8 * DEVICE, &[used(750_000), used(250_000)], 0), [4000, 4000]);
}

#[test]
fn children_divide_what_their_parent_gets() {
    let queue = |parent: Option<usize>, quota: u64, requested: u64| QueueDemand {
        parent,
        priority: 100,
        allowances: vec![Allowance { quota: Some(quota), weight: 1, ..Allowance::default() }],
        requested: vec![requested],
        usage_ppm: vec![0],
    };
    // Two departments, the first with two teams, the second with one that asks for little.
    let queues = [
        queue(None, 4000, 0),
        queue(None, 4000, 0),
        queue(Some(0), 1000, 9000),
        queue(Some(0), 2000, 9000),
        queue(Some(1), 3000, 2000),
    ];
    let fair: Vec<u64> = entitlements(&[10 * DEVICE], &queues, 0).iter().map(|by| by[0].fair_share).collect();
    assert_eq!(fair, [8000, 2000, 3500, 4500, 2000]);
}

#[test]
fn the_turn_is_the_one_with_the_smallest_dominant_share() {
    let entitled = |fair_share| Entitlement { fair_share, quota: Some(0), limit: None };
    let share = |held: [u64; 2]| DominantShare::new(&held, &[entitled(8000), entitled(400)]);
    assert!(share([4000, 100]) > share([2000, 160]), "a half of one resource is more than two fifths of the other");
    assert!(!share([8000, 400]).is_over() && share([0, 401]).is_over());
    let nothing = DominantShare::new(&[1], &[entitled(0)]);
    assert!(nothing > share([80_000, 0]) && nothing.is_over());
}

fn demands() -> impl Strategy<Value = Vec<Demand>> {
    let amount = || prop_oneof![0u64..50, 0u64..5000];
    let demand = (
        proptest::option::weighted(0.9, amount()),
        proptest::option::weighted(0.4, amount()),
        0u64..5,
        0i32..3,
        amount(),
        0u64..1_500_000,
    );
    let demand = demand.prop_map(|(quota, limit, weight, priority, requested, usage_ppm)| Demand {
        quota,
        limit,
        weight,
        priority,
        requested,
        usage_ppm,
    });
    vec(demand, 1..12)
}

fn usage_weights() -> impl Strategy<Value = u64> {
    prop_oneof![Just(0u64), 0u64..3000]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    #[test]
    fn the_laws_of_division(total in 0u64..10_000, queues in demands(), usage_weight in usage_weights()) {
        let shares = divide(total, &queues, usage_weight);
        let sum: u64 = shares.iter().sum();
        prop_assert!(sum <= total);
        let deserved = |queue: &Demand| queue.quota.unwrap_or(total).min(queue.requestable());
        let fits = queues.iter().map(deserved).sum::<u64>() <= total;
        for (queue, share) in queues.iter().zip(&shares) {
            prop_assert!(*share <= queue.requestable());
            prop_assert!(!fits || *share >= deserved(queue));
        }
        // Nothing stays idle that somebody with a weight asks for.
        let asks_for_more = |(queue, share): (&Demand, &u64)| queue.weight > 0 && *share < queue.requestable();
        prop_assert!(sum == total || !queues.iter().zip(&shares).any(asks_for_more) || !fits);
    }

    #[test]
    fn to_ask_for_more_never_gets_less(
        total in 0u64..10_000, queues in demands(), which in any::<usize>(), more in 1u64..3000,
    ) {
        let which = which % queues.len();
        let before = divide(total, &queues, 0)[which];
        let mut asking = queues;
        asking[which].requested += more;
        prop_assert!(divide(total, &asking, 0)[which] >= before);
    }
}
