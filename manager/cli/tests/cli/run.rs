//! `aliquot run`: the command in it notices only its slice.

use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};

use nix::pty::openpty;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use crate::support::{entries, output, simulated_run, stderr, stdout, wait_until_stopped};

#[test]
fn the_exit_status_passes_through() {
    for code in [0, 1, 77, 255] {
        let ended = output(&mut simulated_run(["sh", "-c", &format!("exit {code}")]));
        assert_eq!(ended.status.code(), Some(code), "{}", stderr(&ended));
    }
    for (signal, code) in [("TERM", 143), ("KILL", 137), ("SEGV", 139)] {
        let ended = output(&mut simulated_run(["sh", "-c", &format!("kill -{signal} $$")]));
        assert_eq!(ended.status.code(), Some(code), "{signal}");
    }
}

#[test]
fn the_end_is_noticed_by_a_child_of_who_ignores_children() {
    let run = simulated_run(["sh", "-c", "exit 77"]);
    let mut ignoring = Command::new("env");
    ignoring.arg("--ignore-signal=CHLD").arg(run.get_program()).args(run.get_args());
    let ended = output(ignoring.stdin(Stdio::null()));
    assert_eq!(ended.status.code(), Some(77), "{}", stderr(&ended));
}

#[test]
fn a_command_that_cannot_be_run() {
    let missing = output(&mut simulated_run(["/nonexistent/command"]));
    assert_eq!(missing.status.code(), Some(127));
    assert!(stderr(&missing).contains("error: cannot run \"/nonexistent/command\""), "{}", stderr(&missing));
    let directory = output(&mut simulated_run(["/etc"]));
    assert_eq!(directory.status.code(), Some(126), "{}", stderr(&directory));
}

#[test]
fn the_slice_is_in_the_environment() {
    let mut command = simulated_run([
        "sh",
        "-c",
        "echo $LD_PRELOAD; echo $CUDA_VISIBLE_DEVICES; echo $NVIDIA_VISIBLE_DEVICES; ls $(dirname ${LD_PRELOAD%%:*})",
    ]);
    // libm is on every system that has a shell, and preloading it does no harm.
    let ended = output(command.env("LD_PRELOAD", "libm.so.6"));
    let text = stdout(&ended);
    let lines: Vec<_> = text.lines().collect();
    assert!(lines.len() >= 6, "{text}{}", stderr(&ended));
    assert!(lines[0].contains("/slices/") && lines[0].ends_with(".so:libm.so.6"), "{text}");
    // A number, because some programs accept no UUID.
    assert!(lines[1] == "0" && lines[2].starts_with("GPU-"), "{text}");
    assert!(lines[3..].contains(&"limits") && lines[3..].contains(&"ledger"), "{text}");
    assert_eq!(stderr(&ended), "", "nothing is printed beside the command's own output");
}

/// Runs the install commands of the READMEs, with the files that cargo has built for this test.
#[test]
fn an_installed_program_finds_the_simulated_gpu() {
    // Builds the simulated GPU if it is missing.
    assert!(output(&mut simulated_run(["true"])).status.success());
    let (prefix, program) = (tempfile::tempdir().unwrap(), Path::new(env!("CARGO_BIN_EXE_aliquot")));
    fs::create_dir(prefix.path().join("bin")).unwrap();
    // The repository's README and the manager's.
    let readmes = ["../../README.md", "../README.md"]
        .map(|readme| fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join(readme)).unwrap());
    let lines = readmes.iter().flat_map(|text| text.lines()).filter_map(|line| line.strip_prefix("sudo "));
    let installs: Vec<&str> =
        lines.filter(|line| line.starts_with("install ") && line.contains("/usr/local")).collect();
    assert_eq!(installs.len(), 2, "{installs:?}");
    for install in installs {
        // The other files are not built for this test.
        let own =
            install.replace("target/release/aliquot-manager ", "").replace("target/release/aliquot-scheduler ", "");
        let own = own.replace("target/release", program.parent().unwrap().to_str().unwrap());
        let own = own.replace("/usr/local", prefix.path().to_str().unwrap());
        let installed = Command::new("sh").args(["-c", &own]).output().unwrap();
        assert!(installed.status.success(), "{own}: {}", stderr(&installed));
    }
    let ended = output(
        Command::new(prefix.path().join("bin/aliquot"))
            .args(["run", "--simulated", "--gpu-core", "30", "--gpu-memory", "4GiB", "--", "echo", "ran"])
            .current_dir(prefix.path())
            .env_remove("CARGO_MANIFEST_DIR"),
    );
    assert_eq!(stdout(&ended), "ran\n", "{}", stderr(&ended));
}

