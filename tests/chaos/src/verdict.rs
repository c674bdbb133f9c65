//! The violations found in a run, and counters of the work done to find them.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use serde_json::{Value, json};

/// A wait that timed out, or an error that ends the round. It is a violation, and the world is made anew after it.
#[derive(Debug)]
pub(crate) struct Stuck(pub(crate) String);

/// A broken invariant.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Violation {
    /// The round's number, for `--first-round`.
    pub round: u64,
    /// The round's fault.
    pub fault: &'static str,
    /// Time since the start of the run.
    pub after: Duration,
    /// Description of the violation.
    pub what: String,
}

/// The results of one fault.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct Tally {
    /// Rounds with this fault.
    pub injected: u64,
    /// Why this machine cannot inject the fault; empty if it can.
    pub skipped: String,
    /// Violations in these rounds.
    pub violations: u64,
}

/// The results of a run.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct Report {
    /// The seed of all pseudo-random decisions.
    pub seed: u64,
    /// Duration of the run.
    pub elapsed: Duration,
    /// The results of each fault, by its name.
    pub faults: BTreeMap<&'static str, Tally>,
    /// All violations, in the order in which they were found.
    pub violations: Vec<Violation>,
    /// The work done to find violations.
    pub effort: Effort,
}

/// Counters of the work done to find violations.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Effort {
    /// Checks of the devices' memory.
    pub looks: u64,
    /// Checks for which a slice's processes were stopped, so that its sum was exact.
    pub exact_looks: u64,
    /// Windows in which shares were measured.
    pub share_windows: u64,
    /// Slices made in addition to the standing ones.
    pub slices_made: u64,
    /// Resizes of slices.
    pub resizes: u64,
    /// Tenants started.
    pub tenants: u64,
    /// The longest time without progress of a tenant that no fault had stopped.
    pub longest_wait: Duration,
    /// The longest time from the end of all tenants until nothing of them was left.
    pub longest_rest: Duration,
}

/// The report of the run so far, shared by all threads.
pub(crate) struct Verdict {
    start: Instant,
    inner: Mutex<Inner>,
}

struct Inner {
    round: u64,
    fault: &'static str,
    report: Report,
}

impl Verdict {
    pub(crate) fn new(seed: u64) -> Verdict {
        let report = Report { seed, ..Report::default() };
        Verdict { start: Instant::now(), inner: Mutex::new(Inner { round: 0, fault: "none yet", report }) }
    }

    /// Records the start of a round with this fault.
    pub(crate) fn begin(&self, round: u64, fault: &'static str) {
        let mut inner = self.inner();
        (inner.round, inner.fault) = (round, fault);
        inner.report.faults.entry(fault).or_default().injected += 1;
    }

    /// Records that this fault cannot be injected on this machine.
    pub(crate) fn skip(&self, fault: &'static str, why: String) {
        eprintln!("SKIPPED: {fault}: {why}");
        let mut inner = self.inner();
        let tally = inner.report.faults.entry(fault).or_default();
        (tally.injected, tally.skipped) = (0, why);
    }

    /// Records a violation.
    pub(crate) fn wrong(&self, what: String) {
        let after = self.start.elapsed();
        let mut inner = self.inner();
        let (round, fault, seed) = (inner.round, inner.fault, inner.report.seed);
        eprintln!("VIOLATION in round {round} ({fault}) of seed {seed} after {after:.1?}: {what}");
        inner.report.faults.entry(fault).or_default().violations += 1;
        inner.report.violations.push(Violation { round, fault, after, what });
    }

    pub(crate) fn count(&self, change: impl FnOnce(&mut Effort)) {
        change(&mut self.inner().report.effort);
    }

    /// The number of violations so far.
    pub(crate) fn violations(&self) -> usize {
        self.inner().report.violations.len()
    }

    pub(crate) fn report(&self) -> Report {
        Report { elapsed: self.start.elapsed(), ..self.inner().report.clone() }
    }

    fn inner(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Report {
    /// The table for BENCHMARKS.md.
    #[must_use]
    pub fn table(&self) -> String {
        let mut text = String::from("| fault | injected | violations |\n| --- | --- | --- |\n");
        for (name, tally) in &self.faults {
            let injected = if tally.skipped.is_empty() {
                tally.injected.to_string()
            } else {
                format!("not here: {}", tally.skipped)
            };
            // Writing to a string cannot fail.
            let _ = writeln!(text, "| {name} | {injected} | {} |", tally.violations);
        }
        let injected: u64 = self.faults.values().map(|tally| tally.injected).sum();
        let _ = writeln!(text, "| all | **{injected}** | **{}** |", self.violations.len());
        text
    }

    /// The work done, as a paragraph of text.
    #[must_use]
    pub fn summary(&self) -> String {
        let Effort { looks, exact_looks, share_windows, slices_made, resizes, tenants, .. } = self.effort;
        format!(
            "{:.0?} with seed {}: {tenants} tenants, {slices_made} slices made and removed and {resizes} resizes beside the faults; \
             {looks} looks at the devices' memory, {exact_looks} of them exact; {share_windows} windows of shares. The longest that \
             a tenant waited for a call: {:.2?}. The longest from the tenants' end until nothing of them was left: {:.2?}.",
            self.elapsed, self.seed, self.effort.longest_wait, self.effort.longest_rest
        )
    }

    /// The whole report as JSON.
    #[must_use]
    pub fn json(&self) -> Value {
        let faults: Vec<Value> = self
            .faults
            .iter()
            .map(|(name, tally)| {
                json!({
                    "name": name, "injected": tally.injected, "skipped": tally.skipped, "violations": tally.violations,
                })
            })
            .collect();
        let violations: Vec<Value> = self
            .violations
            .iter()
            .map(|violation| {
                json!({
                    "round": violation.round, "fault": violation.fault,
                    "after_ms": violation.after.as_millis() as u64, "what": violation.what,
                })
            })
            .collect();
        let effort = self.effort;
        json!({
            "seed": self.seed,
            "elapsed_ms": self.elapsed.as_millis() as u64,
            "faults": faults,
            "violations": violations,
            "looks": effort.looks,
            "exact_looks": effort.exact_looks,
            "share_windows": effort.share_windows,
            "slices_made": effort.slices_made,
            "resizes": effort.resizes,
            "tenants": effort.tenants,
            "longest_wait_ms": effort.longest_wait.as_millis() as u64,
            "longest_rest_ms": effort.longest_rest.as_millis() as u64,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_violation_stands_with_its_round_and_in_the_table() {
        let verdict = Verdict::new(9);
        verdict.begin(1, "calm");
        verdict.begin(2, "storm");
        verdict.wrong("too much".into());
        verdict.begin(3, "flood");
        verdict.skip("flood", "no water".into());
        let report = verdict.report();
        let found: Vec<_> =
            report.violations.iter().map(|found| (found.round, found.fault, found.what.as_str())).collect();
        assert_eq!(found, [(2, "storm", "too much")]);
        let table = report.table();
        for line in
            ["| calm | 1 | 0 |", "| storm | 1 | 1 |", "| flood | not here: no water | 0 |", "| all | **2** | **1** |"]
        {
            assert!(table.contains(line), "{line} is missing in\n{table}");
        }
        assert_eq!(report.json()["violations"][0]["fault"], "storm");
    }
}
