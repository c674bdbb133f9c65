//! Programs of the CUDA runtime, linked to the static and to the shared library. They are built if there is a compiler.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::Context;
use serde::Deserialize;

use crate::findings::Findings;
use crate::hooks::{Attempt, Use, each_is_noticed};
use crate::launcher::Launcher;
use crate::part_run::PartRun;
use crate::way::Way;

const SOURCE: &str = "check_runtime.cu";
const COMPILER: &str = "nvcc";
/// A compiler that has not told its version by then counts as hanging.
const VERSION_TIMEOUT: Duration = Duration::from_secs(30);

/// The program's output.
#[derive(Clone, Debug, Deserialize)]
struct Said {
    runtime_version: u32,
    kernels_per_second: f64,
    graph_kernels_per_second: f64,
    #[serde(flatten)]
    findings: Findings,
}

/// Builds and runs the program with each kind of library. Shares may be off by `points`.
pub(crate) fn check(run: &mut PartRun, programs: &Path, quick: bool, points: f64) {
    for library in ["static", "shared"] {
        let name = format!("the {library} runtime library");
        if !run.begins(&name) {
            continue;
        }
        let mut findings = Findings::default();
        if let Err(error) = check_kind(&run.launcher, programs, library, quick, points, &mut findings) {
            findings.expect("the program can be built and run", false, format!("{error:#}"));
        }
        run.add(&name, Way::Limited, findings);
    }
}

fn check_kind(
    launcher: &Launcher,
    programs: &Path,
    library: &str,
    quick: bool,
    points: f64,
    findings: &mut Findings,
) -> anyhow::Result<()> {
    let dir = tempfile::tempdir()?;
    let Some(program) = build(launcher, &programs.join(SOURCE), dir.path(), library)? else {
        findings.skip("a program of the CUDA runtime", format!("{COMPILER} is not installed"));
        return Ok(());
    };
    let seconds = if quick { "1" } else { "5" };
    let run = |way: Way| -> anyhow::Result<Said> {
        let limit_bytes = if way == Way::Limited { launcher.limits.memory_bytes } else { 0 };
        let args = [seconds, &limit_bytes.to_string()];
        launcher.start_command(launcher.command(way.share(&launcher.limits).as_ref(), &program, &args))?.answer()
    };
    let [bare, unlimited, limited] = [run(Way::Bare)?, run(Way::Unlimited)?, run(Way::Limited)?];
    findings.figure("version of the library", f64::from(bare.runtime_version), "");
    let wanted = f64::from(launcher.limits.core_percent);
    let (launches, graphs) = (|said: &Said| said.kernels_per_second, |said: &Said| said.graph_kernels_per_second);
    for (what, rate) in [("launches", launches as fn(&Said) -> f64), ("graphs", graphs)] {
        let percent_of_bare = |said: &Said| rate(said) / rate(&bare) * 100.0;
        findings.figure(format!("{what}: in a slice of the whole device"), percent_of_bare(&unlimited), "%");
        let percent = percent_of_bare(&limited);
        findings.figure(format!("{what}: in a slice of {wanted} %"), percent, "%");
        findings.expect(
            format!("{what} get the slice's share"),
            (percent - wanted).abs() <= points,
            format!("{percent:.1} % of what is done without a slice"),
        );
    }
    let attempt = |kind: Use| Attempt::new(kind, &["0", "0", kind.name()]);
    let attempts = [Use::Malloc, Use::MallocAsync, Use::Launch, Use::Graph].map(attempt);
    each_is_noticed(launcher, &program, &attempt(Use::Nothing), &attempts, findings);
    for (way, said) in [(Way::Bare, bare), (Way::Unlimited, unlimited), (Way::Limited, limited)] {
        for finding in said.findings.findings {
            let holds = finding.verdict == crate::findings::Verdict::Holds;
            findings.expect(format!("{way}: {}", finding.what), holds, finding.saw);
        }
    }
    Ok(())
}

/// Builds the program; `None` if there is no compiler.
fn build(launcher: &Launcher, source: &Path, dir: &Path, library: &str) -> anyhow::Result<Option<PathBuf>> {
    let mut version = Command::new(COMPILER);
    version.arg("--version");
    let Some(running) = launcher.start_if_installed(version)? else { return Ok(None) };
    running.within(VERSION_TIMEOUT).last_line().context(COMPILER)?;
    let program = dir.join("check_runtime");
    let mut compiler = Command::new(COMPILER);
    compiler.args(["-O1", "-cudart", library, "-o"]).arg(&program).arg(source);
    launcher.start_command(compiler)?.last_line().context(COMPILER)?;
    Ok(Some(program))
}