/// Programs that use `select` break with a higher limit.
#[test]
fn the_limit_on_open_files_is_the_users() {
    let limited = simulated_run(["sh", "-c", "ulimit -Sn; ulimit -Hn"]);
    let mut command = Command::new("sh");
    command.args(["-c", "ulimit -Sn 1000 && ulimit -Hn 4096 && exec \"$0\" \"$@\""]).arg(limited.get_program());
    let ended = output(command.args(limited.get_args()).stdin(Stdio::null()));
    assert_eq!(stdout(&ended), "1000\n4096\n", "{}", stderr(&ended));
}

#[test]
fn nothing_is_left_behind() {
    // In memory, because other directories are not used while there is one in memory.
    let dir = tempfile::tempdir_in("/dev/shm").unwrap();
    for words in [&["true"][..], &["false"], &["/nonexistent/command"]] {
        output(simulated_run(words.iter().copied()).env("XDG_RUNTIME_DIR", dir.path()));
        assert_eq!(entries(dir.path(), ""), Vec::<String>::new(), "{words:?}");
    }
}

#[test]
fn standard_input_and_output_pass_through() {
    let mut child = simulated_run(["cat"]).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    let sent: Vec<u8> = (0..1 << 20).map(|index| index as u8).collect();
    let mut stdin = child.stdin.take().unwrap();
    let copy = sent.clone();
    let writer = std::thread::spawn(move || stdin.write_all(&copy).unwrap());
    let mut received = Vec::new();
    child.stdout.take().unwrap().read_to_end(&mut received).unwrap();
    writer.join().unwrap();
    assert!(child.wait().unwrap().success());
    assert!(received == sent);
}

#[test]
fn closed_standard_streams_are_fine() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("done");
    let mut command = simulated_run(["sh", "-c", "echo done > \"$1\"; exit 7", "sh", file.to_str().unwrap()]);
    // SAFETY: close is async-signal-safe, and the child touches no data of this process.
    unsafe {
        command.pre_exec(|| {
            for stream in 0..=2 {
                libc::close(stream);
            }
            Ok(())
        });
    }
    assert_eq!(command.status().unwrap().code(), Some(7));
    assert_eq!(std::fs::read_to_string(file).unwrap(), "done\n");
}

/// Resets signals to their defaults: a test run in the background may ignore them, and a shell cannot trap a signal
/// that was ignored when it started.
fn with_default_signals(command: &mut Command) {
    // SAFETY: signal is async-signal-safe.
    unsafe {
        command.pre_exec(|| {
            for signal in [libc::SIGHUP, libc::SIGINT, libc::SIGQUIT] {
                libc::signal(signal, libc::SIG_DFL);
            }
            Ok(())
        });
    }
}

/// Starts a shell with these traps, and waits until it is ready.
fn trapping(traps: &str) -> (Child, BufReader<std::process::ChildStdout>) {
    let script = format!("{traps} echo ready; while :; do sleep 0.05; done");
    let mut command = simulated_run(["sh", "-c", &script]);
    // In a process group of its own, with a parent outside it. Otherwise, without a terminal, the group could be
    // orphaned, and SIGTSTP never stops an orphaned group.
    command.stdout(Stdio::piped()).process_group(0);
    with_default_signals(&mut command);
    let mut child = command.spawn().unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap());
    assert_eq!(line(&mut lines), "ready");
    (child, lines)
}

