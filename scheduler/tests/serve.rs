//! What `aliquot-scheduler serve` does when it starts.

use std::fs;
use std::os::unix::net::UnixStream;
use std::process::{self, Command};
use std::thread;
use std::time::Duration;

#[test]
fn a_wrong_key_is_named_with_its_file_and_value() {
    let file = std::env::temp_dir().join(format!("aliquot-scheduler-{}.toml", process::id()));
    let refused = |text: &str, options: &[&str]| {
        // No scheduler starts with such a directory, whatever else is right.
        fs::write(&file, format!("{text}\nstate_dir = '/dev/null/state'\nlisten = '127.0.0.1:0'\n"))
            .expect("the temporary folder can be written");
        let mut command = Command::new(env!("CARGO_BIN_EXE_aliquot-scheduler"));
        let ended = command.arg("serve").arg("--config").arg(&file).args(options).output().expect("the program runs");
        assert!(!ended.status.success(), "{text}");
        String::from_utf8_lossy(&ended.stderr).into_owned()
    };
    for (text, words) in [
        ("policy = 'best'", "policy \"best\": it must be one of default, "),
        ("usage_weight = '-1'", "usage_weight \"-1\": it must be a number"),
        ("usage_half_life = '7'", "usage_half_life \"7\": it must be a time"),
        ("log_level = 'a=b'", "log_level \"a=b\" is not a level or a filter"),
    ] {
        let why = refused(text, &[]);
        assert!(why.contains(&format!("{}: {words}", file.display())), "{why}");
    }
    let why = refused("log_level = 'a=b'\npolicy = 'spread'", &["--log-level=off"]);
    assert!(why.contains("/dev/null/state") && !why.contains("log_level"), "{why}");
    fs::remove_file(&file).expect("the temporary folder can be written");
}

#[test]
fn a_log_that_cannot_be_written_ends_nothing() {
    let dir = std::env::temp_dir().join(format!("aliquot-scheduler-log-{}", process::id()));
    fs::create_dir(&dir).expect("the temporary folder can be written");
    fs::write(dir.join("scheduler.toml"), "listen = '127.0.0.1:0'\n").expect("the folder can be written");
    let full = || fs::File::options().write(true).open("/dev/full").expect("the kernel has it");
    let mut command = Command::new(env!("CARGO_BIN_EXE_aliquot-scheduler"));
    command.arg("serve").arg("--config").arg(dir.join("scheduler.toml"));
    command.arg("--state-dir").arg(dir.join("state")).arg("--socket").arg(dir.join("scheduler.sock"));
    let mut scheduler = command.stdout(full()).stderr(full()).spawn().expect("the program runs");
    while UnixStream::connect(dir.join("scheduler.sock")).is_err() {
        let ended = scheduler.try_wait().expect("it can be asked");
        assert_eq!(ended, None, "the scheduler has ended");
        thread::sleep(Duration::from_millis(10));
    }
    scheduler.kill().expect("it runs");
    scheduler.wait().expect("it has ended");
    fs::remove_dir_all(&dir).expect("the folder can be removed");
}
