//! Records the use of slices, and checks whether their regions are damaged.

use std::io;
use std::sync::Arc;

use crate::clock::monotonic_ns;
use crate::damage::DamageWatch;
use crate::devices::store_if_changed;
use crate::events::Events;
use crate::live::{LiveSlice, LiveSlices};
use crate::measure;
use crate::periodic::Periodic;
use crate::refusals;
use crate::usage::{SAMPLE_INTERVAL, SECOND_NS};

/// Starts the sampler thread. It sleeps while there is no slice.
///
/// # Errors
/// The kernel gives no thread.
pub(crate) fn start(slices: Arc<LiveSlices>, damage: DamageWatch, events: Arc<Events>) -> io::Result<Periodic> {
    Periodic::start("sampler", move || {
        let all = slices.all();
        for live in &all {
            sample(live);
            damage.look(live);
            refusals::report(live, &events, false);
        }
        (!all.is_empty()).then_some(SAMPLE_INTERVAL)
    })
}

fn sample(live: &LiveSlice) {
    let now_ns = monotonic_ns();
    for (part, history) in live.history.lock().iter_mut().enumerate() {
        let used_ns = live.core_used_ns(part);
        history.record(now_ns, used_ns);
        // While a slice has the device to itself, its time is added up only once a second, so the driver's own figure
        // is steadier.
        let used_permille = match live.is_free(part) {
            true => live.sampled_permille(part),
            false => history.share_millipercent(now_ns, used_ns, SECOND_NS) / 100,
        };
        store_if_changed(&live.counters(part).used_permille, used_permille.into());
    }
    for (part, past) in live.past.lock().iter_mut().enumerate() {
        if past.is_due(now_ns) {
            past.record(now_ns, measure::totals(live, part));
        }
    }
}
