//! The first process of a job: it starts the command as the job's user, adopts the processes that the command leaves
//! behind, and kills them when the command has ended.

use std::fs::{self, File};
use std::io::{self, Write};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::net::UnixListener;
use std::os::unix::process::CommandExt;
use std::process::{Command, Stdio};

use nix::errno::Errno;
use nix::mount::{MsFlags, mount};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sched::{CloneFlags, setns, unshare};
use nix::sys::memfd::{MFdFlags, memfd_create};
use nix::sys::prctl::{set_child_subreaper, set_pdeathsig};
use nix::sys::resource::{Resource, getrlimit, setrlimit};
use nix::sys::signal::{SigSet, SigmaskHow, Signal, kill, killpg, sigprocmask};
use nix::sys::signalfd::SignalFd;
use nix::sys::stat::{Mode, umask};
use nix::sys::wait::{WaitPidFlag, WaitStatus, waitpid};
use nix::unistd::{ForkResult, Gid, Pid, Uid, chdir, fork, geteuid, setgid, setgroups, setuid};
use serde::{Deserialize, Serialize};

use super::{ContainerVariables, Credentials, LaunchSpec, companion};
use crate::clock;
use crate::process::kill_descendants;

/// The byte that the supervisor writes into the lifeline when the command may be started.
pub(super) const GO: u8 = 1;

/// The limit on open descriptors: programs that use `select` break with descriptors above it.
const OPEN_FILES: u64 = 1024;

/// A report of init to its supervisor.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) enum Said {
    /// The command has run since this time, in milliseconds since 1970.
    Started(u64),
    /// The command cannot be started here or elsewhere: it names a program or a directory that is not there.
    Failed(String),
    /// The node lacks what it needs to start the command.
    Refused(String),
    /// The command has ended with this code.
    Exited(i32),
    /// The command was ended by this signal.
    Killed(u32),
}

/// The descriptors through which init communicates.
pub(super) struct Ends {
    pub(super) signals: SignalFd,
    /// Closed when the supervisor has ended.
    pub(super) lifeline: OwnedFd,
    /// The pipe for reports to the supervisor.
    pub(super) said: OwnedFd,
    /// The pipe for the command's output.
    pub(super) output: OwnedFd,
    /// The socket for the agent's requests while the job runs.
    pub(super) requests: Option<UnixListener>,
}

/// Makes the next child of this process the first of a new pid namespace, if that is allowed here. Returns the
/// namespace that children went into before.
pub(super) fn make_namespace() -> Option<File> {
    let own = File::open("/proc/self/ns/pid").ok()?;
    unshare(CloneFlags::CLONE_NEWPID).is_ok().then_some(own)
}

/// Makes all further children go into the namespace `own` again.
pub(super) fn leave_namespace(own: File) -> nix::Result<()> {
    setns(own, CloneFlags::CLONE_NEWPID)
}

/// The main function of init.
pub(super) fn main(spec: &LaunchSpec, is_own_namespace: bool, ends: Ends) -> ! {
    let Ends { signals, lifeline, said, output, requests } = ends;
    if is_own_namespace {
        // If this fails, the lifeline shows the supervisor's end a little later.
        let _ = set_pdeathsig(Signal::SIGKILL);
        mount_proc();
    } else {
        let _ = set_child_subreaper(true);
    }
    let mut go = [0];
    if nix::unistd::read(&lifeline, &mut go) == Ok(1) && go == [GO] {
        let say = |what: &Said| {
            let mut line = serde_json::to_vec(what).unwrap_or_default();
            line.push(b'\n');
            let mut rest = line.as_slice();
            while let Ok(count @ 1..) = nix::unistd::write(&said, rest) {
                rest = rest.get(count..).unwrap_or_default();
            }
        };
        match start(spec, output) {
            Ok(child) => {
                say(&Said::Started(clock::unix_ms()));
                follow(spec, child, &signals, &lifeline, requests.as_ref(), say);
            }
            Err(why) => say(&why),
        }
    }
    if is_own_namespace {
        // -1 stands for all processes of the namespace except this one.
        let _ = kill(Pid::from_raw(-1), Signal::SIGKILL);
        while !matches!(waitpid(None, None), Err(Errno::ECHILD)) {}
    } else {
        kill_descendants();
    }
    std::process::exit(0)
}

