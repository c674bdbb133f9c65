//! The check's report: tables for people, JSON for programs. The schema is described in folder/README.txt.

use std::fs::{self, Permissions};
use std::io::{self, Write};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

use anyhow::Context;
use serde::Serialize;

use crate::Part;
use crate::findings::{Figure, Finding, Findings, Verdict};
use crate::overhead::{Overhead, median};
use crate::shares::{Compared, Measurement};
use crate::torch::{Rates, Torch};
use crate::way::{Limits, Way};
use crate::workers::{Other, Probe};

/// The number increases when a field changes its meaning or is removed.
const SCHEMA: &str = "aliquot-gpu-check/2";
/// A share is exact if its error is at most this many percentage points.
const SHARE_POINTS: f64 = 1.0;

/// Something that could not be checked.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
struct Unseen {
    what: String,
    why: String,
}

/// A part that consists of cases.
#[derive(Clone, Debug, Serialize)]
struct PartResult {
    part: &'static str,
    cases: Vec<CaseResult>,
}

/// Something that was to be measured and was not.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
struct Broken {
    part: &'static str,
    what: String,
    why: String,
}

/// The result of a case in one way.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct CaseResult {
    /// The case.
    pub(crate) case: String,
    /// How it was run.
    pub(crate) way: Way,
    /// The findings.
    #[serde(flatten)]
    pub(crate) findings: Findings,
}

/// When the check looks for processes of others.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Moment {
    /// Before the first part.
    Before,
    /// After the last part.
    After,
}

/// All results.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Report {
    schema: &'static str,
    /// Seconds since 1970.
    started_unix_seconds: u64,
    quick: bool,
    /// The user id of the check; 0 is root.
    user_id: u32,
    kernel: String,
    cpu: String,
    pub(crate) device: Probe,
    /// The limits of the limited slice.
    limits: Limits,
    /// Allowed error of shares in percentage points.
    share_tolerance_points: f64,
    /// Processes of others on the device, before the first part and after the last one.
    others_before: Vec<Other>,
    others_after: Vec<Other>,
    parts: Vec<PartResult>,
    pub(crate) conformance: Vec<CaseResult>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) overhead: Option<Vec<Overhead>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) shares: Option<Vec<Compared>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) torch: Option<Torch>,
    /// The measurements that failed, and the parts that took too long.
    broken: Vec<Broken>,
    /// The parts that were asked for by name.
    #[serde(skip)]
    asked: Vec<Part>,
    /// The parts that were asked for and have not run, or not to their end.
    parts_left: Vec<&'static str>,
    /// The checks that were not possible, with their reasons.
    unseen: Vec<Unseen>,
    /// The failed expectations; set when the report is written.
    failures: Vec<String>,
    /// Whether there is no failure, and no part is left; set when the report is written.
    holds: bool,
    /// The report's file.
    #[serde(skip)]
    path: PathBuf,
}

