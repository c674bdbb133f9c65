//! The thread that gets the lease and keeps it.
//!
//! It has a runtime and connections of its own. So the lease is renewed in time, whatever the scheduler computes
//! meanwhile, and whoever waits for its locks.

use std::sync::Arc;
use std::thread;

use aliquot_api_server::connect;
use tokio::sync::oneshot;

use super::{Candidate, Fence};
use crate::serve::{Config, ServeError};
use crate::telemetry::Status;

/// This replica's part in the election. If it is dropped, the thread ends and the lease stays as it is, as when the
/// process is killed.
pub(crate) struct Keeper {
    won: oneshot::Receiver<Result<(u64, Fence), ServeError>>,
    lost: oneshot::Receiver<String>,
    give_back: oneshot::Sender<()>,
    ended: oneshot::Receiver<()>,
}

/// The thread's ends of the channels.
struct Tells {
    won: oneshot::Sender<Result<(u64, Fence), ServeError>>,
    lost: oneshot::Sender<String>,
    give_back: oneshot::Receiver<()>,
    /// Is dropped at the thread's end.
    _ended: oneshot::Sender<()>,
}

impl Keeper {
    /// Begins to try to get the lease.
    ///
    /// # Errors
    /// There is no thread for it.
    pub(crate) fn start(config: Config, status: Arc<Status>) -> Result<Keeper, ServeError> {
        Keeper::start_with(async move || {
            Ok(Candidate::new(connect(config.kubeconfig.as_deref()).await?, &config, Arc::clone(&status)))
        })
    }

    /// `candidate` is made on the thread: its connections are served by the runtime in which it is made.
    pub(super) fn start_with<F>(candidate: F) -> Result<Keeper, ServeError>
    where
        F: AsyncFnOnce() -> Result<Candidate, ServeError> + Send + 'static,
    {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(ServeError::Thread)?;
        let ((tell_won, won), (tell_lost, lost)) = (oneshot::channel(), oneshot::channel());
        let ((give_back, is_over), (tell_ended, ended)) = (oneshot::channel(), oneshot::channel());
        let tells = Tells { won: tell_won, lost: tell_lost, give_back: is_over, _ended: tell_ended };
        let run = move || runtime.block_on(tells.run(candidate));
        thread::Builder::new().name("lease".into()).spawn(run).map_err(ServeError::Thread)?;
        Ok(Keeper { won, lost, give_back, ended })
    }

    /// Waits until this replica leads. Returns its term, and until when it may write.
    ///
    /// # Errors
    /// The API server is not known.
    pub(crate) async fn won(&mut self) -> Result<(u64, Fence), ServeError> {
        (&mut self.won).await.unwrap_or_else(|_| Err(ServeError::LeaseLost(ENDED.into())))
    }

    /// Waits until this replica leads no more, and says why.
    pub(crate) async fn lost(&mut self) -> String {
        (&mut self.lost).await.unwrap_or_else(|_| ENDED.into())
    }

    /// Gives the lease back, if this replica has it.
    pub(crate) async fn give_back(self) {
        // An error means that the thread has ended.
        _ = self.give_back.send(());
        _ = self.ended.await;
    }
}

const ENDED: &str = "the thread that renews it has ended";

impl Tells {
    async fn run(mut self, candidate: impl AsyncFnOnce() -> Result<Candidate, ServeError>) {
        let candidate = match candidate().await {
            Ok(candidate) => candidate,
            Err(error) => {
                _ = self.won.send(Err(error));
                return;
            }
        };
        let (term, fence) = tokio::select! {
            won = candidate.lead() => won,
            _ = &mut self.give_back => return,
        };
        if self.won.send(Ok((term, fence.clone()))).is_err() {
            return;
        }
        let over = tokio::select! {
            why = candidate.renew(term, &fence) => {
                fence.end();
                _ = self.lost.send(why);
                self.give_back.await
            }
            over = &mut self.give_back => over,
        };
        if over.is_ok() {
            candidate.give_back(term).await;
        }
    }
}
