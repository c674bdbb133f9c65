//! Error messages: one line with the fault, and one with the remedy.

use std::os::fd::AsRawFd;
use std::os::unix::net::UnixListener;
use std::path::Path;
use std::process::{Command, Stdio};

use nix::sys::socket::{AddressFamily, SockFlag, SockType, UnixAddr, bind};

use crate::support::{aliquot, output, stderr};

/// The exit code, and the text on standard error.
fn refused(args: &[&str]) -> (Option<i32>, String) {
    let refused = output(&mut aliquot(args.iter().copied()));
    (refused.status.code(), stderr(&refused))
}

#[test]
fn quantities_that_make_no_sense() {
    for (core, memory, words) in [
        ("0", "4GiB", "0 percent is not a valid share"),
        ("-5", "4GiB", "negative"),
        ("NaN", "4GiB", "not a whole percentage"),
        ("101", "4GiB", "more than one device has"),
        ("250", "4GiB", "--devices N"),
        ("30", "4", "has no unit"),
        ("30", "4G", "could mean GiB"),
        ("30", "4XiB", "not a known unit"),
        ("30", "0GiB", "is not an amount of memory"),
        ("30", "-4GiB", "is negative"),
        ("30", "NaNGiB", "does not begin with a number"),
        ("30", "99999999999999999999B", "cannot be read exactly"),
        ("30", "101%", "more than the device has"),
    ] {
        let what = ["--gpu-core", core, "--gpu-memory", memory];
        let (code, text) = refused(&[&["slice", "create", "x"][..], &what].concat());
        let words = words.replace("cannot be read exactly", "not a number that can be read exactly");
        assert_eq!(code, Some(2), "{core} {memory}: {text}");
        assert!(text.contains(&words), "{core} {memory}: {text}");
        assert_eq!(refused(&[&["run"][..], &what, &["--", "true"]].concat()).0, Some(125), "{core} {memory}");
    }
}

#[test]
fn too_few_descriptors_are_said_to_be_too_few() {
    let mut said = 0;
    for limit in 4..=12 {
        let program = aliquot(["--socket", "/nonexistent/manager.sock", "ps"]);
        let mut limited = Command::new("sh");
        limited.args(["-c", &format!("ulimit -n {limit} && exec \"$0\" \"$@\"")]);
        limited.arg(program.get_program()).args(program.get_args());
        let refused = output(&mut limited);
        let text = stderr(&refused);
        assert_eq!(refused.status.code(), Some(1), "{limit} descriptors: {text}");
        assert!(text.starts_with("error: "), "{limit} descriptors: {text}");
        said += u32::from(text.contains("Too many open files"));
    }
    assert!(said > 0, "the limits are too high to matter");
}

#[test]
fn no_manager() {
    let dir = tempfile::tempdir().unwrap();
    let socket = dir.path().join("manager.sock");
    let socket = socket.to_str().unwrap();
    // A socket on which no process has ever listened. A closed listener could still be held by a child that another
    // test is starting.
    let unheard =
        nix::sys::socket::socket(AddressFamily::Unix, SockType::Stream, SockFlag::SOCK_CLOEXEC, None).unwrap();
    bind(unheard.as_raw_fd(), &UnixAddr::new(socket).unwrap()).unwrap();
    for stale in [true, false] {
        if !stale {
            std::fs::remove_file(socket).unwrap();
        }
        for args in [
            &["ps"][..],
            &["nodes"],
            &["top", "--once"],
            &["describe", "x"],
            &["slice", "ls"],
            &["slice", "rm", "x"],
            &["slice", "create", "x", "--gpu-core", "30"],
        ] {
            let (code, text) = refused(&[&["--socket", socket][..], args].concat());
            assert_eq!(code, Some(1), "{args:?}: {text}");
            let lines: Vec<_> = text.lines().collect();
            assert_eq!(lines.len(), 2, "{args:?}: {text}");
            assert!(
                lines[0].starts_with("error: no node manager runs here") && lines[0].contains(socket),
                "{args:?}: {text}"
            );
            assert!(
                lines[1].starts_with("hint: ") && lines[1].contains("systemctl start aliquot-manager"),
                "{args:?}: {text}"
            );
        }
        // A manager that was named is not replaced by another one.
        let (code, text) = refused(&["--socket", socket, "run", "--gpu-core", "30", "--", "true"]);
        assert_eq!(code, Some(125));
        assert!(text.contains("no node manager runs here"), "{text}");
    }
}

#[test]
fn a_message_that_nobody_reads_changes_nothing() {
    for (args, code) in [(&["--socket", "/nowhere/manager.sock", "ps"][..], 1), (&["ps", "--bogus"], 2)] {
        let (reader, writer) = std::io::pipe().unwrap();
        drop(reader);
        let ended = aliquot(args.iter().copied()).stdout(Stdio::null()).stderr(writer).status().unwrap();
        assert_eq!(ended.code(), Some(code), "{args:?}: {ended}");
    }
}

