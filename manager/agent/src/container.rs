//! Runs jobs with an image, by podman.
//!
//! Podman runs as the user of the node manager. The processes in the container run as the job's user, with that user's
//! rights and no others, whatever the image contains. So a container can read and write what its user can, within the
//! directories that the node permits. Podman looks up every group as a name in the image's file of groups, even a group
//! that is given as a number. An image could thus give the user root's group. So the container gets a file of groups
//! from the node, and the user's supplementary groups are left out.
//!
//! Values from a user reach podman, which is a program of root's, in few places: the image's name, mounts, the working
//! directory, and the arguments after the image. Each is checked here, whatever the scheduler has checked before.
//! Because a mistake here would give root's rights away, a node runs images only if its administrator says so.
//!
//! Docker is not used: its containers are children of its daemon, and would outlive the supervisor, which ends the job
//! when its lease lapses.

mod access;
mod podman;

use std::collections::BTreeMap;
use std::fmt;
use std::fs;
use std::io;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::time::Duration;

use aliquot_proto::agent::v1::{Image, Mount, Process, is_image_reference};
use nix::unistd::geteuid;
use tokio::process::Command;
use tracing::{debug, warn};

use crate::secrets::IN_CONTAINER;
use crate::settings::Settings;
use crate::slice_environment::NVIDIA_VISIBLE_DEVICES;
use crate::supervise::{ContainerAccess, ContainerVariables, Credentials, LaunchSpec};
use crate::users::JobUser;

pub(crate) use podman::{check, finds_slices_in};

/// How long podman may take to remove the remains of a container.
const REMOVE_TIMEOUT: Duration = Duration::from_secs(30);
/// The waits between attempts to remove it: the first, and the longest.
const REMOVE_PAUSES: [Duration; 2] = [Duration::from_millis(200), Duration::from_secs(30)];
/// Maximum bytes of a variable's line: podman up to 4.6 reads no longer lines.
const VARIABLE_BYTES_MAX: usize = 60_000;
/// The content of a container's file of groups. No user's group can be taken for another one in it.
const GROUPS: &str = "root:x:0:\n";
/// The name of that file in the directory for files that do not outlive a restart of the machine.
pub(crate) const GROUPS_FILE: &str = "groups";

/// Writes the file of groups that all containers share.
pub(crate) fn write_groups(runtime_dir: &Path) -> io::Result<()> {
    let file = runtime_dir.join(GROUPS_FILE);
    fs::write(&file, GROUPS)?;
    // Every user of a container reads it, whatever this process's umask is.
    fs::set_permissions(&file, fs::Permissions::from_mode(0o644))
}

/// The name of a container. It contains the id of the supervisor, which no other process of this machine has as long as
/// the supervisor lives.
pub(crate) struct Name {
    pub(crate) slice: String,
    pub(crate) supervisor: i32,
}

impl fmt::Display for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "aliquot-{}-{}", self.slice, self.supervisor)
    }
}

/// A container for a job's command.
pub(crate) struct Container<'a> {
    pub(crate) name: Name,
    /// The process to run, as the job requests it.
    pub(crate) process: &'a Process,
    /// The image to run it in.
    pub(crate) image: &'a Image,
    /// The user that the job belongs to.
    pub(crate) user: &'a JobUser,
    /// The settings, with the node's permissions.
    pub(crate) settings: &'a Settings,
    /// The CDI name of its slice; `None` if it gets no device.
    pub(crate) cdi_device: Option<&'a str>,
    /// The file that it sees as `/etc/group`.
    pub(crate) groups_file: &'a Path,
}