fn line(lines: &mut impl BufRead) -> String {
    let mut line = String::new();
    lines.read_line(&mut line).unwrap();
    line.trim_end().to_owned()
}

fn send(child: &Child, signal: Signal) {
    kill(Pid::from_raw(child.id() as i32), signal).unwrap();
}

#[test]
fn signals_are_handed_on() {
    let (mut child, mut lines) = trapping(
        "trap 'echo usr1' USR1; trap 'echo usr2' USR2; trap 'echo hup' HUP; trap 'echo winch' WINCH; trap 'echo int' INT; trap 'echo term; exit 3' TERM;",
    );
    for (signal, said) in [
        (Signal::SIGUSR1, "usr1"),
        (Signal::SIGUSR2, "usr2"),
        (Signal::SIGHUP, "hup"),
        (Signal::SIGWINCH, "winch"),
        (Signal::SIGINT, "int"),
        (Signal::SIGTERM, "term"),
    ] {
        send(&child, signal);
        assert_eq!(line(&mut lines), said);
    }
    assert_eq!(child.wait().unwrap().code(), Some(3));
}

#[test]
fn a_signal_that_ends_the_command_is_its_status() {
    let (mut child, _lines) = trapping("");
    send(&child, Signal::SIGTERM);
    assert_eq!(child.wait().unwrap().code(), Some(143));
}

#[test]
fn a_stop_stops_both_and_a_continue_continues_both() {
    let (mut child, mut lines) = trapping("trap 'echo again' CONT;");
    send(&child, Signal::SIGTSTP);
    wait_until_stopped(child.id());
    send(&child, Signal::SIGCONT);
    assert_eq!(line(&mut lines), "again");
    send(&child, Signal::SIGTERM);
    assert_eq!(child.wait().unwrap().code(), Some(143));
}

#[test]
fn the_terminal_s_keys_reach_the_command_once() {
    let pty = openpty(None, None).unwrap();
    let slave = pty.slave.try_clone().unwrap();
    let slave_fd = slave.as_raw_fd();
    let script = "trap 'echo int' INT; trap 'echo winch' WINCH; echo ready; read word; echo got $word; read word; echo got $word";
    let mut command = simulated_run(["bash", "-c", script]);
    with_default_signals(&mut command);
    let stream = |fd: &OwnedFd| Stdio::from(fd.try_clone().unwrap());
    command.stdin(stream(&pty.slave)).stdout(stream(&pty.slave)).stderr(stream(&pty.slave));
    // SAFETY: setsid and ioctl are async-signal-safe. The descriptor is open in the child, which has a copy of it.
    unsafe {
        command.pre_exec(move || {
            if libc::setsid() < 0 || libc::ioctl(slave_fd, libc::TIOCSCTTY, 0) < 0 {
                return Err(std::io::Error::last_os_error());
            }
            Ok(())
        });
    }
    let mut child = command.spawn().unwrap();
    drop((command, slave, pty.slave));
    let mut keyboard = std::fs::File::from(pty.master.try_clone().unwrap());
    let mut screen = BufReader::new(std::fs::File::from(pty.master));
    let mut see = |wanted: &str| {
        let mut seen = Vec::new();
        loop {
            let line = line(&mut screen);
            seen.push(line.clone());
            assert!(seen.len() < 20, "{seen:?}");
            if line.ends_with(wanted) {
                return seen;
            }
        }
    };
    see("ready");
    keyboard.write_all(b"\x03").unwrap();
    see("int");
    keyboard.write_all(b"one\n").unwrap();
    let seen = see("got one");
    assert!(!seen.iter().any(|line| line.ends_with("int")), "Ctrl-C arrived twice: {seen:?}");
    keyboard.write_all(b"two\n").unwrap();
    see("got two");
    assert!(child.wait().unwrap().success());
}
