//! Watches a job: answers it at each of its changes.

use std::time::{Duration, Instant};

use aliquot_proto::scheduler::v1 as wire;
use tokio::sync::broadcast::Receiver;
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Request, Status};

use super::{StreamOf, UserService, caller, check};
use crate::access::Action;
use crate::jobs::JobId;

/// The shortest time between two answers.
const GAP: Duration = Duration::from_millis(200);
/// The longest time between two looks at the job, even without a change in the book.
const LOOK: Duration = Duration::from_secs(1);
/// A look at a large array takes long. The time between two looks is at least this many times the time of a look, so
/// that a watcher takes at most 5 % of a processor.
const LOOK_COST_FACTOR: u32 = 20;
/// The most answers that wait for a reader.
const ANSWERS_MAX: usize = 16;

/// Answers the job now and at each change, until it has ended or the caller ends the stream.
pub(super) fn watch(
    service: &UserService,
    request: &Request<wire::WatchJobRequest>,
) -> Result<StreamOf<wire::Job>, Status> {
    let caller = caller(request)?;
    check(request, &Action::Look)?;
    let &wire::WatchJobRequest { id, changes_only } = request.get_ref();
    let mut touched = service.seen.touched.subscribe();
    let mut last = service.job(id, &caller)?;
    let service = service.clone();
    let (sender, receiver) = tokio::sync::mpsc::channel(ANSWERS_MAX);
    tokio::spawn(async move {
        let (mut answer, mut gap) = (last.clone(), GAP);
        loop {
            let has_ended = has_ended(&answer);
            if sender.send(Ok(answer)).await.is_err() || has_ended {
                return;
            }
            loop {
                // Changes in quick succession are answered together.
                tokio::time::sleep(gap).await;
                tokio::select! {
                    // The reason why a task waits is not in the book, so a change of it gives no signal.
                    _ = tokio::time::timeout(LOOK, touch(&mut touched, id)) => {}
                    () = sender.closed() => return,
                }
                let (service, caller, before) = (service.clone(), caller.clone(), last);
                let look = move || {
                    let begun = Instant::now();
                    let now = service.job(id, &caller)?;
                    let answer = if now == before {
                        None
                    } else if changes_only {
                        Some(changes(&before, &now))
                    } else {
                        Some(now.clone())
                    };
                    Ok::<_, Status>((now, answer, GAP.max(begun.elapsed() * LOOK_COST_FACTOR)))
                };
                // The job is no longer known, or this process is ending.
                let Ok(Ok((now, news, cost))) = tokio::task::spawn_blocking(look).await else { return };
                (last, gap) = (now, cost);
                if let Some(news) = news {
                    answer = news;
                    break;
                }
            }
        }
    });
    Ok(Box::pin(ReceiverStream::new(receiver)))
}

/// Returns when the job `id` may have changed, or this process is ending.
async fn touch(touched: &mut Receiver<JobId>, id: JobId) {
    while touched.recv().await.is_ok_and(|of| of != id) {}
}

/// The parts of `now` that differ from `before`. A task keeps its position in the list.
fn changes(before: &wire::Job, now: &wire::Job) -> wire::Job {
    let is_new = |(place, task): &(usize, &wire::Task)| before.tasks.get(*place) != Some(*task);
    let tasks = now.tasks.iter().enumerate().filter(is_new).map(|(_, task)| task.clone()).collect();
    wire::Job {
        id: now.id,
        spec: None,
        user: now.user.clone(),
        uid: now.uid,
        submitted_unix_ms: now.submitted_unix_ms,
        state: now.state,
        tasks,
        reason: now.reason.clone(),
        is_remote: now.is_remote,
        changes_only: true,
    }
}

fn has_ended(job: &wire::Job) -> bool {
    matches!(job.state(), wire::JobState::Succeeded | wire::JobState::Failed | wire::JobState::Cancelled)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn changes_are_the_tasks_that_differ_without_the_spec() {
        let task = |index, attempt| wire::Task { index, attempt, ..wire::Task::default() };
        let job = |reason: &str, attempts: [u32; 3]| wire::Job {
            id: 7,
            spec: Some(wire::JobSpec::default()),
            tasks: attempts.iter().zip(0..).map(|(attempt, index)| task(index, *attempt)).collect(),
            reason: reason.to_owned(),
            ..wire::Job::default()
        };
        let changed = changes(&job("it waits", [1, 1, 1]), &job("", [1, 2, 1]));
        assert_eq!(changed, wire::Job { id: 7, tasks: vec![task(1, 2)], changes_only: true, ..wire::Job::default() });
    }
}
