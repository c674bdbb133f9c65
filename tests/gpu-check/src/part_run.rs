//! A part of the check that runs: its time, and its results as they come. The report's file is replaced after each of
//! them, so that a check that is killed loses no result.

use crate::Part;
use crate::findings::Findings;
use crate::launcher::Launcher;
use crate::report::{CaseResult, Report};
use crate::way::Way;

/// A part that runs.
pub(crate) struct PartRun<'a> {
    part: Part,
    /// Starts the part's workers, up to its deadline.
    pub(crate) launcher: Launcher,
    pub(crate) report: &'a mut Report,
    /// The steps for which no time was left.
    left_out: Vec<String>,
}

impl PartRun<'_> {
    pub(crate) fn begin(part: Part, launcher: Launcher, report: &mut Report) -> PartRun<'_> {
        PartRun { part, launcher, report, left_out: Vec::new() }
    }

    /// Whether there is time for `step`. Prints it if so.
    pub(crate) fn begins(&mut self, step: &str) -> bool {
        if self.launcher.deadline.has_passed() {
            self.left_out.push(step.to_owned());
            return false;
        }
        eprintln!("… {}: {step}", self.part.name());
        true
    }

    /// Adds the findings of a case in one way.
    pub(crate) fn add(&mut self, case: &str, way: Way, findings: Findings) {
        self.report.add(self.part, CaseResult { case: case.to_owned(), way, findings });
        self.save();
    }

    /// Adds a failure that is not one of a case: `what` could not be measured.
    pub(crate) fn fails(&mut self, what: &str, error: &anyhow::Error) {
        self.report.add_broken(self.part, what.to_owned(), format!("{error:#}"));
        self.save();
    }

    /// Writes the report's file. The part goes on if that fails.
    pub(crate) fn save(&mut self) {
        if let Err(error) = self.report.save() {
            eprintln!("warning: {error:#}");
        }
    }

    /// Ends the part, and prints its results.
    pub(crate) fn end(mut self) {
        if !self.left_out.is_empty() {
            let what = format!("it ends within {} s", self.launcher.deadline.limit.as_secs());
            self.report.add_broken(self.part, what, format!("no time was left for {}", self.left_out.join("; ")));
        }
        self.report.end_part(self.part);
        self.save();
    }
}
