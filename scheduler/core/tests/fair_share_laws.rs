//! Laws of fair shares that hold for all numbers.

use std::cmp::Reverse;

use aliquot_scheduler_core::{Allowance, Demand, QueueDemand, divide, entitlements};
use proptest::collection::vec;
use proptest::prelude::*;

fn amounts() -> impl Strategy<Value = u64> {
    prop_oneof![0u64..50, 0u64..5000]
}

fn totals() -> impl Strategy<Value = u64> {
    prop_oneof![0u64..100, 0u64..20_000]
}

fn demand() -> impl Strategy<Value = Demand> {
    let quota = proptest::option::weighted(0.9, amounts());
    let limit = proptest::option::weighted(0.4, amounts());
    let usage_ppm = prop_oneof![Just(0u64), 0u64..1_500_000];
    let fields = (quota, limit, 0u64..5, 0i32..3, amounts(), usage_ppm);
    fields.prop_map(|(quota, limit, weight, priority, requested, usage_ppm)| Demand {
        quota,
        limit,
        weight,
        priority,
        requested,
        usage_ppm,
    })
}

/// A few queues, or so many that portions by usage are computed anew for several queues at once.
fn demands() -> impl Strategy<Value = Vec<Demand>> {
    prop_oneof![4 => vec(demand(), 1..12), 1 => vec(demand(), 60..120)]
}

fn usage_weights() -> impl Strategy<Value = u64> {
    prop_oneof![Just(0u64), 0u64..3000]
}

fn deserved(queue: &Demand) -> u64 {
    queue.quota.unwrap_or(u64::MAX).min(queue.requestable())
}

/// Trees of up to 25 queues with two resources. Only leaves ask for anything.
fn trees() -> impl Strategy<Value = Vec<QueueDemand>> {
    let queue = (proptest::option::weighted(0.8, any::<prop::sample::Index>()), [demand(), demand()]);
    vec(queue, 1..25).prop_map(|drawn| {
        let mut queues: Vec<QueueDemand> = Vec::with_capacity(drawn.len());
        for (index, (parent, demands)) in drawn.into_iter().enumerate() {
            let parent = parent.filter(|_| index > 0).map(|parent| parent.index(index));
            if let Some(parent) = parent {
                queues[parent].requested = vec![0, 0];
            }
            queues.push(QueueDemand {
                parent,
                priority: 0,
                allowances: demands.iter().map(allowance).collect(),
                requested: demands.iter().map(|demand| demand.requested).collect(),
                usage_ppm: demands.iter().map(|demand| demand.usage_ppm).collect(),
            });
        }
        queues
    })
}

fn allowance(demand: &Demand) -> Allowance {
    let Demand { quota, limit, weight, priority, .. } = *demand;
    Allowance { quota, limit, weight, priority: Some(priority) }
}

fn fair_shares(totals: [u64; 2], queues: &[QueueDemand], usage_weight: u64) -> Vec<[u64; 2]> {
    let entitled = entitlements(&totals, queues, usage_weight);
    entitled.iter().map(|by_resource| [by_resource[0].fair_share, by_resource[1].fair_share]).collect()
}

fn is_leaf(queues: &[QueueDemand], index: usize) -> bool {
    queues.iter().all(|queue| queue.parent != Some(index))
}

/// Hands out units one by one, each to the queue whose next unit is due first: with the least `(given + 1/2) /
/// portion`.
fn one_by_one(left: &mut u64, shares: &mut [u64], most: &[u64], portions: &[u64]) {
    let start = shares.to_vec();
    while *left > 0 {
        let due = |queue: &usize| (u128::from(2 * (shares[*queue] - start[*queue]) + 1), u128::from(portions[*queue]));
        let open = (0..shares.len()).filter(|queue| shares[*queue] < most[*queue] && portions[*queue] > 0);
        let next = open.min_by(|one, other| {
            let ((one, of_one), (other, of_other)) = (due(one), due(other));
            (one * of_other).cmp(&(other * of_one))
        });
        let Some(next) = next else { return };
        shares[next] += 1;
        *left -= 1;
    }
}

