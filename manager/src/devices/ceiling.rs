//! Keeps MPS's ceiling at the percentage that the slices need. MPS forgets the ceiling when it restarts, and the
//! removal of a slice lowers it.

use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::sync::watch;

use super::Known;
use crate::live::LiveSlices;
use crate::mps::Mps;

/// Time between two conversations with the control daemon.
const CONVERSATIONS_INTERVAL: Duration = Duration::from_secs(5);
/// Time after which a changed ceiling is noticed.
const CHANGE_INTERVAL: Duration = Duration::from_secs(1);

/// The ceiling that MPS is to keep.
pub(super) struct Ceiling {
    mps: Arc<Mps>,
    slices: Arc<LiveSlices>,
    known: watch::Receiver<Known>,
    /// The maximum percentage that MPS was last told.
    percent: Option<u32>,
    told: Instant,
}

impl Ceiling {
    /// A ceiling that has told MPS nothing yet.
    pub(super) fn new(mps: Arc<Mps>, slices: Arc<LiveSlices>, known: watch::Receiver<Known>) -> Ceiling {
        Ceiling { mps, slices, known, percent: None, told: Instant::now() }
    }

    /// Tells MPS the ceiling if it has changed, or was told some time ago. Calls `look` if the devices' health may have
    /// changed. Returns how long to wait.
    pub(super) fn tick(&mut self, look: &dyn Fn()) -> Duration {
        if (self.told.elapsed() >= CONVERSATIONS_INTERVAL || self.percent != self.wanted_percent()) && self.hold() {
            look();
        }
        CHANGE_INTERVAL
    }

    /// Tells MPS the ceiling, where MPS is used. Returns whether MPS's problem, which is shown as the health of devices,
    /// has changed.
    pub(super) fn hold(&mut self) -> bool {
        self.told = Instant::now();
        let (mps, before) = (Arc::clone(&self.mps), self.mps.problem());
        if mps.is_used(&self.known.borrow().inventory) {
            // The error is the problem that the devices' health shows.
            let _ = mps.hold(|| {
                self.percent = self.wanted_percent();
                self.percent
            });
        } else {
            self.percent = self.wanted_percent();
        }
        mps.problem() != before
    }

    fn wanted_percent(&self) -> Option<u32> {
        self.slices.all().iter().filter_map(|live| self.mps.ceiling_percent(&live.parts())).max()
    }
}
