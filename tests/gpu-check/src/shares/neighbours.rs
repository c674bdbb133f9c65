//! Two programs on one device: in slices, and with the driver's own sharing. Compares the total work done.

use std::time::Duration;

use crate::findings::Findings;
use crate::launcher::Launcher;
use crate::shares::load::Load;
use crate::shares::measure::{arithmetic, run_together};
use crate::shares::{MS, US};
use crate::way::Share;

/// Part of the device's memory for each slice.
const MEMORY: &str = "25%";
/// The host's own work between two kernels, as in a program that trains with small batches.
const HOST_GAPS_NS: [u64; 2] = [500 * US, 2 * MS];
const COPY_BYTES: u64 = 64 << 20;

/// Programs that run at the same time, each with half of the device.
struct Pair {
    name: String,
    loads: [Load; 2],
}

/// Measures each pair bare, and in two slices of 50 % that may use each other's idle time.
pub(crate) fn measure(
    launcher: &Launcher,
    quick: bool,
    lead: Duration,
    progress: impl Fn(&str),
) -> anyhow::Result<Findings> {
    let window = Duration::from_secs(if quick { 2 } else { 3 });
    let mut findings = Findings::default();
    for Pair { name, loads } in pairs(launcher, quick, lead)? {
        progress(&name);
        let alone = |load: &Load| -> anyhow::Result<f64> {
            Ok(run_together(launcher, lead, &[(load, None)], window)?[0].kernels_per_second)
        };
        let first = alone(&loads[0])?;
        let full = [first, if loads[0] == loads[1] { first } else { alone(&loads[1])? }];
        // The work that both do per second, each in units of its work per second alone.
        let mut together = |how: &str, share: Option<&Share>| -> anyhow::Result<[f64; 2]> {
            let works = run_together(launcher, lead, &[(&loads[0], share), (&loads[1], share)], window)?;
            let percent = [0, 1].map(|index| works[index].kernels_per_second / full[index] * 100.0);
            for (number, percent) in percent.iter().enumerate() {
                let load = if loads[0] == loads[1] { format!("program {}", number + 1) } else { loads[number].name() };
                findings.figure(format!("{name}, {how}: {load}"), *percent, "% of alone");
            }
            Ok(percent)
        };
        let bare = together("bare", None)?;
        let memory = || MEMORY.to_owned();
        let burst =
            together("50 % each", Some(&Share { core_percent: 50, core_limit_percent: 100, memory: memory() }))?;
        let [of_bare, of_slices] = [bare, burst].map(|pair| pair.iter().sum::<f64>());
        findings.figure(format!("{name}: in slices, of what both do bare"), of_slices / of_bare * 100.0, "%");
    }
    Ok(findings)
}

fn pairs(launcher: &Launcher, quick: bool, lead: Duration) -> anyhow::Result<Vec<Pair>> {
    let mut pairs = Vec::new();
    for kernel_ns in if quick { vec![100 * US] } else { vec![20 * US, 100 * US, MS] } {
        let load = arithmetic(launcher, lead, kernel_ns)?;
        pairs.push(Pair { name: format!("arithmetic of {} us", kernel_ns / US), loads: [load.clone(), load.clone()] });
        if kernel_ns == 100 * US && !quick {
            let polls = Load { polls: true, waits: true, ..load.clone() };
            pairs.push(Pair { name: "arithmetic of 100 us, polled for".to_owned(), loads: [polls.clone(), polls] });
            for gap_ns in HOST_GAPS_NS {
                let hosted = Load { gap_ns, waits: true, ..load.clone() };
                let name = format!("host-bound, {} us between kernels of 100 us", gap_ns / US);
                pairs.push(Pair { name, loads: [hosted.clone(), hosted] });
            }
            let copies = Load { copy_bytes: COPY_BYTES, ..load.clone() };
            pairs.push(Pair { name: "arithmetic beside copies".to_owned(), loads: [load, copies] });
        }
    }
    Ok(pairs)
}
