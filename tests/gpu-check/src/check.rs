//! Runs the parts of the check.

use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use clap::ValueEnum;

use crate::cases::CASES;
use crate::deaths::{self, DEATHS};
use crate::facts::FACTS;
use crate::findings::Findings;
use crate::launcher::{Deadline, Ended, Launcher, Running};
use crate::manager::{Manager, is_in_memory, runtime_base};
use crate::part_run::PartRun;
use crate::report::{Moment, Report};
use crate::shares::{self, Series};
use crate::simulated::SimulatedGpu;
use crate::truth::{SLACK_BYTES, Seen, Watch};
use crate::way::{Limits, Way};
use crate::workers::{NO_DEVICE, Other, Probe};
use crate::{Options, PART_SECONDS, Part, frameworks, hooks, overhead, runtime, torch};

/// Allowed error of a share, in percentage points.
const SHARE_POINTS: f64 = 2.0;
/// The same for a share that is measured only for a few seconds.
const QUICK_SHARE_POINTS: f64 = 5.0;
/// A driver that does not start by then counts as hanging.
const PROBE_TIMEOUT: Duration = Duration::from_secs(180);
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
    if let Some(why) = device.unsuitable() {
        println!("There is nothing to check here: {why}.");
        return Ok(ExitCode::from(NO_DEVICE));
    }
    let others = others(&device.uuid);
    let limits = Limits::with_contexts_of(device.context_bytes);
    let device_memory_bytes_min = 2 * limits.memory_bytes;
    if device.memory_bytes < device_memory_bytes_min {
        bail!("the device has {} bytes of memory; the check needs {device_memory_bytes_min}", device.memory_bytes);
    }
    let aliquot = programs.join("aliquot");
    if !aliquot.exists() {
        bail!("{} does not exist; --programs names the directory that holds it", aliquot.display());
    }
    let manager = Manager::start(&programs.join(MANAGER), &[], "")?;
    let lead = lead()?;
    let launcher = Launcher {
        aliquot,
        socket: Some(manager.socket().to_owned()),
        limits,
        device_uuid: device.uuid.clone(),
        slice_name: None,
        environment: Vec::new(),
        deadline: Deadline::after(Duration::ZERO),
    };

    let quick = options.quick;
    let points = options.share_tolerance.unwrap_or(if quick { QUICK_SHARE_POINTS } else { SHARE_POINTS });
    let parts = wanted(&options.only, quick);
    let ends = quick.then(|| quick_ends(&parts));
    let mut report = Report::new(&options.json, &parts, &options.only, device, limits, quick, points);
    if !is_in_memory(&runtime_base()) {
        report.unseen(
            "markers that the device writes",
            format!("regions are in {}, on a disk", runtime_base().display()),
        );
    }
    report.note_others(Moment::Before, others);
    // If the file cannot be written, nobody need wait for the results.
    report.save()?;
    report.print_head();
    if !parts.contains(&Part::Hooks) && parts.iter().any(|part| part.uses_slices()) {
        let deadline = Deadline::after(Duration::from_secs(options.part_seconds));
        let mut run = PartRun::begin(Part::Hooks, Launcher { deadline, ..launcher.clone() }, &mut report);
        hooks::check_that_slices_hold(&mut run);
        run.end();
    }
    let setting = Setting { programs: &programs, quick, points, lead, cases: &options.case };
    for (index, part) in parts.into_iter().enumerate() {
        let longest = Duration::from_secs(options.part_seconds);
        let left = ends.as_ref().map_or(longest, |ends| ends[index].saturating_sub(started.elapsed()));
        let deadline = Deadline::after(longest.min(left));
        let mut run = PartRun::begin(part, Launcher { deadline, ..launcher.clone() }, &mut report);
        setting.run(part, &mut run);
        run.end();
    }
    report.note_others(Moment::After, self::others(&launcher.device_uuid));
    report.print_verdict();
    report.write()?;
    println!("All results: {}", options.json.display());
    Ok(if report.holds() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// The parts to run if `only` these were asked for, in the order of a whole or of a quick check.
fn wanted(only: &[Part], quick: bool) -> Vec<Part> {
    let is_wanted = |part: &Part| match only {
        [] => !part.is_extra(),
        // The simulated GPU's shares are compared with the device's.
        only => only.contains(part) || (*part == Part::Shares && only.contains(&Part::Simulated)),
    };
    let order = || Part::QUICK.map(|(part, _)| part);
    let parts = if quick { order().to_vec() } else { Part::value_variants().to_vec() };
    parts.into_iter().filter(is_wanted).collect()
}

/// When each of `parts` of a quick check must have ended, after its begin: each has its portion of the whole time.
fn quick_ends(parts: &[Part]) -> Vec<Duration> {
    let portion = |part: &Part| Part::QUICK.iter().find(|(of, _)| of == part).map_or(0, |(_, portion)| *portion);
    let whole: u32 = parts.iter().map(portion).sum();
    let mut until = 0;
    let mut end = |part| {
        until += portion(part);
        Duration::from_secs(PART_SECONDS) * until / whole.max(1)
    };
    parts.iter().map(&mut end).collect()
}

/// What parts need to know.
struct Setting<'a> {
    /// The directory of the programs and scripts.
    programs: &'a Path,
    quick: bool,
    /// Allowed error of shares in percentage points.
    points: f64,
    /// The time that a worker takes to open its device.
    lead: Duration,
    /// The wanted conformance cases; empty: all.
    cases: &'a [String],
}

