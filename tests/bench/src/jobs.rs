//! A scheduler for machines without Kubernetes: a real one in its own process, and simulated nodes in this process. So
//! the scheduler shares the machine with a thousand nodes, and would be somewhat faster without them.

use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use aliquot_harness::{Jobs, PlayedNodes, PostgreSql, Scheduler, spec_of_today};
use aliquot_proto::scheduler::v1::{JobSpec, JobState, ListJobsRequest, NodeState};

use crate::manager_cost::rollup_mib;
use crate::statistics::{median, quantile};
use crate::table::{Table, yes_or_no};

/// Devices of each node.
const DEVICES: usize = 8;
/// Jobs that are submitted one by one, each when the one before runs.
const ONE_BY_ONE: usize = 200;
/// Tasks of one job at most.
const ARRAY: usize = 10_000;
/// How often each question is asked. The median counts.
const QUESTIONS: usize = 9;
/// The longest time for a figure. If it takes longer, the benchmark fails.
const PATIENCE: Duration = Duration::from_secs(600);
/// The pauses between two looks at the messages of the nodes, and between two questions to the scheduler. Questions
/// cost the scheduler time.
const PAUSE: Duration = Duration::from_millis(5);
const QUESTION_PAUSE: Duration = Duration::from_millis(100);
/// The aims for a restart and for a failover.
const RESTART_AIM_S: f64 = 5.0;
const FAILOVER_AIM_S: f64 = 15.0;

/// How large the cluster is.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Size {
    pub(crate) nodes: usize,
    pub(crate) jobs: usize,
}

/// Measures a cluster with SQLite, and then the failover of two schedulers on PostgreSQL.
pub(crate) fn measure(size: Size) {
    let mut table = Table::new(&["what", "found", "aim", "met"]);
    let Size { nodes, jobs } = size;
    let settings = "start_deadline_ms = 300000\n";
    let mut scheduler = Scheduler::start(settings);
    let mut figure = |what: String, found: String, met: Option<(&'static str, bool)>| {
        let (aim, met) = met.map_or(("", String::new()), |(aim, met)| (aim, yes_or_no(met)));
        println!("{what}: {found}");
        table.row(&[what, found, aim.to_owned(), met]);
    };
    let begun = Instant::now();
    let played = join(&scheduler, &[scheduler.address().to_owned()], nodes);
    wait_for_nodes(&scheduler.socket(), nodes);
    figure(format!("{nodes} nodes of {DEVICES} devices join"), seconds(begun.elapsed()), None);

    let idle = one_by_one(&scheduler, &played);
    figure("from submitting to starting, nothing else: median, p99".to_owned(), milliseconds(idle), None);

    // A tenth of a device each: all of them fill the cluster, and the rest waits.
    let (running, before) = ((nodes * DEVICES * 10).min(jobs), played.start_count());
    let begun = Instant::now();
    let arrays = submit_arrays(&scheduler, jobs);
    let submitted = begun.elapsed();
    wait_until(PAUSE, || played.start_count() >= before + running);
    let filled = begun.elapsed();
    let per_second = running as f64 / filled.as_secs_f64();
    figure(format!("{jobs} tasks in arrays of {ARRAY} are taken in"), seconds(submitted), None);
    figure(
        format!("{running} of them are commanded to start"),
        format!("{}, {per_second:.0} a second", seconds(filled)),
        None,
    );
    figure("memory of the scheduler then".to_owned(), memory(&scheduler), None);
    for (what, took) in questions(&scheduler) {
        figure(what.to_owned(), milliseconds(took), None);
    }

    let full = one_by_one_when_full(&scheduler, &played);
    figure(
        "from submitting to starting, full, ahead of those who wait: median, p99".to_owned(),
        milliseconds(full),
        None,
    );

    scheduler.kill();
    let begun = Instant::now();
    scheduler.restart();
    wait_for_nodes(&scheduler.socket(), nodes);
    let restart = begun.elapsed();
    let is_met = restart.as_secs_f64() < RESTART_AIM_S;
    figure("killed, and started anew until all nodes are up".to_owned(), seconds(restart), Some(("< 5 s", is_met)));
    let again = one_by_one_when_full(&scheduler, &played);
    figure("from submitting to starting after that: median, p99".to_owned(), milliseconds(again), None);
    figure("memory of the scheduler then".to_owned(), memory(&scheduler), None);
    if let Some(first) = arrays.first() {
        figure(
            "the first array is cancelled, until all of it has ended".to_owned(),
            seconds(cancel(&scheduler, *first)),
            None,
        );
    }
    drop((played, scheduler));

    let failover = failover(size);
    let is_met = failover.as_secs_f64() < FAILOVER_AIM_S;
    figure(
        "PostgreSQL: the leader is killed, until another one has all nodes up".to_owned(),
        seconds(failover),
        Some(("< 15 s", is_met)),
    );
}

