//! The state of a machine, used by one process and by several.

use std::io::{BufRead, BufReader, Read};
use std::path::Path;
use std::process::{Child, Command, Stdio};

use aliquot_fake_machine::{CONFIG_VARIABLE, Config, Machine, MachineError};

const CHILD_VARIABLE: &str = "FAKE_MACHINE_TEST_CHILD";

fn write(path: &Path, memory: &str) -> Config {
    let state = path.with_extension("state");
    let text = format!("state = {:?}\n[[device]]\nmemory = '{memory}'\n", state.to_str().expect("a path in UTF-8"));
    std::fs::write(path, text).expect("the configuration can be written");
    Config::load(path).expect("a valid configuration")
}

/// Starts a process that joins the machine, takes memory and a time slice, and holds both until its standard input ends.
fn holder(path: &Path) -> (Child, impl Iterator<Item = std::io::Result<String>>) {
    let mut command = Command::new(std::env::current_exe().expect("the test program has a path"));
    command.args(["--exact", "the_machine_outlives_its_processes", "--nocapture"]);
    command.env(CHILD_VARIABLE, "1").env(CONFIG_VARIABLE, path);
    let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("the test program starts");
    let mut lines = BufReader::new(child.stdout.take().expect("a pipe")).lines();
    assert!(lines.any(|line| line.expect("the process can be heard").contains("holds")));
    (child, lines)
}

fn hold() {
    let machine: &'static Machine = Box::leak(Box::new(machine(&Config::from_env().expect("a valid configuration"))));
    let member = machine.join().expect("a record");
    assert!(member.reserve_memory(0, 1 << 20));
    assert!(!member.reserve_memory(0, 64 << 20));
    let time_slice = member.take_time_slice(0, 0);
    println!("holds");
    std::io::stdin().read_to_end(&mut Vec::new()).expect("the pipe can be read");
    member.end_time_slice(0, time_slice, time_slice.start_ns + 5, 5);
}

fn machine(config: &Config) -> Machine {
    Machine::open(config.clone()).expect("a machine")
}

#[test]
fn the_machine_outlives_its_processes() {
    if std::env::var_os(CHILD_VARIABLE).is_some() {
        return hold();
    }
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("machine.toml");
    let config = write(&path, "64MiB");
    let seen = machine(&config);
    assert_eq!(seen.device_use(0).processes, []);

    let (mut first, _) = holder(&path);
    let present = seen.device_use(0);
    assert_eq!((present.processes[0].pid, present.memory_bytes), (first.id(), 1 << 20));
    // Another set of devices is another machine. It cannot use the same state file at the same time.
    let other = write(&path, "32MiB");
    assert!(matches!(Machine::open(other.clone()), Err(MachineError::OtherMachine { .. })));
    write(&path, "64MiB");

    // A process that is killed during its time slice releases the device.
    first.kill().expect("the process can be killed");
    first.wait().expect("the process ends");
    assert_eq!(seen.device_use(0).processes, []);
    let (mut second, lines) = holder(&path);
    drop(second.stdin.take());
    assert!(lines.count() > 0);
    assert!(second.wait().expect("the process ends").success());
    assert_eq!((seen.device_use(0).processes, seen.device_use(0).busy_ns), (vec![], 5));
    assert_eq!(machine(&other).device_use(0).busy_ns, 0);
}

/// Runs `process` in a new process, and calls `look` with its id at the beginning and end of each of its system calls.
fn watched_at_each_call(process: impl FnOnce(), mut look: impl FnMut(u32)) {
    // SAFETY: the new process has one thread, and uses nothing that another thread may have locked.
    let child = unsafe { libc::fork() };
    if child == 0 {
        // SAFETY: no pointers. The process stops here until its parent lets it go on.
        let is_traced = unsafe { libc::ptrace(libc::PTRACE_TRACEME, 0, 0, 0) == 0 && libc::raise(libc::SIGSTOP) == 0 };
        let is_done = is_traced && std::panic::catch_unwind(std::panic::AssertUnwindSafe(process)).is_ok();
        // SAFETY: nothing else of the test runs in this process.
        unsafe { libc::_exit(i32::from(!is_done)) };
    }
    loop {
        let mut status = 0;
        // SAFETY: the kernel writes the status of a child of this process.
        assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
        if !libc::WIFSTOPPED(status) {
            return assert_eq!(status, 0, "the process has failed");
        }
        // SAFETY: no pointers. If the test fails, the process ends with it.
        assert_eq!(unsafe { libc::ptrace(libc::PTRACE_SETOPTIONS, child, 0, libc::PTRACE_O_EXITKILL) }, 0);
        look(child as u32);
        // SAFETY: no pointers.
        assert_eq!(unsafe { libc::ptrace(libc::PTRACE_SYSCALL, child, 0, 0) }, 0);
    }
}

#[test]
fn a_process_that_joins_never_shows_a_dead_ones_memory() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("machine.toml");
    let config = write(&path, "64MiB");
    let (mut dead, _) = holder(&path);
    dead.kill().expect("the process can be killed");
    dead.wait().expect("the process ends");
    let (seen, mut looks) = (machine(&config), 0);
    let join = || {
        let machine: &'static Machine = Box::leak(Box::new(machine(&config)));
        assert!(machine.join().expect("a record").reserve_memory(0, 2 << 20));
    };
    watched_at_each_call(join, |pid| {
        looks += 1;
        let held = seen.device_use(0).processes.into_iter().map(|process| (process.pid, process.memory_bytes));
        assert!(held.into_iter().all(|held| held == (pid, 2 << 20)), "{:?}", seen.device_use(0));
    });
    assert!(looks > 10, "{looks} looks");
}
