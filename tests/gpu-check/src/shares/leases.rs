//! What a change of lease costs: the work of two slices that want all of the device, with leases of several lengths. The
//! shorter a lease is, the greater is the part of the time that its begin and its end take.

use std::path::Path;
use std::time::Duration;

use crate::findings::Findings;
use crate::launcher::Launcher;
use crate::manager::Manager;
use crate::part_run::PartRun;
use crate::shares::load::Load;
use crate::shares::measure::{arithmetic, run_together};
use crate::shares::neighbours::half_of_the_device;
use crate::shares::{MS, US};
use crate::way::Way;

/// The longest leases, in milliseconds: what a node manager can be set to, and a length between.
const LEASES_MS: [u64; 3] = [2, 5, 20];
/// The durations of the kernels; a quick check has the last one only.
const KERNELS_NS: [u64; 3] = [5 * US, 20 * US, 100 * US];

/// A load, and its kernels per second alone without a slice.
struct Alone {
    load: Load,
    kernels_per_second: f64,
}

/// Measures each length of leases with a node manager of its own, `program`, which is set to it.
pub(crate) fn measure(run: &mut PartRun, program: &Path, quick: bool, lead: Duration) {
    const ALONE: &str = "kernels alone, to compare leases with";
    if !run.begins(ALONE) {
        return;
    }
    let window = Duration::from_secs(if quick { 1 } else { 3 });
    let kernels_ns = if quick { &KERNELS_NS[KERNELS_NS.len() - 1..] } else { &KERNELS_NS[..] };
    let alone = kernels_ns.iter().map(|kernel_ns| alone(&run.launcher, *kernel_ns, lead, window)).collect();
    let alone: Vec<Alone> = match alone {
        Ok(alone) => alone,
        Err(error) => return run.fails(ALONE, &error),
    };
    for lease_ms in LEASES_MS {
        let name = format!("leases of at most {lease_ms} ms");
        if !run.begins(&name) {
            continue;
        }
        let mut findings = Findings::default();
        if let Err(error) = with_leases(&run.launcher, program, lease_ms, &alone, lead, window, &mut findings) {
            findings.expect("both can be measured", false, format!("{error:#}"));
        }
        run.add(&name, Way::Limited, findings);
    }
}

fn alone(launcher: &Launcher, kernel_ns: u64, lead: Duration, window: Duration) -> anyhow::Result<Alone> {
    let load = arithmetic(launcher, lead, kernel_ns)?;
    let work = run_together(launcher, lead, &[(&load, None)], window)?;
    Ok(Alone { kernels_per_second: work[0].kernels_per_second, load })
}

fn with_leases(
    launcher: &Launcher,
    program: &Path,
    lease_ms: u64,
    alone: &[Alone],
    lead: Duration,
    window: Duration,
    findings: &mut Findings,
) -> anyhow::Result<()> {
    let manager = Manager::start(program, &launcher.environment, &format!("[sharing]\nlease_max_ms = {lease_ms}\n"))?;
    let launcher = Launcher { socket: Some(manager.socket().to_owned()), ..launcher.clone() };
    let share = half_of_the_device();
    for Alone { load, kernels_per_second } in alone {
        let both = run_together(&launcher, lead, &[(load, Some(&share)), (load, Some(&share))], window)?;
        let percent = both.iter().map(|work| work.kernels_per_second).sum::<f64>() / kernels_per_second * 100.0;
        let what = format!("arithmetic of {} us", load.kernel_ns / US);
        findings.figure(format!("{what}: both, of one alone without a slice"), percent, "%");
        let lost_us = (100.0 - percent) / 100.0 * (lease_ms * MS / US) as f64;
        findings.figure(format!("{what}: lost in each lease of that length"), lost_us, "us");
    }
    Ok(())
}
