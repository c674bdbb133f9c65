//! How many times kubelet listens to a plugin.

use std::sync::Arc;

use tokio::sync::watch;

/// Counts the streams of `ListAndWatch` that are open.
#[derive(Clone, Debug, Default)]
pub(crate) struct Listeners(Arc<watch::Sender<usize>>);

/// Kubelet listens for as long as this lives.
#[derive(Debug)]
pub(crate) struct Listener(Arc<watch::Sender<usize>>);

impl Listeners {
    /// Counts one more.
    #[must_use]
    pub(crate) fn listen(&self) -> Listener {
        self.0.send_modify(|count| *count += 1);
        Listener(Arc::clone(&self.0))
    }

    /// How many there are, now and whenever that has changed.
    #[must_use]
    pub(crate) fn watch(&self) -> watch::Receiver<usize> {
        self.0.subscribe()
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        self.0.send_modify(|count| *count = count.saturating_sub(1));
    }
}
