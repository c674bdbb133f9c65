//! The scheduler and the nodes.

use std::fs::{self, Permissions};
use std::io;
use std::net::{SocketAddr, TcpListener};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

use aliquot_agent::kill_descendants;
use aliquot_proto::scheduler::v1::{CreateJoinTokenRequest, ListNodesRequest, NodeState};
use nix::sys::prctl::set_child_subreaper;
use tempfile::TempDir;

use super::daemon::{Daemon, Start};
use super::programs::Programs;
use crate::args::DevArgs;
use crate::client;
use crate::cluster::{connect, failed};
use crate::embedded::runtime_dir;
use crate::error::{Failure, Result};
use crate::run::{Supervisor, reap_adopted};
use crate::simulated::SimulatedGpu;

/// How long the cluster may take to start.
const START_PATIENCE: Duration = Duration::from_secs(60);
/// How long the daemons may take to end before they are killed.
const END_PATIENCE: Duration = Duration::from_secs(5);
/// Time between two looks.
const LOOK_INTERVAL: Duration = Duration::from_millis(50);

/// The processes of the cluster, and their files. All are gone when this is dropped.
pub(super) struct Cluster<'run> {
    supervisor: &'run Supervisor,
    programs: &'run Programs,
    daemons: Vec<Daemon>,
    machines: Vec<SimulatedGpu>,
    dir: TempDir,
}

impl Drop for Cluster<'_> {
    fn drop(&mut self) {
        self.daemons.iter().for_each(Daemon::terminate);
        let begun = Instant::now();
        while self.daemons.iter_mut().any(|daemon| matches!(daemon.ended(), Ok(None))) && begun.elapsed() < END_PATIENCE
        {
            thread::sleep(LOOK_INTERVAL);
        }
        // Jobs outlive their node manager. They, and daemons that have not ended, are descendants of this process.
        kill_descendants();
    }
}

