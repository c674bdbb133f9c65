//! Checks the container runtimes, which give slices to containers by CDI.

use std::fs;
use std::process::{Command, Stdio};

use super::finding::Finding;
use super::manager::Manager;

/// A container tool, and the first version that supports CDI.
struct Tool {
    program: &'static str,
    cdi_since: (u32, u32),
    remedy: &'static str,
}

const TOOLS: [Tool; 4] = [
    Tool { program: "podman", cdi_since: (4, 1), remedy: "4.1 or later gives slices to containers" },
    Tool {
        program: "docker",
        cdi_since: (28, 3),
        remedy: "28.3 or later gives slices to containers; from 25 with \"features\": {\"cdi\": true} in /etc/docker/daemon.json",
    },
    Tool {
        program: "containerd",
        cdi_since: (1, 7),
        remedy: "1.7 or later gives slices to containers (1.7: with enable_cdi = true)",
    },
    Tool { program: "nerdctl", cdi_since: (2, 0), remedy: "2.0 or later gives slices to containers" },
];

/// Directories in which runtimes look for CDI devices.
const CDI_DIRS: [&str; 2] = ["/etc/cdi", "/var/run/cdi"];

const CDI: &str = "CDI";

/// Findings about containers. In a pod, kubelet's runtime gives slices to containers, and it cannot be seen from here.
pub(super) fn findings(manager: &Manager, in_pod: bool) -> Vec<Finding> {
    let mut findings: Vec<Finding> = TOOLS.iter().filter(|_| !in_pod).filter_map(tool).collect();
    if findings.is_empty() && !in_pod {
        let remedy =
            "nothing to do if slices are only used by aliquot run; else install podman 4.1 or docker 28.3 or later";
        return vec![Finding::warn("containers", "no container runtime found", remedy)];
    }
    findings.push(match manager.node() {
        // A manager of another version does not report where it publishes.
        Some(node) if !node.runtime_dir.is_empty() => cdi_directory_of(&node.cdi_dir),
        _ => cdi_directories(&CDI_DIRS),
    });
    findings
}

/// The finding about one tool; `None` if it is not installed.
fn tool(tool: &Tool) -> Option<Finding> {
    let output =
        Command::new(tool.program).arg("--version").stdin(Stdio::null()).stderr(Stdio::null()).output().ok()?;
    let said = String::from_utf8_lossy(&output.stdout);
    let said = said.lines().next().unwrap_or_default();
    Some(match version(said) {
        Some(found) if found >= tool.cdi_since => Finding::ok(tool.program, said),
        Some(_) => Finding::warn(tool.program, said, tool.remedy),
        None => Finding::warn(tool.program, "does not tell its version", tool.remedy),
    })
}

/// The first version in a line such as `podman version 4.3.1`.
fn version(line: &str) -> Option<(u32, u32)> {
    line.split([' ', ',']).find_map(|word| {
        let mut numbers = word.trim_start_matches('v').split(['.', '-', '+', '~']);
        Some((numbers.next()?.parse().ok()?, numbers.next()?.parse().ok()?))
    })
}

/// The finding about the directory in which the running manager publishes slices.
fn cdi_directory_of(dir: &str) -> Finding {
    const SET_DIR: &str = "set cdi_dir in the manager's configuration to one of those that the container runtimes read";
    match dir {
        "" => Finding::ok(
            CDI,
            "the manager that runs publishes no slices to containers (no cdi_dir in its configuration)",
        ),
        dir if CDI_DIRS.contains(&dir) => cdi_directories(&[dir]),
        dir => Finding::warn(CDI, format!("the manager that runs publishes slices in {dir}"), SET_DIR),
    }
}

fn cdi_directories(dirs: &[&str]) -> Finding {
    let slices: usize = dirs
        .iter()
        .filter_map(|dir| fs::read_dir(dir).ok())
        .flat_map(|entries| entries.flatten())
        .filter(|entry| entry.file_name().to_string_lossy().starts_with("aliquot.dev-slice-"))
        .count();
    let existing: Vec<_> = dirs.iter().copied().filter(|dir| fs::metadata(dir).is_ok()).collect();
    match existing.as_slice() {
        [] => Finding::ok(CDI, format!("{} will be made with the first slice", dirs.last().unwrap_or(&CDI_DIRS[1]))),
        existing => Finding::ok(CDI, format!("{}, {slices} slices published", existing.join(" and "))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_as_tools_tell_them() {
        for (line, expected) in [
            ("podman version 4.3.1", Some((4, 3))),
            ("Docker version 20.10.24+dfsg1, build 297e128", Some((20, 10))),
            ("containerd github.com/containerd/containerd v1.7.24 88bf19b", Some((1, 7))),
            ("nerdctl version 2.0.0-beta.5", Some((2, 0))),
            ("", None),
            ("podman", None),
        ] {
            assert_eq!(version(line), expected, "{line}");
        }
    }
}
