//! Two programs on one device: in slices, and with the driver's own sharing. Compares the total work done.

use std::time::Duration;

use crate::findings::Findings;
use crate::launcher::Launcher;
use crate::part_run::PartRun;
use crate::shares::load::Load;
use crate::shares::measure::{arithmetic, run_together};
use crate::shares::{MS, US};
use crate::way::{Share, Way};

/// Part of the device's memory for each slice.
const MEMORY: &str = "25%";
/// The host's own work between two kernels, as in a program that trains with small batches.
const HOST_GAPS_NS: [u64; 2] = [500 * US, 2 * MS];
/// Bytes of a copy or a memset.
const MOVED_BYTES: u64 = 64 << 20;

/// Programs that run at the same time, each with half of the device.
struct Pair {
    name: String,
    /// The duration of the kernels of arithmetic.
    kernel_ns: u64,
    /// Their loads, given one of such kernels.
    loads: fn(Load) -> [Load; 2],
}

/// Measures each pair bare, and in two slices of 50 % that may use each other's idle time.
pub(crate) fn measure(run: &mut PartRun, quick: bool, lead: Duration) {
    let window = Duration::from_secs(if quick { 2 } else { 3 });
    let mut kernels: Vec<(u64, Load)> = Vec::new();
    for pair in pairs(quick) {
        if !run.begins(&pair.name) {
            continue;
        }
        let mut findings = Findings::default();
        if let Err(error) = measure_pair(&run.launcher, &pair, &mut kernels, lead, window, &mut findings) {
            findings.expect("both can be measured", false, format!("{error:#}"));
        }
        run.add(&pair.name, Way::Bare, findings);
    }
}

/// Measures a pair. The loads of `kernels` are those whose size has been found before.
fn measure_pair(
    launcher: &Launcher,
    pair: &Pair,
    kernels: &mut Vec<(u64, Load)>,
    lead: Duration,
    window: Duration,
    findings: &mut Findings,
) -> anyhow::Result<()> {
    let load = match kernels.iter().find(|(ns, _)| *ns == pair.kernel_ns) {
        Some((_, load)) => load.clone(),
        None => {
            let load = arithmetic(launcher, lead, pair.kernel_ns)?;
            kernels.push((pair.kernel_ns, load.clone()));
            load
        }
    };
    let loads = (pair.loads)(load);
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
            findings.figure(format!("{how}: {load}"), *percent, "% of alone");
        }
        Ok(percent)
    };
    let bare = together("bare", None)?;
    let burst = together("50 % each", Some(&half_of_the_device()))?;
    let [of_bare, of_slices] = [bare, burst].map(|pair| pair.iter().sum::<f64>());
    findings.figure("in slices, of what both do bare", of_slices / of_bare * 100.0, "%");
    Ok(())
}

/// Half of the device's time, and what others leave of it.
pub(super) fn half_of_the_device() -> Share {
    Share { core_percent: 50, core_limit_percent: 100, memory: MEMORY.to_owned() }
}

fn pairs(quick: bool) -> Vec<Pair> {
    let same: fn(Load) -> [Load; 2] = |load| [load.clone(), load];
    let pair = |name: &str, kernel_ns, loads| Pair { name: name.to_owned(), kernel_ns, loads };
    let busy = |kernel_ns| pair(&format!("arithmetic of {} us", kernel_ns / US), kernel_ns, same);
    let sets = pair("arithmetic beside memsets", 100 * US, |load| {
        let sets = Load { set_bytes: MOVED_BYTES, ..load.clone() };
        [load, sets]
    });
    if quick {
        return vec![busy(100 * US), sets];
    }
    let hosted =
        |gap_ns, loads| pair(&format!("host-bound, {} us between kernels of 100 us", gap_ns / US), 100 * US, loads);
    vec![
        busy(5 * US),
        busy(20 * US),
        busy(100 * US),
        pair("arithmetic of 100 us, polled for", 100 * US, |load| {
            let polls = Load { polls: true, waits: true, ..load };
            [polls.clone(), polls]
        }),
        hosted(HOST_GAPS_NS[0], |load| in_gaps(load, HOST_GAPS_NS[0])),
        hosted(HOST_GAPS_NS[1], |load| in_gaps(load, HOST_GAPS_NS[1])),
        pair("arithmetic beside copies", 100 * US, |load| {
            let copies = Load { copy_bytes: MOVED_BYTES, ..load.clone() };
            [load, copies]
        }),
        sets,
        busy(MS),
    ]
}

/// Twice a load whose host works by itself before each kernel.
fn in_gaps(load: Load, gap_ns: u64) -> [Load; 2] {
    let hosted = Load { gap_ns, waits: true, ..load };
    [hosted.clone(), hosted]
}
