//! Entitlements of queues, by worked examples. Most are situations from KAI's documentation and tests. If KAI's answer
//! is different, the example says so. Amounts are in thousandths of a device, unless an example says otherwise.

use aliquot_scheduler_core::{
    Allowance, DecayedUsage, Demand, DominantShare, Entitlement, QueueDemand, divide, entitlements,
};

fn queue(quota: u64, weight: u64, requested: u64) -> Demand {
    Demand { quota: Some(quota), weight, requested, ..Demand::default() }
}

fn of_priority(priority: i32, demand: Demand) -> Demand {
    Demand { priority, ..demand }
}

fn limited(limit: u64, demand: Demand) -> Demand {
    Demand { limit: Some(limit), ..demand }
}

fn that_used(usage_ppm: u64, demand: Demand) -> Demand {
    Demand { usage_ppm, ..demand }
}

mod one_queue {
    use super::*;

    #[test]
    fn within_its_quota_gets_what_it_asks_for() {
        assert_eq!(divide(2000, &[queue(3000, 0, 2000)], 0), [2000]);
        assert_eq!(divide(3000, &[queue(3000, 0, 2000)], 0), [2000]);
    }

    #[test]
    fn without_weight_gets_its_quota_and_no_more() {
        assert_eq!(divide(7000, &[queue(3000, 0, 5000)], 0), [3000]);
        assert_eq!(divide(2000, &[queue(0, 0, 2000)], 0), [0]);
    }

    #[test]
    fn with_weight_gets_what_is_left_over_as_well() {
        assert_eq!(divide(5000, &[queue(3000, 1, 5000)], 0), [5000]);
        assert_eq!(divide(6000, &[queue(0, 1, 5000)], 0), [5000]);
    }

    #[test]
    fn never_exceeds_its_limit() {
        assert_eq!(divide(3000, &[limited(2000, queue(3000, 0, 2500))], 0), [2000]);
        assert_eq!(divide(5000, &[limited(4000, queue(3000, 1, 5000))], 0), [4000]);
    }

    #[test]
    fn has_parts_of_devices_as_quota_request_and_share() {
        assert_eq!(divide(2000, &[queue(1500, 0, 2000)], 0), [1500]);
        assert_eq!(divide(2000, &[queue(3000, 0, 1500)], 0), [1500]);
        assert_eq!(divide(3500, &[queue(3000, 1, 5000)], 0), [3500]);
    }

    /// KAI gives the queue its quota of 2, of which 1 does not exist.
    #[test]
    fn is_never_entitled_to_more_than_there_is() {
        assert_eq!(divide(1000, &[queue(2000, 1, 3000)], 0), [1000]);
    }

    #[test]
    fn whose_quota_is_all_there_is_gets_all_it_asks_for() {
        let unlimited = Demand { quota: None, requested: 9000, ..Demand::default() };
        assert_eq!(divide(10_000, &[unlimited], 0), [9000]);
        assert_eq!(divide(8000, &[unlimited], 0), [8000]);
    }
}

mod two_queues {
    use super::*;

    #[test]
    fn get_all_they_ask_for_if_there_is_enough() {
        assert_eq!(divide(15_000, &[queue(2000, 2, 6000), queue(2000, 2, 6000)], 0), [6000, 6000]);
        assert_eq!(divide(12_000, &[queue(2000, 2, 6000), queue(2000, 2, 6000)], 0), [6000, 6000]);
    }

    #[test]
    fn divide_what_quotas_leave_by_weight() {
        assert_eq!(divide(8000, &[queue(2000, 1, 6000), queue(2000, 3, 6000)], 0), [3000, 5000]);
        assert_eq!(divide(100_000, &[queue(10_000, 3, 100_000), queue(10_000, 1, 100_000)], 0), [70_000, 30_000]);
        assert_eq!(divide(1000, &[queue(250, 1, 5000), queue(150, 2, 5000)], 0), [450, 550]);
    }

