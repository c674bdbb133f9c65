//! How much of one resource each of several sibling queues is entitled to.
//!
//! First each gets its quota, as far as it asks for it. What is left goes to the queues by priority, and among equals
//! in proportion to weight, never beyond what they ask for or their limit. Amounts are integers in the resource's
//! smallest unit, and nothing is rounded to whole devices here.
//!
//! All units are thought of as handed out one after the other, in an order that depends neither on how many there are
//! nor on what is asked for beyond them. So more of the resource never makes anybody's share smaller, and neither does
//! asking for more make one's own.

use crate::decisions::fair_share::hand_out::{Taker, hand_out, hand_out_until_satisfied};

/// What decides a queue's part of one resource.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Demand {
    /// What it deserves; `None`: all there is.
    pub quota: Option<u64>,
    /// What it never exceeds; `None`: no limit.
    pub limit: Option<u64>,
    /// Its weight for what is left over; 0: it gets nothing of that.
    pub weight: u64,
    /// Those of higher priority are given what is left over first.
    pub priority: i32,
    /// What its claims ask for, running or waiting.
    pub requested: u64,
    /// What it has used lately, in millionths of what there was.
    pub usage_ppm: u64,
}

impl Demand {
    /// What it could be given at most.
    #[must_use]
    pub fn requestable(&self) -> u64 {
        self.limit.map_or(self.requested, |limit| limit.min(self.requested))
    }

    /// What it is given before anything is left over.
    fn deserved(&self) -> u64 {
        self.quota.map_or(self.requestable(), |quota| quota.min(self.requestable()))
    }
}

/// Divides `total` among queues, the oldest first. `usage_weight` says how strongly past usage counts against a queue,
/// in thousandths of the difference between its part of the weights and its part of the usage; 0: not at all.
///
/// * The shares never add up to more than there is.
/// * No share is more than what is asked for, or the limit.
/// * If all quotas that are asked for fit, no share is less than its quota as far as it is asked for. Otherwise what
///   there is is divided in proportion to the quotas; one that is all there is counts as the largest of the others.
///   Shares must add up to what there is, and no queue's weight may depend on the total.
/// * Nothing is left over that a queue with a weight asks for.
/// * No share gets smaller because there is more to divide, or because its queue asks for more.
/// * The order of the queues decides about one unit of a share at most.
#[must_use]
pub fn divide(total: u64, queues: &[Demand], usage_weight: u64) -> Vec<u64> {
    let mut shares = vec![0; queues.len()];
    let mut left = divide_quotas(total, queues, &mut shares);
    let mut waiting: Vec<usize> = (0..queues.len())
        .filter(|queue| queues[*queue].weight > 0 && shares[*queue] < queues[*queue].requestable())
        .collect();
    // A stable sort: those of a priority stay in the order of their age.
    waiting.sort_by_key(|queue| std::cmp::Reverse(queues[*queue].priority));
    for group in waiting.chunk_by(|one, other| queues[*one].priority == queues[*other].priority) {
        if left == 0 {
            break;
        }
        left = divide_over_quota(left, queues, group, usage_weight, &mut shares);
    }
    shares
}

/// Gives each queue its quota, as far as it asks for it, or all of them parts in proportion. Returns what is left.
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
/// what nobody takes.
fn divide_over_quota(mut left: u64, queues: &[Demand], group: &[usize], usage_weight: u64, shares: &mut [u64]) -> u64 {
    let mut takers: Vec<Taker> =
        group.iter().map(|queue| Taker::new(*queue, shares[*queue], queues[*queue].requestable())).collect();
    while left > 0 && usage_weight > 0 && takers.iter().any(|taker| queues[taker.queue].usage_ppm > 0) {
        // What is due to each depends on who else competes: it is settled anew whenever some are satisfied.
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

/// The proportions in which what is left over goes to queues: the part of the weights that each has, more if it has
/// used less than that lately, and less if more; but nobody's less than nothing.
fn portions_by_usage(queues: &[Demand], takers: &[Taker], usage_weight: u64) -> Vec<u128> {
    /// All of the usage, in the unit of [`Demand::usage_ppm`].
    const ALL: u128 = 1_000_000;
    /// Beyond these bounds numbers make no difference any more, and products would not fit.
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
        // All of them have used more than their part: then nobody is worse than the others.
        false => takers.iter().map(weight).collect(),
    }
}

/// Sets takers' portions to these, in numbers that are small enough to be multiplied with amounts. What is not nothing
/// stays so.
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
