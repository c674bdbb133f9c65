//! Runs the cases of a plan, and makes shares of the rates that come of it.

use std::time::Duration;

use anyhow::bail;
use serde::{Deserialize, Serialize};

use crate::launcher::{Launcher, Running};
use crate::shares::load::{Load, PIECE_NS, Work, monotonic_ns};
use crate::shares::plan::{Plan, Tenant, duration};
use crate::shares::{MS, SECOND_NS};
use crate::way::Share;

/// Of the device's memory, what the slices of a case have together; time is what is looked at.
const MEMORY_PERCENT: usize = 50;

/// Workers that take longer than this to be ready are not worth waiting for.
const LEAD_MAX: Duration = Duration::from_secs(120);

/// A share that was asked for, and what came of it.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub(crate) struct Measurement {
    /// What ran.
    pub(crate) load: String,
    /// What ran beside it; empty: nothing.
    pub(crate) beside: String,
    /// The share in percent that it should have.
    pub(crate) wanted_percent: f64,
    /// The work it did, in percent of what it does alone without a slice.
    pub(crate) measured_percent: f64,
    /// The same of its first second.
    pub(crate) first_second_percent: f64,
    /// The same of the second in which it was farthest from what it should have, the first second included.
    pub(crate) worst_second_percent: f64,
}

impl Plan {
    /// Measures all; `progress` is told what comes next.
    pub(crate) fn measure(&self, launcher: &Launcher, progress: impl Fn(&str)) -> anyhow::Result<Vec<Measurement>> {
        let mut rates = Rates { plan: self, launcher, full: Vec::new() };
        let mut measured = Vec::new();
        for case in &self.cases {
            let names: Vec<&str> = case.iter().map(|tenant| tenant.name.as_str()).collect();
            progress(&names.join(" beside "));
            measured.extend(rates.shares(case)?);
        }
        if self.arithmetic {
            progress("halves of arithmetic");
            let load = rates.arithmetic()?;
            let name = format!("arithmetic, {} a kernel", duration(load.kernel_ns));
            measured.extend(rates.shares(&[50, 50].map(|percent| Tenant::new(percent, name.clone(), load.clone())))?);
        }
        Ok(measured)
    }
}

/// What loads do without a slice on an idle device, measured when it is first asked for.
struct Rates<'a> {
    plan: &'a Plan,
    launcher: &'a Launcher,
    full: Vec<(Load, f64)>,
}

impl Rates<'_> {
    fn full(&mut self, load: &Load) -> anyhow::Result<f64> {
        if let Some((_, rate)) = self.full.iter().find(|(known, _)| known == load) {
            return Ok(*rate);
        }
        let rate = self.run(&[(load, None)], self.plan.window)?[0].kernels_per_second;
        self.full.push((load.clone(), rate));
        Ok(rate)
    }

    fn shares(&mut self, tenants: &[Tenant]) -> anyhow::Result<Vec<Measurement>> {
        let full = tenants
            .iter()
            .map(|tenant| if tenant.load.idle { Ok(f64::NAN) } else { self.full(&tenant.load) })
            .collect::<anyhow::Result<Vec<_>>>()?;
        let memory = format!("{}%", MEMORY_PERCENT / tenants.len());
        let shares: Vec<Share> = tenants
            .iter()
            .map(|tenant| Share {
                core_percent: tenant.request_percent,
                core_limit_percent: tenant.limit_percent,
                memory: memory.clone(),
            })
            .collect();
        let loads: Vec<_> = tenants.iter().zip(&shares).map(|(tenant, share)| (&tenant.load, Some(share))).collect();
        let works = self.run(&loads, self.plan.window)?;
        let measured =
            tenants.iter().zip(works).zip(full).enumerate().filter(|(_, ((tenant, _), _))| !tenant.load.idle);
        Ok(measured.map(|(index, ((tenant, work), full))| of(tenants, index, tenant, &work, full)).collect())
    }

    fn run(&self, loads: &[(&Load, Option<&Share>)], window: Duration) -> anyhow::Result<Vec<Work>> {
        run_together(self.launcher, self.plan.lead, loads, window)
    }

    /// A kernel of arithmetic that takes about a millisecond alone.
    fn arithmetic(&self) -> anyhow::Result<Load> {
        arithmetic(self.launcher, self.plan.lead, MS)
    }
}