    #[test]
    fn get_what_the_others_limit_leaves() {
        assert_eq!(divide(12_000, &[limited(5000, queue(2000, 2, 6000)), queue(2000, 2, 6000)], 0), [5000, 6000]);
        assert_eq!(divide(1000, &[queue(250, 1, 5000), limited(400, queue(150, 2, 5000))], 0), [600, 400]);
    }

    /// KAI rounds shares down to whole devices and then gives out the rest one by one: 3 and 8 here, 6 and 5 for equal
    /// weights.
    #[test]
    fn divide_devices_as_well_as_numbers_of_devices() {
        assert_eq!(divide(11_000, &[queue(2000, 1, 10_000), queue(2000, 4, 10_000)], 0), [3400, 7600]);
        assert_eq!(divide(11_000, &[queue(2000, 2, 6000), queue(2000, 2, 6000)], 0), [5500, 5500]);
        assert_eq!(divide(5000, &[queue(2000, 2, 3000), queue(2000, 2, 3000)], 0), [2500, 2500]);
    }

    /// The same division as KAI's, in its unit: the largest remainder gets a unit first, and of equal remainders the
    /// older queue.
    #[test]
    fn divide_what_does_not_divide_evenly_unit_by_unit() {
        assert_eq!(divide(11, &[queue(2, 1, 10), queue(2, 4, 10)], 0), [3, 8]);
        assert_eq!(divide(11, &[queue(2, 2, 6), queue(2, 2, 6)], 0), [6, 5]);
    }

    #[test]
    fn have_their_quotas_whatever_their_priorities() {
        let queues = [of_priority(1, queue(2000, 2, 6000)), of_priority(2, queue(2000, 2, 6000))];
        assert_eq!(divide(4000, &queues, 0), [2000, 2000]);
    }

    #[test]
    fn of_different_priority_do_not_share_what_is_left_over() {
        let queues = [of_priority(1, queue(2000, 2, 6000)), of_priority(2, queue(2000, 2, 6000))];
        assert_eq!(divide(6000, &queues, 0), [2000, 4000]);
        let heavier = [of_priority(1, queue(2000, 100, 6000)), of_priority(2, queue(2000, 1, 6000))];
        assert_eq!(divide(6000, &heavier, 0), [2000, 4000]);
    }

    #[test]
    fn the_one_without_quota_and_weight_gives_up_what_it_holds() {
        // CPU, in thousandths of a core. The second queue now runs on 5 of 10 cores.
        assert_eq!(divide(10_000, &[queue(5000, 5000, 10_000), queue(0, 0, 5000)], 0), [10_000, 0]);
    }
}

mod several_queues {
    use super::*;

    #[test]
    fn what_is_left_over_goes_to_the_highest_priority_only_until_that_asks_for_no_more() {
        // Ten devices; seven of them are in quotas.
        let high = |weight, requested| of_priority(2, queue(2000, weight, requested));
        let low = of_priority(1, queue(3000, 9, 9000));
        assert_eq!(divide(10_000, &[high(2, 9000), high(1, 9000), low], 0), [4000, 3000, 3000]);
        assert_eq!(divide(10_000, &[high(2, 2500), high(1, 2500), low], 0), [2500, 2500, 5000]);
    }

    /// KAI: 3, 2 and 0 whole devices.
    #[test]
    fn equals_of_a_priority_divide_the_last_device_too() {
        let queues = [
            of_priority(2, queue(2000, 2, 5000)),
            of_priority(2, queue(2000, 2, 5000)),
            of_priority(1, queue(1000, 2, 0)),
        ];
        assert_eq!(divide(5000, &queues, 0), [2500, 2500, 0]);
    }

    /// KAI entitles each of three queues to its quota of 5, together 15 of 10 devices, and leaves it to chance which
    /// comes first.
    #[test]
    fn quotas_that_do_not_fit_are_cut_in_proportion() {
        let three = |first, second, third| [queue(5000, 5, first), queue(5000, 5, second), queue(5000, 5, third)];
        assert_eq!(divide(10_000, &three(5000, 5000, 5000), 0), [3334, 3333, 3333]);
        assert_eq!(divide(10_000, &three(7000, 5000, 2000), 0), [4000, 4000, 2000]);
        assert_eq!(divide(6000, &[queue(8000, 1, 9000), queue(4000, 1, 9000)], 0), [4000, 2000]);
    }

