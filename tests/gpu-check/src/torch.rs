//! PyTorch, where it is installed: a training loop, the memory cap, CUDA graphs.

use std::collections::BTreeMap;
use std::path::Path;
use std::process::{Command, Stdio};

use serde::{Deserialize, Serialize};

use crate::findings::Findings;
use crate::launcher::{Launcher, Running};
use crate::way::{LIMITED_CORE_PERCENT, Share, Way};

/// The script that does the work, beside the programs.
const SCRIPT: &str = "check_torch.py";
/// Memory of the limited slice at most. PyTorch's libraries alone take hundreds of megabytes of a device.
const LIMITED_MEMORY_BYTES_MAX: u64 = 8 << 30;

/// What was found out with PyTorch.
#[derive(Clone, Debug, Default, Serialize)]
pub(crate) struct Torch {
    /// Why it was not used; empty: it was.
    pub(crate) skipped: String,
    /// What it found, by way.
    pub(crate) ways: BTreeMap<Way, Run>,
    /// Training steps in the limited slice, in percent of those without; absent if they were not counted.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) limited_percent: Option<f64>,
    /// The same of steps that are CUDA graphs.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) limited_graph_percent: Option<f64>,
}

/// What the script says.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Run {
    /// What it found.
    #[serde(flatten)]
    pub(crate) findings: Findings,
    /// Training steps in a second.
    pub(crate) steps_per_second: f64,
    /// Training steps in a second, each launched as one CUDA graph.
    pub(crate) graph_steps_per_second: f64,
}

/// Runs the script in each way.
pub(crate) fn check(launcher: &Launcher, programs: &Path, memory_bytes: u64, quick: bool) -> Torch {
    let script = programs.join(SCRIPT);
    if let Err(why) = usable(&script) {
        return Torch { skipped: why, ..Torch::default() };
    }
    let mut torch = Torch::default();
    for way in Way::ALL {
        let share = match way {
            Way::Limited => Some(Share::new(LIMITED_CORE_PERCENT, LIMITED_MEMORY_BYTES_MAX.min(memory_bytes / 2))),
            _ => way.share(),
        };
        let (name, seconds) = (way.to_string(), if quick { "2" } else { "10" });
        let args = [script.to_string_lossy().into_owned(), name, seconds.to_owned()];
        let args: Vec<&str> = args.iter().map(String::as_str).collect();
        let ran =
            Running::start(launcher.command(share.as_ref(), Path::new("python3"), &args)).and_then(Running::answer);
        let mut run: Run = ran.unwrap_or_else(|error| {
            let mut findings = Findings::default();
            findings.expect("the script runs to its end", false, format!("{error:#}"));
            Run { findings, steps_per_second: 0.0, graph_steps_per_second: 0.0 }
        });
        if let Some(bare) = torch.ways.get(&Way::Bare) {
            run.findings.compare(&bare.findings);
        }
        torch.ways.insert(way, run);
    }
    let limited_percent = |rate: fn(&Run) -> f64| {
        let [bare, limited] = [Way::Bare, Way::Limited].map(|way| torch.ways.get(&way).map_or(0.0, rate));
        (bare > 0.0 && limited > 0.0).then(|| limited / bare * 100.0)
    };
    let percents = (limited_percent(|run| run.steps_per_second), limited_percent(|run| run.graph_steps_per_second));
    (torch.limited_percent, torch.limited_graph_percent) = percents;
    torch
}

/// Whether there is a PyTorch that can use the device.
fn usable(script: &Path) -> Result<(), String> {
    if !script.exists() {
        return Err(format!("{} does not exist", script.display()));
    }
    let mut python = Command::new("python3");
    python.args(["-c", "import torch; raise SystemExit(0 if torch.cuda.is_available() else 3)"]);
    match python.stdout(Stdio::null()).stderr(Stdio::null()).status() {
        Err(_) => Err("python3 is not installed".to_owned()),
        Ok(status) if status.success() => Ok(()),
        Ok(status) if status.code() == Some(3) => Err("PyTorch cannot use the device".to_owned()),
        Ok(_) => Err("PyTorch is not installed".to_owned()),
    }
}
