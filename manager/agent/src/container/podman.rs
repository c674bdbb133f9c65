//! The podman of this node: whether it can safely run images of strangers, whether it finds slices, and the variables
//! that it gets.

use std::env;
use std::time::Duration;

use tokio::process::Command;

use crate::settings::Settings;

/// How long podman may take to describe itself.
const INFO_TIMEOUT: Duration = Duration::from_secs(30);
/// The directories where podman looks for CDI devices.
const CDI_DIRS: [&str; 3] = ["/etc/cdi", "/var/run/cdi", "/run/cdi"];
/// The manager's variables that are passed on to podman. One of the others would make podman speak to systemd in the
/// manager's name.
const PODMAN_VARIABLES: [&str; 10] = [
    "PATH",
    "HOME",
    "TMPDIR",
    "XDG_RUNTIME_DIR",
    "XDG_CONFIG_HOME",
    "XDG_DATA_HOME",
    "REGISTRY_AUTH_FILE",
    "HTTP_PROXY",
    "HTTPS_PROXY",
    "NO_PROXY",
];

/// Returns an error if this node cannot run images.
pub(crate) async fn check(settings: &Settings) -> Result<(), String> {
    let (program, options) = settings.podman.split_first().ok_or("cluster.podman is not set")?;
    let mut command = Command::new(program);
    command.args(options).args(["info", "--format", "{{.Version.Version}} {{.Host.OCIRuntime.Name}}"]);
    let output = tokio::time::timeout(INFO_TIMEOUT, command.kill_on_drop(true).output()).await;
    let output = output.map_err(|_| format!("{program} does not answer"))?;
    let output = output.map_err(|error| format!("cannot run {program}: {error}"))?;
    if !output.status.success() {
        return Err(format!("{program} fails: {}", String::from_utf8_lossy(&output.stderr).trim_end()));
    }
    is_safe(String::from_utf8_lossy(&output.stdout).trim())
}

/// Whether a podman with this description of itself (its version and its runtime) can run images of strangers safely.
///
/// Up to 4.5.0 podman hands an image's annotations to the runtime, and crun lets some of them write files as root
/// (containers/podman, pull request 18542). 4.7 reads quotes in a file of variables, so a value could hide the
/// variables below it (issue 19565).
fn is_safe(said: &str) -> Result<(), String> {
    let (version, runtime) = said.split_once(' ').unwrap_or((said, ""));
    let mut numbers = version.split(['.', '-']).map(|number| number.parse::<u32>().ok());
    let (Some(Some(major)), Some(Some(minor))) = (numbers.next(), numbers.next()) else {
        return Err(format!("podman reports {said:?}, which is not a version"));
    };
    if (major, minor) < (4, 1) || (runtime != "runc" && (major, minor) < (4, 6)) || (major, minor) == (4, 7) {
        return Err(format!(
            "podman {version} with the runtime {runtime:?} is not safe for images of others; use 4.6, 4.8 or later, or the \
             runtime runc with 4.1 or later"
        ));
    }
    Ok(())
}

/// Whether podman finds slices that are published in this directory.
pub(crate) fn finds_slices_in(cdi_dir: &str) -> bool {
    CDI_DIRS.contains(&cdi_dir.trim_end_matches('/'))
}

/// The variables for podman, taken from this process, which are an administrator's. The job's variables must not reach
/// podman itself: with some of them a user could make it run other programs.
pub(super) fn environment() -> Vec<(String, String)> {
    let text = |(name, value): (std::ffi::OsString, std::ffi::OsString)| {
        Some((name.into_string().ok()?, value.into_string().ok()?))
    };
    let is_for_podman = |name: &str| {
        name.starts_with("CONTAINERS_") || PODMAN_VARIABLES.iter().any(|known| known.eq_ignore_ascii_case(name))
    };
    env::vars_os().filter_map(text).filter(|(name, _)| is_for_podman(name)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unsafe_versions_of_podman_are_refused() {
        for safe in ["4.3.1 runc", "4.6.0 crun", "4.9.3 crun", "5.2.1-dev crun"] {
            assert_eq!(is_safe(safe), Ok(()), "{safe}");
        }
        for unsafe_ in
            ["4.3.1 crun", "4.5.0 crun", "4.7.2 crun", "4.7.0 runc", "4.0.3 runc", "3.4.4 runc", "", "podman"]
        {
            assert!(is_safe(unsafe_).is_err(), "{unsafe_}");
        }
    }
}
