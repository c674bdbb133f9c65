//! Shares of a device's time, judged so that they mean something on a machine that is busy with something else.
//!
//! What counts is the device's own account. It is looked at from the beginning of a measurement on, again and again:
//! what is bounded, as a lease that overran and is made up for later, becomes less and less of the growing window, and
//! what is wrong stays. So nobody has used too much who has not in the long run, whatever the machine does. Too little
//! is what a busy machine looks like, too: the time for which the machine itself stood still ([`Witness`]) is taken off
//! from what must have been used.

use std::ops::RangeInclusive;
use std::thread;
use std::time::Duration;

use aliquot_fake_machine::now_ns;

use crate::{SimulatedGpu, Witness, wait};

/// What shares are exact to here. The aim itself is a figure of the benchmarks.
const TOLERANCE_POINTS: f64 = 3.0;
/// Nothing is said about less time than this, if not told otherwise.
const WINDOW_MIN: Duration = Duration::from_millis(1500);
/// What is wrong until then is wrong in this window.
const WINDOW_MAX: Duration = Duration::from_secs(15);
/// Between two looks.
const LOOK_INTERVAL: Duration = Duration::from_millis(100);

/// Who should use how much of a device's time.
pub struct Shares<'a> {
    gpu: &'a SimulatedGpu,
    device: usize,
    users: Vec<User>,
    window_min: Duration,
}

/// Processes with a share in common.
struct User {
    pids: Vec<u32>,
    percent: RangeInclusive<f64>,
}

impl<'a> Shares<'a> {
    /// Shares of the machine's first device.
    #[must_use]
    pub fn of(gpu: &'a SimulatedGpu) -> Shares<'a> {
        Shares::of_device(gpu, 0)
    }

    /// Shares of device number `device`.
    #[must_use]
    pub fn of_device(gpu: &'a SimulatedGpu, device: usize) -> Shares<'a> {
        Shares { gpu, device, users: Vec::new(), window_min: WINDOW_MIN }
    }

    /// The processes `pids` should together use exactly `percent` of the device's time.
    #[must_use]
    pub fn exactly(self, percent: u32, pids: &[u32]) -> Shares<'a> {
        self.between(percent..=percent, pids)
    }

    /// The processes `pids` should together use so many percent of the device's time.
    #[must_use]
    pub fn between(mut self, percent: RangeInclusive<u32>, pids: &[u32]) -> Shares<'a> {
        let percent = f64::from(*percent.start())..=f64::from(*percent.end());
        self.users.push(User { pids: pids.to_vec(), percent });
        self
    }

    /// Says nothing about less time than this, where shares go wrong slowly.
    #[must_use]
    pub fn over_at_least(mut self, window: Duration) -> Shares<'a> {
        self.window_min = window;
        self
    }

    /// Watches the device until the shares are as they should be. Fails the test if they do not become so.
    #[track_caller]
    pub fn assert_kept(self) {
        let used = || self.used_ns();
        wait::until_true("who is to use the device does", || {
            used().iter().zip(&self.users).all(|(&used_ns, user)| used_ns > 0 || *user.percent.start() == 0.0)
        });
        wait::in_one_of_a_few(|| self.watch_window());
    }

    /// Watches the device until the shares are as they should be, for one window. Returns what there was to see.
    fn watch_window(&self) -> Result<String, String> {
        let (before, start_ns, witness) = (self.used_ns(), now_ns(), Witness::start());
        thread::sleep(self.window_min - LOOK_INTERVAL);
        loop {
            thread::sleep(LOOK_INTERVAL);
            let (after, window_ns, lost_ns) = (self.used_ns(), now_ns() - start_ns, witness.lost_ns());
            let percent_of_window = |ns: u64| ns as f64 * 100.0 / window_ns as f64;
            let measured: Vec<f64> = after
                .iter()
                .zip(&before)
                .map(|(after, before)| percent_of_window(after.saturating_sub(*before)))
                .collect();
            let lost_percent = percent_of_window(lost_ns);
            let wanted: Vec<_> = self.users.iter().map(|user| &user.percent).collect();
            let found = format!(
                "percent of the device that should be {wanted:?}: {measured:.2?} in {} ms, {lost_percent:.2} % of which the machine \
                 stood still",
                window_ns / 1_000_000
            );
            if measured.iter().zip(&self.users).all(|(&measured, user)| user.is_kept(measured, lost_percent)) {
                return Ok(found);
            }
            if window_ns >= WINDOW_MAX.as_nanos() as u64 {
                return Err(found);
            }
        }
    }

    /// The device time that each has used, in the order of the users.
    fn used_ns(&self) -> Vec<u64> {
        let used = self.gpu.machine().device_use(self.device).processes;
        let of = |pid| used.iter().find(|process| process.pid == pid).map_or(0, |process| process.busy_ns);
        self.users.iter().map(|user| user.pids.iter().copied().map(of).sum()).collect()
    }
}

impl User {
    fn is_kept(&self, measured_percent: f64, lost_percent: f64) -> bool {
        let there = 1.0 - lost_percent / 100.0;
        let (least, most) = (self.percent.start() * there - TOLERANCE_POINTS, self.percent.end() + TOLERANCE_POINTS);
        (least..=most).contains(&measured_percent)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn is_kept(percent: RangeInclusive<f64>, measured_percent: f64, lost_percent: f64) -> bool {
        User { pids: Vec::new(), percent }.is_kept(measured_percent, lost_percent)
    }

    #[test]
    fn on_a_calm_machine_shares_are_exact_on_both_sides() {
        assert!(is_kept(30.0..=30.0, 29.0, 0.0) && is_kept(30.0..=30.0, 31.0, 0.0));
        assert!(!is_kept(30.0..=30.0, 26.0, 0.0) && !is_kept(30.0..=30.0, 34.0, 0.0));
    }

    #[test]
    fn a_machine_that_stood_still_excuses_too_little_and_never_too_much() {
        assert!(is_kept(70.0..=70.0, 61.0, 10.0) && !is_kept(70.0..=70.0, 58.0, 10.0));
        assert!(!is_kept(30.0..=30.0, 34.0, 50.0));
    }
}
