//! Neighbours that are idle, or come and go: others use the time that they leave, and they get their share back.

use aliquot_arbiter::timing::QUANTUM_MAX_NS;
use aliquot_fake_machine::{now_ns, sleep_until_ns};

use crate::shares::recording::Users;
use crate::shares::stage::{Stage, Tenant, bursting};
use crate::shares::{Depth, MS, duration};
use crate::statistics::{median, quantile};
use crate::table::{Table, yes_or_no};

const BUSY_PERCENT: f64 = 98.0;
const QUANTA: f64 = 2.0;
/// Time between two readings.
const INTERVAL_NS: u64 = MS;
/// Length of a burst of work. A container that does not get its share within it does not get it at all.
const BURST_MS: u64 = 300;

/// Measures them one after the other.
pub(super) fn measure(depth: Depth) {
    let mut table = Table::new(&[
        "beside one that is always busy, limit 100 %",
        "device busy %",
        "back at its share after, quanta: median",
        "worst",
        "times",
        "aim",
        "met",
        "machine lost, ms",
    ]);
    // The intermittent container's request in percent, the length of its kernels, and the length of its neighbour's
    // kernels.
    let cases = vec![(70, MS, MS), (50, MS, 20 * MS), (30, 5 * MS, MS), (70, 20 * MS, MS)];
    idle(&mut table, depth);
    for (percent, kernel_ns, other_ns) in depth.of(cases, 1) {
        let stage = Stage::new();
        let busy = stage.tenant("busy", bursting(100 - percent, 100), 1, &format!("kernels={other_ns}"));
        let arguments = format!("kernels={kernel_ns} on_ms={BURST_MS} off_ms={BURST_MS}");
        let comes = stage.tenant("comes-and-goes", bursting(percent, 100), 1, &arguments);
        let track = Track::take(&stage, [&busy, &comes], depth.window_ns());
        let delays = track.delays(&comes, f64::from(percent) / 100.0);
        let quanta: Vec<f64> = delays.iter().map(|&ns| ns / QUANTUM_MAX_NS as f64).collect();
        let worst = quantile(quanta.clone(), 1.0);
        let busy_percent = track.busy_percent();
        table.row(&[
            format!(
                "{percent} %, kernels of {} in bursts of {BURST_MS} ms, beside kernels of {}",
                duration(kernel_ns),
                duration(other_ns)
            ),
            format!("{busy_percent:.2}"),
            format!("{:.2}", median(quanta.clone())),
            format!("{worst:.2}"),
            quanta.len().to_string(),
            format!("≥ {BUSY_PERCENT} %; ≤ {QUANTA} quanta"),
            yes_or_no(busy_percent >= BUSY_PERCENT && worst <= QUANTA),
            format!("{:.0}", track.lost_ms),
        ]);
    }
}

/// A neighbour with a context that does nothing.
fn idle(table: &mut Table, depth: Depth) {
    let stage = Stage::new();
    let busy = stage.tenant("busy", bursting(30, 100), 1, "kernels=1000000");
    let _idle = stage.tenant("idle", bursting(70, 100), 1, "kernels=1000000");
    let recording = stage.play(&[&busy], depth.window_ns());
    let percent = recording.total();
    let none = String::new;
    table.row(&[
        "70 %, always idle".to_owned(),
        format!("{percent:.2}"),
        none(),
        none(),
        none(),
        format!("≥ {BUSY_PERCENT} %"),
        yes_or_no(percent >= BUSY_PERCENT),
        format!("{:.0}", recording.lost_ms()),
    ]);
}

/// Device time of two containers over time.
struct Track {
    looks: Vec<(u64, [u64; 2])>,
    lost_ms: f64,
}

impl Track {
    fn take(stage: &Stage, tenants: [&Tenant; 2], duration_ns: u64) -> Track {
        tenants.iter().for_each(|tenant| tenant.begin());
        let users: Users<'_> = stage.users(&tenants);
        let (start_ns, lost_ns) = (now_ns(), stage.witness.lost_ns());
        let mut looks = Vec::new();
        for number in 0..duration_ns / INTERVAL_NS {
            sleep_until_ns(start_ns + number * INTERVAL_NS);
            let busy_ns = users.busy_ns();
            looks.push((now_ns(), [busy_ns[0], busy_ns[1]]));
        }
        Track { looks, lost_ms: (stage.witness.lost_ns() - lost_ns) as f64 / 1e6 }
    }

    fn busy_percent(&self) -> f64 {
        let [(from_ns, from), .., (to_ns, to)] = self.looks.as_slice() else { return 0.0 };
        (to.iter().sum::<u64>() - from.iter().sum::<u64>()) as f64 * 100.0 / (to_ns - from_ns) as f64
    }

    /// For each return of the second container, the time until it had its share of the time since its return.
    fn delays(&self, comes: &Tenant, share: f64) -> Vec<f64> {
        let said = comes.processes[0].output();
        let returns = said.lines().filter_map(|line| line.strip_prefix("goes on ")?.parse::<u64>().ok());
        returns.filter_map(|from_ns| self.delay(from_ns, share)).collect()
    }

    /// The delay of one return; `None` if the recording ends before it is over.
    fn delay(&self, from_ns: u64, share: f64) -> Option<f64> {
        let index = self.looks.partition_point(|&(at_ns, _)| at_ns <= from_ns);
        let (_, [_, before]) = *self.looks.get(index.checked_sub(1)?)?;
        let last_ns = from_ns + BURST_MS * MS;
        self.looks.last().filter(|&&(at_ns, _)| at_ns > last_ns)?;
        let back = self.looks[index..].iter().take_while(|(at_ns, _)| *at_ns <= last_ns).find(|(at_ns, [_, used])| {
            let wanted_ns = share * (at_ns - from_ns) as f64;
            *used > before && (used - before) as f64 >= wanted_ns
        });
        Some(back.map_or(last_ns, |&(at_ns, _)| at_ns).saturating_sub(from_ns) as f64)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_container_that_waits_and_then_is_alone_returns_to_its_share() {
        // The container comes at 100 ms, waits for 10 ms, and then has the whole device.
        let look = |ms: u64| (ms * MS, [0, 77 + ms.saturating_sub(110) * MS]);
        let track = Track { looks: (0..1000).map(look).collect(), lost_ms: 0.0 };
        assert_eq!(track.delay(100 * MS, 0.5), Some(20.0 * MS as f64));
        assert_eq!(track.delay(900 * MS, 0.5), None);
    }
}
