//! Jobs with an image: how podman runs them.
//!
//! Podman runs as the user of the node manager, and the processes in the container are the job's user's: with that user's
//! rights and no others, whatever the image contains. So a container reads and writes what its user may, of the
//! directories that the node permits.
//!
//! Docker is not used: its containers are children of its daemon, and would outlive the supervisor that holds the end of
//! the lease.

use std::collections::BTreeMap;
use std::env;
use std::fmt;
use std::path::Path;
use std::time::Duration;

use aliquot_proto::agent::v1::{Image, Mount, Process};
use nix::unistd::geteuid;
use tokio::process::Command;
use tracing::{debug, warn};

use crate::settings::Settings;
use crate::slice_environment::NVIDIA_VISIBLE_DEVICES;
use crate::supervise::{Credentials, LaunchSpec, VARIABLES_FILE};
use crate::users::JobUser;

/// How long podman may take to remove what is left of a container.
const REMOVE_TIMEOUT: Duration = Duration::from_secs(30);
const REMOVE_ATTEMPTS: usize = 3;

/// Whether this node has what runs images.
pub(crate) fn is_possible(settings: &Settings) -> bool {
    let Some(program) = settings.podman.first() else { return false };
    if program.contains('/') {
        return Path::new(program).is_file();
    }
    env::var_os("PATH").is_some_and(|path| env::split_paths(&path).any(|dir| dir.join(program).is_file()))
}

/// Names a container. No other process of this machine has the id of the supervisor as long as that lives.
pub(crate) struct Name {
    pub(crate) slice: String,
    pub(crate) supervisor: i32,
}

impl fmt::Display for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "aliquot-{}-{}", self.slice, self.supervisor)
    }
}

/// Makes of `spec`, which runs the command as it is, one that runs it in a container of `image`. `cdi_device` is the name
/// of its slice; without one it gets no device.
///
/// # Errors
/// Says what this node does not permit or cannot do.
pub(crate) fn contain(
    spec: LaunchSpec,
    process: &Process,
    image: &Image,
    user: &JobUser,
    settings: &Settings,
    name: &Name,
    cdi_device: Option<&str>,
) -> Result<LaunchSpec, String> {
    if settings.podman.is_empty() {
        return Err("the node runs no images: cluster.podman is empty in its manager's configuration".into());
    }
    let mut command = settings.podman.clone();
    let mut add = |words: &[&str]| command.extend(words.iter().map(|&word| word.to_owned()));
    add(&["run", "--rm", "--name", &name.to_string()]);
    add(&["--env-file", VARIABLES_FILE]);
    for words in user_options(&user.credentials) {
        add(&words.iter().map(String::as_str).collect::<Vec<_>>());
    }
    for mount in &image.mounts {
        add(&["--mount", &bind(mount, user, settings)?]);
    }
    if image.shm_bytes > 0 {
        add(&["--shm-size", &format!("{}b", image.shm_bytes)]);
    }
    if !process.work_dir.is_empty() {
        add(&["--workdir", &process.work_dir]);
    }
    if let Some(device) = cdi_device {
        add(&["--device", device]);
    }
    command.extend(settings.podman_run.iter().cloned());
    command.push("--".into());
    command.push(image.reference.clone());
    command.extend(process.command.iter().cloned());
    Ok(LaunchSpec {
        command,
        environment: podmans_environment(),
        container_variables: Some(variables(process, user, settings)?),
        work_dir: "/".into(),
        user: Credentials::of_this_process(),
        ..spec
    })
}

/// The variables of this process are an administrator's. The job's must not reach podman itself: with some of them a user
/// could have it run other programs.
fn podmans_environment() -> Vec<(String, String)> {
    let text = |(name, value): (std::ffi::OsString, std::ffi::OsString)| {
        Some((name.into_string().ok()?, value.into_string().ok()?))
    };
    env::vars_os().filter_map(text).filter(|(name, _)| name != "LD_PRELOAD").collect()
}

