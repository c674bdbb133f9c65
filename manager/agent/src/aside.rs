//! Work that waits, beside the agent's only thread. That thread renews the lease, so all jobs of the node would end if it
//! waited long for a disk, or for a name service on another machine.
//!
//! Each piece of work has a thread of its own. The runtime's threads for this purpose would end the process where the
//! kernel gives none of them.

use std::{io, thread};

use tokio::sync::oneshot;

/// Does work on a thread where waiting delays no task of the agent.
///
/// # Errors
/// The kernel gives no thread, and the work is not done.
pub(crate) async fn aside<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> io::Result<T> {
    let (tell, told) = oneshot::channel();
    begin_aside(move || {
        // An error means that the caller waits no more.
        _ = tell.send(work());
    })?;
    told.await.map_err(io::Error::other)
}

/// Begins work as [`aside`] does, and does not wait for its end.
pub(crate) fn begin_aside(work: impl FnOnce() + Send + 'static) -> io::Result<()> {
    thread::Builder::new().name("aside".into()).spawn(work).map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn work_is_done_beside_the_agents_thread() {
        let here = thread::current().id();
        assert_ne!(aside(|| thread::current().id()).await.unwrap(), here);
    }
}
