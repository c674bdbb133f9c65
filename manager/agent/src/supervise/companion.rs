//! A process that the job's first process forks for each request of the agent. It runs a command beside the job's own, or
//! connects to a port as the job would.
//!
//! ```text
//! supervisor ── init ─┬─ the job's command
//!                     └─ companion ── the requested command
//! ```
//!
//! So the command has the job's namespaces, belongs to the job's slice, and ends with the job. The companion adopts the
//! processes that its command leaves behind. It kills them when the command has ended, or when the agent has closed the
//! connection.

use std::fs::{self, File};
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpStream};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::MetadataExt;
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sched::{CloneFlags, setns};
use nix::sys::prctl::{set_child_subreaper, set_pdeathsig};
use nix::sys::signal::{Signal, killpg};
use nix::sys::signalfd::SignalFd;
use nix::sys::wait::{WaitPidFlag, WaitStatus, waitpid};
use nix::unistd::Pid;

use super::init::{become_user, preparation};
use super::requests::{self, Reply, Request};
use super::{ContainerAccess, LaunchSpec};
use crate::process::kill_descendants;

/// How long a client may take to send its request after it has connected.
const REQUEST_PATIENCE: Duration = Duration::from_secs(10);
/// How long a command may take to end when the agent has closed the connection.
const FAREWELL: Duration = Duration::from_secs(2);
/// How long a connection on the loopback address may take.
const CONNECT_PATIENCE: Duration = Duration::from_secs(5);

/// The main function of a companion.
pub(super) fn main(spec: &LaunchSpec, agent: &UnixStream, signals: &SignalFd, lifeline: &OwnedFd) -> ! {
    // If these calls fail, the companion ends a little later.
    let _ = set_pdeathsig(Signal::SIGKILL);
    let _ = set_child_subreaper(true);
    let _ = agent.set_nonblocking(false);
    let _ = agent.set_read_timeout(Some(REQUEST_PATIENCE));
    // If the agent is gone, no answer is needed.
    match requests::receive(agent) {
        Ok((Request::Exec { command, terminal }, stdio)) => {
            run(spec, agent, signals, lifeline, &command, terminal.as_deref(), stdio);
        }
        Ok((Request::Connect(port), _)) => match connect(spec, port) {
            Ok(connection) => _ = requests::send(agent, &Reply::Connected, &[connection.as_fd()]),
            Err(why) => _ = requests::send(agent, &Reply::Failed { why, exit_code: 0 }, &[]),
        },
        Err(_) => {}
    }
    std::process::exit(0)
}

fn run(
    spec: &LaunchSpec,
    agent: &UnixStream,
    signals: &SignalFd,
    lifeline: &OwnedFd,
    command: &[String],
    terminal: Option<&str>,
    stdio: Vec<OwnedFd>,
) {
    let child = match start(spec, command, terminal, stdio) {
        Ok(child) => child,
        Err(failed) => {
            let _ = requests::send(agent, &failed, &[]);
            return;
        }
    };
    let is_told = requests::send(agent, &Reply::Started, &[]).is_ok();
    let end = if is_told { follow(child, agent, signals, lifeline) } else { None };
    // Done before the agent learns of the end, so that nothing writes to the command's output afterwards.
    match is_own_proc() {
        true => kill_descendants(),
        // Processes that the command has left in other process groups end with the job.
        false => _ = killpg(child, Signal::SIGKILL),
    }
    if let Some(end) = end {
        let _ = requests::send(agent, &end, &[]);
    }
}

/// Whether `/proc` shows processes by the ids that they have in this process's namespace.
fn is_own_proc() -> bool {
    fs::read_link("/proc/self").is_ok_and(|own| own.to_str() == Some(&std::process::id().to_string()))
}

fn start(spec: &LaunchSpec, command: &[String], terminal: Option<&str>, stdio: Vec<OwnedFd>) -> Result<Pid, Reply> {
    let failed = |why: String, exit_code: u8| Reply::Failed { why, exit_code };
    let broken = |error: io::Error| failed(format!("cannot hand on a descriptor: {error}"), 126);
    let words = match &spec.container {
        Some(container) => container.exec(command, terminal),
        None => command.to_vec(),
    };
    let (program, arguments) = words.split_first().ok_or_else(|| failed("no command is given".into(), 127))?;
    let mut stdio = stdio.into_iter();
    let input = stdio.next().ok_or_else(|| failed("the command has no standard input".into(), 126))?;
    let copy = |of: &OwnedFd| of.try_clone().map_err(broken);
    let output = stdio.next().map_or_else(|| copy(&input), Ok)?;
    let errors = stdio.next().map_or_else(|| copy(&output), Ok)?;
    let mut child = Command::new(program);
    child.args(arguments).env_clear().envs(spec.environment.iter().map(|(name, value)| (name, value)));
    child.stdin(Stdio::from(input)).stdout(output).stderr(errors);
    let become_user = preparation(spec.user.clone(), spec.work_dir.clone());
    // SAFETY: this process has one thread, so its child may do whatever this process may.
    unsafe { child.pre_exec(become_user) };
    if let Some(kind) = terminal {
        child.env("TERM", kind);
        // SAFETY: as above. It comes second: by then the child leads a session of its own.
        unsafe { child.pre_exec(take_terminal) };
    }
    let child = child.spawn().map_err(|error| {
        let exit_code = if error.kind() == io::ErrorKind::NotFound { 127 } else { 126 };
        failed(format!("cannot run {program:?} in {}: {error}", spec.work_dir.display()), exit_code)
    })?;
    Ok(Pid::from_raw(child.id().cast_signed()))
}

