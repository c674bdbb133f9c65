//! Kills at bad moments: no job is lost, and none runs twice.

use std::fs;

use aliquot_harness::wait;
use aliquot_proto::scheduler::v1::{JobSpec, JobState, NodeState, Restart};

use crate::{Cluster, endless, shell};

/// Settings with short leases, which still do not lapse when a busy machine makes a node slow.
const SHORT_LEASES: &str = "lease_ms = 12000\nsilence_ms = 4000\n";

/// A job that writes a line at each of its starts, and a function that counts these lines.
fn counted(dir: &tempfile::TempDir) -> (JobSpec, impl Fn() -> usize) {
    let file = dir.path().join("starts");
    let spec = shell(&format!("echo $$ >> {}; exec sleep 1000000", file.display()));
    (spec, move || fs::read_to_string(&file).map_or(0, |text| text.lines().count()))
}

#[test]
fn a_scheduler_that_is_killed_finds_everything_again() {
    let mut cluster = Cluster::start(1, "");
    let dir = tempfile::tempdir().expect("a temporary directory");
    let (spec, starts) = counted(&dir);
    let runs = cluster.submit(JobSpec { gpu_core_percent: 40, ..spec });
    cluster.wait_for(runs, JobState::Running);
    let waits = cluster.submit(JobSpec { gpus: 2, ..endless() });
    cluster.scheduler.kill();
    cluster.scheduler.restart();
    cluster.wait_for_nodes(1);
    let job = cluster.wait_for(runs, JobState::Running);
    assert_eq!((job.tasks[0].attempt, starts()), (1, 1), "it runs on as if nothing had been");
    cluster.wait_for(waits, JobState::Pending);
    // The scheduler still controls the job.
    cluster.client().cancel(runs).expect("it can be cancelled");
    cluster.wait_for(runs, JobState::Cancelled);
    cluster.wait_for(waits, JobState::Running);
}

#[test]
fn a_state_that_was_copied_back_is_older_than_the_nodes() {
    let mut cluster = Cluster::start(1, "");
    cluster.scheduler.stop();
    let database = cluster.scheduler.state_dir().join("scheduler.db");
    let old = fs::read(&database).expect("the state");
    for _ in 0..2 {
        cluster.scheduler.restart();
        let id = cluster.submit(shell("true"));
        cluster.wait_for(id, JobState::Succeeded);
        cluster.scheduler.stop();
    }
    fs::write(&database, old).expect("the state can be copied back");
    cluster.scheduler.restart();
    wait::until_true("the scheduler says why the node ignores it", || {
        cluster.scheduler.log().contains("the node ignores this scheduler: it has heard of a later term")
    });
}

#[test]
fn a_job_that_ends_while_the_scheduler_is_away_is_not_run_again() {
    let mut cluster = Cluster::start(1, "");
    let dir = tempfile::tempdir().expect("a temporary directory");
    let (starts, go) = (dir.path().join("starts"), dir.path().join("go"));
    let script = format!(
        "echo x >> {}; until [ -e {} ]; do sleep 0.05; done; echo ended >> {}",
        starts.display(),
        go.display(),
        starts.display()
    );
    let id = cluster.submit(shell(&script));
    cluster.wait_for(id, JobState::Running);
    cluster.scheduler.kill();
    fs::write(&go, "").expect("a file");
    wait::until_true("the job has ended", || fs::read_to_string(&starts).is_ok_and(|text| text.contains("ended")));
    cluster.scheduler.restart();
    cluster.wait_for(id, JobState::Succeeded);
    assert_eq!(fs::read_to_string(&starts).expect("it has run"), "x\nended\n");
}

#[test]
fn a_manager_that_is_killed_finds_its_jobs_again() {
    let mut cluster = Cluster::start(1, "");
    let dir = tempfile::tempdir().expect("a temporary directory");
    let (spec, starts) = counted(&dir);
    let id = cluster.submit(JobSpec { gpu_core_percent: 40, ..spec });
    cluster.wait_for(id, JobState::Running);
    cluster.nodes[0].kill();
    cluster.nodes[0].restart();
    cluster.wait_for_nodes(1);
    let job = cluster.wait_for(id, JobState::Running);
    assert_eq!((job.tasks[0].attempt, starts()), (1, 1), "it runs on as if nothing had been");
}

#[test]
fn a_job_starts_elsewhere_only_when_its_lost_node_has_stopped_it() {
    let mut cluster = Cluster::start(2, SHORT_LEASES);
    let dir = tempfile::tempdir().expect("a temporary directory");
    // A running copy of the job holds the lock.
    let (lock, twice) = (dir.path().join("lock"), dir.path().join("twice"));
    let script = format!(
        "exec 9>{}; flock --nonblock 9 || echo twice >> {}; exec sleep 1000000",
        lock.display(),
        twice.display()
    );
    let id = cluster.submit(JobSpec { gpu_core_percent: 40, ..shell(&script) });
    let lost = cluster.wait_for(id, JobState::Running).tasks[0].members[0].node.clone();
    let never = cluster.submit(JobSpec { nodes: vec![lost.clone()], restart: Restart::Never.into(), ..endless() });
    cluster.wait_for(never, JobState::Running);
    let number = lost.strip_prefix("node-").and_then(|number| number.parse::<usize>().ok()).expect("a node's name");
    cluster.nodes[number].kill();
    wait::until_true("the job runs on the other node", || {
        let job = cluster.client().job(id).expect("the scheduler answers");
        job.state() == JobState::Running && job.tasks[0].attempt > 1 && job.tasks[0].members[0].node != lost
    });
    assert!(!twice.exists(), "it ran in two places at once");
    let silent = cluster.client().nodes().expect("the scheduler answers");
    assert!(silent.iter().any(|node| node.name == lost && node.state() == NodeState::Silent), "{silent:?}");
    // The engine would start this job anew when the node is back.
    cluster.nodes[number].restart();
    let job = cluster.wait_for(never, JobState::Failed);
    assert!(job.reason.contains("never started again"), "{}", job.reason);
    assert_eq!(job.tasks[0].attempt, 1);
}
