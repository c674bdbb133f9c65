//! Several schedulers that share a PostgreSQL database.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::process::Command;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;

use aliquot_harness::{Jobs, Node, PostgreSql, Scheduler, SimulatedGpu, artifacts, run, wait};
use aliquot_proto::scheduler::v1::{Job, JobState, NodeState};

use crate::{endless, shell};

/// Two schedulers, of which the first one leads, and a node that knows both.
pub(crate) struct Pair {
    // The fields are dropped in this order.
    node: Node,
    _gpu: SimulatedGpu,
    pub(crate) first: Scheduler,
    pub(crate) second: Scheduler,
    _server: PostgreSql,
}

impl Pair {
    pub(crate) fn start() -> Pair {
        let server = PostgreSql::start();
        let settings = format!("lease_ms = 60000\n[postgresql]\nurl = {:?}\n", server.database());
        let (first, second) = (Scheduler::start(&settings), Scheduler::start(&settings));
        assert!(second.log().contains("stands by"), "{}", second.log());
        let gpu = SimulatedGpu::with("[[device]]\nmemory = '80GiB'\n");
        let node = Node::with(&gpu, &first.joins_with("node-0", &[&second]));
        let pair = Pair { node, _gpu: gpu, first, second, _server: server };
        is_up(&pair.first);
        pair
    }
}

/// Waits until the node is up for this scheduler.
fn is_up(scheduler: &Scheduler) {
    wait::until_true("the node is up", || {
        let nodes = asked(scheduler, |jobs| jobs.nodes().ok()).unwrap_or_default();
        nodes.iter().any(|node| node.state() == NodeState::Up)
    });
}

/// Asks a scheduler, which may be down.
fn asked<T>(scheduler: &Scheduler, question: impl FnOnce(&mut Jobs) -> Option<T>) -> Option<T> {
    Jobs::connect(&scheduler.socket()).and_then(|mut jobs| question(&mut jobs))
}

/// Waits until a job is in this state according to this scheduler.
fn wait_for(scheduler: &Scheduler, id: u64, state: JobState) -> Job {
    wait::until(&format!("job {id} is {state:?}"), || {
        asked(scheduler, |jobs| jobs.job(id).ok()).filter(|job| job.state() == state)
    })
}

/// How often each job has run, counted by the lines that the jobs write.
fn runs(file: &Path) -> BTreeMap<u64, usize> {
    let mut runs = BTreeMap::new();
    for line in fs::read_to_string(file).unwrap_or_default().lines() {
        *runs.entry(line.parse().expect("a job's number")).or_default() += 1;
    }
    runs
}

#[test]
fn each_job_runs_once_whose_leader_is_killed_meanwhile() {
    let mut pair = Pair::start();
    let dir = tempfile::tempdir().expect("a temporary directory");
    let file = dir.path().join("runs");
    let spec = shell(&format!("echo $ALIQUOT_JOB_ID >> {}", file.display()));
    let (is_over, count) = (AtomicBool::new(false), AtomicUsize::new(0));
    let sockets = [pair.first.socket(), pair.second.socket()];
    let acknowledged: Vec<u64> = thread::scope(|scope| {
        // Each request is sent until it is answered, to the two schedulers in turn.
        let submit = |user: usize| {
            let (spec, sockets, is_over, count) = (&spec, &sockets, &is_over, &count);
            scope.spawn(move || {
                let (mut acknowledged, mut sent) = (Vec::new(), user);
                while !is_over.load(Ordering::SeqCst) {
                    let request = format!("{user}-{}", acknowledged.len());
                    let jobs = Jobs::connect(&sockets[sent % sockets.len()]);
                    sent += 1;
                    if let Some(job) = jobs.and_then(|mut jobs| jobs.submit_as(&request, spec.clone()).ok()) {
                        acknowledged.push(job.id);
                        count.fetch_add(1, Ordering::SeqCst);
                    }
                }
                acknowledged
            })
        };
        let users = [0, 1].map(submit);
        wait::until_true("jobs are submitted", || count.load(Ordering::SeqCst) >= 20);
        pair.first.kill();
        let before = count.load(Ordering::SeqCst);
        wait::until_true("the other one takes jobs", || count.load(Ordering::SeqCst) >= before + 20);
        is_over.store(true, Ordering::SeqCst);
        users.into_iter().flat_map(|user| user.join().expect("it does not panic")).collect()
    });
    let mut numbers = acknowledged.clone();
    numbers.sort_unstable();
    numbers.dedup();
    assert_eq!(numbers.len(), acknowledged.len(), "no number is given twice");
    for id in numbers {
        let job = wait_for(&pair.second, id, JobState::Succeeded);
        assert_eq!(job.tasks[0].attempt, 1, "{job:?}");
        assert_eq!(runs(&file).get(&id), Some(&1), "job {id}");
    }
    // There may also be the last request of each user, if the user did not wait for the answer.
    let all = runs(&file);
    assert!(all.values().all(|count| *count == 1), "{all:?}");
    assert!(all.len() <= acknowledged.len() + 2, "requests that were sent again are other jobs: {all:?}");

    // A scheduler that comes back stands by, and its users do not notice.
    pair.first.restart();
    assert!(pair.first.log().contains("stands by"), "{}", pair.first.log());
    let id = pair.first.client().submit(endless()).expect("the leader takes it").id;
    wait_for(&pair.first, id, JobState::Running);
    let mut command = Command::new(artifacts::cli());
    command.env("ALIQUOT_SCHEDULER", pair.first.socket()).args(["exec", &id.to_string(), "echo", "reached"]);
    assert_eq!(run(&mut command).success().stdout, "reached\n", "by way of the one that stands by");
    // A leader that is stopped lets the next one lead at once.
    pair.second.stop();
    wait::until_true("the first one leads again", || pair.first.log().contains("this scheduler leads"));
    is_up(&pair.first);
    assert_eq!(wait_for(&pair.first, id, JobState::Running).tasks[0].attempt, 1, "it runs on");
}

#[test]
fn a_leader_that_was_frozen_ends_and_tells_nobody_anything() {
    let mut pair = Pair::start();
    let dir = tempfile::tempdir().expect("a temporary directory");
    let file = dir.path().join("runs");
    let spec = shell(&format!("echo $ALIQUOT_JOB_ID >> {}; exec sleep 1000000", file.display()));
    let id = pair.first.client().submit(spec).expect("it is taken").id;
    wait_for(&pair.first, id, JobState::Running);
    pair.first.freeze();
    is_up(&pair.second);
    pair.first.resume();
    let said = pair.first.ended();
    assert!(said.contains("is no longer the leader"), "{said}");
    let job = wait_for(&pair.second, id, JobState::Running);
    assert_eq!((job.tasks[0].attempt, runs(&file)), (1, BTreeMap::from([(id, 1)])), "it runs on");
    drop(pair.node);
}