    /// KAI gives 8 to the first queue and 8 to the second, of 8.
    #[test]
    fn where_quotas_do_not_fit_all_there_is_counts_as_the_largest_of_the_others() {
        let unlimited = Demand { quota: None, requested: 9000, ..Demand::default() };
        assert_eq!(divide(8000, &[unlimited, queue(8000, 1, 9000)], 0), [4000, 4000]);
        assert_eq!(divide(8000, &[unlimited, queue(2000, 1, 9000), queue(1000, 1, 9000)], 0), [5000, 2000, 1000]);
        assert_eq!(divide(8000, &[unlimited, unlimited], 0), [4000, 4000]);
    }

    #[test]
    fn who_asks_for_less_than_its_quota_leaves_the_rest_to_the_others() {
        let three = [queue(5000, 5, 7000), queue(5000, 5, 2000), queue(5000, 5, 2000)];
        assert_eq!(divide(10_000, &three, 0), [6000, 2000, 2000]);
        assert_eq!(divide(18_000, &[queue(5000, 5, 6000); 3], 0), [6000; 3]);
        assert_eq!(
            divide(10_000, &[queue(4000, 1, 500), queue(4000, 1, 20_000), queue(2000, 1, 2500)], 0),
            [500, 7000, 2500]
        );
    }

    #[test]
    fn who_borrows_without_quota_gets_nothing_where_quotas_take_all() {
        assert_eq!(
            divide(10_000, &[queue(5000, 5, 5000), queue(0, 5, 5000), queue(5000, 5, 5000)], 0),
            [5000, 0, 5000]
        );
    }

    #[test]
    fn weights_divide_exactly_what_they_can_divide() {
        assert_eq!(divide(9999, &[queue(1000, 1, 10_000); 3], 0), [3333; 3]);
        assert_eq!(
            divide(9999, &[queue(0, 6, 10_000), queue(0, 2, 10_000), queue(0, 1, 10_000)], 0),
            [6666, 2222, 1111]
        );
    }

    #[test]
    fn requests_for_parts_of_devices_are_met_to_the_last_part() {
        let queues = [queue(12_000, 12, 32_550), queue(7000, 7, 9500), limited(2000, queue(2000, 2, 1650))];
        assert_eq!(divide(45_000, &queues, 0), [32_550, 9500, 1650]);
    }

    #[test]
    fn a_part_of_a_device_is_not_rounded_to_whole_devices() {
        assert_eq!(divide(1000, &[queue(0, 1, 700); 3], 0), [334, 333, 333]);
    }
}

mod usage {
    use super::*;

    const HOUR_MS: u64 = 3_600_000;

    #[test]
    fn who_has_used_more_lately_gets_less_of_what_is_left_over() {
        let queues = [that_used(750_000, queue(0, 1, 20_000)), that_used(250_000, queue(0, 1, 20_000))];
        // Equal weights, so (weight part + weight part − usage part): 0.5 + (0.5 − 0.75) against 0.5 + (0.5 − 0.25).
        assert_eq!(divide(8000, &queues, 1000), [2000, 6000]);
        // With half the usage weight: 0.5 − 0.125 against 0.5 + 0.125.
        assert_eq!(divide(8000, &queues, 500), [3000, 5000]);
        assert_eq!(divide(8000, &queues, 0), [4000, 4000]);
    }

    #[test]
    fn what_was_used_does_not_touch_quotas() {
        let queues = [that_used(1_000_000, queue(4000, 1, 20_000)), queue(4000, 1, 20_000)];
        assert_eq!(divide(8000, &queues, 1000), [4000, 4000]);
        assert_eq!(divide(10_000, &queues, 1000), [4000, 6000]);
    }

