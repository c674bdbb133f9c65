//! Starts `aliquot` and reads its output.

use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

/// `aliquot` with `args`, without variables from the tester's environment.
pub(crate) fn aliquot<'a>(args: impl IntoIterator<Item = &'a str>) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_aliquot"));
    command.args(args).stdin(Stdio::null());
    for variable in ["ALIQUOT_SOCKET", "ALIQUOT_SCHEDULER", "LD_PRELOAD", "NO_COLOR"] {
        command.env_remove(variable);
    }
    command
}

/// `aliquot run` on a simulated GPU, with `words` as the command.
pub(crate) fn simulated_run<'a>(words: impl IntoIterator<Item = &'a str>) -> Command {
    let mut command =
        aliquot(["run", "--simulated", "--gpu-core", "30", "--gpu-memory", "4GiB", "--name", "test", "--"]);
    command.args(words);
    command
}

/// Runs `command` to its end.
pub(crate) fn output(command: &mut Command) -> Output {
    command.output().expect("the test's own program starts")
}

/// Standard output as text.
pub(crate) fn stdout(output: &Output) -> String {
    String::from_utf8(output.stdout.clone()).expect("text")
}

/// Standard error as text.
pub(crate) fn stderr(output: &Output) -> String {
    String::from_utf8(output.stderr.clone()).expect("text")
}

/// Entries of `dir` whose names begin with `prefix`.
pub(crate) fn entries(dir: &Path, prefix: &str) -> Vec<String> {
    let entries = std::fs::read_dir(dir).expect("the directory is there").flatten();
    entries
        .map(|entry| entry.file_name().to_string_lossy().into_owned())
        .filter(|name| name.starts_with(prefix))
        .collect()
}

/// Waits until all threads of the process are stopped, as `/proc` shows them. Fails the test if the process ends.
#[track_caller]
pub(crate) fn wait_until_stopped(pid: u32) {
    let is_stopped = |thread: std::io::Result<std::fs::DirEntry>| {
        let stat = thread.and_then(|thread| std::fs::read_to_string(thread.path().join("stat"))).ok();
        stat.is_none_or(|stat| stat.rsplit(')').next().is_some_and(|rest| rest.trim_start().starts_with('T')))
    };
    let are_stopped = || {
        let threads = std::fs::read_dir(format!("/proc/{pid}/task"));
        threads.unwrap_or_else(|error| panic!("process {pid} has ended: {error}")).all(is_stopped)
    };
    let began = Instant::now();
    while !are_stopped() {
        assert!(began.elapsed() < Duration::from_secs(180), "process {pid} is not stopped");
        std::thread::sleep(Duration::from_millis(5));
    }
}