/// The variables of the container, a line each.
fn variables(process: &Process, user: &JobUser, settings: &Settings) -> Result<String, String> {
    let mut variables: BTreeMap<&str, &str> = BTreeMap::from([("USER", user.name.as_str()), ("LOGNAME", &user.name)]);
    let text = |(name, value): (&'static str, &'static str)| (name, value);
    variables.extend(settings.environment.iter().map(|(name, value)| (name.as_str(), value.as_str())));
    variables.extend(process.environment.iter().map(|(name, value)| (name.as_str(), value.as_str())));
    // Images for NVIDIA's own runtime ask for all devices.
    variables.extend([(NVIDIA_VISIBLE_DEVICES, "void")].map(text));
    let mut lines = String::new();
    for (name, value) in variables {
        if name.is_empty()
            || name.contains(|c: char| !c.is_ascii_alphanumeric() && c != '_')
            || value.contains(['\n', '\r'])
        {
            return Err(format!(
                "the variable {name:?} cannot be handed to a container: its name or value has other than plain characters"
            ));
        }
        lines += &format!("{name}={value}\n");
    }
    Ok(lines)
}

/// Whose processes those in the container are, and that they get no other rights.
fn user_options(user: &Credentials) -> Vec<Vec<String>> {
    let words = |words: &[&str]| words.iter().map(|&word| word.to_owned()).collect::<Vec<_>>();
    let mut options = vec![words(&["--user", &format!("{}:{}", user.uid, user.gid)])];
    options.push(words(&["--security-opt", "no-new-privileges"]));
    if !geteuid().is_root() {
        options.push(words(&["--userns", "keep-id"]));
        return options;
    }
    options.extend(user.groups.iter().map(|group| words(&["--group-add", &group.to_string()])));
    // Root's jobs are only where an administrator permits them.
    if user.uid != 0 {
        options.push(words(&["--cap-drop", "all"]));
    }
    options
}

/// A mount as podman takes it. Only the named directories themselves can be mounted: what is below them could be replaced
/// by a link between a look at it and the mount.
fn bind(mount: &Mount, user: &JobUser, settings: &Settings) -> Result<String, String> {
    let home = user.home.to_string_lossy();
    let resolve =
        |path: &str| if path == "~" { home.clone().into_owned() } else { path.trim_end_matches('/').to_owned() };
    let source = resolve(&mount.source);
    if !settings.mounts.iter().any(|permitted| resolve(permitted) == source) {
        let permitted = match settings.mounts.is_empty() {
            true => "none can be".to_owned(),
            false => format!("these can be: {}", settings.mounts.join(", ")),
        };
        return Err(format!(
            "{source:?} cannot be mounted on this node, {permitted}; see cluster.mounts of its manager"
        ));
    }
    if !Path::new(&source).is_dir() {
        return Err(format!("{source:?} is to be mounted, and is no directory of this node"));
    }
    let target = if mount.target.is_empty() { &source } else { &mount.target };
    let mut text = format!("type=bind,source={source},target={target}");
    if mount.read_only {
        text += ",readonly";
    }
    Ok(text)
}