impl<'run> Cluster<'run> {
    /// A cluster without running processes yet.
    pub(super) fn new(supervisor: &'run Supervisor, programs: &'run Programs) -> Result<Cluster<'run>> {
        set_child_subreaper(true).map_err(|error| {
            Failure::new(format!("cannot become the parent of processes that jobs leave behind: {error}"))
        })?;
        let dir = runtime_dir("aliquot-dev-")?;
        Ok(Cluster { supervisor, programs, daemons: Vec::new(), machines: Vec::new(), dir })
    }

    /// The directory of the cluster's files.
    pub(super) fn dir(&self) -> &Path {
        self.dir.path()
    }

    /// The socket for the users of the scheduler.
    pub(super) fn scheduler_socket(&self) -> PathBuf {
        self.dir().join("scheduler.sock")
    }

    /// Starts everything. Returns whether all nodes are up; if not, a signal has asked for the end.
    pub(super) fn start(&mut self, args: &DevArgs) -> Result<bool> {
        let runtime = client::runtime()?;
        let address = self.start_scheduler()?;
        let socket = self.scheduler_socket();
        if !self.wait("the scheduler answers", || socket.exists() && runtime.block_on(connect(&socket)).is_ok())? {
            return Ok(false);
        }
        let request = CreateJoinTokenRequest { uses: args.nodes.into(), ..CreateJoinTokenRequest::default() };
        let token = runtime.block_on(async {
            connect(&socket).await?.create_join_token(request).await.map(tonic::Response::into_inner).map_err(failed)
        })?;
        for number in 1..=args.nodes {
            self.start_node(number, args.devices, address, &token.token)?;
        }
        let all = usize::from(args.nodes);
        self.wait("all nodes are up", || {
            let nodes = runtime.block_on(async {
                let nodes = connect(&socket).await?.list_nodes(ListNodesRequest::default()).await.map_err(failed)?;
                Ok::<_, Failure>(nodes.into_inner().nodes)
            });
            nodes.is_ok_and(|nodes| nodes.iter().filter(|node| node.state() == NodeState::Up).count() == all)
        })
    }

    /// Starts the daemons again that have ended.
    pub(super) fn restart_ended(&mut self) -> Result<()> {
        for daemon in &mut self.daemons {
            daemon.restart_ended(self.supervisor)?;
        }
        let own: Vec<_> = self.daemons.iter().map(Daemon::pid).collect();
        reap_adopted(&own);
        Ok(())
    }

    /// Starts the scheduler, and returns the address where it listens for nodes.
    fn start_scheduler(&mut self) -> Result<SocketAddr> {
        // The kernel does not give a port that was free a moment ago to another process so soon.
        let address = TcpListener::bind("127.0.0.1:0")
            .and_then(|listener| listener.local_addr())
            .map_err(|error| Failure::new(format!("cannot find a free port of 127.0.0.1: {error}")))?;
        let settings = format!(
            "listen = \"{address}\"\naddress = \"{address}\"\nsocket = {:?}\nstate_dir = {:?}\n",
            self.scheduler_socket(),
            self.dir().join("scheduler")
        );
        let program = self.programs.scheduler.clone();
        self.start_daemon("scheduler", program, &["serve"], &settings, Vec::new())?;
        Ok(address)
    }

    fn start_node(&mut self, number: u8, devices: u8, scheduler: SocketAddr, token: &str) -> Result<()> {
        let name = &format!("node-{number}");
        let machine = SimulatedGpu::make_in(self.dir(), devices)?;
        let mut settings = format!(
            "runtime_dir = {:?}\nstate_dir = {:?}\nnvml_library = {:?}\ncdi_dir = \"off\"\n\n[cluster]\nscheduler = \
             \"{scheduler}\"\ntoken = {token:?}\nnode_name = {name:?}\nallow_root = true\n\n[cluster.environment]\n",
            // Short, because the paths of sockets below it are long, and their length is limited.
            self.dir().join(format!("n{number}")),
            self.dir().join(name),
            machine.nvml_library(),
        );
        let environment = machine.environment();
        for (variable, value) in &environment {
            settings += &format!("{} = {:?}\n", variable.display(), value);
        }
        let program = self.programs.manager.clone();
        self.start_daemon(name, program, &[], &settings, environment.into())?;
        self.machines.push(machine);
        Ok(())
    }

    fn start_daemon(
        &mut self,
        name: &str,
        program: PathBuf,
        command: &[&str],
        settings: &str,
        environment: Vec<(std::ffi::OsString, std::ffi::OsString)>,
    ) -> Result<()> {
        let config = self.dir().join(format!("{name}.toml"));
        write(&config, settings)
            .map_err(|error| Failure::new(format!("cannot write {}: {error}", config.display())))?;
        let arguments = command.iter().map(|word| (*word).to_owned());
        let arguments = arguments.chain(["--config".to_owned(), config.display().to_string()]).collect();
        let log = self.dir().join(format!("{name}.log"));
        let start = Start { name: name.to_owned(), program, arguments, environment, log };
        self.daemons.push(Daemon::start(self.supervisor, start)?);
        Ok(())
    }

    /// Waits until `is_true` returns true. Returns false if a signal asks for the end first.
    fn wait(&mut self, what: &str, mut is_true: impl FnMut() -> bool) -> Result<bool> {
        let begun = Instant::now();
        while !is_true() {
            if self.supervisor.end_asked_for()?.is_some() {
                return Ok(false);
            }
            self.daemons.iter_mut().try_for_each(Daemon::check)?;
            if begun.elapsed() > START_PATIENCE {
                return Err(Failure::new(format!(
                    "after {} s it is still not true that {what}",
                    START_PATIENCE.as_secs()
                ))
                .hint(self.daemons.last().map(Daemon::last_words).unwrap_or_default()));
            }
            thread::sleep(LOOK_INTERVAL);
        }
        Ok(true)
    }
}

/// Writes a file that only this user can read: it may hold a token.
fn write(path: &Path, text: &str) -> io::Result<()> {
    fs::write(path, "")?;
    fs::set_permissions(path, Permissions::from_mode(0o600))?;
    fs::write(path, text)
}
