//! The supervisor: the process that starts one instance of a job, and ends it. It lives exactly as long as the job
//! does, whatever happens to the agent, and ends the job before the lease lapses.
//!
//! ```text
//! supervisor ── init ─┬─ the command, and what it starts
//!                     └─ a companion for each command that a user runs beside it
//! ```
//!
//! *Init* is the first process of a pid namespace of the job's own, where this process may make one. Init dies with the
//! supervisor, and when init dies, the kernel kills the whole job. Where there is no such namespace, and where the
//! command is podman, supervisor and init watch each other, and the one that remains kills the rest. There, the rest of
//! a job survives only if both are killed at the same moment.
//!
//! The process has only one thread when it forks. The thread for the log comes later, so a disk that hangs delays the
//! log and not the lease.

use std::io::{self, Read, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixDatagram;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::mpsc::{self, Receiver};
use std::thread;
use std::time::Duration;

use nix::errno::Errno;
use nix::fcntl::OFlag;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::prctl::set_child_subreaper;
use nix::sys::signal::{SigHandler, SigSet, SigmaskHow, Signal, signal, sigprocmask};
use nix::sys::signalfd::{SfdFlags, SignalFd};
use nix::sys::time::TimeSpec;
use nix::sys::timerfd::{ClockId, Expiration, TimerFd, TimerFlags, TimerSetTimeFlags};
use nix::sys::wait::{WaitPidFlag, WaitStatus, waitpid};
use nix::unistd::{ForkResult, Pid, fork, pipe2, setsid};
use serde::{Deserialize, Serialize};

use crate::clock;
use crate::instance::{End, InstanceDir, Reason};
use crate::lease::{Lease, LeaseFile};
use crate::logs;
use crate::process::{ProcessId, kill_descendants};
use crate::secrets::{self, Secrets};

mod companion;
mod deadlines;
mod init;
pub(crate) mod requests;

use deadlines::{Deadlines, Step};
use init::{Ends, Said};

/// How long the log may take to write the rest when a job has ended.
const LOG_PATIENCE: Duration = Duration::from_secs(10);

/// The task of a supervisor. It gets this on its standard input, because the spec contains secrets.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct LaunchSpec {
    /// The program and its arguments.
    pub(crate) command: Vec<String>,
    /// All variables of the command, as names and values.
    pub(crate) environment: Vec<(String, String)>,
    /// The container's variables; set if the command is podman.
    pub(crate) container_variables: Option<ContainerVariables>,
    /// How to reach the container; set if the command is podman.
    pub(crate) container: Option<ContainerAccess>,
    /// Secret files for the job; `None` if it has none.
    pub(crate) secrets: Option<Secrets>,
    pub(crate) work_dir: PathBuf,
    /// The name of the node, for people.
    pub(crate) node: String,
    pub(crate) user: Credentials,
    /// The time limit; 0 if there is none.
    pub(crate) time_limit_ms: u64,
    pub(crate) grace_ms: u64,
    pub(crate) lease_file: PathBuf,
    pub(crate) log_dir: PathBuf,
    pub(crate) log_bytes_max: u64,
    /// The socket where the agent listens for news.
    pub(crate) agent_socket: PathBuf,
}

/// The variables of a container. Every user of the machine could read them on podman's command line, so podman reads
/// them from a file.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct ContainerVariables {
    /// The variables, one line each.
    pub(crate) lines: String,
    /// The position of the command's word that stands for the file's path.
    pub(crate) word: usize,
}

/// How podman reaches the container that runs.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct ContainerAccess {
    /// The program, and options before its subcommand.
    pub(crate) podman: Vec<String>,
    /// The name by which podman knows the container.
    pub(crate) name: String,
    /// The user that the job belongs to.
    pub(crate) user: Credentials,
}

/// The user and the groups of a job's processes.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Credentials {
    pub(crate) uid: u32,
    pub(crate) gid: u32,
    pub(crate) groups: Vec<u32>,
}

impl Credentials {
    /// The credentials of this process.
    pub(crate) fn of_this_process() -> Credentials {
        let gid = nix::unistd::getegid().as_raw();
        Credentials { uid: nix::unistd::geteuid().as_raw(), gid, groups: vec![gid] }
    }
}

