//! Starts an instance in three steps: first its supervisor, which waits; then the slice, which the supervisor owns;
//! then the supervisor gets its spec. If the agent is killed between two steps, the supervisor loses its input and
//! ends, and everything made so far goes with it.

use std::ffi::{OsStr, OsString};
use std::io::{self, Write};
use std::path::PathBuf;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::Arc;

use aliquot_node::{aside, begin_aside};
use aliquot_proto::agent::v1::{Process, Start};
use tokio::sync::mpsc;
use tracing::warn;

use super::{Agent, News};
use crate::container;
use crate::instance::{End, InstanceDir, Number};
use crate::manager::{Manager, slice_name, slice_request};
use crate::process::{ProcessId, own_program};
use crate::secrets;
use crate::settings::Config;
use crate::slice_environment::{self, NVIDIA_VISIBLE_DEVICES, VISIBLE_DEVICES};
use crate::supervise::LaunchSpec;
use crate::users::{JobUser, LookUp};

/// The search path for programs, for jobs that do not set one.
const PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

/// A spec that the supervisor can carry out, as bytes.
pub(super) struct Prepared(Vec<u8>);

/// A supervisor that this agent has started.
pub(super) struct Supervised {
    child: Child,
    /// The pipe for the spec; `None` if the spec was sent, or will never be.
    spec: Option<ChildStdin>,
}

