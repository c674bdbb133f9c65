//! What the check says: tables for people, JSON for programs. The schema is described in folder/README.txt.

use std::path::Path;
use std::time::{SystemTime, UNIX_EPOCH};

use anyhow::Context;
use serde::Serialize;

use crate::findings::{Findings, Verdict};
use crate::overhead::{Overhead, median};
use crate::shares::{Compared, Measurement};
use crate::torch::Torch;
use crate::way::Way;
use crate::workers::Probe;

/// Grows when a field changes its meaning or goes.
const SCHEMA: &str = "aliquot-gpu-check/1";
/// A share is exact if it is within so many points: see DESIGN's invariant on shares over 10 s.
const SHARE_POINTS: f64 = 1.0;

/// A case in one way.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct CaseResult {
    /// The case.
    pub(crate) case: String,
    /// How it was run.
    pub(crate) way: Way,
    /// What it found out.
    #[serde(flatten)]
    pub(crate) findings: Findings,
}

/// All results.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Report {
    schema: &'static str,
    /// Seconds since 1970.
    started_unix_seconds: u64,
    quick: bool,
    /// The user whom the check ran as; 0 is root.
    user_id: u32,
    kernel: String,
    cpu: String,
    pub(crate) device: Probe,
    pub(crate) conformance: Vec<CaseResult>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) overhead: Option<Vec<Overhead>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) shares: Option<Vec<Compared>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) torch: Option<Torch>,
    /// Whether every conformance case holds; set when the report is written.
    holds: bool,
}

impl Report {
    /// A report with nothing in it yet.
    pub(crate) fn new(device: Probe, quick: bool, now: SystemTime) -> Report {
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
            conformance: Vec::new(),
            overhead: None,
            shares: None,
            torch: None,
            holds: false,
        }
    }

    /// Whether every conformance case holds.
    pub(crate) fn holds(&self) -> bool {
        let torch = self.torch.iter().flat_map(|torch| torch.ways.values()).map(|run| &run.findings);
        self.conformance.iter().map(|result| &result.findings).chain(torch).all(Findings::hold)
    }

    /// Writes everything to `path`.
    pub(crate) fn write(&mut self, path: &Path) -> anyhow::Result<()> {
        self.holds = self.holds();
        let text = serde_json::to_string_pretty(self)?;
        std::fs::write(path, text + "\n").with_context(|| format!("cannot write {}", path.display()))
    }

    /// Prints what is checked, and where.
    pub(crate) fn print_head(&self) {
        let Probe { name, memory_bytes, driver_version, cuda_version, driver_library, .. } = &self.device;
        println!("device   {name}, {} MiB", memory_bytes >> 20);
        println!(
            "driver   {driver_version}, CUDA {}.{}, {driver_library}",
            cuda_version / 1000,
            cuda_version % 1000 / 10
        );
        println!("machine  {}, Linux {}, user {}", self.cpu, self.kernel, self.user_id);
    }

    /// Prints the conformance cases, and whatever does not hold.
    pub(crate) fn print_conformance(&self) {
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

    /// Prints what calls cost.
    pub(crate) fn print_overhead(&self) {
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

    /// Prints the shares of device time, and by how much the device and the simulated one differ.
    pub(crate) fn print_shares(&self) {
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
            let Measurement { wanted_percent, measured_percent, .. } = compared.measured;
            let off = measured_percent - wanted_percent;
            let exact = if off.abs() <= SHARE_POINTS { "yes" } else { "no" };
            let beside = &compared.measured.beside;
            rows.push(vec![
                compared.measured.load.clone(),
                if beside.is_empty() { "nothing".to_owned() } else { beside.clone() },
                format!("{wanted_percent:.0}"),
                format!("{measured_percent:.2}"),
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

    /// Prints what PyTorch found.
    pub(crate) fn print_torch(&self) {
        let Some(torch) = &self.torch else { return };
        if !torch.skipped.is_empty() {
            println!("\nPyTorch: skipped: {}", torch.skipped);
            return;
        }
        let head = ["PyTorch", "steps/s", "by graphs", "findings"];
        let mut rows = vec![head.map(str::to_owned).to_vec()];
        for (way, run) in &torch.ways {
            rows.push(vec![
                way.to_string(),
                format!("{:.1}", run.steps_per_second),
                format!("{:.1}", run.graph_steps_per_second),
                summary(&run.findings),
            ]);
        }
        print_table(&rows);
        for (how, percent) in [("", torch.limited_percent), (" by CUDA graphs", torch.limited_graph_percent)] {
            if let Some(percent) = percent {
                println!("in the limited slice it does{how} {percent:.1} % of the work that it does without");
            }
        }
        for (way, run) in &torch.ways {
            print_exceptions(&format!("PyTorch, {way}"), &run.findings);
        }
    }

    /// Prints the verdict.
    pub(crate) fn print_verdict(&self) {
        let verdict =
            if self.holds() { "PASS: every conformance case holds" } else { "FAIL: a conformance case does not hold" };
        println!("\n{verdict}");
    }
}

fn count(findings: &Findings, verdict: Verdict) -> usize {
    findings.findings.iter().filter(|finding| finding.verdict == verdict).count()
}

/// A case in a word or two.
fn summary(findings: &Findings) -> String {
    let (holds, fails, skipped) =
        (count(findings, Verdict::Holds), count(findings, Verdict::Fails), count(findings, Verdict::Skipped));
    match (holds, fails, skipped) {
        (_, 1.., _) => format!("FAILS {fails} of {}", holds + fails),
        (0, 0, 1..) => "skipped".to_owned(),
        (0, 0, 0) => format!("{} answers", findings.answers.len()),
        (_, 0, 0) => format!("holds {holds}"),
        (_, 0, _) => format!("holds {holds}, skipped {skipped}"),
    }
}

/// Prints what does not hold or was skipped.
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