/// Takes the `spec` of a plain command, and returns one that runs the command in `container`.
///
/// # Errors
/// The error says what this node does not permit or cannot do.
pub(crate) fn contain(spec: LaunchSpec, container: &Container<'_>) -> Result<LaunchSpec, String> {
    let Container { name, process, image, user, settings, cdi_device, groups_file } = container;
    if settings.podman.is_empty() {
        return Err("the node runs no images: cluster.podman is not set in its manager's configuration".into());
    }
    if !is_image_reference(&image.reference) {
        return Err(format!("{:?} cannot be an image on this node", image.reference));
    }
    let mut command = settings.podman.clone();
    // The job's output goes to its log, and not to the machine's journal as well.
    command.extend(
        ["run", "--rm", "--log-driver", "none", "--sdnotify", "ignore", "--http-proxy=false"].map(str::to_owned),
    );
    let mut add = |words: &[&str]| command.extend(words.iter().map(|&word| word.to_owned()));
    // Images for NVIDIA's own runtime ask for all devices. This variable overrides that.
    add(&["--name", &name.to_string(), "--env", &format!("{NVIDIA_VISIBLE_DEVICES}=void")]);
    for words in user_options(&user.credentials) {
        add(&words.iter().map(String::as_str).collect::<Vec<_>>());
    }
    let groups = groups_file.to_str().filter(|path| is_plain_path(path));
    let groups = groups.ok_or_else(|| format!("podman cannot mount {}", groups_file.display()))?;
    add(&["--mount", &format!("type=bind,source={groups},target=/etc/group,readonly")]);
    for mount in &image.mounts {
        add(&["--mount", &bind(mount, user, settings)?]);
    }
    if let Some(secrets) = &spec.secrets {
        let dir = secrets.dir.to_str().filter(|path| is_plain_path(path));
        let dir = dir.ok_or_else(|| format!("podman cannot mount {}", secrets.dir.display()))?;
        add(&["--mount", &format!("type=bind,source={dir},target={IN_CONTAINER},readonly")]);
    }
    if image.shm_bytes > 0 {
        add(&["--shm-size", &format!("{}b", image.shm_bytes)]);
    }
    if !process.work_dir.is_empty() {
        if !is_plain_path(&process.work_dir) {
            return Err(format!("{:?} cannot be the working directory in a container", process.work_dir));
        }
        add(&["--workdir", &process.work_dir]);
    }
    if let Some(device) = cdi_device {
        add(&["--device", device]);
    }
    command.extend(settings.podman_run.iter().cloned());
    command.push("--env-file".into());
    let lines = variables(process, user, settings)?;
    let container_variables = Some(ContainerVariables { lines, word: command.len() });
    // A placeholder for the file's path.
    command.push(String::new());
    command.push("--".into());
    command.push(image.reference.clone());
    command.extend(process.command.iter().cloned());
    let access = ContainerAccess {
        podman: settings.podman.clone(),
        name: name.to_string(),
        user: Credentials { groups: Vec::new(), ..user.credentials.clone() },
    };
    Ok(LaunchSpec {
        command,
        environment: podman::environment(),
        container_variables,
        container: Some(access),
        work_dir: "/".into(),
        user: Credentials::of_this_process(),
        ..spec
    })
}

/// The variables of the container, one line each.
fn variables(process: &Process, user: &JobUser, settings: &Settings) -> Result<String, String> {
    let mut variables: BTreeMap<&str, &str> = BTreeMap::from([("USER", user.name.as_str()), ("LOGNAME", &user.name)]);
    variables.extend(settings.environment.iter().map(|(name, value)| (name.as_str(), value.as_str())));
    variables.extend(process.environment.iter().map(|(name, value)| (name.as_str(), value.as_str())));
    variables.remove(NVIDIA_VISIBLE_DEVICES);
    let mut lines = String::new();
    for (name, value) in variables {
        if name.is_empty()
            || name.contains(|c: char| !c.is_ascii_alphanumeric() && c != '_')
            || value.contains(['\n', '\r'])
            || name.len() + value.len() > VARIABLE_BYTES_MAX
        {
            return Err(format!(
                "the variable {name:?} cannot be handed to a container: write its name with letters, digits and '_', and a \
                 value without line breaks of at most {VARIABLE_BYTES_MAX} bytes"
            ));
        }
        lines += &format!("{name}={value}\n");
    }
    Ok(lines)
}

/// The options that set the user of the container's processes, and give them no other rights.
fn user_options(user: &Credentials) -> Vec<Vec<String>> {
    let words = |words: &[&str]| words.iter().map(|&word| word.to_owned()).collect::<Vec<_>>();
    let mut options = vec![words(&["--user", &format!("{}:{}", user.uid, user.gid)])];
    options.push(words(&["--security-opt", "no-new-privileges"]));
    if !geteuid().is_root() {
        options.push(words(&["--userns", "keep-id"]));
        return options;
    }
    // For root the option is left out: jobs of root run only where an administrator permits them.
    if user.uid != 0 {
        options.push(words(&["--cap-drop", "all"]));
    }
    options
}

/// Whether a path is absolute, and so written that every reader understands the same path.
fn is_plain_path(path: &str) -> bool {
    path.starts_with('/')
        && !path.contains([',', ':', '"', '\'', '\\'])
        && !path.contains(char::is_control)
        && path.split('/').all(|part| part != "..")
}

