//! The check, part by part.

use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};
use std::time::{Instant, SystemTime};

use anyhow::{Context, bail};

use crate::cases::CASES;
use crate::findings::Findings;
use crate::launcher::Launcher;
use crate::manager::Manager;
use crate::overhead;
use crate::report::{CaseResult, Report};
use crate::shares::{self, Compared, Plan};
use crate::simulated::SimulatedGpu;
use crate::torch;
use crate::way::{LIMITED_MEMORY_BYTES, Share, Way};
use crate::workers::{NO_DEVICE, Probe};
use crate::{Options, Part};

/// Slices of this check need a device of at least twice the limited one.
const DEVICE_MEMORY_BYTES_MIN: u64 = 2 * LIMITED_MEMORY_BYTES;
/// The node manager, beside the other programs.
const MANAGER: &str = "aliquot-manager";
/// The case that is run once more without a node manager.
const CASE_WITHOUT_MANAGER: &str = "views";

/// Runs what `options` ask for, and reports it.
pub(crate) fn run(options: &Options) -> anyhow::Result<ExitCode> {
    let programs = match &options.programs {
        Some(dir) => dir.clone(),
        None => own_directory()?,
    };
    let started = Instant::now();
    let Some(device) = probe()? else {
        println!("There is nothing to check here: see above.");
        return Ok(ExitCode::from(NO_DEVICE));
    };
    // What a worker takes until its device is open, with room for the command line around it.
    let lead = started.elapsed() * 3 + std::time::Duration::from_secs(2);
    if device.memory_bytes < DEVICE_MEMORY_BYTES_MIN {
        bail!("the device has {} bytes of memory; the check needs {DEVICE_MEMORY_BYTES_MIN}", device.memory_bytes);
    }
    let aliquot = programs.join("aliquot");
    if !aliquot.exists() {
        bail!("{} does not exist; --programs names the directory that holds it", aliquot.display());
    }
    let manager = Manager::start(&programs.join(MANAGER), &[])?;
    let device_uuid = device.uuid.clone();
    let socket = Some(manager.socket().to_owned());
    let launcher = Launcher { aliquot, socket, device_uuid, environment: Vec::new() };

    let mut report = Report::new(device, options.quick, SystemTime::now());
    report.print_head();
    let wanted = |part| options.only.is_empty() || options.only.contains(&part);
    if wanted(Part::Conformance) {
        report.conformance = conformance(&launcher);
        report.print_conformance();
    }
    if wanted(Part::Overhead) {
        progress("overhead");
        report.overhead = Some(overhead::compare(&launcher, if options.quick { 3 } else { 7 })?);
        report.print_overhead();
    }
    if wanted(Part::Shares) {
        report.shares = Some(shares(&launcher, &programs, &Plan::new(options.quick, lead))?);
        report.print_shares();
    }
    if wanted(Part::Torch) {
        progress("PyTorch");
        report.torch = Some(torch::check(&launcher, &programs, report.device.memory_bytes, options.quick));
        report.print_torch();
    }
    report.print_verdict();
    report.write(&options.json)?;
    println!("All results: {}", options.json.display());
    Ok(if report.holds() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Measures shares on the device, and where the simulated GPU is at hand there, too.
fn shares(launcher: &Launcher, programs: &Path, plan: &Plan) -> anyhow::Result<Vec<Compared>> {
    let measured = plan.measure(launcher, |what| progress(&format!("shares: {what}")))?;
    let Some(gpu) = SimulatedGpu::set_up(programs)? else {
        progress("no simulated GPU to compare with lies beside the programs");
        return Ok(shares::compare(measured, &[]));
    };
    let environment = gpu.environment();
    let manager = Manager::start(&programs.join(MANAGER), &environment)?;
    let on_simulated = Launcher {
        aliquot: launcher.aliquot.clone(),
        socket: Some(manager.socket().to_owned()),
        device_uuid: gpu.uuid(),
        environment,
    };
    let simulated = plan.measure(&on_simulated, |what| progress(&format!("shares on the simulated GPU: {what}")))?;
    Ok(shares::compare(measured, &simulated))
}

/// Says on standard error what is being done, for whoever waits.
fn progress(what: &str) {
    eprintln!("… {what}");
}

fn own_directory() -> anyhow::Result<PathBuf> {
    let own = std::env::current_exe().context("cannot find out where this program lies")?;
    Ok(own.parent().unwrap_or(Path::new(".")).to_owned())
}

/// The device that is checked: the first that a program sees here. `None`: there is none.
fn probe() -> anyhow::Result<Option<Probe>> {
    let mut command = Command::new(std::env::current_exe()?);
    let output = command.args(["worker", "probe"]).stdin(Stdio::null()).stderr(Stdio::inherit()).output()?;
    match output.status.code() {
        Some(0) => Ok(Some(serde_json::from_slice(&output.stdout)?)),
        Some(code) if code == i32::from(NO_DEVICE) => Ok(None),
        _ => bail!("looking for a device ended with {}", output.status),
    }
}

/// Runs every case in every way, and one without a node manager.
fn conformance(launcher: &Launcher) -> Vec<CaseResult> {
    let mut results = Vec::new();
    for case in CASES {
        progress(&format!("conformance: {}", case.about));
        let mut bare = None;
        for way in Way::ALL {
            let share = way.share();
            let mut findings = run_case(launcher, case.name, way, share.as_ref());
            match &bare {
                None => bare = Some(findings.clone()),
                Some(bare) => findings.compare(bare),
            }
            results.push(CaseResult { case: case.name.to_owned(), way, findings });
        }
    }
    let alone = Launcher {
        socket: None,
        aliquot: launcher.aliquot.clone(),
        device_uuid: launcher.device_uuid.clone(),
        environment: Vec::new(),
    };
    let findings = run_case(&alone, CASE_WITHOUT_MANAGER, Way::Limited, Way::Limited.share().as_ref());
    let case = format!("{CASE_WITHOUT_MANAGER}, without a manager");
    results.push(CaseResult { case, way: Way::Limited, findings });
    results
}

fn run_case(launcher: &Launcher, name: &str, way: Way, share: Option<&Share>) -> Findings {
    launcher.run(share, &["case", name, "--way", &way.to_string()]).unwrap_or_else(|error| {
        let mut findings = Findings::default();
        findings.expect("the case runs to its end", false, format!("{error:#}"));
        findings
    })
}