#[test]
fn something_else_listens() {
    let dir = tempfile::tempdir().unwrap();
    let socket = dir.path().join("manager.sock");
    let listener = UnixListener::bind(&socket).unwrap();
    let answers = std::thread::spawn(move || {
        // The first connection only checks whether a process listens; the second one gets nonsense.
        drop(listener.accept());
        let (mut stream, _) = listener.accept().unwrap();
        std::io::Write::write_all(&mut stream, b"220 mail.example.org ESMTP\r\n").unwrap();
    });
    let (code, text) = refused(&["--socket", socket.to_str().unwrap(), "ps"]);
    answers.join().unwrap();
    assert_eq!(code, Some(1), "{text}");
    assert!(text.starts_with("error: ") && text.contains("\nhint: "), "{text}");
}

#[test]
fn command_lines_that_are_wrong() {
    for args in [
        &["bogus"][..],
        &["ps", "--bogus"],
        &["slice", "create"],
        &["slice", "resize", "x"],
        &["slice", "rm"],
        &["top", "--interval", "0"],
        &["top", "--interval", "NaN"],
        &["top", "-n", "0"],
        &["ps", "--since", "10"],
        &["ps", "--since", "1h", "--wide"],
        &["events", "--since", "-1h"],
        &["--timeout", "0", "ps"],
        &["demo", "--seconds", "0"],
        &["slice", "create", "x", "--gpu-core", "30", "--devices", "0"],
        &["slice", "create", "x", "--gpu-core", "30", "--devices", "17"],
        &["slice", "create", "x", "--gpu-core", "30", "--devices", "2", "--device", "GPU-1"],
    ] {
        let (code, text) = refused(args);
        assert_eq!(code, Some(2), "{args:?}: {text}");
        assert!(text.starts_with("error: "), "{args:?}: {text}");
    }
    assert_eq!(refused(&["run", "--gpu-core", "30"]).0, Some(125));
    assert_eq!(refused(&["run", "true"]).0, Some(125));
}

#[test]
fn numbers_that_are_not_allowed_are_told_which_are() {
    for (args, words) in [
        (&["slice", "create", "x", "--gpu-core", "30", "--devices", "-1"][..], "write a number from 1 to 16"),
        (&["slice", "create", "x", "--gpu-core", "30", "--devices", "17"], "write a number from 1 to 16"),
        (&["jobs", "-n", "-1"], "write a whole number, 1 or more"),
        (&["logs", "7", "--rank", "-1"], "write a whole number, 0 or more"),
        (&["demo", "--seconds", "-1"], "write a number from 3 to 600"),
        (&["top", "--interval", "-1"], "write seconds from 0.1 to 3600"),
        (&["ps", "--timeout", "-1"], "write seconds from 0.1 to 3600"),
    ] {
        let (code, text) = refused(args);
        assert_eq!(code, Some(2), "{args:?}: {text}");
        assert!(text.contains(words), "{args:?}: {text}");
    }
}

#[test]
fn variables_do_not_make_options_look_required() {
    let variables = [("ALIQUOT_SOCKET", "/nowhere"), ("ALIQUOT_SCHEDULER", "/nowhere")];
    let text = stderr(&output(aliquot(["slice", "create"]).envs(variables)));
    assert!(text.contains("Usage: aliquot slice create") && !text.contains("--socket"), "{text}");
}

#[test]
fn names_that_are_empty_or_endless() {
    let long = "a".repeat(300);
    for (args, words) in [
        (&["run", "--name", "", "--gpu-core", "30", "--", "true"][..], "a slice's name is not empty"),
        (&["slice", "create", "", "--gpu-core", "30"], "a slice's name is not empty"),
        (&["slice", "create", "x", "--gpu-core", "30", "--device", ""], "a device's UUID is not empty"),
        (&["slice", "resize", "x", "--gpu-core", "30", "--device", ""], "a device's UUID is not empty"),
        (&["describe", ""], "a slice's name is not empty"),
        (&["--socket", "", "ps"], "the path is empty"),
        (&["slice", "create", "x", "--gpu-core", &long], "aaaa… (300 characters)"),
        (&["top", &format!("--interval={long}")], "aaaa… (300 characters)"),
        (&["--socket", &format!("/{long}"), "ps"], "aaaa… (301 characters)"),
        (&[&long], "aaaa… (300 characters)"),
    ] {
        let (code, text) = refused(args);
        assert!(matches!(code, Some(1 | 2 | 125)), "{args:?}: {text}");
        assert!(text.contains(words), "{args:?}: {text}");
        assert!(!text.contains(&long), "{args:?}: {text}");
    }
    let empty = output(aliquot(["ps"]).env("ALIQUOT_SOCKET", ""));
    assert!(stderr(&empty).contains("unset ALIQUOT_SOCKET"), "{}", stderr(&empty));
}

#[test]
fn a_reader_that_goes_away_is_no_failure() {
    let mut child = aliquot(["completions", "bash"]).stdout(Stdio::piped()).spawn().unwrap();
    drop(child.stdout.take());
    assert!(child.wait().unwrap().success());
}

#[test]
fn a_full_disk_is_an_error() {
    let full = Path::new("/dev/full");
    let output =
        output(aliquot(["completions", "bash"]).stdout(std::fs::OpenOptions::new().write(true).open(full).unwrap()));
    assert_eq!(output.status.code(), Some(1));
    assert!(stderr(&output).contains("cannot write to standard output"));
}
