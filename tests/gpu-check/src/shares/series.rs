//! The list of measurements.

use std::time::Duration;

use crate::shares::load::Load;
use crate::shares::{MS, US};

/// A slice of a case, and its load.
#[derive(Clone, Debug)]
pub(super) struct Tenant {
    /// The guaranteed share.
    pub(super) request_percent: u32,
    /// The limit of the share.
    pub(super) limit_percent: u32,
    /// The expected share.
    pub(super) wanted_percent: f64,
    pub(super) load: Load,
    pub(super) name: String,
}

/// The measurements and their settings. The tenants of each case run at the same time.
pub(crate) struct Series {
    /// How long to measure each share.
    pub(super) window: Duration,
    /// How long a worker may take until it is ready.
    pub(super) lead: Duration,
    /// Allowed error of a share in percentage points.
    pub(super) points: f64,
    pub(super) cases: Vec<Vec<Tenant>>,
    /// Whether arithmetic kernels are measured too. Their duration must be determined first.
    pub(super) arithmetic: bool,
}

impl Tenant {
    /// A slice whose limit is its request.
    pub(super) fn new(percent: u32, name: String, load: Load) -> Tenant {
        Tenant { request_percent: percent, limit_percent: percent, wanted_percent: f64::from(percent), load, name }
    }

    fn spin(percent: u32, kernel_ns: u64) -> Tenant {
        Tenant::new(percent, format!("kernels of {}", duration(kernel_ns)), Load::spin(&[kernel_ns]))
    }
}

impl Series {
    /// A series that takes about nine minutes, or with `quick` less than a minute.
    pub(crate) fn new(quick: bool, lead: Duration, points: f64) -> Series {
        let graphs = Load { graph: 100, ..Load::spin(&[50 * US]) };
        let graphs = || Tenant::new(50, "graphs of 100 kernels of 50 µs".to_owned(), graphs.clone());
        if quick {
            let cases =
                vec![vec![Tenant::spin(30, MS)], vec![graphs()], vec![Tenant::spin(30, MS), Tenant::spin(70, MS)]];
            return Series { window: Duration::from_secs(3), lead, points, cases, arithmetic: false };
        }
        let kernels = [50 * US, MS, 20 * MS, 200 * MS];
        let mut cases: Vec<Vec<Tenant>> = Vec::new();
        let alone = |cases: &mut Vec<Vec<Tenant>>, percent, name: &str, load| {
            cases.push(vec![Tenant::new(percent, name.to_owned(), load)]);
        };
        for kernel_ns in kernels {
            cases.extend([10, 30, 50, 80].map(|percent| vec![Tenant::spin(percent, kernel_ns)]));
            cases.push(vec![Tenant::spin(30, kernel_ns), Tenant::spin(70, kernel_ns)]);
        }
        for percent in [30, 80] {
            alone(&mut cases, percent, "kernels of 50 µs, 1 ms and 20 ms", Load::spin(&[50 * US, MS, 20 * MS]));
            alone(&mut cases, percent, "kernels of 1 ms, each waited for", Load { waits: true, ..Load::spin(&[MS]) });
        }
        for blocks in [132, 10_000] {
            let name = format!("kernels of {blocks} blocks of 100 µs");
            alone(&mut cases, 50, &name, Load { blocks, ..Load::spin(&[100 * US]) });
        }
        alone(&mut cases, 50, "4 processes, kernels of 1 ms", Load { processes: 4, ..Load::spin(&[MS]) });
        alone(&mut cases, 50, "4 streams, kernels of 1 ms", Load { streams: 4, ..Load::spin(&[MS]) });
        cases.push(vec![graphs()]);
        cases.push(vec![Tenant::spin(30, 50 * US), Tenant::spin(70, 20 * MS)]);
        cases.push(vec![Tenant::spin(20, 50 * US), Tenant::spin(30, MS), Tenant::spin(50, 20 * MS)]);
        cases.push((0..10).map(|number| Tenant::spin(10, [50 * US, MS, 20 * MS][number % 3])).collect());
        cases.push(beside_an_idle_one());
        cases.push(vec![Tenant { name: "kernels of 50 µs, not limited".to_owned(), ..Tenant::spin(100, 50 * US) }]);
        Series { window: Duration::from_secs(5), lead, points, cases, arithmetic: true }
    }
}

/// A tenant that may use all time that its idle neighbour leaves, which is the whole device.
fn beside_an_idle_one() -> Vec<Tenant> {
    let busy = Tenant { limit_percent: 100, wanted_percent: 100.0, ..Tenant::spin(30, MS) };
    let idle = Load { idle: true, ..Load::spin(&[MS]) };
    vec![busy, Tenant { wanted_percent: 0.0, ..Tenant::new(70, "an idle program".to_owned(), idle) }]
}

/// A duration as text.
pub(super) fn duration(ns: u64) -> String {
    if ns < MS { format!("{} µs", ns / US) } else { format!("{} ms", ns / MS) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_case_asks_for_more_than_a_device() {
        for quick in [false, true] {
            for case in Series::new(quick, Duration::ZERO, 2.0).cases {
                let requested: u32 = case.iter().map(|tenant| tenant.request_percent).sum();
                assert!(requested <= 100, "{case:?}");
            }
        }
    }
}
