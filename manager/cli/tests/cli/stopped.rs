//! A stopped manager: the kernel still accepts connections to it, but nothing is answered.

use std::io::{BufRead, BufReader, Read};
use std::os::fd::AsRawFd;
use std::process::{Child, ChildStdout, Stdio};

use nix::errno::Errno;
use nix::sys::signal::{Signal, kill};
use nix::sys::socket::{AddressFamily, Backlog, SockFlag, SockType, UnixAddr, bind, connect, listen, socket};
use nix::unistd::Pid;

use crate::support::{aliquot, output, simulated_run, stderr, stdout, wait_until_stopped};

/// A manager with the slice `test`, in the process of an `aliquot run`.
struct Manager {
    run: Child,
    socket: String,
    _lines: BufReader<ChildStdout>,
}

impl Manager {
    fn start() -> Manager {
        let mut command = simulated_run(["sh", "-c", "echo $ALIQUOT_SOCKET; exec sleep 1000"]);
        let mut run = command.stdout(Stdio::piped()).spawn().unwrap();
        let mut lines = BufReader::new(run.stdout.take().unwrap());
        let mut socket = String::new();
        lines.read_line(&mut socket).unwrap();
        Manager { run, socket: socket.trim_end().to_owned(), _lines: lines }
    }

    fn pid(&self) -> Pid {
        Pid::from_raw(self.run.id() as i32)
    }

    fn stop(&self) {
        kill(self.pid(), Signal::SIGSTOP).unwrap();
        wait_until_stopped(self.run.id());
    }

    fn go_on(&self) {
        kill(self.pid(), Signal::SIGCONT).unwrap();
    }
}

impl Drop for Manager {
    fn drop(&mut self) {
        self.go_on();
        kill(self.pid(), Signal::SIGTERM).unwrap();
        self.run.wait().unwrap();
    }
}

#[test]
fn every_command_names_the_silent_manager() {
    let manager = Manager::start();
    manager.stop();
    for (args, code) in [
        (&["ps"][..], 1),
        (&["ps", "--since", "1h"], 1),
        (&["nodes"], 1),
        (&["describe", "test"], 1),
        (&["events"], 1),
        (&["events", "-f"], 1),
        (&["top", "--once"], 1),
        (&["top", "-n", "1"], 1),
        (&["slice", "ls"], 1),
        (&["slice", "create", "x", "--gpu-core", "30"], 1),
        (&["slice", "resize", "test", "--gpu-core", "30"], 1),
        (&["slice", "rm", "x"], 1),
        (&["exec", "test", "--", "true"], 125),
        (&["run", "--gpu-core", "30", "--", "true"], 125),
    ] {
        let refused = output(&mut aliquot([&["--socket", &manager.socket, "--timeout", "0.2"][..], args].concat()));
        let text = stderr(&refused);
        assert_eq!(refused.status.code(), Some(code), "{args:?}: {text}");
        let lines: Vec<_> = text.lines().collect();
        assert_eq!(lines.len(), 2, "{args:?}: {text}");
        let stopped = format!("its process {} is stopped", manager.run.id());
        assert!(
            lines[0].starts_with("error: the node manager on") && lines[0].contains(&manager.socket),
            "{args:?}: {text}"
        );
        assert!(lines[0].contains("accepts connections") && lines[0].contains(&stopped), "{args:?}: {text}");
        assert!(
            lines[1].starts_with(&format!("hint: continue it: kill -CONT {}", manager.run.id())),
            "{args:?}: {text}"
        );
        assert_eq!(lines[1].contains("may still be executed"), args == ["slice", "rm", "x"], "{args:?}: {text}");
    }
    manager.go_on();
    let seen = output(&mut aliquot(["--socket", &manager.socket, "ps"]));
    assert!(stdout(&seen).contains("test"), "{}", stderr(&seen));
}

#[test]
fn doctor_reports_the_silent_manager() {
    let manager = Manager::start();
    manager.stop();
    let text = stdout(&output(&mut aliquot(["--socket", &manager.socket, "--timeout", "0.2", "doctor"])));
    assert!(text.contains("has not answered") && text.contains("kill -CONT"), "{text}");
}

#[test]
fn watching_commands_notice_the_silence() {
    let manager = Manager::start();
    let watch = |args: &[&str], first: &str| {
        let args = [&["--socket", &manager.socket, "--timeout", "5"][..], args].concat();
        let mut command = aliquot(args);
        let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        let mut lines = BufReader::new(child.stdout.take().unwrap());
        let mut seen = String::new();
        while !seen.contains(first) {
            assert_ne!(lines.read_line(&mut seen).unwrap(), 0, "it ends early: {seen}");
        }
        (child, lines)
    };
    let watchers = [watch(&["top", "--interval", "0.1"], "test"), watch(&["events", "-f"], "was made")];
    manager.stop();
    for (mut child, mut lines) in watchers {
        lines.read_to_string(&mut String::new()).unwrap();
        assert_eq!(child.wait().unwrap().code(), Some(1));
        let mut text = String::new();
        child.stderr.take().unwrap().read_to_string(&mut text).unwrap();
        assert!(text.contains("has not answered") && text.contains("is stopped"), "{text}");
    }
}

#[test]
fn a_full_queue_of_connections_is_no_reason_to_wait_for_ever() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("manager.sock");
    let address = UnixAddr::new(&path).unwrap();
    let new = |flags| socket(AddressFamily::Unix, SockType::Stream, flags, None).unwrap();
    let listener = new(SockFlag::SOCK_CLOEXEC);
    bind(listener.as_raw_fd(), &address).unwrap();
    listen(&listener, Backlog::new(0).unwrap()).unwrap();
    let mut waiting = Vec::new();
    loop {
        let one = new(SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK);
        match connect(one.as_raw_fd(), &address) {
            Ok(()) => waiting.push(one),
            Err(error) => {
                assert_eq!(error, Errno::EAGAIN);
                break;
            }
        }
    }
    let refused = output(&mut aliquot(["--socket", path.to_str().unwrap(), "--timeout", "0.2", "ps"]));
    let text = stderr(&refused);
    assert_eq!(refused.status.code(), Some(1), "{text}");
    assert!(text.contains("accepts no more connections") && text.contains("\nhint: "), "{text}");
}
