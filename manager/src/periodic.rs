//! A thread that does something again and again, can be woken before its time, and can be stopped.

use std::io;
use std::sync::Arc;
use std::thread::{self, JoinHandle};
use std::time::Duration;

use parking_lot::{Condvar, Mutex};

#[derive(Default)]
struct State {
    stop: bool,
    woken: bool,
}

#[derive(Default)]
struct Shared {
    state: Mutex<State>,
    wake: Condvar,
}

/// The thread.
pub(crate) struct Periodic {
    shared: Arc<Shared>,
    thread: Mutex<Option<JoinHandle<()>>>,
}

impl Periodic {
    /// Starts a thread that calls `tick`, which says how long it may sleep before the next time; `None`: until it is
    /// woken.
    ///
    /// # Errors
    /// The kernel gives no thread.
    pub(crate) fn start(
        name: &str,
        mut tick: impl FnMut() -> Option<Duration> + Send + 'static,
    ) -> io::Result<Periodic> {
        let shared = Arc::new(Shared::default());
        let inner = Arc::clone(&shared);
        let thread = thread::Builder::new().name(name.into()).spawn(move || {
            loop {
                let pause = tick();
                if !inner.sleep(pause) {
                    return;
                }
            }
        })?;
        Ok(Periodic { shared, thread: Mutex::new(Some(thread)) })
    }

    /// Has it tick now, or once more if it is at it.
    pub(crate) fn wake(&self) {
        self.shared.wake();
    }

    /// For others who may wake it.
    #[must_use]
    pub(crate) fn waker(&self) -> Waker {
        Waker(Arc::clone(&self.shared))
    }

    /// Ends the thread, after the tick that it is at.
    pub(crate) fn stop(&self) {
        if let Some(thread) = self.thread.lock().take() {
            self.shared.state.lock().stop = true;
            self.shared.wake.notify_one();
            // A panic in it has ended the process.
            let _ = thread.join();
        }
    }
}

/// Wakes the thread.
pub(crate) struct Waker(Arc<Shared>);

impl Waker {
    /// See [`Periodic::wake`]. When the thread has ended nothing happens.
    pub(crate) fn wake(&self) {
        self.0.wake();
    }
}

impl Shared {
    fn wake(&self) {
        self.state.lock().woken = true;
        self.wake.notify_one();
    }

    /// Sleeps. Returns whether to go on.
    fn sleep(&self, pause: Option<Duration>) -> bool {
        let mut state = self.state.lock();
        let awake = |state: &mut State| !state.stop && !state.woken;
        match pause {
            None => self.wake.wait_while(&mut state, awake),
            Some(pause) => {
                self.wake.wait_while_for(&mut state, awake, pause);
            }
        }
        state.woken = false;
        !state.stop
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use super::*;

    #[test]
    fn it_ticks_at_once_when_woken_and_not_after_the_stop() {
        let (ticks, seen) = mpsc::channel();
        let periodic = Periodic::start("test", move || {
            ticks.send(()).unwrap();
            None
        });
        let periodic = periodic.unwrap();
        seen.recv().unwrap();
        periodic.wake();
        seen.recv().unwrap();
        periodic.stop();
        assert!(seen.recv().is_err());
        periodic.stop();
    }
}
