//! The environment and the devices of jobs, and the output for their users.

use std::collections::BTreeSet;
use std::io::{Read, Write};
use std::net::TcpStream;

use aliquot_harness::{GIB, Scheduler};
use aliquot_proto::scheduler::v1::{JobSpec, JobState, ListJobsRequest, Queue};

use crate::{Cluster, endless, shell};

#[test]
fn a_job_runs_in_its_exact_part_of_a_device() {
    let cluster = Cluster::start(1, "");
    let script = "echo \"devices: $CUDA_VISIBLE_DEVICES\"; echo \"preload: $LD_PRELOAD\"; sleep 1000000";
    let id = cluster.submit(JobSpec { gpu_core_percent: 30, gpu_memory_bytes: 8 * GIB, ..shell(script) });
    let job = cluster.wait_for(id, JobState::Running);
    let member = &job.tasks[0].members[0];
    assert_eq!((member.node.as_str(), member.devices.len()), ("node-0", 1));
    assert_eq!((member.devices[0].core_millis, member.devices[0].memory_bytes), (300, 8 * GIB));
    let slices = cluster.nodes[0].client().slices().expect("the manager answers");
    let parts: Vec<_> = slices.iter().flat_map(|slice| &slice.parts).collect();
    assert_eq!(parts.len(), 1, "{slices:?}");
    assert_eq!((parts[0].core_request_percent, parts[0].memory_limit_bytes), (30, 8 * GIB));
    assert_eq!(parts[0].device_uuid, member.devices[0].uuid);
    let log = aliquot_harness::wait::until("the job has said what it sees", || {
        cluster.client().log(id, 0).ok().filter(|log| log.contains("preload:"))
    });
    // The shim shows the slice's only device as the first.
    assert!(log.contains("devices: 0\n") && log.contains("/libaliquot-"), "{log}");

    cluster.client().cancel(id).expect("it can be cancelled");
    cluster.wait_for(id, JobState::Cancelled);
    aliquot_harness::wait::until_true("the slice is gone", || {
        cluster.nodes[0].client().slices().is_ok_and(|slices| slices.is_empty())
    });
    assert_eq!(cluster.client().log(id, 0).expect("the log outlives the job"), log);
}

/// The body of the scheduler's answer to a `GET` of this path.
fn get(cluster: &Cluster, path: &str) -> String {
    let log = cluster.scheduler.log();
    let (_, address) = log.split_once("serving metrics address=").unwrap_or_else(|| panic!("no address:\n{log}"));
    let mut stream = TcpStream::connect(address.lines().next().expect("a whole line")).expect("metrics are served");
    let mut text = String::new();
    write!(stream, "GET {path} HTTP/1.0\r\n\r\n").and_then(|()| stream.read_to_string(&mut text)).expect("an answer");
    assert!(text.starts_with("HTTP/1.0 200 OK"), "{text}");
    text.split_once("\r\n\r\n").map(|(_, body)| body.to_owned()).unwrap_or_default()
}

#[test]
fn metrics_tell_what_runs_and_what_waits() {
    let cluster = Cluster::start(1, "metrics_address = '127.0.0.1:0'");
    assert_eq!(get(&cluster, "/healthz"), "ok\n");
    let running = cluster.submit(JobSpec { gpu_core_percent: 30, ..endless() });
    cluster.wait_for(running, JobState::Running);
    cluster.submit(JobSpec { gpus: 3, ..endless() });
    // A cycle does not look further than this; `aliquot explain` says that no node is large enough.
    let metrics = aliquot_harness::wait::until("it is told that the second finds no room", || {
        let metrics = get(&cluster, "/metrics");
        metrics.contains("aliquot_scheduler_waiting{reason=\"no-room\"} 1").then_some(metrics)
    });
    for line in [
        "aliquot_scheduler_jobs{state=\"running\"} 1",
        "aliquot_scheduler_jobs{state=\"pending\"} 1",
        "aliquot_scheduler_jobs_submitted_total 2",
        "aliquot_scheduler_start_wait_seconds_count 1",
        "aliquot_scheduler_waiting{reason=\"quota\"} 0",
        "aliquot_scheduler_queue_held_gpus{queue=\"default\"} 0.3",
        "aliquot_scheduler_nodes{state=\"up\"} 1",
    ] {
        assert!(metrics.lines().any(|told| told == line), "{line:?} is not in:\n{metrics}");
    }
    assert!(metrics.ends_with("# EOF\n"), "{metrics}");
}

#[test]
fn the_end_of_a_job_is_its_commands_end() {
    let cluster = Cluster::start(1, "");
    let good = cluster.submit(shell("echo done"));
    let bad = cluster.submit(shell("exit 3"));
    let killed = cluster.submit(shell("kill -TERM $$; exit 0"));
    let missing = cluster.submit(JobSpec { command: vec!["/no/such/program".into()], ..shell("") });
    assert_eq!(cluster.wait_for(good, JobState::Succeeded).tasks[0].members[0].exit_code, Some(0));
    assert_eq!(cluster.client().log(good, 0).expect("there is a log"), "done\n");
    let job = cluster.wait_for(bad, JobState::Failed);
    assert_eq!((job.tasks[0].members[0].exit_code, job.reason.as_str()), (Some(3), "ended with code 3"));
    // A job is asked to end with this signal, so the signal must not be blocked.
    assert_eq!(cluster.wait_for(killed, JobState::Failed).tasks[0].members[0].signal, 15);
    cluster.wait_for(missing, JobState::Failed);
}