/// Two schedulers share a database; the first is killed with all jobs in it.
fn failover(Size { nodes, jobs }: Size) -> Duration {
    let server = PostgreSql::start();
    let settings =
        format!("lease_ms = 60000\nstart_deadline_ms = 300000\n[postgresql]\nurl = {:?}\n", server.database());
    let (mut first, second) = (Scheduler::start(&settings), Scheduler::start(&settings));
    let addresses = [first.address().to_owned(), second.address().to_owned()];
    let played = join(&first, &addresses, nodes);
    wait_for_nodes(&first.socket(), nodes);
    submit_arrays(&first, jobs);
    let running = (nodes * DEVICES * 10).min(jobs);
    wait_until(PAUSE, || played.start_count() >= running);
    first.kill();
    let begun = Instant::now();
    wait_for_nodes(&second.socket(), nodes);
    begun.elapsed()
}

fn join(scheduler: &Scheduler, addresses: &[String], nodes: usize) -> PlayedNodes {
    let token = scheduler.client().token_for(u32::try_from(nodes).expect("a few nodes"));
    let names: Vec<String> = (0..nodes).map(|number| format!("node-{number}")).collect();
    PlayedNodes::join(addresses, &token, &names, &spec_of_today(DEVICES), None)
}

/// A job of one task with a tenth of a device.
fn job(priority: i32, array: Vec<u32>) -> JobSpec {
    JobSpec {
        command: vec!["train".to_owned()],
        work_dir: "/".to_owned(),
        gpu_core_percent: 10,
        priority,
        array,
        ..JobSpec::default()
    }
}

/// Submits so many tasks, in jobs of at most [`ARRAY`] tasks. Returns the numbers of these jobs.
fn submit_arrays(scheduler: &Scheduler, jobs: usize) -> Vec<u64> {
    let (mut left, mut ids) = (jobs, Vec::new());
    let mut client = scheduler.client();
    while left > 0 {
        let tasks = left.min(ARRAY);
        let array = (0..u32::try_from(tasks).expect("a few tasks")).collect();
        ids.push(client.submit(job(0, array)).unwrap_or_else(|status| panic!("{}", status.message())).id);
        left -= tasks;
    }
    ids
}

