//! A node manager in its own process, and its slices.

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use aliquot_abi::ledger;
use aliquot_abi::region::{LEDGER_FILE, LIMITS_FILE, Ledger, Limits};
use aliquot_fake_machine::CONFIG_VARIABLE;
use aliquot_proto::node::v1::{self as proto, CreateSliceRequest, Part};
use rustix::process::Signal;
use tempfile::TempDir;

use crate::process::Process;
use crate::{Client, HostProgram, Mapped, SimulatedGpu, artifacts, region, tool, wait};

/// System calls that change a file system.
const CHANGES: &str =
    "mkdir,mkdirat,rename,renameat,renameat2,unlink,unlinkat,rmdir,fsync,fdatasync,ftruncate,fallocate,link,symlink";

/// Deletes `dir`, which lies in a manager's runtime directory. It is moved away as a whole first. The manager may put
/// another one in its place at any time, and a deletion of one file after the other could then fail halfway.
#[track_caller]
pub fn delete_at_once(dir: &Path) {
    const IN_RUNTIME_DIR: [&str; 2] = ["lib", "slices"];
    let is_in_runtime_dir = |dir: &&Path| IN_RUNTIME_DIR.iter().any(|name| dir.ends_with(name));
    let runtime_dir = dir.ancestors().find(is_in_runtime_dir).and_then(Path::parent);
    // On the same file system, and where the manager looks after nothing.
    let aside = TempDir::new_in(runtime_dir.expect("a runtime directory")).expect("a temporary directory");
    fs::rename(dir, aside.path().join("deleted")).expect("a directory that can be moved");
    aside.close().expect("a directory that can be deleted");
}

/// A running `aliquot-manager` with its own directories and the simulated machine's devices. Dropping this removes its
/// slices and kills it.
pub struct Node {
    dir: TempDir,
    gpu_config: PathBuf,
    /// `None` while no manager runs.
    manager: Option<Process>,
}

/// A slice, as the manager made it.
pub struct Slice {
    slice: proto::Slice,
    limits: Mapped<Limits>,
    ledger: Mapped<Ledger>,
}

impl Node {
    /// Starts a manager of the devices of `gpu` that publishes no CDI devices.
    #[must_use]
    pub fn start(gpu: &SimulatedGpu) -> Node {
        Node::with(gpu, "cdi_dir = 'off'\n")
    }

    /// Starts a manager with the configuration keys `settings`, added to the paths that separate it from other
    /// managers.
    #[must_use]
    pub fn with(gpu: &SimulatedGpu, settings: &str) -> Node {
        let dir = tempfile::Builder::new()
            .prefix("aliquot-node-")
            .permissions(Permissions::from_mode(0o755))
            .tempdir_in(region::base())
            .expect("a temporary directory");
        let mut node = Node { dir, gpu_config: gpu.config_file(), manager: None };
        let paths = format!(
            "runtime_dir = {:?}\nstate_dir = {:?}\nnvml_library = {:?}\n{settings}",
            node.runtime_dir(),
            node.state_dir(),
            gpu.nvml_library(),
        );
        fs::write(node.config_file(), paths).expect("the manager's configuration");
        node.restart();
        node
    }

    /// Starts the manager again, after [`Node::kill`] or [`Node::stop`], and waits until it answers.
    pub fn restart(&mut self) {
        self.start_manager(artifacts::manager());
    }

    /// Kills the manager, if one runs, and starts a version that carries another shim. Waits until it answers.
    pub fn upgrade(&mut self) {
        if self.manager.is_some() {
            self.kill();
        }
        self.start_manager(artifacts::manager_with_another_shim());
    }

    fn start_manager(&mut self, program: &Path) {
        assert!(self.manager.is_none(), "the manager runs already");
        let manager = Process::start(&mut self.command(program));
        self.take_over(manager);
    }

    /// Notes this process as the node's manager, and waits until it answers.
    fn take_over(&mut self, mut manager: Process) {
        wait::until_true("the manager answers", || {
            assert!(!manager.has_ended(), "the manager has ended:\n{}{}", manager.output(), manager.errors());
            Client::connect(&self.socket()).is_some_and(|mut client| client.node().is_ok())
        });
        self.manager = Some(manager);
    }

    fn command(&self, program: &Path) -> Command {
        let mut command = Command::new(program);
        command.arg("--config").arg(self.config_file()).env(CONFIG_VARIABLE, &self.gpu_config);
        command
    }

    /// Starts another manager, which stands by until this one has ended, and waits until it does.
    #[must_use]
    pub fn stand_by(&self) -> Process {
        let mut command = self.command(artifacts::manager());
        let manager = Process::start(command.arg("--stand-by"));
        wait::until_true("another manager stands by", || {
            (manager.output() + &manager.errors()).contains("standing by for another manager")
        });
        manager
    }

    /// Stops the manager, and waits until the one that stands by has taken over.
    pub fn hand_over(&mut self, next: Process) {
        self.stop();
        self.take_over(next);
    }

    /// Starts a relay between kubelet and the node's managers, for a pod with this UID.
    #[must_use]
    pub fn relay(&self, pod_uid: &str) -> Process {
        Process::start(self.command(artifacts::manager()).arg("--relay").env("POD_UID", pod_uid))
    }

    /// Kills the manager with SIGKILL. Processes in its slices keep running.
    pub fn kill(&mut self) {
        let manager = self.manager.take().expect("the manager runs");
        let _ = manager.kill();
    }

    /// Asks the manager to stop, and waits until it has.
    pub fn stop(&mut self) {
        let manager = self.manager.take().expect("the manager runs");
        manager.signal(Signal::TERM);
        let _ = manager.wait().success();
    }