/// Shows the job its own processes in `/proc`. Where this is not allowed, the job sees the machine's processes.
fn mount_proc() {
    let nothing = None::<&str>;
    let own = unshare(CloneFlags::CLONE_NEWNS)
        .and_then(|()| mount(nothing, "/", nothing, MsFlags::MS_REC | MsFlags::MS_SLAVE, nothing));
    if own.is_ok() {
        let flags = MsFlags::MS_NOSUID | MsFlags::MS_NODEV | MsFlags::MS_NOEXEC;
        let _ = mount(Some("proc"), "/proc", Some("proc"), flags, nothing);
    }
}

/// Starts the command. The error is what to report.
fn start(spec: &LaunchSpec, output: OwnedFd) -> Result<Pid, Said> {
    let mut words = spec.command.clone();
    // The file stays open until the command has started.
    let mut file = None;
    if let Some(ContainerVariables { lines, word }) = &spec.container_variables {
        let made = file.insert(variables_file(lines).map_err(Said::Refused)?);
        // Podman opens the file through its own descriptor.
        let path = format!("/proc/self/fd/{}", made.as_raw_fd());
        let place = words.get_mut(*word);
        *place.ok_or_else(|| Said::Failed("the command has no place for the container's variables".into()))? = path;
    }
    let (program, arguments) = words.split_first().ok_or_else(|| Said::Failed("no command is given".into()))?;
    try_directory(spec)?;
    let copy = output.try_clone().map_err(|error| Said::Refused(format!("cannot copy a descriptor: {error}")))?;
    let mut command = Command::new(program);
    command.args(arguments).env_clear().envs(spec.environment.iter().map(|(name, value)| (name, value)));
    command.stdin(Stdio::null()).stdout(output).stderr(copy);
    let become_user = preparation(spec.user.clone(), spec.work_dir.clone());
    // SAFETY: this process has one thread, so its child may do whatever this process may.
    unsafe { command.pre_exec(become_user) };
    let child = command.spawn().map_err(|error| {
        let why = format!("cannot run {program:?} in {} as user {}: {error}", spec.work_dir.display(), spec.user.uid);
        // Podman is a program of the node.
        if spec.container.is_some() || is_shortage(&error) { Said::Refused(why) } else { Said::Failed(why) }
    })?;
    Ok(Pid::from_raw(child.id().cast_signed()))
}

/// Tries the working directory as the job's user. An error of a program that is started there could not be told from an
/// error of the program itself.
fn try_directory(spec: &LaunchSpec) -> Result<(), Said> {
    // SAFETY: this process has one thread, so its child may do whatever this process may.
    let child = match unsafe { fork() } {
        Ok(ForkResult::Parent { child }) => child,
        Ok(ForkResult::Child) => {
            // If this process cannot become the user, the start of the command says so.
            let tried = become_user(&spec.user).map_or(Ok(()), |()| chdir(&spec.work_dir));
            std::process::exit(tried.err().map_or(0, |errno| errno as i32))
        }
        Err(errno) => return Err(Said::Refused(format!("cannot start a process: {errno}"))),
    };
    match waitpid(child, None) {
        Ok(WaitStatus::Exited(_, code @ 1..)) => Err(Said::Failed(not_entered(spec, Errno::from_raw(code)))),
        _ => Ok(()),
    }
}

fn not_entered(spec: &LaunchSpec, errno: Errno) -> String {
    let (dir, node) = (spec.work_dir.display(), &spec.node);
    let what = match errno {
        Errno::ENOENT => format!("the directory {dir} does not exist on node {node}"),
        Errno::ENOTDIR => format!("{dir} is not a directory on node {node}"),
        _ => format!("user {} cannot enter the directory {dir} on node {node}: {errno}", spec.user.uid),
    };
    format!("{what}; give another with --workdir")
}

/// Whether the node has no more processes, descriptors or memory, or the user no more processes on this node.
fn is_shortage(error: &io::Error) -> bool {
    let shortages = [Errno::EAGAIN, Errno::ENOMEM, Errno::EMFILE, Errno::ENFILE];
    error.raw_os_error().is_some_and(|code| shortages.contains(&Errno::from_raw(code)))
}

/// A file with these variables that has no name in the file system, and that children inherit.
fn variables_file(variables: &str) -> Result<File, String> {
    let failed = |error: io::Error| format!("cannot make a file for the container's variables: {error}");
    let file = memfd_create("variables", MFdFlags::empty()).map_err(|errno| failed(errno.into()))?;
    let mut file = File::from(file);
    file.write_all(variables.as_bytes()).map_err(failed)?;
    Ok(file)
}