/// Supervises the instance in the directory `dir` to its end.
#[must_use]
pub fn main(dir: &Path) -> ExitCode {
    let dir = InstanceDir::at(dir);
    let (end, agent_socket) = match Supervisor::prepare() {
        Ok((signals, spec)) => {
            let socket = spec.agent_socket.clone();
            let secrets = spec.secrets.as_ref().map(|secrets| secrets.dir.clone());
            // Done before the job has its own view of file systems, so a later removal here takes effect there too.
            let end = match spec.secrets.as_ref().map_or(Ok(()), Secrets::write) {
                Ok(()) => supervise(&dir, signals, spec),
                // Another node may be able to keep the secrets.
                Err(why) => End::refused(why),
            };
            if let Some(Err(error)) = secrets.as_deref().map(secrets::remove) {
                complain(&format!("cannot remove the secrets of {}: {error}", dir.path().display()));
            }
            (end, Some(socket))
        }
        // The job has done nothing, and may start on another node.
        Err(why) => (dir.stop().map_or_else(|| End::refused(why), End::unknown), None),
    };
    if let Err(error) = dir.note_end(&end) {
        complain(&format!("cannot note how {} has ended: {error}", dir.path().display()));
        return ExitCode::FAILURE;
    }
    if let Some(socket) = agent_socket {
        tell(&socket);
    }
    ExitCode::SUCCESS
}

/// Says on standard error what is wrong. Its reader may be gone, and the job must be brought to its end all the same.
fn complain(what: &str) {
    let _ = writeln!(io::stderr(), "aliquot-manager: {what}");
}

/// Wakes the agent. If the agent does not listen, it looks by itself later.
fn tell(agent_socket: &Path) {
    let _ = UnixDatagram::unbound().and_then(|socket| {
        socket.set_nonblocking(true)?;
        socket.send_to(&[1], agent_socket)
    });
}

fn supervise(dir: &InstanceDir, signals: SignalFd, spec: LaunchSpec) -> End {
    match Supervisor::start(dir, signals, spec) {
        Ok(supervisor) => supervisor.run(),
        Err(why) => {
            // Init may run already, but not the command.
            kill_descendants();
            End::refused(why)
        }
    }
}

/// A supervisor with its job.
struct Supervisor<'dir> {
    dir: &'dir InstanceDir,
    agent_socket: PathBuf,
    signals: SignalFd,
    timer: TimerFd,
    lease_file: LeaseFile,
    lease: Lease,
    deadlines: Deadlines,
    init: Pid,
    /// The pipe on which init reports.
    said: Option<OwnedFd>,
    words: Vec<u8>,
    started_unix_ms: u64,
    status: Option<Said>,
    reason: Option<Reason>,
    log_ended: Receiver<()>,
    /// The pipe that init watches: when it is closed, the supervisor has ended.
    _lifeline: OwnedFd,
}