#[test]
fn a_gang_starts_as_a_whole_and_its_members_find_each_other() {
    let cluster = Cluster::start(2, "");
    // Each member needs both devices of a node.
    let script = "echo \"$RANK/$WORLD_SIZE $MASTER_ADDR:$MASTER_PORT\"";
    let id = cluster.submit(JobSpec { gpus: 2, gang: 2, ..shell(script) });
    let job = cluster.wait_for(id, JobState::Succeeded);
    let nodes: BTreeSet<&str> = job.tasks[0].members.iter().map(|member| member.node.as_str()).collect();
    assert_eq!(nodes, BTreeSet::from(["node-0", "node-1"]));
    let logs = [0, 1].map(|rank| cluster.client().log(id, rank).expect("there is a log"));
    assert!(logs[0].starts_with("0/2 127.") && logs[1].starts_with("1/2 127."), "{logs:?}");
    let meeting = |log: &str| log.split_once(' ').map(|(_, meeting)| meeting.to_owned());
    assert_eq!(meeting(&logs[0]), meeting(&logs[1]));
}

#[test]
fn a_job_that_waits_says_why() {
    let cluster = Cluster::start(1, "");
    let first = cluster.submit(JobSpec { gpus: 2, ..endless() });
    cluster.wait_for(first, JobState::Running);
    let second = cluster.submit(JobSpec { gpu_core_percent: 50, ..endless() });
    let explained = aliquot_harness::wait::until("the cycle has looked at it", || {
        cluster.client().explain(second).ok().filter(|explained| !explained.reasons.is_empty())
    });
    assert!(explained.reasons.iter().all(|reason| !reason.is_empty()), "{explained:?}");
    let large = cluster.submit(JobSpec { gpus: 3, ..endless() });
    let explained = aliquot_harness::wait::until("the cycle has looked at the larger one", || {
        cluster
            .client()
            .explain(large)
            .ok()
            .filter(|explained| explained.reasons.iter().any(|why| why.contains("device")))
    });
    println!("{explained:?}");
    // Jobs that only have to wait differ from those that would wait for ever.
    let too_large = cluster.submit(JobSpec { gpu_memory_bytes: 1 << 50, ..endless() });
    let reason_has = |id, words: &str| {
        aliquot_harness::wait::until_true(words, || {
            cluster.client().job(id).is_ok_and(|job| job.reason.contains(words))
        });
    };
    reason_has(second, "no node has room now");
    reason_has(too_large, "no node is large enough");
    cluster.client().cancel(first).expect("it can be cancelled");
    cluster.wait_for(second, JobState::Running);
}

#[test]
fn an_array_has_a_task_for_each_index() {
    let cluster = Cluster::start(1, "");
    let id = cluster.submit(JobSpec { array: (3..9).collect(), ..shell("exit $((ALIQUOT_ARRAY_INDEX == 5))") });
    let job = cluster.wait_for(id, JobState::Failed);
    let failed: Vec<u32> =
        job.tasks.iter().filter(|task| task.state() == JobState::Failed).map(|task| task.index).collect();
    assert_eq!((job.tasks.len(), failed), (6, vec![5]));
}

#[test]
fn a_long_list_comes_in_answers_that_clients_take_in() {
    let scheduler = Scheduler::start("");
    let mut client = scheduler.client();
    let long = JobSpec { command: vec!["x".repeat(100 << 10)], ..endless() };
    let mut ids: Vec<u64> = (0..45).map(|_| client.submit(long.clone()).expect("it is taken").id).collect();
    ids.reverse();
    let (mut listed, mut answers) = (Vec::new(), 0);
    loop {
        let request = ListJobsRequest { before: listed.last().copied().unwrap_or(0), ..ListJobsRequest::default() };
        let answer = client.list(request).expect("it has fewer than 4 MiB");
        answers += 1;
        listed.extend(answer.jobs.iter().map(|job| job.id));
        if !answer.truncated {
            break;
        }
    }
    assert_eq!(listed, ids);
    assert!(answers > 1, "all of it is 4.4 MiB");
}

#[test]
fn what_can_never_run_is_refused_at_once() {
    let cluster = Cluster::start(1, "");
    let refused = |spec: JobSpec| cluster.client().submit(spec).expect_err("it is refused").message().to_owned();
    let message = refused(JobSpec { queue: "research".into(), ..endless() });
    assert!(message.contains("research") && message.contains("default"), "{message}");
    let message = refused(JobSpec { gpu_core_percent: 130, ..endless() });
    assert!(message.contains("130"), "{message}");
    let queue = Queue { name: "research".into(), weight: 1, ..Queue::default() };
    cluster.client().set_queue(queue).expect("root is an administrator");
    let id = cluster.submit(JobSpec { queue: "research".into(), ..shell("true") });
    cluster.wait_for(id, JobState::Succeeded);
}
