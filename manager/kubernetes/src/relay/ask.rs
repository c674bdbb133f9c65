//! Requests to a manager that may be away for a moment.

use std::error::Error;
use std::time::Duration;

use tokio::time::{Instant, sleep};
use tonic::{Response, Status};

/// Time between two tries.
pub(super) const PAUSE: Duration = Duration::from_millis(50);

/// Returns the manager's answer to `question`. The request is repeated while no manager answers, until `end`. A request
/// that was under way when the manager ended is repeated, too: kubelet may itself send any request twice.
///
/// # Errors
/// The error is the manager's, or says that the manager is away.
pub(super) async fn ask<T, F>(end: Instant, question: impl Fn() -> F) -> Result<Response<T>, Status>
where
    F: Future<Output = Result<Response<T>, Status>>,
{
    loop {
        match question().await {
            Err(status) if is_away(&status) && Instant::now() < end => sleep(PAUSE).await,
            Err(status) if is_away(&status) => {
                return Err(Status::unavailable(format!("the node's manager is away: {}", status.message())));
            }
            outcome => return outcome,
        }
    }
}

/// Whether the status comes from a broken connection, and not from a manager.
pub(super) fn is_away(status: &Status) -> bool {
    status.source().is_some()
}
