//! `aliquot doctor`: checks this machine, and suggests a remedy for each fault.
//!
//! Where possible it tries a feature instead of comparing version numbers. It changes nothing.

mod containers;
mod device_memory;
mod driver;
mod finding;
mod kernel;
mod manager;
mod permissions;
mod selinux;
mod shim;

use std::env;
use std::path::Path;
use std::process::ExitCode;

use serde_json::json;

pub(crate) use shim::probe;

use crate::args::DoctorArgs;
use crate::error::{Result, exit};
use crate::{output, simulated};
use driver::Gpus;
use finding::{Finding, Status};
use manager::Manager;

/// Runs all checks, and prints the findings.
pub(crate) fn doctor(socket: Option<&Path>, args: &DoctorArgs) -> Result<ExitCode> {
    let manager = Manager::ask(socket)?;
    let in_pod = is_in_pod();
    let (gpus, mut findings) = driver::findings(&manager, in_pod);
    findings.push(shim::finding());
    findings.extend(device_memory::findings(Path::new("/")));
    findings.extend(kernel::findings());
    findings.extend(permissions::findings(&manager));
    findings.extend(manager.findings());
    findings.extend(manager.cluster());
    findings.extend(containers::findings(&manager, in_pod));
    match args.json {
        true => output::print_json(&json!({
            "healthy": !fails(&findings),
            "findings": findings.iter().map(Finding::json).collect::<Vec<_>>(),
        }))?,
        false => output::print(&text(&findings, gpus, simulated::is_to_be_had(), output::stdout_has_colours()))?,
    }
    Ok(if fails(&findings) { exit::FAILED.into() } else { ExitCode::SUCCESS })
}

/// Whether this is a container of a pod: the node's driver and container runtimes are outside of it then.
fn is_in_pod() -> bool {
    env::var_os("KUBERNETES_SERVICE_HOST").is_some_and(|host| !host.is_empty())
}

fn fails(findings: &[Finding]) -> bool {
    findings.iter().any(|finding| finding.status == Status::Fail)
}

/// The findings for people. `can_simulate`: whether commands can use a simulated GPU.
fn text(findings: &[Finding], gpus: Gpus, can_simulate: bool, colours: bool) -> String {
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
    match gpus {
        Gpus::Real => {}
        Gpus::Simulated => text.push_str("This is a simulated GPU.\n"),
        Gpus::None if !can_simulate => text.push_str(
            "This machine has no NVIDIA GPU. Everything can be tried on a simulated one: run `aliquot demo` from a \
             checkout, or install the simulated GPU's libraries (manager/README.md).\n",
        ),
        Gpus::None => {
            text.push_str("This machine has no NVIDIA GPU. Everything can be tried on a simulated one:\n");
            text.push_str("  aliquot demo\n  aliquot run --simulated --gpu-core 30 --gpu-memory 4GiB -- CMD\n");
        }
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
            text(&findings, Gpus::Real, true, false),
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
        let findings = driver::findings_without_gpu("dlopen failed");
        let nothing = text(&findings, Gpus::None, true, false);
        assert!(nothing.contains("  aliquot demo\n") && !nothing.contains("FAIL"), "{nothing}");
        let missing = text(&findings, Gpus::None, false, false);
        assert!(missing.contains("from a checkout") && !missing.contains("  aliquot demo\n"), "{missing}");
        let simulated = text(&[Finding::ok("GPU 0", "Simulated GPU")], Gpus::Simulated, true, false);
        assert!(simulated.contains("simulated GPU") && !simulated.contains("has no NVIDIA GPU"), "{simulated}");
    }
}