/// Questions of users while the cluster is full, and how long each answer took.
fn questions(scheduler: &Scheduler) -> [(&'static str, Vec<Duration>); 4] {
    let mut client = scheduler.client();
    let waits = client.submit(job(-1, Vec::new())).unwrap_or_else(|status| panic!("{}", status.message())).id;
    // The scheduler says why it waits when it has decided.
    wait_until(QUESTION_PAUSE, || client.explain(waits).is_ok_and(|explained| !explained.reasons.is_empty()));
    let mut median_of = |ask: &dyn Fn(&mut Jobs)| -> Vec<Duration> {
        let mut one = || {
            let begun = Instant::now();
            ask(&mut client);
            begun.elapsed()
        };
        (0..QUESTIONS).map(|_| one()).collect()
    };
    let answered = "the scheduler answers";
    let figures = [
        (
            "why the last job in turn waits: median, p99",
            median_of(&|client| _ = client.explain(waits).expect(answered)),
        ),
        ("all jobs", median_of(&|client| list(client))),
        ("all queues", median_of(&|client| _ = client.queues().expect(answered))),
        ("all nodes", median_of(&|client| _ = client.nodes().expect(answered))),
    ];
    client.cancel(waits).unwrap_or_else(|status| panic!("{}", status.message()));
    figures
}

/// Reads all pages of the list of jobs.
fn list(client: &mut Jobs) {
    let mut before = 0;
    loop {
        let answer = client.list(ListJobsRequest { active: true, before, ..ListJobsRequest::default() });
        let answer = answer.unwrap_or_else(|status| panic!("{}", status.message()));
        before = answer.jobs.last().map_or(0, |job| job.id);
        if !answer.truncated {
            return;
        }
    }
}

/// Cancels a job of which some tasks run. Returns how long that took.
fn cancel(scheduler: &Scheduler, id: u64) -> Duration {
    let (begun, mut client) = (Instant::now(), scheduler.client());
    client.cancel(id).unwrap_or_else(|status| panic!("{}", status.message()));
    wait_until(QUESTION_PAUSE, || client.job(id).is_ok_and(|job| job.state() == JobState::Cancelled));
    begun.elapsed()
}

/// Submits jobs, each when a node has heard of the one before, and cancels them.
fn one_by_one(scheduler: &Scheduler, played: &PlayedNodes) -> Vec<Duration> {
    let mut client = scheduler.client();
    (0..ONE_BY_ONE).map(|_| submit_and_wait(&mut client, played)).collect()
}

/// Submits jobs when there is no room. Each time one of the running tasks makes way, because the new job is more
/// urgent.
fn one_by_one_when_full(scheduler: &Scheduler, played: &PlayedNodes) -> Vec<Duration> {
    let mut client = scheduler.client();
    (0..ONE_BY_ONE / 10).map(|_| submit_and_wait(&mut client, played)).collect()
}

fn submit_and_wait(client: &mut Jobs, played: &PlayedNodes) -> Duration {
    let begun = Instant::now();
    let id = client.submit(job(100, Vec::new())).unwrap_or_else(|status| panic!("{}", status.message())).id;
    let claim = format!("{id}.0.0.");
    let mut started = None;
    wait_until(PAUSE, || {
        started = played.start_of(&claim).map(|at| at.saturating_duration_since(begun));
        started.is_some()
    });
    client.cancel(id).unwrap_or_else(|status| panic!("{}", status.message()));
    started.expect("it has started")
}

fn wait_for_nodes(socket: &Path, count: usize) {
    wait_until(QUESTION_PAUSE, || {
        let nodes = Jobs::connect(socket).and_then(|mut jobs| jobs.nodes().ok()).unwrap_or_default();
        nodes.iter().filter(|node| node.state() == NodeState::Up).count() == count
    });
}

#[track_caller]
fn wait_until(pause: Duration, mut is_so: impl FnMut() -> bool) {
    let until = Instant::now() + PATIENCE;
    while !is_so() {
        assert!(Instant::now() < until, "this has taken longer than {} s", PATIENCE.as_secs());
        thread::sleep(pause);
    }
}

/// The resident memory of the scheduler.
fn memory(scheduler: &Scheduler) -> String {
    format!("{:.0} MiB", rollup_mib(scheduler.process_id(), "Rss:"))
}

fn seconds(time: Duration) -> String {
    format!("{:.2} s", time.as_secs_f64())
}

fn milliseconds(times: Vec<Duration>) -> String {
    let ms: Vec<f64> = times.into_iter().map(|time| time.as_secs_f64() * 1e3).collect();
    format!("{:.1}, {:.1} ms", median(ms.clone()), quantile(ms, 0.99))
}
