//! No queue holds two claims beyond its share while another queue, below its own share, waits for what the second of
//! them holds.

use aliquot_scheduler_core::{ClaimId, Demand, Settings, divide};
use proptest::collection::vec;
use proptest::prelude::*;

use crate::setting::{TRAIN, World};

/// More cycles than any of these worlds needs to come to rest.
const CYCLES_MAX: usize = 60;

fn come_to_rest(world: &mut World) {
    for _ in 0..CYCLES_MAX {
        if world.cycle().steps.is_empty() {
            return;
        }
    }
    panic!("no rest after {CYCLES_MAX} cycles");
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn who_is_below_its_share_waits_only_for_what_others_hold_up_to_one_claim_beyond_theirs(
        devices in 2usize..14,
        queues in vec((0u64..4, 1u16..5, 1u64..9), 2..8),
    ) {
        // The queue that comes first may fill all of the one node.
        let mut world = World::with(&[devices], Settings { disruption_per_mille: 1_000_000, ..Settings::default() });
        let names: Vec<String> = (0..queues.len()).map(|number| format!("queue-{number}")).collect();
        names.iter().zip(&queues).for_each(|(name, (quota, ..))| world.queue(name, *quota));
        let mut claims: Vec<Vec<ClaimId>> = Vec::new();
        for (name, (_, size, count)) in names.iter().zip(&queues) {
            claims.push((0..*count).map(|_| world.add(name, TRAIN, *size)).collect());
            come_to_rest(&mut world);
        }
        let demand = |(quota, size, count): &(u64, u16, u64)| Demand {
            quota: Some(quota * 1000),
            weight: 1,
            requested: u64::from(*size) * count * 1000,
            ..Demand::default()
        };
        let demands: Vec<Demand> = queues.iter().map(demand).collect();
        let shares = divide(devices as u64 * 1000, &demands, 0);
        let held: Vec<u64> = names.iter().map(|name| world.devices_of(name)).collect();
        // For each queue, the part of its holdings that it may have: at most its share, rounded up to whole claims.
        let of_right: Vec<u64> = (0..queues.len())
            .map(|queue| {
                let size = u64::from(queues[queue].1);
                held[queue].min(shares[queue].div_ceil(size * 1000) * size)
            })
            .collect();
        for waits in (0..queues.len()).filter(|queue| world.running(&claims[*queue]) < claims[*queue].len()) {
            if held[waits] * 1000 >= shares[waits] {
                continue;
            }
            let others: u64 = (0..queues.len()).filter(|other| *other != waits).map(|other| of_right[other]).sum();
            prop_assert!(
                held[waits] + u64::from(queues[waits].1) + others > devices as u64,
                "queue {waits} could have one more: {held:?} of {shares:?}"
            );
        }
    }
}