impl Report {
    /// An empty report, to be written to `path`. The `parts` are still to be run; those of `asked` were named.
    pub(crate) fn new(
        path: &Path,
        parts: &[Part],
        asked: &[Part],
        device: Probe,
        limits: Limits,
        quick: bool,
        share_points: f64,
    ) -> Report {
        let now = SystemTime::now();
        let first_line = |text: String| text.lines().next().unwrap_or_default().trim().to_owned();
        let cpus = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
        let model = cpus.lines().find_map(|line| line.strip_prefix("model name")?.split_once(':'));
        Report {
            schema: SCHEMA,
            started_unix_seconds: now.duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs()),
            quick,
            user_id: nix::unistd::geteuid().as_raw(),
            kernel: first_line(std::fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default()),
            cpu: model.map(|(_, model)| model.trim().to_owned()).unwrap_or_default(),
            device,
            limits,
            share_tolerance_points: share_points,
            others_before: Vec::new(),
            others_after: Vec::new(),
            parts: Vec::new(),
            conformance: Vec::new(),
            overhead: None,
            shares: None,
            torch: None,
            broken: Vec::new(),
            asked: asked.to_vec(),
            parts_left: parts.iter().map(|part| part.name()).collect(),
            unseen: Vec::new(),
            failures: Vec::new(),
            holds: false,
            path: path.to_owned(),
        }
    }

    /// Notes the processes of others on the device, and prints them.
    pub(crate) fn note_others(&mut self, moment: Moment, others: anyhow::Result<Vec<Other>>) {
        let (when, place) = match moment {
            Moment::Before => ("before the check", &mut self.others_before),
            Moment::After => ("after the check", &mut self.others_after),
        };
        match others {
            Ok(others) => {
                for Other { pid, memory_bytes } in &others {
                    let memory = memory_bytes.map_or("memory".to_owned(), |bytes| format!("{} MiB", bytes >> 20));
                    println!("{when} process {pid} of another has {memory} of the device: the figures mean little");
                }
                *place = others;
            }
            Err(error) => self.unseen(&format!("processes of others {when}"), format!("{error:#}")),
        }
    }

    /// Records a check that is not possible here.
    pub(crate) fn unseen(&mut self, what: &str, why: String) {
        self.unseen.push(Unseen { what: what.to_owned(), why });
    }

    /// Adds a case's result in one way.
    pub(crate) fn add(&mut self, part: Part, case: CaseResult) {
        if part == Part::Conformance {
            self.conformance.push(case);
            return;
        }
        match self.parts.last_mut() {
            Some(last) if last.part == part.name() => last.cases.push(case),
            _ => self.parts.push(PartResult { part: part.name(), cases: vec![case] }),
        }
    }

    /// Adds that `what` could not be measured, and why.
    pub(crate) fn add_broken(&mut self, part: Part, what: String, why: String) {
        self.broken.push(Broken { part: part.name(), what, why });
    }

    /// Notes that `part` has run, and prints its results.
    pub(crate) fn end_part(&mut self, part: Part) {
        self.parts_left.retain(|left| *left != part.name());
        if !self.has_looked(part) && !self.broken.iter().any(|broken| broken.part == part.name()) {
            // A check that was asked for one thing, and could not look at it, has not found that it holds.
            let (what, why) = ("something of it can be looked at", "nothing was");
            match self.asked.contains(&part) {
                true => self.add_broken(part, what.to_owned(), why.to_owned()),
                false => self.unseen(part.name(), why.to_owned()),
            }
        }
        match part {
            Part::Conformance => self.print_conformance(),
            Part::Overhead => self.print_overhead(),
            Part::Shares | Part::Simulated => self.print_shares(),
            Part::Torch => self.print_torch(),
            _ => self.print_cases(part),
        }
        for Broken { what, why, .. } in self.broken.iter().filter(|broken| broken.part == part.name()) {
            println!("  FAILS   {what}: {why}");
        }
    }

    /// Whether `part` has looked at anything: measured, compared or judged it.
    fn has_looked(&self, part: Part) -> bool {
        match part {
            Part::Conformance => self.conformance.iter().any(|case| case.findings.has_looked()),
            Part::Overhead => self.overhead.iter().flatten().any(|call| call.limited_ns.is_finite()),
            Part::Shares => self.shares.iter().flatten().next().is_some(),
            Part::Simulated => self.shares.iter().flatten().any(|share| share.simulated_percent.is_some()),
            Part::Torch => self.torch.iter().flat_map(|torch| torch.ways.values()).any(|run| run.findings.has_looked()),
            _ => {
                let mut cases = self.parts.iter().filter(|of| of.part == part.name()).flat_map(|of| &of.cases);
                cases.any(|case| case.findings.has_looked())
            }
        }
    }

    /// Prints a part that consists of cases.
    fn print_cases(&self, part: Part) {
        let cases = || self.parts.iter().filter(|of| of.part == part.name()).flat_map(|of| &of.cases);
        let mut rows = vec![vec![part.name().to_owned(), "way".to_owned(), "findings".to_owned()]];
        for CaseResult { case, way, findings } in cases() {
            rows.push(vec![case.clone(), way.to_string(), summary(findings)]);
        }
        print_table(&rows);
        for CaseResult { case, way, findings } in cases() {
            for Figure { what, value, unit } in &findings.figures {
                println!("  {case}, {way}: {what}: {value:.2} {unit}");
            }
            print_exceptions(&format!("{case}, {way}"), findings);
        }
    }

    /// All findings, with their place.
    fn all_findings(&self) -> impl Iterator<Item = (String, &Findings)> {
        let of_part = |part: &'static str, case: &CaseResult| format!("{part}: {}, {}", case.case, case.way);
        let parts = self.parts.iter().flat_map(move |PartResult { part, cases }| {
            cases.iter().map(move |case| (of_part(part, case), &case.findings))
        });
        let conformance = self.conformance.iter().map(move |case| (of_part("conformance", case), &case.findings));
        let torch = self.torch.iter().flat_map(|torch| &torch.ways);
        let torch = torch.map(|(way, run)| (format!("PyTorch, {way}"), &run.findings));
        parts.chain(conformance).chain(torch)
    }

    /// The checks that were not possible, without duplicates.
    fn all_unseen(&self) -> Vec<Unseen> {
        let mut unseen = self.unseen.clone();
        for (_, findings) in self.all_findings() {
            for Finding { what, saw, .. } in findings.findings.iter().filter(|found| found.verdict == Verdict::Skipped)
            {
                let new = Unseen { what: what.clone(), why: saw.clone() };
                if !unseen.contains(&new) {
                    unseen.push(new);
                }
            }
        }
        unseen
    }

    /// The failed expectations.
    fn failures(&self) -> Vec<String> {
        let broken = self.broken.iter().map(|Broken { part, what, why }| format!("{part}: {what}: {why}"));
        let mut failures: Vec<String> = broken.collect();
        for (where_, findings) in self.all_findings() {
            let failed = findings.findings.iter().filter(|finding| finding.verdict == Verdict::Fails);
            failures.extend(failed.map(|Finding { what, saw, .. }| format!("{where_}: {what}: {saw}")));
        }
        for Compared { measured, .. } in self.shares.iter().flatten() {
            let Measurement { load, beside, wanted_percent, measured_percent, .. } = measured;
            if measured.is_beyond(self.share_tolerance_points) {
                let beside = if beside.is_empty() { "nothing" } else { beside };
                failures.push(format!(
                    "shares: {load} beside {beside}: {measured_percent:.2} % instead of {wanted_percent:.0} %"
                ));
            }
        }
        failures
    }

    /// Whether all parts have run and no expectation has failed.
    pub(crate) fn holds(&self) -> bool {
        self.parts_left.is_empty() && self.failures().is_empty()
    }

    /// Replaces the report's file, so that it is whole at every moment.
    pub(crate) fn write(&mut self) -> anyhow::Result<()> {
        self.failures = self.failures();
        self.unseen = self.all_unseen();
        self.holds = self.holds();
        let text = serde_json::to_string_pretty(self)? + "\n";
        let written = if self.is_replaceable() { replace(&self.path, &text) } else { fs::write(&self.path, &text) };
        written.with_context(|| format!("cannot write {}", self.path.display()))
    }

    /// Writes the report while parts are still to be run, unless it goes to something like a pipe.
    pub(crate) fn save(&mut self) -> anyhow::Result<()> {
        if self.is_replaceable() { self.write() } else { Ok(()) }
    }

    /// Whether the report's file can be replaced by another one. A pipe or a device cannot.
    fn is_replaceable(&self) -> bool {
        fs::metadata(&self.path).map_or(true, |file| file.is_file())
    }

    /// Prints the device and the settings of the check.
    pub(crate) fn print_head(&self) {
        let Probe { name, memory_bytes, driver_version, cuda_version, driver_library, .. } = &self.device;
        println!("device   {name}, {} MiB", memory_bytes >> 20);
        println!(
            "driver   {driver_version}, CUDA {}.{}, {driver_library}",
            cuda_version / 1000,
            cuda_version % 1000 / 10
        );
        println!("machine  {}, Linux {}, user {}", self.cpu, self.kernel, self.user_id);
        let Limits { memory_bytes, core_percent, context_bytes } = self.limits;
        println!(
            "slice    {} MiB and {core_percent} %, where it is limited; a context takes {} MiB",
            memory_bytes >> 20,
            context_bytes >> 20
        );
    }

    /// Prints the conformance cases and all failures.
    fn print_conformance(&self) {
        let mut rows = vec![vec!["conformance".to_owned()]];
        rows[0].extend(Way::ALL.iter().map(Way::to_string));
        for result in &self.conformance {
            if rows.last().is_none_or(|row| row[0] != result.case) {
                rows.push(vec![result.case.clone(), String::new(), String::new(), String::new()]);
            }
            let column = 1 + Way::ALL.iter().position(|&way| way == result.way).unwrap_or_default();
            if let Some(row) = rows.last_mut() {
                row[column] = summary(&result.findings);
            }
        }
        print_table(&rows);
        for result in &self.conformance {
            print_exceptions(&format!("{}, {}", result.case, result.way), &result.findings);
        }
    }

    /// Prints the costs of calls.
    fn print_overhead(&self) {
        let head = ["overhead per call, ns", "bare", "unlimited", "added", "ratio", "limited", "added", "ratio"];
        let mut rows = vec![head.map(str::to_owned).to_vec()];
        for Overhead { call, bare_ns, unlimited_ns, limited_ns } in self.overhead.iter().flatten() {
            let mut row = vec![call.clone(), format!("{bare_ns:.1}")];
            for with in [unlimited_ns, limited_ns] {
                row.extend([format!("{with:.1}"), format!("{:+.1}", with - bare_ns), format!("{:.3}", with / bare_ns)]);
            }
            rows.push(row);
        }
        print_table(&rows);
    }

    /// Prints the shares of device time, and the difference between the device and the simulated GPU.
    fn print_shares(&self) {
        let head = [
            "share of device time",
            "beside",
            "wanted %",
            "measured %",
            "points off",
            "exact",
            "first second %",
            "worst second %",
            "simulated %",
        ];
        let mut rows = vec![head.map(str::to_owned).to_vec()];
        for compared in self.shares.iter().flatten() {
            let Measurement { wanted_percent, measured_percent, first_percent, .. } = compared.measured;
            let first = first_percent.map_or(String::new(), |percent| format!(" (first {percent:.2})"));
            let off = measured_percent - wanted_percent;
            let exact = if off.abs() <= SHARE_POINTS { "yes" } else { "no" };
            let beside = &compared.measured.beside;
            rows.push(vec![
                compared.measured.load.clone(),
                if beside.is_empty() { "nothing".to_owned() } else { beside.clone() },
                format!("{wanted_percent:.0}"),
                format!("{measured_percent:.2}{first}"),
                format!("{off:+.2}"),
                exact.to_owned(),
                format!("{:.1}", compared.measured.first_second_percent),
                format!("{:.1}", compared.measured.worst_second_percent),
                compared.simulated_percent.map_or("-".to_owned(), |percent| format!("{percent:.2}")),
            ]);
        }
        print_table(&rows);
        let differences: Vec<f64> =
            self.shares.iter().flatten().filter_map(Compared::difference).map(f64::abs).collect();
        if !differences.is_empty() {
            println!(
                "shares here and on the simulated GPU of this machine differ by {:.2} points in the median, {:.2} at most",
                median(differences.clone()),
                differences.into_iter().fold(0.0, f64::max)
            );
        }
    }

    /// Prints the findings with PyTorch.
    fn print_torch(&mut self) {
        let Some(torch) = &self.torch else { return };
        if !torch.skipped.is_empty() {
            println!("\nPyTorch: not looked at: {}", torch.skipped);
            self.unseen.push(Unseen { what: "PyTorch".to_owned(), why: torch.skipped.clone() });
            return;
        }
        let head = ["PyTorch", "steps/s", "by graphs", "sweeps/s", "shared blocks/s", "findings"];
        let mut rows = vec![head.map(str::to_owned).to_vec()];
        for (way, run) in &torch.ways {
            rows.push(vec![
                way.to_string(),
                format!("{:.1}", run.rates.steps),
                format!("{:.1}", run.rates.graph_steps),
                format!("{:.1}", run.rates.sweeps),
                format!("{:.1}", run.rates.shared_blocks),
                summary(&run.findings),
            ]);
        }
        print_table(&rows);
        if let Some(Rates { steps, graph_steps, sweeps, shared_blocks }) = torch.limited_percent {
            println!(
                "in the limited slice it does, of what it does without: {sweeps:.1} % of sums that keep the device busy, \
                 {graph_steps:.1} % of steps as CUDA graphs, {steps:.1} % of steps that the host launches one by one, \
                 {shared_blocks:.1} % of blocks of memory that two streams use"
            );
        }
        for (way, run) in &torch.ways {
            print_exceptions(&format!("PyTorch, {way}"), &run.findings);
        }
    }

    /// Prints the verdict.
    pub(crate) fn print_verdict(&self) {
        let unseen = self.all_unseen();
        if !unseen.is_empty() {
            println!("\nNot looked at:");
            unseen.iter().for_each(|Unseen { what, why }| println!("  {what}: {why}"));
        }
        let failures = self.failures();
        if failures.is_empty() {
            println!("\nPASS: everything that was looked at holds");
            return;
        }
        println!("\nFAIL: {} of what was looked at does not hold:", failures.len());
        failures.iter().for_each(|failure| println!("  {failure}"));
    }
}