    /// The manager's process id.
    #[must_use]
    pub fn manager_id(&self) -> u32 {
        self.manager.as_ref().expect("the manager runs").id()
    }

    /// Kills the manager when one of its threads is about to make a system call that changes a file system for the
    /// `number`-th time, counted for each thread and each system call separately. The returned process ends with the
    /// manager. Dropping it earlier prevents the kill.
    #[must_use]
    pub fn kill_at_step(&self, number: u32) -> Process {
        let inject = format!("inject={CHANGES}:signal=KILL:when={number}");
        let mut command = Command::new(tool("strace", "strace"));
        command.args(["-f", "-o", "/dev/null", "-e", &inject, "-p", &self.manager_id().to_string()]);
        let killer = Process::start(&mut command);
        wait::until_true("strace has attached", || killer.errors().contains("attached"));
        killer
    }

    /// The manager's output since its last start.
    #[must_use]
    pub fn log(&self) -> String {
        self.manager.as_ref().map(|manager| manager.output() + &manager.errors()).unwrap_or_default()
    }

    /// A connection to the manager.
    #[must_use]
    pub fn client(&self) -> Client {
        Client::connect(&self.socket()).expect("the manager listens")
    }

    /// The path of the manager's socket.
    #[must_use]
    pub fn socket(&self) -> PathBuf {
        self.runtime_dir().join("manager.sock")
    }

    /// Makes a slice of one device. `core_percent` is both the guaranteed share and the limit.
    #[must_use]
    pub fn slice(&self, name: &str, core_percent: u32, memory_limit_bytes: u64) -> Slice {
        let part = Part { core_request_percent: core_percent, memory_limit_bytes, ..Part::default() };
        self.slice_of(name, vec![part])
    }

    /// Makes a slice of these parts.
    #[must_use]
    pub fn slice_of(&self, name: &str, parts: Vec<Part>) -> Slice {
        self.slice_by(CreateSliceRequest { name: name.to_owned(), parts, ..CreateSliceRequest::default() })
    }

    /// Makes a slice of 50 % of a device in which the user `uid` may run programs too.
    #[must_use]
    pub fn slice_for(&self, uid: u32, name: &str, memory_limit_bytes: u64) -> Slice {
        let part = Part { core_request_percent: 50, memory_limit_bytes, ..Part::default() };
        self.slice_by(CreateSliceRequest {
            name: name.to_owned(),
            parts: vec![part],
            allowed_uids: vec![uid],
            ..CreateSliceRequest::default()
        })
    }

    fn slice_by(&self, request: CreateSliceRequest) -> Slice {
        let name = request.name.clone();
        let created = self.client().create(request);
        Slice::open(created.unwrap_or_else(|status| panic!("cannot make the slice {name}: {}", status.message())))
    }

    /// The directory with sockets and regions.
    #[must_use]
    pub fn runtime_dir(&self) -> PathBuf {
        self.dir.path().join("run")
    }

    /// The directory of the manager's checkpoint.
    #[must_use]
    pub fn state_dir(&self) -> PathBuf {
        self.dir.path().join("state")
    }

    fn config_file(&self) -> PathBuf {
        self.dir.path().join("manager.toml")
    }
}

impl Drop for Node {
    /// Removes the slices, so that none stays published.
    fn drop(&mut self) {
        if self.manager.is_none() {
            return;
        }
        if let Some(mut client) = Client::connect(&self.socket()) {
            for slice in client.slices().unwrap_or_default() {
                let _ = client.remove(&slice.name, true);
            }
        }
    }
}

impl Slice {
    /// The slice as the manager described it.
    #[must_use]
    pub fn open(slice: proto::Slice) -> Slice {
        let region = Path::new(&slice.region_path);
        let (limits, ledger) = (Mapped::open(&region.join(LIMITS_FILE)), Mapped::open(&region.join(LEDGER_FILE)));
        Slice { slice, limits, ledger }
    }

    /// Makes `command` run in this slice. The shim comes before libraries that `command` preloads already.
    pub fn preload_into<'a>(&self, command: &'a mut Command) -> &'a mut Command {
        region::preload(command, Path::new(&self.slice.stand_in_path));
        region::preload(command, self.shim())
    }

    /// Starts a program that keeps the slice's first device busy with kernels of 0.5 ms until it is dropped.
    #[must_use]
    pub fn busy(&self, gpu: &SimulatedGpu) -> Process {
        let mut command = HostProgram::linked(gpu, "busy").on(gpu);
        command.args(["500000", "0"]).env("CUDA_VISIBLE_DEVICES", &self.slice.parts[0].device_uuid);
        let mut process = Process::start(self.preload_into(&mut command));
        process.wait_for("busy");
        process
    }

    /// The name of the slice.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.slice.name
    }

    /// The slice as the manager described it.
    #[must_use]
    pub fn description(&self) -> &proto::Slice {
        &self.slice
    }

    /// The shim inside the slice's region.
    #[must_use]
    pub fn shim(&self) -> &Path {
        Path::new(&self.slice.shim_path)
    }

    /// The path of the slice's region.
    #[must_use]
    pub fn region_dir(&self) -> &Path {
        Path::new(&self.slice.region_path)
    }

    /// The limits in the slice's region.
    #[must_use]
    pub fn limits(&self) -> &Limits {
        &self.limits
    }

    /// The ledger in the slice's region.
    #[must_use]
    pub fn ledger(&self) -> &Ledger {
        &self.ledger
    }

    /// Bytes of part `part` in use according to the ledger.
    #[must_use]
    pub fn used_bytes(&self, part: usize) -> u64 {
        ledger::used_bytes(&self.ledger.devices[part])
    }
}
