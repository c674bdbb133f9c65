//! Commands that users run next to a job's own program.

use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};

use aliquot_harness::{GIB, Process, artifacts, run, wait};
use aliquot_proto::scheduler::v1::{JobSpec, JobState};
use rustix::process::Signal;
use tempfile::TempDir;

use crate::{Cluster, shell};

/// A cluster with one running job, in a directory of its own.
struct Beside {
    cluster: Cluster,
    dir: TempDir,
    id: u64,
}

impl Beside {
    fn start(spec: JobSpec) -> Beside {
        let cluster = Cluster::start(1, "");
        let dir = tempfile::tempdir().expect("a temporary directory");
        let work_dir = dir.path().to_str().expect("a plain path").to_owned();
        let id = cluster.submit(JobSpec { work_dir, ..spec });
        cluster.wait_for(id, JobState::Running);
        Beside { cluster, dir, id }
    }

    /// The program `aliquot` for this cluster.
    fn aliquot(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(artifacts::cli());
        command.args(arguments).env("ALIQUOT_SCHEDULER", self.cluster.scheduler.socket());
        command
    }

    /// `aliquot exec` that runs this script next to the job.
    fn exec(&self, options: &[&str], script: &str) -> Command {
        let id = self.id.to_string();
        self.aliquot(&[&["exec"], options, &[&id, "--", "sh", "-c", script]].concat())
    }

    /// A command line that no other process on this machine has, and that does not end by itself.
    fn sleeper(&self) -> Sleeper {
        Sleeper(format!("1000000.{}{}", std::process::id(), self.id))
    }

    fn file(&self, name: &str) -> String {
        fs::read_to_string(self.dir.path().join(name)).unwrap_or_default()
    }
}

struct Sleeper(String);

impl Sleeper {
    fn script(&self) -> String {
        format!("sleep {}", self.0)
    }

    fn count(&self) -> usize {
        let is_it = |path: &Path| {
            let words = fs::read(path.join("cmdline")).unwrap_or_default();
            words.starts_with(b"sleep\0") && words.split(|byte| *byte == 0).any(|word| word == self.0.as_bytes())
        };
        let processes = fs::read_dir("/proc").expect("the kernel lists processes").flatten();
        processes.filter(|process| is_it(&process.path())).count()
    }

    fn wait_for(&self, count: usize) {
        wait::until_true(&format!("{count} processes sleep"), || self.count() == count);
    }
}

fn endless() -> JobSpec {
    JobSpec { environment: [("GREETING".to_owned(), "hello".to_owned())].into(), ..shell("exec sleep 1000000") }
}

#[test]
fn a_command_has_the_jobs_surroundings_and_its_own_status() {
    let beside = Beside::start(JobSpec { gpu_core_percent: 30, gpu_memory_bytes: 8 * GIB, ..endless() });
    let script = "echo $GREETING $ALIQUOT_JOB_ID $CUDA_VISIBLE_DEVICES $(pwd); echo $LD_PRELOAD >&2; cat; exit 7";
    let ended = run(&mut beside.exec(&[], script));
    let expected = format!("hello {} 0 {}\n", beside.id, beside.dir.path().display());
    assert_eq!((ended.status.code(), ended.stdout.as_str()), (Some(7), expected.as_str()), "{ended:?}");
    assert!(ended.stderr.contains("/libaliquot-"), "{ended:?}");

    // The command sees the job's processes, as they see each other.
    let seen = run(&mut beside.exec(&[], "cat /proc/[0-9]*/cmdline | tr '\\0' ' '")).success();
    assert!(seen.stdout.contains("sleep 1000000"), "{seen:?}");

    let ended = run(&mut beside.exec(&[], "kill -TERM $$"));
    assert_eq!(ended.status.code(), Some(143), "{ended:?}");
    let id = beside.id.to_string();
    let missing = run(&mut beside.aliquot(&["exec", &id, "/no/such/program"]));
    assert_eq!(missing.status.code(), Some(127), "{missing:?}");
    assert!(missing.stderr.contains("/no/such/program"), "{missing:?}");
    let nobody = run(&mut beside.aliquot(&["exec", "4711", "true"]));
    assert_eq!(nobody.status.code(), Some(125), "{nobody:?}");
    assert!(nobody.stderr.contains("there is no job 4711"), "{nobody:?}");
    let no_terminal = run(&mut beside.aliquot(&["exec", "-t", &id, "true"]));
    assert_eq!(no_terminal.status.code(), Some(125), "{no_terminal:?}");
}

