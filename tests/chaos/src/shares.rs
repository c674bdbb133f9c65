//! Judges shares of a device's time when no other tenant works. Like `aliquot_harness::Shares`, but reports a violation
//! instead of failing a test.

use std::time::{Duration, Instant};

use aliquot_harness::Witness;

use crate::verdict::Stuck;
use crate::world::World;

/// Allowed error in percentage points.
const TOLERANCE_POINTS: f64 = 4.0;
/// When the window reaches this length with wrong shares, it has failed.
const WINDOW: Duration = Duration::from_secs(15);
/// The shortest window that is judged.
const WINDOW_MIN: Duration = Duration::from_secs(2);
const LOOK_INTERVAL: Duration = Duration::from_millis(100);
/// A failed window in which the machine stood still for more than this is not judged: the process that simulates the
/// device stood still too.
const LOST_PERCENT_MAX: f64 = 25.0;
/// Windows that must fail in a row for a violation. In a single one, the machine may have kept one thread from its
/// processor.
const WINDOWS: usize = 4;

impl World {
    /// Measures the shares of the two busy slices with no other tenant at work: one is limited to its request, the
    /// other may take the rest.
    pub(crate) fn judge_shares(&mut self) -> Result<(), Stuck> {
        self.churn.pause();
        self.tenants.retain(|tenant| tenant.recipe.name == "busy");
        self.pause(crate::rest::CALM);
        let mut found = String::new();
        for _ in 0..WINDOWS {
            self.verdict.count(|effort| effort.share_windows += 1);
            match self.share_window()? {
                Ok(()) => return Ok(()),
                Err(measured) => found = measured,
            }
        }
        self.verdict.wrong(format!("shares are wrong in calm windows: {found}"));
        Ok(())
    }

    fn share_window(&mut self) -> Result<Result<(), String>, Stuck> {
        // The first may use exactly its request of 30 %. The other requests 10 % and may use all that is left.
        let wanted = [("steady", 30.0), ("batch", 70.0)];
        let used_ns = |world: &World| -> Vec<u64> {
            let processes = world.gpu.machine().device_use(0).processes;
            let roster = world.roster();
            let of = |slice: &str| {
                let members = processes.iter().filter(|process| roster.slice_of(process.pid) == Some(slice));
                members.map(|process| process.busy_ns).sum()
            };
            wanted.iter().map(|(slice, _)| of(slice)).collect()
        };
        let (start, before, witness) = (Instant::now(), used_ns(self), Witness::start());
        self.pause(WINDOW_MIN);
        loop {
            self.pause(LOOK_INTERVAL);
            let (after, window) = (used_ns(self), start.elapsed());
            let percent = |ns: u64| ns as f64 * 100.0 / window.as_nanos() as f64;
            let lost_percent = percent(witness.lost_ns());
            let measured: Vec<f64> =
                after.iter().zip(&before).map(|(after, before)| percent(after.saturating_sub(*before))).collect();
            // The time for which the machine stood still excuses a share that is too small, but not one that is too
            // large.
            let is_kept = |(&measured, &(_, wanted)): (&f64, &(&str, f64))| {
                let least = wanted * (1.0 - lost_percent / 100.0) - TOLERANCE_POINTS;
                (least..=wanted + TOLERANCE_POINTS).contains(&measured)
            };
            if measured.iter().zip(&wanted).all(is_kept) {
                return Ok(Ok(()));
            }
            if window > WINDOW && lost_percent > LOST_PERCENT_MAX {
                println!("shares are not judged: the machine stood still for {lost_percent:.0} % of {window:.0?}");
                return Ok(Ok(()));
            }
            if window > WINDOW {
                let found = format!(
                    "{measured:.1?} % in {window:.1?}, wanted {wanted:?}; the machine stood still for {lost_percent:.1} % of it"
                );
                return Ok(Err(found));
            }
        }
    }
}