/// The same division as [`divide`] without usage, done unit by unit.
fn divide_one_by_one(total: u64, queues: &[Demand]) -> Vec<u64> {
    let mut shares = vec![0; queues.len()];
    let largest = queues.iter().filter_map(|queue| queue.quota).max().unwrap_or(0).max(1);
    let quotas: Vec<u64> = queues.iter().map(|queue| queue.quota.unwrap_or(largest)).collect();
    let mut left = total;
    one_by_one(&mut left, &mut shares, &queues.iter().map(deserved).collect::<Vec<u64>>(), &quotas);
    let mut priorities: Vec<i32> = queues.iter().map(|queue| queue.priority).collect();
    priorities.sort_by_key(|priority| Reverse(*priority));
    priorities.dedup();
    let most: Vec<u64> = queues.iter().map(Demand::requestable).collect();
    for priority in priorities {
        let of_group = |queue: &Demand| if queue.priority == priority { queue.weight } else { 0 };
        one_by_one(&mut left, &mut shares, &most, &queues.iter().map(of_group).collect::<Vec<u64>>());
    }
    shares
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    #[test]
    fn shares_keep_within_what_there_is_and_what_is_asked_for_and_serve_quotas_first(
        total in totals(), queues in demands(), usage_weight in usage_weights(),
    ) {
        let shares = divide(total, &queues, usage_weight);
        prop_assert!(shares.iter().sum::<u64>() <= total);
        let fits = queues.iter().map(deserved).sum::<u64>() <= total;
        for (queue, share) in queues.iter().zip(&shares) {
            prop_assert!(*share <= queue.requestable());
            prop_assert!(!fits || *share >= deserved(queue));
            prop_assert!(fits || *share <= deserved(queue));
        }
    }

    #[test]
    fn nothing_is_left_while_somebody_asks_for_it(
        total in totals(), queues in demands(), usage_weight in usage_weights(),
    ) {
        let shares = divide(total, &queues, usage_weight);
        let idle = total - shares.iter().sum::<u64>();
        for (queue, share) in queues.iter().zip(&shares) {
            let most = if queue.weight > 0 { queue.requestable() } else { deserved(queue) };
            prop_assert!(idle == 0 || *share == most, "{idle} idle, {share} given of {most}");
        }
    }

    #[test]
    fn to_ask_for_more_never_gets_less(
        total in totals(), queues in demands(), which: prop::sample::Index, more in 1u64..3000,
        usage_weight in usage_weights(),
    ) {
        let which = which.index(queues.len());
        let before = divide(total, &queues, usage_weight)[which];
        let mut asking = queues;
        asking[which].requested += more;
        prop_assert!(divide(total, &asking, usage_weight)[which] >= before);
    }

    #[test]
    fn of_more_nobody_gets_less(
        total in totals(), more in prop_oneof![Just(1u64), 1u64..3000], queues in demands(),
        usage_weight in usage_weights(),
    ) {
        let (before, after) = (divide(total, &queues, usage_weight), divide(total + more, &queues, usage_weight));
        prop_assert!(before.iter().zip(&after).all(|(before, after)| before <= after), "{before:?}, then {after:?}");
    }

    #[test]
    fn the_order_of_siblings_decides_about_one_unit_at_most(
        total in totals(),
        (queues, order) in demands().prop_flat_map(|queues| {
            let order: Vec<usize> = (0..queues.len()).collect();
            (Just(queues), Just(order).prop_shuffle())
        }),
        usage_weight in usage_weights(),
    ) {
        let shares = divide(total, &queues, usage_weight);
        let shuffled: Vec<Demand> = order.iter().map(|queue| queues[*queue]).collect();
        for (queue, share) in order.iter().zip(divide(total, &shuffled, usage_weight)) {
            prop_assert!(share.abs_diff(shares[*queue]) <= 1, "{share}, then {}", shares[*queue]);
        }
    }

    #[test]
    fn units_are_as_if_handed_out_one_by_one(total in 0u64..600, queues in demands()) {
        prop_assert_eq!(divide(total, &queues, 0), divide_one_by_one(total, &queues));
    }

    #[test]
    fn equal_queues_have_equal_shares_but_for_one_unit(total in totals(), queue in demand(), count in 1usize..20) {
        let shares = divide(total, &vec![queue; count], 1000);
        let (least, most) = (shares.iter().min().copied(), shares.iter().max().copied());
        prop_assert!(most.unwrap_or(0) - least.unwrap_or(0) <= 1, "{shares:?}");
    }

    #[test]
    fn to_have_used_less_never_gets_less(
        total in totals(), queues in vec(demand(), 2..6), which: prop::sample::Index, less in 1u64..1_000_000,
    ) {
        // No queue is satisfied, so all compete to the end.
        let mut queues: Vec<Demand> =
            queues.into_iter().map(|queue| Demand { requested: 50_000, limit: None, priority: 0, ..queue }).collect();
        let which = which.index(queues.len());
        let before = divide(total, &queues, 1000)[which];
        queues[which].usage_ppm = queues[which].usage_ppm.saturating_sub(less);
        let after = divide(total, &queues, 1000)[which];
        prop_assert!(after + 1 >= before, "{before}, then {after}");
    }

    #[test]
    fn children_share_what_their_parent_is_entitled_to(
        totals in [totals(), totals()], queues in trees(), usage_weight in usage_weights(),
    ) {
        let shares = fair_shares(totals, &queues, usage_weight);
        for resource in 0..2 {
            let of_children = |parent: Option<usize>| -> u64 {
                let children = queues.iter().zip(&shares).filter(|(queue, _)| queue.parent == parent);
                children.map(|(_, share)| share[resource]).sum()
            };
            prop_assert!(of_children(None) <= totals[resource]);
            for queue in 0..queues.len() {
                let share = shares[queue][resource];
                prop_assert!(of_children(Some(queue)) <= share);
                prop_assert!(share <= queues[queue].allowances[resource].limit.unwrap_or(u64::MAX));
                prop_assert!(!is_leaf(&queues, queue) || share <= queues[queue].requested[resource]);
            }
        }
    }

    #[test]
    fn in_a_tree_too_neither_more_nor_asking_for_more_gets_less(
        totals in [totals(), totals()], queues in trees(), usage_weight in usage_weights(),
        more in 1u64..3000, which: prop::sample::Index,
    ) {
        let before = fair_shares(totals, &queues, usage_weight);
        let after = fair_shares(totals.map(|total| total + more), &queues, usage_weight);
        prop_assert!(before.iter().flatten().zip(after.iter().flatten()).all(|(before, after)| before <= after));
        let leaves: Vec<usize> = (0..queues.len()).filter(|queue| is_leaf(&queues, *queue)).collect();
        let which = leaves[which.index(leaves.len())];
        let mut asking = queues;
        asking[which].requested[0] += more;
        let after = fair_shares(totals, &asking, usage_weight);
        prop_assert!(after[which][0] >= before[which][0] && after[which][1] == before[which][1]);
    }

    #[test]
    fn no_numbers_are_too_large(
        total: u64, numbers in vec(any::<[u64; 4]>(), 1..40), usage_weight: u64,
    ) {
        let queues: Vec<Demand> = numbers
            .into_iter()
            .map(|[quota, weight, requested, usage_ppm]| {
                Demand { quota: Some(quota), weight, requested, usage_ppm, ..Demand::default() }
            })
            .collect();
        let shares = divide(total, &queues, usage_weight);
        let sum: u128 = shares.iter().copied().map(u128::from).sum();
        prop_assert!(sum <= u128::from(total));
        prop_assert!(queues.iter().zip(&shares).all(|(queue, share)| *share <= queue.requested));
    }
}
