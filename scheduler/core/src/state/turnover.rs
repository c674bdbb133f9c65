//! How much of the running work has lately ended.

use crate::vocabulary::dump::DumpedTurnover;

/// The unit of `ended` is a thousandth of a device divided by this, because it decays by less than a thousandth at a
/// time.
const PART: u64 = 1 << 10;
/// The least placed device time that decay is computed with, in thousandths of a device. A few claims say little.
const PLACED_MIN: u64 = 16_000;
/// The turnover is full when placed device time divided by this has lately ended, so the half. If arriving work
/// replaces all that ends, this part goes to the whole.
const FULL: u64 = 2;

/// Counts the device time of claims that come and end. It advances only when a claim comes or ends, and uses no clock.
/// What has ended counts less the more has come since: after as much has come as is placed, a little more than a third
/// of it still counts.
///
/// As long as no claim ends, the turnover is 0, however many claims come.
#[derive(Clone, Debug, Default)]
pub(crate) struct Turnover {
    /// Placed device time, in thousandths of a device.
    placed: u64,
    /// Device time that has lately ended, in thousandths of a device divided by [`PART`].
    ended: u64,
    /// The turnover, in eighths.
    eighths: u8,
}

impl Turnover {
    /// The greatest value of [`Turnover::eighths`].
    pub(crate) const MOST: u8 = 8;

    /// The turnover, in eighths; 0 as long as no claim ends. It falls at half an eighth below the point where it rises,
    /// so that chance does not move it to and fro.
    pub(crate) fn eighths(&self) -> u8 {
        self.eighths
    }

    /// Notes that a claim with this device time was placed.
    pub(crate) fn place(&mut self, device_core: u64) {
        self.placed = self.placed.saturating_add(device_core);
    }

    /// Notes that a claim is no longer placed.
    pub(crate) fn displace(&mut self, device_core: u64) {
        self.placed = self.placed.saturating_sub(device_core);
    }

    /// Notes that a claim with this device time has come.
    pub(crate) fn note_coming(&mut self, device_core: u64) {
        let placed = self.placed.max(PLACED_MIN);
        let decay = (u128::from(self.ended) * u128::from(device_core.min(placed))).div_ceil(u128::from(placed));
        self.ended = self.ended.saturating_sub(u64::try_from(decay).unwrap_or(u64::MAX));
        self.follow();
    }

    /// Notes that a running claim has ended. It is still placed at this point.
    pub(crate) fn note_end(&mut self, device_core: u64) {
        let most = self.placed.max(PLACED_MIN).saturating_mul(PART);
        self.ended = self.ended.saturating_add(device_core.saturating_mul(PART)).min(most);
        self.follow();
    }

    fn follow(&mut self) {
        let full = u128::from(self.placed.max(PLACED_MIN)) * u128::from(PART) / u128::from(FULL);
        let most = 2 * Self::MOST;
        let sixteenths = u8::try_from(u128::from(self.ended) * u128::from(most) / full).unwrap_or(most).min(most);
        if sixteenths / 2 > self.eighths || sixteenths.div_ceil(2) < self.eighths {
            self.eighths = sixteenths / 2;
        }
    }

    /// The turnover as a value.
    pub(crate) fn dump(&self) -> DumpedTurnover {
        DumpedTurnover { ended: self.ended, eighths: self.eighths }
    }

    /// Continues from a dumped turnover.
    pub(crate) fn restore(&mut self, dump: DumpedTurnover) {
        (self.ended, self.eighths) = (dump.ended, dump.eighths.min(Self::MOST));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A turnover with this many devices placed.
    fn placed(devices: u64) -> Turnover {
        Turnover { placed: devices * 1000, ..Turnover::default() }
    }

    #[test]
    fn without_ends_there_is_no_turnover() {
        let mut turnover = Turnover::default();
        for _ in 0..10_000 {
            turnover.note_coming(1000);
            turnover.place(1000);
        }
        assert_eq!((turnover.eighths(), turnover.ended), (0, 0));
    }

    #[test]
    fn where_what_ends_is_replaced_turnover_counts_fully_after_the_half_has_ended() {
        let mut turnover = placed(1000);
        let mut replace = |claims: u32| {
            for _ in 0..claims {
                turnover.note_end(1000);
                turnover.displace(1000);
                turnover.note_coming(1000);
                turnover.place(1000);
            }
            turnover.eighths()
        };
        assert_eq!([1, 50, 800, 9000].map(&mut replace), [0, 0, 8, 8]);
    }

    #[test]
    fn turnover_is_forgotten_when_much_comes_and_nothing_ends() {
        let mut turnover = placed(1000);
        (0..600).for_each(|_| turnover.note_end(1000));
        assert_eq!(turnover.eighths(), 8);
        (0..1000).for_each(|_| turnover.note_coming(1000));
        assert_eq!(turnover.eighths(), 4);
        (0..3000).for_each(|_| turnover.note_coming(1000));
        assert_eq!(turnover.eighths(), 0);
    }

    #[test]
    fn it_is_device_time_that_counts() {
        let mut turnover = placed(1000);
        (0..100_000).for_each(|_| turnover.note_end(0));
        assert_eq!(turnover.eighths(), 0, "tasks without devices");
        (0..63).for_each(|_| turnover.note_end(8000));
        assert_eq!(turnover.eighths(), 8);
    }

    #[test]
    fn a_few_claims_make_no_turnover() {
        let mut turnover = placed(1);
        turnover.note_end(1000);
        assert_eq!(turnover.eighths(), 1);
        turnover.restore(DumpedTurnover { ended: u64::MAX, eighths: 255 });
        assert_eq!(turnover.eighths(), 8, "whatever was saved");
        turnover.note_coming(u64::MAX);
        turnover.note_end(u64::MAX);
        assert_eq!(turnover.ended, 16_000 * PART, "no more than was placed");
    }
}