impl Setting<'_> {
    fn run(&self, part: Part, run: &mut PartRun) {
        let &Setting { programs, quick, points, lead, cases } = self;
        match part {
            Part::Facts => facts(run),
            Part::Conformance => conformance(run, cases),
            Part::Overhead => run.report.overhead = Some(overhead::compare(run, if quick { 1 } else { 7 })),
            Part::Shares => shares(run, &Series::new(quick, lead, points)),
            Part::Simulated => {
                if let Err(error) = simulated(run, programs, &Series::new(quick, lead, points)) {
                    run.fails("the same shares on a simulated GPU", &error);
                }
            }
            Part::Neighbours => {
                shares::neighbours::measure(run, quick, lead);
                shares::leases::measure(run, &programs.join(MANAGER), quick, lead);
            }
            Part::Deaths => deaths(run),
            Part::Hooks => hooks::check(run),
            Part::Runtime => runtime::check(run, programs, quick, points),
            Part::Torch => torch::check(run, programs, quick, points),
            Part::Frameworks => frameworks::check(run, programs),
        }
    }
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

/// A worker's findings, or a failure if it could not be run or has found nothing.
fn ran(outcome: anyhow::Result<Findings>) -> Findings {
    let failed = |reason: String| {
        let mut findings = Findings::default();
        findings.expect("it runs to its end", false, reason);
        findings
    };
    match outcome {
        Ok(findings) if findings.is_empty() => failed("it has looked at nothing".to_owned()),
        Ok(findings) => findings,
        Err(error) => failed(format!("{error:#}")),
    }
}

/// Determines all facts about the driver.
fn facts(run: &mut PartRun) {
    for case in FACTS {
        if run.begins(case.about) {
            let findings = ran(run.launcher.run(None, &["fact", case.name]));
            run.add(case.name, Way::Bare, findings);
        }
    }
}

/// Runs the cases with killed processes, without a slice, in one that holds the whole device, and in two.
fn deaths(run: &mut PartRun) {
    for case in DEATHS {
        for way in [Way::Bare, Way::Unlimited] {
            if run.begins(&format!("{}, {way}", case.about)) {
                let share = way.share(&run.launcher.limits);
                let findings = ran(run.launcher.run(share.as_ref(), &["death", case.name]));
                run.add(case.name, way, findings);
            }
        }
    }
    deaths::between_slices(run);
}

/// Measures shares on the device.
fn shares(run: &mut PartRun, series: &Series) {
    run.report.shares = Some(Vec::new());
    let launcher = run.launcher.clone();
    series.measure(run, &launcher, |run, measured| {
        run.report.shares = Some(shares::compare(measured.to_vec(), &[]));
    });
}

/// Measures the same shares on the simulated GPU, if its libraries are there.
fn simulated(run: &mut PartRun, programs: &Path, series: &Series) -> anyhow::Result<()> {
    let Some(gpu) = SimulatedGpu::set_up(programs)? else {
        eprintln!("no simulated GPU to compare with lies beside the programs");
        return Ok(());
    };
    let environment = gpu.environment();
    let manager = Manager::start(&programs.join(MANAGER), &environment, "")?;
    let socket = Some(manager.socket().to_owned());
    let launcher = Launcher { socket, device_uuid: gpu.uuid(), environment, ..run.launcher.clone() };
    let mut simulated = Vec::new();
    series.measure(run, &launcher, |_, measured| simulated = measured.to_vec());
    let on_device = run.report.shares.take().unwrap_or_default();
    let on_device = on_device.into_iter().map(|compared| compared.measured).collect();
    run.report.shares = Some(shares::compare(on_device, &simulated));
    Ok(())
}

fn own_directory() -> anyhow::Result<PathBuf> {
    let own = std::env::current_exe().context("cannot find the path of this program")?;
    Ok(own.parent().unwrap_or(Path::new(".")).to_owned())
}