    #[test]
    #[expect(clippy::disallowed_types, reason = "shares are compared with exact parts")]
    fn usage_counts_among_those_who_compete_not_among_those_who_are_satisfied() {
        let satisfied = queue(0, 1, 100);
        let mut queues = vec![that_used(600_000, queue(0, 1, 20_000)), that_used(300_000, queue(0, 1, 20_000))];
        queues.extend([satisfied; 8]);
        let shares = divide(10_000, &queues, 1000);
        // The eight queues get their 100 each. The other two divide the rest in the proportion of 1 − 0.6 to 1 − 0.3.
        let part = |share: u64| share as f64 / 9200.0;
        assert!((part(shares[0]) - 4.0 / 11.0).abs() < 0.001, "{shares:?}");
        assert_eq!(shares[2..], [100; 8]);
        assert_eq!(shares.iter().sum::<u64>(), 10_000);
    }

    #[test]
    fn what_is_due_is_settled_anew_when_one_is_satisfied() {
        let queues = [that_used(300_000, queue(0, 1, 20_000)), queue(0, 1, 20_000), queue(0, 1, 100)];
        // Until the third queue has its 100: 2/3 − 0.3 against 2/3 and 2/3, which gives 55 and 100. After that: 1 − 0.3
        // against 1.
        let shares = divide(10_000, &queues, 1000);
        let expected = [55 + 9745 * 7 / 17, 100 + 9745 * 10 / 17, 100];
        assert!(shares.iter().zip(expected).all(|(share, expected)| share.abs_diff(expected) <= 1), "{shares:?}");
    }

    #[test]
    fn a_small_part_adds_up_however_often_what_is_due_is_settled_anew() {
        // Twenty queues are satisfied one after the other, three units apart; one more with the same weight wants more.
        // Meanwhile the last queue, with a tenth of their weight, is due a third of a unit each time.
        let mut queues: Vec<Demand> = (1..=20).map(|number| queue(0, 10, 3 * number)).collect();
        queues.extend([queue(0, 10, 1000), that_used(1, queue(0, 1, 1000))]);
        let satisfied = 3 * (1..=20).sum::<u64>();
        let shares = divide(satisfied + 60 + 6, &queues, 1000);
        assert!(shares[20].abs_diff(60) <= 1 && shares[21].abs_diff(6) <= 1, "{shares:?}");
    }

    /// KAI leaves what is due to no queue to the lower priorities, or idle.
    #[test]
    fn where_all_have_used_more_than_their_part_weights_decide_alone() {
        let queues = [that_used(2_000_000, queue(0, 1, 20_000)), that_used(3_000_000, queue(0, 3, 20_000))];
        assert_eq!(divide(8000, &queues, 1000), [2000, 6000]);
    }

    #[test]
    fn as_much_for_longer_counts_like_more_for_a_shorter_time() {
        // Ten devices for ten hours: 24 device hours are 0.24 of the capacity. The half-lives are too long to matter.
        let used = |devices: u64, hours: u64| {
            let half_life_ms = 1_000_000 * HOUR_MS;
            let (mut used, mut there_was) = (DecayedUsage::new(half_life_ms, 0), DecayedUsage::new(half_life_ms, 0));
            used.hold(devices * 1000, hours * HOUR_MS);
            used.hold(0, 10 * HOUR_MS);
            there_was.hold(10_000, 10 * HOUR_MS);
            used.ppm_of(&there_was)
        };
        assert!(used(8, 3).abs_diff(240_000) <= 2, "{}", used(8, 3));
        assert!(used(12, 2).abs_diff(240_000) <= 2, "{}", used(12, 2));
    }

