//! Other common GPU programs, frameworks and NVIDIA's tools, each without a slice and in the limited slice.

use std::path::Path;
use std::process::Command;
use std::time::Duration;

use serde::Deserialize;

use crate::findings::{Findings, Verdict};
use crate::launcher::{Launcher, Running};
use crate::part_run::PartRun;
use crate::way::{Share, Way};

const SCRIPT: &str = "check_frameworks.py";
/// An interpreter that has not told its version by then counts as hanging.
const VERSION_TIMEOUT: Duration = Duration::from_secs(30);
/// The script's names of the programs that it can try.
const SUBJECTS: [&str; 7] = ["jax", "cupy", "triton", "numba", "nvidia-smi", "compute-sanitizer", "ncu"];
/// Memory of the slice. Frameworks' libraries alone take hundreds of megabytes of device memory.
const LIMIT_BYTES: u64 = 8 << 30;

/// The script's output.
#[derive(Clone, Debug, Deserialize)]
struct Said {
    /// Why the subject cannot be tried here; empty if it was tried.
    missing: String,
    #[serde(flatten)]
    findings: Findings,
}

/// Tries each subject. A failure without a slice makes the same failure in a slice meaningless.
pub(crate) fn check(run: &mut PartRun, programs: &Path) {
    let script = programs.join(SCRIPT);
    let limit_bytes = LIMIT_BYTES.min(run.report.device.memory_bytes / 2);
    for subject in SUBJECTS {
        if !run.begins(subject) {
            continue;
        }
        let mut bare = attempt(&run.launcher, &script, subject, None);
        let mut limited = None;
        // If it was ended at the part's deadline, that is not for its own reasons.
        if bare.has_failed() && !run.launcher.deadline.has_passed() {
            let why = bare.findings.iter().map(|finding| finding.saw.as_str()).collect::<Vec<_>>().join("; ");
            bare = Findings::default();
            bare.skip(subject, format!("it does not run here without a slice either: {why}"));
        } else if bare.findings.iter().all(|finding| finding.verdict != Verdict::Skipped) {
            let mut found = attempt(&run.launcher, &script, subject, Some(limit_bytes));
            if !found.has_looked() {
                found.expect("it is tried in a slice as it is without one", false, "nothing was looked at");
            }
            limited = Some(found);
        }
        run.add(subject, Way::Bare, bare);
        if let Some(limited) = limited {
            run.add(subject, Way::Limited, limited);
        }
    }
}

/// Tries a subject in a slice with `limit_bytes` of memory, or without a slice.
fn attempt(launcher: &Launcher, script: &Path, subject: &str, limit_bytes: Option<u64>) -> Findings {
    let mut findings = Findings::default();
    match has_python(launcher, script) {
        Ok(true) => {}
        Ok(false) => {
            findings.skip(subject, format!("python3 is not installed, or {} is missing", script.display()));
            return findings;
        }
        Err(error) => {
            findings.expect("python3 tells its version", false, format!("{error:#}"));
            return findings;
        }
    }
    let share = limit_bytes.map(|bytes| Share::new(launcher.limits.core_percent, bytes));
    let limit = limit_bytes.unwrap_or(0).to_string();
    let own = std::env::current_exe().unwrap_or_default();
    let args = [script.to_string_lossy(), subject.into(), limit.into(), own.to_string_lossy()];
    let args: Vec<&str> = args.iter().map(AsRef::as_ref).collect();
    let command = launcher.command(share.as_ref(), Path::new("python3"), &args);
    match launcher.start_command(command).and_then(Running::answer) {
        Ok(Said { missing, findings: said }) if missing.is_empty() => findings = said,
        Ok(Said { missing, .. }) => findings.skip(subject, missing),
        Err(error) => findings.expect("it runs to its end", false, format!("{error:#}")),
    }
    findings
}

/// Whether the script and a Python interpreter exist.
fn has_python(launcher: &Launcher, script: &Path) -> anyhow::Result<bool> {
    let mut python = Command::new("python3");
    python.arg("--version");
    let Some(running) = launcher.start_if_installed(python)? else { return Ok(false) };
    running.within(VERSION_TIMEOUT).last_line().map(|_| script.exists())
}
