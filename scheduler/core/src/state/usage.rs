//! Recent usage: it counts half as much after each half-life.

/// Binary places after the point of a decay factor.
const POINT: u32 = 48;
/// A decay factor of 1.
const ONE: u128 = 1 << POINT;
/// `2^(-1/2)`, `2^(-1/4)`, ... `2^(-1/1024)`, in 2^48ths.
const ROOTS: [u128; 10] = [
    199_032_864_766_430,
    236_691_298_899_613,
    258_113_691_704_612,
    269_541_361_132_679,
    275_443_548_385_834,
    278_442_931_975_303,
    279_954_849_561_488,
    280_713_884_160_287,
    281_094_172_843_150,
    281_284_510_335_224,
];
/// The natural logarithm of 2, in 2^48ths.
const LN_2: u128 = 195_103_586_505_167;
/// `1 / ln 2 - 1`, in 2^48ths.
const INVERSE_LN_2_ABOVE_ONE: u128 = ONE * ONE / LN_2 - ONE;

/// An amount that was held over time, decayed. Two of these with the same half-life can be compared, such as a queue's
/// usage and the cluster's capacity.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct DecayedUsage {
    half_life_ms: u64,
    /// The decayed integral up to `at_ms`, in amounts times milliseconds.
    integral: u128,
    at_ms: u64,
}

impl DecayedUsage {
    /// No usage so far. A half-life of 0 counts as a millisecond.
    #[must_use]
    pub fn new(half_life_ms: u64, now_ms: u64) -> Self {
        Self { half_life_ms: half_life_ms.max(1), integral: 0, at_ms: now_ms }
    }

    /// The usage that had this [`integral`](Self::integral) at this time.
    pub(crate) fn restored(half_life_ms: u64, integral: u128, at_ms: u64) -> Self {
        Self { integral, ..Self::new(half_life_ms, at_ms) }
    }

    /// The decayed integral, in amounts times milliseconds.
    pub(crate) fn integral(&self) -> u128 {
        self.integral
    }

    /// The time up to which it is known, in milliseconds.
    pub(crate) fn at_ms(&self) -> u64 {
        self.at_ms
    }

    /// Notes that `amount` was held since the last call. If time runs backwards, no time has passed.
    pub fn hold(&mut self, amount: u64, now_ms: u64) {
        let elapsed_ms = now_ms.saturating_sub(self.at_ms);
        let left = decay(elapsed_ms, self.half_life_ms);
        // The integral of amount * 2^(-t/h) over the time is amount * h / ln 2 * (1 - 2^(-elapsed/h)).
        let ever = u128::from(amount) * u128::from(self.half_life_ms);
        let added = part(ever, ONE - left);
        let added = added.saturating_add(part(added, INVERSE_LN_2_ABOVE_ONE));
        self.integral = part(self.integral, left).saturating_add(added);
        self.at_ms = self.at_ms.max(now_ms);
    }

    /// What was held divided by the capacity `there_was`, in millionths.
    #[must_use]
    pub fn ppm_of(&self, there_was: &Self) -> u64 {
        let part = self.integral.saturating_mul(1_000_000).checked_div(there_was.integral);
        part.and_then(|part| u64::try_from(part).ok()).unwrap_or(0)
    }
}

/// The rest of an amount after it has decayed for some time.
pub(crate) fn decayed(amount: u128, elapsed_ms: u64, half_life_ms: u64) -> u128 {
    part(amount, decay(elapsed_ms, half_life_ms.max(1)))
}

/// `amount * factor`, where the factor is in 2^48ths and at most one.
fn part(amount: u128, factor: u128) -> u128 {
    (amount >> POINT) * factor + (((amount & (ONE - 1)) * factor) >> POINT)
}

/// `2^(-elapsed / half_life)`, in 2^48ths.
fn decay(elapsed_ms: u64, half_life_ms: u64) -> u128 {
    let half_lives = elapsed_ms / half_life_ms;
    if half_lives >= u64::from(POINT) {
        return 0;
    }
    // The rest beyond whole half-lives, as a part of a half-life. It is processed bit by bit.
    let mut rest = (u128::from(elapsed_ms % half_life_ms) << POINT) / u128::from(half_life_ms);
    let mut factor = ONE >> half_lives;
    for (bit, root) in (1..).zip(ROOTS) {
        if rest >= ONE >> bit {
            rest -= ONE >> bit;
            factor = part(factor, root);
        }
    }
    // Less than a 1024th of a half-life is left: the first terms of the series are exact enough.
    let exponent = part(LN_2, rest);
    part(factor, ONE - exponent + part(exponent, exponent) / 2)
}

#[cfg(test)]
mod tests {
    use super::*;

    const HOUR_MS: u64 = 3_600_000;
    const WEEK_MS: u64 = 7 * 24 * HOUR_MS;

    #[test]
    #[expect(clippy::disallowed_types, reason = "it is compared with the function on real numbers")]
    fn decay_agrees_with_the_function_itself() {
        for elapsed_ms in (0..40 * HOUR_MS).step_by(1_234_567) {
            let exact = (-(elapsed_ms as f64) / HOUR_MS as f64).exp2();
            let got = decay(elapsed_ms, HOUR_MS) as f64 / ONE as f64;
            assert!((got - exact).abs() < 1e-9, "{elapsed_ms}: {got} instead of {exact}");
        }
    }

    #[test]
    fn what_was_used_a_half_life_ago_counts_half() {
        let mut used = DecayedUsage::new(WEEK_MS, 0);
        used.hold(1000, HOUR_MS);
        let then = used.integral;
        used.hold(0, HOUR_MS + WEEK_MS);
        assert!(used.integral.abs_diff(then / 2) <= 1, "{} of {then}", used.integral);
    }

    #[test]
    fn many_short_calls_add_up_to_one_long_call() {
        let (mut often, mut once) = (DecayedUsage::new(WEEK_MS, 0), DecayedUsage::new(WEEK_MS, 0));
        for now_ms in (0..=3 * WEEK_MS).step_by(10_007) {
            often.hold(8000, now_ms);
        }
        once.hold(8000, often.at_ms);
        let part = often.ppm_of(&once);
        assert!(part.abs_diff(1_000_000) <= 20, "{part} millionths");
    }

    #[test]
    fn usage_is_a_part_of_what_there_was() {
        let (mut used, mut there_was) = (DecayedUsage::new(HOUR_MS, 0), DecayedUsage::new(HOUR_MS, 0));
        for now_ms in [HOUR_MS, 2 * HOUR_MS, 5 * HOUR_MS] {
            used.hold(2500, now_ms);
            there_was.hold(10_000, now_ms);
        }
        assert!(used.ppm_of(&there_was).abs_diff(250_000) <= 1);
        assert_eq!(used.ppm_of(&DecayedUsage::new(HOUR_MS, 0)), 0);
    }

    #[test]
    fn bytes_of_a_large_cluster_held_for_long_do_not_overflow() {
        let all = 1 << 55;
        let (mut used, mut there_was) = (DecayedUsage::new(WEEK_MS, 0), DecayedUsage::new(WEEK_MS, 0));
        for now_ms in [WEEK_MS, 20 * WEEK_MS] {
            used.hold(all / 4, now_ms);
            there_was.hold(all, now_ms);
        }
        assert!(used.ppm_of(&there_was).abs_diff(250_000) <= 1, "{}", used.ppm_of(&there_was));
        let mut largest = DecayedUsage::new(u64::MAX, 0);
        largest.hold(u64::MAX, u64::MAX);
        largest.hold(u64::MAX, u64::MAX);
        assert!(largest.ppm_of(&largest) <= 1_000_000);
    }
}