/// A mount in podman's format. Only the named directories themselves can be mounted: a directory below them could be
/// replaced by a link between the check and the mount.
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
        return Err(format!("{source:?} cannot be mounted: it is not a directory of this node"));
    }
    let target = if mount.target.is_empty() { &source } else { &mount.target };
    // Podman takes a comma for the end of the path, and the text after it for an option.
    if let Some(path) = [&source, target].into_iter().find(|path| !is_plain_path(path)) {
        return Err(format!(
            "{path:?} cannot be part of a mount: write a path from the root, without commas, colons and quotes"
        ));
    }
    let parts: Vec<&str> = target.split('/').filter(|part| !part.is_empty() && *part != ".").collect();
    if matches!(parts.as_slice(), [] | ["etc"] | ["etc", "group" | "passwd", ..]) {
        return Err(format!(
            "nothing can be mounted at {target:?} in a container: it lists the users of the container"
        ));
    }
    let mut text = format!("type=bind,source={source},target={target}");
    if mount.read_only {
        text += ",readonly";
    }
    Ok(text)
}

impl Name {
    /// Removes the remains of the container. Podman does so itself when a container ends, but not if podman was killed.
    ///
    /// Returns when podman says that the container is gone: until then the container may run, and its room is not free.
    pub(crate) async fn remove(&self, settings: &Settings) {
        let Some((program, options)) = settings.podman.split_first() else { return };
        let name = self.to_string();
        let [mut pause, longest] = REMOVE_PAUSES;
        loop {
            let mut command = Command::new(program);
            command.args(options).args(["rm", "--force", "--volumes", "--ignore", "--time", "0", &name]);
            let why = match tokio::time::timeout(REMOVE_TIMEOUT, command.kill_on_drop(true).output()).await {
                Ok(Ok(output)) if output.status.success() => return,
                Ok(Ok(output)) => String::from_utf8_lossy(&output.stderr).trim_end().to_owned(),
                // Without podman nothing was started.
                Ok(Err(error)) if error.kind() == std::io::ErrorKind::NotFound => return,
                Ok(Err(error)) => error.to_string(),
                Err(_) => "it does not answer".to_owned(),
            };
            // If podman and its monitor were killed, the first call fails: podman takes the container for running, and
            // finds no process to stop. It notes that, and the next call removes the container.
            match pause > REMOVE_PAUSES[0] {
                true => warn!(name, why, "podman does not remove a job's container, so its room is not free yet"),
                false => debug!(name, why, "podman does not remove a job's container at once"),
            }
            tokio::time::sleep(pause).await;
            pause = (pause * 2).min(longest);
        }
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
            container: None,
            secrets: None,
            work_dir: "/home/ada".into(),
            node: "gpu-1".into(),
            user: user(7).credentials,
            time_limit_ms: 0,
            grace_ms: 0,
            lease_file: "/lease".into(),
            log_dir: "/log".into(),
            log_bytes_max: 0,
            agent_socket: "/agent".into(),
        };
        let container = Container {
            name: Name { slice: "job-1-2".into(), supervisor: 3 },
            process,
            image,
            user: &user(7),
            settings,
            cdi_device: Some("aliquot.dev/slice=job-1-2"),
            groups_file: Path::new("/run/aliquot/cluster/groups"),
        };
        contain(spec, &container)
    }

    fn process() -> Process {
        Process {
            command: vec!["train".into(), "--privileged".into(), "{variables}".into()],
            environment: [("LD_PRELOAD", "/x.so"), ("TOKEN", "secret"), (NVIDIA_VISIBLE_DEVICES, "all")]
                .map(|(name, value)| (name.to_owned(), value.to_owned()))
                .into(),
            ..Process::default()
        }
    }

    #[test]
    fn what_a_user_says_reaches_the_container_and_not_podman() {
        let image = Image { reference: "debian:12".into(), shm_bytes: 5, ..Image::default() };
        let spec = contained(&process(), &image, &settings("podman = ['podman']\npodman_run = ['--network', 'none']"))
            .unwrap();
        let line = spec.command.join(" ");
        assert!(line.starts_with("podman run --rm --log-driver none "), "{line}");
        assert!(line.contains("--name aliquot-job-1-2-3 --env NVIDIA_VISIBLE_DEVICES=void "), "{line}");
        assert_eq!(line.contains("--cap-drop all"), geteuid().is_root(), "{line}");
        assert!(line.contains("type=bind,source=/run/aliquot/cluster/groups,target=/etc/group,readonly"), "{line}");
        assert!(!line.contains("--group-add"), "podman would look the number up as a name in the image: {line}");
        assert!(
            line.contains("--user 7:8") && line.contains("--shm-size 5b") && line.contains("no-new-privileges"),
            "{line}"
        );
        assert!(
            line.ends_with("slice=job-1-2 --network none --env-file  -- debian:12 train --privileged {variables}"),
            "{line}"
        );
        assert!(!line.contains("secret"), "every user of the machine can read it: {line}");
        assert!(spec.environment.iter().all(|(name, _)| name != "LD_PRELOAD"), "podman runs as the manager's user");
        let ContainerVariables { lines: variables, word } = spec.container_variables.unwrap();
        assert_eq!((spec.command[word - 1].as_str(), spec.command[word].as_str()), ("--env-file", ""));
        assert!(variables.contains("TOKEN=secret\n") && variables.contains("LD_PRELOAD=/x.so\n"), "{variables}");
        assert!(!variables.contains("NVIDIA_VISIBLE_DEVICES") && variables.contains("USER=ada\n"), "{variables}");
        assert_eq!(spec.user.uid, geteuid().as_raw());
    }

    #[test]
    fn only_permitted_directories_are_mounted() {
        let mount =
            |source: &str, target: &str| Mount { source: source.into(), target: target.into(), read_only: true };
        let with = |mount| Image { reference: "a".into(), mounts: vec![mount], ..Image::default() };
        let permitting = settings("podman = ['podman']\nmounts = ['/usr/', '~', '/nowhere']");
        let line = contained(&process(), &with(mount("/usr", "/in")), &permitting).unwrap().command.join(" ");
        assert!(line.contains("--mount type=bind,source=/usr,target=/in,readonly"), "{line}");
        let line = contained(&process(), &with(mount("~", "")), &permitting).unwrap().command.join(" ");
        assert!(line.contains("--mount type=bind,source=/tmp,target=/tmp,readonly"), "{line}");
        let refused =
            |source, settings: &Settings| contained(&process(), &with(mount(source, "/in")), settings).unwrap_err();
        assert!(refused("/etc", &permitting).contains("these can be: /usr/, ~"));
        assert!(refused("/usr/lib", &permitting).contains("\"/usr/lib\""));
        assert!(refused("/usr/../etc", &permitting).contains("cannot be mounted"));
        assert!(refused("/nowhere", &permitting).contains("not a directory"));
        assert!(refused("/usr", &settings("podman = ['podman']")).contains("cluster.mounts"));
        assert!(refused("/usr", &Settings::default()).contains("cluster.podman"));
        for target in ["/in,U=true", "/in:/etc", "in", "/in/../etc", "/in\"", "/in\n"] {
            let why = contained(&process(), &with(mount("/usr", target)), &permitting).unwrap_err();
            assert!(why.contains("cannot be part of a mount"), "{target}: {why}");
        }
    }

    #[test]
    fn nothing_is_mounted_where_it_would_say_who_users_are() {
        let permitting = settings("podman = ['podman']\nmounts = ['/usr']");
        for target in ["/", "/etc", "/etc/", "//etc//group", "/./etc/passwd", "/etc/group/x"] {
            let mount = Mount { source: "/usr".into(), target: target.into(), read_only: true };
            let image = Image { reference: "a".into(), mounts: vec![mount], ..Image::default() };
            let why = contained(&process(), &image, &permitting).unwrap_err();
            assert!(why.contains("nothing can be mounted"), "{target}: {why}");
        }
    }

    #[test]
    fn podman_takes_no_word_of_a_command_for_an_option() {
        let image = Image { reference: "debian".into(), ..Image::default() };
        let spec = contained(&process(), &image, &settings("podman = ['podman', '--log-level=error']")).unwrap();
        let access = spec.container.unwrap();
        let command = ["--privileged".to_owned(), "--user=0".to_owned()];
        let line = access.exec(&command, None).join(" ");
        assert_eq!(line, "podman --log-level=error exec --interactive aliquot-job-1-2-3 --privileged --user=0");
        assert!(access.exec(&command, Some("xterm")).join(" ").contains("--tty --env TERM=xterm aliquot-job-1-2-3 --"));
        // The image's groups are not the node's.
        assert_eq!((access.user.uid, access.user.groups), (7, Vec::new()));
    }

    #[test]
    fn what_is_no_image_or_directory_is_refused_here_too() {
        let permitting = settings("podman = ['podman']");
        let image = |reference: &str| Image { reference: reference.into(), ..Image::default() };
        let why = contained(&process(), &image("oci-archive:/home/bob/x.tar"), &permitting).unwrap_err();
        assert!(why.contains("oci-archive"), "{why}");
        let elsewhere = Process { work_dir: "/a:b".into(), ..process() };
        assert!(contained(&elsewhere, &image("debian"), &permitting).unwrap_err().contains("/a:b"));
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
