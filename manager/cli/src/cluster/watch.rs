//! Watches a job, also across restarts of the scheduler.

use std::error::Error;
use std::path::{Path, PathBuf};
use std::time::Instant;

use aliquot_proto::scheduler::v1::{Job, WatchJobRequest};
use tonic::{Code, Status, Streaming};

use super::{Client, connect, credentials, failed};
use crate::client::{self, RESTART_PATIENCE, RETRY_INTERVAL};
use crate::error::Result;
use crate::server::SCHEDULER;

/// How long to wait for a scheduler that has ended.
#[derive(Debug, Default)]
pub(crate) struct Patience {
    lost_since: Option<Instant>,
}

impl Patience {
    /// Starts the time again, because the scheduler has answered.
    pub(crate) fn renew(&mut self) {
        self.lost_since = None;
    }

    /// Whether the scheduler is away.
    fn is_tried(&self) -> bool {
        self.lost_since.is_some()
    }

    /// Waits until the next attempt. An error if the scheduler has been away for too long.
    pub(crate) async fn wait(&mut self) -> Result<()> {
        if self.lost_since.get_or_insert_with(Instant::now).elapsed() > RESTART_PATIENCE {
            return Err(client::gone(&SCHEDULER));
        }
        tokio::time::sleep(RETRY_INTERVAL).await;
        Ok(())
    }
}

/// Whether the scheduler has ended or is about to. A broken connection has a source; an answer has none. If a scheduler
/// refuses the connection because the certificate has expired, waiting does not help, so that is no loss.
pub(crate) fn is_loss(status: &Status) -> bool {
    (status.source().is_some() || status.code() == Code::Unavailable) && credentials::expired(status).is_none()
}

/// A job at each of its changes.
#[derive(Debug)]
pub(crate) struct Watch {
    socket: PathBuf,
    id: u64,
    client: Client,
    changes: Option<Streaming<Job>>,
    /// The job's last known state. Later answers of a stream are changes of it.
    job: Job,
    patience: Patience,
}

impl Watch {
    /// Watches the job `id` of the scheduler that serves `socket`.
    pub(crate) async fn new(socket: &Path, id: u64) -> Result<Watch> {
        let client = connect(socket).await?;
        Ok(Watch {
            socket: socket.to_owned(),
            id,
            client,
            changes: None,
            job: Job::default(),
            patience: Patience::default(),
        })
    }

    /// Does the same, and waits while the scheduler restarts.
    pub(crate) async fn new_patiently(socket: &Path, id: u64, patience: &mut Patience) -> Result<Watch> {
        loop {
            match Watch::new(socket, id).await {
                Ok(watch) => return Ok(watch),
                Err(failure) if !patience.is_tried() => return Err(failure),
                Err(_) => patience.wait().await?,
            }
        }
    }

    /// The job's present state at the first call, and its state after the next change at each further call. It must not
    /// be called after the job has ended.
    pub(crate) async fn next(&mut self) -> Result<&Job> {
        loop {
            match self.try_next().await {
                Ok(Some(answer)) => {
                    self.patience.renew();
                    update(&mut self.job, answer);
                    return Ok(&self.job);
                }
                // A scheduler that shuts down ends the stream.
                Ok(None) => {}
                Err(status) if is_loss(&status) => {}
                Err(status) => return Err(failed(status)),
            }
            self.changes = None;
            self.patience.wait().await?;
            if let Ok(again) = connect(&self.socket).await {
                self.client = again;
            }
        }
    }

    async fn try_next(&mut self) -> std::result::Result<Option<Job>, Status> {
        if self.changes.is_none() {
            let request = WatchJobRequest { id: self.id, changes_only: true };
            self.changes = Some(self.client.watch_job(request).await?.into_inner());
        }
        match &mut self.changes {
            Some(changes) => changes.message().await,
            None => Ok(None),
        }
    }
}

/// Brings a job up to date with an answer of the scheduler.
fn update(job: &mut Job, answer: Job) {
    if !answer.changes_only {
        *job = answer;
        return;
    }
    let Job { tasks, spec, .. } = std::mem::replace(job, answer);
    let changed = std::mem::replace(&mut job.tasks, tasks);
    for task in changed {
        match job.tasks.binary_search_by_key(&task.index, |known| known.index) {
            Ok(place) => job.tasks[place] = task,
            Err(place) => job.tasks.insert(place, task),
        }
    }
    (job.spec, job.changes_only) = (spec, false);
}

#[cfg(test)]
mod tests {
    use aliquot_proto::scheduler::v1::{JobSpec, Task};

    use super::*;

    fn job(indices: &[u32], attempt: u32) -> Job {
        let tasks = indices.iter().map(|index| Task { index: *index, attempt, ..Task::default() }).collect();
        Job { id: 7, tasks, ..Job::default() }
    }

    #[test]
    fn changes_leave_the_other_tasks_and_the_spec() {
        let mut known = Job { spec: Some(JobSpec::default()), reason: "it waits".to_owned(), ..job(&[0, 2, 4], 1) };
        update(&mut known, Job { changes_only: true, ..job(&[2, 3], 2) });
        let mut expected = Job { spec: Some(JobSpec::default()), ..job(&[0, 2, 3, 4], 1) };
        expected.tasks[1].attempt = 2;
        expected.tasks[2].attempt = 2;
        assert_eq!(known, expected);
    }

    #[test]
    fn a_whole_job_takes_the_place_of_what_was_known() {
        let mut known = job(&[0, 1, 2], 1);
        update(&mut known, job(&[1], 3));
        assert_eq!(known, job(&[1], 3));
    }
}
