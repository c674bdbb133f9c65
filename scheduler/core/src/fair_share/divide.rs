//! How much of one resource each of several sibling queues is entitled to.
//!
//! First each gets its quota, as far as it asks for it. What is left goes to the queues by priority, and among equals
//! in proportion to weight, never beyond what they ask for or their limit. Amounts are integers in the resource's
//! smallest unit: nothing is rounded to whole devices, and what does not divide evenly goes unit by unit to the largest
//! remainders, the older queue first.

/// What decides a queue's part of one resource.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
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

    fn deserved(&self, total: u64) -> u64 {
        self.quota.unwrap_or(total).min(self.requestable())
    }
}

/// Divides `total` among queues, the oldest first. `usage_weight` says how strongly past usage counts against a queue,
/// in thousandths of the difference between its part of the weights and its part of the usage; 0: not at all.
///
/// * The shares never add up to more than there is.
/// * No share is more than what is asked for, or the limit.
/// * If all quotas that are asked for fit, no share is less than its quota as far as it is asked for. Otherwise what
///   there is is divided in proportion to the quotas.
#[must_use]
pub fn divide(total: u64, queues: &[Demand], usage_weight: u64) -> Vec<u64> {
    let deserved: Vec<u64> = queues.iter().map(|queue| queue.deserved(total)).collect();
    let wanted: u128 = deserved.iter().map(|amount| u128::from(*amount)).sum();
    let mut shares = vec![0; queues.len()];
    if wanted > u128::from(total) {
        let quotas = |active: &[usize]| active.iter().map(|q| u128::from(queues[*q].quota.unwrap_or(total))).collect();
        fill(total, &mut shares, &deserved, (0..queues.len()).collect(), quotas);
        return shares;
    }
    shares.clone_from(&deserved);
    let mut left = total - deserved.iter().sum::<u64>();
    let most: Vec<u64> = queues.iter().map(Demand::requestable).collect();
    let mut priorities: Vec<i32> = queues.iter().map(|queue| queue.priority).collect();
    priorities.sort_unstable_by(|left, right| right.cmp(left));
    priorities.dedup();
    for priority in priorities {
        let is_member = |q: &usize| queues[*q].priority == priority && queues[*q].weight > 0;
        let group: Vec<usize> = (0..queues.len()).filter(is_member).collect();
        left = fill(left, &mut shares, &most, group, |active| over_quota_portions(queues, active, usage_weight));
    }
    shares
}

/// The proportions in which what is left over goes to queues: the part of the weights that each has, more if it has
/// used less than that lately, and less if more; but nobody's less than nothing.
fn over_quota_portions(queues: &[Demand], active: &[usize], usage_weight: u64) -> Vec<u128> {
    const ALL: u128 = 1_000_000;
    let weights: u128 = active.iter().map(|q| u128::from(queues[*q].weight)).sum();
    let by_usage: Vec<u128> = active
        .iter()
        .map(|q| {
            let (weight, usage) = (u128::from(queues[*q].weight), u128::from(queues[*q].usage_ppm));
            // weight/weights + k * (weight/weights - usage), over the common denominator.
            let due = weight * ALL * (1000 + u128::from(usage_weight));
            due.saturating_sub(u128::from(usage_weight) * usage * weights)
        })
        .collect();
    match by_usage.iter().any(|portion| *portion > 0) {
        true => by_usage,
        // All of them have used more than their part: then nobody is worse than the others.
        false => active.iter().map(|q| u128::from(queues[*q].weight)).collect(),
    }
}

/// Gives `left` to the `active` queues in the proportions that `portions` says, none of them more than `most` in all.
/// Returns what nobody takes.
fn fill(
    mut left: u64,
    shares: &mut [u64],
    most: &[u64],
    mut active: Vec<usize>,
    portions: impl Fn(&[usize]) -> Vec<u128>,
) -> u64 {
    loop {
        active.retain(|queue| shares[*queue] < most[*queue]);
        let parts = portions(&active);
        let all: u128 = parts.iter().sum();
        if left == 0 || all == 0 {
            return left;
        }
        // Parts are scaled so that products with amounts fit.
        let shift = (128 - all.leading_zeros()).saturating_sub(63);
        let parts: Vec<u128> = parts.into_iter().map(|part| part >> shift).collect();
        let all: u128 = parts.iter().sum::<u128>().max(1);
        let (mut given, mut satisfied) = (0, false);
        for (queue, part) in active.iter().zip(&parts) {
            let missing = most[*queue] - shares[*queue];
            if u128::from(missing) * all <= u128::from(left) * part {
                shares[*queue] += missing;
                given += missing;
                satisfied = true;
            }
        }
        left -= given;
        if satisfied {
            continue;
        }
        let mut remainders: Vec<(u128, usize)> = Vec::with_capacity(active.len());
        let round = left;
        for (queue, part) in active.iter().zip(&parts) {
            let scaled = u128::from(round) * part;
            let amount = u64::try_from(scaled / all).unwrap_or(u64::MAX);
            shares[*queue] += amount;
            left -= amount;
            remainders.push((scaled % all, *queue));
        }
        remainders.sort_by(|left, right| right.0.cmp(&left.0).then(left.1.cmp(&right.1)));
        for (_, queue) in remainders.iter().filter(|(remainder, _)| *remainder > 0) {
            if left == 0 {
                break;
            }
            shares[*queue] += 1;
            left -= 1;
        }
        return left;
    }
}