/// What each of `loads` does in its slice, all at once.
pub(super) fn run_together(
    launcher: &Launcher,
    lead: Duration,
    loads: &[(&Load, Option<&Share>)],
    window: Duration,
) -> anyhow::Result<Vec<Work>> {
    // Each worker is one more to start before all begin.
    let mut lead = lead + loads.len() as u32 * Duration::from_millis(100);
    while lead < LEAD_MAX {
        if let Some(works) = run_after(launcher, lead, loads, window)? {
            return Ok(works);
        }
        // On a machine that was busy with something else.
        lead *= 2;
    }
    bail!("the workers are not ready after {} s", lead.as_secs() / 2)
}

/// The same, where all begin after `lead`. `None`: some were not ready by then.
fn run_after(
    launcher: &Launcher,
    lead: Duration,
    loads: &[(&Load, Option<&Share>)],
    window: Duration,
) -> anyhow::Result<Option<Vec<Work>>> {
    let (start_ns, window_ns) = (monotonic_ns()? + lead.as_nanos() as u64, window.as_nanos() as u64);
    let start = |&(load, share): &(&Load, Option<&Share>)| {
        let args = Load { start_ns, window_ns, ..load.clone() }.args();
        launcher.start(share, &args.iter().map(String::as_str).collect::<Vec<_>>())
    };
    let workers = loads.iter().map(start).collect::<anyhow::Result<Vec<_>>>()?;
    workers.into_iter().map(Running::answer::<Option<Work>>).collect()
}

/// A kernel of arithmetic that takes about `wanted_ns` alone: with as many blocks as that needs on this device.
pub(super) fn arithmetic(launcher: &Launcher, lead: Duration, wanted_ns: u64) -> anyhow::Result<Load> {
    let kernel = "multiply_add".to_owned();
    let base = Load::spin(&[wanted_ns]);
    let mut load = Load { kernel, parameters: vec![wanted_ns / 50], blocks: 4096, kernel_ns: wanted_ns, ..base };
    // The first measurement leads near it, the second says what it has become.
    for _ in 0..2 {
        let work = run_together(launcher, lead, &[(&load, None)], Duration::from_secs(1))?;
        let kernel_ns = 1e9 / work[0].kernels_per_second;
        load.blocks = (f64::from(load.blocks) * wanted_ns as f64 / kernel_ns).clamp(1.0, 1e6) as u32;
    }
    Ok(load)
}

fn of(tenants: &[Tenant], index: usize, tenant: &Tenant, work: &Work, full: f64) -> Measurement {
    let others = tenants.iter().enumerate().filter(|&(other, _)| other != index);
    let beside = others.map(|(_, other)| format!("{} % {}", other.request_percent, other.name)).collect::<Vec<_>>();
    let (first, worst) = seconds(&work.pieces, full, tenant.wanted_percent);
    Measurement {
        load: tenant.name.clone(),
        beside: beside.join(", "),
        wanted_percent: tenant.wanted_percent,
        measured_percent: work.kernels_per_second / full * 100.0,
        first_second_percent: first,
        worst_second_percent: worst,
    }
}

/// The shares of the first second and of the one that is farthest from what is wanted.
fn seconds(pieces: &[u64], full: f64, wanted_percent: f64) -> (f64, f64) {
    let pieces_per_second = (SECOND_NS / PIECE_NS) as usize;
    let shares: Vec<f64> =
        pieces.windows(pieces_per_second).map(|second| second.iter().sum::<u64>() as f64 / full * 100.0).collect();
    let off = |share: &f64| (share - wanted_percent).abs();
    let worst = shares.iter().copied().max_by(|a, b| off(a).total_cmp(&off(b)));
    (shares.first().copied().unwrap_or(f64::NAN), worst.unwrap_or(f64::NAN))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn seconds_are_looked_at_from_every_piece_on() {
        let mut pieces = vec![30; 40];
        pieces[15..20].fill(50);
        assert_eq!(seconds(&pieces, 1000.0, 30.0), (30.0, 40.0));
    }
}