impl Supervised {
    /// Starts the supervisor of the instance in `dir`, which waits for its spec.
    pub(super) fn start(dir: &InstanceDir) -> io::Result<Supervised> {
        let mut command = Command::new(own_program());
        command.arg("--supervise").arg(dir.path()).env_clear().current_dir("/");
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::null()).spawn()?;
        let pid = child.id().cast_signed();
        let process = ProcessId::of(pid).ok_or_else(|| io::Error::other("it has ended at once"));
        match process.and_then(|process| dir.note_supervisor(process)) {
            Ok(()) => Ok(Supervised { spec: child.stdin.take(), child }),
            Err(error) => {
                let _ = child.kill();
                let _ = child.wait();
                Err(error)
            }
        }
    }

    pub(super) fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Sends the supervisor its spec, unless it was given up.
    fn tell(&mut self, prepared: Prepared) {
        if let Some(mut input) = self.spec.take() {
            // The spec may be larger than the pipe. If the supervisor has ended, its end is seen elsewhere.
            if let Err(error) = begin_aside(move || _ = input.write_all(&prepared.0)) {
                // The supervisor loses its input, and notes that the job was not started.
                warn!(%error, "cannot tell a supervisor what to run");
            }
        }
    }

    /// Gives up: the supervisor never gets a spec. Returns whether it had none yet.
    pub(super) fn give_up(&mut self) -> bool {
        self.spec.take().is_some()
    }

    /// Takes the supervisor's status if it has ended.
    pub(super) fn reap(&mut self) {
        let _ = self.child.try_wait();
    }

    /// Waits for the end of a supervisor that has noted the end of its job, and so ends soon.
    pub(super) fn wait_in_background(mut self) {
        // Without a thread, the entry of the ended process stays in the kernel's table as long as this process lives.
        let _ = begin_aside(move || _ = self.child.wait());
    }

    /// Kills the supervisor before it has started anything.
    fn kill(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Everything that is needed besides the command to start an instance.
pub(super) struct Surroundings {
    pub(super) config: Arc<Config>,
    /// Finds the job's user.
    pub(super) look_up: LookUp,
    pub(super) log_dir: PathBuf,
}

/// The spec of an instance that needs no slice and has no image.
fn launch_spec(config: &Config, process: &Process, user: &JobUser, log_dir: PathBuf) -> LaunchSpec {
    let settings = &config.settings;
    let text = |path: &PathBuf| path.to_string_lossy().into_owned();
    let own = [
        ("PATH", PATH.to_owned()),
        ("HOME", text(&user.home)),
        ("SHELL", text(&user.shell)),
        ("USER", user.name.clone()),
        ("LOGNAME", user.name.clone()),
    ];
    let mut environment: std::collections::BTreeMap<String, String> =
        own.into_iter().map(|(name, value)| (name.to_owned(), value)).collect();
    environment.extend(settings.environment.clone());
    environment.extend(process.environment.clone());
    let work_dir = match process.work_dir.as_str() {
        "" if user.home.is_dir() => user.home.clone(),
        "" => "/".into(),
        named => named.into(),
    };
    LaunchSpec {
        command: process.command.clone(),
        environment: environment.into_iter().collect(),
        container_variables: None,
        container: None,
        secrets: None,
        work_dir,
        node: config.node_name.clone(),
        user: user.credentials.clone(),
        time_limit_ms: process.time_limit_ms,
        grace_ms: process.grace_ms,
        lease_file: config.runtime_dir.join("lease"),
        log_dir,
        log_bytes_max: settings.log_bytes_max,
        agent_socket: config.runtime_dir.join("agent.sock"),
    }
}

/// Has the slice of `start` made for the supervisor `pid`. The outcome is sent to the agent as news.
pub(super) fn prepare(
    start: &Start,
    number: Number,
    pid: u32,
    surroundings: Surroundings,
    manager: Manager,
    news: mpsc::UnboundedSender<News>,
) {
    let start = start.clone();
    tokio::spawn(async move {
        let prepared = put_into_slice(&start, number, pid, surroundings, manager).await;
        let prepared = prepared.and_then(|spec| {
            serde_json::to_vec(&spec)
                .map(Prepared)
                .map_err(|error| format!("cannot save the description of the job: {error}"))
        });
        // An error means that the agent has ended.
        let _ = news.send(News::Prepared(number, prepared));
    });
}

async fn put_into_slice(
    start: &Start,
    number: Number,
    pid: u32,
    Surroundings { config, look_up, log_dir }: Surroundings,
    mut manager: Manager,
) -> Result<LaunchSpec, String> {
    let no_thread = |error: io::Error| format!("the node has no thread left: {error}");
    let (mut process, of) = (start.process.clone().unwrap_or_default(), Arc::clone(&config));
    // The user and the home may be on other machines, which may not answer.
    let found = aside(move || {
        let user = look_up(process.uid, &process.user, &of.settings)?;
        user.check_name(&process.local_user)?;
        let secrets = secrets::take(&mut process, secrets::dir_of(&of.secrets_dir, number), &user.credentials)?;
        let spec = LaunchSpec { secrets, ..launch_spec(&of, &process, &user, log_dir) };
        Ok::<_, String>((process, user, spec))
    });
    let (process, user, mut spec) = found.await.map_err(no_thread)??;
    let request = slice_request(start, number, pid)?;
    let failed = |status: tonic::Status| format!("the node manager makes no slice: {}", status.message());
    let slice = match request.parts.is_empty() {
        true => None,
        false => Some(manager.create(request).await.map_err(failed)?),
    };
    if let Some(image) = process.image.clone() {
        let cdi_device = slice.map(|slice| slice.cdi_device);
        if cdi_device.as_deref() == Some("") {
            return Err("the node manager publishes no slices for containers: see cdi_dir in its configuration".into());
        }
        // The directories to mount may be on other machines, too.
        let contained = aside(move || {
            let container = container::Container {
                name: container::Name { slice: slice_name(number), supervisor: pid.cast_signed() },
                process: &process,
                image: &image,
                user: &user,
                settings: &config.settings,
                cdi_device: cdi_device.as_deref(),
                groups_file: &config.runtime_dir.join(container::GROUPS_FILE),
            };
            container::contain(spec, &container)
        });
        return contained.await.map_err(no_thread)?;
    }
    let Some(slice) = slice else {
        // Without a slice a job must see no device.
        let none = [(VISIBLE_DEVICES, ""), (NVIDIA_VISIBLE_DEVICES, "void")];
        set(&mut spec.environment, none.map(|(name, value)| (name.to_owned(), value.to_owned())));
        return Ok(spec);
    };
    let node = manager.node().await.map_err(failed)?;
    let preloaded = spec.environment.iter().find(|(name, _)| name == "LD_PRELOAD").map(|(_, value)| OsStr::new(value));
    let variables = slice_environment::variables(&slice, &node, preloaded).map_err(|error| error.to_string())?;
    let text = |value: OsString| value.into_string().map_err(|_| "a path of the slice is not UTF-8".to_owned());
    let variables: Result<Vec<_>, String> =
        variables.into_iter().map(|(name, value)| Ok((name, text(value)?))).collect();
    set(&mut spec.environment, variables?);
    Ok(spec)
}

/// Sets variables in place of others of the same names.
fn set(environment: &mut Vec<(String, String)>, variables: impl IntoIterator<Item = (String, String)>) {
    for (name, value) in variables {
        environment.retain(|(other, _)| *other != name);
        environment.push((name, value));
    }
}

impl Agent {
    /// Handles the news that the slice of an instance was made, or could not be made.
    pub(super) fn prepared(&mut self, number: Number, prepared: Result<Prepared, String>) {
        let Some(supervised) = self.supervised(number) else { return };
        match prepared {
            Ok(prepared) => supervised.tell(prepared),
            Err(why) => {
                if supervised.give_up() {
                    // The supervisor could only report that it has no spec.
                    supervised.kill();
                    self.note_end(number, End::refused(why));
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;
    use crate::settings::Settings;
    use crate::supervise::Credentials;

    fn config() -> Arc<Config> {
        let settings: Settings =
            toml::from_str("scheduler = 'head:1'\nenvironment = { SITE = 'a', SHARED = 'node' }").unwrap();
        let config = settings.completed(Path::new("/s"), Path::new("/r"), Path::new("/r/manager.sock"), "n").unwrap();
        Arc::new(config)
    }

    fn ada() -> JobUser {
        JobUser {
            credentials: Credentials { uid: 7, gid: 8, groups: vec![8] },
            name: "ada".into(),
            home: "/nowhere/ada".into(),
            shell: "/bin/sh".into(),
        }
    }

    fn planned(process: &Process) -> LaunchSpec {
        launch_spec(&config(), process, &ada(), "/logs/1.0.0".into())
    }

    #[test]
    fn a_job_has_the_environment_of_its_user_the_node_and_itself() {
        let process = Process {
            environment: [("SHARED".to_owned(), "job".to_owned()), ("RANK".to_owned(), "1".to_owned())].into(),
            ..Process::default()
        };
        let spec = planned(&process);
        let value = |name: &str| spec.environment.iter().find(|(key, _)| key == name).map(|(_, value)| value.as_str());
        assert_eq!((value("HOME"), value("USER")), (Some("/nowhere/ada"), Some("ada")));
        assert_eq!((value("SITE"), value("SHARED"), value("RANK")), (Some("a"), Some("job"), Some("1")));
        // A user without a home directory can still run a command.
        assert_eq!(spec.work_dir, Path::new("/"));
        assert_eq!(planned(&Process { work_dir: "/data".into(), ..process }).work_dir, Path::new("/data"));
    }

    #[tokio::test]
    async fn a_job_without_devices_sees_none() {
        let process =
            Process { environment: [("CUDA_VISIBLE_DEVICES".to_owned(), "0".to_owned())].into(), ..Process::default() };
        let start = Start { process: Some(process), ..Start::default() };
        let nobody = Manager::new(Path::new("/nowhere"));
        let surroundings =
            Surroundings { config: config(), look_up: Arc::new(|_, _, _| Ok(ada())), log_dir: "/logs/1.0.0".into() };
        let spec = put_into_slice(&start, (1, 1), 1, surroundings, nobody).await.unwrap();
        let shown: Vec<_> = spec.environment.iter().filter(|(name, _)| name == VISIBLE_DEVICES).collect();
        assert_eq!(shown, [&(VISIBLE_DEVICES.to_owned(), String::new())]);
    }
}