#[test]
fn a_command_gets_the_memory_of_the_jobs_slice() {
    let gpu_variables = |cluster: &Cluster| {
        let gpu = &cluster._gpus[0];
        let text = |path: std::path::PathBuf| path.to_str().expect("a plain path").to_owned();
        [("LD_LIBRARY_PATH", text(gpu.library_dir())), ("ALIQUOT_FAKE_GPU", text(gpu.config_file()))]
            .map(|(name, value)| (name.to_owned(), value))
    };
    let cluster = Cluster::start(1, "");
    let environment = gpu_variables(&cluster).into();
    let id = cluster.submit(JobSpec {
        gpu_core_percent: 30,
        gpu_memory_bytes: 8 * GIB,
        environment,
        ..shell("exec sleep 1000000")
    });
    cluster.wait_for(id, JobState::Running);
    let load = |memory: &str| {
        let mut command = Command::new(artifacts::cli());
        command.args(["exec", &id.to_string()]).arg(artifacts::cli()).args([
            "load",
            "--memory",
            memory,
            "--seconds",
            "1",
        ]);
        run(command.env("ALIQUOT_SCHEDULER", cluster.scheduler.socket()))
    };
    let refused = load("9GiB");
    assert!(refused.stderr.contains("9 GiB is more than the device has, which is 8 GiB"), "{refused:?}");
    let loaded = load("1GiB").success();
    assert!(loaded.stdout.contains("It was busy"), "{loaded:?}");
}

#[test]
fn input_is_piped_through_whole_and_to_its_end() {
    let beside = Beside::start(endless());
    let bytes = 5_000_000;
    let mut source = Command::new("head");
    source.args(["-c", &bytes.to_string(), "/dev/zero"]).stdout(Stdio::piped());
    let mut source = source.spawn().expect("head runs");
    let mut command = beside.exec(&["-i"], "cat");
    let mut counted = Command::new("wc");
    let mut through =
        command.stdin(source.stdout.take().expect("a pipe")).stdout(Stdio::piped()).spawn().expect("it runs");
    let counted = counted.arg("-c").stdin(through.stdout.take().expect("a pipe")).output().expect("wc runs");
    assert_eq!(String::from_utf8_lossy(&counted.stdout).trim(), bytes.to_string());
    assert!(through.wait().expect("it ends").success() && source.wait().expect("it ends").success());

    // When its reader goes away, the command ends.
    let sleeper = beside.sleeper();
    let mut command = beside.exec(&[], &format!("{} & yes", sleeper.script()));
    let mut endless = command.stdout(Stdio::piped()).spawn().expect("it runs");
    let read = Command::new("head").args(["-n", "1"]).stdin(endless.stdout.take().expect("a pipe")).output();
    assert_eq!(read.expect("head runs").stdout, b"y\n");
    assert_eq!(endless.wait().expect("it ends").code(), Some(141));
    sleeper.wait_for(0);
}

