//! Questions to a manager that may be away for a moment.

use std::error::Error;
use std::time::Duration;

use tokio::time::{Instant, sleep};
use tonic::{Response, Status};

/// Between two tries.
pub(super) const PAUSE: Duration = Duration::from_millis(50);

/// The manager's answer to `question`, which is put again while nobody is there to answer it, until `end`. A question that was being answered when the manager ended is put again, too: whatever kubelet asks, it may ask twice.
///
/// # Errors
/// What the manager answers, or that it is away.
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

/// Whether this is not a manager's answer, but what became of the connection to it.
pub(super) fn is_away(status: &Status) -> bool {
    status.source().is_some()
}
