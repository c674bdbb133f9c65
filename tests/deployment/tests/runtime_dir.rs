//! The DaemonSet's init container, which mounts the runtime directory.

use std::process::Command;

use aliquot_harness::{artifacts, run, tool};

#[test]
fn a_memory_file_system_is_mounted_on_the_runtime_directory_once_and_programs_can_be_loaded_from_it() {
    let dir = tempfile::tempdir().unwrap();
    let runtime_dir = dir.path().join("run/aliquot");
    // The script runs in a mount namespace of its own, so that nothing is left on this machine.
    let script = r#"set -e
        "$0" --mount-runtime-dir --runtime-dir "$1"
        touch "$1/kept"
        "$0" --mount-runtime-dir --runtime-dir "$1"
        test -e "$1/kept"
        grep " $1 " /proc/self/mounts"#;
    let mut command = Command::new(tool("unshare", "util-linux"));
    command
        .args(["--mount", "--propagation", "private", "sh", "-c", script])
        .arg(artifacts::manager())
        .arg(&runtime_dir);
    let mounted = run(&mut command).success().stdout;
    assert_eq!(mounted.lines().count(), 1, "{mounted}");
    let options = mounted.split(' ').nth(3).unwrap();
    assert!(mounted.starts_with("aliquot ") && options.contains("nosuid,nodev"), "{mounted}");
    assert!(!options.contains("noexec"), "{mounted}");
}
