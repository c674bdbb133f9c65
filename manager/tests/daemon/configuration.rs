//! The daemon's configuration and arguments.

use std::fs;
use std::process::{Command, Output};

/// Runs the daemon with `--check-config`, `arguments`, and a configuration file that contains `text`.
fn checked(text: &str, arguments: &[&str]) -> Output {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("manager.toml");
    fs::write(&file, text).unwrap();
    let mut command = Command::new(env!("CARGO_BIN_EXE_aliquot-manager"));
    command.arg("--check-config").arg("--config").arg(file).args(arguments).output().unwrap()
}

#[test]
fn a_configuration_is_checked_without_a_start() {
    let sound = checked("log_level = 'debug'\nruntime_dir = '/nonexistent/run'", &[]);
    assert!(sound.status.success() && sound.stderr.is_empty(), "{sound:?}");
    assert!(String::from_utf8_lossy(&sound.stdout).contains("manager.toml can be used"), "{sound:?}");
    for (text, arguments, said) in [
        ("log_level = 'xx'", &[][..], "\"xx\" is no level"),
        ("log_level = 'info'", &["--log-level", "xx"], "\"xx\" is no level"),
        ("runtime_directory = '/run'", &[], "unknown field `runtime_directory`"),
        ("runtime_dir = 'run'", &[], "not an absolute path"),
        ("runtime_dir = '/run/a:b'\ncdi_dir = 'off'", &[], "contains a space, ':'"),
        ("[audit", &[], "manager.toml"),
    ] {
        let refused = checked(text, arguments);
        assert_eq!((refused.status.code(), refused.stdout.len()), (Some(1), 0), "{text}: {refused:?}");
        assert!(String::from_utf8_lossy(&refused.stderr).contains(said), "{text}: {refused:?}");
    }
    let missing = Command::new(env!("CARGO_BIN_EXE_aliquot-manager"))
        .args(["--check-config", "--config", "/nonexistent/manager.toml"])
        .output()
        .unwrap();
    assert_eq!(missing.status.code(), Some(1), "{missing:?}");
}