/// `script` gives a program a terminal, and writes the program's output into a file.
#[test]
fn a_terminal_is_handed_on_with_its_size_and_restored() {
    let beside = Beside::start(endless());
    let inside = "stty size; test -t 0 && test -t 1 && test -t 2 && echo terminal $TERM
        trap 'echo interrupted' INT
        echo ready
        until read -r answer && [ \"$answer\" ]; do :; done
        echo got $answer; exit 5";
    fs::write(beside.dir.path().join("inside.sh"), inside).expect("a script");
    // `script` writes this line into its file, too, so the line must not contain the awaited words.
    let line = format!(
        "stty rows 33 cols 101; before=$(stty -g); {} exec -t {} -- sh inside.sh; echo status $?; \
         test \"$before\" = \"$(stty -g)\" && echo re''stored",
        artifacts::cli().display(),
        beside.id,
    );
    let (typed, seen) = (beside.dir.path().join("typed"), beside.dir.path().join("seen"));
    assert!(Command::new("mkfifo").arg(&typed).status().expect("mkfifo runs").success());
    let mut command = Command::new("sh");
    let script = format!("script -q -f -c \"$LINE\" {} < {}", seen.display(), typed.display());
    command.args(["-c", &script]).env("LINE", &line).env("TERM", "vt220").env("SHELL", "/bin/sh");
    command.env("ALIQUOT_SCHEDULER", beside.cluster.scheduler.socket());
    let process = Process::start(&mut command);
    let mut keyboard = fs::OpenOptions::new().write(true).open(&typed).expect("script reads");
    let wait_for = |text: &str| wait::until_true(&format!("{text:?} is seen"), || beside.file("seen").contains(text));
    wait_for("ready");
    // Ctrl-C is sent as a key, so it reaches the command and not this program.
    std::io::Write::write_all(&mut keyboard, b"\x03").expect("it is typed");
    wait_for("interrupted");
    std::io::Write::write_all(&mut keyboard, b"answer\r").expect("it is typed");
    wait_for("restored");
    drop(keyboard);
    let _ = process.wait();
    let seen = beside.file("seen");
    assert!(seen.contains("33 101\r\n") && seen.contains("terminal vt220\r\n"), "{seen}");
    assert!(seen.contains("got answer\r\n") && seen.contains("status 5\r\n"), "{seen}");
}

#[test]
fn a_command_ends_with_its_caller_and_with_its_job() {
    let beside = Beside::start(endless());
    let sleeper = beside.sleeper();
    // This includes processes that the command leaves behind in sessions of their own.
    let script = format!("(setsid {0} &) ; setsid {0} & {0}", sleeper.script());

    let process = Process::start(&mut beside.exec(&[], &script));
    sleeper.wait_for(3);
    let _ = process.kill();
    sleeper.wait_for(0);

    let process = Process::start(&mut beside.exec(&[], &script));
    sleeper.wait_for(3);
    process.signal(Signal::TERM);
    assert_eq!(process.wait().status.code(), Some(143));
    sleeper.wait_for(0);

    // Processes that a command has started end with it.
    let left = format!("(setsid {0} &) ; setsid {0} & exit 3", sleeper.script());
    assert_eq!(run(&mut beside.exec(&[], &left)).status.code(), Some(3));
    sleeper.wait_for(0);

    let process = Process::start(&mut beside.exec(&[], &script));
    sleeper.wait_for(3);
    beside.cluster.client().cancel(beside.id).expect("it can be cancelled");
    let ended = process.wait();
    assert_eq!(ended.status.code(), Some(137), "{ended:?}");
    assert!(ended.stderr.contains("the job has ended"), "{ended:?}");
    sleeper.wait_for(0);
    beside.cluster.wait_for(beside.id, JobState::Cancelled);
    let ended = run(&mut beside.exec(&[], "true"));
    assert_eq!(ended.status.code(), Some(125), "{ended:?}");
    assert!(ended.stderr.contains("has ended"), "{ended:?}");
}

#[test]
fn a_command_ends_with_the_manager_and_works_with_the_next() {
    let mut beside = Beside::start(endless());
    let sleeper = beside.sleeper();
    let process = Process::start(&mut beside.exec(&[], &sleeper.script()));
    sleeper.wait_for(1);
    beside.cluster.nodes[0].kill();
    let ended = process.wait();
    assert_eq!(ended.status.code(), Some(125), "{ended:?}");
    assert!(ended.stderr.contains("node-0"), "{ended:?}");
    sleeper.wait_for(0);
    beside.cluster.nodes[0].restart();
    beside.cluster.wait_for_nodes(1);
    beside.cluster.wait_for(beside.id, JobState::Running);
    wait::until_true("the node answers again", || {
        let said = run(&mut beside.exec(&[], "echo $GREETING"));
        said.status.success() && said.stdout == "hello\n"
    });
}

#[test]
fn who_attaches_sees_what_comes_and_the_jobs_status() {
    let beside =
        Beside::start(shell("echo before; until [ -e go ]; do echo tick; sleep 0.05; done; echo after; exit 9"));
    wait::until_true("the job writes", || {
        beside.cluster.client().log(beside.id, 0).is_ok_and(|log| log.contains("tick"))
    });
    let mut process = Process::start(&mut beside.aliquot(&["attach", &beside.id.to_string()]));
    process.wait_for("tick");
    fs::write(beside.dir.path().join("go"), "").expect("a file");
    let ended = process.wait();
    assert_eq!(ended.status.code(), Some(9), "{ended:?}");
    assert!(ended.stdout.ends_with("tick\nafter\n") && !ended.stdout.contains("before"), "{ended:?}");
}
