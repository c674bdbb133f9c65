//! Programs of the CUDA runtime, linked to the static and to the shared library. They are built if there is a compiler.

use std::path::Path;
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, bail};
use serde::Deserialize;

use crate::findings::{Finding, Findings, Verdict};
use crate::hooks::{Attempt, Use, each_is_noticed};
use crate::launcher::Launcher;
use crate::part_run::PartRun;
use crate::way::Way;

const SOURCE: &str = "check_runtime.cu";
const COMPILER: &str = "nvcc";
/// A compiler that has not told its version or what it would do by then counts as hanging.
const VERSION_TIMEOUT: Duration = Duration::from_secs(30);
/// For which devices it is to compile. A driver that is older than the compiler runs only code for the very device. A
/// compiler that does not know the device compiles for another one, and the driver translates that code.
const TARGETS: [&[&str]; 2] = [&["-arch=native"], &[]];

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
    let program = dir.path().join("check_runtime");
    let seconds = if quick { "1" } else { "5" };
    let run = |way: Way| -> anyhow::Result<Said> {
        let limit_bytes = if way == Way::Limited { launcher.limits.memory_bytes } else { 0 };
        let args = [seconds, &limit_bytes.to_string()];
        launcher.start_command(launcher.command(way.share(&launcher.limits).as_ref(), &program, &args))?.answer()
    };
    let bare = match build(launcher, &programs.join(SOURCE), &program, library).and_then(|()| sound(run(Way::Bare))) {
        Ok(bare) => bare,
        // If it was ended at the part's deadline, that is not for the machine's reasons.
        Err(error) if !launcher.deadline.has_passed() => {
            findings.skip("a program of the CUDA runtime", format!("{error:#}"));
            return Ok(());
        }
        Err(error) => return Err(error),
    };
    let (unlimited, limited) = (run(Way::Unlimited)?, run(Way::Limited)?);
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
            let holds = finding.verdict == Verdict::Holds;
            findings.expect(format!("{way}: {}", finding.what), holds, finding.saw);
        }
    }
    Ok(())
}

/// What the program says without a slice, unless it fails there.
fn sound(bare: anyhow::Result<Said>) -> anyhow::Result<Said> {
    const WHY: &str = "it does not run here without a slice either";
    let bare = bare.context(WHY)?;
    if bare.findings.has_failed() {
        let failed = bare.findings.findings.iter().filter(|finding| finding.verdict == Verdict::Fails);
        let failed: Vec<String> = failed.map(|Finding { what, saw, .. }| format!("{what}: {saw}")).collect();
        bail!("{WHY}: {}", failed.join("; "));
    }
    Ok(bare)
}

/// Builds the program, linked to the kind of library.
fn build(launcher: &Launcher, source: &Path, program: &Path, library: &str) -> anyhow::Result<()> {
    let mut version = Command::new(COMPILER);
    version.arg("--version");
    let Some(running) = launcher.start_if_installed(version)? else { bail!("{COMPILER} is not installed") };
    running.within(VERSION_TIMEOUT).last_line().context(COMPILER)?;
    let mut options = vec!["-O1".to_owned(), "-cudart".to_owned(), library.to_owned()];
    if library == "shared" {
        options.extend(where_to_load(&library_dirs(launcher)));
    }
    let compile = |target: &[&str]| {
        let mut compiler = Command::new(COMPILER);
        compiler.args(target).args(&options).arg("-o").arg(program).arg(source);
        launcher.start_command(compiler)?.last_line()
    };
    let [first, second] = TARGETS;
    compile(first).or_else(|_| compile(second)).with_context(|| format!("{COMPILER} cannot build it"))?;
    Ok(())
}

/// The directories from which the compiler links libraries, as far as it tells. A loader need not know that of the
/// shared runtime library.
fn library_dirs(launcher: &Launcher) -> Vec<String> {
    let mut shell = Command::new("sh");
    // It says what it would do on standard error, among more lines than are kept of that.
    shell.args(["-c", &format!("{COMPILER} --dryrun -x cu -o /dev/null /dev/null 2>&1")]);
    let said = launcher.start_command(shell).and_then(|running| running.within(VERSION_TIMEOUT).succeeded());
    said.map(|said| dirs_in(&said.lines)).unwrap_or_default()
}

/// The directories in what the compiler says: `#$ LIBRARIES=  "-L/usr/local/cuda/lib64/stubs" "-L/usr/local/cuda/lib64"`.
/// The driver among the stubs must not be loaded.
fn dirs_in(said: &str) -> Vec<String> {
    let lists = said.lines().filter_map(|line| line.strip_prefix("#$ LIBRARIES="));
    let dirs = lists.flat_map(|list| list.split('"')).filter_map(|part| part.strip_prefix("-L"));
    dirs.filter(|dir| !dir.ends_with("/stubs")).map(str::to_owned).collect()
}

/// The compiler's options with which a program loads its libraries from `dirs`.
fn where_to_load(dirs: &[String]) -> Vec<String> {
    dirs.iter().flat_map(|dir| ["-Xlinker", "-rpath", "-Xlinker", dir].map(str::to_owned)).collect()
}
