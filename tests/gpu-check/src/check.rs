//! Runs the parts of the check.

use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};
use std::time::{Instant, SystemTime};

use anyhow::{Context, bail};

use crate::cases::{CASES, Case};
use crate::deaths::DEATHS;
use crate::facts::FACTS;
use crate::findings::Findings;
use crate::launcher::Launcher;
use crate::manager::{Manager, is_in_memory, runtime_base};
use crate::report::{CaseResult, Report};
use crate::shares::{self, Compared, Series};
use crate::simulated::SimulatedGpu;
use crate::truth::{SLACK_BYTES, Seen, Watch};
use crate::way::{Limits, Way};
use crate::workers::{NO_DEVICE, Probe};
use crate::{Options, Part, frameworks, overhead, runtime, torch};

/// Allowed error of a share, in percentage points.
const SHARE_POINTS: f64 = 2.0;
/// The same for a share that is measured only for a few seconds.
const QUICK_SHARE_POINTS: f64 = 5.0;
/// The node manager's file name, in the directory of the programs.
const MANAGER: &str = "aliquot-manager";
/// The case that is run once more without a node manager.
const CASE_WITHOUT_MANAGER: &str = "views";

/// Runs the selected parts and reports the results.
pub(crate) fn run(options: &Options) -> anyhow::Result<ExitCode> {
    if let Some(shim) = shim_of_this_process() {
        bail!("this process is in a slice itself ({shim}); run the check outside of one");
    }
    let programs = match &options.programs {
        Some(dir) => dir.clone(),
        None => own_directory()?,
    };
    let names: Vec<&str> = CASES.iter().map(|case| case.name).collect();
    if options.list_cases {
        println!("{}", names.join("\n"));
        return Ok(ExitCode::SUCCESS);
    }
    if let Some(name) = options.case.iter().find(|name| !names.contains(&name.as_str())) {
        bail!("there is no case {name:?}; there are {}", names.join(", "));
    }
    let started = Instant::now();
    let Some(device) = probe()? else {
        println!("There is nothing to check here: see above.");
        return Ok(ExitCode::from(NO_DEVICE));
    };
    // The time that a worker takes to open its device, with a margin for `aliquot run`.
    let lead = started.elapsed() * 3 + std::time::Duration::from_secs(2);
    let limits = Limits::with_contexts_of(device.context_bytes);
    let device_memory_bytes_min = 2 * limits.memory_bytes;
    if device.memory_bytes < device_memory_bytes_min {
        bail!("the device has {} bytes of memory; the check needs {device_memory_bytes_min}", device.memory_bytes);
    }
    let aliquot = programs.join("aliquot");
    if !aliquot.exists() {
        bail!("{} does not exist; --programs names the directory that holds it", aliquot.display());
    }
    let manager = Manager::start(&programs.join(MANAGER), &[])?;
    let device_uuid = device.uuid.clone();
    let socket = Some(manager.socket().to_owned());
    let launcher = Launcher { aliquot, socket, limits, device_uuid, environment: Vec::new() };

    let quick = options.quick;
    let share_points = options.share_tolerance.unwrap_or(if quick { QUICK_SHARE_POINTS } else { SHARE_POINTS });
    let mut report = Report::new(device, limits, quick, share_points, SystemTime::now());
    if !is_in_memory(&runtime_base()) {
        report.unseen(
            "markers that the device writes",
            format!("regions are in {}, on a disk", runtime_base().display()),
        );
    }
    report.print_head();
    let wanted = |part: Part| match options.only.as_slice() {
        [] => !part.is_extra(),
        only => only.contains(&part),
    };
    if wanted(Part::Facts) {
        report.add("facts", facts(&launcher));
    }
    if wanted(Part::Conformance) {
        report.conformance = conformance(&launcher, &options.case);
        report.print_conformance();
    }
    if wanted(Part::Overhead) {
        progress("overhead");
        report.overhead = Some(overhead::compare(&launcher, if quick { 3 } else { 7 })?);
        report.print_overhead();
    }
    if wanted(Part::Shares) || wanted(Part::Simulated) {
        let simulated = wanted(Part::Simulated);
        report.shares = Some(shares(&launcher, &programs, &Series::new(quick, lead), simulated)?);
        report.print_shares();
    }
    if wanted(Part::Neighbours) {
        let measured =
            shares::neighbours::measure(&launcher, quick, lead, |what| progress(&format!("beside each other: {what}")));
        report.add("neighbours", vec![case_of("two programs", Way::Bare, ran(measured))]);
    }
    if wanted(Part::Deaths) {
        report.add("deaths", deaths(&launcher));
    }
    if wanted(Part::Runtime) {
        progress("the CUDA runtime");
        let kinds = runtime::check(&launcher, &programs, quick, share_points);
        report
            .add("runtime", kinds.into_iter().map(|(kind, findings)| case_of(&kind, Way::Limited, findings)).collect());
    }
    if wanted(Part::Torch) {
        progress("PyTorch");
        report.torch = Some(torch::check(&launcher, &programs, report.device.memory_bytes, quick, share_points));
        report.print_torch();
    }
    if wanted(Part::Frameworks) {
        progress("frameworks and tools");
        let tried = frameworks::check(&launcher, &programs, report.device.memory_bytes);
        let cases = tried.into_iter().map(|(subject, way, findings)| case_of(&subject, way, findings)).collect();
        report.add("frameworks", cases);
    }
    report.print_verdict();
    report.write(&options.json)?;
    println!("All results: {}", options.json.display());
    Ok(if report.holds() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// The shim's path, if this process was started with it. The check could then not see the driver's own figures.
fn shim_of_this_process() -> Option<String> {
    /// The beginning of the shim's file name in each slice; a number follows.
    const SHIM_PREFIX: &str = "libaliquot-";
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap_or_default();
    let mut files = maps.lines().filter_map(|line| line.find('/').map(|start| &line[start..]));
    let is_shim = |file: &&str| file.rsplit('/').next().is_some_and(|name| name.starts_with(SHIM_PREFIX));
    files.find(is_shim).map(str::to_owned)
}

fn case_of(case: &str, way: Way, findings: Findings) -> CaseResult {
    CaseResult { case: case.to_owned(), way, findings }
}

/// A worker's findings, or a failure if it could not be run.
fn ran(outcome: anyhow::Result<Findings>) -> Findings {
    outcome.unwrap_or_else(|error| {
        let mut findings = Findings::default();
        findings.expect("it runs to its end", false, format!("{error:#}"));
        findings
    })
}

/// Determines all facts about the driver.
fn facts(launcher: &Launcher) -> Vec<CaseResult> {
    let fact = |case: &Case| {
        progress(&format!("facts: {}", case.about));
        case_of(case.name, Way::Bare, ran(launcher.run(None, &["fact", case.name])))
    };
    FACTS.iter().map(fact).collect()
}

/// Runs the cases with killed processes, without a slice and in one that holds the whole device.
fn deaths(launcher: &Launcher) -> Vec<CaseResult> {
    let ways = [Way::Bare, Way::Unlimited];
    let each = DEATHS.iter().flat_map(|case| ways.map(|way| (case, way)));
    let death = |(case, way): (&Case, Way)| {
        progress(&format!("deaths, {way}: {}", case.about));
        case_of(case.name, way, ran(launcher.run(way.share(&launcher.limits).as_ref(), &["death", case.name])))
    };
    each.map(death).collect()
}

/// Measures shares on the device, and on the simulated GPU too if `simulated` is set and the libraries are there.
fn shares(launcher: &Launcher, programs: &Path, series: &Series, simulated: bool) -> anyhow::Result<Vec<Compared>> {
    let measured = series.measure(launcher, |what| progress(&format!("shares: {what}")))?;
    if !simulated {
        return Ok(shares::compare(measured, &[]));
    }
    let Some(gpu) = SimulatedGpu::set_up(programs)? else {
        progress("no simulated GPU to compare with lies beside the programs");
        return Ok(shares::compare(measured, &[]));
    };
    let environment = gpu.environment();
    let manager = Manager::start(&programs.join(MANAGER), &environment)?;
    let on_simulated = Launcher {
        aliquot: launcher.aliquot.clone(),
        socket: Some(manager.socket().to_owned()),
        limits: launcher.limits,
        device_uuid: gpu.uuid(),
        environment,
    };
    let simulated = series.measure(&on_simulated, |what| progress(&format!("shares on the simulated GPU: {what}")))?;
    Ok(shares::compare(measured, &simulated))
}

/// Prints the current step on standard error.
fn progress(what: &str) {
    eprintln!("… {what}");
}

fn own_directory() -> anyhow::Result<PathBuf> {
    let own = std::env::current_exe().context("cannot find the path of this program")?;
    Ok(own.parent().unwrap_or(Path::new(".")).to_owned())
}

/// The device that is checked: the first that a program sees. `None` if there is none.
fn probe() -> anyhow::Result<Option<Probe>> {
    let mut command = Command::new(std::env::current_exe()?);
    let output = command.args(["worker", "probe"]).stdin(Stdio::null()).stderr(Stdio::inherit()).output()?;
    match output.status.code() {
        Some(0) => Ok(Some(serde_json::from_slice(&output.stdout)?)),
        Some(code) if code == i32::from(NO_DEVICE) => Ok(None),
        _ => bail!("looking for a device ended with {}", output.status),
    }
}

/// Runs every case, or only the named one, in every way, and one case without a node manager.
fn conformance(launcher: &Launcher, only: &[String]) -> Vec<CaseResult> {
    let is_wanted = |name: &str| only.is_empty() || only.iter().any(|only| only == name);
    let mut results = Vec::new();
    for case in CASES.iter().filter(|case| is_wanted(case.name)) {
        progress(&format!("conformance: {}", case.about));
        let mut bare = None;
        for way in Way::ALL {
            let mut findings = run_case(launcher, case.name, way);
            match &bare {
                None => bare = Some(findings.clone()),
                Some(bare) => findings.compare(bare),
            }
            results.push(case_of(case.name, way, findings));
        }
    }
    if is_wanted(CASE_WITHOUT_MANAGER) {
        let alone = Launcher {
            socket: None,
            aliquot: launcher.aliquot.clone(),
            limits: launcher.limits,
            device_uuid: launcher.device_uuid.clone(),
            environment: Vec::new(),
        };
        let findings = run_case(&alone, CASE_WITHOUT_MANAGER, Way::Limited);
        results.push(case_of(&format!("{CASE_WITHOUT_MANAGER}, without a manager"), Way::Limited, findings));
    }
    results
}

/// Runs a case. For a limited slice, the device's memory is watched from outside.
fn run_case(launcher: &Launcher, name: &str, way: Way) -> Findings {
    let watch = (way == Way::Limited).then(|| Watch::begin(launcher));
    let (share, limits) = (way.share(&launcher.limits), launcher.limits.args());
    let way = way.to_string();
    let mut args = vec!["case", name, "--way", &way];
    args.extend(limits.iter().map(String::as_str));
    let mut findings = ran(launcher.run(share.as_ref(), &args));
    if let Some(watch) = watch {
        note_what_was_taken(&mut findings, launcher.limits.memory_bytes, watch.and_then(Watch::end));
    }
    findings
}

/// Judges the slice's memory by the driver's figures.
fn note_what_was_taken(findings: &mut Findings, limit_bytes: u64, seen: anyhow::Result<Seen>) {
    const WHAT: &str = "by the driver the slice took no more of the device than it has";
    match seen {
        Err(error) => findings.skip(WHAT, format!("{error:#}")),
        Ok(seen) => {
            let taken = seen.taken_bytes();
            findings.figure("taken of the device", taken as f64 / f64::from(1 << 20), "MiB");
            findings.expect(
                WHAT,
                taken <= limit_bytes + SLACK_BYTES,
                format!("{taken} bytes of a limit of {limit_bytes}"),
            );
        }
    }
}
