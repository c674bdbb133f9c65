//! The engine's time in milliseconds since 1970. It never runs backwards.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Instant, SystemTime, UNIX_EPOCH};

use aliquot_scheduler_engine::Saved;

/// A clock that is set once, when the process starts. Later changes of the machine's clock do not change it.
#[derive(Debug)]
pub(crate) struct Clock {
    started: Instant,
    started_ms: u64,
    /// The last time that it told.
    last_ms: AtomicU64,
}

impl Clock {
    /// A clock that never tells a time before `floor_ms`.
    pub(crate) fn new(floor_ms: u64) -> Self {
        let since = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_millis());
        let started_ms = u64::try_from(since).unwrap_or(u64::MAX).max(floor_ms);
        Self { started: Instant::now(), started_ms, last_ms: AtomicU64::new(started_ms) }
    }

    pub(crate) fn now_ms(&self) -> u64 {
        let passed = u64::try_from(self.started.elapsed().as_millis()).unwrap_or(u64::MAX);
        let now_ms = self.started_ms.saturating_add(passed);
        self.last_ms.fetch_max(now_ms, Ordering::Relaxed).max(now_ms)
    }
}

/// The latest time in the saved records.
pub(crate) fn latest_ms(saved: &Saved) -> u64 {
    let of_claims = saved.claims.iter().flat_map(|(_, record)| {
        let evicted = record.evicted.as_ref().map(|evicted| evicted.at_ms);
        let started = record.instance.as_ref().map(|instance| instance.started_ms);
        [Some(record.added_ms), evicted, started].into_iter().flatten()
    });
    of_claims.max().unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_clock_goes_on_from_what_was_saved() {
        let far_ms = 1 << 50;
        assert!(Clock::new(far_ms).now_ms() >= far_ms);
        let clock = Clock::new(0);
        let before_ms = clock.now_ms();
        assert!(before_ms > 1_700_000_000_000 && clock.now_ms() >= before_ms);
    }
}
