//! PyTorch, if it is installed: a training loop, the memory cap, CUDA graphs.

use std::collections::BTreeMap;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::findings::Findings;
use crate::launcher::Launcher;
use crate::part_run::PartRun;
use crate::way::{Share, Way};

/// The script that does the work, in the programs' directory.
const SCRIPT: &str = "check_torch.py";
/// A script that has not ended by then counts as hanging. To compile the first models alone can take a minute.
const SCRIPT_TIMEOUT: Duration = Duration::from_secs(300);
/// Maximum memory of the limited slice. PyTorch's libraries alone take hundreds of megabytes of device memory.
const LIMITED_MEMORY_BYTES_MAX: u64 = 8 << 30;

/// The results with PyTorch.
#[derive(Clone, Debug, Default, Serialize)]
pub(crate) struct Torch {
    /// Why it was not used; empty if it was used.
    pub(crate) skipped: String,
    /// The results by way.
    pub(crate) ways: BTreeMap<Way, Run>,
    /// Work done in the limited slice, in percent of the work without a slice; absent if it was not counted.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) limited_percent: Option<Rates>,
}

/// Rates of several kinds of work, or such rates in percent of others.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
pub(crate) struct Rates {
    /// Training steps per second, launched kernel by kernel.
    #[serde(rename = "steps_per_second")]
    pub(crate) steps: f64,
    /// Training steps per second, each launched as one CUDA graph.
    #[serde(rename = "graph_steps_per_second")]
    pub(crate) graph_steps: f64,
    /// Sums over much memory per second. They keep the device busy without reaching its power limit.
    #[serde(rename = "sweeps_per_second")]
    pub(crate) sweeps: f64,
    /// Blocks of memory per second that a second stream uses (`record_stream`): the allocator polls events for them.
    #[serde(rename = "shared_blocks_per_second")]
    pub(crate) shared_blocks: f64,
}

/// The script's output.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Run {
    /// Its findings.
    #[serde(flatten)]
    pub(crate) findings: Findings,
    /// Its rates.
    #[serde(flatten)]
    pub(crate) rates: Rates,
}

/// Runs the script in each way. In the limited slice the work must be the slice's share, with an error of at most
/// `points`.
pub(crate) fn check(run: &mut PartRun, programs: &Path, quick: bool, points: f64) {
    let (script, launcher) = (programs.join(SCRIPT), run.launcher.clone());
    match missing(&launcher, &script) {
        Ok(None) => {}
        Ok(Some(why)) => {
            run.report.torch = Some(Torch { skipped: why, ..Torch::default() });
            return;
        }
        Err(error) => {
            run.fails("whether PyTorch can use the device", &error);
            return;
        }
    }
    let limit_bytes = LIMITED_MEMORY_BYTES_MAX.min(run.report.device.memory_bytes / 2);
    let mut torch = Torch::default();
    for way in Way::ALL {
        if !run.begins(&way.to_string()) {
            continue;
        }
        let share = match way {
            Way::Limited => Some(Share::new(launcher.limits.core_percent, limit_bytes)),
            _ => way.share(&launcher.limits),
        };
        let (name, seconds) = (way.to_string(), if quick { "2" } else { "10" });
        let args = [script.to_string_lossy().into_owned(), name, seconds.to_owned(), limit_bytes.to_string()];
        let args: Vec<&str> = args.iter().map(String::as_str).collect();
        let command = launcher.command(share.as_ref(), Path::new("python3"), &args);
        let ran = launcher.start_command(command).and_then(|script| script.within(SCRIPT_TIMEOUT).answer());
        let mut got: Run = ran.unwrap_or_else(|error| {
            let mut findings = Findings::default();
            findings.expect("the script runs to its end", false, format!("{error:#}"));
            Run { findings, rates: Rates::default() }
        });
        if let Some(bare) = torch.ways.get(&Way::Bare) {
            got.findings.excuse_like(&bare.findings);
            got.findings.compare(&bare.findings);
        } else if way == Way::Bare && !launcher.deadline.has_passed() {
            // What was ended at the part's deadline did not fail for its own reasons.
            got.findings.excuse();
        }
        let does_run = way != Way::Bare || got.findings.has_looked();
        torch.ways.insert(way, got);
        run.report.torch = Some(torch.clone());
        run.save();
        if !does_run {
            break;
        }
    }
    judge_share(&mut torch, f64::from(launcher.limits.core_percent), points);
    run.report.torch = Some(torch);
}

/// Judges work that keeps the device busy without reaching its power limit: it must get exactly the slice's share. Steps
/// that the host launches kernel by kernel are not judged, because without a slice, too, the device waits for the host.
/// Steps as CUDA graphs are not judged, because at its power limit the device slows its clock down: a slice that rests
/// half of the time then gets more than half of the steps done.
fn judge_share(torch: &mut Torch, wanted_percent: f64, points: f64) {
    let rates = |way| torch.ways.get(&way).map(|run| run.rates).unwrap_or_default();
    let (bare, limited) = (rates(Way::Bare), rates(Way::Limited));
    let percent = |rate: fn(&Rates) -> f64| rate(&limited) / rate(&bare) * 100.0;
    let percents = Rates {
        steps: percent(|rates| rates.steps),
        graph_steps: percent(|rates| rates.graph_steps),
        sweeps: percent(|rates| rates.sweeps),
        shared_blocks: percent(|rates| rates.shared_blocks),
    };
    let Some(run) = torch.ways.get_mut(&Way::Limited) else { return };
    let percent = percents.sweeps;
    run.findings.expect(
        "sums over much memory get the slice's share",
        (percent - wanted_percent).abs() <= points,
        format!("{percent:.1} % of what is done without a slice, which has {wanted_percent:.0} %"),
    );
    torch.limited_percent = Some(percents);
}

/// What is missing for a PyTorch that can use the device; `None` if nothing is. An installed PyTorch that cannot be
/// imported, or hangs, is an error.
fn missing(launcher: &Launcher, script: &Path) -> anyhow::Result<Option<String>> {
    const ASK: &str = "import importlib.util, json
if importlib.util.find_spec('torch') is None:
    print(json.dumps('PyTorch is not installed'))
else:
    import torch
    print(json.dumps('' if torch.cuda.is_available() else 'PyTorch cannot use the device'))";
    if !script.exists() {
        return Ok(Some(format!("{} does not exist", script.display())));
    }
    let mut python = Command::new("python3");
    python.args(["-c", ASK]);
    let Some(running) = launcher.start_if_installed(python)? else {
        return Ok(Some("python3 is not installed".to_owned()));
    };
    Ok(Some(running.answer::<String>()?).filter(|missing| !missing.is_empty()))
}
