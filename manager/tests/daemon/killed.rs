//! The daemon as a process of its own, killed and started again, with the simulated NVML.

use std::fs;
use std::path::Path;
use std::process::{Child, Command, Stdio};

use aliquot_harness::artifacts;
use aliquot_proto::node::v1 as proto;

use crate::node::{GIB, Node, connect, eventually, part};
use crate::tenant::Tenant;

/// A manager as a process of its own.
pub(crate) struct Process(Child);

impl Process {
    fn start(node: &Node, nvml: &Path, machine: &Path) -> Process {
        Process::start_with_files(node, nvml, machine, None)
    }

    /// A manager that may have `files_max` files open; `None`: the limit of this test.
    pub(crate) fn start_with_files(node: &Node, nvml: &Path, machine: &Path, files_max: Option<usize>) -> Process {
        let mut command = Command::new(env!("CARGO_BIN_EXE_aliquot-manager"));
        if let Some(files_max) = files_max {
            command = Command::new("sh");
            command.args(["-c", &format!("ulimit -n {files_max} && exec \"$0\" \"$@\"")]);
            command.arg(env!("CARGO_BIN_EXE_aliquot-manager"));
        }
        let child = command
            .arg("--runtime-dir")
            .arg(&node.config.runtime_dir)
            .arg("--state-dir")
            .arg(node.config.state_dir.as_ref().unwrap())
            .arg("--cdi-dir")
            .arg(&node.config.cdi.as_ref().unwrap().dir)
            .arg("--nvml-library")
            .arg(nvml)
            .args(["--log-level", "warn", "--config", "/dev/null"])
            .env("ALIQUOT_FAKE_GPU", machine)
            .stdin(Stdio::null())
            .spawn()
            .unwrap();
        let client = connect(&node.runtime, &node.config.socket);
        eventually("the manager serves", || {
            node.runtime.block_on(client.clone().get_node(proto::GetNodeRequest {})).ok()
        });
        Process(child)
    }

    pub(crate) fn id(&self) -> u32 {
        self.0.id()
    }

    /// Kills the process and waits for its end.
    pub(crate) fn kill(&mut self) {
        self.signal(nix::sys::signal::Signal::SIGKILL);
    }

    fn signal(&mut self, signal: nix::sys::signal::Signal) -> std::process::ExitStatus {
        let pid = nix::unistd::Pid::from_raw(self.0.id().cast_signed());
        nix::sys::signal::kill(pid, signal).unwrap();
        self.0.wait().unwrap()
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // The process may have ended already.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn a_killed_manager_s_slices_go_on_and_the_next_one_takes_them_over() {
    let nvml = artifacts::fake_nvml();
    let node = Node::prepare();
    let machine = node.config.runtime_dir.with_file_name("machine.toml");
    let state = machine.with_file_name("machine.state");
    fs::write(&machine, format!("state = {state:?}\n[[device]]\nmemory = \"16GiB\"\n")).unwrap();
    let mut process = Process::start(&node, nvml, &machine);
    let found = node.node();
    assert_eq!((found.devices.len(), found.problem.as_str()), (1, ""), "{found:?}");
    let slice = node.create("a", vec![part(30, GIB)]).unwrap();
    let mut tenant = Tenant::start(&slice.region_path);
    tenant.tell("reserve 1000");
    for _ in 0..3 {
        process.signal(nix::sys::signal::Signal::SIGKILL);
        assert_eq!(tenant.tell(&format!("reserve {GIB}")), "Err(OverLimit)");
        process = Process::start(&node, nvml, &machine);
        let found = node.get("a").unwrap();
        assert_eq!((found.id.as_str(), found.processes, found.problem.as_str()), (slice.id.as_str(), 1, ""));
        assert_eq!(node.usage("a").parts[0].memory_used_bytes, 1000);
    }
    // After SIGTERM the manager ends with status 0, and leaves the slice as it is.
    assert!(process.signal(nix::sys::signal::Signal::SIGTERM).success());
    assert!(!node.config.socket.exists());
    assert_eq!(tenant.tell("reserve 1"), "Ok(())");
}
