//! Whether kubelet still listens to a plugin.

use std::sync::Arc;

use tokio::sync::watch;

/// The streams of `ListAndWatch`. Kubelet can open a new stream before it closes the last one, and goes by the newest.
#[derive(Clone, Debug, Default)]
pub(crate) struct Listeners(Arc<watch::Sender<Newest>>);

/// The newest stream, by its number.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub(crate) struct Newest {
    /// The number of streams opened so far, including this one.
    pub(crate) number: u64,
    pub(crate) is_open: bool,
}

/// An open stream. Dropping this closes it.
#[derive(Debug)]
pub(crate) struct Listener {
    number: u64,
    newest: Arc<watch::Sender<Newest>>,
}

impl Listeners {
    /// Opens a stream, which is the newest from now on.
    #[must_use]
    pub(crate) fn listen(&self) -> Listener {
        let mut number = 0;
        self.0.send_modify(|newest| {
            number = newest.number + 1;
            *newest = Newest { number, is_open: true };
        });
        Listener { number, newest: Arc::clone(&self.0) }
    }

    /// The newest stream. The channel has a new value whenever that changes.
    #[must_use]
    pub(crate) fn watch(&self) -> watch::Receiver<Newest> {
        self.0.subscribe()
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        self.newest.send_if_modified(|newest| {
            let is_newest = newest.number == self.number;
            newest.is_open &= !is_newest;
            is_newest
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_older_stream_that_is_still_open_does_not_count() {
        let listeners = Listeners::default();
        let newest = || *listeners.watch().borrow();
        let first = listeners.listen();
        let second = listeners.listen();
        assert_eq!(newest(), Newest { number: 2, is_open: true });
        drop(second);
        assert_eq!(newest(), Newest { number: 2, is_open: false });
        let third = listeners.listen();
        drop(first);
        assert_eq!(newest(), Newest { number: 3, is_open: true });
        drop(third);
        assert!(!newest().is_open);
    }
}