    #[test]
    fn two_that_both_want_everything_take_turns() {
        // 16 devices, and each queue's task needs all of them. A task runs while its queue's share is the larger one.
        let total = 16_000;
        let half_life_ms = 10 * 60_000;
        let mut used = [DecayedUsage::new(half_life_ms, 0); 2];
        let mut there_was = DecayedUsage::new(half_life_ms, 0);
        let (mut running, mut held_ms, mut turns) = (0, [0u64; 2], 0);
        for now_ms in (0..24 * HOUR_MS).step_by(10_000) {
            used[running].hold(total, now_ms);
            used[1 - running].hold(0, now_ms);
            there_was.hold(total, now_ms);
            held_ms[running] += 10_000;
            let queues = [0, 1].map(|queue: usize| that_used(used[queue].ppm_of(&there_was), self::queue(0, 1, total)));
            let shares = divide(total, &queues, 1000);
            if shares[running] < shares[1 - running] {
                running = 1 - running;
                turns += 1;
            }
        }
        assert!(turns > 10, "{turns} turns in a day");
        assert!(held_ms[0].abs_diff(held_ms[1]) * 100 < held_ms[0], "{held_ms:?}");
    }
}

mod trees {
    use super::*;

    fn child(parent: Option<usize>, quota: u64, requested: u64) -> QueueDemand {
        QueueDemand {
            parent,
            allowances: vec![Allowance { quota: Some(quota), weight: 1, ..Allowance::default() }],
            requested: vec![requested],
            ..QueueDemand::default()
        }
    }

    fn fair_shares(total: u64, queues: &[QueueDemand]) -> Vec<u64> {
        entitlements(&[total], queues, 0).iter().map(|by_resource| by_resource[0].fair_share).collect()
    }

    #[test]
    fn children_divide_what_their_parent_gets() {
        // Two departments: the first with two teams, the second with one team that asks for little.
        let queues = [
            child(None, 4000, 0),
            child(None, 4000, 0),
            child(Some(0), 1000, 9000),
            child(Some(0), 2000, 9000),
            child(Some(1), 3000, 2000),
        ];
        assert_eq!(fair_shares(10_000, &queues), [8000, 2000, 3500, 4500, 2000]);
    }

    /// KAI counts what a child asks for beyond its limit as the parent's request. No queue can use the parent's share
    /// of that.
    #[test]
    fn a_parent_asks_for_no_more_than_its_children_may_have() {
        let mut queues = [child(None, 0, 0), child(None, 0, 9000), child(Some(0), 0, 9000)];
        queues[2].allowances[0].limit = Some(1000);
        assert_eq!(fair_shares(10_000, &queues), [1000, 9000, 1000]);
    }

    #[test]
    fn a_childs_quota_is_worth_no_more_than_its_parents_share() {
        let queues = [child(None, 1000, 0), child(None, 9000, 20_000), child(Some(0), 5000, 5000)];
        assert_eq!(fair_shares(10_000, &queues), [1000, 9000, 1000]);
    }

    #[test]
    fn a_resource_may_have_priorities_of_its_own() {
        let queue = |priority, of_memory| QueueDemand {
            priority,
            allowances: vec![
                Allowance { quota: Some(0), weight: 1, ..Allowance::default() },
                Allowance { quota: Some(0), weight: 1, priority: Some(of_memory), ..Allowance::default() },
            ],
            requested: vec![900, 900],
            ..QueueDemand::default()
        };
        let entitled = entitlements(&[1000, 1000], &[queue(2, 1), queue(1, 2)], 0);
        let shares =
            |queue: usize| entitled[queue].iter().map(|by_resource| by_resource.fair_share).collect::<Vec<_>>();
        assert_eq!((shares(0), shares(1)), (vec![900, 100], vec![100, 900]));
    }
}

mod turns {
    use super::*;

    fn entitled(fair_share: u64) -> Entitlement {
        Entitlement { fair_share, quota: Some(0), limit: None, total: 100_000 }
    }

    #[test]
    fn the_one_with_the_smallest_dominant_share_is_next() {
        let share = |held: [u64; 2]| DominantShare::new(&held, &[entitled(8000), entitled(400)]);
        assert!(share([4000, 100]) > share([2000, 160]), "a half of one resource is more than two fifths of the other");
        assert!(!share([8000, 400]).is_over() && share([0, 401]).is_over());
    }

