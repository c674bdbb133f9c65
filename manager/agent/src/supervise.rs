//! The supervisor: the process that starts one instance of a job, and ends it. It lives exactly as long as the job does,
//! whatever happens to the agent, and holds the end of the lease.
//!
//! ```text
//! supervisor ── init ─┬─ the command, and what it starts
//!                     └─ a companion for each command that a user runs beside it
//! ```
//!
//! *Init* is the first process of a pid namespace of the job's own, where this process may make one. So when init dies the
//! kernel kills all of the job, and init dies with the supervisor. Elsewhere, and where the command is podman, both look for each other's end, and the one
//! that remains kills what is left. Only if somebody kills both at the same moment, the rest of a job outlives them there.
//!
//! The process has one thread when it forks. The thread for the log comes later, so a disk that hangs holds up the log and
//! not the lease.

use std::io::{self, Read};
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
use nix::sys::signal::{SigSet, SigmaskHow, Signal, sigprocmask};
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

/// How long the log may take to write what is left when a job has ended.
const LOG_PATIENCE: Duration = Duration::from_secs(10);

/// What a supervisor is to do. It gets this on its standard input, because there are secrets in it.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct LaunchSpec {
    /// The program and its arguments.
    pub(crate) command: Vec<String>,
    /// All of its environment.
    pub(crate) environment: Vec<(String, String)>,
    /// Set if the command is podman.
    pub(crate) container_variables: Option<ContainerVariables>,
    /// Set if the command is podman: how the container is reached.
    pub(crate) container: Option<ContainerAccess>,
    /// Files for the job; `None`: it has none.
    pub(crate) secrets: Option<Secrets>,
    pub(crate) work_dir: PathBuf,
    pub(crate) user: Credentials,
    /// 0: none.
    pub(crate) time_limit_ms: u64,
    pub(crate) grace_ms: u64,
    pub(crate) lease_file: PathBuf,
    pub(crate) log_dir: PathBuf,
    pub(crate) log_bytes_max: u64,
    /// Where the agent listens for news.
    pub(crate) agent_socket: PathBuf,
}

/// The variables of a container. On podman's command line every user of the machine could read them, so podman finds them
/// in a file.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct ContainerVariables {
    /// A line each.
    pub(crate) lines: String,
    /// The word of the command in place of which the file's path stands.
    pub(crate) word: usize,
}

/// How podman reaches the container that runs.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct ContainerAccess {
    /// The program, and options before its subcommand.
    pub(crate) podman: Vec<String>,
    /// The name by which podman knows the container.
    pub(crate) name: String,
    /// Whose job it is.
    pub(crate) user: Credentials,
}

/// Whose processes a job's are.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Credentials {
    pub(crate) uid: u32,
    pub(crate) gid: u32,
    pub(crate) groups: Vec<u32>,
}

impl Credentials {
    /// Those of this process.
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
            // Before the job has a view of file systems of its own: what is removed here is gone there, too.
            let end = match spec.secrets.as_ref().map_or(Ok(()), Secrets::write) {
                Ok(()) => supervise(&dir, signals, spec),
                // Another node may be able to keep them.
                Err(why) => End::refused(why),
            };
            if let Some(Err(error)) = secrets.as_deref().map(secrets::remove) {
                eprintln!("aliquot-manager: cannot remove the secrets of {}: {error}", dir.path().display());
            }
            (end, Some(socket))
        }
        Err(why) => (dir.stop().map_or_else(|| End::failed(why), End::unknown), None),
    };
    if let Err(error) = dir.note_end(&end) {
        eprintln!("aliquot-manager: cannot note how {} has ended: {error}", dir.path().display());
        return ExitCode::FAILURE;
    }
    if let Some(socket) = agent_socket {
        tell(&socket);
    }
    ExitCode::SUCCESS
}

