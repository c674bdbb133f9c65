use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Command;

use super::*;
use crate::config::MpsSettings;

/// An MPS whose control program runs `script`, with the command in `$line`.
fn mps(dir: &Path, script: &str) -> Mps {
    let (text, control) = (dir.join("control.sh"), dir.join("control"));
    fs::write(&text, format!("#!/bin/sh\nread -r line\n{script}\n")).unwrap();
    // Copied by another process. If this process had the file open for writing even for a moment, a child that another
    // test is starting could inherit it, and the file could not be run.
    assert!(Command::new("cp").args([&text, &control]).status().unwrap().success());
    fs::set_permissions(&control, Permissions::from_mode(0o755)).unwrap();
    let mps = MpsSettings { control, pipe_directory: dir.into(), ..MpsSettings::default() };
    Mps::new(SharingSettings { mode: SharingMode::Mps, mps, ..SharingSettings::default() })
}

fn part(device: &str, limit: u32) -> Part {
    Part { device: DeviceUuid::new(device), core_request_percent: 10, core_limit_percent: limit, memory_limit_bytes: 1 }
}

#[test]
fn a_client_gets_its_least_limit_and_the_servers_the_greatest_of_all() {
    let dir = tempfile::tempdir().unwrap();
    let mps = mps(dir.path(), "exit 1");
    let parts = [part("GPU-1", 60), part("GPU-2", 40)];
    let client = mps.client(&parts).unwrap();
    let pipes = format!("CUDA_MPS_PIPE_DIRECTORY={}", dir.path().display());
    assert_eq!(client.environment, [pipes, "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE=40".to_owned()]);
    assert_eq!(client.mounts[1], ("/dev/shm".into(), "/dev/shm".into()));
    assert_eq!(mps.ceiling_percent(&parts), Some(60));
    let by_time = Mps::new(SharingSettings::default());
    assert_eq!((by_time.client(&parts), by_time.ceiling_percent(&parts)), (None, None));
}

#[test]
fn current_settings_are_not_set_again() {
    let dir = tempfile::tempdir().unwrap();
    let script = r#"cd "$CUDA_MPS_PIPE_DIRECTORY"; echo "$line" >>log
case "$line" in
get_default*) cat default 2>/dev/null || echo 100.0 ;;
set_default*) echo "${line##* }.0" >default ;;
get_server_list) printf '7\n8\n' ;;
"get_active_thread_percentage 7") echo 30.000000 ;;
"get_active_thread_percentage 8") cat server 2>/dev/null || echo 50 ;;
set_active*) echo "${line##* }" >server ;;
esac"#;
    mps(dir.path(), script).hold(|| Some(30)).unwrap();
    let set = |log: String| log.lines().filter(|line| line.starts_with("set")).map(str::to_owned).collect::<Vec<_>>();
    let log = fs::read_to_string(dir.path().join("log")).unwrap();
    assert_eq!(set(log), ["set_default_active_thread_percentage 30", "set_active_thread_percentage 8 30"]);
}

#[test]
fn a_raised_ceiling_is_not_lowered_before_its_slice_counts() {
    let dir = tempfile::tempdir().unwrap();
    let script = r#"cd "$CUDA_MPS_PIPE_DIRECTORY"
case "$line" in
get_default*) cat default 2>/dev/null || echo 100.0 ;;
set_default*) echo "${line##* }.0" >default ;;
esac"#;
    let mps = mps(dir.path(), script);
    let ceiling = || fs::read_to_string(dir.path().join("default")).unwrap();
    let raised = mps.raise(60, || Some(20)).unwrap();
    assert_eq!(ceiling(), "60.0\n");
    // Of two slices that are made at once, the greater need counts, whichever is made first.
    let (less, more) = (mps.raise(50, || None).unwrap(), mps.raise(65, || None).unwrap());
    drop(less);
    mps.hold(|| None).unwrap();
    assert_eq!(ceiling(), "65.0\n");
    drop(more);
    mps.hold(|| Some(30)).unwrap();
    assert_eq!(ceiling(), "60.0\n");
    mps.hold(|| Some(70)).unwrap();
    assert_eq!(ceiling(), "70.0\n");
    drop(raised);
    mps.hold(|| Some(30)).unwrap();
    assert_eq!(ceiling(), "30.0\n");
}

#[test]
fn a_server_that_ends_is_tolerated_and_one_that_refuses_is_an_error() {
    let dir = tempfile::tempdir().unwrap();
    // The server is listed only once: it ends during the conversation.
    let script = r#"cd "$CUDA_MPS_PIPE_DIRECTORY"
case "$line" in
get_default*) echo 30.0 ;;
get_server_list) [ -e listed ] || echo 7; : >listed ;;
*) echo "no server" ;;
esac"#;
    mps(dir.path(), script).hold(|| Some(30)).unwrap();
    let script = r#"case "$line" in
get_default*) echo 30.0 ;;
get_server_list) echo 7 ;;
get_active*) echo 100.0 ;;
*) echo "not permitted" ;;
esac"#;
    let error = mps(dir.path(), script).hold(|| Some(30)).unwrap_err().to_string();
    assert!(error.contains("not permitted") && error.contains("set_active_thread_percentage 7 30"), "{error}");
}

#[test]
fn a_program_that_never_stops_talking_fills_no_memory() {
    let dir = tempfile::tempdir().unwrap();
    // Writes beyond the answer file's size fail.
    let script = r#"head -c 100000000 /dev/zero 2>/dev/null; wc -c </proc/$$/fd/1 >"$CUDA_MPS_PIPE_DIRECTORY/size""#;
    let error = mps(dir.path(), script).hold(|| None).unwrap_err().to_string();
    assert!(error.contains("answers") && error.len() < 2000, "{} bytes", error.len());
    let size_bytes: u64 = fs::read_to_string(dir.path().join("size")).unwrap().trim().parse().unwrap();
    assert!(size_bytes <= 16 * 1024, "{size_bytes}");
}

#[test]
fn failures_are_reported_with_a_remedy() {
    let dir = tempfile::tempdir().unwrap();
    for (script, words) in [
        ("echo Cannot find MPS control daemon process; exit 1", "Cannot find MPS control daemon process); start it"),
        ("echo 'Unknown command'", "Unknown command"),
        ("sleep 60", "does not answer within 10 s"),
    ] {
        let mps = mps(dir.path(), script);
        let error = mps.hold(|| None).unwrap_err().to_string();
        assert!(error.contains(words), "{error}");
        assert_eq!(mps.problem(), Some(error));
    }
    let missing = MpsSettings { control: dir.path().join("none"), ..MpsSettings::default() };
    let missing = Mps::new(SharingSettings { mps: missing, ..SharingSettings::default() });
    assert!(missing.hold(|| None).unwrap_err().to_string().contains("set sharing.mps.control"));
}