/// Replaces the file at `path` by one that contains `text`.
fn replace(path: &Path, text: &str) -> io::Result<()> {
    let dir = path.parent().filter(|dir| !dir.as_os_str().is_empty()).unwrap_or(Path::new("."));
    // Like those of any new file, of which the process's mask is taken off.
    let mut new = tempfile::Builder::new().permissions(Permissions::from_mode(0o666)).tempfile_in(dir)?;
    new.write_all(text.as_bytes())?;
    new.persist(path)?;
    Ok(())
}

fn count(findings: &Findings, verdict: Verdict) -> usize {
    findings.findings.iter().filter(|finding| finding.verdict == verdict).count()
}

/// A short summary of a case.
fn summary(findings: &Findings) -> String {
    let (holds, fails, skipped) =
        (count(findings, Verdict::Holds), count(findings, Verdict::Fails), count(findings, Verdict::Skipped));
    match (holds, fails, skipped) {
        (_, 1.., _) => format!("FAILS {fails} of {}", holds + fails),
        (0, 0, 1..) => "skipped".to_owned(),
        (0, 0, 0) if findings.answers.is_empty() => format!("{} figures", findings.figures.len()),
        (0, 0, 0) => format!("{} answers", findings.answers.len()),
        (_, 0, 0) => format!("holds {holds}"),
        (_, 0, _) => format!("holds {holds}, skipped {skipped}"),
    }
}

