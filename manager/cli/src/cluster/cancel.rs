//! `aliquot cancel`: ends jobs, or some of their tasks.

use std::path::Path;

use aliquot_proto::scheduler::v1::{CancelJobRequest, Job};
use serde_json::json;

use super::state;
use super::words::indices_short;
use super::{TaskId, connect_to_running, failed, json};
use crate::args::CancelArgs;
use crate::error::{Failure, Result};
use crate::output;

/// Ends jobs and tasks. If some of them cannot be ended, the others are ended all the same.
pub(crate) async fn cancel(socket: Option<&Path>, args: &CancelArgs) -> Result<()> {
    let mut client = connect_to_running(socket).await?;
    let (mut cancelled, mut failures): (Vec<serde_json::Value>, Vec<Failure>) = (Vec::new(), Vec::new());
    for request in requests(&args.tasks) {
        match client.cancel_job(request.clone()).await.map_err(failed) {
            Ok(answer) => {
                let job = answer.into_inner();
                cancelled.push(json::job(&job));
                if !args.json {
                    output::print(&format!("{} {}\n", what(&request), outcome(&request, &job)))?;
                }
            }
            Err(failure) => failures.push(failure),
        }
    }
    if args.json {
        output::print_json(&json!({ "jobs": cancelled }))?;
    }
    let Some(last) = failures.pop() else { return Ok(()) };
    for failure in failures {
        output::say(failure);
    }
    Err(last)
}

/// One request for each job. A job that is also named as a whole is ended as a whole.
fn requests(ids: &[TaskId]) -> Vec<CancelJobRequest> {
    let mut requests: Vec<CancelJobRequest> = Vec::new();
    for id in ids {
        let request = match requests.iter_mut().find(|request| request.id == id.job) {
            Some(request) if request.tasks.is_empty() => continue,
            Some(request) => request,
            None => {
                requests.push(CancelJobRequest { id: id.job, tasks: id.task.into_iter().collect() });
                continue;
            }
        };
        match id.task {
            None => request.tasks.clear(),
            Some(task) if !request.tasks.contains(&task) => request.tasks.push(task),
            Some(_) => {}
        }
    }
    requests.iter_mut().for_each(|request| request.tasks.sort_unstable());
    requests
}

fn what(request: &CancelJobRequest) -> String {
    match request.tasks.as_slice() {
        [] => request.id.to_string(),
        tasks => format!("{}.{}", request.id, indices_short(tasks)),
    }
}

/// The present states of the tasks in the request.
fn outcome(request: &CancelJobRequest, job: &Job) -> String {
    if request.tasks.is_empty() {
        return state::word(job.state()).to_owned();
    }
    let asked = job.tasks.iter().filter(|task| request.tasks.contains(&task.index));
    let mut states: Vec<&str> = asked.map(|task| state::word(task.state())).collect();
    states.sort_unstable();
    states.dedup();
    states.join(", ")
}

#[cfg(test)]
mod tests {
    use aliquot_proto::scheduler::v1::{JobState, Task};

    use super::*;

    #[test]
    fn tasks_of_a_job_go_together_and_the_whole_job_before_them() {
        let of = |ids: &[&str]| {
            let ids: Vec<TaskId> = ids.iter().map(|id| id.parse().unwrap()).collect();
            requests(&ids).iter().map(what).collect::<Vec<_>>()
        };
        assert_eq!(of(&["17.5", "18", "17.3", "17.4", "17.3"]), ["17.3-5", "18"]);
        assert_eq!(of(&["17.5", "17"]), ["17"]);
        assert_eq!(of(&["17", "17.5"]), ["17"]);
    }

    #[test]
    fn the_states_of_what_was_asked_for_are_told() {
        let task = |index, state: JobState| Task { index, state: state.into(), ..Task::default() };
        let tasks = vec![task(1, JobState::Running), task(2, JobState::Stopping), task(3, JobState::Cancelled)];
        let job = Job { state: JobState::Running.into(), tasks, ..Job::default() };
        let outcome = |tasks: &[u32]| outcome(&CancelJobRequest { id: 1, tasks: tasks.to_vec() }, &job);
        assert_eq!(outcome(&[]), "running");
        assert_eq!(outcome(&[3]), "cancelled");
        assert_eq!(outcome(&[2, 3]), "cancelled, stopping");
    }
}