impl Name {
    /// Removes what is left of the container. Podman does so itself when a container ends, but not if podman was killed.
    pub(crate) async fn remove(&self, settings: &Settings) {
        let Some((program, options)) = settings.podman.split_first() else { return };
        let name = self.to_string();
        // Where podman and its monitor were killed, the first call fails: it finds a container that runs, and nothing to
        // stop. It notes that, and the next one removes the container.
        for _ in 0..REMOVE_ATTEMPTS {
            let mut command = Command::new(program);
            command.args(options).args(["rm", "--force", "--ignore", "--time", "0", &name]).kill_on_drop(true);
            match tokio::time::timeout(REMOVE_TIMEOUT, command.output()).await {
                Ok(Ok(output)) if output.status.success() => return,
                Ok(Ok(output)) => {
                    let error = String::from_utf8_lossy(&output.stderr);
                    debug!(name, error = error.trim_end(), "podman has not removed a job's container");
                }
                Ok(Err(error)) => debug!(name, %error, "cannot run podman to remove a job's container"),
                Err(_) => debug!(name, "podman does not answer"),
            }
        }
        warn!(name, "a job's container may still be there; see what podman says: podman rm --force {name}");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn user(uid: u32) -> JobUser {
        JobUser {
            credentials: Credentials { uid, gid: 8, groups: vec![8, 9] },
            name: "ada".into(),
            home: "/tmp".into(),
            shell: "/bin/sh".into(),
        }
    }

    fn settings(text: &str) -> Settings {
        toml::from_str(text).unwrap()
    }

    fn contained(process: &Process, image: &Image, settings: &Settings) -> Result<LaunchSpec, String> {
        let spec = LaunchSpec {
            command: process.command.clone(),
            environment: vec![("LD_PRELOAD".into(), "/home/ada/evil.so".into())],
            container_variables: None,
            work_dir: "/home/ada".into(),
            user: user(7).credentials,
            time_limit_ms: 0,
            grace_ms: 0,
            lease_file: "/lease".into(),
            log_dir: "/log".into(),
            log_bytes_max: 0,
            agent_socket: "/agent".into(),
        };
        let name = Name { slice: "job-1-2".into(), supervisor: 3 };
        contain(spec, process, image, &user(7), settings, &name, Some("aliquot.dev/slice=job-1-2"))
    }

    fn process() -> Process {
        Process {
            command: vec!["train".into(), "--privileged".into()],
            environment: [("LD_PRELOAD".to_owned(), "/x.so".to_owned()), ("TOKEN".to_owned(), "secret".to_owned())]
                .into(),
            ..Process::default()
        }
    }

    #[test]
    fn what_a_user_says_reaches_the_container_and_not_podman() {
        let image = Image { reference: "debian:12".into(), shm_bytes: 5, ..Image::default() };
        let spec = contained(&process(), &image, &settings("podman_run = ['--network', 'none']")).unwrap();
        let line = spec.command.join(" ");
        assert!(line.starts_with("podman run --rm --name aliquot-job-1-2-3 --env-file "), "{line}");
        assert!(
            line.contains("--user 7:8") && line.contains("--shm-size 5b") && line.contains("no-new-privileges"),
            "{line}"
        );
        assert!(
            line.ends_with("--device aliquot.dev/slice=job-1-2 --network none -- debian:12 train --privileged"),
            "{line}"
        );
        assert!(!line.contains("secret"), "every user of the machine can read it: {line}");
        assert!(spec.environment.iter().all(|(name, _)| name != "LD_PRELOAD"), "podman runs as the manager's user");
        let variables = spec.container_variables.unwrap();
        assert!(variables.contains("TOKEN=secret\n") && variables.contains("LD_PRELOAD=/x.so\n"), "{variables}");
        assert!(variables.contains("NVIDIA_VISIBLE_DEVICES=void\n") && variables.contains("USER=ada\n"), "{variables}");
        assert_eq!(spec.user.uid, geteuid().as_raw());
    }

    #[test]
    fn only_permitted_directories_are_mounted() {
        let mount =
            |source: &str, target: &str| Mount { source: source.into(), target: target.into(), read_only: true };
        let with = |mount| Image { reference: "a".into(), mounts: vec![mount], ..Image::default() };
        let permitting = settings("mounts = ['/usr/', '~', '/nowhere']");
        let line = contained(&process(), &with(mount("/usr", "/in")), &permitting).unwrap().command.join(" ");
        assert!(line.contains("--mount type=bind,source=/usr,target=/in,readonly"), "{line}");
        let line = contained(&process(), &with(mount("~", "")), &permitting).unwrap().command.join(" ");
        assert!(line.contains("--mount type=bind,source=/tmp,target=/tmp,readonly"), "{line}");
        let refused =
            |source, settings: &Settings| contained(&process(), &with(mount(source, "/in")), settings).unwrap_err();
        assert!(refused("/etc", &permitting).contains("these can be: /usr/, ~"));
        assert!(refused("/usr/lib", &permitting).contains("\"/usr/lib\""));
        assert!(refused("/usr/../etc", &permitting).contains("cannot be mounted"));
        assert!(refused("/nowhere", &permitting).contains("no directory"));
        assert!(refused("/usr", &Settings::default()).contains("cluster.mounts"));
    }

    #[test]
    fn variables_that_would_be_read_as_others_are_refused() {
        for (name, value) in [("A", "1\nB=2"), ("A*", "1"), ("#A", "1"), ("", "1")] {
            let environment = [(name.to_owned(), value.to_owned())].into();
            let process = Process { environment, ..Process::default() };
            assert!(variables(&process, &user(7), &Settings::default()).is_err(), "{name:?}={value:?}");
        }
    }
}
