//! A job at each of its changes.

use std::time::Duration;

use aliquot_proto::scheduler::v1 as wire;
use tokio::sync::broadcast::error::RecvError;
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Request, Status};

use super::{StreamOf, UserService, caller, check};
use crate::access::Action;

/// The shortest time between two answers.
const GAP: Duration = Duration::from_millis(200);
/// The job is looked at so often although nothing has happened to it.
const LOOK: Duration = Duration::from_secs(1);
/// Answers that wait for a reader.
const ANSWERS_MAX: usize = 16;

/// Answers a job now and at each change, until it has ended or the caller ends the stream.
pub(super) fn watch(
    service: &UserService,
    request: &Request<wire::GetJobRequest>,
) -> Result<StreamOf<wire::Job>, Status> {
    let caller = caller(request)?;
    check(request, &Action::Look)?;
    let id = request.get_ref().id;
    let mut touched = service.seen.touched.subscribe();
    let mut last = service.job(id, &caller)?;
    let service = service.clone();
    let (sender, receiver) = tokio::sync::mpsc::channel(ANSWERS_MAX);
    tokio::spawn(async move {
        loop {
            let has_ended = has_ended(&last);
            if sender.send(Ok(last.clone())).await.is_err() || has_ended {
                return;
            }
            // Changes that come in quick succession are one.
            tokio::time::sleep(GAP).await;
            loop {
                let news = tokio::select! {
                    news = touched.recv() => news,
                    // Why it waits is not in the book.
                    () = tokio::time::sleep(LOOK) => Ok(id),
                    () = sender.closed() => return,
                };
                match news {
                    Ok(of) if of != id => continue,
                    Ok(_) | Err(RecvError::Lagged(_)) => {}
                    Err(RecvError::Closed) => return,
                }
                match service.job(id, &caller) {
                    Ok(now) if now != last => {
                        last = now;
                        break;
                    }
                    Ok(_) => {}
                    // It is known no more.
                    Err(_) => return,
                }
            }
        }
    });
    Ok(Box::pin(ReceiverStream::new(receiver)))
}

fn has_ended(job: &wire::Job) -> bool {
    matches!(job.state(), wire::JobState::Succeeded | wire::JobState::Failed | wire::JobState::Cancelled)
}
