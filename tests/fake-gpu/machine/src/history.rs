//! Utilisation of a device or process in the last second, from samples of the used device time, taken when time is
//! charged.

use core::sync::atomic::{AtomicU64, Ordering};

use crate::layout::{HISTORY_SAMPLES, History};

const WINDOW_NS: u64 = 1_000_000_000;
const SAMPLE_EVERY_NS: u64 = WINDOW_NS / 6;

impl History {
    /// Adds device time that was used just before `now_ns`. Only one process at a time does this: the one that has the
    /// time slice.
    pub(crate) fn charge(&self, total_ns: &AtomicU64, busy_ns: u64, now_ns: u64) {
        if busy_ns == 0 {
            return;
        }
        let count = self.count.load(Ordering::Relaxed);
        let last_at =
            self.samples[(count.wrapping_sub(1) % HISTORY_SAMPLES as u64) as usize].at_ns.load(Ordering::Relaxed);
        if count == 0 || now_ns.saturating_sub(last_at) >= SAMPLE_EVERY_NS {
            let sample = &self.samples[(count % HISTORY_SAMPLES as u64) as usize];
            // The work that is charged now began `busy_ns` ago.
            sample.at_ns.store(now_ns.saturating_sub(busy_ns), Ordering::Relaxed);
            sample.busy_ns.store(total_ns.load(Ordering::Relaxed), Ordering::Relaxed);
            self.count.store(count + 1, Ordering::Release);
        }
        total_ns.fetch_add(busy_ns, Ordering::Relaxed);
        self.charged_at_ns.store(now_ns, Ordering::Relaxed);
    }

    /// Used share of the last second, in percent.
    pub(crate) fn percent(&self, total_ns: &AtomicU64, now_ns: u64) -> u32 {
        let idle_ns = now_ns.saturating_sub(self.charged_at_ns.load(Ordering::Relaxed));
        let count = self.count.load(Ordering::Acquire);
        if count == 0 || idle_ns >= WINDOW_NS {
            return 0;
        }
        let recent = (0..count.min(HISTORY_SAMPLES as u64)).map(|age| (count - 1 - age) % HISTORY_SAMPLES as u64);
        let recent = recent.map(|index| &self.samples[index as usize]);
        let recent =
            recent.map(|sample| (sample.at_ns.load(Ordering::Relaxed), sample.busy_ns.load(Ordering::Relaxed)));
        // The newest sample that is at least one second old, or else the oldest sample.
        let mut from = None;
        for (at_ns, busy_ns) in recent {
            from = Some((at_ns, busy_ns));
            if now_ns.saturating_sub(at_ns) >= WINDOW_NS {
                break;
            }
        }
        let Some((at_ns, busy_ns)) = from else { return 0 };
        let span_ns = now_ns.saturating_sub(at_ns).max(SAMPLE_EVERY_NS);
        let used_ns = total_ns.load(Ordering::Relaxed).saturating_sub(busy_ns);
        (used_ns.saturating_mul(100) / span_ns).min(100) as u32
    }

    pub(crate) fn clear(&self) {
        self.count.store(0, Ordering::Relaxed);
        self.charged_at_ns.store(0, Ordering::Relaxed);
    }
}
