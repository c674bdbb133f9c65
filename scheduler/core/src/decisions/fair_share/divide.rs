//! How much of one resource each of several sibling queues is entitled to.
//!
//! First each queue gets min(quota, what it asks for). The rest goes to the queues by priority, and among equal
//! priorities in proportion to weight, but never beyond what a queue asks for or its limit. Amounts are integers in the
//! resource's smallest unit. Nothing is rounded to whole devices here.
//!
//! Think of all units of the resource as handed out one after the other, in an order that depends neither on their
//! number nor on requests beyond them. So more of the resource never makes a queue's share smaller, and asking for more
//! never makes the queue's own share smaller.

use crate::decisions::fair_share::hand_out::{Taker, hand_out, hand_out_until_satisfied};

/// The inputs that decide a queue's part of one resource.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Demand {
    /// Its quota; `None`: everything that there is.
    pub quota: Option<u64>,
    /// The most that it may hold; `None`: no limit.
    pub limit: Option<u64>,
    /// Its weight for what is left over; with 0 it gets nothing of that.
    pub weight: u64,
    /// Queues of higher priority are given what is left over first.
    pub priority: i32,
    /// The amount that its claims ask for, running or pending.
    pub requested: u64,
    /// Its recent usage, in millionths of the capacity.
    pub usage_ppm: u64,
}

impl Demand {
    /// The most that it can be given: min(requested, limit).
    #[must_use]
    pub fn requestable(&self) -> u64 {
        self.limit.map_or(self.requested, |limit| limit.min(self.requested))
    }

    /// What it is given before anything is left over: min(quota, requestable).
    fn deserved(&self) -> u64 {
        self.quota.map_or(self.requestable(), |quota| quota.min(self.requestable()))
    }
}

/// Divides `total` among queues, which are given oldest first. `usage_weight` says how strongly past usage counts
/// against a queue, in thousandths of the difference between its part of the weights and its part of the usage. 0: not
/// at all.
///
/// * The shares never add up to more than the total.
/// * No share is more than min(requested, limit).
/// * If all requested quotas fit, no share is less than min(quota, requested). Otherwise the total is divided in
///   proportion to the quotas. A quota of everything then counts as much as the largest other quota, as shares must add
///   up to the total and no queue's weight may depend on the total.
/// * Nothing is left over that a queue with a weight asks for.
/// * No share gets smaller because there is more to divide, or because its queue asks for more.
/// * The order of the queues decides at most one unit of a share.
#[must_use]
pub fn divide(total: u64, queues: &[Demand], usage_weight: u64) -> Vec<u64> {
    let mut shares = vec![0; queues.len()];
    let mut left = divide_quotas(total, queues, &mut shares);
    let mut waiting: Vec<usize> = (0..queues.len())
        .filter(|queue| queues[*queue].weight > 0 && shares[*queue] < queues[*queue].requestable())
        .collect();
    // The sort is stable: queues of equal priority stay in the order of their age.
    waiting.sort_by_key(|queue| std::cmp::Reverse(queues[*queue].priority));
    for group in waiting.chunk_by(|one, other| queues[*one].priority == queues[*other].priority) {
        if left == 0 {
            break;
        }
        left = divide_over_quota(left, queues, group, usage_weight, &mut shares);
    }
    shares
}

/// Gives each queue min(quota, requested), or, if that is too much in total, parts in proportion. Returns what is left.
fn divide_quotas(total: u64, queues: &[Demand], shares: &mut [u64]) -> u64 {
    let largest = queues.iter().filter_map(|queue| queue.quota).max().unwrap_or(0).max(1);
    let quotas: Vec<u128> = queues.iter().map(|queue| u128::from(queue.quota.unwrap_or(largest))).collect();
    let mut takers: Vec<Taker> =
        queues.iter().enumerate().map(|(index, queue)| Taker::new(index, 0, queue.deserved())).collect();
    set_portions(&mut takers, &quotas);
    let left = hand_out(total, &mut takers);
    for taker in &takers {
        shares[taker.queue] = taker.given;
    }
    left
}

/// Divides what quotas have left among queues of one priority, all of which have a weight and ask for more. Returns
/// what no queue takes.
fn divide_over_quota(mut left: u64, queues: &[Demand], group: &[usize], usage_weight: u64, shares: &mut [u64]) -> u64 {
    let mut takers: Vec<Taker> =
        group.iter().map(|queue| Taker::new(*queue, shares[*queue], queues[*queue].requestable())).collect();
    while left > 0 && usage_weight > 0 && takers.iter().any(|taker| queues[taker.queue].usage_ppm > 0) {
        // The portion of each queue depends on which others compete, so portions are computed anew whenever some are
        // satisfied.
        let portions = portions_by_usage(queues, &takers, usage_weight);
        set_portions(&mut takers, &portions);
        left = hand_out_until_satisfied(left, &mut takers);
        takers.retain(|taker| {
            shares[taker.queue] = taker.given;
            taker.missing() > 0
        });
    }
    let weights: Vec<u128> = takers.iter().map(|taker| u128::from(queues[taker.queue].weight)).collect();
    set_portions(&mut takers, &weights);
    left = hand_out(left, &mut takers);
    for taker in &takers {
        shares[taker.queue] = taker.given;
    }
    left
}

/// The proportions in which what is left over goes to queues: each queue's part of the weights, raised if it has lately
/// used less than that part, and lowered if it has used more, but not below 0.
fn portions_by_usage(queues: &[Demand], takers: &[Taker], usage_weight: u64) -> Vec<u128> {
    /// The total usage, in the unit of [`Demand::usage_ppm`].
    const ALL: u128 = 1_000_000;
    /// Above this bound larger weights make no further difference, and products would not fit.
    const MOST: u64 = 1 << 40;
    let usage_weight = u128::from(usage_weight.min(1_000_000));
    let weight = |taker: &Taker| u128::from(queues[taker.queue].weight.min(MOST));
    let weights: u128 = takers.iter().map(weight).sum();
    let by_usage = |taker: &Taker| {
        let usage = u128::from(queues[taker.queue].usage_ppm.min(MOST));
        // weight/weights + k * (weight/weights - usage), over the common denominator.
        (weight(taker) * ALL * (1000 + usage_weight)).saturating_sub(usage_weight * usage * weights)
    };
    let portions: Vec<u128> = takers.iter().map(by_usage).collect();
    match portions.iter().any(|portion| *portion > 0) {
        true => portions,
        // All of them have used more than their part, so none is worse than the others.
        false => takers.iter().map(weight).collect(),
    }
}

/// Sets takers' portions, scaled so that they are small enough to be multiplied with amounts. A portion above 0 stays
/// above 0.
fn set_portions(takers: &mut [Taker], portions: &[u128]) {
    let all = portions.iter().fold(0, |sum: u128, portion| sum.saturating_add(*portion));
    let shift = (128 - all.leading_zeros()).saturating_sub(Taker::PORTION_BITS);
    for (taker, portion) in takers.iter_mut().zip(portions) {
        taker.portion = match portion {
            0 => 0,
            portion => u64::try_from((portion >> shift).max(1)).unwrap_or(u64::MAX),
        };
    }
}