impl Supervisor<'_> {
    /// Waits for the spec. If it does not come, the agent has ended, or does not want the instance any more.
    fn prepare() -> Result<(SignalFd, LaunchSpec), String> {
        // An error means that this process leads a session already.
        let _ = setsid();
        let mut mask = SigSet::empty();
        for signal in [Signal::SIGCHLD, Signal::SIGTERM, Signal::SIGINT, Signal::SIGHUP, Signal::SIGQUIT] {
            mask.add(signal);
        }
        let failed = |what: &str, error: Errno| format!("cannot {what}: {error}");
        // Where the node manager's parent ignored the signal, so would this process and init, and the kernel would keep
        // the command's exit code from them.
        // SAFETY: no handler is installed, and none is replaced.
        unsafe { signal(Signal::SIGCHLD, SigHandler::SigDfl) }.map_err(|error| failed("hear of children", error))?;
        sigprocmask(SigmaskHow::SIG_SETMASK, Some(&mask), None).map_err(|error| failed("block signals", error))?;
        let signals = SignalFd::with_flags(&mask, SfdFlags::SFD_CLOEXEC | SfdFlags::SFD_NONBLOCK)
            .map_err(|error| failed("receive signals", error))?;
        set_child_subreaper(true).map_err(|error| failed("adopt what the job leaves behind", error))?;
        let mut spec = Vec::new();
        io::stdin()
            .read_to_end(&mut spec)
            .map_err(|error| format!("cannot read the description of the job: {error}"))?;
        let spec = serde_json::from_slice(&spec)
            .map_err(|_| "the node manager has ended before it could start the job".to_owned())?;
        Ok((signals, spec))
    }

    fn start(dir: &InstanceDir, signals: SignalFd, spec: LaunchSpec) -> Result<Supervisor<'_>, String> {
        let errno = |what: &'static str| move |error: Errno| format!("cannot {what}: {error}");
        let lease_file =
            LeaseFile::open(&spec.lease_file).map_err(|error| format!("cannot read the lease: {error}"))?;
        let lease = lease_file.read().ok_or("the node holds no lease")?;
        let log = logs::Writer::open(&spec.log_dir, spec.log_bytes_max)
            .map_err(|error| format!("cannot write the log {}: {error}", spec.log_dir.display()))?;
        let timer = TimerFd::new(ClockId::CLOCK_BOOTTIME, TimerFlags::TFD_CLOEXEC | TimerFlags::TFD_NONBLOCK)
            .map_err(errno("make a timer"))?;
        let (output, output_end) = pipe2(OFlag::O_CLOEXEC).map_err(errno("make a pipe"))?;
        let (said, said_end) = pipe2(OFlag::O_CLOEXEC).map_err(errno("make a pipe"))?;
        let (lifeline_end, lifeline) = pipe2(OFlag::O_CLOEXEC).map_err(errno("make a pipe"))?;
        // The job also runs without this socket. A user who wants to run a command beside it then gets an error.
        let requests = requests::listen(dir.path()).ok();
        // Podman notes the ids of a container's processes for its other commands, so these must be the machine's ids.
        let namespace = if spec.container_variables.is_none() { init::make_namespace() } else { None };
        // SAFETY: this process has one thread, so the child may do whatever this process may.
        let init = match unsafe { fork() }.map_err(errno("start a process"))? {
            ForkResult::Parent { child } => child,
            ForkResult::Child => {
                drop((said, lifeline, output));
                let ends = Ends { signals, lifeline: lifeline_end, said: said_end, output: output_end, requests };
                init::main(&spec, namespace.is_some(), ends)
            }
        };
        drop((said_end, lifeline_end, output_end, requests));
        // A process whose children go into another namespace cannot start threads.
        namespace.map_or(Ok(()), init::leave_namespace).map_err(errno("return to the machine's pid namespace"))?;
        // Init waits until it is noted, so that the next agent finds it if this process is killed.
        let process = ProcessId::of(init.as_raw()).ok_or("the job's first process has ended at once")?;
        dir.note_init(process).map_err(|error| format!("cannot note the job's first process: {error}"))?;
        let (log_has_ended, log_ended) = mpsc::channel();
        let written = thread::Builder::new().name("log".into()).spawn(move || {
            write_log(output, log);
            drop(log_has_ended);
        });
        written.map_err(|error| format!("cannot start a thread: {error}"))?;
        nix::unistd::write(&lifeline, &[init::GO]).map_err(errno("start the job"))?;
        Ok(Supervisor {
            dir,
            agent_socket: spec.agent_socket,
            signals,
            timer,
            lease_file,
            lease,
            deadlines: Deadlines::new(spec.time_limit_ms, spec.grace_ms),
            init,
            said: Some(said),
            words: Vec::new(),
            started_unix_ms: 0,
            status: None,
            reason: None,
            log_ended,
            _lifeline: lifeline,
        })
    }

    fn run(mut self) -> End {
        loop {
            self.follow_lease();
            let init_status = waitpid(self.init, Some(WaitPidFlag::WNOHANG));
            if !matches!(init_status, Ok(WaitStatus::StillAlive) | Err(Errno::EINTR)) {
                break;
            }
            self.reap_orphans();
            self.wait();
            self.read_words();
            while let Ok(Some(info)) = self.signals.read_signal() {
                if info.ssi_signo != Signal::SIGCHLD as u32 {
                    // Without a reason, the signal does not come from the scheduler: perhaps the machine is shutting
                    // down.
                    self.terminate(self.dir.stop().unwrap_or(Reason::Lost));
                }
            }
        }
        kill_descendants();
        self.read_words();
        // All writers have ended. Only a disk that hangs makes this wait long.
        let _ = self.log_ended.recv_timeout(LOG_PATIENCE);
        self.end()
    }

    fn end(self) -> End {
        let mut end = End { started_unix_ms: self.started_unix_ms, ..End::unknown(Reason::Exited) };
        match self.status {
            Some(Said::Failed(why)) if self.reason.is_none() => return End::failed(why),
            Some(Said::Refused(why)) if self.reason.is_none() => return End::refused(why),
            Some(Said::Exited(code)) => end.exit_code = Some(code),
            Some(Said::Killed(signal)) => end.signal = signal,
            // This process or another one has killed init, and the command with it.
            _ => end.signal = Signal::SIGKILL as u32,
        }
        end.reason = self.reason.unwrap_or(Reason::Exited);
        end
    }

    /// Executes the due steps, and sets the timer for the next deadline.
    fn follow_lease(&mut self) {
        // If the lease cannot be read, the last known one counts.
        self.lease = self.lease_file.read().unwrap_or(self.lease);
        let now_ms = clock::boot_ms();
        match self.deadlines.step(now_ms, self.lease) {
            Some(Step::Terminate(reason)) => self.terminate(reason),
            Some(Step::Kill(reason)) => {
                self.reason.get_or_insert(reason);
                let _ = nix::sys::signal::kill(self.init, Signal::SIGKILL);
            }
            None => {}
        }
        let next_ms = self.deadlines.next_ms(self.lease).max(now_ms + 1);
        let at = TimeSpec::from_duration(Duration::from_millis(next_ms));
        // If the timer cannot be set, `wait` still returns after a short time.
        let _ = self.timer.set(Expiration::OneShot(at), TimerSetTimeFlags::TFD_TIMER_ABSTIME);
    }

    fn terminate(&mut self, reason: Reason) {
        self.reason.get_or_insert(reason);
        if self.deadlines.terminated(clock::boot_ms()) {
            let _ = nix::sys::signal::kill(self.init, Signal::SIGTERM);
        }
    }

    /// Takes the status of processes that the job leaves behind where it has no namespace of its own.
    fn reap_orphans(&self) {
        use nix::sys::wait::{Id, waitid};
        let ended = || waitid(Id::All, WaitPidFlag::WEXITED | WaitPidFlag::WNOHANG | WaitPidFlag::WNOWAIT);
        while let Ok(Some(ended)) = ended().map(|status| status.pid())
            && ended != self.init
            && waitpid(ended, Some(WaitPidFlag::WNOHANG)).is_ok()
        {}
    }

    fn wait(&self) {
        let mut sources = vec![
            PollFd::new(self.signals.as_fd(), PollFlags::POLLIN),
            PollFd::new(self.timer.as_fd(), PollFlags::POLLIN),
        ];
        sources.extend(self.said.as_ref().map(|said| PollFd::new(said.as_fd(), PollFlags::POLLIN)));
        // After an interruption or an error the caller looks at everything again. The timeout is for the case that
        // there is no timer.
        let _ = poll(&mut sources, PollTimeout::from(1000_u16));
        let mut expirations = [0; 8];
        let _ = nix::unistd::read(&self.timer, &mut expirations);
    }

    /// Reads init's reports so far.
    fn read_words(&mut self) {
        let Some(said) = &self.said else { return };
        let is_there = |said: &OwnedFd| {
            let mut source = [PollFd::new(said.as_fd(), PollFlags::POLLIN)];
            poll(&mut source, PollTimeout::ZERO).is_ok_and(|ready| ready > 0)
        };
        let mut has_ended = false;
        let mut bytes = [0; 4096];
        while !has_ended && is_there(said) {
            match nix::unistd::read(said, &mut bytes) {
                Ok(0) | Err(_) => has_ended = true,
                Ok(count) => self.words.extend(&bytes[..count]),
            }
        }
        if has_ended {
            self.said = None;
        }
        while let Some(line_end) = self.words.iter().position(|byte| *byte == b'\n') {
            let line: Vec<u8> = self.words.drain(..=line_end).collect();
            match serde_json::from_slice(&line) {
                Ok(Said::Started(unix_ms)) => {
                    self.started_unix_ms = unix_ms;
                    self.deadlines.started(clock::boot_ms());
                    // Only for the agent's news: without the file the agent still learns of the end.
                    let _ = self.dir.note_started(unix_ms);
                    tell(&self.agent_socket);
                }
                Ok(other) => self.status = Some(other),
                Err(_) => {}
            }
        }
    }
}

fn write_log(output: OwnedFd, mut log: logs::Writer) {
    let mut bytes = vec![0; 64 << 10];
    loop {
        match nix::unistd::read(&output, &mut bytes) {
            Ok(0) => return,
            Ok(count) => log.append(&bytes[..count]),
            Err(Errno::EINTR) => {}
            Err(_) => return,
        }
    }
}