/// The steps of the child between its fork and the start of the program.
pub(super) fn preparation(user: Credentials, work_dir: std::path::PathBuf) -> impl FnMut() -> io::Result<()> {
    move || {
        // The child gets its own session: no terminal, and a process group to send signals to.
        nix::unistd::setsid()?;
        // This process reads signals from a descriptor, and so has blocked them. A program expects signals to end it.
        sigprocmask(SigmaskHow::SIG_SETMASK, Some(&SigSet::empty()), None)?;
        umask(Mode::from_bits_truncate(0o022));
        // The manager's own value is far lower, so that it is killed last. A process may always raise its value.
        let _ = fs::write("/proc/self/oom_score_adj", "0");
        let (_, hard) = getrlimit(Resource::RLIMIT_NOFILE)?;
        setrlimit(Resource::RLIMIT_NOFILE, OPEN_FILES.min(hard), hard)?;
        become_user(&user)?;
        Ok(chdir(&work_dir)?)
    }
}

/// Gives up root's rights for those of the job's user; without root's rights this process is that user's already.
pub(super) fn become_user(user: &Credentials) -> io::Result<()> {
    if geteuid().is_root() {
        let groups: Vec<Gid> = user.groups.iter().copied().map(Gid::from_raw).collect();
        setgroups(&groups)?;
        setgid(Gid::from_raw(user.gid))?;
        setuid(Uid::from_raw(user.uid))?;
    }
    Ok(())
}

/// Waits until the command has ended, and says how. Returns early if the supervisor ends first. Meanwhile it carries out
/// the agent's requests.
///
/// A shell that is asked to end may do so before the program that it runs. So a command that was asked to end has its
/// whole process group waited for. The supervisor kills this process when the grace is over.
fn follow(
    spec: &LaunchSpec,
    command: Pid,
    signals: &SignalFd,
    lifeline: &OwnedFd,
    requests: Option<&UnixListener>,
    say: impl Fn(&Said),
) {
    let (mut has_ended, mut is_asked_to_end) = (false, false);
    loop {
        let mut sources =
            vec![PollFd::new(signals.as_fd(), PollFlags::POLLIN), PollFd::new(lifeline.as_fd(), PollFlags::POLLIN)];
        sources.extend(requests.map(|requests| PollFd::new(requests.as_fd(), PollFlags::POLLIN)));
        let _ = poll(&mut sources, PollTimeout::NONE);
        let is_alone = sources[1].revents().is_some_and(|events| !events.is_empty());
        if is_alone {
            return;
        }
        // This call does not wait, because the listener is non-blocking.
        if let Some(Ok((agent, _))) = requests.map(UnixListener::accept) {
            // SAFETY: this process has one thread, so the child may do whatever this process may.
            if let Ok(ForkResult::Child) = unsafe { fork() } {
                companion::main(spec, &agent, signals, lifeline);
            }
        }
        while let Ok(Some(info)) = signals.read_signal() {
            if info.ssi_signo == Signal::SIGTERM as u32 {
                is_asked_to_end = true;
                let _ = killpg(command, Signal::SIGTERM);
            }
        }
        loop {
            let end = match waitpid(None, Some(WaitPidFlag::WNOHANG)) {
                Ok(WaitStatus::Exited(pid, code)) if pid == command => Said::Exited(code),
                Ok(WaitStatus::Signaled(pid, signal, _)) if pid == command => Said::Killed(signal as u32),
                Ok(WaitStatus::StillAlive) | Err(_) => break,
                Ok(_) => continue,
            };
            say(&end);
            has_ended = true;
        }
        // Without a signal, this call only looks for processes of the group. Each of them is a child of this process when
        // its parent has ended, so the end of the last one is noticed.
        if has_ended && (!is_asked_to_end || killpg(command, None) == Err(Errno::ESRCH)) {
            return;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_shortage_is_told_from_a_wrong_command() {
        let is_shortage = |errno: Errno| is_shortage(&errno.into());
        assert!([Errno::EAGAIN, Errno::ENOMEM, Errno::EMFILE, Errno::ENFILE].into_iter().all(is_shortage));
        assert!(![Errno::ENOENT, Errno::EACCES, Errno::ENOEXEC, Errno::E2BIG].into_iter().any(is_shortage));
    }
}