/// The device that is checked: the first that a program sees. `None` if there is none.
fn probe() -> anyhow::Result<Option<Probe>> {
    let mut command = Command::new(std::env::current_exe()?);
    command.args(["worker", "probe"]);
    let Ended { status, said, complained, .. } = Running::start(command, Deadline::after(PROBE_TIMEOUT))?.ended()?;
    if !complained.is_empty() {
        eprintln!("{complained}");
    }
    match status.code() {
        Some(0) => Ok(Some(serde_json::from_str(&said)?)),
        Some(code) if code == i32::from(NO_DEVICE) => Ok(None),
        _ => bail!("looking for a device ended with {status}"),
    }
}

/// How long before its beginning a worker must be started: the time that it takes to open its device, with a margin for
/// `aliquot run`. To be asked while the node manager runs: the first program that uses the driver waits longer, until the
/// driver has made the device ready.
fn lead() -> anyhow::Result<Duration> {
    let started = Instant::now();
    probe()?.context("the device is not there any more")?;
    Ok(started.elapsed() * 3 + Duration::from_secs(2))
}

/// The processes on the device, while none of the check's is there.
fn others(uuid: &str) -> anyhow::Result<Vec<Other>> {
    let mut command = Command::new(std::env::current_exe()?);
    command.args(["worker", "others", uuid]);
    Running::start(command, Deadline::after(PROBE_TIMEOUT))?.answer()
}

/// Runs every case, or only the named ones, in every way, and one case without a node manager.
fn conformance(run: &mut PartRun, only: &[String]) {
    let is_wanted = |name: &str| only.is_empty() || only.iter().any(|only| only == name);
    let mut bare_of_without = None;
    for case in CASES.iter().filter(|case| is_wanted(case.name)) {
        let mut bare = None;
        for way in Way::ALL {
            if !run.begins(&format!("{}, {way}", case.about)) {
                continue;
            }
            let findings = run_case(&run.launcher, case.name, way, bare.as_ref());
            if way == Way::Bare {
                bare = Some(findings.clone());
            }
            run.add(case.name, way, findings);
        }
        if case.name == CASE_WITHOUT_MANAGER {
            bare_of_without = bare;
        }
    }
    let without = format!("{CASE_WITHOUT_MANAGER}, without a manager");
    if is_wanted(CASE_WITHOUT_MANAGER) && run.begins(&without) {
        let alone = Launcher { socket: None, ..run.launcher.clone() };
        let findings = run_case(&alone, CASE_WITHOUT_MANAGER, Way::Limited, bare_of_without.as_ref());
        run.add(&without, Way::Limited, findings);
    }
}

/// Runs a case, and compares it with what was found without a slice, if that is known. For a limited slice, the device's
/// memory is watched from outside.
fn run_case(launcher: &Launcher, name: &str, way: Way, bare: Option<&Findings>) -> Findings {
    let watch = (way == Way::Limited).then(|| Watch::begin(launcher));
    let (share, limits) = (way.share(&launcher.limits), launcher.limits.args());
    let way = way.to_string();
    let mut args = vec!["case", name, "--way", &way];
    args.extend(limits.iter().map(String::as_str));
    let mut findings = ran(launcher.run(share.as_ref(), &args));
    if let Some(bare) = bare {
        findings.compare(bare);
    }
    if let Some(watch) = watch {
        note_what_was_taken(&mut findings, launcher.limits.memory_bytes, watch.and_then(Watch::end));
    }
    findings
}

/// Judges the slice's memory by the driver's figures.
fn note_what_was_taken(findings: &mut Findings, limit_bytes: u64, seen: anyhow::Result<Seen>) {
    const WHAT: &str = "by the driver the slice took no more of the device than it has";
    match seen {
        Err(error) => findings.expect(WHAT, false, format!("the watch has failed: {error:#}")),
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_quick_check_has_every_part_and_ends_within_ten_minutes() {
        let (mut whole, mut quick) = (wanted(&[], false), wanted(&[], true));
        let ends = quick_ends(&quick);
        assert!(ends.is_sorted() && ends[0] > Duration::ZERO);
        assert_eq!(ends.last(), Some(&Duration::from_secs(PART_SECONDS)));
        assert_eq!(quick[0], Part::Hooks);
        // A part that is asked for alone has all the time.
        assert_eq!(quick_ends(&[Part::Overhead]), [Duration::from_secs(PART_SECONDS)]);
        let name = |part: &Part| part.name();
        whole.sort_by_key(name);
        quick.sort_by_key(name);
        assert_eq!(whole, quick);
    }
}