    #[test]
    fn who_holds_what_it_is_not_entitled_to_at_all_comes_last() {
        let nothing = DominantShare::new(&[1], &[entitled(0)]);
        assert!(nothing > DominantShare::new(&[80_000], &[entitled(1)]) && nothing.is_over());
        assert!(!DominantShare::new(&[0], &[entitled(0)]).is_over());
    }

    #[test]
    fn who_deserves_all_there_is_is_measured_by_all_there_is() {
        let all = Entitlement { fair_share: 5000, quota: None, limit: None, total: 10_000 };
        let half = Entitlement { fair_share: 5000, quota: Some(5000), limit: None, total: 10_000 };
        assert_eq!(all.allocatable(), 10_000);
        assert!(DominantShare::new(&[6000], &[all]) > DominantShare::new(&[2000], &[half]));
        assert!(DominantShare::new(&[6000], &[all]) < DominantShare::new(&[4000], &[half]));
    }

    #[test]
    fn a_quota_counts_even_where_it_is_not_asked_for_and_a_limit_always() {
        let quota = Entitlement { fair_share: 100, quota: Some(4000), limit: None, total: 10_000 };
        assert_eq!(quota.allocatable(), 4000);
        assert_eq!(Entitlement { limit: Some(3000), ..quota }.allocatable(), 3000);
    }
}

/// Kueue's terms: a nominal quota is a quota, a borrowing limit on top of it makes a limit, and a cohort is a parent.
mod cluster_queues_of_a_cohort {
    use super::*;

    fn cluster_queue(nominal: u64, borrowing_limit: Option<u64>, requested: u64) -> Demand {
        Demand {
            quota: Some(nominal),
            limit: borrowing_limit.map(|most| nominal + most),
            weight: 1,
            requested,
            ..Demand::default()
        }
    }

    #[test]
    fn borrow_what_the_others_do_not_use() {
        assert_eq!(divide(20, &[cluster_queue(10, None, 18), cluster_queue(10, None, 2)], 0), [18, 2]);
    }

    #[test]
    fn borrow_no_more_than_their_borrowing_limits() {
        assert_eq!(divide(20, &[cluster_queue(10, Some(3), 18), cluster_queue(10, None, 2)], 0), [13, 2]);
        assert_eq!(divide(20, &[cluster_queue(10, Some(0), 18), cluster_queue(10, None, 2)], 0), [10, 2]);
    }

    #[test]
    fn have_their_nominal_quotas_back_as_soon_as_they_ask_for_them() {
        assert_eq!(divide(20, &[cluster_queue(10, None, 18), cluster_queue(10, None, 10)], 0), [10, 10]);
    }

    #[test]
    fn borrow_in_proportion_to_their_fair_sharing_weights() {
        let weighted = |weight| Demand { weight, ..cluster_queue(10, None, 100) };
        assert_eq!(divide(52, &[weighted(3), weighted(1), cluster_queue(10, None, 0)], 0), [34, 18, 0]);
    }

    /// A lending limit of 4 of 10 keeps 6 for the queue even if it does not ask for them: the other queues are below a
    /// parent with a limit of the rest.
    #[test]
    fn lend_no_more_than_their_lending_limits() {
        let queue = |parent, quota, limit, requested| QueueDemand {
            parent,
            allowances: vec![Allowance { quota: Some(quota), limit, weight: 1, priority: None }],
            requested: vec![requested],
            ..QueueDemand::default()
        };
        let shares = |lender_asks| {
            let queues = [
                queue(None, 10, None, lender_asks),
                queue(None, 20, Some(30 - 6), 0),
                queue(Some(1), 10, None, 30),
                queue(Some(1), 10, None, 10),
            ];
            let entitled = entitlements(&[30], &queues, 0);
            [0, 2, 3].map(|queue| entitled[queue][0].fair_share)
        };
        assert_eq!(shares(0), [0, 14, 10]);
        assert_eq!(shares(8), [8, 12, 10]);
        assert_eq!(shares(10), [10, 10, 10]);
    }
}