/// Wakes the agent. If it does not listen, it looks by itself later.
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
            // Init may be there already.
            kill_descendants();
            End::failed(why)
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
    /// What init says.
    said: Option<OwnedFd>,
    words: Vec<u8>,
    started_unix_ms: u64,
    status: Option<Said>,
    reason: Option<Reason>,
    log_ended: Receiver<()>,
    /// Init takes the closing of this pipe for the end of its supervisor.
    _lifeline: OwnedFd,
}

impl Supervisor<'_> {
    /// Waits for the spec. If it does not come, the agent has ended, or does not want the instance any more.
    fn prepare() -> Result<(SignalFd, LaunchSpec), String> {
        // An error means that it leads a session already.
        let _ = setsid();
        let mut mask = SigSet::empty();
        for signal in [Signal::SIGCHLD, Signal::SIGTERM, Signal::SIGINT, Signal::SIGHUP, Signal::SIGQUIT] {
            mask.add(signal);
        }
        let failed = |what: &str, error: Errno| format!("cannot {what}: {error}");
        sigprocmask(SigmaskHow::SIG_SETMASK, Some(&mask), None).map_err(|error| failed("block signals", error))?;
        let signals = SignalFd::with_flags(&mask, SfdFlags::SFD_CLOEXEC | SfdFlags::SFD_NONBLOCK)
            .map_err(|error| failed("receive signals", error))?;
        set_child_subreaper(true).map_err(|error| failed("adopt what the job leaves behind", error))?;
        let mut spec = Vec::new();
        io::stdin().read_to_end(&mut spec).map_err(|error| format!("cannot read what to start: {error}"))?;
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
        // Without it the job runs all the same; who wants to run something beside it is told that it does not listen.
        let requests = requests::listen(dir.path()).ok();
        // Podman notes the ids of a container's processes for its other commands: they must be the machine's.
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
        // A process whose children go into another namespace may make no thread.
        namespace.map_or(Ok(()), init::leave_namespace).map_err(errno("return to the machine's pid namespace"))?;
        // It waits until whoever comes after this process would find it.
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
                    // Without a reason, whoever sent it is not the scheduler: the machine is being shut down, perhaps.
                    self.terminate(self.dir.stop().unwrap_or(Reason::Lost));
                }
            }
        }
        kill_descendants();
        self.read_words();
        // All that could write has ended; only a disk that hangs makes this long.
        let _ = self.log_ended.recv_timeout(LOG_PATIENCE);
        self.end()
    }

    fn end(self) -> End {
        let mut end = End { started_unix_ms: self.started_unix_ms, ..End::unknown(Reason::Exited) };
        match self.status {
            Some(Said::Failed(why)) if self.reason.is_none() => return End::failed(why),
            Some(Said::Exited(code)) => end.exit_code = Some(code),
            Some(Said::Killed(signal)) => end.signal = signal,
            // Init was killed, by this process or by somebody else, and the command with it.
            _ => end.signal = Signal::SIGKILL as u32,
        }
        end.reason = self.reason.unwrap_or(Reason::Exited);
        end
    }

    /// Does what is due, and sets the timer for what comes next.
    fn follow_lease(&mut self) {
        // A lease that cannot be read was not extended.
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
        // If it cannot be set, `wait` does not wait for long.
        let _ = self.timer.set(Expiration::OneShot(at), TimerSetTimeFlags::TFD_TIMER_ABSTIME);
    }

    fn terminate(&mut self, reason: Reason) {
        self.reason.get_or_insert(reason);
        if self.deadlines.terminated(clock::boot_ms()) {
            let _ = nix::sys::signal::kill(self.init, Signal::SIGTERM);
        }
    }

    /// What the job leaves behind where it has no namespace of its own.
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
        // An interruption or an error: the caller looks at everything again. The limit holds if there is no timer.
        let _ = poll(&mut sources, PollTimeout::from(1000_u16));
        let mut expirations = [0; 8];
        let _ = nix::unistd::read(&self.timer, &mut expirations);
    }

    /// Takes in what init has said so far.
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
                    // Only the agent's news: without the file it learns of the end all the same.
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