/// Prints failed and skipped expectations.
fn print_exceptions(where_: &str, findings: &Findings) {
    for finding in findings.findings.iter().filter(|finding| finding.verdict != Verdict::Holds) {
        let word = if finding.verdict == Verdict::Fails { "FAILS  " } else { "skipped" };
        println!("  {word} {where_}: {}: {}", finding.what, finding.saw);
    }
}

/// Prints rows in columns as wide as their widest cell; the first row is the head.
fn print_table(rows: &[Vec<String>]) {
    let columns = rows.iter().map(Vec::len).max().unwrap_or_default();
    let width = |column: usize| {
        rows.iter().filter_map(|row| row.get(column)).map(|cell| cell.chars().count()).max().unwrap_or_default()
    };
    let widths: Vec<usize> = (0..columns).map(width).collect();
    println!();
    for (index, row) in rows.iter().enumerate() {
        let cells: Vec<String> = row.iter().zip(&widths).map(|(cell, &width)| format!("{cell:width$}")).collect();
        println!("{}", cells.join("  ").trim_end());
        if index == 0 {
            println!("{}", "─".repeat(widths.iter().sum::<usize>() + 2 * (columns - 1)));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_failure_is_what_a_summary_says_first() {
        let mut findings = Findings::default();
        findings.expect("a", true, "");
        findings.skip("b", "none here");
        assert_eq!(summary(&findings), "holds 1, skipped 1");
        findings.expect("c", false, "");
        assert_eq!(summary(&findings), "FAILS 1 of 2");
    }
}
