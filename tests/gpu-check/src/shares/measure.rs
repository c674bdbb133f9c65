//! Runs the cases of a series, and converts the measured rates to shares.

use std::iter;
use std::time::{Duration, Instant};

use anyhow::bail;
use serde::{Deserialize, Serialize};

use crate::launcher::{Launcher, Running};
use crate::part_run::PartRun;
use crate::shares::load::{Load, PIECE_NS, Work, monotonic_ns};
use crate::shares::series::{Series, Tenant, duration};
use crate::shares::{MS, SECOND_NS};
use crate::way::Share;

/// Percentage of the device's memory for all slices of a case together. The measurements only concern time.
const MEMORY_PERCENT: usize = 50;

/// The longest time that workers get to become ready after they were not ready in time.
const LEAD_MAX: Duration = Duration::from_secs(120);

/// An expected share, and the measured one.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub(crate) struct Measurement {
    /// What the measured programs do, in words.
    pub(crate) load: String,
    /// The programs that ran at the same time; empty: none.
    pub(crate) beside: String,
    /// The expected share in percent.
    pub(crate) wanted_percent: f64,
    /// The work done, in percent of the work that the load does alone without a slice.
    pub(crate) measured_percent: f64,
    /// The same by the first measurement, if it was so far from the expected share that there was a second one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) first_percent: Option<f64>,
    /// The same for the first second.
    pub(crate) first_second_percent: f64,
    /// The same for the second in which it was farthest from the expected share, including the first second.
    pub(crate) worst_second_percent: f64,
}

impl Measurement {
    /// Whether the share is off by more than `points`, or was not measured at all.
    pub(crate) fn is_beyond(&self, points: f64) -> bool {
        // A share that is NaN is wrong as well.
        let is_right = (self.measured_percent - self.wanted_percent).abs() <= points;
        !is_right
    }
}

/// A case that is to be measured once more.
struct Doubtful {
    step: String,
    tenants: Vec<Tenant>,
    /// The place of its results.
    place: usize,
}

impl Series {
    /// Measures all cases with the workers of `launcher`, as a part of `run`. Calls `note` with all results so far after
    /// each case. A case with a share that is off is measured once more at the end, if there is time: something else may
    /// have used the machine meanwhile.
    pub(crate) fn measure(
        &self,
        run: &mut PartRun,
        launcher: &Launcher,
        mut note: impl FnMut(&mut PartRun, &[Measurement]),
    ) {
        let mut rates = Rates { series: self, launcher, full: Vec::new() };
        let (mut all, mut doubtful, mut longest) = (Vec::new(), Vec::new(), Duration::ZERO);
        for case in self.cases.iter().map(Some).chain(self.arithmetic.then_some(None)) {
            let step = case.map_or("halves of arithmetic".to_owned(), |case| name_of(case));
            if !run.begins(&step) {
                continue;
            }
            let started = Instant::now();
            let measured = case.map_or_else(|| rates.halves_of_arithmetic(), |case| Ok(case.clone()));
            match measured.and_then(|tenants| Ok((rates.shares(&tenants)?, tenants))) {
                Ok((measured, tenants)) => {
                    if measured.iter().any(|share| share.is_beyond(self.points)) {
                        doubtful.push(Doubtful { step, tenants, place: all.len() });
                    }
                    all.extend(measured);
                    note(run, &all);
                }
                Err(error) => run.fails(&step, &error),
            }
            run.save();
            longest = longest.max(started.elapsed());
        }
        for Doubtful { step, tenants, place } in doubtful {
            if run.launcher.deadline.left() < longest || !run.begins(&format!("{step}, once more")) {
                break;
            }
            rates.forget(&tenants);
            match rates.shares(&tenants) {
                Ok(again) => {
                    for (share, again) in all[place..].iter_mut().zip(again) {
                        *share = Measurement { first_percent: Some(share.measured_percent), ..again };
                    }
                    note(run, &all);
                }
                Err(error) => run.fails(&step, &error),
            }
            run.save();
        }
    }
}

/// A case in words.
fn name_of(case: &[Tenant]) -> String {
    let name = |tenant: &Tenant| format!("{} % {}", tenant.request_percent, tenant.name);
    case.iter().map(name).collect::<Vec<_>>().join(" beside ")
}

