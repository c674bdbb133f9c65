//! Secrets that jobs are given as files.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use aliquot_harness::{Outcome, artifacts, run, wait};
use aliquot_proto::scheduler::v1::{JobSpec, JobState, SecretUse};
use rustix::process::geteuid;

use crate::{Cluster, shell};

/// A value that occurs in no other file.
const VALUE: &str = "sesame-0b7d1f52";

fn aliquot(cluster: &Cluster, arguments: &[&str]) -> Outcome {
    let mut command = Command::new(artifacts::cli());
    run(command.args(arguments).env("ALIQUOT_SCHEDULER", cluster.scheduler.socket()))
}

fn set(cluster: &Cluster, name: &str, value: &str, options: &[&str]) {
    let file = tempfile::NamedTempFile::new().expect("a file");
    fs::write(file.path(), value).expect("it can be written");
    let path = file.path().to_str().expect("a plain path");
    let said = aliquot(cluster, &[&["secrets", "set", name, "--from-file", path], options].concat()).success();
    assert_eq!(said.stdout, format!("{name}\n"));
}

/// The files below `dir` that contain `VALUE`.
fn files_with_value(dir: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in fs::read_dir(dir).into_iter().flatten().flatten() {
        let path = entry.path();
        let Ok(kind) = entry.file_type() else { continue };
        if kind.is_dir() {
            found.extend(files_with_value(&path));
        } else if kind.is_file() && fs::read(&path).is_ok_and(|bytes| has_value(&bytes)) {
            found.push(path);
        }
    }
    found
}

fn has_value(bytes: &[u8]) -> bool {
    bytes.windows(VALUE.len()).any(|part| part == VALUE.as_bytes())
}

/// Whether a process of this machine has the value on its command line.
fn is_on_a_command_line() -> bool {
    let processes = fs::read_dir("/proc").expect("the kernel lists processes").flatten();
    processes.into_iter().any(|process| fs::read(process.path().join("cmdline")).is_ok_and(|line| has_value(&line)))
}

#[test]
fn a_job_finds_its_secrets_and_nobody_else_does() {
    let mut cluster = Cluster::start(1, "");
    set(&cluster, "token", &format!("{VALUE}\n"), &[]);
    set(&cluster, "of-queue", "queue's", &["--queue", "default"]);
    let dir = tempfile::tempdir().expect("a directory");
    let script = "cd $ALIQUOT_SECRETS; stat -c '%n %a %u' *; stat -f -c %T .; sha256sum token; cat of-queue; \
                  [ \"$(cat token)\" = \"$TOKEN\" ] && echo same; (echo x > new) 2>&1; echo up > $DIR/up; exec sleep 1000000";
    let named = |name: &str, variable: &str| SecretUse { name: name.into(), variable: variable.into() };
    let environment = [("DIR".to_owned(), dir.path().to_str().expect("a plain path").to_owned())].into();
    let secrets = vec![named("token", "TOKEN"), named("of-queue", "")];
    let id = cluster.submit(JobSpec { environment, secrets, ..shell(script) });
    cluster.wait_for(id, JobState::Running);
    wait::until_true("the job has read them", || dir.path().join("up").exists());

    let uid = geteuid().as_raw();
    let log = cluster.client().log(id, 0).expect("there is a log");
    for part in [&format!("of-queue 400 {uid}\ntoken 400 {uid}\ntmpfs\n"), "queue'ssame\n"] {
        assert!(log.contains(part), "{part:?} is not in {log}");
    }
    if geteuid().is_root() {
        assert!(log.contains("Read-only"), "nobody fills the memory that way: {log}");
    }
    let node = &cluster.nodes[0];
    let of_jobs = node.runtime_dir().join("secrets");
    assert_eq!(files_with_value(&of_jobs).len(), 1, "the node has it in memory");
    let told = ["job", "explain", "jobs"].map(|word| {
        let number = id.to_string();
        let arguments = if word == "jobs" { vec!["jobs", "--json"] } else { vec![word, &number, "--json"] };
        let said = aliquot(&cluster, &arguments).success();
        said.stdout + &said.stderr
    });
    let listed = aliquot(&cluster, &["secrets"]).success().stdout;
    assert!(listed.contains("token") && listed.contains("queue default"), "{listed}");
    for text in told.iter().chain([&listed, &cluster.scheduler.log(), &node.log()]) {
        assert!(!has_value(text.as_bytes()), "{text}");
    }
    assert!(told[0].contains("\"token\""), "its name is shown: {}", told[0]);
    assert!(!is_on_a_command_line());

    // A kill of the manager does not change this.
    cluster.nodes[0].kill();
    cluster.nodes[0].restart();
    cluster.wait_for_nodes(1);
    assert_eq!(files_with_value(&of_jobs).len(), 1);
    cluster.client().cancel(id).expect("it can be cancelled");
    cluster.wait_for(id, JobState::Cancelled);
    assert_eq!(fs::read_dir(&of_jobs).expect("a directory").count(), 0, "they are gone when the job is");

    for dir in [cluster.scheduler.state_dir(), cluster.nodes[0].state_dir()] {
        assert_eq!(files_with_value(&dir), Vec::<PathBuf>::new());
    }
    let audit = fs::read_to_string(cluster.scheduler.state_dir().join("audit.jsonl")).expect("an audit log");
    assert!(audit.contains("\"object\":\"secret of-queue of queue default\""), "{audit}");
}

#[test]
fn a_job_never_starts_without_a_secret_that_it_names() {
    let mut cluster = Cluster::start(1, "");
    let use_of = |name: &str| vec![SecretUse { name: name.into(), variable: String::new() }];
    let refused =
        cluster.client().submit(JobSpec { secrets: use_of("token"), ..shell("true") }).expect_err("none is kept");
    assert!(refused.message().contains("aliquot secrets set token --from-file"), "{refused:?}");

    // A job gets the value at the time of its start, and a scheduler that was killed still has it.
    set(&cluster, "token", "new", &[]);
    cluster.scheduler.kill();
    cluster.scheduler.restart();
    cluster.wait_for_nodes(1);
    let id = cluster.submit(JobSpec { secrets: use_of("token"), ..shell("cat $ALIQUOT_SECRETS/token") });
    cluster.wait_for(id, JobState::Succeeded);
    assert_eq!(cluster.client().log(id, 0).expect("a log"), "new");

    // The job gets a place only after the secret was removed.
    let hog = cluster.submit(JobSpec { gpus: 2, gpu_core_percent: 100, ..shell("exec sleep 1000000") });
    cluster.wait_for(hog, JobState::Running);
    let starved = cluster.submit(JobSpec { gpus: 1, secrets: use_of("token"), ..shell("true") });
    let _ = aliquot(&cluster, &["secrets", "remove", "token"]).success();
    cluster.client().cancel(hog).expect("it can be cancelled");
    let failed = cluster.wait_for(starved, JobState::Failed);
    assert!(failed.reason.contains("has a secret \"token\""), "{failed:?}");
}
