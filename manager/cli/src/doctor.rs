//! `aliquot doctor`: what works on this machine, and what to do about the rest.
//!
//! It tries things rather than looking at version numbers, where it can, and changes nothing.

mod containers;
mod driver;
mod finding;
mod kernel;
mod manager;
mod permissions;
mod shim;

use std::path::Path;
use std::process::ExitCode;

use serde_json::json;

pub(crate) use shim::probe;

use crate::args::DoctorArgs;
use crate::error::{Result, exit};
use crate::output;
use finding::{Finding, Status};

/// Looks at everything, and says what it found.
pub(crate) fn doctor(socket: Option<&Path>, args: &DoctorArgs) -> Result<ExitCode> {
    let gpu_on_bus = driver::nvidia_gpu_on_bus();
    let mut findings = driver::findings(gpu_on_bus);
    findings.push(shim::finding());
    findings.extend(kernel::findings());
    findings.extend(permissions::findings(socket));
    findings.extend(manager::findings(socket)?);
    findings.extend(containers::findings());
    match args.json {
        true => output::print_json(&json!({
            "healthy": !fails(&findings),
            "findings": findings.iter().map(Finding::json).collect::<Vec<_>>(),
        }))?,
        false => output::print(&text(&findings, gpu_on_bus, output::stdout_has_colours()))?,
    }
    Ok(if fails(&findings) { exit::FAILED.into() } else { ExitCode::SUCCESS })
}

fn fails(findings: &[Finding]) -> bool {
    findings.iter().any(|finding| finding.status == Status::Fail)
}

fn text(findings: &[Finding], gpu_on_bus: bool, colours: bool) -> String {
    let mut text = String::new();
    let width = findings.iter().map(|finding| finding.what.chars().count()).max().unwrap_or(0);
    for finding in findings {
        text.push_str(&finding.text(width, colours));
    }
    let count = |status| findings.iter().filter(|finding| finding.status == status).count();
    text.push_str(&match (count(Status::Fail), count(Status::Warn)) {
        (0, 0) => "\nEverything works.\n".to_owned(),
        (0, warnings) => format!("\nNothing is broken; {warnings} to look at.\n"),
        (failures, warnings) => format!("\n{failures} broken, {warnings} to look at.\n"),
    });
    if !gpu_on_bus {
        text.push_str("This machine has no NVIDIA GPU. Everything can be tried on a simulated one:\n");
        text.push_str("  aliquot demo\n  aliquot run --simulated --gpu-core 30 --gpu-memory 4GiB -- CMD\n");
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_remedy_stands_below_the_finding() {
        let findings = [
            Finding::ok("glibc", "2.36"),
            Finding::fail("shim", "cannot be loaded", "remount it"),
            Finding::warn("MPS", "runs", "stop it"),
        ];
        assert_eq!(
            text(&findings, true, false),
            "ok    glibc  2.36\n\
             FAIL  shim   cannot be loaded\n             \
                          → remount it\n\
             warn  MPS    runs\n             \
                          → stop it\n\
             \n1 broken, 1 to look at.\n"
        );
    }

    #[test]
    fn a_machine_without_a_gpu_is_shown_the_way() {
        let text = text(&driver::findings_without_gpu("dlopen failed"), false, false);
        assert!(text.contains("aliquot demo") && !text.contains("FAIL"), "{text}");
    }
}
