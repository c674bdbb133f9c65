//! Work that waits, beside an asynchronous runtime.
//!
//! Each piece of work has a thread of its own. The runtime's threads for this purpose would end the process where the
//! kernel gives none of them.

use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;
use std::{io, thread};

use tokio::sync::oneshot;
use tokio::time::sleep;

use crate::Node;

/// The pause before the kernel is asked for a thread again.
const PAUSE: Duration = Duration::from_millis(100);

/// Does work on a thread where waiting delays no asynchronous task.
///
/// # Errors
/// The kernel gives no thread, and the work is not done.
pub async fn aside<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> io::Result<T> {
    let (tell, told) = oneshot::channel();
    let thread = spawn(move || {
        // An error means that the caller waits no more.
        _ = tell.send(work());
    })?;
    match told.await {
        Ok(outcome) => Ok(outcome),
        Err(error) => match thread.join() {
            Err(panic) => std::panic::resume_unwind(panic),
            Ok(()) => Err(io::Error::other(error)),
        },
    }
}

/// Begins work as [`aside`] does, and does not wait for its end.
///
/// # Errors
/// The kernel gives no thread, and the work is not done.
pub fn begin_aside(work: impl FnOnce() + Send + 'static) -> io::Result<()> {
    spawn(work).map(drop)
}

fn spawn(work: impl FnOnce() + Send + 'static) -> io::Result<JoinHandle<()>> {
    thread::Builder::new().name("aside".into()).spawn(work)
}

/// Calls `node` as [`aside`] does. Waits until the kernel gives a thread.
pub async fn blocking<T: Send + 'static>(
    node: &Arc<dyn Node>,
    work: impl FnOnce(&dyn Node) -> T + Send + 'static,
) -> T {
    let waiting = Arc::new(Mutex::new(Some(work)));
    loop {
        let (node, waiting) = (Arc::clone(node), Arc::clone(&waiting));
        let run = move || {
            let work = waiting.lock().unwrap_or_else(PoisonError::into_inner).take();
            work.map(|work| work(node.as_ref()))
        };
        match aside(run).await {
            Ok(Some(outcome)) => return outcome,
            Ok(None) | Err(_) => sleep(PAUSE).await,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn work_is_done_beside_the_runtime() {
        let here = thread::current().id();
        assert_ne!(aside(|| thread::current().id()).await.unwrap(), here);
    }
}