/// Makes standard input the terminal that controls this session.
fn take_terminal() -> io::Result<()> {
    // SAFETY: the call takes numbers only.
    Ok(Errno::result(unsafe { libc::ioctl(libc::STDIN_FILENO, libc::TIOCSCTTY, 0) }).map(drop)?)
}

/// Waits until the command has ended; `None` if it must be ended, because the agent or the job ends.
fn follow(command: Pid, agent: &UnixStream, signals: &SignalFd, lifeline: &OwnedFd) -> Option<Reply> {
    let mut ends_at: Option<Instant> = None;
    loop {
        let mut sources =
            vec![PollFd::new(signals.as_fd(), PollFlags::POLLIN), PollFd::new(lifeline.as_fd(), PollFlags::POLLIN)];
        // The agent sends nothing more, so a readable connection means its end.
        let timeout = match ends_at {
            None => {
                sources.push(PollFd::new(agent.as_fd(), PollFlags::POLLIN));
                PollTimeout::NONE
            }
            Some(at) => {
                let left = at.checked_duration_since(Instant::now())?;
                PollTimeout::try_from(left).unwrap_or(PollTimeout::ZERO)
            }
        };
        let _ = poll(&mut sources, timeout);
        let has_happened = |source: usize| {
            let events = sources.get(source).and_then(|source| source.revents());
            events.is_some_and(|events| !events.is_empty())
        };
        if has_happened(1) {
            return None;
        }
        if has_happened(2) {
            let _ = killpg(command, Signal::SIGHUP);
            ends_at = Some(Instant::now() + FAREWELL);
        }
        // Only the end of children matters here. Other signals are meant for the job.
        while let Ok(Some(_)) = signals.read_signal() {}
        loop {
            match waitpid(None, Some(WaitPidFlag::WNOHANG)) {
                Ok(WaitStatus::Exited(pid, code)) if pid == command => return Some(Reply::Exited(code)),
                Ok(WaitStatus::Signaled(pid, signal, _)) if pid == command => {
                    return Some(Reply::Killed(signal as u32));
                }
                Ok(WaitStatus::StillAlive) | Err(_) => break,
                Ok(_) => {}
            }
        }
    }
}

/// Connects to a port, as the job's user and in the job's network.
fn connect(spec: &LaunchSpec, port: u16) -> Result<TcpStream, String> {
    if let Some(container) = &spec.container {
        enter_network(spec, container)?;
    }
    let user = spec.container.as_ref().map_or(&spec.user, |container| &container.user);
    become_user(user).map_err(|error| format!("cannot become user {}: {error}", user.uid))?;
    let to = |address: IpAddr| TcpStream::connect_timeout(&SocketAddr::new(address, port), CONNECT_PATIENCE);
    let connected = to(Ipv4Addr::LOCALHOST.into());
    connected.or_else(|error| to(Ipv6Addr::LOCALHOST.into()).map_err(|_| error)).map_err(|error| match error.kind() {
        io::ErrorKind::ConnectionRefused => format!("nothing listens at port {port} where the job is"),
        _ => format!("cannot connect to port {port} where the job is: {error}"),
    })
}

/// Enters the network of the job's container, unless that is the node's.
fn enter_network(spec: &LaunchSpec, container: &ContainerAccess) -> Result<(), String> {
    let words = container.inspect();
    let (program, arguments) = words.split_first().ok_or("the node runs no containers any more")?;
    let mut podman = Command::new(program);
    podman.args(arguments).env_clear().envs(spec.environment.iter().map(|(name, value)| (name, value)));
    let output = podman.stdin(Stdio::null()).output().map_err(|error| format!("cannot run {program}: {error}"))?;
    let pid = String::from_utf8_lossy(&output.stdout).trim().parse::<u32>().ok().filter(|pid| *pid > 0);
    let Some(pid) = pid.filter(|_| output.status.success()) else {
        let said = String::from_utf8_lossy(&output.stderr).trim_end().to_owned();
        return Err(format!("the job's container does not run: {said}"));
    };
    let failed = |error: io::Error| format!("cannot enter the network of the job's container: {error}");
    let network = File::open(format!("/proc/{pid}/ns/net")).map_err(failed)?;
    let (own, other) = (fs::metadata("/proc/self/ns/net").map_err(failed)?, network.metadata().map_err(failed)?);
    if (own.dev(), own.ino()) == (other.dev(), other.ino()) {
        return Ok(());
    }
    setns(network, CloneFlags::CLONE_NEWNET).map_err(|errno| failed(errno.into()))
}
