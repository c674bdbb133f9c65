//! Shares of a device's time, judged so that the verdict is meaningful on a machine that is busy with other work.
//!
//! The measure is the simulated device's own account, read repeatedly over a window that grows from the start of the
//! measurement. A bounded error, such as a lease that overran and is made up for later, becomes an ever smaller part of
//! the window; a wrong share remains. So only a process that uses too much in the long run fails the upper bound. A
//! busy machine also looks like a share that is too small, so the lower bound is reduced by the time for which the
//! machine itself stood still ([`Witness`]).

use std::ops::RangeInclusive;
use std::thread;
use std::time::Duration;

use aliquot_fake_machine::now_ns;

use crate::{SimulatedGpu, Witness, wait};

/// Allowed error in percentage points. The exact figures are the benchmarks' task.
const TOLERANCE_POINTS: f64 = 3.0;
/// The default for the shortest window that is judged.
const WINDOW_MIN: Duration = Duration::from_millis(1500);
/// When the window reaches this length with wrong shares, the attempt has failed.
const WINDOW_MAX: Duration = Duration::from_secs(15);
/// Time between two readings of the device's account.
const LOOK_INTERVAL: Duration = Duration::from_millis(100);

/// The expected shares of a device's time, for groups of processes.
pub struct Shares<'a> {
    gpu: &'a SimulatedGpu,
    device: usize,
    users: Vec<User>,
    window_min: Duration,
}

/// Processes that have one share together.
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

    /// The processes `pids` should together use a percentage of the device's time in the range `percent`.
    #[must_use]
    pub fn between(mut self, percent: RangeInclusive<u32>, pids: &[u32]) -> Shares<'a> {
        let percent = f64::from(*percent.start())..=f64::from(*percent.end());
        self.users.push(User { pids: pids.to_vec(), percent });
        self
    }

    /// Sets the shortest window that is judged, for shares that go wrong slowly.
    #[must_use]
    pub fn over_at_least(mut self, window: Duration) -> Shares<'a> {
        self.window_min = window;
        self
    }

    /// Watches the device until the shares are as expected. Fails the test if a few windows in turn end with wrong
    /// shares.
    #[track_caller]
    pub fn assert_kept(self) {
        let used = || self.used_ns();
        wait::until_true("who is to use the device does", || {
            used().iter().zip(&self.users).all(|(&used_ns, user)| used_ns > 0 || *user.percent.start() == 0.0)
        });
        wait::in_one_of_a_few(|| self.watch_window());
    }

    /// Watches the device for one window, until the shares are as expected. Returns a description of the measurement.
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

    /// The device time that each user has used so far, in the order of `users`.
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