/// The rates of loads without a slice on an idle device, measured on first use.
struct Rates<'a> {
    series: &'a Series,
    launcher: &'a Launcher,
    full: Vec<(Load, f64)>,
}

impl Rates<'_> {
    fn full(&mut self, load: &Load) -> anyhow::Result<f64> {
        if let Some((_, rate)) = self.full.iter().find(|(known, _)| known == load) {
            return Ok(*rate);
        }
        let rate = self.run(&[(load, None)], self.series.window)?[0].kernels_per_second;
        self.full.push((load.clone(), rate));
        Ok(rate)
    }

    /// Lets the rates of these tenants' loads be measured anew.
    fn forget(&mut self, tenants: &[Tenant]) {
        self.full.retain(|(known, _)| tenants.iter().all(|tenant| tenant.load != *known));
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
        let works = self.run(&loads, self.series.window)?;
        let measured =
            tenants.iter().zip(works).zip(full).enumerate().filter(|(_, ((tenant, _), _))| !tenant.load.idle);
        Ok(measured.map(|(index, ((tenant, work), full))| of(tenants, index, tenant, &work, full)).collect())
    }

    fn run(&self, loads: &[(&Load, Option<&Share>)], window: Duration) -> anyhow::Result<Vec<Work>> {
        run_together(self.launcher, self.series.lead, loads, window)
    }

    /// Two tenants with arithmetic kernels that take about 1 ms alone.
    fn halves_of_arithmetic(&self) -> anyhow::Result<Vec<Tenant>> {
        let load = arithmetic(self.launcher, self.series.lead, MS)?;
        let name = format!("arithmetic, {} a kernel", duration(load.kernel_ns));
        Ok([50, 50].map(|percent| Tenant::new(percent, name.clone(), load.clone())).to_vec())
    }
}

/// Runs all `loads` at the same time, each in its slice, and returns their work.
pub(super) fn run_together(
    launcher: &Launcher,
    lead: Duration,
    loads: &[(&Load, Option<&Share>)],
    window: Duration,
) -> anyhow::Result<Vec<Work>> {
    // All workers must be started before any begins.
    let first = lead + loads.len() as u32 * Duration::from_millis(100);
    for lead in leads(first) {
        if let Some(works) = run_after(launcher, lead, loads, window)? {
            return Ok(works);
        }
        // The machine was too busy for the workers to be ready in time.
    }
    bail!("the workers are not ready after {} s", leads(first).last().unwrap_or(first).as_secs())
}

/// The times that workers get to become ready, one after the other: the first one, and then longer ones up to
/// [`LEAD_MAX`].
fn leads(first: Duration) -> impl Iterator<Item = Duration> {
    iter::successors(Some(first), |lead| Some(*lead * 2).filter(|lead| *lead <= LEAD_MAX))
}

/// Like [`run_together`], with the begin after `lead`. `None`: some workers were not ready by then.
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

/// A load of arithmetic kernels that take about `wanted_ns` alone, by choosing the number of blocks for this device.
pub(super) fn arithmetic(launcher: &Launcher, lead: Duration, wanted_ns: u64) -> anyhow::Result<Load> {
    let kernel = "multiply_add".to_owned();
    let base = Load::spin(&[wanted_ns]);
    let mut load = Load { kernel, parameters: vec![wanted_ns / 50], blocks: 4096, kernel_ns: wanted_ns, ..base };
    // The first measurement gives the number of blocks, the second one the resulting duration.
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
        first_percent: None,
        first_second_percent: first,
        worst_second_percent: worst,
    }
}

/// The shares in the first second, and in the second that is farthest from `wanted_percent`.
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
    fn workers_get_at_least_one_attempt() {
        let seconds = |first| leads(Duration::from_secs(first)).map(|lead| lead.as_secs()).collect::<Vec<_>>();
        assert_eq!(seconds(20), [20, 40, 80]);
        assert_eq!(seconds(300), [300]);
    }

    #[test]
    fn seconds_are_looked_at_from_every_piece_on() {
        let mut pieces = vec![30; 40];
        pieces[15..20].fill(50);
        assert_eq!(seconds(&pieces, 1000.0, 30.0), (30.0, 40.0));
    }
}
